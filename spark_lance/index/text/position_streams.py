"""Word positions of format 2: one stream of bytes for each posting list.

    _compressed_position      large_binary: the stream of a word
    _position_block_offset    list<uint32>: where each block of the posting list begins in the stream

The metadata of the file has `positions_layout` shared_stream_v2 and `positions_codec` packed_delta_v1. A
block of the stream has the positions of the documents of one block of the posting list (128 or 256 documents;
the last block can have fewer). The first position of a document is stored as it is, other positions as the
difference to the previous position. These numbers, document after document, are

    for each 128 numbers    u8 width w, 16 w bytes: the numbers, packed as in postings
    remaining numbers       LEB128 each

The number of positions of a document is its frequency in the posting list. (By experiment with pylance 14.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.file.base.limits import check_claim
from spark_lance.index.text.postings import (
    BLOCK,
    binary_array,
    bit_lengths,
    leb128_bytes,
    pack_fields,
    unpack_fields,
    within_runs,
)

STREAM = pa.field("_compressed_position", pa.large_binary(), False)
OFFSETS = pa.field("_position_block_offset", pa.list_(pa.field("item", pa.uint32())), False)
STREAM_NOTES = {"positions_layout": "shared_stream_v2", "positions_codec": "packed_delta_v1"}
_GROUP = 128
_MAX_WIDTH, _MAX_LEB128 = 32, 5

Bytes = npt.NDArray[np.uint8]


def unpack_stream(stream: bytes, offsets: Ints, frequencies: Ints, block: int = BLOCK) -> tuple[Ints, Ints]:
    """Decode positions; return the start of each document's positions plus the end, and all (int32).

    Args:
        stream: the stream of a word.
        offsets: where each block begins in the stream.
        frequencies: number of positions of each document.
        block: number of documents of a block.

    Raises:
        FormatError: the bytes are damaged.
    """
    if len(offsets) != -(-len(frequencies) // block) or (frequencies < 1).any():
        raise FormatError(f"{len(offsets)} blocks of positions for {len(frequencies)} documents")
    starts = np.concatenate([[0], np.cumsum(frequencies, dtype=np.int64)])
    if not len(offsets):
        return starts, np.empty(0, np.int32)
    ends = np.append(offsets[1:], len(stream)).astype(np.int64)
    begins = offsets.astype(np.int64)
    if begins[0] or (ends < begins).any() or begins.max() > len(stream):
        raise FormatError("blocks of positions do not ascend, or end beyond their stream")
    edges = np.append(np.arange(0, len(frequencies), block), len(frequencies))
    deltas = _unpack_blocks(np.frombuffer(stream, np.uint8), begins, ends, np.diff(starts[edges]))
    sums = np.cumsum(deltas)
    before = (sums - deltas)[starts[:-1]]
    places = sums - np.repeat(before, frequencies)
    if len(places) and int(places.max()) > np.iinfo(np.int32).max:
        raise FormatError("a position of a word beyond 2^31")
    return starts, places.astype(np.int32)


def _unpack_blocks(data: Bytes, begins: Ints, ends: Ints, counts: Ints) -> Ints:
    """Return the numbers of all blocks, which have `counts` numbers each."""
    groups, rests = np.divmod(counts, _GROUP)
    if (groups + rests > ends - begins).any():
        raise FormatError("a block of positions is too short")
    check_claim(8 * int(counts.sum()), len(data), "positions")
    result = np.empty(int(counts.sum()), np.int64)
    targets = np.cumsum(counts) - counts
    places, widths, rows, begins = _find_groups(data, begins, ends, groups)
    firsts = targets[rows] + _GROUP * within_runs(groups)
    for width in np.unique(widths).tolist():
        selection = np.flatnonzero(widths == width)
        packed = data[places[selection][:, None] + np.arange(16 * width)]
        result[firsts[selection][:, None] + np.arange(_GROUP)] = unpack_fields(packed, width)
    rest = np.repeat(targets + _GROUP * groups, rests) + within_runs(rests)
    result[rest] = _unpack_rests(data, begins, ends - begins, rests)
    return result


def _find_groups(data: Bytes, begins: Ints, ends: Ints, groups: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the groups of 128 numbers of all blocks.

    The width of a group determines where the next group of its block begins, so each step finds one group of
    every block.

    Returns:
        The place of the packed bytes, the width and the block of each group; and the end of each block's
        groups.
    """
    now = begins.copy()
    total = np.cumsum(groups)
    places, widths = np.empty(int(total[-1]), np.int64), np.empty(int(total[-1]), np.int64)
    for step in range(int(groups.max())):
        blocks = np.flatnonzero(groups > step)
        here = now[blocks]
        if (here >= ends[blocks]).any():
            raise FormatError("a block of positions is too short")
        width = data[here].astype(np.int64)
        now[blocks] = here + 1 + 16 * width
        if int(width.max()) > _MAX_WIDTH or (now[blocks] > ends[blocks]).any():
            raise FormatError("positions that are too wide for their block")
        number = total[blocks] - groups[blocks] + step
        places[number], widths[number] = here + 1, width
    return places, widths, np.repeat(np.arange(len(groups)), groups), now


