"""A decoded uint8 batch becomes what the trainer gets: colours and warps, then (level - mean) / std, dtype and layout.

Where a plan has no colour steps the native core normalises while it writes; this gives the same bits: (level - mean) / std in
float32, then rounded to the dtype.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastload._common.threads import Helpers
from fastload._finish import color as colour
from fastload._finish import warp
from fastload._finish.threads import compute_alone
from fastload._plan.base import Step, step_columns
from fastload._plan.field_plan import FieldPlan
from fastload.errors import ConfigError

Params = NDArray[np.float32]

_DTYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}
_SIMPLE = {
    "brightness": colour.brightness,
    "contrast": colour.contrast,
    "saturation": colour.saturation,
    "hue": colour.hue,
    "gray": colour.gray,
}
_WRITERS = {"erase": "RandomErasing", "affine": "RandomAffine"}  # steps that write a value
# A blur needs a sigma above 0; a hue that is turned by 0, and pixels that are moved by nothing, are rounded all the same.
_NEVER_NEUTRAL = ("blur", "hue", "affine", "upside_down")
# Values worked on at once: on the CPU few enough for the cache, elsewhere few enough for the memory (4 bytes each, some copies).
_CHUNK_CPU, _CHUNK_DEVICE = 1_200_000, 100_000_000


class Finish:
    """Call it with (n, height, width, channels) uint8 images and the rows' parameters, (n, columns); images decide the device.

    RGB or one channel. Thread-safe: it keeps nothing between calls but constants.
    """

    def __init__(self, plan: FieldPlan) -> None:
        self.steps = plan.steps
        self.output = plan.output
        self._columns = step_columns(plan.steps)

    @property
    def idle(self) -> bool:
        """Whether there is nothing that a decoder with normalising output could not do, but for ``turn``: no colours."""
        return all(step.kind == "upside_down" for step in self.steps)

    @torch.no_grad()
    def __call__(
        self,
        images: Tensor,
        parameters: Params,
        *,
        out: Tensor | None = None,
        helpers: Helpers | None = None,
    ) -> Tensor:
        """The finished batch; ``out`` takes it where given (see ``empty``), ``helpers`` do the work on the CPU."""
        self._check(images, parameters)
        out = self.empty(images.shape, images.device) if out is None else out
        planar = out.permute(0, 3, 1, 2) if self.output.layout == "NHWC" else out
        if not self.steps and self.output.dtype == "uint8":
            planar.copy_(images.permute(0, 3, 1, 2))
            return out
        on_device = torch.from_numpy(parameters).to(images.device, non_blocking=True)
        chunk = max(
            1,
            (_CHUNK_CPU if images.device.type == "cpu" else _CHUNK_DEVICE)
            // max(1, images[:1].numel()),
        )

        def finish(start: int) -> None:
            part = slice(start, start + chunk)
            x = (
                images[part]
                .permute(0, 3, 1, 2)
                .to(torch.float32, memory_format=torch.contiguous_format)
            )
            planar[part] = self._finished(x, parameters[part], on_device[part])

        def finish_alone(start: int) -> None:
            compute_alone()
            with torch.no_grad():  # this, too, is a thread's own
                finish(start)

        starts = range(0, len(images), chunk)
        for _ in (
            map(finish, starts)
            if helpers is None or images.device.type != "cpu"
            else helpers.map(finish_alone, starts)
        ):
            pass
        return out

    @torch.no_grad()
    def turn(self, finished: Tensor, parameters: Params, *, helpers: Helpers) -> None:
        """Puts images upside down in a batch that a decoder has finished, (n, ...), where the rows say so. All steps are of that kind."""
        slots = np.flatnonzero(parameters.sum(axis=1) % 2).tolist()
        down = 1 if self.output.layout == "NCHW" else 0

        def turn_alone(slot: int) -> None:
            compute_alone()
            with torch.no_grad():
                finished[slot] = finished[slot].flip(down)

        if finished.device.type == "cpu":
            for _ in helpers.map(turn_alone, slots):
                pass
        elif slots:
            finished[slots] = finished[slots].flip(1 + down)

    def empty(self, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
        """Memory for the result of images of ``shape`` (n, height, width, channels)."""
        n, height, width, channels = shape
        dtype = _DTYPES[self.output.dtype]
        if self.output.layout == "NHWC":
            return torch.empty((n, height, width, channels), dtype=dtype, device=device)
        memory = (
            torch.channels_last
            if self.output.layout == "channels_last"
            else torch.contiguous_format
        )
        return torch.empty(
            (n, channels, height, width), dtype=dtype, device=device, memory_format=memory
        )

    def _finished(self, x: Tensor, parameters: Params, on_device: Tensor) -> Tensor:
        for late in (False, True):
            for step, columns in self._columns:
                if step.after_normalize == late:
                    x = _applied(step, x, parameters[:, columns], on_device[:, columns])
            if not late:
                x = self._normalised(x)
        return x

    def _normalised(self, x: Tensor) -> Tensor:
        if self.output.dtype == "uint8":
            return x.round_()
        for values, apply in ((self.output.mean, x.sub_), (self.output.std, x.div_)):
            if values not in ((0.0,), (1.0,)):
                apply(torch.tensor(values, dtype=torch.float32, device=x.device).view(1, -1, 1, 1))
        return x

    def _check(self, images: Tensor, parameters: Params) -> None:
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise ConfigError(
                f"finishing a batch: expected uint8 (n, height, width, channels), found {images.dtype} {tuple(images.shape)}"
            )
        expected = (len(images), sum(step.width for step in self.steps))
        if parameters.shape != expected:
            raise ConfigError(
                f"finishing {len(images)} images: expected parameters of {expected}, "
                f"found {parameters.shape}: rows of another plan?"
            )
        channels = images.shape[3]
        if self.steps and channels not in (1, 3):
            raise ConfigError(
                f"finishing a batch: colours can be changed in RGB and in gray images, these have {channels} channels"
            )
        for what, values in (
            ("Normalize", self.output.mean),
            *((_WRITERS[step.kind], step.value) for step in self.steps if step.value),
        ):
            if len(values) not in (1, channels):
                raise ConfigError(
                    f"{what} has numbers for {len(values)} channels, the images have {channels}; one number serves any"
                )


def _applied(step: Step, x: Tensor, parameters: Params, on_device: Tensor) -> Tensor:
    """One step, to those samples only that it changes, where they are few or it could not leave the others alone."""
    active = np.flatnonzero(_changes(step, parameters))
    if not len(active):
        return x
    if len(active) == len(x) or (step.kind not in _NEVER_NEUTRAL and 2 * len(active) > len(x)):
        return _run(step, x, on_device)
    which = torch.from_numpy(active).to(x.device, non_blocking=True)
    return x.index_copy_(
        0, which, _run(step, x.index_select(0, which), on_device.index_select(0, which))
    )


def _changes(step: Step, parameters: Params) -> NDArray[np.bool_]:
    """Which samples have parameters other than those that mean "leave it"."""
    if step.kind == "erase":
        return np.greater(parameters[:, 2], parameters[:, 0])
    if step.kind == "affine":
        return np.asarray(np.not_equal(parameters, warp.AS_IT_IS).any(axis=1))
    return np.not_equal(
        parameters[:, 0], 1.0 if step.kind in ("brightness", "contrast", "saturation") else 0.0
    )


def _run(step: Step, x: Tensor, parameters: Tensor) -> Tensor:
    if step.kind == "blur":
        return colour.blur(x, parameters[:, 0], step.kernel)
    if step.kind == "upside_down":
        return x.flip(2)
    if step.kind == "affine":
        return warp.affine(x, parameters, torch.tensor(step.value, dtype=x.dtype, device=x.device))
    if step.kind == "erase":
        return colour.erase(x, parameters, torch.tensor(step.value, dtype=x.dtype, device=x.device))
    return _SIMPLE[step.kind](x, parameters[:, 0])
