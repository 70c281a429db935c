"""Hostile manifests and files raise a fastload error within 1 s of CPU time and 100 MB.

Each case is opened in its own child. Unless a case tests the checksum, its checksum is correct,
because an attacker can compute it. ``python -m tests.fault.test_manifest_attacks FOLDER [BUG
[CASE]]`` prints one line of JSON per case.
"""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastload._store.dataset import open_dataset
from fastload._store.manifest import seal
from fastload.errors import CorruptManifest, CorruptShard, StoreError
from tests.fault.planted import plant
from tests.fault.trials import ROOT
from tests.small_dataset import simple_samples, write_dataset

SECRET = b"outside of the dataset"


def _text(folder: Path, text: str | bytes) -> None:
    body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    (folder / "manifest.json").write_bytes(seal(body))


def _set(path: str, value: Any) -> Callable[[Path], None]:
    """Replaces one value; the path has the form shards.0.name."""

    def attack(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_bytes())
        del found["crc32c"]
        place = found
        *parents, last = path.split(".")
        for step in parents:
            place = place[int(step) if isinstance(place, list) else step]
        place[int(last) if isinstance(place, list) else last] = value
        _text(folder, json.dumps(found)[1:-1])

    return attack


def _insert(text: str) -> Callable[[Path], None]:
    """Inserts text at the start of the object."""

    def attack(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_bytes())
        del found["crc32c"]
        _text(folder, text + json.dumps(found)[1:-1])

    return attack


def _replace(old: str, new: str) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        found = json.loads((folder / "manifest.json").read_bytes())
        del found["crc32c"]
        body = json.dumps(found)[1:-1]
        if old not in body:
            raise ValueError(f"{old} is not in the manifest")
        _text(folder, body.replace(old, new, 1))

    return attack


def _bytes(data: bytes) -> Callable[[Path], None]:
    def attack(folder: Path) -> None:
        (folder / "manifest.json").write_bytes(data)

    return attack


def _edited_by_hand(folder: Path) -> None:
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"cat"', b'"bat"'))


