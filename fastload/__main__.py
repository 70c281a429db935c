"""`python -m fastload` is the `fastload` command."""

from fastload._cli import main

raise SystemExit(main())