def _unpack_rests(data: Bytes, begins: Ints, sizes: Ints, counts: Ints) -> Ints:
    """Return the LEB128 numbers of several ranges of bytes, which have `counts` numbers each."""
    values = data[np.repeat(begins, sizes) + within_runs(sizes)]
    is_last = values < 128
    number_ends = np.concatenate([[0], np.cumsum(is_last)])
    edges = np.cumsum(sizes)
    filled = edges[sizes > 0]
    if not is_last[filled - 1].all() or (number_ends[edges] - number_ends[edges - sizes] != counts).any():
        raise FormatError("positions of words are not as many as they say")
    last = np.flatnonzero(is_last)
    lengths = np.diff(last, prepend=-1)
    if len(lengths) and int(lengths.max()) > _MAX_LEB128:
        raise FormatError("a position of a word has more than 35 bits")
    result = np.zeros(len(last), np.int64)
    for place in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > place)
        byte = values[last[longer] - lengths[longer] + 1 + place]
        result[longer] |= (byte & 127).astype(np.int64) << (7 * place)
    return result


def pack_streams(positions: Ints, frequencies: Ints, bounds: Ints) -> tuple[pa.Array, pa.Array]:
    """Encode the positions of several words: return their streams and the offsets of their blocks.

    Args:
        positions: positions of all documents, concatenated, word after word; ascending in each document.
        frequencies: number of positions of each document.
        bounds: start of the documents of each word, plus the end.
    """
    ends = np.concatenate([[0], np.cumsum(frequencies)])
    deltas = np.diff(positions, prepend=0)
    firsts = ends[:-1]
    deltas[firsts] = positions[firsts]
    blocks = -(-np.diff(bounds) // BLOCK)
    block_starts = np.repeat(bounds[:-1], blocks) + BLOCK * within_runs(blocks)
    edges = ends[np.append(block_starts, bounds[-1])]
    data, sizes = _pack_blocks(deltas, edges[:-1], np.diff(edges))
    block_ends = np.concatenate([[0], np.cumsum(blocks)])
    byte_ends = np.concatenate([[0], np.cumsum(sizes)])
    stream_bounds = byte_ends[block_ends]
    offsets = byte_ends[:-1] - np.repeat(stream_bounds[:-1], blocks)
    streams = binary_array(data, stream_bounds)
    return streams, pa.ListArray.from_arrays(
        pa.array(block_ends.astype(np.int32)), pa.array(offsets.astype(np.uint32)), type=OFFSETS.type
    )


def _pack_blocks(numbers: Ints, starts: Ints, counts: Ints) -> tuple[Bytes, Ints]:
    """Return the bytes of blocks of numbers, and the number of bytes of each block."""
    groups, rests = np.divmod(counts, _GROUP)
    firsts = np.repeat(starts, groups) + _GROUP * within_runs(groups)
    full = numbers[firsts[:, None] + np.arange(_GROUP)].astype(np.uint32)
    widths = bit_lengths(full.max(axis=1, initial=0))
    rest = numbers[np.repeat(starts + _GROUP * groups, rests) + within_runs(rests)]
    rest_bytes, rest_sizes = leb128_bytes(rest)
    # Sums of bytes before each group and each remaining number.
    group_ends = np.concatenate([[0], np.cumsum(1 + 16 * widths)])
    rest_ends = np.concatenate([[0], np.cumsum(rest_sizes)])
    groups_until, rests_until = np.cumsum(groups), np.cumsum(rests)
    group_sizes = group_ends[groups_until] - group_ends[groups_until - groups]
    tail_sizes = rest_ends[rests_until] - rest_ends[rests_until - rests]
    sizes = group_sizes + tail_sizes
    begins = np.cumsum(sizes) - sizes
    result = np.empty(int(sizes.sum()), np.uint8)
    shift = np.repeat(begins - group_ends[groups_until - groups], groups)
    places = group_ends[:-1] + shift
    result[places] = widths
    for width in np.unique(widths).tolist():
        selection = np.flatnonzero(widths == width)
        targets = places[selection][:, None] + 1 + np.arange(16 * width)
        result[targets] = pack_fields(full[selection], width)
    result[np.repeat(begins + group_sizes, tail_sizes) + within_runs(tail_sizes)] = rest_bytes
    return result, sizes
