"""Plain value encodings for writers: Flat, Variable and FixedSizeList of Flat.

    Flat(bits)        contiguous values; 1 bit per value = bitmap, least significant bit first
    Variable(width)   in a chunk: n+1 offsets of `width` bits, counted from the start of the buffer, then the
                      bytes, then zeros up to a multiple of the offset width. As a block: u32 offset width,
                      u32 position of the bytes (both u64 if the width is 64), n+1 offsets from 0, the bytes.
    FixedSizeList     one validity bitmap per layer whose items have nulls, outer layer first (1 = valid),
                      then Flat items. In a full-zip value each bitmap fills whole bytes.

A mini-block page takes `ChunkValues`, a full-zip page `ZipFixed` or `ZipVariable`, a dictionary an
`EncodedBlock`.
(Lance file format 2.1, Flat, Variable, FixedSizeList.)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import empty_text, flags_to_arrow, flags_to_numpy
from spark_lance.arrow.numpy_types import Bools, Ints
from spark_lance.proto import encodings21_pb2 as pb

U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class ChunkBuffer:
    """One buffer of every chunk of a page: chunk c has `data[starts[c]:starts[c + 1]]`."""

    data: U8
    starts: Ints


class ChunkValues(Protocol):
    """The slots of a page in one encoding, ready to be split into mini-block chunks."""

    @property
    def count(self) -> int:
        """Number of slots."""

    @property
    def nbytes(self) -> int:
        """Approximate bytes of all slots."""

    @property
    def description(self) -> pb.CompressiveEncoding:
        """The description of the value buffers in the page."""

    def cost(self, positions: Ints) -> Ints:
        """Return the approximate bytes of the slots before each position."""

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return the value buffers. Chunk c has slots `bounds[c]:bounds[c + 1]`."""


@dataclass(frozen=True)
class EncodedBlock:
    """Values in one buffer without chunks, the form of dictionaries."""

    description: pb.CompressiveEncoding
    count: int
    data: U8


@dataclass(frozen=True)
class ZipFixed:
    """Slots of fixed width for a full-zip page: `data` has the shape (slots, bytes per slot).

    `valid` flags the slots with a valid value (None: all). The content of other slots is arbitrary.
    """

    description: pb.CompressiveEncoding
    data: U8
    valid: Bools | None


@dataclass(frozen=True)
class ZipVariable:
    """Slots of varying width for a full-zip page: large_binary, empty where the slot is not valid."""

    description: pb.CompressiveEncoding
    data: pa.LargeBinaryArray
    bits_per_offset: int


def flat(bits: int) -> pb.CompressiveEncoding:
    """Return the description of Flat values of `bits` bits."""
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def is_variable(arrow: pa.DataType) -> bool:
    """Return whether values of the type vary in width: string, binary and their large forms."""
    return arrow in _OFFSET_BITS


_OFFSET_BITS = {pa.string(): 32, pa.binary(): 32, pa.large_string(): 64, pa.large_binary(): 64}
_OFFSET_TYPES: dict[int, type[np.generic]] = {32: np.uint32, 64: np.uint64}


def value_bits(arrow: pa.DataType) -> int:
    """Return the bits of one value of a fixed-width type: a dictionary's index, or all items of a list."""
    if pa.types.is_fixed_size_list(arrow):
        return int(arrow.list_size) * value_bits(arrow.value_type)
    if pa.types.is_dictionary(arrow):
        return int(arrow.index_type.bit_width)
    return int(arrow.bit_width)


@dataclass(frozen=True)
class _Layer:
    """One fixed-size list around the values: its size, and its items' validity if any is null."""

    size: int
    validity: Bools | None


