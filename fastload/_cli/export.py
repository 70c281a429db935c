"""The command ``fastload export``."""

from __future__ import annotations

import argparse
import time

from fastload._cli.shared import (
    DATASET,
    JOBS,
    NEW_DATASET,
    SELECTION,
    Commands,
    ProgressLine,
    add_command,
    byte_size,
    print_result,
)


def add(commands: Commands) -> None:
    add_command(
        commands,
        "export",
        "write files, WebDataset or Parquet",
        "Writes the samples of a packed dataset as files in class folders, as WebDataset shards\n"
        "or as Parquet files. JPEGs and PNGs are written as stored. 'fastload pack DEST' restores\n"
        "every field from them. --split, --where and --limit apply in this order.",
        examples="""fastload export packed folder --to files
        fastload export packed shards --to webdataset --split train --shard-size 1GiB
        fastload export packed cats --to parquet --where "label == 'cat'\"""",
        options={
            **DATASET,
            **NEW_DATASET,
            "--to": {
                "choices": ("files", "webdataset", "parquet"),
                "required": True,
                "help": "files: images in folders of splits and classes, other values in "
                "samples.jsonl; webdataset: tar shards; parquet: as Hugging Face writes it "
                "(needs pyarrow)",
            },
            **SELECTION,
            "--shard-size": {
                "metavar": "SIZE",
                "type": byte_size,
                "default": "512MiB",
                "help": "size at which a tar or Parquet file is full (default: %(default)s)",
            },
            "--overwrite": {
                "action": "store_true",
                "help": "replace an earlier export in DEST when the new one is complete",
            },
            "--on-error": {
                "choices": ("stop", "skip"),
                "default": "stop",
                "help": "for a damaged sample, stop and name it, or skip it and list it in "
                "DEST/export-log.txt (default: %(default)s)",
            },
            **JOBS,
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._pack.datasets.exporting import export

    started = time.monotonic()
    with ProgressLine("exporting", quiet=options.json) as line:

        def show(done: int, total: int) -> None:
            seconds = max(time.monotonic() - started, 1e-3)
            line.update(
                done,
                total,
                f"{done / seconds:.0f} samples/s, {seconds / done * (total - done):.0f} s left",
            )

        result = export(
            options.dataset,
            options.dest,
            to=options.to,
            where=options.where,
            split=options.split,
            limit=options.limit,
            shard_size=options.shard_size,
            overwrite=options.overwrite,
            on_error=options.on_error,
            jobs=options.jobs,
            on_progress=show,
        )
    print_result(options, result)
    return 0
