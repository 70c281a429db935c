"""Every fuzz target reaches its parser, and no seed, saved or damaged input is a finding."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from fastload._common.native import core
from tests.fuzz.coverage import line_coverage
from tests.fuzz.mutations import flip_bytes, mutate_json
from tests.fuzz.targets import TARGETS
from tools.fuzz import MAX_SAVED_BYTES, NATIVE, ROOT, SAVED, program, seeds

N_DAMAGED = 40
LEAST = 0.75  # share of the parser's lines


def damaged(name: str, inputs: list[bytes]) -> list[bytes]:
    """Returns changed inputs: half of them by bytes, half with the target's own mutation."""
    rng = random.Random(1)
    changes = (flip_bytes, TARGETS[name].mutate or flip_bytes)
    return [changes[i % 2](rng.choice(inputs), rng) for i in range(N_DAMAGED)]


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_parsed_or_refused(name: str) -> None:
    if name in ("hf", "exported"):
        pytest.importorskip("pyarrow", reason="not run: no pyarrow")
    inputs = seeds(name)
    covered, _ = line_coverage(TARGETS[name], [*inputs, *damaged(name, inputs)])
    print(f"{name}: {covered:.0%} of the lines of {', '.join(TARGETS[name].modules)}")
    assert covered > LEAST


@pytest.mark.parametrize("name", NATIVE)
def test_inputs_of_native_targets_are_parsed_or_refused(name: str, tmp_path: Path) -> None:
    """Compiles the C++ target, without a sanitizer, with the library that the core is made of."""
    compiler = shutil.which("g++") or shutil.which("c++")
    libraries = sorted(
        ROOT.glob("build/cp*/libfastload_core.a"), key=lambda path: path.stat().st_mtime
    )
    if core() is None or compiler is None or not libraries:
        pytest.skip("not run: needs the native core, its library in build/ and a compiler")
    sources = [ROOT / "native" / "tests" / "fuzz" / f"{each}.cpp" for each in (name[7:], "replay")]
    executable = tmp_path / program(name)
    inputs_of_linker = [*map(str, sources), str(libraries[-1]), "-ljpeg", "-pthread"]
    options = ["-std=c++17", f"-I{ROOT / 'native'}", "-o", str(executable)]
    subprocess.run([compiler, *options, *inputs_of_linker], check=True)
    rng = random.Random(1)
    inputs = seeds(name)
    paths = [tmp_path / str(number) for number in range(len(inputs) + N_DAMAGED)]
    inputs += [flip_bytes(rng.choice(inputs), rng) for _ in range(N_DAMAGED)]
    for path, data in zip(paths, inputs, strict=True):
        path.write_bytes(data)
    done = subprocess.run([executable, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{len(inputs)} inputs\n"


def test_saved_inputs_belong_to_a_target_and_are_small() -> None:
    folders = {folder.name: list(folder.iterdir()) for folder in SAVED.glob("*")}
    assert folders.keys() <= {*TARGETS, *NATIVE}
    for name, files in folders.items():
        assert files, f"{name}: no saved input"
        assert sum(file.stat().st_size for file in files) <= MAX_SAVED_BYTES


@pytest.mark.parametrize(
    "data",
    [b"1" + b"0" * 400, b"9" * 4300, b"[" * 900 + b"1" + b"]" * 900, b"[Infinity, NaN, 1e308]"],
    ids=["above every float", "longest number", "deep", "special numbers"],
)
def test_mutations_accept_any_json(data: bytes) -> None:
    """An exception in a mutation stops the fuzzing of its target until a SIGALRM."""
    changed = {mutate_json(data, random.Random(seed)) for seed in range(300)}
    assert len(changed) > 1 or data.startswith(b"[[")  # too deep to copy
