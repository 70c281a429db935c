"""Writes a packed dataset as files, WebDataset shards or Parquet files: ``export``."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fastload._common import files
from fastload._common.cpus import available_cpus
from fastload._common.files import NewFile
from fastload._common.formatting import byte_size, count
from fastload._common.public import public
from fastload._pack.datasets.assembly import OnProgress, new_folder
from fastload._pack.datasets.export_writers import (
    ExportSample,
    FilesWriter,
    ImageFile,
    ParquetWriter,
    TarWriter,
    Writer,
)
from fastload._pack.datasets.filtering import selected_fields, selected_ids
from fastload._pack.exports import (
    TARGETS,
    Description,
    label_field,
    npy_file,
    read_description,
    safe_names,
)
from fastload._pack.files import EXPORT_DESCRIPTION, is_exported
from fastload._pack.images import png_file
from fastload._pack.jobs import ordered_map
from fastload._pack.sources.base import Info
from fastload._store.dataset import Dataset
from fastload._store.fields import SPLIT, Field, splits_of
from fastload._store.joining import Ids
from fastload._store.jpeg_header import read_header
from fastload._store.kinds import NUMBERS
from fastload._store.pixels import decode_image, decode_mask
from fastload._store.record import DATA, JPEG, PNG, SOURCE_FIELD, Part, source_of
from fastload.errors import BadImage, ConfigError, CorruptShard, RecordError

LOG = "export-log.txt"  # the samples that were skipped
MIN_SHARD_SIZE = 1 << 20
_CHUNK_BYTES = 1 << 20  # about, of the samples that a thread takes at a time
_EXAMPLES = 256  # samples in which the type of an array column is searched
_EXIF = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0%c\0\0\0\0\0\0\0"


@public()
@dataclass(frozen=True, slots=True)
class ExportResult:
    """Result of ``export``. ``str(result)`` is its summary.

    Attributes:
        dest: Folder of the exported data.
        to: ``"files"``, ``"webdataset"`` or ``"parquet"``.
        n_samples: Samples that were exported.
        n_files: Files with samples.
        bytes_out: Size of these files.
        skipped: Damaged samples that were left out. ``export-log.txt`` in ``dest`` names them.
        notes: What the exported data cannot express.
        seconds: Duration.

    Examples:
        >>> fastload.export("packed", "out", to="webdataset").n_samples  # doctest: +SKIP
        1000
    """

    dest: Path
    to: str
    n_samples: int
    n_files: int
    bytes_out: int
    skipped: int
    notes: tuple[str, ...]
    seconds: float

    def as_json(self) -> dict[str, object]:
        """Returns the result as a dict that ``json.dumps`` accepts."""
        return {**asdict(self), "dest": str(self.dest), "notes": list(self.notes)}

    def __str__(self) -> str:
        lines = [
            f"{self.dest}: {count(self.n_samples, 'sample')} as {self.to} in "
            f"{count(self.n_files, 'file')}, {byte_size(self.bytes_out)}, in {self.seconds:.1f} s"
        ]
        if self.skipped:
            lines.append(f"{count(self.skipped, 'damaged sample')} skipped: see {self.dest / LOG}")
        return "\n".join((*lines, *self.notes))


@public()
def export(
    dataset: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    to: str,
    where: str = "",
    split: str = "",
    limit: int | None = None,
    shard_size: int = 512 << 20,
    overwrite: bool = False,
    on_error: str = "stop",
    jobs: int = 0,
    on_progress: OnProgress | None = None,
) -> ExportResult:
    """Writes the selected samples of a packed dataset as files, WebDataset shards or Parquet files.

    JPEGs and PNGs are written as stored. ``fastload.pack`` of the result has the same
    values, pixels, classes and splits for every kind of field, because ``fastload.json`` in
    ``dest`` describes the fields. ``split``, ``where`` and ``limit`` apply in this order.

    Args:
        dataset: Folder written by ``fastload pack``.
        dest: Folder to create. It must be new or empty, unless ``overwrite`` is set.
        to: ``"files"``: images in folders of splits and classes, and a table ``samples.jsonl``.
            ``"webdataset"``: tar shards. ``"parquet"``: Parquet files as Hugging Face writes them;
            needs pyarrow.
        where: Condition over columns, as in ``filter_dataset``. Default: all samples.
        split: Only the samples of this split. The result has only this split. Default: all.
        limit: Only the first samples in the packed order. Default: None (no limit).
        shard_size: Size in bytes at which a tar or Parquet file is full. Default: 512 MiB.
        overwrite: Replace an earlier export in ``dest``, after the new one is complete. Default:
            False.
        on_error: ``"stop"`` raises an error for the first damaged sample. ``"skip"`` leaves it out
            and names it in ``export-log.txt``. Default: ``"stop"``.
        jobs: Number of threads. Default: 0 (all available cores).
        on_progress: Called with the number of samples done and in total.

    Returns:
        Counts and duration.

    Raises:
        ConfigError: An argument is wrong, no sample matches, or ``dest`` is not empty.
        MissingPart: ``to="parquet"`` without pyarrow.
        StoreError: The dataset cannot be read, or ``dest`` cannot be written.
        BadImage: An image cannot be exported, with ``on_error="stop"``.

    Examples:
        >>> fastload.export("packed", "out", to="files", where="label == 'cat'")  # doctest: +SKIP
    """
    started = time.monotonic()
    _check_arguments(to, shard_size, on_error)
    opened = Dataset(dataset)
    ids = selected_ids(opened, where=where, split=split, limit=limit)
    fields = selected_fields(opened.fields, split)
    reader = _SampleReader(opened, fields)
    skipped = 0
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_result_folder(Path(dest), overwrite=overwrite))
        writer = _make_writer(to, folder, opened, reader, ids, shard_size=shard_size)
        stack.callback(writer.close)
        samples = stack.enter_context(contextlib.closing(reader.read(ids, jobs=jobs)))
        log = stack.enter_context(NewFile(folder / LOG))
        for done, sample in enumerate(samples, start=1):
            try:
                if isinstance(sample, BadImage | CorruptShard):
                    raise sample
                writer.add(sample)
            except (BadImage, CorruptShard) as error:
                if isinstance(sample, ExportSample):
                    error = _named(error, sample.id, sample.source)
                if on_error == "stop":
                    raise error from None
                skipped += 1
                log.write(f"{error}\n".encode(errors="backslashreplace"))
            if on_progress is not None:
                on_progress(done, len(ids))
        if skipped == len(ids):
            raise ConfigError(f"{opened.path}: all {skipped} selected samples are damaged")
        writer.finish()
        if skipped:
            log.publish()
        files.write_atomically(
            folder / EXPORT_DESCRIPTION, Description(to, fields, _info_of(opened)).dump()
        )
    return ExportResult(
        dest=Path(dest),
        to=to,
        n_samples=len(ids) - skipped,
        n_files=writer.n_files,
        bytes_out=writer.size_bytes,
        skipped=skipped,
        notes=tuple(_notes(opened, to, ids)),
        seconds=time.monotonic() - started,
    )


def _check_arguments(to: str, shard_size: int, on_error: str) -> None:
    if to not in TARGETS:
        raise ConfigError(f"to={to!r:.40}: expected one of {', '.join(TARGETS)}")
    if on_error not in ("stop", "skip"):
        raise ConfigError(f"on_error={on_error!r:.40}: expected stop or skip")
    if shard_size < MIN_SHARD_SIZE:
        raise ConfigError(f"shard_size={shard_size}: expected at least {MIN_SHARD_SIZE} bytes")


@contextlib.contextmanager
def _result_folder(dest: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yields a temporary folder that becomes ``dest``. Only an export is ever replaced."""
    is_used = dest.is_dir() and any(dest.iterdir())
    is_export = is_exported(dest)
    if is_export and not overwrite:
        raise ConfigError(
            f"{dest} contains an earlier export. Pass --overwrite (overwrite=True) to replace it, "
            "or choose another DEST"
        )
    if is_used and not is_export:
        raise ConfigError(
            f"{dest} is not empty and not an export: expected a new or empty folder as DEST"
        )
    if is_export:
        read_description(dest)  # raises an error for another program's file of this name
    with new_folder(dest, replace=is_export) as folder:
        yield folder


