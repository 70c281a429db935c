"""The comparison of writers runs, on a few generated photos."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import pack_speed
from tests.packing import file_of, pixels


def test_every_installed_writer_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(file_of(pixels(64, 48)))
    monkeypatch.setattr(pack_speed, "photo_paths", lambda: [photo])
    monkeypatch.setattr(pack_speed, "WRITERS", ("fastload",))
    seconds = pack_speed.measure_photos(tmp_path / "work", 3, rounds=2)
    assert list(seconds) == ["fastload", "fastload --encode copy", "cp -r", "cp -r, synced"]
    assert all(len(times) == 2 and min(times) > 0 for times in seconds.values())
    table = pack_speed.photos_table(seconds, 3)
    assert ("fastload", "1.00 x") in [(row[0], row[2]) for row in table.rows]
    assert pack_speed.measure_tiny(tmp_path, 20) > 0
