"""What happens to the images of a field, for whole batches at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload._plan.base import Geometric, Photometric, Step, Transform
from fastload._plan.checks import MAX_SIDE, Size
from fastload._plan.crops import HorizontalFlip
from fastload._plan.geometric import FILTERS
from fastload._plan.geometry import Floats, Views, matrices
from fastload._plan.output import OutputFormat
from fastload._plan.rng import Draws, batch_draws
from fastload._plan.rows import PlanRows
from fastload._plan.warps import Warp, mirrored
from fastload.errors import ConfigError

_ONE_PIXEL = np.array([0, 0, 1, 1, 1, 1, 0, 0], np.int32)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """What happens to the images of one field; the same for all fields that share it."""

    transforms: tuple[Transform, ...]
    group: int  # fields that share a plan share its draws; other groups draw other numbers
    size: (
        Size | None
    )  # (height, width) of the output; None: that of the images, which must then agree
    output: OutputFormat
    fill: tuple[int, ...]  # levels of padding: one, or one a channel
    mask_fill: int
    filter: str
    steps: tuple[Step, ...]

    def rows(self, ids: ArrayLike, sizes: ArrayLike, *, seed: int, epoch: int) -> PlanRows:
        """The rows of a batch: n sample ids, (n, 2) sizes (height, width) of their images as shown.

        Only (seed, epoch, id) and the image's size enter a row. For a list field repeat the id; for a sample that is drawn twice in
        an epoch and shall be cropped anew, set bits of the id above the dataset's (ids have 64).
        """
        numbers = np.atleast_1d(np.asarray(ids)).astype(np.uint64)
        views = Views(_checked_sizes(sizes, len(numbers)))
        draws = self._draws(numbers, seed, epoch)
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, Geometric):
                transform.apply(views, draws[place])
        box, flip = views.rounded()
        if views.bad:
            box[:, list(views.bad)] = _ONE_PIXEL[:, None]
        canvas = self.size or _common_size(views, numbers)
        usable = len(numbers) > len(views.bad)
        warps = self._warps(draws, canvas)
        source = views.source.astype(np.int32)
        x, y, w, h, out_w, out_h, left, top = box
        return PlanRows(
            ids=numbers,
            source_w=source[0],
            source_h=source[1],
            x=x,
            y=y,
            w=w,
            h=h,
            out_w=out_w,
            out_h=out_h,
            pad_left=left,
            pad_top=top,
            flip=flip,
            matrices=reduce(_followed_by, warps.values(), matrices(box, flip)),
            parameters=self._parameters(draws if usable else [], canvas, len(numbers), warps),
            canvas_w=canvas[1],
            canvas_h=canvas[0],
            filter=FILTERS.index(self.filter),
            steps=self.steps,
            bad=views.bad,
        )

    def size_for(self, height: int, width: int) -> Size:
        """(height, width) of the output for an image of that size."""
        if self.size is not None:
            return self.size
        rows = self.rows([0], [[height, width]], seed=0, epoch=0)
        if rows.bad:
            raise ConfigError(f"transform: {rows.bad[0]}")
        return rows.canvas_h, rows.canvas_w

    def describe(self) -> str:
        """The list in the user's words; equal text, equal rows."""
        return "[" + ", ".join(map(repr, self.transforms)) + "]"

    def _draws(self, ids: NDArray[np.uint64], seed: int, epoch: int) -> list[Draws]:
        """For each transform; those that draw nothing get an empty one."""
        return batch_draws(
            seed,
            epoch,
            ids,
            [(self.group << 16 | place, each.blocks) for place, each in enumerate(self.transforms)],
        )

    def _warps(self, draws: list[Draws], canvas: Size) -> dict[int, Floats]:
        """The matrices of each warp, by its place in the list. Flips are done while decoding: before a warp that they stand behind."""
        found: dict[int, Floats] = {}
        for place, transform in enumerate(self.transforms):
            if isinstance(transform, Warp):
                found[place] = transform.forward(draws[place], canvas)
            elif isinstance(transform, HorizontalFlip):
                found = {
                    other: mirrored(warp, transform.which(draws[place]), canvas)
                    for other, warp in found.items()
                }
        return found

    def _parameters(
        self, draws: list[Draws], canvas: Size, n: int, warps: dict[int, Floats]
    ) -> NDArray[np.float32]:
        """(n, columns); without draws, zeros: nothing is known about the canvas where there is no usable image."""
        columns: list[Floats] = []
        for place, (each, drawn) in enumerate(zip(self.transforms, draws, strict=False)):
            if isinstance(each, Warp):
                columns += each.columns(warps[place])
            elif isinstance(each, Photometric):
                columns += each.parameters(drawn, canvas)
        if not columns:
            return np.zeros((n, sum(step.width for step in self.steps)), np.float32)
        return np.stack(columns, axis=1).astype(np.float32)


def _followed_by(matrices: Floats, warp: Floats) -> Floats:
    return warp @ matrices


def _checked_sizes(sizes: ArrayLike, n: int) -> Floats:
    """(2, n): across and down."""
    found = np.asarray(sizes)
    if found.shape != (n, 2):
        raise ConfigError(
            f"sizes of {n} images: expected an array of ({n}, 2), height and width, found {found.shape}"
        )
    if n and (found.min() < 1 or found.max() > MAX_SIDE):
        raise ConfigError(
            f"sizes of images: expected 1 to {MAX_SIDE} pixels, found {found.min()} to {found.max()}"
        )
    return found[:, ::-1].T.astype(np.float64, order="C")  # else every array made of it is strided


def _common_size(views: Views, ids: NDArray[np.uint64]) -> Size:
    """The one size of all canvases of a batch, those of unusable images apart."""
    slots = (
        [slot for slot in range(len(ids)) if slot not in views.bad] if views.bad else slice(None)
    )
    sizes, ids = views.size[:, slots].astype(int), ids[slots]
    if not sizes.size:
        return 1, 1
    other = (sizes != sizes[:, :1]).any(axis=0)
    if other.any():
        (width, height), (other_width, other_height) = (
            sizes[:, 0].tolist(),
            sizes[:, other.argmax()].tolist(),
        )
        raise ConfigError(
            f"a batch is one tensor, but sample {ids[0]} would be {height}x{width} and sample {ids[other.argmax()]} "
            f"{other_height}x{other_width} (height x width) pixels: transform= needs a last step that makes them equal, "
            f"e.g. Resize({height}, {width}), Letterbox({height}, {width}) or RandomResizedCrop(224)"
        )
    width, height = sizes[:, 0].tolist()
    return height, width
