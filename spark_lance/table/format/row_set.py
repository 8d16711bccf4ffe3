"""Row addresses, and row sets by fragment: results of indexes, and rows that a scan reads or deletes.

Scalar indexes store a row set as a Roaring bitmap for each fragment:

    u32 number of fragments
    per fragment, by ascending id:  u32 fragment id, u32 size, a portable 32-bit Roaring bitmap of that size

Each row is a row address: the fragment id is the upper half, the physical offset is the lower half. In tables
with stable row ids, the ids are split in the same way. Size 0 means every row of the fragment. Numbers are
little-endian. (Lance index format, row address tree map. It differs from the 64-bit Roaring format.)

A row address is `fragment id << 32 | physical row`, uint64. Stable row ids are plain numbers: use functions
that split or group addresses only for addresses.
"""

from __future__ import annotations

import struct
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from spark_lance.errors import FormatError

Addresses = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.uint32]

_BITS = 32
_SHIFT = np.uint64(_BITS)
# The maximum number of rows in a fragment.
FRAGMENT_ROWS = 1 << _BITS


def row_address(fragment: int, offset: int) -> int:
    """Return the address of one row."""
    return fragment << _BITS | offset


def split_address(address: int) -> tuple[int, int]:
    """Return the fragment and the physical row of one address."""
    return address >> _BITS, address & (FRAGMENT_ROWS - 1)


def row_addresses(fragment: int, offsets: npt.NDArray[np.integer[Any]]) -> Addresses:
    """Return the addresses of physical rows of a fragment."""
    addresses: Addresses = offsets.astype(np.uint64) | np.uint64(fragment << _BITS)
    return addresses


def address_fragments(addresses: Addresses) -> Addresses:
    """Return the fragment of each address."""
    fragments: Addresses = addresses >> _SHIFT
    return fragments


def address_offsets(addresses: Addresses) -> Offsets:
    """Return the physical row of each address."""
    return addresses.astype(np.uint32)


def runs_by_fragment(addresses: Addresses) -> Iterator[tuple[int, slice]]:
    """Yield (fragment, slice) for each run of addresses in the same fragment."""
    fragments = address_fragments(addresses)
    bounds = [0, *(np.flatnonzero(np.diff(fragments)) + 1).tolist(), len(fragments)]
    for start, stop in pairwise(bounds):
        if stop > start:
            yield int(fragments[start]), slice(start, stop)


_COUNT = struct.Struct("<I")
_ENTRY = struct.Struct("<II")


