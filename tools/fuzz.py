"""Fuzzes every parser of untrusted bytes and reports how much of it the inputs reach.

    python -m tools.fuzz SECONDS [TARGET...]
    python -m tools.fuzz --save [TARGET...]

The C++ targets (native/tests/fuzz, names start with ``native-``) run under libFuzzer with
AddressSanitizer and UBSan, the Python targets (tests/fuzz/targets.py) under atheris. SECONDS is the
time of all targets together on two cores. Prints a line per target, and a table of the lines that
are reached for SECURITY.md. Inputs are kept in build/fuzz/corpus, findings in build/fuzz/findings.
Copy a finding to tests/fuzz/corpus/TARGET, so that the tests run it from then on. ``--save`` adds
kept inputs that reach other code than the saved ones to tests/fuzz/corpus.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build" / "fuzz"
SAVED = ROOT / "tests" / "fuzz" / "corpus"
# Name of a C++ target -> (Python target with the same seeds, sources of the parser).
NATIVE = {
    "native-jpeg": ("jpeg-header", ("native/jpeg",)),
    "native-record": ("record", ("native/shard/record.cpp", "native/verify/record_check.cpp")),
    "native-tree": ("tree", ("native/shard/shard_file.cpp", "native/shard/read_ahead.cpp")),
}
# The last four bytes of an input of native-jpeg choose region, scale, restart interval and path.
CHOICES = (bytes(4), bytes((1, 0, 2, 1)), bytes((2, 3, 9, 8)), bytes((7, 4, 0, 255)))
JOBS = 2
MAX_LEN = 40_000  # bytes of an input
MAX_SAVED = 24  # inputs per target
MAX_SAVED_BYTES = 100_000  # per target
# libFuzzer measures the wall time of an input, which grows with the load of the machine. This limit
# therefore finds inputs that hang; MAX_CPU_S finds slow inputs of Python targets.
TIMEOUT_S = 120
MAX_CPU_S = 20
TABLE_COLUMNS = 3
LAST = "last-input"  # file in the findings of a Python target: the input that runs


def program(name: str) -> str:
    """Returns the name of the executable of a C++ target."""
    return name.replace("native-", "target_")


def build(folder: Path, *options: str) -> Path:
    """Compiles the C++ targets with clang."""
    environment = {**os.environ, "CC": "clang", "CXX": "clang++"}
    for command in (
        ["cmake", "-S", str(ROOT / "native" / "tests"), "-B", str(folder), *options],
        ["cmake", "--build", str(folder), "--parallel", "--target", *map(program, NATIVE)],
    ):
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return folder


def build_with_libfuzzer() -> Path:
    return build(BUILD, "-DFASTLOAD_FUZZ=ON", "-DFASTLOAD_SANITIZE=address,undefined")


def memory_folder() -> str | None:
    """Returns a folder in memory for temporary files, or None for the default."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def all_targets() -> list[str]:
    from tests.fuzz.targets import TARGETS

    return [*NATIVE, *TARGETS]


def seeds(name: str) -> list[bytes]:
    """Returns the seeds and the saved inputs of a target."""
    from tests.fuzz.targets import TARGETS

    made = TARGETS[NATIVE[name][0] if name in NATIVE else name].seeds()
    if name == "native-jpeg":
        made = [data + choice for data in made for choice in CHOICES]
    return [*made, *(path.read_bytes() for path in sorted((SAVED / name).glob("*")))]


def write_seeds(name: str) -> Path:
    """Writes the seeds and saved inputs of a target; returns the folder of its inputs."""
    folder = BUILD / "corpus" / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (folder / f"seed-{number}").write_bytes(data)
    return folder


def run(name: str, *arguments: str) -> str:
    """Runs a target with arguments of libFuzzer; returns its log. Raises RuntimeError."""
    command = (
        [str(BUILD / program(name))]
        if name in NATIVE
        else [sys.executable, "-m", "tools.fuzz", "--atheris", name]
    )
    findings = BUILD / "findings" / name
    findings.mkdir(parents=True, exist_ok=True)
    (findings / LAST).unlink(missing_ok=True)
    options = (
        f"-max_len={MAX_LEN}",
        f"-timeout={TIMEOUT_S}",
        f"-artifact_prefix={findings}/",
        "-rss_limit_mb=3000",
    )
    # libFuzzer ends a process without Python's exit handlers, which would remove temporary files.
    with tempfile.TemporaryDirectory(prefix="fuzz", dir=memory_folder()) as place:
        done = subprocess.run(
            [*command, *arguments, *options],
            capture_output=True,
            text=True,
            errors="replace",
            cwd=ROOT,
            check=False,
            env={**os.environ, "TMPDIR": place},
        )
    if done.returncode:
        log = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        raise RuntimeError(f"{name}: {how_it_ended(done.returncode)}\n{log}")
    (findings / LAST).unlink(missing_ok=True)
    return done.stderr


def how_it_ended(code: int) -> str:
    """Describes an exit code. libFuzzer saves no finding after a signal that it does not handle."""
    if code >= 0:
        return f"exit code {code}"
    return f"ended by {signal.Signals(-code).name}; the last input of a Python target is in {LAST}"


def fuzz(name: str, corpus: Path, seconds: int) -> int:
    """Fuzzes a target; returns the number of inputs. Raises RuntimeError with a finding."""
    log = run(name, str(corpus), f"-max_total_time={seconds}", "-print_final_stats=1")
    if "Is the code instrumented for coverage?" in log:
        raise RuntimeError(f"{name}: no input reaches instrumented code")
    stats = (line for line in log.splitlines() if "number_of_executed_units" in line)
    return int(next(stats).split(":")[-1])


