"""Fuzz targets of other files and texts: unfinished packs, conditions, metrics, machine records."""

from __future__ import annotations

import contextlib
import io
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fastload._common.checksum import crc32c
from fastload._decode import selftest_record
from fastload._load import backend_choice
from fastload._load.backend_choice import Candidate, Measured
from fastload._pack.datasets.where import matching
from fastload._pack.journal import Journal, Packed, Skipped, count_samples
from fastload._pack.state import (
    LINES,
    OFFSETS,
    SPLITS,
    Done,
    Event,
    Listing,
    PackState,
    sealed_line,
)
from fastload._store.dataset import Dataset, open_dataset
from fastload._store.manifest import Shard
from fastload._store.properties import Properties
from fastload._tools.doctor.examine import examine
from fastload._tools.monitor.metrics_file import read_metrics
from fastload._tools.monitor.window import read_window
from fastload._tools.report import write_report
from fastload.errors import FastloadError
from tests import made_runs
from tests.fuzz.mutations import mutate_json, mutate_json_lines
from tests.fuzz.target import Target, folder, new_folder
from tests.small_dataset import simple_samples, write_dataset


@cache
def _state() -> PackState:
    state = PackState(new_folder())
    state.folder.mkdir()
    return state


def _read_pack_state(data: bytes) -> None:
    """Reads the bytes as each file of an unfinished pack, with correct checksums where possible."""
    state = _state()
    line = data.partition(b"\n")[0]
    sealed = b"%s\n%08x\n" % (line, crc32c(line))
    rows = io.BytesIO()
    np.savez(rows, label=np.arange(2))
    for done, columns in ((data, data), (sealed, rows.getvalue()), (sealed, data)):
        (state.folder / "done-00000.json").write_bytes(done)
        (state.folder / "rows-00000.npz").write_bytes(columns)
        state.finished(0, range(2))
        with contextlib.suppress(FastloadError):
            (state.folder / "plan.json").write_bytes(done)
            state.check_plan({"fields": [], "options": {"encode": "keep"}})
    _read_listing(state.folder, data, data)
    lines = [sealed_line(row, each) for row, each in enumerate(data.split(b"\n"))]
    ends = np.cumsum([0, *map(len, lines)], dtype="<u8")
    _read_listing(state.folder, b"".join(lines), ends.tobytes())