class RowSet(Mapping[int, BitMap | None]):
    """Rows by fragment: fragment id -> physical offsets, or None for every row of the fragment.

    `|`, `&` and `-` return new sets. A set is immutable; callers must not change its bitmaps.

    Args:
        rows: the offsets by fragment.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Mapping[int, BitMap | None] | None = None) -> None:
        self._rows: dict[int, BitMap | None] = {} if rows is None else dict(rows)

    @classmethod
    def from_addresses(cls, addresses: Addresses) -> RowSet:
        """Return the rows of addresses (uint64, in any order), with ascending fragments."""
        ordered = np.sort(addresses)
        offsets = address_offsets(ordered)
        return cls({fragment: BitMap(offsets[run]) for fragment, run in runs_by_fragment(ordered)})

    @classmethod
    def from_offsets(cls, rows: Mapping[int, npt.NDArray[Any]]) -> RowSet:
        """Return the rows of a mapping from fragment to an array of offsets, in the order of the mapping."""
        return cls({fragment: BitMap(offsets.astype(np.uint32)) for fragment, offsets in rows.items()})

    @classmethod
    def from_ranges(cls, ranges: Iterable[tuple[int, int, int]]) -> RowSet:
        """Return the rows of ranges, each a fragment, its first offset and a number of rows."""
        rows: dict[int, BitMap] = {}
        for fragment, start, count in ranges:
            rows.setdefault(fragment, BitMap()).add_range(start, start + count)
        return cls(rows)

    @classmethod
    def from_fragments(cls, fragments: Iterable[int]) -> RowSet:
        """Return every row of the given fragments."""
        return cls(dict.fromkeys(fragments))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> RowSet:
        """Return the row set of stored bytes.

        Raises:
            FormatError: the bytes are damaged.
        """
        view = memoryview(data)
        rows: dict[int, BitMap | None] = {}
        try:
            (count,) = _COUNT.unpack_from(view)
            position = _COUNT.size
            for _ in range(count):
                fragment, size = _ENTRY.unpack_from(view, position)
                position += _ENTRY.size
                if position + size > len(view):
                    raise FormatError(f"a set of rows ends before fragment {fragment} does")
                rows[fragment] = BitMap.deserialize(bytes(view[position : position + size])) if size else None
                position += size
        except (struct.error, ValueError, IndexError) as error:
            raise FormatError(f"undecodable set of rows: {error}") from error
        return cls(rows)

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        parts = [_COUNT.pack(len(self._rows))]
        for fragment in sorted(self._rows):
            offsets = self._rows[fragment]
            data = b"" if offsets is None else offsets.serialize()
            parts += [_ENTRY.pack(fragment, len(data)), data]
        return b"".join(parts)

    def __getitem__(self, fragment: int) -> BitMap | None:
        return self._rows[fragment]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        """Return the number of fragments, including fragments without rows."""
        return len(self._rows)

    def __contains__(self, fragment: object) -> bool:
        return fragment in self._rows

    def items(self) -> ItemsView[int, BitMap | None]:
        """Return fragments and their rows."""
        return self._rows.items()

    def __repr__(self) -> str:
        sizes = {
            fragment: "all" if rows is None else len(rows) for fragment, rows in list(self._rows.items())[:5]
        }
        return f"RowSet({len(self)} fragments, such as {sizes})"

    def __or__(self, other: RowSet) -> RowSet:
        """Return the rows of either set."""
        if not (self._rows and other._rows):
            return other if other._rows else self
        result = dict(self._rows)
        for fragment, rows in other._rows.items():
            own_rows = result.get(fragment, rows)
            if fragment in result:
                result[fragment] = None if own_rows is None or rows is None else own_rows | rows
            else:
                result[fragment] = rows
        return RowSet(result)

    def __and__(self, other: RowSet) -> RowSet:
        """Return the rows of both sets."""
        result: dict[int, BitMap | None] = {}
        for fragment in self._rows:
            if fragment in other._rows:
                a, b = self._rows[fragment], other._rows[fragment]
                result[fragment] = b if a is None else a if b is None else a & b
        return RowSet(result)

    def __sub__(self, other: RowSet) -> RowSet:
        """Return the rows of this set that are not in the other.

        Raises:
            ValueError: this set has every row of a fragment, and `other` has some of them; see `with_sizes`.
        """
        result: dict[int, BitMap | None] = {}
        for fragment, rows in self._rows.items():
            removed = other._rows.get(fragment, BitMap())
            if removed is None:
                continue
            if rows is None and removed:
                raise ValueError(f"the number of rows of fragment {fragment} is not known")
            result[fragment] = rows if rows is None else rows - removed
        return RowSet(result)

    def with_sizes(self, sizes: Mapping[int, int]) -> RowSet:
        """Return the same rows with explicit offsets for whole fragments.

        Args:
            sizes: fragment id -> number of physical rows, for the fragments that this set has as a whole.
        """
        return RowSet(
            {
                fragment: BitMap(range(sizes[fragment])) if rows is None else rows
                for fragment, rows in self._rows.items()
            }
        )

    def select_fragments(self, fragments: Iterable[int]) -> RowSet:
        """Return the rows of the given fragments, in the given order."""
        return RowSet({fragment: self._rows[fragment] for fragment in fragments if fragment in self._rows})

    @property
    def bitmaps(self) -> dict[int, BitMap]:
        """The rows by fragment, without fragments that this set has as a whole."""
        return {fragment: rows for fragment, rows in self._rows.items() if rows is not None}

    @property
    def num_rows(self) -> int:
        """The number of rows.

        Raises:
            ValueError: the set has a fragment as a whole.
        """
        return sum(len(self._bitmap(fragment)) for fragment in self._rows)

    def offsets(self, fragment: int) -> Offsets:
        """Return the offsets of the rows of a fragment: uint32, ascending.

        Raises:
            ValueError: the set has the fragment as a whole.
        """
        return np.asarray(self._bitmap(fragment).to_array(), np.uint32)

    def offsets_by_fragment(self) -> dict[int, Offsets]:
        """Return fragment -> offsets of its rows; see `offsets`."""
        return {fragment: self.offsets(fragment) for fragment in self._rows}

    def addresses(self) -> Addresses:
        """Return the addresses of the rows (uint64), in the order of the fragments.

        Raises:
            ValueError: the set has a fragment as a whole.
        """
        parts = [row_addresses(fragment, self.offsets(fragment)) for fragment in self._rows]
        return np.concatenate([np.empty(0, np.uint64), *parts])

    def mask(self, addresses: Addresses) -> npt.NDArray[np.bool_]:
        """Return a boolean mask of the addresses that are in the set."""
        result = np.zeros(len(addresses), np.bool_)
        fragment_ids, offsets = address_fragments(addresses), address_offsets(addresses)
        for fragment in np.unique(fragment_ids).tolist():
            rows = self._rows.get(fragment, BitMap())
            positions = np.flatnonzero(fragment_ids == fragment)
            if rows is None:
                result[positions] = True
            elif rows:
                result[positions] = np.isin(
                    offsets[positions], np.array(rows & BitMap(offsets[positions]), np.uint32)
                )
        return result

    def _bitmap(self, fragment: int) -> BitMap:
        rows = self._rows[fragment]
        if rows is None:
            raise ValueError(f"the number of rows of fragment {fragment} is not known")
        return rows
