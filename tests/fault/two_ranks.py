"""One rank of a training run, started by torchrun with the arguments PACKED OUT MODE."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastload
from fastload import transforms as T


def main(packed: str, out: str, mode: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    rank, world = dist.get_rank(), dist.get_world_size()
    loader = fastload.DataLoader(
        packed,
        4,
        shuffle=True,
        transform=[T.RandomResizedCrop(16)],
        fields=("image", "label", "id"),
        seed=2,
        last_batch="pad" if mode == "pad" else "partial",
        timeout=600,
    )
    saved = Path(out) / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    steps: list[Any] = []
    for number, batch in enumerate(loader):
        steps.append([batch["id"].tolist(), batch["label"].tolist()])
        if mode == "die" and rank == 1 and number == 2:
            os.kill(os.getpid(), 9)
        total = torch.tensor([float(len(batch["id"]))])
        dist.all_reduce(total)  # hangs or fails unless all ranks have the same number of batches
        if mode.startswith("stop") and number + 1 == int(mode[4:]):
            if rank == 0:
                saved.with_suffix(".new").write_text(json.dumps(loader.state_dict()))
            break
    (Path(out) / f"rank{rank}of{world}.json").write_text(
        json.dumps({"steps": steps, "threads": loader.stats().threads, "len": len(loader)})
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
