"""The example trainer learns: its loss falls on generated pictures."""

from __future__ import annotations

from pathlib import Path

import fastload
from examples.train_classifier import train
from fastload.makedata import imagenet


def test_the_loss_goes_down(tmp_path: Path) -> None:
    imagenet.make(tmp_path / "pictures", n=48, n_classes=3)
    fastload.pack(tmp_path / "pictures", tmp_path / "packed", resize=(96, 72), jobs=2)
    losses = train(str(tmp_path / "packed"), epochs=6, batch_size=12)
    assert losses[-1] < 0.8 * losses[0]
