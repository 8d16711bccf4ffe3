"""Writes ByteStreamSplit: the first bytes of a chunk's values, then all second bytes, and so on.

(Lance file format, encodings: byte-stream split.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.file.v2_1.encodings.plain_writer import ChunkBuffer, Indices, flat
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["SplitChunks"]


@dataclass(frozen=True)
class SplitChunks:
    """Words of 32 or 64 bits, their bytes sorted by place."""

    words: npt.NDArray[Any]

    @property
    def count(self) -> int:
        """Number of slots."""
        return len(self.words)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return self.words.nbytes

    @property
    def description(self) -> pb.CompressiveEncoding:
        """ByteStreamSplit around Flat."""
        values = flat(self.words.dtype.itemsize * 8)
        return pb.CompressiveEncoding(byte_stream_split=pb.ByteStreamSplit(values=values))

    def cost(self, positions: Indices) -> Indices:
        """Return the bytes of the slots before each position."""
        return positions * self.words.dtype.itemsize

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return one buffer per chunk."""
        width = self.words.dtype.itemsize
        rows = self.words.view(np.uint8).reshape(-1, width)
        out = np.empty(self.words.nbytes, np.uint8)
        sizes = np.diff(bounds)
        # All chunks but the last have one length as a rule: they are transposed together.
        alike = len(sizes) - 1 if (sizes[:-1] == sizes[0]).all() else 0
        if alike:
            end, size = int(bounds[alike]), int(sizes[0])
            target = out[: end * width].reshape(alike, width, size)
            target[:] = rows[:end].reshape(alike, size, width).transpose(0, 2, 1)
        for start, stop in pairwise(bounds[alike:].tolist()):
            out[start * width : stop * width].reshape(width, stop - start)[:] = rows[start:stop].T
        return [ChunkBuffer(out, bounds * width)]
