"""The pages of a new shard: LMDB's tree over one set of records, laid out once, from front to back.

LMDB itself writes pages again and again, as anything may change until the end. Here the records come in the order of their
ids and nothing changes, so every page is final when it is made: it is digested on its way to the disk, and no byte is
copied twice or read back. docs/FORMAT.md says what the result is; LMDB and native/shard/shard_map.cpp read it.
"""

from __future__ import annotations

import itertools
import struct
from array import array
from collections.abc import Callable, Sequence

PAGE = 4096
META_BYTES = 2 * PAGE  # at the front of the file: what LMDB reads first, known last
_MAGIC = 0xBEEFC0DE
_DATA_VERSION = 1
_BRANCH = 1
_LEAF = 2
_OVERFLOW = 4
_META = 8
_BIG_DATA = 1  # flag of a node whose value has pages of its own
_INTEGER_KEYS = 8  # flag of LMDB's list of free pages, which is empty here
_NO_PAGE = (1 << 64) - 1
_PAGE_HEADER = struct.Struct("<QHHHH")  # number, 0, kind, end of the offsets, begin of the nodes
_OVERFLOW_HEADER = struct.Struct("<QHHI")  # number, 0, kind, pages
_NODE = struct.Struct("<HHHH8s")  # value's length, low and high half; flags; key's length; key
_DATABASE = struct.Struct(
    "<IHHQQQQQ"
)  # page size or 0, flags, depth, branch, leaf and overflow pages, entries, root
_ROOM = PAGE - _PAGE_HEADER.size
_POINTER = _NODE.size + 8  # bytes of a node whose value has pages of its own
_MOST_INLINE = 2038  # bytes of a node: LMDB wants two on a page
_FAN_OUT = _ROOM // (_NODE.size + 2)  # children of a branch page
_ZEROS = memoryview(bytes(PAGE))

Bytes = bytes | bytearray | memoryview


class TreePages:
    """Hands every page but the first two to ``write``, in the order of the file, as soon as it is full."""

    def __init__(self, write: Callable[[Bytes], object]) -> None:
        self._write = write
        self.pages = META_BYTES // PAGE  # so far
        self.entries = 0
        self._leaf: list[bytes] = []  # nodes of the leaf that is open,
        self._room = _ROOM  # and what is free on it
        self._inline = False  # it holds a record itself
        self._later: list[
            tuple[int, bytes]
        ] = []  # leaves still to be written: their place among all, their nodes
        self._firsts = array("Q")  # of the leaves: first id, page
        self._numbers = array("Q")
        self._n_leaves = self._n_branches = self._n_overflow = 0
        self._depth = 0
        self._root = _NO_PAGE

    def add(self, sample_id: int, value: Bytes) -> None:
        """The next record: its id is above all before it."""
        size = len(value)
        key = sample_id.to_bytes(8, "big")
        inline = _NODE.size + size <= _MOST_INLINE
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
        """Of all pages so far, those that come later included; branches are still to come."""
        return (self.pages + len(self._later)) * PAGE

    def end(self) -> None:
        """Writes the leaves that are left, then level by level the branches above, up to the root."""
        self._write_leaf()
        for place, nodes in self._later:
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
        """The first two pages, when all others are there. Twice the same: LMDB takes the one with the higher transaction."""
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
        """Pages of its own for a value; the number of the first."""
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
        """At once where it holds records itself. Leaves that only say where records lie come together at the end: a reader then has all
        of them at one go, and need not wait for the disk when it wants to know what to read next."""
        if self._inline:
            self._numbers.append(self._write_nodes(_LEAF, self._leaf))
        else:
            self._later.append((len(self._numbers), b"".join(self._leaf)))
            self._numbers.append(0)
        self._leaf = []
        self._room = _ROOM
        self._inline = False

    def _write_branches(
        self, firsts: array[int], numbers: array[int]
    ) -> tuple[array[int], array[int]]:
        """One level above these pages, spread evenly: LMDB does not bear a branch with a single child."""
        count = -(-len(numbers) // _FAN_OUT)
        bounds = [len(numbers) * i // count for i in range(count + 1)]
        above = array("Q")
        for begin, end in itertools.pairwise(bounds):
            children = zip(firsts[begin:end], numbers[begin:end], strict=True)
            above.append(self._write_nodes(_BRANCH, [_child(*each) for each in children]))
        return array("Q", [firsts[begin] for begin in bounds[:-1]]), above

    def _write_nodes(self, kind: int, nodes: Sequence[bytes]) -> int:
        """A page of nodes, which stand from its end towards its front; their offsets stand behind the header."""
        begin = PAGE
        offsets = []
        number = self.pages
        for node in nodes:
            begin -= len(node)
            offsets.append(begin)
        end = _PAGE_HEADER.size + 2 * len(offsets)
        self._write(
            _PAGE_HEADER.pack(number, 0, kind, end, begin)
            + struct.pack(f"<{len(offsets)}H", *offsets)
            + bytes(begin - end)
            + b"".join(reversed(nodes))
        )
        self.pages += 1
        return number


def _child(first: int, page: int) -> bytes:
    return _NODE.pack(page & 0xFFFF, page >> 16 & 0xFFFF, page >> 32, 8, first.to_bytes(8, "big"))
