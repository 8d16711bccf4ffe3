"""Variable: byte strings with offsets.

    Variable { offsets: Flat(32 or 64) }       in mini-block pages of 2.3 also Delta, Range, Constant, ...

    mini-block chunk   (n + 1) offsets, counted from the start of the chunk's buffer, then the bytes, then pad
                       to a multiple of the offset width. Example ("ab", "c"), 32 bits:
                       0c 00 00 00  0e 00 00 00  0f 00 00 00  61 62 63 fe
    the same, 2.3      offsets that are not Flat start at 0 in every chunk; they are a buffer of their own
                       before that of the bytes, unless they need none (Range, Constant)
    block              bits per offset (32 or 64) and position of the bytes, each as wide as an offset, then
                       (n + 1) offsets that count from the bytes' position and start at 0, then the bytes
    full-zip           the values as they are

(Lance file format, encodings: variable.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.buffers import check_offsets
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth, Variable
from spark_lance.file.v2_1.base.chunks import Chunks, exclusive_sum
from spark_lance.file.v2_1.base.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.proto import encodings21_pb2 as pb

_INT32_MAX = 2**31 - 1


def _offset_dtype(variable: pb.Variable) -> np.dtype[np.uint32] | np.dtype[np.uint64]:
    if variable.HasField("values"):
        raise UnsupportedFormatError("byte strings with buffer compression are not supported")
    name = compression_name(variable.offsets)
    if name != "flat":
        raise UnsupportedFormatError(f"byte strings whose offsets are encoded as {name!r} are not supported")
    bits = flat_bits(variable.offsets.flat)
    if bits == 32:
        return np.dtype("<u4")
    if bits == 64:
        return np.dtype("<u8")
    raise FormatError(f"byte strings with offsets of {bits} bits")


def decode_mini_block(variable: pb.Variable, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode all chunks of a page. The offsets of the result cover the whole page."""
    if compression_name(variable.offsets) != "flat" and not variable.HasField("values"):
        return _decode_separate(variable, chunks, resolver)
    dtype = _offset_dtype(variable)
    width = dtype.itemsize
    pieces = chunks.require_single("variable")
    counts = chunks.counts
    heads = (counts + 1) * width
    pieces.require(heads, "offsets of byte strings")
    words = pieces.part(0, heads).concat().view(dtype)
    bounds = exclusive_sum(counts + 1)
    # As signed numbers, so that offsets that are too large become negative or do not ascend.
    firsts = words[bounds[:-1]].astype(np.int64)
    lasts = words[bounds[1:] - 1].astype(np.int64)
    if bool((firsts < heads).any()) or bool((lasts > pieces.sizes).any()) or bool((firsts > lasts).any()):
        raise FormatError("offsets of byte strings leave their chunk")
    sizes = lasts - firsts
    bases = exclusive_sum(sizes)
    total = int(bases[-1])
    narrow = np.dtype(np.int32 if total <= _INT32_MAX and width == 4 else np.int64)
    offsets = np.empty(chunks.total + 1, dtype=narrow)
    offsets[-1] = total
    _shift_words(words.view(f"<i{width}"), (bases[:-1] - firsts).astype(narrow), counts, offsets)
    check_offsets(offsets, total)
    return Variable(offsets, pieces.part(firsts, sizes).concat())


def _shift_words(
    words: npt.NDArray[Any], shifts: npt.NDArray[Any], counts: Ints, out: npt.NDArray[Any]
) -> None:
    """Write the first counts[i] words of chunk i, plus shifts[i], to `out`, chunk after chunk.

    The last word of a chunk equals the first word of the next one and is omitted.
    """
    count = int(counts[0])
    alike = len(counts) - 1 if bool((counts[:-1] == count).all()) else 0
    read, at = alike * (count + 1), alike * count
    if alike:
        table = words[:read].reshape(alike, count + 1)
        np.add(table[:, :count], shifts[:alike, None], out=out[:at].reshape(alike, count))
    for size, shift in zip(counts[alike:].tolist(), shifts[alike:], strict=True):
        np.add(words[read : read + size], shift, out=out[at : at + size])
        read += size + 1
        at += size


def _decode_separate(variable: pb.Variable, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode chunks whose offsets are not Flat: offsets and bytes are in separate buffers."""
    if not 1 <= len(chunks.buffers) <= 2:
        raise FormatError(f"byte strings with {len(chunks.buffers)} buffers per chunk")
    counts = chunks.counts
    block = resolver.block(variable.offsets, Chunks(chunks.buffers[:-1], counts + 1))
    if not isinstance(block, FixedWidth) or block.bits not in (32, 64):
        raise FormatError("offsets of byte strings must be numbers of 32 or 64 bits")
    words = block.data.view(f"<u{block.bits // 8}")[: chunks.total + len(counts)]
    pieces = chunks.buffers[-1]
    bounds = exclusive_sum(counts + 1)
    sizes = words[bounds[1:] - 1].astype(np.int64)
    if bool((words[bounds[:-1]] != 0).any()) or bool((sizes < 0).any()) or bool((sizes > pieces.sizes).any()):
        raise FormatError("offsets of byte strings leave their chunk")
    bases = exclusive_sum(sizes)
    total = int(bases[-1])
    narrow = np.dtype(np.int32 if total <= _INT32_MAX and block.bits == 32 else np.int64)
    offsets = np.empty(chunks.total + 1, dtype=narrow)
    offsets[-1] = total
    _shift_words(words.view(f"<i{block.bits // 8}"), bases[:-1].astype(narrow), counts, offsets)
    check_offsets(offsets, total)
    return Variable(offsets, pieces.part(0, sizes).concat())


def decode_block(variable: pb.Variable, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode one buffer of byte strings, the form of dictionaries."""
    width = _offset_dtype(variable).itemsize
    pieces = chunks.require_single("variable")
    if len(pieces.starts) != 1:
        raise FormatError("byte strings in block form come in one buffer")
    data = pieces.concat()
    count = chunks.total
    pieces.require(np.array([(count + 3) * width], dtype=np.int64), "offsets of byte strings")
    words = data[: (count + 3) * width].view("<u4" if width == 4 else "<u8").astype(np.int64)
    bits, position = int(words[0]), int(words[1])
    if bits != width * 8:
        raise FormatError(
            f"byte strings say {bits} bits per offset in their buffer and {width * 8} in the page"
        )
    if not (count + 3) * width <= position <= len(data):
        raise FormatError(f"byte strings start at {position} of {len(data)} bytes")
    body = data[position:]
    offsets = words[2:]
    check_offsets(offsets, len(body))
    first = int(offsets[0])
    return Variable(offsets - first, body[first : int(offsets[-1])])


def decode_zipped(variable: pb.Variable, values: Variable, resolver: Resolver) -> Variable:
    """Return full-zip values unchanged: they are stored plain."""
    _offset_dtype(variable)
    return values
