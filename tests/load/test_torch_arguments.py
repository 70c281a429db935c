"""Every argument of torch's DataLoader has an effect or causes a warning."""

from __future__ import annotations

import inspect
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fastload
from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._load.options import UNUSED, LoaderOptions, Ranks
from fastload._store.dataset import open_dataset
from fastload.errors import ConfigError
from tests.loading import same_batch

N = 20
RESIZED = [T.Resize(16, 20)]


def torch_parameters() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(torch.utils.data.DataLoader).parameters)


def test_positional_arguments_have_the_order_of_torch() -> None:
    wanted = [
        name
        for name, each in torch_parameters().items()
        if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    ours = [
        name
        for name, each in inspect.signature(DataLoader).parameters.items()
        if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert ours == wanted


# Each supported argument of torch and a value; UNUSED arguments cause a warning.
SUPPORTED: dict[str, Any] = {
    "batch_size": 5,
    "shuffle": True,
    "sampler": range(6),
    "batch_sampler": [[0, 1], [2]],
    "num_workers": 2,
    "collate_fn": len,
    "drop_last": True,
    "timeout": 60.0,
    "generator": torch.Generator(),
    "prefetch_factor": 2,
}
ANSWERED: dict[str, Any] = {
    "worker_init_fn": print,
    "multiprocessing_context": "fork",
    "pin_memory_device": "cuda",
    "in_order": False,
}
SILENT: dict[str, Any] = {
    "persistent_workers": True,
    "worker_init_fn": None,
    "multiprocessing_context": None,
    "pin_memory_device": "",
    "in_order": True,
    "pin_memory": False,
}


def test_the_table_has_every_argument_that_this_torch_knows() -> None:
    assert {*SUPPORTED, *ANSWERED, *SILENT, "dataset"} >= torch_parameters().keys()


@pytest.mark.parametrize("name", sorted(SUPPORTED.keys() & torch_parameters().keys()))
def test_supported_arguments_cause_no_warning(packed: Path, name: str) -> None:
    batches = list(DataLoader(packed, transform=RESIZED, **{name: SUPPORTED[name]}))
    assert {"batch_size": 4, "batch_sampler": 2, "sampler": 6}.get(name, 20) == len(batches)


@pytest.mark.parametrize("name", sorted(ANSWERED.keys() & torch_parameters().keys()))
def test_unused_arguments_cause_a_warning_at_the_caller(packed: Path, name: str) -> None:
    with pytest.warns(UserWarning, match=f"{name} has no effect: ") as caught:
        loader = DataLoader(packed, transform=RESIZED, **{name: ANSWERED[name]})
    assert [Path(each.filename).name for each in caught] == [Path(__file__).name]
    assert len(list(loader)) == 20
    assert UNUSED[name].reason in str(caught[0].message)


def test_defaults_of_torch_cause_no_warning(packed: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, value in SILENT.items():
            DataLoader(packed, transform=RESIZED, **{name: value})


def test_it_is_a_torch_dataloader_with_its_attributes(packed: Path) -> None:
    dataset = open_dataset(packed)
    loader = DataLoader(
        dataset,
        6,
        shuffle=True,
        drop_last=True,
        transform=RESIZED,
        num_workers=2,
        timeout=9,
        prefetch_factor=4,
    )
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert (loader.batch_size, loader.drop_last, len(loader)) == (6, True, 3)
    assert (loader.num_workers, loader.timeout, loader.pin_memory, loader.prefetch_factor) == (
        0,
        0,
        False,
        None,
    )
    assert (len(loader.dataset), loader.packed, loader.dataset.classes) == (  # type: ignore[arg-type, attr-defined]
        20,
        dataset,
        dataset.classes,
    )
    assert (
        loader.batch_sampler.batch_size,  # type: ignore[union-attr]
        loader.batch_sampler.drop_last,  # type: ignore[union-attr]
        len(loader.batch_sampler),  # type: ignore[arg-type]
    ) == (6, True, 3)
    assert len(loader.sampler) == 18  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="attribute should not be set"):
        loader.batch_size = 7
    whole = DataLoader(dataset, 6, transform=RESIZED)
    assert (whole.drop_last, len(whole), len(whole.sampler)) == (False, 4, 20)  # type: ignore[arg-type]
    assert whole.batch_sampler.sampler is whole.sampler  # type: ignore[union-attr]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_sampler_has_the_attributes_of_a_distributed_sampler(
    packed: Path, drop_last: bool
) -> None:
    loader = DataLoader(
        packed, batch_size=1, shuffle=True, seed=4, rank=1, world_size=3, drop_last=drop_last
    )
    theirs = torch.utils.data.DistributedSampler(range(20), 3, 1, seed=4, drop_last=drop_last)  # type: ignore[arg-type, var-annotated]
    found = {name: getattr(loader.sampler, name) for name in vars(theirs)}
    assert found == {**vars(theirs), "dataset": loader.dataset}
    loader.set_epoch(3)
    assert loader.sampler.epoch == 3  # type: ignore[attr-defined]


def test_path_dataset_and_loader_dataset_are_equivalent(packed: Path) -> None:
    first = DataLoader(packed, 4, transform=RESIZED)
    for same in (str(packed), open_dataset(packed), first.dataset):
        assert all(map(same_batch, DataLoader(same, 4, transform=RESIZED), first))  # type: ignore[arg-type]
        first.set_epoch(0)


def test_a_loader_dataset_keeps_its_options_in_another_loader(packed: Path) -> None:
    first = DataLoader(
        packed,
        4,
        transform=[*RESIZED, T.Normalize(0.5, 0.5)],
        fields=("image", "id"),
        return_matrix=True,
    )
    for dataset in (first.dataset, pickle.loads(pickle.dumps(first.dataset))):
        first.set_epoch(0)
        assert all(map(same_batch, DataLoader(dataset, 4), first))  # type: ignore[arg-type]
    other = DataLoader(first.dataset, 4, transform=RESIZED)  # type: ignore[arg-type]
    assert isinstance(next(iter(other)), tuple)  # one explicit option replaces all of them
    assert torch.equal(
        next(iter(other))[0], next(iter(DataLoader(packed, 4, transform=RESIZED)))[0]
    )


class Unpacked(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return index


def test_the_error_for_an_unpacked_dataset_says_how_to_pack_it(packed: Path) -> None:
    with pytest.raises(
        TypeError,
        match=r"loads packed datasets, not a Unpacked. Pack it once: fastload.pack\(dataset, 'packed'\)",
    ):
        DataLoader(Unpacked())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not a Subset\. Pack it once"):
        DataLoader(torch.utils.data.Subset(Unpacked(), [1]))  # type: ignore[arg-type]
    with pytest.raises(fastload.StoreError, match="no such folder"):
        DataLoader(packed / "nowhere")
    assert len(DataLoader(packed)) == 20


def test_the_error_for_a_subset_suggests_a_sampler(packed: Path) -> None:
    for whole in (fastload.open(packed), DataLoader(packed).dataset):
        subset = torch.utils.data.Subset(whole, [3, 1])  # type: ignore[arg-type]
        with pytest.raises(
            TypeError,
            match=r"not a Subset of one.*subset.dataset, sampler=torch.utils.data.SubsetRandomSampler",
        ):
            DataLoader(subset)  # type: ignore[arg-type]
        loader = DataLoader(
            subset.dataset,  # type: ignore[arg-type]
            fields=("id",),
            sampler=torch.utils.data.SubsetRandomSampler(subset.indices),
        )
        assert sorted(int(batch["id"]) for batch in loader) == [1, 3]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"batch_size": 0}, "batch_size=0: expected None (single samples) or a number of samples"),
    ({"batch_size": 2.5}, "batch_size=2.5"),
    ({"batch_size": True}, "batch_size=True"),
    ({"shuffle": "blocks"}, "shuffle='blocks': expected True"),
    ({"shuffle": True, "sampler": range(3)}, "shuffle=True contradicts sampler"),
    ({"sampler": range(3), "batch_sampler": [[1]]}, "batch_sampler decides batches"),
    (
        {"sampler": range(3), "last_batch": "pad"},
        "last_batch, window and repeats have no effect with a sampler",
    ),
    ({"batch_sampler": [[1]], "window": 4}, "with a sampler"),
    (
        {"batch_size": 4, "batch_sampler": [[1]]},
        "omit batch_size, shuffle, sampler and drop_last",
    ),
    ({"drop_last": True, "batch_sampler": [[1]]}, "batch_sampler decides"),
    (
        {"drop_last": True, "batch_size": None},
        "drop_last=True: expected False with batch_size=None",
    ),
    ({"num_workers": -1}, "num_workers=-1: expected None"),
    ({"num_workers": 5000}, "num_workers=5000"),
    ({"prefetch_factor": 0}, "prefetch_factor=0"),
    ({"timeout": -1}, "timeout=-1: expected a number of seconds"),
    ({"timeout": float("inf")}, "timeout=inf"),
    ({"seed": -1}, "seed=-1"),
    ({"seed": 2**63}, "seed=9223372036854775808: expected None or a whole number"),
    ({"generator": 7}, "generator=7: expected None or a torch.Generator"),
    ({"rank": 2, "world_size": 2}, "rank=2, world_size=2"),
    ({"rank": "0", "world_size": 2}, "rank='0'"),
    ({"last_batch": "cut"}, "last_batch='cut'"),
    ({"last_batch": "pad", "drop_last": True}, "drop_last=True contradicts last_batch='pad'"),
    ({"window": 0}, "window=0"),
    ({"backend": "gpu"}, "backend='gpu': expected one of auto, native, dali, nvjpeg, reference"),
    ({"device": "tpu9"}, "device='tpu9'"),
    ({"device": "meta"}, "device='meta'"),
    ({"color": "hsv"}, "color='hsv'"),
    ({"ragged": "zeros"}, "ragged='zeros'"),
    (
        {"ragged": {"boxes": "list"}},
        "'boxes' is not a delivered field. Expected some of image, label",
    ),
    ({"ragged": {"label": 3}}, "ragged={'label': 3}: expected 'list'"),
    ({"on_error": "skip"}, "on_error='skip'"),
    ({"max_bad": -1, "on_error": "substitute"}, "max_bad=-1"),
    ({"max_bad": 3}, "max_bad=3: expected None with on_error='raise'"),
    ({"fields": {"image", "label"}}, "expected a list, because a set has no order"),
    (
        {"transform": [T.Letterbox(9, fill=(1, 2))]},
        "transform of 'image': fill has values for 2 channels, but the images have 3",
    ),
    (
        {"transform": [T.CenterCrop(9, fill=(1, 2, 3))], "color": "gray"},
        "fill has values for 3 channels, but the images have 1",
    ),
    ({"fields": ()}, "expected a selection of image, label, id, source"),
    ({"fields": ("image", "image")}, "without duplicates"),
    ({"fields": ("photo",)}, "expected a selection of image, label"),
    ({"transform": {"photo": RESIZED}}, "'photo' is not an image field"),
    (
        {"transform": [T.Resize(8, 8), T.Normalize((0.5, 0.5), (0.5, 0.5))]},
        "Normalize has values for 2 channels, but the images have 3",
    ),
    (
        {"transform": [T.Resize(8, 8), T.ColorJitter(brightness=0.5)], "color": "bgr"},
        "color='bgr': transforms that change colors work on RGB only",
    ),
]


