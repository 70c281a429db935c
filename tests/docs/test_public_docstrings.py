"""Public functions and classes document every parameter and show an example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest

import fastload
from fastload import errors, sources, transforms

MODULES = (fastload, transforms, sources, errors)


def public() -> Iterator[tuple[str, object]]:
    for module in MODULES:
        for name in getattr(module, "__all__", [*vars(module)]):
            value = getattr(module, name)
            if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
                yield f"{module.__name__}.{name}", value
    yield "fastload.open", fastload.open


PUBLIC = dict(public())


# Users receive these and do not create them.
RESULTS = ("fastload.transforms.FieldPlan", "fastload.transforms.PlanRows", "fastload.Dataset")
CALLED = [
    name
    for name, value in PUBLIC.items()
    if inspect.isfunction(value)
    or name.startswith("fastload.transforms.")
    or name in ("fastload.DataLoader", "fastload.StepProbe", "fastload.Field", "fastload.Dataset")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_docstring_starts_with_a_one_line_summary(name: str) -> None:
    lines = (inspect.getdoc(PUBLIC[name]) or "").splitlines()
    assert lines
    assert re.match(r"^[A-Z`].*\.$", lines[0]), lines[0]
    assert lines[1:2] in ([], [""])


@pytest.mark.parametrize("name", [name for name in CALLED if name not in RESULTS])
def test_every_parameter_is_documented(name: str) -> None:
    value = PUBLIC[name]
    text = inspect.getdoc(value) or ""
    assert callable(value)
    parameters = inspect.signature(value).parameters.values()
    named = [
        each.name
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name != "self"
    ]
    assert [each for each in named if not re.search(rf"\b{each}\b", text)] == []


@pytest.mark.parametrize("name", CALLED)
def test_there_is_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(PUBLIC[name]) or "")
