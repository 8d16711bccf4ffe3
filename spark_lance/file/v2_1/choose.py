"""The writer's choice: which layout and which encodings a page gets. All thresholds are in this module.

No valid value at all -> constant page; so too, from 2.2 on, if all values are the same and there are no
levels. Dictionaries and values that are not whole bytes -> mini-block. Otherwise wide values -> full-zip,
narrow ones -> mini-block.

Numbers of 8 to 64 bits (dates, floats and dictionary indices are numbers too) become runs, bit-packed blocks
or stay as they are, whatever is smallest by some margin. Strings, binaries and, from 2.2 on, numbers of 64
bits get a dictionary where that is smaller by some margin; numbers of 128 bits get one in 2.1 too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.file.v2_1.constant_writer import MAX_INLINE_BYTES
from spark_lance.file.v2_1.dictionary_writer import DictionaryLimits, encode_dictionary
from spark_lance.file.v2_1.encodings.bitpacking import BLOCK
from spark_lance.file.v2_1.encodings.bitpacking_writer import PackedChunks
from spark_lance.file.v2_1.encodings.general_writer import Compression, compress_block
from spark_lance.file.v2_1.encodings.rle_writer import RunChunks, run_starts
from spark_lance.file.v2_1.mini_block_writer import ChunkPolicy
from spark_lance.file.v2_1.plain_values import (
    Block,
    Bools,
    ChunkValues,
    FixedChunks,
    VariableChunks,
    ZipFixed,
    ZipVariable,
    is_variable,
    plain_block,
    value_bits,
    zip_fixed,
    zip_variable,
)
from spark_lance.file.v2_1.ravel import Leaf
from spark_lance.file.version import FileVersion

__all__ = ["FullZip", "MiniBlock", "NullPage", "ScalarPage", "choose", "full_zip"]

# Chunks are the unit of random access. 16 KiB keep the cost per chunk small next to copying it.
_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=4096)
# Bit-packed chunks are one block each.
_PACKED_POLICY = ChunkPolicy(target_bytes=16 * 1024, max_values=BLOCK)
# Bit packing costs time in reading: it must save this share of the bytes.
_WORTH_PACKING = 0.03

# So do runs, which besides are cut at the bounds of chunks.
_WORTH_RUNS = 0.1
# A dictionary costs the reader a lookup per value. Text that is not repeated can be made smaller otherwise.
_LIMITS = DictionaryLimits()
_WORTH_NUMBERED = 0.05
_WORTH_NUMBERED_TEXT = 0.2
# Dictionaries are compressed from 2.2 on if that saves this share of their bytes.
_WORTH_COMPRESSED_ITEMS = 0.1

# Wide values gain nothing from chunks: one value is already a sensible read.
_WIDE_FIXED_BYTES = 256
# Strings and binaries: some value is at least this wide, and the mean is no less than a quarter of it ...
_WIDE_VARIABLE_BYTES = 256
# ... or some value is so wide that neighbours should not have to be read with it.
_VERY_WIDE_VARIABLE_BYTES = 8 * 1024


@dataclass(frozen=True)
class NullPage:
    """No slot holds a valid value."""


@dataclass(frozen=True)
class ScalarPage:
    """Every level has a slot that holds this value; a bool is one byte."""

    value: bytes


@dataclass(frozen=True)
class MiniBlock:
    """Chunks of `values`, which number the items of `dictionary` if there is one."""

    values: ChunkValues
    dictionary: Block | None = None
    policy: ChunkPolicy = _POLICY


@dataclass(frozen=True)
class FullZip:
    """Values interleaved with their levels."""

    values: ZipFixed | ZipVariable


def choose(leaf: Leaf, version: FileVersion) -> NullPage | ScalarPage | MiniBlock | FullZip:
    """Decide how the page of `leaf` is written.

    Raises:
        SchemaError: a struct without fields is null or inside a list, which the format cannot say.
    """
    array = leaf.values
    if leaf.field.logical_type == "struct":
        if leaf.definition is not None or leaf.rep is not None:
            raise SchemaError(
                f"column {leaf.field.name!r}: Lance cannot store a struct without fields "
                "that is null or in a list"
            )
        return NullPage()
    valid = leaf.slot_validity()
    if len(array) == 0 or (valid is not None and not valid.any()):
        return NullPage()
    if pa.types.is_dictionary(array.type):
        return _numbers(FixedChunks.of(array, valid), _items(array.dictionary, version))
    if version is not FileVersion.V2_1 and leaf.rep is None and leaf.definition is None:
        value = _only_value(array)
        if value is not None:
            return ScalarPage(value)
    if is_variable(array.type):
        chunks = VariableChunks.of(array, valid)
        numbered = _numbered(array, valid, (1 - _WORTH_NUMBERED_TEXT) * chunks.nbytes, version)
        if numbered is not None:
            return numbered
        return FullZip(zip_variable(array, valid)) if _is_wide(chunks) else MiniBlock(chunks)
    bits = value_bits(array.type)
    if bits % 8 == 0 and bits // 8 >= _WIDE_FIXED_BYTES and not _has_bit_items(array.type):
        return FullZip(zip_fixed(array, valid))
    plain = FixedChunks.of(array, valid)
    direct = _numbers(plain)
    if plain.layers or bits not in (64, 128) or (bits == 64 and version is FileVersion.V2_1):
        return direct
    hashable = pa.Array.from_buffers(
        pa.uint64() if bits == 64 else pa.binary(16), plain.count, [None, pa.py_buffer(plain.items)]
    )
    return _numbered(hashable, None, (1 - _WORTH_NUMBERED) * direct.values.nbytes, version) or direct


def _numbers(plain: FixedChunks, dictionary: Block | None = None) -> MiniBlock:
    """Choose the encoding of values of one width, which may be indices into a dictionary."""
    words = plain.words()
    if words is None:
        return MiniBlock(plain, dictionary)
    packed = PackedChunks.of(words)
    pays = packed.nbytes < (1 - _WORTH_PACKING) * plain.nbytes
    least = packed.nbytes if pays else plain.nbytes
    starts = run_starts(words)
    runs = RunChunks.of(words, starts)
    if runs.nbytes < (1 - _WORTH_RUNS) * least:
        return MiniBlock(runs, dictionary)
    return MiniBlock(packed, dictionary, _PACKED_POLICY) if pays else MiniBlock(plain, dictionary)


def _numbered(array: pa.Array, valid: Bools | None, limit: float, version: FileVersion) -> MiniBlock | None:
    """Return the page with a dictionary if that takes less than `limit` bytes."""
    encoded = encode_dictionary(array, valid, _LIMITS)
    if encoded is None:
        return None
    items = _items(encoded.dictionary, version)
    page = _numbers(FixedChunks.of(encoded, valid), items)
    return page if page.values.nbytes + items.data.nbytes < limit else None


def _items(array: pa.Array, version: FileVersion) -> Block:
    """Return the block of a dictionary."""
    block = plain_block(array)
    if version is FileVersion.V2_1:
        return block
    compressed = compress_block(block, Compression("lz4"))
    pays = compressed.data.nbytes < (1 - _WORTH_COMPRESSED_ITEMS) * block.data.nbytes
    return compressed if pays else block


def _only_value(array: pa.Array) -> bytes | None:
    """Return the bytes of the value that a whole array (one slot or more, no nulls) consists of, if any."""
    if is_variable(array.type):
        return None if array[0] != array[len(array) - 1] else _only_variable(array)
    if pa.types.is_fixed_size_list(array.type) or value_bits(array.type) > 8 * MAX_INLINE_BYTES:
        return None
    items = FixedChunks.of(array, None).items
    rows = items.reshape(len(array), -1)
    if (rows[0] != rows[-1]).any() or (rows != rows[0]).any():
        return None
    value: bytes = rows[0].tobytes()
    return value


def _only_variable(array: pa.Array) -> bytes | None:
    chunks = VariableChunks.of(array, None)
    lengths = np.diff(chunks.offsets)
    if (lengths != lengths[0]).any():
        return None
    rows = chunks.data.reshape(len(array), int(lengths[0]))
    value: bytes = rows[0].tobytes()
    return None if (rows != rows[0]).any() else value


def full_zip(leaf: Leaf) -> FullZip | None:
    """Return the full-zip form of a page that does not fit into chunks, None if the type has none."""
    array, valid = leaf.values, leaf.slot_validity()
    if is_variable(array.type):
        return FullZip(zip_variable(array, valid))
    if pa.types.is_dictionary(array.type) or _has_bit_items(array.type):
        return None
    return FullZip(zip_fixed(array, valid))


def _is_wide(chunks: VariableChunks) -> bool:
    lengths = np.diff(chunks.offsets)
    widest = int(lengths.max())
    if widest >= _VERY_WIDE_VARIABLE_BYTES:
        return True
    return widest >= _WIDE_VARIABLE_BYTES and float(lengths.mean()) >= _WIDE_VARIABLE_BYTES / 4


def _has_bit_items(arrow: pa.DataType) -> bool:
    while pa.types.is_fixed_size_list(arrow):
        arrow = arrow.value_type
    return bool(pa.types.is_boolean(arrow))
