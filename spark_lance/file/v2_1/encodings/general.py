"""General: zstd or lz4 around another encoding.

    General { compression: BufferCompression { scheme }, values }

    zstd   u64 size of the decompressed bytes, then a zstd frame; older: only the frame (28 b5 2f fd ...)
    lz4    u32 size of the decompressed bytes, then an lz4 block (not a frame)

Mini-block chunks: value buffer 0 of each chunk is compressed, the others are not. Block: the whole buffer.
Full-zip: each value on its own; an empty value has no bytes at all. The inner encoding applies to the
decompressed bytes. (Lance file format, encodings: general.)

The writer compresses text in place. The uncompressed buffer of a chunk is a table of offsets followed by the
bytes of the values (plain_writer.py). To avoid a copy, the writer compresses both parts separately:

    zstd   u64 size, a frame with the table, a frame with the bytes. Decoders read consecutive frames as one
           stream. The frame of the table may be stored uncompressed: in a frame with the text an offset would
           take 3.8 of its 4 bytes. In a compressed frame of its own it takes 2.6 bytes, for a tenth of the
           text's compression time and a seventh of its decompression time.

               28 b5 2f fd  a0  u32 size of the table  u24 (size << 3 | 1)  table

    lz4    u32 size, a block. A block starts with a token whose upper four bits are the number of literal
    bytes
           (15: more follow, see `_with_literals`). The offsets, which lz4 cannot compress, become part of
           these literals.

The padding after the bytes, up to a multiple of the offset width, may have any content: here it is the start
of the next chunk. (Lance file format, encodings: general, variable; RFC 8878; lz4 block format.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from spark_lance.arrow.buffers import as_bytes
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_claim, most_bytes
from spark_lance.file.v2_1.base.blocks import Block, Variable
from spark_lance.file.v2_1.base.chunks import Bytes, Chunks, Ranges, exclusive_sum
from spark_lance.file.v2_1.base.codec import Resolver
from spark_lance.file.v2_1.encodings.plain_writer import (
    U8,
    ChunkBuffer,
    ChunkValues,
    EncodedBlock,
    VariableChunks,
    ZipVariable,
)
from spark_lance.proto import encodings21_pb2 as pb

_ZSTD_MAGIC = 0xFD2FB528
# A zstd block of 4 bytes decodes to at most 128 KiB, an lz4 byte to at most 255 bytes. Larger sizes are
# damage.
_ZSTD_RATIO = 1 << 15
_LZ4_RATIO = 255
# At least this many lz4 blocks, of at most these bytes, are decompressed as one frame with this header.
_FRAMED_FROM = 4
_LZ4_FRAMES = {1 << 16: bytes.fromhex("04224d18604082"), 1 << 22: bytes.fromhex("04224d18607073")}
# Stated sizes below this are allocated at once. For larger ones the buffer grows with the decoded bytes.
_TRUSTED_SIZE = 1 << 26


def decode_mini_block(general: pb.General, chunks: Chunks, resolver: Resolver) -> Block:
    """Decode all chunks of a page."""
    if not chunks.buffers:
        raise FormatError("general compression needs a buffer")
    first = decompress(general.compression, chunks.buffers[0])
    return resolver.mini_block(general.values, Chunks((first, *chunks.buffers[1:]), chunks.counts))


def decode_block(general: pb.General, chunks: Chunks, resolver: Resolver) -> Block:
    """Decode independent buffers."""
    pieces = decompress(general.compression, chunks.require_single("general"))
    return resolver.block(general.values, Chunks((pieces,), chunks.counts))


def decode_zipped(general: pb.General, values: Variable, resolver: Resolver) -> Block:
    """Decode full-zip values, each compressed separately."""
    offsets = values.offsets.astype(np.int64)
    pieces = Ranges(values.data, offsets[:-1], np.diff(offsets))
    plain = decompress(general.compression, pieces)
    inner = Variable(exclusive_sum(plain.sizes), plain.concat())
    return resolver.zipped_variable(general.values, inner)


def decompress(compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
    """Decompress every piece separately. Empty pieces remain empty.

    Returns:
        Contiguous pieces in one array.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the scheme is unknown.
    """
    scheme = compression.scheme
    if scheme not in (pb.COMPRESSION_ZSTD, pb.COMPRESSION_LZ4):
        raise UnsupportedFormatError(f"compression scheme {scheme} is not supported")
    filled = pieces.sizes > 0
    some = pieces if bool(filled.all()) else pieces.select(filled)
    sizes = np.zeros(len(pieces.starts), dtype=np.int64)
    try:
        sizes[filled], data = _zstd(some) if scheme == pb.COMPRESSION_ZSTD else _lz4(some)
    except OSError as error:
        # Arrow's codecs raise an OSError for damaged bytes.
        raise FormatError(f"compressed data is damaged: {error}") from error
    return Ranges(data, exclusive_sum(sizes)[:-1], sizes)


def _zstd(pieces: Ranges) -> tuple[Ints, Bytes]:
    """Return the decompressed size of every piece, and the bytes of all."""
    none = np.zeros(0, dtype=np.int64)
    if len(pieces.starts) == 0:
        return none, pieces.data[:0]
    compressed_bytes = int(pieces.sizes.sum())
    bare = pieces.column(0, 4) == _ZSTD_MAGIC
    if bool(bare.any()):
        if not bool(bare.all()):
            raise FormatError("only some zstd frames of a page have a length prefix")
        view = pieces.data.data
        ends = (pieces.starts + pieces.sizes).tolist()
        plain, total = [], 0
        for start, end in zip(pieces.starts.tolist(), ends, strict=True):
            plain.append(_stream(view[start:end], most_bytes(compressed_bytes) - total))
            total += len(plain[-1])
            check_claim(total, compressed_bytes, "zstd data")
        return np.array([len(part) for part in plain], dtype=np.int64), as_bytes(b"".join(plain))
    sizes = pieces.column(0, 8)
    if bool((sizes > pieces.sizes * _ZSTD_RATIO).any()):
        raise FormatError("zstd data claims an impossible size")
    # zstd decodes consecutive frames as one stream, so one call decodes all chunks.
    frames = pieces.part(8, pieces.sizes - 8).concat()
    total = int(sizes.sum())
    check_claim(total, compressed_bytes, "zstd data")
    if total > _TRUSTED_SIZE + 64 * len(frames):
        data = as_bytes(_stream(frames.data, total))
        if len(data) != total:
            raise FormatError(f"zstd data claims {total} bytes and has {len(data)}")
        return sizes, data
    if total == 0:
        return sizes, frames[:0]
    return sizes, as_bytes(pa.Codec("zstd").decompress(frames, decompressed_size=total))


def _stream(frame: memoryview, limit: int) -> bytes:
    """Decompress without trusting the stated size: at most one byte more than the limit."""
    with pa.CompressedInputStream(pa.BufferReader(frame), "zstd") as stream:
        plain: bytes = stream.read(limit + 1)
        return plain


def _lz4(pieces: Ranges) -> tuple[Ints, Bytes]:
    sizes = pieces.column(0, 4)
    if bool((sizes > pieces.sizes * _LZ4_RATIO).any()):
        raise FormatError("lz4 data claims an impossible size")
    check_claim(int(sizes.sum()), int(pieces.sizes.sum()), "lz4 data")
    ends = pieces.starts + pieces.sizes
    if len(sizes) >= _FRAMED_FROM and int(sizes.min()) > 0 and int(pieces.sizes.min()) > 4:
        most = max(int(sizes.max()), int(pieces.sizes.max()) - 4)
        if most <= max(_LZ4_FRAMES):
            data = _lz4_framed(pieces.part(4, pieces.sizes - 4), most, int(sizes.sum()))
            _check_tails(pieces.data, ends, data, sizes)
            return sizes, data
    codec = pa.Codec("lz4_raw")
    view = pieces.data.data
    plain: list[pa.Buffer] = []
    for start, end, size in zip((pieces.starts + 4).tolist(), ends.tolist(), sizes.tolist(), strict=True):
        part = codec.decompress(view[start:end], decompressed_size=size) if size else b""
        # The decoder does not report how much it wrote. An lz4 block ends with up to five literal bytes, so
        # if a block is shorter than stated, its end differs from the end of its output.
        tail = min(size, 5)
        if size and bytes(part[size - tail :]) != bytes(view[end - tail : end]):
            raise FormatError("lz4 data does not have the size that it claims")
        plain.append(part)
    return sizes, as_bytes(plain[0]) if len(plain) == 1 else as_bytes(b"".join(plain))


def _lz4_framed(blocks: Ranges, most: int, total: int) -> Bytes:
    """Decompress blocks of lz4 as one frame, in one call.

    `most` is the maximum compressed or decompressed size of a block. `total` is their decompressed size.

        frame   04 22 4d 18  60 (blocks stand alone)  largest block  checksum of these two
                u32 size, block; ...; u32 0
    """
    head = next(head for limit, head in _LZ4_FRAMES.items() if most <= limit)
    view = blocks.data.data
    parts: list[bytes | memoryview] = [head]
    heads = blocks.sizes.astype("<u4").tobytes()
    ends = (blocks.starts + blocks.sizes).tolist()
    for i, (start, end) in enumerate(zip(blocks.starts.tolist(), ends, strict=True)):
        parts += (heads[4 * i : 4 * i + 4], view[start:end])
    parts.append(bytes(4))
    return as_bytes(pa.Codec("lz4").decompress(b"".join(parts), decompressed_size=total))


def _check_tails(packed: Bytes, ends: Ints, data: Bytes, sizes: Ints) -> None:
    """Check that the last bytes of blocks are the last bytes of their output."""
    stops = np.cumsum(sizes)
    for back in range(1, 6):
        deep = sizes >= back
        if not np.array_equal(packed[ends[deep] - back], data[stops[deep] - back]):
            raise FormatError("lz4 data does not have the size that it claims")


_SCHEMES = {"zstd": pb.COMPRESSION_ZSTD, "lz4": pb.COMPRESSION_LZ4}
_CODECS = {"zstd": "zstd", "lz4": "lz4_raw"}
_PREFIXES: dict[str, type[np.generic]] = {"zstd": np.uint64, "lz4": np.uint32}
# Compressing shorter tables does not pay for the start-up time of zstd.
_LEAST_TABLE_BYTES = 1024
_FRAME_HEAD = bytes.fromhex("28b52ffda0")
# An lz4 block without content.
_NO_BYTES = b"\0"

_Pieces = list[bytes | memoryview | pa.Buffer]


@dataclass(frozen=True)
class Compression:
    """A scheme, "zstd" or "lz4", and its level. None is the default; only zstd has levels here."""

    scheme: str
    level: int | None = None

    def codec(self) -> pa.Codec:
        """Return Arrow's compressor."""
        level = self.level if self.scheme == "zstd" else None
        return pa.Codec(_CODECS[self.scheme], compression_level=level)

    def prefix(self, size: int) -> bytes:
        """Return the prefix of the compressed form of `size` bytes."""
        return np.array([size], _PREFIXES[self.scheme]).tobytes()

    def describe(self, values: pb.CompressiveEncoding) -> pb.CompressiveEncoding:
        """Return the description of compressed `values`."""
        compression = pb.BufferCompression(scheme=_SCHEMES[self.scheme])
        return pb.CompressiveEncoding(general=pb.General(compression=compression, values=values))


