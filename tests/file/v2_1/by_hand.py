"""Chunks and encodings made by hand, and what is in the blocks that they decode to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from spark_lance.file.v2_1 import ENCODINGS
from spark_lance.file.v2_1.base.blocks import FixedWidth, Variable
from spark_lance.file.v2_1.base.chunks import Chunks, Ranges
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["RESOLVER", "chunks", "flat", "numbers", "pieces", "strings", "variable"]

RESOLVER = Resolver(ENCODINGS)


def pieces(parts: Sequence[bytes], gap: int = 0) -> Ranges:
    """Lay byte strings out one after the other, with `gap` bytes of filler before each."""
    data = b"".join(b"\xee" * gap + part for part in parts)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    starts = np.cumsum(sizes + gap) - sizes
    return Ranges(np.frombuffer(data, np.uint8), starts, sizes)


def chunks(counts: Sequence[int], *buffers: Sequence[bytes], gap: int = 0) -> Chunks:
    """Make the chunks of a page; buffers[b][c] is buffer b of chunk c."""
    return Chunks(tuple(pieces(parts, gap) for parts in buffers), np.array(counts, dtype=np.int64))


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def variable(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(variable=pb.Variable(offsets=flat(bits)))


def numbers(block: Any) -> list[int]:
    """Return the values of a block of 8 to 64 bit values."""
    assert isinstance(block, FixedWidth)
    values: list[int] = block.data.view(f"<u{block.bits // 8}")[: block.count].tolist()
    assert len(values) == block.count
    return values


def strings(block: Any) -> list[bytes]:
    assert isinstance(block, Variable)
    assert block.offsets[0] == 0
    assert block.offsets[-1] == len(block.data)
    ends = block.offsets.tolist()
    return [block.data[a:b].tobytes() for a, b in pairwise(ends)]
