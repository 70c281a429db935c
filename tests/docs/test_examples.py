"""The five trainers learn on generated data in both versions, and their page is up to date."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fastload
from examples import classifier
from examples.captcha import rows
from examples.common import arguments, running
from fastload._tools.monitor.metrics_file import read_metrics
from fastload._tools.scenes import imagenet
from tools import example_diffs
from tools.makedata import captcha, gray, nuscenes, openlane

# Each case takes seconds. The loss falls by far more than required for every seed tried.
Make = Callable[[Path], object]
# Generator, batch size, epochs, final loss as a share of the first.
CASES: dict[str, tuple[Make, int, int, float]] = {
    "lanes": (lambda folder: openlane.make(folder, n=4), 2, 4, 0.85),
    "bev": (lambda folder: nuscenes.make(folder, n=2), 1, 4, 0.92),
    "gray": (lambda folder: gray.make(folder, n=64), 16, 6, 0.9),
    "captcha": (lambda folder: captcha.make(folder, n=32), 8, 5, 0.8),
    "classifier": (lambda folder: imagenet.make(folder, n=48, n_classes=3), 12, 6, 0.9),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_loss_goes_down_in_both_versions(name: str, tmp_path: Path) -> None:
    make, batch_size, epochs, left = CASES[name]
    make(tmp_path / "images")
    source = tmp_path / "images"
    if name == "captcha":
        fastload.pack(
            rows(str(source)), tmp_path / "packed", fields={"image": "image", "points": "points"}
        )
    else:
        fastload.pack(source, tmp_path / "packed")
    for module, data in ((name, tmp_path / "packed"), (f"{name}_torch", source)):
        losses = trained(module, data, tmp_path / f"{module}.jsonl", batch_size, epochs)
        assert len(losses) == epochs
        assert losses[-1] < left * losses[0], (module, losses)


def trained(module: str, data: Path, metrics: Path, batch_size: int, epochs: int) -> list[float]:
    trainer = importlib.import_module(f"examples.{module}")
    words = [
        str(data),
        "--smoke",
        "--batch-size",
        str(batch_size),
        "--epochs",
        str(epochs),
        "--metrics",
        str(metrics),
    ]
    parser = arguments(None, batch_size=1, epochs=1)
    parser.set_defaults(accumulate=1, compile=False, save_every=0, resume=None)
    with running(parser.parse_args(words)) as run:
        losses: list[float] = trainer.train(run)
    assert read_metrics(metrics).steps
    return losses


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_dataset_without_a_full_batch_is_one_line(name: str, tmp_path: Path) -> None:
    make, *_ = CASES[name]
    make(tmp_path / "images")
    source = tmp_path / "images"
    fastload.pack(
        rows(str(source)) if name == "captcha" else source,
        tmp_path / "packed",
        fields={"image": "image", "points": "points"} if name == "captcha" else None,
    )
    for module, data in ((name, tmp_path / "packed"), (f"{name}_torch", source)):
        with pytest.raises(
            SystemExit,
            match=rf"^{data}: \d+ samples are too few for one batch of 500 per process",
        ):
            trained(module, data, tmp_path / f"{module}.jsonl", 500, 1)


@pytest.mark.parametrize("steps", [3, 5])  # an epoch has 5
def test_the_classifier_resumes_from_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A resumed run ends with the weights of the uninterrupted run.

    The checkpoint is in the middle of an epoch or at its end.
    """
    imagenet.make(tmp_path / "images", n=40, n_classes=2)
    fastload.pack(tmp_path / "images", tmp_path / "packed")
    monkeypatch.chdir(tmp_path)
    nets: list[torch.nn.Module] = []
    build, keep = classifier.network, classifier.save

    def keep_first(path: Path, **parts: object) -> None:
        keep(path, **parts)
        if not Path("first.pt").exists():
            path.rename("first.pt")

    monkeypatch.setattr(classifier, "save", keep_first)
    monkeypatch.setattr(
        classifier,
        "network",
        lambda classes: nets.append(build(classes)) or nets[-1],  # type: ignore[func-returns-value]
    )
    parser = arguments(None, batch_size=8, epochs=2)
    for resume in (None, "first.pt"):
        parser.set_defaults(compile=False, save_every=steps, resume=resume)
        with running(parser.parse_args(["packed", "--smoke"])) as run:
            classifier.train(run)
    whole, again = (
        torch.cat([value.flatten() for value in net.state_dict().values()]) for net in nets
    )
    assert (
        torch.load("first.pt", weights_only=True)["loader"]["runs"][0][3] == steps % 5
    )  # completed batches of the epoch
    assert torch.allclose(whole, again, atol=1e-5)


