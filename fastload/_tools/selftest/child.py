"""One stage in a process of its own: ``python -m fastload._tools.selftest.child STAGE BACKEND DEVICE FOLDER DATASET GENERATED``.

Writes FOLDER/result.json when the stage has come to an end. Whatever else happens (an exception, a crash, a hang) is the parent's to tell.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from fastload._tools.selftest import gpu_stages, stages
from fastload._tools.selftest.catalog import RESULT


def main(arguments: list[str]) -> int:
    """Runs the stage; 0 where it came to an end, whatever it found."""
    name, backend, device, folder, dataset, generated = arguments
    # Small work: on a busy machine two threads wait for each other most of the time
    torch.set_num_threads(1)
    stage: stages.Stage = getattr(stages, name, None) or getattr(gpu_stages, name)
    outcome = stage(stages.Task(backend, device, Path(dataset), Path(generated), Path(folder)))
    text = json.dumps({"ok": outcome.ok, "summary": outcome.summary, "facts": outcome.facts})
    Path(folder, RESULT).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