def compress_block(block: EncodedBlock, compression: Compression) -> EncodedBlock:
    """Return the block with its one buffer compressed."""
    packed: pa.Buffer = compression.codec().compress(block.data)
    data: U8 = np.frombuffer(compression.prefix(block.data.nbytes) + packed.to_pybytes(), np.uint8)
    return EncodedBlock(compression.describe(block.description), block.count, data)


@dataclass(frozen=True)
class CompressedChunks:
    """Values of another encoding, with the first buffer of every chunk compressed."""

    values: ChunkValues
    compression: Compression

    @property
    def count(self) -> int:
        """Number of slots."""
        return self.values.count

    @property
    def nbytes(self) -> int:
        """Uncompressed bytes of all slots."""
        return self.values.nbytes

    @property
    def description(self) -> pb.CompressiveEncoding:
        """General around the description of the values."""
        return self.compression.describe(self.values.description)

    def cost(self, positions: Ints) -> Ints:
        """Return the uncompressed bytes of the slots before each position."""
        return self.values.cost(positions)

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return the value buffers, with the first one compressed."""
        first, *others = self.values.chunk(bounds)
        return [compress_pieces(first, self.compression), *others]


def compress_pieces(pieces: ChunkBuffer, compression: Compression) -> ChunkBuffer:
    """Compress each piece separately. Empty pieces remain empty."""
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
    """Compress every full-zip value separately, with zstd instead of lz4 if a value is null or empty.

    The reference reader expects lz4's length prefix even for values without bytes.
    """
    _, offsets, data = values.data.buffers()
    data_bytes = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    cuts = np.frombuffer(offsets, np.int64)[values.data.offset :][: len(values.data) + 1]
    if compression.scheme == "lz4" and bool((np.diff(cuts) == 0).any()):
        compression = Compression("zstd")
    packed = compress_pieces(ChunkBuffer(data_bytes, cuts), compression)
    buffers = [None, pa.py_buffer(packed.starts), pa.py_buffer(packed.data)]
    array = pa.Array.from_buffers(pa.large_binary(), len(values.data), buffers)
    return ZipVariable(compression.describe(values.description), array, values.bits_per_offset)


@dataclass(frozen=True)
class CompressedText(CompressedChunks):
    """Strings or binaries in mini-block chunks, each chunk compressed.

    `packs_tables` makes zstd compress the tables of offsets, too.
    """

    values: VariableChunks
    packs_tables: bool = False

    def chunk(self, bounds: Ints) -> list[ChunkBuffer]:
        """Return one compressed buffer per chunk. A table of offsets has less than 128 KiB."""
        zstd = self.compression.scheme == "zstd"
        join = _zstd_join(self.compression, self.packs_tables) if zstd else _lz4_join(self.compression)
        offsets, data = self.values.offsets, self.values.data
        buffer, step = pa.py_buffer(data), self.values.width // 8
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
                plain = buffer.slice(start, filled - start)
            else:
                plain = pa.py_buffer(data[start:].tobytes() + bytes(filled - len(data)))
            pieces = [self.compression.prefix(head + plain.size), *join(table, plain)]
            parts += pieces
            sizes[c + 1] = sum(len(piece) for piece in pieces)
        return [ChunkBuffer(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes))]


def _zstd_join(compression: Compression, packs_tables: bool) -> Callable[[bytes, pa.Buffer], _Pieces]:
    """Return a function that compresses a table and bytes to two frames."""
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
    """Return the header of a last zstd block that is stored uncompressed."""
    return (size << 3 | 1).to_bytes(3, "little")


def _lz4_join(compression: Compression) -> Callable[[bytes, pa.Buffer], _Pieces]:
    """Return a function that compresses a table and bytes to one block."""
    codec = compression.codec()

    def join(table: bytes, plain: pa.Buffer) -> _Pieces:
        return _with_literals(table, codec.compress(plain) if plain.size else pa.py_buffer(_NO_BYTES))

    return join


def _with_literals(head: bytes, block: pa.Buffer) -> _Pieces:
    """Return an lz4 block that decodes to `head` followed by the content of `block`.

    A count of 15 or more is continued in bytes after the token, up to and including the first one below 255.
    Matches have backward distances, so they remain valid.
    """
    # Cast, because its length would be the size of the compressor's memory.
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
