"""The commands and Python blocks of the guides run in order, in a folder with images to pack."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from fastload._cli import main
from tests.packed_datasets import pack_folder

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("index", "packing", "ddp-and-resume", "tuning")


@pytest.mark.parametrize("page", PAGES)
def test_the_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_folder(tmp_path, count=30, val=6)
    (tmp_path / "source").rename(tmp_path / "images")
    blocks = re.findall(r"```(python|sh)\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.S)
    if any("fastload pack images packed" in text for _, text in blocks):
        packed.rename(tmp_path / "was")  # the page creates it
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": page}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, f"{page}.md", "exec"), names)
        else:
            for line in text.splitlines():
                assert main(shlex.split(line.partition("#")[0])[1:]) == 0, line
    assert blocks
