"""Writes examples/README.md: the difference between the two versions of each trainer.

python -m tools.example_diffs [--check]
"""

from __future__ import annotations

import ast
import difflib
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
PAGE = EXAMPLES / "README.md"
HEAD = """# Five trainers, before and after

After this page you can migrate a trainer to fastload. Each of the five trainers exists twice:
`NAME_torch.py` uses torch's DataLoader and `NAME.py` uses fastload. Model, loss and training loop
are the same; the sections below show the difference.

All trainers run on the CPU (`--smoke` takes seconds), on one GPU, and on several GPUs with
`torchrun --nproc-per-node N -m examples.NAME`. All write `metrics.jsonl` for `fastload doctor` and
`fastload report`. Run them from the root of the clone. `python -m tools.example_diffs` generates
this page.
"""
TITLES = {
    "lanes": "A. Lane detection: 1920x1280 to 960x720, with polylines and camera matrix",
    "bev": "B. Bird's-eye-view segmentation: six 1600x900 cameras, gradient accumulation",
    "gray": "C. Small grayscale images: one channel from file to model",
    "captcha": "D. CAPTCHA keypoints: mixed precision",
    "classifier": "E. Classifier: validation, mixed precision, compile, checkpoints in mid-epoch",
}


def page() -> str:
    return "\n".join([HEAD, *(section(name, title) for name, title in TITLES.items())])


def section(name: str, title: str) -> str:
    before, after = ((EXAMPLES / file).read_text() for file in (f"{name}_torch.py", f"{name}.py"))
    lines = difflib.unified_diff(
        training(before), training(after), f"{name}_torch.py", f"{name}.py", n=1, lineterm=""
    )
    commands = after.split('"""')[1].rpartition("\n\n")[2].rstrip()
    dataset = dataset_class(before)
    why = (
        f"The class `{dataset.name}` ({n_statements(dataset)} statements), which read, cropped "
        "and\nresized the images, is no longer needed. The training code changes as follows:"
    )
    return (
        f"## {title}\n\n```\n{commands}\n```\n\n{why}\n\n```diff\n" + "\n".join(lines) + "\n```\n"
    )


def training(text: str) -> list[str]:
    """The code from the definition of the loaders to the end."""
    start = min(text.index(mark) for mark in ("def loaders", "def train") if mark in text)
    lines = text[start:].splitlines()
    if not any(line.startswith("def accuracy") for line in lines):
        return lines
    # The other version imports this function unchanged.
    start, end = (
        next(place for place, line in enumerate(lines) if line.startswith(mark))
        for mark in ("def accuracy", "def train")
    )
    return lines[:start] + lines[end:]


def dataset_class(text: str) -> ast.ClassDef:
    """The class that reads samples in the torch version: the first one of the file."""
    return next(node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))


def n_statements(node: ast.AST) -> int:
    return sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