def _replace_file(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Replaces a file by something else."""

    def attack(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return attack


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero: endless
    except PermissionError:
        path.symlink_to("/dev/zero")


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        os.truncate(file.fileno(), 10 << 30)


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _name(value: str) -> Callable[[Path], None]:
    return _set("shards.1.name", value)


NAMES = {
    "parent": "../outside.lmdb",
    "absolute": "/etc/passwd",
    "backslash": "..\\outside.lmdb",
    "slash": "a/shard-00001.lmdb",
    "nul": "shard-00001.lmdb\0",
    "newline": "shard-00001.lmdb\n",
    "empty": "",
    "dot": ".",
    "dots": "..",
    "4 kB": "a" * 4096,
    "1 MB": "shard-" + "0" * 1_000_000 + ".lmdb",
    "other digits": "shard-\u0661\u0661\u0661\u0661\u0661.lmdb",
    "upper": "SHARD-00001.LMDB",
    "surrogate": "shard-\ud800.lmdb",
    "lock": "shard-00001.lmdb-lock",
    "the manifest": "manifest.json",
    "no file": "shard-00009.lmdb",
    "too many digits": "shard-00000001.lmdb",
    "twice": "shard-00000.lmdb",
}
ATTACKS: dict[str, Callable[[Path], None]] = {
    **{f"name: {what}": _name(value) for what, value in NAMES.items()},
    "name: escaped": _replace('"shard-00001.lmdb"', '"..\\u002foutside.lmdb"'),
    "name: number": _set("shards.1.name", 7),
    "column: parent": _set("columns.1.name", "../../outside"),
    "column: object type": _set("columns.1.dtype", "|O"),
    "column: huge": _set("columns.1.shape", [1 << 62]),
    "column: negative": _set("columns.1.shape", [-1]),
    "NaN": _set("n_samples", float("nan")),
    "Infinity": _set("shards.0.size", float("inf")),
    "-Infinity": _set("seed", -float("inf")),
    "1e400": _insert('"x": 1e400, '),
    "NaN in options": _replace('"options": {}', '"options": {"a": NaN}'),
    "true": _set("n_samples", True),
    "true version": _set("version", True),
    "false": _set("skipped", False),
    "a float": _set("n_samples", 20.0),
    "text for a number": _set("n_samples", "20"),
    "negative": _set("shards.0.records", -8),
    "1e18 samples": _set("n_samples", 10**18),
    "1e18 records": _set("shards.2.records", 10**18),
    "2**64 bytes": _set("shards.0.size", 1 << 64),
    "10**5 digits": _insert('"x": ' + "9" * 100_000 + ", "),
    "10**6 digits": _replace('"seed": 0', '"seed": ' + "9" * 1_000_000),
    "10**6 digits, a float": _insert('"x": 0.' + "9" * 1_000_000 + ", "),
    "key twice": _insert('"n_samples": 20, '),
    "key twice, escaped": _insert('"n_s\\u0061mples": 1, '),
    "shard key twice": _replace('"first": 0', '"first": 0, "first": 0'),
    "10**6 lists": _insert('"x": ' + "[" * 1_000_000 + "]" * 1_000_000 + ", "),
    "10**6 open lists": lambda folder: _text(folder, b"[" * 1_000_000),
    "10**6 objects": _insert('"x": ' + '{"a":' * 1_000_000),
    "9 deep": _replace('"options": {}', '"options": ' + '{"a":' * 8 + "1" + "}" * 8),
    "10**6 keys": _insert("".join(f'"{n}":0,' for n in range(300_000))),
    "10**5 fields": _set("fields", [{}] * 100_000),
    "10**6 shards": _replace('"shards": [', '"shards": [' + "{}," * 1_000_001),
    "overlap": _set("shards.1.first", 7),
    "gap": _set("shards.1.first", 9),
    "huge base": _set("shards.1.base", 1 << 70),
    "index larger than the file": _set("shards.1.index_size", 10**12),
    "no index": _set("shards.1.index_size", 0),
    "more values than samples": _set("fields.0.properties.lengths", {"1": 10**9}),
    "shape with a negative side": _set("fields.0.properties.shape", ["<f4", [-1]]),
    "properties of another type": _set("fields.0.properties", []),
    "no records": _set("shards.2.records", 0),
    "no shards": _set("shards", []),
    "fewer samples": _set("n_samples", 19),
    "more samples": _set("n_samples", 21),
    "sizes swapped": _set("shards.2.size", 1 << 20),
    "pickle kind": _set("fields.0.kind", "pickle"),
    "class field": _set("fields.0.__class__", "os.system"),
    "code": _set("format", "__import__('os').system('id')"),
    "field named source": _set("fields.2.name", "source"),
    "image of a missing field": _set("fields.0.image", "missing"),
    "two fields, one name": _set("fields.2.name", "label"),
    "version 4": _set("version", 4),
    "version 10**30": _replace('"version": 3', '"version": 1' + "0" * 30),
    "unknown key": _set("extra", 1),
    "not UTF-8": lambda folder: _text(folder, b'"format": "\xff"'),
    "UTF-16": lambda folder: _text(folder, '"format"'.encode("utf-16")),
    "lone surrogate": _replace('"cat"', '"\\ud800"'),
    "NUL in a class": _replace('"cat"', '"\\u0000"'),
    "empty file": _bytes(b""),
    "wrong checksum": _edited_by_hand,
    "no checksum": _bytes(b"{}"),
    "a list": _bytes(b"[]"),
    "only the last line": _bytes(b',\n "crc32c": "00000000"\n}\n'),
    "60 MB of brackets": lambda folder: _text(folder, b"[" * 60_000_000),
    "40 MB of quotes": lambda folder: _text(folder, b'"' * 40_000_000),
    "escapes": lambda folder: _text(folder, b'"' + b'\\"' * 5_000_000),
    "65 MB": _bytes(b"x" * (65 << 20)),
    "10 GiB of nothing": _replace_file("manifest.json", _sparse),
    "manifest: link to the good one": _replace_file(
        "manifest.json", lambda path: path.symlink_to("../../good/manifest.json")
    ),
    "manifest: link": _replace_file("manifest.json", lambda path: path.symlink_to("/etc/passwd")),
    "manifest: loop": _replace_file("manifest.json", _loop),
    "manifest: FIFO": _replace_file("manifest.json", os.mkfifo),
    "manifest: device": _replace_file("manifest.json", _device),
    "manifest: folder": _replace_file("manifest.json", os.mkdir),
    "shard: link": _replace_file("shard-00001.lmdb", lambda path: path.symlink_to("/etc/passwd")),
    "shard: link to a sibling": _replace_file(
        "shard-00001.lmdb", lambda path: path.symlink_to("shard-00000.lmdb")
    ),
    "shard: loop": _replace_file("shard-00001.lmdb", _loop),
    "shard: FIFO": _replace_file("shard-00001.lmdb", os.mkfifo),
    "shard: device": _replace_file("shard-00001.lmdb", _device),
    "shard: folder": _replace_file("shard-00001.lmdb", os.mkdir),
}
SHARD_ERRORS = {"name: no file", "sizes swapped"}  # the manifest is valid, but a file is not


def attempt(folder: Path, name: str) -> dict[str, Any]:
    """Opens an attacked dataset in a child; returns the result and its cost."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = resource.getrusage(resource.RUSAGE_SELF)
        # ru_maxrss never falls and starts with the peak of the parent, so only its growth counts.
        try:
            ds = open_dataset(folder)
            result = f"opened, {[bytes(ds.raw(i, 'image'))[:2] for i in range(len(ds))]!r:.50}"
        except StoreError as error:
            result = f"{type(error).__name__}: {error}"
        except BaseException as error:  # noqa: BLE001 (any exception is a finding)
            result = f"UNTYPED {type(error).__name__}: {error!r:.200}"
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        os.write(
            writing,
            json.dumps([result[:3000], cpu, (after.ru_maxrss - before.ru_maxrss) / 1024]).encode(),
        )
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    result, cpu, megabytes = (
        json.loads(answer) if status == 0 else (f"KILLED by signal {-status}", 0, 0)
    )
    return {"name": name, "result": result, "cpu_s": cpu, "mb": megabytes}


def main(root: Path, bug: str = "", only: str = "") -> None:
    """Runs all cases or one, each on its own dataset; prints one line of JSON per case."""
    plant(bug)
    good = root / "good"
    write_dataset(good, simple_samples(20))
    (root / "cases").mkdir()
    (root / "cases" / "outside.lmdb").write_bytes(SECRET)
    for number, (name, attack) in enumerate(ATTACKS.items()):
        if only not in ("", name):
            continue
        folder = root / "cases" / str(number)
        folder.mkdir()
        (folder / "columns").symlink_to(good / "columns")  # not read when a dataset is opened
        for path in good.glob("*.*"):
            (folder / path.name).write_bytes(path.read_bytes())
        builder = os.fork()  # building the attack must not count for the measured child
        if builder == 0:
            attack(folder)
            os._exit(0)
        if os.waitpid(builder, 0)[1]:
            raise RuntimeError(f"cannot build the attack {name!r}")
        print(json.dumps(attempt(folder, name)), flush=True)


def run(root: Path, bug: str = "", only: str = "") -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fault.test_manifest_attacks", str(root), bug, only],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the harness failed: {done.stderr[-3000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def failures(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    bad = []
    for case in found:
        name = case["name"]
        expected = (
            CorruptShard if name.startswith("shard: ") or name in SHARD_ERRORS else CorruptManifest
        )
        typed = case["result"].startswith(expected.__name__ + ":") and len(case["result"]) < 1500
        if not typed or case["cpu_s"] >= 1 or case["mb"] >= 100:
            bad.append(case)
    return bad


def test_every_attack_raises_a_fastload_error(tmp_path: Path) -> None:
    found = run(tmp_path)
    cpu, memory = (max(case[what] for case in found) for what in ("cpu_s", "mb"))
    print(f"{len(found)} attacks; at most {cpu:.2f} s of CPU, {memory:.0f} MB")
    assert len(found) == len(ATTACKS) >= 60
    assert failures(found) == []


@pytest.mark.parametrize(
    ("bug", "attack"),
    [
        ("any name", "name: parent"),
        ("any depth", "9 deep"),
        ("last key wins", "key twice"),
        ("no manifest checksum", "wrong checksum"),
        ("links followed", "manifest: link to the good one"),
    ],
)
def test_planted_bugs_are_detected(tmp_path: Path, bug: str, attack: str) -> None:
    assert [case["name"] for case in failures(run(tmp_path, bug, attack))] == [attack]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
