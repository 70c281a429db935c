"""Progress and result of a pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastload._common.formatting import count
from fastload._common.public import public

LOG = "pack-log.jsonl"  # in DEST: one line per skipped or converted sample


@public()
@dataclass(slots=True)
class PackProgress:
    """Progress of a pack, passed to ``on_progress`` after every sample.

    Attributes:
        stage: ``"listing"``, ``"checking"`` (only on resume), ``"packing"`` or ``"publishing"``.
        done: Samples processed so far.
        total: Samples in the source, or None while they are listed.
        skipped: Bad samples skipped so far.
        converted: Number of samples per reason why the stored image differs from the source.
        bytes_in: Bytes read.
        bytes_out: Bytes of the records written.

    Examples:
        >>> fastload.pack("photos", "packed", on_progress=print)  # doctest: +SKIP
    """

    stage: str = "listing"
    done: int = 0
    total: int | None = None
    skipped: int = 0
    converted: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0

    def count(self, converted: Iterable[str], bytes_in: int, bytes_out: int) -> None:
        """Adds packed samples to the counts.

        Args:
            converted: One reason per sample whose stored image differs from the source.
            bytes_in: Bytes read.
            bytes_out: Bytes written.
        """
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        self.converted.update(converted)


@public()
@dataclass(frozen=True, slots=True)
class PackResult:
    """Result of a pack. ``str(result)`` is the summary that ``fastload pack`` prints.

    Attributes:
        dest: Folder of the dataset.
        n_samples: Samples in the dataset.
        n_shards: Shards in the dataset.
        bytes_in: Bytes read from the source.
        bytes_out: Bytes of the records written.
        skipped: Bad samples that were skipped. DEST/pack-log.jsonl lists them.
        converted: Number of samples per reason why the stored image differs from the source.
        seconds: Duration of this run.
        resumed_at: Source samples that an earlier, interrupted run had processed.
        notes: Remarks for the user, e.g. that a sorted source was packed unshuffled.

    Examples:
        >>> result = fastload.pack("photos", "packed")  # doctest: +SKIP
        >>> result.n_samples  # doctest: +SKIP
        1000
    """

    dest: Path
    n_samples: int
    n_shards: int
    bytes_in: int
    bytes_out: int
    skipped: int
    converted: dict[str, int]
    seconds: float
    resumed_at: int = 0
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Returns the result as a dict that ``json.dumps`` accepts."""
        return {**asdict(self), "dest": str(self.dest)}

    def __str__(self) -> str:
        rate = (self.n_samples + self.skipped - self.resumed_at) / max(self.seconds, 1e-9)
        lines = [
            f"Packed {count(self.n_samples, 'sample')} into {count(self.n_shards, 'shard')} in "
            f"{self.seconds:.1f} s ({rate:.0f} samples/s)",
            f"Read {self.bytes_in / 1e6:.1f} MB, "
            f"wrote {self.bytes_out / 1e6:.1f} MB to {self.dest}",
        ]
        if self.resumed_at:
            lines.append(f"Resumed an interrupted pack at sample {self.resumed_at}")
        if self.converted:
            lines.append(
                "Converted: "
                + ", ".join(f"{n} x {what}" for what, n in sorted(self.converted.items()))
            )
        if self.skipped:
            lines.append(
                f"Skipped {count(self.skipped, 'bad sample')}, listed in {self.dest / LOG}"
            )
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])