@pytest.mark.parametrize(
    ("arguments", "message"),
    WRONG,
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_invalid_options_are_rejected_by_the_constructor(
    packed: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        DataLoader(packed, **{"transform": RESIZED, **arguments})
    assert message in str(caught.value)
    assert len(list(DataLoader(packed, 4, transform=RESIZED))) == 5


def test_an_unknown_argument_is_a_type_error(packed: Path) -> None:
    with pytest.raises(
        TypeError, match=r"unexpected argument 'transfrom'. Did you mean 'transform'\?"
    ):
        DataLoader(packed, transfrom=RESIZED)


def test_cuda_without_a_gpu_is_rejected(packed: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("not run: there is a CUDA device")
    with pytest.raises(ConfigError, match="sees no CUDA device here"):
        DataLoader(packed, device="cuda", transform=RESIZED)


def test_pin_memory_without_cuda_warns_like_torch_and_loads(packed: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("not run: there is a CUDA device")
    with pytest.warns(UserWarning, match="pin_memory has no effect: torch sees no CUDA device"):
        loader = DataLoader(packed, 4, pin_memory=True, transform=RESIZED)
    assert loader.pin_memory is True
    assert not next(iter(loader))[0].is_pinned()


def test_images_of_several_sizes_need_a_transform(packed: Path) -> None:
    with pytest.raises(ConfigError, match="images of a batch differ in size: sample"):
        next(iter(DataLoader(packed, 20)))


def test_a_truthy_shuffle_is_the_same_as_true(packed: Path) -> None:
    """torch accepts any true value, but the state must be JSON."""
    expected = DataLoader(packed, 4, shuffle=True, transform=RESIZED)
    for shuffle in (1, np.True_):
        loader = DataLoader(packed, 4, shuffle=shuffle, transform=RESIZED)  # type: ignore[arg-type]
        assert json.dumps(loader.state_dict()) == json.dumps(expected.state_dict())
        assert loader.blocks


def test_the_seed_follows_the_generator(packed: Path) -> None:
    def ids(**arguments: Any) -> list[int]:
        return [
            i
            for batch in DataLoader(
                packed, 4, shuffle=True, transform=RESIZED, fields=("id",), **arguments
            )
            for i in batch["id"].tolist()
        ]

    seeded = torch.Generator().manual_seed(11)
    assert ids(generator=seeded) == ids(seed=11) == ids(generator=torch.Generator().manual_seed(11))
    assert ids(seed=11) != ids(seed=12)
    assert ids() == ids(seed=0)


def test_ranks_are_taken_from_arguments_or_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TORCHELASTIC_RUN_ID",
        "LOCAL_WORLD_SIZE",
        "SLURM_NTASKS_PER_NODE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "RANK",
        "WORLD_SIZE",
    ):
        monkeypatch.delenv(name, raising=False)
    assert Ranks.here() == Ranks(0, 1, 1)
    assert Ranks.here(3, 8) == Ranks(3, 8, 8)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert Ranks.here() == Ranks(0, 1, 1)  # not set by torchrun, which sets its run id as well
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "r")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert Ranks.here() == Ranks(5, 8, 4)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "2")
    assert Ranks.here() == Ranks(5, 8, 2)


def test_threads_are_num_workers_or_the_cpus_of_this_rank(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastload._load.options.available_cpus", lambda: 12)
    dataset = open_dataset(packed)

    def budget(num_workers: int | None, local_world: int) -> int:
        ranks = Ranks(0, local_world, local_world)
        return LoaderOptions(dataset=dataset, num_workers=num_workers).thread_budget(ranks)

    assert [budget(None, ranks) for ranks in (1, 4, 100)] == [12, 3, 1]
    assert [budget(workers, 4) for workers in (0, 1, 7)] == [1, 1, 7]
