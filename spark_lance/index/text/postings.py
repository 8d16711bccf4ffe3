"""Posting lists: the documents that have a word, ascending, and its frequency in each.

A list is split into blocks of 128 documents, each a binary value:

    f32 greatest score of the block
    u32 first document, u8 width w, 16 w bytes: differences to the previous document (the first is 0), packed
    u8 width w, 16 w bytes: frequencies, packed

128 numbers of w bits are packed in four lanes of w words of 32 bits: number 4 j + l is the j-th field of lane
l, lowest bits first; word k of lane l is at index 4 k + l. The remaining documents form a last block:

    f32 greatest score
    fixed32_v1         n u32 documents, n u32 frequencies
    varint_delta_v1    n differences to the previous document (first: the document), n frequencies, LEB128

Blocks of 256 documents (only read) have no scores, eight lanes, and exceptions for the frequencies:

    u32 first document, u8 width w, 32 w bytes: differences
    u8 width w, u8 exceptions e, 32 w bytes: the lowest w bits of each frequency
    e exceptions: u8 index in the block, LEB128 of the bits above the lowest w

(Lance index format, inverted.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError

BLOCK, WIDE_BLOCK = 128, 256
FIXED_TAIL, VARINT_TAIL = "fixed32_v1", "varint_delta_v1"
# A packed block has 4 or 8 lanes of 32 numbers.
_FIELDS, _LANES = 32, 4
_HEADER, _WIDE_HEADER = struct.Struct("<fIB"), struct.Struct("<IB")


def unpack_list(blocks: Sequence[bytes], count: int, tail: str, block: int = BLOCK) -> tuple[Ints, Ints]:
    """Return documents and frequencies of a list of `count` documents.

    Args:
        blocks: the blocks of the list.
        count: number of documents.
        tail: format of the last block, "fixed32_v1" or "varint_delta_v1".
        block: documents of a full block, 128 or 256.

    Raises:
        FormatError: the blocks are damaged.
        UnsupportedFormatError: the format of the last block or the block size is unknown.
    """
    if block not in (BLOCK, WIDE_BLOCK):
        raise UnsupportedFormatError(f"posting lists in blocks of {block} documents, not 128 or 256")
    is_wide = block == WIDE_BLOCK
    full, rest = divmod(count, block)
    if len(blocks) != full + (rest > 0):
        raise FormatError(f"{len(blocks)} blocks for {count} documents")
    try:
        documents, frequencies = (_unpack_wide_blocks if is_wide else _unpack_blocks)(blocks[:full])
        if rest:
            more, often = _unpack_tail(blocks[full], rest, tail, 0 if is_wide else 4)
            documents, frequencies = np.concatenate([documents, more]), np.concatenate([frequencies, often])
    except (struct.error, ValueError, IndexError) as error:
        raise FormatError(f"undecodable posting list: {error}") from error
    return documents, frequencies


def _unpack_blocks(blocks: Sequence[bytes]) -> tuple[Ints, Ints]:
    firsts = np.empty(len(blocks), np.int64)
    parts: list[dict[int, list[tuple[int, bytes]]]] = [{}, {}]
    for number, data in enumerate(blocks):
        _, firsts[number], width = _HEADER.unpack_from(data)
        if not width:
            raise FormatError("a block of a posting list names one document 128 times")
        middle = _HEADER.size + 16 * width
        parts[0].setdefault(width, []).append((number, data[_HEADER.size : middle]))
        often = data[middle]
        parts[1].setdefault(often, []).append((number, data[middle + 1 : middle + 1 + 16 * often]))
    deltas, frequencies = (unpack_numbers(part, len(blocks)) for part in parts)
    return (firsts[:, None] + np.cumsum(deltas, axis=1)).reshape(-1), frequencies.reshape(-1)


def _unpack_wide_blocks(blocks: Sequence[bytes]) -> tuple[Ints, Ints]:
    firsts = np.empty(len(blocks), np.int64)
    parts: list[dict[int, list[tuple[int, bytes]]]] = [{}, {}]
    exceptions: list[tuple[int, int, int]] = []
    for number, data in enumerate(blocks):
        firsts[number], width = _WIDE_HEADER.unpack_from(data)
        if not width:
            raise FormatError("a block of a posting list names one document 256 times")
        middle = _WIDE_HEADER.size + 32 * width
        parts[0].setdefault(width, []).append((number, data[_WIDE_HEADER.size : middle]))
        often, count = data[middle], data[middle + 1]
        end = middle + 2 + 32 * often
        parts[1].setdefault(often, []).append((number, data[middle + 2 : end]))
        for _ in range(count):
            place = data[end]
            upper, end = _leb128_number(data, end + 1)
            exceptions.append((number, place, upper << often))
        if end != len(data):
            raise FormatError(f"a block of a posting list has {len(data)} bytes, not {end}")
    deltas, frequencies = (unpack_numbers(part, len(blocks), WIDE_BLOCK) for part in parts)
    for number, place, upper in exceptions:
        frequencies[number, place] |= upper
    return (firsts[:, None] + np.cumsum(deltas, axis=1)).reshape(-1), frequencies.reshape(-1)


def _leb128_number(data: bytes, start: int) -> tuple[int, int]:
    """Decode a LEB128 number of at most five bytes; return it and the offset after it."""
    value = 0
    for place in range(5):
        byte = data[start + place]
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, start + place + 1
    raise FormatError("a number of a posting list has more than 35 bits")


def unpack_numbers(groups: dict[int, list[tuple[int, bytes]]], blocks: int, block: int = BLOCK) -> Ints:
    """Return the unpacked numbers of all blocks, (blocks, block) int64.

    Args:
        groups: bit width -> (index, packed bytes) of each block of this width.
        blocks: number of blocks.
        block: numbers per block, 32 in each lane.
    """
    values = np.zeros((blocks, block), np.int64)
    lanes_of_block = block // 32
    for width, members in groups.items():
        if not width:
            continue
        if width > 32:
            raise FormatError(f"numbers of {width} bits in a posting list")
        packed = np.frombuffer(b"".join(data for _, data in members), np.uint8)
        numbers = unpack_fields(packed.reshape(-1, 4 * width * lanes_of_block), width, lanes_of_block)
        values[[number for number, _ in members]] = numbers
    return values


def unpack_fields(packed: npt.NDArray[np.uint8], width: int, lanes: int = _LANES) -> npt.NDArray[np.uint32]:
    """Return the numbers (rows, 32 lanes) of rows of packed bytes (rows, 4 width lanes)."""
    if not width:
        return np.zeros((len(packed), _FIELDS * lanes), np.uint32)
    words = np.ascontiguousarray(packed).view("<u4").reshape(-1, width, lanes)
    numbers = np.empty((len(packed), _FIELDS, lanes), np.uint32)
    for field in range(_FIELDS):
        word, shift = divmod(field * width, _FIELDS)
        here = words[:, word] >> np.uint32(shift)
        if shift + width > _FIELDS:
            here |= words[:, word + 1] << np.uint32(_FIELDS - shift)
        numbers[:, field] = here
    numbers &= np.uint32((1 << width) - 1)
    return numbers.reshape(len(packed), -1)


def _unpack_tail(data: bytes, count: int, tail: str, start: int) -> tuple[Ints, Ints]:
    if tail == FIXED_TAIL:
        numbers = np.frombuffer(data, "<u4", 2 * count, start).astype(np.int64)
        return numbers[:count], numbers[count:]
    if tail != VARINT_TAIL:
        raise UnsupportedFormatError(f"a posting list that ends in the form {tail!r}")
    values, value, shift = [], 0, 0
    for byte in data[start:]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    if len(values) != 2 * count:
        raise FormatError(f"{len(values)} numbers at the end of a posting list, not {2 * count}")
    numbers = np.array(values, np.int64)
    return np.cumsum(numbers[:count]), numbers[count:]


def pack_list(
    documents: Ints, frequencies: Ints, scores: npt.NDArray[np.floating[Any]], tail: str = FIXED_TAIL
) -> list[bytes]:
    """Return the blocks of a list.

    Args:
        documents: ascending.
        frequencies: frequency of the word in each document.
        scores: score of each document, for the maximum of each block.
        tail: format of the last block, "fixed32_v1" or "varint_delta_v1".
    """
    full = len(documents) - len(documents) % BLOCK
    blocks = []
    for start in range(0, full, BLOCK):
        part = slice(start, start + BLOCK)
        deltas = np.diff(documents[part], prepend=documents[start])
        best = float(scores[part].max())
        blocks.append(
            struct.pack("<fI", best, documents[start])
            + pack_numbers(deltas)
            + pack_numbers(frequencies[part])
        )
    if full < len(documents):
        left, often = documents[full:], frequencies[full:]
        if tail == VARINT_TAIL:
            rest = _leb128(np.concatenate([np.diff(left, prepend=0), often]))
        else:
            rest = np.concatenate([left, often]).astype("<u4").tobytes()
        blocks.append(struct.pack("<f", float(scores[full:].max())) + rest)
    return blocks


def pack_lists(documents: Ints, frequencies: Ints, scores: npt.NDArray[np.float32], bounds: Ints) -> pa.Array:
    """Return the lists of several words, one list<large_binary> per word, as `pack_list` does.

    Args:
        documents, frequencies, scores: as for `pack_list`, word after word.
        bounds: start of the documents of each word, plus the end.
    """
    counts = np.diff(bounds)
    full, rests = np.divmod(counts, BLOCK)
    ends = np.cumsum(full + (rests > 0))
    # The number of each full block in its word, and its documents.
    within = within_runs(full)
    firsts = np.repeat(bounds[:-1], full) + BLOCK * within
    rows = firsts[:, None] + np.arange(BLOCK)
    parts, order = _pack_blocks(documents[rows], frequencies[rows], scores[rows].max(axis=1, initial=0))
    tails = np.flatnonzero(rests)
    starts = bounds[:-1][tails] + BLOCK * full[tails]
    parts.append(_pack_tails(documents, frequencies, scores, starts, rests[tails]))
    places = np.empty(int(ends[-1]) if len(ends) else 0, np.int64)
    places[np.repeat(ends - full - (rests > 0), full) + within] = order
    places[ends[tails] - 1] = len(rows) + np.arange(len(tails))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(parts).take(pa.array(places)))


def within_runs(counts: Ints) -> Ints:
    """Return 0 to count - 1 for each count, one after the other."""
    result: Ints = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return result


def _pack_blocks(
    documents: Ints, frequencies: Ints, scores: npt.NDArray[np.float32]
) -> tuple[list[pa.Array], Ints]:
    """Return full blocks, grouped by their widths, and the position of each block in the groups.

    Args:
        documents, frequencies: (blocks, 128).
        scores: greatest score of each block.
    """
    deltas = np.diff(documents, axis=1, prepend=documents[:, :1]).astype(np.uint32)
    often = frequencies.astype(np.uint32)
    widths = [bit_lengths(part.max(axis=1, initial=0)) for part in (deltas, often)]
    kinds = (_FIELDS + 1) * widths[0] + widths[1]
    by_kind = np.argsort(kinds, kind="stable")
    order = np.empty(len(kinds), np.int64)
    order[by_kind] = np.arange(len(kinds))
    heads = np.empty(len(documents), np.dtype([("score", "<f4"), ("first", "<u4")]))
    heads["score"], heads["first"] = scores, documents[:, 0]
    head_bytes = heads.view(np.uint8).reshape(-1, heads.itemsize)
    cuts = np.flatnonzero(np.diff(kinds[by_kind], prepend=-1))
    parts = []
    for blocks in np.split(by_kind, cuts[1:]) if len(cuts) else ():
        columns = [head_bytes[blocks]]
        for numbers, width in zip((deltas, often), (int(each[blocks[0]]) for each in widths), strict=True):
            columns.append(np.full((len(blocks), 1), width, np.uint8))
            columns.append(pack_fields(numbers[blocks], width))
        parts.append(_as_binaries(np.concatenate(columns, axis=1)))
    return parts, order


def _pack_tails(
    documents: Ints, frequencies: Ints, scores: npt.NDArray[np.float32], starts: Ints, counts: Ints
) -> pa.Array:
    """Return last blocks in the form fixed32_v1. Each has at least one of the documents from its start on."""
    sizes = 1 + 2 * counts
    ends = np.cumsum(sizes)
    within = within_runs(counts)
    entries = np.repeat(starts, counts) + within
    data = np.empty(int(ends[-1]) if len(ends) else 0, "<u4")
    if len(counts):
        best = np.maximum.reduceat(scores[entries], np.cumsum(counts) - counts).astype("<f4")
        data[ends - sizes] = best.view("<u4")
    places = np.repeat(ends - sizes + 1, counts) + within
    data[places] = documents[entries]
    data[places + np.repeat(counts, counts)] = frequencies[entries]
    return binary_array(data.view(np.uint8), 4 * np.concatenate([[0], ends]))


def bit_lengths(numbers: npt.NDArray[np.uint32]) -> Ints:
    """Return the number of bits of each number; 0 for 0."""
    result: Ints = np.frexp(numbers.astype(np.float64))[1].astype(np.int64)
    return result


def pack_fields(numbers: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint8]:
    """Return the packed bytes of each row of 128 numbers below 2^width: (rows, 16 width)."""
    fields = numbers.reshape(len(numbers), _FIELDS, _LANES)
    words = np.zeros((len(numbers), width, _LANES), "<u4")
    for field in range(_FIELDS if width else 0):
        word, shift = divmod(field * width, _FIELDS)
        words[:, word] |= fields[:, field] << np.uint32(shift)
        if shift + width > _FIELDS:
            words[:, word + 1] |= fields[:, field] >> np.uint32(_FIELDS - shift)
    return words.view(np.uint8).reshape(len(numbers), 16 * width)


def _as_binaries(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the rows of a matrix as binary values."""
    offsets = rows.shape[1] * np.arange(len(rows) + 1, dtype=np.int64)
    return binary_array(np.ascontiguousarray(rows).reshape(-1), offsets)


