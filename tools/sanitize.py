"""Runs the core under ThreadSanitizer, and under AddressSanitizer with UBSan.

    python tools/sanitize.py [thread] [address]

Builds native/tests/ in build/sanitize-*. Decodes, rewrites and cuts good and damaged images
(generated ones, and the corpus if it exists), reads good and damaged shards, and warps. Fails on a
sanitizer report, and if two paths that must agree (instruction sets, Huffman decoders, rewrite
paths) differ.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fastload
from benchmarks.works import Work, write_job
from fastload._common.native import core
from fastload._decode.backend import Codec, new_requests
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, sample_image
from tools.fuzz import NATIVE, program, write_seeds

ROOT = Path(__file__).resolve().parents[1]
SANITIZERS = {"thread": "thread", "address": "address,undefined"}
FUZZ_ROUNDS = 20_000
SHARD_ROUNDS = 300
WARP_ROUNDS = 3_000
# (channels, planar, dtype, color) as in native/pixels/output.h
OUTPUTS = [
    (3, 0, 0, 0),
    (3, 1, 0, 1),
    (3, 0, 1, 0),
    (3, 1, 2, 0),
    (1, 0, 3, 2),
    (1, 0, 0, 2),
    (3, 1, 4, 1),
    (1, 0, 4, 2),
]


@dataclass(frozen=True)
class Jpeg:
    """A complete or damaged file, with its restart index."""

    data: bytes
    index: bytes = b""
    interval: int = 0


def make_jpegs() -> list[Jpeg]:
    """Makes all kinds of JPEG, complete and damaged, with and without an index."""
    module = core()
    if module is None:
        raise SystemExit("The native core is missing. Run `make` first.")
    random = np.random.default_rng(1)
    whole = [
        encode(sample_image(120 + 7 * i, 90 + 5 * i, i), sampling)
        for i, sampling in enumerate(SAMPLINGS)
    ]
    whole += [
        encode_by_pillow(sample_image(100, 80), "420", progressive=True),
        encode(sample_image(640, 480), "420"),
        encode(sample_image(3, 2), "444"),
    ]
    jpegs = [Jpeg(data) for data in whole]
    for restart in (1, 3, -1):
        for data in whole:
            rewritten = module.rewrite(data, restart=restart)
            jpegs.append(Jpeg(rewritten.jpeg, rewritten.index_bytes, rewritten.interval))
    for jpeg in list(jpegs):
        for _ in range(8):
            damaged = bytearray(jpeg.data)
            for at in random.integers(2, len(damaged), 3):
                damaged[at] = random.integers(256)
            jpegs.append(Jpeg(bytes(damaged), jpeg.index, jpeg.interval))
        length = int(random.integers(len(jpeg.data)))
        jpegs.append(Jpeg(jpeg.data[:length], jpeg.index, jpeg.interval))
    odd = ROOT.parent / "shared" / "corpus" / "odd"
    files = sorted(path for path in odd.rglob("*") if path.is_file())
    return jpegs + [Jpeg(path.read_bytes()) for path in files]


def make_work(jpegs: list[Jpeg]) -> Work:
    """Makes requests for each image, whole and as a region, and for raw pixels."""
    random = np.random.default_rng(2)
    requests = new_requests(2 * len(jpegs) + 100)
    for i, row in enumerate(requests):
        row["out_w"] = random.integers(1, 65)
        row["out_h"] = random.integers(1, 49)
        row["filter"] = random.integers(3)
        row["flip"] = i % 2
        row["orientation"] = random.integers(1, 9)
        row["exact"] = random.integers(2)
        if i >= 2 * len(jpegs):
            wide = i % 2
            row["source"] = len(jpegs) + wide
            row["codec"] = Codec.RAW
            row["raw_w"] = 40
            row["raw_h"] = 30
            row["raw_channels"] = 3
            row["raw_bits"] = 16 if wide else 8
            continue
        row["source"] = i // 2
        jpeg = jpegs[i // 2]
        row["size"] = len(jpeg.data)
        row["index_offset"] = len(jpeg.data)
        row["index_count"] = len(jpeg.index) // 4
        row["interval"] = jpeg.interval
        if i % 2:
            row["x"], row["y"] = random.integers(0, 60, 2)
            row["w"], row["h"] = random.integers(1, 90, 2)
    raw = sample_image(40, 30)
    sources = [jpeg.data + jpeg.index for jpeg in jpegs]
    sources += [raw.tobytes(), (raw.astype(np.uint16) * 257).tobytes()]
    return Work("sanitize", 0.0, sources, requests, (48, 64, 3), lambda _i, _slot: None)


def make_shard(folder: Path) -> Path:
    """Makes a shard of several pages: small images, and one that needs overflow pages."""
    source = folder / "images" / "class"
    source.mkdir(parents=True)
    for i in range(300):
        (source / f"{i}.jpg").write_bytes(encode(sample_image(20 + i % 7, 16, i), "420"))
    (source / "large.jpg").write_bytes(encode(sample_image(400, 300), "444"))
    fastload.pack(source.parent, folder / "dataset")
    return folder / "dataset" / "shard-00000.lmdb"


def build(name: str) -> Path:
    """Compiles the drivers with this sanitizer; returns their folder."""
    folder = ROOT / "build" / f"sanitize-{name}"
    print(f"{SANITIZERS[name]}: {folder.relative_to(ROOT)}", flush=True)
    sources = str(ROOT / "native" / "tests")
    sanitizer = f"-DFASTLOAD_SANITIZE={SANITIZERS[name]}"
    for command in (
        ["cmake", "-S", sources, "-B", str(folder), sanitizer],
        ["cmake", "--build", str(folder), "--parallel"],
    ):
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return folder


def run(program: Path, *arguments: object, title: str) -> str:
    """Runs a driver. A nonzero exit code or any line on stderr ends this program."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"  {program.name} {title}: {done.stdout.strip()}", flush=True)
    if done.returncode or done.stderr:
        raise SystemExit(done.stderr or f"exit code {done.returncode}")
    return done.stdout


