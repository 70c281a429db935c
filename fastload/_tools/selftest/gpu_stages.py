"""Stages that need a GPU: JPEG engine, stream order, a lagging consumer, speed.

They have not run on a GPU yet.
"""

from __future__ import annotations

import time
from functools import partial

import numpy as np
import torch

from fastload._common import cuda
from fastload._common.cpus import available_cpus
from fastload._tools.selftest import decoding
from fastload._tools.selftest.decoding import Task
from fastload._tools.selftest.stages import MEAN_BOUND, Outcome

# Mean difference in a block of 8x8 pixels, of 255. Without fancy upsampling and with the fast DCT,
# libjpeg-turbo differs from itself by up to 5.8 on these images.
BLOCK_BOUND = 8.0
REPEATS = 20
TRIALS = 200
LAG = 3  # batches
_SPEED_S = 3.0  # for each setting


def engine(task: Task) -> Outcome:
    """Compares the JPEG engine with software decoding on the same GPU, in 20 shuffled batches.

    Every image must have the same pixels in each batch.
    """
    jpegs = [
        *decoding.photographs(24),
        *(
            each
            for each in decoding.generated()
            if each.kind in ("444", "422", "420", "440", "gray")
        ),
    ]
    software, hardware = (
        decoding.open_backend(task.backend, task.device, hardware=on) for on in (False, True)
    )
    expected = decoding.decode(software, jpegs)
    first: dict[int, decoding.PixelArray] = {}
    wrong: dict[str, str] = {}
    rng = np.random.default_rng(3)
    for repeat in range(REPEATS):
        chosen = rng.permutation(len(jpegs))[: int(rng.integers(1, len(jpegs) + 1))].tolist()
        found = decoding.decode(hardware, [jpegs[i] for i in chosen])
        for i, own in zip(chosen, found.images, strict=True):
            name = f"{jpegs[i].kind} #{i}"
            other = expected.images[i]
            if own is None or other is None:
                wrong[name] = f"not decoded in batch {repeat}"
            elif not np.array_equal(first.setdefault(i, own), own):
                wrong[name] = f"pixels in batch {repeat} differ from earlier batches"
            elif own.size and own.min() == own.max() and other.min() != other.max():
                wrong[name] = f"a single color in batch {repeat}, so it was skipped"
            elif abs(own - other).mean() > MEAN_BOUND:
                mean = abs(own - other).mean()
                wrong[name] = f"mean difference {mean:.2f} from software decoding"
            elif (block := _worst_block(own, other)) > BLOCK_BOUND:
                wrong[name] = f"mean difference {block:.1f} in one block from software decoding"
    software.close()
    hardware.close()
    if wrong:
        some = "; ".join(f"{name} {why}" for name, why in list(wrong.items())[:3])
        return Outcome(False, f"{len(wrong)} of {len(jpegs)} images: {some}", dict(wrong))
    return Outcome(
        True,
        f"{len(jpegs)} images in {REPEATS} shuffled batches: always the same pixels, mean "
        f"difference from software at most {MEAN_BOUND}, and {BLOCK_BOUND:g} in a block",
    )


def _worst_block(own: decoding.PixelArray, other: decoding.PixelArray) -> float:
    """Returns the largest mean difference in a block of 8x8 pixels; blocks at the edge may be cut.

    One spoiled block changes the mean of a photograph by less than 0.1.
    """
    difference = abs(own - other).mean(axis=2)
    for axis in (0, 1):
        starts = np.arange(0, difference.shape[axis], 8)
        sizes = np.diff(starts, append=difference.shape[axis])
        sums = np.add.reduceat(difference, starts, axis=axis)
        difference = sums / np.expand_dims(sizes, 1 - axis)
    return float(difference.max())


