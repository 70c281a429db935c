"""Ranks of torchrun: equal steps, every sample once, a killed rank, new world sizes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from fastload._store.dataset import open_dataset
from tests.fault.trials import ROOT

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="not run: no gloo"
)
N = 45


def torchrun(packed: Path, out: Path, world: int, mode: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world),
        "-m",
        "tests.fault.two_ranks",
        str(packed),
        str(out),
        mode,
    ]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )


def ranks(packed: Path, out: Path, world: int, mode: str = "") -> list[Any]:
    """Returns what each rank has loaded."""
    done = torchrun(packed, out, world, mode)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((out / f"rank{rank}of{world}.json").read_text()) for rank in range(world)]


def ids(found: list[Any]) -> list[int]:
    return [i for rank in found for step in rank["steps"] for i in step[0]]


@pytest.mark.parametrize("mode", ["pad", "partial"])
def test_ranks_have_equal_steps_disjoint_samples_and_correct_labels(
    packed: Path, tmp_path: Path, mode: str
) -> None:
    found = ranks(packed, tmp_path, 2, mode)
    assert len(found[0]["steps"]) == len(found[1]["steps"]) == found[0]["len"]
    counts = Counter(ids(found))
    assert sorted(counts) == list(range(N))
    # "pad" repeats one sample, like DistributedSampler.
    assert sum(counts.values()) == (N if mode == "partial" else 46)
    column = open_dataset(packed).column("label")
    assert all(column[step[0]].tolist() == step[1] for rank in found for step in rank["steps"])


def test_a_run_resumes_with_one_and_then_three_ranks(packed: Path, tmp_path: Path) -> None:
    seen: list[int] = []
    for world, mode in ((2, "stop2"), (1, "stop3"), (3, "partial")):
        seen += ids(ranks(packed, tmp_path, world, mode))
        if (tmp_path / "state.new").exists():
            (tmp_path / "state.new").rename(tmp_path / "state.json")
    assert sorted(seen) == list(range(N))


def test_a_killed_rank_ends_the_other_with_an_error(packed: Path, tmp_path: Path) -> None:
    done = torchrun(packed, tmp_path, 2, "die")
    assert done.returncode != 0
    assert "SIGKILL" in done.stderr or "exitcode  : -9" in done.stderr
    assert not list(tmp_path.glob("rank*"))  # no rank finished normally


def test_ranks_that_load_the_same_samples_are_detected(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control: without rank and world size, both ranks load everything."""
    script = tmp_path / "alone.py"
    script.write_text(
        "import sys\nfrom fastload._load import options\n"
        "options.Ranks.here = staticmethod(lambda rank=None, world=None: options.Ranks(0, 1, 1))\n"
        "from tests.fault.two_ranks import main\nmain(*sys.argv[1:])\n"
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(script),
        str(packed),
        str(tmp_path),
        "",
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=1800,
        check=True,
    )
    found = [json.loads((tmp_path / f"rank{rank}of2.json").read_text()) for rank in range(2)]
    assert max(Counter(ids(found)).values()) == 2
