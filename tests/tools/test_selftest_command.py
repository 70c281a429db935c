"""`fastload selftest` passes on the CPU and reports missing packages, failures, crashes, hangs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fastload._cli import main
from fastload._decode import selftest_record as record
from fastload._tools.selftest import decoding
from fastload._tools.selftest import run as module
from fastload._tools.selftest.catalog import CATALOG, NAMES
from fastload._tools.selftest.run import (
    Options,
    Result,
    chosen_stages,
    run_child,
    selftest,
    usable_backends,
)
from fastload.errors import ConfigError, MissingPart
from tests.gpu_backends import needs_nvimgcodec
from tests.loading import wait_until

ON_CPU = [entry.name for entry in CATALOG if entry.on_cpu]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_all_cpu_stages_pass_on_the_cpu(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_nvimgcodec()
    code = main(["selftest", "--device", "cpu", "--backend", "nvjpeg", "--json", "--timeout", "5"])
    captured = capsys.readouterr()
    assert code == 0, captured
    found = json.loads(captured.out)
    assert found["ok"]
    assert (
        [each["stage"] for each in found["results"]]
        == ON_CPU
        == ["environment", "decode", "resize", "determinism", "errors"]
    )
    assert [each["verdict"] for each in found["results"]] == ["report"] + ["pass"] * 4
    decode = found["results"][1]["facts"]
    assert decode["CMYK"] == "refused"
    assert decode["420"] == {"mean": 0.0, "max": 0}
    assert Path(found["record"]) == cache / "fastload" / "selftest.json"
    assert record.passed("errors", "cpu", backend="nvjpeg")
    assert not record.passed("engine", "cpu", backend="nvjpeg")
    assert not record.passed("errors", "cpu", backend="dali")
    assert not record.hardware_passed("nvjpeg", "cpu")


def test_the_text_output_has_one_line_per_stage(capsys: pytest.CaptureFixture[str]) -> None:
    needs_nvimgcodec()
    code = main(
        [
            "selftest",
            "--device",
            "cpu",
            "--backend",
            "nvjpeg",
            "--stage",
            "decode",
            "--timeout",
            "5",
        ]
    )
    captured = capsys.readouterr()
    assert code == 0, captured
    lines = captured.out.splitlines()
    assert lines[0].startswith("0 environment")
    assert lines[1].startswith("1 decode       nvjpeg  pass")
    assert lines[2].startswith("All passed. Recorded in ")


def test_without_a_gpu_the_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert main(["selftest"]) == 1
    captured = capsys.readouterr().err
    assert "driver" in captured or "pip install" in captured
    assert len(captured.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--device", "tpu"],
        ["--backend", "native"],
        ["--stage", "nonsense"],
        ["--timeout", "0"],
        ["--device", "cpu", "--stage", "engine"],
    ],
    ids=" ".join,
)
def test_usage_errors_exit_with_2(words: list[str]) -> None:
    assert main(["selftest", *words]) == 2


def test_a_missing_dataset_is_reported_before_the_first_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    needs_nvimgcodec()
    assert (
        main(
            [
                "selftest",
                "--device",
                "cpu",
                "--backend",
                "nvjpeg",
                "--dataset",
                str(tmp_path / "none"),
            ]
        )
        == 1
    )
    captured = capsys.readouterr()
    assert "none" in captured.err
    assert not captured.out


def test_missing_packages_are_reported_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from fastload._decode.gpu import base as gpu_parts

    monkeypatch.setattr(
        gpu_parts, "read_facts", lambda device: gpu_parts.GpuFacts(torch_cuda="12.6")
    )
    with pytest.raises(
        MissingPart,
        match=r"dali: .*pip install 'fastload-vision\[dali\]'; "
        r"nvjpeg: .*pip install 'fastload-vision\[nvjpeg\]'",
    ):
        usable_backends(Options("cpu"))
    monkeypatch.setattr(
        gpu_parts,
        "read_facts",
        lambda device: gpu_parts.GpuFacts(torch_cuda="12.6", wheels=("nvidia-nvimgcodec-cu12",)),
    )
    assert usable_backends(Options("cpu")) == ("nvjpeg",)
    with pytest.raises(MissingPart, match="dali"):
        usable_backends(Options("cpu", ("dali", "nvjpeg")))


def test_the_device_decides_which_of_the_ten_stages_run() -> None:
    assert len(CATALOG) == 10
    assert [entry.name for entry in chosen_stages(Options("cuda"))] == [
        name for name in NAMES if name not in ("environment", "roi")
    ]
    assert [entry.name for entry in chosen_stages(Options("cpu"))] == ON_CPU[1:]
    assert [entry.name for entry in chosen_stages(Options("cuda", stages=("roi", "decode")))] == [
        "decode",
        "roi",
    ]
    with pytest.raises(ConfigError, match="engine"):
        chosen_stages(Options("cpu", stages=("engine",)))


def test_a_crash_and_a_hang_are_results(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert (
        run_child([sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"], 60, log=log) == -11
    )
    assert "Segmentation fault" in log.read_text()
    hanging = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'])\n"
        "print(child.pid, flush=True)\n"
        "def stuck(): time.sleep(600)\n"
        "stuck()"
    )
    assert run_child([sys.executable, "-c", hanging], 3, log=log) is None
    lines = log.read_text().splitlines()
    assert any("in stuck" in line for line in lines), "the log shows where it hung"
    assert wait_until(lambda: not alive(int(lines[0]))), "the grandchild is still running"


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


STAND_IN = """
import json, os, sys, time, pathlib
name, backend, device, folder = sys.argv[1:5]
print("started", name, file=sys.stderr, flush=True)
if name == "decode": os.kill(os.getpid(), 11)
if name == "resize": time.sleep(600)
if name == "errors": sys.exit("ValueError: raised at the end")
result = {"ok": name != "determinism", "summary": "2 of 3 wrong", "facts": {}}
pathlib.Path(folder, "result.json").write_text(json.dumps(result))
"""


def test_failures_are_reported_and_not_recorded_as_passed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    needs_nvimgcodec()
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    real = run_child

    def instead(words: Any, deadline_s: float, **options: Any) -> Any:
        return real(
            [sys.executable, str(tmp_path / "stand_in.py"), *words[3:]],
            min(deadline_s, 2.0) if words[3] == "resize" else 60,
            **options,
        )

    monkeypatch.setattr(module, "run_child", instead)
    record.save("cpu", {"nvjpeg": {"decode": True, "speed": True}})
    seen: list[Result] = []
    found = selftest(Options("cpu", ("nvjpeg",)), on_result=seen.append)
    assert found == seen
    assert {each.stage: each.verdict for each in found[1:]} == {
        "decode": "crashed",
        "resize": "hung",
        "determinism": "fail",
        "errors": "fail",
    }
    summaries = {each.stage: each.summary for each in found}
    assert summaries["decode"] == "SIGSEGV; last output: started decode"
    assert "still running after 120 s" in summaries["resize"]
    assert summaries["determinism"] == "2 of 3 wrong"
    assert summaries["errors"] == "ValueError: raised at the end"
    assert not any(each.ok for each in found[1:])
    assert not record.passed("decode", "cpu", backend="nvjpeg"), "a crash revokes an earlier pass"
    assert record.passed("speed", "cpu", backend="nvjpeg")


def test_a_backend_that_gives_wrong_pixels_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A backend that brightens its output fails the stages, so the stages can fail."""
    from fastload._decode.reference import ReferenceBackend
    from fastload._tools.selftest import decoding, stages

    class Brighter(ReferenceBackend):
        def collect(self, ticket: Any) -> Any:
            result = super().collect(ticket)
            output = torch.as_tensor(result.output)
            output.copy_(output.clamp(max=250) + 5)
            return result

    task = decoding.Task("nvjpeg", "cpu", tmp_path, tmp_path, tmp_path)
    monkeypatch.setattr(
        decoding, "open_backend", lambda name, device, **options: Brighter(threads=1)
    )
    assert not stages.decode(task).ok
    assert not stages.resize(task).ok
    monkeypatch.setattr(
        decoding, "open_backend", lambda name, device, **options: ReferenceBackend(threads=1)
    )
    assert stages.decode(task).ok
    assert stages.resize(task).ok


