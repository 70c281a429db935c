"""Where the files of a tar lie, header by header, in bounded memory and without extracting anything."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from fastload._pack.files import MAX_FILE_BYTES

MAX_NAME_BYTES = 64 << 10  # a long-name or pax header; tarfile itself would read gigabytes


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file in a tar; ``refused`` says why it must not be read."""

    name: str
    offset: int
    size: int
    refused: str = ""


def tar_members(file: io.FileIO) -> Iterator[Member]:
    """The regular files of a tar, header by header, in bounded memory; a damaged end is one refused member."""
    size = os.fstat(file.fileno()).st_size
    position = 0
    long_name = ""
    pax_size = -1
    while position + 512 <= size:
        file.seek(position)
        block = file.read(512)
        if not any(block):
            return
        try:
            header = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            yield Member(
                "", position, 0, f"damaged at byte {position}: {error}; what follows is not read"
            )
            return
        length = pax_size if pax_size >= 0 and header.isreg() else header.size
        start = position + 512
        position = position + 512 + (length + 511) // 512 * 512
        name = long_name or header.name
        if length < 0 or start + length > size:
            yield Member(
                name,
                start,
                0,
                f"cut off: its {length} bytes go beyond the end of the tar ({size} bytes)",
            )
            return
        if header.type in (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE):
            if length > MAX_NAME_BYTES:
                yield Member(
                    name, start, 0, f"a name header of {length} bytes, at most {MAX_NAME_BYTES}"
                )
                return
            data = file.read(length)
            if header.type == tarfile.XHDTYPE:
                long_name, pax_size = _pax(data)
            else:
                long_name = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
            continue
        if header.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE):
            too_large = (
                f"has {length} bytes, at most {MAX_FILE_BYTES} are read"
                if length > MAX_FILE_BYTES
                else ""
            )
            yield Member(name, start, length, too_large)
        long_name = ""
        pax_size = -1


def _pax(data: bytes) -> tuple[str, int]:
    """Path and size of a pax header ("LENGTH key=value\\n" ...); "" and -1 where it has none."""
    path = ""
    size = -1
    while data:
        digits, _, _ = data[:20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        key, _, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if key == b"path":
            path = value.decode("utf-8", "surrogateescape")
        elif key == b"size" and value.isdigit() and len(value) < 20:
            size = int(value)
        data = data[length:] if length > len(digits) + 1 else b""
    return path, size
