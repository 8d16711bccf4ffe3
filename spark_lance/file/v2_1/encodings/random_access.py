"""Reads single values of mini-block chunks without decoding whole chunks.

The functions take, for each requested value, the buffer of its chunk, the number of values in that chunk, and
the position of the value in it. They return one value each. Values of the same chunk are adjacent. A
compressed chunk is decompressed once, and single values are picked from the result. Encodings that are not
`pickable` require decoding whole chunks. (Lance file format: flat, variable, fsst,
inline and out-of-line bit packing, byte-stream split, rle, general, fixed-size list.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.buffers import pack_bits
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.fsst import decode_fsst
from spark_lance.file.v2_1.base.blocks import Block, FixedWidth, Variable
from spark_lance.file.v2_1.base.chunks import (
    Bytes,
    Ranges,
    exclusive_sum,
    gather,
    gather_integers,
    run_starts,
)
from spark_lance.file.v2_1.base.codec import compression_name
from spark_lance.file.v2_1.encodings.bitpacking import BLOCK, GROUPS
from spark_lance.file.v2_1.encodings.byte_stream_split import split_width
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.file.v2_1.encodings.rle import is_flat, pick_block, pick_mini_block
from spark_lance.proto import encodings21_pb2 as pb

# A function that decompresses chunks: (compression, distinct chunks) -> the same chunks, decompressed.
Unpack: TypeAlias = Callable[[pb.BufferCompression, Ranges], Ranges]

_LEVEL_BITS = 16


def pickable(encoding: pb.CompressiveEncoding, buffers: int = 1) -> bool:
    """Return whether `pick` supports values in this encoding, with `buffers` buffers per chunk."""
    name = compression_name(encoding)
    if name == "rle":
        return buffers == 2 and is_flat(encoding.rle)
    if name == "general":
        return pickable(encoding.general.values, buffers)
    if buffers != 1:
        return False
    if name == "flat":
        return not encoding.flat.HasField("data")
    if name == "inline_bitpacking":
        packing = encoding.inline_bitpacking
        return packing.uncompressed_bits_per_value in GROUPS and not packing.HasField("values")
    if name == "byte_stream_split":
        return split_width(encoding.byte_stream_split) is not None
    if name == "variable":
        variable = encoding.variable
        return compression_name(variable.offsets) == "flat" and not variable.HasField("values")
    if name == "fsst":
        return pickable(encoding.fsst.values) and compression_name(encoding.fsst.values) == "variable"
    if name == "fixed_size_list":
        return _list_bits(encoding.fixed_size_list) is not None
    return False


def levels_pickable(encoding: pb.CompressiveEncoding) -> bool:
    """Return whether `pick_levels` supports levels in this encoding."""
    name = compression_name(encoding)
    if name == "out_of_line_bitpacking":
        packing = encoding.out_of_line_bitpacking
        return (
            packing.uncompressed_bits_per_value == _LEVEL_BITS and compression_name(packing.values) == "flat"
        )
    if name == "rle":
        values = encoding.rle.values
        return is_flat(encoding.rle) and values.flat.bits_per_value == _LEVEL_BITS
    return name == "flat" and encoding.flat.bits_per_value == _LEVEL_BITS and pickable(encoding)


def plain_width(encoding: pb.CompressiveEncoding) -> int | None:
    """Return the bytes of a decompressed value if chunks are compressed and values are fixed-width."""
    if compression_name(encoding) != "general":
        return None
    inner = encoding.general.values
    name = compression_name(inner)
    bits = 0
    if name == "flat":
        bits = inner.flat.bits_per_value
    elif name == "fixed_size_list":
        bits = _list_bits(inner.fixed_size_list) or 0
    elif name == "byte_stream_split":
        bits = 8 * (split_width(inner.byte_stream_split) or 0)
    return None if bits % 8 else bits // 8 or None


def pick(
    encoding: pb.CompressiveEncoding,
    buffers: Sequence[Ranges],
    counts: Ints,
    places: Ints,
    unpack: Unpack = decompress,
) -> Block:
    """Return one value per piece.

    Args:
        encoding: an encoding that is `pickable`.
        buffers: for each requested value, the value buffers of its chunk.
        counts: number of values in that chunk.
        places: position of the value in that chunk, 0 <= place < count.
        unpack: decompresses chunks of `general` encodings.

    Raises:
        FormatError: the bytes are damaged.
    """
    name = compression_name(encoding)
    if name == "rle":
        return pick_mini_block(encoding.rle, buffers[0], buffers[1], counts, places)
    if name == "general":
        return pick(
            encoding.general.values, _decompress_first(encoding.general, buffers, unpack), counts, places
        )
    pieces = buffers[0]
    if name == "byte_stream_split":
        return _pick_split(split_width(encoding.byte_stream_split) or 0, pieces, counts, places)
    if name == "flat":
        return _pick_flat(flat_bits(encoding.flat), pieces, places)
    if name == "inline_bitpacking":
        return _pick_inline(encoding.inline_bitpacking.uncompressed_bits_per_value, pieces, places)
    if name == "variable":
        return _pick_variable(encoding.variable, pieces, counts, places)
    if name == "fsst":
        codes = _pick_variable(encoding.fsst.values.variable, pieces, counts, places)
        return Variable(*decode_fsst(encoding.fsst.symbol_table, codes.offsets, codes.data))
    bits = _list_bits(encoding.fixed_size_list) if name == "fixed_size_list" else None
    if bits is None:
        raise UnsupportedFormatError(f"single values of encoding {name!r} cannot be picked")
    return _pick_flat(bits, pieces, places)


def pick_levels(
    encoding: pb.CompressiveEncoding, pieces: Ranges, counts: Ints, places: Ints
) -> npt.NDArray[np.uint16]:
    """Return one level per piece. The arguments are those of `pick`; the encoding is `levels_pickable`."""
    if compression_name(encoding) == "flat":
        return _pick_flat(_LEVEL_BITS, pieces, places).data.view("<u2")
    if compression_name(encoding) == "rle":
        return pick_block(encoding.rle, pieces, counts, places).data.view("<u2")
    width = encoding.out_of_line_bitpacking.values.flat.bits_per_value
    if width > _LEVEL_BITS:
        raise FormatError(f"levels of {_LEVEL_BITS} bits packed to {width} bits")
    full = counts // BLOCK
    # The values after the last whole block are plain words if the buffer has exactly that size.
    size = width * (BLOCK // 8)
    plain = (pieces.sizes == full * size + counts % BLOCK * 2) & (places >= full * BLOCK)
    levels = np.empty(len(places), dtype=np.uint16)
    tails = pieces.select(plain).part((full * size)[plain], (counts % BLOCK * 2)[plain])
    levels[plain] = _pick_flat(_LEVEL_BITS, tails, places[plain] % BLOCK).data.view("<u2")
    block = (places // BLOCK)[~plain]
    packed = pieces.select(~plain)
    packed.require((block + 1) * size, "bit-packed levels")
    widths = np.full(len(block), width, dtype=np.int64)
    levels[~plain] = _unpack_values(
        packed.data, packed.starts + block * size, widths, places[~plain] % BLOCK, 16
    )
    return levels


def _list_bits(fsl: pb.FixedSizeList) -> int | None:
    """Return the bits of one list value if it is only flat bytes, else None."""
    items = 1
    while True:
        items *= fsl.items_per_value
        name = compression_name(fsl.values)
        if fsl.has_validity or not items:
            return None
        if name == "flat":
            bits = items * fsl.values.flat.bits_per_value
            return None if fsl.values.flat.HasField("data") or bits % 8 or bits >> 31 else bits
        if name != "fixed_size_list":
            return None
        fsl = fsl.values.fixed_size_list


def _decompress_first(general: pb.General, buffers: Sequence[Ranges], unpack: Unpack) -> list[Ranges]:
    """Return the decompressed buffers of compressed chunks; only the first buffer is compressed."""
    pieces = buffers[0]
    is_first = run_starts(pieces.starts)
    plain = unpack(general.compression, pieces.select(is_first))
    return [plain.select(np.cumsum(is_first) - 1), *buffers[1:]]


def _pick_split(width: int, pieces: Ranges, counts: Ints, places: Ints) -> FixedWidth:
    pieces.require(counts * width, "byte-stream split values")
    positions = (pieces.starts + places)[:, None] + counts[:, None] * np.arange(width)
    return FixedWidth(width * 8, len(places), pieces.data[positions].reshape(-1))


def _pick_flat(bits: int, pieces: Ranges, places: Ints) -> FixedWidth:
    count = len(places)
    if bits == 1:
        pieces.require(places // 8 + 1, "flat bits")
        flags = pieces.data[pieces.starts + places // 8] >> (places % 8).astype(np.uint8) & 1
        return FixedWidth(1, count, pack_bits(flags))
    width = bits // 8
    if width > len(pieces.data):
        raise FormatError(f"flat values of {bits} bits do not fit the page")
    pieces.require((places + 1) * width, "flat values")
    positions = pieces.starts + places * width
    return FixedWidth(bits, count, pieces.data[positions[:, None] + np.arange(width)].reshape(-1))


def _pick_variable(variable: pb.Variable, pieces: Ranges, counts: Ints, places: Ints) -> Variable:
    width = flat_bits(variable.offsets.flat) // 8
    if width not in (4, 8):
        raise FormatError(f"byte strings with offsets of {width * 8} bits")
    heads = (counts + 1) * width
    pieces.require(heads, "offsets of byte strings")
    at = pieces.starts + places * width
    # Offsets of 2**63 or more become negative and fail the comparison.
    first = gather_integers(pieces.data, at, width).astype(np.int64)
    last = gather_integers(pieces.data, at + width, width).astype(np.int64)
    if bool((first < heads).any()) or bool((last > pieces.sizes).any()) or bool((first > last).any()):
        raise FormatError("offsets of byte strings leave their chunk")
    offsets = exclusive_sum(last - first)
    # Overlapping strings could have more bytes than the page.
    if int(offsets[-1]) > len(pieces.data):
        raise FormatError("byte strings are longer than their page")
    return Variable(offsets, gather(pieces.data, pieces.starts + first, last - first))


def _pick_inline(bits: int, pieces: Ranges, places: Ints) -> FixedWidth:
    if bool((places >= BLOCK).any()):
        raise FormatError(f"a bit-packed chunk holds at most {BLOCK} values")
    widths = pieces.column(0, bits // 8)
    if bool((widths > bits).any()):
        raise FormatError(f"values of {bits} bits packed to {int(widths.max())} bits")
    pieces.require(widths * (BLOCK // 8) + bits // 8, "bit-packed values")
    values = _unpack_values(pieces.data, pieces.starts + bits // 8, widths, places, bits)
    return FixedWidth(bits, len(places), values.view(np.uint8))


@cache
def _rows(bits: int) -> Ints:
    """Return, for every position in a block of words of `bits` bits, its row in its lane."""
    lanes = BLOCK // bits
    rows = np.arange(bits).reshape(bits // 8, 8)[GROUPS[bits]]
    # The value at [row mod 8][place of the group][lane] comes from that row.
    return np.broadcast_to(rows.T[:, :, None], (8, bits // 8, lanes)).reshape(-1).astype(np.int64)


def _unpack_values(data: Bytes, starts: Ints, widths: Ints, places: Ints, bits: int) -> npt.NDArray[Any]:
    """Return one value of a packed block of words of `bits` bits for each (start, width, place)."""
    size, lanes = bits // 8, BLOCK // bits
    if not widths.all():
        values = np.zeros(len(places), dtype=f"<u{size}")
        used = np.flatnonzero(widths)
        values[used] = _unpack_values(data, starts[used], widths[used], places[used], bits)
        return values
    first = _rows(bits)[places] * widths
    shift = first & (bits - 1)
    at = starts + (first // bits * lanes + places % lanes) * size
    spill = shift + widths > bits
    low = gather_integers(data, at, size).astype(np.uint64)
    following = gather_integers(data, at + spill * (lanes * size), size).astype(np.uint64)
    if bits < 64:
        # If a value is within one word, the bits of the next word are masked out.
        selected = low | following << np.uint64(bits)
        selected >>= shift.astype(np.uint64)
    else:
        # A shift by 64 is undefined, so values within one word are not shifted.
        high = following << np.where(spill, bits - shift, 0).astype(np.uint64)
        selected = low >> shift.astype(np.uint64) | np.where(spill, high, np.uint64(0))
    selected &= np.uint64(2**64 - 1) >> (64 - widths).astype(np.uint64)
    result: npt.NDArray[Any] = selected.astype(f"<u{size}")
    return result
