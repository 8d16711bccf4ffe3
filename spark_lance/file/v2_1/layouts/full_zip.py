"""Full-zip pages: for wide values. The control word and the bytes of each value are adjacent.

    buffer 0   per level: control word, then the value
    buffer 1   the repetition index, if there are lists or values vary in width: rows + 1 unsigned integers of
               1, 2, 4 or 8 bytes, the position of each row in buffer 0, and the end

    control word   absent if bits_rep + bits_def = 0, else 1, 2 or 4 bytes (up to 8, 16, 32 bits):
                   (rep << bits_def) | def
    fixed width    bits_per_value / 8 bytes for every visible level, including null items
    varying width  a length of bits_per_offset / 8 bytes and that many bytes, for def = 0 only

num_items counts levels. Without levels, fixed-width values are simply flat.
Example, binary, nullable, offsets of 32 bits, rows "ab", null:  00 02 00 00 00 61 62  01
(Lance file format, full-zip pages.)

The writer:

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

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numbers_to_arrow
from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.blocks import Block, Variable
from spark_lance.file.v2_1.base.chunks import Bytes, exclusive_sum, gather, gather_integers, integer_column
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.encodings.plain_writer import ZipFixed, ZipVariable
from spark_lance.file.v2_1.layouts.mini_block import PageParts
from spark_lance.file.v2_1.layouts.page_bytes import DecodedPage, PageBytes
from spark_lance.file.v2_1.levels.ravel import Leaf
from spark_lance.file.v2_1.levels.unravel import Levels, number_layers
from spark_lance.proto import encodings21_pb2 as pb

_Words = npt.NDArray[Any]


@dataclass(frozen=True)
class _Control:
    """The control words of a page: their size in bytes and the meaning of their bits."""

    size: int
    bits_def: int
    max_visible: int

    def words(self, data: Bytes, positions: Ints) -> _Words:
        """Return the control words at these positions, which the caller has checked."""
        if self.size == 0:
            return np.zeros(len(positions), dtype=np.uint8)
        return gather_integers(data, positions, self.size)

    def definition(self, words: _Words) -> _Words:
        """Return the definition levels."""
        masked: _Words = words & words.dtype.type((1 << self.bits_def) - 1)
        return masked

    def rep(self, words: _Words) -> _Words:
        """Return the repetition levels."""
        shifted: _Words = words >> words.dtype.type(self.bits_def)
        return shifted


def plain_width(layout: pb.FullZipLayout) -> int | None:
    """Return the bytes per row if the page has only flat values, else None."""
    if layout.bits_rep or layout.bits_def or layout.WhichOneof("details") != "bits_per_value":
        return None
    return None if layout.bits_per_value % 8 else layout.bits_per_value // 8


def row_width(layout: pb.FullZipLayout) -> int | None:
    """Return the bytes per row, including the control word, if all rows have the same width, else None."""
    width = layout.bits_per_value
    if layout.bits_rep or layout.WhichOneof("details") != "bits_per_value" or width % 8:
        return None
    # Without lists, every level is visible.
    return _control_size(layout) + width // 8


def _control_size(layout: pb.FullZipLayout) -> int:
    bits = layout.bits_rep + layout.bits_def
    if bits > 32:
        raise FormatError(f"control words of {bits} bits")
    return 0 if bits == 0 else 1 if bits <= 8 else 2 if bits <= 16 else 4


def decode(layout: pb.FullZipLayout, page: PageBytes, resolver: Resolver) -> DecodedPage:
    """Decode a page.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the page uses an unknown encoding.
    """
    size = _control_size(layout)
    layers = number_layers(layout.layers)
    max_visible = Levels(layers, None, None).max_visible
    control = _Control(size, layout.bits_def, max_visible)
    data = page.buffer(0)
    kind = layout.WhichOneof("details")
    if kind == "bits_per_value":
        words, values = _decode_fixed(layout, control, data, page, resolver)
    elif kind == "bits_per_offset":
        words, values = _decode_variable(layout, control, data, page, resolver)
    else:
        raise FormatError("a full-zip page without a width")
    rep = control.rep(words) if layout.bits_rep else None
    definition = control.definition(words) if layout.bits_def else None
    return DecodedPage(Levels(layers, rep, definition), values)


def _decode_fixed(
    layout: pb.FullZipLayout, control: _Control, data: Bytes, page: PageBytes, resolver: Resolver
) -> tuple[_Words, Block]:
    if layout.bits_per_value % 8:
        raise FormatError(f"full-zip values of {layout.bits_per_value} bits")
    width = layout.bits_per_value // 8
    count = page.rows if page.partial else layout.num_items
    if not layout.bits_rep:
        stride = control.size + width
        if count * stride > len(data):
            raise FormatError(f"{count} values of {stride} bytes in a buffer of {len(data)}")
        rows = data[: count * stride].reshape(count, stride)
        words = integer_column(rows[:, : control.size])
        return words, resolver.zipped(layout.value_compression, rows[:, control.size :])
    bounds = _row_bounds(page, len(data))
    positions = _fixed_positions(data, control, width, bounds)
    words = _level_words(data, control, positions, None if page.partial else count)
    starts = positions[control.definition(words) <= control.max_visible] + control.size
    if len(starts) and int(starts[-1]) + width > len(data):
        raise FormatError("a full-zip value leaves its page")
    values = gather(data, starts, np.full(len(starts), width, dtype=np.int64))
    return words, resolver.zipped(layout.value_compression, values.reshape(len(starts), width))


def _decode_variable(
    layout: pb.FullZipLayout, control: _Control, data: Bytes, page: PageBytes, resolver: Resolver
) -> tuple[_Words, Block]:
    if layout.bits_per_offset not in (32, 64):
        raise FormatError(f"full-zip lengths of {layout.bits_per_offset} bits")
    width = layout.bits_per_offset // 8
    bounds = _row_bounds(page, len(data))
    if layout.bits_rep:
        positions = _variable_positions(data, control, width, bounds)
    else:
        positions = bounds[:-1]
        _check_ends(positions, bounds[1:], control.size)
    words = _level_words(data, control, positions, None if page.partial else layout.num_items)
    definition = control.definition(words)
    valid = definition == 0
    heads = positions + control.size
    ends = np.append(positions[1:], bounds[-1:])
    _check_ends(heads[valid], ends[valid], width)
    lengths = np.zeros(len(positions), dtype=np.int64)
    # A length of 2**63 or more becomes negative here and fails the comparison below.
    lengths[valid] = gather_integers(data, heads[valid], width).astype(np.int64)
    starts = heads + width * valid
    if bool((starts + lengths != ends).any()) or bool((lengths < 0).any()):
        raise FormatError("full-zip values do not fill their rows")
    visible = definition <= control.max_visible
    if not bool(visible.all()):
        starts, lengths = starts[visible], lengths[visible]
    values = Variable(exclusive_sum(lengths), gather(data, starts, lengths))
    return words, resolver.zipped_variable(layout.value_compression, values)


def _check_ends(positions: Ints, ends: Ints, size: int) -> None:
    if bool((positions + size > ends).any()):
        raise FormatError("a full-zip row is cut short")


def _row_bounds(page: PageBytes, size: int) -> Ints:
    """Return the position of every row in buffer 0 and the end, from the repetition index."""
    index = page.buffer(1)
    width, rest = divmod(len(index), page.rows + 1)
    if rest or width not in (1, 2, 4, 8):
        raise FormatError(f"a repetition index of {len(index)} bytes for {page.rows} rows")
    bounds = index.view(f"<u{width}").astype(np.int64)
    if int(bounds[0]) != 0 or int(bounds[-1]) > size or bool((bounds[1:] < bounds[:-1]).any()):
        raise FormatError("the repetition index does not ascend from 0 within the page")
    return bounds


def _level_words(data: Bytes, control: _Control, positions: Ints, count: int | None) -> _Words:
    if count is not None and len(positions) != count:
        raise FormatError(f"a page of {count} levels has {len(positions)}")
    return control.words(data, positions)


def _fixed_positions(data: Bytes, control: _Control, width: int, bounds: Ints) -> Ints:
    """Return the start of each level, for values of `width` bytes in rows of several levels."""
    lengths = np.diff(bounds)
    stride = control.size + width
    # Most rows have only visible levels. The assumption holds if every level found this way is visible.
    level_counts = lengths // stride
    guess = np.flatnonzero((lengths % stride == 0) & (lengths > 0))
    level_counts = level_counts[guess]
    positions = np.repeat(bounds[:-1][guess], level_counts)
    positions += (
        np.arange(len(positions)) - np.repeat(exclusive_sum(level_counts)[:-1], level_counts)
    ) * stride
    visible = control.definition(control.words(data, positions)) <= control.max_visible
    plain = np.zeros(len(lengths), dtype=np.bool_)
    if len(guess):
        plain[guess] = np.logical_and.reduceat(visible, exclusive_sum(level_counts)[:-1])
    positions = positions[np.repeat(plain[guess], level_counts)]
    if bool(plain.all()):
        return positions

    def sizes(at: Ints) -> Ints:
        visible = control.definition(control.words(data, at)) <= control.max_visible
        return control.size + width * visible.astype(np.int64)

    others = _find_levels(bounds[:-1][~plain], bounds[1:][~plain], control.size, sizes)
    return np.sort(np.concatenate([positions, others]))


def _variable_positions(data: Bytes, control: _Control, width: int, bounds: Ints) -> Ints:
    """Return the start of each level, for values of varying width in rows of several levels."""
    limit = len(data)

    def sizes(at: Ints) -> Ints:
        valid = control.definition(control.words(data, at)) == 0
        heads = at[valid] + control.size
        if bool((heads + width > limit).any()):
            raise FormatError("a full-zip row is cut short")
        result = np.full(len(at), control.size, dtype=np.int64)
        lengths = gather_integers(data, heads, width).astype(np.int64)
        if bool((lengths < 0).any()) or bool((lengths > limit).any()):
            raise FormatError("a full-zip value leaves its page")
        result[valid] += width + lengths
        return result

    return np.sort(_find_levels(bounds[:-1], bounds[1:], control.size, sizes))


def _find_levels(starts: Ints, ends: Ints, head: int, sizes: Any) -> Ints:
    """Find the levels of many rows in parallel: the first level of all rows, then the second, and so on.

    Args:
        starts, ends: byte range of each row.
        head: minimum bytes of a level.
        sizes: positions -> sizes of the levels at these positions.

    Returns:
        The positions of all levels, in no particular order.

    Raises:
        FormatError: a level leaves its row.
    """
    result: list[Ints] = []
    at = starts
    while len(at):
        if bool((at + head > ends).any()):
            raise FormatError("a full-zip row is cut short")
        result.append(at)
        at = at + sizes(at)
        if bool((at > ends).any()):
            raise FormatError("a full-zip level leaves its row")
        more = at < ends
        at, ends = at[more], ends[more]
    return np.concatenate(result) if result else starts


U8 = npt.NDArray[np.uint8]


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
    """Return the control words as a matrix (levels, bytes per word)."""
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
    packed_rows = full.reshape(-1) if has_slot is None else _interleave(leaf, has_slot, control, full)
    if leaf.rep is None:
        return [packed_rows]
    sizes = np.full(leaf.num_levels, head + width, np.int64)
    sizes[leaf.valueless] = head
    return [packed_rows, _row_offsets(leaf, sizes)]


def _interleave(leaf: Leaf, has_slot: Bools, control: U8, full: U8) -> U8:
    """Insert the control words of levels without a slot between the levels with one."""
    # All levels with a slot come first, then those without. Arrow's take puts them into order.
    widths = np.full(leaf.num_levels + 1, control.shape[1], np.int64)
    widths[0] = 0
    widths[1 : len(full) + 1] = full.shape[1]
    data_both = np.concatenate([full.reshape(-1), control[~has_slot].reshape(-1)])
    pieces = _binary(np.cumsum(widths), data_both)
    order = np.empty(leaf.num_levels, np.int64)
    order[has_slot] = np.arange(len(full))
    order[~has_slot] = np.arange(len(full), leaf.num_levels)
    return _row_bytes(pieces.take(numbers_to_arrow(order)))


def _zip_variable(leaf: Leaf, control: U8, values: ZipVariable) -> list[U8]:
    """Join the control word, length and bytes of every level."""
    head, length_bytes = control.shape[1], values.bits_per_offset // 8
    valid = np.ones(leaf.num_levels, np.bool_) if leaf.definition is None else leaf.definition == 0
    lengths = np.diff(np.frombuffer(values.data.buffers()[1], np.int64))
    if not len(leaf.valueless):
        per_level = lengths
        data = values.data
    else:
        per_level = np.zeros(leaf.num_levels, np.int64)
        per_level[leaf.has_slot()] = lengths
        data = _binary(np.concatenate([[0], np.cumsum(per_level)]), _row_bytes(values.data))
    head_sizes = np.where(valid, head + length_bytes, head)
    head_ends = np.concatenate([[0], np.cumsum(head_sizes)])
    heads = np.empty(int(head_ends[-1]), np.uint8)
    for i in range(head):
        heads[head_ends[:-1] + i] = control[:, i]
    length_words = per_level[valid].astype("<u8").view(np.uint8).reshape(-1, 8)
    for i in range(length_bytes):
        heads[head_ends[:-1][valid] + head + i] = length_words[:, i]
    joined = pc.binary_join_element_wise(_binary(head_ends, heads), data, pa.scalar(b"", pa.large_binary()))
    return [_row_bytes(joined), _row_offsets(leaf, head_sizes + per_level)]


def _row_offsets(leaf: Leaf, sizes: Ints) -> U8:
    """Return the repetition index for the given bytes of every level."""
    ends = np.zeros(leaf.num_levels + 1, np.int64)
    np.cumsum(sizes, out=ends[1:])
    rows = ends[np.append(leaf.row_starts(), leaf.num_levels)]
    index: U8 = rows.astype(np.min_scalar_type(int(ends[-1]))).view(np.uint8)
    return index


def _binary(offsets: Ints, data: U8) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets.astype(np.int64, copy=False)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _row_bytes(array: pa.LargeBinaryArray) -> U8:
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return np.zeros(0, np.uint8)
    cuts = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    result: U8 = np.frombuffer(data, np.uint8)[cuts[0] : cuts[-1]]
    return result
