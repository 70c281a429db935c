"""Checks in an empty venv that the wheel decodes with its own libjpeg (run by make_wheel.sh)."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

import fastload
from fastload._common.native import core
from fastload._decode.backend import DecodeBatch, new_requests
from fastload._decode.native import NativeBackend


def loaded_libjpegs() -> set[str]:
    """Returns every libjpeg that is mapped into this process."""
    return {
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libjpeg" in line
    }


def main() -> None:
    if core() is None:
        raise SystemExit(str(fastload.native_status()))
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)).save(
        file, "JPEG", quality=90
    )
    pixels = np.zeros((1, 48, 64, 3), np.uint8)
    requests = new_requests(1)
    requests["size"], requests["out_w"], requests["out_h"] = len(file.getvalue()), 64, 48
    with NativeBackend(threads=1) as backend:
        backend.collect(
            backend.submit(DecodeBatch([file.getvalue()], requests, pixels))
        ).raise_first()
    np.testing.assert_array_equal(pixels[0], np.asarray(Image.open(file)))
    used = {path for path in loaded_libjpegs() if "fastload" in path}
    system = {path for path in loaded_libjpegs() if path.startswith(("/usr/", "/lib"))}
    if system or not used:
        raise SystemExit(
            f"the wheel is not self-contained: libjpeg is loaded from {system or 'nowhere'}"
        )
    print(f"{fastload.native_status()}; decoded with {used.pop()}")


if __name__ == "__main__":
    main()
