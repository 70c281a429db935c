"""Lists and reads the files of a source safely.

The order is fixed, files are read whole, nothing outside the root is read, and nothing blocks. A
source folder may be malicious or in use: it can contain links that leave the root, FIFOs, sockets,
and files that grow during the read.

Names are ``str`` with surrogateescape, so they can hold any bytes. ``printable`` converts a name to
text that is safe to print and to store as JSON, and ``raw_name`` converts it back.
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

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")

# O_NONBLOCK: opening a FIFO without a writer would block forever. O_NOFOLLOW: the path is resolved
# first, so a link found at open was put there in between. Both are missing on Windows.
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
    """One file below a root. ``refused`` is the reason not to read it, or empty."""

    path: str  # relative to the root, separated by "/", raw (see ``printable``)
    refused: str = ""
    folder: bool = False  # a folder that was not entered; only if ``refused``


def is_image_name(name: str) -> bool:
    """Returns whether a file name has an image suffix such as ``.jpg``, in any case.

    Args:
        name: File name or path.

    Returns:
        True for JPEG, PNG, WebP, BMP and TIFF suffixes.

    Examples:
        >>> is_image_name("cat/1.JPG")
        True
    """
    return name.lower().endswith(IMAGE_SUFFIXES)


def printable(name: str) -> str:
    r"""Returns a file name as text that is safe to print and to store.

    Bytes that cannot be printed become ``\xNN``, and a backslash is doubled.

    Args:
        name: Raw file name, as ``os.listdir`` returns it.

    Returns:
        The printable name. ``raw_name`` converts it back.

    Examples:
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
    r"""Returns the raw file name of a name that ``printable`` returned.

    Args:
        shown: Printable name.

    Returns:
        The name to pass to ``open`` or ``read_bounded``.

    Examples:
        >>> raw_name("caf\\xe9.jpg")
        'caf\udce9.jpg'
    """
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
    """Reads a whole file inside ``root``. Never reads outside the root and never blocks on a FIFO.

    Links that stay inside the root are followed.

    Args:
        root: Folder that must contain the file.
        relative: Raw path relative to ``root``.
        limit: Maximum size in bytes. Default: 64 MiB.

    Returns:
        The bytes of the file, at least one.

    Raises:
        BadImage: The file is missing, empty, larger than ``limit``, outside the root, not a regular
            file, or changes during the read. The error names the file.

    Examples:
        >>> data = read_bounded("photos", "cat/1.jpg")  # doctest: +SKIP
    """
    if (data := _read_plain(root, relative, limit)) is not None:
        return data
    with open_inside(root, relative) as file:
        return _read_whole(file.fileno(), printable_or_repr(relative), limit)


def _read_plain(root: str | os.PathLike[str], relative: str, limit: int) -> bytes | None:
    """Reads a regular file without links on its path in one native call.

    Returns None in every other case, also if the file changes during the read. The slow path then
    finds the reason.
    """
    module = core()
    # ".." inside a longer name also takes the slow path. Such names are rare.
    if module is None or not relative or relative.startswith("/") or ".." in relative:
        return None
    try:
        path = os.fsencode(f"{_real_root(os.fspath(root)).rstrip(os.sep)}{os.sep}{relative}")
    except UnicodeEncodeError:  # no file can have this name
        return None
    data: bytes | None = module.read_regular_file(path, limit)
    return data


def open_inside(root: str | os.PathLike[str], relative: str) -> io.FileIO:
    """Opens a regular file inside ``root`` for reading, unbuffered. Raises BadImage otherwise."""
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
        raise BadImage("not read: a folder on its path was replaced during open", source=name)
    raise BadImage(_expected_regular(mode), source=name)


def resolve_inside(root: str | os.PathLike[str], relative: str) -> str:
    """Returns the real path of a file inside ``root``. Raises BadImage if there is none."""
    name = printable_or_repr(relative)
    real_root = _real_root(os.fspath(root))
    try:
        real = os.path.realpath(os.path.join(real_root, relative), strict=True)  # noqa: PTH118 - raw names, and "" is legal
    except (OSError, ValueError) as error:  # ValueError: a NUL byte or an impossible file name
        raise BadImage(_reason(error), source=name) from None
    if not is_below(real, real_root):
        raise BadImage(
            f"not read: its path or a link leads outside the root {printable(real_root)} "
            f"(to {printable(real)}). Choose a root that contains both, or copy the files",
            source=name,
        )
    return real


