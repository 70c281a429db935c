"""Step timing callbacks, with the real frameworks on a tiny model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fastload._tools.monitor.metrics_file import Metrics, read_metrics
from fastload.errors import MissingPart

# Ignore the warnings of the frameworks, but not those of fastload.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.filterwarnings("default:fastload")]


def require(name: str) -> Any:
    """Imports a framework, or skips the test."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"not run: {name} is not installed")
    return importlib.import_module(name)


def read(path: Path) -> Metrics:
    metrics = read_metrics(path)
    assert (metrics.skipped, metrics.torn) == (0, False)
    for row in metrics.steps:
        assert row.iter_time is not None
        assert row.data_time is not None
        assert row.iter_time >= row.data_time >= 0
    return metrics


def events(metrics: Metrics) -> list[tuple[str, int]]:
    return [(event.name, event.iter) for event in metrics.events]


def loader(n: int = 24, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(
        TensorDataset(torch.randn(n, 5), torch.randint(0, 2, (n,))), batch_size=batch_size
    )


def lightning_model(*, fail_at: int = -1) -> Any:
    pl = require("lightning.pytorch")

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            if number == fail_at:
                raise RuntimeError("out of memory")
            return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

        def validation_step(self, batch: Any, number: int) -> None:
            self.layer(batch[0])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model()


def lightning_trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    pl = require("lightning.pytorch")
    return pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **options,
    )


def test_lightning_callback_writes_rows_stages_and_events(tmp_path: Path) -> None:
    pl = require("lightning.pytorch")
    from fastload.callbacks.lightning import StepProbeCallback

    path = tmp_path / "m.jsonl"
    saver = pl.callbacks.ModelCheckpoint(
        dirpath=tmp_path / "saved", every_n_train_steps=5, save_top_k=-1
    )
    trainer = lightning_trainer(
        tmp_path, saver, StepProbeCallback(path, every=3), max_epochs=2, val_check_interval=6
    )
    trainer.fit(lightning_model(), loader(), loader(8))
    metrics = read(path)
    assert [(row.iter, row.steps, row.samples) for row in metrics.steps] == [
        (3, 3, 12),
        (6, 3, 12),
        (9, 3, 12),
        (12, 3, 12),
    ]
    assert all(
        {"forward", "backward", "optimizer"} == row.stage_times.keys() for row in metrics.steps
    )
    assert events(metrics) == [
        ("checkpoint", 5),
        ("evaluation", 6),
        ("checkpoint", 10),
        ("evaluation", 12),
    ]
    assert metrics.runs[0].batch_size == 4
    assert len(trainer.callbacks) == 2  # the second callback was removed


def test_lightning_callback_resumes_counting_after_a_failure(tmp_path: Path) -> None:
    require("lightning")
    from fastload.callbacks.lightning import StepProbeCallback

    path = tmp_path / "m.jsonl"
    with pytest.raises(RuntimeError, match="out of memory"):
        lightning_trainer(
            tmp_path, StepProbeCallback(path, every=2), max_epochs=1, enable_checkpointing=False
        ).fit(lightning_model(fail_at=3), loader())
    assert [(row.iter, row.steps) for row in read(path).steps] == [(2, 2), (3, 1)]
    trainer = lightning_trainer(tmp_path, StepProbeCallback(path, every=6), max_epochs=1)
    trainer.fit(lightning_model(), loader())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    lightning_trainer(tmp_path, StepProbeCallback(path, every=6), max_epochs=2).fit(
        lightning_model(), loader(), ckpt_path=tmp_path / "last.ckpt"
    )
    metrics = read(path)
    assert len(metrics.runs) == 3
    assert [row.iter for row in metrics.steps][2:] == [6, 12]


