"""Files of a source: listed in a fixed order, read whole, never outside the root, never waiting for anybody.

A source folder may be hostile or simply alive: links out of the root, FIFOs, sockets, files that grow while we read.
Names are ``str`` as Python has them (surrogateescape: any bytes); ``printable`` and ``raw_name`` turn them into text
that can be shown, written as JSON, and turned back.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fastload._common.native import core
from fastload.errors import BadImage

MAX_FILE_BYTES = 64 << 20  # an image file; a record may not be larger either
MAX_TABLE_BYTES = 4 << 30  # an annotation file that must be parsed whole (COCO train2017: 0.45 GB)

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

# O_NONBLOCK: opening a FIFO nobody writes to would wait for ever. O_NOFOLLOW: the path is resolved before, a link that
# turns up afterwards was put there in between. Both are missing on Windows.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}
_ESCAPE = re.compile(r"\\(\\|x[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file below a root; ``refused`` says why it must not be read (empty = a regular file inside the root)."""

    path: str  # relative to the root, "/" between folders, raw (see ``printable``)
    refused: str = ""
    folder: bool = False  # only where refused: a folder that was not entered


def is_image_name(name: str) -> bool:
    """The name ends like an image file, in any case."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def printable(name: str) -> str:
    r"""The name as text that is safe to print and to store: odd bytes become ``\xNN``, a backslash is doubled.

    >>> printable("caf\udce9.jpg")
    'caf\\xe9.jpg'
    """
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(map(_escaped, name))


def _escaped(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(char))


def raw_name(shown: str) -> str:
    """The inverse of ``printable``."""
    if "\\" not in shown:
        return shown
    raw = bytearray()
    end = 0
    for match in _ESCAPE.finditer(shown):
        raw += shown[end : match.start()].encode() + (
            b"\\" if match[1] == "\\" else bytes.fromhex(match[1][1:])
        )
        end = match.end()
    return os.fsdecode(bytes(raw + shown[end:].encode()))


def read_bounded(
    root: str | os.PathLike[str], relative: str, *, limit: int = MAX_FILE_BYTES
) -> bytes:
    """The whole content of a regular, non-empty file inside ``root`` (links inside the root are followed).

    Raises BadImage, naming the file, for everything else; never reads outside the root, never blocks on a FIFO.
    """
    if (data := _read_plain(root, relative, limit)) is not None:
        return data
    name = printable_or_repr(relative)
    with open_inside(root, relative) as file:
        return _read_whole(file.fileno(), name, limit)


def _read_plain(root: str | os.PathLike[str], relative: str, limit: int) -> bytes | None:
    """A regular file without any link on its path, in one native call.

    None for anything else, and where the file changed meanwhile: what it is, or what is wrong, is found out then.
    """
    module = core()
    # ".." in a part of a name, too: such names are rare.
    if module is None or not relative or relative.startswith("/") or ".." in relative:
        return None
    try:
        path = os.fsencode(f"{_real_root(os.fspath(root)).rstrip(os.sep)}{os.sep}{relative}")
    except UnicodeEncodeError:  # text that no file name can hold
        return None
    data: bytes | None = module.read_regular_file(path, limit)
    return data


def open_inside(root: str | os.PathLike[str], relative: str) -> io.FileIO:
    """Opens a regular file inside ``root`` for reading, unbuffered; BadImage where that is not what it is."""
    name = printable_or_repr(relative)
    real = resolve_inside(root, relative)
    descriptor = -1
    try:
        descriptor = os.open(real, _FLAGS)
        mode = os.fstat(descriptor).st_mode
        inside = _still_below(descriptor, real, _real_root(os.fspath(root)))
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise BadImage(_reason(error), source=name) from None
    if stat.S_ISREG(mode) and inside:
        return io.FileIO(descriptor)
    os.close(descriptor)
    if not inside:
        raise BadImage(
            "a folder on its path was replaced while it was opened; it is not read", source=name
        )
    raise BadImage(
        f"is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, expected a regular file", source=name
    )


def resolve_inside(root: str | os.PathLike[str], relative: str) -> str:
    """The real path (no links left) of something inside ``root``; BadImage where it is gone, loops or lies outside."""
    name = printable_or_repr(relative)
    real_root = _real_root(os.fspath(root))
    try:
        real = os.path.realpath(os.path.join(real_root, relative), strict=True)  # noqa: PTH118 - raw names, and "" is legal
    except (OSError, ValueError) as error:  # ValueError: a NUL byte, or no possible file name
        raise BadImage(_reason(error), source=name) from None
    if not is_below(real, real_root):
        raise BadImage(
            f"its path or a link in it leads out of the root {printable(real_root)} (to {printable(real)}): "
            "not read. Name a root that holds both, or copy the files",
            source=name,
        )
    return real


def _real_root(root: str) -> str:
    return _cached_root(root if os.path.isabs(root) else os.path.join(os.getcwd(), root))  # noqa: PTH109, PTH117, PTH118 - per file


# Spares lstats for each file; a root that moves later is refused, not followed.
@functools.lru_cache(maxsize=64)
def _cached_root(absolute: str) -> str:
    return os.path.realpath(absolute)


def is_below(path: str, root: str) -> bool:
    """Both are real paths, and the first is the second or lies in it."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def walk(root: str | os.PathLike[str], *, below: str = "") -> Iterator[Entry]:
    """All files under ``root`` (or its folder ``below``), hidden ones left out, in an order that depends on names only.

    Each folder is listed when its turn comes: first its files, then its folders, each sorted by bytes. Links to files
    are judged by where they lead; links to folders are never entered (loops, files read twice) but listed as refused.
    """
    real_root = _real_root(os.fspath(root))
    pending = [below]
    while pending:
        folder = pending.pop()
        inner: list[str] = []
        try:
            with os.scandir(Path(real_root, folder)) as listing:
                entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            yield Entry(folder, f"cannot be listed: {error.strerror}", folder=True)
            continue
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir(follow_symlinks=False):
                inner.append(path)
            else:
                yield _judged(entry, path, real_root)
        pending += reversed(inner)


