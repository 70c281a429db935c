"""LMDB's B+ tree over the records of a shard: ``TreePages`` writes it, ``TreeFile`` reads it.

LMDB itself rewrites pages because later records may change them. Here the records arrive sorted by
id and never change, so every page is final when it is created. The writer hashes each page on its
way to the disk and neither copies a byte twice nor reads it back. docs/FORMAT.md describes the
result; LMDB and native/shard/shard_file.cpp read it.

LMDB trusts its pages, so a tree that points outside the file crashes a process that reads it with
LMDB. Both readers of fastload check every step and use pread(2): a map of a file that is truncated
kills the process (SIGBUS), and mapped bytes may change after they were checked.
"""

from __future__ import annotations

import itertools
import os
import struct
import weakref
from array import array
from collections.abc import Callable, Iterator, Sequence

from fastload._common.checksum import Bytes
from fastload._store.record import RecordHeader
from fastload.errors import RecordError

PAGE = 4096
META_BYTES = 2 * PAGE  # first bytes of the file: LMDB reads them first, the writer knows them last
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1
_BRANCH = 1
_LEAF = 2
_OVERFLOW = 4
_META = 8
_BIG_DATA = 1  # flag of a node whose value is on overflow pages
_INTEGER_KEYS = 8  # flag of LMDB's list of free pages, which is empty in a shard
_NO_PAGE = (1 << 64) - 1
_PAGE_HEADER = struct.Struct("<QHHHH")  # number, 0, kind, end of the offsets, start of the nodes
_OVERFLOW_HEADER = struct.Struct("<QHHI")  # number, 0, kind, number of pages
_NODE_HEADER = struct.Struct("<HHHH")  # value length (low half, high half), flags, key length
_NODE = struct.Struct("<HHHH8s")  # the same, and the key
# Page size or 0, flags, depth, number of branch, leaf and overflow pages, entries, root page.
_DATABASE = struct.Struct("<IHHQQQQQ")
_ROOM = PAGE - _PAGE_HEADER.size
_POINTER = _NODE.size + 8  # bytes of a node whose value is on overflow pages
_MAX_INLINE = 2038  # bytes of a node: LMDB requires that two fit on a page
_FAN_OUT = _ROOM // (_NODE.size + 2)  # children of a branch page
_ZEROS = memoryview(bytes(PAGE))
_MAX_DEPTH = 32
_MAX_VALUE = 64 << 20  # bytes: the limit of a record
_MISSING = "the record is missing"
_DAMAGED = "a tree page of the shard is damaged"


