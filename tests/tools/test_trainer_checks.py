"""check_trainer() on real steps: it reports mistakes with their line, and nothing else."""

from __future__ import annotations

import inspect
import json
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fastload
from fastload._tools.doctor.finding import Diagnosis, Finding
from fastload._tools.doctor.trainer.check import StepFigures

IMAGES, LABELS = torch.rand(4, 3, 16, 16), torch.tensor([0, 1, 2, 1])


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Spinning threads make these tests ten times slower on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 3),
    )


class Trainer:
    """A training step with a switch for each mistake."""

    def __init__(
        self,
        *,
        amp: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        channels_last: bool = True,
        compiled: bool = False,
        after: Callable[[torch.Tensor], object] = lambda loss: None,
        **options: Any,
    ) -> None:
        layout = torch.channels_last if channels_last else torch.contiguous_format
        self.model = small_model().to(memory_format=layout)  # type: ignore[call-overload]
        self.images = IMAGES.to(memory_format=layout)
        self.called: Any = torch.compile(self.model, backend="eager") if compiled else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **{"fused": True, **options})
        self.amp, self.dtype, self.after = amp, dtype, after

    def step(self, batch: Any) -> None:
        images, labels = batch
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype, enabled=self.amp):
            loss = nn.functional.cross_entropy(self.called(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.after(loss.detach())

    def check(self) -> Diagnosis[StepFigures]:
        return fastload.check_trainer(self.model, self.optimizer, self.step, (self.images, LABELS))


def findings(report: Diagnosis[StepFigures]) -> tuple[Finding, ...]:
    """All findings except "compile": compiling is slow and has its own tests."""
    return tuple(each for each in report.findings if each.kind != "compile")


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f":{first + next(number for number, line in enumerate(lines) if text in line)} in "


def test_a_correct_trainer_has_no_findings() -> None:
    torch._dynamo.reset()  # dynamo stops compiling code after eight models
    report = Trainer(compiled=True).check()
    assert report.healthy, str(report)
    assert "No finding" in str(report)
    assert {each.partition(":")[0] for each in report.passed} == {
        "amp",
        "tf32",
        "sync",
        "copy",
        "channels_last",
        "compile",
        "optimizer",
        "batch",
    }
    assert (report.numbers.device, report.numbers.batch_size) == ("cpu", 4)
    assert json.loads(json.dumps(report.as_json()))["healthy"] is True


def test_disabled_autocast_is_found_with_its_line() -> None:
    config = {"amp": True}
    trainer = Trainer(amp=config["amp"] == "bf16")  # type: ignore[comparison-overlap]
    (found,) = findings(trainer.check())
    assert found.kind == "amp"
    assert "enabled=False" in found.title
    assert "float32" in found.title
    assert line_of(Trainer.step, "torch.autocast") in found.where


def test_missing_autocast_is_found() -> None:
    trainer = Trainer()

    def step(batch: Any) -> None:
        trainer.optimizer.zero_grad()
        nn.functional.cross_entropy(trainer.called(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
        trainer.optimizer.step()

    report = fastload.check_trainer(
        trainer.model, trainer.optimizer, step, (trainer.images, LABELS)
    )
    assert [each.kind for each in findings(report)] == ["amp"]
    assert "never entered" in report.findings[0].title


def test_a_model_in_bfloat16_needs_no_autocast() -> None:
    trainer = Trainer(amp=False)
    trainer.model.to(torch.bfloat16)
    trainer.images = trainer.images.to(torch.bfloat16)
    report = trainer.check()
    assert not report.found("amp")
    assert any("the model's own dtype" in each for each in report.passed)


def test_float16_needs_a_scaler() -> None:
    (found,) = findings(Trainer(dtype=torch.float16).check())
    assert "gradient scaler" in found.title


def test_float16_with_a_scaler_passes_and_its_scale_is_restored() -> None:
    trainer = Trainer(dtype=torch.float16, fused=False, foreach=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)

    def step(batch: Any) -> None:
        trainer.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.cross_entropy(trainer.called(batch[0]), batch[1])
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(trainer.optimizer)
        scaler.update()

    report = fastload.check_trainer(
        trainer.model, trainer.optimizer, step, (trainer.images, LABELS)
    )
    assert not report.found("amp")
    assert not report.found("sync")  # reads of the scaler itself are not counted
    assert scaler.get_scale() == 8.0


def read_item(loss: torch.Tensor) -> None:
    loss.item()


def read_cpu(loss: torch.Tensor) -> None:
    loss.cpu()


def read_print(loss: torch.Tensor) -> None:
    str(loss)


def read_format(loss: torch.Tensor) -> None:
    _ = f"{loss:.3f}"


def read_if(loss: torch.Tensor) -> None:
    if loss > 0:
        pass


def read_numpy(loss: torch.Tensor) -> None:
    loss.numpy()


def read_tolist(loss: torch.Tensor) -> None:
    loss.tolist()


def read_nonzero(loss: torch.Tensor) -> None:
    torch.nonzero(loss.reshape(1))


def read_mask(loss: torch.Tensor) -> None:
    loss.reshape(1)[torch.tensor([True])]


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (read_item, "loss.item", "reading a value"),
        (read_cpu, "loss.cpu", ".cpu()"),
        (read_print, "str(loss)", "printing"),
        (read_format, "loss:.3f", "formatting"),
        (read_if, "if loss", "reading a value"),
        (read_numpy, "loss.numpy", ".numpy()"),
        (read_tolist, "loss.tolist", ".tolist()"),
        (read_nonzero, "torch.nonzero", ".nonzero()"),
        (read_mask, "loss.reshape", "mask"),
    ],
    ids=lambda value: getattr(value, "__name__", " "),
)
def test_each_read_of_a_value_is_found_once_with_its_line(
    read: Any, text: str, message: str
) -> None:
    (found,) = findings(Trainer(after=read).check())
    assert found.kind == "sync"
    assert message in found.title
    assert "once per step" in found.title
    assert found.where.endswith(line_of(read, text) + read.__name__)


def test_reads_are_counted_by_line() -> None:
    def often(loss: torch.Tensor) -> None:
        for _ in range(3):
            loss.item()

    (found,) = findings(Trainer(after=often).check())
    assert "3 times per step" in found.title


def test_nchw_images_are_found() -> None:
    (found,) = findings(Trainer(channels_last=False).check())
    assert found.kind == "channels_last"
    assert "2 of 2" in found.title


def test_a_step_without_compilation_is_found() -> None:
    (found,) = Trainer().check().findings
    assert (found.kind, found.title) == ("compile", "nothing in the step is compiled")


def test_a_compiled_model_that_is_not_called_is_found() -> None:
    trainer = Trainer()
    compiled: Any = torch.compile(trainer.model, backend="eager")
    (found,) = fastload.check_trainer(
        compiled, trainer.optimizer, trainer.step, (trainer.images, LABELS)
    ).findings
    assert "the step calls the original" in found.title


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({"fused": False}, "one at a time"),
        ({"fused": None, "foreach": True}, "with foreach"),
        ({"fused": None, "foreach": False}, "one at a time"),
    ],
)
def test_an_optimizer_without_fused_is_found(options: dict[str, Any], how: str) -> None:
    (found,) = findings(Trainer(**options).check())
    assert found.kind == "optimizer"
    assert how in found.title
    assert "fused=True" in found.fix


