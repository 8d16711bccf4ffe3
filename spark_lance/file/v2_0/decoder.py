"""Shared by the 2.0 codecs: the interfaces of decoders and pages, and compressed buffers.

A 2.0 page is a tree of `ArrayEncoding` messages over the page's buffers. A codec opens one message of the
tree. It checks the message against the Arrow type and the expected number of values, opens its inner
encodings through the page, and returns a decoder. Opening reads no data. A decoder then reads any range of
values and fetches only the bytes of that range, if the layout allows it.

The bytes of a `Flat` encoding are stored plain, or compressed as a whole:

    none, ""   the bytes
    zstd       u64 length of the bytes, then a zstd frame; old writers omitted the length (then the buffer
               starts with the frame magic 28 b5 2f fd)
    lz4        u32 length of the bytes, then an LZ4 block (no frame)

(Lance file format 2.0, Flat.compression; section "General" for the framing.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_claim, most_bytes
from spark_lance.file.base.source import PageSource
from spark_lance.proto import encodings20_pb2 as pb

Range = tuple[int, int]
"""(offset, size) of bytes in the file."""


class Decoder(Protocol):
    """Reads the values of one encoded array.

    A range that starts at a multiple of eight is returned as an array without offset, so that an outer
    encoding can add its bitmap.
    """

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the byte ranges that `read(start, stop)` needs, as far as they are known without reading."""
        ...

    def read(self, start: int, stop: int) -> pa.Array:
        """Return values [start, stop), start < stop, both within the count given at opening."""
        ...


class Items(Protocol):
    """The items of the lists of one page, numbered from the page's first item."""

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the byte ranges that are known to belong to items [start, stop)."""
        ...

    def read(self, start: int, stop: int) -> pa.Array:
        """Return items [start, stop) as one array, which may be empty."""
        ...


@dataclass(frozen=True)
class PageBuffer:
    """One buffer of a page."""

    source: PageSource
    offset: int
    size: int

    def range(self, start: int, stop: int) -> Range:
        """Return the file range of bytes [start, stop) of the buffer."""
        return self.offset + start, stop - start

    def read(self, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop).

        Raises:
            FormatError: the buffer is too short.
        """
        if not 0 <= start <= stop <= self.size:
            raise FormatError(f"bytes {start} to {stop} are needed of a buffer of {self.size} bytes")
        if start == stop:
            return pa.py_buffer(b"")
        return self.source.get(self.offset + start, stop - start)


@dataclass(frozen=True)
class PageView:
    """A page as codecs see it: its buffers, its inner encodings, and for lists the items."""

    source: PageSource
    buffers: tuple[Range, ...]
    opener: Callable[[pb.ArrayEncoding, pa.DataType, int, PageView], Decoder]
    items: Items | None = None

    def buffer(self, reference: pb.Buffer) -> PageBuffer:
        """Return the buffer that a message refers to.

        Raises:
            FormatError: the page has no such buffer.
            UnsupportedFormatError: the buffer belongs to the column or the file, which no writer does.
        """
        if reference.buffer_type != pb.Buffer.PAGE:
            raise UnsupportedFormatError("a page refers to a buffer of its column or file")
        if reference.buffer_index >= len(self.buffers):
            raise FormatError(f"buffer {reference.buffer_index} of a page with {len(self.buffers)} buffers")
        return PageBuffer(self.source, *self.buffers[reference.buffer_index])

    def open(self, encoding: pb.ArrayEncoding, kind: pa.DataType, count: int) -> Decoder:
        """Open an inner encoding with `count` values of the Arrow type `kind`."""
        return self.opener(encoding, kind, count, self)


Open = Callable[[pb.ArrayEncoding, pa.DataType, int, PageView], Decoder]
"""How a codec opens an encoding whose oneof names it: (encoding, expected type, number of values, page).

Raises FormatError if type, count and buffers do not fit together, UnsupportedFormatError for legal forms that
are not decoded here.
"""


_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Maximum decompressed bytes per compressed byte: a zstd block of 128 KiB has at least 4 bytes, and an LZ4
# match grows by 255 per byte. A larger stated size is damage and must not be allocated.
_ZSTD_RATIO = 1 << 15
_LZ4_RATIO = 256


