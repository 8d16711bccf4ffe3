"""The footer of a data file, and the protobuf blocks that describe its columns and pages.

Per column one `ColumnMetadata` message: a column encoding, and per page the absolute (offset, size) of
each of its buffers, its length in rows, its first row ("priority") and its encoding. An encoding is a
serialized `google.protobuf.Any` whose type url names the message inside. The url is written by hand,
because it must say `lance.` whatever our generated messages are called. (Lance file format, container.)

The footer is the last 40 bytes of the file:

    offset  type   meaning
         0  u64    position of the first column-metadata block
         8  u64    position of the column-metadata offset table: per column (u64 position, u64 size)
        16  u64    position of the global-buffer offset table: per buffer (u64 position, u64 size)
        24  u32    number of global buffers
        28  u32    number of columns
        32  u16    major version
        34  u16    minor version
        36  4      "LANC"

All integers are little-endian (Lance file format, container).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from google.protobuf.any_pb2 import Any
from google.protobuf.message import DecodeError, Message

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.proto import encodings20_pb2, file2_pb2

MAGIC = b"LANC"
_LAYOUT = struct.Struct("<QQQIIHH4s")
FOOTER_SIZE = _LAYOUT.size


@dataclass(frozen=True)
class Footer:
    """Positions (bytes from the start of the file), counts and version numbers of one data file."""

    column_metadata_start: int
    column_table_start: int
    global_table_start: int
    num_global_buffers: int
    num_columns: int
    major: int
    minor: int

    def pack(self) -> bytes:
        """Return the 40 bytes."""
        return _LAYOUT.pack(
            self.column_metadata_start,
            self.column_table_start,
            self.global_table_start,
            self.num_global_buffers,
            self.num_columns,
            self.major,
            self.minor,
            MAGIC,
        )

    @classmethod
    def parse(cls, tail: bytes) -> Footer:
        """Parse the footer at the end of `tail`, the last bytes of a file (40 or more).

        Raises:
            FormatError: `tail` is too short, or the magic is missing.
        """
        if len(tail) < FOOTER_SIZE:
            raise FormatError(f"a data file has at least {FOOTER_SIZE} bytes, this one has {len(tail)}")
        *numbers, magic = _LAYOUT.unpack(tail[-FOOTER_SIZE:])
        if magic != MAGIC:
            raise FormatError("the file does not end in the magic LANC")
        return cls(*numbers)


BUFFER_ALIGNMENT = 64
ARRAY_ENCODING_URL = "/lance.encodings.ArrayEncoding"
PAGE_LAYOUT_URL = "/lance.encodings21.PageLayout"
PLANAR_LAYOUT_URL = "/lance.encodings23.PlanarLayout"
COLUMN_ENCODING_URL = "/lance.encodings.ColumnEncoding"

BytesLike: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer | np.ndarray"
_M = TypeVar("_M", bound=Message)


@dataclass(frozen=True)
class Page:
    """One page of a column: the positions of its buffers, and the undecoded description of their content.

    `buffers` are absolute (offset, size) pairs in bytes. `length` counts rows (2.0: the column's items).
    """

    buffers: tuple[tuple[int, int], ...]
    length: int
    priority: int
    encoding: bytes
    type_url: str

    def has_encoding_type(self, type_url: str) -> bool:
        """Return whether `type_url` is the type of the page's encoding message."""
        return self.type_url.rpartition("/")[2] == type_url.rpartition("/")[2]

    def layout(self, kind: type[_M], type_url: str) -> _M:
        """Decode the page's encoding as a message of class `kind`, whose type url must be `type_url`.

        Raises:
            UnsupportedFormatError: the encoding has another type.
            FormatError: the message is damaged.
        """
        if not self.has_encoding_type(type_url):
            raise UnsupportedFormatError(f"page encoding {self.type_url!r} is not supported")
        try:
            return kind.FromString(self.encoding)
        except DecodeError as error:
            raise FormatError(f"the page encoding is not a valid {kind.__name__} message") from error


@dataclass(frozen=True)
class ColumnMetadata:
    """All pages of one column, in row order.

    `blob` marks a 2.0 column of blob descriptors. `items` is the column with the bytes of strings, which
    Lance 0.13 wrote as lists of bytes.
    """

    index: int
    pages: tuple[Page, ...]
    blob: bool = False
    buffers: tuple[tuple[int, int], ...] = ()
    items: ColumnMetadata | None = None

    @property
    def num_rows(self) -> int:
        """Sum of the page lengths."""
        return sum(page.length for page in self.pages)

    @property
    def has_lists(self) -> bool:
        """Whether a 2.0 column contains list offsets; the next column has the items."""
        if not self.pages or not self.pages[0].has_encoding_type(ARRAY_ENCODING_URL):
            return False
        encoding = self.pages[0].layout(encodings20_pb2.ArrayEncoding, ARRAY_ENCODING_URL)
        return bool(encoding.WhichOneof("array_encoding") == "list")


@dataclass(frozen=True)
class EncodedPage:
    """A page from a field writer: buffers without positions in a file, and their description."""

    column: int
    buffers: Sequence[BytesLike]
    layout: Message
    length: int
    priority: int


def parse_column(index: int, data: bytes, file_size: int) -> ColumnMetadata:
    """Parse the metadata block of column number `index` in a file of `file_size` bytes.

    Raises:
        FormatError: the message is invalid, or a buffer reaches beyond the file.
        UnsupportedFormatError: an encoding is stored elsewhere in the file.
    """
    try:
        message = file2_pb2.ColumnMetadata.FromString(data)
    except DecodeError as error:
        raise FormatError("the column metadata is not a valid message", place=f"column {index}") from error
    pages = []
    for number, page in enumerate(message.pages):
        place = f"column {index}, page {number}"
        buffers = _parse_buffers(page.buffer_offsets, page.buffer_sizes, file_size, place)
        url, value = _parse_encoding(page.encoding, place)
        pages.append(Page(buffers, page.length, page.priority, value, url))
    buffers = _parse_buffers(message.buffer_offsets, message.buffer_sizes, file_size, f"column {index}")
    return ColumnMetadata(index, tuple(pages), _is_blob(message.encoding, index), buffers)


def _parse_buffers(
    offsets: Sequence[int], sizes: Sequence[int], file_size: int, place: str
) -> tuple[tuple[int, int], ...]:
    if len(offsets) != len(sizes):
        raise FormatError(f"{len(offsets)} buffer offsets but {len(sizes)} sizes", place=place)
    pairs = tuple(zip(offsets, sizes, strict=True))
    for offset, size in pairs:
        if offset + size > file_size:
            raise FormatError(
                f"a buffer of {size} bytes at {offset} reaches beyond the file of {file_size} bytes",
                place=place,
            )
    return pairs


def _parse_encoding(encoding: file2_pb2.Encoding, place: str) -> tuple[str, bytes]:
    kind = encoding.WhichOneof("location")
    if kind == "indirect":
        raise UnsupportedFormatError("indirect encodings are not supported", place=place)
    if kind != "direct":
        raise FormatError("the encoding is missing", place=place)
    try:
        holder = Any.FromString(encoding.direct.encoding)
    except DecodeError as error:
        raise FormatError("the encoding is not a valid Any message", place=place) from error
    return holder.type_url, holder.value


def _is_blob(encoding: file2_pb2.Encoding, index: int) -> bool:
    if encoding.WhichOneof("location") is None:
        raise FormatError("the column has no encoding", place=f"column {index}")
    url, value = _parse_encoding(encoding, f"column {index}")
    if url.rpartition("/")[2] != COLUMN_ENCODING_URL[1:]:
        raise UnsupportedFormatError(f"column encoding {url!r} is not supported", place=f"column {index}")
    try:
        kind = encodings20_pb2.ColumnEncoding.FromString(value).WhichOneof("column_encoding")
    except DecodeError as error:
        raise FormatError("the column encoding is damaged", place=f"column {index}") from error
    if kind == "zone_index":
        raise UnsupportedFormatError("zone-indexed columns are not supported", place=f"column {index}")
    return bool(kind == "blob")


def pack_column(pages: Sequence[Page], blob: bool = False) -> bytes:
    """Return the metadata block of a column with these pages; `blob` as in `ColumnMetadata`."""
    message = file2_pb2.ColumnMetadata()
    encoding = encodings20_pb2.ColumnEncoding()
    (encoding.blob.inner if blob else encoding).values.SetInParent()
    message.encoding.direct.encoding = _pack_any(COLUMN_ENCODING_URL, encoding.SerializeToString())
    for page in pages:
        entry = message.pages.add(length=page.length, priority=page.priority)
        for offset, size in page.buffers:
            entry.buffer_offsets.append(offset)
            entry.buffer_sizes.append(size)
        entry.encoding.direct.encoding = _pack_any(page.type_url, page.encoding)
    return message.SerializeToString()


def _pack_any(type_url: str, value: bytes) -> bytes:
    return Any(type_url=type_url, value=value).SerializeToString()
