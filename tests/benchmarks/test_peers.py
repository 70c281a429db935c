"""The comparison with other loaders runs, all do the same work, and failures are listed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.peers import __main__ as command
from benchmarks.peers import data, loading, packing, peers
from benchmarks.peers.job import WORKS, Job
from benchmarks.peers.loading import Compared, Line
from fastload._tools.bench.measure import spread
from tests.loading import needs_core
from tests.packed_datasets import photo


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like data.prepare creates it, with small images."""
    folder = tmp_path_factory.mktemp("data")
    for work, count in (("rrc", 6), ("gray", 6), ("cameras", 2)):
        target = folder / WORKS[work].data
        target.mkdir()
        for number in range(count):
            for camera in range(WORKS[work].cameras):
                size = (128, 128) if work == "gray" else (96, 72)
                (target / f"{number:06}-{camera}.jpg").write_bytes(
                    photo(*size, seed=10 * number + camera, gray=work == "gray")
                )
        (target / data.DONE).touch()
    return folder


def test_every_peer_has_a_complete_adapter() -> None:
    for name in (
        "fastload",
        "fastload-exact",
        "fastload-raw",
        "core",
        "torch-pil",
        "torch-cv2",
        "torch-lmdb",
        "webdataset",
        "spdl",
        "dali",
        "ffcv",
        "litdata",
        "datasets",
        "streaming",
    ):
        found = peers.adapter(name)
        assert found.PACKAGES
        assert found.NOTE
        assert isinstance(found.CHECKSUM, bool)
        assert callable(found.batches)
        assert not packing.can_pack(name) or callable(found.count), (
            "peers that pack need a reader for the test with SIGKILL"
        )


def test_a_job_groups_cameras(images: Path, tmp_path: Path) -> None:
    job = Job.of("cameras", images, tmp_path, 0)
    assert [len(sample) for sample in job.samples] == [6, 6]
    assert [path.name for path in job.samples[1]] == [f"000001-{camera}.jpg" for camera in range(6)]


def test_loaders_deliver_the_same_images_in_every_work(images: Path, tmp_path: Path) -> None:
    needs_core()
    names = ["fastload", "fastload-exact", "core", "torch-pil", "torch-cv2"]
    assert packing.prepare(names, ["gray", "cameras"], images, tmp_path, 1) == {}
    for work, n in (("gray", 6), ("cameras", 12)):
        found = loading.compare(work, names, images, tmp_path, workers=1, rounds=1, seconds=0.0)
        assert found.absent == {}
        assert {line.peer for line in found.lines} == set(names)
        assert found.n == n
        assert found.doubts() == []
        assert all(line.per_s.middle > 0 and line.peak_mb > 1 for line in found.lines)


def test_the_command_compares_and_writes_json(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_core()
    out = tmp_path / "out.json"
    assert (
        command.main(
            [
                "--peers",
                "fastload,fastload-exact,torch-lmdb",
                "--works",
                "rrc",
                "--quick",
                "--workers",
                "1",
                "--data",
                str(images),
                "--json",
                str(out),
            ]
        )
        == 0
    )
    found = json.loads(out.read_text())
    assert {line["peer"] for line in found["works"][0]["lines"]} == {
        "fastload",
        "fastload-exact",
        "torch-lmdb",
    }
    rows = {row["peer"]: row for row in found["packing"]["rows"]}
    assert rows["fastload"]["again"] == "complete (6)"
    assert rows["fastload"]["checksum"] is True
    assert rows["torch-lmdb"]["bytes"] > 0
    assert found["machine"]["processor"]
    assert found["versions"]["lmdb"]
    printed = capsys.readouterr().out
    assert "RRC 224" in printed
    assert "after SIGKILL" in printed
    assert "times as fast as the next loader (torch + OpenCV, LMDB)" in found["reach"][0]
    assert "; with exact=True " in found["reach"][0]


def test_a_peer_that_cannot_run_is_listed_with_the_reason(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(
        peers.PEERS, "webdataset", peers.Entry("WebDataset", "webdataset", "no_such_module")
    )
    found = loading.compare(
        "rrc", ["webdataset"], images, tmp_path, workers=1, rounds=1, seconds=0.0
    )
    assert "module no_such_module is not installed" in found.absent["webdataset"]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / peers.REASONS).write_text(json.dumps({"ffcv": "no compiler"}))
    assert peers.missing("ffcv") == "installation failed: no compiler"
    broken = loading.compare(
        "rrc", ["torch-lmdb"], images, tmp_path / "never packed", workers=0, rounds=1, seconds=0.0
    )
    assert broken.lines == []
    assert (
        "ended with exit code 1" in broken.absent["torch-lmdb"]
        or "No such file" in broken.absent["torch-lmdb"]
    )


def test_a_different_mean_pixel_value_is_reported() -> None:
    def line(peer: str, mean: float) -> Line:
        return Line(peer, spread([1.0]), spread([1.0]), 1.0, mean)

    found = Compared(
        "whole", 1, [line("fastload", 100.0), line("torch-pil", 101.0), line("ffcv", 160.0)], {}
    )
    assert len(found.doubts()) == 1
    assert "FFCV" in found.doubts()[0]


@pytest.mark.parametrize("words", [["--peers", "nonsense"], ["--works", "rrc,nonsense"]])
def test_unknown_names_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        command.main(words)
    assert stop.value.code == 2
    assert "nonsense: expected names from" in capsys.readouterr().err


def test_images_are_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "photos"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.jpg").write_bytes(photo(90, 60, seed=number))
    monkeypatch.setattr(data, "photo_paths", lambda: sorted(source.glob("*.jpg")))
    data.prepare(tmp_path / "data", ["rrc", "gray"], quick=True)
    assert len(list((tmp_path / "data" / "photos").glob("*.jpg"))) == data.QUICK["photos"]
    with Image.open(tmp_path / "data" / "gray" / "000000-0.jpg") as image:
        assert (image.mode, image.size) == ("L", (128, 128))
    first = (tmp_path / "data" / "photos" / "000001-0.jpg").stat().st_mtime_ns
    data.prepare(tmp_path / "data", ["rrc"], quick=True)
    assert (tmp_path / "data" / "photos" / "000001-0.jpg").stat().st_mtime_ns == first
