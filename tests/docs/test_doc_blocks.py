"""Every code block of every document is run here, run by another test module, or exempt.

ACCOUNTS has one entry per block: which module runs it, or why none does. A new block without an
entry fails ``test_every_block_is_accounted_for``.
"""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fastload
from fastload._tools.monitor.metrics_file import RowParser
from tests.doc_blocks import PAGES, ROOT, Block, blocks_of, name_of, run_python, run_shell
from tests.loading import needs_core
from tests.made_runs import made, rows_of, window, write, write_window
from tests.packed_datasets import pack_folder

HERE = "here"
NO_CODE = "no code: "
NOT_RUN = "not run: "
# One entry per block, in the order of the page.
ACCOUNTS = {
    "README.md": [
        NOT_RUN + "clones and sets up a venv; `fastload demo` is run by test_command_line.py",
        HERE,
        HERE,
    ],
    "CONTRIBUTING.md": [HERE],
    "examples/README.md": [HERE, NO_CODE + "a difference; test_examples.py makes it again"] * 5,
    "docs/FORMAT.md": [
        *[NO_CODE + "a layout"] * 5,
        NO_CODE + "a record; test_format_doc.py decodes it",
    ],
    "docs/architecture.md": [NO_CODE + "a diagram"] * 4,
    "docs/benchmarks.md": [HERE],
    "docs/datasets.md": [HERE] * 7,
    "docs/ddp-and-resume.md": [
        NOT_RUN + "your train.py; test_framework_ranks.py runs one",
        *["test_docs_run.py"] * 2,
    ],
    "docs/diagnose.md": [
        *["test_diagnose_docs.py"] * 2,
        NO_CODE + "output",
        "test_diagnose_docs.py",
        NO_CODE + "output",
        *["test_diagnose_docs.py"] * 2,
        NO_CODE + "output",
        "test_diagnose_docs.py",
    ],
    "docs/distributed-packing.md": [
        NOT_RUN + "installs a package",
        *["test_distributed_docs.py"] * 7,
    ],
    "docs/frameworks/accelerate.md": ["test_framework_docs.py"],
    "docs/frameworks/lightning.md": ["test_framework_docs.py"] * 2,
    "docs/frameworks/mmengine.md": ["test_framework_docs.py"] * 2,
    "docs/frameworks/torchdata.md": ["test_framework_docs.py"] * 3,
    "docs/frameworks/transformers.md": ["test_framework_docs.py"] * 2,
    "docs/gpu.md": [HERE] * 3,
    "docs/index.md": [
        NOT_RUN + "installs the package; make wheel and make test-pure do",
        *["test_docs_run.py"] * 3,
    ],
    "docs/loader.md": [HERE] * 6,
    "docs/monitor.md": ["test_monitor_docs.py", *[HERE] * 6],
    "docs/packing.md": ["test_docs_run.py"] * 3,
    "docs/selftest.md": [HERE] * 2,
    "docs/sources.md": [
        NO_CODE + "an index; test_source_docs.py reads it",
        *[HERE] * 2,
        "test_source_docs.py",
    ],
    "docs/transforms.md": ["test_transforms_docs.py"] * 6,
    "docs/tuning.md": ["test_docs_run.py"],
    "docs/verify-and-inspect.md": [HERE] * 2,
    "docs/why-is-my-gpu-waiting.md": [HERE, *["test_doctor_docs.py"] * 7, HERE, HERE],
}
Names = dict[str, object]


def unaccounted(name: str, text: str) -> list[str]:
    """Blocks of a page without a valid entry in ACCOUNTS."""
    blocks, accounts = blocks_of(name, text), ACCOUNTS.get(name, [])
    if len(blocks) != len(accounts):
        return [f"{len(accounts)} entries in ACCOUNTS for these blocks:", *map(str, blocks)]
    wrong = []
    for block, account in zip(blocks, accounts, strict=True):
        if account.startswith(NO_CODE):
            fine = block.language not in ("python", "sh", "bash", "console")
        elif account.startswith("test_"):
            fine = (
                Path(name).stem
                in (ROOT / "tests" / "docs" / account).read_text()
                + (ROOT / "tests" / "doc_runs.py").read_text()
            )
        else:
            fine = account == HERE or account.startswith(NOT_RUN)
        wrong += [] if fine else [f"{block}: {account}"]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_accounted_for(page: Path) -> None:
    assert unaccounted(name_of(page), page.read_text()) == []


def test_every_listed_page_exists() -> None:
    assert set(ACCOUNTS) <= set(map(name_of, PAGES))


@pytest.mark.parametrize(
    "more",
    [
        "```python\nprint(1)\n```",
        "```\nfastload bench\n```",
        "~~~sh\nmake\n~~~",
        "````sh\nmake\n````",
    ],
)
def test_a_block_without_an_entry_is_reported(more: str) -> None:
    for name in ("docs/tuning.md", "docs/troubleshooting.md"):
        assert unaccounted(name, f"{(ROOT / name).read_text()}\n{more}\n")


