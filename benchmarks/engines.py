"""Speed and output of the engines of `fastload pack`, compared with threads of one process.

    python -m benchmarks.engines [--images 3000] [--rounds 5] [--kills 1] [--json out.json]
    python -m benchmarks.engines --page benchmarks/results/engines.json

Packs the photographs of the corpus, repeated, with

- threads: `fastload pack`, one thread per core
- ray-node: `engine="ray"` on one node with 3 CPUs, which is Ray on one machine
- processes: a `ProcessPoolExecutor` of 3 processes
- dask: a `LocalCluster` of 3 workers, if `distributed` is installed
- parts: `part=(i, 3)` in 3 processes

in interleaved rounds, after one round that is not counted. A second run compares threads with

- ray: `engine="ray"` on 3 raylets with one CPU each, which emulate 3 machines on this one

Clusters and processes run before the first round and stay: their start is not measured. Prints
images/s, the ratio of medians to threads of the same run, and the CPU time of all processes, also
of the idle ones of the cluster. With 2 cores, 3 workers share them, and a ratio above 1 is noise.

It also checks target 10 of the design: the files of 1, 2 and 3 Ray nodes, of a cluster that loses a
node (SIGKILL, `--kills` times), and of 1 to 7 parts are compared with those of threads, byte by
byte. `--rounds 0` only does this.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import logging
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import ray

import fastload
from benchmarks.machine import describe, photo_paths, quartiles
from fastload._common.cpus import available_cpus
from tests.ray_cluster import add_raylets, kill, started_cluster

N_WORKERS = 3
TARGET_RATIO = 0.9
SIZES: dict[str, Any] = {"shard_size": 16 << 20}
N_SMALL = 400  # images of the comparison of files
SMALL: dict[str, Any] = {"shard_size": 2 << 20, "block_size": 256 << 10}

Pack = Callable[[Path, Path], object]


def make_images(folder: Path, count: int) -> None:
    photos = photo_paths()
    folder.mkdir(parents=True)
    for number in range(count):
        photo = photos[number % len(photos)]
        os.link(_copied(photo, folder.parent), folder / f"{number:06}{photo.suffix}")


def _copied(photo: Path, folder: Path) -> Path:
    """Copies a photograph once, because the corpus may be on another file system."""
    copy = folder / f"photo-{photo.name}"
    if not copy.exists():
        shutil.copy(photo, copy)
    return copy


def cpu_seconds() -> float:
    """Returns the CPU time of this process and all processes below it."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


# ---- engines


