"""Field kinds are objects with a row in every table; no code compares their names."""

from __future__ import annotations

import ast
import copy
import pickle
from pathlib import Path

import pytest

import fastload
from fastload._load.collate import COLLATE
from fastload._pack.sources import columns, numbers, objects
from fastload._plan.labels import LABEL_MOVES
from fastload._store.fields import Field
from fastload._store.kinds import BOXES, IMAGE, INT, KINDS, MASK, MATRIX, NUMBERS, POINTS
from fastload._tools.inspect.sample import SHOWN
from fastload.errors import ConfigError

PACKAGE = Path(fastload.__file__).parent


@pytest.mark.parametrize("table", [LABEL_MOVES, COLLATE, SHOWN], ids=["move", "collate", "show"])
def test_every_table_has_a_row_for_every_kind(table: dict[object, object]) -> None:
    assert list(table) == list(KINDS.values())


def test_sources_can_read_every_kind() -> None:
    """Covers Python objects and text columns; other code reads images and masks."""
    files = {IMAGE, MASK}
    assert {*objects._SCALARS, *numbers.TABLES, NUMBERS} | files == set(KINDS.values())
    assert {*columns._CONVERTERS} | files == set(KINDS.values())


def test_a_kind_is_given_by_name_or_as_the_object() -> None:
    named = Field("label", "int", classes=("cat", "dog"))
    assert named.kind is INT
    assert named == Field("label", INT, classes=("cat", "dog"))
    assert (str(INT), repr(INT), INT.name) == ("int", "<FieldKind int>", "int")
    with pytest.raises(ConfigError, match="kind 'pickle': expected one of image, mask"):
        Field("label", "pickle")
    with pytest.raises(ConfigError, match="classes are allowed only for kind int, found float"):
        Field("label", "float", classes=("cat",))


def test_copies_and_pickles_of_a_field_have_the_same_kind() -> None:
    field = Field("boxes", "boxes", image="left")
    for other in (pickle.loads(pickle.dumps(field)), copy.deepcopy(field), copy.copy(field)):
        assert other == field
        assert other.kind is BOXES


def test_only_kinds_with_image_coordinates_move() -> None:
    moving = {kind for kind, move in LABEL_MOVES.items() if move is not None}
    assert moving == {BOXES, POINTS, MATRIX}
    assert all(kind.moves_with_image for kind in moving)
    assert not IMAGE.moves_with_image


def test_no_code_compares_a_kind_with_a_string() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line in compared_kinds(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'field.kind == "image"',
        '"mask" != each.field.kind',
        'field.kind in ("int", "float")',
        'kind not in {"boxes"}',
        'field.kind.name == "str"',
        'TABLE = {"image": 1, "mask": 2, "boxes": 3}',
    ],
)
def test_the_scan_finds_a_planted_comparison(code: str) -> None:
    assert compared_kinds(code) == [1]


def compared_kinds(code: str) -> list[int]:
    """Finds comparisons of ``kind`` with names, and dicts with three or more names as keys."""
    lines = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(_is_kind(side) for side in sides) and any(_names(side) for side in sides):
                lines.append(node.lineno)
        elif isinstance(node, ast.Dict):
            keys = [each.value for each in node.keys if isinstance(each, ast.Constant)]
            if sum(key in KINDS for key in keys) > 2:
                lines.append(node.lineno)
    return lines


def _is_kind(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute) and node.attr == "name":
        node = node.value
    return (isinstance(node, ast.Attribute) and node.attr == "kind") or (
        isinstance(node, ast.Name) and node.id in ("kind", "bare")
    )


def _names(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and each.value in KINDS for each in ast.walk(node))
