"""export writes files, WebDataset or Parquet that other readers understand and pack restores."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

import fastload
from fastload._pack.exports import MAX_NAME_BYTES, Description, safe_name, safe_names
from fastload._pack.sources.base import Encoded, Sample
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, CorruptShard, MissingPart
from tests.every_kind import FIELDS, assert_same_samples, pack_every_kind, sample
from tests.packed_datasets import encoded, flip, pack_samples, spoil_image
from tests.packing import Listed, file_of, pack, pixels, tree
from tests.small_dataset import jpeg
from tests.source_contract import outcome

TARGETS = ("files", "webdataset", "parquet")
SPLIT = Field("split", "int", classes=("train", "val"))
PHOTO = Field("image", "image")
LABEL = Field("label", "int", classes=("ant", "bee"))


@pytest.fixture(autouse=True)
def _needs_pyarrow(request: pytest.FixtureRequest) -> None:
    if "to" in request.fixturenames and request.getfixturevalue("to") == "parquet":
        pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> fastload.Dataset:
    """Nine samples with a field of every kind, in two splits. Some lack most fields."""
    path = tmp_path_factory.mktemp("every") / "packed"
    samples = [{**sample(seed), "split": int(seed >= 6)} for seed in range(9)]
    pack_samples(path, (*FIELDS, SPLIT), samples, info={"categories": [{"id": 0, "name": "x"}]})
    return fastload.open(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> fastload.Dataset:
    """Six JPEGs of two classes in two splits."""
    path = tmp_path_factory.mktemp("photos") / "packed"
    listed = [
        Sample(
            {"image": encoded(jpeg(40 + n, 32, seed=n)), "label": n % 2, "split": int(n >= 4)},
            source=f"{'ab'[n % 2]}/{n}.jpeg",
        )
        for n in range(6)
    ]
    pack(Listed(listed, (PHOTO, LABEL, SPLIT)), path, order="source")
    return fastload.open(path)


def packed_again(exported: Path) -> fastload.Dataset:
    dest = exported.with_name(f"{exported.name}-packed")
    fastload.pack(exported, dest, order="source")
    return fastload.open(dest)


def pixels_in(data: bytes) -> Any:
    """Returns what a reader that honors EXIF sees."""
    with Image.open(io.BytesIO(data)) as image:
        found = np.asarray(ImageOps.exif_transpose(image))
    return found if found.ndim == 3 else found[:, :, None]


@pytest.mark.parametrize("to", TARGETS)
def test_packing_the_export_restores_every_field(
    every_kind: fastload.Dataset, tmp_path: Path, to: str
) -> None:
    result = fastload.export(every_kind.path, tmp_path / "out", to=to)
    assert (result.n_samples, result.skipped) == (9, 0)
    again = packed_again(tmp_path / "out")
    assert again.fields == every_kind.fields
    assert again.split_sizes() == {"train": 6, "val": 3}
    assert again.manifest.options["info"] == every_kind.manifest.options["info"]
    assert_same_samples(again, range(9), every_kind, range(9))


@pytest.mark.parametrize("to", TARGETS)
def test_the_source_fulfills_the_contract_of_sources(
    every_kind: fastload.Dataset, tmp_path: Path, to: str
) -> None:
    fastload.export(every_kind.path, tmp_path / "out", to=to)
    from fastload._pack.sources.detect import open_source

    good, bad = outcome(open_source(tmp_path / "out"))
    assert (len(good), bad) == (9, [])


@pytest.mark.parametrize("to", TARGETS)
def test_values_without_an_exact_plain_form_are_restored(tmp_path: Path, to: str) -> None:
    fields = (
        PHOTO,
        Field("table", "matrix"),
        Field("spots", "points"),
        Field("mixed", "array"),
        Field("score", "float"),
        Field("instances", "mask"),
        Field("blob", "bytes"),
        Field("twice", "int", classes=("same", "same", "other")),
    )
    arrays: list[Any] = [
        np.array([1, 2], np.int64),
        np.array([[True, False]]),
        np.array([np.nan, -np.inf]),
        np.array(2**64 - 1, np.uint64),
        np.zeros((0, 3), np.uint8),
        np.arange(300_000, dtype=np.float64),  # larger than what a table holds
    ]
    samples: list[dict[str, Any]] = [
        {
            "image": encoded(jpeg(16, 16, seed=n)),
            "table": np.zeros((0, n)) if n else np.full((2, 2), np.nan),
            "spots": np.zeros((0, 2 + n % 2), np.float32),
            "mixed": array,
            "score": (float("nan"), float("inf"), float("-inf"), -0.0, 1e300, 0.1)[n],
            "instances": np.full((3, 4), 2**32 - 1 - n, np.uint32),
            "blob": bytes(n * 300_000),
            "twice": n % 3,
        }
        for n, array in enumerate(arrays)
    ]
    pack_samples(tmp_path / "packed", fields, samples)
    fastload.export(tmp_path / "packed", tmp_path / "out", to=to)
    again = packed_again(tmp_path / "out")
    before = fastload.open(tmp_path / "packed")
    assert again.fields == before.fields
    for n in range(len(samples)):
        one, two = again[n], before[n]
        np.testing.assert_equal(one, two)
        assert one["mixed"].dtype == two["mixed"].dtype
        assert one["instances"].dtype == np.uint32
        assert one["spots"].shape == two["spots"].shape


def images_of_all_modes() -> dict[str, Any]:
    rng = np.random.default_rng(3)
    wide = rng.integers(0, 65_536, (30, 20, 3), dtype=np.uint16)
    palette = io.BytesIO()
    Image.fromarray(pixels(24, 16, seed=5)).convert("P").save(palette, "PNG")
    return {
        "jpeg": encoded(jpeg(50, 40)),
        "gray jpeg": encoded(jpeg(50, 40, gray=True)),
        "png": encoded(file_of(pixels(200, 150, seed=1), "PNG")),
        "small png": encoded(file_of(pixels(8, 8, seed=1), "PNG")),
        "gray": pixels(24, 16, seed=2)[:, :, 0].copy(),
        "gray 16": np.ascontiguousarray(wide[:, :, 0]),
        "rgb 16": wide,
        "large rgb 16": np.tile(wide, (10, 10, 1)),
        "palette": encoded(palette.getvalue()),
    }


@pytest.mark.parametrize("to", TARGETS)
@pytest.mark.parametrize("encode", ["keep", "copy", "raw"])
def test_images_of_every_mode_keep_their_pixels(tmp_path: Path, to: str, encode: str) -> None:
    values = images_of_all_modes()
    pack_samples(
        tmp_path / "packed", (PHOTO,), [{"image": each} for each in values.values()], encode=encode
    )
    before = fastload.open(tmp_path / "packed")
    fastload.export(tmp_path / "packed", tmp_path / "out", to=to)
    again = packed_again(tmp_path / "out")
    for n, name in enumerate(values):
        np.testing.assert_array_equal(again[n]["image"], before[n]["image"], name)
        assert again[n]["image"].dtype == before[n]["image"].dtype


@pytest.mark.parametrize("encode", ["keep", "copy"])
@pytest.mark.parametrize("size", [(48, 32), (43, 29)])
def test_a_reader_of_the_file_sees_the_orientation(
    tmp_path: Path, encode: str, size: tuple[int, int]
) -> None:
    """The packer removes EXIF, and rotates only where that is exact."""
    samples = [{"image": encoded(jpeg(*size, seed=n, exif_orientation=n))} for n in range(1, 9)]
    pack_samples(tmp_path / "packed", (PHOTO,), samples, encode=encode)
    before = fastload.open(tmp_path / "packed")
    fastload.export(before.path, tmp_path / "out", to="files")
    for n in range(8):
        found = pixels_in((tmp_path / "out" / f"{n:03}.jpg").read_bytes())
        np.testing.assert_array_equal(found, before[n]["image"])
    again = packed_again(tmp_path / "out")
    for n in range(8):
        np.testing.assert_array_equal(again[n]["image"], before[n]["image"])


def test_an_orientation_in_the_file_does_not_replace_that_of_the_record(tmp_path: Path) -> None:
    from tests.packed_datasets import change_parts

    pack_samples(
        tmp_path / "packed",
        (PHOTO,),
        [{"image": encoded(jpeg(43, 29, exif_orientation=6))}],
        encode="copy",
    )
    change_parts(
        tmp_path / "packed",
        0,
        lambda parts: [part._replace(orientation=3) if part.field == 0 else part for part in parts],
    )
    fastload.export(tmp_path / "packed", tmp_path / "out", to="files")
    found = pixels_in((tmp_path / "out" / "000.jpg").read_bytes())
    assert found.shape == (29, 43, 3)
    np.testing.assert_array_equal(found, fastload.open(tmp_path / "packed")[0]["image"])


def test_files_are_class_folders_with_the_stored_bytes(
    photos: fastload.Dataset, tmp_path: Path
) -> None:
    """Reads them as torchvision's ImageFolder does: sorted folders, Pillow."""
    result = fastload.export(photos.path, tmp_path / "out", to="files")
    assert result.notes == ()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "train",
        "val",
        "samples.jsonl",
        "fastload.json",
    }
    seen = 0
    for split in ("train", "val"):
        classes = sorted(path.name for path in (tmp_path / "out" / split).iterdir())
        assert classes == ["ant", "bee"]
        for label, name in enumerate(classes):
            for path in (tmp_path / "out" / split / name).iterdir():
                n = int(path.stem)
                assert (photos[n]["label"], photos[n]["split"]) == (label, split == "val")
                assert path.read_bytes() == bytes(photos.raw(n, "image"))
                np.testing.assert_array_equal(pixels_in(path.read_bytes()), photos[n]["image"])
                seen += 1
    assert seen == 6
    lines = (tmp_path / "out" / "samples.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert rows[1] == {
        "image": "train/bee/1.jpg",
        "label": "bee",
        "split": "train",
        "source": "b/1.jpeg",
    }


