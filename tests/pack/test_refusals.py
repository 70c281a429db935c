"""Refused packs: the message is clear, and the corrected command works."""

from __future__ import annotations

import fcntl
import io
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastload._pack.sources.base import Sample
from fastload._pack.sources.folder import FolderSource
from fastload._pack.state import PackState
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload.errors import BadImage, ConfigError, StoreError
from tests.packing import (
    IMAGE,
    LABEL,
    Listed,
    class_folders,
    file_of,
    image_sample,
    log_of,
    pack,
    pixels,
    samples,
    tree,
)

BROKEN = BadImage("broken", source="seven")


def one_bad(count: int = 20, at: int = 7) -> list[Any]:
    given: list[Any] = samples(count)
    given[at] = BROKEN
    return given


def test_finished_dataset_is_not_modified(tmp_path: Path) -> None:
    pack(samples(5), tmp_path / "packed")
    before = tree(tmp_path / "packed")
    with pytest.raises(
        ConfigError, match=r"already contains a finished dataset\. Remove it or choose another DEST"
    ):
        pack(samples(5), tmp_path / "packed")
    assert tree(tmp_path / "packed") == before
    pack(samples(5), tmp_path / "other")


@pytest.mark.parametrize("name", ["notes.txt", "shard-00000.lmdb", ".hidden"])
def test_folder_with_other_files_is_not_modified(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="is not empty and not an unfinished pack"):
        pack(samples(5), tmp_path)
    assert list(tree(tmp_path)) == [name]
    (tmp_path / name).unlink()
    pack(samples(5), tmp_path)


def test_dest_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file: expected an empty or new folder as DEST"):
        pack(samples(5), tmp_path / "file")
    with pytest.raises(StoreError, match="Not a directory"):
        pack(samples(5), tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"


STARTED: dict[str, Any] = {
    "encode": "jpeg",
    "quality": 80,
    "max_side": 64,
    "restart": 4,
    "order": "source",
    "seed": 1,
    "shard_size": 1 << 21,
    "block_size": 1 << 18,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"encode": "keep"},
        {"quality": 81},
        {"max_side": 65},
        {"max_side": 0, "resize": (20, 10)},
        {"restart": 0},
        {"order": "shuffle"},
        {"seed": 2},
        {"shard_size": 1 << 22},
        {"block_size": 1 << 17},
    ],
)
def test_resume_with_other_options_is_refused(tmp_path: Path, changed: dict[str, Any]) -> None:
    with pytest.raises(BadImage):
        pack(one_bad(), tmp_path / "packed", **STARTED)
    with pytest.raises(
        ConfigError, match="contains an unfinished pack with other options"
    ) as caught:
        pack(one_bad(), tmp_path / "packed", **{**STARTED, **changed})
    for name, value in changed.items():
        before, now = STARTED.get(name), list(value) if isinstance(value, tuple) else value
        assert f"{name} was {before!r}, now {now!r}" in str(caught.value)
    assert (
        pack(
            one_bad(), tmp_path / "packed", on_error="skip", jobs=3, max_bad=1, **STARTED
        ).n_samples
        == 19
    )


def test_resume_with_another_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage):
        pack(one_bad(), tmp_path / "packed", name="/data/a")
    with pytest.raises(ConfigError, match="name was '/data/a', now '/data/b'"):
        pack(one_bad(), tmp_path / "packed", name="/data/b")
    with pytest.raises(
        ConfigError,
        match=r": field 'more' was None, now 'list of int'\. Use.*to start over$",
    ):
        pack(
            Listed(one_bad(), (IMAGE, LABEL, Field("more", "int", list=True))),
            tmp_path / "packed",
            name="/data/a",
        )
    with pytest.raises(ConfigError, match="the order of the fields differs"):
        pack(Listed(one_bad(), (LABEL, IMAGE)), tmp_path / "packed", name="/data/a")
    assert pack(one_bad(), tmp_path / "packed", name="/data/a", on_error="skip").n_samples == 19


def test_empty_source_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the listed source has no samples"):
        pack(Listed([]), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
    (tmp_path / "images").mkdir()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConfigError, match="the folder is empty"):
        pack(FolderSource(tmp_path / "images"), tmp_path / "there", seed=1)
    assert list((tmp_path / "there").iterdir()) == []  # it was there before, so it stays
    assert pack(samples(3), tmp_path / "there", seed=2).n_samples == 3


