"""Opens one data file of any version and reads rows of its columns.

Opening costs one read of the file's tail, and a second one if the metadata is larger than the tail. Column
metadata is parsed only for the requested columns.

Files of version 2.0 and later have a footer of 40 bytes, legacy files (0.1) one of 16. The last 8 bytes of
both are u16 major, u16 minor and "LANC". The manifest records the version of each data file, so usually
nothing is read to determine it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import decoding
from spark_lance.file.base.metadata import (
    ARRAY_ENCODING_URL,
    FOOTER_SIZE,
    MAGIC,
    PAGE_LAYOUT_URL,
    PLANAR_LAYOUT_URL,
    ColumnMetadata,
    Footer,
    Page,
    parse_column,
)
from spark_lance.file.base.pages import PAGE_FORMATS, FieldReader, RowReader
from spark_lance.file.base.schema import Field, Schema, owned_columns
from spark_lance.file.base.source import PageSource, Plan
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.store import Store
from spark_lance.proto import encodings20_pb2, encodings21_pb2, encodings23_pb2, file_pb2

# The oneofs whose selected field is the name of an encoding.
_ENCODING_ONEOFS = frozenset({"layout", "compression", "array_encoding", "codec"})
# Page fields about levels and extra buffers, which do not describe the encoding of the values.
_SKIPPED_FIELDS = frozenset(
    {"rep_compression", "def_compression", "rep_encoding", "def_encoding", "validity", "levels"}
)


def encoding_names(page: Page) -> str:
    """Return the encodings of a page's values, outermost first, such as `mini_block_layout, rle, flat`.

    Nothing is decoded.

    Raises:
        UnsupportedFormatError: the page has an unknown format.
        FormatError: the description is damaged.
    """
    if page.has_encoding_type(PAGE_LAYOUT_URL):
        message: Message = page.layout(encodings21_pb2.PageLayout, PAGE_LAYOUT_URL)
    elif page.has_encoding_type(PLANAR_LAYOUT_URL):
        message = page.layout(encodings23_pb2.PlanarLayout, PLANAR_LAYOUT_URL).values
    else:
        message = page.layout(encodings20_pb2.ArrayEncoding, ARRAY_ENCODING_URL)
    return ", ".join(dict.fromkeys(_encoding_names(message)))


def _encoding_names(message: Message) -> Iterator[str]:
    """Yield the names of the encodings in a message, outermost first."""
    for field, value in message.ListFields():
        if field.name in _SKIPPED_FIELDS or not isinstance(value, Message):
            continue
        if field.containing_oneof is not None and field.containing_oneof.name in _ENCODING_ONEOFS:
            yield field.name
        if isinstance(value, encodings21_pb2.BufferCompression):
            yield encodings21_pb2.CompressionScheme.Name(value.scheme).rpartition("_")[2].lower()
        yield from _encoding_names(value)


_TAIL = 64 << 10
# If the file's tail does not contain all metadata, up to this many bytes are read in one request.
_MAX_METADATA = 8 << 20
_PAIR = struct.Struct("<QQ")
# Parsed column metadata of earlier files, by its bytes, because each query opens files again.
_COLUMNS: CacheSection[ColumnMetadata] = CacheSection("column metadata", CACHE, share=1 / 16, counted=False)
# Approximate memory of parsed column metadata / its size in the file.
_PARSED_GROWTH = 20


class FileReader:
    """An open data file.

    Args:
        store, path: location of the file.
        size: size of the file in bytes, if known (the manifest records it); saves a request.
        columns: field id -> column number, from the manifest's DataFile. By default from the file's
            schema.
        source: source of the file's bytes, if already open.
        immutable: whether the content of this path never changes, see `PageSource`.

    Raises:
        FileNotFoundError: the file does not exist.
        FormatError: the footer or an offset table is damaged.
        UnsupportedFormatError: the file's version is not supported.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        *,
        size: int | None = None,
        columns: Mapping[int, int] | None = None,
        source: PageSource | None = None,
        immutable: bool = False,
    ) -> None:
        self.path = path
        self.source = source or PageSource(store, path, size or store.size(path), immutable)
        self._columns = columns
        self._parsed_columns: dict[int, ColumnMetadata] = {}
        try:
            self._open()
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(path) from error

    def _open(self) -> None:
        size = self.source.size
        tail_start = max(0, size - _TAIL)
        tail = self.source.tail(size - tail_start)
        self._footer = footer = Footer.parse(tail.slice(max(0, tail.size - FOOTER_SIZE)).to_pybytes())
        self.version = FileVersion.from_footer(footer.major, footer.minor)
        if self.version is FileVersion.V0_1:
            raise UnsupportedFormatError("this is a legacy file (0.1): `open_file` opens all versions")
        self._tail, self._tail_start = tail, tail_start
        column_table = footer.num_columns * _PAIR.size
        global_table = footer.num_global_buffers * _PAIR.size
        if footer.num_global_buffers < 1:
            raise FormatError("the file has no schema: there are no global buffers")
        for table_name, start, length in (
            ("column-metadata", footer.column_table_start, column_table),
            ("global-buffer", footer.global_table_start, global_table),
        ):
            if start + length > size - FOOTER_SIZE:
                raise FormatError(f"the {table_name} offset table reaches beyond the file", place="footer")
        position, length = _PAIR.unpack(self._metadata_bytes(footer.global_table_start, _PAIR.size))
        self._read_metadata(min(position, footer.column_metadata_start, footer.column_table_start))
        try:
            self._descriptor = file_pb2.FileDescriptor.FromString(self._metadata_bytes(position, length))
        except DecodeError as error:
            raise FormatError(
                "the file descriptor is not a valid message", place="global buffer 0"
            ) from error

    def _read_metadata(self, start: int) -> None:
        """Extend the tail back to `start`, the first metadata byte, unless that is too much."""
        missing = self._tail_start - start
        if 0 < missing <= _MAX_METADATA and not self.source.is_mapped:
            self._tail, self._tail_start = self.source.tail(self.source.size - start), start

    def _metadata_bytes(self, offset: int, size: int) -> bytes:
        """Return metadata bytes, from the tail if it contains them."""
        if offset >= self._tail_start and offset + size <= self.source.size:
            return bytes(self._tail.slice(offset - self._tail_start, size))
        return bytes(self.source.get(offset, size))

    @property
    def num_rows(self) -> int:
        """Number of rows in the file, including deleted ones."""
        return int(self._descriptor.length)

    @cached_property
    def schema(self) -> Schema:
        """The schema stored in the file."""
        message = self._descriptor.schema
        try:
            return Schema.from_protos(message.fields, message.metadata)
        except FormatError as error:
            raise error.at(self.path, "schema") from error

    @property
    def num_global_buffers(self) -> int:
        """Number of global buffers, including the file descriptor."""
        return int(self._footer.num_global_buffers)

    def global_buffer(self, number: int) -> pa.Buffer:
        """Return the bytes of a global buffer. Buffer 0 is the file descriptor.

        Raises:
            FormatError: the buffer does not exist.
        """
        if not 0 <= number < self._footer.num_global_buffers:
            raise FormatError(
                f"there is no global buffer {number}; there are {self._footer.num_global_buffers}", self.path
            )
        entry = self._metadata_bytes(self._footer.global_table_start + number * _PAIR.size, _PAIR.size)
        position, length = _PAIR.unpack(entry)
        if position + length > self.source.size:
            raise FormatError(f"global buffer {number} reaches beyond the file", self.path)
        return self.source.get(position, length)

    @cached_property
    def columns(self) -> Mapping[int, int]:
        """Field id -> column number."""
        if self._columns is not None:
            return self._columns
        return {owner.id: i for i, owner in enumerate(owned_columns(self.schema.fields, self.version))}

    def column(self, index: int) -> ColumnMetadata:
        """Return the metadata of column number `index`. It is parsed once.

        Raises:
            FormatError: the column does not exist, or its metadata is damaged.
        """
        column_metadata = self._parsed_columns.get(index)
        if column_metadata is None:
            if not 0 <= index < self._footer.num_columns:
                raise FormatError(
                    f"column {index} does not exist; there are {self._footer.num_columns}", self.path
                )
            entry = self._metadata_bytes(self._footer.column_table_start + index * _PAIR.size, _PAIR.size)
            position, length = _PAIR.unpack(entry)
            data, size = self._metadata_bytes(position, length), self.source.size
            try:
                column_metadata = _COLUMNS.get(
                    (index, data, size),
                    lambda: parse_column(index, data, size),
                    lambda _: _PARSED_GROWTH * len(data),
                )
            except (FormatError, UnsupportedFormatError) as error:
                raise error.at(self.path) from error
            self._parsed_columns[index] = column_metadata
        return column_metadata

    def open_field(self, field: Field) -> FieldReader:
        """Return a reader of one top-level field, which may be pruned to some of its leaves.

        Raises:
            FormatError: the file lacks a column of the field, or a column has another number of rows.
        """
        columns: dict[int, ColumnMetadata] = {}
        for owner in owned_columns([field], self.version):
            if owner.id not in self.columns:
                raise FormatError(
                    f"the file has no column for field {owner.name!r} (id {owner.id})", self.path
                )
            column = self.column(self.columns[owner.id])
            if owner.kind == "leaf" and column.has_lists:
                column = replace(column, items=self.column(column.index + 1))
            columns[owner.id] = column
        try:
            reader = PAGE_FORMATS[self.version].reader(field, columns, self.source, self.version)
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(self.path, f"column {field.name!r}") from error
        first = columns.get(field.id)
        for rows in (reader.num_rows, first.num_rows if first else self.num_rows):
            if rows != self.num_rows:
                raise FormatError(
                    f"column {field.name!r} has {rows} rows where the file has {self.num_rows}", self.path
                )
        return reader

    def prefetch(self, readers: Iterable[FieldReader], start: int, stop: int) -> None:
        """Fetch the byte ranges that the readers need for rows [start, stop), in few requests."""
        if self.source.is_mapped:
            return
        self.source.release()
        with suppress(FormatError, UnsupportedFormatError):  # decoding raises it again, with its location
            self.source.prefetch_in_steps([_read_plan(reader, start, stop) for reader in readers])

    def prefetch_rows(self, readers: Iterable[FieldReader], rows: npt.NDArray[np.int64]) -> None:
        """Fetch the byte ranges that the readers need for the given ascending rows, in few requests."""
        if self.source.is_mapped:
            return
        self.source.release()
        with suppress(FormatError, UnsupportedFormatError):
            self.source.prefetch_in_steps(
                [reader.plan_take(rows) for reader in readers if isinstance(reader, RowReader)]
            )

    def stored_bytes(self, field: Field) -> int:
        """Return the bytes of all pages of a field and its descendants."""
        column_numbers = [self.columns[node.id] for node in field.walk() if node.id in self.columns]
        pages = (page for index in column_numbers for page in self.column(index).pages)
        return sum(size for page in pages for _, size in page.buffers)

    def read(
        self, fields: Sequence[Field] | None = None, start: int = 0, stop: int | None = None
    ) -> pa.Table:
        """Return rows [start, stop) of the given top-level fields; all fields by default.

        Raises:
            FormatError, UnsupportedFormatError: as for `open_field`, or a page is damaged.
        """
        projection = [field.as_descriptor() for field in self.schema.fields] if fields is None else fields
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        readers = [self.open_field(field) for field in projection]
        self.prefetch(readers, start, end)
        arrays = [
            read_field(reader, field, self.path, start, end)
            for reader, field in zip(readers, projection, strict=True)
        ]
        self.source.release()
        return pa.Table.from_arrays(arrays, schema=pa.schema([field.arrow_field() for field in projection]))