class TreePages:
    """Passes each page except the first two to ``write``, in file order, once it is full."""

    def __init__(self, write: Callable[[Bytes], object]) -> None:
        self._write = write
        self.pages = META_BYTES // PAGE  # written so far
        self.entries = 0
        self._leaf: list[bytes] = []  # nodes of the current leaf
        self._room = _ROOM  # free bytes on the current leaf
        self._inline = False  # the current leaf holds a whole record
        # (index among all leaves, nodes) of the leaves that `end` writes.
        self._deferred: list[tuple[int, bytes]] = []
        self._firsts = array("Q")  # first id of each leaf
        self._numbers = array("Q")  # page number of each leaf
        self._n_leaves = self._n_branches = self._n_overflow = 0
        self._depth = 0
        self._root = _NO_PAGE

    def add(self, sample_id: int, value: Bytes) -> None:
        """Adds a record; its id must be larger than all previous ones."""
        size = len(value)
        key = sample_id.to_bytes(8, "big")
        inline = _NODE.size + size <= _MAX_INLINE
        if inline:
            node = _NODE.pack(size, 0, 0, len(key), key) + value
        else:
            node = _NODE.pack(size & 0xFFFF, size >> 16, _BIG_DATA, len(key), key) + struct.pack(
                "<Q", self._write_value(value)
            )
        node += b"\0" * (len(node) & 1)
        if len(node) + 2 > self._room:
            self._write_leaf()
        if not self._leaf:
            self._firsts.append(sample_id)
        self._leaf.append(node)
        self._inline |= inline
        self._room -= len(node) + 2
        self.entries += 1

    @property
    def n_bytes(self) -> int:
        """Size of all pages so far, deferred leaves included, branch pages not included."""
        return (self.pages + len(self._deferred)) * PAGE

    def end_records(self) -> None:
        """Writes the last page that holds records. ``end`` writes only pages without records."""
        self._write_leaf()

    def end(self) -> None:
        """Writes the deferred leaves, then the branch pages bottom-up to the root."""
        for place, nodes in self._deferred:
            self._numbers[place] = self._write_nodes(
                _LEAF, [nodes[at : at + _POINTER] for at in range(0, len(nodes), _POINTER)]
            )
        self._n_leaves = len(self._numbers)
        self._depth = 1
        while len(self._numbers) > 1:
            self._firsts, self._numbers = self._write_branches(self._firsts, self._numbers)
            self._n_branches += len(self._numbers)
            self._depth += 1
        self._root = self._numbers[0]

    def meta(self) -> bytes:
        """Returns the first two pages; call it after ``end``.

        Both have the same contents. LMDB uses the one with the higher transaction number.
        """
        free = _DATABASE.pack(PAGE, _INTEGER_KEYS, 0, 0, 0, 0, 0, _NO_PAGE)
        main = _DATABASE.pack(
            0,
            0,
            self._depth,
            self._n_branches,
            self._n_leaves,
            self._n_overflow,
            self.entries,
            self._root,
        )
        pages = []
        for number in range(2):
            begin = _PAGE_HEADER.pack(number, 0, _META, 0, 0) + struct.pack(
                "<IIQQ", _MAGIC, _DATA_VERSION, 0, self.pages * PAGE
            )
            pages.append(
                (begin + free + main + struct.pack("<QQ", self.pages - 1, number)).ljust(
                    PAGE, b"\0"
                )
            )
        return b"".join(pages)

    def _write_value(self, value: Bytes) -> int:
        """Writes a value to overflow pages; returns the number of the first."""
        number = self.pages
        n_bytes = _OVERFLOW_HEADER.size + len(value)
        count = -(-n_bytes // PAGE)
        self._write(_OVERFLOW_HEADER.pack(number, 0, _OVERFLOW, count))
        self._write(value)
        self._write(_ZEROS[: count * PAGE - n_bytes])
        self.pages += count
        self._n_overflow += count
        return number

    def _write_leaf(self) -> None:
        """Writes the current leaf if it holds records, otherwise defers it to ``end``.

        Leaves with pointers only are stored together. A reader gets all of them with one read and
        does not wait for the disk to find the next record.
        """
        if self._inline:
            self._numbers.append(self._write_nodes(_LEAF, self._leaf))
        else:
            self._deferred.append((len(self._numbers), b"".join(self._leaf)))
            self._numbers.append(0)
        self._leaf = []
        self._room = _ROOM
        self._inline = False

    def _write_branches(
        self, firsts: array[int], numbers: array[int]
    ) -> tuple[array[int], array[int]]:
        """Writes the branch pages above these pages; returns their first ids and page numbers.

        Children are spread evenly because LMDB does not accept a branch with a single child.
        """
        count = -(-len(numbers) // _FAN_OUT)
        bounds = [len(numbers) * i // count for i in range(count + 1)]
        above = array("Q")
        for begin, end in itertools.pairwise(bounds):
            children = zip(firsts[begin:end], numbers[begin:end], strict=True)
            above.append(self._write_nodes(_BRANCH, [_child(*each) for each in children]))
        return array("Q", [firsts[begin] for begin in bounds[:-1]]), above

    def _write_nodes(self, kind: int, nodes: Sequence[bytes]) -> int:
        """Writes a page: header, node offsets, free space, nodes in reverse order."""
        offsets = [PAGE - size for size in itertools.accumulate(map(len, nodes))]
        end = _PAGE_HEADER.size + 2 * len(offsets)
        self._write(
            _PAGE_HEADER.pack(self.pages, 0, kind, end, offsets[-1])
            + struct.pack(f"<{len(offsets)}H", *offsets)
            + bytes(offsets[-1] - end)
            + b"".join(reversed(nodes))
        )
        self.pages += 1
        return self.pages - 1


def _child(first: int, page: int) -> bytes:
    return _NODE.pack(page & 0xFFFF, page >> 16 & 0xFFFF, page >> 32, 8, first.to_bytes(8, "big"))


def unfinished_records(descriptor: int, first_key: int) -> Iterator[tuple[int, int]]:
    """Yields offset and size of each record of a file that ``TreePages`` has not ended.

    Starts with the record ``first_key`` and ends before the first record that is not in the file.
    Checks no record: the caller has to.
    """
    found: dict[int, tuple[int, int]] = {}  # large records are written before small ones of a leaf
    number = META_BYTES // PAGE
    while len(found) < _ROOM:  # more than a leaf holds
        start = number * PAGE
        page = os.pread(descriptor, PAGE, start)
        if len(page) < PAGE:
            return
        stated, _, kind, count = _OVERFLOW_HEADER.unpack_from(page)
        if stated != number:
            return
        try:
            if kind == _OVERFLOW:
                header = RecordHeader.parse(page[_OVERFLOW_HEADER.size :])
                found[header.sample_id] = (start + _OVERFLOW_HEADER.size, header.length)
                number += max(1, count)
            elif kind == _LEAF:
                found.update(_inline_records(page, start))
                number += 1
            else:
                return
        except (KeyError, RecordError, struct.error):
            return
        while first_key in found:
            offset, size = found.pop(first_key)
            if not 0 < size <= _MAX_VALUE:
                return
            yield offset, size
            first_key += 1


def _inline_records(page: bytes, start: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields key, offset and size of the records on a leaf that begins at ``start`` of the file."""
    end = _PAGE_HEADER.unpack_from(page)[3]
    for (offset,) in struct.iter_unpack("<H", page[_PAGE_HEADER.size : end]):
        (low_half, high_half, flags), key = _node(page, offset)
        if not flags & _BIG_DATA:
            place = (start + offset + _NODE.size, low_half | high_half << 16)
            yield int.from_bytes(key, "big"), place


class TreeFile:
    """Reads a shard without the native core, with the same checks and messages.

    Duplicates the descriptor. Raises RuntimeError if the file is not a shard; ``find`` and ``read``
    raise KeyError with the reason.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        if size < META_BYTES:
            raise RuntimeError(f"not an LMDB file: only {size} bytes")
        self._size = size
        self.descriptor = os.dup(descriptor)
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        try:
            newest, other = (self._meta(number) for number in range(2))
        except KeyError as error:
            raise RuntimeError(str(error.args[0])) from None
        if newest is None:
            raise RuntimeError("not an LMDB file: no meta page at its start")
        if newest[0] != PAGE:
            raise RuntimeError(f"LMDB page size is {newest[0]}, expected {PAGE}")
        if other is not None and other[-1] > newest[-1]:
            newest = other
        _, self.entries, self._root, _ = newest

    def find(self, sample_id: int) -> tuple[int, int]:
        """Returns offset and size of the record of a sample."""
        key = sample_id.to_bytes(8, "big")
        number = self._root
        if number == _NO_PAGE:
            raise KeyError(_MISSING)
        for _ in range(_MAX_DEPTH):
            page, leaf, offsets = self._page(number)
            low = 0 if leaf else 1  # the first key of a branch page counts as the lowest
            high = len(offsets)
            while low < high:
                middle = (low + high) // 2
                if _node(page, offsets[middle])[1] <= key:
                    low = middle + 1
                else:
                    high = middle
            index = max(low - 1, 0)
            offset = offsets[index]
            # LMDB stores no key in the first node of a branch page.
            (low_half, high_half, flags), found = _node(
                page, offset, keyless=not leaf and not index
            )
            if not leaf:
                number = low_half | high_half << 16 | flags << 32
            elif found != key:
                raise KeyError(_MISSING)
            else:
                return self._value(
                    number * PAGE + offset, page[offset:], low_half | high_half << 16, flags
                )
        raise KeyError(_DAMAGED)

    def read(self, sample_id: int) -> bytes:
        """Returns the unchecked bytes of a record."""
        return self._read(*self.find(sample_id))

    def _value(self, position: int, node: bytes, size: int, flags: int) -> tuple[int, int]:
        if not 0 < size <= _MAX_VALUE:
            raise KeyError(_DAMAGED)
        if not flags & _BIG_DATA:
            if _NODE.size + size > len(node):
                raise KeyError(_DAMAGED)
            return position + _NODE.size, size
        if len(node) < _POINTER:
            raise KeyError(_DAMAGED)
        (first,) = struct.unpack_from("<Q", node, _NODE.size)
        offset = first * PAGE + _OVERFLOW_HEADER.size
        if offset + size > self._size:
            raise KeyError(_DAMAGED)
        return offset, size

    def _page(self, number: int) -> tuple[bytes, bool, tuple[int, ...]]:
        """Returns the bytes of a tree page, whether it is a leaf, and the offsets of its nodes."""
        if number >= self._size // PAGE:
            raise KeyError(_DAMAGED)
        page = self._read(number * PAGE, PAGE)
        stated, _, kind, end, _ = _PAGE_HEADER.unpack_from(page)
        n_keys = (end - _PAGE_HEADER.size) // 2
        if (
            stated != number
            or end > PAGE
            or n_keys < 1
            or bool(kind & _LEAF) == bool(kind & _BRANCH)
            or kind & (_OVERFLOW | _META)
        ):
            raise KeyError(_DAMAGED)
        offsets = struct.unpack_from(f"<{n_keys}H", page, _PAGE_HEADER.size)
        return page, bool(kind & _LEAF), offsets

    def _meta(self, number: int) -> tuple[int, int, int, int] | None:
        """Returns page size, entries, root page and transaction; None if it is no meta page."""
        page = self._read(number * PAGE, PAGE)
        _, _, kind, _, _ = _PAGE_HEADER.unpack_from(page)
        magic, version = struct.unpack_from("<II", page, _PAGE_HEADER.size)
        if not kind & _META or (magic, version) != (_MAGIC, _DATA_VERSION):
            return None
        free = _PAGE_HEADER.size + 24
        main = free + _DATABASE.size
        entries, root = _DATABASE.unpack_from(page, main)[-2:]
        (transaction,) = struct.unpack_from("<Q", page, main + _DATABASE.size + 8)
        return _DATABASE.unpack_from(page, free)[0], entries, root, transaction

    def _read(self, offset: int, size: int) -> bytes:
        try:
            data = os.pread(self.descriptor, size, offset)
        except OSError as error:
            raise KeyError(f"cannot be read: {error.strerror}") from None
        if len(data) < size:
            raise KeyError(
                f"the file ends at byte {offset + len(data)}: it was truncated after it was opened"
            )
        return data


def _node(page: bytes, offset: int, *, keyless: bool = False) -> tuple[tuple[int, int, int], bytes]:
    """Returns the first three numbers of a node, and its key."""
    size = _NODE_HEADER.size if keyless else _NODE.size
    if not _PAGE_HEADER.size <= offset <= PAGE - size:
        raise KeyError(_DAMAGED)
    *numbers, key_length = _NODE_HEADER.unpack_from(page, offset)
    key = page[offset + _NODE_HEADER.size : offset + size]
    if not keyless and key_length != len(key):
        raise KeyError(_DAMAGED)
    return (numbers[0], numbers[1], numbers[2]), key
