"""Runs the core under ThreadSanitizer, and under AddressSanitizer and UBSan: every decode path, good and damaged images.

    python tools/sanitize.py [thread] [address]

Builds native/tests/ in build/sanitize-*, writes jobs of generated images (and of the corpus' odd ones, where it is there), and
fails where a sanitizer speaks up, the same job gives other pixels, or the two ways of rewriting a JPEG give other files.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.works import Work, write_job
from fastload._common.native import core
from fastload._decode.backend import Codec, new_requests
from tests.jpeg_samples import SAMPLINGS, encode, encode_by_pillow, picture

ROOT = Path(__file__).resolve().parents[1]
SANITIZERS = {"thread": "thread", "address": "address,undefined"}
FUZZ_ROUNDS = 20_000
# (channels, planar, dtype, colour) as in native/pixels/output.h
OUTPUTS = [(3, 0, 0, 0), (3, 1, 0, 1), (3, 0, 1, 0), (3, 1, 2, 0), (1, 0, 3, 2), (1, 0, 0, 2)]


def images() -> list[tuple[bytes, bytes, int]]:
    """(image, its restart index, interval): all kinds, whole and damaged."""
    module = core()
    if module is None:
        raise SystemExit("the native core is not built")
    random = np.random.default_rng(1)
    whole = [
        encode(picture(120 + 7 * i, 90 + 5 * i, i), sampling)
        for i, sampling in enumerate(SAMPLINGS)
    ]
    whole += [
        encode_by_pillow(picture(100, 80), "420", progressive=True),
        encode(picture(640, 480), "420"),
        encode(picture(3, 2), "444"),
    ]
    found = [(data, b"", 0) for data in whole]
    for restart in (1, 3, -1):
        for data in whole:
            rewritten = module.rewrite(data, restart=restart)
            jpeg = rewritten.jpeg
            index = rewritten.index
            interval = rewritten.interval
            found.append((jpeg, index.tobytes(), interval))
    for data, index, interval in list(found):
        for _ in range(8):
            damaged = bytearray(data)
            for at in random.integers(2, len(data), 3):
                damaged[at] = random.integers(256)
            found.append((bytes(damaged), index, interval))
        found.append((data[: int(random.integers(len(data)))], index, interval))
    odd = ROOT.parent / "shared" / "corpus" / "odd"
    return found + [
        (path.read_bytes(), b"", 0) for path in sorted(odd.rglob("*")) if path.is_file()
    ]


def work(sources: list[tuple[bytes, bytes, int]]) -> Work:
    """Each image whole and as a region, to random sizes; and raw pixels."""
    random = np.random.default_rng(2)
    requests = new_requests(2 * len(sources) + 100)
    for i, row in enumerate(requests):
        row["out_w"], row["out_h"], row["filter"], row["flip"] = (
            random.integers(1, 65),
            random.integers(1, 49),
            random.integers(3),
            i % 2,
        )
        row["orientation"], row["exact"] = random.integers(1, 9), random.integers(2)
        if i >= 2 * len(sources):
            row["source"], row["codec"], row["raw_w"], row["raw_h"] = (
                len(sources),
                Codec.RAW,
                40,
                30,
            )
            row["raw_channels"], row["raw_bits"] = 3, 8
            continue
        data, index, interval = sources[i // 2]
        row["source"], row["size"] = i // 2, len(data)
        row["index_offset"], row["index_count"], row["interval"] = (
            len(data),
            len(index) // 4,
            interval,
        )
        if i % 2:
            row["x"], row["y"], row["w"], row["h"] = (
                *random.integers(0, 60, 2),
                *random.integers(1, 90, 2),
            )
    joined = [data + index for data, index, _ in sources] + [picture(40, 30).tobytes()]
    return Work("sanitize", 0.0, joined, requests, (48, 64, 3), lambda _i, _slot: None)


def built(name: str) -> Path:
    """The driver with this sanitizer."""
    build = ROOT / "build" / f"sanitize-{name}"
    print(f"{SANITIZERS[name]}: {build.relative_to(ROOT)}", flush=True)
    for command in (
        [
            "-S",
            str(ROOT / "native" / "tests"),
            "-B",
            str(build),
            f"-DFASTLOAD_SANITIZE={SANITIZERS[name]}",
        ],
        ["--build", str(build), "--parallel"],
    ):
        subprocess.run(["cmake", *command], check=True, stdout=subprocess.DEVNULL)
    return build / "driver"


def run(driver: Path, *arguments: str, shown: str = "") -> str:
    done = subprocess.run([str(driver), *arguments], capture_output=True, text=True, check=False)
    print(f"  {shown or ' '.join(arguments[1:])}: {done.stdout.strip()}", flush=True)
    if done.returncode or done.stderr:
        raise SystemExit(done.stderr or f"exit code {done.returncode}")
    return done.stdout


def fuzz(program: Path, found: list[tuple[bytes, bytes, int]], folder: Path) -> None:
    """Rewrites and cuts damaged images, both ways; every file also as it is."""
    paths = []
    for i, (data, _, _) in enumerate(found):
        paths.append(folder / f"{i}.jpg")
        paths[-1].write_bytes(data)
    run(
        program, str(FUZZ_ROUNDS), *map(str, paths), shown=f"fuzz_transform over {len(paths)} files"
    )


def main() -> None:
    found = images()
    everything, some, raw = (
        work(found),
        work(found[::13]),
        work([]),
    )  # raw: threads take several of them at a time
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        for name in [name for name in SANITIZERS if name in sys.argv[1:]] or list(SANITIZERS):
            driver = built(name)
            if name == "address":
                for output in OUTPUTS:
                    write_job(everything, job, output)
                    pixels = {
                        how: run(driver, str(job), how, "1").split("failed")[1]
                        for how in ("loop", "plain", "avx2", "portable")
                    }
                    if len(set(pixels.values())) > 1:
                        raise SystemExit(
                            f"Huffman decoders (ours, libjpeg's) or vector levels give other pixels: {pixels}"
                        )
                fuzz(driver.with_name("fuzz_transform"), found, Path(folder))
            for batch in (some, raw):
                write_job(batch, job)
                run(driver, str(job), "pool", "4", "4")
                run(driver, str(job), "stress", "20", "6")


if __name__ == "__main__":
    main()
