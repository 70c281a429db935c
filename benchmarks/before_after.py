"""Compares the speed of two source trees. Every round measures both.

    python benchmarks/before_after.py BEFORE AFTER [--rounds 5] [--processes 3] [--only NAME]

BEFORE and AFTER are clones of fastload. A clone with ``.venv/bin/python`` is measured with that
interpreter. Any other clone is put on the PYTHONPATH of this interpreter, so it must contain the
compiled core. Each tree packs the images itself and is used only through its public API, so the two
may differ in module paths, format and native interface.

The measurements are the main ones of load.py (photographs, small grayscale JPEGs, raw pixels, other
orders) and the works of decode.py (crop with and without an index, downscaling, whole images,
stored size), all through ``fastload.DataLoader``. A round is one epoch. Ratios are taken per round,
and the tree that runs first alternates. Every process is restarted ``--processes`` times, because
the memory layout alone can change a figure by some percent.

Pass the same tree twice to see the noise of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Work:
    """One measurement: a dataset packed with ``pack`` and loaded with the transforms ``steps``."""

    name: str
    images: str  # the folder of source images
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # (transform, arguments)
    batch_size: int = 64
    shuffle: bool | str = True
    pack: tuple[tuple[str, Any], ...] = ()  # arguments of fastload.pack


CROP = (("RandomResizedCrop", (224,)), ("HorizontalFlip", ()))
WORKS = (
    Work("RRC 224", "photos", CROP),
    Work("RRC 224, float32", "photos", (*CROP, ("Normalize", (MEAN, STD)))),
    Work("RRC 224, no index", "photos", CROP, pack=(("restart", 0),)),
    Work("1920x1280 to 960x640", "mosaics", (("Resize", (640, 960)),), 8),
    Work("whole to 256x256", "photos", (("Resize", (256, 256)),)),
    Work("128x128 color JPEG", "color", batch_size=256),
    Work("128x128 gray JPEG", "gray", batch_size=256),
    Work("128x128 gray JPEG, full shuffle", "gray", batch_size=256, shuffle="full"),
    Work("128x128 gray raw", "gray", batch_size=256, pack=(("encode", "raw"),)),
    Work("36x36 color JPEG of 1 kB", "tiny-color", batch_size=256),
    Work("28x28 gray raw", "tiny-gray", batch_size=256, pack=(("encode", "raw"),)),
)


@dataclass(frozen=True)
class Epoch:
    """The figures of one child process in one round."""

    images_per_s: float
    cpu_ms_per_image: float


@dataclass(frozen=True)
class Comparison:
    """All rounds of one work. Ratios above 1 mean that the second tree is faster."""

    work: str
    threads: int
    before: list[Epoch]
    after: list[Epoch]

    def ratios(self) -> list[float]:
        pairs = zip(self.before, self.after, strict=True)
        return [after.images_per_s / before.images_per_s for before, after in pairs]

    def cpu_ratios(self) -> list[float]:
        pairs = zip(self.before, self.after, strict=True)
        return [before.cpu_ms_per_image / after.cpu_ms_per_image for before, after in pairs]

    def __str__(self) -> str:
        before = spread([epoch.images_per_s for epoch in self.before], ".0f")
        after = spread([epoch.images_per_s for epoch in self.after], ".0f")
        return (
            f"{self.work:32} {self.threads:7} {len(self.before):3}  {before:>22} {after:>22}  "
            f"{spread(self.ratios(), '.3f'):>20}  {spread(self.cpu_ratios(), '.3f'):>20}"
        )


class Tree:
    """One source tree, measured by child processes."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        own = self.path / ".venv" / "bin" / "python"
        self.python = str(own) if own.exists() else sys.executable
        self._environment = dict(os.environ)
        if not own.exists():
            self._environment["PYTHONPATH"] = str(self.path)

    def start(self, job: dict[str, Any], folder: Path) -> Child:
        """Runs ``job`` in a new process in the working directory ``folder``, without packages."""
        command = [self.python, str(Path(__file__).resolve()), "--child", json.dumps(job)]
        return Child(command, self._environment, folder)

    def describe(self, folder: Path) -> dict[str, str]:
        """Commit, interpreter and versions. Checks that the child imports this tree."""
        with self.start({"describe": str(self.path)}, folder) as child:
            facts: dict[str, str] = child.answer()
        if not Path(facts["module"]).is_relative_to(self.path):
            raise SystemExit(f"{self.path}: {self.python} imports {facts['module']} instead")
        commit = self._git("rev-parse", "--short=12", "HEAD")
        changed = self._git("status", "--porcelain", "-uno")
        return {"path": str(self.path), "commit": commit + "+" * bool(changed), **facts}

    def _git(self, *words: str) -> str:
        command = ["git", "-C", str(self.path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


class Child:
    """A process that answers every line on its stdin with one line of JSON."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=folder,
            text=True,
        )

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a child process ended with exit code {self._process.wait()}")
        return json.loads(line)

    def run_epoch(self) -> Epoch:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return Epoch(**self.answer())

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def compare(
    work: Work, trees: Sequence[Tree], folder: Path, *, threads: int, rounds: int, processes: int
) -> Comparison:
    """Measures both trees; the first epoch of a process does not count."""
    found: tuple[list[Epoch], list[Epoch]] = ([], [])
    for process in range(processes):
        children = [
            tree.start({"work": asdict(work), "threads": threads, "packed": str(packed)}, folder)
            for tree, packed in zip(trees, _packed(work, trees, folder), strict=True)
        ]
        with children[0], children[1]:
            for child in children:
                child.answer()
            for turn in range(rounds + 1):
                for which in (0, 1) if (process + turn) % 2 else (1, 0):
                    epoch = children[which].run_epoch()
                    if turn:
                        found[which].append(epoch)
    return Comparison(work.name, threads, *found)


def _packed(work: Work, trees: Sequence[Tree], folder: Path) -> list[Path]:
    """The dataset of ``work``, packed once by each tree."""
    options = "-".join(f"{name}={value}" for name, value in work.pack)
    paths = [folder / f"{work.images}-{options}-{number}" for number in (0, 1)]
    for tree, path in zip(trees, paths, strict=True):
        if not path.exists():
            job = {"pack": str(folder / work.images), "to": str(path), "options": dict(work.pack)}
            with tree.start(job, folder) as child:
                child.answer()
    return paths


def write_images(folder: Path, *, copies: int, small: int, tiny: int, mosaics: int) -> None:
    """Writes the source images: photographs, mosaics of them, and small gray and color crops."""
    import numpy as np
    import simplejpeg
    from PIL import Image

    corpus = os.environ.get(
        "FASTLOAD_CORPUS", Path(__file__).resolve().parents[2] / "shared/corpus"
    )
    paths = sorted(path for path in (Path(corpus) / "photos").glob("*") if path.is_file())
    if not paths:
        raise SystemExit(f"no photographs in {corpus}/photos: set FASTLOAD_CORPUS")
    for copy in range(copies):
        for path in paths:
            _write(folder / "photos" / f"{copy:02}" / path.name, path.read_bytes())
    photos = [Image.open(path).convert("RGB") for path in paths[:64]]
    for number in range(mosaics):
        canvas = Image.new("RGB", (1920, 1280))
        for place in range(4):
            tile = photos[(4 * number + place) % len(photos)].resize((960, 640))
            canvas.paste(tile, (place % 2 * 960, place // 2 * 640))
        data = simplejpeg.encode_jpeg(np.asarray(canvas), quality=90, colorsubsampling="420")
        _write(folder / "mosaics" / "a" / f"{number:04}.jpg", data)
    random = np.random.default_rng(0)
    tiles = [np.asarray(photo.resize((256, 256))) for photo in photos]
    for name, count, side, space in (
        ("color", small, 128, "RGB"),
        ("gray", small, 128, "GRAY"),
        ("tiny-color", tiny, 36, "RGB"),
        ("tiny-gray", tiny, 28, "GRAY"),
    ):
        for number in range(count):
            x, y = random.integers(0, 257 - side, 2)
            pixels = np.ascontiguousarray(tiles[number % len(tiles)][y : y + side, x : x + side])
            if space == "GRAY":
                pixels = np.ascontiguousarray(pixels.mean(2).astype(np.uint8)[:, :, None])
            path = folder / name / "ab"[number % 2] / f"{number:06}.jpg"
            _write(path, simplejpeg.encode_jpeg(pixels, quality=90, colorspace=space))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def spread(values: Sequence[float], spec: str) -> str:
    """Median and quartiles as text."""
    if len(values) < 2:
        return f"{values[0]:{spec}}"
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{median:{spec}} [{low:{spec}}-{high:{spec}}]"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="rounds per process")
    parser.add_argument("--processes", type=int, default=3, help="processes per tree and work")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--copies", type=int, default=8, help="copies of each photograph")
    parser.add_argument("--small", type=int, default=8192, help="images of 128x128")
    parser.add_argument("--tiny", type=int, default=32768, help="images of 28x28 and 36x36")
    parser.add_argument("--mosaics", type=int, default=64, help="images of 1920x1280")
    parser.add_argument("--only", default="", help="works whose name contains this")
    parser.add_argument("--folder", type=Path, help="where the datasets are written")
    parser.add_argument("--json", type=Path, help="also write every figure to this file")
    options = parser.parse_args()
    trees = [Tree(options.before), Tree(options.after)]
    found: list[Comparison] = []
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        facts = [tree.describe(folder) for tree in trees]
        print(f"machine: {_machine()}")
        for label, fact in zip(("before", "after"), facts, strict=True):
            print(f"{label}: " + ", ".join(f"{key} {value}" for key, value in fact.items()))
        write_images(
            folder,
            copies=options.copies,
            small=options.small,
            tiny=options.tiny,
            mosaics=options.mosaics,
        )
        print(
            f"\n{'work':32} {'threads':>7} {'n':>3}  {'images/s before':>22} {'after':>22}  "
            f"{'after / before':>20}  {'the same, CPU time':>20}"
        )
        for work in WORKS:
            for threads in options.threads if options.only in work.name else ():
                found.append(
                    compare(
                        work,
                        trees,
                        folder,
                        threads=threads,
                        rounds=options.rounds,
                        processes=options.processes,
                    )
                )
                print(found[-1], flush=True)
    if options.json:
        report = {"machine": _machine(), "trees": facts, "rows": [asdict(each) for each in found]}
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _machine() -> str:
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith(("model name", "Model"))
    ]
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{models[0] if models else 'unknown'}, {len(os.sched_getaffinity(0))} CPUs, load {load}"


def child(job: dict[str, Any]) -> None:
    """Runs in the measuring process and imports fastload from the tree of its interpreter."""
    del sys.path[0]  # the folder of this file, whose modules must not shadow others
    import fastload

    if "describe" in job:
        facts = _describe_installation()
    elif "pack" in job:
        fastload.pack(job["pack"], job["to"], **job["options"])
        facts = {}
    else:
        run = _epochs(job)
        print("{}", flush=True)
        for _ in sys.stdin:
            print(json.dumps(asdict(run())), flush=True)
        return
    print(json.dumps(facts), flush=True)


def _describe_installation() -> dict[str, str]:
    import platform

    import numpy as np
    import torch

    import fastload

    return {
        "module": str(fastload.__file__),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fastload": fastload.__version__,
        "core": str(fastload.native_status()),
    }


def _epochs(job: dict[str, Any]) -> Callable[[], Epoch]:
    import fastload
    from fastload import transforms

    work = job["work"]
    steps = [getattr(transforms, name)(*arguments) for name, arguments in work["steps"]]
    loader = fastload.DataLoader(
        job["packed"],
        work["batch_size"],
        shuffle=work["shuffle"],
        drop_last=True,
        transform=steps or None,
        num_workers=job["threads"],
    )

    def run() -> Epoch:
        loader.set_epoch(0)
        n_images = 0
        wall = time.perf_counter()
        cpu = time.process_time()
        for images, _ in loader:
            n_images += len(images)
        wall = time.perf_counter() - wall
        cpu = time.process_time() - cpu
        return Epoch(n_images / wall, 1e3 * cpu / n_images)

    return run


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(json.loads(sys.argv[2]))
        sys.exit(0)
    sys.exit(main())
