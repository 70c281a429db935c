"""``fastload.migrate``: the code that replaces a torch DataLoader with a fastload one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
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


@public()
@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """The result of ``fastload.migrate``. ``print`` shows all of it.

    Attributes:
        command: Shell command that packs the dataset. Empty if only Python can pack it.
        pack_code: Python code that packs the dataset.
        torch_code: The current loader, as far as it can be reconstructed.
        loader_code: Python code that creates the fastload loader.
        transforms: Each transform and its fastload equivalent.
        notes: What differs, and what is left to do.
        refused: What cannot be translated, and why. ``loader_code`` raises NotImplementedError
            with these reasons until you remove that line.

    Examples:
        >>> migration = fastload.migrate(loader)
        >>> print(migration.loader_code)
    """

    command: str
    pack_code: str
    torch_code: str
    loader_code: str
    transforms: tuple[Translated, ...]
    notes: tuple[str, ...]
    refused: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether everything has an equivalent."""
        return not self.refused

    def as_json(self) -> dict[str, object]:
        """Returns dicts, lists and strings."""
        return {
            **asdict(self),
            "transforms": [each.as_json() for each in self.transforms],
            "notes": list(self.notes),
            "refused": list(self.refused),
            "complete": self.complete,
        }

    def __str__(self) -> str:
        lines = [
            "1. Pack the dataset once:",
            *_indented(self.command or self.pack_code),
            "",
            "2. Change the loader:",
            *_indented(self.torch_code, "  - "),
            *_indented(self.loader_code, "  + "),
        ]
        if self.transforms:
            lines += ["", "3. Check the transforms:"]
        width = max((len(each.was) for each in self.transforms), default=0)
        for each in self.transforms:
            becomes = each.code or ("no equivalent" if each.lost else "not needed")
            note = f"  ({each.note})" if each.note else ""
            lines.append(f"  {each.was:{width}}  {becomes}{note}")
        if self.refused:
            lines += ["", *(f"Refused: {each}" for each in self.refused)]
        if self.notes:
            lines += ["", *(f"Note: {each}" for each in self.notes)]
        return "\n".join(lines)


def _indented(text: str, by: str = "  ") -> list[str]:
    return [by + line for line in text.splitlines()]


def migrate(loader: torch.utils.data.DataLoader[Any], *, dest: str = "packed") -> Migration:
    """Returns the pack command for the loader's dataset and the code of an equivalent loader.

    Nothing is packed or changed. torchvision transforms are translated to fastload transforms.

    Args:
        loader: A torch DataLoader.
        dest: Folder of the packed dataset in the returned code. Default: "packed".

    Returns:
        The code and notes about differences.

    Raises:
        ConfigError: ``loader`` is not a torch DataLoader, or is already a fastload loader.

    Examples:
        >>> print(fastload.migrate(loader))
    """
    if isinstance(loader, DataLoader):
        raise ConfigError("migrate: expected a torch DataLoader, found a fastload loader")
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise ConfigError(f"migrate: expected a torch DataLoader, found {type(loader).__name__}")
    order = _Order(loader)
    pack = how_to_pack(loader.dataset, dest, same_order=order.uses_ids)
    transform = _transform_of(loader.dataset)
    translated = translate(transform)
    arguments, notes = _other_arguments(loader)
    color = "gray" if wants_gray(transform) else pack.color
    if color:
        arguments["color"] = repr(color)
    size_notes, refused = _check_transforms(loader.dataset, translated)
    refused = [
        *([pack.refused] if pack.refused else []),
        *(f"{each.was}: {each.note}" for each in translated if each.lost),
        *refused,
    ]
    return Migration(
        command=pack.command,
        pack_code=pack.code,
        torch_code=_torch_code(loader, order),
        loader_code=_loader_code(
            dest,
            {**order.arguments, **arguments},
            [each.code for each in translated if each.code],
            refused,
        ),
        transforms=tuple(translated),
        notes=(*pack.notes, *order.notes, *notes, *size_notes),
        refused=tuple(refused),
    )


