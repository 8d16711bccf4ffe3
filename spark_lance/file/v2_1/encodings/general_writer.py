"""Writes General: zstd or lz4 around another encoding, see general.py for the bytes.

(Lance file format, encodings: general.)
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spark_lance.file.v2_1.encodings.plain_writer import (
    U8,
    Block,
    ChunkBuffer,
    ChunkValues,
    Indices,
    ZipVariable,
)
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["CompressedChunks", "Compression", "compress_block", "compress_pieces", "compress_zipped"]

_SCHEMES = {"zstd": pb.COMPRESSION_ZSTD, "lz4": pb.COMPRESSION_LZ4}
_CODECS = {"zstd": "zstd", "lz4": "lz4_raw"}
_PREFIXES: dict[str, type[np.generic]] = {"zstd": np.uint64, "lz4": np.uint32}


@dataclass(frozen=True)
class Compression:
    """A scheme, "zstd" or "lz4", and its level (None: the default; only zstd has levels here)."""

    scheme: str
    level: int | None = None

    def codec(self) -> pa.Codec:
        """Return Arrow's compressor."""
        level = self.level if self.scheme == "zstd" else None
        return pa.Codec(_CODECS[self.scheme], compression_level=level)

    def prefix(self, size: int) -> bytes:
        """Return what stands before the compressed form of `size` bytes."""
        return np.array([size], _PREFIXES[self.scheme]).tobytes()

    def describe(self, values: pb.CompressiveEncoding) -> pb.CompressiveEncoding:
        """Return the description of compressed `values`."""
        compression = pb.BufferCompression(scheme=_SCHEMES[self.scheme])
        return pb.CompressiveEncoding(general=pb.General(compression=compression, values=values))


def compress_block(block: Block, compression: Compression) -> Block:
    """Return the block with its one buffer compressed."""
    packed: pa.Buffer = compression.codec().compress(block.data)
    data: U8 = np.frombuffer(compression.prefix(block.data.nbytes) + packed.to_pybytes(), np.uint8)
    return Block(compression.describe(block.description), block.count, data)


@dataclass(frozen=True)
class CompressedChunks:
    """Values of another encoding, the first buffer of every chunk compressed."""

    values: ChunkValues
    compression: Compression

    @property
    def count(self) -> int:
        """Number of slots."""
        return self.values.count

    @property
    def nbytes(self) -> int:
        """Bytes of all slots before they are compressed."""
        return self.values.nbytes

    @property
    def description(self) -> pb.CompressiveEncoding:
        """General around the description of the values."""
        return self.compression.describe(self.values.description)

    def cost(self, positions: Indices) -> Indices:
        """Return the bytes of the slots before each position, before they are compressed."""
        return self.values.cost(positions)

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return the buffers of the values, the first one compressed."""
        first, *others = self.values.chunk(bounds)
        return [compress_pieces(first, self.compression), *others]


def compress_pieces(pieces: ChunkBuffer, compression: Compression) -> ChunkBuffer:
    """Compress each piece on its own; empty pieces stay empty."""
    codec = compression.codec()
    plain = pa.py_buffer(pieces.data)
    parts: list[bytes | pa.Buffer] = []
    sizes = np.zeros(len(pieces.starts), np.int64)
    for c, (start, stop) in enumerate(pairwise(pieces.starts.tolist())):
        if start < stop:
            prefix, packed = (
                compression.prefix(stop - start),
                codec.compress(plain.slice(start, stop - start)),
            )
            parts += [prefix, packed]
            sizes[c + 1] = len(prefix) + packed.size
    return ChunkBuffer(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes))


def compress_zipped(values: ZipVariable, compression: Compression) -> ZipVariable:
    """Compress every full-zip value on its own; by zstd instead of lz4 if one is null or empty.

    The reference reader wants the length prefix of lz4 even where there are no bytes at all.
    """
    _, offsets, data = values.data.buffers()
    held = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    cuts = np.frombuffer(offsets, np.int64)[values.data.offset :][: len(values.data) + 1]
    if compression.scheme == "lz4" and bool((np.diff(cuts) == 0).any()):
        compression = Compression("zstd")
    packed = compress_pieces(ChunkBuffer(held, cuts), compression)
    buffers = [None, pa.py_buffer(packed.starts), pa.py_buffer(packed.data)]
    array = pa.Array.from_buffers(pa.large_binary(), len(values.data), buffers)
    return ZipVariable(compression.describe(values.description), array, values.bits_per_offset)