def test_pack_fails_if_all_samples_are_bad(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"all 4 samples are bad. Last error: seven: broken"):
        pack([BROKEN] * 4, tmp_path / "packed", on_error="skip")
    assert not (tmp_path / "packed").exists()
    assert pack(samples(3), tmp_path / "packed").n_samples == 3


def test_first_bad_sample_stops_the_pack_and_is_named(tmp_path: Path) -> None:
    """After the file is fixed, the pack resumes with the samples packed before."""
    root = class_folders(tmp_path / "images", per_class=8)
    victim = root / "bee" / "0003.jpg"
    whole = victim.read_bytes()
    victim.write_bytes(whole[:300])
    with pytest.raises(
        BadImage, match="Fix or remove the file and rerun the same command, or pass --on-error skip"
    ) as caught:
        pack(root, tmp_path / "packed")
    assert caught.value.source == "bee/0003.jpg"
    victim.write_bytes(whole)
    assert pack(root, tmp_path / "packed").n_samples == 24


def test_skipped_samples_are_listed(tmp_path: Path) -> None:
    result = pack(one_bad(), tmp_path / "packed", on_error="skip")
    assert (result.n_samples, result.skipped) == (19, 1)
    assert log_of(tmp_path / "packed") == [{"event": "skipped", "source": "seven", "why": "broken"}]
    assert open_dataset(tmp_path / "packed").manifest.skipped == 1
    assert "Skipped 1 bad sample, listed in" in str(result)


def test_max_bad_stops_after_the_limit(tmp_path: Path) -> None:
    given: list[Any] = samples(30)
    for i in range(0, 30, 6):
        given[i] = BadImage("broken", source=f"bad {i}")
    with pytest.raises(BadImage, match=r"More than 3 samples are bad \(--max-bad\)"):
        pack(given, tmp_path / "packed", on_error="skip", max_bad=3)
    with pytest.raises(BadImage, match="More than 0 samples"):
        pack(given, tmp_path / "packed", on_error="skip", max_bad=0)
    assert not (tmp_path / "packed" / "manifest.json").exists()
    assert pack(given, tmp_path / "packed", on_error="skip", max_bad=5).skipped == 5


