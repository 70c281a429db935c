"""How far a pack is, and what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastload._common.public import public

LOG = "pack-log.jsonl"  # in DEST: one line for every sample that was skipped or converted


@public()
@dataclass(slots=True)
class PackProgress:
    """How far a pack is; handed to ``on_progress`` after every sample."""

    stage: str = "listing"  # then, where it goes on, "checking"; then "packing", "publishing"
    done: int = 0
    total: int | None = None
    skipped: int = 0
    converted: Counter[str] = field(default_factory=Counter)
    bytes_in: int = 0
    bytes_out: int = 0

    def count(self, converted: Iterable[str], bytes_in: int, bytes_out: int) -> None:
        """Adds what was packed; ``converted``: why, for each sample that could not be stored as it was."""
        self.bytes_in += bytes_in
        self.bytes_out += bytes_out
        for why in converted:
            self.converted[why] += 1


@public()
@dataclass(frozen=True, slots=True)
class PackResult:
    """What a pack did."""

    dest: Path
    n_samples: int
    n_shards: int
    bytes_in: int
    bytes_out: int
    skipped: int
    converted: dict[str, int]
    seconds: float
    resumed_at: int = 0  # source samples that an earlier, interrupted pack had dealt with
    notes: tuple[
        str, ...
    ] = ()  # what the user should know, e.g. that a sorted source was packed unshuffled

    def as_json(self) -> dict[str, object]:
        """For machines."""
        return {**asdict(self), "dest": str(self.dest)}

    def __str__(self) -> str:
        rate = (self.n_samples + self.skipped - self.resumed_at) / max(self.seconds, 1e-9)
        shards = f"{self.n_shards} shard{'s' * (self.n_shards != 1)}"
        lines = [
            f"packed {self.n_samples} samples into {shards} in {self.seconds:.1f} s ({rate:.0f}/s): "
            f"{self.bytes_in / 1e6:.1f} MB in, {self.bytes_out / 1e6:.1f} MB out, in {self.dest}"
        ]
        if self.resumed_at:
            lines.append(f"went on at sample {self.resumed_at} of an interrupted pack")
        if self.converted:
            lines.append(
                "converted: "
                + ", ".join(f"{count} x {what}" for what, count in sorted(self.converted.items()))
            )
        if self.skipped:
            lines.append(f"skipped {self.skipped} bad samples: see {self.dest / LOG}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])
