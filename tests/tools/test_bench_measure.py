"""How benchmarks measure and present: rounds, spread, tables, charts, child processes.

No test asserts the size of a measured figure.
"""

from __future__ import annotations

import itertools
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.page_parts import bar_plot, markdown
from fastload._common.nvml import open_gpu
from fastload._common.tables import Table
from fastload._tools.bench import measure
from fastload._tools.bench.charts import (
    Curve,
    check_plot_path,
    line_plot,
    write_plots,
)
from fastload._tools.bench.children import Child
from fastload._tools.bench.decode import GpuMeter
from fastload._tools.bench.measure import (
    commit,
    machine,
    number,
    package_version,
    run_rounds,
    spread,
    thread_counts,
    timed,
    versions,
)
from fastload._tools.charts import Line, Plot, Rect, svg_file, write_png
from fastload.errors import ConfigError, WorkerDied


@pytest.mark.parametrize(
    ("cpus", "counts"),
    [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])],
)
def test_thread_counts_double_and_end_with_all(cpus: int, counts: list[int]) -> None:
    assert thread_counts(cpus) == counts


def test_spread_is_median_and_quartiles() -> None:
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low, found.middle, found.high, found.n) == (2.0, 3.0, 4.0, 5)
    assert spread([7.0]).as_json() == {"median": 7.0, "low": 7.0, "high": 7.0, "n": 1}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12,346"),
        (123.4, "123"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (0, "0"),
    ],
)
def test_numbers_have_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_rounds_are_interleaved_and_the_first_does_not_count() -> None:
    order: list[str] = []

    def contestant(name: str) -> int:
        order.append(name)
        return 3

    ticks: list[tuple[int, int]] = []
    found = run_rounds(
        {"a": lambda: contestant("a"), "b": lambda: contestant("b")},
        rounds=2,
        seconds=0.0,
        tick=lambda *at: ticks.append(at),
    )
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert [len(passes) for passes in found.values()] == [2, 2]
    assert [each.n for each in found["a"]] == [3, 3]
    assert ticks[-1] == (6, 6)


def test_a_pass_repeats_until_its_minimum_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(
        measure,
        "time",
        types.SimpleNamespace(perf_counter=lambda: float(next(ticks)), process_time=lambda: 0.0),
    )
    assert timed(lambda: 5, at_least_s=3.0).n == 15
    assert timed(lambda: 5).n == 5


def test_a_piped_table_is_plain_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    Table(
        "title", ("name", "figure"), rows=[("a", "1"), ("longer", "1,000")], notes=["note"]
    ).show()
    assert capsys.readouterr().out.splitlines() == [
        "title",
        "name    figure",
        "a            1",
        "longer   1,000",
        "note",
    ]


def test_a_markdown_table_replaces_the_separator_in_cells() -> None:
    assert markdown(("a", "b"), [("x|y", "1")]).splitlines() == [
        "| a | b |",
        "| --- | ---: |",
        "| x/y | 1 |",
    ]


def svg_texts(plot: Plot) -> list[str | None]:
    drawn = ET.fromstring(svg_file(plot))
    return [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]


def test_curves_are_well_formed_svg_with_a_legend() -> None:
    curve = Curve("a <b>", [(1, 10.0, 9.0, 11.0), (2, 18.0, 17.0, 19.0)])
    ideal = Curve("ideal", [(1, 10.0, 10.0, 10.0), (2, 20.0, 20.0, 20.0)], ideal=True)
    plot = line_plot("title & more", [curve, ideal], x_name="x", y_name="y")
    texts = svg_texts(plot)
    assert {"title & more", "a <b>", "ideal", "x", "y", "1", "2", "0", "20"} <= set(texts)


def test_a_curve_rises_where_its_values_grow() -> None:
    curve = Curve("a", [(1, 10.0, 9.0, 11.0), (4, 20.0, 19.0, 21.0)])
    plot = line_plot("t", [curve], x_name="x", y_name="y")
    drawn = next(shape for shape in plot.shapes if isinstance(shape, Line) and shape.width == 2)
    (x0, y0), (x1, y1) = drawn.points
    assert x0 < x1
    assert y0 > y1, "y grows downwards on the sheet"


def test_the_longest_bar_is_first_and_bars_are_proportional() -> None:
    plot = bar_plot("t", {"one": (1.0, 0.5, 1.5), "two": (3.0, 2.0, 4.0)}, unit="images/s")
    texts = svg_texts(plot)
    assert texts.index("two") < texts.index("one")
    two, one = (shape for shape in plot.shapes if isinstance(shape, Rect))
    assert two.width == pytest.approx(3 * one.width)


