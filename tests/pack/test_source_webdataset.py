"""Tar shards become samples, read in place."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from fastload._pack.files import open_inside
from fastload._pack.sources.base import Encoded
from fastload._pack.sources.numbers import parse_npy
from fastload._pack.sources.webdataset import MAX_NAME_BYTES, Member, WebDatasetSource, tar_members
from fastload.errors import BadImage, ConfigError
from tests.open_files import open_files
from tests.source_contract import image_bytes, outcome, samples_of

JPG, PNG = image_bytes(1), image_bytes(2, form="PNG")


def _npy(array: object, **options: bool) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)  # type: ignore[arg-type]
    return stream.getvalue()


def _tar(
    path: Path, members: dict[str, bytes] | list[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def test_consecutive_members_with_one_stem_are_a_sample(tmp_path: Path) -> None:
    _tar(tmp_path / "b-001.tar", {"s3.jpg": JPG, "s3.cls": b"7\n"})
    _tar(
        tmp_path / "a-000.tar",
        {
            "d.1/s1.jpg": JPG,
            "d.1/s1.cls": b"3",
            "d.1/s1.json": b'{"a": [1]}',
            "d.1/s1.txt": "ça".encode(),
            "d.1/s1.seg.PNG": PNG,
            "d.1/s1.depth.npy": _npy(np.arange(6, dtype=np.float32).reshape(2, 3)),
            "d.1/s1.bin": b"\0\1",
            "d.1/s2.PNG": PNG,
            "d.1/s2.cls": b"4",
            ".hidden.jpg": b"x",
            "README": b"x",
        },
    )
    source = WebDatasetSource(tmp_path, types={"seg.png": "mask"})
    assert {field.name: field.kind.name for field in source.fields} == {
        "image": "image",
        "label": "int",
        "json": "json",
        "txt": "str",
        "seg": "mask",
        "depth": "array",
        "bin": "bytes",
    }
    one, two, three = samples_of(source)
    assert [one.source, two.source, three.source] == [
        "a-000.tar!d.1/s1",
        "a-000.tar!d.1/s2",
        "b-001.tar!s3",
    ]
    assert one.values["image"] == Encoded(JPG, "a-000.tar!d.1/s1.jpg")
    assert two.values["image"] == Encoded(PNG, "a-000.tar!d.1/s2.png")
    assert (one.values["label"], one.values["json"], one.values["txt"], one.values["bin"]) == (
        3,
        {"a": [1]},
        "ça",
        b"\0\1",
    )
    np.testing.assert_array_equal(one.values["depth"], [[0, 1, 2], [3, 4, 5]])
    assert set(two.values) == {"image", "label"}
    assert [sample.source for sample in samples_of(WebDatasetSource(tmp_path / "b-001.tar"))] == [
        "b-001.tar!s3"
    ]


def test_jpg_and_png_in_one_sample_are_two_fields(tmp_path: Path) -> None:
    path = _tar(
        tmp_path / "x.tar", {"1.jpg": JPG, "1.png": PNG, "1.left.jpg": JPG, "1.right.view.jpg": PNG}
    )
    source = WebDatasetSource(path, types={"png": "mask"})
    assert {field.name: field.kind.name for field in source.fields} == {
        "jpg": "image",
        "png": "mask",
        "left": "image",
        "right_view": "image",
    }
    assert len(samples_of(source)) == 1


def test_class_names(tmp_path: Path) -> None:
    path = _tar(
        tmp_path / "x.tar",
        {"1.jpg": JPG, "1.cls": b"dog", "2.jpg": JPG, "2.cls": b"0", "3.jpg": JPG, "3.cls": b"cow"},
    )
    good, bad = outcome(WebDatasetSource(path, classes=["cat", "dog"]))
    assert [sample.values["label"] for sample in good] == [1, 0]
    assert bad == [
        "x.tar!3.cls: column 'cls': expected int, found 'cow'. Correct it, or choose another type, e.g. --type cls=str"
    ]
    with pytest.raises(ConfigError, match="kind 'class' is only for lists"):
        WebDatasetSource(path, types={"cls": "class"})


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_offsets_agree_with_tarfile(tmp_path: Path, form: int) -> None:
    names = ["a.jpg", "d/" * 20 + "long.jpg", "x" * 90 + ".jpg"]
    if form != tarfile.USTAR_FORMAT:
        names += ["y" * 300 + ".jpg", "äöü" * 60 + ".jpg", "d" * 120 + "/" + "e" * 120 + ".png"]
    path = _tar(
        tmp_path / "x.tar", [(name, os.urandom(100 * i + 1)) for i, name in enumerate(names)], form
    )
    with tarfile.open(path, "a", format=form) as tar:
        for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo(f"other{kind!r}.jpg")
            info.type, info.linkname = kind, "/etc/passwd"
            tar.addfile(info)
        info = tarfile.TarInfo("last.jpg")
        tar.addfile(info)
    with tarfile.open(path) as tar:
        expected = [Member(info.name, info.offset_data, info.size) for info in tar if info.isreg()]
    with open_inside(tmp_path, "x.tar") as file:
        assert list(tar_members(file)) == expected
    assert len(expected) == len(names) + 1


def test_member_names_cannot_write_files(tmp_path: Path) -> None:
    path = _tar(
        tmp_path / "x.tar",
        [("../../etc/passwd.jpg", JPG), ("/abs/olute.jpg", JPG), ("caf\udce9\n.jpg", PNG)],
    )
    found = samples_of(WebDatasetSource(path))
    assert [sample.source for sample in found] == [
        "x.tar!../../etc/passwd",
        "x.tar!/abs/olute",
        r"x.tar!caf\xe9\x0a",
    ]
    assert list(tmp_path.iterdir()) == [path]


def test_truncated_tar_yields_complete_members(tmp_path: Path) -> None:
    _tar(tmp_path / "a.tar", {f"{i}.jpg": JPG for i in range(4)})
    _tar(tmp_path / "b.tar", {"9.jpg": JPG})
    data = (tmp_path / "a.tar").read_bytes()
    step = 512 + (len(JPG) + 511) // 512 * 512
    (tmp_path / "a.tar").write_bytes(data[: 2 * step + 600])
    good, bad = outcome(WebDatasetSource(tmp_path))
    assert [sample.source for sample in good] == ["a.tar!0", "a.tar!1", "b.tar!9"]
    assert len(bad) == 1
    assert bad[0].startswith("a.tar!2.jpg: truncated: its ")
    (tmp_path / "a.tar").write_bytes(data[:step] + b"damaged!" * 64 + data[step + 512 :])
    good, bad = outcome(WebDatasetSource(tmp_path))
    assert [sample.source for sample in good] == ["a.tar!0", "b.tar!9"]
    assert bad == [f"a.tar: damaged at byte {step}: invalid header. The rest is not read"]


def test_large_members_and_headers_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.tar"
    with path.open("wb") as file:
        for info, name in ((tarfile.TarInfo("big.jpg"), "big"), (tarfile.TarInfo("ok.jpg"), "ok")):
            info.size = 100 << 20 if name == "big" else len(JPG)
            file.write(info.tobuf(tarfile.GNU_FORMAT))
            file.write(b"" if name == "big" else JPG)
            file.seek(-(-file.tell() // 512) * 512 + (info.size if name == "big" else 0))
        file.truncate(file.tell() + 1024)
    good, bad = outcome(WebDatasetSource(path))
    assert [sample.source for sample in good] == ["big.tar!ok"]
    assert bad == ["big.tar!big.jpg: has 104857600 bytes, expected at most 67108864"]
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 30
    with path.open("wb") as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.truncate(2 << 30)
    with open_inside(tmp_path, "big.tar") as opened:
        (member,) = tar_members(opened)
    assert member.refused == f"name header of {1 << 30} bytes: expected at most {MAX_NAME_BYTES}"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("cls", b"cat", "expected int, found 'cat'"),
        ("cls", b"1" * 30, "expected int, found"),
        ("json", b'{"a":\n}', "broken JSON at line 2, column 1"),
        ("json", b"[NaN]", "not strict JSON"),
        ("txt", b"\xff", "expected str as text"),
        ("npy", b"not", "not a .npy array of numbers"),
        ("npy", _npy(np.array([{}]), allow_pickle=True), "pickled objects are not read"),
        ("npy", _npy(np.zeros(4))[:-1], "31 bytes of data do not match float64 (4,)"),
    ],
)
def test_bad_members_are_bad_samples(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = _tar(tmp_path / "x.tar", {"1.jpg": JPG, f"1.{name}": data, "2.jpg": JPG})
    good, bad = outcome(WebDatasetSource(path))
    assert [sample.source for sample in good] == ["x.tar!2"]
    assert bad[0].startswith(f"x.tar!1.{name}: ")
    assert message in bad[0]


def test_npy_header_must_match_its_data() -> None:
    header = _npy(np.zeros((2, 2)))
    huge = header.replace(b"(2, 2)", b"(9**9,")
    with pytest.raises(BadImage):
        parse_npy(huge, "x")
    with pytest.raises(BadImage, match=r"32 bytes of data do not match float64 \(99999999, 9\)"):
        parse_npy(header.replace(b"(2, 2), }        ", b"(99999999, 9), } "), "x")
    np.testing.assert_array_equal(
        parse_npy(_npy(np.asfortranarray([[1, 2], [3, 4]])), "x"), [[1, 2], [3, 4]]
    )
    assert parse_npy(_npy(np.array([1, 2], dtype=">i4")), "x").dtype == np.int32


def test_late_and_duplicate_extensions_are_reported(tmp_path: Path) -> None:
    members = [(f"{i}.jpg", JPG) for i in range(1000)] + [
        ("x.jpg", JPG),
        ("x.new", b"1"),
        ("y.jpg", JPG),
        ("y.png", PNG),
        ("z.jpg", JPG),
    ]
    good, bad = outcome(WebDatasetSource(_tar(tmp_path / "x.tar", members)))
    assert len(good) == 1001
    assert "x.tar!x.new: extension 'new' is not in the first 1000 samples" in bad[0]
    assert bad[1] == "x.tar!y.png: the sample has two members for field 'image'"


def test_invalid_shards_are_refused(tmp_path: Path) -> None:
    _tar(tmp_path / "p" / "x.tar", {"1.pyd": b"pickle"})
    with pytest.raises(ConfigError, match="members 'pyd' are Python pickles"):
        WebDatasetSource(tmp_path / "p")
    assert (
        samples_of(WebDatasetSource(tmp_path / "p", types={"pyd": "bytes"}))[0].values["pyd"]
        == b"pickle"
    )
    _tar(tmp_path / "e" / "x.tar", {})
    with pytest.raises(ConfigError, match="no samples in 1 tar files"):
        WebDatasetSource(tmp_path / "e")
    _tar(tmp_path / "z" / "x.tar.gz", {"1.jpg": JPG})
    with pytest.raises(ConfigError, match=r"x\.tar\.gz is compressed\. Run gzip -d first"):
        WebDatasetSource(tmp_path / "z")


def test_tar_changed_after_listing_is_refused(tmp_path: Path) -> None:
    path = _tar(tmp_path / "x.tar", {"1.jpg": JPG, "2.jpg": JPG})
    source = WebDatasetSource(path)
    ref = next(source.refs())
    _tar(path, {"0.txt": b"x" * 700, "1.jpg": JPG, "2.jpg": JPG})
    with pytest.raises(ConfigError, match="changed since it was listed"):
        source.load(ref)
    with pytest.raises(ConfigError, match="is not a sample in a tar"):
        source.load("1.jpg")


@pytest.mark.parametrize("at", [0, 50, 99, 110, 125, 134, 149, 300, 511])
def test_damaged_header_ends_the_listing(tmp_path: Path, at: int) -> None:
    path = _tar(tmp_path / "a.tar", [("a.txt", b"first"), ("b.txt", b"second")])
    data = bytearray(path.read_bytes())
    data[1024 + at] ^= 2  # in the header of the second member
    path.write_bytes(data)
    with open_inside(tmp_path, "a.tar") as file:
        first, second = tar_members(file)
    assert (first.name, first.refused) == ("a.txt", "")
    assert second.refused.startswith("damaged at byte 1024: ")


def test_few_shards_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload._pack.sources.webdataset.MAX_OPEN_SHARDS", 2)
    for i in range(5):
        _tar(tmp_path / f"{i}.tar", [("a.txt", f"text {i}".encode())])

    def n_open() -> int:
        return sum(name.startswith(str(tmp_path)) for name in open_files())

    source = WebDatasetSource(tmp_path)
    refs = list(source.refs())
    for i in (4, 0, 3, 1, 2, 0, 4, 2):
        assert source.load(refs[i]).values == {"txt": f"text {i}"}
        assert 1 <= n_open() <= 2
    del source
    assert n_open() == 0