class _Order:
    """The order of the samples: arguments for both loaders, and whether sample ids matter."""

    def __init__(self, loader: torch.utils.data.DataLoader[Any]) -> None:
        self.arguments: dict[str, str] = {}
        self.torch: dict[str, str] = {}
        self.notes: list[str] = []
        self.uses_ids = False
        batches = loader.batch_sampler
        if batches is not None and type(batches) is not BatchSampler:
            self._keep("batch_sampler", batches)
            return
        # torch resets batch_size, drop_last and sampler of a loader that is given a batch_sampler.
        given = loader if batches is None else batches
        self._both("batch_size", repr(given.batch_size))
        if given.drop_last:
            self._both("drop_last", "True")
        if isinstance(loader.dataset, torch.utils.data.IterableDataset):
            self.notes.append(
                "an IterableDataset is not shuffled; add shuffle=True if it should be"
            )
        else:
            self._sampler(given.sampler)

    def _sampler(self, sampler: Any) -> None:
        if (
            type(sampler) is RandomSampler
            and not sampler.replacement
            and sampler._num_samples is None
        ):
            self._both("shuffle", "True")
            if sampler.generator is not None:
                self.arguments["seed"] = repr(sampler.generator.initial_seed() % 2**63)
        elif isinstance(sampler, DistributedSampler):
            options = {
                "shuffle": sampler.shuffle,
                "drop_last": sampler.drop_last,
                "seed": sampler.seed,
            }
            self.arguments |= {name: repr(value) for name, value in options.items() if value}
            self.torch["sampler"] = "DistributedSampler(...)"
            self.notes.append(
                "DistributedSampler is not needed: the loader detects rank and world size and "
                "counts epochs"
            )
            if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
                self.arguments["rank"] = repr(sampler.rank)
                self.arguments["world_size"] = repr(sampler.num_replicas)
                self.notes.append(
                    "rank and world_size are those of your sampler, because torch.distributed is "
                    "not initialized here; omit them under torchrun"
                )
        elif type(sampler) is not SequentialSampler:
            self._keep("sampler", sampler)

    def _both(self, name: str, value: str) -> None:
        self.arguments[name] = value
        self.torch[name] = value

    def _keep(self, name: str, sampler: object) -> None:
        self.uses_ids = True
        self._both(name, f"my_{name}")
        self.notes.append(f"my_{name} is your unchanged {type(sampler).__name__}")


def _other_arguments(loader: torch.utils.data.DataLoader[Any]) -> tuple[dict[str, str], list[str]]:
    """Returns the arguments with the same meaning in fastload, and notes about the others."""
    arguments: dict[str, str] = {}
    notes: list[str] = []
    if loader.pin_memory:
        arguments["pin_memory"] = "True"
    if loader.timeout:
        arguments["timeout"] = repr(loader.timeout)
    if loader.generator is not None:
        arguments["seed"] = repr(loader.generator.initial_seed() % 2**63)
        notes.append("the seed of the generator is kept, but the resulting order is different")
    if loader.num_workers:
        notes.append(
            f"num_workers={loader.num_workers} is omitted: fastload decodes in threads, "
            "by default one per available core"
        )
    given = {
        "worker_init_fn": loader.worker_init_fn is not None,
        "persistent_workers": loader.persistent_workers,
        "prefetch_factor": loader.prefetch_factor not in (None, 2),
        "multiprocessing_context": loader.multiprocessing_context is not None,
    }
    omitted = ", ".join(name for name, is_given in given.items() if is_given)
    if omitted:
        notes.append(f"{omitted}: omitted, because there are no worker processes")
    if loader.collate_fn not in (default_collate, torch.utils.data.default_convert):
        name = getattr(loader.collate_fn, "__name__", "")
        name = name if name.isidentifier() else "my_collate"
        arguments["collate_fn"] = name
        notes.append(
            f"collate_fn={name} receives the samples of a batch as before; "
            "without it, fastload collates natively"
        )
    return arguments, notes


def _transform_of(dataset: Any) -> object:
    """Returns the transform of the dataset, or of its first part if it has several."""
    found = transforms_of(next(innermost(dataset))[1])
    return found[0][1] if found else None


def _check_transforms(
    dataset: Any, translated: Sequence[Translated]
) -> tuple[list[str], list[str]]:
    """Checks the list as a whole; returns notes and reasons why it is not equivalent."""
    from fastload._plan.compiler import compile

    notes: list[str] = []
    refused: list[str] = []
    codes = [each.code for each in translated]
    parts = (part for _, part in innermost(dataset))
    if any([each.code for each in translate(_transform_of(part))] != codes for part in parts):
        refused.append("the parts of this dataset have different transforms: migrate each of them")
    try:
        if compile([each.call.make() for each in translated if each.call]).size is None:
            notes.append(
                "no transform sets the image size: add T.Resize(height, width), "
                "unless all images have the same size"
            )
    except ConfigError as error:
        refused.append(f"the translated transforms are invalid: {error}")
    return notes, refused


def _torch_code(loader: torch.utils.data.DataLoader[Any], order: _Order) -> str:
    names = ("num_workers", "pin_memory", "persistent_workers")
    given = order.torch | {name: repr(value) for name in names if (value := getattr(loader, name))}
    arguments = ", ".join(f"{name}={value}" for name, value in given.items())
    return f"loader = torch.utils.data.DataLoader(dataset, {arguments})"


def _loader_code(
    dest: str, arguments: dict[str, str], transforms: list[str], refused: list[str]
) -> str:
    """Returns the imports and the call, with one argument per line."""
    lines = [repr(dest), *(f"{name}={value}" for name, value in arguments.items())]
    if transforms:
        steps = ",\n        ".join(transforms)
        lines.append(f"transform=[\n        {steps},\n    ]")
    code = "import fastload\n" + ("from fastload import transforms as T\n" if transforms else "")
    if refused:
        code += (
            "\n# The loader below is not equivalent. Remove this line when you have solved it.\n"
            f"raise NotImplementedError({'; '.join(refused)!r})\n"
        )
    return code + "\nloader = fastload.DataLoader(\n    " + ",\n    ".join(lines) + ",\n)"