def _real_root(root: str) -> str:
    return _cached_root(root if os.path.isabs(root) else os.path.join(os.getcwd(), root))  # noqa: PTH109, PTH117, PTH118 - per file


# Saves lstat calls for every file. A root that moves later is refused, not followed.
@functools.lru_cache(maxsize=64)
def _cached_root(absolute: str) -> str:
    return os.path.realpath(absolute)


def is_below(path: str, root: str) -> bool:
    """Returns whether ``path`` is ``root`` or inside it. Both must be real paths."""
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)


def walk(root: str | os.PathLike[str], *, below: str = "") -> Iterator[Entry]:
    """Yields all files under ``root`` in an order that depends only on names. Skips hidden files.

    Each folder yields its files first and then its folders, each sorted by bytes. A link to a
    file is followed if its target is inside the root. Links to folders are yielded as refused
    entries and not entered, because that could loop or read files twice.

    Args:
        root: Folder to list.
        below: Raw path of a folder inside ``root`` to start from. Default: the root itself.

    Yields:
        One ``Entry`` per file, with ``path`` relative to ``root`` and ``refused``, the reason not
        to read it or an empty string.

    Examples:
        >>> paths = [entry.path for entry in walk("photos")]  # doctest: +SKIP
    """
    real_root = _real_root(os.fspath(root))
    pending = [below]
    while pending:
        folder = pending.pop()
        inner: list[str] = []
        try:
            with os.scandir(Path(real_root, folder)) as listing:
                visible = (entry for entry in listing if not entry.name.startswith("."))
                entries = sorted(visible, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            yield Entry(folder, f"cannot be listed: {error.strerror}", folder=True)
            continue
        for entry in entries:
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
        return Entry(path, error.why, folder=os.path.isdir(entry))  # noqa: PTH112 - never raises
    except OSError as error:
        return Entry(path, _reason(error))
    if stat.S_ISREG(mode):
        return Entry(path)
    if stat.S_ISDIR(mode):
        return Entry(
            path,
            "a link to a folder: not followed, the folder is listed at its own path",
            folder=True,
        )
    return Entry(path, _expected_regular(mode))


def _expected_regular(mode: int) -> str:
    return f"is {_KINDS.get(stat.S_IFMT(mode), 'not a file')}, expected a regular file"


def file_stamp(file: io.FileIO | io.BufferedReader) -> tuple[int, int]:
    """Returns size and modification time, to detect a changed file."""
    status = os.fstat(file.fileno())
    return status.st_size, status.st_mtime_ns


def _read_whole(descriptor: int, name: str, limit: int) -> bytes:
    before = os.fstat(descriptor)
    if before.st_size == 0:
        raise BadImage("is empty (0 bytes)", source=name)
    if before.st_size > limit:
        raise BadImage(f"has {before.st_size} bytes, expected at most {limit}", source=name)
    data = b""
    try:
        while len(data) <= before.st_size and (
            more := os.read(descriptor, before.st_size + 1 - len(data))
        ):
            data = data + more if data else more  # a local file arrives in one piece
    except OSError as error:
        raise BadImage(_reason(error), source=name) from None
    after = os.fstat(descriptor)
    if len(data) != before.st_size or (after.st_size, after.st_mtime_ns) != (
        before.st_size,
        before.st_mtime_ns,
    ):
        raise BadImage(
            f"changed during the read: {before.st_size} bytes before, "
            f"{max(len(data), after.st_size)} after. Pack while no program writes to it",
            source=name,
        )
    return data


def _still_below(descriptor: int, real: str, real_root: str) -> bool:
    """Returns whether the open file is in the root: no folder became a link after resolving."""
    try:
        return is_below(os.readlink(f"/proc/self/fd/{descriptor}"), real_root)  # noqa: PTH115
    except OSError:  # no /proc: macOS, Windows
        return os.path.realpath(real) == real


def printable_or_repr(name: str) -> str:
    """``printable`` that also accepts impossible file names, such as a lone surrogate from JSON."""
    try:
        return printable(name)
    except UnicodeEncodeError:
        return ascii(name)


def _reason(error: OSError | ValueError) -> str:
    if not isinstance(error, OSError):
        return f"invalid file name ({error})"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file: wrong name, broken link, or deleted since it was listed"
    if error.errno == errno.ELOOP:
        return "a link to itself, or a link created while the file was opened"
    return f"cannot be read: {error.strerror}"
