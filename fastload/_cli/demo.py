"""`fastload demo`: all of it on generated data, each step shown as the command that a user would type."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

from fastload._cli.bench import positive
from fastload._cli.options import Commands
from fastload._common.native import native_status
from fastload.errors import ConfigError

MARK = ".fastload-demo"  # in DEST: made by us, so it may be made again


def add(commands: Commands) -> None:
    """Adds `fastload demo`."""
    demo = commands.add_parser(
        "demo",
        help="all of it in two minutes on generated data",
        description="Generates pictures, packs them, checks every byte, shows what is there, measures, trains a few "
        "steps with the torch DataLoader and with fastload, and draws the report.",
        epilog="Example: fastload demo --dest /tmp/demo",
    )
    demo.add_argument(
        "--dest",
        type=Path,
        default=Path("demo"),
        help="folder for everything it makes (default: %(default)s)",
    )
    demo.add_argument(
        "--images",
        type=positive,
        default=200,
        metavar="N",
        help="how many pictures (default: %(default)s)",
    )
    demo.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Makes data, packs, verifies, inspects and loads it."""
    from fastload._cli import main
    from fastload._common.cpus import available_cpus
    from fastload._tools.scenes import imagenet

    dest = _empty(options.dest)
    pictures, packed, sheet = dest / "pictures", dest / "packed", dest / "sheet.png"
    _say(
        f"generate {options.images} images in {pictures}",
        "photo-like JPEGs in class folders, as large as real photographs of their size",
    )
    fastest = ["--backend", "native"] if native_status() else []
    made = imagenet.make(pictures, n=options.images, jobs=available_cpus())
    print(made)
    for words, why in (
        (
            ["pack", str(pictures), str(packed)],
            "same pixels, checksummed, shuffled; kill it and start it again, it goes on",
        ),
        (["verify", str(packed), "--deep"], "every byte, every record, every image"),
        (["inspect", str(packed)], "what is in it"),
        (["inspect", str(packed), "--sheet", str(sheet)], "a page of samples with their labels"),
        (
            [
                "bench",
                "decode",
                str(packed),
                "--quick",
                *fastest,
                "--plot",
                str(dest / "decode.html"),
            ],
            "what this machine decodes, and what limits it",
        ),
    ):
        _say(f"fastload {' '.join(words)}", why)
        code = main(words)
        if code:
            return code
    _load(packed)
    code = _train(pictures, packed, dest)
    if code:
        return code
    print(
        f"\nAll of it is in {dest}. Next: fastload pack YOUR_DATA packed, then change one line of your trainer (README.md)."
    )
    return 0


def _load(packed: Path) -> None:
    """What the changed line of a trainer does."""
    import fastload
    from fastload import transforms

    crop = [
        transforms.RandomResizedCrop(224),
        transforms.HorizontalFlip(),
        transforms.ToDtype("float32"),
    ]
    _say(
        f"python: loader = fastload.DataLoader({str(packed)!r}, batch_size=32, shuffle=True, transform=[...])",
        "the one changed line; two epochs",
    )
    loader = fastload.DataLoader(packed, batch_size=32, shuffle=True, transform=crop)
    for epoch in range(2):
        started, count = time.perf_counter(), 0
        for images, _labels in loader:
            count += len(images)
        seconds = time.perf_counter() - started
        kind = str(images.dtype).removeprefix("torch.")
        print(
            f"epoch {epoch}: {count} images in {seconds:.2f} s, the last batch {tuple(images.shape)} {kind}"
        )
    print(loader.stats())
    loader.close()


def _train(pictures: Path, packed: Path, dest: Path) -> int:
    """Old loader, new loader, one page."""
    from fastload._cli import main
    from fastload._tools.demo import train

    _say(
        "python: for images, labels in probe.watch(loader): ...",
        "a few training steps with the torch DataLoader and with fastload, timed",
    )
    files = train(pictures, packed, dest)
    words = ["report", *map(str, files), "-o", str(dest / "report.html")]
    _say(
        f"fastload {' '.join(words)}",
        "where the time of a step goes, with the old loader and the new one, as a page",
    )
    return main(words)


def _empty(dest: Path) -> Path:
    """DEST, empty: what an earlier demo made there goes, anything else is left alone."""
    if dest.exists() and not dest.is_dir():
        raise ConfigError(f"{dest} is a file: name a folder with --dest")
    if dest.is_dir() and any(dest.iterdir()):
        if not (dest / MARK).exists():
            raise ConfigError(
                f"{dest} is not empty and was not made by a demo: name another folder with --dest"
            )
        shutil.rmtree(dest)
    dest.mkdir(parents=True, exist_ok=True)
    (dest / MARK).touch()
    return dest


def _say(command: str, why: str) -> None:
    print(f"\n$ {command}\n  # {why}", flush=True)
