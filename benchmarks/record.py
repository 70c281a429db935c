"""Records `fastload bench decode`, `load` and `io` with the corpus, and rewrites the page.

    python -m benchmarks.record [--only decode,load,io] [--copies 8] [--quick]

Takes about 4 minutes on 2 cores. The results go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import fastload
from benchmarks import document
from benchmarks.machine import photo_paths
from fastload._cli import main as command

KINDS = {"decode": ["--size", "256"], "load": ["--against", "torch", "--compute", "20"], "io": []}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(KINDS), help="(default: %(default)s)")
    parser.add_argument(
        "--copies",
        type=int,
        default=8,
        help="copies of each photograph, for the disk (default: %(default)s)",
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--results", type=Path, default=document.RESULTS)
    parser.add_argument("--docs", type=Path, default=document.DOCS)
    options = parser.parse_args(argv)
    photos = photo_paths()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:  # /tmp may be in memory
        images = Path(name) / "images"
        packed = Path(name) / "packed"
        images.mkdir()
        for copy in range(options.copies):
            for path in photos:
                shutil.copyfile(path, images / f"{copy:02}-{path.name}")
        fastload.pack(images, packed)
        for kind in options.only.split(","):
            sys.stderr.write(f"fastload bench {kind} ...\n")
            found = measured(
                [kind, str(packed), *KINDS[kind], *(["--quick"] if options.quick else [])]
            )
            found["dataset"] = f"{len(photos)} photographs x {options.copies}"
            (options.results / f"bench_{kind}.json").write_text(json.dumps(found, indent=1) + "\n")
    return document.main(["--results", str(options.results), "--docs", str(options.docs)])


def measured(words: Sequence[str]) -> dict[str, object]:
    """The output of `fastload bench ... --json`."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command(["bench", *words, "--json"])
    if code:
        raise SystemExit(code)
    found: dict[str, object] = json.loads(printed.getvalue())
    return found


if __name__ == "__main__":
    sys.exit(main())