def _read_plan(reader: FieldReader, start: int, stop: int) -> Plan:
    if isinstance(reader, RowReader):
        return reader.plan_read(start, stop)
    return iter([reader.ranges(start, stop)])


def read_field(reader: FieldReader, field: Field, path: str, start: int, stop: int) -> pa.ChunkedArray:
    """Return rows [start, stop) of a field, after checking the number of decoded rows.

    Raises:
        FormatError, UnsupportedFormatError: with the path and the column's name.
    """
    try:
        with decoding(path):
            array = reader.read(start, stop)
        if len(array) != stop - start:
            raise FormatError(f"rows {start} to {stop} decoded to {len(array)} rows")
        return array
    except (FormatError, UnsupportedFormatError) as error:
        raise error.at(path, f"column {field.name!r}") from error


def take_field(reader: RowReader, field: Field, path: str, rows: npt.NDArray[np.int64]) -> pa.ChunkedArray:
    """Return the given rows of a field. `rows` is ascending and unique.

    Raises:
        FormatError, UnsupportedFormatError: with the path and the column's name.
    """
    try:
        with decoding(path):
            array = reader.take(rows)
        if len(array) != len(rows):
            raise FormatError(f"{len(rows)} rows decoded to {len(array)}")
        return array
    except (FormatError, UnsupportedFormatError) as error:
        raise error.at(path, f"column {field.name!r}") from error