def binary_array(data: npt.NDArray[np.uint8], offsets: Ints) -> pa.Array:
    """Return binary values, given their bytes and the start of each value plus the end."""
    buffers = [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _leb128(numbers: Ints) -> bytes:
    return leb128_bytes(numbers)[0].tobytes()


def leb128_bytes(numbers: Ints) -> tuple[npt.NDArray[np.uint8], Ints]:
    """Encode numbers below 2^35 as LEB128: seven bits per byte, lowest first, top bit set if more follow.

    Returns:
        The bytes of all numbers, and the number of bytes of each number.
    """
    places = np.arange(5)
    sizes = 1 + np.searchsorted(np.int64(1) << np.arange(7, 35, 7), numbers, side="right")
    groups = (numbers[:, None] >> (7 * places)) & 127
    groups |= (places < sizes[:, None] - 1) << 7
    return groups[places < sizes[:, None]].astype(np.uint8), sizes


def pack_numbers(numbers: Ints) -> bytes:
    """Return 128 numbers as their width and the packed bytes."""
    width = int(numbers.max()).bit_length()
    if not width:
        return b"\0"
    bits = (numbers.reshape(32, 4).T[:, :, None] >> np.arange(width)) & 1
    lanes = np.packbits(bits.astype(np.uint8).reshape(4, 32 * width), axis=1, bitorder="little")
    words = np.ascontiguousarray(lanes).view("<u4").T
    return bytes([width]) + np.ascontiguousarray(words).tobytes()
