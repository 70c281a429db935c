"""Hostile or changing source folders never leak files outside the root and never block."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

from fastload._common.native import core
from fastload._pack import files
from fastload._pack.files import read_bounded, walk
from fastload._pack.sources.base import Encoded
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.folder import FolderSource
from fastload.errors import BadImage, ConfigError
from tests.source_contract import Loaded, outcome, put_image, samples_of

SECRET = b"\xff\xd8 secret outside the root"
UNPRIVILEGED_USER = 65534


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Fails a test that blocks on a FIFO, instead of hanging the run."""

    def late(_signal: int, _frame: FrameType | None) -> None:
        raise AssertionError("blocked for 20 s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one good image, and a secret file next to the root."""
    (tmp_path / "secret.jpg").write_bytes(SECRET)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "s.jpg").write_bytes(SECRET)
    (tmp_path / "root2").mkdir()
    (tmp_path / "root2" / "s.jpg").write_bytes(SECRET)
    put_image(tmp_path / "root" / "good" / "a.jpg", 1)
    return tmp_path / "root"


def _bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(path.parent)  # socket paths are limited to 108 bytes
        try:
            server.bind(path.name)
        finally:
            os.chdir(here)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"\xff\xd8\xff")
        file.truncate(5 << 30)


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # as /dev/zero
    except PermissionError:
        pytest.skip("not run: making a device needs CAP_MKNOD")