def check_paths_agree(driver: Path, work: Work, job: Path) -> None:
    """Checks that every instruction set and both Huffman decoders give the same pixels."""
    for output in OUTPUTS:
        write_job(work, job, output)
        pixels = {
            how: run(driver, job, how, 1, title=how).split("failed")[1]
            for how in ("loop", "plain", "avx2", "portable")
        }
        if len(set(pixels.values())) > 1:
            raise SystemExit(f"pixels of Huffman decoders or instruction sets differ: {pixels}")


def fuzz_transform(program: Path, jpegs: list[Jpeg], folder: Path) -> None:
    """Rewrites and cuts damaged and undamaged images, with both rewrite paths."""
    paths = [folder / f"{i}.jpg" for i in range(len(jpegs))]
    for path, jpeg in zip(paths, jpegs, strict=True):
        path.write_bytes(jpeg.data)
    run(program, FUZZ_ROUNDS, *paths, title=f"over {len(paths)} files")


def run_fuzz_targets(programs: Path) -> None:
    """Runs the C++ fuzz targets over their seeds and saved inputs."""
    for name in NATIVE:
        inputs = sorted(write_seeds(name).iterdir())
        run(programs / program(name), *inputs, title="over saved inputs")


def main() -> None:
    jpegs = make_jpegs()
    everything = make_work(jpegs)
    some = make_work(jpegs[::13])
    raw = make_work([])  # threads claim several raw samples at a time
    names = [name for name in SANITIZERS if name in sys.argv[1:]] or list(SANITIZERS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = folder / "job"
        shard = make_shard(folder)
        for sanitizer in names:
            programs = build(sanitizer)
            driver = programs / "driver"
            if sanitizer == "address":
                check_paths_agree(driver, everything, job)
                fuzz_transform(programs / "fuzz_transform", jpegs, folder)
                run(programs / "fuzz_warp", WARP_ROUNDS, title="by random matrices")
                run_fuzz_targets(programs)
            run(programs / "fuzz_shard", SHARD_ROUNDS, 3, shard, title="in 3 threads")
            for work in (some, raw):
                write_job(work, job)
                run(driver, job, "pool", 4, 4, title="pool of 4 threads")
                run(driver, job, "stress", 20, 6, title="stress, up to 6 threads")


if __name__ == "__main__":
    main()
