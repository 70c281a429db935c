"""JPEGs that lost image data and have an end marker are skipped by name, never packed.

libjpeg, and DALI and nvImageCodec on the CPU, decode such files to wrong pixels without an error.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import fastload
from fastload import transforms as T
from fastload._common.native import core
from fastload._pack import images
from fastload._store.jpeg_header import check_scans, parse_markers
from fastload.errors import BadImage
from tests.jpeg_samples import encode_by_pillow, one_scan_per_component, sample_image
from tests.loading import backends
from tests.packing import log_of

END = b"\xff\xd9"


def scan_starts(jpeg: bytes) -> list[int]:
    """Returns where each scan, or the tables before it, start."""
    starts = [at for at in range(len(jpeg)) if jpeg.startswith(b"\xff\xda", at)]
    tables = [jpeg.rfind(b"\xff\xc4", 0, at) for at in starts]
    ends = [0, *starts[:-1]]
    return [
        table if table > end else start
        for start, table, end in zip(starts, tables, ends, strict=True)
    ]


def cut_inside(jpeg: bytes, share: float) -> bytes:
    """Returns the JPEG with the first part of its image data and an end marker."""
    start = jpeg.index(b"\xff\xda") + 14
    end = start + int((len(jpeg) - start) * share)
    return jpeg[:end].rstrip(b"\xff") + END


def cut_jpegs() -> dict[str, bytes]:
    found = {}
    for sampling in ("444", "420", "gray"):
        for progressive in (False, True):
            jpeg = encode_by_pillow(sample_image(64, 48), sampling, progressive=progressive)
            kind = f"{sampling}-{'progressive' if progressive else 'baseline'}"
            for share in (0.1, 0.5, 0.9):
                found[f"{kind}-{share}"] = cut_inside(jpeg, share)
            for number, start in enumerate(scan_starts(jpeg)[1:], 1):
                found[f"{kind}-{number}-scans"] = jpeg[:start] + END
    jpeg = one_scan_per_component(16)
    found |= {f"baseline-{i}-scans": jpeg[: scan_starts(jpeg)[i]] + END for i in (1, 2)}
    return found


@pytest.mark.parametrize("encode", ["keep", "jpeg", "raw"])
@pytest.mark.parametrize("native", [True, False], ids=["native", "pure"])
def test_cut_scans_are_not_packed(
    encode: str, native: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(images, "core", lambda: None)
    elif core() is None:
        pytest.skip("not run: no native core")
    cut = cut_jpegs()
    assert len(cut) > 30
    source = tmp_path / "images"
    source.mkdir()
    for name, data in cut.items():
        (source / f"{name}.jpg").write_bytes(data)
    (source / "good.jpg").write_bytes(encode_by_pillow(sample_image(9, 5), "420", progressive=True))
    (source / "scans.jpg").write_bytes(one_scan_per_component(16))
    packed = fastload.pack(source, tmp_path / "packed", on_error="skip", encode=encode)
    skipped = {Path(each["source"]).stem for each in log_of(tmp_path / "packed")}
    assert skipped == set(cut)
    assert packed.skipped == len(cut)
    assert len(fastload.open(tmp_path / "packed")) == 2
    assert fastload.verify(tmp_path / "packed", deep=True).ok


def test_both_cores_refuse_the_same_scans() -> None:
    module = core()
    if module is None:
        pytest.skip("not run: no native core")
    for name, data in cut_jpegs().items():
        if name.endswith("scans"):
            with pytest.raises(BadImage, match="incomplete JPEG: scans are missing"):
                check_scans(data, parse_markers(data))
            with pytest.raises(module.BadJpeg, match="incomplete JPEG: scans are missing"):
                module.rewrite(data)


def test_missing_scans_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No decoder reports them, so they must not reach one."""
    source = tmp_path / "images"
    source.mkdir()
    cut = {name: data for name, data in cut_jpegs().items() if name.endswith("scans")}
    for name, data in cut.items():
        (source / f"{name}.jpg").write_bytes(data)
    (source / "good.jpg").write_bytes(one_scan_per_component(16))
    fastload.pack(source, tmp_path / "packed", on_error="skip", encode="copy")
    assert {Path(each["source"]).stem for each in log_of(tmp_path / "packed")} == set(cut)
    assert len(fastload.open(tmp_path / "packed")) == 1
    monkeypatch.setattr(images, "check_scans", lambda _data, _header: None)
    fastload.pack(source, tmp_path / "unchecked", encode="copy")  # as of an earlier version
    assert fastload.verify(tmp_path / "unchecked").ok
    assert damaged_in(tmp_path / "unchecked") == set(cut)


def damaged_in(dataset: Path) -> set[str]:
    report = fastload.verify(dataset, deep=True)
    return {Path(fault.source).stem for fault in report.faults}


@pytest.mark.parametrize("backend", backends())
def test_copied_damage_inside_a_scan_is_found_by_decoding(tmp_path: Path, backend: str) -> None:
    """``copy`` does not decode: that takes most of the time of ``keep``."""
    cut = {name: data for name, data in cut_jpegs().items() if "-baseline-0" in name}
    source = tmp_path / "images"
    source.mkdir()
    for name, data in cut.items():
        (source / f"{name}.jpg").write_bytes(data)
    (source / "good.jpg").write_bytes(encode_by_pillow(sample_image(64, 48), "420"))
    packed = fastload.pack(source, tmp_path / "packed", encode="copy")
    assert packed.n_samples == len(cut) + 1
    assert damaged_in(tmp_path / "packed") == set(cut)
    iterator = iter(
        fastload.DataLoader(tmp_path / "packed", 1, transform=T.Resize(16, 16), backend=backend)
    )
    bad = set()
    for _ in range(len(cut) + 1):
        try:
            next(iterator)
        except BadImage as error:
            bad.add(Path(str(error.source)).stem)
    assert bad == set(cut)
