"""A pack that is interrupted within a shard continues with the next sample.

The files are compared with those of an uninterrupted pack, and the number of samples that a run
took over with the number that the earlier run had packed.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload._cli import main, parser
from fastload._cli.pack import PackReporter
from fastload._common.checksum import crc32c
from fastload._common.formatting import count
from fastload._pack.layout import measured_rows
from fastload._pack.options import PackProgress
from fastload._pack.packer import PackResult
from fastload._pack.sources.base import Ref, Sample
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, StoreError
from tests.forking import HANG_S, Zygote
from tests.packing import (
    CONVERTED_JPEG,
    IMAGE,
    LABEL,
    SMALL_SHARDS,
    Listed,
    class_folders,
    file_of,
    image_sample,
    pack,
    pixels,
    samples,
    tree,
)

FIELDS = (IMAGE, LABEL, Field("blob", "bytes"))
TINY = (Field("number", "float"), Field("blob", "bytes"))
SPLIT = (Field("blob", "bytes"), Field("split", "int", classes=("train", "val")))
N = 90


def with_blobs(sizes: list[int], **values: Callable[[int], Any]) -> list[Any]:
    """Samples without an image, whose records have about these sizes."""
    return [
        Sample(
            {"blob": bytes([i % 251]) * size, **{name: of(i) for name, of in values.items()}},
            source=f"row {i}",
        )
        for i, size in enumerate(sizes)
    ]


def photos() -> Listed:
    """Three shards. Two samples are bad, two are converted."""
    given: list[Any] = samples(N, size=8, extra_bytes=30_000)
    given[5] = given[50] = BadImage("broken", source="bad")
    for i in (7, 60):
        given[i] = image_sample(CONVERTED_JPEG, f"cmyk \udce9 {i}", label=0, blob=bytes(30_000))
    return Listed(given, FIELDS)


def tiny() -> Listed:
    """Records in the leaves of the tree."""
    return Listed(with_blobs([i % 150 for i in range(N)], number=float), TINY)


def mixed() -> Listed:
    """Records in the leaves and on overflow pages, in any order."""
    return Listed(with_blobs([(i * 37 % 11) ** 5 // 4 for i in range(N)], number=float), TINY)


def growing() -> Listed:
    """A part that becomes five shards: its size was estimated without the large samples."""
    measured = measured_rows(N)
    sizes = [100 if i in measured else 120_000 for i in range(N)]
    return Listed(with_blobs(sizes, number=float), TINY)


def split() -> Listed:
    return Listed(with_blobs([20_000] * N, split=lambda i: i * 7 % 2), SPLIT)


SOURCES = {each.__name__: each for each in (photos, tiny, mixed, growing, split)}


@functools.cache
def source(name: str) -> Listed:
    return SOURCES[name]()


def run(name: str | Listed, dest: Path, **more: Any) -> PackResult:
    options: dict[str, Any] = {"on_error": "skip", **SMALL_SHARDS, **more}
    return pack(source(name) if isinstance(name, str) else name, dest, **options)


def interrupt(name: str | Listed, dest: Path, at: int, **more: Any) -> str:
    """Packs until ``at`` samples are done. Returns the message of the interrupt."""

    def stop(progress: PackProgress) -> None:
        if progress.stage == "packing" and progress.done == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(name, dest, on_progress=stop, **more)
    return str(caught.value)


Whole = Callable[[str], tuple[dict[str, str], PackResult]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Returns digests and counts of the uninterrupted pack of a source."""
    root = tmp_path_factory.mktemp("whole")

    @functools.cache
    def packed(name: str) -> tuple[dict[str, str], PackResult]:
        result = run(name, root / name)
        return tree(root / name), result

    return packed


