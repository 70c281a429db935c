"""Simulates a pack of up to 10^9 samples by 1,000 workers with the planning code of the packer.

    python -m benchmarks.plan_scale [--samples 1e6 1e7 1e8 1e9] [--json out.json]
    python -m benchmarks.plan_scale --page benchmarks/results/plan_scale.json

Every figure is measured with the functions that a pack calls, in a process of its own: CPU time,
and the peak of its anonymous memory (RssAnon). Images of 1 KB in shards of 10 MiB replace images of
100 KB in shards of 1 GiB: a dataset then has as many samples per shard, shards, tasks and files of
state, and fits on this disk. What is not real:

- The list has paths of 64 files, and the folders of the source are not walked. Above ``--listed``
  samples, the list is a sparse file that has only the lines that the measured parts read.
- Above ``--published`` samples, the dataset is not published. Columns would fill the disk.
- 1,000 workers, their deaths and the death of the driver are simulated in virtual time. The driver
  that submits parts and counts results is the real one.
- The sizes of shards are those of images whose sizes vary (see ``shard_sizes``), not of the files.

The peak of 10^9 samples needs 2 GB of disk in ``--folder`` and about 10 minutes of CPU time.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import pickle
import random
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.machine import describe
from fastload._common.checksum import crc32c
from fastload._common.files import crc32c_of
from fastload._pack import engines
from fastload._pack.layout import Layout, measured_rows
from fastload._pack.options import PackOptions, PackResult
from fastload._pack.packing_order import PackingOrder
from fastload._pack.parts import PackTask, pack_part, prepare, publish_parts, stored_layout
from fastload._pack.state import LINES, OFFSETS, Done, PackState, sealed_line, write_listing
from fastload._store.fields import Field
from fastload._store.lmdb_tree import META_BYTES
from fastload._store.manifest import (
    COLUMN_HEADER,
    STAMP_BYTES,
    Column,
    Manifest,
    Shard,
    dump,
    expected_columns,
    read_manifest,
    stamp_page,
)
from fastload._store.properties import Properties
from fastload._store.writer import shard_name

N_FILES = 64
N_WORKERS = 1000
N_PARTS_PACKED = 3
OPTIONS = PackOptions(shard_size=10 << 20, block_size=128 << 10, jobs=1)
MEAN_BYTES = 100_000  # of the images in ``shard_sizes``
SHARD_BYTES = 1 << 30
DEATHS = (1, 10, 100, 500)
MAX_LINKS = 50_000  # to one file; ext4 allows 65,000


def file_name(number: int) -> str:
    return f"n01440764/n01440764_{number:05}.JPEG"


def make_images(folder: Path) -> None:
    """Writes equal files, so that the layout of a list of any length is known before."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (18, 24, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    for number in range(N_FILES):
        path = folder / file_name(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, "JPEG", quality=85)


def in_child(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Runs a function in a new process. Returns its result, CPU seconds and peak RssAnon."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        found: dict[str, Any] = receiver.recv()
    except EOFError:
        raise SystemExit(f"{function.__name__} failed: see above") from None
    finally:
        process.join()
    return found


def _measure(sender: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    peak = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, _rss_anon())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    began = time.process_time()
    result = function(*arguments)
    seconds = time.process_time() - began
    ended.set()
    watcher.join()
    peak = max(peak, _rss_anon())
    sender.send({"cpu_s": round(seconds, 3), "peak_mb": round(peak / 1024, 1), "result": result})


def _rss_anon() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0])


# ---- the list of samples


def list_all(folder: Path, n: int) -> None:
    write_listing(folder, (file_name(row % N_FILES) for row in range(n)), lambda _: None)


