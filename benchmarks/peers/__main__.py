"""Compares fastload with other loaders on this machine: same images, same work, own processes.

    python -m benchmarks.peers            all peers and works (about 12 minutes on 2 cores)
    python -m benchmarks.peers --peers fastload,ffcv --works rrc --rounds 3 --json out.json
    python -m benchmarks.peers --quick    checks that everything runs; its figures mean nothing

Rounds are interleaved. `make peers` sets up the venv first. A peer that cannot be installed or run
is listed with the reason.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import data, packing
from benchmarks.peers.job import WORKS
from benchmarks.peers.loading import Compared, compare
from benchmarks.peers.peers import PEERS, adapter, missing
from fastload._common.cpus import available_cpus
from fastload._tools.bench.measure import (
    commit,
    in_one_line,
    machine,
    package_version,
    part,
    versions,
)


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    here = machine()
    report = {
        "machine": here,
        "versions": _versions(options.peers),
        "commit": commit(Path(__file__).parent),
        "workers": options.workers,
        "rounds": options.rounds,
        "seconds": options.seconds,
        "quick": options.quick,
    }
    print(in_one_line(here))
    print(
        ", ".join(f"{name} {each}" for name, each in _versions(options.peers).items())
        + f"; {options.workers} workers or threads each"
    )
    with tempfile.TemporaryDirectory(prefix="fastload-peers-") as name:
        folder = options.data or Path(name) / "data"
        _say("creating the images")
        data.prepare(folder, options.works, quick=options.quick)
        _say("packing them for each peer")
        failed = packing.prepare(
            options.peers, options.works, folder, Path(name) / "packed", options.workers
        )
        compared = []
        for work in options.works:
            _say(f"loading: {WORKS[work].title}")
            found = compare(
                work,
                [peer for peer in options.peers if peer not in failed],
                folder,
                Path(name) / "packed",
                workers=options.workers,
                rounds=options.rounds,
                seconds=options.seconds,
            )
            found.absent.update({peer: f"could not pack: {why}" for peer, why in failed.items()})
            found.table().show()
            print()
            compared.append(found)
        report["works"] = [found.as_json() for found in compared]
        if not options.no_packing:
            report["packing"] = _pack(options, folder, Path(name) / "scratch")
    report["reach"] = summarize(compared)
    for line in report["reach"]:
        print(line)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if any(found.lines for found in compared) else 1


def _pack(options: argparse.Namespace, folder: Path, scratch: Path) -> dict[str, object]:
    work = options.works[0]
    _say(f"packing: {WORKS[work].title}")
    rows, wrong = packing.measure(
        options.peers, folder, scratch, work=work, workers=options.workers, rounds=options.rounds
    )
    n = len(list((folder / WORKS[work].data).glob("*.jpg")))
    if rows:
        packing.table(rows, n).show()
    for peer, why in wrong.items():
        print(f"{PEERS[peer].title}: could not pack: {why}")
    return {"work": work, "n": n, "rows": [row.as_json() for row in rows], "failed": wrong}


def summarize(compared: Sequence[Compared]) -> list[str]:
    """One line per work: fastload compared with the fastest other loader."""
    summary = []
    for found in compared:
        by_name = {line.peer: line for line in found.lines}
        fastload = by_name.get("fastload")
        others = [line for line in found.lines if not PEERS[line.peer].is_fastload]
        if fastload is None or not others:
            continue
        per_s = fastload.per_s.middle
        best = max(others, key=lambda line: line.per_s.middle)
        least_mb = min(line.peak_mb for line in others)
        text = (
            f"{WORKS[found.work].title}: {per_s / best.per_s.middle:.2f} times as fast as the next "
            f"loader ({PEERS[best.peer].title}), "
            f"{part(fastload.cpu_ms.middle, best.cpu_ms.middle)} times its CPU time, "
            f"{fastload.peak_mb / max(least_mb, 0.1):.2f} times the least memory of the others"
        )
        if exact := by_name.get("fastload-exact"):
            gain = exact.per_s.middle / best.per_s.middle
            text += f"; with exact=True {gain:.2f} times as fast as that loader"
        if core := by_name.get("core"):
            text += f", {per_s / core.per_s.middle:.0%} of the bare core"
        if raw := by_name.get("fastload-raw"):
            gain = raw.per_s.middle / max(best.per_s.middle, per_s)
            text += f"; raw pixels are {gain:.2f} times as fast as the fastest JPEG loader"
        summary.append(text)
    return summary


def _versions(peers: Sequence[str]) -> dict[str, str]:
    packages = dict.fromkeys(
        package for peer in peers if not missing(peer) for package in adapter(peer).PACKAGES
    )
    return {**versions(), **{package: package_version(package) for package in packages}}


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--peers",
        type=_some_of(tuple(PEERS)),
        default=list(PEERS),
        help=f"some of {','.join(PEERS)} (default: all)",
    )
    parser.add_argument(
        "--works",
        type=_some_of(tuple(WORKS)),
        default=list(WORKS),
        help=f"some of {','.join(WORKS)} (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds",
        type=float,
        default=1.5,
        help="minimum length of one round (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=available_cpus(),
        help="threads or worker processes per loader (default: %(default)s)",
    )
    parser.add_argument("--data", type=Path, help="keep the images in this folder and reuse them")
    parser.add_argument("--no-packing", action="store_true", help="do not compare packing")
    parser.add_argument(
        "--quick", action="store_true", help="few images and one short round, to check that it runs"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write all figures to a file")
    options = parser.parse_args(argv)
    if options.quick:
        options.rounds, options.seconds = 1, 0.0
    return options


def _some_of(known: tuple[str, ...]):  # type: ignore[no-untyped-def]
    def chosen(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown)}: expected names from {','.join(known)}"
            )
        return names

    return chosen


def _say(text: str) -> None:
    sys.stderr.write(f"{text} ...\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
