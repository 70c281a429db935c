"""Two ranks under torchrun: each sample once, equal steps, the gradients of one process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_framework_docs import needs
from tests.loading import pack_photos

N = 48
MODEL = """
import json, os, threading, torch, fastload
from fastload import transforms as T
def loader(**options): return fastload.DataLoader("packed", 4, split="train", shuffle=True, fields=("image", "label", "id"), transform=[T.RandomResizedCrop(16), T.Normalize(0.5, 0.25)], **options)
def net(): torch.manual_seed(0); return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))
def comm(task):
    try: return open(f"/proc/self/task/{task}/comm").read().strip()
    except OSError: return ""  # it has just ended
def threads():
    names = [thread.name for thread in threading.enumerate()] + [comm(task) for task in os.listdir("/proc/self/task")]
    return [name for name in names if name.startswith("fastload")]
def loss_of(model, batch): seen.update(threads()); return torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
ids, seen = [], set()
"""
SCRIPTS = {
    "accelerate": MODEL
    + """
early = loader()  # before the process group exists
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = net()
model, optimizer, early = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), early)
for batch in early:
    optimizer.zero_grad(); accelerator.backward(loss_of(model, batch)); optimizer.step(); ids.append(batch["id"].tolist())
weights = accelerator.unwrap_model(model)[1].weight
accelerator.wait_for_everyone()  # a rank that exits early resets the connection of the other
accelerator.end_training()
""",
    "lightning": MODEL
    + """
import lightning
class Module(lightning.LightningModule):
    def __init__(self): super().__init__(); self.net = net()
    def training_step(self, batch, number): ids.append(batch["id"].tolist()); return loss_of(self.net, batch)
    def configure_optimizers(self): return torch.optim.SGD(self.net.parameters(), 0.1)
module = Module()
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False, enable_checkpointing=False)
trainer.fit(module, loader())
weights = module.net[1].weight
""",
    "torch": MODEL
    + """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for batch in loader():
    optimizer.zero_grad(); loss_of(model, batch).backward(); optimizer.step(); ids.append(batch["id"].tolist())
weights = model.module[1].weight
torch.distributed.barrier()  # for the same reason
torch.distributed.destroy_process_group()
""",
}
# The threads of the loader must end when it is closed. The process then leaves without interpreter
# exit: there, Gloo's own threads sometimes abort the process, also with a plain torch DataLoader.
LEAVE = "import sys; sys.stdout.flush(); os._exit(0)\n"
LAST = (
    """
import gc, time
for each in gc.get_objects():
    if issubclass(type(each), fastload.DataLoader): each.close()
until = time.monotonic() + 600
while threads() and time.monotonic() < until: time.sleep(0.01)
with open(f"rank{os.environ['RANK']}.json", "w") as file:
    json.dump({"ids": ids, "weights": weights.flatten().tolist()[:50], "seen": sorted(seen), "left": threads()}, file)
"""
    + LEAVE
)


@pytest.mark.parametrize("library", sorted(SCRIPTS))
def test_two_ranks_share_an_epoch(library: str, tmp_path: Path) -> None:
    needs(library)
    pack_photos(tmp_path / "packed", N, val=7)
    (tmp_path / "train.py").write_text(SCRIPTS[library] + LAST)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "train.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert all(rank["seen"] for rank in ranks), "no thread was running, so none could end"
    assert [rank["left"] for rank in ranks] == [[], []]
    assert [len(rank["ids"]) for rank in ranks] == [6, 6]
    assert sorted(i for rank in ranks for batch in rank["ids"] for i in batch) == list(range(N))
    assert (
        ranks[0]["weights"]
        == ranks[1]["weights"]
        == pytest.approx(_alone(tmp_path, [rank["ids"] for rank in ranks]), abs=1e-5)
    )


def _alone(folder: Path, ids: list[list[list[int]]]) -> list[float]:
    """One process that trains on the batches of both ranks together."""
    import torch

    import fastload
    from fastload import transforms as T

    batches = [one + other for one, other in zip(*ids, strict=True)]
    loader = fastload.DataLoader(
        folder / "packed",
        split="train",
        batch_sampler=batches,
        fields=("image", "label"),
        return_matrix=True,
        transform=[T.RandomResizedCrop(16), T.Normalize(0.5, 0.25)],
    )
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    weights: list[float] = next(model.parameters()).flatten().tolist()[:50]
    return weights


EVALUATED = """
import json, os, torch, fastload.callbacks.mmengine
torch.distributed.init_process_group("gloo")
from mmengine.dist import collect_results
from mmengine.runner import Runner
loader = Runner.build_dataloader(dict(batch_size=4, num_workers=0, dataset=dict(type="FastloadDataset", path="packed", split="val", fields=("id",)),
    sampler=dict(type="FastloadSampler", shuffle=False), batch_sampler=dict(type="FastloadBatches"), collate_fn=dict(type="fastload_collate")))
ids = [number for batch in loader for number in batch["id"].tolist()]
together = collect_results(ids, len(loader.dataset), "cpu", tmpdir="collected")
if torch.distributed.get_rank() == 0:
    open("together.json", "w").write(json.dumps([len(loader), together]))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""
EVALUATED += LEAVE


def test_mmengine_counts_every_sample_once(tmp_path: Path) -> None:
    needs("mmengine")
    pack_photos(tmp_path / "packed", 7, val=10)
    (tmp_path / "evaluate.py").write_text(EVALUATED)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "evaluate.py",
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    n_batches, together = json.loads((tmp_path / "together.json").read_text())
    assert n_batches == 1
    assert sorted(together) == list(range(7, 17))
