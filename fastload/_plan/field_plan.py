"""The plan of an image field, which computes the plan rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastload._plan.arguments import FILTERS, MAX_SIDE, Size
from fastload._plan.draw_ids import SAMPLE_MASK
from fastload._plan.format import Normalize, OutputFormat, ToDtype
from fastload._plan.geometry import CropGeometry, Floats, source_to_canvas
from fastload._plan.resizes import HorizontalFlip
from fastload._plan.rng import Draws, batch_draws
from fastload._plan.rows import PlanRows
from fastload._plan.transform import ColorTransform, GeometricTransform, PixelOp, Transform
from fastload._plan.warps import Warp, mirrored
from fastload.errors import ConfigError

_ONE_PIXEL = np.array([0, 0, 1, 1, 1, 1, 0, 0], np.int32)


@dataclass(frozen=True, slots=True)
class FieldPlan:
    """The compiled transforms of an image field. ``compile`` and ``compile_fields`` return it.

    Examples:
        >>> from fastload import transforms as T
        >>> plan = T.compile([T.Resize(480, 640), T.HorizontalFlip(1.0)])
        >>> plan.size, plan.filter
        ((480, 640), 'antialias')
        >>> print(plan.rows([7], [(375, 500)], seed=0, epoch=0)[0])
        sample 7: 500x375 at (0, 0) of 500x375 -> 640x480, mirrored
    """

    transforms: tuple[Transform, ...]
    group: int  # fields with the same group share their random numbers
    size: Size | None  # (height, width) of the output; None if it is the size of the images
    output: OutputFormat
    fill: tuple[int, ...]  # pixel value of padding, single or per channel
    mask_fill: int
    filter: str
    ops: tuple[PixelOp, ...]

    def rows(self, ids: ArrayLike, sizes: ArrayLike, *, seed: int, epoch: int) -> PlanRows:
        """Computes the plan rows of a batch.

        A row depends only on seed, epoch, draw id and image size. Repeat the id for the images of
        a list field. A sample that occurs twice in an epoch has two draw ids, which differ in their
        copy number (``fastload._plan.draw_ids``).

        Args:
            ids: n draw ids; a sample id is the draw id of its first copy.
            sizes: (n, 2) height and width of the images in pixels, after EXIF orientation.
            seed: Seed of the run.
            epoch: Epoch, counted from 0.

        Returns:
            The rows, in the order of ``ids``.

        Raises:
            ConfigError: The sizes are invalid, or the images of the batch differ in output size.
        """
        numbers = np.atleast_1d(np.asarray(ids)).astype(np.uint64)
        samples = numbers & SAMPLE_MASK
        geometry = CropGeometry(_checked_sizes(sizes, len(numbers)))
        draws = self._draws(numbers, seed, epoch)
        for position, transform in enumerate(self.transforms):
            if isinstance(transform, GeometricTransform):
                transform.apply(geometry, draws[position])
        box, flip = geometry.rounded()
        if geometry.bad:
            box[:, list(geometry.bad)] = _ONE_PIXEL[:, None]
        canvas = self.size or _common_size(geometry, samples)
        usable = len(numbers) > len(geometry.bad)
        warps = self._warps(draws, canvas)
        source = geometry.source.astype(np.int32)
        x, y, w, h, out_w, out_h, left, top = box
        return PlanRows(
            ids=samples,
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
            matrices=reduce(
                lambda matrices, warp: warp @ matrices,
                warps.values(),
                source_to_canvas(box, flip),
            ),
            parameters=self._parameters(draws if usable else [], canvas, len(numbers), warps),
            canvas_w=canvas[1],
            canvas_h=canvas[0],
            filter=FILTERS.index(self.filter),
            ops=self.ops,
            bad=geometry.bad,
        )

    @property
    def sets_dtype(self) -> bool:
        """Whether the transforms set the dtype. Otherwise it follows from the images."""
        return any(isinstance(each, ToDtype | Normalize) for each in self.transforms)

    def describe(self) -> str:
        """Returns the list of transforms as text. Plans with equal text compute equal rows."""
        return "[" + ", ".join(map(repr, self.transforms)) + "]"

    def _draws(self, ids: NDArray[np.uint64], seed: int, epoch: int) -> list[Draws]:
        """Returns the random numbers of each transform."""
        streams = [
            (self.group << 16 | position, each.n_blocks)
            for position, each in enumerate(self.transforms)
        ]
        return batch_draws(seed, epoch, ids, streams)

    def _warps(self, draws: list[Draws], canvas: Size) -> dict[int, Floats]:
        """Returns the matrices of each warp by its position in the list.

        The decoder flips before any warp, even if the flip follows the warp in the list.
        """
        found: dict[int, Floats] = {}
        for position, transform in enumerate(self.transforms):
            if isinstance(transform, Warp):
                found[position] = transform.draw_matrices(draws[position], canvas)
            elif isinstance(transform, HorizontalFlip) and found:
                flipped = transform.flipped(draws[position])
                found = {
                    other: mirrored(matrices, flipped, canvas) for other, matrices in found.items()
                }
        return found

    def _parameters(
        self, draws: list[Draws], canvas: Size, n: int, warps: dict[int, Floats]
    ) -> NDArray[np.float32]:
        """Returns (n, columns) parameters.

        Without ``draws`` they are zeros: no image of the batch is usable, so the canvas size is
        unknown.
        """
        columns: list[Floats] = []
        for position, (each, drawn) in enumerate(zip(self.transforms, draws, strict=False)):
            if isinstance(each, Warp):
                columns += each.params(warps[position])
            elif isinstance(each, ColorTransform):
                columns += each.draw_params(drawn, canvas)
        if not columns:
            return np.zeros((n, sum(op.n_params for op in self.ops)), np.float32)
        return np.stack(columns, axis=1).astype(np.float32)


def _checked_sizes(sizes: ArrayLike, n: int) -> Floats:
    """Returns the sizes as (2, n) numbers, x first."""
    found = np.asarray(sizes)
    if found.shape != (n, 2):
        raise ConfigError(
            f"sizes of {n} images: expected shape ({n}, 2), height and width, found {found.shape}"
        )
    if n and (found.min() < 1 or found.max() > MAX_SIDE):
        raise ConfigError(
            f"sizes of {n} images: expected 1 to {MAX_SIDE} pixels, "
            f"found {found.min()} to {found.max()}"
        )
    # Contiguous; otherwise every derived array would be strided.
    return found[:, ::-1].T.astype(np.float64, order="C")


def _common_size(geometry: CropGeometry, ids: NDArray[np.uint64]) -> Size:
    """Returns the canvas size that all usable images of a batch share."""
    sizes = geometry.size.astype(int)
    if geometry.bad:
        usable = [slot for slot in range(len(ids)) if slot not in geometry.bad]
        sizes = sizes[:, usable]
        ids = ids[usable]
    if not sizes.size:
        return 1, 1
    width, height = sizes[:, 0].tolist()
    differs = (sizes != sizes[:, :1]).any(axis=0)
    if differs.any():
        other = int(differs.argmax())
        other_width, other_height = sizes[:, other].tolist()
        raise ConfigError(
            f"images of a batch differ in size: sample {ids[0]} is {height}x{width} and sample "
            f"{ids[other]} is {other_height}x{other_width} (height x width) pixels. Add a "
            f"transform that makes them equal, such as Resize({height}, {width}), "
            f"Letterbox({height}, {width}) or RandomResizedCrop(224)."
        )
    return height, width
