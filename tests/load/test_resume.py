"""A run resumes exactly from any state, even with another world size or batch size."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fastload import transforms as T
from fastload._load.loader import DataLoader
from fastload._order.saved_state import shortened
from fastload.errors import ConfigError
from tests.loading import backends, pack_photos, same_batch

N = 41
PHOTOS = {"size": (48, 40)}
CROPPED = [T.RandomResizedCrop(12), T.HorizontalFlip(), T.ColorJitter(saturation=0.5)]


def make(packed: Path, **options: Any) -> DataLoader:
    return DataLoader(
        packed,
        **{
            "batch_size": 6,
            "shuffle": True,
            "transform": CROPPED,
            "seed": 4,
            "fields": ("image", "label", "id"),
            **options,
        },
    )


def saved(loader: DataLoader) -> str:
    text = json.dumps(loader.state_dict())
    assert len(text) < 4096
    return text


def restored(packed: Path, state: str, **options: Any) -> DataLoader:
    loader = make(packed, **options)
    loader.load_state_dict(json.loads(state))
    return loader


def two_epochs_with_states(loader: DataLoader) -> tuple[list[Any], list[str]]:
    """Returns all batches of two epochs, and the state before each batch and after the last one."""
    states, batches = [saved(loader)], []
    for _ in range(2):
        for batch in loader:
            batches.append(batch)
            states.append(saved(loader))
    return batches, states


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": False},
        {"shuffle": "full", "drop_last": True},
        {"rank": 1, "world_size": 3},
        {"rank": 2, "world_size": 3, "last_batch": "partial"},
    ],
    ids=str,
)
def test_every_state_resumes_with_identical_batches(packed: Path, options: dict[str, Any]) -> None:
    batches, states = two_epochs_with_states(make(packed, **options))
    per_epoch = len(batches) // 2
    assert len({tuple(json.loads(state)) for state in states}) == 1  # the same keys at every step
    for done, state in enumerate(states[:-1]):
        loader = restored(packed, state, **options)
        assert len(loader) == per_epoch
        rest = list(loader)
        assert same_batch(rest, batches[done : (done // per_epoch + 1) * per_epoch])
        if done % 3 == 0 and done < per_epoch:
            assert same_batch(list(loader), batches[per_epoch:])  # and the next epoch is complete
    assert json.loads(states[-1])["epoch"] == 2


@pytest.mark.parametrize(
    "options", [{"num_workers": 5}, {"prefetch_factor": 7}, {"device": "cpu"}], ids=str
)
def test_options_that_do_not_affect_the_order_may_change(
    packed: Path, options: dict[str, Any]
) -> None:
    batches, states = two_epochs_with_states(make(packed))
    for done in (0, 3, 6):
        assert same_batch(list(restored(packed, states[done], **options)), batches[done:7])


@pytest.mark.parametrize("backend", backends())
def test_another_backend_resumes_with_the_same_samples(packed: Path, backend: str) -> None:
    batches, states = two_epochs_with_states(make(packed, backend="reference"))
    rest = list(restored(packed, states[2], backend=backend))
    assert all(
        same_batch(one["id"], other["id"]) for one, other in zip(rest, batches[2:7], strict=True)
    )


@pytest.mark.parametrize(
    "worlds", [((1, 6), (2, 6)), ((2, 5), (1, 7)), ((4, 2), (3, 4)), ((3, 3), (3, 5))], ids=str
)
def test_other_world_and_batch_sizes_lose_and_repeat_no_sample(
    packed: Path, worlds: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    """Stops at every step with one world size and resumes with another: every sample once."""
    (world, size), (other_world, other_size) = worlds
    ranks = [
        make(packed, batch_size=size, rank=rank, world_size=world, last_batch="partial")
        for rank in range(world)
    ]
    iterators = [iter(rank) for rank in ranks]
    seen: Counter[int] = Counter()
    for _ in range(len(ranks[0])):
        states = {saved(rank) for rank in ranks}
        assert len(states) == 1  # the state is the same on all ranks
        state = states.pop()
        rest: Counter[int] = Counter()
        others = [
            restored(
                packed,
                state,
                batch_size=other_size,
                rank=rank,
                world_size=other_world,
                last_batch="partial",
            )
            for rank in range(other_world)
        ]
        counts = set()
        for other in others:
            batches = list(other)
            counts.add(len(batches))
            rest.update(i for batch in batches for i in batch["id"].tolist())
        assert len(counts) == 1
        assert seen + rest == Counter(range(N))
        for iterator in iterators:
            seen.update(next(iterator)["id"].tolist())
    assert seen == Counter(range(N))


def test_pixels_are_the_same_with_another_world_size(packed: Path) -> None:
    by_id = {
        i: batch["image"][place]
        for batch in make(packed)
        for place, i in enumerate(batch["id"].tolist())
    }
    loader = make(packed)
    iterator = iter(loader)
    next(iterator)
    for rank in range(2):
        for batch in restored(packed, saved(loader), rank=rank, world_size=2, batch_size=4):
            assert all(
                same_batch(batch["image"][place], by_id[i])
                for place, i in enumerate(batch["id"].tolist())
            )


def test_many_world_sizes_in_one_epoch(packed: Path) -> None:
    """The state stores a few numbers per change, so it stays small, and no sample is lost."""
    seen: Counter[int] = Counter()
    state = saved(make(packed, batch_size=1))
    for world in (3, 1, 2, 5, 1, 4, 2, 1):
        ranks = [
            restored(
                packed,
                state,
                batch_size=1 + world % 2,
                rank=rank,
                world_size=world,
                last_batch="partial",
            )
            for rank in range(world)
        ]
        for rank in ranks:
            seen.update(next(iter(rank))["id"].tolist())
        state = saved(ranks[0])
    assert len(json.loads(state)["runs"]) == 8
    seen.update(
        i for batch in restored(packed, state, last_batch="partial") for i in batch["id"].tolist()
    )
    assert seen == Counter(range(N))


def test_a_state_is_small_for_any_world_size(packed: Path) -> None:
    for world in (1024, 2, 999):
        loader = restored(
            packed, saved(make(packed, rank=world - 1, world_size=world)), rank=0, world_size=7
        )
        next(iter(loader))
        saved(loader)


def test_resume_after_a_break_with_prefetched_batches_and_set_epoch(packed: Path) -> None:
    batches = list(make(packed))
    loader = make(
        packed, prefetch_factor=20
    )  # all batches are prefetched, but only delivered ones count
    for number, _ in enumerate(loader):
        if number == 2:
            break
    assert same_batch(list(restored(packed, saved(loader))), batches[3:])
    first = json.loads(saved(loader))
    assert json.loads(saved(loader)) == first  # state_dict() changes nothing
    loader.load_state_dict(first)  # the same loader can resume as well
    assert json.loads(saved(loader)) == first
    assert same_batch(list(loader), batches[3:])
    again = restored(packed, json.dumps(first))
    again.set_epoch(0)  # as trainers do at the start of the interrupted epoch
    assert same_batch(list(again), batches[3:])
    again = restored(packed, json.dumps(first))
    iterator = iter(again)
    again.set_epoch(0)  # Lightning calls it after iter()
    assert json.loads(saved(again)) == first
    assert same_batch(list(iterator), batches[3:])
    assert json.loads(saved(again))["epoch"] == 1
    other = restored(packed, json.dumps(first))
    other.set_epoch(1)  # and as they do to skip the rest
    assert len(list(other)) == 7
    assert json.loads(saved(other))["epoch"] == 2


@pytest.mark.parametrize(
    "options", [{}, {"shuffle": None, "sampler": range(20)}], ids=["own", "sampler"]
)
def test_a_pass_that_was_closed_early_is_not_complete(
    packed: Path, options: dict[str, Any]
) -> None:
    loader = make(packed, **options)
    for _ in loader:
        loader.close()  # the loop ends like at the end of an epoch
    again = make(packed, **options)
    again.load_state_dict(json.loads(saved(loader)))
    assert json.loads(saved(loader))["epoch"] == 0
    assert same_batch(list(again), list(make(packed, **options))[1:])


def test_an_old_iterator_does_not_change_the_state(packed: Path) -> None:
    loader = make(packed)
    old = iter(loader)
    assert len(list(old)) == 7
    new = iter(loader)
    next(new)
    state = saved(loader)
    assert next(old, None) is None
    assert saved(loader) == state


def test_a_state_saved_after_the_last_batch_starts_the_next_epoch(packed: Path) -> None:
    loader = make(packed)
    iterator = iter(loader)
    for _ in range(7):
        next(iterator)
    state = saved(loader)  # before the iterator raised StopIteration
    assert len(list(iterator)) == 0
    assert saved(loader) == state
    whole = make(packed)
    whole.set_epoch(1)
    assert same_batch(list(restored(packed, state)), list(whole))
    loader.set_epoch(5)
    assert json.loads(saved(loader))["epoch"] == 5


def test_with_drop_last_an_incomplete_rest_ends_the_epoch(packed: Path) -> None:
    loader = make(packed, drop_last=True)
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    other = restored(packed, saved(loader), drop_last=True, batch_size=40)  # 11 samples are left
    assert [len(batch["id"]) for batch in other] == [40]  # a batch of the next epoch
    assert json.loads(saved(other))["epoch"] == 2


CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"seed": 5}, "seed in the state:  4\n  seed in the loader: 5"),
    ({"shuffle": False}, "shuffle in the state:  True\n  shuffle in the loader: False"),
    ({"window": 2}, "window in the state:  8\n  window in the loader: 2"),
    (
        {"transform": [T.Resize(8, 8)]},
        "another transform:\n  image in the state:  '[RandomResizedCrop",
    ),
    ({"transform": [*CROPPED, T.Layout("NHWC")]}, 'in the loader: "[RandomResizedCrop'),
    ({"color": "gray"}, "color in the state:  'rgb'\n  color in the loader: 'gray'"),
    ({"exact": True}, "exact in the state:  'False'\n  exact in the loader: 'True'"),
]


@pytest.mark.parametrize(("options", "message"), CHANGED, ids=lambda value: str(value)[:30])
def test_options_that_affect_the_order_must_not_change(
    packed: Path, options: dict[str, Any], message: str
) -> None:
    loader = make(packed)
    next(iter(loader))
    state = saved(loader)
    with pytest.raises(ConfigError) as caught:
        restored(packed, state, **options)
    assert message in str(caught.value).replace('\\"', '"') or message.replace("'[", '"[') in str(
        caught.value
    )
    assert len(list(restored(packed, state))) == 6


def test_another_dataset_is_rejected(packed: Path, tmp_path: Path) -> None:
    other = pack_photos(tmp_path / "other", N, size=(48, 48))
    with pytest.raises(
        ConfigError,
        match=r"dataset in the state:  '[0-9a-f]{16}'\n  dataset in the loader: '[0-9a-f]{16}'",
    ):
        restored(other, saved(make(packed)))


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"epoch": -1},
        {"epoch": "0"},
        {"epoch": True},
        {"runs": []},
        {"runs": [[1, 6, "partial"]]},
        {"runs": [[1, 6, "partial", 99]]},
        {"runs": [[0, 6, "partial", 0]]},
        {"runs": [[1, 6, "cut", 0]]},
        {"runs": [[1 << 62, 6, "partial", 0], [1, 6, "partial", 0]]},
        {"runs": [[1, 6, "partial", 7], [1, 6, "partial", 1]]},
        {"runs": "x"},
        {"runs": None},
        {"order": None},
        {"transform": []},
    ],
    ids=str,
)
def test_a_damaged_state_is_rejected_and_changes_nothing(
    packed: Path, damage: dict[str, Any]
) -> None:
    loader = make(packed)
    next(iter(loader))
    state = json.loads(saved(loader))
    with pytest.raises(ConfigError, match=r"state_dict|last_batch='cut'"):
        loader.load_state_dict({**state, **damage})
    assert json.loads(saved(loader)) == state
    loader.load_state_dict(state)
    assert len(list(loader)) == 6


def test_an_object_that_is_not_a_state_is_rejected(packed: Path) -> None:
    wrong: list[Any] = [[], "state", None, {}]
    for each in wrong:
        with pytest.raises(ConfigError, match=r"expected the result of state_dict\(\)"):
            make(packed).load_state_dict(each)


def test_long_transforms_are_stored_as_a_digest(packed: Path) -> None:
    many = [T.Brightness(0.01 * k) for k in range(1, 60)]
    loader = make(packed, transform=[T.Resize(8, 8), *many])
    state = saved(loader)
    assert set(json.loads(state)["transform"]) == {"sha256", "begins"}
    restored(packed, state, transform=[T.Resize(8, 8), *many])
    with pytest.raises(ConfigError, match="sha256 in the state"):
        restored(packed, state, transform=[T.Resize(8, 8), *many[:-1], T.Brightness(0.9)])
    assert shortened({"image": "[]"}) == {"image": "[]"}