@pytest.mark.parametrize(("to", "format"), [("files", "folder"), ("webdataset", "webdataset")])
def test_other_sources_read_the_export_without_its_description(
    photos: fastload.Dataset, tmp_path: Path, to: str, format: str
) -> None:
    fastload.export(photos.path, tmp_path / "out", to=to)
    fastload.pack(tmp_path / "out", tmp_path / "plain", format=format, order="source")
    plain = fastload.open(tmp_path / "plain")
    expected = sorted((each["image"].tobytes(), each["label"]) for each in photos)  # type: ignore[attr-defined]
    assert sorted((each["image"].tobytes(), each["label"]) for each in plain) == expected  # type: ignore[attr-defined]


def test_the_table_is_a_list_of_images(photos: fastload.Dataset, tmp_path: Path) -> None:
    fastload.export(photos.path, tmp_path / "out", to="files")
    fastload.pack(
        tmp_path / "out" / "samples.jsonl",
        tmp_path / "plain",
        source_options={"drop": ["source"]},
        order="source",
    )
    plain = fastload.open(tmp_path / "plain")
    assert plain.class_names["label"] == ("ant", "bee")
    assert plain.split_sizes() == {"train": 4, "val": 2}
    for n in range(6):
        np.testing.assert_array_equal(plain[n]["image"], photos[n]["image"])


