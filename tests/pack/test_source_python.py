"""Iterables of dicts and map-style datasets become samples."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload._pack.sources.base import Encoded, is_stream
from fastload._pack.sources.detect import open_source
from fastload._pack.sources.objects import checked, infer_field
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError
from tests.source_contract import image_bytes, outcome, put_image, samples_of

JPG = image_bytes(1)
RGB = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)


class Pairs:
    """A map-style dataset as in torchvision: (PIL image, label) and class names."""

    classes = ("cat", "dog")

    def __init__(self, n: int = 3, broken: int = -1) -> None:
        self.n, self.broken = n, broken

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        if index == self.broken:
            raise OSError("image file is truncated")
        return Image.fromarray(RGB), index % 2


def test_map_style_dataset_is_read() -> None:
    source = open_source(Pairs())
    assert not is_stream(source)
    assert source.fields == (Field("image", "image"), Field("label", "int", classes=("cat", "dog")))
    found = samples_of(source)
    assert [sample.values["label"] for sample in found] == [0, 1, 0]
    assert [sample.source for sample in found] == ["item 0", "item 1", "item 2"]
    np.testing.assert_array_equal(np.asarray(found[0].values["image"]), RGB)


def test_exception_of_a_dataset_is_a_bad_sample() -> None:
    good, bad = outcome(open_source(Pairs(broken=1)))
    assert len(good) == 2
    assert bad == ["item 1: the dataset raised OSError: image file is truncated"]
    with pytest.raises(BadImage, match="item 0: the dataset raised OSError"):
        open_source(Pairs(broken=0))
    assert (
        len(outcome(open_source(Pairs(broken=0), fields={"image": "image", "label": "int"}))[0])
        == 2
    )


def test_dicts_with_every_kind_are_read() -> None:
    item = {
        "image": JPG,
        "views": [RGB, RGB],
        "seg_mask": np.ones((4, 4), dtype=np.int32),
        "boxes": np.zeros((2, 4)),
        "keypoints": np.zeros((3, 2)),
        "intrinsic": np.eye(3),
        "feature": np.zeros((2, 3, 4), dtype=np.float16),
        "n": np.int32(5),
        "flag": np.True_,
        "x": np.float32(0.5),
        "text": "ça",
        "meta": {"a": [1, None]},
        "raw": b"\0\1",
        "source": "mine/1",
    }
    source = open_source([item])
    assert {field.name: field.kind.name for field in source.fields} == {
        "image": "image",
        "views": "image",
        "seg_mask": "mask",
        "boxes": "boxes",
        "keypoints": "points",
        "intrinsic": "matrix",
        "feature": "array",
        "n": "int",
        "flag": "int",
        "x": "float",
        "text": "str",
        "meta": "json",
        "raw": "bytes",
    }
    (sample,) = samples_of(source)
    assert sample.source == "mine/1"
    assert sample.values["image"] == Encoded(JPG, "item 0")
    assert sample.values["feature"].dtype == np.float16
    assert (
        sample.values["n"],
        sample.values["flag"],
        sample.values["x"],
        sample.values["raw"],
    ) == (5, 1, 0.5, b"\0\1")


def test_a_generator_is_a_stream_and_bad_items_do_not_end_it() -> None:
    def items() -> Iterator[dict[str, object]]:
        yield {"image": JPG, "n": 1}
        yield {"image": JPG, "n": "two"}
        yield {"image": JPG, "n": 3, "late": 1}
        yield {"image": JPG}
        yield {"image": None, "n": 5}

    source = open_source(items())
    assert is_stream(source)
    assert source.n_samples is None
    good, bad = outcome(source)
    assert [sample.values.get("n") for sample in good] == [1, None, 5]
    assert bad == [
        "item 1: field 'n': expected int, found str 'two'",
        "item 2: has 'late', which the first item does not have. Pass all fields (fields={name: kind}), or remove these from the samples",
    ]
    with pytest.raises(ConfigError, match="an iterator can be read only once"):
        list(source)


def test_iterable_can_be_read_again() -> None:
    class Twice:
        def __iter__(self) -> Iterator[dict[str, int]]:
            return iter([{"n": 1}, {"n": 2}])

    source = open_source(Twice())
    assert is_stream(source)
    assert len(samples_of(source)) == len(samples_of(source)) == 2


def test_fields_can_be_given() -> None:
    source = open_source(
        [(RGB, [[0, 0, 1, 1]], [RGB])],
        fields={"image": "image", "where": "boxes", "more": "list of image"},
    )
    assert source.fields == (
        Field("image", "image"),
        Field("where", "boxes"),
        Field("more", "image", list=True),
    )
    (sample,) = samples_of(source)
    assert sample.values["where"].dtype == np.float32
    given = (Field("image", "image"), Field("label", "int", classes=("a", "b")))
    assert open_source([(RGB, 1)], fields=list(given)).fields == given
    pair = namedtuple("pair", "image depth")
    assert samples_of(open_source([pair(RGB, np.zeros(3))]))[0].values["depth"].shape == (3,)
    assert set(samples_of(open_source([RGB]))[0].values) == {"image"}
    with pytest.raises(ConfigError, match="a tuple of 3 values for the fields image, label"):
        open_source([(RGB, 1, 2)])
    with pytest.raises(ConfigError, match="without duplicates"):
        open_source([(RGB, 1)], fields=[Field("a", "int"), Field("a", "int")])


def test_torch_tensors_are_read() -> None:
    torch = pytest.importorskip("torch", reason="not run: no torch")

    class Tensors(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> tuple[object, object]:
            return torch.from_numpy(RGB).permute(2, 0, 1).contiguous(), torch.tensor(index)

    found = samples_of(open_source(Tensors()))
    np.testing.assert_array_equal(found[1].values["image"], RGB)  # color first becomes color last
    assert found[1].values["label"] == 1

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 1

        def __iter__(self) -> Iterator[object]:
            return iter([{"image": RGB}])

    assert is_stream(open_source(Stream()))
    with pytest.raises(BadImage, match="cannot be converted to NumPy"):
        checked(torch.zeros(2, dtype=torch.bfloat16), Field("x", "array"), "item 0")
    _, bad = outcome(open_source([{"image": torch.zeros(3, 8, 8)}]))
    assert "found float32 (8, 8, 3)" in bad[0]
    assert "without ToTensor and Normalize" in bad[0]
    feature = torch.zeros((4, 9, 9), dtype=torch.uint8)
    assert np.shape(checked(feature, Field("feature", "array"), "item 0")) == (4, 9, 9)  # type: ignore[arg-type]   # only images are transposed


@pytest.mark.parametrize(
    "value", [np.array(3, np.int32), np.float16(2.5), np.array(True), np.ones((2, 3), np.int16).T]
)
def test_array_of_one_number_keeps_dtype_and_shape(value: Any) -> None:
    expected = np.asarray(value)
    for field, given in ((Field("x", "array"), value), (Field("x", "array", list=True), [value])):
        found: Any = checked(given, field, "item 0")
        found = found[0] if field.list else found
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(found, expected)
    assert checked(np.array(3, np.int32), Field("x", "int"), "item 0") == 3


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (
            np.zeros((4, 4, 3), dtype=np.float32),
            "image",
            "expected uint8 or uint16 pixels, found float32 (4, 4, 3). Images are packed before augmentation",
        ),
        (
            np.zeros((4, 4, 5), dtype=np.uint8),
            "image",
            "expected uint8 or uint16 (H, W) or (H, W, 1|3), found uint8 (4, 4, 5)",
        ),
        (np.zeros((4, 4, 4), dtype=np.uint8), "image", "(H, W, 1|3), found uint8 (4, 4, 4)"),
        (np.zeros((4, 4), dtype=np.int32), "image", "found int32"),
        (np.zeros((0, 4), dtype=np.uint8), "image", "found uint8 (0, 4)"),
        ("a.jpg", "image", "expected an image, found str"),
        (np.zeros((4, 4)), "mask", "expected integers (H, W)"),
        ([[1, 2, 3]], "boxes", "expected n x 4"),
        ([[1, 2, 3, 4]], "points", "expected n x 2"),
        ([1, 2], "matrix", "expected n x n"),
        ([[1], [2, 3]], "array", "expected numbers in at most 8"),
        (["a"], "array", "expected numbers"),
        (1.5, "int", "expected int, found float 1.5"),
        (2**70, "int", "expected int"),
        ("1", "float", "expected float"),
        (1, "str", "expected str"),
        ("\ud800", "str", "cannot be stored as str"),
        ({"a": float("nan")}, "json", "cannot be stored as json"),
        ({"a": {1, 2}}, "json", "cannot be stored as json"),
        ("x", "bytes", "expected bytes"),
    ],
)
def test_values_that_do_not_fit_are_reported(value: object, kind: str, message: str) -> None:
    with pytest.raises(BadImage) as caught:
        checked(value, Field("f", kind), "item 3")
    assert str(caught.value).startswith("item 3: field 'f': ")
    assert message in str(caught.value)


def test_image_may_be_a_path(tmp_path: Path) -> None:
    data = put_image(tmp_path / "x.jpg")
    good, bad = outcome(open_source([{"image": tmp_path / "x.jpg"}, {"image": tmp_path / "y.jpg"}]))
    assert good[0].values["image"].data == data
    assert "no such file" in bad[0]


def test_fields_are_inferred_from_the_first_item() -> None:
    assert (
        infer_field("a", np.zeros((5, 4), dtype=np.uint8)).kind.name == "array"
    )  # not an image: nothing says so
    assert infer_field("image", np.zeros((5, 4), dtype=np.uint8)).kind.name == "image"
    assert (
        infer_field("image", np.zeros((3, 5, 5), dtype=np.float32)).kind.name == "image"
    )  # refused later, with the hint
    assert infer_field("boxes", np.zeros((5, 3))).kind.name == "array"
    assert infer_field("masks", [np.zeros((4, 4), dtype=np.uint8)]) == Field(
        "masks", "mask", list=True
    )
    assert infer_field("x", b"BM not").kind.name == "image"
    with pytest.raises(ConfigError, match="unsupported type complex"):
        infer_field("x", 1j)
    with pytest.raises(ConfigError, match="expected an array of numbers, found <U1"):
        infer_field("x", np.array(["a"]))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        (
            "intrinsics",
            np.zeros((6, 3, 3), np.float32),
            Field("intrinsics", "matrix", list=True),
        ),  # else no crop would move them
        (
            "intrinsics",
            np.eye(3)[None].repeat(2, 0).tolist(),
            Field("intrinsics", "matrix", list=True),
        ),
        ("intrinsics", np.zeros((6, 4, 4), np.float32), Field("intrinsics", "array")),
        ("rotations", np.zeros((6, 3, 3), np.float32), Field("rotations", "array")),
        ("images", np.zeros((6, 4, 5, 3), np.uint8), Field("images", "image", list=True)),
        (
            "bev_mask",
            np.zeros((3, 4, 5), np.uint8),
            Field("bev_mask", "array"),
        ),  # classes of one grid: no camera moves them
        ("keypoints", [(1.5, 2.0), (3, 4)], Field("keypoints", "points")),
        ("boxes", [[1, 2, 3, 4]], Field("boxes", "boxes")),
        ("boxes", [], Field("boxes", "boxes")),
        ("boxes", np.array([]), Field("boxes", "boxes")),  # an empty list as a NumPy array
        ("scores", np.array([]), Field("scores", "array")),
        ("boxes", [np.zeros((2, 4)), np.zeros((0, 4))], Field("boxes", "boxes", list=True)),
        ("points", [[1, 2, 3, 4, 5]], Field("points", "json")),
        ("points", [[1, 2], [3]], Field("points", "json")),
        ("names", ["a.jpg"], Field("names", "json")),
    ],
)
def test_names_and_shapes_determine_geometric_kinds(
    name: str, value: object, expected: Field
) -> None:
    assert infer_field(name, value) == expected


def _labels(mode: str) -> Image.Image:
    labels = Image.fromarray((np.arange(64).reshape(8, 8) % 5).astype(np.uint8))
    return (
        labels
        if mode == "L"
        else labels.point(lambda number: 255 * (number > 2)).convert("1")
        if mode == "1"
        else _paletted(labels)
    )


def _paletted(labels: Image.Image) -> Image.Image:
    labels = labels.copy()
    labels.putpalette([200, 0, 0, 0, 200, 0, 0, 0, 200, 9, 9, 9, 7, 7, 7])
    return labels


@pytest.mark.parametrize("mode", ["P", "L", "1"])
@pytest.mark.parametrize("form", ["image", "path", "bytes", "list"])
def test_image_named_mask_keeps_its_class_numbers(tmp_path: Path, mode: str, form: str) -> None:
    labels = _labels(mode)
    labels.save(tmp_path / "m.png")
    value = {
        "image": labels,
        "path": tmp_path / "m.png",
        "bytes": (tmp_path / "m.png").read_bytes(),
        "list": [labels, labels],
    }[form]
    fastload.pack([{"image": RGB, "road_mask": value}], tmp_path / "packed")
    packed = fastload.open(tmp_path / "packed")
    assert packed.manifest.fields[1] == Field("road_mask", "mask", list=form == "list")
    found = packed[0]["road_mask"]
    np.testing.assert_array_equal(found[1] if form == "list" else found, np.asarray(labels))


def test_color_or_jpeg_mask_is_an_image_and_image_label_is_refused(
    tmp_path: Path,
) -> None:
    assert infer_field("mask", Image.fromarray(RGB)) == Field("mask", "image")
    assert infer_field("mask", JPG) == Field("mask", "image")
    assert infer_field("mask", tmp_path / "is not there.png") == Field("mask", "image")
    with pytest.raises(
        ConfigError,
        match=r"field 'label' is an image\. Pass fields=\{'image': 'image', 'label': 'mask'\}",
    ):
        open_source([(Image.fromarray(RGB), _labels("P"))])
    (sample,) = samples_of(
        open_source(
            [(Image.fromarray(RGB), _labels("P"))], fields={"image": "image", "label": "mask"}
        )
    )
    np.testing.assert_array_equal(sample.values["label"], np.asarray(_labels("P")))


LINE = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize(
    ("name", "first", "later", "expected"),
    [
        ("lane_points", [], [LINE, LINE], Field("lane_points", "points", list=True)),
        ("lane_points", [], [(1.5, 2.0), (3, 4)], Field("lane_points", "points")),
        ("lane_points", [], [[(1, 2)], [(3, 4), (5, 6)]], Field("lane_points", "json")),
        ("masks", (), [np.zeros((4, 4), np.uint8)], Field("masks", "mask", list=True)),
        ("images", [], [RGB, RGB], Field("images", "image", list=True)),
        ("boxes", np.array([]), np.zeros((2, 4)), Field("boxes", "boxes")),
        ("intrinsics", np.array([]), np.zeros((2, 3, 3)), Field("intrinsics", "matrix", list=True)),
    ],
)
@pytest.mark.parametrize("kind", ["dataset", "iterable", "iterator"])
def test_empty_list_in_first_item_is_inferred_from_a_later_item(
    name: str, first: object, later: object, expected: Field, kind: str
) -> None:
    items = [
        {"number": 0, name: first},
        {"number": 1, name: None},
        {"number": 2, name: first},
        {"number": 3, name: later},
        {"number": 4, name: first},
    ]
    source = open_source(
        {"dataset": items, "iterable": dict(enumerate(items)).values(), "iterator": iter(items)}[
            kind
        ]
    )
    assert source.fields == (Field("number", "int"), expected)
    good, bad = outcome(source)
    assert [sample.values["number"] for sample in good] == [0, 1, 2, 3, 4]
    assert bad == []
    assert len(good[3].values[name]) == len(later)  # type: ignore[arg-type]


def test_inference_reads_as_few_items_as_needed() -> None:
    drawn: list[int] = []

    def items(empty: int) -> Iterator[dict[str, object]]:
        for number in range(100):
            drawn.append(number)
            yield {"lane_points": [] if number < empty else [LINE]}

    open_source(items(0))
    assert drawn == [0]
    source = open_source(items(5))
    assert drawn == [0, 0, 1, 2, 3, 4, 5]
    assert len(samples_of(source)) == 100


def test_wrong_kind_inferred_from_empty_lists_is_explained() -> None:
    items = [{"lane_points": [], "number": number} for number in range(70)] + [
        {"lane_points": [LINE, LINE], "number": 70}
    ]
    good, bad = outcome(open_source(items))
    assert len(good) == 70
    assert bad == [
        "item 70: field 'lane_points': expected n x 2 numbers, found 2 x 4 x 2. The field was empty in the first items and inferred as points: "
        "pass all kinds, e.g. fields={'lane_points': 'list of points', ...}"
    ]
    assert (
        len(
            samples_of(
                open_source(items, fields={"lane_points": "list of points", "number": "int"})
            )
        )
        == 71
    )


def test_unreadable_item_does_not_end_inference() -> None:
    class Broken(Pairs):
        def __getitem__(self, index: int) -> dict[str, object]:  # type: ignore[override]
            super().__getitem__(index)
            return {"lane_points": [LINE] if index == 2 else []}

    source = open_source(Broken(broken=1))
    assert source.fields == (Field("lane_points", "points", list=True),)
    assert outcome(source)[1] == ["item 1: the dataset raised OSError: image file is truncated"]


def test_camera_tensor_has_channels_first() -> None:
    torch = pytest.importorskip("torch")
    cameras = torch.arange(2 * 3 * 4 * 5, dtype=torch.uint8).reshape(2, 3, 4, 5)
    field = infer_field("images", cameras)
    assert field == Field("images", "image", list=True)
    made: object = checked(cameras, field, "item 0")
    assert isinstance(made, list)
    assert [each.tolist() for each in made] == cameras.permute(0, 2, 3, 1).tolist()


def test_ambiguous_samples_are_refused_immediately() -> None:
    with pytest.raises(
        ConfigError, match=r"the text 'a/b.jpg' names an image\. Pass pathlib\.Path"
    ):
        open_source([{"image": "a/b.jpg"}])
    assert open_source([{"image": "a/b.jpg"}], fields={"image": "str"}).fields == (
        Field("image", "str"),
    )
    with pytest.raises(
        ConfigError,
        match=r"a dict of images or arrays has no kind\. Use one field per entry \(cams_left, cams_right\)",
    ):
        open_source([{"cams": {"left": RGB, "right": RGB}}])
    batches = type("DataLoader", (list,), {"__module__": "torch.utils.data.dataloader"})(
        [{"image": RGB}]
    )
    with pytest.raises(
        ConfigError, match=r"it yields augmented batches.*fastload.pack\(loader.dataset"
    ):
        open_source(batches)


@pytest.mark.parametrize("fields", [["image", "label"], {"image": "image", "label": int}])
def test_invalid_fields_error_shows_the_expected_form(fields: object) -> None:
    with pytest.raises(
        ConfigError, match=r"expected names and kinds, e.g. \{'image': 'image', 'label': 'int'\}"
    ):
        open_source([(RGB, 1)], fields=fields)
    _, bad = outcome(open_source([{"image": RGB, "label": 1}], fields={"image": "image"}))
    assert bad == [
        "item 0: has 'label', which fields= (image) does not have. Pass all fields (fields={name: kind}), or remove these from the samples"
    ]


def test_text_in_an_image_field_suggests_a_path() -> None:
    _, bad = outcome(open_source([{"image": "a.jpg"}], fields={"image": "image"}))
    assert bad == [
        "item 0: field 'image': expected an image, found str 'a.jpg'. Pass pathlib.Path(...) for a file"
    ]


@pytest.mark.parametrize("items", [5, {"a": 1}, None])
def test_unsupported_objects_are_refused(items: object) -> None:
    with pytest.raises(ConfigError, match="cannot pack a"):
        open_source(items)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no samples"):
        open_source([])
    with pytest.raises(ConfigError, match="no samples"):
        open_source(iter([]))
    with pytest.raises(ConfigError, match="unknown option split"):
        open_source([1], split="train")


class _Described:
    """A dataset with the attributes that name the classes in some library."""

    def __init__(self, item: object, **attributes: object) -> None:
        self.item = item
        vars(self).update(attributes)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> object:
        return self.item


class _ClassLabel:
    names = ("cat", "dog")


def test_class_names_of_dataset_objects_survive() -> None:
    image = Image.new("RGB", (4, 4))
    torchvision_like = _Described((image, 1), classes=["cat", "dog"])
    hf_like = _Described(
        {"image": image, "kind": 1, "n": 3},
        features={"image": object(), "kind": _ClassLabel(), "n": object()},
    )
    expected = Field("label", "int", classes=("cat", "dog"))
    assert open_source(torchvision_like).fields[1] == expected
    subset = _Described((image, 1), dataset=_Described((image, 1), dataset=torchvision_like))
    assert open_source(subset).fields[1] == expected
    given = open_source(torchvision_like, fields={"image": "image", "label": "int"})
    assert given.fields[1] == expected
    assert open_source(hf_like).fields[1:] == (
        Field("kind", "int", classes=("cat", "dog")),
        Field("n", "int"),
    )


def test_class_names_of_a_hugging_face_object_reach_the_packed_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [Image.new("RGB", (4, 4))] * 2, "label": [1, 0]}
    fastload.pack(datasets.Dataset.from_dict(rows, features=features), tmp_path / "packed")
    assert (
        Field("label", "int", classes=("cat", "dog")) in fastload.open(tmp_path / "packed").fields
    )


def test_a_pil_image_above_the_size_limit_is_not_decoded(tmp_path: Path) -> None:
    Image.new("1", (9000, 9000)).save(tmp_path / "big.png")  # 81 megapixels in 11 KB
    with Image.open(tmp_path / "big.png") as image:
        with pytest.raises(BadImage, match=r"9000x9000 pixels: at most 64 megapixels"):
            checked(image, Field("image", "image"), "item 0")
        assert image.fp is not None  # load() would have closed the file
    small = Image.new("1", (9, 9))
    assert checked(small, Field("image", "image"), "item 1") is small