@pytest.mark.parametrize(
    ("name", "step", "jobs"),
    [
        *((name, 23, 1) for name in SOURCES),
        *((name, 40, 3) for name in SOURCES),
        ("photos", 8, 2),
        ("tiny", 8, 2),
        ("mixed", 1, 1),
    ],
)
def test_any_number_of_interruptions(
    tmp_path: Path, whole: Whole, name: str, step: int, jobs: int
) -> None:
    expected, uninterrupted = whole(name)
    for at in range(step, N, step):
        said = interrupt(name, tmp_path, at, jobs=jobs)
        assert said == (
            f"Interrupted. {at} of {N} samples are kept in {tmp_path}. Run the same command again "
            "to continue"
        )
        assert not (tmp_path / "manifest.json").exists()
    result = run(name, tmp_path, jobs=jobs)
    assert result.resumed_at == range(0, N, step)[-1]
    assert f"Took over {result.resumed_at} sample" in str(result)
    assert tree(tmp_path) == expected
    # All counts are those of an uninterrupted pack.
    assert replace(result, seconds=0, resumed_at=0, dest=Path()) == replace(
        uninterrupted, seconds=0, dest=Path()
    )


def test_the_sources_cover_all_places_of_records(whole: Whole) -> None:
    assert {"shard-00000.lmdb", "shard-00000.4.lmdb"} <= whole("growing")[0].keys()
    assert whole("photos")[1].n_shards == 3
    assert whole("photos")[1].skipped == 2
    assert sum(whole("photos")[1].converted.values()) == 2
    assert whole("tiny")[1].n_shards == 1


def test_progress_counts_from_the_samples_that_were_taken_over(tmp_path: Path) -> None:
    interrupt("photos", tmp_path, 50)
    seen: list[tuple[str, int, int | None, int]] = []
    run(
        "photos",
        tmp_path,
        on_progress=lambda each: seen.append((each.stage, each.done, each.total, each.resumed_at)),
    )
    checking = [each[1] for each in seen if each[0] == "checking"]
    assert checking == sorted(checking)
    assert checking[-1] == 50
    assert [each for each in seen if each[0] == "packing"] == [
        ("packing", done, N, 50) for done in range(51, N + 1)
    ]


# ----- damage -----