IN_ONE_OR_TWO_PROCESSES = """
import torch
from examples import classifier
from examples.common import arguments, running
parser = arguments(None, batch_size=4, epochs=1)
with running(parser.parse_args(["packed", "--smoke"])) as run:
    _, val = classifier.loaders(run)
    torch.manual_seed(3)
    model = run.model(classifier.network(2).double())
    right = classifier.accuracy(model, ((images.double(), labels) for images, labels in val), run)
    images = torch.rand(4, 3, 64, 64, dtype=torch.float64) * (2 if run.main else 1)
    sums = []
    for last in (False, True):
        with run.accumulating(model, last=last):
            model(images).square().sum().backward()
        sums.append(next(model.parameters()).grad.sum().item())
    if torch.distributed.is_initialized():
        gathered = [None, None]
        torch.distributed.all_gather_object(gathered, sums)
        (first, first_all), (second, second_all) = gathered
        assert first != second, "gradients were reduced before the last batch of the accumulation"
        assert first_all == second_all, "gradients were not reduced after it"
        torch.distributed.barrier()  # a rank that exits early resets the connection of the other
    run.log(f"right: {right}")
"""


def test_two_processes_count_every_image_once_and_reduce_gradients_once_per_step(
    tmp_path: Path,
) -> None:
    imagenet.make(tmp_path / "images", n=11, n_classes=2)
    fastload.pack(tmp_path / "images", tmp_path / "packed")
    (tmp_path / "both.py").write_text(IN_ONE_OR_TWO_PROCESSES)
    root = str(example_diffs.EXAMPLES.parent)
    alone, together = (
        subprocess.run(
            [sys.executable, *words, "both.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        )
        for words in ([], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])
    )
    assert alone.returncode == together.returncode == 0, (
        alone.stderr[-2000:] + together.stderr[-3000:]
    )
    assert alone.stdout == together.stdout
    assert alone.stdout.startswith("right: 0.")


def test_validation_moves_images_to_the_device_of_the_model() -> None:
    """torch's DataLoader yields CPU tensors."""
    devices: list[torch.device] = []

    class Images:
        def to(self, device: torch.device, memory_format: torch.memory_format) -> torch.Tensor:
            devices.append(device)
            return torch.zeros(2, 3, 8, 8).to(memory_format=memory_format)

    with running(
        arguments(None, batch_size=1, epochs=1).parse_args(["none", "--metrics", os.devnull])
    ) as run:
        right = classifier.accuracy(classifier.network(3), [(Images(), torch.tensor([0, 1]))], run)
    assert devices == [run.device]
    assert right in (0.0, 0.5)


@pytest.mark.parametrize(
    ("name", "dataset"),
    [
        ("lanes", "Frames"),
        ("bev", "Rigs"),
        ("gray", "GrayImages"),
        ("captcha", "Captchas"),
        ("classifier", "ClassFolders"),
    ],
)
def test_the_page_names_the_class_that_is_no_longer_needed(name: str, dataset: str) -> None:
    text = (example_diffs.EXAMPLES / f"{name}_torch.py").read_text()
    found = example_diffs.dataset_class(text)
    assert found.name == dataset
    assert 10 < example_diffs.n_statements(found) < 40


def test_the_page_shows_the_difference() -> None:
    assert example_diffs.PAGE.read_text() == example_diffs.page(), (
        "run: python -m tools.example_diffs"
    )
