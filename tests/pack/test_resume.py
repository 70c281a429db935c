"""A stopped pack resumes with the same result, or names the damaged file."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._common.checksum import crc32c
from fastload._pack.packer import PackResult
from fastload._pack.sources.base import AnySource
from fastload._pack.state import Listing, PackState, sealed_line
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, CorruptManifest, StoreError
from tests.packing import (
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    Listed,
    log_of,
    make_source,
    pack,
    samples,
    tree,
)

FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))
OPTIONS: dict[str, Any] = {"on_error": "skip", "order": "source", "encode": "auto", **SMALL_SHARDS}
N = 120  # three shards


class Stop(Exception):
    """Raised by the progress callback."""


@functools.cache
def given() -> list[Any]:
    made: list[Any] = samples(N, size=8, extra_bytes=25_000)
    made[5] = made[50] = BadImage("broken", source="bad")
    return made


def source(*, stream: bool = False) -> AnySource:
    return make_source(given(), FIELDS, stream=stream)


def stop_when(dest: Path, stage: str, at: int, *, stream: bool = False) -> None:
    """Starts a pack and stops it at this point."""

    def stop(progress: Any) -> None:
        if progress.stage == stage and progress.done >= at:
            raise Stop

    with pytest.raises(Stop):
        pack(source(stream=stream), dest, on_progress=stop, **OPTIONS)


def resume(dest: Path, *, stream: bool = False) -> PackResult:
    return pack(source(stream=stream), dest, **OPTIONS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, str]]:
    """Digests of the uninterrupted packs of a listed source and of a stream."""
    root = tmp_path_factory.mktemp("whole")
    for stream in (False, True):
        assert resume(root / str(stream), stream=stream).n_shards == 3
    return {stream: tree(root / str(stream)) for stream in (False, True)}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, bool], Path]:
    """Copies a pack that was stopped after two of three shards and 20 samples of the third."""
    root = tmp_path_factory.mktemp("stopped")
    for stream in (False, True):
        stop_when(root / str(stream), "packing", 100, stream=stream)

    def copy(dest: Path, stream: bool = False) -> Path:
        return shutil.copytree(root / str(stream), dest, dirs_exist_ok=True)

    return copy


Whole = dict[bool, dict[str, str]]
Stopped = Callable[..., Path]
STAGES = {
    "listed": ("listing", 0, 0),
    "first sample": ("packing", 1, 1),
    "first bad sample": ("packing", 6, 6),
    "second shard": ("packing", 60, 60),
    "last sample": ("packing", N, N),
    "all packed": ("publishing", 0, N),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("when", STAGES)
def test_resume_after_every_stage(tmp_path: Path, whole: Whole, when: str, stream: bool) -> None:
    stage, at, resumed_at = STAGES[when]
    stop_when(tmp_path, stage, at, stream=stream)
    with pytest.raises(
        CorruptManifest, match=r"a pack that has not finished|not a fastload dataset"
    ):
        open_dataset(tmp_path)
    result = resume(tmp_path, stream=stream)
    assert result.resumed_at == resumed_at
    assert (result.n_samples, result.skipped) == (N - 2, 2)
    assert tree(tmp_path) == whole[stream]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes() or b"x")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def shifted(path: Path) -> None:
    """Changes a number and the checksum, so that a sample would be lost."""
    text = path.read_text()
    changed = text.replace('"positions": [0, 40]', '"positions": [0, 41]').replace(
        '"positions": [40, 80]', '"positions": [40, 81]'
    )
    assert changed != text
    path.write_text(changed)


def exchanged(path: Path) -> None:
    """Replaces a shard by a valid shard of another pack."""
    shutil.copy(
        path.with_name("shard-00001.lmdb" if "00000" in path.name else "shard-00000.lmdb"), path
    )


NOTES = (
    "plan.json",
    "encode.json",
    "layout.json",
    "listing.jsonl",
    "listing.offsets",
    "done-00000.json",
    "done-00001.json",
    "rows-00000.npz",
    "rows-00001.npz",
    "journal-00002",
    "shard-00002.lmdb",
    "lock",
)
CASES = [
    *((False, name) for name in NOTES),
    *(
        (True, name)
        for name in (
            *("encode.json", "listing.jsonl", "spool.records"),
            *("journal-00002", "shard-00002.lmdb"),
        )
    ),
]


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{'stream' if case[0] else 'list'}-{case[1]}"
)
def test_damaged_state_is_detected(
    tmp_path: Path,
    whole: Whole,
    stopped: Stopped,
    case: tuple[bool, str],
    damage: Callable[[Path], None],
) -> None:
    """The result is the same, or one error names the file and nothing is published."""
    stream, name = case
    dest = stopped(tmp_path / "packed", stream)
    damage(dest / ".pack" / name)
    said = ""
    try:
        resume(dest, stream=stream)
    except StoreError as error:
        said = str(error)
    if said:
        assert f"{dest / '.pack' / name.split('.')[0]}" in said
        assert f"Remove {dest} and pack again" in said
        assert not (dest / "manifest.json").exists()
        # These can be rebuilt.
        assert not name.startswith(("done", "rows", "journal", "shard", "lock"))
    else:
        assert tree(dest) == whole[stream]


@pytest.mark.parametrize("content", [b"null", b"[]", b'{"fields": [1]}', b"[" * 100_000])
def test_state_with_other_content_and_a_valid_checksum_is_detected(
    tmp_path: Path, whole: Whole, stopped: Stopped, content: bytes
) -> None:
    dest = stopped(tmp_path / "packed")
    sealed = b"%s\n%08x\n" % (content, crc32c(content))
    plan = dest / ".pack" / "plan.json"
    good = plan.read_bytes()
    plan.write_bytes(sealed)
    with pytest.raises(StoreError, match=r"cannot resume: .*plan\.json is damaged"):
        resume(dest)
    plan.write_bytes(good)
    (dest / ".pack" / "done-00000.json").write_bytes(sealed)
    assert resume(dest).resumed_at == 60, "the other parts are kept"
    assert tree(dest) == whole[False]


def test_listing_that_is_not_json_is_detected(tmp_path: Path) -> None:
    line = sealed_line(0, b'{"a"')
    lines = line + sealed_line(1, b"1")
    ends = np.array([0, len(line), len(lines)], "<u8").tobytes()
    seal = (crc32c(lines) << 32 | crc32c(ends)).to_bytes(8, "little")
    (tmp_path / "listing.jsonl").write_bytes(lines)
    (tmp_path / "listing.offsets").write_bytes(ends + seal)
    with pytest.raises(StoreError, match=r"listing\.jsonl is damaged \(entry 0"):
        Listing(tmp_path)[0]


@pytest.mark.parametrize("number", [0, 1])
def test_changed_number_in_the_state_is_detected(
    tmp_path: Path, whole: Whole, stopped: Stopped, number: int
) -> None:
    dest = stopped(tmp_path / "packed")
    shifted(dest / ".pack" / f"done-{number:05}.json")
    assert resume(dest).resumed_at == 60, "the other parts are kept"
    assert tree(dest) == whole[False]


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink, exchanged])
@pytest.mark.parametrize("number", [0, 1])
def test_damaged_shards_are_packed_again(
    tmp_path: Path, whole: Whole, stopped: Stopped, number: int, damage: Callable[[Path], None]
) -> None:
    dest = stopped(tmp_path / "packed")
    damage(dest / f"shard-{number:05}.lmdb")
    assert resume(dest).resumed_at == 60, "the other parts are kept"
    assert tree(dest) == whole[False]


def test_a_part_is_packed_again_without_changing_the_others(
    tmp_path: Path, stopped: Stopped
) -> None:
    """The first part is packed again with one sample less. The second shard is kept."""
    stopped(tmp_path)
    kept = (tmp_path / "shard-00001.lmdb").stat()
    flip(tmp_path / "shard-00000.lmdb")
    changed = given().copy()
    changed[7] = BadImage("went bad meanwhile", source="seven")
    result = pack(Listed(changed, FIELDS), tmp_path, **OPTIONS)
    assert (result.n_samples, result.skipped, result.resumed_at) == (N - 3, 3, 60)
    found = (tmp_path / "shard-00001.lmdb").stat()
    assert (found.st_ino, found.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)
    dataset = open_dataset(tmp_path)
    assert [(shard.first, shard.base) for shard in dataset.manifest.shards] == [
        (0, 0),
        (38, 40),
        (77, 80),
    ]
    assert dataset.column("_source_index").tolist() == [i for i in range(N) if i not in (5, 7, 50)]
    assert [dataset.source(i) for i in range(N - 3)] == [
        f"{i:04}.jpg" for i in range(N) if i not in (5, 7, 50)
    ]
    assert dataset.blocks[:, 1].sum() == N - 3


def test_unrecorded_shard_is_removed(tmp_path: Path, stopped: Stopped) -> None:
    """Killed between rename and record of a shard. Then all samples of the part go bad."""
    stopped(tmp_path)
    shutil.copy(tmp_path / "shard-00001.lmdb", tmp_path / "shard-00002.lmdb")
    (tmp_path / ".pack" / "journal-00002").unlink()
    less: list[Any] = given()[:80] + [BadImage("gone", source="gone")] * (N - 80)
    assert pack(Listed(less, FIELDS), tmp_path, **OPTIONS).n_shards == 2
    assert not (tmp_path / "shard-00002.lmdb").exists()
    assert len(open_dataset(tmp_path)) == 78
    assert Counter(line["source"] for line in log_of(tmp_path)) == {
        "bad": 2,
        "gone": N - 80,
    }  # also bad samples of a part without a shard
    assert open_dataset(tmp_path).manifest.skipped == 2 + N - 80


def test_stopped_after_publishing_and_before_cleanup(
    tmp_path: Path, whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command cleans up and reports the dataset. Another one cleans up and is refused."""
    for dest in (tmp_path / "same", tmp_path / "other"):
        with monkeypatch.context() as patched:
            patched.setattr(PackState, "remove", lambda self: (_ for _ in ()).throw(Stop()))
            with pytest.raises(Stop):
                resume(dest)
        assert len(open_dataset(dest)) == N - 2  # readable already
        assert (dest / ".pack").is_dir()
    result = resume(tmp_path / "same")
    assert (result.n_samples, result.n_shards, result.skipped) == (N - 2, 3, 2)
    assert result.resumed_at == N
    assert "an earlier run published this dataset" in str(result)
    with pytest.raises(ConfigError, match="already contains a finished dataset"):
        pack(source(), tmp_path / "other", **{**OPTIONS, "seed": 9})
    assert tree(tmp_path / "same") == tree(tmp_path / "other") == whole[False]
    with pytest.raises(ConfigError, match="already contains a finished dataset"):
        resume(tmp_path / "same")


