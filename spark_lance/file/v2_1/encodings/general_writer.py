"""Writes General: zstd or lz4 around another encoding, see general.py for the bytes.

(Lance file format, encodings: general.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_lance.file.v2_1.plain_values import U8, Block
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["Compression", "compress_block"]

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
    data: U8 = np.frombuffer(compression.prefix(len(block.data)) + packed.to_pybytes(), np.uint8)
    return Block(compression.describe(block.description), block.count, data)