def test_tar_members_are_what_webdataset_decodes(
    every_kind: fastload.Dataset, tmp_path: Path
) -> None:
    """Reads the shards as WebDataset does: key up to the first dot, decoder by the last part."""
    fastload.export(every_kind.path, tmp_path / "out", to="webdataset")
    assert {path.name for path in (tmp_path / "out").glob("*.tar")} == {
        "train-000000.tar",
        "val-000000.tar",
    }
    decoders: dict[str, Callable[[bytes], Any]] = {
        "jpg": pixels_in,
        "png": pixels_in,
        "cls": int,
        "json": json.loads,
        "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
        "bin": bytes,
    }
    found: dict[str, dict[str, Any]] = {}
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, extension = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                value = decoders[extension.rpartition(".")[2]](file.read())
                assert extension not in found.setdefault(key, {})
                found[key][extension] = value
    assert len(found) == 9
    for number, values in enumerate(found.values()):
        expected = every_kind[number]
        np.testing.assert_array_equal(values["jpg"], expected["image"])
        assert values["json"]["text"] == expected["text"]
        assert values["json"]["source"] == every_kind.source(number)
        if expected["label"] is not None:
            assert values["cls"] == expected["label"]
            np.testing.assert_array_equal(values["boxes.npy"], expected["boxes"])
            np.testing.assert_array_equal(values["cameras.1.png"], expected["cameras"][1])
            np.testing.assert_array_equal(values["mask.png"][:, :, 0], expected["mask"])