def list_some(folder: Path, n: int, rows: NDArray[np.int64]) -> None:
    """Writes a list of n samples in which only some lines are not a hole."""

    def line(row: int) -> bytes:
        return sealed_line(row, json.dumps(file_name(row % N_FILES)).encode())

    width = len(line(0))
    with (folder / LINES).open("wb+") as lines, (folder / OFFSETS).open("wb+") as offsets:
        lines.truncate(n * width)
        offsets.truncate(8 * (n + 2))
        for row in rows.tolist():
            os.pwrite(lines.fileno(), line(row), row * width)
            pair = np.array([row * width, (row + 1) * width], "<u8").tobytes()
            os.pwrite(offsets.fileno(), pair, 8 * row)
        os.pwrite(offsets.fileno(), (n * width).to_bytes(8, "little"), 8 * n)
        lines_crc = int(crc32c_of(lines.fileno()), 16)
        offsets.truncate(8 * (n + 1))  # the checksum is that of the file without itself
        offsets_crc = int(crc32c_of(offsets.fileno()), 16)
        end = (lines_crc << 32 | offsets_crc).to_bytes(8, "little")
        os.pwrite(offsets.fileno(), end, 8 * (n + 1))


def rows_of(layout: Layout, parts: list[int]) -> NDArray[np.int64]:
    order = PackingOrder(layout.n, order=OPTIONS.order, seed=OPTIONS.seed)
    ranges = [layout.positions(part) for part in parts]
    found = [order.rows(each.start, each.stop) for each in ranges]
    return np.concatenate([np.array(measured_rows(layout.n)), *found])


# ---- the state of a pack in which all other parts are finished


def finish_others(task: PackTask, packed: list[int], with_files: bool) -> None:
    """Writes the state of all parts but the packed ones, from the first packed part.

    Without files, only what a restart reads is written. A shard is a sparse file without records.
    """
    # The state is written by the functions of the packer, but 100,000 syncs would take minutes.
    vars(os)["fsync"] = lambda _: None
    state = PackState(Path(task.dest))
    layout = stored_layout(task)
    assert layout is not None
    template = state.done(packed[0])
    rows = state.rows(packed[0])
    shard = template.shards[0]
    with (Path(task.dest) / shard.name).open("rb") as file:
        meta = file.read(META_BYTES)
        file.seek(shard.size - shard.index_size)
        index = file.read(shard.index_size - STAMP_BYTES)
    for number in range(layout.n_parts):
        if number in packed:
            continue
        positions = layout.positions(number)
        new = shard._replace(name=shard_name(number), base=positions.start)
        if with_files:
            new = _write_shard(Path(task.dest), new, meta, index)
            _write_rows(state, number, packed[0], rows)
        state.write(f"done-{number:05}.json", _done_like(template, positions, new).as_json())


def _done_like(template: Done, positions: range, shard: Shard) -> Done:
    return replace(template, positions=(positions.start, positions.stop), shards=[shard])


def _write_shard(dest: Path, shard: Shard, meta: bytes, index: bytes) -> Shard:
    with (dest / shard.name).open("wb+") as file:
        file.write(meta)
        file.seek(shard.size - shard.index_size)
        file.write(index + stamp_page(shard.base, shard.records, shard.stamp))
        file.flush()
        index_crc = crc32c_of(file.fileno(), shard.size - shard.index_size, crc32c(meta))
    return shard._replace(index_crc32c=index_crc)


def _write_rows(state: PackState, number: int, first: int, rows: dict[str, Any]) -> None:
    path = state.folder / f"rows-{number:05}.npz"
    if number % MAX_LINKS:
        source = number - number % MAX_LINKS or first
        os.link(state.folder / f"rows-{source:05}.npz", path)
    else:
        np.savez(path, **rows)


# ---- the driver and its workers


