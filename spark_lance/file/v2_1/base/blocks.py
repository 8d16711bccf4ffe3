"""Decoded values of a page before their Arrow type is known, and the step to Arrow.

A codec knows widths, not types: 32 bits may be an int, a float or a date. It yields one of these blocks; the
leaf's Arrow type then says what the bits mean. Every block holds one slot per visible item, null items
included; nulls of the leaf itself come from the levels (`levels/unravel.py`).

A dictionary's strings are copied several at a time, because a copy costs per string, not per byte. With n
distinct strings there are n ** k groups of k strings; if that is few, a table of all groups lets one copy do
for k strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import CapacityError, empty_text, numbers_to_arrow
from spark_lance.arrow.buffers import is_ascii, pack_bits, unpack_bits
from spark_lance.arrow.texts import check_stored_text
from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.chunks import Bytes

_MAX_GROUPS = 1 << 14
_MAX_GROUP = 8
# A table pays if there are at least this many strings for each of its groups.
_STRINGS_PER_GROUP = 32
_MAX_BYTES = 2**31 - 1


def repeat_strings(
    items: pa.Array, indices: npt.NDArray[np.unsignedinteger], validity: Bytes | None
) -> pa.Array | None:
    """Return items[index] for all indices; None if the strings are too many or too few for this.

    Args:
        items: strings or byte strings without nulls, with 32 bit offsets.
        indices: unsigned; where null, anything.
        validity: bitmap of the indices, None = all valid.

    Raises:
        IndexError: an index has no item.
    """
    if not len(items) or items.buffers()[2] is None:
        return None
    distinct = len(items) + 1
    size = 1
    while size < _MAX_GROUP and distinct ** (size + 1) <= min(
        _MAX_GROUPS, len(indices) // _STRINGS_PER_GROUP
    ):
        size += 1
    if size < 2:
        return None
    # One more item, the empty string, for nulls and to fill up the last group.
    nothing = len(items)
    wrong = indices >= nothing
    if validity is not None:
        valid = unpack_bits(validity, len(indices))
        wrong &= valid
        indices = np.where(valid, indices, indices.dtype.type(nothing))
    if bool(wrong.any()):
        raise IndexError(f"a dictionary index is beyond its {nothing} items")
    padded = pa.concat_arrays([items, empty_text(items.type)])
    ends = np.frombuffer(padded.buffers()[1], dtype=np.int32)[: distinct + 1]
    lengths = np.diff(ends)
    if int(lengths.max()) * len(indices) > _MAX_BYTES:
        return None
    offsets = np.zeros(len(indices) + 1, dtype=np.int32)
    np.cumsum(lengths[indices], dtype=np.int32, out=offsets[1:])
    groups = np.zeros(-(-len(indices) // size), dtype=np.uint16)
    for place in range(size):
        column = indices[place::size]
        groups *= np.uint16(distinct)
        groups[: len(column)] += column.astype(np.uint16)
        groups[len(column) :] += np.uint16(nothing)
    data = pc.take(_group_table(padded, size), numbers_to_arrow(groups), boundscheck=False).buffers()[2]
    bitmap = None if validity is None else pa.py_buffer(validity)
    buffers = [bitmap, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(items.type, len(indices), buffers)


def _group_table(items: pa.Array, size: int) -> pa.Array:
    """Return all groups of `size` items, joined; the last item of a group changes first."""
    distinct = len(items)
    numbers = np.arange(distinct**size)
    digits = np.stack([numbers // distinct**power % distinct for power in range(size - 1, -1, -1)], axis=1)
    _, offsets, data = pc.take(items, numbers_to_arrow(digits.reshape(-1))).buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: digits.size + 1 : size].copy()
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(ends), data])


_INT32_MAX = 2**31 - 1
# Values of a look-up, not of a scan.
_FEW = 4096


@dataclass(frozen=True)
class FixedWidth:
    """`count` values of `bits` bits each, without gaps; 1 bit = bitmap, first value in the lowest bit."""

    bits: int
    count: int
    data: Bytes


@dataclass(frozen=True)
class Variable:
    """Byte strings data[offsets[i] : offsets[i + 1]].

    Offsets are int32 or int64, checked to ascend from 0 to the length of `data`.
    """

    offsets: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    data: Bytes

    @property
    def count(self) -> int:
        """Number of byte strings."""
        return len(self.offsets) - 1


@dataclass(frozen=True)
class FixedSizeList:
    """`count` lists of `dimension` items; `validity` is a bitmap of the *items*, None = all valid."""

    dimension: int
    count: int
    items: Block
    validity: Bytes | None = None


@dataclass(frozen=True)
class PackedStruct:
    """`count` structs without nulls in their children, which stand in schema order."""

    count: int
    children: tuple[Block, ...]


@dataclass(frozen=True)
class DictionaryBlock:
    """Indices into `items`. Indices of null slots may be anything."""

    indices: FixedWidth
    items: Block

    @property
    def count(self) -> int:
        """Number of values."""
        return self.indices.count


@dataclass(frozen=True)
class AllNull:
    """`count` nulls."""

    count: int


Block: TypeAlias = FixedWidth | Variable | FixedSizeList | PackedStruct | DictionaryBlock | AllNull


def nbytes(block: Block) -> int:
    """Return the bytes of a block's arrays."""
    if isinstance(block, FixedWidth):
        return block.data.nbytes
    if isinstance(block, Variable):
        return block.offsets.nbytes + block.data.nbytes
    if isinstance(block, FixedSizeList):
        return nbytes(block.items) + (0 if block.validity is None else block.validity.nbytes)
    if isinstance(block, PackedStruct):
        return sum(map(nbytes, block.children))
    return nbytes(block.indices) + nbytes(block.items) if isinstance(block, DictionaryBlock) else 0


