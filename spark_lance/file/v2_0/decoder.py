"""The common part of the 2.0 codecs: the interface of a decoder, and of the page for a codec.

A 2.0 page is a tree of `ArrayEncoding` messages over the page's buffers. A codec opens one message of the
tree. It checks the message against the Arrow type and the expected number of values, opens its inner
encodings through the page, and returns a decoder. Opening reads no data. A decoder then reads any range of
values by fetching only the bytes of that range, if the layout lets it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.source import PageSource
from spark_lance.proto import encodings20_pb2 as pb

Range = tuple[int, int]
"""(offset, size) of bytes in the file."""


class Decoder(Protocol):
    """Reads the values of one encoded array.

    A range that starts at a multiple of eight gives an array without offset, so that bitmaps of an outer
    encoding can be put around it.
    """

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the bytes that `read(start, stop)` surely needs and that can be told without reading."""
        ...

    def read(self, start: int, stop: int) -> pa.Array:
        """Return values [start, stop), start < stop, both within the count given at opening."""
        ...


class Items(Protocol):
    """The items of the lists of one page, counted from the page's first item."""

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the bytes that surely belong to items [start, stop)."""
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
        """Return where bytes [start, stop) of the buffer are in the file."""
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
    """The page for a codec: the buffers, how to open inner encodings, and (of a list) the items."""

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
        """Open an inner encoding that should hold `count` values of the Arrow type `kind`."""
        return self.opener(encoding, kind, count, self)


Open = Callable[[pb.ArrayEncoding, pa.DataType, int, PageView], Decoder]
"""How a codec opens an encoding whose oneof names it: (encoding, expected type, number of values, page).

Raises FormatError if type, count and buffers do not fit together, UnsupportedFormatError for legal forms that
are not decoded here.
"""
