"""Word positions, for phrase queries: the column `_position` next to the posting lists of format 1.

    _position: list<list<large_binary>>    per word, per document of its posting list

A document's list begins with a binary that has the number n of positions, u32. Then, for each 128 positions,
a binary

    u32 first position, u8 width w, 16 w bytes: differences to the previous position, packed as in postings

and, if n is not a multiple of 128, a binary with the remaining positions, u32 each. Positions are ascending.
Dropped words (stop words) count as positions, too. (As pylance writes format 1 with positions.)
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_numpy
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.index.text.postings import BLOCK, pack_numbers, unpack_numbers

_BINARIES = pa.list_(pa.field("item", pa.large_binary()))
POSITIONS = pa.field("_position", pa.list_(pa.field("item", _BINARIES)), False)


def pack_positions(positions: Ints, counts: Ints) -> pa.Array:
    """Encode the positions of documents: one list<large_binary> per document.

    Args:
        positions: positions of all documents, concatenated; ascending in each.
        counts: number of positions of each document, at least 1.
    """
    if len(counts) and int(counts.max()) < BLOCK:
        return _pack_short_lists(positions, counts)
    blocks, left = np.divmod(counts, BLOCK)
    pieces = 1 + blocks + (left > 0)
    ends = np.cumsum(pieces)
    heads = ends - pieces
    sizes = np.zeros(int(ends[-1]) if len(ends) else 0, np.int64)
    sizes[heads] = 4
    sizes[ends[left > 0] - 1] = 4 * left[left > 0]
    starts = np.cumsum(counts) - counts
    packed: dict[int, bytes] = {}
    for document in np.flatnonzero(blocks).tolist():
        for number in range(int(blocks[document])):
            first = int(starts[document]) + BLOCK * number
            part = positions[first : first + BLOCK]
            deltas = np.diff(part, prepend=part[0])
            packed[int(heads[document]) + 1 + number] = struct.pack("<I", part[0]) + pack_numbers(deltas)
    for piece, data in packed.items():
        sizes[piece] = len(data)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    result = np.zeros(int(offsets[-1]), np.uint8)
    _put(result, offsets[heads], counts)
    within = np.arange(len(positions)) - np.repeat(starts, counts)
    rest = within - np.repeat(BLOCK * blocks, counts)
    last = np.repeat(offsets[ends - 1] if len(ends) else starts, counts)
    over = rest >= 0
    _put(result, (last + 4 * rest)[over], positions[over])
    for piece, data in packed.items():
        result[offsets[piece] : offsets[piece + 1]] = np.frombuffer(data, np.uint8)
    binaries = pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(result)]
    )
    lists = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(lists), binaries, type=_BINARIES)


def _pack_short_lists(positions: Ints, counts: Ints) -> pa.Array:
    """Encode the positions of documents that have fewer than 128 positions each, see `pack_positions`."""
    data = np.empty(len(positions) + len(counts), "<u4")
    is_count = np.zeros(len(data), np.bool_)
    is_count[np.cumsum(counts) - counts + np.arange(len(counts))] = True
    data[is_count] = counts
    data[~is_count] = positions
    sizes = np.empty((len(counts), 2), np.int64)
    sizes[:, 0], sizes[:, 1] = 4, 4 * counts
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    binaries = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    lists = np.arange(0, 2 * len(counts) + 1, 2, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(lists), binaries, type=_BINARIES)


def unpack_positions(lists: pa.Array) -> tuple[Ints, Ints]:
    """Decode positions; return the start of each document's positions plus the end, and all (int32).

    Args:
        lists: a list<large_binary> per document.

    Raises:
        FormatError: the bytes are damaged.
    """
    firsts = numbers_to_numpy(lists.offsets).astype(np.int64)
    binaries = lists.values
    if lists.null_count or binaries.null_count:
        raise FormatError("positions of words that are null")
    pieces = np.diff(firsts)
    _, bounds_buffer, data_buffer = binaries.buffers()
    if not len(lists):
        return np.zeros(1, np.int64), np.empty(0, np.int32)
    bounds = np.frombuffer(bounds_buffer, np.int64)[binaries.offset : binaries.offset + len(binaries) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    heads = firsts[:-1]
    if not (pieces > 0).all() or not (bounds[heads + 1] - bounds[heads] == 4).all():
        raise FormatError("positions of words do not begin with their number")
    counts = _numbers(data, bounds[heads])
    blocks, left = np.divmod(counts, BLOCK)
    tails = np.flatnonzero(left)
    ends = firsts[1:]
    sizes = bounds[ends] - bounds[ends - 1]
    if not (pieces == 1 + blocks + (left > 0)).all() or not (sizes[tails] == 4 * left[tails]).all():
        raise FormatError("positions of words are not as many as they say")
    starts = np.concatenate([[0], np.cumsum(counts)])
    result = np.empty(int(starts[-1]), np.int64)
    within = np.arange(int(left.sum())) - np.repeat(np.cumsum(left) - left, left)
    result[np.repeat(starts[1:] - left, left) + within] = _numbers(
        data, np.repeat(bounds[ends - 1], left) + 4 * within
    )
    for document in np.flatnonzero(blocks).tolist():
        for number in range(int(blocks[document])):
            piece = int(heads[document]) + 1 + number
            values = _unpack_block(data[bounds[piece] : bounds[piece + 1]].tobytes())
            begin = int(starts[document]) + BLOCK * number
            result[begin : begin + BLOCK] = values
    if len(result) and int(result.max()) > np.iinfo(np.int32).max:
        raise FormatError("a position of a word beyond 2^31")
    return starts, result.astype(np.int32)


def _unpack_block(data: bytes) -> Ints:
    """Return the 128 positions of a full block."""
    if len(data) < 5 or data[4] > 32 or len(data) != 5 + 16 * data[4]:
        raise FormatError("a block of positions that is too short or too long")
    deltas = unpack_numbers({data[4]: [(0, data[5:])]}, 1)[0]
    result: Ints = struct.unpack_from("<I", data)[0] + np.cumsum(deltas)
    return result


def _numbers(data: npt.NDArray[np.uint8], places: Ints) -> Ints:
    """Return the u32 numbers at the given byte offsets."""
    parts = data[places[:, None] + np.arange(4)]
    result: Ints = np.ascontiguousarray(parts).view("<u4").reshape(-1).astype(np.int64)
    return result


def _put(target: npt.NDArray[np.uint8], places: Ints, numbers: Ints) -> None:
    """Write numbers as u32 at the given byte offsets."""
    data = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    target[places[:, None] + np.arange(4)] = data