class SimulatedCluster(Executor):
    """1,000 workers in virtual time: a part takes 0.9 to 1.1 units, and some workers die.

    It also replaces the queue from which the driver takes parts that ended: ``get`` advances the
    virtual time to the next end of a part or death of a worker.
    """

    def __init__(self, result: PackResult, deaths: dict[int, float], seed: int) -> None:
        self._result = result
        self._random = random.Random(seed)
        self._waiting: deque[Future[PackResult]] = deque()
        self._ended: deque[Future[PackResult]] = deque()
        self._idle = list(range(N_WORKERS))
        self._events: list[tuple[float, int, int]] = []  # time, 0 death or 1 end, worker
        self._on: dict[int, Future[PackResult]] = {}
        self.now = 0.0
        self.n_attempts = 0
        self.lost = 0.0  # units of work
        self._began: dict[int, float] = {}
        for worker, at in deaths.items():
            heapq.heappush(self._events, (at, 0, worker))

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        del fn, args, kwargs
        future: Future[PackResult] = Future()
        self._waiting.append(future)
        self.n_attempts += 1
        return future

    def put(self, future: Future[PackResult]) -> None:
        self._ended.append(future)

    def get(self) -> Future[PackResult]:
        while not self._ended:
            self._start()
            self.now, ends, worker = heapq.heappop(self._events)
            future = self._on.pop(worker, None)
            if ends and future is not None:
                self._idle.append(worker)
                future.set_result(self._result)
            elif not ends:
                if future is None:
                    self._idle = [each for each in self._idle if each != worker]
                else:
                    self.lost += self.now - self._began[worker]
                    future.set_exception(RuntimeError("the worker died"))
        return self._ended.popleft()

    def _start(self) -> None:
        while self._idle and self._waiting:
            worker = self._idle.pop()
            self._on[worker] = self._waiting.popleft()
            self._began[worker] = self.now
            end = self.now + self._random.uniform(0.9, 1.1)
            heapq.heappush(self._events, (end, 1, worker))


def drive(task: PackTask, layout: Layout, result: PackResult, n_deaths: int) -> dict[str, float]:
    """Packs all parts with the real driver on simulated workers, of which some die."""
    chooser = random.Random(n_deaths)
    ideal = layout.n_parts / N_WORKERS
    deaths = {
        worker: chooser.uniform(0, ideal)
        for worker in chooser.sample(range(N_WORKERS), min(n_deaths, N_WORKERS - 1))
    }
    cluster = SimulatedCluster(result, deaths, seed=1)
    driver = engines._Driver(task, layout, range(layout.n_parts), None)
    vars(driver)["_ended"] = cluster
    engines._log.disabled = True
    driver.pack(cluster, range(layout.n_parts))
    assert driver.progress.done == layout.n
    return {
        "deaths": n_deaths,
        "redone_parts": cluster.n_attempts - layout.n_parts,
        "lost_work": round(cluster.lost / layout.n_parts, 6),
        "time_in_parts": round(cluster.now, 1),
        "ideal_in_parts": round(ideal, 1),
    }


def pack_parts(task: PackTask, parts: list[int]) -> dict[str, Any]:
    """Packs some parts, one after the other, in one process."""
    seconds = []
    for part in parts:
        began = time.process_time()
        result = pack_part(task, part)
        seconds.append(round(time.process_time() - began, 3))
    return {
        "seconds": seconds,
        "task_bytes": len(pickle.dumps((pack_part, (task, parts[0])))),
        "result_bytes": len(pickle.dumps(result)),
        "pickled": pickle.dumps(result),
    }


def prepared(task: PackTask) -> int:
    return len(prepare(task))


def published(task: PackTask) -> dict[str, Any]:
    result = publish_parts(task)
    assert not result.missing
    dest = Path(task.dest)
    return {
        "n_samples": result.n_samples,
        "manifest_bytes": (dest / "manifest.json").stat().st_size,
        "column_bytes": sum(path.stat().st_size for path in dest.glob("columns/*")),
    }


# ---- sizes


