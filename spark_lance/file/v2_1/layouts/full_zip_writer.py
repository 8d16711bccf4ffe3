"""Writes full-zip pages: levels and values interleaved, for wide values.

    page buffers   0 levels, [1 repetition index: if rows or values vary in width]
    level          control word, then the value
    control word   rep << bits_def | def in 0, 1, 2 or 4 bytes, as many as the two need
    value          fixed width: the bytes, for every level with a slot.
                   variable width: u32 or u64 length and the bytes, for every level with definition 0
    repetition     rows + 1 numbers: where in buffer 0 each row starts; the last is the size of buffer 0.
    index          u8, u16, u32 or u64, the narrowest that holds that size

(Lance file format 2.1, full-zip pages.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.arrays import of_numbers
from spark_lance.file.v2_1.encodings.plain_writer import ZipFixed, ZipVariable
from spark_lance.file.v2_1.layouts.mini_block_writer import PageParts
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["full_zip_page"]

U8 = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


def full_zip_page(leaf: Leaf, values: ZipFixed | ZipVariable) -> PageParts:
    """Return the layout and buffers of a page with at least one slot."""
    control = _control_words(leaf)
    layout = pb.FullZipLayout(
        bits_rep=leaf.lists.bit_length(),
        bits_def=leaf.max_definition.bit_length(),
        num_items=leaf.num_levels,
        num_visible_items=len(values.data),
        value_compression=values.description,
        layers=leaf.layers,
    )
    if isinstance(values, ZipFixed):
        layout.bits_per_value = values.data.shape[1] * 8
        buffers = _zip_fixed(leaf, control, values)
    else:
        layout.bits_per_offset = values.bits_per_offset
        buffers = _zip_variable(leaf, control, values)
    return pb.PageLayout(full_zip_layout=layout), buffers


def _control_words(leaf: Leaf) -> U8:
    """Return the control words as a matrix of (levels, bytes per word)."""
    bits_def = leaf.max_definition.bit_length()
    bits = leaf.lists.bit_length() + bits_def
    if bits == 0:
        return np.zeros((leaf.num_levels, 0), np.uint8)
    word: type[np.generic] = np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32
    words = np.zeros(leaf.num_levels, np.uint32)
    if leaf.rep is not None:
        words |= leaf.rep.astype(np.uint32) << bits_def
    if leaf.definition is not None:
        words |= leaf.definition
    return words.astype(word).view(np.uint8).reshape(leaf.num_levels, -1)


def _zip_fixed(leaf: Leaf, control: U8, values: ZipFixed) -> list[U8]:
    data = values.data
    head, width = control.shape[1], data.shape[1]
    if head == 0:
        return [data.reshape(-1)]
    has_slot = leaf.has_slot() if len(leaf.valueless) else None
    full = np.hstack([control if has_slot is None else control[has_slot], data])
    if values.valid is not None:
        full[~values.valid, head:] = 0
    zipped = full.reshape(-1) if has_slot is None else _interleave(leaf, has_slot, control, full)
    if leaf.rep is None:
        return [zipped]
    sizes = np.full(leaf.num_levels, head + width, np.int64)
    sizes[leaf.valueless] = head
    return [zipped, _row_offsets(leaf, sizes)]


def _interleave(leaf: Leaf, has_slot: Bools, control: U8, full: U8) -> U8:
    """Put the control words of levels without a slot between the levels that have one."""
    # The pieces, first all levels with a slot and then those without, are put into order by Arrow's take.
    widths = np.full(leaf.num_levels + 1, control.shape[1], np.int64)
    widths[0] = 0
    widths[1 : len(full) + 1] = full.shape[1]
    data_both = np.concatenate([full.reshape(-1), control[~has_slot].reshape(-1)])
    pieces = _binary(np.cumsum(widths), data_both)
    order = np.empty(leaf.num_levels, np.int64)
    order[has_slot] = np.arange(len(full))
    order[~has_slot] = np.arange(len(full), leaf.num_levels)
    return _bytes_of(pieces.take(of_numbers(order)))


def _zip_variable(leaf: Leaf, control: U8, values: ZipVariable) -> list[U8]:
    """Join, level by level, control word, length and bytes."""
    head, length_bytes = control.shape[1], values.bits_per_offset // 8
    valid = np.ones(leaf.num_levels, np.bool_) if leaf.definition is None else leaf.definition == 0
    lengths = np.diff(np.frombuffer(values.data.buffers()[1], np.int64))
    if not len(leaf.valueless):
        per_level = lengths
        data = values.data
    else:
        per_level = np.zeros(leaf.num_levels, np.int64)
        per_level[leaf.has_slot()] = lengths
        data = _binary(np.concatenate([[0], np.cumsum(per_level)]), _bytes_of(values.data))
    head_sizes = np.where(valid, head + length_bytes, head)
    head_ends = np.concatenate([[0], np.cumsum(head_sizes)])
    heads = np.empty(int(head_ends[-1]), np.uint8)
    for i in range(head):
        heads[head_ends[:-1] + i] = control[:, i]
    length_words = per_level[valid].astype("<u8").view(np.uint8).reshape(-1, 8)
    for i in range(length_bytes):
        heads[head_ends[:-1][valid] + head + i] = length_words[:, i]
    joined = pc.binary_join_element_wise(_binary(head_ends, heads), data, pa.scalar(b"", pa.large_binary()))
    return [_bytes_of(joined), _row_offsets(leaf, head_sizes + per_level)]


def _row_offsets(leaf: Leaf, sizes: Indices) -> U8:
    """Return the repetition index, given the bytes of every level."""
    ends = np.zeros(leaf.num_levels + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    rows = ends[np.append(leaf.row_starts(), leaf.num_levels)]
    index: U8 = rows.astype(np.min_scalar_type(int(ends[-1]))).view(np.uint8)
    return index


def _binary(offsets: Indices, data: U8) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets.astype(np.int64, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _bytes_of(array: pa.LargeBinaryArray) -> U8:
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return np.zeros(0, np.uint8)
    cuts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    held: U8 = np.frombuffer(data, np.uint8)[cuts[0] : cuts[-1]]
    return held
