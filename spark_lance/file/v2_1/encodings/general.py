"""General: zstd or lz4 around another encoding.

    General { compression: BufferCompression { scheme }, values }

    zstd   u64 size of the decompressed bytes, then a zstd frame; older: only the frame (28 b5 2f fd ...)
    lz4    u32 size of the decompressed bytes, then an lz4 block (not a frame)

Mini-block chunks: value buffer 0 of each chunk is compressed, the others are not. Block: the whole buffer.
Full-zip: each value on its own; an empty value has no bytes at all. The inner encoding applies to the
decompressed bytes. (Lance file format, encodings: general.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.buffers import as_bytes
from spark_lance.file.v2_1.blocks import Block, Variable
from spark_lance.file.v2_1.chunks import Bytes, Chunks, Ints, Ranges, exclusive_sum
from spark_lance.file.v2_1.codec import Resolver
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["decode_block", "decode_mini_block", "decode_zipped", "decompress"]

_ZSTD_MAGIC = 0xFD2FB528
# A zstd block of 4 bytes makes at most 128 KiB, an lz4 byte at most 255 bytes: larger claims are damage.
_ZSTD_RATIO = 1 << 15
_LZ4_RATIO = 255
# So many blocks of lz4, of these bytes at most, are decompressed as one frame, which begins like this.
_FRAMED_FROM = 4
_LZ4_FRAMES = {1 << 16: bytes.fromhex("04224d18604082"), 1 << 22: bytes.fromhex("04224d18607073")}
# Claims below this are allocated at once; larger ones grow with the bytes that really come out.
_TRUSTED_SIZE = 1 << 26


def decode_mini_block(general: pb.General, chunks: Chunks, resolver: Resolver) -> Block:
    """Decode all chunks of a page."""
    if not chunks.buffers:
        raise FormatError("general compression needs a buffer")
    first = decompress(general.compression, chunks.buffers[0])
    return resolver.mini_block(general.values, Chunks((first, *chunks.buffers[1:]), chunks.counts))


def decode_block(general: pb.General, chunks: Chunks, resolver: Resolver) -> Block:
    """Decode buffers that stand on their own."""
    pieces = decompress(general.compression, chunks.only("general"))
    return resolver.block(general.values, Chunks((pieces,), chunks.counts))


def decode_zipped(general: pb.General, values: Variable, resolver: Resolver) -> Block:
    """Decode full-zip values, each compressed on its own."""
    offsets = values.offsets.astype(np.int64)
    pieces = Ranges(values.data, offsets[:-1], np.diff(offsets))
    plain = decompress(general.compression, pieces)
    inner = Variable(exclusive_sum(plain.sizes), plain.concat())
    return resolver.zipped_variable(general.values, inner)


def decompress(compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
    """Decompress every piece on its own; empty pieces stay empty.

    Returns:
        Pieces that lie one after the other in one array.

    Raises:
        FormatError: the bytes are damaged.
        UnsupportedFormatError: the scheme is not known.
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
        # Arrow's codecs report bad bytes as an OSError.
        raise FormatError(f"compressed data is damaged: {error}") from error
    return Ranges(data, exclusive_sum(sizes)[:-1], sizes)


def _zstd(pieces: Ranges) -> tuple[Ints, Bytes]:
    """Return the decompressed size of every piece, and the bytes of all."""
    none = np.zeros(0, dtype=np.int64)
    if len(pieces.starts) == 0:
        return none, pieces.data[:0]
    bare = pieces.column(0, 4) == _ZSTD_MAGIC
    if bool(bare.any()):
        if not bool(bare.all()):
            raise FormatError("only some zstd frames of a page have a length prefix")
        view = pieces.data.data
        ends = (pieces.starts + pieces.sizes).tolist()
        plain = [_stream(view[start:end]) for start, end in zip(pieces.starts.tolist(), ends, strict=True)]
        return np.array([len(part) for part in plain], dtype=np.int64), as_bytes(b"".join(plain))
    sizes = pieces.column(0, 8)
    if bool((sizes > pieces.sizes * _ZSTD_RATIO).any()):
        raise FormatError("zstd data claims an impossible size")
    # zstd decodes frames that follow each other as one stream: one call for all chunks.
    frames = pieces.part(8, pieces.sizes - 8).concat()
    total = int(sizes.sum())
    if total > _TRUSTED_SIZE + 64 * len(frames):
        data = as_bytes(_stream(frames.data, total))
        if len(data) != total:
            raise FormatError(f"zstd data claims {total} bytes and has {len(data)}")
        return sizes, data
    if total == 0:
        return sizes, frames[:0]
    return sizes, as_bytes(pa.Codec("zstd").decompress(frames, decompressed_size=total))


def _stream(frame: memoryview, limit: int = -1) -> bytes:
    """Decompress without trusting a size; with a limit, at most one byte more than that."""
    with pa.CompressedInputStream(pa.BufferReader(frame), "zstd") as stream:
        plain: bytes = stream.read() if limit < 0 else stream.read(limit + 1)
        return plain


def _lz4(pieces: Ranges) -> tuple[Ints, Bytes]:
    sizes = pieces.column(0, 4)
    if bool((sizes > pieces.sizes * _LZ4_RATIO).any()):
        raise FormatError("lz4 data claims an impossible size")
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
        # The decoder does not say how much it wrote. An lz4 block ends in (up to) five literal bytes, so a
        # block that is shorter than it claims does not end like its output.
        tail = min(size, 5)
        if size and bytes(part[size - tail :]) != bytes(view[end - tail : end]):
            raise FormatError("lz4 data does not have the size that it claims")
        plain.append(part)
    return sizes, as_bytes(plain[0]) if len(plain) == 1 else as_bytes(b"".join(plain))


def _lz4_framed(blocks: Ranges, most: int, total: int) -> Bytes:
    """Decompress blocks of lz4 as one frame, in one call.

    `most` is how many bytes a block makes, or has, at most; together they make `total`.

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
    """Check that blocks end where their sizes say, as far as their last bytes tell."""
    stops = np.cumsum(sizes)
    for back in range(1, 6):
        deep = sizes >= back
        if not np.array_equal(packed[ends[deep] - back], data[stops[deep] - back]):
            raise FormatError("lz4 data does not have the size that it claims")