@pytest.mark.parametrize("name", ["out.html", "out.svg", "out.png"])
def test_the_suffix_decides_the_format_of_a_plot(tmp_path: Path, name: str) -> None:
    curves = [Curve("one", [(1, 1.0, 1.0, 1.0), (2, 2.0, 1.5, 2.5)])]
    write_plots(
        tmp_path / name,
        "title",
        {"work": curves},
        x_name="threads",
        y_name="images/s",
        notes=["a note"],
        tables=["a table"],
    )
    data = (tmp_path / name).read_bytes()
    assert data.startswith(
        {"out.html": b"<!doctype html>", "out.svg": b"<svg", "out.png": b"\x89PNG"}[name]
    )
    if name == "out.html":
        assert b"a note" in data
        assert b"http" not in data.replace(b"http://www.w3.org/2000/svg", b""), "self-contained"


def test_a_dashed_line_of_a_png_passes_through_all_of_its_points(tmp_path: Path) -> None:
    plot = Plot("p", 100, 100, "")
    plot.add(Line(((0, 90), (50, 10), (100, 90)), "wait", width=3, dashed=True))
    write_png(plot, tmp_path / "out.png", title="")
    pixels = np.asarray(Image.open(tmp_path / "out.png").convert("RGB")).astype(int)
    is_orange = (pixels[..., 0] - pixels[..., 2]) > 60
    rows = np.flatnonzero(is_orange.any(1))
    assert rows.max() - rows.min() > 140, "80 units, 2 pixels each"


def test_a_plot_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.gif: expected a file name that ends in"):
        check_plot_path(tmp_path / "out.gif")
    with pytest.raises(ConfigError, match="absent does not exist"):
        check_plot_path(tmp_path / "absent" / "out.html")
    check_plot_path(tmp_path / "out.html")


def test_the_machine_is_described(tmp_path: Path) -> None:
    assert {"processor", "cpus", "memory", "load", "system"} <= machine().keys()
    assert versions("no-such-package")["no-such-package"] == "not installed"
    assert package_version("numpy")[0].isdigit()
    assert commit(tmp_path) == "" or len(commit(tmp_path)) >= 12


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub of pynvml with two GPUs that use 500 J (GPU 0) and 5 J (GPU 1) between readings."""
    readings = {0: iter((0.0, 5e5)), 1: iter((1000.0, 6000.0))}

    class NVMLError(Exception):
        pass

    class NVMLError_FunctionNotFound(NVMLError):  # noqa: N801 - as in pynvml
        pass

    def no_jpeg_engine(handle: int) -> None:
        raise NVMLError_FunctionNotFound

    def no_mig(handle: int) -> None:
        raise NVMLError

    nvml = types.ModuleType("pynvml")
    vars(nvml).update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{'ab'[handle] * 8}-0000",
        nvmlDeviceGetName=lambda handle: "GPU",
        nvmlDeviceGetMigMode=no_mig,
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=1 << 30),
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: next(readings[handle]),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=40 + handle),
        nvmlDeviceGetJpgUtilization=no_jpeg_engine,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)


@pytest.mark.usefixtures("two_gpus")
def test_the_gpu_meter_reads_the_gpu_with_the_given_uuid() -> None:
    gpu, _ = open_gpu("GPU-bbbbbbbb-0000")
    assert gpu is not None
    assert GpuMeter(gpu).read(10) == {"joules_per_image": 0.5, "sm_share": 0.41}, (
        "the JPEG engine is omitted, because this driver does not report it"
    )


ECHO = """
import sys
from fastload._tools.bench.children import serve
def run(word):
    print("noise on stdout")
    if word == "die":
        sys.exit("the last line")
    return {"word": word, "memory": len(bytearray(30 << 20))}
serve(lambda: ({"name": "echo"}, run))
"""


def test_a_child_answers_round_by_round_and_is_measured() -> None:
    with Child("echo", [sys.executable, "-c", ECHO]) as child:
        assert child.wait() == {"name": "echo"}
        for word in ("one", "two"):
            found = child.round(word)
            assert found.figures["word"] == word
            assert found.wall_s > 0
            assert found.cpu_s >= 0
            assert found.peak_mb > 1


def test_a_child_that_exits_is_named_with_the_last_line_of_its_stderr() -> None:
    buffered = {"PYTHONUNBUFFERED": ""}
    with Child("echo", [sys.executable, "-c", ECHO], env=buffered) as child:
        child.wait()
        with pytest.raises(
            WorkerDied, match=r"echo: the process ended with exit code 1: the last line"
        ):
            child.round("die")
    with Child("next", [sys.executable, "-c", ECHO]) as child:
        child.wait()
        assert child.round("good").figures["word"] == "good"