@pytest.mark.parametrize("spoiled", [False, True])
def test_an_engine_that_spoils_the_last_block_fails(
    spoiled: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The mean over an image hides one wrong block of 8x8 pixels."""
    from fastload._decode.reference import ReferenceBackend
    from fastload._tools.selftest import decoding, gpu_stages

    class Engine(ReferenceBackend):
        pass

    real = decoding.decode

    def decode(backend: Any, jpegs: Any) -> Any:
        found = real(backend, jpegs)
        if spoiled and isinstance(backend, Engine):
            for own in found.images:
                assert own is not None
                height, width = own.shape[:2]
                last = own[(height - 1) // 8 * 8 :, (width - 1) // 8 * 8 :]
                last[:] = (last + 128) % 256
        return found

    def open_backend(name: str, device: str, *, hardware: bool) -> ReferenceBackend:
        return (Engine if hardware else ReferenceBackend)(threads=1)

    monkeypatch.setattr(decoding, "open_backend", open_backend)
    monkeypatch.setattr(decoding, "decode", decode)
    monkeypatch.setattr(gpu_stages, "REPEATS", 2)
    outcome = gpu_stages.engine(decoding.Task("nvjpeg", "cuda", tmp_path, tmp_path, tmp_path))
    assert outcome.ok is not spoiled, outcome.summary
    assert not spoiled or "difference 128.0 in one block" in outcome.summary


def test_regions_decoded_by_nvimagecodec_match_the_whole_image() -> None:
    needs_nvimgcodec()
    from fastload._tools.selftest import gpu_stages

    assert gpu_stages.roi(decoding.Task("nvjpeg", "cpu", Path(), Path(), Path())).ok


def test_the_generated_images_cover_every_kind_of_jpeg() -> None:
    kinds = {image.kind for image in decoding.generated()}
    assert {
        "444",
        "422",
        "420",
        "440",
        "411",
        "gray",
        "CMYK",
        "progressive",
        "restart markers",
        "420 1x1",
        "444 41x1",
    } <= kinds
