"""A Ray cluster on this machine for tests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import resource_tracker
from typing import Any

import psutil
import pytest

_START_S = 600
# A killed raylet refuses the connection at once. Only a busy one needs the time of a check.
_FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 60_000,
    "health_check_failure_threshold": 3,
}


@functools.cache
def _folder() -> str:
    """Returns a folder with a short path: the paths of sockets have at most 107 bytes.

    It is removed at exit, after the handlers of Ray, which write into folders of earlier clusters.
    """
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of a head without CPUs. Tests add and kill raylets."""
    pytest.importorskip("ray")
    with started_cluster() as made:
        yield made


@contextlib.contextmanager
def started_cluster(*, cpus: int = 0) -> Iterator[Any]:
    """Starts a head with this many CPUs and sets RAY_ADDRESS."""
    folder = _folder()
    from ray.cluster_utils import Cluster

    # Dask and process pools start it on first use. With RAY_TMPDIR, it would count as a process of
    # the cluster and be killed.
    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_gcs_server_port_wait_time_s", str(_START_S))
        made = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": cpus,
                "object_store_memory": 80 << 20,
                "include_dashboard": False,
                "_system_config": _FAST_HEALTH_CHECKS,
            },
        )
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()  # type: ignore[no-untyped-call]
        _wait_for_processes(folder)


def _wait_for_processes(folder: str) -> None:
    """Waits for the processes of a cluster, which would create its folder again, or kills them."""
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == folder and process.pid != os.getpid():
                left.append(process)
    _, alive = psutil.wait_procs(left, timeout=300)
    for process in alive:
        process.kill()
    psutil.wait_procs(alive)


def add_raylets(cluster: Any, count: int) -> list[Any]:
    raylets = [
        cluster.add_node(wait=False, num_cpus=1, object_store_memory=80 << 20) for _ in range(count)
    ]
    cluster.wait_for_nodes(_START_S)
    return raylets


def kill(raylet: Any) -> None:
    """Kills a raylet and its workers with SIGKILL, as a machine that loses power."""
    process = psutil.Process(raylet.all_processes["raylet"][0].process.pid)
    for each in (*process.children(recursive=True), process):
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