def test_anomaly_detection_is_found() -> None:
    trainer = Trainer()
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        report = trainer.check()
    assert report.findings[0].kind == "anomaly"


def test_blocking_copies_to_another_device_are_found() -> None:
    """The meta device replaces a GPU: a copy to it leaves the CPU."""
    model = nn.Linear(4, 4, device="meta")

    def step(batch: torch.Tensor) -> None:
        model(batch.to("meta"))
        model(batch.to("meta", non_blocking=True))

    report = fastload.check_trainer(model, None, step, torch.rand(2, 4))
    found = report.found("copy")
    assert {each.title.split(",")[0] for each in found} == {
        "a copy to the device without non_blocking=True",
        "a copy to the device from memory that is not pinned",
    }
    assert any(line_of(step, 'batch.to("meta"))') in each.where for each in found)


def test_model_optimizer_and_random_state_are_restored() -> None:
    trainer = Trainer()
    trainer.model[0].weight.grad = torch.ones_like(trainer.model[0].weight)
    trainer.model[4].eval()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = random.random(), np.random.rand(), torch.rand(1).item()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    weights = {
        name: (value, value.clone())
        for name, value in trainer.model.state_dict(keep_vars=True).items()
    }
    trainer.check()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected
    assert not trainer.optimizer.state_dict()["state"]
    for name, value in trainer.model.state_dict(keep_vars=True).items():
        assert value is weights[name][0]
        assert torch.equal(value, weights[name][1]), name
    grads = [each.grad for each in trainer.model.parameters()]
    assert torch.equal(grads[0], torch.ones_like(grads[0]))
    assert grads[1:] == [None] * (len(grads) - 1)
    assert [each.training for each in trainer.model] == [number != 4 for number in range(8)]


def test_the_state_of_the_optimizer_is_restored() -> None:
    trainer = Trainer()
    batch = trainer.images, LABELS
    trainer.step(batch)
    before = trainer.optimizer.state_dict()["state"][0]
    kept = {name: value.clone() for name, value in before.items()}
    trainer.check()
    after = trainer.optimizer.state_dict()["state"][0]
    assert all(torch.equal(after[name], value) for name, value in kept.items())


def test_a_failing_step_is_reported_and_undone() -> None:
    trainer = Trainer()
    before = trainer.model[0].weight.clone()

    def step(batch: Any) -> None:
        trainer.step(batch)
        raise RuntimeError("out of\nmemory")

    with pytest.raises(fastload.ConfigError, match="the step raised RuntimeError: out of"):
        fastload.check_trainer(trainer.model, trainer.optimizer, step, (trainer.images, LABELS))
    assert torch.equal(trainer.model[0].weight, before)
    assert not findings(trainer.check())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 3, "expected a torch.nn.Module"),
        (1, 3, "expected a torch optimizer"),
        (2, 3, "expected a function"),
    ],
)
def test_wrong_arguments_are_rejected(place: int, value: Any, message: str) -> None:
    trainer = Trainer()
    given: list[Any] = [trainer.model, trainer.optimizer, trainer.step, (trainer.images, LABELS)]
    given[place] = value
    with pytest.raises(fastload.ConfigError, match=message):
        fastload.check_trainer(*given)


def test_a_detection_batch_is_counted_by_its_images() -> None:
    model = nn.Linear(4, 2)
    images = [torch.zeros(3, 20 + number, 30) for number in range(8)]
    batch = (images, [{"boxes": torch.zeros(2, 4)} for _ in images])
    found = fastload.check_trainer(model, None, lambda _: model(torch.zeros(1, 4)).sum(), batch)
    assert found.numbers.batch_size == 8
