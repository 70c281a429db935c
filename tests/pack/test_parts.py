"""Several processes pack one dataset: any order, any number, killed and repeated."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._common import files
from fastload._pack import images, packer, preparation
from fastload._pack import parts as parts_module
from fastload._pack import state as state_module
from fastload._pack.layout import MAX_PARTS, Layout
from fastload._pack.options import PackOptions
from fastload._pack.packer import Packer
from fastload._pack.packing_order import PackingOrder
from fastload._pack.parts import PackTask, pack_part, prepare, publish_parts, stored_layout
from fastload._pack.shard import PartBuilder
from fastload._pack.state import PackState
from fastload._store.dataset import open_dataset
from fastload._store.manifest import MAX_BYTES, MAX_FILE, MAX_SAMPLES, Shard
from fastload.errors import BadImage, ConfigError, StoreError
from tests.packing import SMALL_SHARDS, Streamed, class_folders, file_of, pixels, samples, tree

COUNT = 36


def make_images(folder: Path) -> Path:
    """Images for five parts. Two files are damaged, in the first and in the last part."""
    for i in range(COUNT):
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(pixels(430, 370, seed=i, grain=1), quality=93))
    for path in (folder / "cat/34.jpg", folder / "dog/19.jpg"):
        path.write_bytes(path.read_bytes()[:3000])
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a pack by one process."""
    dest = tmp_path_factory.mktemp("whole") / "packed"
    result = fastload.pack(root, dest, on_error="skip", **SMALL_SHARDS)
    assert (result.n_shards, result.skipped) == (5, 2)
    return tree(dest)


def share(root: Path, dest: Path, i: int, n: int, **options: Any) -> fastload.PackResult:
    return fastload.pack(root, dest, part=(i, n), **{"on_error": "skip", **SMALL_SHARDS, **options})


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_any_number_in_any_order_gives_the_same_files(
    tmp_path: Path, root: Path, whole: dict[str, str], n: int
) -> None:
    order = list(range(n))
    random.Random(n).shuffle(order)
    dest = tmp_path / "packed"
    for i in order[:-1]:
        result = share(root, dest, i, n)
        if n <= 5:
            assert result.missing
            assert "is not complete" in str(result)
            assert not (dest / "manifest.json").exists()
    last = share(root, dest, order[-1], n)
    assert (last.missing, last.n_shards) == ((), 5)
    assert tree(dest) == whole
    for i in order:
        again = share(root, dest, i, n)
        assert (again.n_samples, again.skipped, again.missing) == (COUNT - 2, 2, ())
    assert tree(dest) == whole


