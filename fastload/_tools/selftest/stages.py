"""The stages of the self-test that also run on the CPU; `gpu_stages` has the others.

docs/selftest.md lists the error bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fastload._decode.backend import DecodeBackend, Filter, PixelFormat
from fastload._tools.selftest import decoding
from fastload._tools.selftest.decoding import (
    PixelArray,
    Task,
    damaged_copy,
    epoch,
    make_loader,
    resumed,
)

# Mean difference per image, of 255: what DALI's own tests allow between its CPU and GPU decoders.
MEAN_BOUND = 1.0
INTERIOR_BOUND = 1  # largest difference of a resized pixel, of 255


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a stage; ``facts`` are figures for the report."""

    ok: bool
    summary: str
    facts: dict[str, object] = field(default_factory=dict)


def decode(task: Task) -> Outcome:
    """Decodes every kind of JPEG in software and compares it with the CPU backend."""
    jpegs = decoding.generated()
    backend = decoding.open_backend(task.backend, task.device)
    found = decoding.decode(backend, jpegs)
    expected = decoding.decode(decoding.cpu_backend(), jpegs)
    backend.close()
    facts: dict[str, object] = {}
    wrong = []
    for image, own, other in zip(jpegs, found.images, expected.images, strict=True):
        if own is None or other is None:
            facts[image.kind] = "refused"
            wrong += [image.kind] if (own is None) != (other is None) else []
            continue
        difference = abs(own - other)
        facts[image.kind] = {
            "mean": round(float(difference.mean()), 3),
            "max": int(difference.max()),
        }
        wrong += [image.kind] if difference.mean() > MEAN_BOUND else []
    handled = f"{task.backend} decodes {found.n_here} of {len(jpegs)} kinds itself"
    if wrong:
        return Outcome(
            False,
            f"mean difference above {MEAN_BOUND}, or refused by only one of the backends: "
            f"{', '.join(wrong)} ({handled})",
            facts,
        )
    worst = max(value["max"] for value in facts.values() if isinstance(value, dict))
    return Outcome(
        found.n_here > 0, f"{handled}, largest difference to libjpeg-turbo {worst} of 255", facts
    )


_PLANS: tuple[tuple[str, Filter, tuple[int, int], dict[str, Any]], ...] = (
    ("half", Filter.ANTIALIAS, (150, 113), {}),
    ("sixth", Filter.ANTIALIAS, (53, 41), {}),
    ("enlarged", Filter.ANTIALIAS, (431, 305), {}),
    (
        "crop and flip",
        Filter.ANTIALIAS,
        (96, 96),
        {"x": 33, "y": 21, "w": 201, "h": 187, "flip": 1},
    ),
    ("letterbox", Filter.ANTIALIAS, (160, 160), {"out_w": 160, "out_h": 118, "pad_top": 21}),
    ("bilinear", Filter.BILINEAR, (150, 113), {}),
    ("nearest", Filter.NEAREST, (150, 113), {"flip": 1}),
)


def resize(task: Task) -> Outcome:
    """Compares crop, resize, flip, letterbox and nearest on the device with the CPU.

    Both start from the pixels that the device decoded.
    """
    jpegs = decoding.photographs(4)
    backend = decoding.open_backend(task.backend, task.device)
    cpu = decoding.cpu_backend()
    whole = decoding.decode(backend, jpegs)
    facts: dict[str, object] = {}
    wrong = []
    for name, how, canvas, request in _PLANS:
        interior = ring = 0
        found = decoding.pixel_values(
            decoding.run(backend, [each.data for each in jpegs], canvas, filter=how, **request)
        )
        for slot, pixels in enumerate(whole.images):
            if pixels is None:
                return Outcome(False, f"{jpegs[slot].kind}: {whole.reasons[slot]}")
            plain = decoding.run(
                cpu,
                [pixels.astype(np.uint8).tobytes()],
                canvas,
                filter=how,
                **decoding.raw_request(pixels),
                **request,
            )
            inner, outer = _max_differences(found[slot], decoding.pixel_values(plain)[0], request)
            interior = max(interior, inner)
            ring = max(ring, outer)
        facts[name] = {"interior": interior, "ring": ring}
        bounds = (0, 0) if how == Filter.NEAREST else (INTERIOR_BOUND, backend.edge_error)
        wrong += [name] if interior > bounds[0] or ring > bounds[1] else []
    masks = _masks_equal(backend, cpu)
    backend.close()
    wrong += [] if masks else ["masks"]
    if wrong:
        return Outcome(False, f"differs from the CPU: {', '.join(wrong)}", facts)
    return Outcome(
        True,
        f"{len(_PLANS)} plans: difference at most {INTERIOR_BOUND} inside and "
        f"{backend.edge_error} at the edge; masks equal",
        facts,
    )