def to_arrow(block: Block, arrow: pa.DataType, validity: Bytes | None = None) -> pa.Array:
    """Return the block's values as an array of type `arrow`.

    Args:
        block: the values.
        arrow: the leaf's storage type.
        validity: bitmap of the values, None = all valid.

    Raises:
        CapacityError: its values do not fit one array.
        FormatError: the block cannot be of that type, or its bytes are damaged.
    """
    if isinstance(block, AllNull):
        return _all_null(block.count, arrow)
    if pa.types.is_dictionary(arrow):
        return _dictionary(block, arrow, validity)
    if isinstance(block, DictionaryBlock):
        return _decode_dictionary(block, arrow, validity)
    if isinstance(block, FixedWidth):
        return _fixed_width(block, arrow, validity)
    if isinstance(block, Variable):
        return _variable(block, arrow, validity)
    if isinstance(block, FixedSizeList):
        return _fixed_size_list(block, arrow, validity)
    return _packed_struct(block, arrow, validity)


def to_arrow_buffer(data: Bytes | None) -> pa.Buffer | None:
    """Wrap numpy memory as an Arrow buffer, without a copy; the buffer keeps the memory alive."""
    return None if data is None else pa.py_buffer(data)


def _mismatch(what: str, arrow: pa.DataType) -> FormatError:
    return FormatError(f"the page holds {what}, which cannot be {arrow}")


def _all_null(count: int, arrow: pa.DataType) -> pa.Array:
    # An empty struct has no place for nulls: its page says "null" for every row and means a struct.
    if pa.types.is_struct(arrow) and arrow.num_fields == 0:
        return pa.StructArray.from_buffers(arrow, count, [None])
    return pa.nulls(count, arrow)


