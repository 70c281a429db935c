"""``verify``: exact counts, bounded lists, independence of threads, exit codes, progress."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fastload._store.fields import Field
from fastload._store.manifest import read_manifest
from fastload._store.verify import VerifyProgress, verify
from fastload._store.verify.report import KEPT, SHOWN, Fault, FaultList
from fastload.errors import ConfigError, CorruptManifest, StoreError
from tests.packed_datasets import change_column, change_parts, flip, pack_samples


@pytest.fixture(scope="module")
def many_faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 samples without images and a column with wrong values in every row."""
    path = pack_samples(
        tmp_path_factory.mktemp("many") / "packed",
        (Field("label", "int"),),
        [{"label": i} for i in range(1500)],
    )
    change_column(path, "label", lambda rows: rows + 1)
    return path


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastload", "verify", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_counts_are_exact_and_lists_are_bounded(many_faults: Path) -> None:
    report = verify(many_faults, jobs=3)
    assert report.n_faults == 1500
    assert [fault.record for fault in report.faults] == list(range(KEPT)), (
        "the first ones in dataset order"
    )
    lines = str(report).splitlines()
    assert lines[0].endswith(": 1,500 faults")
    assert sum("columns/label.npy, row" in line for line in lines) == SHOWN
    assert f"... and {1500 - SHOWN:,} more" in str(report)


def test_the_report_does_not_depend_on_the_number_of_threads(
    many_faults: Path, dataset: Path
) -> None:
    flip(dataset / "shard-00001.lmdb", 100_000)
    for path in (many_faults, dataset):
        reports = [replace(verify(path, jobs=jobs), seconds=0.0) for jobs in (1, 2, 7)]
        assert reports[0] == reports[1] == reports[2]
        assert not reports[0].ok


def test_verification_continues_after_every_fault(dataset: Path) -> None:
    """Plants one fault of each kind; all are reported."""
    (dataset / "columns/image.height.npy").unlink()
    flip(dataset / "shard-00000.lmdb", 4200)
    last = read_manifest(dataset).shards[-1]
    change_parts(
        dataset,
        last.first,
        lambda parts: [part._replace(data=bytes(3)) if part.field == 1 else part for part in parts],
    )
    report = verify(dataset, jobs=2)
    named = {(fault.shard, fault.record) for fault in report.faults}
    assert {("columns/image.height.npy", None), ("shard-00000.lmdb", None), (last.name, 0)} <= named


def test_only_the_chosen_shard_is_checked(dataset: Path) -> None:
    flip(dataset / "shard-00000.lmdb", 100_000)
    other = verify(dataset, shard=1)
    assert other.ok
    assert other.n_checked == read_manifest(dataset).shards[1].records
    assert "shard-00001.lmdb only" in str(other)
    assert not verify(dataset, shard=0).ok
    with pytest.raises(ConfigError, match=r"shard 99: .* has \d shards, shard-00000.lmdb to"):
        verify(dataset, shard=99)


def test_progress_reaches_the_total_with_a_damaged_shard(dataset: Path) -> None:
    for damaged in (False, True):
        if damaged:
            flip(dataset / "shard-00000.lmdb", 100_000)
        steps: list[VerifyProgress] = []
        verify(dataset, jobs=2, on_progress=steps.append)
        assert [step.done for step in steps] == sorted(step.done for step in steps)
        assert (steps[-1].done, steps[-1].total) == (40, 40)


def test_an_error_in_the_callback_ends_all_threads(packed_folder: Path) -> None:
    def fail(progress: VerifyProgress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        verify(packed_folder, jobs=4, on_progress=fail)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("fastload-verify")
    ]
    assert verify(packed_folder).ok


def test_a_missing_dataset_is_an_error_not_a_report(packed_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        verify(tmp_path / "nothing")
    with pytest.raises(CorruptManifest, match="not a fastload dataset"):
        verify(tmp_path)
    shutil.copy(packed_folder / "shard-00000.lmdb", tmp_path)
    with pytest.raises(CorruptManifest, match="has not finished"):
        verify(tmp_path)
    assert verify(packed_folder).ok


def test_the_fault_list_keeps_the_first_of_each_place() -> None:
    faults = FaultList(kept=3)
    for record in (9, 1, 8, 2, 7, 3, 6, 4, 5):
        faults.add(1, Fault("b", record, "", "x"))
    faults.add(0, Fault("a", None, "", "y"))
    assert faults.count == 10
    assert [(fault.shard, fault.record) for fault in faults.sorted()] == [
        ("a", None),
        ("b", 1),
        ("b", 2),
    ]


def test_exit_codes_and_json(dataset: Path, tmp_path: Path) -> None:
    fine = run(dataset, "--deep")
    assert (fine.returncode, fine.stderr) == (0, "")
    assert "Decoded: 40 images, masks included." in fine.stdout
    (dataset / "shard-00001.lmdb").write_bytes(
        (dataset / "shard-00001.lmdb").read_bytes()[:50_000]
    )  # mapping it would raise SIGBUS
    bad = run(dataset)
    assert bad.returncode == 1
    assert "shard-00001.lmdb" in bad.stdout
    assert "50000 bytes, expected" in bad.stdout
    machine = run(dataset, "--json", "--jobs", "2")
    assert machine.returncode == 1
    printed = json.loads(machine.stdout)
    assert printed["ok"] is False
    assert printed["faults"][0]["shard"] == "shard-00001.lmdb"
    assert printed["not_checked"][0]["shard"] == "shard-00001.lmdb"
    for words, code, message in (
        ([tmp_path / "nothing"], 1, "no such folder"),
        ([dataset, "--shard", "99"], 2, "shard 99"),
        ([dataset, "--jobs", "x"], 2, "expected an integer"),
        ([], 2, "DATASET"),
    ):
        result = run(*words)
        assert result.returncode == code
        assert message in result.stderr
        assert "Traceback" not in result.stderr