def spawned(count: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def pack_share(source: str, dest: str, part: tuple[int, int], options: dict[str, Any]) -> None:
    fastload.pack(source, dest, part=part, jobs=1, **options)


def in_parts(
    pool: ProcessPoolExecutor, source: Path, dest: Path, count: int, options: dict[str, Any]
) -> None:
    shares = [
        pool.submit(pack_share, str(source), str(dest), (i, count), options) for i in range(count)
    ]
    for each in shares:
        each.result()


def threads(source: Path, dest: Path) -> None:
    fastload.pack(source, dest, **SIZES)


def pack_on(engine: str | Executor) -> Pack:
    return lambda source, dest: fastload.pack(source, dest, engine=engine, **SIZES)


def engines(resources: contextlib.ExitStack, folder: Path) -> dict[str, Pack]:
    """Starts all engines but Ray. Returns how to pack with each."""
    found = {"threads": threads, "ray-node": pack_on("ray")}
    processes = resources.enter_context(spawned(N_WORKERS))
    found["processes"] = pack_on(processes)
    if find_spec("distributed"):
        distributed: Any = import_module("distributed")
        cluster = resources.enter_context(
            distributed.LocalCluster(
                n_workers=N_WORKERS,
                threads_per_worker=1,
                dashboard_address=":0",
                local_directory=str(folder / "dask"),
            )
        )
        client = resources.enter_context(distributed.Client(cluster))
        found["dask"] = pack_on(client.get_executor())
    shares = resources.enter_context(spawned(N_WORKERS))
    found["parts"] = lambda source, dest: in_parts(shares, source, dest, N_WORKERS, SIZES)
    return found


# ---- speed


def measure(
    packs: dict[str, Pack], source: Path, folder: Path, rounds: int
) -> list[dict[str, Any]]:
    """Packs with every engine in every round. Each round starts with another engine."""
    n_images = sum(1 for _ in source.iterdir())
    names = list(packs)
    speeds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    content = ""
    for number in range(rounds + 1):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            dest = folder / "packed"
            began_cpu = cpu_seconds()
            began = time.perf_counter()
            packs[name](source, dest)
            seconds = time.perf_counter() - began
            used = cpu_seconds() - began_cpu
            found = fastload.open(dest).manifest.content
            content = content or found
            if found != content:
                raise SystemExit(f"{name} wrote other content than {names[0]}")
            shutil.rmtree(dest)
            if number:
                speeds[name].append(n_images / seconds)
                cpu[name].append(used)
                print(f"round {number} {name}: {n_images / seconds:,.0f} images/s", flush=True)
    base = statistics.median(speeds["threads"])
    base_cpu = statistics.median(cpu["threads"])
    rows = []
    for name in names:
        low, middle, high = quartiles(speeds[name])
        rows.append(
            {
                "engine": name,
                "images_per_s": round(middle, 1),
                "low": round(low, 1),
                "high": round(high, 1),
                "n": rounds,
                "ratio": round(middle / base, 3),
                "cpu_s": round(statistics.median(cpu[name]), 2),
                "cpu_ratio": round(statistics.median(cpu[name]) / base_cpu, 3),
            }
        )
    return rows


# ---- bytes


def differing(one: Path, other: Path) -> list[str]:
    """Returns the files that are not equal or exist only once."""
    names = {
        str(path.relative_to(root))
        for root in (one, other)
        for path in root.rglob("*")
        if path.is_file()
    }
    _, different, missing = filecmp.cmpfiles(one, other, sorted(names), shallow=False)
    return different + missing


class FileComparison:
    """Compares the files of packs of a small source with those of threads."""

    def __init__(self, folder: Path) -> None:
        self.rows: list[dict[str, Any]] = []
        self._source = folder / "small" / "images"
        self._dest = folder / "compared"
        self._expected = folder / "expected"
        make_images(self._source, N_SMALL)
        self._n_shards = fastload.pack(self._source, self._expected, **SMALL).n_shards

    def on_ray(self, name: str, victim: Any = None) -> None:
        """Packs with Ray. Kills a node after the first part."""
        victims = [] if victim is None else [victim]

        def kill_one(progress: fastload.PackProgress) -> None:
            if progress.stage == "packing" and victims:
                kill(victims.pop())

        fastload.pack(self._source, self._dest, engine="ray", on_progress=kill_one, **SMALL)
        self._check(name)

    def in_shares(self) -> None:
        """Packs in 1 to 7 shares."""
        with spawned(2) as pool:
            for count in range(1, 8):
                in_parts(pool, self._source, self._dest, count, SMALL)
                self._check(f"`--part` 0/{count} to {count - 1}/{count}")

    def _check(self, name: str) -> None:
        n_files = sum(path.is_file() for path in self._expected.rglob("*"))
        different = differing(self._expected, self._dest)
        row = {"run": name, "files": n_files, "shards": self._n_shards}
        self.rows.append({**row, "different": different})
        print(self.rows[-1], flush=True)
        shutil.rmtree(self._dest)


# ---- the page

TITLES = {
    "threads": "threads of one process",
    "ray-node": "Ray, 1 node with 3 CPUs",
    "ray": "Ray, 3 nodes with 1 CPU",
    "processes": "`ProcessPoolExecutor`, 3 processes",
    "dask": "Dask, 3 workers",
    "parts": "`--part`, 3 processes",
}


def page(found: dict[str, Any]) -> str:
    """Returns the tables of docs/distributed-packing.md."""
    lines = [
        "| engine | images/s, median [quartiles] | relative to threads | CPU time, relative |",
        "|---|---|---|---|",
    ]
    speed = [*found["speed"], *(row for row in found.get("nodes", ()) if row["engine"] == "ray")]
    for row in speed:
        lines.append(
            f"| {TITLES[row['engine']]} | {row['images_per_s']:,.0f} "
            f"[{row['low']:,.0f}-{row['high']:,.0f}] | {row['ratio']:.2f} | "
            f"{row['cpu_ratio']:.2f} |"
        )
    on_ray = [row for row in speed if row["engine"].startswith("ray")]
    reached = "; ".join(
        (f"{TITLES[row['engine']]}, reaches " if len(on_ray) > 1 else "Ray reaches ")
        + f"{row['ratio']:.2f} times threads (target: at least {TARGET_RATIO}): "
        + ("met" if row["ratio"] >= TARGET_RATIO else "not met")
        for row in on_ray
    )
    same = [row for row in found["bytes"] if not row["different"]]
    all_same = "met" if len(same) == len(found["bytes"]) else "not met"
    machine = found["machine"]
    lines += [
        "",
        f"{found['n_images']:,} photographs, {on_ray[0]['n']} rounds, on {machine['processor']} "
        f"with {machine['cpus']} cores that all workers share, load average {machine['load']}. "
        f"{reached}.",
        "",
        f"{len(same)} of {len(found['bytes'])} runs wrote the same bytes in all files (1, 2 and 3 "
        "Ray nodes, a cluster whose third node was killed, and `--part` with 1 to 7 shares): "
        f"{all_same}.",
    ]
    lines += [
        f"- {row['run']}: {', '.join(row['different'])}"
        for row in found["bytes"]
        if row["different"]
    ]
    if "nodes" in found:
        lines += [
            "",
            "One node with 3 CPUs is Ray on one machine. Three nodes emulate three machines, with "
            "a scheduler and an object store each, that share the cores of this one. They were "
            "compared with threads in a run of their own. The CPU time includes the idle "
            "processes of the cluster.",
        ]
    return "\n".join(lines)


def connected_cluster(resources: contextlib.ExitStack, *, cpus: int = 0) -> Any:
    """Starts a cluster and connects to it. A connection that stays keeps its workers."""
    cluster = resources.enter_context(started_cluster(cpus=cpus))
    resources.callback(ray.shutdown)
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    return cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=1, help="packs in which a Ray node dies")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--page", type=Path, metavar="RESULTS", help="print tables of results")
    given = parser.parse_args()
    if given.page:
        print(page(json.loads(given.page.read_text())))
        return
    folder = Path(tempfile.mkdtemp(prefix="engines-", dir=given.folder))
    try:
        make_images(folder / "images", given.images)
        compared = FileComparison(folder)
        compared.in_shares()
        speed: list[dict[str, Any]] = []
        nodes: list[dict[str, Any]] = []
        if given.rounds:
            with contextlib.ExitStack() as resources:
                connected_cluster(resources, cpus=N_WORKERS)
                packs = engines(resources, folder)
                speed = measure(packs, folder / "images", folder, given.rounds)
        with contextlib.ExitStack() as resources:
            cluster = connected_cluster(resources)
            for number in range(1, N_WORKERS + 1):
                (node,) = add_raylets(cluster, 1)
                compared.on_ray(f"Ray, {number} nodes" if number > 1 else "Ray, 1 node")
            if given.rounds:
                packs = {"threads": threads, "ray": pack_on("ray")}
                nodes = measure(packs, folder / "images", folder, given.rounds)
            for number in range(given.kills):
                if number:
                    # Otherwise, the cluster would wait for the dead node.
                    cluster.remove_node(node, allow_graceful=False)
                    (node,) = add_raylets(cluster, 1)
                compared.on_ray("Ray, 3 nodes, one killed", victim=node)
        results = {
            "machine": describe("ray", "distributed"),
            "cores": available_cpus(),
            "n_images": given.images,
            "speed": speed,
            "nodes": nodes,
            "bytes": compared.rows,
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if given.rounds:
        print(page(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
