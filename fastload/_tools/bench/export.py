"""The images of a packed dataset as files again, for loaders that read folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from fastload._store.dataset import Dataset
from fastload._store.pixels import decode_image
from fastload._store.record import DATA, JPEG, PNG
from fastload.errors import ConfigError

SUFFIXES = (".jpg", ".jpeg", ".png", ".JPEG", ".JPG", ".PNG", ".webp", ".bmp")


def export_images(
    dataset: Dataset, folder: Path, *, field: str | None = None, most: int | None = None
) -> int:
    """Writes the images of up to ``most`` samples: the stored JPEG or PNG file where there is one, else a PNG. Returns how many."""
    names = [each.name for each in dataset.fields]
    chosen = (
        next((each.name for each in dataset.fields if each.kind.is_image), "")
        if field is None
        else field
    )
    if chosen not in names:
        raise ConfigError(f"image field {chosen!r:.40}: {dataset.path} has {', '.join(names)}")
    number, count = names.index(chosen), 0
    n = min(most or len(dataset), len(dataset))
    for sample_id in (np.arange(n) * len(dataset) // n).tolist():
        for part in dataset.record(sample_id).parts:
            if part.field != number or part.role != DATA:
                continue
            stem = folder / f"{sample_id:08}-{part.item}"
            if part.codec in (JPEG, PNG):
                stem.with_suffix(".jpg" if part.codec == JPEG else ".png").write_bytes(part.data)
            else:
                Image.fromarray(decode_image(part).squeeze()).save(stem.with_suffix(".png"))
            count += 1
    return count


def image_files(folder: Path) -> list[Path]:
    """All image files below a folder, sorted; raises ConfigError where there are none."""
    found = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES)
    if not found:
        raise ConfigError(f"{folder}: no images ({', '.join(SUFFIXES[:4])} ...) in it")
    return found
