"""``fastload.migrate``: what to type to move an existing torch DataLoader to fastload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from fastload._common.public import public
from fastload._load.loader import DataLoader
from fastload._tools.migrate.packing import how_to_pack, innermost, transforms_of
from fastload._tools.migrate.transforms import Translated, translate, wants_gray
from fastload.errors import ConfigError

_WIDTH = 116


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """``print(migration)`` shows all of it; ``pack_code`` and ``loader_code`` are Python that runs."""

    command: str  # for a shell; empty where only Python can pack this dataset
    pack_code: str
    torch_code: str  # the loader as it was made, as far as it can be told
    loader_code: str
    transforms: tuple[Translated, ...]
    notes: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Nothing is left to be done by hand."""
        return not any(each.lost for each in self.transforms)

    def as_json(self) -> dict[str, object]:
        """Plain dicts, lists and text."""
        return {
            "command": self.command,
            "pack_code": self.pack_code,
            "torch_code": self.torch_code,
            "loader_code": self.loader_code,
            "transforms": [each.as_json() for each in self.transforms],
            "notes": list(self.notes),
            "complete": self.complete,
        }

    def __str__(self) -> str:
        lines = [
            "1. Pack once:",
            *_indented(self.command or self.pack_code),
            "",
            "2. Change the loader:",
        ]
        lines += _indented(self.torch_code, "  - ") + _indented(self.loader_code, "  + ")
        if self.transforms:
            width = max(len(each.was) for each in self.transforms)
            lines += ["", "3. The transforms:"]
            for each in self.transforms:
                becomes = each.code or ("no equal" if each.lost else "not needed")
                lines.append(
                    f"  {each.was:{width}}  {becomes}" + (f"  ({each.note})" if each.note else "")
                )
        lines += ["", *(f"Note: {each}" for each in self.notes)] if self.notes else []
        return "\n".join(lines)


def _indented(text: str, by: str = "  ") -> list[str]:
    return [by + line for line in text.splitlines()]


def migrate(loader: torch.utils.data.DataLoader[Any], *, dest: str = "packed") -> Migration:
    """The pack command (or call) for the loader's dataset and the changed lines; nothing is packed or changed.

    ``dest``: the folder that these lines name for the packed dataset. torchvision's transforms are written as fastload's.

        print(fastload.migrate(loader))
    """
    if isinstance(loader, DataLoader):
        raise ConfigError("migrate: this is a fastload loader already")
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise ConfigError(f"migrate: expected a torch DataLoader, found {type(loader).__name__}")
    order = _Order(loader)
    pack = how_to_pack(loader.dataset, dest, same_numbers=order.needs_numbers)
    transform = _transform_of(loader.dataset)
    notes = list(order.notes)
    translated = translate(transform)
    arguments = {**order.arguments, **_carried(loader, notes)}
    if pack.rgb or wants_gray(transform):
        arguments["color"] = repr("gray" if wants_gray(transform) else "rgb")
    notes += _transform_notes(loader.dataset, translated, listed=pack.rgb)
    return Migration(
        command=pack.command,
        pack_code=pack.code,
        torch_code=_torch_line(loader, order),
        loader_code=_our_lines(dest, arguments, [each.code for each in translated if each.code]),
        transforms=tuple(translated),
        notes=(*pack.notes, *notes),
    )


