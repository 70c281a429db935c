"""docs/sources.md: its adapter runs, its index can be read, its tables are complete."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

from fastload._pack.sources.detect import open_source
from fastload._pack.sources.nuscenes import NuScenesSource
from fastload._pack.sources.registry import FORMATS
from tests.source_contract import outcome, put_image, samples_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "sources.md"
TEXT = DOCS.read_text(encoding="utf-8")


def _block(language: str, holding: str) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)
    return next(block for block in blocks if holding in block)


def test_the_adapter_of_the_docs_runs(tmp_path: Path) -> None:
    code = _block("python", "class Captioned")
    assert (
        len([line for line in code.split("class Captioned")[1].splitlines() if line.strip()]) <= 30
    )
    names: dict[str, Any] = {}
    exec(compile(code, str(DOCS), "exec"), names)
    for name, caption in (
        ("a/1.jpg", "ça".encode()),
        ("a/2.jpg", b"\xff"),
        ("b/3.png", None),
        ("b/4.png", b"four"),
    ):
        put_image(tmp_path / name)
        if caption is not None:
            (tmp_path / name).with_suffix(".txt").write_bytes(caption)
    source = open_source(names["Captioned"](tmp_path))
    good, bad = outcome(source)
    assert [(sample.source, sample.values["caption"]) for sample in good] == [
        ("a/1.jpg", "ça"),
        ("b/4.png", "four"),
    ]
    assert bad[0] == "a/2.jpg: its caption is not UTF-8"
    assert bad[1].startswith("b/3.txt: no such file")


def test_the_index_of_the_docs_is_read(tmp_path: Path) -> None:
    index = json.loads(_block("json", "cams"))
    (tmp_path / "samples.json").write_text(json.dumps(index))
    put_image(tmp_path / "samples" / "CAM_FRONT" / "1.jpg")
    put_image(tmp_path / "bev" / "9f0c.png", mode="L")
    assert len(samples_of(NuScenesSource(tmp_path))) == 1


def test_every_format_and_option_is_described() -> None:
    for name, each in FORMATS.items():
        assert f"| `{name}` |" in TEXT
        part = TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]
        module = __import__(f"fastload._pack.sources.{name}", fromlist=["x"])
        for option in list(inspect.signature(getattr(module, each.reader)).parameters)[1:]:
            words = {"types": "--type", "paths": "--path", "delimiter": "comma, semicolon or tab"}
            assert option in part or words.get(option, "?") in part, (name, option)
