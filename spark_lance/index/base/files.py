"""The files of an index: Lance files with notes in their schema metadata and in global buffers.

    {root}/_indices/{uuid}/{name}

Such a file is written once and never changed. Metadata values are text; where bytes belong to a file (a
codebook, a set of rows) they are a global buffer, and a metadata entry holds its number. Number 0 is the
file's own descriptor, so the first one is 1. (Lance index format, file layer.)

Files are copied as they are, or with other row numbers in one column.
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
        store: where to write.
        path: the new object.
        schema: its columns.
        version: file version, that of the table's data files.
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
        """Store bytes next to the columns; return the number with which readers ask for them."""
        return self._writer.add_global_buffer(data)

    def finish(self, metadata: Mapping[str, str]) -> int:
        """Write the metadata, make the file visible and return its size in bytes."""
        self._writer.add_metadata(metadata)
        return self._writer.finish().size


@dataclass(frozen=True)
class IndexFile:
    """One file of an index, opened when something is asked of it.

    Attributes:
        store, path: where it is.
        size: its bytes, if the index entry tells.
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
            # Before Lance 0.21, scalar indices were legacy files.
            opened = open_file(self.store, self.path, size=self.size)
            if isinstance(opened, LegacyFileReader):
                return opened
            raise

    def __getstate__(self) -> dict[str, object]:
        return {"store": self.store, "path": self.path, "size": self.size}

    @property
    def num_bytes(self) -> int:
        """Bytes of the file."""
        return int(self._reader.source.size)

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return self._reader.num_rows

    @property
    def metadata(self) -> Mapping[str, str]:
        """The notes of the file."""
        return self._reader.schema.metadata

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The columns of the file."""
        return pa.schema([field.arrow_field() for field in self._reader.schema.fields])

    def column_type(self, name: str) -> pa.DataType:
        """Return the type of a column.

        Raises:
            FormatError: the file has no such column, or two.
        """
        places = self.arrow_schema.get_all_field_indices(name)
        if len(places) != 1:
            raise FormatError(f"the index file has {len(places)} columns {name!r}, not one", self.path)
        return self.arrow_schema.field(places[0]).type

    def note(self, key: str) -> str:
        """Return a metadata value.

        Raises:
            FormatError: the file has no such note.
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
        text = self.note(key)
        try:
            return parse(text)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise FormatError(
                f"metadata {key!r} of the index file is malformed: {error}", self.path
            ) from error

    def buffer(self, number: int) -> bytes:
        """Return a global buffer.

        Raises:
            FormatError: there is no such buffer.
        """
        return bytes(self._with_buffers.global_buffer(number))

    @property
    def num_buffers(self) -> int:
        """Global buffers of the file; number 0 is its own descriptor."""
        return self._with_buffers.num_global_buffers

    @property
    def _with_buffers(self) -> FileReader:
        if isinstance(self._reader, LegacyFileReader):
            raise FormatError("the index file is a legacy file, which has no buffers", self.path)
        return self._reader

    def message(self, number: int, kind: type[_Message]) -> _Message:
        """Return a global buffer as a protobuf message.

        Raises:
            FormatError: there is no such buffer, or it is no such message.
        """
        try:
            return kind.FromString(self.buffer(number))
        except DecodeError as error:
            raise FormatError(
                f"global buffer {number} is not a {kind.DESCRIPTOR.name}: {error}", self.path
            ) from error

    def read(self, names: Iterable[str] | None = None, start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows [start, stop) of some columns, all by default, each in one chunk.

        Raises:
            FormatError: a column is missing, or stored bytes are damaged.
        """
        column_names = [field.name for field in self._reader.schema.fields] if names is None else list(names)
        opened = [self._open(name) for name in column_names]
        end = self.num_rows if stop is None else min(stop, self.num_rows)
        self._reader.prefetch([reader for _, reader in opened], start, end)
        arrays = [one_array(read_field(reader, field, self.path, start, end)) for field, reader in opened]
        self._reader.source.release()
        return pa.Table.from_arrays(arrays, names=column_names)

    def read_spans(self, names: Sequence[str], spans: Sequence[tuple[int, int]]) -> list[pa.Table]:
        """Return columns of spans [start, stop) of rows, each as `read` does; a store is asked side by side.

        Args:
            names: of the columns.
            spans: ascending and apart from each other; the last may end behind the last row.

        Raises:
            FormatError: a column is missing, or stored bytes are damaged.
        """
        opened = [self._open(name) for name in names]
        if len(spans) < 2 or not all(isinstance(reader, RowReader) for _, reader in opened):
            return [self.read(names, start, stop) for start, stop in spans]
        ends = np.minimum([stop for _, stop in spans], self.num_rows)
        sizes = np.maximum(ends - [start for start, _ in spans], 0)
        rows = np.repeat(ends - np.cumsum(sizes), sizes) + np.arange(sizes.sum())
        together = pa.Table.from_arrays(
            [
                one_array(take_field(cast("RowReader", reader), field, self.path, rows))
                for field, reader in opened
            ],
            names=list(names),
        )
        self._reader.source.release()
        # Each has memory of its own: one that is kept does not keep the others.
        return [
            together.take(pa.array(np.arange(end - size, end)))
            for end, size in zip(np.cumsum(sizes).tolist(), sizes.tolist(), strict=True)
        ]

    @cached_property
    def _opened(self) -> dict[str, tuple[Field, FieldReader]]:
        return {}

    def _open(self, name: str) -> tuple[Field, FieldReader]:
        """Open a column once: an index is read in many small pieces."""
        opened = self._opened.get(name)
        if opened is None:
            field = next((field for field in self._reader.schema.fields if field.name == name), None)
            if field is None:
                raise FormatError(f"the index file has no column {name}", self.path)
            opened = self._opened[name] = (field, self._reader.open_field(field))
        return opened


Numbers = npt.NDArray[np.uint64]


class RowAddressMap(Protocol):
    """Where the rows are that a segment names."""

    def __call__(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return where rows are, and which of them are still there."""
        ...

    @property
    def possible(self) -> Mapping[int, BitMap]:
        """The rows that the segment can name, by fragment."""
        ...

    def bounded(self, rows: RowSet) -> RowSet:
        """Return the rows of a set that the segment can name.

        Raises:
            FormatError: a fragment has fewer rows.
        """
        ...


_PIECE_BYTES = 32 << 20
_MIN_ROWS = 4096


def new_numbers(remap: RowAddressMap, numbers: Numbers) -> Numbers:
    """Return where rows are; rows that are gone keep a number that names nothing any more."""
    return remap(numbers)[0]


def copy_file(source: IndexFile, store: Store, path: str) -> int:
    """Copy a file byte for byte and return its size.

    Raises:
        FormatError: it does not exist.
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
    """Write a file with the same rows in the same order, buffers and notes, but new row numbers.

    Args:
        source: the file.
        store, path, version: of the copy.
        column: holds the row numbers.
        remap: where rows are; those that are gone keep their numbers.

    Returns:
        The size of the copy.
    """
    schema = source.arrow_schema
    place = schema.get_field_index(column)
    if place < 0:
        raise FormatError(f"the index file has no column {column}", source.path)
    rows = source.num_rows
    step = max(_MIN_ROWS, rows * _PIECE_BYTES // max(source.num_bytes, 1))
    with IndexFileWriter(store, path, schema, version) as writer:
        # Notes name buffers by number, so these are added in their order and before any others.
        for number in range(1, source.num_buffers):
            writer.add_buffer(source.buffer(number))
        for start in range(0, rows, step):
            table = source.read(schema.names, start, start + step)
            columns = [one_array(table.column(name)) for name in schema.names]
            numbers = columns[place].to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
            columns[place] = pa.array(new_numbers(remap, numbers), pa.uint64())
            writer.write(columns)
        return writer.finish(source.metadata)
