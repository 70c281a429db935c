"""Hugging Face datasets on disk and Parquet files become samples."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastload._pack.sources.base import Encoded, is_stream
from fastload._pack.sources.hf import HuggingFaceSource
from fastload._store.fields import Field
from fastload.errors import ConfigError
from tests.source_contract import image_bytes, outcome, put_image, samples_of

pa = pytest.importorskip("pyarrow", reason="not run: no pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="not run: no pyarrow")

IMAGES = [image_bytes(seed) for seed in range(5)]
IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    "tags": {"feature": {"names": ["a", "b", "c"], "_type": "ClassLabel"}, "_type": "List"},
}


def _table(n: int = 5, **more: object) -> Any:
    columns = {
        "image": pa.array([{"bytes": IMAGES[i % 5], "path": f"{i}.jpg"} for i in range(n)], IMAGE),
        "label": pa.array([i % 2 for i in range(n)], pa.int64()),
        "tags": pa.array([[0, 2][: i % 3] for i in range(n)], pa.list_(pa.int64())),
        "score": pa.array([i / 2 for i in range(n)], pa.float32()),
        "text": pa.array([None if i == 1 else f"t{i}" for i in range(n)]),
        "objects": pa.array([{"bbox": [[1.0, 2, 3, 4]] * i, "names": ["x"]} for i in range(n)]),
        **more,
    }
    return pa.table(columns).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": FEATURES}})}
    )


def _arrow(path: Path, table: Any, *, stream: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def _saved(folder: Path, table: Any, *, files: int = 1) -> Path:
    names = [f"data-{i:05d}-of-{files:05d}.arrow" for i in range(files)]
    for i, name in enumerate(names):
        _arrow(folder / name, table.slice(i * len(table) // files, len(table) // files))
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )
    (folder / "dataset_info.json").write_text("{}")
    return folder


def _check(source: HuggingFaceSource) -> None:
    assert is_stream(source)
    kinds = {
        field.name: (field.kind.name, field.classes)
        for field in source.fields
        if field.name != "split"
    }
    assert kinds == {
        "image": ("image", ()),
        "label": ("int", ("cat", "dog")),
        "tags": ("array", ()),
        "score": ("float", ()),
        "text": ("str", ()),
        "objects": ("json", ()),
    }
    assert source.info == {"classes": {"tags": ["a", "b", "c"]}}
    found = samples_of(source)
    assert [sample.values["image"] for sample in found] == [
        Encoded(IMAGES[i], f"{i}.jpg") for i in range(5)
    ]
    assert [sample.values["label"] for sample in found] == [0, 1, 0, 1, 0]
    assert [sample.values["text"] for sample in found] == ["t0", None, "t2", "t3", "t4"]
    np.testing.assert_array_equal(found[2].values["tags"], [0, 2])
    assert found[0].values["tags"].shape == (0,)
    assert found[1].values["objects"] == {"bbox": [[1.0, 2.0, 3.0, 4.0]], "names": ["x"]}
    assert found[3].values["score"] == 1.5
    assert [sample.source for sample in samples_of(source)] == [
        sample.source for sample in found
    ]  # it can be read again


def test_parquet_files_are_read(tmp_path: Path) -> None:
    pq.write_table(_table(), tmp_path / "x.parquet", row_group_size=2)
    source = HuggingFaceSource(tmp_path / "x.parquet")
    assert source.n_samples == 5
    _check(source)
    assert samples_of(source)[4].source == "x.parquet!4 (4.jpg)"


def test_parquet_folders_have_splits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name, n in (
        ("train-00000-of-00002", 2),
        ("train-00001-of-00002", 3),
        ("test-00000-of-00001", 1),
    ):
        pq.write_table(_table(n), tmp_path / "data" / f"{name}.parquet")
    source = HuggingFaceSource(tmp_path)
    assert source.n_samples == 6
    assert source.fields[-1] == Field("split", "int", classes=("test", "train"))
    assert [sample.values["split"] for sample in samples_of(source)] == [0, 1, 1, 1, 1, 1]
    assert len(samples_of(HuggingFaceSource(tmp_path, split="train"))) == 5
    with pytest.raises(ConfigError, match="expected split 'dev', found test, train"):
        HuggingFaceSource(tmp_path, split="dev")


@pytest.mark.parametrize("stream", [True, False], ids=["stream form", "file form"])
def test_arrow_files_are_read(tmp_path: Path, stream: bool) -> None:
    _arrow(tmp_path / "x.arrow", _table(), stream=stream)
    _check(HuggingFaceSource(tmp_path / "x.arrow"))


def test_saved_datasets_are_read(tmp_path: Path) -> None:
    _check(HuggingFaceSource(_saved(tmp_path / "one", _table())))
    table = _table(4)
    for split in ("train", "test"):
        _saved(tmp_path / "dict" / split, table, files=2)
    (tmp_path / "dict" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source = HuggingFaceSource(tmp_path / "dict")
    assert source.fields[-1].classes == ("train", "test")
    assert [sample.values["split"] for sample in samples_of(source)] == [0] * 4 + [1] * 4
    assert len(samples_of(HuggingFaceSource(tmp_path / "dict", split="test"))) == 4


def test_files_written_by_datasets_are_read(tmp_path: Path) -> None:
    script = """