def _link_to_fifo(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    path.symlink_to("pipe")


def _loop_of_two(path: Path) -> None:
    path.symlink_to("other.jpg")
    (path.parent / "other.jpg").symlink_to(path.name)


def _chain_out(path: Path) -> None:
    (path.parent / "step").symlink_to("../../secret.jpg")
    path.symlink_to("step")


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "link out, absolute": (
        lambda p: p.symlink_to(p.parents[2] / "secret.jpg"),
        "leads outside the root",
    ),
    "link out, relative": (lambda p: p.symlink_to("../../secret.jpg"), "leads outside the root"),
    "link to a sibling with a similar name": (
        lambda p: p.symlink_to("../../root2/s.jpg"),
        "leads outside the root",
    ),
    "link out through a link": (_chain_out, "leads outside the root"),
    "link to a folder outside": (lambda p: p.symlink_to("../../secrets"), "leads outside the root"),
    "link to a system file": (lambda p: p.symlink_to("/etc/passwd"), "leads outside the root"),
    "link to a device outside": (lambda p: p.symlink_to("/dev/zero"), "leads outside the root"),
    "link to itself": (lambda p: p.symlink_to(p.name), "a link to itself"),
    "two links in a ring": (_loop_of_two, "a link to itself"),
    "link to nowhere": (
        lambda p: p.symlink_to("gone.jpg"),
        "no such file: wrong name, broken link",
    ),
    "FIFO": (os.mkfifo, "is a FIFO, expected a regular file"),
    "link to a FIFO": (_link_to_fifo, "is a FIFO, expected a regular file"),
    "socket": (_bind, "is a socket, expected a regular file"),
    "device": (_device, "is a device, expected a regular file"),
    "0 bytes": (lambda p: p.write_bytes(b""), "is empty (0 bytes)"),
    "5 GiB, sparse": (_sparse, "has 5368709120 bytes, expected at most 67108864"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_reported_by_name_and_other_files_are_read(root: Path, attack: str) -> None:
    make, message = ATTACKS[attack]
    put_image(root / "good" / "z.jpg", 2)
    make(root / "good" / "evil.jpg")
    good, bad = outcome(FolderSource(root))
    assert [sample.source for sample in good] == ["good/a.jpg", "good/z.jpg"]
    assert bad
    for line in bad:
        assert line.startswith(("good/evil.jpg: ", "good/other.jpg: "))
        assert message in line
    # The reader rejects it, too, without the listing.
    with pytest.raises(BadImage):
        read_bounded(root, "good/evil.jpg")
    assert read_bounded(root, "good/a.jpg")


def test_a_class_folder_that_links_outside_is_not_entered(root: Path) -> None:
    (root / "evil").symlink_to("../secrets")
    good, bad = outcome(FolderSource(root))
    assert [sample.source for sample in good] == ["good/a.jpg"]
    assert len(bad) == 1
    assert bad[0].startswith("evil: not read: its path or a link leads outside the root")
    assert "Pass --follow-links" in bad[0]


def test_folders_that_link_to_each_other_do_not_hang(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 folders that link to each other have 12! paths."""
    monkeypatch.setattr(files, "MAX_NESTED_LINKS", 1000)
    for i in range(12):
        put_image(root / f"c{i}" / "x.jpg")
        for j in range(12):
            (root / f"c{i}" / f"to{j}").symlink_to(f"../c{j}")
    with pytest.raises(
        ConfigError,
        match=r"more than 1000 folders are reached through two or more links, e\.g\. c0/to1/to",
    ):
        list(walk(root))
    for i in range(1, 12):
        shutil.rmtree(root / f"c{i}")
    assert [entry.path for entry in walk(root) if not entry.refused] == ["c0/x.jpg", "good/a.jpg"]


@pytest.mark.parametrize("target", [".", "..", "../../root/good", "../to"])
def test_a_link_to_a_folder_that_contains_it_is_named_and_not_followed(
    root: Path, target: str
) -> None:
    (root / "to").symlink_to("good")  # a second way to the same folder
    (root / "good" / "loop").symlink_to(target)
    source = FolderSource(root)
    assert source.classes == ("good", "to")
    assert [sample.source for sample in samples_of(source)] == ["good/a.jpg", "to/a.jpg"]
    assert dict(source.left_out()) == dict.fromkeys(
        ["good/loop", "to/loop"], "a link to a folder that contains it"
    )


def test_names_that_are_not_utf8_are_read_and_escaped(root: Path) -> None:
    odd = {
        b"caf\xe9.jpg": r"good/caf\xe9.jpg",
        b"line\nbreak.jpg": r"good/line\x0abreak.jpg",
        b"\x1b[31mred.jpg": r"good/\x1b[31mred.jpg",
        b"back\\slash.jpg": r"good/back\\slash.jpg",
    }
    for i, name in enumerate(odd):
        Path(root / "good" / os.fsdecode(name)).write_bytes(b"image %d" % i)
    found = {sample.source: sample.values["image"] for sample in samples_of(FolderSource(root))}
    for i, shown in enumerate(odd.values()):
        assert found[shown] == Encoded(b"image %d" % i, shown)
    assert len(found) == 5


def test_a_folder_may_have_the_name_of_an_image(root: Path) -> None:
    put_image(root / "good" / "folder.jpg" / "inner.jpg")
    assert [sample.source for sample in samples_of(FolderSource(root))] == [
        "good/a.jpg",
        "good/folder.jpg/inner.jpg",
    ]
    with pytest.raises(BadImage, match=r"good/folder\.jpg: is a folder, expected a regular file"):
        read_bounded(root, "good/folder.jpg")


def test_a_file_that_vanishes_after_listing_raises(root: Path) -> None:
    put_image(root / "good" / "b.jpg")
    source = FolderSource(root)
    first, second = source.refs()
    (root / "good" / "a.jpg").unlink()
    with pytest.raises(BadImage, match=r"good/a\.jpg: no such file: wrong name"):
        source.load(first)
    assert source.load(second).source == "good/b.jpg"


def test_a_folder_that_vanishes_while_listing_is_reported(root: Path) -> None:
    put_image(root / "zoo" / "b.jpg")
    refs = FolderSource(root).refs()
    assert next(refs) == "good/a.jpg"
    shutil.rmtree(root / "zoo")
    assert list(refs) == [{"path": "zoo", "refused": "cannot be listed: No such file or directory"}]


@pytest.mark.parametrize("after", [1004, 500], ids=["grows", "shrinks"])
def test_a_file_that_changes_size_while_it_is_read_raises(
    root: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(files, "_read_plain", lambda *_: None)  # use the slow path
    path = root / "good" / "live.jpg"
    path.write_bytes(b"x" * 1000)
    read = os.read

    def read_late(descriptor: int, size: int) -> bytes:
        os.truncate(path, after)
        return read(descriptor, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", read_late)
        with pytest.raises(
            BadImage, match=r"good/live\.jpg: changed during the read: 1000 bytes before"
        ):
            read_bounded(root, "good/live.jpg")
    assert read_bounded(root, "good/live.jpg") == path.read_bytes()
    assert path.stat().st_size == after


def test_a_short_read_raises(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system may end early and still report the old size."""
    monkeypatch.setattr(files, "_read_plain", lambda *_: None)  # use the slow path
    (root / "good" / "x.jpg").write_bytes(b"x" * 1000)
    read = os.read
    ends = iter([b"x" * 700, b""])
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda descriptor, size: next(ends))
        with pytest.raises(
            BadImage, match=r"good/x\.jpg: changed during the read: 1000 bytes before"
        ):
            read_bounded(root, "good/x.jpg")
        patch.setattr(os, "read", lambda descriptor, size: read(descriptor, min(size, 300)))
        assert read_bounded(root, "good/x.jpg") == b"x" * 1000  # short reads are joined


def test_a_file_rewritten_in_place_while_it_is_read_raises(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_read_plain", lambda *_: None)  # use the slow path
    path = root / "good" / "live.jpg"
    path.write_bytes(b"x" * 1000)
    os.utime(path, ns=(1, 1))
    read = os.read

    def read_and_rewrite(descriptor: int, size: int) -> bytes:
        data = read(descriptor, size)
        path.write_bytes(b"y" * 1000)
        return data

    monkeypatch.setattr(os, "read", read_and_rewrite)
    with pytest.raises(BadImage, match="changed during the read"):
        read_bounded(root, "good/live.jpg")


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_path_swapped_for_a_link_before_opening_raises(
    root: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A deterministic race: the swap happens when os.open is called."""
    monkeypatch.setattr(files, "_read_plain", lambda *_: None)  # use the slow path
    message = {"folder": "not read: a folder on its path was replaced", "file": "a link to itself"}[
        what
    ]
    put_image(root / "swap" / "s.jpg")
    really_open = os.open

    def open_late(path: str, flags: int) -> int:
        if what == "folder" and not (root / "swap").is_symlink():
            (root / "swap").rename(root / "aside")
            (root / "swap").symlink_to("../secrets")
        elif what == "file" and not (root / "swap" / "s.jpg").is_symlink():
            (root / "swap" / "s.jpg").unlink()
            (root / "swap" / "s.jpg").symlink_to("../../secret.jpg")
        return really_open(path, flags)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_late)
        with pytest.raises(BadImage, match=rf"swap/s\.jpg: {message}"):
            read_bounded(root, "swap/s.jpg")
    assert read_bounded(root, "good/a.jpg")


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jpg",
        "good/../../secret.jpg",
        "/etc/passwd",
        "{outside}/secret.jpg",
        "a\0b.jpg",
        "x" * 300 + ".jpg",
        "d/" * 3000 + "x.jpg",
        "\ud800.jpg",
        "",
        ".",
        "good",
        "good/a.jpg/b.jpg",
    ],
)
def test_names_in_a_list_stay_inside_the_root(root: Path, name: str) -> None:
    (root / "labels.jsonl").write_text(
        "".join(
            json.dumps({"image": image}) + "\n"
            for image in ("good/a.jpg", name.replace("{outside}", str(root.parent)))
        )
    )
    source = open_source(root / "labels.jsonl", types={"image": "image"})
    good, bad = outcome(source)
    # An empty name means that the sample has no image.
    assert [sample.source for sample in good] == ["good/a.jpg"] + ["labels.jsonl:2"] * (name == "")
    assert len(bad) == (name != "")
    assert all("labels.jsonl:2" in line for line in bad)
    assert not any(b"secret" in _image(sample) for sample in good)


def _image(sample: Loaded) -> bytes:
    image = sample.values.get("image")
    return image.data if isinstance(image, Encoded) else b""


def test_coco_and_openlane_names_stay_inside_the_root(root: Path) -> None:
    coco = {
        "images": [{"id": 1, "file_name": "good/a.jpg"}, {"id": 2, "file_name": "../secret.jpg"}],
        "annotations": [],
        "categories": [],
    }
    (root / "coco.json").write_text(json.dumps(coco))
    good, bad = outcome(open_source(root / "coco.json", images=root))
    assert [sample.source for sample in good] == ["good/a.jpg"]
    assert "leads outside the root" in bad[0]
    note = {
        "lane_lines": [],
        "file_path": "../../secret.jpg",
        "intrinsic": [[1, 0, 0]] * 3,
        "extrinsic": [[1, 0, 0, 0]] * 4,
    }
    (root / "images").mkdir()
    (root / "annotations" / "training").mkdir(parents=True)
    (root / "annotations" / "training" / "x.json").write_text(json.dumps(note))
    good, bad = outcome(open_source(root, format="openlane"))
    assert not good
    assert "leads outside the root" in bad[0]
    assert "named in annotations/training/x.json" in bad[0]


def test_lists_and_tables_must_be_regular_files(root: Path) -> None:
    """The file that the user passes may be hostile as well. It must not block."""
    os.mkfifo(root / "pipe.csv")
    os.mkfifo(root / "pipe.json")
    os.mkfifo(root / "pipe.tar")
    for name in ("pipe.csv", "pipe.json", "pipe.tar"):
        with pytest.raises(ConfigError, match="is a FIFO, expected a regular file"):
            open_source(
                root / name, format={"csv": "lists", "json": "coco", "tar": "webdataset"}[name[5:]]
            )
        with pytest.raises(ConfigError, match="no format recognized"):
            open_source(root / name)


@pytest.mark.skipif(
    os.getuid() != 0, reason="not run: needs root to change the user (see the next test)"
)
def test_unreadable_files_are_reported_to_an_unprivileged_user() -> None:
    """Root can read everything, so the process changes its user for this test."""
    folder = Path(tempfile.mkdtemp())
    try:
        _check_unreadable(folder, become=True)
    finally:
        shutil.rmtree(folder)


@pytest.mark.skipif(
    os.getuid() == 0, reason="not run: root can read everything (see the previous test)"
)
def test_unreadable_files_are_reported(tmp_path: Path) -> None:
    _check_unreadable(tmp_path, become=False)
    for path in tmp_path.iterdir():
        path.chmod(0o755)


def _check_unreadable(folder: Path, *, become: bool) -> None:
    folder.chmod(0o755)
    for name in ("a/1.jpg", "a/2.jpg", "b/3.jpg"):
        put_image(folder / name)
    (folder / "a" / "1.jpg").chmod(0)
    (folder / "b").chmod(0)
    if become:
        os.seteuid(UNPRIVILEGED_USER)
    try:
        good, bad = outcome(FolderSource(folder, classes=["a", "b"]))
        with pytest.raises(BadImage, match=r"b/3\.jpg: cannot be read: Permission denied"):
            read_bounded(folder, "b/3.jpg")
    finally:
        if become:
            os.seteuid(0)
    assert [sample.source for sample in good] == ["a/2.jpg"]
    assert bad == [
        "a/1.jpg: cannot be read: Permission denied",
        "b: cannot be listed: Permission denied",
    ]


def test_the_native_reader_accepts_regular_files_only(root: Path, tmp_path: Path) -> None:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    real = Path(os.path.realpath(root))
    plain = real / "good" / "a.jpg"
    if module.read_regular_file(bytes(plain), 1 << 20) is None:
        pytest.skip("not run: no openat2 here")
    (real / "link").symlink_to("good")
    (real / "good" / "link.jpg").symlink_to("a.jpg")
    (real / "empty.jpg").touch()
    os.mkfifo(real / "fifo.jpg")
    assert module.read_regular_file(bytes(plain), 1 << 20) == plain.read_bytes()
    assert module.read_regular_file(bytes(plain), plain.stat().st_size) == plain.read_bytes()
    refused = [
        real / "link" / "a.jpg",
        real / "good" / "link.jpg",
        real / "empty.jpg",
        real / "fifo.jpg",
        real / "good",
        real / "none.jpg",
    ]
    assert [module.read_regular_file(bytes(path), 1 << 20) for path in refused] == [None] * len(
        refused
    )
    assert module.read_regular_file(bytes(plain), plain.stat().st_size - 1) is None
    assert module.read_regular_file(bytes(plain) + b"\0.png", 1 << 20) is None
    assert module.read_regular_file(b"good/a.jpg", 1 << 20) is None
    strange = Path(
        "/sys/kernel/mm/transparent_hugepage/enabled"
    )  # reports 4096 bytes and has fewer
    assert module.read_regular_file(bytes(strange), 1 << 20) is None
    assert (
        read_bounded(root, "link/a.jpg")
        == read_bounded(root, "good/link.jpg")
        == plain.read_bytes()
    )
    for outside in (
        "../secret.jpg",
        "good/../../secret.jpg",
        "/etc/hostname",
        str(tmp_path / "secret.jpg"),
    ):
        with pytest.raises(BadImage):
            read_bounded(root, outside)
    assert read_bounded(root, "good/../good/a.jpg") == plain.read_bytes()
