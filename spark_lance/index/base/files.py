"""Index files: Lance files with extra data in their schema metadata and in global buffers.

    {root}/_indices/{uuid}/{name}

Index files are immutable. Metadata values are text. Binary data, such as a codebook or a set of rows, is a
global buffer, and a metadata entry holds the buffer's number. Buffer 0 is the file's own descriptor, so other
buffers start at 1. (Lance index format, file layer.)

Compaction copies a file as it is, or with new row numbers in one column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.pages import FieldReader, RowReader
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader, open_file, read_field, take_field
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import Store
from spark_lance.table.format.row_set import RowSet

_Message = TypeVar("_Message", bound=Message)
_PAGE_BYTES = 8 << 20


class IndexFileWriter:
    """Writes one file of an index.

    Args:
        store, path: location of the new file.
        schema: columns of the file.
        version: file format version, the same as in the table's data files.
    """

    def __init__(self, store: Store, path: str, schema: pa.Schema, version: FileVersion) -> None:
        self._schema = schema
        own = Schema.from_arrow(schema, reserved=True)
        self._writer = FileWriter(store, path, own, version, page_bytes=_PAGE_BYTES)

    def __enter__(self) -> IndexFileWriter:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._writer.__exit__(*raised)

    def write(self, columns: Sequence[pa.Array]) -> None:
        """Append rows, given as one array per column."""
        self._writer.write(pa.RecordBatch.from_arrays(list(columns), schema=self._schema))

    def add_buffer(self, data: bytes) -> int:
        """Add a global buffer; return its number."""
        return self._writer.add_global_buffer(data)

    def finish(self, metadata: Mapping[str, str]) -> int:
        """Write the metadata, make the file visible and return its size in bytes."""
        self._writer.add_metadata(metadata)
        return self._writer.finish().size


@dataclass(frozen=True)
class IndexFile:
    """One file of an index, opened on first use.

    Attributes:
        store, path: location of the file.
        size: size in bytes, if the index entry has it.
    """

    store: Store
    path: str
    size: int | None = None

    @cached_property
    def _reader(self) -> FileReader | LegacyFileReader:
        try:
            return FileReader(self.store, self.path, size=self.size, immutable=True)
        except FileNotFoundError:
            raise FormatError("a file of an index is missing", self.path) from None
        except UnsupportedFormatError:
            # Before Lance 0.21, scalar indexes were legacy files.
            reader = open_file(self.store, self.path, size=self.size)
            if isinstance(reader, LegacyFileReader):
                return reader
            raise

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store, "path": self.path, "size": self.size}

    @property
    def num_bytes(self) -> int:
        """Size of the file in bytes."""
        return int(self._reader.source.size)

    @property
    def num_rows(self) -> int:
        """Number of rows in the file."""
        return self._reader.num_rows

    @property
    def metadata(self) -> Mapping[str, str]:
        """The schema metadata of the file."""
        return self._reader.schema.metadata

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the file."""
        return pa.schema([field.arrow_field() for field in self._reader.schema.fields])

    def column_type(self, name: str) -> pa.DataType:
        """Return the type of a column.

        Raises:
            FormatError: the file does not have exactly one column of this name.
        """
        positions = self.arrow_schema.get_all_field_indices(name)
        if len(positions) != 1:
            raise FormatError(f"the index file has {len(positions)} columns {name!r}, not one", self.path)
        return self.arrow_schema.field(positions[0]).type

    def metadata_value(self, key: str) -> str:
        """Return a metadata value.

        Raises:
            FormatError: the metadata has no such key.
        """
        value = self.metadata.get(key)
        if value is None:
            raise FormatError(f"the index file has no metadata {key!r}", self.path)
        return value

    def parsed(self, key: str, parse: Callable[[str], Any]) -> Any:
        """Return a metadata value, parsed.

        Raises:
            FormatError: it is missing or malformed.
        """
        text = self.metadata_value(key)
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise FormatError(
                f"metadata {key!r} of the index file is malformed: {error}", self.path
            ) from error

    def buffer(self, number: int) -> bytes:
        """Return a global buffer.

        Raises:
            FormatError: the buffer does not exist.
        """
        return bytes(self._with_buffers.global_buffer(number))

    @property
    def num_buffers(self) -> int:
        """Number of global buffers. Buffer 0 is the file's own descriptor."""
        return self._with_buffers.num_global_buffers

    @property
    def _with_buffers(self) -> FileReader:
        if isinstance(self._reader, LegacyFileReader):
            raise FormatError("the index file is a legacy file, which has no buffers", self.path)
        return self._reader

    def message(self, number: int, kind: type[_Message]) -> _Message:
        """Return a global buffer as a protobuf message.

        Raises:
            FormatError: the buffer does not exist, or is not such a message.
        """
        try:
            return kind.FromString(self.buffer(number))
        except DecodeError as error:
            raise FormatError(
                f"global buffer {number} is not a {kind.DESCRIPTOR.name}: {error}", self.path
            ) from error

    def read(self, names: Iterable[str] | None = None, start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows [start, stop) of the named columns (all by default), each column in one chunk.

        Raises:
            FormatError: a column is missing, or stored bytes are damaged.
        """
        column_names = [field.name for field in self._reader.schema.fields] if names is None else list(names)
        columns = [self._open(name) for name in column_names]
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        self._reader.prefetch([reader for _, reader in columns], start, end)
        arrays = [one_array(read_field(reader, field, self.path, start, end)) for field, reader in columns]
        self._reader.source.release()
        return pa.Table.from_arrays(arrays, names=column_names)

    def read_spans(self, names: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[pa.Table]:
        """Return one table per span [start, stop) of rows, as `read` does, but fetch the spans in parallel.

        Args:
            names: column names.
            spans: ascending, without overlap; the last may end after the last row.

        Raises:
            FormatError: a column is missing, or stored bytes are damaged.
        """
        columns = [self._open(name) for name in names]
        if len(spans) < 2 or not all(isinstance(reader, RowReader) for _, reader in columns):
            return [self.read(names, start, stop) for start, stop in spans]
        ends = np.minimum([stop for _, stop in spans], self.num_rows)
        sizes = np.maximum(ends - [start for start, _ in spans], 0)
        rows = np.repeat(ends - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
        combined = pa.Table.from_arrays(
            [
                one_array(take_field(cast("RowReader", reader), field, self.path, rows))
                for field, reader in columns
            ],
            names=list(names),
        )
        self._reader.source.release()
        # Each table owns its memory, so that a cached table does not keep the others alive.
        return [
            combined.take(pa.array(np.arange(end - size, end)))
            for end, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True)
        ]

    @cached_property
    def _opened(self) -> dict[str, tuple[Field, FieldReader]]:
        return {}

    def _open(self, name: str) -> tuple[Field, FieldReader]:
        """Open a column only once, because an index is read in many small pieces."""
        column = self._opened.get(name)
        if column is None:
            field = next((field for field in self._reader.schema.fields if field.name == name), None)
            if field is None:
                raise FormatError(f"the index file has no column {name}", self.path)
            column = self._opened[name] = (field, self._reader.open_field(field))
        return column


Numbers = npt.NDArray[np.uint64]


class RowAddressMap(Protocol):
    """Maps a segment's row numbers to the current row addresses."""

    def __call__(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return the current row numbers, and the mask of rows that still exist."""
        ...

    @property
    def possible(self) -> Mapping[int, BitMap]:
        """The rows that the segment may refer to, by fragment."""
        ...

    def existing_rows(self, rows: RowSet) -> RowSet:
        """Return the rows of a set that the segment may refer to.

        Raises:
            FormatError: the set has a row beyond the end of its fragment.
        """
        ...


_BATCH_BYTES = 32 << 20
_MIN_ROWS = 4096


def new_numbers(remap: RowAddressMap, numbers: Numbers) -> Numbers:
    """Return the current row numbers. A row that no longer exists keeps a number that refers to no row."""
    return remap(numbers)[0]


def copy_file(source: IndexFile, store: Store, path: str) -> int:
    """Copy a file byte for byte and return its size.

    Raises:
        FormatError: the file does not exist.
    """
    try:
        if source.store == store:
            store.copy(source.path, path)
            return store.size(path)
        data = source.store.read(source.path)
    except FileNotFoundError:
        raise FormatError("a file of an index is missing", source.path) from None
    store.put(path, data)
    return len(data)


def copy_renumbered(
    source: IndexFile, store: Store, path: str, version: FileVersion, column: str, remap: RowAddressMap
) -> int:
    """Copy a file with new row numbers; return the size of the copy in bytes.

    The copy has the same rows in the same order, and the same buffers and metadata.

    Args:
        source: the file.
        store, path, version: location and file format version of the copy.
        column: the column with row numbers (uint64).
        remap: maps the row numbers. Rows that no longer exist keep their numbers.
    """
    schema = source.arrow_schema
    position = schema.get_field_index(column)
    if position < 0:
        raise FormatError(f"the index file has no column {column}", source.path)
    rows = source.num_rows
    step = max(_MIN_ROWS, rows * _BATCH_BYTES // max(source.num_bytes, 1))
    with IndexFileWriter(store, path, schema, version) as writer:
        # Metadata refers to buffers by number, so they are added first and in order.
        for number in range(1, source.num_buffers):
            writer.add_buffer(source.buffer(number))
        for start in range(0, rows, step):
            table = source.read(schema.names, start, start + step)
            columns = [one_array(table.column(name)) for name in schema.names]
            numbers = columns[position].to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
            columns[position] = pa.array(new_numbers(remap, numbers), pa.uint64())
            writer.write(columns)
        return writer.finish(source.metadata)
