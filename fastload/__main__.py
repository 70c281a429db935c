"""`python -m fastload` is the `fastload` command."""

from fastload.cli import main

raise SystemExit(main())