def test_parquet_has_the_columns_of_hugging_face(
    every_kind: fastload.Dataset, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    fastload.export(every_kind.path, tmp_path / "out", to="parquet")
    paths = sorted((tmp_path / "out" / "data").iterdir())
    assert [path.name for path in paths] == [
        "train-00000-of-00001.parquet",
        "val-00000-of-00001.parquet",
    ]
    table = parquet.read_table(paths[0])
    assert str(table.schema.field("image").type) == "struct<bytes: binary, path: string>"
    features = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"_type": "ClassLabel", "names": ["cat", "dog", "emu"]}
    assert features["image"] == {"_type": "Image"}
    for number, row in enumerate(table.to_pylist()):
        expected = every_kind[number]
        np.testing.assert_array_equal(pixels_in(row["image"]["bytes"]), expected["image"])
        assert row["label"] == expected["label"]
        assert row["text"] == expected["text"]
        assert row["source"] == every_kind.source(number)
        if expected["boxes"] is not None:
            assert row["boxes"] == expected["boxes"].tolist()
            assert json.loads(row["meta"]) == expected["meta"]


def test_hugging_face_datasets_loads_the_folder(
    every_kind: fastload.Dataset, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    fastload.export(every_kind.path, tmp_path / "out", to="parquet")
    loaded = datasets.load_dataset(
        "parquet",
        data_files={"val": str(tmp_path / "out" / "data" / "val-*.parquet")},
        cache_dir=str(tmp_path / "cache"),
    )["val"]
    assert loaded.features["label"].names == ["cat", "dog", "emu"]
    for number in range(3):
        expected = every_kind[6 + number]
        np.testing.assert_array_equal(np.asarray(loaded[number]["image"]), expected["image"])
        for one, two in zip(loaded[number]["cameras"], expected["cameras"], strict=True):
            np.testing.assert_array_equal(np.asarray(one), two)


@pytest.mark.parametrize("to", TARGETS)
def test_a_selection_is_exported(photos: fastload.Dataset, tmp_path: Path, to: str) -> None:
    calls: list[tuple[int, int]] = []
    result = fastload.export(
        photos.path,
        tmp_path / "out",
        to=to,
        split="val",
        where="label == 'bee'",
        on_progress=lambda done, total: calls.append((done, total)),
    )
    assert (result.n_samples, calls) == (1, [(1, 1)])
    again = packed_again(tmp_path / "out")
    assert again.splits == ("val",)
    assert again.classes == ["ant", "bee"]
    np.testing.assert_array_equal(again[0]["image"], photos[5]["image"])
    fastload.export(photos.path, tmp_path / "two", to=to, limit=2)
    assert len(packed_again(tmp_path / "two")) == 2


@pytest.mark.parametrize("to", ["webdataset", "parquet"])
def test_shards_are_cut_by_size_and_equal_in_every_run(tmp_path: Path, to: str) -> None:
    samples = [
        {"image": encoded(jpeg(300, 300, seed=n)), "blob": bytes([n]) * 400_000} for n in range(9)
    ]
    pack_samples(tmp_path / "packed", (PHOTO, Field("blob", "bytes")), samples)
    for dest, jobs in (("one", 1), ("two", 3)):
        result = fastload.export(
            tmp_path / "packed", tmp_path / dest, to=to, shard_size=1 << 20, jobs=jobs
        )
        assert result.n_files == 3
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert_same_samples(
        packed_again(tmp_path / "one"), range(9), fastload.open(tmp_path / "packed"), range(9)
    )


HOSTILE = (
    "..",
    "a/b",
    "a_b",
    "A_B",
    "",
    ".hidden",
    "/etc",
    "x\\y",
    "é",
    "con\n",
    "." * 300,
    "b" * 300,
)


def test_hostile_names_stay_inside_and_differ(tmp_path: Path) -> None:
    """Names come from the data. They must not leave the folder, hide files or replace others."""
    sources = (
        "../../escape.jpg",
        "/etc/passwd",
        "a\\b.jpg",
        "..",
        "same.jpg",
        "same.jpg",
        "SAME.png",
    )
    listed = [
        Sample(
            {"image": encoded(jpeg(16 + n, 16, seed=n)), "label": n % len(HOSTILE), "split": n % 2},
            source=sources[n % len(sources)],
        )
        for n in range(3 * len(HOSTILE))
    ]
    fields = (
        PHOTO,
        Field("label", "int", classes=HOSTILE),
        Field("split", "int", classes=("../x", "..")),
    )
    root = tmp_path / "root"
    root.mkdir()
    pack(Listed(listed, fields), root / "packed", order="source")
    outside = tree(tmp_path)
    for to in TARGETS if _has_pyarrow() else TARGETS[:2]:
        fastload.export(root / "packed", root / to, to=to)
        again = packed_again(root / to)
        assert again.fields == fastload.open(root / "packed").fields
        assert_same_samples(again, range(36), fastload.open(root / "packed"), range(36))
    new = [name for name in tree(tmp_path) if name not in outside]
    assert all(name.startswith("root/") for name in new)
    inside = [path.relative_to(root / "files") for path in (root / "files").rglob("*.jpg")]
    assert len(inside) == 36
    assert not any(part.startswith(".") for path in inside for part in path.parts)


def _has_pyarrow() -> bool:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        return False
    return True


def test_safe_names_are_short_visible_and_unique() -> None:
    names = safe_names(HOSTILE)
    assert len({name.casefold() for name in names}) == len(HOSTILE)
    for text in HOSTILE:
        name = safe_name(text)
        assert name
        assert "/" not in name
        assert not name.startswith(".")
        assert len(name.encode()) <= MAX_NAME_BYTES
    assert safe_name("golden retriever (n02099601)") == "golden retriever (n02099601)"


def test_class_folders_in_another_order_are_noted(tmp_path: Path) -> None:
    fields = (PHOTO, Field("label", "int", classes=("b", "a")))
    samples = [{"image": encoded(jpeg(16, 16, seed=n)), "label": n} for n in range(2)]
    pack_samples(tmp_path / "packed", fields, samples)
    result = fastload.export(tmp_path / "packed", tmp_path / "out", to="files")
    assert "ImageFolder numbers them differently" in str(result)
    assert packed_again(tmp_path / "out").classes == ["b", "a"]


def test_samples_without_label_and_image(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"image": encoded(jpeg(16, 16))}, {"label": 1}, {}]
    pack_samples(tmp_path / "packed", (PHOTO, LABEL), samples)
    for to in TARGETS if _has_pyarrow() else TARGETS[:2]:
        fastload.export(tmp_path / "packed", tmp_path / to, to=to)
        assert_same_samples(
            packed_again(tmp_path / to), range(3), fastload.open(tmp_path / "packed"), range(3)
        )