def command(root: Path, dest: Path, i: int, n: int) -> subprocess.Popen[str]:
    sizes = ["--shard-size", "1MiB", "--block-size", str(SMALL_SHARDS["block_size"])]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "fastload", "pack", str(root), str(dest), "--json"),
            *("--on-error", "skip", "--part", f"{i}/{n}", *sizes),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_that_run_at_the_same_time(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    """Also twice the same share. One is killed and its command repeated."""
    dest = tmp_path / "packed"
    running = [command(root, dest, i, 3) for i in (0, 1, 2, 0)]
    running[1].kill()
    outcomes = [(*each.communicate(), each.returncode) for each in running]
    assert [code for *_, code in outcomes] == [0, -9, 0, 0], outcomes
    repeated = command(root, dest, 1, 3)
    out, error = repeated.communicate()
    assert repeated.returncode == 0, error
    assert json.loads(out)["missing"] == []
    assert tree(dest) == whole


def test_tasks_of_an_executor(tmp_path: Path, root: Path, whole: dict[str, str]) -> None:
    task = PackTask(
        str(root),
        str(tmp_path / "packed"),
        options=PackOptions(on_error="skip", jobs=1, **SMALL_SHARDS),
    )
    assert pickle.loads(pickle.dumps(task)) == task
    assert prepare(task) == (0, 1, 2, 3, 4)
    with ThreadPoolExecutor(3) as executor:
        results = list(executor.map(lambda part: pack_part(task, part), [3, 0, 4]))
    assert sum(each.n_samples for each in results) + sum(each.skipped for each in results) == 20
    assert publish_parts(task).missing == prepare(task) == (1, 2)
    with ThreadPoolExecutor(4) as executor:  # each part twice
        list(executor.map(lambda part: pack_part(task, part), [1, 2, 2, 1]))
    with pytest.raises(ConfigError, match="part 5: expected 0 to 4"):
        pack_part(task, 5)
    result = publish_parts(task)
    assert (result.n_samples, result.skipped, result.missing) == (COUNT - 2, 2, ())
    assert tree(tmp_path / "packed") == whole
    assert prepare(task) == ()


def test_two_publish_at_the_same_time(
    tmp_path: Path, root: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker publishes and cleans up while the first one is about to publish."""
    dest = tmp_path / "packed"
    share(root, dest, 0, 2)
    real = vars(packer)["publish"]

    def slow(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(packer, "publish", real)
        assert share(root, dest, 1, 2).missing == ()
        return real(*arguments, **options)

    monkeypatch.setattr(packer, "publish", slow)
    result = share(root, dest, 1, 2)
    assert (result.n_samples, result.missing) == (COUNT - 2, ())
    assert "another worker published" in str(result)
    assert tree(dest) == whole


def test_files_of_running_workers_are_kept_and_of_killed_ones_removed(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    dest = tmp_path / "packed"
    share(root, dest, 0, 2)
    state = dest / ".pack"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    paths = {}
    for owner, host in (("11-aaaaaaaa", boot), ("12-bbbbbbbb", boot), ("13-cccccccc", "other")):
        (state / f"worker-{owner}").write_text(host)
        paths[owner] = dest / f"shard-00001.lmdb.tmp-{owner}.0"
        paths[owner].write_bytes(b"half")
    held = os.open(state / "worker-11-aaaaaaaa", os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_SH)
    with PackState(dest, shared=True):
        assert paths["11-aaaaaaaa"].exists(), "it is locked"
        assert not paths["12-bbbbbbbb"].exists(), "it was killed"
        assert paths["13-cccccccc"].exists(), "locks of another machine may be invisible"
    os.utime(state / "worker-13-cccccccc", (0, 0))
    with PackState(dest, shared=True):
        assert not paths["13-cccccccc"].exists(), "it has not changed a file for an hour"
    share(root, dest, 1, 2)
    assert tree(dest) == whole, "no worker can be needed after the dataset is published"
    os.close(held)


def test_a_worker_killed_before_it_wrote_its_file_leaves_nothing(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    dest = tmp_path / "packed"
    share(root, dest, 0, 2)
    (dest / ".pack" / "worker-12-bbbbbbbb").touch()
    share(root, dest, 1, 2)
    assert tree(dest) == whole


@pytest.mark.parametrize(
    "call",
    [
        (packer, "PackState"),
        (state_module, "locked"),
        (PackState, "check_plan"),
        (PartBuilder, "add"),
        (PartBuilder, "publish"),
        (PartBuilder, "_end_shard"),
        (PackState, "record"),
        (PackState, "touch"),
        (PackState, "write"),
    ],
    ids=lambda call: call[1],
)
def test_a_late_worker_leaves_nothing_in_a_published_dataset(
    tmp_path: Path,
    root: Path,
    whole: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    call: tuple[Any, str],
) -> None:
    """Another process publishes the dataset while a worker packs a part that is packed twice."""
    dest = tmp_path / "packed"
    task = task_of(root, dest)
    prepare(task)
    place, name = call
    real = vars(place)[name]

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(place, name, real)
        other = command(root, dest, 0, 1)
        _, error = other.communicate()
        assert other.returncode == 0, error
        assert tree(dest) == whole, "while the worker still runs"
        return real(*arguments, **options)

    monkeypatch.setattr(place, name, late)
    assert pack_part(task, 3).missing == ()
    assert vars(place)[name] is real
    assert tree(dest) == whole


def test_a_late_worker_does_not_change_a_new_pack(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DEST is removed while a worker packs a part, and packed again with another quality."""
    dest = tmp_path / "packed"
    task = task_of(root, dest)
    other = replace(task, options=replace(task.options, encode="jpeg", quality=50))
    prepare(task)
    real = PartBuilder.publish

    def late(*arguments: Any) -> Any:
        shutil.rmtree(dest)
        prepare(other)
        return real(*arguments)

    monkeypatch.setattr(PartBuilder, "publish", late)
    with pytest.raises(StoreError, match="completed or removed by another process"):
        pack_part(task, 3)
    monkeypatch.undo()
    assert not list(dest.glob("shard-*"))
    assert not list(dest.glob(".pack/done-*"))


def test_a_pack_that_starts_while_another_worker_checks_dest_is_joined(
    tmp_path: Path, root: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "packed"
    real = Path.is_dir

    def is_dir(path: Path, **options: Any) -> bool:
        found = real(path, **options)
        if path == dest / ".pack":
            monkeypatch.setattr(Path, "is_dir", real)
            assert not found
            share(root, dest, 1, 2)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir)
    assert share(root, dest, 0, 2).missing == ()
    assert tree(dest) == whole


def test_a_task_needs_a_prepared_pack(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ConfigError, match="contains no unfinished pack"):
        pack_part(task_of(root, tmp_path / "packed"), 0)
    assert not (tmp_path / "packed").exists()


def test_a_pack_by_one_process_excludes_workers(tmp_path: Path, root: Path) -> None:
    with (
        PackState(tmp_path),
        pytest.raises(StoreError, match="another fastload pack is running"),
    ):
        share(root, tmp_path, 0, 2)
    with PackState(tmp_path, shared=True), PackState(tmp_path, shared=True):
        pass
    share(root, tmp_path, 0, 2)
    result = fastload.pack(root, tmp_path, on_error="skip", **SMALL_SHARDS)
    assert result.resumed_at > 0, "one process completes what workers began"


def test_other_versions_and_options_are_refused(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share(root, tmp_path, 0, 2)
    with pytest.raises(ConfigError, match="quality was 90, now 80"):
        share(root, tmp_path, 1, 2, quality=80)
    with monkeypatch.context() as patch:
        patch.setattr(images, "__version__", "9.9")
        with pytest.raises(ConfigError, match=r"fastload was '.*', now '9\.9'.* versions"):
            share(root, tmp_path, 1, 2)
    assert share(root, tmp_path, 1, 2).missing == ()


def test_the_first_plan_wins(tmp_path: Path) -> None:
    plans = [{"options": {"seed": i}, "fields": []} for i in range(16)]
    with PackState(tmp_path, shared=True) as state, ThreadPoolExecutor(16) as executor:

        def check(plan: dict[str, object]) -> bool:
            try:
                state.check_plan(plan)
            except ConfigError:
                return False
            return True

        assert sum(executor.map(check, plans)) == 1


def test_a_damaged_part_is_missing_until_its_command_is_repeated(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    share(root, tmp_path, 0, 2)
    (tmp_path / ".pack" / "done-00002.json").write_bytes(b"{}\n00000000\n")
    assert share(root, tmp_path, 1, 2).missing == (2,)
    shard = tmp_path / "shard-00004.lmdb"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"shard-00004\.lmdb: .* bytes, expected"):
        share(root, tmp_path, 2, 3)  # part 2 completes the set, but part 4 is damaged
    assert not (tmp_path / "manifest.json").exists()
    assert share(root, tmp_path, 0, 2).missing == ()
    assert tree(tmp_path) == whole


def test_errors_and_limits_are_those_of_one_process(tmp_path: Path, root: Path) -> None:
    dest = tmp_path / "packed"
    with pytest.raises(BadImage, match="--on-error skip"):
        share(root, dest, 0, 1, on_error="stop")
    for i in range(4):
        share(root, dest, i, 5, max_bad=1)
    with pytest.raises(BadImage, match=r"2 samples are bad, more than 1 \(--max-bad\)"):
        share(root, dest, 4, 5, max_bad=1)
    assert not (dest / "manifest.json").exists()
    assert share(root, dest, 0, 5, max_bad=2).skipped == 2
    assert len(open_dataset(dest)) == COUNT - 2


def test_what_cannot_be_split_is_refused(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ConfigError, match="can only be read in order"):
        Packer(
            Streamed(samples(9)), tmp_path / "packed", PackOptions(), choose_parts=lambda all_: all_
        ).run()
    for part in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="expected i/n with 0 <= i < n"):
            share(root, tmp_path / "other", *part)
    assert not (tmp_path / "other").exists()


def test_a_name_tells_its_owner() -> None:
    path = files.temporary_path(Path("a/shard-00000.lmdb"))
    assert path != files.temporary_path(Path("a/shard-00000.lmdb"))
    assert files.owner_of(path.name) == files.owner()
    for name in ("shard-00000.lmdb", "notes.tmp", "x.tmp-", "x.tmp-y", ".tmp-5"):
        assert not files.is_temporary(name)


def test_one_class_folder_source_with_more_shares_than_parts(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images", per_class=2)
    for i in range(4):
        result = fastload.pack(root, tmp_path / "packed", part=(i, 4))
    assert result.n_samples == 6


# ---- many parts: what a task of an engine does not read


def task_of(root: Path, dest: Path) -> PackTask:
    return PackTask(
        str(root), str(dest), options=PackOptions(on_error="skip", jobs=1, **SMALL_SHARDS)
    )


def line_of(state: Path, row: int) -> tuple[bytes, int]:
    """Returns the bytes of the list of samples and where a line starts in it."""
    data = (state / "listing.jsonl").read_bytes()
    return data, sum(len(line) for line in data.splitlines(keepends=True)[:row])


def test_a_task_reads_only_its_part_of_the_list(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    """A damaged line stops the part that needs it, and no other one."""
    task = task_of(root, tmp_path / "packed")
    parts = prepare(task)
    layout = stored_layout(task)
    assert layout is not None
    positions = layout.positions(0)
    row = int(PackingOrder(layout.n, order="shuffle", seed=0).rows(positions.start, 1)[0])
    state = tmp_path / "packed" / ".pack"
    good, at = line_of(state, row)
    bad = bytearray(good)
    bad[at + 12] ^= 1
    (state / "listing.jsonl").write_bytes(bad)
    with pytest.raises(
        StoreError, match=rf"listing\.jsonl is damaged \(line {row + 1} has a wrong"
    ):
        pack_part(task, 0)
    assert all(pack_part(task, part).missing == () for part in parts[1:])
    with pytest.raises(StoreError, match=r"listing\.jsonl is damaged \(wrong checksum\)"):
        prepare(task)
    (state / "listing.jsonl").write_bytes(good)
    assert prepare(task) == (0,)
    pack_part(task, 0)
    publish_parts(task)
    assert tree(tmp_path / "packed") == whole


def test_a_line_of_another_sample_is_refused(tmp_path: Path, root: Path) -> None:
    """Two lines of equal length that changed places have the right bytes in the wrong order."""
    task = task_of(root, tmp_path / "packed")
    parts = prepare(task)
    state = tmp_path / "packed" / ".pack"
    data, at = line_of(state, 4)
    lines = data.splitlines(keepends=True)
    assert len(lines[4]) == len(lines[5])
    changed = data[:at] + lines[5] + lines[4] + data[at + 2 * len(lines[4]) :]
    (state / "listing.jsonl").write_bytes(changed)
    said: list[str] = []
    for part in parts:
        try:
            pack_part(task, part)
        except StoreError as error:
            said.append(str(error))
    assert len(said) in (1, 2)
    assert all("has a wrong checksum" in each for each in said)


def test_a_process_opens_the_source_once_per_pack(
    tmp_path: Path, root: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = vars(parts_module)["open_source"]

    def counted(source: str, **options: Any) -> Any:
        opened.append(source)
        return real(source, **options)

    monkeypatch.setattr(parts_module, "open_source", counted)
    task = task_of(root, tmp_path / "packed")
    for _ in range(2):
        opened.clear()
        for part in prepare(task):
            pack_part(task, part)
        publish_parts(task)
        assert len(opened) == 1
        assert tree(tmp_path / "packed") == whole
        shutil.rmtree(tmp_path / "packed")  # the next pack must not use this source


def test_one_worker_lists_the_source_and_the_others_wait(
    tmp_path: Path, root: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker arrives while the first one is about to list."""
    dest = tmp_path / "packed"
    listed: list[Path] = []
    real_locked = vars(state_module)["locked"]
    real_listing = vars(preparation)["write_listing"]

    def locked(path: Path, kind: int, **options: Any) -> int:
        if path.name == "listing.lock":
            monkeypatch.setattr(state_module, "locked", real_locked)
            share(root, dest, 0, 2)
        return int(real_locked(path, kind, **options))

    def write_listing(folder: Path, *arguments: Any) -> None:
        with pytest.raises(BlockingIOError):
            real_locked(folder / "listing.lock", fcntl.LOCK_EX)
        listed.append(folder)
        real_listing(folder, *arguments)

    monkeypatch.setattr(state_module, "locked", locked)
    monkeypatch.setattr(preparation, "write_listing", write_listing)
    assert share(root, dest, 1, 2).missing == ()
    assert listed == [dest / ".pack"]
    assert tree(dest) == whole


def test_more_shards_than_a_manifest_holds_are_refused_before_packing() -> None:
    with pytest.raises(
        ConfigError, match=r"186265 shards .*at most 160000. Pass --shard-size 1GiB"
    ):
        Layout.of(10**9, 100_000, 512 << 20)
    layout = Layout.of(10**9, 100_000, 1 << 30)
    assert layout.n_parts <= MAX_PARTS
    assert layout.positions(layout.n_parts - 1).stop == 10**9
    widest = dict(zip(Shard._fields, (0,) * len(Shard._fields), strict=True)) | {
        "name": "shard-1234567.lmdb",
        "size": MAX_FILE,
        "records": MAX_SAMPLES,
        "first": MAX_SAMPLES,
        "base": MAX_SAMPLES,
        "index_size": MAX_FILE,
        "index_crc32c": "0" * 8,
        "blake3": "0" * 64,
        "stamp": "0" * 64,
    }
    assert (len(json.dumps(widest)) + 4) * MAX_PARTS < MAX_BYTES
