"""The examples in docs/transforms.md and in the docstrings run."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from fastload import transforms

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "transforms.md"
FLAGS = doctest.NORMALIZE_WHITESPACE


def test_the_documents_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the examples pack a dataset
    text = DOCUMENT.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    examples = doctest.DocTestParser().get_doctest(
        "\n".join(blocks), {}, "transforms.md", str(DOCUMENT), 0
    )
    assert len(examples.examples) > 20
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=FLAGS).run(examples, out=report.append)
    assert result.failed == 0, "".join(report)


def test_the_examples_of_docstrings_run() -> None:
    result = doctest.testmod(transforms)
    assert result.attempted > 20
    assert result.failed == 0


def test_the_document_names_every_transform() -> None:
    text = DOCUMENT.read_text()
    missing = [
        name
        for name in transforms.__all__
        if isinstance(getattr(transforms, name), type)
        and issubclass(getattr(transforms, name), transforms.Transform)
        and name != "Transform"
        and f"`{name}" not in text
    ]
    assert not missing


def test_transforms_need_no_torch() -> None:
    import subprocess
    import sys

    program = "import sys, fastload.transforms, fastload._plan; print(*sorted({'torch', 'PIL', 'lmdb'} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.split()
        == []
    )
