"""The figures of `fastload inspect`, compared with the source of the dataset."""

from __future__ import annotations

import io
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fastload._common.native import core
from fastload._common.tables import plain_sections
from fastload._pack.options import PackOptions
from fastload._pack.packer import Packer
from fastload._pack.sources.folder import FolderSource
from fastload._store.dataset import open_dataset
from fastload._store.fields import Field
from fastload._store.jpeg_header import read_header
from fastload._store.manifest import read_manifest
from fastload._tools.inspect import records
from fastload._tools.inspect.overview import gather, overview
from fastload._tools.inspect.records import engine_refusal, scan_records, sizes_of, spread
from tests.packed_datasets import encoded, pack_folder, pack_samples, photo, put_value, value_of


def screen(path: Path, *, limit: int = 2000) -> str:
    return plain_sections(str(path), overview(gather(open_dataset(path), limit=limit)))


def line(text: str, name: str) -> str:
    """The value that follows a name."""
    return next(
        row.strip()[len(name) :].strip()
        for row in text.splitlines()
        if row.startswith(f"  {name} ")
    )


def test_counts_sizes_and_classes_match_the_source(packed_folder: Path) -> None:
    facts = gather(open_dataset(packed_folder))
    originals = sorted((packed_folder.parent / "source").rglob("*.jpg"))
    assert facts.manifest.n_samples == len(originals) == 40
    (counts,) = facts.classes
    assert dict(zip(counts.names, counts.counts, strict=True)) == Counter(
        path.parent.name for path in originals
    )
    assert counts.missing == 0
    found = Counter(
        (header.width, header.height)
        for header in (read_header(path.read_bytes()) for path in originals)
    )
    (sizes,) = facts.sizes
    by_area = sorted(found.elements(), key=lambda size: size[0] * size[1])
    assert (sizes.smallest, sizes.median, sizes.largest) == (by_area[0], by_area[19], by_area[-1])
    assert dict(sizes.common) == found
    assert facts.n_bytes == sum(
        (packed_folder / shard.name).stat().st_size for shard in facts.manifest.shards
    )
    assert sum(open_dataset(packed_folder).blocks[:, 1]) == 40
    assert facts.n_blocks == len(open_dataset(packed_folder).blocks) > 3


def test_images_of_16_bits_are_counted(tmp_path: Path, packed_folder: Path) -> None:
    images = [np.zeros((9, 9), dtype) for dtype in (np.uint8, np.uint16, np.uint16, np.uint16)]
    path = pack_samples(
        tmp_path / "mixed", (Field("image", "image"),), [{"image": each} for each in images]
    )
    assert line(screen(path), "depth") == "16 bits per channel 75.0 %"
    assert scan_records(open_dataset(path)).bits == {8: 1, 16: 3}
    assert "depth" not in screen(packed_folder)


def test_images_are_counted_by_coding_subsampling_and_color(packed_folder: Path) -> None:
    records = scan_records(open_dataset(packed_folder))
    headers = [
        read_header(path.read_bytes()) for path in (packed_folder.parent / "source").rglob("*.jpg")
    ]
    gray = sum(header.components == 1 for header in headers)
    assert records.all_records
    assert records.codecs == {"jpeg": 40}
    assert records.channels == {1: gray, 3: 40 - gray}
    assert records.subsampling == {"gray": gray, "4:2:0": 40 - gray}
    if core() is None:
        assert records.coding["progressive"] == sum(header.progressive for header in headers)
    else:  # the packer rewrites them as baseline and stores a restart index
        assert records.coding == {"baseline": 40}
        assert records.indexed == records.engine == 40
    text = screen(packed_folder)
    assert "sizes of image (width x height)" in text
    assert "images (from all records)" in text
    assert line(text, "channels") == "color 80.0 %"


def test_the_output_states_when_only_some_records_were_scanned(packed_folder: Path) -> None:
    records = scan_records(open_dataset(packed_folder), limit=10)
    assert (records.n_records, records.all_records) == (10, False)
    text = screen(packed_folder, limit=10)
    assert "images (from 10 evenly spread records)" in text
    assert line(text, "samples") == "40", "counts from columns are not estimated"


@given(st.integers(0, 10**12), st.integers(1, 50))
def test_scanned_records_are_evenly_spread_over_the_dataset(n: int, limit: int) -> None:
    ids = spread(min(n, 200) if n <= limit else n, limit)
    assert len(ids) == len(set(ids.tolist())) == min(n, limit)
    if len(ids) > 1:
        assert (ids[0], ids[-1]) == (0, n - 1)
        assert np.diff(ids).max() <= n / (len(ids) - 1) + 1


def test_which_jpegs_the_gpu_engine_can_decode() -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    for subsampling, refusal in (
        ("444", ""),
        ("422", ""),
        ("420", ""),
        ("440", ""),
        ("411", "4:1:1"),
    ):
        header = read_header(simplejpeg.encode_jpeg(pixels, colorsubsampling=subsampling))
        assert engine_refusal(header) == refusal
    baseline = read_header(photo(40, 30, seed=1))
    assert engine_refusal(baseline) == ""
    assert engine_refusal(read_header(photo(40, 30, seed=1, gray=True))) == ""
    assert engine_refusal(read_header(photo(40, 30, seed=1, progressive=True))) == "progressive"
    assert engine_refusal(replace(baseline, n_scans=3)) == "several scans"
    assert engine_refusal(replace(baseline, sof=0xC1)) == "not baseline"
    assert engine_refusal(replace(baseline, sampling=((4, 2), (1, 1), (1, 1)))) == "4:1:0"


