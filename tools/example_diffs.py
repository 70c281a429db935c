"""Writes examples/README.md: what changed in each trainer, as the difference of its two files. python -m tools.example_diffs [--check]"""

from __future__ import annotations

import difflib
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PAGE = EXAMPLES / "README.md"
HEAD = """# Five trainers, before and after

Each team's trainer is here twice: `NAME_torch.py` with torch's DataLoader, as they had it, and `NAME.py` with fastload. Model, loss and
loop are the same; what changed is below. All run on the CPU (`--smoke`: in seconds), on one GPU, and on several with `torchrun
--nproc-per-node N -m examples.NAME`; all write `metrics.jsonl` for `fastload doctor` and `fastload report`. Run them from the root of the
checkout. This page is written by `python -m tools.example_diffs`.
"""
TITLES = {
    "lanes": "A. Lanes: 1920x1280 to 960x720, polylines and the camera matrix move along",
    "bev": "B. Bird's-eye view: six cameras of 1600x900, gradient accumulation",
    "gray": "C. Small gray pictures: one channel from end to end",
    "captcha": "D. CAPTCHA keypoints: mixed precision that is really on",
    "classifier": "E. Classifier: validation, mixed precision, channels_last, compile, resume in mid-epoch",
}


def page() -> str:
    return "\n".join([HEAD, *(section(name, title) for name, title in TITLES.items())])


def section(name: str, title: str) -> str:
    before, after = ((EXAMPLES / file).read_text() for file in (f"{name}_torch.py", f"{name}.py"))
    lines = difflib.unified_diff(
        training(before), training(after), f"{name}_torch.py", f"{name}.py", n=1, lineterm=""
    )
    commands = "\n".join(
        line.removeprefix("    ")
        for line in after.split('"""')[1].partition("\n\n")[2].rstrip().splitlines()
    )
    gone, length = dataset_class(before)
    why = f"The class `{gone}`, which read, cut and resized the pictures in {length} lines, is gone; the training changes by"
    return (
        f"## {title}\n\n```\n{commands}\n```\n\n{why}\n\n```diff\n" + "\n".join(lines) + "\n```\n"
    )


def training(text: str) -> list[str]:
    """From the loaders on."""
    start = min(text.index(mark) for mark in ("def loaders", "def train") if mark in text)
    lines = text[start:].splitlines()
    skip = any(
        line.startswith("def accuracy") for line in lines
    )  # shared, unchanged; the other file imports it
    if not skip:
        return lines
    from_, to = (
        next(place for place, line in enumerate(lines) if line.startswith(mark))
        for mark in ("def accuracy", "def train")
    )
    return lines[:from_] + lines[to:]


def dataset_class(text: str) -> tuple[str, int]:
    """Its name, and how long it is with what belongs to it."""
    start = text.index("\nclass ") + 1  # the text above may speak of classes
    end = min(text.index(mark) for mark in ("def loaders", "def train") if mark in text)
    return text[start:].split("(", maxsplit=1)[0].removeprefix("class "), text[
        start:end
    ].rstrip().count("\n") + 1


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