def shard_sizes(n: int) -> dict[str, float]:
    """Returns sizes of shards, relative to the shard size, of images whose sizes vary.

    The sizes are log-normal with a deviation of 0.5 of the mean. Images of the first half of the
    source are three times smaller than those of the second half, as of two cameras.
    """
    sigma = np.sqrt(np.log(1.25))

    def sizes_of(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        normal = np.random.Generator(np.random.Philox(key=7)).standard_normal(1 << 20)
        varied = np.exp(sigma * normal[(rows * 0x9E3779B1) % (1 << 20)] - sigma**2 / 2)
        return np.asarray(MEAN_BYTES * varied * np.where(rows < n // 2, 0.5, 1.5))

    measured = sizes_of(np.array(measured_rows(n)))
    layout = Layout.of(n, float(measured.mean()), SHARD_BYTES)
    order = PackingOrder(n, order="shuffle", seed=0)
    chosen = random.Random(0).sample(range(layout.n_parts), min(200, layout.n_parts))
    found = []
    for part in chosen:
        positions = layout.positions(part)
        if len(positions) == layout.per_part:  # the last shard is smaller
            found.append(float(sizes_of(order.rows(positions.start, positions.stop)).sum()))
    relative = np.array(found) / SHARD_BYTES
    return {
        "shards": layout.n_parts,
        "samples_per_shard": layout.per_part,
        "mean": round(float(relative.mean()), 4),
        "low": round(float(relative.min()), 4),
        "high": round(float(relative.max()), 4),
        "deviation": round(float(relative.std() / relative.mean()), 4),
    }


def manifest_of(n: int, n_parts: int, folder: Path) -> dict[str, float]:
    """Writes and reads a manifest of n samples with random digests."""
    fields = (Field("image", "image"), Field("label", "int", classes=("a", "b")))
    per_part = -(-n // n_parts)
    rng = np.random.default_rng(0)
    shards = []
    for number in range(n_parts):
        first = number * per_part
        digests = rng.bytes(64).hex()
        shards.append(
            Shard(
                *(shard_name(number), SHARD_BYTES, min(per_part, n - first), first, first),
                *(1 << 18, digests[:8], digests[:64], digests[64:]),
            )
        )
    columns = tuple(
        _column(name, dtype, n_parts * 128 if name == "_blocks" else n)
        for name, dtype in expected_columns(fields).items()
    )
    manifest = Manifest(
        n_samples=n,
        fields=fields,
        properties=tuple(Properties() for _ in fields),
        shards=tuple(shards),
        columns=columns,
        content="0" * 64,
    )
    data = dump(manifest)
    folder.mkdir()
    (folder / "manifest.json").write_bytes(data)
    return {"bytes": len(data), "column_bytes": sum(column.size for column in columns)}


def _column(name: str, dtype: str, rows: int) -> Column:
    shape = (rows, 2) if name == "_blocks" else (rows,)
    size = COLUMN_HEADER + int(np.prod(shape)) * np.dtype(dtype).itemsize
    return Column(name, dtype, shape, size, "0" * 8)


def read_back(folder: Path) -> int:
    return read_manifest(folder).n_samples


# ---- one scale


def simulate(n: int, folder: Path, *, listed: bool, publishes: bool) -> Iterator[tuple[str, Any]]:
    """Yields the name and the figures of each stage."""
    make_images(folder / "images")
    task = PackTask(str(folder / "images"), str(folder / "packed"), options=OPTIONS)
    state = folder / "packed" / ".pack"
    state.mkdir(parents=True)
    first_list = folder / "first"
    first_list.mkdir()
    list_all(first_list, N_FILES)
    small = replace(task, dest=str(first_list / "packed"))
    prepare(small)
    one = pack_part(small, 0)
    assert one.n_samples == N_FILES
    layout = Layout.of(n, one.bytes_out / N_FILES, OPTIONS.shard_size)
    last = layout.n_parts - 1  # shorter than the others
    parts = [*random.Random(1).sample(range(last), N_PARTS_PACKED - 1), last]
    if listed:
        yield "list", in_child(list_all, state, n)
    else:
        list_some(state, n, rows_of(layout, parts))
    yield "list_bytes", (state / LINES).stat().st_size + (state / OFFSETS).stat().st_size
    yield "prepare", in_child(prepared, task)
    assert stored_layout(task) == layout
    yield "layout", {"parts": layout.n_parts, "per_part": layout.per_part}
    worker = in_child(pack_parts, task, parts)
    result: PackResult = pickle.loads(worker["result"].pop("pickled"))
    yield "worker", worker
    yield "driver", in_child(drive, task, layout, result, 0)
    yield "deaths", [in_child(drive, task, layout, result, each)["result"] for each in DEATHS]
    in_child(finish_others, task, parts, publishes)
    yield "restart", in_child(prepared, task)
    yield "done_bytes", sum(path.stat().st_size for path in state.glob("done-*.json"))
    yield "sizes", shard_sizes(n)
    yield "manifest", in_child(manifest_of, n, layout.n_parts, folder / "manifest")
    yield "read_manifest", in_child(read_back, folder / "manifest")
    if publishes:
        yield "publish", in_child(published, task)


# ---- the page


def page(found: dict[str, Any]) -> str:
    """Returns the tables of docs/distributed-packing.md."""
    scales = found["scales"]

    def row(title: str, text: Callable[[dict[str, Any]], str]) -> str:
        return f"| {title} | " + " | ".join(text(each) for each in scales) + " |"

    def cost(name: str) -> Callable[[dict[str, Any]], str]:
        return lambda each: (
            f"{each[name]['cpu_s']:,.1f} s, {each[name]['peak_mb']:,.0f} MB"
            if name in each
            else "not measured"
        )

    lines = [
        "| samples | " + " | ".join(f"{each['n']:,}" for each in scales) + " |",
        "|---" * (len(scales) + 1) + "|",
        row("shards, one task each", lambda each: f"{each['layout']['parts']:,}"),
        row("samples per shard", lambda each: f"{each['layout']['per_part']:,}"),
        row(
            "shard size relative to `--shard-size`, 200 shards",
            lambda each: f"{each['sizes']['low']:.2f} to {each['sizes']['high']:.2f}",
        ),
        row("list of samples on disk", lambda each: size(each["list_bytes"])),
        row("driver: write the list", cost("list")),
        row("driver: check the list, decide the parts", cost("prepare")),
        row("driver: submit and count all parts", cost("driver")),
        row("driver: restart when all parts are packed", cost("restart")),
        row("driver: publish", cost("publish")),
        row(
            "worker: first part, each further part",
            lambda each: (
                f"{each['worker']['result']['seconds'][0]:.2f} s, "
                f"{each['worker']['result']['seconds'][1]:.2f} s"
            ),
        ),
        row("worker: memory", lambda each: f"{each['worker']['peak_mb']:,.0f} MB"),
        row(
            "bytes sent per task, returned per task",
            lambda each: (
                f"{each['worker']['result']['task_bytes']:,}, "
                f"{each['worker']['result']['result_bytes']:,}"
            ),
        ),
        row("files `done-*.json`", lambda each: size(each["done_bytes"])),
        row("manifest", lambda each: size(each["manifest"]["result"]["bytes"])),
        row("read the manifest", cost("read_manifest")),
        row(
            "columns (image, label)", lambda each: size(each["manifest"]["result"]["column_bytes"])
        ),
        "",
        "| workers that die, of 1,000 | "
        + " | ".join(f"parts packed again, {each['n']:,} samples" for each in scales)
        + " |",
        "|---" * (len(scales) + 1) + "|",
    ]
    for i, n_deaths in enumerate(DEATHS):
        cells = [each["deaths"][i] for each in scales]
        texts = [f"{one['redone_parts']:,} ({one['lost_work']:.2%} of the work)" for one in cells]
        lines.append(f"| {n_deaths} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def size(n_bytes: float) -> str:
    for unit in ("B", "KB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", nargs="+", type=float, default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--listed", type=float, default=1e7, help="write the whole list up to this")
    parser.add_argument("--published", type=float, default=1e7, help="publish up to this")
    parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
    parser.add_argument("--json", type=Path, metavar="OUT")
    parser.add_argument("--page", type=Path, metavar="RESULTS", help="print tables of results")
    given = parser.parse_args()
    if given.page:
        print(page(json.loads(given.page.read_text())))
        return
    scales = []
    for n in map(int, given.samples):
        folder = Path(tempfile.mkdtemp(prefix="plan-", dir=given.folder))
        found: dict[str, Any] = {"n": n}
        try:
            for name, value in simulate(
                n, folder, listed=n <= given.listed, publishes=n <= given.published
            ):
                found[name] = value
                print(f"{n:,} {name}: {json.dumps(value)}", flush=True)
        finally:
            shutil.rmtree(folder)
        scales.append(found)
    results = {"machine": describe(), "workers": N_WORKERS, "scales": scales}
    print(page(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