def test_other_codecs_orientations_lists_and_missing_values(tmp_path: Path) -> None:
    png = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (150, 170, 3), dtype=np.uint8)).save(
        png, "PNG"
    )
    exif = Image.Exif()
    exif[0x0112] = 6
    # The size is not a multiple of the MCU size, so pack cannot rotate it without loss.
    rotated = photo(50, 37, seed=1, exif=exif)
    fields = (
        Field("image", "image"),
        Field("boxes", "boxes"),
        Field("cameras", "image", list=True),
        Field("score", "float"),
        Field("count", "int"),
        Field("label", "int", classes=("a", "b")),
    )
    samples = [
        {
            "image": encoded(png.getvalue()),
            "boxes": np.zeros((3, 4)),
            "cameras": [np.zeros((8, 9), np.uint8)] * 2,
            "score": 0.5,
            "count": 7,
            "label": 1,
        },
        {"image": encoded(rotated), "boxes": np.zeros((0, 4)), "cameras": [], "score": 1.5},
        {"image": encoded(photo(64, 48, seed=2)), "count": -3, "label": 1},
    ]
    path = pack_samples(tmp_path / "packed", fields, samples)
    facts = gather(open_dataset(path))
    assert facts.records.codecs == {"png": 1, "jpeg": 2, "raw": 2}
    assert facts.records.to_orient == 1
    assert facts.records.engine_refusals == {"png": 1, "raw": 2}
    assert [(each.field, each.median, each.n_images) for each in facts.sizes] == [
        ("image", (64, 48), 3),
        ("cameras", (9, 8), 2),
    ]
    assert facts.sizes[0].smallest == (37, 50), "the size after rotation"
    assert [(each.field, each.least, each.most, each.missing) for each in facts.numbers] == [
        ("score", 0.5, 1.5, 1),
        ("count", -3, 7, 1),
    ]
    assert facts.classes[0].counts == (0, 2)
    assert facts.classes[0].missing == 1
    text = screen(path)
    assert line(text, "boxes") == "boxes, 1.0 per sample, in 66.7 % of the samples"
    assert line(text, "cameras") == "list of image, 0.7 per sample, in 33.3 % of the samples"
    assert line(text, "(no class)") == "1 (33.3 %)"
    assert line(text, "count") == "int, -3 to 7, in 66.7 % of the samples"
    assert line(text, "orientation") == "20.0 % are rotated or flipped when loaded (EXIF)"
    assert line(text, "supported") == "40.0 % of the images"


def test_pack_options_and_skipped_files_are_shown(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 1)):
        for i in range(count):
            path = tmp_path / "source" / split / "cat" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photo(40, 30, seed=i))
    (tmp_path / "source/train/cat/bad.jpg").write_bytes(b"\xff\xd8 not a JPEG")
    cmyk = io.BytesIO()
    Image.new("CMYK", (40, 30)).save(cmyk, "JPEG")
    (tmp_path / "source/val/cat/print.jpg").write_bytes(cmyk.getvalue())
    Packer(
        FolderSource(tmp_path / "source"),
        tmp_path / "packed",
        PackOptions(on_error="skip", seed=5, max_side=20),
    ).run()
    text = screen(tmp_path / "packed")
    assert line(text, "order") == "shuffled, seed 5"
    assert line(text, "train") == "3 (60.0 %)"
    assert line(text, "val") == "2 (40.0 %)"
    assert line(text, "max side") == "20"
    assert line(text, "encode") == "keep"
    assert line(text, "skipped") == "1 (listed in pack-log.jsonl)"
    assert line(text, "converted") == "1: CMYK JPEG → RGB"


def test_of_many_classes_the_most_and_least_frequent_are_shown(tmp_path: Path) -> None:
    names = tuple(f"class {i:02}" for i in range(30))
    labels = [i for i in range(30) for _ in range(i + 1)]
    path = pack_samples(
        tmp_path / "packed", (Field("label", "int", classes=names),), [{"label": i} for i in labels]
    )
    rows = (
        screen(path)
        .partition("classes of label (30 classes)\n")[2]
        .partition("\n\n")[0]
        .splitlines()
    )
    assert [row.split()[1] for row in rows if "class " in row] == [
        "29",
        "28",
        "27",
        "26",
        "25",
        "02",
        "01",
        "00",
    ]
    assert "22 classes with 4 to 25 samples" in rows[5]


def test_sizes_are_counted_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "_ROWS_AT_A_TIME", 7)
    rng = np.random.default_rng(1)
    widths = rng.integers(0, 4, 200).astype(np.uint16)
    heights = rng.integers(1, 3, 200).astype(np.uint16)
    heights[widths == 0] = 0  # samples without an image
    expected = Counter((int(w), int(h)) for w, h in zip(widths, heights, strict=True) if w)
    found = sizes_of("image", widths, heights)
    assert found is not None
    assert found.n_images == sum(expected.values())
    assert found.n_sizes == len(expected)
    assert dict(found.common) == dict(expected.most_common(5))
    assert sizes_of("image", widths[:0], heights[:0]) is None


def test_a_damaged_record_is_reported_and_skipped(packed_folder: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(packed_folder, tmp_path / "packed"))
    value = bytearray(value_of(path, 4))
    value[1000] ^= 1
    put_value(path, 4, bytes(value))
    facts = gather(open_dataset(path))
    assert facts.records.n_records == 39
    assert len(facts.records.damaged) == 1
    text = screen(path)
    assert "DAMAGED (1 of the scanned records cannot be read)" in text
    assert "reading sample 4: checksum" in text
    assert f"run: fastload verify {path}" in text
    assert not gather(open_dataset(packed_folder)).records.damaged


def test_source_order_is_reported_as_not_shuffled(tmp_path: Path) -> None:
    path = pack_folder(tmp_path, count=6, order="source")
    assert read_manifest(path).order == "source"
    assert "not shuffled" in line(screen(path), "order")
