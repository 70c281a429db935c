"""Sets up the venv of the comparison: `python -m benchmarks.peers.setup .venv-peers`, run by the project's own Python.

The venv sees all packages of that Python (torch, fastload with its core ...): nothing large is installed twice. Each peer is installed by
itself; what pip says where that fails goes into peers.json, and the comparison lists it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from benchmarks.peers.peers import REASONS
from fastload._tools.bench.machine import package_version

# streaming names old versions of numpy and of every cloud's client; what it imports here is these.
INSTALLS = {
    "dali": [["nvidia-dali-cuda120"]],
    "spdl": [["spdl"], ["--no-deps", "av"]],  # av: its wheel holds the FFmpeg that spdl's does not
    "webdataset": [["webdataset"]],
    "litdata": [["litdata"]],
    "streaming": [
        [
            "--no-deps",
            "mosaicml-streaming",
            "brotli",
            "python-snappy",
            "cramjam",
            "xxhash",
            "zstd",
            "catalogue",
        ]
    ],
    "datasets": [["datasets"]],
    "torch-cv2": [["opencv-python-headless"]],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("venv", type=Path)
    folder = parser.parse_args().venv.absolute()
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    share(python)
    constraints = folder / "constraints.txt"
    constraints.write_text(
        f"torch=={package_version('torch').partition('+')[0]}\nnumpy=={package_version('numpy')}\n"
    )
    reasons: dict[str, str] = {}
    for peer, commands in INSTALLS.items():
        for words in commands:
            why = pip(python, "install", "-c", str(constraints), *words)
            if why:
                reasons[peer] = why
    link_ffmpeg(python, folder / "ffmpeg")
    why = run(
        ["sh", str(Path(__file__).with_name("build_ffcv.sh")), str(python), str(folder / "ffcv")]
    )
    if why:
        reasons["ffcv"] = why
    if run(
        [str(python), "-c", "import torchvision"]
    ):  # a build for another torch breaks those who only look for it
        pip(python, "uninstall", "-y", "torchvision")
    (folder / REASONS).write_text(json.dumps(reasons, indent=1))
    for peer, text in reasons.items():
        print(f"{peer}: not installed: {text}")
    return 0


def share(python: Path) -> None:
    """The packages of this Python, its editable installs too, seen by the venv's."""
    own = sysconfig.get_path("purelib")
    (packages(python) / "shared.pth").write_text(f"import site; site.addsitedir({own!r})\n")


def packages(python: Path) -> Path:
    """Where another Python keeps its packages."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run(
            [str(python), "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
    )


def link_ffmpeg(python: Path, links: Path) -> None:
    """PyAV's FFmpeg libraries under the names that others look for: libavutil-5809ad29.so.60.26.102 is libavutil.so.60."""
    links.mkdir(exist_ok=True)
    for path in (packages(python) / "av.libs").glob("lib*.so.*"):
        stem, _, version = path.name.partition(".so.")
        plain = f"{stem.rpartition('-')[0]}.so.{version.partition('.')[0]}"
        for name in (path.name, plain) if stem.startswith(("libav", "libsw")) else (path.name,):
            (links / name).unlink(missing_ok=True)
            (links / name).symlink_to(path)


def pip(python: Path, *words: str) -> str:
    return run([str(python), "-m", "pip", "--disable-pip-version-check", "-q", *words])


def run(command: list[str]) -> str:
    """'' where it went well, else the last line that says why not."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.returncode:
        return ""
    lines = [
        line.strip()
        for line in result.stderr.splitlines()
        if line.strip() and not line.startswith(("WARNING", "hint", "note"))
    ]
    told = [
        line for line in lines if line.lower().startswith(("error", "runtimeerror", "no "))
    ] or lines
    return told[-1][:200] if told else f"exit code {result.returncode}"


if __name__ == "__main__":
    sys.exit(main())