def flip(path: Path, at: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def cut(path: Path, at: float) -> None:
    os.truncate(path, int(at * (path.stat().st_size - 1)))


def zero(path: Path, at: float) -> None:
    """A file after a power loss: its size is right, but not all blocks were written."""
    data = path.read_bytes()
    start = int(at * (len(data) - 1))
    path.write_bytes(data[:start] + bytes(len(data) - start))


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """Copies a pack that was interrupted after 57 samples."""
    root = tmp_path_factory.mktemp("interrupted")

    @functools.cache
    def once(name: str) -> Path:
        # Several lines in the journal.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("fastload._store.writer.FLUSH_BYTES", 1000)
            interrupt(name, root / name, 57)
        return root / name

    return lambda name, dest: Path(shutil.copytree(once(name), dest))


Interrupted = Callable[[str, Path], Path]
UNFINISHED = {"photos": "00001", "mixed": "00000", "tiny": "00000"}
FINISHED = {"photos": 30, "mixed": 0, "tiny": 0}


@pytest.mark.parametrize("damage", [flip, cut, zero])
@pytest.mark.parametrize("name", UNFINISHED)
def test_damaged_files_cost_samples_and_never_change_the_result(
    tmp_path: Path,
    whole: Whole,
    interrupted: Interrupted,
    name: str,
    damage: Callable[[Path, float], None],
) -> None:
    for which in ("journal-{}", "shard-{}.lmdb"):
        for at in (0.0, 0.02, 0.3, 0.77, 1.0):
            dest = interrupted(name, tmp_path / f"{which} {at}")
            damage(dest / ".pack" / which.format(UNFINISHED[name]), at)
            result = run(name, dest)
            assert FINISHED[name] <= result.resumed_at <= 57
            if at == 0.77:
                assert result.resumed_at > FINISHED[name], "samples before the damage are kept"
            assert tree(dest) == whole(name)[0]


@pytest.mark.parametrize("which", ["journal-{}", "shard-{}.lmdb"])
@pytest.mark.parametrize("name", UNFINISHED)
def test_one_of_the_two_files_is_missing(
    tmp_path: Path, whole: Whole, interrupted: Interrupted, name: str, which: str
) -> None:
    dest = interrupted(name, tmp_path / "packed")
    (dest / ".pack" / which.format(UNFINISHED[name])).unlink()
    assert run(name, dest).resumed_at == FINISHED[name]
    assert tree(dest) == whole(name)[0]


def test_lines_of_the_journal_in_another_order_or_twice(
    tmp_path: Path, whole: Whole, interrupted: Interrupted
) -> None:
    for name, order in {
        "twice": (0, 1, 2, 3, 3, 4, 5, 6),
        "missing": (0, 1, 2, 4, 5, 6),
        "exchanged": (0, 1, 2, 4, 3, 5, 6),
    }.items():
        dest = interrupted("photos", tmp_path / name)
        journal = dest / ".pack" / "journal-00001"
        lines = journal.read_bytes().splitlines(keepends=True)
        journal.write_bytes(b"".join(lines[line] for line in order))
        assert 30 < run("photos", dest).resumed_at < 57
        assert tree(dest) == whole("photos")[0]


@pytest.mark.parametrize("content", [b"null", b"7", b'{"a": 1}', b"[[1]]", b"[" * 100_000, b"{"])
def test_a_line_with_other_content_and_a_valid_checksum(
    tmp_path: Path, whole: Whole, interrupted: Interrupted, content: bytes
) -> None:
    dest = interrupted("photos", tmp_path / "packed")
    journal = dest / ".pack" / "journal-00001"
    first, second, *_ = journal.read_bytes().splitlines(keepends=True)
    crc = crc32c(content, int(second.rpartition(b" ")[2], 16))
    journal.write_bytes(first + second + b"%s %08x\n" % (content, crc))
    assert 30 < run("photos", dest).resumed_at < 35
    assert tree(dest) == whole("photos")[0]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_changed_journal_is_not_used(tmp_path: Path, sealed: bool) -> None:
    """A changed reason without its checksum, and with it a sample less: its rows do not fit."""
    run("photos", tmp_path / "whole", order="source")
    dest = tmp_path / "packed"
    interrupt("photos", dest, 57, order="source")
    journal = dest / ".pack" / "journal-00001"
    first, second = (line.rpartition(b" ")[0] for line in journal.read_bytes().splitlines())
    bad = b'[50,"bad","broken"],'
    assert bad in second
    if sealed:
        second = second.replace(bad, b"")
    crc = crc32c(second, crc32c(first))
    second = second.replace(b"broken", b"brokem")
    journal.write_bytes(b"%s %08x\n%s %08x\n" % (first, crc32c(first), second, crc))
    assert run("photos", dest, order="source").resumed_at == (50 if sealed else 30)
    assert tree(dest) == tree(tmp_path / "whole")


def test_records_of_another_run_are_not_used(tmp_path: Path, whole: Whole) -> None:
    """They are intact and have the right sizes, but the journal has their checksums."""
    other = Listed(with_blobs([i % 150 for i in range(N)], number=lambda i: i + 0.5), TINY)
    interrupt(other, tmp_path / "other", 57)
    interrupt("tiny", tmp_path / "packed", 57)
    shard = Path(".pack") / "shard-00000.lmdb"
    shutil.copy(tmp_path / "other" / shard, tmp_path / "packed" / shard)
    assert run("tiny", tmp_path / "packed").resumed_at == 0
    assert tree(tmp_path / "packed") == whole("tiny")[0]


def test_a_shard_of_another_part_or_journal_is_not_used(
    tmp_path: Path, whole: Whole, interrupted: Interrupted
) -> None:
    dest = interrupted("photos", tmp_path / "shard")
    shutil.copy(dest / "shard-00000.lmdb", dest / ".pack" / "shard-00001.lmdb")
    assert run("photos", dest).resumed_at == 30
    assert tree(dest) == whole("photos")[0]

    dest = interrupted("photos", tmp_path / "journal")
    other = tmp_path / "other"
    interrupt("photos", other, 57, seed=1)
    for name in ("journal-00001", "shard-00001.lmdb"):
        shutil.copy(other / ".pack" / name, dest / ".pack" / name)
    assert run("photos", dest).resumed_at == 30, "packed with other options"
    assert tree(dest) == whole("photos")[0]


def test_a_link_in_place_of_a_shard_is_not_followed(
    tmp_path: Path, whole: Whole, interrupted: Interrupted
) -> None:
    dest = interrupted("photos", tmp_path / "packed")
    mine = tmp_path / "mine"
    mine.write_bytes(b"unchanged")
    shard = dest / ".pack" / "shard-00001.lmdb"
    shard.unlink()
    shard.symlink_to(mine)
    with pytest.raises(StoreError, match=r"writing .*shard-00001\.lmdb"):
        run("photos", dest)
    assert mine.read_bytes() == b"unchanged"
    shard.unlink()
    run("photos", dest)
    assert tree(dest) == whole("photos")[0]


def test_killed_between_the_names_of_a_shard_and_its_record(
    tmp_path: Path, whole: Whole, interrupted: Interrupted
) -> None:
    """The shard has its final name, but the part is not recorded: its records are taken over."""
    dest = interrupted("photos", tmp_path / "packed")
    (dest / ".pack" / "shard-00001.lmdb").rename(dest / "shard-00001.lmdb")
    assert run("photos", dest).resumed_at == 57
    assert tree(dest) == whole("photos")[0]


def test_killed_with_two_complete_parts_that_are_not_recorded(tmp_path: Path, whole: Whole) -> None:
    interrupt("photos", tmp_path / "first", 30)
    interrupt("photos", tmp_path / "second", 60)
    dest = tmp_path / "second"
    for name in ("journal-00000", "shard-00000.lmdb"):
        shutil.copy(tmp_path / "first" / ".pack" / name, dest / ".pack" / name)
    for name in (".pack/done-00000.json", ".pack/rows-00000.npz", "shard-00000.lmdb"):
        (dest / name).unlink()
    assert run("photos", dest).resumed_at == 60
    assert tree(dest) == whole("photos")[0]


# ----- what changes between two runs -----


def test_changed_options_are_refused_and_nothing_is_lost(tmp_path: Path, whole: Whole) -> None:
    interrupt("tiny", tmp_path, 20)
    with pytest.raises(ConfigError, match="seed was 0, now 1") as error:
        run("tiny", tmp_path, seed=1)
    assert "nothing is lost" not in str(error.value)
    assert run("tiny", tmp_path).resumed_at == 20
    assert tree(tmp_path) == whole("tiny")[0]


def test_options_that_do_not_change_the_output_may_change(tmp_path: Path, whole: Whole) -> None:
    interrupt("photos", tmp_path, 20, jobs=1)
    with pytest.raises(BadImage, match=r"bad: broken\. Fix or remove the file"):
        run("photos", tmp_path, jobs=3, on_error="stop", order="shuffle")
    result = run("photos", tmp_path, jobs=2, max_bad=2)
    assert result.resumed_at >= 20, "also the samples before the bad one"
    assert tree(tmp_path) == whole("photos")[0]


def test_a_bad_sample_stops_the_pack_and_the_samples_before_it_are_kept(tmp_path: Path) -> None:
    given: list[Any] = samples(20)
    good, given[13] = given[13], BadImage("broken", source="thirteen")
    with pytest.raises(BadImage, match="thirteen"):
        run(Listed(given), tmp_path, on_error="stop", order="source")
    given[13] = good
    assert run(Listed(given), tmp_path, on_error="stop", order="source").resumed_at == 13
    assert len(open_dataset(tmp_path)) == 20


def test_packed_samples_keep_their_content_when_files_change(tmp_path: Path) -> None:
    """As with finished shards: a sample is read once."""
    given: list[Any] = samples(20)
    interrupt(Listed(given), tmp_path, 12, order="source")
    changed = samples(20, labels=lambda _: 2)
    result = run(Listed(changed), tmp_path, order="source")
    assert (result.n_samples, result.resumed_at) == (20, 12)
    labels = open_dataset(tmp_path).column("label").tolist()
    assert labels == [i % 3 for i in range(12)] + [2] * 8


def test_a_removed_file_is_a_bad_sample_after_the_interrupt(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images")
    dest = tmp_path / "packed"
    options: dict[str, Any] = {"order": "source", "jobs": 1}
    with pytest.raises(KeyboardInterrupt):
        fastload.pack(root, dest, on_progress=_interrupt_at(12), **options)
    removed = root / "bee" / "0005.jpg"  # sample 15
    data = removed.read_bytes()
    removed.unlink()
    with pytest.raises(BadImage, match=r"bee/0005\.jpg"):
        fastload.pack(root, dest, **options)
    removed.write_bytes(data)
    result = fastload.pack(root, dest, **options)
    assert (result.n_samples, result.resumed_at) == (30, 15)
    fastload.pack(root, tmp_path / "whole", **options)
    assert tree(dest) == tree(tmp_path / "whole")


def test_a_new_listing_does_not_use_the_samples_of_the_old_one(
    tmp_path: Path, whole: Whole
) -> None:
    interrupt("tiny", tmp_path, 20)
    for name in ("listing.jsonl", "listing.offsets"):
        (tmp_path / ".pack" / name).unlink()
    given = [*source("tiny").samples[:50], *source("tiny").samples]
    result = run(Listed(given, TINY), tmp_path)
    assert result.resumed_at == 0


def _interrupt_at(at: int) -> Callable[[PackProgress], None]:
    def stop(progress: PackProgress) -> None:
        if progress.stage == "packing" and progress.done == at:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("at", [1, 33, 56, 57])
def test_interrupted_while_samples_are_taken_over(
    tmp_path: Path, whole: Whole, interrupted: Interrupted, at: int
) -> None:
    for name in UNFINISHED:
        dest = interrupted(name, tmp_path / name)

        def stop(progress: PackProgress) -> None:
            if progress.stage == "checking" and progress.done >= at:
                raise KeyboardInterrupt

        for _ in range(2):
            with pytest.raises(KeyboardInterrupt, match=f"57 of {N} samples are kept"):
                run(name, dest, on_progress=stop)
        assert run(name, dest).resumed_at == 57
        assert tree(dest) == whole(name)[0]


def test_interrupted_before_the_first_sample(tmp_path: Path, whole: Whole) -> None:
    def stop(progress: PackProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="before the first sample was packed"):
        run("tiny", tmp_path, on_progress=stop)
    with pytest.raises(ConfigError, match=r"start over \(no sample is packed: nothing is lost\)$"):
        run("tiny", tmp_path, seed=1)
    assert run("tiny", tmp_path).resumed_at == 0
    assert tree(tmp_path) == whole("tiny")[0]


# ----- several processes -----


def test_a_second_packer_is_refused_and_removes_nothing(tmp_path: Path, whole: Whole) -> None:
    refused: list[str] = []

    def start_another(progress: PackProgress) -> None:
        if progress.stage == "packing" and progress.done == 57:
            with pytest.raises(StoreError, match="another fastload pack is running") as error:
                run("photos", tmp_path)
            refused.append(str(error.value))

    run("photos", tmp_path, on_progress=start_another)
    assert len(refused) == 1
    assert tree(tmp_path) == whole("photos")[0]


def test_parts_that_several_processes_pack_start_again(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "images")
    dest = tmp_path / "packed"
    with pytest.raises(KeyboardInterrupt):
        fastload.pack(root, dest, on_progress=_interrupt_at(12))
    assert (dest / ".pack" / "journal-00000").exists()
    with pytest.raises(KeyboardInterrupt, match="0 of 30 samples are kept"):
        fastload.pack(root, dest, part=(0, 1), on_progress=_interrupt_at(12))
    names = {path.name for path in (dest / ".pack").iterdir()}
    assert not {name for name in names if name.startswith(("journal", "shard", "worker"))}
    assert fastload.pack(root, dest, part=(0, 1)).resumed_at == 0
    fastload.pack(root, tmp_path / "whole")
    assert tree(dest) == tree(tmp_path / "whole")


def test_append_continues_after_an_interrupt(tmp_path: Path) -> None:
    first = class_folders(tmp_path / "first", per_class=4)
    second = class_folders(tmp_path / "second", per_class=6)
    for dest in (tmp_path / "a", tmp_path / "b"):
        fastload.pack(first, dest)
    with pytest.raises(KeyboardInterrupt, match="9 of 18 samples are kept"):
        fastload.append(tmp_path / "a", second, on_progress=_interrupt_at(9))
    seen: list[int] = []
    fastload.append(
        tmp_path / "a", second, on_progress=lambda progress: seen.append(progress.resumed_at)
    )
    assert seen[-1] == 9
    fastload.append(tmp_path / "b", second)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


# ----- signals -----


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("logs"), (__name__,)) as process:
        process.warm(parser)  # imports all commands
        yield process


def pack_and_interrupt(at: int, *words: str) -> None:
    """The child: runs the command and sends SIGINT to itself after ``at`` samples."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may ignore it
    report = PackReporter.__call__

    def interrupting(self: PackReporter, progress: PackProgress) -> None:
        report(self, progress)
        if progress.stage == "packing" and progress.done == at:
            os.kill(os.getpid(), signal.SIGINT)

    PackReporter.__call__ = interrupting  # type: ignore[method-assign]
    code = main(words)
    print(f"exit code {code}")


def test_ctrl_c_says_what_is_kept_and_how_to_continue(tmp_path: Path, zygote: Zygote) -> None:
    root = class_folders(tmp_path / "images", per_class=12)
    for path in root.rglob("*.jpg"):
        path.write_bytes(file_of(pixels(260, 250, seed=len(path.name), grain=1), quality=95))
    dest = tmp_path / "packed"
    command = ["pack", str(root), str(dest), "--shard-size", "1MiB", "--block-size", "100KB"]
    kept = 0
    for at in (1, 5, 11, 20, 33):
        lines = zygote.run(pack_and_interrupt, at, *command).output.splitlines()
        assert lines[-1] == "exit code 130", lines
        if kept:
            assert f"Took over {count(kept, 'sample')} of an interrupted run" in lines
        found = re.fullmatch(
            rf"fastload: Interrupted\. (\d+) of 36 samples are kept in {re.escape(str(dest))}\. "
            "Run the same command again to continue",
            lines[-2],
        )
        assert found, lines
        kept = int(found[1])
        assert at - 1 <= kept <= at + 1, "the signal arrives during the next sample at the latest"
    outcome = zygote.run(pack_and_interrupt, -1, *command)
    assert f"\nTook over {kept} samples of an interrupted run\n" in outcome.output
    assert outcome.output.endswith("exit code 0\n")
    fastload.pack(root, tmp_path / "whole", shard_size=1 << 20, block_size=100_000)
    assert tree(dest) == tree(tmp_path / "whole")


class Blocking(Listed):
    """Opens and reads a FIFO while sample ``at`` is loaded."""

    def __init__(self, fifo: str, at: int) -> None:
        super().__init__(source("photos").samples, FIELDS)
        self._fifo = fifo
        self._at = at

    def load(self, ref: Ref) -> Sample:
        if ref == self._at:
            Path(self._fifo).read_bytes()
        return super().load(ref)


def pack_blocking(dest: str, fifo: str, at: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run(Blocking(fifo, at), Path(dest), order="source", jobs=1)
        print(result.resumed_at)
    except KeyboardInterrupt as interrupt:
        print(interrupt)


def opened_by_reader(fifo: Path) -> int:
    """Opens a FIFO for writing as soon as a process reads it."""
    until = time.monotonic() + HANG_S
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > until:
                raise
        time.sleep(0.005)


def test_ctrl_c_while_the_packer_waits_for_a_slow_source(tmp_path: Path, zygote: Zygote) -> None:
    """A signal from outside, while the main thread waits for the threads that encode."""
    run("photos", tmp_path / "whole", order="source")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    measured = set(measured_rows(N))  # loaded before the first sample is packed
    taken = 0
    for at in [row for row in (20, 21, 47, 48, 80, 81) if row not in measured]:
        child = zygote.start(pack_blocking, str(tmp_path / "packed"), str(fifo), at)
        writing = opened_by_reader(fifo)
        child.kill(signal.SIGINT)
        os.close(writing)  # ends the wait of the source
        said = child.wait().output
        found = re.match(rf"Interrupted\. (\d+) of {N} samples are kept", said)
        assert found, said
        assert taken <= int(found[1]) <= at
        taken = int(found[1])
    said = zygote.run(pack_blocking, str(tmp_path / "packed"), str(fifo), -1).output
    assert int(said) == taken > 20, "samples of every run were taken over"
    assert tree(tmp_path / "packed") == tree(tmp_path / "whole")
