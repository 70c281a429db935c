"""The report: one self-contained page with the findings of the doctor, and its plots."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest
from PIL import Image

from fastload._cli import main
from fastload._tools.charts import COLORS, Scale, log_ticks, spread_out, ticks
from fastload._tools.report import write_report
from fastload.errors import ConfigError
from tests.made_runs import every, foreign_rows, made, rows_of, window, write, write_window

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PLOTS = {"step-parts", "data-wait", "step-times", "rank-lanes", "utilization"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two ranks, checkpoints, late data and a window of two GPUs, so that every plot has data."""
    folder = tmp_path_factory.mktemp("run")
    ranks = [
        write(
            folder / f"rank{k}.jsonl",
            rows_of(every(made(3000, data=0.04 + 0.05 * k, seed=k, rank=k, world=2), 500, 3.0)),
        )
        for k in range(2)
    ]
    return [
        *ranks,
        write_window(folder / "window.json", window(util=70, waves=0.3, gpus=2, hot=0.2)),
    ]


@pytest.fixture(scope="module")
def report(files: list[Path]) -> Path:
    write_report(files, files[0].parent / "report.html")
    return files[0].parent / "report.html"


def test_page_is_self_contained_and_has_every_plot_in_two_widths(report: Path) -> None:
    text = report.read_text()
    assert not re.search(r"https?://|<script|<link|<img|@import|url\(", text)
    drawn = re.findall(r'<svg class="plot (wide|phone)" data-plot="([a-z-]+)"', text)
    assert {name for _, name in drawn} == PLOTS
    assert len(drawn) == 2 * len(PLOTS)
    used = set(re.findall(r"var\(--([a-z]+)\)", text))
    assert used <= set(COLORS)
    assert len(text) < 1_000_000


def test_every_plot_is_valid_xml_inside_its_view_box(report: Path) -> None:
    for drawing in re.findall(r"<svg.*?</svg>", report.read_text(), re.S):
        root = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        assert root.attrib["aria-label"]
        for shape in root.iter():
            if shape.tag == "rect":
                x, y, w, h = (float(shape.attrib[name]) for name in ("x", "y", "width", "height"))
                assert -2 <= x <= x + w <= width + 2
                assert -2 <= y <= y + h <= height + 2
            if shape.tag == "text":
                assert -1 <= float(shape.attrib["x"]) <= width
                assert 0 <= float(shape.attrib["y"]) <= height


def test_page_has_all_findings_of_the_doctor(files: list[Path], report: Path) -> None:
    diagnosis, written = write_report(files, report)
    text = unescape(re.sub(r"<[^>]+>", " ", report.read_text()))
    for finding in diagnosis.findings:
        assert finding.title[1:] in text
        assert all(each in text for each in finding.evidence)
    assert "node7" in text
    assert "2.9.1" in text
    assert written == [report]


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    rows = rows_of(made(400))
    nasty = "<img src=x onerror=alert(1)>\"'&"
    rows[0] |= {"host": nasty, "gpu": nasty}
    for row in rows[1:]:
        row["stage_times"] = {nasty: 0.1}
    rows.append(
        {"kind": "event", "time": 1, "rank": 0, "iter": 200, "name": nasty, "seconds": 60.0}
    )
    found = window()
    found["notes"] = [nasty]
    write_report(
        [write(tmp_path / "<b>.jsonl", rows), write_window(tmp_path / "w.json", found)],
        tmp_path / "r.html",
    )
    text = (tmp_path / "r.html").read_text()
    assert "<img" not in text
    assert "<b>" not in text
    assert "&lt;img src=x" in text


@pytest.mark.parametrize("foreign", [False, True])
def test_png_option_writes_every_plot(
    foreign: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = every(made(600), 8, 0.4, data=True)
    path = write(tmp_path / "m.jsonl", foreign_rows(run) if foreign else rows_of(run))
    assert (
        main(
            ["report", str(path), "-o", str(tmp_path / "r.html"), "--png", str(tmp_path / "plots")]
        )
        == 0
    )
    out = capsys.readouterr().out
    for name in ("step-parts", "data-wait", "step-times"):
        file = tmp_path / "plots" / f"{name}.png"
        assert f"Wrote {file}" in out
        with Image.open(file) as image:
            assert image.width > 2000
            colors = image.convert("RGB").getcolors(1 << 24) or []
        assert len(colors) > 20


def test_unwritable_outputs_are_named_and_the_next_report_works(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", rows_of(made(100)))
    with pytest.raises(ConfigError, match="cannot write report"):
        write_report([path], tmp_path / "no" / "r.html")
    with pytest.raises(ConfigError, match="--png"):
        write_report([path], tmp_path / "r.html", png=path / "plots")
    assert write_report([path], tmp_path / "r.html")[0].healthy


def test_two_runs_appear_one_after_the_other(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / f"b{batch}.jsonl", rows_of(made(300, batch=batch))) for batch in (4, 8)
    ]
    write_report(paths, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert text.index(">b4.jsonl</h2>") < text.index(">b8.jsonl</h2>")
    assert text.count('data-plot="step-parts"') == 4


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0, 22_000, [0, 5000, 10_000, 15_000, 20_000]),
        (3, 3, [3]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_scales_clip_values_and_labels_do_not_overlap() -> None:
    scale = Scale(1, 100, 0, 200, log=True)
    assert [scale(value) for value in (0, 1, 10, 100, 1e9)] == pytest.approx([0, 0, 100, 200, 200])
    assert log_ticks(0.9, 1500) == pytest.approx([1, 10, 100, 1000])
    moved = spread_out([50, 51, 52, 90], 15, 0, 100)
    assert min(b - a for a, b in itertools.pairwise(moved)) > 14


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright", reason="not run: no playwright")
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        if os.environ.get("FASTLOAD_REQUIRE_CHROMIUM") == "1":
            pytest.fail(
                "FASTLOAD_REQUIRE_CHROMIUM=1, but there is no chromium: apt install chromium"
            )
        pytest.skip("not run: no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "css"), [(400, "phone"), (1400, "wide")])
def test_a_browser_draws_every_plot(
    browser: Browser, report: Path, width: int, css: str, scheme: str
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on(
        "request",
        lambda request: (
            messages.append(request.url) if not request.url.startswith("file:") else None
        ),
    )
    page.goto(report.as_uri())
    assert messages == []
    # Nothing overflows to the right.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    seen = page.evaluate("""() => [...document.querySelectorAll('svg.plot')].filter(each => each.getBoundingClientRect().height > 60)
        .map(each => [each.dataset.plot, each.classList[1], each.querySelectorAll('rect, polygon, polyline').length,
                      Math.min(...[...each.querySelectorAll('text')].map(text => text.getBoundingClientRect().height))])""")
    assert {name for name, _, _, _ in seen} == PLOTS
    assert all(kind == css and shapes > 2 and letters >= 11 for _, kind, shapes, letters in seen), (
        seen
    )
    outside = page.evaluate("""() => [...document.querySelectorAll('svg.plot')].flatMap(each => { const box = each.getBoundingClientRect();
        return box.height ? [...each.querySelectorAll('text')].filter(text => { const at = text.getBoundingClientRect();
            return at.left < box.left - 1 || at.right > box.right + 1 }).map(text => each.dataset.plot + ': ' + text.textContent) : [] })""")
    assert outside == []
    ink, paper = page.evaluate(
        "['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name])"
    )
    light, dark = (
        (sum(map(int, re.findall(r"\d+", each)[:3])))
        for each in ((paper, ink) if scheme == "light" else (ink, paper))
    )
    assert light - dark > 450
    page.close()
