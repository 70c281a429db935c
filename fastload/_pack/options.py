"""Options, progress and result of a pack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fastload._common.formatting import count
from fastload._common.public import public
from fastload.errors import ConfigError

_CHOICES = {
    "encode": ("keep", "copy", "jpeg", "raw", "auto"),
    "max_bits": (8, 16),
    "order": ("shuffle", "source"),
    "on_error": ("stop", "skip"),
}
_RANGES = (
    ("quality", 1, 100),
    ("max_side", 0, 16_384),
    ("restart", -1, 65_535),
    ("seed", 0, 2**63 - 1),
    ("shard_size", 1 << 20, 1 << 40),
    ("jobs", 0, 1024),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How samples are stored. A resume may change only ``jobs``, ``on_error`` and ``max_bad``."""

    # keep: same pixels; copy: same bytes; jpeg: re-encode; raw: pixels;
    # auto: measure, then choose keep or raw
    encode: str = "keep"
    quality: int = 90  # JPEG quality for encode="jpeg"
    max_side: int = 0  # shrink images whose longer side exceeds this many pixels; 0 = never
    resize: tuple[int, int] | None = None  # (width, height) for every image; None = never
    max_bits: int = 16  # per channel; with 8, images of 16 bits are reduced to their upper 8 bits
    restart: int = -1  # MCUs between restart markers; -1 = chosen per image, 0 = none
    order: str = "shuffle"  # or "source"
    seed: int = 0
    shard_size: int = 512 << 20  # bytes of records per shard
    block_size: int = 8 << 20  # bytes of records per block, the unit of reading
    on_error: str = "stop"  # or "skip": log the bad sample and continue
    max_bad: int | None = None  # with "skip": maximum number of bad samples; None = no limit
    jobs: int = 0  # threads; 0 = every core that this process may use

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise ConfigError(
                    f"{name}={value!r:.40}: expected one of {', '.join(map(str, allowed))}"
                )
        for name, low, high in _RANGES:
            _check_between(name, getattr(self, name), low, high)
        _check_between("block_size", self.block_size, 1, self.shard_size)
        if self.max_bad is not None:
            _check_between("max_bad", self.max_bad, 0, 2**63 - 1)
            if self.on_error == "stop":
                raise ConfigError(
                    f"max_bad={self.max_bad} requires on_error='skip' (--on-error skip). "
                    "With on_error='stop', the first bad sample ends the pack"
                )
        if self.encode == "copy" and (self.scales or self.restart > 0):
            raise ConfigError(
                "encode='copy' stores files unmodified: expected no max_side, resize or restart. "
                "Pass encode='keep' to change the size or to choose the restart interval"
            )
        if self.resize is not None:
            if not isinstance(self.resize, (tuple, list)) or len(self.resize) != 2:
                raise ConfigError(f"resize={self.resize!r:.40}: expected (width, height)")
            if self.max_side:
                raise ConfigError(
                    f"resize={self.resize!r} and max_side={self.max_side}: pass only one of them"
                )
            for side in self.resize:
                _check_between("resize", side, 1, 16_384)

    @property
    def scales(self) -> bool:
        """Whether images may change their size."""
        return self.resize is not None or self.max_side > 0

    def kept(self) -> dict[str, object]:
        """Returns the options that determine the output. A resume must have the same."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name not in ("on_error", "max_bad", "jobs")
        }


def _check_between(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name}={value!r:.40}: expected an integer from {low} to {high}")


LOG = "pack-log.jsonl"  # in DEST: one line per skipped or converted sample and left-out file


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
        retries: Parts that an engine packed again because their worker died.
        resumed_at: Samples of ``done`` that an earlier, interrupted run had processed.

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
    retries: int = 0
    resumed_at: int = 0

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
        missing: Numbers of the parts that are not packed yet, with ``part=``. Empty if the dataset
            is complete.
        left_out: Number of files in the source folder that are no samples, per reason.
            DEST/pack-log.jsonl names them.
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
    left_out: dict[str, int] = field(default_factory=dict)
    missing: tuple[int, ...] = ()

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
        if self.missing:
            some = ", ".join(map(str, self.missing[:8])) + ", ..." * (len(self.missing) > 8)
            lines.append(
                f"The dataset is not complete: {count(len(self.missing), 'part')} missing "
                f"({some}). The command that packs the last part publishes the dataset"
            )
        if self.resumed_at:
            lines.append(f"Took over {count(self.resumed_at, 'sample')} of an interrupted run")
        if self.converted:
            lines.append(
                "Converted: "
                + ", ".join(f"{n} x {what}" for what, n in sorted(self.converted.items()))
            )
        if self.skipped:
            lines.append(
                f"Skipped {count(self.skipped, 'bad sample')}, listed in {self.dest / LOG}"
            )
        if self.left_out:
            lines.append(
                f"Left out {count(sum(self.left_out.values()), 'file')}, listed in "
                f"{self.dest / LOG}: "
                + ", ".join(f"{n} x {why}" for why, n in sorted(self.left_out.items()))
            )
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])