@pytest.mark.parametrize("more", ["  ```sh\n  make\n  ```", "```sh\nmake\n"])
def test_an_indented_or_unclosed_block_is_an_error(more: str) -> None:
    with pytest.raises(ValueError, match="indented or not closed"):
        unaccounted("docs/tuning.md", f"{(ROOT / 'docs/tuning.md').read_text()}\n{more}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with ``images`` and the dataset ``packed`` made from it."""
    pack_folder(tmp_path, count=24, val=6)
    (tmp_path / "source").rename(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks_run_here(page: str) -> list[Block]:
    blocks = blocks_of(page, (ROOT / page).read_text())
    return [block for block, account in zip(blocks, ACCOUNTS[page], strict=True) if account == HERE]


def test_the_readme(folder: Path) -> None:
    commands, code = blocks_run_here("README.md")
    (folder / "packed").rename(folder / "was")  # the page creates it
    assert run_shell(commands, {r"pip install [^\n]*\n": "", "imagenet": "images"}) == 3
    assert (folder / "page.png").exists()
    names: Names = {"mean": 0.45, "std": 0.25}
    run_python(
        code, names, {"batch_size=256": "batch_size=8", r"    \.\.\.\n": "    last = images\n"}
    )
    assert names["last"].shape == (8, 3, 224, 224)  # type: ignore[attr-defined]


def test_contributing_names_existing_make_targets() -> None:
    (block,) = blocks_run_here("CONTRIBUTING.md")
    assert run_shell(block, {}) == 3


@pytest.mark.parametrize("number", range(5))
def test_the_examples_commands(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = blocks_run_here("examples/README.md")[number]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for torchrun
    small = {0: "4", 1: "2", 2: "24", 3: "16", 4: "48"}[number]
    train = "--smoke --epochs 1 --batch-size " + ("4" if number > 1 else "1")
    more = {"examples.": train, "makedata": "--jobs 1", "--pack ": ""}
    assert run_shell(block, {r"--n \d+": f"--n {small}"}, more=more) >= 3
    assert RowParser().feed((tmp_path / "metrics.jsonl").read_bytes())
    assert number != 4 or (tmp_path / "checkpoint.pt").exists()


def test_the_benchmarks_commands(folder: Path) -> None:
    (block,) = blocks_run_here("docs/benchmarks.md")
    assert (
        run_shell(
            block,
            {"DATASET": "packed", "FOLDER": "images"},
            more={"bench": "--quick", "bench load": "--batch-size 8"},
        )
        == 4
    )
    assert (folder / "scaling.html").exists()


def test_the_dataset_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_core()  # for reindex
    for name in ("monday", "tuesday"):
        shutil.copytree("packed", name)
    append, merge, filters, exports, reindex, diff, python = blocks_run_here("docs/datasets.md")
    assert run_shell(append, {"photos/tuesday": "images"}) == 1
    assert len(fastload.open("packed")) == 48
    assert run_shell(merge, {}) == 1
    assert len(fastload.open("both")) == 48
    assert run_shell(filters, {"--split train ": "", "1000": "10"}) == 2
    assert len(fastload.open("small")) == 10
    assert run_shell(exports, {"--split train ": ""}) == 3
    fastload.pack("folder", "restored", order="source")
    restored, packed = fastload.open("restored"), fastload.open("packed")
    assert restored.fields == packed.fields
    assert all(np.array_equal(restored[i]["image"], packed[i]["image"]) for i in range(48))
    assert run_shell(reindex, {}) == 1
    assert len(fastload.open("indexed")) == 48
    assert run_shell(diff, {}) == 1
    shutil.rmtree("both")
    shutil.rmtree("cats")
    run_python(python, {}, {"photos/tuesday": "images", ', split="train"': ""})
    assert "24 equal samples" in capsys.readouterr().out


def test_the_loaders_blocks(folder: Path) -> None:
    fields = {"image": "image", "boxes": "boxes"}
    fields |= dict.fromkeys(("labels", "iscrowd"), "array along boxes")
    fastload.pack(detections(sorted((folder / "images").rglob("*.jpg"))), "coco", fields=fields)
    for name in ("day", "night"):
        shutil.copytree("packed", name)
    names: Names = {}
    for block in blocks_run_here("docs/loader.md"):
        changes = {"batch_size=256": "batch_size=8"} if "batch_size=256" in block.text else {}
        run_python(block, names, changes)
    assert isinstance(names["state"], dict)


def detections(files: list[Path], **more: object) -> list[dict[str, object]]:
    """Samples with one or two boxes."""
    return [
        {
            "image": path,
            "boxes": [(0, 0, 20, 20), (90, 90, 160, 150)][: 1 + i % 2],
            "labels": [3, 4][: 1 + i % 2],
            **(more or {"iscrowd": [0, 1][: 1 + i % 2]}),
        }
        for i, path in enumerate(files)
    ]


def test_the_gpu_pages_loader_runs_on_the_cpu(folder: Path) -> None:
    names: Names = {}
    run_python(
        blocks_run_here("docs/gpu.md")[0],
        names,
        {"batch_size=256": "batch_size=8", 'device="cuda"': 'device="cpu"'},
    )
    assert isinstance(names["loader"], fastload.DataLoader)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="not run: takes minutes of this GPU; it is yours to start"
)
@pytest.mark.parametrize(
    "block",
    [*blocks_run_here("docs/gpu.md")[1:], blocks_run_here("docs/selftest.md")[0]],
    ids=lambda block: f"{block.page}-{block.number}",
)
def test_the_self_tests_commands_say_what_is_missing_here(
    block: Block, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_shell(block, {}, expected=1) == 1
    said = capsys.readouterr()
    assert "no NVIDIA driver found" in said.err


def test_the_self_tests_record(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    run_python(blocks_run_here("docs/selftest.md")[1], {}, {})
    assert capsys.readouterr().out == f"{folder}/fastload/selftest.json ()\n"


def test_the_callbacks_of_the_monitor_page_import() -> None:
    for name in ("lightning", "transformers", "mmengine"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"not run: {name} is not installed")
    subprocess.run(
        [sys.executable, "-c", blocks_run_here("docs/monitor.md")[0].text], check=True, timeout=600
    )


def test_the_monitors_rows_are_read() -> None:
    block, parser = blocks_run_here("docs/monitor.md")[1], RowParser()
    assert len(list(parser.feed(block.text.encode()))) == len(block.text.splitlines()) == 3
    assert parser.skipped == 0


def test_the_monitors_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With windows of one second, on two runs that are still being written; one of them waits."""
    monkeypatch.chdir(tmp_path)
    for name, data in (("slow.jsonl", 0.065), ("metrics.jsonl", 0.004)):
        rows = rows_of(made(200, step=0.02, data=data, batch=16))
        late = time.time() - float(str(rows[-1]["time"]))
        write(tmp_path / name, [{**row, "time": float(str(row["time"])) + late} for row in rows])
    before, after, closed, compared = blocks_run_here("docs/monitor.md")[2:]
    short = {"--duration 30": "--duration 1", "--interval 10": "--interval 1"}
    run_shell(before, short)
    run_shell(after, short)
    run_shell(closed, {"--gate-timeout 3": "--gate-timeout 1"}, expected=1)
    assert "gave up after 1 s" in capsys.readouterr().err
    run_shell(compared, {}, expected=1)
    assert (
        "after.json compared with before.json: unknown" in capsys.readouterr().out
    )  # one second is too short for a verdict


def test_packing_from_python(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each statement packs into its own folder."""
    files = sorted((folder / "images").rglob("*.jpg"))[:3]
    statements = [
        each for block in blocks_run_here("docs/sources.md") for each in ast.parse(block.text).body
    ]
    assert len(statements) == 4
    found = detections(files, names=["cat"], keypoints=[np.zeros((3, 2))])
    for number, statement in enumerate(statements):
        (folder / str(number)).mkdir()
        monkeypatch.chdir(folder / str(number))
        names: Names = {
            "fastload": fastload,
            "torchvision_dataset": Folder(files),
            "paths": files,
            "items": [{"image": path, "corners": [(1.0, 2.0)]} for path in files],
            "detections": [{**each, "boxes": [(0, 0, 20, 20)], "labels": [3]} for each in found],
        }
        exec(ast.unparse(statement), names)
        assert len(fastload.open("dest")) == 3
    assert fastload.open(folder / "0" / "dest").classes == ["cat", "dog"]


class Folder:
    """A dataset with the interface of torchvision's ImageFolder."""

    classes = ("cat", "dog")

    def __init__(self, files: list[Path]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[object, int]:
        from PIL import Image

        return Image.open(self.files[number]).convert("RGB"), number % 2


def test_verifying(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page shows the output for a damaged dataset."""
    column = folder / "packed" / "columns" / "label.npy"
    data = bytearray(column.read_bytes())
    data[-1] ^= 1
    column.write_bytes(data)
    command, code = blocks_run_here("docs/verify-and-inspect.md")
    run_shell(command, {}, expected=1)
    assert "columns/label.npy" in capsys.readouterr().out
    run_python(code, {}, {})
    assert "checksum" in capsys.readouterr().out


def test_recording_and_examining(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, examine, require = blocks_run_here("docs/why-is-my-gpu-waiting.md")
    trained: list[object] = []
    names: Names = {"loader": [torch.zeros(4, 3)] * 40, "train": trained.append}
    run_python(record, names, {})
    names["probe"].close()  # type: ignore[attr-defined]
    assert len(trained) == 40
    write_window(folder / "window.json", window(util=96.0))
    run_python(examine, names, {})
    assert names["diagnosis"].as_json()  # type: ignore[attr-defined]
    capsys.readouterr()
    # The steps of this test do nothing, so their times vary by any percentage.
    assert run_shell(require, {"step_cv<10": "step_cv<1e9"}) == 1
    assert "step_cv" in capsys.readouterr().out
    run_shell(require, {"util>=85": "util>=97"}, expected=1)
