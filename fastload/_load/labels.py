"""Decodes labels (all fields except pixels), moves them with their image, and collates them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastload._load.batch import Values
from fastload._load.collate import COLLATE, Stack
from fastload._load.records import BatchRecords
from fastload._load.spec import LoadedField
from fastload._plan.rows import PlanRows
from fastload._store.fields import decode_value
from fastload.errors import BadImage, ConfigError, RecordError


class Labels(NamedTuple):
    """The values of one field, one per sample; None if ``faults`` has an error for its place."""

    values: list[Any]
    faults: dict[int, RecordError | BadImage]


def read_labels(chosen: LoadedField, records: BatchRecords) -> Labels:
    """Decodes the values of a field.

    Arrays are views of the records. ``move_labels`` and ``collate_field`` copy them.
    """
    labels = Labels([], {})
    for place, own in enumerate(records.field_parts(chosen.number)):
        try:
            value = _complete(chosen, decode_value(chosen.field, own, copy=False))
        except (RecordError, BadImage) as error:
            value = None
            labels.faults[place] = error
        labels.values.append(value)
    return labels


def _complete(chosen: LoadedField, value: Any) -> Any:
    """Returns a value that can be moved and stacked; a missing table becomes an empty one."""
    kind = chosen.field.kind
    if chosen.field.list and kind.in_column:
        return np.array(value, kind.column_dtype)
    if kind.row_widths and not chosen.field.list:
        return np.empty((0, kind.row_widths[0]), np.float32) if value is None else value
    if kind.row_widths and not value:
        return [np.empty((0, kind.row_widths[0]), np.float32)] * chosen.items
    found = value if chosen.field.list else [] if value is None else [value]
    collate = COLLATE[kind]
    if collate.shapes and any(each.shape not in collate.shapes for each in found):
        shapes = ", ".join(sorted({str(each.shape) for each in found}))
        raise BadImage(
            f"field {chosen.name!r}: matrices have shape {shapes}: expected (3, 3) or (3, 4). "
            "Pack other matrices as 'array'"
        )
    if chosen.field.list and chosen.items and len(found) != chosen.items:
        raise BadImage(
            f"field {chosen.name!r}: found {len(found)} values, expected {chosen.items}, "
            "one per image"
        )
    if chosen.field.along and not found:
        return np.empty(0) if chosen.ragged == "pad" and not chosen.field.list else value
    required = collate.stack is Stack.ALWAYS or (
        collate.stack is Stack.SAME_SHAPE and chosen.ragged != "list" and not chosen.field.list
    )
    if required and not found:
        raise BadImage(
            f"field {chosen.name!r}: the sample has no value, which a stacked batch requires"
        )
    return value


def move_labels(
    chosen: LoadedField, values: Sequence[Any], rows: PlanRows | None, image: LoadedField | None
) -> Values:
    """Moves the values with their image; adds details under other names (``boxes.kept``).

    ``image`` is the image field that the values belong to. If it is a list (cameras), each value
    belongs to the image at the same index. Otherwise all items of a list (lanes) belong to the one
    image.
    """
    name = chosen.name
    listed = chosen.field.list
    move = chosen.move
    if rows is None or image is None or move is None:
        return {name: list(values)}
    flat = [each for own in values for each in own] if listed else list(values)
    counts = [len(own) for own in values] if listed else [1] * len(values)
    one_each = np.arange(len(flat))
    slots = one_each if image.field.list else np.repeat(np.arange(len(counts)), counts)
    pairs = move.batch(flat, rows.take(slots))
    result = {name: _nested([value for value, _ in pairs], counts, listed)}
    if move.detail:
        details = [detail for _, detail in pairs]
        result[f"{name}.{move.detail}"] = _nested(details, counts, listed)
    return result


def keep_rows(values: Values, kept: Sequence[Any]) -> Values:
    """Selects the entries of the boxes that were kept; ``kept`` has their indices per sample."""
    return {
        name: [_kept(value, rows) for value, rows in zip(own, kept, strict=True)]
        for name, own in values.items()
    }


def _kept(value: Any, rows: Any) -> Any:
    if isinstance(rows, list):  # one array of indices per image; an absent value has no items
        return [_kept(each, own) for each, own in zip(value, rows, strict=False)]
    if isinstance(value, list):
        return [value[row] for row in rows]
    return value if value is None else value[rows]


def collate_field(chosen: LoadedField, values: Values, ids: NDArray[np.int64]) -> Values:
    """Converts arrays to tensors: one stacked tensor, a list, or a padded tensor and a mask."""
    result: Values = {}
    for name, own in values.items():
        if not COLLATE[chosen.field.kind].as_tensor:
            result[name] = own
        elif chosen.ragged == "stack":
            result[name] = _stacked(name, own, ids)
        elif chosen.ragged == "list" or any(isinstance(each, list) for each in own):
            result[name] = _as_tensors(own)
        else:
            result[name], result[f"{name}.mask"] = _padded(name, own, ids)
    return result


def _nested(flat: list[Any], counts: Sequence[int], is_list: bool) -> list[Any]:
    if not is_list:
        return flat
    ends = np.cumsum(counts).tolist()
    return [flat[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _as_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_tensors(each) for each in value]
    return torch.from_numpy(np.array(value)) if isinstance(value, np.ndarray) else value


def _stacked(name: str, values: list[Any], ids: NDArray[np.int64]) -> torch.Tensor:
    for place, each in enumerate(values):
        if isinstance(each, list) and len({(item.shape, item.dtype) for item in each}) > 1:
            found = " and ".join(sorted({f"{item.dtype} of {item.shape}" for item in each}))
            raise ConfigError(
                f"field {name!r}, sample {ids[place]}: {found} cannot be stacked. Pass "
                f"ragged={{{name.partition('.')[0]!r}: 'list'}}, or pack values of one shape"
            )
    arrays = [np.stack(each) if isinstance(each, list) else each for each in values]
    first = arrays[0]
    for place, each in enumerate(arrays):
        if each.shape != first.shape or each.dtype != first.dtype:
            raise ConfigError(
                f"field {name!r}: {first.dtype} of {first.shape} in sample {ids[0]}, "
                f"{each.dtype} of {each.shape} in sample {ids[place]} cannot be stacked. "
                f"Pass ragged={{{name.partition('.')[0]!r}: 'list'}} or 'pad', "
                "or pack values of one shape"
            )
    return torch.from_numpy(np.stack(arrays))


def _padded(
    name: str, values: list[Any], ids: NDArray[np.int64]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns (n, longest, ...) padded with zeros, and a mask (n, longest): True for a value."""
    values = [np.atleast_1d(each) for each in values]
    longest = max(len(each) for each in values)
    filled = [place for place, each in enumerate(values) if len(each)]
    first = filled[0] if filled else 0
    inner = values[first].shape[1:]
    dtype = values[first].dtype
    result = np.zeros((len(values), longest, *inner), dtype)
    mask = np.zeros((len(values), longest), np.bool_)
    for place in filled:
        each = values[place]
        if each.shape[1:] != inner or each.dtype != dtype:
            raise ConfigError(
                f"field {name!r}: {each.dtype} of {each.shape} in sample {ids[place]}, "
                f"{dtype} of {values[first].shape} in sample {ids[first]}: only the first axis can "
                f"be padded. Pass ragged={{{name.partition('.')[0]!r}: 'list'}}"
            )
        result[place, : len(each)] = each
        mask[place, : len(each)] = True
    return torch.from_numpy(result), torch.from_numpy(mask)