def test_max_bad_counts_over_all_runs(tmp_path: Path) -> None:
    """Bad samples in the shards of an earlier run count as well."""
    fields = (IMAGE, LABEL, Field("blob", "bytes"))
    given: list[Any] = samples(80, extra_bytes=30_000)
    given[3], given[70] = BadImage("broken", source="three"), BROKEN
    options: dict[str, Any] = {
        "order": "source",
        "shard_size": 1 << 20,
        "block_size": 1 << 20,
        "on_error": "skip",
    }
    with pytest.raises(BadImage, match=r"seven: .* More than 1 samples"):
        pack(Listed(given, fields), tmp_path / "packed", max_bad=1, **options)
    assert (tmp_path / "packed" / "shard-00000.lmdb").exists()
    with pytest.raises(BadImage, match=r"seven: .* More than 1 samples"):
        pack(Listed(given, fields), tmp_path / "packed", max_bad=1, **options)
    assert pack(Listed(given, fields), tmp_path / "packed", max_bad=2, **options).skipped == 2


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"image": pixels(8, 8), "lable": 1},
            r"unknown fields \['lable'\]: expected \['image', 'label', 'note', 'cams', 'blob'\]",
        ),
        ({"image": pixels(8, 8), "label": 3}, "field 'label': class 3, expected 0 to 2"),
        ({"image": pixels(8, 8), "label": "bee"}, "field 'label': expected int, found str 'bee'"),
        ({"image": pixels(8, 8), "label": 1.0}, "field 'label': expected int, found float"),
        ({"image": "a.jpg"}, "field 'image': expected an image, found str"),
        ({"image": pixels(8, 8).astype(np.float32)}, "array of float32: expected uint8"),
        ({"image": np.zeros((8, 8, 2), np.uint8)}, r"array of shape \(8, 8, 2\): expected"),
        ({"image": np.zeros((0, 8, 3), np.uint8)}, "array of shape"),
        (
            {"image": np.zeros((1, 20_000, 3), np.uint8)},
            "20000x1 pixels: sides may be at most 16384",
        ),
        ({"note": 5}, "field 'note': expected str, found int 5"),
        ({"note": "\ud800"}, "field 'note': .* expected valid Unicode"),
        ({"cams": pixels(8, 8)}, "field 'cams': expected a list, found ndarray"),
        ({"cams": [None]}, "field 'cams': expected an image, found NoneType"),
        (
            {"blob": bytes(65 << 20)},
            "its record has 681[0-9]{5} bytes, at most 67108864 are allowed",
        ),
        ({"cams": [pixels(1, 1)] * 1100}, "sample with 1101 parts: expected at most 1024"),
    ],
)
def test_value_that_does_not_fit_is_a_bad_sample(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    fields = (
        IMAGE,
        LABEL,
        Field("note", "str"),
        Field("cams", "image", list=True),
        Field("blob", "bytes"),
    )
    given: list[Any] = [Sample(values, source="odd one"), image_sample(pixels(9, 9), "good")]
    with pytest.raises(BadImage, match=why) as caught:
        pack(Listed(given[:1], fields), tmp_path / "one")
    assert caught.value.source == "odd one"
    result = pack(Listed(given, fields), tmp_path / "two", on_error="skip")
    assert (result.n_samples, result.skipped) == (1, 1)
    assert open_dataset(tmp_path / "two")[0]["image"].shape == (9, 9, 3)


@pytest.mark.parametrize(
    ("fields", "info", "why"),
    [
        (
            (IMAGE, Field("mask", "mask", image="depth")),
            {},
            "image='depth': expected the name of an image field",
        ),
        ((IMAGE, Field("image", "int")), {}, "occurs twice"),
        ((IMAGE, Field("label", "int", classes=("a" * 2000,))), {}, "at most 1024 characters"),
        ((IMAGE,), {"when": object()}, "info of source 'listed' is not JSON"),
        ((IMAGE,), {"f": float("nan")}, "info of source 'listed' is not JSON"),
        ((IMAGE,), {"a": [[[[[[[[[1]]]]]]]]]}, "nested"),
    ],
)
def test_source_that_cannot_be_published_is_refused_before_packing(
    tmp_path: Path, fields: tuple[Field, ...], info: Any, why: str
) -> None:
    class Untouched(Listed):
        def load(self, ref: Any) -> Sample:
            raise AssertionError("a sample was loaded")

    with pytest.raises(ConfigError, match=why):
        pack(Untouched([image_sample(pixels(8, 8))], fields, info=info), tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_second_pack_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """The second pack is refused while the first one runs, and does not disturb it."""
    refused: list[BaseException] = []

    def meanwhile(progress: Any) -> None:
        if progress.stage == "packing" and progress.done == 3:
            with pytest.raises(StoreError, match="another fastload pack is running here") as caught:
                pack(samples(20), tmp_path / "packed")
            refused.append(caught.value)

    assert pack(samples(20), tmp_path / "packed", on_progress=meanwhile).n_samples == 20
    assert len(refused) == 1
    pack(samples(20), tmp_path / "alone")
    assert tree(tmp_path / "packed") == tree(tmp_path / "alone")


def test_lock_file_removed_before_locking_does_not_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of the lock may end and remove the file between open and flock."""
    real = fcntl.flock
    calls: list[int] = []

    def flock(descriptor: int, how: int) -> None:
        if not calls:
            shutil.rmtree(tmp_path / ".pack")
        calls.append(how)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with PackState(tmp_path) as state:
        assert len(calls) == 2
        assert (state.folder / "lock").exists()
        with pytest.raises(StoreError, match="another fastload pack"), PackState(tmp_path):
            pass


def test_pillow_warnings_are_hidden_and_filters_are_restored(tmp_path: Path) -> None:
    """Filters are global: threads that set them would leave them changed or raise warnings."""
    odd = file_of(np.asarray(pixels(40, 40, gray=True)), "PNG", transparency=5)
    palette = [image_sample(_palette_with_alpha(i), f"{i}.png") for i in range(60)]
    before = list(warnings.filters)
    result = pack(
        Listed([image_sample(odd, "odd.png"), *palette], (IMAGE,)),
        tmp_path / "packed",
        jobs=8,
        on_error="skip",
    )
    assert list(warnings.filters) == before
    assert result.converted["P → RGB"] == 60
    with pytest.warns(UserWarning, match="heard"):
        warnings.warn("heard", UserWarning, stacklevel=1)


def _palette_with_alpha(seed: int) -> bytes:
    image = Image.fromarray(pixels(30, 30, seed=seed, gray=True), "P")
    image.putpalette(list(range(256)) * 3)
    out = io.BytesIO()
    image.save(out, "PNG", transparency=bytes(range(256)))
    return out.getvalue()