def _judged(entry: os.DirEntry[str], path: str, real_root: str) -> Entry:
    if entry.is_file(follow_symlinks=False):
        return Entry(path)
    try:
        mode = os.stat(resolve_inside(real_root, path)).st_mode  # noqa: PTH116 - a string from realpath
    except BadImage as error:
        return Entry(path, error.why, folder=_leads_to_folder(entry))
    except OSError as error:
        return Entry(path, _reason(error))
    if stat.S_ISREG(mode):
        return Entry(path)
    if stat.S_ISDIR(mode):
        return Entry(
            path,
            "a link to a folder: not followed, the folder is read in its own place",
            folder=True,
        )
    return Entry(path, f"is {_KINDS.get(stat.S_IFMT(mode), 'no file')}, expected a regular file")


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def file_stamp(file: io.FileIO | io.BufferedReader) -> tuple[int, int]:
    """Size and modification time: they differ where the file was changed."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _read_whole(descriptor: int, name: str, limit: int) -> bytes:
    before = os.fstat(descriptor)
    if before.st_size == 0:
        raise BadImage("is empty (0 bytes)", source=name)
    if before.st_size > limit:
        raise BadImage(f"has {before.st_size} bytes, at most {limit} are read", source=name)
    data = b""
    try:
        while len(data) <= before.st_size and (
            more := os.read(descriptor, before.st_size + 1 - len(data))
        ):
            data = data + more if data else more  # one piece from any local file
    except OSError as error:
        raise BadImage(_reason(error), source=name) from None
    after = os.fstat(descriptor)
    if len(data) != before.st_size or (after.st_size, after.st_mtime_ns) != (
        before.st_size,
        before.st_mtime_ns,
    ):
        raise BadImage(
            f"changed while it was read: {before.st_size} bytes before, {max(len(data), after.st_size)} "
            "after. Pack when nobody writes there",
            source=name,
        )
    return data


def _still_below(descriptor: int, real: str, real_root: str) -> bool:
    """What was opened lies in the root: nobody swapped a folder for a link between resolving and opening."""
    try:
        return is_below(os.readlink(f"/proc/self/fd/{descriptor}"), real_root)  # noqa: PTH115
    except OSError:  # no /proc: macOS, Windows
        return os.path.realpath(real) == real


def printable_or_repr(name: str) -> str:
    """``printable``, also for text no file name can hold (a lone surrogate out of a JSON file)."""
    try:
        return printable(name)
    except UnicodeEncodeError:
        return ascii(name)


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f"is not a possible file name ({error})"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file: it vanished, its link leads nowhere, or the name is wrong"
    if error.errno == errno.ELOOP:
        return "a link that leads to itself, or was put there while we looked"
    return f"cannot be read: {error.strerror}"
