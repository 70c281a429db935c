"""python -m tools.makedata LAYOUT DEST [--n N] [--seed S] [--jobs J]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Protocol

from fastload._common.cpus import available_cpus
from fastload._tools.scenes import imagenet
from fastload._tools.scenes.generate import Made, OnProgress, UsageError, require_empty
from tools.makedata import captcha, gray, nuscenes, openlane


class _Maker(Protocol):
    def __call__(
        self, dest: Path, *, n: int, seed: int, jobs: int, on_progress: OnProgress
    ) -> Made: ...


# maker, default number of samples; all of them together took 36 s on two busy cores
LAYOUTS: dict[str, tuple[_Maker, int]] = {
    "imagenet": (imagenet.make, 200),
    "openlane": (openlane.make, 16),
    "nuscenes": (nuscenes.make, 4),
    "gray": (gray.make, 400),
    "captcha": (captcha.make, 200),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="makedata",
        description="Generate a photo-like dataset from a seed, without downloads.",
        epilog="example: python -m tools.makedata imagenet /tmp/imagenet --n 1000 --seed 7",
    )
    parser.add_argument(
        "layout",
        choices=(*LAYOUTS, "all"),
        help="layout to generate; 'all' generates each in a folder of its name",
    )
    parser.add_argument("dest", type=Path, help="output folder; must be empty or missing")
    sizes = ", ".join(f"{name} {n}" for name, (_, n) in LAYOUTS.items())
    parser.add_argument("--n", type=int, help=f"samples per layout (default: {sizes})")
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="random seed; the same seed gives the same bytes (default: 0)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=available_cpus(),
        help="number of processes; does not affect the result (default: %(default)s)",
    )
    return parser


def _progress_of(name: str) -> OnProgress:
    """Prints progress to stderr: one updated line on a terminal, at most ten lines otherwise."""
    live = sys.stderr.isatty()

    def show(done: int, total: int) -> None:
        last = done == total
        if live:
            end = "\n" if last else ""
            print(f"\r{name} {done}/{total}", end=end, file=sys.stderr, flush=True)
        elif last or done * 10 // total > (done - 1) * 10 // total:
            print(f"{name} {done}/{total}", file=sys.stderr, flush=True)

    return show


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0, 1 (write error), 2 (usage error), 130 (Ctrl-C)."""
    args = _parser().parse_args(argv)
    try:
        require_empty(args.dest)
        for name in LAYOUTS if args.layout == "all" else (args.layout,):
            maker, default_n = LAYOUTS[name]
            dest = args.dest / name if args.layout == "all" else args.dest
            n = default_n if args.n is None else args.n
            show = _progress_of(name)
            print(maker(dest, n=n, seed=args.seed, jobs=args.jobs, on_progress=show), flush=True)
    except UsageError as error:
        print(f"makedata: {error}", file=sys.stderr)
        return 2
    except (OSError, BrokenExecutor) as error:
        print(
            f"makedata: cannot write {args.dest}: {error}. Delete the incomplete folder.",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        print(f"\nmakedata: stopped. Delete the incomplete folder {args.dest}.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