@dataclass(frozen=True)
class FixedChunks:
    """Flat or FixedSizeList values of a fixed-width array in mini-block chunks.

    `valid` flags the slots with a valid value (None: all). Other slots are written as zeros.
    """

    count: int
    layers: tuple[_Layer, ...]
    items_per_slot: int
    item_bits: int
    items: U8 | Bools

    @classmethod
    def of(cls, array: pa.Array, valid: Bools | None) -> FixedChunks:
        """Return the chunks of an array of any type that `value_bits` supports."""
        layers, items, valid_items = _split_layers(array, valid)
        per_slot = int(np.prod([layer.size for layer in layers], dtype=np.int64))
        return cls(len(array), layers, per_slot, value_bits(items.type), _item_values(items, valid_items))

    @classmethod
    def of_words(cls, words: npt.NDArray[Any]) -> FixedChunks:
        """Return the chunks of unsigned words."""
        return cls(len(words), (), 1, words.dtype.itemsize * 8, words.view(np.uint8))

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return int(self.cost(np.array([self.count]))[0])

    @property
    def description(self) -> pb.CompressiveEncoding:
        """Flat, or FixedSizeList around it."""
        return _describe(self.layers, self.item_bits)

    def words(self) -> npt.NDArray[Any] | None:
        """Return the values as unsigned words, or None if they are not of 8, 16, 32 or 64 bits."""
        if self.layers or self.item_bits not in (8, 16, 32, 64):
            return None
        return self.items.view(f"<u{self.item_bits // 8}")

    def cost(self, positions: Ints) -> Ints:
        """Return the bytes of the slots before each position."""
        bits, items = self.items_per_slot * self.item_bits, 1
        for layer in self.layers:
            items *= layer.size
            bits += items if layer.validity is not None else 0
        return positions * bits // 8

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return the validity bitmaps, outer layer first, then the values."""
        buffers, items = [], 1
        for layer in self.layers:
            items *= layer.size
            if layer.validity is not None:
                buffers.append(_bit_chunks(layer.validity, bounds * items))
        if self.item_bits == 1:
            buffers.append(_bit_chunks(self.items.view(np.bool_), bounds * self.items_per_slot))
        else:
            width = self.items_per_slot * self.item_bits // 8
            buffers.append(ChunkBuffer(self.items.view(np.uint8), bounds * width))
        return buffers


def _describe(layers: tuple[_Layer, ...], item_bits: int) -> pb.CompressiveEncoding:
    description = flat(item_bits)
    for layer in reversed(layers):
        description = pb.CompressiveEncoding(
            fixed_size_list=pb.FixedSizeList(
                items_per_value=layer.size, values=description, has_validity=layer.validity is not None
            )
        )
    return description


def _split_layers(array: pa.Array, valid: Bools | None) -> tuple[tuple[_Layer, ...], pa.Array, Bools | None]:
    """Return the fixed-size list layers of an array, its innermost items, and their validity.

    One entry of the validity may apply to several consecutive items.
    """
    layers = []
    while pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        validity = None
        if array.null_count:
            own: Bools = flags_to_numpy(pc.is_valid(array))
            inherited = None if valid is None else np.repeat(valid, len(own) // len(valid))
            valid = own if inherited is None else own & inherited
            # Nulls inside a null list are irrelevant, so they do not require a bitmap.
            if not (own if inherited is None else own | ~inherited).all():
                validity = own
        layers.append(_Layer(size, validity))
    return tuple(layers), array, valid


def _item_values(array: pa.Array, valid: Bools | None) -> U8 | Bools:
    """Return the items as bytes, or as one Boolean per item for bits, with zeros where not valid.

    Each entry of `valid` applies to the same number of items.
    """
    if pa.types.is_dictionary(array.type):
        array = array.indices
    if pa.types.is_boolean(array.type):
        bits = flags_to_numpy(array)
        return bits if valid is None else bits & np.repeat(valid, len(bits) // len(valid))
    data = _item_bytes(array)
    if valid is None or len(data) == 0:
        return data
    width = len(data) // len(valid)
    if width in (1, 2, 4, 8):
        words = data.view(f"u{width}")
        result: U8 = np.where(valid, words, words.dtype.type(0)).view(np.uint8)
        return result
    cleared: U8 = data.reshape(len(valid), width).copy()
    cleared[~valid] = 0
    return cleared.reshape(-1)


def _item_bytes(array: pa.Array) -> U8:
    width = array.type.bit_width // 8
    buffer = array.buffers()[1]
    if buffer is None or width == 0:
        return np.zeros(len(array) * width, np.uint8)
    first = array.offset * width
    data: U8 = np.frombuffer(buffer, np.uint8)[first : first + len(array) * width]
    return data


def _bit_chunks(bits: Bools, bounds: Ints) -> ChunkBuffer:
    """Pack bits into bytes. Each chunk starts at a byte boundary."""
    if not (bounds[:-1] % 8).any():
        return ChunkBuffer(np.packbits(bits, bitorder="little"), (bounds + 7) // 8)
    parts = [np.packbits(bits[a:b], bitorder="little") for a, b in itertools.pairwise(bounds.tolist())]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return ChunkBuffer(np.concatenate(parts), starts)


def zip_fixed(array: pa.Array, valid: Bools | None) -> ZipFixed:
    """Return the slots of a fixed-width array of whole bytes for a full-zip page."""
    layers, items, valid_items = _split_layers(array, valid)
    slots = len(array)
    parts = []
    per_slot = 1
    for layer in layers:
        per_slot *= layer.size
        if layer.validity is not None:
            parts.append(np.packbits(layer.validity.reshape(slots, per_slot), axis=1, bitorder="little"))
    bits = value_bits(items.type)
    if bits == 1:
        data = np.packbits(_item_values(items, valid_items), bitorder="little")
    else:
        data = _item_values(items, valid_items).view(np.uint8) if parts else _item_bytes(items)
    parts.append(data.reshape(slots, per_slot * bits // 8))
    return ZipFixed(_describe(layers, bits), parts[0] if len(parts) == 1 else np.hstack(parts), valid)


@dataclass(frozen=True)
class VariableChunks:
    """Variable values of a string or binary array in mini-block chunks."""

    offsets: Ints
    data: U8
    width: int

    @classmethod
    def of(cls, array: pa.Array, valid: Bools | None) -> VariableChunks:
        """Return the chunks of an array. Slots that are not `valid` are written as empty values."""
        offsets, data = _offsets_and_bytes(array, valid)
        return cls(offsets, data, _OFFSET_BITS[array.type])

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.offsets) - 1

    @property
    def nbytes(self) -> int:
        """Bytes of all values and offsets."""
        return int(self.cost(np.array([self.count]))[0])

    @property
    def description(self) -> pb.CompressiveEncoding:
        """Variable with Flat offsets."""
        return _describe_variable(self.width)

    def cost(self, positions: Ints) -> Ints:
        """Return the bytes of the values before each position and of their offsets."""
        return self.offsets[positions] + positions * (self.width // 8)

    def samples(self, count: int, size: int) -> ChunkBuffer:
        """Return up to `count` chunks of about `size` bytes, spread over the page."""
        slots = int(min(max(1, size * self.count // max(1, self.nbytes)), self.count))
        starts = np.unique(np.linspace(0, self.count - slots, count).astype(np.int64))
        pieces = []
        for start in starts.tolist():
            offsets = self.offsets[start : start + slots + 1]
            part = VariableChunks(offsets - offsets[0], self.data[offsets[0] : offsets[-1]], self.width)
            pieces += [piece.data for piece in part.chunk(np.array([0, slots]))]
        sizes = np.cumsum([0, *(len(piece) for piece in pieces)])
        return ChunkBuffer(np.concatenate(pieces), sizes)

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return one buffer per chunk: offsets, bytes, padding to the offset width."""
        step = self.width // 8
        counts = np.diff(bounds) + 1
        byte_bounds = self.offsets[bounds]
        sizes = -(-(counts * step + np.diff(byte_bounds)) // step) * step
        starts = np.zeros(len(bounds), np.int64)
        np.cumsum(sizes, out=starts[1:])
        out = np.zeros(int(starts[-1]), np.uint8)
        # Chunk c has offsets number bounds[c] to bounds[c + 1], so offsets at the bounds occur twice.
        first = np.cumsum(counts) - counts
        source = np.arange(int(counts.sum())) - np.repeat(first - bounds[:-1], counts)
        target = np.arange(int(counts.sum())) + np.repeat(starts[:-1] // step - first, counts)
        relative = self.offsets[source] + np.repeat(counts * step - byte_bounds[:-1], counts)
        out.view(_OFFSET_TYPES[self.width])[target] = relative
        payload = starts[:-1] + counts * step
        cuts = byte_bounds.tolist()
        for at, begin, end in zip(payload.tolist(), cuts[:-1], cuts[1:], strict=True):
            out[at : at + end - begin] = self.data[begin:end]
        return [ChunkBuffer(out, starts)]


def _describe_variable(width: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(variable=pb.Variable(offsets=flat(width)))


def _offsets_and_bytes(array: pa.Array, valid: Bools | None) -> tuple[Ints, U8]:
    """Return n+1 offsets from 0 and the bytes, without the bytes of slots that are not valid."""
    offset_type = np.int64 if _OFFSET_BITS[array.type] == 64 else np.int32
    _, offset_buffer, data_buffer = array.buffers()
    if offset_buffer is None or len(array) == 0:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    raw = np.frombuffer(offset_buffer, offset_type)[array.offset : array.offset + len(array) + 1]
    if valid is not None and np.diff(raw)[~valid].any():
        # Not a null scalar, because that would keep the bytes.
        emptied = pc.if_else(flags_to_arrow(valid), array, empty_text(array.type)[0])
        return _offsets_and_bytes(emptied, None)
    offsets = raw.astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    offsets -= first
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)[first:last]
    return offsets, data


def zip_variable(array: pa.Array, valid: Bools | None) -> ZipVariable:
    """Return the slots of a string or binary array for a full-zip page."""
    offsets, data = _offsets_and_bytes(array, valid)
    binary = pa.Array.from_buffers(
        pa.large_binary(), len(array), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    )
    width = _OFFSET_BITS[array.type]
    return ZipVariable(_describe_variable(width), binary, width)


def plain_block(array: pa.Array) -> EncodedBlock:
    """Return the block of an array without nulls of a string, binary or fixed-width type."""
    if not is_variable(array.type):
        bits = value_bits(array.type)
        items = _item_values(array, None)
        data = np.packbits(items, bitorder="little") if bits == 1 else items.view(np.uint8)
        return EncodedBlock(flat(bits), len(array), data)
    width = _OFFSET_BITS[array.type]
    offsets, payload = _offsets_and_bytes(array, None)
    word = _OFFSET_TYPES[width]
    table = offsets.astype(word)
    position = 2 * (width // 8) + table.nbytes
    head = np.array([width, position], word)
    data = np.concatenate([head.view(np.uint8), table.view(np.uint8), payload])
    return EncodedBlock(_describe_variable(width), len(array), data)
