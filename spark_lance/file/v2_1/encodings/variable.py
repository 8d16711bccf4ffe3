"""Variable: byte strings with offsets.

    Variable { offsets: Flat(32 or 64) }

    mini-block chunk   (n + 1) offsets, counted from the start of the chunk's buffer, then the bytes, then pad
                       to a multiple of the offset width. Example ("ab", "c"), 32 bits:
                       0c 00 00 00  0e 00 00 00  0f 00 00 00  61 62 63 fe
    block              bits per offset (32 or 64) and position of the bytes, each as wide as an offset, then
                       (n + 1) offsets that count from the bytes' position and start at 0, then the bytes
    full-zip           the values as they are

(Lance file format, encodings: variable.)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.buffers import check_offsets
from spark_lance.file.v2_1.blocks import Variable
from spark_lance.file.v2_1.chunks import Chunks, Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.codec import Resolver, compression_name
from spark_lance.file.v2_1.encodings.flat import flat_bits
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_block", "decode_mini_block", "decode_zipped"]


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


def _words(
    pieces: Ranges, counts: Ints, dtype: np.dtype[np.uint32] | np.dtype[np.uint64]
) -> npt.NDArray[np.int64]:
    """Return the first counts[i] words of every piece, one after the other; sizes were checked."""
    raw = pieces.part(0, counts * dtype.itemsize).concat().view(dtype)
    # A u64 of 2**63 or more becomes negative: the checks of offsets refuse it.
    return raw.astype(np.int64)


def decode_mini_block(variable: pb.Variable, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode all chunks of a page; offsets of the result run over the whole page."""
    dtype = _offset_dtype(variable)
    width = dtype.itemsize
    pieces = chunks.only("variable")
    counts = chunks.counts
    heads = (counts + 1) * width
    pieces.require(heads, "offsets of byte strings")
    words = _words(pieces, counts + 1, dtype)
    bounds = exclusive_sum(counts + 1)
    firsts = words[bounds[:-1]]
    lasts = words[bounds[1:] - 1]
    if bool((firsts < heads).any()) or bool((lasts > pieces.sizes).any()) or bool((firsts > lasts).any()):
        raise FormatError("offsets of byte strings leave their chunk")
    sizes = lasts - firsts
    bases = exclusive_sum(sizes)
    offsets = np.empty(chunks.total + 1, dtype=np.int64)
    offsets[-1] = bases[-1]
    # The last offset of a chunk falls on the first of the next one and is left out.
    words += np.repeat(bases[:-1] - firsts, counts + 1)
    if len(counts) == 1:
        offsets[:] = words
    else:
        keep = np.ones(len(words), dtype=np.bool_)
        keep[bounds[1:] - 1] = False
        offsets[:-1] = words[keep]
    data = pieces.part(firsts, sizes).concat()
    check_offsets(offsets, len(data))
    return Variable(offsets, data)


def decode_block(variable: pb.Variable, chunks: Chunks, resolver: Resolver) -> Variable:
    """Decode one buffer of byte strings, the form that dictionaries have."""
    width = _offset_dtype(variable).itemsize
    pieces = chunks.only("variable")
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
    """Full-zip values are stored as they are."""
    _offset_dtype(variable)
    return values
