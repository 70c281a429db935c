"""Child process of test_fuzzed_images.py.

Reads images from stdin (8 bytes with the length, then the bytes) and prints the result of each as
JSON. With ``--many N``, decodes N images of all kinds and prints the memory usage over time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import numpy as np

from fastload._common.native import core
from fastload._decode.backend import DecodeBatch, PixelFormat, Status, new_requests
from fastload._decode.native import NativeBackend

MEMORY = 2 << 30  # address space for images; far more than decoding one needs
SIZE = (48, 64)  # height, width


def main() -> None:
    if sys.argv[1:2] == ["--many"]:
        print(json.dumps(decode_many(int(sys.argv[2]))))
        return
    # NumPy reserves address space for each CPU of the machine.
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    backend = NativeBackend(threads=1)
    good = _make_jpeg(90, 60)
    expected = _decode(backend, [good])[0]
    while head := sys.stdin.buffer.read(8):
        data = sys.stdin.buffer.read(int.from_bytes(head, "little"))
        requests = new_requests(4)
        requests["source"], requests["exact"] = [0, 0, 0, 1], [0, 1, 0, 0]
        requests["out_h"], requests["out_w"] = SIZE
        requests["x"][2], requests["y"][2], requests["w"][2], requests["h"][2] = 1, 1, 5, 6
        output = np.zeros((4, *SIZE, 3), np.uint8)
        result = backend.collect(backend.submit(DecodeBatch([data, good], requests, output)))
        status = result.status[:3].tolist()
        # The image is smaller than the requested region, which is a correct error.
        if status[2] == Status.BAD_REQUEST and "is outside the image" in result.reasons[2]:
            status[2] = status[0]
        print(
            json.dumps(
                {
                    "status": status,
                    "next_is_correct": bool((output[3] == expected).all()),
                    "crc": _checksum(output[:3]),
                    "peak_mb": _peak_mb(),
                }
            ),
            flush=True,
        )


def _checksum(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> int:
    module = core()
    assert module is not None
    return int(module.crc32c(pixels.tobytes()))


def _make_jpeg(width: int, height: int, restart: int = 0) -> bytes:
    import simplejpeg

    module = core()
    assert module is not None
    pixels = (
        np.random.default_rng(width)
        .integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
        .repeat(4, 0)
        .repeat(4, 1)
    )
    data = bytes(
        simplejpeg.encode_jpeg(np.ascontiguousarray(pixels[:height, :width]), 80, "RGB", "420")
    )
    return bytes(module.rewrite(data, restart=restart).jpeg) if restart else data


def _decode(
    backend: NativeBackend, sources: list[bytes]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    requests = new_requests(len(sources))
    requests["out_h"], requests["out_w"] = SIZE
    output = np.zeros((len(sources), *SIZE, 3), np.uint8)
    backend.collect(backend.submit(DecodeBatch(sources, requests, output))).raise_first()
    return output


def decode_many(n: int) -> list[dict[str, int]]:
    """Decodes good, damaged, progressive and large images with several filters, 50 per batch."""
    import io

    from PIL import Image

    def progressive() -> bytes:
        file = io.BytesIO()
        Image.open(io.BytesIO(_make_jpeg(80, 60))).save(file, "JPEG", progressive=True)
        return file.getvalue()

    small = _make_jpeg(90, 60)
    tables = small.index(b"\xff\xc4")
    length = int.from_bytes(small[tables + 2 : tables + 4], "big") + 2
    kinds = [
        small,
        _make_jpeg(160, 120, 4),
        progressive(),
        small[:400],
        small[:-40],
        small[:tables] + small[tables + length :],
        b"",
        _make_jpeg(700, 500),
        _make_jpeg(33, 21, 1),
        bytes(100),
    ]
    sources = kinds * 5
    requests = new_requests(len(sources))
    requests["out_h"], requests["out_w"] = SIZE
    requests["filter"], requests["flip"] = np.arange(50) % 3, np.arange(50) % 2
    requests["orientation"] = 1 + np.arange(50) // 10 % 5
    backend = NativeBackend(threads=2)
    samples = []
    for turn in range(n // len(sources)):
        output = np.zeros((len(sources), *SIZE, 3), np.float32 if turn % 2 else np.uint8)
        ticket = backend.submit(DecodeBatch(sources, requests, output, PixelFormat(fill=1)))
        if turn % 5:
            backend.collect(ticket)
        del ticket
        if turn % 4 == 0:
            samples.append(_usage())
    return samples


def _status() -> dict[str, str]:
    return dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())


def _peak_mb() -> float:
    """Peak memory of this program; ru_maxrss would include the process before exec."""
    return int(_status()["VmHWM"].split()[0]) / 1024


def _usage() -> dict[str, int]:
    status = _status()
    return {
        "anonymous_kb": int(status["RssAnon"].split()[0]),
        "threads": int(status["Threads"]),
        "files": len(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    main()
