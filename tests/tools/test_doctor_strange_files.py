"""Damaged files give doctor and report an answer or one clear error, and the next file works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastload._cli import main
from fastload._tools.doctor.examine import examine
from fastload._tools.report import write_report
from fastload.errors import ConfigError, FastloadError
from tests.made_runs import every, foreign_rows, made, rows_of, window, write, write_window

SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([1e308, -1, 0, 2**70, 1e-300, "\ud800"]),
)
numbers = st.one_of(st.floats(0, 10), st.integers(0, 10**6), odd)
stages = st.one_of(
    odd,
    st.dictionaries(
        st.sampled_from(["to_device", "forward", "backward", "<b>", "\x1b[31m"]),
        numbers,
        max_size=4,
    ),
)
spans = st.one_of(
    odd,
    st.dictionaries(
        st.sampled_from(["read", "decode", "wait"]),
        st.one_of(odd, st.fixed_dictionaries({"mean": numbers, "max": numbers})),
        max_size=3,
    ),
)
slow = st.one_of(odd, st.lists(st.one_of(odd, st.lists(numbers, max_size=4)), max_size=4))
row_values = {
    "stage_times": stages,
    "data_probe": spans,
    "slow": slow,
    "kind": st.sampled_from(["step", "run", "event", "x"]),
    "name": st.one_of(
        odd, st.sampled_from(["checkpoint", "<script>alert(1)</script>", "eval\x1b[2J"])
    ),
}
ROW_KEYS = [
    "iter",
    "iter_time",
    "time",
    "steps",
    "data_time",
    "rank",
    "world",
    "data_time_max",
    "iter_time_max",
    "samples",
    "samples_per_s",
    "swap_bytes",
    "seconds",
    "batch_size",
    "host",
    "gpu",
    "step",
    *row_values,
]
edits = st.lists(
    st.sampled_from(ROW_KEYS).flatmap(
        lambda key: st.tuples(st.integers(0, 200), st.just(key), row_values.get(key, numbers))
    ),
    max_size=40,
)
junk = st.lists(
    st.tuples(
        st.integers(0, 200), st.one_of(st.binary(max_size=30), st.just(b"{"), st.just(b"[" * 5000))
    ),
    max_size=4,
)
BASES = [
    rows_of(made(600)),
    rows_of(every(every(made(900), 100, 2.0), 7, 0.5, data=True)),
    foreign_rows(made(60, data=0.1)),
    rows_of(made(300, data=0.1, rank=0, world=2)) + rows_of(made(300, rank=1, world=2)),
    [],
]

columns = st.one_of(odd, st.lists(numbers, max_size=12))
SAMPLE_KEYS = [
    "t",
    "util",
    "power_w",
    "power_limit_w",
    "sm_mhz",
    "temp_c",
    "throttle",
    "cpu",
    "iowait",
    "swap_in_mb_s",
    "swap_out_mb_s",
]
samples = st.dictionaries(
    st.sampled_from(SAMPLE_KEYS), st.one_of(columns, st.lists(columns, max_size=5)), max_size=5
)
top_edits = st.dictionaries(
    st.sampled_from(["seconds", "started", "notes", "host", "gpus"]),
    st.one_of(columns, numbers),
    max_size=1,
)


def assert_diagnosed(folder: Path, *paths: Path) -> None:
    try:
        found = examine(*paths)
    except FastloadError:
        return
    assert found.verdict
    assert all(0 <= each.share <= 1 for each in found.findings)
    str(found).encode()  # no lone surrogate
    assert "\x1b" not in str(found)
    json.dumps(found.as_json(), allow_nan=False)
    write_report(paths, folder / "report.html")
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert "nan" not in re.sub(
        r"[a-z]nan|nan[a-z]", "", re.sub(r"<[a-z]+ [^>]*aria-label=\"[^\"]*\"", "", page)
    )


def test_a_row_shorter_than_its_slow_steps_is_accepted(tmp_path: Path) -> None:
    rows = [dict(row) for row in rows_of(every(made(900), 7, 0.5, data=True))]
    next(row for row in rows if row.get("slow") and row["iter"] == 50)["iter_time"] = (
        0.125  # ten steps, two of which took 1.3 s
    )
    write(tmp_path / "metrics.jsonl", rows)
    assert_diagnosed(tmp_path, tmp_path / "metrics.jsonl")


@SLOW
@given(base=st.sampled_from(BASES), edits=edits, junk=junk)
def test_edited_metrics_files_are_diagnosed_or_rejected(
    tmp_path: Path,
    base: list[dict[str, object]],
    edits: list[tuple[int, str, object]],
    junk: list[tuple[int, bytes]],
) -> None:
    rows = [dict(row) for row in base] or [{} for _ in range(len(edits))]
    for place, key, value in edits:
        rows[place % len(rows)][key] = value
    lines = [json.dumps(row).encode() for row in rows]
    for place, text in junk:
        lines.insert(place, text)
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\n".join(lines))
    assert_diagnosed(tmp_path, path)


@SLOW
@given(gpu=samples, host=samples, top=top_edits, alone=st.booleans())
def test_edited_windows_are_diagnosed_or_rejected(
    tmp_path: Path,
    gpu: dict[str, object],
    host: dict[str, object],
    top: dict[str, object],
    alone: bool,
) -> None:
    found = json.loads(json.dumps(window(seconds=1.0, util=50.0, hot=0.3)))
    found["gpus"][0]["samples"] |= gpu
    found["host"]["samples"] |= host
    path = write_window(tmp_path / "w.json", found | top)
    paths = [path] if alone else [write(tmp_path / "m.jsonl", rows_of(made(200))), path]
    assert_diagnosed(tmp_path, *paths)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpus": [], "host": {"samples": {"t": []}}}, "no samples"),
        ({"gpus": [], "host": {"samples": {"t": [0.0, 2.0, 1.0]}}}, "ascending"),
    ],
)
def test_unusable_windows_are_rejected_with_the_reason(
    change: dict[str, object], problem: str, tmp_path: Path
) -> None:
    path = write_window(tmp_path / "w.json", window(seconds=1.0) | change)
    with pytest.raises(ConfigError, match=rf"w\.json.*{problem}.*fastload monitor"):
        examine(path)
    assert examine(write_window(path, window())).healthy


def test_a_window_without_a_gpu_needs_metrics(tmp_path: Path) -> None:
    path = write_window(tmp_path / "w.json", window(seconds=1.0, gpus=0))
    with pytest.raises(ConfigError, match=r"expected metrics\.jsonl"):
        examine(path)
    assert examine(write(tmp_path / "m.jsonl", rows_of(made(400))), path).healthy


@SLOW
@given(data=st.binary(max_size=300))
def test_random_bytes_are_diagnosed_or_rejected(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert_diagnosed(tmp_path, path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "no json",
        "[1, 2]",
        '{"format": "fastload-window"}',
        '{"iter": 3}',
        '{"iter": 1, "iter_time": -1}',
    ],
)
def test_files_without_a_step_are_rejected_and_the_next_file_works(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"m\.jsonl.*(expected|fastload monitor)"):
        examine(path)
    assert main(["doctor", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert examine(write(path, rows_of(made(200)))).healthy


def test_missing_files_and_folders_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match=r"expected metrics\.jsonl or window\.json"):
            examine(path)


def test_an_incomplete_last_line_is_ignored_with_a_note(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", rows_of(made(400)))
    path.write_bytes(path.read_bytes()[:-40])
    found = examine(path)
    assert found.healthy
    assert any("m.jsonl: ignored 1 lines" in note for note in found.notes)


def test_a_window_without_metrics_reports_idle_gpus(tmp_path: Path) -> None:
    found = examine(write_window(tmp_path / "w.json", window(util=40.0)))
    assert [each.kind for each in found.findings] == ["gpu-idle"]
    assert "StepProbe" in found.findings[0].fix
    assert examine(write_window(tmp_path / "w.json", window())).healthy


def test_data_time_outside_the_step_time_is_added(tmp_path: Path) -> None:
    rows = [{"step": k, "step_time": 0.1, "data_time": 0.3} for k in range(1, 400)]
    found = examine(write(tmp_path / "log.jsonl", rows))
    assert found.numbers.runs[0].it_s == pytest.approx(2.5)
    assert found.findings[0].share == pytest.approx(0.75)
    assert any("it is added to it" in note for note in found.notes)