class _Order:
    """Which samples come when: as arguments, and whether samples must keep their numbers."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.arguments: dict[str, str] = {}
        self.torch: dict[str, str] = {}
        self.notes: list[str] = []
        self.needs_numbers = False
        streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
            self._own("batch_sampler", type(loader.batch_sampler).__name__)
            return
        self.arguments["batch_size"] = self.torch["batch_size"] = repr(loader.batch_size)
        if loader.drop_last:
            self.arguments["drop_last"] = self.torch["drop_last"] = "True"
        if streams:
            self.notes.append(
                "a stream has no order of its own to shuffle; a packed dataset can: shuffle=True"
            )
        else:
            self._sampler(loader.sampler)

    def _sampler(self, sampler: Any) -> None:
        if (
            type(sampler) is RandomSampler
            and not sampler.replacement
            and sampler._num_samples is None
        ):
            self.arguments["shuffle"] = self.torch["shuffle"] = "True"
        elif isinstance(sampler, DistributedSampler):
            self.arguments |= {"shuffle": "True"} if sampler.shuffle else {}
            self.arguments |= {"drop_last": "True"} if sampler.drop_last else {}
            self.arguments |= {"seed": repr(sampler.seed)} if sampler.seed else {}
            self.torch["sampler"] = "DistributedSampler(...)"
            self.notes.append(
                "no DistributedSampler: the loader finds rank and world size by itself, and counts epochs"
            )
        elif type(sampler) is not SequentialSampler:
            self._own("sampler", type(sampler).__name__)

    def _own(self, name: str, kind: str) -> None:
        self.needs_numbers = True
        self.arguments[name] = self.torch[name] = f"my_{name}"
        self.notes.append(f"my_{name} is your {kind}, as it is")


def _carried(loader: torch.utils.data.DataLoader[Any], notes: list[str]) -> dict[str, str]:
    """Arguments that mean the same here; for the others a note."""
    carried: dict[str, str] = {}
    if loader.pin_memory:
        carried["pin_memory"] = "True"
    if loader.timeout:
        carried["timeout"] = repr(loader.timeout)
    if loader.generator is not None:
        carried["seed"] = repr(loader.generator.initial_seed() % 2**63)
        notes.append(
            "the generator's seed is carried over; the order that follows from it is another one"
        )
    if loader.num_workers:
        notes.append(
            f"num_workers={loader.num_workers} is left out: decode threads of this process, as many as this job has cores"
        )
    given = {
        "worker_init_fn": loader.worker_init_fn is not None,
        "persistent_workers": loader.persistent_workers,
        "prefetch_factor": loader.prefetch_factor not in (None, 2),
        "multiprocessing_context": loader.multiprocessing_context is not None,
    }
    gone = [name for name, there in given.items() if there]
    if gone:
        notes.append(
            f"{', '.join(gone)}: there are no worker processes, leave {'it' if len(gone) == 1 else 'them'} out"
        )
    if loader.collate_fn not in (default_collate, torch.utils.data.default_convert):
        name = getattr(loader.collate_fn, "__name__", "my_collate")
        carried["collate_fn"] = name if name.isidentifier() else "my_collate"
        notes.append(
            f"collate_fn={carried['collate_fn']} is called with a batch's samples, as now; without it they are collated natively"
        )
    return carried


def _transform_of(dataset: Any) -> object:
    """Of the first part, where the dataset is made of several."""
    found = transforms_of(next(innermost(dataset))[1])
    return found[0][1] if found else None


def _transform_notes(dataset: Any, translated: Sequence[Translated], *, listed: bool) -> list[str]:
    """What cannot be seen in the list itself: whether it can be planned, and whether images come out in one size."""
    from fastload._plan.compiler import compile

    notes: list[str] = []
    parts = [part for _, part in innermost(dataset)]
    if any(
        [each.code for each in translate(_transform_of(part))] != [each.code for each in translated]
        for part in parts
    ):
        notes.append(
            "the parts of this dataset have transforms of their own; these are the first one's"
        )
    if listed and any(getattr(part, "target_transform", None) is not None for part in parts):
        notes.append(
            "target_transform is not carried over: do it to the labels before packing, or to the batch"
        )
    try:
        made = [each.call.make() for each in translated if each.call]
        if compile(made).size is None:
            notes.append(
                "no transform gives the images one size: they must have one already, or add T.Resize(height, width)"
            )
    except ConfigError as error:
        notes.append(f"the translated list cannot be used as it is: {error}")
    return notes


def _torch_line(loader: torch.utils.data.DataLoader[Any], order: _Order) -> str:
    given = dict(order.torch)
    if loader.num_workers:
        given["num_workers"] = repr(loader.num_workers)
    for name in ("pin_memory", "persistent_workers"):
        if getattr(loader, name):
            given[name] = "True"
    return f"loader = torch.utils.data.DataLoader(dataset, {', '.join(f'{name}={value}' for name, value in given.items())})"


def _our_lines(dest: str, arguments: dict[str, str], transforms: list[str]) -> str:
    """The import lines and the call, broken where it is long."""
    start = f"loader = fastload.DataLoader({dest!r}"
    lines = [start]
    indent = " " * len("loader = fastload.DataLoader(")
    parts = [f"{name}={value}" for name, value in arguments.items()]
    if transforms:
        parts.append("transform=[" + ", ".join(transforms) + "]")
    for part in parts:
        if len(lines[-1]) + len(part) + 3 > _WIDTH:
            lines[-1] += ","
            lines.append(indent + part)
        else:
            lines[-1] += f", {part}"
    imports = "import fastload\n" + ("from fastload import transforms as T\n" if transforms else "")
    return imports + "\n" + "\n".join(lines) + ")"
