"""Each page in docs/frameworks runs with the real library in its own process, then is checked."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loading import pack_photos

PAGES = Path(__file__).resolve().parents[2] / "docs" / "frameworks"
N = 48

# Runs after the code of the page, in the same namespace.
CHECKS = {
    "lightning": """
        class Watched(Classifier):
            def __init__(self): super().__init__(); self.seen = []
            def training_step(self, batch, number): self.seen.append(batch["id"].tolist()); return super().training_step((batch["image"], batch["label"]), number)
            def predict_step(self, batch, number): return batch["id"]
        def loader(): return fastload.DataLoader("packed", 4, split="train", shuffle=True, fields=("image", "label", "id"), transform=[T.RandomResizedCrop(32), T.Normalize(0.5, 0.25)])
        def watched(checkpoint=None, epochs=2):
            keep = [ModelCheckpoint(dirpath="watched", filename="{step}", every_n_train_steps=5, save_top_k=-1)]
            trainer, model = lightning.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=keep), Watched()
            trainer.fit(model, loader(), ckpt_path=checkpoint)
            return trainer, model.seen
        def by_epoch(checkpoint=None):
            keep = [ModelCheckpoint(dirpath="by_epoch", filename="{epoch}", every_n_epochs=1, save_top_k=-1)]
            model = Watched()
            lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=keep).fit(model, loader(), ckpt_path=checkpoint)
            return model.seen
        _, whole = watched()
        trainer, rest = watched("watched/step=5.ckpt")
        assert len(whole) == 24 and rest == whole[5:], (rest, whole)
        assert sorted(sum(whole[:12], [])) == list(range(48))
        three = by_epoch()
        assert by_epoch("by_epoch/epoch=0.ckpt") == three[12:] and by_epoch("by_epoch/epoch=1.ckpt") == three[24:]
        model = Watched()
        lightning.Trainer(max_epochs=2, overfit_batches=2, accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False).fit(model, loader())
        assert len(model.seen) == 4 and model.seen[:2] == model.seen[2:]
        predicted = torch.cat(trainer.predict(Watched(), loader()))
        assert type(trainer.predict_dataloaders) is fastload.DataLoader and sorted(predicted.tolist()) == list(range(48))
        """,
    "accelerate": """
        def watched(): return fastload.DataLoader("packed", 4, split="train", shuffle=True, fields=("image", "id"), device=accelerator.device, transform=[T.RandomResizedCrop(32)])
        given = watched()
        assert accelerator.prepare(given) is given
        ids, synced = [], []
        for step, batch in enumerate(given):
            with accelerator.accumulate(model):
                ids.append(batch["id"].tolist()); synced.append(accelerator.sync_gradients)
            if step == 4:
                accelerator.save_state("watched")
        assert len(ids) == 12 and synced[-1] and not accelerator.gradient_state.in_dataloader, synced
        accelerator.load_state("watched")
        assert [batch["id"].tolist() for batch in given] == ids[5:]
        from accelerate import skip_first_batches
        accelerator.load_state("watched")  # many scripts also skip batches: none may be lost
        skipped, synced = [], []
        for batch in skip_first_batches(given, 5):
            with accelerator.accumulate(model):
                skipped.append(batch["id"].tolist()); synced.append(accelerator.sync_gradients)
        assert skipped == ids[5:] and synced[-1] and not accelerator.gradient_state.in_dataloader, synced
        assert len(list(given)) == 12 and given.state_dict()["epoch"] == 2
        own = accelerator.prepare(fastload.DataLoader("packed", 4, split="train", sampler=list(range(9)), fields=("id",)))
        assert [i for batch in own for i in batch["id"].tolist()] == list(range(9))
        assert [i for batch in skip_first_batches(own, 1) for i in batch["id"].tolist()] == list(range(4, 9))
        own_collate = fastload._load.torch_compat.accelerate.CollateOnto(torch.stack, torch.device("meta"))
        assert own_collate([torch.zeros(2), torch.zeros(2)]).device.type == "meta"
        """,
    "transformers": """
        class Watched(Classifier):
            def __init__(self): super().__init__(); self.seen = []
            def forward(self, image, label, id): self.seen.append(id.tolist()); return super().forward(image, label)
        def watched(checkpoint=None):
            global loader
            loader, model = fastload.DataLoader("packed", 4, split="train", shuffle=True, fields=("image", "label", "id"), transform=[T.RandomResizedCrop(32), T.Normalize(0.5, 0.25)]), Watched()
            FastTrainer(model, arguments, train_dataset=loader.dataset).train(resume_from_checkpoint=checkpoint)
            return model.seen
        whole = watched()
        assert watched("trained/checkpoint-5") == whole[5:] and len(whole) == 24
        assert sorted(sum(whole[12:], [])) == list(range(48))
        """,
    "mmengine": """
        seen = []
        class Watched(Classifier):
            def forward(self, image, label, id, mode="tensor"): seen.append(id.tolist()); return super().forward(image, label, id)
        parts = {name: config[name] for name in ("train_dataloader", "train_cfg", "optim_wrapper")}
        Runner(Watched(), work_dir="watched", log_level="WARNING", **parts).train()
        flat = sum(seen[:12], [])
        assert len(seen) == 24 and sorted(flat) == list(range(48)) and seen[:12] != seen[12:]
        for wrong in (dict(type="Nothing"), dict()):
            try: fastload.callbacks.mmengine.FastloadDataset("packed", split="train", transform=[wrong])
            except fastload.ConfigError as error: assert "RandomResizedCrop" in str(error)
            else: raise AssertionError(wrong)
        batch = fastload.callbacks.mmengine.fastload_collate(fastload.callbacks.mmengine.FastloadDataset("packed", [dict(type="Resize", height=8, width=8)], split="train").__getitems__([3, 4]))
        assert batch["image"].shape == (2, 3, 8, 8) and list(batch) == ["image", "label"]
        """,
    "torchdata": """
        first = StatefulDataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        loader.set_epoch(0)
        whole = [batch["id"].tolist() for batch in first]
        fresh = fastload.DataLoader("packed", **options)
        assert whole == [batch["id"].tolist() for batch in fresh] and len(whole) == 12
        def parts(): fresh = fastload.DataLoader("packed", **options); return fresh, StatefulDataLoader(fresh.dataset, batch_sampler=fresh.batch_sampler, collate_fn=fresh.collate_fn)
        first_loader, first = parts()
        epochs = [[(batch["id"].tolist(), batch["image"].sum().item()) for batch in first] for _ in range(3)]
        _, stopped = parts()
        assert len(list(stopped)) == 12
        for number, batch in enumerate(stopped, 1):         # in the second epoch
            if number == 5: break
        _, again = parts()
        again.load_state_dict(stopped.state_dict())
        rest = [[(batch["id"].tolist(), batch["image"].sum().item()) for batch in again] for _ in range(2)]
        assert rest == [epochs[1][5:], epochs[2]], [len(each) for each in rest]
        def other(): fresh = fastload.DataLoader("packed", **options); return StatefulDataLoader(fresh.dataset, batch_sampler=type(fresh.batch_sampler)(fresh.sampler, 6, False), collate_fn=fresh.collate_fn)
        stopped, again = other(), other()
        seen = []
        for batch in stopped:
            seen.append(batch["id"].tolist())
            if len(seen) == 3: break
        again.load_state_dict(stopped.state_dict())
        assert seen + [batch["id"].tolist() for batch in again] == [batch["id"].tolist() for batch in other()]
        """,
}


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"not run: {module} is not installed")


@pytest.mark.parametrize("page", sorted(CHECKS))
def test_the_page_runs_and_keeps_its_promises(page: str, tmp_path: Path) -> None:
    needs(page)
    pack_photos(tmp_path / "packed", N, val=7)
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.S)
    indent = re.compile(r"^ {8}", re.M)
    (tmp_path / "page.py").write_text(
        "\n".join([*blocks, indent.sub("", CHECKS[page]), "print('all of it')\n"])
    )
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "1",
    }
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=900,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.endswith("all of it\n")


def test_every_page_is_run() -> None:
    assert sorted(path.stem for path in PAGES.glob("*.md")) == sorted(CHECKS)