def _read_listing(place: Path, lines: bytes, ends: bytes) -> None:
    seal = (crc32c(lines) << 32 | crc32c(ends)).to_bytes(8, "little")
    splits = bytes(2 * max(0, len(ends) // 8 - 1))
    (place / LINES).write_bytes(lines)
    (place / SPLITS).write_bytes(splits + crc32c(splits).to_bytes(4, "little"))
    for offsets in (ends, ends + seal):
        (place / OFFSETS).write_bytes(offsets)
        with contextlib.suppress(FastloadError):
            listing = Listing(place)
            with contextlib.suppress(FastloadError):
                listing.verify()
            for i in range(min(len(listing), 5)):
                with contextlib.suppress(FastloadError):
                    listing[i]
            listing.close()


def _pack_states() -> list[bytes]:
    shard = Shard("shard-00000.lmdb", 16384, 2, 0, 0, 4096, "0" * 8, "0" * 64, "0" * 64)
    done = Done((0, 2), [shard], [(0, 2)], [Properties()], [Event("skipped", "a.jpg", "damaged")])
    plan = {"fields": [["image", "image", False]], "options": {"encode": "auto"}, "versions": {}}
    refs = b'"a.jpg"\n["b.jpg", 1]\n{"at": 0, "size": 9}'
    return [json.dumps(done.as_json()).encode(), json.dumps(plan).encode(), refs]


def _read_journal(data: bytes) -> None:
    """Reads the lines as a journal, also with the checksums that it expects."""
    path = folder() / "journal"
    sealed = b""
    crc = 0
    for line in data.split(b"\n"):
        text = line.rpartition(b" ")[0] or line
        crc = crc32c(text, crc)
        sealed += b"%s %08x\n" % (text, crc)
    for content in (data, sealed):
        path.write_bytes(content)
        count_samples(path)
        list(Journal(path, _IDENTITY).earlier())


_IDENTITY = ["plan", 0]


def _journals() -> list[bytes]:
    path = folder() / "written"
    journal = Journal(path, _IDENTITY)
    for sample in (
        Packed(0, 9, "0" * 8, 5, 0),
        Packed(1, 9, "0" * 8, 5, 0, "a.png", ("PNG → JPEG",)),
        Skipped(2, "b.jpg", "damaged"),
    ):
        journal.add(sample)
    journal.flush()
    journal.close()
    return [path.read_bytes(), b'["plan",0] 0\n[[1,2]] 0', b"[1] 0"]


@cache
def _labeled() -> Dataset:
    write_dataset(folder() / "where", simple_samples(4))
    return open_dataset(folder() / "where")


def _match(data: bytes) -> None:
    with contextlib.suppress(FastloadError):
        found = matching(_labeled(), data.decode("utf-8", "surrogateescape"))
        assert len(found) == len(_labeled())


def _conditions() -> list[bytes]:
    return [
        b"label == 'cat' and width >= 33",
        b'label in ("cat", "dog") or not (image.height < 32.5)',
        b"1 < width <= 40 and label not in ('emu')",
        b"label != 1e3 and width == label",
        b"label == 'cow'",
        b"note == 1",
        b"label < 'cat'",
        b"width = 3",
        b"not not (label == 1",
        b"1 == 2",
        b"width == 'a'",
    ]


def _read_run(data: bytes) -> None:
    """Reads the bytes as metrics and as a window, and writes a report of both."""
    path = folder() / "run"
    path.write_bytes(data)
    report = folder() / "report.html"
    with contextlib.suppress(FastloadError):
        read_metrics(path)
    with contextlib.suppress(FastloadError):
        read_window(path)
    for others in ([], [_good_run()]):
        with contextlib.suppress(FastloadError):
            str(examine(path, *others))
            write_report([path, *others], report)


@cache
def _good_run() -> Path:
    return made_runs.write(folder() / "good.jsonl", made_runs.rows_of(made_runs.made(60)))


def _runs() -> list[bytes]:
    rows = made_runs.rows_of(made_runs.made(40))
    foreign = made_runs.foreign_rows(made_runs.made(8, warm=2))
    lines = ("\n".join(map(json.dumps, each)).encode() for each in (rows, foreign))
    window = made_runs.window(seconds=1.0, cores=2, hot=0.5, gpus=2)
    return [*lines, json.dumps(window).encode()]


@cache
def _cache_folder() -> Path:
    """Makes this process use a folder of the targets for its records."""
    os.environ["XDG_CACHE_HOME"] = str(new_folder())
    place = selftest_record.cache_folder()
    place.mkdir()
    return place


def _read_machine_records(data: bytes) -> None:
    """Reads the bytes as the record of self-tests and as that of a measured backend."""
    before = os.environ.get("XDG_CACHE_HOME")
    try:
        place = _cache_folder()
        os.environ["XDG_CACHE_HOME"] = str(place.parent)
        selftest_record.path().write_bytes(data)
        selftest_record.selftest_status("cpu")
        backend_choice.record_path(_KEY).write_bytes(data)
        record = backend_choice.load_record(_KEY)
        measured = backend_choice.from_json(record.get("measured")) if record else None
        with contextlib.suppress(FastloadError):
            if measured is not None:
                backend_choice.choose(measured, cpus=2, step_s=0.1)
    finally:
        if before is None:
            os.environ.pop("XDG_CACHE_HOME", None)
        else:
            os.environ["XDG_CACHE_HOME"] = before


_KEY = {"gpu": "none"}


def _machine_records() -> list[bytes]:
    entry: dict[str, Any] = {
        "key": selftest_record.key("cpu"),
        "passed": {"dali": ["decode"], "nvjpeg": ["decode", "engine"]},
    }
    measured = [
        Measured(Candidate("cpu"), 0.1, 0.2),
        Measured(Candidate("dali", True), failure="x"),
    ]
    rows = backend_choice.to_json(measured)
    return [
        json.dumps({"version": 1, "entries": [entry]}).encode(),
        json.dumps({"for": _KEY, "measured": rows}).encode(),
    ]


TARGETS = {
    "pack-state": Target(
        _read_pack_state,
        _pack_states,
        (
            "fastload._pack.state:Done.from_json",
            "fastload._pack.state:PackState.read",
            "fastload._pack.state:PackState.finished",
            "fastload._pack.state:PackState.done",
            "fastload._pack.state:PackState.rows",
            "fastload._pack.state:PackState.check_plan",
            "fastload._pack.state:_read_sealed",
            "fastload._pack.state:_differences",
            "fastload._pack.state:_flat",
            "fastload._pack.state:Listing",
            "fastload._pack.state:_read_splits",
        ),
        (),
        mutate_json,
    ),
    "journal": Target(
        _read_journal,
        _journals,
        (
            "fastload._pack.journal:count_samples",
            "fastload._pack.journal:_entries",
            "fastload._pack.journal:_parse",
            "fastload._pack.journal:Journal.earlier",
        ),
        (),
        mutate_json_lines,
    ),
    "where": Target(_match, _conditions, ("fastload._pack.datasets.where",)),
    "run-files": Target(
        _read_run,
        _runs,
        (
            "fastload._tools.monitor.metrics_file",
            "fastload._common.metrics",
            "fastload._tools.monitor.window:read_window",
            "fastload._tools.monitor.window:_*",
            "fastload._tools.doctor.runs",
        ),
        ("LineFile", "as_json", "newest", "Metrics", "_plain"),
        mutate_json_lines,
    ),
    "machine-records": Target(
        _read_machine_records,
        _machine_records,
        ("fastload._decode.selftest_record", "fastload._load.backend_choice"),
        ("save", "store_record", "to_json"),
        mutate_json,
    ),
}
