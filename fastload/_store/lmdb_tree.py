"""Writes the pages of a new shard: LMDB's B+ tree over a sorted set of records, in one pass.

LMDB itself rewrites pages because later records may change them. Here the records arrive sorted by
id and never change, so every page is final when it is created. The writer hashes each page on its
way to the disk and neither copies a byte twice nor reads it back. docs/FORMAT.md describes the
result; LMDB and native/shard/shard_map.cpp read it.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Callable, Sequence

from fastload._common.checksum import Bytes

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
_NODE = struct.Struct("<HHHH8s")  # value length (low half, high half), flags, key length, key
# Page size or 0, flags, depth, number of branch, leaf and overflow pages, entries, root page.
_DATABASE = struct.Struct("<IHHQQQQQ")
_ROOM = PAGE - _PAGE_HEADER.size
_POINTER = _NODE.size + 8  # bytes of a node whose value is on overflow pages
_MAX_INLINE = 2038  # bytes of a node: LMDB requires that two fit on a page
_FAN_OUT = _ROOM // (_NODE.size + 2)  # children of a branch page
_ZEROS = memoryview(bytes(PAGE))


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

    def end(self) -> None:
        """Writes the deferred leaves, then the branch pages bottom-up to the root."""
        self._write_leaf()
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
