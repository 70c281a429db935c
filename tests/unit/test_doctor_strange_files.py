"""No file makes doctor or report fail in a way that was not meant: an answer, or one clear error; and the next good file works."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastload.cli import main
from fastload.doctor import examine
from fastload.errors import ConfigError, FastloadError
from fastload.report import write_report
from tests.made_runs import made, rows_of, window, write, write_window

SLOW = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
odd = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from([1e308, -1, 0, 2**70, 1e-300, "\ud800"]))
numbers = st.one_of(st.floats(0, 10), st.integers(0, 10**6), odd)
stages = st.one_of(odd, st.dictionaries(st.sampled_from(["to_device", "forward", "backward", "<b>", "\x1b[31m"]), numbers, max_size=4))
spans = st.one_of(odd, st.dictionaries(st.sampled_from(["read", "decode", "wait"]), st.one_of(odd, st.fixed_dictionaries({"mean": numbers, "max": numbers})),
                                       max_size=3))
slow = st.one_of(odd, st.lists(st.one_of(odd, st.lists(numbers, max_size=4)), max_size=4))
step_rows = st.fixed_dictionaries({"iter": numbers, "iter_time": numbers}, optional={
    "kind": st.sampled_from(["step", "run", "event", "x"]), "steps": numbers, "data_time": numbers, "time": numbers, "rank": numbers, "world": numbers,
    "data_time_max": numbers, "iter_time_max": numbers, "stage_times": stages, "data_probe": spans, "samples": numbers, "samples_per_s": numbers,
    "swap_bytes": numbers, "slow": slow, "name": st.one_of(odd, st.sampled_from(["checkpoint", "<script>alert(1)</script>", "eval\x1b[2J"])),
    "seconds": numbers, "batch_size": numbers, "host": odd, "gpu": odd})
lines = st.one_of(step_rows.map(lambda row: json.dumps(row).encode()), st.binary(max_size=30), st.just(b"{"), st.just(b"[" * 5000))
columns = st.one_of(odd, st.lists(numbers, max_size=12))
samples = st.one_of(odd, st.dictionaries(st.sampled_from(["t", "util", "power_w", "power_limit_w", "sm_mhz", "temp_c", "throttle", "cpu", "iowait",
                                                          "swap_in_mb_s", "swap_out_mb_s"]), st.one_of(columns, st.lists(columns, max_size=5)), max_size=8))
windows = st.fixed_dictionaries({"format": st.just("fastload-window")}, optional={
    "seconds": numbers, "started": numbers, "notes": columns, "host": st.one_of(odd, st.fixed_dictionaries({"samples": samples})),
    "gpus": st.one_of(odd, st.lists(st.one_of(odd, st.fixed_dictionaries({"samples": samples}, optional={"index": odd, "name": odd, "summary": odd})),
                                    max_size=3))})


def look_at(folder: Path, *paths: Path) -> None:
    try:
        found = examine(*paths)
    except FastloadError as error:
        assert len(str(error).splitlines()) == 1
        return
    assert found.verdict
    assert all(0 <= each.share <= 1 for each in found.findings)
    str(found).encode()                             # no lone surrogate
    assert "\x1b" not in str(found)
    json.dumps(found.as_json(), allow_nan=False)
    _, written = write_report(paths, folder / "report.html", png=folder / "png")
    page = (folder / "report.html").read_text()
    assert "<script" not in page
    assert "nan" not in re.sub(r"[a-z]nan|nan[a-z]", "", re.sub(r"<[a-z]+ [^>]*aria-label=\"[^\"]*\"", "", page))
    assert all(path.stat().st_size for path in written)


@SLOW
@given(rows=st.lists(lines, max_size=40))
def test_any_metrics_file(tmp_path: Path, rows: list[bytes]) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\n".join(rows))
    look_at(tmp_path, path)


@SLOW
@given(found=windows)
def test_any_window(tmp_path: Path, found: dict[str, object]) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(found))
    look_at(tmp_path, path)
    good = write(tmp_path / "m.jsonl", rows_of(made(200)))
    look_at(tmp_path, good, path)


@SLOW
@given(data=st.binary(max_size=300))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    look_at(tmp_path, path)


@pytest.mark.parametrize("text", ["", "\n\n", "no json", "[1, 2]", '{"format": "fastload-window"}', '{"iter": 3}', '{"iter": 1, "iter_time": -1}'])
def test_files_without_a_step_are_refused_and_the_next_one_works(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"m\.jsonl.*expected"):
        examine(path)
    assert main(["doctor", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert examine(write(path, rows_of(made(200)))).healthy


def test_a_file_that_is_not_there_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(ConfigError, match="expected metrics.jsonl or window.json"):
            examine(path)


def test_a_torn_last_line_is_no_reason_to_give_up(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", rows_of(made(400)))
    path.write_bytes(path.read_bytes()[:-40])
    found = examine(path)
    assert found.healthy
    assert any("1 lines of m.jsonl were not understood" in note for note in found.notes)


def test_a_window_that_is_alone_says_what_it_can(tmp_path: Path) -> None:
    found = examine(write_window(tmp_path / "w.json", window(util=40.0)))
    assert [each.kind for each in found.findings] == ["gpu-idle"]
    assert "StepProbe" in found.findings[0].fix
    assert examine(write_window(tmp_path / "w.json", window())).healthy


def test_waiting_that_is_not_in_the_steps_time_is_added(tmp_path: Path) -> None:
    rows = [{"step": k, "step_time": 0.1, "data_time": 0.3} for k in range(1, 400)]
    found = examine(write(tmp_path / "log.jsonl", rows))
    assert found.runs[0].it_s == pytest.approx(2.5)
    assert found.findings[0].share == pytest.approx(0.75)
    assert any("taken as not included" in note for note in found.notes)
