"""Positions of words in a text, for phrases: the column `_position` next to the posting lists of format 1.

    _position: list<list<large_binary>>    per word, per document of its posting list

A document's list begins with a binary of the number n of positions, u32. Then, for every 128 positions, a
binary

    u32 first position, u8 width w, 16 w bytes: differences to the position before, packed as in postings

and, if n is not a multiple of 128, one of the positions left over, u32 each. Positions ascend; a word that
the index leaves out has one, too. (As pylance writes format 1 with positions.)
"""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.index.text.postings import BLOCK, pack_numbers

_BINARIES = pa.list_(pa.field("item", pa.large_binary()))
POSITIONS = pa.field("_position", pa.list_(pa.field("item", _BINARIES)), False)


def pack_positions(positions: Ints, counts: Ints) -> pa.Array:
    """Return what is stored of documents.

    Args:
        positions: of all documents, one after the other; ascending in each.
        counts: how many each document has, at least 1.

    Returns:
        A list<large_binary> per document.
    """
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
    stored = np.zeros(int(offsets[-1]), np.uint8)
    _put(stored, offsets[heads], counts)
    within = np.arange(len(positions)) - np.repeat(starts, counts)
    rest = within - np.repeat(BLOCK * blocks, counts)
    last = np.repeat(offsets[ends - 1] if len(ends) else starts, counts)
    over = rest >= 0
    _put(stored, (last + 4 * rest)[over], positions[over])
    for piece, data in packed.items():
        stored[offsets[piece] : offsets[piece + 1]] = np.frombuffer(data, np.uint8)
    binaries = pa.Array.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(stored)]
    )
    lists = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(lists), binaries, type=_BINARIES)


def _put(stored: npt.NDArray[np.uint8], places: Ints, numbers: Ints) -> None:
    """Write numbers as u32 at some places."""
    data = numbers.astype("<u4").view(np.uint8).reshape(-1, 4)
    stored[places[:, None] + np.arange(4)] = data