@pytest.mark.parametrize(
    ("options", "same"), [({}, True), ({"seed": 9}, False), ({"encode": "keep"}, False)]
)
def test_stopped_during_cleanup(
    tmp_path: Path, whole: Whole, options: dict[str, Any], same: bool
) -> None:
    """Only an empty state folder is left: the manifest decides whether it is the same pack."""
    resume(tmp_path)
    (tmp_path / ".pack").mkdir()
    if same:
        assert pack(source(), tmp_path, **{**OPTIONS, **options}).n_samples == N - 2
    else:
        with pytest.raises(ConfigError, match="already contains a finished dataset"):
            pack(source(), tmp_path, **{**OPTIONS, **options})
    assert tree(tmp_path) == whole[False]


def test_temporary_files_are_removed_and_other_files_are_kept(
    tmp_path: Path, whole: Whole, stopped: Stopped
) -> None:
    stopped(tmp_path)
    (tmp_path / "columns").mkdir()
    for name in (
        "shard-00002.lmdb.tmp-4711",
        "manifest.json.tmp-4711",
        "columns/label.npy.tmp-4711",
        ".pack/done-00002.json.tmp-4711",
    ):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / "notes.tmp").write_text("mine")
    resume(tmp_path)
    assert (tmp_path / "notes.tmp").read_text() == "mine"
    (tmp_path / "notes.tmp").unlink()
    assert tree(tmp_path) == whole[False]


def test_listing_is_frozen(tmp_path: Path, stopped: Stopped) -> None:
    """Samples added to the source later are not packed: positions would mean other samples."""
    stopped(tmp_path)
    assert pack(Listed([*given(), *given()[:5]], FIELDS), tmp_path, **OPTIONS).n_samples == N - 2