def run_atheris(name: str, arguments: list[str]) -> None:
    """Runs one Python target in this process; does not return."""
    import atheris

    from tests.fuzz.targets import TARGETS

    # Not atheris.instrument_imports, which has no effect in an editable install.
    for each in gc.get_objects():
        if type(each) is FunctionType and str(each.__module__).startswith("fastload."):
            atheris.instrument_func(each)
    target = TARGETS[name]
    last = BUILD / "findings" / name / LAST
    for data in target.seeds():  # creates datasets and folders outside the fuzzing loop
        target.run(data)

    def run_input(data: bytes) -> None:
        last.write_bytes(data)
        before = time.process_time()
        target.run(data)
        used = time.process_time() - before
        assert used < MAX_CPU_S, f"{used:.0f} s of CPU time for {len(data)} bytes"

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Half of the inputs keep their structure (JSON) and get other values."""
        if target.mutate is None or seed % 2:
            return bytes(atheris.Mutate(data, max_size))
        return target.mutate(data, random.Random(seed))[:max_size]

    atheris.Setup([sys.argv[0], *arguments], run_input, custom_mutator=mutate)
    atheris.Fuzz()


def native_coverage(name: str, corpus: Path, folder: Path) -> float:
    """Returns the share of the parser's lines that the inputs execute, from llvm-cov."""
    profile = folder / f"{name}.profraw"
    executable = folder / program(name)
    subprocess.run(
        [str(executable), *sorted(map(str, corpus.iterdir()))],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "LLVM_PROFILE_FILE": str(profile)},
    )
    merged = profile.with_suffix(".profdata")
    subprocess.run(["llvm-profdata", "merge", str(profile), "-o", str(merged)], check=True)
    sources = [str(ROOT / each) for each in NATIVE[name][1]]
    report = subprocess.run(
        ["llvm-cov", "report", str(executable), f"-instr-profile={merged}", *sources],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    total = next(line.split() for line in report.splitlines() if line.startswith("TOTAL"))
    return float(total[9].rstrip("%")) / 100


def python_coverage(name: str, corpus: Path) -> float:
    from tests.fuzz.coverage import line_coverage
    from tests.fuzz.targets import TARGETS

    inputs = (path.read_bytes() for path in sorted(corpus.iterdir()))
    return line_coverage(TARGETS[name], inputs)[0]


def fuzz_all(seconds: int, names: list[str]) -> None:
    """Fuzzes the targets and prints a line per target; exits with an error if one has findings."""
    build_with_libfuzzer()
    flags = "-fprofile-instr-generate -fcoverage-mapping"
    measured = build(
        ROOT / "build" / "fuzz-coverage", f"-DCMAKE_CXX_FLAGS={flags}", f"-DCMAKE_C_FLAGS={flags}"
    )
    each = max(1, seconds * JOBS // len(names))
    corpora = {name: write_seeds(name) for name in names}
    with ThreadPoolExecutor(JOBS) as pool:
        runs = {name: pool.submit(fuzz, name, corpora[name], each) for name in names}
    found = total = 0
    reached: dict[str, float] = {}
    for name, done in runs.items():
        try:
            n_inputs = done.result()
        except RuntimeError as error:
            found += 1
            print(error, flush=True)
            continue
        total += n_inputs
        covered = (
            native_coverage(name, corpora[name], measured)
            if name in NATIVE
            else python_coverage(name, corpora[name])
        )
        reached[name] = covered
        line = f"{name:16} {n_inputs:>12,} inputs in {each} s, {covered:.0%} of its parser"
        print(line, flush=True)
    print(f"{total:,} inputs, {found} of {len(names)} targets with findings\n")
    print(table(reached))
    if found:
        raise SystemExit(f"See {BUILD / 'findings'}")


def table(reached: dict[str, float]) -> str:
    """Returns a Markdown table of the share of lines that each target reaches, in percent."""
    cells = [f"{name} | {covered:.0%}".rstrip("%") for name, covered in reached.items()]
    n_rows = -(-len(cells) // TABLE_COLUMNS)
    cells += [" | "] * (n_rows * TABLE_COLUMNS - len(cells))
    lines = [" | ".join(["target | lines"] * TABLE_COLUMNS), "|".join(["---|---"] * TABLE_COLUMNS)]
    lines += [" | ".join(cells[first::n_rows]) for first in range(n_rows)]
    return "\n".join(f"| {line} |" if "---" not in line else f"|{line}|" for line in lines)


def save(name: str) -> str:
    """Adds kept inputs that reach code which seeds and saved inputs do not reach."""
    folder = SAVED / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        known = set(seeds(name))
        for number, data in enumerate(known):
            Path(made, str(number)).write_bytes(data)
        # Without counters, an input that only repeats a loop more often adds nothing.
        run(name, "-merge=1", "-use_counters=0", made, str(BUILD / "corpus" / name))
        added = {path.read_bytes() for path in Path(made).iterdir()} - known
    sizes = [path.stat().st_size for path in folder.iterdir()]
    for data in sorted(added, key=len):
        if len(sizes) < MAX_SAVED and sum(sizes) + len(data) <= MAX_SAVED_BYTES:
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
            sizes.append(len(data))
    return f"{len(sizes)} inputs, {sum(sizes):,} bytes; {len(added)} were new"


def main() -> None:
    if sys.argv[1] == "--atheris":
        run_atheris(sys.argv[2], sys.argv[3:])
    names = sys.argv[2:] or all_targets()
    if sys.argv[1] != "--save":
        fuzz_all(int(sys.argv[1]), names)
        return
    build_with_libfuzzer()
    for name in names:
        print(f"{name:16} {save(name)}", flush=True)


if __name__ == "__main__":
    main()
