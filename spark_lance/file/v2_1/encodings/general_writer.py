"""Writes General: zstd or lz4 around another encoding, see general.py for the bytes.

Compressed chunks of text are made of the values where they lie in memory. A chunk's buffer before it is
compressed is a table of offsets and the bytes of the values (plain_writer.py). Here the two are not put
together first: the bytes are compressed where they are, and the table goes before them.

    zstd   u64 size, a frame that holds the table, a frame that holds the bytes. Frames that follow each other
           are one stream to a decoder. A table may be stored as it is, which is a frame, too: in one with the
           text its offsets would take 3.8 bytes of 4. Compressed in a frame of its own they take 2.6, for a
           tenth of the time that the text takes, and a seventh of a reader's.

               28 b5 2f fd  a0  u32 size of the table  u24 (size << 3 | 1)  table

    lz4    u32 size, a block. A block begins with a token, whose upper four bits say how many bytes follow as
           they are (15: more to come, see `_with_literals`); the offsets, in which lz4 finds nothing, are
           added to these.

The zeros behind the bytes, up to a multiple of the offset width, may be other bytes: here the first ones of
the next chunk. (Lance file format, encodings: general, variable; RFC 8878; lz4 block format.)
"""

from __future__ import annotations

from collections.abc import Callable
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
    VariableChunks,
    ZipVariable,
)
from spark_lance.proto import encodings21_pb2 as pb

__all__ = [
    "CompressedChunks",
    "CompressedText",
    "Compression",
    "compress_block",
    "compress_pieces",
    "compress_zipped",
]

_SCHEMES = {"zstd": pb.COMPRESSION_ZSTD, "lz4": pb.COMPRESSION_LZ4}
_CODECS = {"zstd": "zstd", "lz4": "lz4_raw"}
_PREFIXES: dict[str, type[np.generic]] = {"zstd": np.uint64, "lz4": np.uint32}
# Shorter tables are not worth the time that zstd takes to begin.
_LEAST_TABLE_BYTES = 1024
_FRAME_HEAD = bytes.fromhex("28b52ffda0")
# An lz4 block without a byte.
_NO_BYTES = b"\0"

_Pieces = list[bytes | memoryview | pa.Buffer]


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


@dataclass(frozen=True)
class CompressedText(CompressedChunks):
    """Strings or binaries in mini-block chunks, each chunk compressed.

    `packs_tables` says whether zstd is to compress tables of offsets, too.
    """

    values: VariableChunks
    packs_tables: bool = False

    def chunk(self, bounds: Indices) -> list[ChunkBuffer]:
        """Return the one buffer, compressed; a table of offsets takes less than 128 KiB."""
        zstd = self.compression.scheme == "zstd"
        join = _zstd(self.compression, self.packs_tables) if zstd else _lz4(self.compression)
        offsets, data = self.values.offsets, self.values.data
        held, step = pa.py_buffer(data), self.values.width // 8
        word = np.uint32 if step == 4 else np.uint64
        cuts = offsets[bounds].tolist()
        parts: _Pieces = []
        sizes = np.zeros(len(bounds), np.int64)
        for c, (first, last) in enumerate(pairwise(bounds.tolist())):
            start, stop = cuts[c], cuts[c + 1]
            head = (last - first + 1) * step
            table = (offsets[first : last + 1] + (head - start)).astype(word).tobytes()
            filled = stop + (start - stop) % step
            if filled <= len(data):
                plain = held.slice(start, filled - start)
            else:
                plain = pa.py_buffer(data[start:].tobytes() + bytes(filled - len(data)))
            pieces = [self.compression.prefix(head + plain.size), *join(table, plain)]
            parts += pieces
            sizes[c + 1] = sum(len(piece) for piece in pieces)
        return [ChunkBuffer(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes))]


def _zstd(compression: Compression, packs_tables: bool) -> Callable[[bytes, pa.Buffer], _Pieces]:
    """Return what makes the frames of a table and of bytes."""
    codec = compression.codec()
    of_tables = pa.Codec("zstd", compression_level=max(1, compression.level or 1))

    def join(table: bytes, plain: pa.Buffer) -> _Pieces:
        if packs_tables and len(table) >= _LEAST_TABLE_BYTES:
            head = of_tables.compress(table, asbytes=True)
        else:
            head = _FRAME_HEAD + len(table).to_bytes(4, "little") + _block_head(len(table)) + table
        return [head, codec.compress(plain)] if plain.size else [head]

    return join


def _block_head(size: int) -> bytes:
    """Return the head of a last block of zstd that is stored as it is."""
    return (size << 3 | 1).to_bytes(3, "little")


def _lz4(compression: Compression) -> Callable[[bytes, pa.Buffer], _Pieces]:
    """Return what makes the block of a table and bytes."""
    codec = compression.codec()

    def join(table: bytes, plain: pa.Buffer) -> _Pieces:
        return _with_literals(table, codec.compress(plain) if plain.size else pa.py_buffer(_NO_BYTES))

    return join


def _with_literals(head: bytes, block: pa.Buffer) -> _Pieces:
    """Return an lz4 block that makes some bytes and then what another block makes.

    From a count of 15 on, bytes behind the token are added to it, up to and with the first one below 255.
    Matches count backwards from where they stand, and so mean what they meant.
    """
    # Cast, or its length is that of the memory that the compressor had.
    view = memoryview(block).cast("B")
    count, match = view[0] >> 4, view[0] & 15
    at = 1
    if count == 15:
        more = 255
        while more == 255:
            more = view[at]
            count += more
            at += 1
    full, rest = divmod(count + len(head) - 15, 255)
    if full < 0:
        lead = bytes([count + len(head) << 4 | match])
    else:
        lead = bytes([0xF0 | match]) + b"\xff" * full + bytes([rest])
    return [lead, head, view[at:]]