def _make_writer(
    to: str, folder: Path, opened: Dataset, reader: _SampleReader, ids: Ids, *, shard_size: int
) -> Writer:
    if to == "files":
        return FilesWriter(folder, reader.fields)
    if to == "webdataset":
        return TarWriter(folder, reader.fields, shard_size=shard_size)
    examples = reader.examples(ids[:_EXAMPLES])
    return ParquetWriter(
        folder, reader.fields, opened.manifest.properties, examples, shard_size=shard_size
    )


class _SampleReader:
    """Reads samples and converts their images to files."""

    def __init__(self, opened: Dataset, fields: tuple[Field, ...]) -> None:
        self.fields = fields
        self._opened = opened
        self._one_split = splits_of(fields) != opened.splits
        size = sum(shard.size for shard in opened.manifest.shards)
        self._chunk = min(64, max(1, _CHUNK_BYTES * len(opened) // size))

    def read(
        self, ids: Ids, *, jobs: int
    ) -> Generator[ExportSample | BadImage | CorruptShard, None, None]:
        """Yields a sample or its error for each id, in order."""
        return ordered_map(
            lambda some: map(self._sample, some),
            (int(each) for each in ids),
            jobs=jobs or available_cpus(),
            chunk_size=lambda: self._chunk,
        )

    def examples(self, ids: Ids) -> dict[str, Any]:
        """Returns the first value of each array field in these samples."""
        wanted = {n: each for n, each in enumerate(self.fields) if each.kind is NUMBERS}
        found: dict[str, np.ndarray[Any, Any]] = {}
        for sample_id in itertools.takewhile(lambda _: len(found) < len(wanted), ids.tolist()):
            with contextlib.suppress(CorruptShard, RecordError):
                for part in self._opened.parts(sample_id):
                    if part.field in wanted and (name := wanted[part.field].name) not in found:
                        found[name] = wanted[part.field].kind.decode(wanted[part.field], part)
        return found

    def _sample(self, sample_id: int) -> ExportSample | BadImage | CorruptShard:
        source = ""
        try:
            parts = self._opened.parts(sample_id)
            source = source_of(parts)
            values: dict[str, list[Any]] = {}
            for part in parts:
                if part.role != DATA or part.field == SOURCE_FIELD:
                    continue
                if part.field >= len(self.fields):
                    raise RecordError("field number", part.field, f"below {len(self.fields)}")
                each = self.fields[part.field]
                values.setdefault(each.name, []).append(_exported(each, part))
            if self._one_split:
                values[SPLIT] = [0]
            split = values.get(SPLIT, [0])[0] if splits_of(self.fields) else 0
        except RecordError as error:
            return self._opened.reader(sample_id).fault(sample_id, str(error))
        except (BadImage, CorruptShard) as error:
            return _named(error, sample_id, source)
        return ExportSample(sample_id, source, values, split)


def _named(error: BadImage | CorruptShard, sample_id: int, source: str) -> BadImage | CorruptShard:
    """Returns the error with the name of its sample. A CorruptShard has it."""
    if isinstance(error, CorruptShard) or error.image_id is not None:
        return error
    return BadImage(f"sample {sample_id}: {error.why}", source=source, image_id=sample_id)


def _exported(each: Field, part: Part) -> Any:
    if each.kind.is_image:
        return _image_file(part)
    if each.kind.is_mask:
        mask = decode_mask(part)
        if mask.itemsize == 4:
            return ImageFile("npy", npy_file(mask))
        return ImageFile("png", png_file(mask[:, :, None]))
    value = each.kind.decode(each, part)
    return value.copy() if each.kind.is_array else value


def _image_file(part: Part) -> ImageFile:
    """Returns an image as a file that every reader shows upright."""
    if part.codec == JPEG:
        return ImageFile("jpg", _with_orientation(bytes(part.data), part.orientation or 1))
    if part.codec == PNG and part.orientation <= 1:
        return ImageFile("png", bytes(part.data))
    pixels = decode_image(part)
    if pixels.shape[2] > 4 or pixels.itemsize > 2:
        raise BadImage(
            f"{pixels.shape[2]} channels of {8 * pixels.itemsize} bits: expected at most 4 of 16"
        )
    return ImageFile("png", png_file(pixels))


def _with_orientation(data: bytes, orientation: int) -> bytes:
    """Returns a JPEG with the orientation of its record, which the packer removes from the file."""
    if read_header(data).orientation == orientation:
        return data
    # Readers use the first Exif segment.
    exif = _EXIF % orientation
    return data[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + data[2:]


def _info_of(opened: Dataset) -> Info:
    found = opened.manifest.options.get("info")
    return found if isinstance(found, dict) else {}


def _notes(opened: Dataset, to: str, ids: Ids) -> Iterator[str]:
    """Yields what readers other than fastload see differently."""
    label = label_field(opened.fields)
    if to == "files" and label is not None and not _sorts_like_classes(opened, label, ids):
        yield (
            "Class folders do not sort in the order of the classes, or a class has no folder: "
            "torchvision's ImageFolder numbers them differently. fastload.json has the classes"
        )
    for each, found in zip(opened.fields, opened.manifest.properties, strict=True):
        if each.kind.is_image and found.channels & {2, 4}:
            yield f"Field {each.name!r} has transparency, which fastload pack drops"


def _sorts_like_classes(opened: Dataset, label: Field, ids: Ids) -> bool:
    names = safe_names(label.classes)
    labels = opened.column(label.name)[ids]
    splits = opened.column(SPLIT)[ids] if opened.splits else np.zeros(len(ids), np.int64)
    return names == sorted(names) and all(
        np.isin(range(len(names)), labels[splits == split]).all() for split in np.unique(splits)
    )
