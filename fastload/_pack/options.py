"""The options of a pack, checked once, and which of them must not change on resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fastload.errors import ConfigError

ENCODES = ("keep", "jpeg", "raw", "auto")
MIN_SHARD = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How samples are stored. A resume may change only ``jobs``, ``on_error`` and ``max_bad``."""

    # keep: same pixels; jpeg: re-encode; raw: pixels; auto: measure, then choose keep or raw
    encode: str = "keep"
    quality: int = 90  # JPEG quality for encode="jpeg"
    max_side: int = 0  # shrink images whose longer side exceeds this many pixels; 0 = never
    resize: tuple[int, int] | None = None  # (width, height) for every image; None = never
    restart: int = -1  # MCUs between restart markers; -1 = chosen per image, 0 = none
    order: str = "shuffle"  # or "source"
    seed: int = 0
    shard_size: int = 512 << 20  # bytes of records per shard
    block_size: int = 8 << 20  # bytes of records per block, the unit of reading
    on_error: str = "stop"  # or "skip": log the bad sample and continue
    max_bad: int | None = None  # with "skip": maximum number of bad samples; None = no limit
    jobs: int = 0  # threads; 0 = every core that this process may use

    def __post_init__(self) -> None:
        _one_of("encode", self.encode, ENCODES)
        _one_of("order", self.order, ("shuffle", "source"))
        _one_of("on_error", self.on_error, ("stop", "skip"))
        _between("quality", self.quality, 1, 100)
        _between("max_side", self.max_side, 0, 16_384)
        _between("restart", self.restart, -1, 65_535)
        _between("seed", self.seed, 0, 2**63 - 1)
        _between("shard_size", self.shard_size, MIN_SHARD, 1 << 40)
        _between("block_size", self.block_size, 1, self.shard_size)
        _between("jobs", self.jobs, 0, 1024)
        if self.max_bad is not None:
            _between("max_bad", self.max_bad, 0, 2**63 - 1)
            if self.on_error == "stop":
                raise ConfigError(
                    f"max_bad={self.max_bad} requires on_error='skip' (--on-error skip). "
                    "With on_error='stop', the first bad sample ends the pack"
                )
        if self.resize is not None:
            if not isinstance(self.resize, (tuple, list)) or len(self.resize) != 2:
                raise ConfigError(f"resize={self.resize!r:.40}: expected (width, height)")
            if self.max_side:
                raise ConfigError(
                    f"resize={self.resize!r} and max_side={self.max_side}: pass only one of them"
                )
            for side in self.resize:
                _between("resize", side, 1, 16_384)

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


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r:.40}: expected one of {', '.join(allowed)}")


def _between(name: str, value: int, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name}={value!r:.40}: expected an integer from {low} to {high}")
