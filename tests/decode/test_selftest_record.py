"""The record of passed self-test stages is specific to GPU, driver and versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fastload._decode import selftest_record as record


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fastload" / "selftest.json"


ALL = dict.fromkeys(record.HARDWARE_STAGES, True)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> record.Key:
    """Replaces the values that a driver would report."""
    here = {"gpu": "NVIDIA H100", "driver": "575.1", "torch": "2.9"}
    monkeypatch.setattr(record, "key", lambda device: dict(here))
    return here


def test_no_stage_has_passed_without_a_file() -> None:
    assert not record.passed("decode", "cpu", backend="dali")
    assert record.save("cpu", {"dali": {"decode": True, "errors": False}}).exists()
    assert record.passed("decode", "cpu", backend="dali")
    assert not record.passed("errors", "cpu", backend="dali")
    assert not record.passed("decode", "cpu", backend="nvjpeg")


def test_the_jpeg_engine_requires_all_its_stages(gpu: record.Key) -> None:
    for lacking in record.HARDWARE_STAGES:
        record.save("cuda", {"nvjpeg": {**ALL, lacking: False}})
        assert not record.hardware_passed("nvjpeg", "cuda")
    record.save("cuda", {"nvjpeg": ALL})
    assert record.hardware_passed("nvjpeg", "cuda")
    assert record.hardware_passed("nvjpeg", torch.device("cuda", 0))
    assert not record.hardware_passed("dali", "cuda")
    assert not record.hardware_passed("nvjpeg", "cpu")


@pytest.mark.parametrize("changed", ["gpu", "driver", "torch"])
def test_a_record_is_not_valid_for_another_machine_or_version(
    gpu: record.Key, changed: str
) -> None:
    record.save("cuda", {"nvjpeg": ALL})
    before = gpu[changed]
    gpu[changed] = "other"
    assert not record.hardware_passed("nvjpeg", "cuda")
    record.save("cuda", {"nvjpeg": {"decode": True}})
    gpu[changed] = before
    assert record.hardware_passed("nvjpeg", "cuda"), "the first machine's passes are still there"


def test_a_stage_that_fails_later_is_removed(gpu: record.Key) -> None:
    record.save("cuda", {"nvjpeg": ALL})
    record.save("cuda", {"nvjpeg": {"engine": False}})
    assert not record.passed("engine", "cuda", backend="nvjpeg")
    assert record.passed("decode", "cuda", backend="nvjpeg")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"version": 2, "entries": []}',
        '{"version": 1, "entries": 5}',
        '{"version": 1}',
        '{"version": 1, "entries": [{"key": 1, "passed": 2}]}',
        '{"version": 1, "entries": [7]}',
        "\\xff",
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(cache: Path, gpu: record.Key, text: str) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_bytes(text.encode("latin-1"))
    assert not record.hardware_passed("nvjpeg", "cuda")
    record.save("cuda", {"nvjpeg": ALL})
    assert record.hardware_passed("nvjpeg", "cuda")


def test_the_key_contains_versions(cache: Path) -> None:
    found = record.key("cpu")
    assert found["gpu"] == "cpu"
    assert found["torch"] == torch.__version__
    record.save("cpu", {})
    assert json.loads(cache.read_text())["entries"][0]["key"] == found


def test_the_status_lists_passed_stages_and_backends_with_jpeg_engine(gpu: record.Key) -> None:
    nothing = record.selftest_status("cuda")
    assert (nothing.path, nothing.passed, nothing.jpeg_engine) == (record.path(), {}, ())
    record.save("cuda", {"nvjpeg": ALL, "dali": {"decode": True, "engine": False}})
    status = record.selftest_status("cuda")
    assert status.passed == {"nvjpeg": tuple(sorted(ALL)), "dali": ("decode",)}
    assert status.jpeg_engine == ("nvjpeg",)
    gpu["driver"] = "999.1"
    assert record.selftest_status("cuda").jpeg_engine == ()
