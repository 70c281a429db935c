"""``fastload pack --dry-run`` says what a pack would do and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fastload
from fastload._cli import main
from fastload._pack.options import PackOptions
from fastload._pack.preview import preview_pack
from fastload._pack.sources.detect import open_source
from tests.packing import SMALL_SHARDS, Streamed, class_folders, samples


def test_it_agrees_with_the_pack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = class_folders(tmp_path / "images", per_class=30)
    (root / "ant" / "notes.txt").write_text("no image")
    (root / "bee" / "0003.jpg").write_bytes(b"\xff\xd8 cut")
    before = sorted(tmp_path.rglob("*"))
    command = ["pack", str(root), str(tmp_path / "packed"), "--dry-run"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "Format folder, fields image: image, label: int\nSamples: 90\n" in text
    assert "Left out: 1 file, " in text
    assert "ant/notes.txt" in text
    assert "Nothing was written" in text
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(tmp_path.rglob("*")) == before
    result = fastload.pack(root, tmp_path / "packed", on_error="skip")
    assert (found["n_samples"], found["n_shards"]) == (90, result.n_shards)
    assert found["bytes_out"] == pytest.approx(result.bytes_out, rel=0.3)
    assert sum(n for n, _ in found["left_out"].values()) == sum(result.left_out.values()) == 1


def test_bad_samples_among_the_measured_ones_are_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images", per_class=2)
    (root / "bee" / "0001.jpg").write_bytes(b"\xff\xd8 cut")
    found = preview_pack(open_source(root), PackOptions())
    assert (found.n_measured, len(found.bad)) == (6, 1)
    assert "Bad: 1 of 6 samples that were encoded, for example bee/0001.jpg" in str(found)


@pytest.mark.parametrize("encode", ["keep", "auto"])
def test_a_stream(encode: str) -> None:
    source = Streamed(samples(70, size=16))
    found = preview_pack(source, PackOptions(encode=encode, **SMALL_SHARDS))
    assert (found.n_measured, found.bad) == (64, ())
    assert f"Format {source.name}" in str(found)
