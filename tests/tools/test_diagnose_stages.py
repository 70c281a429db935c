"""diagnose() measures stages with planted durations."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image

import fastload
from fastload._tools.doctor.finding import Diagnosis
from fastload._tools.doctor.loader.figures import LoaderFigures
from fastload._tools.doctor.loader.instrument import Instruments, StageClock
from fastload._tools.doctor.loader.stages import measure_stages
from fastload._tools.doctor.loader.timing import Source
from tests.loading import needs_core
from tests.packed_datasets import photo
from tests.slow_loaders import Slow, SlowPipe, slow_collate, slow_decode


def shares(found: Diagnosis[LoaderFigures]) -> dict[str, float]:
    return {each.name: each.share for each in found.numbers.stages}


def expected_shares(planted: dict[str, float], rel: float) -> dict[str, Any]:
    total = sum(planted.values())
    return {name: pytest.approx(seconds / total, rel=rel) for name, seconds in planted.items()}


@pytest.mark.usefixtures("exact_sleeps")
def test_planted_stages_are_measured_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", slow_decode)
    with SlowPipe(tmp_path / "pipe", 0.050) as pipe:
        loader = torch.utils.data.DataLoader(Slow(pipe=pipe), batch_size=2, collate_fn=slow_collate)
        planted = {
            "read": 0.100,
            "decode": 0.080,
            "transform": 0.060,
            "other": 0.040,
            "collate": 0.040,
        }
        found = fastload.diagnose(loader, seconds=4)
    assert shares(found) == expected_shares(planted, rel=0.01)
    assert found.numbers.loader.seconds == pytest.approx(0.320, rel=0.01)
    assert found.numbers.workers == 0


def test_planted_stages_are_measured_in_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplejpeg, "decode_jpeg", slow_decode)
    loader = torch.utils.data.DataLoader(
        Slow(), batch_size=2, collate_fn=slow_collate, num_workers=2
    )
    planted = {"decode": 0.080, "transform": 0.060, "other": 0.040, "collate": 0.040}
    expected = expected_shares(planted, rel=0.25)
    # A busy machine delays workers at random; a wrong count is wrong every time.
    for _ in range(5):
        found = fastload.diagnose(loader, seconds=4)
        assert sum(shares(found).values()) == pytest.approx(1.0)
        got = {name: shares(found)[name] for name in planted}
        if got == expected and 0.05 < found.numbers.loader.seconds < 0.2:  # 0.220 / 2
            break
    assert got == expected
    assert 0.05 < found.numbers.loader.seconds < 0.2
    assert "in one of 2 workers" in str(found)


class Compose:
    def __init__(self, transforms: list[Any]) -> None:
        self.transforms = transforms

    def __call__(self, value: Any) -> Any:
        for each in self.transforms:
            value = each(value)
        return value


class Shrink:
    def __call__(self, image: Image.Image) -> Image.Image:
        time.sleep(0.004)
        return image.resize((32, 32))


class ToArray:
    def __call__(self, image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32))


class Photos(torch.utils.data.Dataset[Any]):
    """Reads and decodes like torchvision's ImageFolder."""

    def __init__(self, root: Path) -> None:
        self.paths = sorted(root.iterdir())
        self.transform = Compose([Shrink(), ToArray()])

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with open(self.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), index % 3


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    for number in range(12):
        (root / f"{number:02}.jpg").write_bytes(photo(640, 480, seed=number, noise=20))
    return root


@pytest.mark.parametrize("workers", [0, 2])
def test_reading_and_decoding_with_pillow_are_separated(photos: Path, workers: int) -> None:
    found = fastload.diagnose(
        torch.utils.data.DataLoader(Photos(photos), batch_size=4, num_workers=workers), seconds=1.5
    )
    by_name = {each.name: each for each in found.numbers.stages}
    assert by_name["read"].seconds > 0
    assert by_name["decode"].seconds > by_name["read"].seconds
    assert by_name["transform"].seconds > 4 * 0.004
    assert by_name["transform"].detail[0][0] == "Shrink"
    assert ("ipc" in by_name) == (workers > 0)
    assert found.numbers.batch_size == 4


def test_the_fastload_decoder_is_measured_on_the_images_of_the_dataset(photos: Path) -> None:
    needs_core()
    found = fastload.diagnose(torch.utils.data.DataLoader(Photos(photos), batch_size=4), seconds=1)
    offered = [each for each in found.findings if each.fix.startswith("fastload.DataLoader")]
    assert offered
    assert (
        "native decoder was measured on your own samples, 1 image of 32 x 32 each"
        in (offered[0].evidence[0])
    )


