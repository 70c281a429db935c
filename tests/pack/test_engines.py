"""Executors, Dask and Ray pack the parts of a dataset, with workers and drivers that die."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fastload
from fastload.errors import BadImage, ConfigError, WorkerDied
from tests.packing import SMALL_SHARDS, file_of, pixels, tree
from tests.ray_cluster import add_raylets, cluster, kill

__all__ = ["cluster"]  # a fixture

ROOT = Path(__file__).parents[2]
N = 60
OPTIONS: dict[str, Any] = {"on_error": "skip", **SMALL_SHARDS}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images for at least eight parts, one of them damaged."""
    folder = tmp_path_factory.mktemp("source")
    for i in range(N):
        path = folder / ("cat", "dog")[i % 2] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file_of(pixels(430, 370, seed=i, grain=1), quality=93))
    (folder / "cat" / "bad.jpg").write_bytes(b"\xff\xd8 no image")
    return folder


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files that threads of one process write."""
    dest = tmp_path_factory.mktemp("whole") / "packed"
    result = fastload.pack(root, dest, **OPTIONS)
    assert result.n_shards >= 8
    assert (result.n_samples, result.skipped) == (N, 1)
    return tree(dest)


class Dying(Executor):
    """Runs each task in a thread. The first ``n_deaths`` tasks end like a killed worker."""

    def __init__(self, n_deaths: int) -> None:
        self._left = n_deaths
        self._pool = ThreadPoolExecutor(1)

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self._left:
            self._left -= 1
            return self._pool.submit(os.stat, "/does/not/exist")
        return self._pool.submit(fn, *args, **kwargs)


def test_threads_give_the_same_files(tmp_path: Path, root: Path, whole: dict[str, str]) -> None:
    seen: list[tuple[str, int, int, int]] = []

    def on_progress(progress: fastload.PackProgress) -> None:
        seen.append((progress.stage, progress.done, progress.total or 0, progress.skipped))

    with ThreadPoolExecutor(2) as engine:
        result = fastload.pack(
            root, tmp_path / "packed", engine=engine, on_progress=on_progress, **OPTIONS
        )
    assert tree(tmp_path / "packed") == whole
    assert (result.n_samples, result.skipped, result.missing) == (N, 1, ())
    packed = [each[1:] for each in seen if each[0] == "packing"]
    assert packed == sorted(packed)
    assert packed[-1] == (N + 1, N + 1, 1)
    assert len(packed) == result.n_shards
    assert seen[-1][0] == "publishing"


def test_processes_give_the_same_files(tmp_path: Path, root: Path, whole: dict[str, str]) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as engine:
        fastload.pack(root, tmp_path / "packed", engine=engine, **OPTIONS)
    assert tree(tmp_path / "packed") == whole


def test_a_part_whose_worker_died_is_packed_again(
    tmp_path: Path, root: Path, whole: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    retries: list[int] = []
    fastload.pack(
        root,
        tmp_path / "packed",
        engine=Dying(3),
        on_progress=lambda progress: retries.append(progress.retries),
        **OPTIONS,
    )
    assert tree(tmp_path / "packed") == whole
    assert retries[-1] == 3
    assert caplog.text.count("is packed again") == 3


def test_an_engine_that_always_dies_is_named_and_the_rest_is_kept(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    with pytest.raises(
        WorkerDied, match=r"part \d+ of .*packed cannot be packed .*FileNotFoundError"
    ):
        fastload.pack(root, tmp_path / "packed", engine=Dying(10**6), **OPTIONS)
    assert not (tmp_path / "packed" / "manifest.json").exists()
    fastload.pack(root, tmp_path / "packed", engine=Dying(0), **OPTIONS)
    assert tree(tmp_path / "packed") == whole


def test_a_closed_executor_is_named(tmp_path: Path, root: Path) -> None:
    engine = ThreadPoolExecutor(1)
    engine.shutdown()
    with pytest.raises(WorkerDied, match="after shutdown"):
        fastload.pack(root, tmp_path / "packed", engine=engine, **OPTIONS)


def test_a_bad_sample_stops_all_machines_and_is_named(tmp_path: Path, root: Path) -> None:
    with (
        ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as engine,
        pytest.raises(BadImage, match=r"^cat/bad.jpg: .*--on-error skip"),
    ):
        fastload.pack(root, tmp_path / "packed", engine=engine, **SMALL_SHARDS)
    with ThreadPoolExecutor(1) as engine, pytest.raises(BadImage, match="--max-bad"):
        fastload.pack(root, tmp_path / "packed", engine=engine, max_bad=0, **OPTIONS)
    result = fastload.pack(root, tmp_path / "packed", **OPTIONS)  # continues without an engine
    assert result.resumed_at > 0


def test_errors_keep_their_message_between_processes() -> None:
    error = pickle.loads(pickle.dumps(BadImage("truncated", source="a.jpg", image_id=3)))
    assert (str(error), error.why, error.source, error.image_id) == (
        "a.jpg: truncated",
        "truncated",
        "a.jpg",
        3,
    )


def test_an_engine_needs_a_path(tmp_path: Path, root: Path) -> None:
    samples = [{"image": path, "label": 0} for path in sorted(root.rglob("*.jpg"))]
    with pytest.raises(ConfigError, match="expected a path"):
        fastload.pack(samples, tmp_path / "packed", engine="ray")
    with pytest.raises(ConfigError, match="expected a path, without fields= and part="):
        fastload.pack(root, tmp_path / "packed", engine="ray", part=(0, 2))
    with pytest.raises(ConfigError, match="engine='spark': expected 'ray' or a concurrent"):
        fastload.pack(root, tmp_path / "packed", engine="spark", **OPTIONS)


def test_a_finished_dataset_is_reported(tmp_path: Path, root: Path) -> None:
    for _ in range(2):
        with ThreadPoolExecutor(1) as engine:
            result = fastload.pack(root, tmp_path / "packed", engine=engine, **OPTIONS)
        assert (result.n_samples, result.skipped) == (N, 1)
    with ThreadPoolExecutor(1) as engine, pytest.raises(ConfigError, match="finished dataset"):
        fastload.pack(root, tmp_path / "packed", engine=engine, seed=7, **OPTIONS)


# ---- Dask


def test_dask_packs_the_rest_after_a_killed_worker(
    tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            local_directory=str(tmp_path / "dask"),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        victims = [worker.pid for worker in cluster.workers.values()][:1]

        def kill_one(progress: fastload.PackProgress) -> None:
            if progress.stage == "packing" and victims:
                os.kill(victims.pop(), signal.SIGKILL)

        fastload.pack(
            root,
            tmp_path / "packed",
            engine=client.get_executor(),
            on_progress=kill_one,
            **OPTIONS,
        )
    assert not victims
    assert tree(tmp_path / "packed") == whole


# ---- Ray


def test_ray_packs_on_one_to_three_machines_with_one_killed(
    cluster: Any, tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    raylets: list[Any] = []
    for count in (1, 2, 3):
        raylets += add_raylets(cluster, 1)
        dest = tmp_path / f"packed-{count}"
        fastload.pack(root, dest, engine="ray", **OPTIONS)
        assert tree(dest) == whole, f"{count} raylets"

    victims = raylets[-1:]

    def kill_one(progress: fastload.PackProgress) -> None:
        if progress.stage == "packing" and victims:
            kill(victims.pop())

    fastload.pack(root, tmp_path / "killed", engine="ray", on_progress=kill_one, **OPTIONS)
    assert not victims
    assert tree(tmp_path / "killed") == whole
    with pytest.raises(BadImage, match=r"^cat/bad.jpg: .*--on-error skip"):
        fastload.pack(root, tmp_path / "stopped", engine="ray", **SMALL_SHARDS)


DRIVER = """
import os, signal, sys
import fastload
from tests.pack.test_engines import OPTIONS

def die(progress):
    if progress.stage == "packing":
        os.kill(os.getpid(), signal.SIGKILL)

fastload.pack(sys.argv[1], sys.argv[2], engine="ray", on_progress=die, **OPTIONS)
"""


def test_the_command_continues_after_a_killed_driver(
    cluster: Any, tmp_path: Path, root: Path, whole: dict[str, str]
) -> None:
    add_raylets(cluster, 1)
    dest = tmp_path / "packed"
    command = [sys.executable, "-m", "fastload", "pack", str(root), str(dest), "--engine", "ray"]
    command += ["--on-error", "skip", "--shard-size", "1MiB", "--block-size", "128KiB"]
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, str(root), str(dest)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert driver.returncode == -signal.SIGKILL, driver.stderr
    assert list(dest.glob(".pack/done-*.json"))
    assert not (dest / "manifest.json").exists()
    for _ in itertools.repeat(None, 60):  # parts in flight of the dead driver may still end
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stderr
    assert "of an interrupted run" in done.stdout
    assert tree(dest) == whole