def _max_differences(
    found: PixelArray, expected: PixelArray, request: dict[str, int]
) -> tuple[int, int]:
    """The largest difference inside, and in the outermost ring of pixels without padding.

    Differences in the corners count half, because two edges meet there.
    """
    difference = abs(found - expected).max(axis=2)
    top = request.get("pad_top", 0)
    height = request.get("out_h", difference.shape[0])
    inner = difference[top + 1 : top + height - 1, 1:-1]
    difference[[top, top, top + height - 1, top + height - 1], [0, -1, 0, -1]] //= 2
    return int(inner.max(initial=0)), int(difference.max())


def _masks_equal(backend: DecodeBackend, cpu: DecodeBackend) -> bool:
    """Whether 16-bit labels are selected and never interpolated."""
    labels = np.random.default_rng(5).integers(0, 65536, (93, 121), np.uint16)
    request: dict[str, Any] = {
        "pixels": PixelFormat(color="stored", fill=0),
        "codec": 1,
        "raw_w": 121,
        "raw_h": 93,
        "raw_channels": 1,
        "raw_bits": 16,
        "filter": Filter.NEAREST,
        "flip": 1,
    }
    found, expected = (
        decoding.pixel_values(decoding.run(each, [labels.tobytes()], (64, 50), **request))
        for each in (backend, cpu)
    )
    return np.array_equal(found, expected)


def determinism(task: Task) -> Outcome:
    """Loads an epoch again, with another batch size, and resumed: pixels must be bit-equal."""
    first = epoch(make_loader(task, batch_size=8))
    facts: dict[str, object] = {"samples": len(first)}
    for name, other in (
        ("repeated", epoch(make_loader(task, batch_size=8))),
        ("other batch size", epoch(make_loader(task, batch_size=5))),
        ("resumed", resumed(task, batch_size=8, after=max(1, len(first) // 16))),
    ):
        if other.keys() != first.keys():
            return Outcome(False, f"{name}: {len(other)} samples, {len(first)} before", facts)
        differing = [
            number for number, pixels in first.items() if not torch.equal(pixels, other[number])
        ]
        if differing:
            return Outcome(
                False,
                f"{name}: {len(differing)} of {len(first)} samples differ, first sample "
                f"{differing[0]}",
                facts,
            )
    return Outcome(
        True, f"{len(first)} samples bit-equal: repeated, other batch size, resumed", facts
    )


def errors(task: Task) -> Outcome:
    """Exactly the damaged records, and exactly the truncated files of a batch, are reported."""
    copy, bad = damaged_copy(task)
    found = epoch(
        make_loader(
            task, batch_size=4, dataset=copy, shuffle=False, on_error="substitute", max_bad=len(bad)
        )
    )
    missing = sorted(set(range(max(*found, *bad) + 1)) - found.keys())
    if missing != bad:
        return Outcome(False, f"records {bad} were damaged, but {missing} are missing")
    good = decoding.photographs(4)[0].data
    files = [good[:-400], good, b"", good, good[:300], good, good[:-2]]
    backend = decoding.open_backend(task.backend, task.device)
    result = decoding.run(backend, files, (64, 48))
    expected = decoding.run(decoding.cpu_backend(), files, (64, 48))
    backend.close()
    if result.status.tolist() != expected.status.tolist():
        return Outcome(
            False,
            f"truncated files: status {result.status.tolist()}, expected "
            f"{expected.status.tolist()} (CPU)",
        )
    after = abs(decoding.pixel_values(result)[1::2] - decoding.pixel_values(expected)[1::2])
    whole = [
        slot for slot, apart in zip((1, 3, 5), after, strict=True) if apart.mean() > MEAN_BOUND
    ]
    return Outcome(
        not whole,
        f"wrong pixels of valid files in a batch with truncated ones: slots {whole}"
        if whole
        else f"{len(bad)} damaged records and {len(files) // 2 + 1} truncated files reported, all "
        "others correct",
    )
