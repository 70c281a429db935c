"""Everything of a batch that is not pixels: unpacked, moved with its image, and put into tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastload.errors import BadImage, ConfigError
from fastload.loader.parts import BatchParts
from fastload.loader.spec import ChosenField
from fastload.plan.labels import move_boxes_batch, move_points_batch, move_polylines
from fastload.plan.rows import PlanRows
from fastload.store.record import RecordError
from fastload.store.values import decode_value

Values = dict[str, Any]         # what a batch holds under each name


def unpacked(chosen: ChosenField, parts: BatchParts) -> list[Any]:
    """The field's values, sample by sample; raises BadImage naming the sample."""
    values = []
    for place, own in enumerate(parts.parts(chosen.number)):
        try:
            values.append(decode_value(chosen.field, own))
        except RecordError as error:
            raise BadImage(f"field {chosen.name!r}: {error}", image_id=int(parts.ids[place])) from None
    return values


def moved(chosen: ChosenField, values: Sequence[Any], rows: PlanRows | None, n_items: int) -> Values:
    """The values as the plan moves them; further names for what belongs to them: ``boxes.kept``, ``points.visible``."""
    name, kind = chosen.name, chosen.field.kind
    if rows is None or kind not in ("boxes", "points", "matrix"):
        return {name: list(values)}
    if chosen.field.list and kind == "points" and n_items == 1:            # lines of one image
        lines = [move_polylines(each or [], rows[slot]) for slot, each in enumerate(values)]
        return {name: [[points for points, _ in own] for own in lines], f"{name}.visible": [[flags for _, flags in own] for own in lines]}
    flat = [each for own in values for each in own] if chosen.field.list else list(values)
    if len(flat) != len(rows):
        raise ConfigError(f"field {name!r} has {len(flat)} values for {len(rows)} images in a batch: one for each image is needed")
    if kind == "matrix":
        found: list[Any] = [_to_image(matrix, rows.matrices[slot]) for slot, matrix in enumerate(flat)]
        return {name: _nested(found, n_items, chosen.field.list)}
    width = 4 if kind == "boxes" else 2
    flat = [np.empty((0, width), np.float32) if each is None else each for each in flat]
    pairs: Sequence[tuple[Any, Any]] = move_boxes_batch(flat, rows) if kind == "boxes" else move_points_batch(flat, rows)
    other = "kept" if kind == "boxes" else "visible"
    return {name: _nested([first for first, _ in pairs], n_items, chosen.field.list),
            f"{name}.{other}": _nested([second for _, second in pairs], n_items, chosen.field.list)}


def tensors(chosen: ChosenField, values: Values, ragged: str) -> Values:
    """Lists of arrays as tensors: stacked where all samples have one shape, else a list, or padded with a mask."""
    result: Values = {}
    for name, own in values.items():
        if chosen.field.kind in ("str", "json", "bytes"):
            result[name] = own
        elif chosen.fixed:
            result[name] = _stacked(name, own)
        elif ragged == "list" or chosen.field.list:
            result[name] = _as_tensors(own)
        else:
            result[name], result[f"{name}.mask"] = _padded(own)
    return result


def _to_image(matrix: Any, plan_matrix: NDArray[np.float64]) -> NDArray[np.float32]:
    if matrix is None or np.shape(matrix) not in ((3, 3), (3, 4)):
        raise ConfigError(f"a matrix of shape {np.shape(matrix)}: only (3, 3) and (3, 4) lead to an image; pack others as 'array'")
    result: NDArray[np.float32] = (plan_matrix @ np.asarray(matrix, np.float64)).astype(np.float32)
    return result


def _nested(flat: list[Any], n_items: int, is_list: bool) -> list[Any]:
    return [flat[i:i + n_items] for i in range(0, len(flat), n_items)] if is_list else flat


def _as_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_tensors(each) for each in value]
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _stacked(name: str, values: list[Any]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.stack([np.stack(each) if isinstance(each, list) else np.asarray(each) for each in values]))
    except (ValueError, TypeError):
        shapes = sorted({str(np.shape(each)) for each in values})
        raise ConfigError(f"field {name!r}: shapes {', '.join(shapes)} in one batch; the first samples of the dataset had one shape. "
                          "Pack them as a list field, or give them one shape") from None


def _padded(values: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, longest, ...) with zeros behind, and (n, longest): True where there is a value."""
    arrays = [np.atleast_1d(np.asarray(each)) for each in values]
    longest = max(len(each) for each in arrays)
    inner = next((each.shape[1:] for each in arrays if len(each)), arrays[0].shape[1:])
    result, mask = np.zeros((len(arrays), longest, *inner), arrays[0].dtype), np.zeros((len(arrays), longest), np.bool_)
    for place, each in enumerate(arrays):
        result[place, :len(each)] = each.reshape(len(each), *inner) if len(each) else 0
        mask[place, :len(each)] = True
    return torch.from_numpy(result), torch.from_numpy(mask)
