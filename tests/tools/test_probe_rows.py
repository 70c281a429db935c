"""Reading and writing metrics.jsonl: other loggers, damaged files, and full disks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._common.metrics import EventRow, RunRow, SlowStep, Span, StepRow, as_json
from fastload._tools.monitor.metrics_file import LineFile, RowParser, newest, read_metrics
from fastload.errors import ConfigError

STEP = {
    "kind": "step",
    "time": 1.8e9,
    "rank": 1,
    "iter": 120,
    "steps": 10,
    "data_time": 0.01,
    "data_time_max": 0.05,
    "iter_time": 0.15,
    "iter_time_max": 0.4,
    "stage_times": {"forward": 0.1},
    "data_probe": {"read": {"mean": 0.001, "max": 0.002}},
    "samples": 80,
    "samples_per_s": 53.3,
    "gpu_mem_mb": None,
    "swap_bytes": 4096,
    "slow": [[117, 0.4, 0.05]],
}
RUN = {
    "kind": "run",
    "version": 1,
    "time": 1.8e9,
    "rank": 1,
    "world": 2,
    "host": "a",
    "pid": 7,
    "python": "3.11",
    "torch": "2.4",
    "fastload": "0.1",
    "device": "cpu",
    "gpu": None,
    "batch_size": 8,
}
EVENT = {
    "kind": "event",
    "time": 1.8e9,
    "rank": 0,
    "iter": 5000,
    "name": "checkpoint",
    "seconds": 4.1,
}


def write_rows(path: Path, *rows: object, tail: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_rows_of_all_kinds_round_trip(tmp_path: Path) -> None:
    metrics = read_metrics(write_rows(tmp_path / "m.jsonl", RUN, STEP, EVENT))
    assert metrics.runs == (RunRow(1.8e9, 1, 2, "a", 7, "3.11", "2.4", "0.1", "cpu", None, 8),)
    assert metrics.steps == (
        StepRow(
            1.8e9,
            1,
            120,
            10,
            0.01,
            0.05,
            0.15,
            0.4,
            {"forward": 0.1},
            {"read": Span(0.001, 0.002)},
            80,
            53.3,
            None,
            4096,
            (SlowStep(117, 0.4, 0.05),),
        ),
    )
    assert metrics.events == (EventRow(1.8e9, 0, 5000, "checkpoint", 4.1),)
    assert (metrics.skipped, metrics.torn, metrics.ranks) == (0, False, (1,))
    rows = (*metrics.runs, *metrics.steps, *metrics.events)
    assert [as_json(row) for row in rows] == [RUN, STEP, EVENT]
    assert list(as_json(metrics.steps[0])) == list(STEP)


def test_missing_values_are_null_or_omitted() -> None:
    line = as_json(StepRow(1.8e9, iter=3, data_time=0.123456789))
    assert "stage_times" not in line
    assert "data_probe" not in line
    assert "ours" not in line
    assert (line["gpu_mem_mb"], line["data_time"]) == (None, 0.1234568)
    assert as_json(RunRow())["torch"] is None


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_incomplete_last_line_loses_only_itself(tmp_path: Path, cut: int) -> None:
    metrics = read_metrics(write_rows(tmp_path / "m.jsonl", RUN, STEP, tail=json.dumps(STEP)[:cut]))
    assert len(metrics.steps) == 1
    assert (metrics.torn, metrics.skipped) == (True, 1)


def test_last_row_without_newline_counts(tmp_path: Path) -> None:
    metrics = read_metrics(
        write_rows(tmp_path / "m.jsonl", STEP, tail=json.dumps({**STEP, "iter": 130}))
    )
    assert [row.iter for row in metrics.steps] == [120, 130]
    assert not metrics.torn


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        # MMEngine
        ({"iter": 50, "time": 0.2, "data_time": 0.01, "loss": 1.0}, (50, 0.2, 0.01, None)),
        ({"step": 50, "step_time": 0.2, "data_time": 0.01}, (50, 0.2, 0.01, None)),
        (
            {"global_step": 50, "iter_time": 0.2, "time": 1.8e9, "data_time": 0.01},
            (50, 0.2, 0.01, 1.8e9),
        ),
        ({"iter": 50, "step": 3, "data_time": 0.01}, (50, None, 0.01, None)),
        # A large "time" is a date, not a duration.
        ({"iter": 50, "time": 1.8e9, "data_time": 0.01}, (50, None, 0.01, 1.8e9)),
    ],
)
def test_rows_of_other_loggers_are_read(
    tmp_path: Path, row: dict[str, object], expected: tuple[object, ...]
) -> None:
    (found,) = read_metrics(write_rows(tmp_path / "m.jsonl", row)).steps
    assert (found.iter, found.iter_time, found.data_time, found.time) == expected
    assert not found.from_fastload


def test_rows_of_other_loggers_cover_the_steps_since_the_previous_row(tmp_path: Path) -> None:
    rows = [{"iter": n, "time": 0.2} for n in (50, 100, 150)]
    assert [row.steps for row in read_metrics(write_rows(tmp_path / "m.jsonl", *rows)).steps] == [
        1,
        50,
        50,
    ]


def test_invalid_lines_are_counted_and_the_next_row_is_read(tmp_path: Path) -> None:
    lines = [
        '{"epoch": 3, "accuracy": 0.7}',
        "[1, 2]",
        "nonsense",
        '{"kind": "step"}',
        '{"kind": "new one"}',
        "[" * 100_000,
        "\x00" * 50,
        '{"kind": "step", "iter": true}',
        '{"iter": 3, "time": NaN}',
        "x" * (1 << 21),
    ]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([*lines, "", json.dumps(STEP), ""]))
    metrics = read_metrics(path)
    assert metrics.skipped == len(lines)
    assert [row.iter for row in metrics.steps] == [120]


def test_values_that_are_not_numbers_are_omitted(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"kind":"step","iter":5,"data_time":NaN,"iter_time":"fast","stage_times":{"forward":null,"loss":1},'
        '"data_probe":{"read":{"max":1},"cut":3,"decode":{"mean":1}},"slow":[[1,2],[1,2,"x"],7,[3,4,5]],"samples":1e400}\n'
    )
    (row,) = read_metrics(path).steps
    assert (row.data_time, row.iter_time, row.samples) == (None, None, None)
    assert (row.stage_times, row.data_probe, row.slow) == (
        {"loss": 1.0},
        {"decode": Span(1.0, 1.0)},
        ((3, 4.0, 5.0),),
    )


@given(st.binary(max_size=200), st.integers(1, 50))
def test_parsing_in_pieces_equals_parsing_at_once(data: bytes, size: int) -> None:
    data = json.dumps(STEP).encode() + b"\n" + data + b"\n" + json.dumps(EVENT).encode() + b"\n"
    whole, pieces = RowParser(), RowParser()
    rows = list(whole.feed(data))
    assert [
        row for at in range(0, len(data), size) for row in pieces.feed(data[at : at + size])
    ] == rows
    assert pieces.skipped == whole.skipped
    assert isinstance(rows[0], StepRow)
    assert isinstance(rows[-1], EventRow)


def test_missing_file_error_names_file_and_expected_content(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no-such.jsonl.*StepProbe"):
        read_metrics(tmp_path / "no-such.jsonl")


def test_newest_returns_only_the_newest_run(tmp_path: Path) -> None:
    def run(rank: int, world: int, n: int) -> list[dict[str, object]]:
        return [{**RUN, "rank": rank, "world": world}, {**STEP, "rank": rank, "iter": n}]

    old = [*run(0, 4, 900), *run(1, 4, 900), *run(2, 4, 900)]
    parser = RowParser()
    rows = list(
        parser.feed(
            "".join(
                json.dumps(row) + "\n" for row in [*old, *run(0, 2, 10), *run(1, 2, 20)]
            ).encode()
        )
    )
    assert [(row.rank, row.iter) for row in newest(rows) if isinstance(row, StepRow)] == [
        (0, 10),
        (1, 20),
    ]
    assert len(newest(rows[:4])) == 4
    assert newest([]) == []


def test_row_after_an_incomplete_line_starts_a_new_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "m.jsonl", STEP, tail='{"kind":"st')
    file = LineFile(path)
    file.append(StepRow(iter=130))
    file.append(StepRow(iter=140))
    file.close()
    metrics = read_metrics(path)
    assert [row.iter for row in metrics.steps] == [120, 130, 140]
    assert metrics.skipped == 1


def test_full_disk_stops_logging_with_one_warning() -> None:
    file = LineFile(Path("/dev/full"))
    with pytest.warns(RuntimeWarning, match=r"cannot write metrics to /dev/full: No space"):
        file.append(StepRow())
    file.append(StepRow())  # no second warning


def test_unwritable_file_is_rejected_and_folders_are_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Is a directory"):
        LineFile(tmp_path)
    LineFile(tmp_path / "new" / "folder" / "m.jsonl").close()
    assert (tmp_path / "new" / "folder" / "m.jsonl").exists()
