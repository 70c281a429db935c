"""Generates the recorded runs of docs/why-is-my-gpu-waiting.md: five teams with their problems.

`python -m tests.doc_runs docs/why-is-my-gpu-waiting.md` writes the current output of the commands
into the page. A test compares the two.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fastload._cli import main
from tests.made_runs import Made, every, foreign_rows, made, rows_of, window, write, write_window

WIDTH = 100  # columns of the page
BLOCK = re.compile(r"```console\n((?:\$ fastload [^\n]*\n)(?:.*?))```", re.S)


def lanes(folder: Path) -> None:
    """A: 3D lanes on two GPUs, with the log of the team. Waits of up to 6.6 s for the disk."""
    run = made(4000, step=0.21, data=0.01, parts=None, batch=16, seed=1)
    at = np.sort(np.random.default_rng(4).choice(np.arange(200, 4000), 70, replace=False))
    run.data[at] += np.random.default_rng(5).gamma(2.0, 1.3, 70).clip(0.5, 6.6)
    write(folder / "lanes.jsonl", foreign_rows(run, number="iter", took="iter_time"))
    probe = {
        "read": 0.092,
        "cut": 0.0003,
        "decode": 0.021,
        "resize": 0.006,
        "finish": 0.002,
        "wait": 0.2,
    }
    late = replace(made(2000, step=0.21, data=0.2, batch=16, seed=2), probe=probe)
    write(folder / "lanes-probed.jsonl", rows_of(late))
    write_window(
        folder / "lanes-window.json",
        window(util=49.0, waves=0.5, gpus=2, iowait=31.0, cpu=35.0, power=180.0),
    )


def cameras(folder: Path) -> None:
    """B: six cameras. Steps stall for checkpoints, evaluation and swapping."""
    run = every(
        every(made(62_000, step=0.148, data=0.004, batch=4, seed=3), 5000, 4.1), 20_000, 190.0
    )
    slow = np.zeros(62_000, bool)
    for start in (6_200, 17_200, 28_200, 37_200, 51_200):
        slow[start : start + 1500] = True
    run.data[slow] += 0.75
    run = replace(run, swap=np.where(slow, 6e7, 0.0))
    write(folder / "bev.jsonl", rows_of(run, every_steps=50))


def small_images(folder: Path) -> None:
    """C: 128 x 128 grayscale on four GPUs; every eighth step waits for a worker."""
    run = every(made(6000, step=0.0135, data=0.0004, batch=64, seed=4), 8, 0.065, data=True)
    write(folder / "gray.jsonl", rows_of(run))
    write_window(
        folder / "gray-window.json", window(util=65.0, waves=0.3, gpus=4, cpu=97.0, cores=16)
    )


def captcha(folder: Path) -> None:
    """D: keypoints with a small model on a large GPU: no data wait, but 300 W of 575 W."""
    write(folder / "captcha.jsonl", rows_of(made(3000, step=0.32, data=0.0006, batch=32, seed=5)))
    write_window(
        folder / "captcha-window.json",
        window(util=93.0, power=300.0, limit=575.0, cpu=22.0, cores=28),
    )


def batch_sizes(folder: Path) -> None:
    """E: batch size 4 compared with batch size 8."""
    for batch, speed in ((4, 7.5), (8, 3.653)):
        write(
            folder / f"batch{batch}.jsonl",
            rows_of(made(3000, step=1 / speed, data=0.0008, batch=batch, seed=6)),
        )


def healthy(folder: Path) -> None:
    """A healthy run."""
    run: Made = every(made(22_000, step=0.146, data=0.0009, batch=4, noise=0.02, seed=7), 5000, 4.1)
    write(
        folder / "after.jsonl",
        rows_of(replace(run, events=[(k, "checkpoint", 4.1) for k in range(5000, 22_001, 5000)])),
    )
    write_window(folder / "after-window.json", window(util=96.0))


MAKERS: list[Callable[[Path], None]] = [lanes, cameras, small_images, captcha, batch_sizes, healthy]


def make_all(folder: Path) -> None:
    """Writes all files that the page uses."""
    for make in MAKERS:
        make(folder)


def said(command: str, folder: Path) -> str:
    """The output of a command that runs in the folder."""
    here = Path.cwd()
    out = io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            main(command.removeprefix("$ fastload ").split())
    finally:
        os.chdir(here)
    return out.getvalue()


def renewed(page: str, folder: Path) -> str:
    """The page with the current output of every console block, wrapped at ``WIDTH``."""

    def block(found: re.Match[str]) -> str:
        command = found[1].split("\n", 1)[0]
        return f"```console\n{command}\n{folded(said(command, folder))}```"

    return BLOCK.sub(block, page)


def folded(text: str) -> str:
    """Wraps a long line; continuation lines have the same indentation."""
    lines = []
    for whole in text.splitlines():
        line = whole
        indent = 13 if re.match(r"   [a-z ]{9} ", line) else 2
        while len(line) > WIDTH:
            cut = line.rfind(" ", indent, WIDTH)
            lines.append(line[:cut])
            line = " " * indent + line[cut + 1 :]
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        make_all(Path(name))
        page = Path(sys.argv[1])
        page.write_text(renewed(page.read_text(), Path(name)))