def _fixed_width(block: FixedWidth, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    if pa.types.is_fixed_size_list(arrow):
        size = arrow.list_size
        if size == 0 or block.bits % size:
            raise _mismatch(f"values of {block.bits} bits", arrow)
        items = FixedWidth(block.bits // size, block.count * size, block.data)
        return _fixed_size_list(FixedSizeList(size, block.count, items), arrow, validity)
    try:
        bits = arrow.bit_width
    except ValueError:
        raise _mismatch(f"values of {block.bits} bits", arrow) from None
    data = block.data
    if bits == 1 and block.bits == 8:
        data = pack_bits(data[: block.count])
    elif bits != block.bits:
        raise _mismatch(f"values of {block.bits} bits", arrow)
    byte_count = (block.count * bits + 7) // 8
    if len(data) < byte_count:
        raise FormatError(
            f"{block.count} values of {bits} bits need {byte_count} bytes, the page has {len(data)}"
        )
    # Some Arrow kernels insist on naturally aligned values; a range read from a store may start anywhere.
    if bits >= 16 and data.__array_interface__["data"][0] % min(bits // 8 & -(bits // 8), 16):
        data = data.copy()
    return pa.Array.from_buffers(arrow, block.count, [to_arrow_buffer(validity), to_arrow_buffer(data)])


def _variable(block: Variable, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    large = pa.types.is_large_string(arrow) or pa.types.is_large_binary(arrow)
    text = pa.types.is_string(arrow) or pa.types.is_large_string(arrow)
    if not (large or text or pa.types.is_binary(arrow)):
        raise _mismatch("byte strings", arrow)
    if not large and int(block.offsets[-1]) > _INT32_MAX:
        raise CapacityError
    offsets = block.offsets.astype(np.int64 if large else np.int32, copy=False)
    buffers = [to_arrow_buffer(validity), pa.py_buffer(offsets), to_arrow_buffer(block.data)]
    array = pa.Array.from_buffers(arrow, block.count, buffers)
    if text and not _all_utf8(block):
        # Bytes under nulls may be anything, which only the slow check knows.
        check_stored_text(array)
    return array


def _all_utf8(block: Variable) -> bool:
    """Tell whether every string is valid UTF-8, which Arrow promises to everyone downstream."""
    if is_ascii(block.data):
        return True
    # All bytes together are valid, and no string starts inside a character: then each is valid.
    ends = pa.py_buffer(np.array([0, len(block.data)], dtype=np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, ends, to_arrow_buffer(block.data)]).validate(
            full=True
        )
    except pa.ArrowInvalid:
        return False
    starts = block.offsets[:-1][np.diff(block.offsets) > 0]
    return bool((block.data[starts] & 0xC0 != 0x80).all())


def _fixed_size_list(block: FixedSizeList, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    if not pa.types.is_fixed_size_list(arrow) or arrow.list_size != block.dimension:
        raise _mismatch(f"lists of {block.dimension} items", arrow)
    items = to_arrow(block.items, arrow.value_type, block.validity)
    if len(items) != block.count * block.dimension:
        raise FormatError(f"{block.count} lists of {block.dimension} items have {len(items)} items")
    return pa.Array.from_buffers(arrow, block.count, [to_arrow_buffer(validity)], children=[items])


def _packed_struct(block: PackedStruct, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    if not pa.types.is_struct(arrow) or arrow.num_fields != len(block.children):
        raise _mismatch(f"structs of {len(block.children)} fields", arrow)
    children = [to_arrow(child, arrow.field(i).type) for i, child in enumerate(block.children)]
    if any(len(child) != block.count for child in children):
        raise FormatError("the fields of a packed struct differ in length")
    return pa.Array.from_buffers(arrow, block.count, [to_arrow_buffer(validity)], children=children)


_INDEX_TYPES = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}


def _indices(block: FixedWidth, validity: Bytes | None) -> pa.Array:
    if block.bits not in _INDEX_TYPES:
        raise FormatError(f"dictionary indices of {block.bits} bits")
    return _fixed_width(block, _INDEX_TYPES[block.bits], validity)


def _decode_dictionary(block: DictionaryBlock, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    """Replace indices by the items they name; `take` and `repeat_strings` check that they exist."""
    few = _few_items(block)
    if few is not None:
        return to_arrow(few, arrow, validity)
    items = to_arrow(block.items, arrow)
    indices = _indices(block.indices, validity)
    if pa.types.is_string(arrow) or pa.types.is_binary(arrow):
        numbers = np.frombuffer(indices.buffers()[1], dtype=f"<u{block.indices.bits // 8}")[: len(indices)]
        result = repeat_strings(items, numbers, validity)
        if result is not None:
            return result
        ends = np.frombuffer(items.buffers()[1], np.int32)[: len(items) + 1]
        if int(np.diff(ends).max(initial=0)) * len(numbers) > _INT32_MAX:
            inside = numbers[numbers < len(items)].astype(np.int64)
            if int(np.diff(ends).astype(np.int64)[inside].sum()) > _INT32_MAX:
                raise CapacityError
    plain = _plain_items(items, indices, validity)
    return items.take(indices) if plain is None else plain


def _few_items(block: DictionaryBlock) -> FixedWidth | None:
    """Return few items of one width by their numbers, which costs Arrow more than the items do.

    None for others, and if a number, even that of a null, has no item.
    """
    indices, items = block.indices, block.items
    if not isinstance(items, FixedWidth) or not 0 < indices.count <= _FEW:
        return None
    if indices.bits not in _INDEX_TYPES or items.bits not in _INDEX_TYPES:
        return None
    numbers = indices.data.view(f"<u{indices.bits // 8}")[: indices.count]
    values = items.data[: items.count * items.bits // 8]
    if len(numbers) < indices.count or len(values) * 8 < items.count * items.bits:
        return None
    if int(numbers.max()) >= items.count or values.__array_interface__["data"][0] % (items.bits // 8):
        return None
    return FixedWidth(items.bits, indices.count, values.view(f"<u{items.bits // 8}")[numbers].view(np.uint8))


def _plain_items(items: pa.Array, indices: pa.Array, validity: Bytes | None) -> pa.Array | None:
    """Return items of one width by their numbers; None if a number, even that of a null, has no item.

    Arrow's `take` does several times as much work where indices are null, or have to be checked.
    """
    try:
        whole = items.type.bit_width % 8 == 0 and not pa.types.is_nested(items.type)
    except ValueError:
        return None
    numbers = np.frombuffer(indices.buffers()[1], f"<u{indices.type.bit_width // 8}")[: len(indices)]
    if not whole or items.null_count or not len(numbers) or int(numbers.max()) >= len(items):
        return None
    plain = pa.Array.from_buffers(indices.type, len(indices), [None, indices.buffers()[1]])
    strings = pc.take(items, plain, boundscheck=False)
    return pa.Array.from_buffers(items.type, len(strings), [to_arrow_buffer(validity), strings.buffers()[1]])


def _dictionary(block: Block, arrow: pa.DataType, validity: Bytes | None) -> pa.Array:
    """Return a dictionary array; plain values become their own dictionary."""
    if not isinstance(block, DictionaryBlock):
        return to_arrow(block, arrow.value_type, validity).dictionary_encode().cast(arrow)
    indices = _indices(block.indices, validity)
    if indices.type.bit_width == arrow.index_type.bit_width:
        indices = indices.view(arrow.index_type)
    else:
        indices = indices.cast(arrow.index_type)
    items = to_arrow(block.items, arrow.value_type)
    return pa.DictionaryArray.from_arrays(indices, items, ordered=arrow.ordered)
