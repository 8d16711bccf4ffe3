"""Readers and writers of single data files that belong to no table."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.errors import OptionError
from spark_lance.file.base.extensions import restore_schema_types, restore_table_types
from spark_lance.file.base.metadata import Page
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.blob_writer import has_plain_blobs
from spark_lance.file.reader import FileReader, encoding_names, take_field
from spark_lance.file.writer import FileWriter
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from spark_lance.table.reading.blobs import open_file_blobs, read_blobs
from spark_lance.table.writing.align import Aligner

__all__ = [
    "LanceFileReader",
    "LanceFileSession",
    "LanceFileWriter",
    "ListResult",
    "ReaderResults",
    "stable_version",
]

_MAX_PAGE = 32 << 20


def stable_version() -> str:
    """Return the default version of the file format for writes."""
    return DEFAULT_VERSION.text


@dataclass(frozen=True)
class LanceBufferDescriptor:
    """The position and the size of a buffer in a file."""

    position: int
    size: int


@dataclass(frozen=True)
class LancePageMetadata:
    """A page of a column."""

    buffers: list[LanceBufferDescriptor]
    encoding: str


@dataclass(frozen=True)
class LanceColumnMetadata:
    """A column of a file."""

    column_buffers: list[LanceBufferDescriptor]
    pages: list[LancePageMetadata]


@dataclass(frozen=True)
class LanceFileMetadata:
    """The metadata of a file."""

    schema: pa.Schema
    num_rows: int
    num_data_bytes: int
    num_column_metadata_bytes: int
    num_global_buffer_bytes: int
    global_buffers: list[LanceBufferDescriptor]
    columns: list[LanceColumnMetadata]
    major_version: int
    minor_version: int


@dataclass(frozen=True)
class LanceColumnStatistics:
    """The numbers of pages and bytes of a column."""

    num_pages: int
    size_bytes: int


@dataclass(frozen=True)
class LanceFileStatistics:
    """The numbers of pages and bytes of each column."""

    columns: list[LanceColumnStatistics]


@dataclass(frozen=True)
class ListResult:
    """The direct entries of a folder, without the contents of its subfolders."""

    common_prefixes: list[str]
    objects: list[str]


@raises_os_errors
@dataclass(frozen=True)
class ReaderResults:
    """The rows that a reader returns."""

    table: pa.Table
    batch_size: int = 1024

    def to_batches(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return self.table.to_reader(max_chunksize=self.batch_size)

    def to_table(self) -> pa.Table:
        """Return the rows as a table."""
        return self.table


@raises_os_errors
class LanceFileReader:
    """Reads a data file.

    Args:
        path: the path or URI of the file.
        storage_options: the options of its store.
        columns: the columns to read; all by default.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: Mapping[str, str] | None = None,
        columns: Sequence[str] | None = None,
        **_: Any,
    ) -> None:
        store, inner = open_store(path, storage_options)
        self._open(store, inner, columns)

    def _open(self, store: Store, path: str, columns: Sequence[str] | None) -> None:
        try:
            self._reader = FileReader(store, path)
        except FileNotFoundError:
            raise ValueError(f"File not found: {path} not found") from None
        fields = self._reader.schema.fields
        if columns is not None:
            fields = tuple(self._reader.schema.field(name) for name in columns)
        self._fields = [one.as_descriptor() for one in fields]
        self._store, self._plain_fields = store, fields

    @classmethod
    def at(cls, store: Store, path: str, columns: Sequence[str] | None) -> LanceFileReader:
        """Return a reader of a file in an open store."""
        reader = cls.__new__(cls)
        reader._open(store, path, columns)
        return reader

    def num_rows(self) -> int:
        """Return the number of rows in the file."""
        return self._reader.num_rows

    def read_all(self, *, batch_size: int = 1024, batch_readahead: int = 16) -> ReaderResults:
        """Read all rows."""
        return self.read_range(0, self.num_rows(), batch_size=batch_size)

    def read_range(
        self,
        start: int,
        num_rows: int,
        *,
        batch_size: int = 1024,
        batch_readahead: int = 16,
    ) -> ReaderResults:
        """Read a range of rows."""
        if start < 0 or num_rows < 0 or start + num_rows > self.num_rows():
            raise OptionError(f"rows {start} to {start + num_rows} of a file of {self.num_rows()} rows")
        table = self._reader.read(self._fields, start, start + num_rows)
        return ReaderResults(self._finish(table), batch_size)

    def take_rows(
        self,
        indices: Sequence[int],
        *,
        batch_size: int = 1024,
        batch_readahead: int = 16,
    ) -> ReaderResults:
        """Read rows by row number. The numbers must be in ascending order."""
        rows = np.asarray(indices, np.int64)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.num_rows() or (np.diff(rows) <= 0).any()):
            raise OptionError(f"row numbers must ascend, within 0 and {self.num_rows() - 1}")
        if self._reader.version is FileVersion.V2_0:
            runs = np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1) if len(rows) else []
            parts = [self._reader.read(self._fields, int(run[0]), int(run[-1]) + 1) for run in runs]
            table = pa.concat_tables(parts or [self._reader.read(self._fields, 0, 0)])
            return ReaderResults(self._finish(table), batch_size)
        readers = [self._reader.open_field(one) for one in self._fields]
        columns = [
            take_field(reader, one, self._reader.path, rows)  # type: ignore[arg-type]
            for reader, one in zip(readers, self._fields, strict=True)
        ]
        schema = pa.schema([one.arrow_field() for one in self._fields])
        return ReaderResults(self._finish(pa.Table.from_arrays(columns, schema=schema)), batch_size)

    def _finish(self, table: pa.Table) -> pa.Table:
        """Return rows as users see them: blobs of version 1 as their bytes, and extension types."""
        for number, one in enumerate(self._plain_fields):
            if has_plain_blobs(one):
                values = self._with_bytes(table.column(number).combine_chunks(), one)
                table = table.set_column(number, one.arrow_field().with_type(values.type), values)
        return restore_table_types(table).replace_schema_metadata(self._metadata())

    def _with_bytes(self, array: pa.Array, node: Field) -> pa.Array:
        if node.kind == "blob" and node.logical_type == "large_binary":
            files = open_file_blobs(self._store, self._reader.path, array.to_pylist())
            return pa.array(read_blobs(files), pa.large_binary())
        if not pa.types.is_struct(array.type):
            return array
        parts = [
            self._with_bytes(part, child) for part, child in zip(array.flatten(), node.children, strict=True)
        ]
        fields = [child.with_type(part.type) for child, part in zip(array.type, parts, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null())

    def _metadata(self) -> dict[str, str] | None:
        return dict(self._reader.schema.metadata) or None

    def metadata(self) -> LanceFileMetadata:
        """Return the metadata of the file."""
        reader = self._reader
        columns = [reader.column(number) for number in sorted(reader.columns.values())]
        pages = [
            LanceColumnMetadata(
                [LanceBufferDescriptor(*place) for place in column.buffers],
                [
                    LancePageMetadata([LanceBufferDescriptor(*b) for b in page.buffers], _encodings(page))
                    for page in column.pages
                ],
            )
            for column in columns
        ]
        footer = reader._footer
        sizes = [reader.global_buffer(number).size for number in range(reader.num_global_buffers)]
        used = sum(b.size for column in pages for page in column.pages for b in page.buffers)
        return LanceFileMetadata(
            restore_schema_types(reader.schema.to_arrow()),
            reader.num_rows,
            used,
            footer.column_table_start - footer.column_metadata_start,
            sum(sizes),
            [LanceBufferDescriptor(0, size) for size in sizes],
            pages,
            *reader.version.footer,
        )

    def file_statistics(self) -> LanceFileStatistics:
        """Return the numbers of pages and bytes of each column."""
        columns = []
        for one in self._reader.schema.fields:
            numbers = [self._reader.columns[n.id] for n in one.walk() if n.id in self._reader.columns]
            pages = sum(len(self._reader.column(number).pages) for number in numbers)
            columns.append(LanceColumnStatistics(pages, self._reader.stored_bytes(one)))
        return LanceFileStatistics(columns)

    def read_global_buffer(self, index: int) -> bytes:
        """Return a global buffer by its number. Buffer 0 is the description of the file."""
        return bytes(self._reader.global_buffer(index))


def _encodings(page: Page) -> str:
    """Return the encodings of a page, the outermost first, such as `MiniBlockLayout, Rle, Flat`."""
    names = encoding_names(page).split(", ")
    return ", ".join(name.title().replace("_", "") for name in names)


@raises_os_errors
@dataclass
class LanceFileWriter:
    """Writes a data file. The file exists after the writer is closed.

    Args:
        path: the path or URI of the file.
        schema: the schema of the rows; by default the schema of the first batch.
        version: the version of the file format.
        storage_options: the options of the store.
        max_page_bytes: the maximum size in bytes of a page of format 2.0. Later formats ignore it,
            because readers split their pages.
    """

    path: str | os.PathLike[str]
    schema: pa.Schema | None = None
    data_cache_bytes: int | None = None
    version: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)
    max_page_bytes: int | None = None
    keep_original_array: bool | None = None
    place: tuple[Store, str] | None = None
    _writer: FileWriter | None = field(default=None, repr=False)
    _aligner: Aligner | None = field(default=None, repr=False)
    _added: list[tuple[str, str]] = field(default_factory=list, repr=False)
    _rows: int | None = field(default=None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if self.schema is not None:
            self._begin(self.schema)

    def _begin(self, schema: pa.Schema) -> FileWriter:
        store, path = self.place or open_store(self.path, self.storage_options)
        version = DEFAULT_VERSION if self.version is None else FileVersion.parse(self.version)
        file_schema = Schema.from_arrow(schema)
        most = self.max_page_bytes if version is FileVersion.V2_0 else None
        page_bytes = min(most or _MAX_PAGE, _MAX_PAGE)
        writer = FileWriter(store, path, file_schema, version, page_bytes, plain_blobs=True)
        self._aligner = Aligner(schema, file_schema)
        self._writer = writer
        for key, value in self._added:
            writer.add_metadata({key: value})
        return writer

    def write_batch(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Write rows. Threads may call this concurrently."""
        with self._lock:
            writer = self._writer or self._begin(batch.schema)
            assert self._aligner is not None
            for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                writer.write(self._aligner.align(part))

    def add_schema_metadata(self, key: str, value: str) -> None:
        """Add a key and its value to the schema metadata."""
        self._added.append((key, value))
        if self._writer is not None:
            self._writer.add_metadata({key: value})

    def add_global_buffer(self, data: bytes) -> int:
        """Write a global buffer and return its number."""
        if self._writer is None:
            raise OptionError("say the schema, or write rows, before adding buffers")
        return self._writer.add_global_buffer(data)

    def close(self) -> int | None:
        """Finish the file and return its number of rows.

        Raises:
            OptionError: the writer has neither a schema nor a batch.
        """
        if self._rows is None:
            if self._writer is None:
                raise OptionError("Schema is unknown and file cannot be created")
            self._rows = self._writer.finish().num_rows
        return self._rows

    def __enter__(self) -> LanceFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._abort(kind, error, trace)

    def __del__(self) -> None:
        if getattr(self, "_rows", None) is None and getattr(self, "_writer", None) is not None:
            self._abort(None, None, None)

    def _abort(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            failure = error or RuntimeError("the writer was not closed")
            self._writer.__exit__(kind or type(failure), failure, trace)
            self._writer = None


@raises_os_errors
class LanceFileSession:
    """Files of one folder.

    Args:
        base_path: the folder.
        storage_options: the options of its store.
    """

    def __init__(
        self, base_path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None, **_: Any
    ) -> None:
        self._store, self._root = open_store(base_path, storage_options)

    def _path(self, path: str | None) -> str:
        return join(self._root, path) if path else self._root

    def open_reader(self, path: str, columns: Sequence[str] | None = None) -> LanceFileReader:
        """Open a data file."""
        return LanceFileReader.at(self._store, self._path(path), columns)

    def open_writer(self, path: str, *, schema: pa.Schema | None = None, **options: Any) -> LanceFileWriter:
        """Create a data file and return its writer."""
        return LanceFileWriter(path, schema, place=(self._store, self._path(path)), **options)

    def contains(self, path: str) -> bool:
        """Return whether a file exists."""
        return self._store.exists(self._path(path))

    def list(self, path: str | None = None) -> list[str]:
        """Return the files below a folder, as paths relative to the folder of the session."""
        paths = (one.path for one in self._store.list_objects(self._path(path), recursive=True))
        return sorted(name.removeprefix(self._root).lstrip("/") for name in paths)

    def delete_file(self, path: str) -> None:
        """Delete a file."""
        self._store.delete(self._path(path), self._root)

    def upload_file(self, local_path: str | os.PathLike[str], remote_path: str) -> None:
        """Copy a local file into the folder."""
        with open(local_path, "rb") as source:
            self._store.put(self._path(remote_path), source.read())

    def download_file(self, remote_path: str, local_path: str | os.PathLike[str]) -> None:
        """Copy a file of the folder to a local path."""
        data = self._store.read(self._path(remote_path))
        with open(local_path, "wb") as target:
            target.write(data)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """Return a byte range of a file."""
        return bytes(self._store.read_ranges(self._path(path), [(offset, length)])[0])