def test_dest_is_never_replaced_by_accident(photos: fastload.Dataset, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="is not empty and not an export"):
            fastload.export(photos.path, tmp_path / "notes", to="files", overwrite=overwrite)
    (tmp_path / "notes" / "fastload.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"fastload\.json"):
        fastload.export(photos.path, tmp_path / "notes", to="files", overwrite=True)
    assert (tmp_path / "notes" / "a.txt").read_text() == "mine"
    with pytest.raises(ConfigError, match="is not empty"):
        fastload.export(photos.path, tmp_path / "notes" / "a.txt", to="files")
    with pytest.raises(ConfigError, match="is not empty"):
        fastload.export(photos.path, photos.path, to="files", overwrite=True)
    fastload.export(photos.path, tmp_path / "out", to="files")
    with pytest.raises(ConfigError, match="--overwrite"):
        fastload.export(photos.path, tmp_path / "out", to="webdataset")
    with pytest.raises(ConfigError, match="no sample matches"):
        fastload.export(
            photos.path, tmp_path / "out", to="files", where="label == 9", overwrite=True
        )
    assert (tmp_path / "out" / "train").is_dir()
    fastload.export(photos.path, tmp_path / "out", to="webdataset", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "fastload.json",
        "train-000000.tar",
        "val-000000.tar",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "out"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "zip"}, "to='zip': expected one of files, webdataset, parquet"),
        ({"to": "files", "on_error": "ignore"}, "on_error='ignore': expected stop or skip"),
        ({"to": "files", "limit": 0}, "limit=0"),
        ({"to": "files", "split": "test"}, "split='test'"),
        ({"to": "webdataset", "shard_size": 5}, "shard_size=5: expected at least"),
    ],
)
def test_wrong_arguments_write_nothing(
    photos: fastload.Dataset, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        fastload.export(photos.path, tmp_path / "out", **options)
    assert not any(tmp_path.iterdir())


def test_without_pyarrow_the_error_has_the_command_to_install_it(
    photos: fastload.Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingPart, match="pip install pyarrow"):
        fastload.export(photos.path, tmp_path / "out", to="parquet")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("to", TARGETS)
def test_damaged_samples_stop_the_export_or_are_named(tmp_path: Path, to: str) -> None:
    samples = [{"image": encoded(jpeg(64, 64, seed=n)), "label": 0} for n in range(5)]
    pack_samples(tmp_path / "packed", (PHOTO, LABEL), samples)
    spoil_image(tmp_path / "packed", 3)
    with pytest.raises(BadImage, match=r"samples/003: sample 3: not a JPEG"):
        fastload.export(tmp_path / "packed", tmp_path / "out", to=to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed"]
    result = fastload.export(tmp_path / "packed", tmp_path / "out", to=to, on_error="skip")
    assert (result.n_samples, result.skipped) == (4, 1)
    assert "1 damaged sample skipped" in str(result)
    log = (tmp_path / "out" / "export-log.txt").read_text().splitlines()
    assert len(log) == 1
    assert "samples/003" in log[0]
    assert len(packed_again(tmp_path / "out")) == 4


def test_a_damaged_record_is_named_and_all_damaged_is_an_error(tmp_path: Path) -> None:
    pack_samples(
        tmp_path / "packed",
        (PHOTO,),
        [{"image": encoded(jpeg(200, 200, seed=n))} for n in range(2)],
    )
    shard = next((tmp_path / "packed").glob("shard-*.lmdb"))
    data = shard.read_bytes()
    flip(shard, data.index(bytes(fastload.open(tmp_path / "packed").raw(1, "image"))) + 500)
    with pytest.raises(CorruptShard, match="reading sample 1: checksum"):
        fastload.export(tmp_path / "packed", tmp_path / "out", to="files")
    fastload.export(tmp_path / "packed", tmp_path / "out", to="files", on_error="skip")
    assert "reading sample 1" in (tmp_path / "out" / "export-log.txt").read_text()
    flip(shard, data.index(bytes(fastload.open(tmp_path / "packed").raw(0, "image"))) + 500)
    with pytest.raises(ConfigError, match="all 2 selected samples are damaged"):
        fastload.export(tmp_path / "packed", tmp_path / "none", to="files", on_error="skip")
    assert not (tmp_path / "none").exists()


def run_export(folder: Path, to: str, before: str) -> int:
    program = f"import fastload, os, resource, signal\n{before}\n" + (
        f"fastload.export('packed', 'out', to={to!r}, on_progress=progress)\n"
    )
    return subprocess.run([sys.executable, "-c", program], cwd=folder, check=False).returncode


@pytest.mark.parametrize("to", TARGETS)
def test_a_killed_export_leaves_no_result_and_can_be_repeated(
    photos: fastload.Dataset, tmp_path: Path, to: str
) -> None:
    (tmp_path / "packed").symlink_to(photos.path)
    kill = "def progress(done, total):\n    if done == 3: os.kill(os.getpid(), signal.SIGKILL)"
    assert run_export(tmp_path, to, kill) == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    fastload.export(tmp_path / "packed", tmp_path / "out", to=to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "packed"]
    assert len(packed_again(tmp_path / "out")) == 6


@pytest.mark.parametrize("to", TARGETS)
def test_a_write_error_leaves_no_result(tmp_path: Path, to: str) -> None:
    """A real write error: no file may grow above 64 KiB."""
    samples = [{"image": encoded(jpeg(500, 500, seed=n, quality=100))} for n in range(4)]
    pack_samples(tmp_path / "packed", (PHOTO,), samples)
    limit = (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))\nprogress = None\n"
        "import sys; sys.excepthook = lambda kind, *_: os._exit(7 if issubclass(kind, "
        "fastload.StoreError) else 8)"
    )
    assert run_export(tmp_path, to, limit) == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["packed"]
    fastload.export(tmp_path / "packed", tmp_path / "out", to=to)
    assert len(packed_again(tmp_path / "out")) == 4


