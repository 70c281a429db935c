"""Runs one stage of the self-test in its own process.

    python -m fastload._tools.selftest.child STAGE BACKEND DEVICE FOLDER DATASET GENERATED

Writes FOLDER/result.json when the stage has finished. The parent reports everything else: an
exception, a crash or a hang.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from fastload._tools.selftest import gpu_stages, stages
from fastload._tools.selftest.catalog import RESULT


def main(arguments: list[str]) -> int:
    name, backend, device, folder, dataset, generated = arguments
    # The tensors are small: on a busy machine, several threads would mostly wait for each other.
    torch.set_num_threads(1)
    stage: stages.Stage = getattr(stages, name, None) or getattr(gpu_stages, name)
    outcome = stage(stages.Task(backend, device, Path(dataset), Path(generated), Path(folder)))
    text = json.dumps({"ok": outcome.ok, "summary": outcome.summary, "facts": outcome.facts})
    Path(folder, RESULT).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