_VERSION_TAIL = struct.Struct("<HH4s")


class DataFileReader(Protocol):
    """The interface of the readers of all file versions."""

    path: str
    source: PageSource

    @property
    def version(self) -> FileVersion:
        """The file's version."""

    @property
    def num_rows(self) -> int:
        """Number of rows in the file, including deleted ones."""

    @property
    def schema(self) -> Schema:
        """The schema stored in the file."""

    @property
    def columns(self) -> Mapping[int, int]:
        """Field id -> column number, for the fields that have their own data in the file."""

    def open_field(self, field: Field) -> FieldReader:
        """Return a reader of one top-level field, which may be pruned to some of its leaves."""

    def prefetch(self, readers: Iterable[FieldReader], start: int, stop: int) -> None:
        """Fetch the byte ranges that the readers need for rows [start, stop), in few requests."""

    def prefetch_rows(self, readers: Iterable[FieldReader], rows: npt.NDArray[np.int64]) -> None:
        """Fetch the byte ranges that the readers need for the given ascending rows, in few requests."""

    def stored_bytes(self, field: Field) -> int:
        """Return the bytes of a field in the file, exact or estimated."""


def open_file(
    store: Store,
    path: str,
    *,
    version: FileVersion | None = None,
    size: int | None = None,
    columns: Mapping[int, int] | None = None,
    immutable: bool = False,
) -> DataFileReader:
    """Open a data file.

    Args:
        store, path: location of the file.
        version: version of the file, from the manifest; None reads it from the file.
        size: size of the file in bytes, if known.
        columns: field id -> column number, from the manifest's DataFile. Legacy files use only the ids.
        immutable: whether the content of this path never changes. Then the process caches the end of the
            file.

    Raises:
        FileNotFoundError: the file does not exist.
        FormatError: the footer or an offset table is damaged.
        UnsupportedFormatError: the file's version is not supported.
    """
    length = size or store.size(path)
    if version is None:
        version = _read_version(store, path, length)
    if version is FileVersion.V0_1:
        return LegacyFileReader(store, path, size=length, field_ids=columns or ())
    return FileReader(store, path, size=length, columns=columns, immutable=immutable)


def _read_version(store: Store, path: str, size: int) -> FileVersion:
    if size < _VERSION_TAIL.size:
        raise FormatError(f"a data file of {size} bytes", path)
    end = store.read_ranges(path, [(size - _VERSION_TAIL.size, _VERSION_TAIL.size)])[0]
    major, minor, magic = _VERSION_TAIL.unpack(bytes(end))
    if magic != MAGIC:
        raise FormatError("the file does not end in the magic LANC", path)
    return FileVersion.from_footer(major, minor)
