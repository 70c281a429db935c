"""Files of a source are listed in a fixed order and read completely, with any name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload._pack.files import Entry, is_image_name, printable, raw_name, read_bounded, walk
from fastload.errors import BadImage


@given(st.binary(min_size=1, max_size=60))
def test_any_name_can_be_shown_and_read_back(raw: bytes) -> None:
    name = os.fsdecode(raw)
    shown = printable(name)
    assert shown.isprintable()
    assert shown.encode()
    assert os.fsencode(raw_name(shown)) == raw


@given(st.binary(min_size=1, max_size=30), st.binary(min_size=1, max_size=30))
def test_different_names_print_differently(one: bytes, two: bytes) -> None:
    assert (printable(os.fsdecode(one)) == printable(os.fsdecode(two))) == (one == two)


def test_only_unprintable_names_are_escaped() -> None:
    assert printable("café/photo 1.jpg") == "café/photo 1.jpg"
    assert printable("caf\udce9.jpg") == r"caf\xe9.jpg"
    assert printable("a\x1b[31m\n.jpg") == r"a\x1b[31m\x0a.jpg"
    assert printable("a\\xe9.jpg") == r"a\\xe9.jpg"


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.jpg").write_bytes(b"abc" * 1000)
    assert read_bounded(tmp_path, "a/x.jpg") == b"abc" * 1000
    assert read_bounded(str(tmp_path), "a/../a/x.jpg", limit=3000) == b"abc" * 1000
    assert read_bounded(tmp_path, str(tmp_path / "a/x.jpg")) == b"abc" * 1000


def test_a_link_inside_the_root_is_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "x.jpg").write_bytes(b"abc")
    (root / "y.jpg").symlink_to("x.jpg")
    assert read_bounded(root, "y.jpg") == b"abc"
    (tmp_path / "way").symlink_to(root)  # the root itself may be reached by a link
    assert read_bounded(tmp_path / "way", "y.jpg") == b"abc"
    assert [entry.path for entry in walk(tmp_path / "way")] == ["x.jpg", "y.jpg"]


def test_relative_root_follows_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "root").mkdir(parents=True)
        (tmp_path / name / "root" / f"{name}.jpg").write_text(name)
        monkeypatch.chdir(tmp_path / name)
        assert [entry.path for entry in walk("root")] == [f"{name}.jpg"]
        assert read_bounded("root", f"{name}.jpg") == name.encode()


def test_size_limit_is_exact(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_bounded(tmp_path, "x", limit=5) == b"12345"
    with pytest.raises(BadImage, match=r"x: has 5 bytes, expected at most 4"):
        read_bounded(tmp_path, "x", limit=4)


def test_walk_is_sorted_and_skips_hidden_files(tmp_path: Path) -> None:
    for name in (
        "b/2.jpg",
        "b/10.jpg",
        "a/z/1.jpg",
        "a/y.txt",
        ".git/x.jpg",
        "a/.hidden.jpg",
        "c.jpg",
        "B/1.jpg",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    expected = ["c.jpg", "B/1.jpg", "a/y.txt", "a/z/1.jpg", "b/10.jpg", "b/2.jpg"]
    assert list(walk(tmp_path)) == [Entry(path) for path in expected]
    assert [entry.path for entry in walk(tmp_path, below="a")] == ["a/y.txt", "a/z/1.jpg"]


def test_a_deep_tree_needs_no_recursion(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(400):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "x.jpg").write_bytes(b"x")
    (entry,) = walk(tmp_path)
    assert entry.path == "d/" * 400 + "x.jpg"
    assert read_bounded(tmp_path, entry.path) == b"x"


def test_image_names_are_recognized_by_suffix() -> None:
    assert all(
        is_image_name(name)
        for name in (
            "a.jpg",
            "a.JPEG",
            "b.Png",
            "a.webp",
            "a.bmp",
            "a.tif",
            "a.TIFF",
            "a.gif",
            "a.JFIF",
            "a.jp2",
        )
    )
    assert not any(is_image_name(name) for name in ("a.eps", "jpg", "a.jpg.txt", "a"))
