"""Finds values in stored (binary) JSON documents, in many documents at once.

All numbers of the form are big-endian; a document is a container:

    container   u32: kind in the upper 3 bits, number of values in the other 29
                  0x80000000 array    0x40000000 object    0x20000000 one scalar (no number of values)
    entries     u32 for each value: kind and length; in an object first all keys, then all values
                  0x00000000 null    0x10000000 string    0x20000000 number
                  0x30000000 false   0x40000000 true      0x50000000 container
                the kind is in bits 28 to 30, the length in the 28 below
    data        the bytes of keys and values in the order of the entries; strings in UTF-8, containers as here

Keys of objects ascend by their bytes and are unique. A number starts with a byte for its kind:
0x00 zero (alone), 0x10 NaN, 0x20 and 0x30 the infinities (alone), 0x40 signed, 0x50 unsigned, both in 1, 2, 4
or 8 bytes, 0x60 a double, 0x70 a decimal: 8, 16 or 32 bytes and one with the number of its fractional digits.
Example: `{"a":7}` is 40000001 | 10000001 20000002 | 61 | 50 07. (Lance table format, JSON columns.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.buffers import expand_ranges
from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.errors import FormatError, UnsupportedFormatError

ARRAY, OBJECT, SCALAR = 0x80000000, 0x40000000, 0x20000000
NULL, STRING, NUMBER, FALSE, TRUE, CONTAINER = range(6)
MISSING = 255
_COUNT = 0x1FFFFFFF
_LENGTH = 0x0FFFFFFF


@dataclass(frozen=True)
class JsonValues:
    """Values at any depth in documents; `MISSING` where there is no value.

    Attributes:
        data: the bytes of all documents.
        kinds: kind of each value.
        starts: start of each value's bytes.
        lengths: number of each value's bytes.
    """

    data: npt.NDArray[np.uint8]
    kinds: npt.NDArray[np.uint8]
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.kinds)

    @classmethod
    def of(cls, documents: pa.Array) -> JsonValues:
        """Return the outermost values of stored documents, given as a binary array. Nulls are missing.

        Raises:
            FormatError: the bytes of a document are damaged.
        """
        documents = documents.cast(pa.large_binary())
        _, offsets_buffer, data_buffer = documents.buffers()
        offsets = np.frombuffer(offsets_buffer or b"", np.int64)[documents.offset :][: len(documents) + 1]
        data = np.frombuffer(data_buffer or b"", np.uint8)
        there = np.asarray(documents.is_valid().to_numpy(zero_copy_only=False), np.bool_)
        starts = offsets[:-1] if len(documents) else np.empty(0, np.int64)
        lengths = np.diff(offsets) if len(documents) else np.empty(0, np.int64)
        kinds = np.where(there, CONTAINER, MISSING).astype(np.uint8)
        values = cls(data, kinds, starts.copy(), lengths)
        return values._unwrap_scalars(np.flatnonzero(there))

    def _unwrap_scalars(self, places: Ints) -> JsonValues:
        """Return the values with scalar containers at the given positions replaced by their scalars."""
        kinds, starts, lengths = self.kinds.copy(), self.starts.copy(), self.lengths.copy()
        headers = self.take(places)._numbers_at(starts[places])
        scalars = places[(headers & ~np.int64(_COUNT)) == SCALAR]
        if len(scalars):
            entries = self.take(scalars)._numbers_at(starts[scalars] + 4)
            kinds[scalars] = entries >> 28
            if bool(((entries & _LENGTH) > lengths[scalars] - 8).any()):
                raise FormatError("a JSON value is longer than the bytes of its document")
            lengths[scalars] = entries & _LENGTH
            starts[scalars] += 8
        return JsonValues(self.data, kinds, starts, lengths)

    def take(self, places: npt.NDArray[Any]) -> JsonValues:
        """Return the values at the given positions."""
        return JsonValues(self.data, self.kinds[places], self.starts[places], self.lengths[places])

    def joined(self, other: JsonValues) -> JsonValues:
        """Return these values followed by other values of the same documents."""
        return JsonValues(
            self.data,
            np.concatenate([self.kinds, other.kinds]),
            np.concatenate([self.starts, other.starts]),
            np.concatenate([self.lengths, other.lengths]),
        )

    def _numbers_at(self, positions: Ints) -> Ints:
        """Return a 32-bit number for each value, after checking that it is within the value's bytes."""
        if bool((positions + 4 > self.starts + self.lengths).any()):
            raise FormatError("a JSON container ends within its header")
        return big_endian(self.data, positions)

    def headers(self) -> tuple[Ints, Ints]:
        """Return the kind and the number of values of each container; both are 0 for other values.

        Raises:
            FormatError, UnsupportedFormatError: a container is damaged, or of an unknown kind.
        """
        kinds, counts = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        places = np.flatnonzero(self.kinds == CONTAINER)
        inner = self.take(places)
        headers = inner._numbers_at(inner.starts)
        kinds[places], counts[places] = headers & ~np.int64(_COUNT), headers & _COUNT
        strange = ~np.isin(kinds[places], (ARRAY, OBJECT))
        if bool(strange.any()):
            kind = int(kinds[places][strange][0]) >> 29
            raise UnsupportedFormatError(f"a JSON container of kind {kind}")
        return kinds, counts

    def children(self, kind: int | None = None) -> Children:
        """Return the direct children of arrays and objects, or only of one kind, in their order.

        Raises:
            FormatError, UnsupportedFormatError: a container is damaged, or of an unknown kind.
        """
        kinds, counts = self.headers()
        indices = np.flatnonzero(kinds if kind is None else kinds == kind)
        counts, is_object = counts[indices], kinds[indices] == OBJECT
        starts, ends = self.starts[indices], self.starts[indices] + self.lengths[indices]
        entry_counts = np.where(is_object, 2 * counts, counts)
        if bool((starts + 4 + 4 * entry_counts > ends).any()):
            raise FormatError("a JSON container has fewer bytes than values")
        firsts = np.cumsum(entry_counts) - entry_counts
        ranks = expand_ranges(np.zeros(len(indices), np.int64), entry_counts)
        entries = big_endian(self.data, np.repeat(starts + 4, entry_counts) + 4 * ranks)
        lengths = entries & _LENGTH
        sums = np.concatenate([[0], np.cumsum(lengths)])
        before = sums[:-1] - np.repeat(sums[firsts], entry_counts)
        data_starts = starts + 4 + 4 * entry_counts
        if bool((data_starts + sums[firsts + entry_counts] - sums[firsts] > ends).any()):
            raise FormatError("the values of a JSON container are longer than its bytes")
        places = np.repeat(data_starts, entry_counts) + before
        # In an object, the key entries precede the value entries.
        key_of = np.repeat(np.where(is_object, counts, 0), entry_counts)
        values = np.flatnonzero(ranks >= key_of)
        keys = values - key_of[values]
        of_object = np.repeat(is_object, entry_counts)[values]
        kinds_of = (entries >> 28).astype(np.uint8)
        if bool((kinds_of[keys[of_object]] != STRING).any()):
            raise FormatError("a key of a JSON object is not a string")
        return Children(
            values=JsonValues(self.data, kinds_of[values], places[values], lengths[values]),
            owners=np.repeat(indices, counts),
            ranks=expand_ranges(np.zeros(len(indices), np.int64), counts),
            counts=counts,
            keys=JsonValues(
                self.data,
                np.where(of_object, np.uint8(STRING), np.uint8(MISSING)),
                places[keys],
                np.where(of_object, lengths[keys], 0),
            ),
        )

    def contiguous_bytes(self) -> tuple[Ints, npt.NDArray[np.uint8]]:
        """Return the contiguous bytes of all values, the start of each value, and the end of the last one."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths)])
        return offsets, self.data[expand_ranges(self.starts, self.lengths)]

    def equal_bytes(self, text: bytes) -> Bools:
        """Return which values have exactly these bytes."""
        result: Bools = self.lengths == len(text)
        places = np.flatnonzero(result)
        rows = self.data[self.starts[places, None] + np.arange(len(text))]
        result[places] = (rows == np.frombuffer(text, np.uint8)).all(axis=1)
        return result

    def documents(self) -> pa.Array:
        """Return the values as separate documents; null where missing."""
        inner = self.kinds == CONTAINER
        there = self.kinds != MISSING
        head = np.where(there & ~inner, 8, 0)
        sizes = np.where(there, self.lengths + head, 0)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        out = np.empty(int(offsets[-1]), np.uint8)
        scalars = np.flatnonzero(head)
        words = np.empty((len(scalars), 2), ">u4")
        words[:, 0] = SCALAR
        words[:, 1] = (self.kinds[scalars].astype(np.int64) << 28) | self.lengths[scalars]
        out[offsets[scalars][:, None] + np.arange(8)] = words.view(np.uint8).reshape(-1, 8)
        lengths = np.where(there, self.lengths, 0)
        out[expand_ranges(offsets[:-1] + head, lengths)] = self.data[expand_ranges(self.starts, lengths)]
        validity = None if bool(there.all()) else pa.array(there).buffers()[1]
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
        return pa.Array.from_buffers(pa.large_binary(), len(self), buffers)


@dataclass(frozen=True)
class Children:
    """The children of containers.

    Attributes:
        values: children of the first container, of the second, ...
        owners: index of each child's container in the parent values.
        ranks: position of each child in its container.
        counts: number of children of each parent value; only arrays and objects have any.
        keys: names of the children of objects, as strings; missing for children of arrays.
    """

    values: JsonValues
    owners: Ints
    ranks: Ints
    counts: Ints
    keys: JsonValues


def big_endian(data: npt.NDArray[np.uint8], positions: Ints) -> Ints:
    """Return the 32-bit numbers at the given positions."""
    rows = data[positions[:, None] + np.arange(4)]
    numbers: Ints = rows.view(">u4").reshape(-1).astype(np.int64)
    return numbers
