"""The five trainers learn on generated data, in both versions; the page that shows their difference is true."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fastload
from examples import classifier
from examples.captcha import rows
from examples.common import arguments, running
from fastload.makedata import captcha, gray, imagenet, nuscenes, openlane
from fastload.observe.rows import read_metrics
from tools import example_diffs

# Small enough for seconds; the losses fall by far more than asked, in every version and with every seed tried.
Make = Callable[[Path], object]
# makes the pictures, where they are in the folder, batch size, epochs, how much of the loss may be left
CASES: dict[str, tuple[Make, str, int, int, float]] = {
    "lanes": (lambda folder: openlane.make(folder, n=4), ".", 2, 4, 0.85),
    "bev": (lambda folder: nuscenes.make(folder, n=2), ".", 1, 4, 0.92),
    "gray": (lambda folder: gray.make(folder, n=64), "train", 16, 6, 0.9),
    "captcha": (lambda folder: captcha.make(folder, n=32), ".", 8, 5, 0.8),
    "classifier": (lambda folder: imagenet.make(folder, n=48, n_classes=3), "train", 12, 6, 0.9),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_loss_goes_down_in_both_versions(name: str, tmp_path: Path) -> None:
    make, where, batch_size, epochs, left = CASES[name]
    make(tmp_path / "pictures")
    source = tmp_path / "pictures" / where
    if name == "captcha":
        fastload.pack(rows(str(source)), tmp_path / "packed", fields={"image": "image", "points": "points"})
    else:
        fastload.pack(source, tmp_path / "packed")
    for module, data in ((name, tmp_path / "packed"), (f"{name}_torch", source)):
        losses = learnt(module, data, tmp_path / f"{module}.jsonl", batch_size, epochs)
        assert len(losses) == epochs
        assert losses[-1] < left * losses[0], (module, losses)


def learnt(module: str, data: Path, metrics: Path, batch_size: int, epochs: int) -> list[float]:
    trainer = importlib.import_module(f"examples.{module}")
    words = [str(data), "--smoke", "--batch-size", str(batch_size), "--epochs", str(epochs), "--metrics", str(metrics)]
    parser = arguments(None, batch_size=1, epochs=1)
    parser.set_defaults(accumulate=1, val=None, compile=False, save_every=0, resume=None)
    with running(parser.parse_args(words)) as run:
        losses: list[float] = trainer.train(run)
    assert read_metrics(metrics).steps
    return losses


def test_the_classifier_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again from its first checkpoint, in mid-epoch, it ends with the weights of the run that was not interrupted."""
    imagenet.make(tmp_path / "pictures", n=40, n_classes=2)
    fastload.pack(tmp_path / "pictures" / "train", tmp_path / "packed")
    monkeypatch.chdir(tmp_path)
    nets: list[torch.nn.Module] = []
    build, keep = classifier.network, classifier.save

    def keep_first(path: Path, **parts: object) -> None:
        keep(path, **parts)
        if not Path("first.pt").exists():
            path.rename("first.pt")

    monkeypatch.setattr(classifier, "save", keep_first)
    monkeypatch.setattr(classifier, "network", lambda classes: nets.append(build(classes)) or nets[-1])     # type: ignore[func-returns-value]
    parser = arguments(None, batch_size=8, epochs=2)
    for resume in (None, "first.pt"):
        parser.set_defaults(val=None, compile=False, save_every=3, resume=resume)
        with running(parser.parse_args(["packed", "--smoke"])) as run:
            classifier.train(run)
    whole, again = (torch.cat([value.flatten() for value in net.state_dict().values()]) for net in nets)
    assert torch.load("first.pt", weights_only=True)["loader"]["runs"][0][3] > 0            # batches of the epoch that were done
    assert torch.allclose(whole, again, atol=1e-5)


@pytest.mark.parametrize(("name", "dataset"), [("lanes", "Frames"), ("bev", "Rigs"), ("gray", "Pictures"), ("captcha", "Captchas"), ("classifier", "Pictures")])
def test_the_page_names_the_class_that_is_gone(name: str, dataset: str) -> None:
    text = (example_diffs.EXAMPLES / f"{name}_torch.py").read_text()
    found, length = example_diffs.dataset_class(text)
    assert found == dataset
    assert 10 < length < 40


def test_the_page_shows_the_difference() -> None:
    assert example_diffs.PAGE.read_text() == example_diffs.page(), "run: python -m tools.example_diffs"
