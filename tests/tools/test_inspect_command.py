"""`fastload inspect` on the command line: text, JSON, one sample, shuffle quality, errors."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._cli import main
from fastload._common.formatting import byte_size, exact_percent
from fastload._common.tables import bar, plain_sections
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._tools.inspect.sample import view_sample
from fastload._tools.inspect.shuffle import shuffle_quality, spread_stretches
from tests.packed_datasets import (
    change_column,
    encoded,
    pack_samples,
    photo,
    spoil_image,
)


def inspect(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_output_in_a_pipe_is_plain_and_aligned(
    packed_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = inspect(capsys, packed_folder)
    assert code == 0
    assert "\x1b" not in out
    assert out.splitlines()[0] == str(packed_folder)
    fields = out.partition("\nfields\n")[2].partition("\n\n")[0].splitlines()
    assert [row.split() for row in fields] == [
        ["image", "image"],
        ["label", "int,", "3", "classes"],
    ]
    assert len({row.index(row.split()[1], 10) for row in fields}) == 1, "values begin in one column"


def test_output_on_a_terminal_has_colors_and_bars(packed_folder: Path) -> None:
    master, slave = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "fastload", "inspect", str(packed_folder)],
        stdout=slave,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    ) as process:
        os.close(slave)
        out = b""
        try:
            while more := os.read(master, 65536):
                out += more
        except OSError:  # raised when the child closes its end of the terminal
            pass
        os.close(master)
        assert process.wait() == 0
    text = out.decode()
    assert "\x1b[1;36mclasses of label" in text
    assert "█" in text
    assert "40" in re.sub(r"\x1b\[[0-9;]*m", "", text).partition("samples")[2][:40]


def test_json_has_the_same_figures(packed_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = inspect(capsys, packed_folder, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["n_samples"] == 40
    assert sum(count for _, count in found["classes"]["label"]["counts"]) == 40
    assert found["records"]["codecs"] == {"jpeg": 40}
    assert found["pack"]["options"]["encode"] == "keep"
    assert found["sizes"][0]["n_images"] == 40
    _, out, _ = inspect(
        capsys, packed_folder, "--json", "--sample", 3, "--shuffle-quality", "--batch-size", 8
    )
    found = json.loads(out)
    assert found["sample"]["number"] == 3
    assert found["shuffle_quality"]["packed"]["batch_size"] == 8
    assert found["shuffle_quality"]["verdict"]


def test_progress_goes_to_stderr(
    packed_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = itertools.count(0.0, 10.0)  # every call of the clock is 10 s later
        fake_time = SimpleNamespace(monotonic=lambda: next(clock))
        patch.setattr("fastload._cli.shared.time", fake_time)
        for words, total in (((), 40), (("--sheet", tmp_path / "a.png", "--count", 5), 5)):
            code, out, err = inspect(capsys, packed_folder, *words)
            assert code == 0
            assert f"inspect: {total} of {total} (100 %)" in err
            assert "inspect:" not in out


def test_control_characters_in_a_dataset_are_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack_samples(
        tmp_path / "packed",
        (Field("label", "int", classes=("\x1b[2Jboo", "b")), Field("note", "str")),
        [{"label": 0, "note": "\x1b]0;title\x07\nnext"}],
    )
    for words in ((path,), (path, "--sample", 0)):
        code, out, _ = inspect(capsys, *words)
        assert code == 0
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\\x1b[2Jboo" in out


def test_one_sample_of_every_kind(tmp_path: Path) -> None:
    fields = (
        Field("image", "image"),
        Field("cameras", "image", list=True),
        Field("mask", "mask"),
        Field("boxes", "boxes"),
        Field("camera", "matrix"),
        Field("label", "int", classes=("cat", "dog")),
        Field("score", "float"),
        Field("note", "str"),
        Field("more", "json"),
        Field("blob", "bytes"),
        Field("gone", "int"),
    )
    mask = np.zeros((30, 40), np.uint8)
    mask[:15] = 7
    sample = {
        "image": encoded(photo(40, 30, seed=1)),
        "cameras": [np.zeros((5, 6, 3), np.uint8)] * 2,
        "mask": mask,
        "boxes": np.arange(24).reshape(6, 4),
        "camera": np.eye(3),
        "label": 1,
        "score": 0.25,
        "note": "x" * 500,
        "more": {"a": [1, None]},
        "blob": bytes(range(40)),
    }
    view = view_sample(open_dataset(pack_samples(tmp_path / "packed", fields, [sample])), 0)
    values = {name: lines for name, _, lines in view.values}
    assert view.source == "samples/000"
    assert (view.shard, view.record) == ("shard-00000.lmdb", 0)
    assert re.match(r"40 x 30 RGB uint8, jpeg of [\d,]+ bytes, baseline 4:2:0", values["image"][0])
    assert [line.partition(" RGB")[0] for line in values["cameras"]] == ["[0] 6 x 5", "[1] 6 x 5"]
    assert values["mask"] == ("uint8 30x40, 2 labels (0: 50.0 %, 7: 50.0 %)",)
    assert values["boxes"] == ("float32 6x4 [0 1 2 3 | 4 5 6 7 | 8 9 10 11 | 12 13 14 15 | ...]",)
    assert values["camera"] == ("float64 3x3 [1 0 0 | 0 1 0 | 0 0 1]",)
    assert values["label"] == ("1 (dog)",)
    assert values["score"] == ("0.25",)
    assert values["note"] == ("x" * 200 + "... (500 characters)",)
    assert values["more"] == ('{"a": [1, null]}',)
    assert values["blob"][0].startswith("40 bytes: 00 01 02")
    assert values["gone"] == ("missing",)


def test_a_sample_with_a_damaged_image_shows_the_rest(
    packed_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(shutil.copytree(packed_folder, tmp_path / "packed"))
    spoil_image(path, 5)
    code, out, _ = inspect(capsys, path, "--sample", 5)
    assert code == 0
    assert "CANNOT BE DECODED: not a JPEG" in out
    assert re.search(r"label +[012] \((cat|dog|emu)\)", out)
    assert "CANNOT" not in inspect(capsys, path, "--sample", 6)[1]


def test_shuffle_quality_distinguishes_sorted_from_shuffled_datasets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = [{"label": i // 100, "pad": bytes(3000)} for i in range(1000)]
    fields = (Field("label", "int", classes=tuple("abcdefghij")), Field("pad", "bytes"))
    reports = {}
    for order in ("source", "shuffle"):
        path = pack_samples(tmp_path / order, fields, labels, order=order, block_size=20_000)
        reports[order] = shuffle_quality(open_dataset(path), batch_size=50)
        code, out, _ = inspect(capsys, path, "--shuffle-quality", "--batch-size", 50)
        assert code == 0
        assert reports[order].verdict in out
        assert f"{reports[order].epoch.batch_mixture:.2f}" in next(
            row for row in out.splitlines() if "batch of 50" in row
        )
    good = reports["shuffle"]
    bad = reports["source"]
    assert good.verdict.startswith("Good: samples are packed in random order")
    assert good.epoch.batch_mixture > 0.9
    assert bad.packed.batch_mixture < 0.1
    assert bad.packed.batch_mixture < bad.epoch.batch_mixture < 0.8, (
        "blocks in random order help, but not enough"
    )
    assert "Pack again without --order source" in bad.verdict


def test_shuffle_quality_of_a_large_dataset_is_measured_on_a_subset(tmp_path: Path) -> None:
    fields = (Field("label", "int", classes=tuple("abcdefghij")),)
    nearly = np.concatenate(
        [np.random.default_rng(0).permutation(np.arange(i, i + 500)) for i in range(0, 2000, 500)]
    )
    for name in ("source", "shuffle", "nearly"):
        samples = [{"label": i // 200} for i in range(2000)]
        order = "shuffle" if name == "shuffle" else "source"
        path = pack_samples(tmp_path / name, fields, samples, order=order, block_size=8000)
        if name == "nearly":  # mixed only within ranges of 500: between unmixed and ideal
            change_column(path, "_source_index", lambda _: nearly)
        dataset = open_dataset(path)
        whole, part = (
            shuffle_quality(dataset, batch_size=8, limit=limit) for limit in (10_000, 1000)
        )
        assert (whole.n_measured, part.n_measured) == (2000, 512)
        assert part.verdict == whole.verdict
        for a, b in ((whole.packed, part.packed), (whole.epoch, part.epoch)):
            assert abs(a.batch_mixture - b.batch_mixture) < 0.15
            assert abs(a.neighbor_distance - b.neighbor_distance) < 0.15
    assert "512 of 2,000 samples" in plain_sections("", part.sections())


@given(st.integers(0, 10**9), st.integers(1, 5000), st.integers(64, 10**6))
def test_measured_ranges_are_disjoint_and_reach_both_ends(
    n: int, batch_size: int, limit: int
) -> None:
    found = spread_stretches(n, batch_size=batch_size, limit=limit)
    assert all(0 <= start <= stop <= n for start, stop in found)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    assert found[0][0] == 0
    if len(found) > 1 or n <= limit:
        assert found[-1][1] == n


def test_shuffle_quality_without_labels_uses_only_the_neighbor_distance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = pack_samples(
        tmp_path / "packed",
        (Field("name", "str"), Field("split", "int", classes=("train",))),
        [{"name": str(i), "split": 0} for i in range(300)],
    )
    code, out, _ = inspect(capsys, path, "--shuffle-quality")
    assert code == 0
    assert "class mixture, batch" not in out
    assert "none, so the class mixture cannot be measured" in out
    assert "neighbor distance" in out


def test_errors_are_one_line_with_the_right_exit_code(
    packed_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(packed_folder / "shard-00000.lmdb", unfinished)
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((tmp_path / "nothing",), 1, "no such folder"),
        ((tmp_path,), 1, "not a fastload dataset"),
        ((unfinished,), 1, "has not finished"),
        ((packed_folder, "--sample", 40), 2, "has 40 samples, 0 to 39"),
        ((packed_folder, "--sample", -41), 2, "0 to 39"),
        ((packed_folder, "--sheet", tmp_path / "no/such/folder.png"), 2, "does not exist"),
        ((packed_folder, "--sheet", tmp_path), 2, "ends in .png"),
        ((packed_folder, "--sheet", tmp_path / "a.xyz"), 2, "ends in .png"),
        ((packed_folder, "--count", "0"), 2, "1 or more"),
        ((packed_folder, "--batch-size", "x"), 2, "1 or more"),
        ((), 2, "DATASET"),
    ]
    for words, code, message in cases:
        found, _, err = inspect(capsys, *words)
        assert (found, message in err) == (code, True), f"{words}: {err}"
        assert "Traceback" not in err
    assert inspect(capsys, packed_folder, "--sample", -1)[1].splitlines()[2] == "sample 39 of 40"


def test_formatting_of_percentages_sizes_and_bars() -> None:
    assert [
        exact_percent(*pair)
        for pair in ((0, 5), (5, 5), (1, 3), (1, 100_000), (99_999, 100_000), (0, 0))
    ] == ["0 %", "100 %", "33.3 %", "< 0.1 %", "> 99.9 %", "0 %"]
    assert [byte_size(n) for n in (0, 1023, 1536, 5 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 MiB",
        "3072.0 GiB",
    ]
    assert [len(bar(share)) for share in (0.0, 0.5, 1.0, None)] == [0, 12, 24, 0]
    assert bar(1 / 192) == "▏"