def test_few_samples_are_in_memory_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = [{"image": encoded(jpeg(300, 300, seed=n))} for n in range(40)]
    pack_samples(tmp_path / "packed", (PHOTO,), samples)
    read: list[int] = []
    most = 0
    parts = fastload.Dataset.parts

    def counted(self: fastload.Dataset, index: int) -> Any:
        read.append(index)
        return parts(self, index)

    def progress(done: int, total: int) -> None:
        nonlocal most
        most = max(most, len(read) - done)

    monkeypatch.setattr(fastload.Dataset, "parts", counted)
    monkeypatch.setattr("fastload._pack.datasets.exporting._CHUNK_BYTES", 1)
    fastload.export(tmp_path / "packed", tmp_path / "out", to="files", jobs=2, on_progress=progress)
    assert len(read) == 40
    assert most <= 2 * 2 + 2


def described(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "fastload.json").read_text())
    return found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.update(version=2), "format and version"),
        (lambda found: found.update(to="zip"), "to 'zip'"),
        (lambda found: found.update(extra=1), "extra"),
        (lambda found: found.pop("info"), "info"),
        (lambda found: found["fields"].append(found["fields"][0]), "occurs twice"),
        (lambda found: found["fields"][0].update(kind="video"), "video"),
        (lambda found: found["fields"][0].update(name="../x"), "field name"),
        (lambda found: found["fields"][1].update(image="nothing"), "nothing"),
    ],
)
def test_a_changed_description_is_refused(
    photos: fastload.Dataset, tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    fastload.export(photos.path, tmp_path / "out", to="files")
    found = described(tmp_path / "out")
    change(found)
    (tmp_path / "out" / "fastload.json").write_text(json.dumps(found))
    with pytest.raises(ConfigError, match=message):
        fastload.pack(tmp_path / "out", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    fastload.pack(tmp_path / "out", tmp_path / "again", format="folder")


def test_the_description_is_read_as_it_was_written() -> None:
    before = Description("files", (*FIELDS, SPLIT), {"a": [1, "é"]})
    assert Description.parse(before.dump()) == before
    with pytest.raises(ValueError, match="nested deeper"):
        Description.parse(b"[" * 50)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"image": "../secret.jpg"}, "leads outside the root"),
        ({"image": "/etc/passwd"}, "outside the root"),
        ({"image": 3}, "expected a file name"),
        ({"image": "nothing.jpg"}, "no such file"),
        ({"cameras": "x.png"}, "expected a list"),
        ({"boxes": [[1, 2]]}, "expected (n, 4)"),
        ({"boxes": {"npy": "AAAA"}}, "not a .npy array"),
        ({"numbers": {"npy": 5}}, "expected an object with the key 'npy'"),
        ({"numbers": [[1], [2, 3]]}, "numbers"),
        ({"blob": {"bytes": "!"}}, "not base64"),
        ({"label": "cow"}, "is not one of 3 classes"),
        ({"label": 7}, "expected 0 to 2"),
        ({"count": "many"}, "expected int"),
        ({"text": 5}, "expected str"),
        ({"color": "red"}, "unknown field 'color'"),
    ],
)
def test_changed_rows_are_bad_samples(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    pack_every_kind(tmp_path / "packed", range(2))
    put = tmp_path / "secret.jpg"
    put.write_bytes(jpeg(16, 16))
    fastload.export(tmp_path / "packed", tmp_path / "out", to="files")
    table = tmp_path / "out" / "samples.jsonl"
    lines = table.read_text().splitlines()
    lines[1] = json.dumps({**json.loads(lines[1]), **row})
    table.write_text("\n".join(lines))
    with pytest.raises(BadImage) as caught:
        fastload.pack(tmp_path / "out", tmp_path / "again", order="source")
    assert message in str(caught.value)
    fastload.pack(tmp_path / "out", tmp_path / "skipped", order="source", on_error="skip")
    assert len(fastload.open(tmp_path / "skipped")) == 1


def test_renamed_shards_are_refused(photos: fastload.Dataset, tmp_path: Path) -> None:
    fastload.export(photos.path, tmp_path / "out", to="webdataset")
    (tmp_path / "out" / "val-000000.tar").rename(tmp_path / "out" / "x-000000.tar")
    with pytest.raises(ConfigError, match="Do not rename exported files"):
        fastload.pack(tmp_path / "out", tmp_path / "again")


def test_encoded_is_what_a_source_yields_for_images(
    photos: fastload.Dataset, tmp_path: Path
) -> None:
    from fastload._pack.sources.detect import open_source

    fastload.export(photos.path, tmp_path / "out", to="webdataset")
    source: Any = open_source(tmp_path / "out")
    loaded = source.load(next(iter(source.refs())))
    assert isinstance(loaded.values["image"], Encoded)
    assert loaded.source == "a/0.jpeg"


def test_a_full_row_is_refused_before_it_is_written(tmp_path: Path) -> None:
    samples = [
        {"image": encoded(jpeg(16, 16)), "text": "x" * (17 << 20)},
        {"image": encoded(jpeg(16, 16)), "text": "short"},
    ]
    pack_samples(tmp_path / "packed", (PHOTO, Field("text", "str")), samples)
    with pytest.raises(BadImage, match="Export to webdataset or parquet"):
        fastload.export(tmp_path / "packed", tmp_path / "out", to="files")
    fastload.export(tmp_path / "packed", tmp_path / "out", to="files", on_error="skip")
    assert len(packed_again(tmp_path / "out")) == 1
    fastload.export(tmp_path / "packed", tmp_path / "tars", to="webdataset")
    assert len(packed_again(tmp_path / "tars")) == 2
