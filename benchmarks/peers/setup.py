"""Sets up the venv of the comparison. Run it with the Python of the project:

    python -m benchmarks.peers.setup .venv-peers

The venv shares all packages of that Python (torch, fastload with its native core ...), so nothing
large is installed twice. Each peer is installed separately. If that fails, the message of pip goes
to peers.json, and the comparison lists it.
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
from fastload._tools.bench.measure import package_version

# streaming requires old versions of NumPy and of all cloud clients; these are the packages that it
# imports here.
INSTALLS = {
    "dali": [["nvidia-dali-cuda120"]],
    "spdl": [["spdl"], ["--no-deps", "av"]],  # the wheel of av contains FFmpeg, that of spdl not
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
    # A torchvision that was built for another torch breaks packages that only check for it.
    if run([str(python), "-c", "import torchvision"]):
        pip(python, "uninstall", "-y", "torchvision")
    (folder / REASONS).write_text(json.dumps(reasons, indent=1))
    for peer, text in reasons.items():
        print(f"{peer}: not installed: {text}")
    return 0


def share(python: Path) -> None:
    """Makes the packages of this Python, including editable installs, visible in the venv."""
    own = sysconfig.get_path("purelib")
    (packages(python) / "shared.pth").write_text(f"import site; site.addsitedir({own!r})\n")


def packages(python: Path) -> Path:
    """The site-packages folder of another Python."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(
        subprocess.run(
            [str(python), "-c", program], check=True, capture_output=True, text=True
        ).stdout.strip()
    )


def link_ffmpeg(python: Path, links: Path) -> None:
    """Links PyAV's FFmpeg libraries under their usual names.

    For example, libavutil-5809ad29.so.60.26.102 becomes libavutil.so.60.
    """
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
    """Runs a command; returns '' on success, otherwise the last line that explains the failure."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.returncode:
        return ""
    lines = [
        line.strip()
        for line in result.stderr.splitlines()
        if line.strip() and not line.startswith(("WARNING", "hint", "note"))
    ]
    errors = [
        line for line in lines if line.lower().startswith(("error", "runtimeerror", "no "))
    ] or lines
    return errors[-1][:200] if errors else f"exit code {result.returncode}"


if __name__ == "__main__":
    sys.exit(main())
