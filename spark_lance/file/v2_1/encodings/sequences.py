"""Range and Delta: unsigned integers derived from their predecessors (file version 2.3 only).

    Range { uncompressed_bits_per_value, start, step }     value i = start + i * step; no buffer
    Delta { uncompressed_bits_per_value, base, deltas }    value 0 = base, value i + 1 = value i + delta i;
                                                           n values have n - 1 deltas in one block

Both wrap at the width of a value and restart in every chunk.
Example: the positions 0, 3, 6, 7 are Delta { 64, base 0 } with the deltas 3, 3, 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Chunks, exclusive_sum
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

_DTYPES: dict[int, np.dtype[Any]] = {bits: np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)}
_MAX_COUNT = 1 << 32


def _word_type(bits: int, *numbers: int) -> np.dtype[Any]:
    """Return the type of values of `bits` bits, after checking that it can represent `numbers`."""
    if bits not in _DTYPES:
        raise FormatError(f"a sequence of {bits} bit values")
    if any(number >> bits for number in numbers):
        raise FormatError(f"{max(numbers)} does not fit a sequence of {bits} bit values")
    return _DTYPES[bits]


def decode_range(sequence: pb.Range, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Return the values of every chunk. There are no bytes to decode."""
    dtype = _word_type(sequence.uncompressed_bits_per_value, sequence.start, sequence.step)
    if chunks.total > _MAX_COUNT:
        raise FormatError(f"a range of {chunks.total} values")
    places = np.arange(chunks.total, dtype=np.int64)
    places -= np.repeat(exclusive_sum(chunks.counts)[:-1], chunks.counts)
    values = places.astype(dtype) * dtype.type(sequence.step) + dtype.type(sequence.start)
    return FixedWidth(dtype.itemsize * 8, chunks.total, values.view(np.uint8))


def decode_delta(sequence: pb.Delta, chunks: Chunks, resolver: Resolver) -> FixedWidth:
    """Decode the buffers of all chunks. A chunk has one delta less than values."""
    dtype = _word_type(sequence.uncompressed_bits_per_value, sequence.base)
    counts = chunks.counts
    if bool((counts < 1).any()):
        raise FormatError("a chunk of differences without a value")
    block = resolver.block(sequence.deltas, Chunks(chunks.buffers, counts - 1))
    if not isinstance(block, FixedWidth) or block.bits != dtype.itemsize * 8:
        raise FormatError(f"differences must be {dtype.itemsize * 8} bit values")
    deltas = block.data[: block.count * dtype.itemsize].view(dtype)
    firsts = exclusive_sum(counts)[:-1]
    steps: npt.NDArray[Any] = np.empty(chunks.total, dtype=dtype)
    inside = np.ones(chunks.total, dtype=np.bool_)
    inside[firsts] = False
    steps[inside] = deltas
    steps[firsts] = 0
    sums = np.cumsum(steps, dtype=dtype)
    # The sum of the chunks before, and the base, in numbers that wrap as the sums do.
    values = sums - np.repeat(sums[firsts] - dtype.type(sequence.base), counts)
    return FixedWidth(dtype.itemsize * 8, chunks.total, values.view(np.uint8))