def test_hugging_face_callback_writes_rows_and_events(tmp_path: Path) -> None:
    require("accelerate")
    transformers = require("transformers")
    from fastload.callbacks.huggingface import StepProbeCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            logits = self.layer(x)
            return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

    data = [{"x": torch.randn(5), "labels": number % 2} for number in range(48)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=6,
        logging_steps=3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    path = tmp_path / "m.jsonl"
    trainer = transformers.Trainer(
        Model(),
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        callbacks=[StepProbeCallback(path, every=4)],
    )
    trainer.train()
    metrics = read(path)
    assert [(row.iter, row.steps, row.samples) for row in metrics.steps] == [
        (4, 4, 32),
        (8, 4, 32),
        (12, 4, 32),
    ]
    assert events(metrics) == [
        ("evaluation", 4),
        ("checkpoint", 6),
        ("evaluation", 8),
        ("evaluation", 12),
        ("checkpoint", 12),
    ]
    assert all(row.stage_times.keys() == {"optimizer"} for row in metrics.steps)
    trainer.evaluate()  # after the training, so it belongs to no step
    assert len(read(path).events) == 5


@pytest.mark.parametrize("by_epoch", [True, False])
def test_mmengine_hook_writes_rows_and_events(tmp_path: Path, by_epoch: bool) -> None:
    require("mmengine")
    from mmengine.model import BaseModel
    from mmengine.runner import Runner

    import fastload.callbacks.mmengine  # noqa: F401 - registers the hook

    class Model(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor, y: torch.Tensor, mode: str = "tensor") -> Any:
            loss = nn.functional.cross_entropy(self.layer(x), y)
            return {"loss": loss} if mode == "loss" else [loss]

    class CountMetric(importlib.import_module("mmengine.evaluator").BaseMetric):  # type: ignore[misc]
        def process(self, data_batch: Any, data_samples: Any) -> None:
            self.results.append(1)

        def compute_metrics(self, results: Any) -> dict[str, int]:
            return {"n": len(results)}

    train = (
        {"by_epoch": True, "max_epochs": 2, "val_interval": 1}
        if by_epoch
        else {"by_epoch": False, "max_iters": 12, "val_interval": 6}
    )
    path = tmp_path / "m.jsonl"
    Runner(
        model=Model(),
        work_dir=str(tmp_path / "work"),
        train_dataloader=loader(),
        val_dataloader=loader(8),
        val_evaluator=[CountMetric()],
        val_cfg={},
        train_cfg=train,
        optim_wrapper={"optimizer": torch.optim.SGD(Model().parameters(), lr=0.1)},
        log_level="ERROR",
        default_hooks={
            "checkpoint": {
                "type": "CheckpointHook",
                "by_epoch": by_epoch,
                "interval": 1 if by_epoch else 6,
            }
        },
        custom_hooks=[{"type": "StepProbeHook", "out": str(path), "every": 4}],
        experiment_name=f"probe-{by_epoch}",
    ).train()
    metrics = read(path)
    assert [(row.iter, row.steps, row.samples) for row in metrics.steps] == [
        (4, 4, 16),
        (8, 4, 16),
        (12, 4, 16),
    ]
    assert events(metrics) == [
        ("checkpoint", 6),
        ("evaluation", 6),
        ("checkpoint", 12),
        ("evaluation", 12),
    ]


@pytest.mark.parametrize(
    ("module", "library"),
    [("lightning", "lightning"), ("huggingface", "transformers"), ("mmengine", "mmengine")],
)
def test_missing_framework_error_has_the_install_command(module: str, library: str) -> None:
    program = (
        "import sys\nfor name in ('lightning', 'lightning.pytorch', 'pytorch_lightning', 'transformers', 'mmengine'): sys.modules[name] = None\n"
        f"try:\n    import fastload.callbacks.{module}\nexcept ImportError as error:\n    print(type(error).__name__, error)"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    assert printed.startswith(MissingPart.__name__)
    assert f"pip install {library}" in printed


def test_callbacks_package_imports_no_framework() -> None:
    code = (
        "import sys, fastload.callbacks\n"
        "assert not {'torch', 'numpy', 'lightning', 'transformers', 'mmengine'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_mmengine_module_can_be_imported_twice_and_registers_all_parts() -> None:
    require("mmengine")
    from mmengine.registry import DATA_SAMPLERS, DATASETS, FUNCTIONS, HOOKS

    module = importlib.import_module("fastload.callbacks.mmengine")
    importlib.reload(module)  # as a config does that is read a second time
    assert HOOKS.get("StepProbeHook").__module__ == "fastload.callbacks.mmengine"
    assert DATASETS.get("FastloadDataset") is module.FastloadDataset
    assert DATA_SAMPLERS.get("FastloadSampler") is module.FastloadSampler
    assert DATA_SAMPLERS.get("FastloadBatches") is module.FastloadBatches
    assert FUNCTIONS.get("fastload_collate") is module.fastload_collate