import sys
import numpy as np
from PIL import Image
from datasets import Array2D, ClassLabel, Dataset, DatasetDict, Features, Image as ImageFeature, List, Value
pixels = [np.full((8, 8, 3), 20 * i, dtype=np.uint8) for i in range(6)]
features = Features({"image": ImageFeature(), "label": ClassLabel(names=["cat", "dog"]), "views": List(ImageFeature()),
                     "grid": Array2D((2, 3), "float32"), "tags": List(ClassLabel(names=["a", "b"])),
                     "n": Value("int32")})
views = [[Image.fromarray(pixels[0])] * 2] * 6
rows = {"image": [Image.fromarray(p) for p in pixels], "label": [0, 1] * 3, "views": views,
        "grid": [np.ones((2, 3), dtype=np.float32) * i for i in range(6)], "tags": [[0, 1]] * 6, "n": list(range(6))}
made = Dataset.from_dict(rows, features=features)
DatasetDict({"train": made, "test": made.select([3, 1])}).save_to_disk(sys.argv[1] + "/disk")
made.to_parquet(sys.argv[1] + "/x.parquet")
"""
    pytest.importorskip("datasets", reason="not run: no datasets")
    environment = {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        "PATH": "/usr/bin:/bin",
    }
    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=True, env=environment, timeout=600
    )
    for path in (tmp_path / "disk", tmp_path / "x.parquet"):
        source = HuggingFaceSource(path, split="train" if path.is_dir() else "")
        assert {
            field.name: field.kind.name for field in source.fields if field.name != "split"
        } == {
            "image": "image",
            "views": "image",
            "label": "int",
            "grid": "array",
            "tags": "array",
            "n": "int",
        }
        assert next(field for field in source.fields if field.name == "label").classes == (
            "cat",
            "dog",
        )
        assert source.info == {"classes": {"tags": ["a", "b"]}}
        found = samples_of(source)
        assert len(found) == 6
        assert found[2].values["image"].data.startswith(b"\x89PNG")
        assert len(found[2].values["views"]) == 2
        np.testing.assert_array_equal(found[2].values["grid"], np.full((2, 3), 2.0))
    assert [
        sample.values["n"]
        for sample in samples_of(HuggingFaceSource(tmp_path / "disk", split="test"))
    ] == [3, 1]


def test_image_cells_with_only_a_path_or_nothing(tmp_path: Path) -> None:
    put_image(tmp_path / "img" / "a.jpg")
    cells = [
        {"bytes": None, "path": "img/a.jpg"},
        {"bytes": None, "path": "../a.jpg"},
        {"bytes": None, "path": None},
        None,
        {"bytes": IMAGES[0], "path": None},
    ]
    pq.write_table(pa.table({"image": pa.array(cells, IMAGE)}), tmp_path / "x.parquet")
    good, bad = outcome(HuggingFaceSource(tmp_path / "x.parquet"))
    assert [sample.values["image"] and sample.values["image"].name for sample in good] == [
        "img/a.jpg",
        None,
        "x.parquet!4",
    ]
    assert bad == [bad[0], "x.parquet!2: image with neither bytes nor path"]
    assert "no such file" in bad[0] or "leads outside the root" in bad[0]


def test_image_bytes_are_detected(tmp_path: Path) -> None:
    table = pa.table(
        {
            "jpg": pa.array(IMAGES[:2], pa.binary()),
            "raw": pa.array([b"a", b"b"], pa.large_binary()),
            "ID": ["p", "q"],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    source = HuggingFaceSource(tmp_path / "x.parquet")
    assert {field.name: field.kind.name for field in source.fields} == {
        "jpg": "image",
        "raw": "bytes",
        "id_": "str",
    }
    assert samples_of(source)[1].values["raw"] == b"b"


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    import datetime

    pq.write_table(
        _table(
            2,
            span=pa.array([datetime.timedelta(1)] * 2),
            day=pa.array([datetime.date(2020, 1, 2)] * 2),
        ),
        tmp_path / "x.parquet",
    )
    with pytest.raises(
        ConfigError,
        match=r"column 'span' has the unsupported type duration.*Select the other columns",
    ):
        HuggingFaceSource(tmp_path / "x.parquet")
    source = HuggingFaceSource(tmp_path / "x.parquet", columns=["label", "day", "image"])
    assert [field.name for field in source.fields] == ["image", "label", "day"]
    assert samples_of(source)[0].values["day"] == "2020-01-02"
    with pytest.raises(ConfigError, match=r"no column 'x'\. Found image, label"):
        HuggingFaceSource(tmp_path / "x.parquet", columns=["x"])


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(ConfigError, match=r"x\.parquet: not a readable Arrow or Parquet file"):
        HuggingFaceSource(tmp_path / "x.parquet")
    _arrow(tmp_path / "y.arrow", _table())
    data = (tmp_path / "y.arrow").read_bytes()
    (tmp_path / "y.arrow").write_bytes(data[:-2000])
    with pytest.raises(ConfigError, match=r"y\.arrow: not a readable Arrow or Parquet file"):
        list(HuggingFaceSource(tmp_path / "y.arrow"))
    folder = _saved(tmp_path / "d", _table())
    (folder / "state.json").write_text('{"_data_files": []}')
    with pytest.raises(ConfigError, match="expected '_data_files' with file names"):
        HuggingFaceSource(folder)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../../etc/passwd"}]}')
    with pytest.raises(ConfigError, match=r"leads outside the root|no such file"):
        HuggingFaceSource(folder)


def test_missing_pyarrow_error_has_the_install_command(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    script = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from fastload._pack.sources.detect import open_source\n"
        "from fastload.errors import MissingPart\n"
        "try: open_source(sys.argv[1])\n"
        "except MissingPart as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.parquet")],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (
        done.stdout == "Hugging Face datasets and Parquet files need pyarrow: pip install pyarrow\n"
    )


def test_unreadable_file_after_the_first_is_refused(tmp_path: Path) -> None:
    pq.write_table(_table(), tmp_path / "a.parquet")
    (tmp_path / "b.parquet").write_bytes(b"not a Parquet file")
    with pytest.raises(ConfigError, match=r"b\.parquet: not a readable Arrow or Parquet file"):
        HuggingFaceSource(tmp_path)
    (tmp_path / "b.parquet").unlink()
    assert len(samples_of(HuggingFaceSource(tmp_path))) == 5


@pytest.mark.parametrize("stream", [True, False])
def test_a_wrong_offset_in_an_arrow_file_is_refused(tmp_path: Path, stream: bool) -> None:
    """pyarrow reads memory outside the file, and the process ends."""
    offsets = np.array([0, len(IMAGES[0]), 2 * len(IMAGES[0])], "<i4").tobytes()
    table = pa.table({"image": pa.array([IMAGES[0], IMAGES[0]])})
    _arrow(tmp_path / "x.arrow", table, stream=stream)
    good = (tmp_path / "x.arrow").read_bytes()
    assert good.count(offsets) == 1
    wrong = np.array([0, 1 << 30, 1 << 30], "<i4").tobytes()
    (tmp_path / "x.arrow").write_bytes(good.replace(offsets, wrong))
    with pytest.raises(ConfigError, match=r"x\.arrow: not a readable Arrow or Parquet file"):
        list(HuggingFaceSource(tmp_path / "x.arrow"))
    (tmp_path / "x.arrow").write_bytes(good)
    assert len(samples_of(HuggingFaceSource(tmp_path / "x.arrow"))) == 2


@pytest.mark.parametrize("split", ["../outside", "\0", "a" * 5000])
def test_names_of_splits_lead_to_no_other_folder(tmp_path: Path, split: str) -> None:
    _saved(tmp_path / "outside", _table())
    root = tmp_path / "inside"
    _saved(root / "train", _table())
    listed = root / "dataset_dict.json"
    listed.write_text(json.dumps({"splits": [split]}))
    with pytest.raises(ConfigError, match=r"state\.json"):
        HuggingFaceSource(root)
    listed.write_text('{"splits": ["train"]}')
    assert len(samples_of(HuggingFaceSource(root))) == 5


def test_a_column_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    _arrow(tmp_path / "x.arrow", pa.table({"image": pa.array(IMAGES[:1]), "label_xyz": [1]}))
    good = (tmp_path / "x.arrow").read_bytes()
    (tmp_path / "x.arrow").write_bytes(good.replace(b"label_xyz", b"label_\xff\xff\xff"))
    with pytest.raises(ConfigError, match=r"x\.arrow: not a readable Arrow or Parquet file"):
        HuggingFaceSource(tmp_path / "x.arrow")
    (tmp_path / "x.arrow").write_bytes(good)
    assert len(samples_of(HuggingFaceSource(tmp_path / "x.arrow"))) == 1


def test_a_date_that_python_does_not_have_is_a_bad_sample(tmp_path: Path) -> None:
    days = pa.array([1, 1 << 30], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"image": pa.array(IMAGES[:2]), "day": days}), tmp_path / "x.parquet")
    good, bad = outcome(HuggingFaceSource(tmp_path / "x.parquet"))
    assert [sample.values["day"] for sample in good] == ["1970-01-02"]
    assert len(bad) == 1
    assert "x.parquet!1: column 'day': " in bad[0]