def streams(task: Task) -> Outcome:
    """Work queued before a decode must not see what the decode writes (torchcodec #1634).

    Queues sums over tensors, frees the tensors, and decodes before the sums have run.
    """
    jpegs = decoding.photographs(16)
    counts = []
    for hardware in (False, True):
        backend = decoding.open_backend(task.backend, task.device, hardware=hardware)
        counts.append(
            cuda.sums_that_changed(
                partial(decoding.decode, backend, jpegs), torch.device(task.device), TRIALS
            )
        )
        backend.close()
    return Outcome(
        not any(counts),
        f"{sum(counts)} of {2 * TRIALS} sums changed while images were decoded",
        {"software": counts[0], "engine": counts[1]},
    )


def lagging(task: Task) -> Outcome:
    """A consumer whose stream lags by three batches gets the same pixels as one that waits."""
    patient, late = (
        cuda.checksums(decoding.make_loader(task, batch_size=8), torch.device(task.device), lag=lag)
        for lag in (0, LAG)
    )
    pairs = zip(patient, late, strict=True)
    wrong = [place for place, (one, other) in enumerate(pairs) if one != other]
    return Outcome(
        not wrong and bool(patient),
        f"{len(wrong)} of {len(patient)} batches differ when the consumer lags",
        {"batches": wrong[:20]},
    )


def speed(task: Task) -> Outcome:
    """Measures images/s and CPU time per image with the engine on and off; always passes."""
    jpegs = decoding.photographs(64, 384, 288)
    facts: dict[str, dict[str, int]] = {}
    for hardware in (False, True):
        for threads in sorted({1, available_cpus() // 2 or 1, available_cpus()}):
            backend = decoding.open_backend(
                task.backend, task.device, hardware=hardware, threads=threads
            )
            decoding.run(backend, [each.data for each in jpegs], (224, 224))
            count = 0
            cpu = time.process_time()
            started = time.perf_counter()
            while time.perf_counter() - started < _SPEED_S:
                decoding.run(backend, [each.data for each in jpegs], (224, 224))
                count += len(jpegs)
            took = time.perf_counter() - started
            facts[f"engine {'on' if hardware else 'off'}, {threads} threads"] = {
                "images_per_s": round(count / took),
                "cpu_us_per_image": round((time.process_time() - cpu) / count * 1e6),
                **cuda.utilization(torch.device(task.device)),
            }
            backend.close()
    best = max(facts, key=lambda name: facts[name]["images_per_s"])
    return Outcome(
        True,
        f"up to {facts[best]['images_per_s']} images/s at 224 x 224 ({best}), one batch in flight",
        dict(facts),
    )


def roi(task: Task) -> Outcome:
    """Compares a region decoded by nvImageCodec with the same region of the whole image.

    fastload does not use this feature (nvImageCodec #55).
    """
    import nvidia.nvimgcodec as nv

    from fastload._decode.gpu.nvimgcodec import new_decoder

    device = torch.device(task.device)
    decoder = new_decoder(device, threads=1, hardware=False)
    params = nv.DecodeParams(apply_exif_orientation=False, color_spec=nv.ColorSpec.SRGB)
    worst = 0
    for image in decoding.photographs(8):
        stream = nv.CodeStream(image.data)
        y0, x0, y1, x1 = 21, 35, image.height - 30, image.width - 41
        region = decoder.decode(
            stream.get_sub_code_stream(region=nv.Region(y0, x0, y1, x1)), params=params
        )
        whole = decoder.decode(stream, params=params)
        if region is None or whole is None:
            return Outcome(False, f"{image.kind}: not decoded")
        part, full = (
            np.asarray(each.cpu() if device.type == "cuda" else each).astype(np.int16)
            for each in (region, whole)
        )
        if part.shape != (y1 - y0, x1 - x0, 3):
            return Outcome(
                False,
                f"{image.kind}: region of {part.shape[:2]}, expected {(y1 - y0, x1 - x0)}",
            )
        worst = max(worst, int(abs(part - full[y0:y1, x0:x1])[1:-1, 1:-1].max()))
    return Outcome(
        worst == 0, f"inside, regions differ from the whole image by at most {worst} of 255"
    )