def test_no_gain_is_predicted_if_some_images_are_not_jpegs(photos: Path, tmp_path: Path) -> None:
    """A PNG takes several times as long, so the JPEGs alone would promise too much."""
    for number, path in enumerate(sorted(photos.glob("*.jpg"))):
        Image.open(path).save(
            tmp_path / f"{number}.jpg", "PNG" if number % 2 else "JPEG"
        )  # the content decides, not the name
    found = fastload.diagnose(
        torch.utils.data.DataLoader(Photos(tmp_path), batch_size=4), seconds=1
    )
    assert not [each for each in found.findings if each.fix.startswith("fastload.DataLoader")]
    assert "some of its images are not JPEGs" in "\n".join(found.notes)


def test_a_read_inside_a_decode_counts_as_read(photos: Path) -> None:
    path = sorted(photos.iterdir())[0]
    with Instruments(object()) as instruments:
        instruments.clock.start()
        Image.open(path).load()
        path.read_bytes()
        path.with_name("names").write_text("a\nb\n")
        with path.with_name("names").open() as file:
            lines = list(file)
        instruments.clock.stop()
        counted = instruments.clock.taken()
        Image.open(path).load()
        assert not instruments.clock.taken()
    path.with_name("names").unlink()
    assert lines == ["a\n", "b\n"]
    assert set(counted) == {"read", "decode"}
    assert counted["decode"] > 0
    assert counted["read"] > 0
    assert instruments.images.count(str(path)) == 2


@pytest.mark.usefixtures("exact_sleeps")
def test_a_stage_excludes_the_stages_inside_it() -> None:
    def decode() -> None:
        time.sleep(0.02)
        clock.counted("read", time.sleep, 0.2)

    clock = StageClock()
    clock.start()
    began = time.perf_counter()
    clock.counted("decode", decode)
    whole = time.perf_counter() - began
    clock.stop()
    counted = clock.taken()
    assert counted["read"] >= 0.2
    assert counted["decode"] + counted["read"] == pytest.approx(whole, rel=0.01)
    assert clock.counted("read", int, "3") == 3  # after stop, calls are made but not counted
    assert clock.taken() == {}


def test_a_fastload_loader_reports_its_own_stages(tmp_path: Path) -> None:
    from tests.loading import pack_photos

    with_transform = fastload.DataLoader(pack_photos(tmp_path / "packed", 24, vary=0), batch_size=4)
    found = fastload.diagnose(with_transform, lambda batch: time.sleep(0.001), seconds=1)
    assert found.numbers.loader_kind == "fastload"
    assert {"read", "cut", "decode", "resize", "finish", "plan", "copy"} == set(shares(found))
    assert found.numbers.stage("decode").seconds > 0  # type: ignore[union-attr]
    assert found.numbers.stage("nonsense") is None
    with_transform.close()
    assert Source(with_transform).fixed_threads is None
    assert (
        Source(fastload.DataLoader(tmp_path / "packed", batch_size=4, num_workers=1)).fixed_threads
        == 1
    )


@pytest.mark.usefixtures("exact_sleeps")
def test_a_stream_is_measured_in_this_process_only() -> None:
    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            for number in range(40):
                time.sleep(0.010)
                yield number

    found = fastload.diagnose(torch.utils.data.DataLoader(Stream(), batch_size=4), seconds=1)
    assert shares(found)["other"] > 0.99


@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_that_takes_too_long_is_cut_short_and_scaled(stream: bool) -> None:
    fetched: list[int] = []

    def item(number: int) -> int:
        fetched.append(number)
        time.sleep(0.002)
        return number

    class Items(torch.utils.data.Dataset[int]):
        def __len__(self) -> int:
            return 800

        def __getitem__(self, index: int) -> int:
            return item(index)

    class Stream(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Any:
            yield from map(item, range(800))

    loader = torch.utils.data.DataLoader(Stream() if stream else Items(), batch_size=400)
    costs = measure_stages(Source(loader), 0.02, torch.zeros(400))
    assert costs is not None
    assert 1 <= len(fetched) < 400
    assert costs.here.items == 400
    assert costs.here.wall_s >= 400 * 0.002
