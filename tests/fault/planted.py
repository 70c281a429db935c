"""Bugs that tests plant in fastload, to prove that the fault tests detect them."""

from __future__ import annotations

import re
from typing import Any

from fastload._common import files, strict_json
from fastload._store import dataset, manifest, record, shard
from fastload.errors import RecordError


def plant(bug: str) -> None:
    """Breaks fastload in this process in one way; "" breaks nothing."""
    if bug:
        _BUGS[bug]()


def _no_record_checksum() -> None:
    def check(self: record.RecordHeader, value: memoryview, expect_id: int) -> None:
        found = (self.magic, self.version, self.sample_id, self.length)
        if found != (record.MAGIC, 1, expect_id, len(value)):
            raise RecordError("header", "?", "?")

    record.RecordHeader.check = check  # type: ignore[method-assign]


def _no_manifest_checksum() -> None:
    manifest._check_seal = lambda data: None


def _no_column_checksum() -> None:
    class Anything(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = str.__hash__

    real = files.crc32c_of

    def checksum(*arguments: int, copy: memoryview | None = None) -> str:
        real(*arguments, copy=copy)
        return Anything()

    setattr(files, "crc32c_of", checksum)  # noqa: B010


def _no_size_check() -> None:
    def opened(path: Any, shard: Any) -> int:
        return files.open_regular(path)[0]

    shard.open_checked = opened
    vars(dataset)["check_sizes"] = lambda folder, found: None


def _no_stamp() -> None:
    """Neither the stamp nor the checksum of the index is compared."""
    setattr(shard, "index_fault", lambda descriptor, row: "")  # noqa: B010


def _no_digest() -> None:
    def check(descriptor: Any, path: Any, shard: Any) -> None:
        pass

    shard._check_digest = check


def _wrong_record_named() -> None:
    real: Any = shard.ShardReader.damaged
    setattr(  # noqa: B010
        shard.ShardReader,
        "damaged",
        lambda self, sample_id, reason: real(self, sample_id + 1, reason),
    )


def _accept_any_name() -> None:
    manifest.SHARD_NAME = re.compile(".*", re.DOTALL)


def _accept_any_depth() -> None:
    def nesting(data: bytes, *, enough: int = 0) -> int:
        return 0

    strict_json.nesting = nesting


def _last_key_wins() -> None:
    strict_json._object = dict  # type: ignore[assignment]


def _follow_links() -> None:
    import os

    os.O_NOFOLLOW = 0  # type: ignore[misc]


_BUGS = {
    "no record checksum": _no_record_checksum,
    "no manifest checksum": _no_manifest_checksum,
    "no column checksum": _no_column_checksum,
    "no size check": _no_size_check,
    "no stamp": _no_stamp,
    "no digest": _no_digest,
    "wrong record named": _wrong_record_named,
    "any name": _accept_any_name,
    "any depth": _accept_any_depth,
    "last key wins": _last_key_wins,
    "links followed": _follow_links,
}
