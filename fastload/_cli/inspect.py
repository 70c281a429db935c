"""The command ``fastload inspect``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fastload._cli.shared import (
    DATASET,
    SPLIT,
    Commands,
    ProgressLine,
    add_command,
    print_json,
    whole_number,
)
from fastload._common.tables import Row, Section, show_sections


def add(commands: Commands) -> None:
    add_command(
        commands,
        "inspect",
        "show the contents of a dataset",
        "Shows fields, classes, image sizes, codecs, pack options, and how many images a\n"
        "hardware JPEG decoder supports. Alternatively shows one sample, a contact sheet, or the\n"
        "shuffle quality.",
        examples="""fastload inspect packed
        fastload inspect packed --split val --sheet samples.png --seed 1
        fastload inspect packed --split train --shuffle-quality""",
        options={
            **DATASET,
            **SPLIT,
            "--sample": {
                "type": int,
                "metavar": "N",
                "help": "show sample N, counted within --split; negative numbers count from "
                "the end",
            },
            "--sheet": {
                "type": Path,
                "metavar": "OUT.png",
                "help": "write a contact sheet of random samples with their labels",
            },
            "--seed": {
                "type": int,
                "default": 0,
                "metavar": "N",
                "help": "seed that selects the samples of --sheet (default: %(default)s)",
            },
            "--count": {
                "type": whole_number(1),
                "default": 24,
                "metavar": "N",
                "help": "number of samples of --sheet (default: %(default)s)",
            },
            "--shuffle-quality": {
                "action": "store_true",
                "help": "show how well samples are mixed, as packed and in an epoch",
            },
            "--batch-size": {
                "type": whole_number(1),
                "default": 256,
                "metavar": "N",
                "help": "samples per batch for --shuffle-quality (default: %(default)s)",
            },
        },
        run=run,
    )


def run(options: argparse.Namespace) -> int:
    from fastload._store.dataset import open_dataset

    dataset = open_dataset(options.dataset, split=options.split)
    result: dict[str, object] = {}
    sections = []
    if options.sample is not None:
        from fastload._tools.inspect.sample import view_sample

        view = view_sample(dataset, options.sample)
        result["sample"] = view.as_json()
        sections += view.sections()
    if options.shuffle_quality:
        from fastload._tools.inspect.shuffle import shuffle_quality

        quality = shuffle_quality(dataset, batch_size=options.batch_size)
        result["shuffle_quality"] = quality.as_json()
        sections += quality.sections()
    if options.sheet is not None:
        from fastload._tools.inspect.sheet import write_sheet

        with ProgressLine("inspect", quiet=options.json) as line:
            count = write_sheet(
                dataset,
                options.sheet,
                seed=options.seed,
                count=options.count,
                tick=line.update,
            )
        result["sheet"] = {"path": str(options.sheet), "samples": count}
        sections.append(
            Section("sheet", [Row(str(options.sheet), f"{count} samples, seed {options.seed}")])
        )
    if not result:
        from fastload._tools.inspect.overview import gather, overview

        with ProgressLine("inspect", quiet=options.json) as line:
            facts = gather(dataset, tick=line.update)
        result = facts.as_json()
        sections = overview(facts)
    if options.json:
        print_json(result)
    else:
        show_sections(str(dataset.path), sections)
    return 0
