"""`fastload bench decode|load|io` on small datasets: text and JSON output, and usage errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._cli import main
from fastload._decode.registry import BACKENDS
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._tools.bench import decode_work, io
from fastload._tools.bench.decode_work import (
    BenchImages,
    Work,
    make_decoder,
    standard_works,
    usable_backends,
)
from fastload._tools.bench.io import Run, evict, read_runs
from fastload._tools.bench.load import Consumer, LoadReport, LoadRow, export_images, image_files
from fastload._tools.bench.measure import spread
from fastload.errors import BadImage, ConfigError, MissingPart
from tests.loading import needs_core, pack_photos, png
from tests.packed_datasets import encoded, pack_samples, photo, spoil_image

N = 24
FAST = ["--rounds", "1", "--seconds", "0.001"]


def bench(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["bench", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def bench_json(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, Any]:
    code, out, err = bench(capsys, *words, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_decode_measures_each_backend_thread_count_and_work(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_core()
    found = bench_json(
        capsys,
        "decode",
        packed,
        *FAST,
        "--backend",
        "native",
        "--backend",
        "reference",
        "--threads",
        1,
        "--threads",
        2,
        "--size",
        "40x60",
    )
    rows = {(row["backend"], row["threads"], row["work"]) for row in found["rows"]}
    works = {"as stored", "RRC 224", "RRC 224, exact", "whole -> 60x40", "whole -> 60x40, exact"}
    assert rows == {
        (backend, threads, work)
        for backend in ("native", "reference")
        for threads in (1, 2)
        for work in works
    }
    assert found["n_images"] == 24
    for row in found["rows"]:
        assert row["images_per_s"]["n"] == 1
        assert row["images_per_s"]["median"] > 0
        assert row["gb_in_per_s"] > 0
    small = next(row for row in found["rows"] if row["work"] == "whole -> 60x40")
    assert small["gb_out_per_s"] == pytest.approx(
        small["images_per_s"]["median"] * 40 * 60 * 3 / 1e9
    )
    assert "images/s on this machine" in found["limit"]
    assert found["machine"]["processor"]


def test_decode_in_a_pipe_prints_plain_lines_and_a_conclusion(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_core()
    page = tmp_path / "out.html"
    code, out, _ = bench(
        capsys,
        "decode",
        packed,
        *FAST,
        "--backend",
        "native",
        "--threads",
        1,
        "--exact",
        "off",
        "--plot",
        page,
        "--samples",
        8,
    )
    assert code == 0
    assert "\x1b" not in out
    lines = out.splitlines()
    assert lines[2].split()[:3] == ["work", "backend", "threads"]
    assert lines[-2].startswith("RRC 224: up to ")
    assert lines[-1] == f"Wrote {page}"
    assert page.read_text().count("<svg") == 3


def test_decode_reports_which_backends_did_not_run() -> None:
    names, reasons = usable_backends(["reference"])
    assert names == ["reference"]
    assert reasons == {}
    with pytest.raises(ConfigError, match="backend='nonsense': expected one of"):
        usable_backends(["nonsense"])
    everything, why = usable_backends()
    assert {*everything, *why} == set(BACKENDS)


def test_decode_without_any_backend_reports_the_reasons(
    packed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(name: str, *, threads: int) -> None:
        raise MissingPart(f"{name} was not built")

    monkeypatch.setattr(decode_work, "make_decoder", none)
    code, _, err = bench(capsys, "decode", packed, *FAST, "--backend", "reference")
    assert code == 1
    assert "no decode backend is available: reference: reference was not built" in err
    monkeypatch.undo()
    assert (
        bench(
            capsys,
            "decode",
            packed,
            *FAST,
            "--backend",
            "reference",
            "--threads",
            1,
            "--samples",
            2,
            "--exact",
            "off",
        )[0]
        == 0
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "0"], "expected a size such as 224"),
        (["--size", "1x2x3"], "expected a size"),
        (["--threads", "0"], "1 or more"),
        (["--rounds", "-1"], "expected"),
        (["--seconds", "nan"], "expected seconds"),
        (["--exact", "maybe"], "invalid choice"),
        (["--plot", "out.gif"], ".html, .svg or .png"),
        (["--backend", "nonsense"], "expected one of"),
        (["--field", "label"], "image field 'label'"),
    ],
)
def test_decode_with_a_usage_error_exits_with_2_and_explains_it(
    packed: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = bench(capsys, "decode", packed, *words)
    assert code == 2
    assert message in err


def test_bench_needs_a_kind_and_a_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(capsys)[0] == 2
    for kind in ("decode", "load", "io"):
        code, _, err = bench(capsys, kind, tmp_path / "absent")
        assert code == 1
        assert "no such folder" in err


def test_standard_works_follow_the_requested_sizes_and_exactness() -> None:
    assert [work.name for work in standard_works([(256, 256)], exact="off")] == [
        "as stored",
        "RRC 224",
        "whole -> 256",
    ]
    assert [work.exact for work in standard_works([], exact="on")] == [False, True]


def test_images_of_several_sizes_kinds_and_cameras_are_all_decoded(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"cams": [encoded(photo(64 + 16 * (i % 2), 48, seed=10 * i + k)) for k in range(3)]}
        for i in range(4)
    ]
    cameras = open_dataset(
        pack_samples(tmp_path / "cameras", [Field("cams", "image", list=True)], samples)
    )
    images = BenchImages.of(cameras, field=None, samples=10)
    backend = make_decoder("reference", threads=1)
    for work in (Work("", None), Work("", (32, 32))):
        batches = images.batches(work)
        images.run(backend, work, batches)
        assert sum(len(batch.output) for batch in batches) == images.n_images == 12
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    png_dataset = open_dataset(
        pack_samples(
            tmp_path / "png", [Field("image", "image")], [{"image": encoded(png(pixels))}] * 2
        )
    )
    images = BenchImages.of(png_dataset, field="image", samples=10)
    batches = images.batches(Work("", None))
    images.run(backend, Work("", None), batches)
    assert np.array_equal(batches[0].output[1].numpy(), pixels)


def test_a_bad_image_is_named_and_the_next_dataset_is_measured(tmp_path: Path) -> None:
    path = pack_photos(tmp_path / "packed", 6)
    spoil_image(path, 3)
    bad = BenchImages.of(open_dataset(path), field=None, samples=6)
    backend = make_decoder("reference", threads=1)
    with pytest.raises(BadImage):
        bad.run(backend, Work("", (32, 32)), bad.batches(Work("", (32, 32))))
    good = BenchImages.of(open_dataset(pack_photos(tmp_path / "good", 6)), field=None, samples=6)
    good.run(backend, Work("", (32, 32)), good.batches(Work("", (32, 32))))


def test_load_compares_with_torch_over_exported_files(
    packed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bench_json(
        capsys,
        "load",
        packed,
        "--against",
        "torch",
        "--workers",
        0,
        "--batch-size",
        4,
        "--size",
        32,
        "--compute",
        1,
        "--rounds",
        1,
        "--seconds",
        "0.05",
    )
    assert [row["kind"] for row in found["rows"]] == ["fastload", "torch"]
    for row in found["rows"]:
        assert row["images_per_s"]["median"] > 0
        assert row["p99_ms"] >= row["p50_ms"] > 0
        assert 0 <= row["waiting"] <= 1
        assert row["peak_mb"] > 1
    assert "With fastload the consumer gets" in found["verdict"]
    assert "torch, 0 workers" in found["verdict"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--against", "tensorflow"], "expected 'torch'"),
        (["--against", "torch", "a", "b"], "expected 'torch'"),
        (["--against", "torch", "/absent/folder"], "contains no image files"),
        (["--batch-size", "1000"], "smaller --batch-size"),
        (["--compute", "-1"], "milliseconds"),
        (["--field", "label"], "image field 'label'"),
    ],
)
def test_load_with_a_usage_error_exits_with_2(
    packed: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = bench(capsys, "load", packed, "--batch-size", 4, *words)
    assert code == 2
    assert message in err


def test_the_conclusion_compares_with_the_fastest_torch_loader() -> None:
    def row(name: str, kind: str, per_s: float) -> LoadRow:
        return LoadRow(name, kind, spread([per_s]), 1.0, 0.5, 1.0, 2.0, 1.0, 100.0)

    report = LoadReport(
        Consumer("packed", "image"),
        [row("fastload", "fastload", 300), row("slow", "torch", 50), row("quick", "torch", 100)],
        {},
    )
    assert "(quick)" in report.conclusion()
    assert "3.00 times as fast" in report.conclusion()
    assert (
        "fastload did not run"
        in LoadReport(Consumer("packed", "image"), [], {"fastload": "why"}).conclusion()
    )


def test_exported_files_are_the_stored_images(packed: Path, tmp_path: Path) -> None:
    dataset = open_dataset(packed)
    assert export_images(dataset, tmp_path, limit=5) == 5
    files = image_files(tmp_path)
    assert len(files) == 5
    assert files[0].read_bytes() == bytes(dataset.raw(0, "image"))
    with pytest.raises(ConfigError, match="contains no image files"):
        image_files(tmp_path / "absent")


def test_io_reads_every_order_and_reader_count(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "disk.svg"
    found = bench_json(
        capsys, "io", packed, "--rounds", 1, "--readers", 1, "--readers", 3, "--plot", page
    )
    rows = {(row["order"], row["cold"], row["readers"]) for row in found["rows"]}
    assert rows == {
        (order, cold, readers)
        for order in io.ORDERS
        for cold in (True, False)
        for readers in (1, 3)
    }
    assert all(row["bytes_per_s"]["median"] > 0 for row in found["rows"])
    assert found["n_images"] == 24
    assert page.read_text().startswith("<svg")
    warm = bench_json(capsys, "io", packed, "--rounds", 1, "--readers", 1, "--warm-only")
    assert {row["cold"] for row in warm["rows"]} == {False}
    assert "Warm" in warm["verdict"]


def test_io_in_a_pipe_prints_plain_lines(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = bench(capsys, "io", packed, "--quick", "--readers", 1)
    assert code == 0
    assert "\x1b" not in out
    assert "block-shuffled" in out
    assert bench(capsys, "io", packed, "--readers", 0)[0] == 2


def test_places_are_the_positions_of_records_in_the_files(packed: Path) -> None:
    dataset = open_dataset(packed)
    blocks, files = io.places(dataset, most_bytes=1 << 40)
    runs = [run for block in blocks for run in block]
    assert len(runs) == len(dataset) == 24
    values = sorted(bytes(dataset.reader(i).get(i)) for i in range(24))
    assert (
        sorted(run.path.read_bytes()[run.offset : run.offset + run.length] for run in runs)
        == values
    )
    assert set(files) == {run.path for run in runs}
    some, _ = io.places(dataset, most_bytes=1)
    assert len(some) == 1


def test_all_orders_read_the_same_bytes(packed: Path) -> None:
    blocks, _ = io.places(open_dataset(packed), most_bytes=1 << 40)
    sequential = io.runs_in(blocks, "sequential", seed=1)
    shuffled = io.runs_in(blocks, "block-shuffled", seed=1)
    assert sequential != shuffled
    assert set(sequential) == set(shuffled)
    random = io.runs_in(blocks, "random", seed=1)
    assert set(random) == {run for block in blocks for run in block}
    assert random != [run for block in blocks for run in block]


def test_reading_stops_at_the_end_of_the_runs_and_evicting_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(3 << 20))
    assert read_runs([Run(path, 0, 3 << 20), Run(path, 5, 10)], readers=2, most_s=60) > 0
    assert 0 <= evict([path]) <= 1