class ByteRun(Protocol):
    """A run of bytes, compressed or not."""

    @property
    def size(self) -> int:
        """Number of bytes, uncompressed."""
        ...

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the file ranges of bytes [start, stop)."""
        ...

    def full_ranges(self) -> list[Range]:
        """Return the file range of all bytes."""
        ...

    def read(self, start: int, stop: int) -> pa.Buffer:
        """Return bytes [start, stop); FormatError if there are fewer."""
        ...


class _StoredBuffer:
    def __init__(self, buffer: PageBuffer) -> None:
        self._buffer = buffer
        self.size = buffer.size

    def ranges(self, start: int, stop: int) -> list[Range]:
        return [self._buffer.range(start, stop)] if start < stop <= self.size else []

    def full_ranges(self) -> list[Range]:
        return self.ranges(0, self.size)

    def read(self, start: int, stop: int) -> pa.Buffer:
        return self._buffer.read(start, stop)


class _Compressed:
    """Decompresses once and keeps the bytes while the page is open."""

    def __init__(self, buffer: PageBuffer, scheme: str) -> None:
        self._buffer = buffer
        self._scheme = scheme
        self._bytes: pa.Buffer | None = None

    @property
    def size(self) -> int:
        return int(self._decompressed_data().size)

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self.full_ranges() if start < stop else []

    def full_ranges(self) -> list[Range]:
        is_lazy = self._buffer.size and self._bytes is None
        return [self._buffer.range(0, self._buffer.size)] if is_lazy else []

    def read(self, start: int, stop: int) -> pa.Buffer:
        data = self._decompressed_data()
        if not 0 <= start <= stop <= data.size:
            raise FormatError(f"bytes {start} to {stop} are needed of {data.size} decompressed bytes")
        return data.slice(start, stop - start)

    def _decompressed_data(self) -> pa.Buffer:
        if self._bytes is None:
            buffer = self._buffer.read(0, self._buffer.size)
            self._bytes = decompress(buffer, self._scheme) if buffer.size else buffer
        return self._bytes


def open_bytes(flat: pb.Flat, page: PageView) -> ByteRun:
    """Open the buffer of a Flat message with any kind of values.

    Raises:
        FormatError: the page has no such buffer.
        UnsupportedFormatError: an unknown compression scheme.
    """
    buffer = page.buffer(flat.buffer)
    scheme = flat.compression.scheme
    if scheme in ("", "none"):
        return _StoredBuffer(buffer)
    if scheme not in ("zstd", "lz4"):
        raise UnsupportedFormatError(f"compression scheme {scheme!r} is not supported; zstd and lz4 are")
    return _Compressed(buffer, scheme)


def decompress(buffer: pa.Buffer, scheme: str) -> pa.Buffer:
    """Return the decompressed bytes, the inverse of `compress`.

    Raises:
        FormatError: the bytes cannot be decompressed, or have another length than stated.
    """
    head = buffer.slice(0, min(8, buffer.size)).to_pybytes()
    if scheme == "zstd":
        if head.startswith(_ZSTD_MAGIC):
            return _decompress_bare_zstd(buffer)
        prefix, codec, ratio = 8, "zstd", _ZSTD_RATIO
    else:
        prefix, codec, ratio = 4, "lz4_raw", _LZ4_RATIO
    size = int.from_bytes(head[:prefix], "little")
    payload = buffer.slice(prefix) if buffer.size > prefix else pa.py_buffer(b"")
    if size > ratio * (payload.size + 1):
        raise FormatError(f"{payload.size} bytes of {scheme} cannot hold the {size} bytes that they claim")
    check_claim(size, payload.size, f"{scheme} data")
    if size == 0:
        return pa.py_buffer(b"")
    try:
        data = pa.Codec(codec).decompress(payload, decompressed_size=size)
    except OSError as error:
        raise FormatError(f"a {scheme} buffer cannot be decompressed: {error}") from error
    return data


def _decompress_bare_zstd(buffer: pa.Buffer) -> pa.Buffer:
    try:
        with pa.CompressedInputStream(pa.BufferReader(buffer), "zstd") as stream:
            data = stream.read_buffer(most_bytes(buffer.size) + 1)
    except OSError as error:
        raise FormatError(f"a zstd buffer cannot be decompressed: {error}") from error
    check_claim(data.size, buffer.size, "zstd data")
    return data


def compress(data: pa.Buffer, scheme: str) -> pa.Buffer:
    """Return the compressed form of `data`. `scheme` is "zstd" or "lz4"."""
    prefix, codec = (8, "zstd") if scheme == "zstd" else (4, "lz4_raw")
    payload = pa.Codec(codec).compress(data)
    frame = np.empty(prefix + payload.size, dtype=np.uint8)
    frame[:prefix] = np.frombuffer(data.size.to_bytes(prefix, "little"), dtype=np.uint8)
    frame[prefix:] = np.frombuffer(payload, dtype=np.uint8)
    return pa.py_buffer(frame)
