"""Lists and reads the files of a source safely.

The order is fixed, files are read whole, nothing outside the root is read (except below a
``LinkedPath``), and nothing blocks. A source folder may be malicious or in use: it can contain
links that leave the root, link to each other or in a circle, FIFOs, sockets, and files that grow
during the read.

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
from pathlib import Path, PosixPath

from fastload._common.native import core
from fastload._store.manifest import NAME as MANIFEST
from fastload.errors import BadImage, ConfigError

EXPORT_DESCRIPTION = "fastload.json"  # in the folder of an export
MAX_FILE_BYTES = 64 << 20  # an image file; a record may not be larger either

IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif"),
    *(".jp2", ".j2k", ".jpx", ".ppm", ".pgm"),
)
_MAGIC = (
    *(b"\xff\xd8\xff", b"\x89PNG\r\n", b"BM", b"II*\0", b"MM\0*", b"GIF87a", b"GIF89a"),
    *(b"\0\0\0\x0cjP  ", b"\xff\x4f\xff\x51"),
)

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

# Folders that several links lead to. A few folders that link to each other have billions of paths.
MAX_NESTED_LINKS = 10_000


class LinkedPath(PosixPath):
    """A root whose links and listed paths may lead outside it (``--follow-links``).

    Paths that are made from it with ``/`` and ``parent`` are of this class, too.
    """


def as_path(path: str | os.PathLike[str], like: Path | None = None) -> Path:
    """Returns a path that follows links if ``path`` or ``like`` does."""
    if isinstance(path, LinkedPath) or isinstance(like, LinkedPath):
        return LinkedPath(path)
    return Path(path)


@dataclass(frozen=True, slots=True)
class Entry:
    """One file below a root. ``refused`` is the reason not to read it, or empty."""

    path: str  # relative to the root, separated by "/", raw (see ``printable``)
    refused: str = ""
    folder: bool = False  # a folder that was not entered; only if ``refused``
    harmless: bool = False  # nothing is lost by not reading it; only if ``refused``


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder on the way of ``walk``."""

    path: str  # relative to the root
    real: str
    top: str  # where the last link led to, or the root
    crossed: tuple[tuple[str, str], ...] = ()  # first and last real folder before each link

    def path_of(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def inner(self, name: str) -> _Folder:
        return _Folder(
            self.path_of(name),
            os.path.join(self.real, name),  # noqa: PTH118 - raw name
            self.top,
            self.crossed,
        )

    def linked(self, name: str, target: str) -> _Folder:
        return _Folder(self.path_of(name), target, target, (*self.crossed, (self.top, self.real)))

    def is_loop(self) -> bool:
        """Whether the path already contains the same folder."""
        return any(
            is_below(self.real, first) and is_below(last, self.real) for first, last in self.crossed
        )


def is_image_name(name: str) -> bool:
    """Returns whether a file name has an image suffix such as ``.jpg``, in any case.

    Args:
        name: File name or path.

    Returns:
        True for JPEG, PNG, WebP, BMP, TIFF, GIF and JPEG 2000 suffixes.

    Examples:
        >>> is_image_name("cat/1.JPG")
        True
    """
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_image_data(head: bytes) -> bool:
    """Returns whether a file that starts with these 12 bytes is an image in a supported format."""
    return head.startswith(_MAGIC) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


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
        inside = isinstance(root, LinkedPath) or _still_below(
            descriptor, real, _real_root(os.fspath(root))
        )
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
    real_root = _real_root(os.fspath(root))
    real = real_path(root, relative)
    if not isinstance(root, LinkedPath) and not is_below(real, real_root):
        raise BadImage(
            f"not read: its path or a link leads outside the root {printable(real_root)} "
            f"(to {printable(real)}). Pass --follow-links (in Python: "
            "source_options={'follow_links': True}) to read it, or choose a root that contains "
            "both",
            source=printable_or_repr(relative),
        )
    return real


def real_path(root: str | os.PathLike[str], relative: str) -> str:
    """Returns the real path of a file that may be outside ``root``. Raises BadImage if missing.

    Lists written on Windows separate folders with a backslash, which is a legal character here.
    """
    path = os.path.join(_real_root(os.fspath(root)), relative)  # noqa: PTH118 - raw names, and "" is legal
    try:
        if "\\" in relative and not os.path.lexists(path):
            path = path.replace("\\", "/")
        return os.path.realpath(path, strict=True)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte or an impossible file name
        raise BadImage(_reason(error), source=printable_or_repr(relative)) from None


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

    Each folder yields its files first and then its folders, each sorted by bytes. Links to files
    and folders are followed if their target is inside the root. A link to a folder that contains
    it, and a folder with a packed dataset, are yielded as refused entries and not entered.

    Args:
        root: Folder to list.
        below: Raw path of a folder inside ``root`` to start from. Default: the root itself.

    Yields:
        One ``Entry`` per file, with ``path`` relative to ``root`` and ``refused``, the reason not
        to read it or an empty string.

    Raises:
        ConfigError: More than 10,000 folders are reached through two or more links, because
            folders link to each other.

    Examples:
        >>> paths = [entry.path for entry in walk("photos")]  # doctest: +SKIP
    """
    start = _start(root, below)
    pending = [start] if isinstance(start, _Folder) else []
    if isinstance(start, Entry):
        yield start
    n_nested = 0
    while pending:
        folder = pending.pop()
        n_nested += len(folder.crossed) > 1
        if n_nested > MAX_NESTED_LINKS:
            raise ConfigError(
                f"{os.fspath(root)}: more than {MAX_NESTED_LINKS} folders are reached through two "
                f"or more links, e.g. {printable(folder.path)}. Remove links between folders"
            )
        try:
            entries = _visible(folder)
        except OSError as error:
            yield Entry(folder.path, f"cannot be listed: {error.strerror}", folder=True)
            continue
        inner: list[_Folder] = []
        for entry in entries:
            found = _judged(root, folder, entry)
            if isinstance(found, Entry):
                yield found
            else:
                inner.append(found)
        pending += reversed(inner)


def inner_folders(root: str | os.PathLike[str], below: str = "") -> list[str]:
    """Returns the sorted names of the folders directly in a folder that ``walk`` enters."""
    start = _start(root, below)
    if isinstance(start, Entry):
        if below:
            return []  # ``walk`` reports the reason
        raise ConfigError(f"{os.fspath(root)}: {start.refused}")
    try:
        # is_dir needs no stat, except for links: there may be a million images.
        entries = [entry for entry in _visible(start) if entry.is_dir()]
    except OSError as error:
        raise ConfigError(f"{start.real}: cannot be listed: {error.strerror}") from None
    return [entry.name for entry in entries if isinstance(_judged(root, start, entry), _Folder)]


def is_packed(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder holds a packed dataset or an unfinished pack."""
    place = Path(folder)
    if os.path.exists(place / ".pack" / "plan.json"):  # noqa: PTH110 - never raises
        return True
    return os.path.exists(place / MANIFEST) and any(place.glob("shard-*.lmdb"))  # noqa: PTH110


def is_exported(folder: str | os.PathLike[str]) -> bool:
    """Returns whether a folder was written by ``fastload export``."""
    return os.path.isfile(Path(folder) / EXPORT_DESCRIPTION)  # noqa: PTH113 - never raises


def _visible(folder: _Folder) -> list[os.DirEntry[str]]:
    with os.scandir(folder.real) as listing:
        visible = (entry for entry in listing if not entry.name.startswith("."))
        return sorted(visible, key=lambda entry: os.fsencode(entry.name))


def _start(root: str | os.PathLike[str], below: str) -> _Folder | Entry:
    try:
        real = resolve_inside(root, below)
    except BadImage as error:
        return Entry(below, error.why, folder=True)
    real_root = _real_root(os.fspath(root))
    above, _, name = below.rpartition("/")
    parent = _Folder(above, os.path.join(real_root, above).rstrip(os.sep), real_root)  # noqa: PTH118
    if not name or real == os.path.join(parent.real, name):  # noqa: PTH118 - a raw name
        return _entered(_Folder(below, real, real_root))
    return _entered(parent.linked(name, real))


def _entered(folder: _Folder) -> _Folder | Entry:
    """Returns the folder, or the reason not to enter it."""
    if folder.is_loop():
        return Entry(folder.path, "a link to a folder that contains it", folder=True, harmless=True)
    if is_packed(folder.real):
        return Entry(folder.path, "a packed dataset", folder=True, harmless=True)
    return folder


def _judged(
    root: str | os.PathLike[str], folder: _Folder, entry: os.DirEntry[str]
) -> _Folder | Entry:
    """Returns a folder to enter, or a file."""
    if entry.is_dir(follow_symlinks=False):
        return _entered(folder.inner(entry.name))
    path = folder.path_of(entry.name)
    if entry.is_file(follow_symlinks=False):
        return Entry(path)
    try:
        real = resolve_inside(root, folder.inner(entry.name).real)  # not the links before it again
        mode = os.stat(real).st_mode  # noqa: PTH116 - a string from realpath
    except BadImage as error:
        return Entry(path, error.why, folder=os.path.isdir(entry))  # noqa: PTH112 - never raises
    except OSError as error:
        return Entry(path, _reason(error))
    if stat.S_ISDIR(mode):
        return _entered(folder.linked(entry.name, real))
    return Entry(path, "" if stat.S_ISREG(mode) else _expected_regular(mode))


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
