"""Writes one data file from a stream of record batches.

    page buffers, each at a multiple of 64 bytes
    global buffers at multiples of 64; number 0 is a protobuf FileDescriptor (schema, number of rows)
    column metadata blocks, one per column
    column-metadata offset table: per column (u64 position, u64 size)
    global-buffer offset table: per buffer (u64 position, u64 size)
    footer, see base/metadata.py

Each column has its own buffer and writes a page when the buffer is full, so pages of different columns end at
different rows. `PageQueue` encodes pages in threads if cores are free: numpy, Arrow and the compressors
release the GIL. Pages are written in the order of their rows, so the output never depends on thread timing.
(Lance file format, container.)
"""

from __future__ import annotations

import dataclasses
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType

import pyarrow as pa

from spark_lance.arrow.arrays import join
from spark_lance.arrow.buffers import as_bytes, padding
from spark_lance.arrow.texts import check_texts
from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.file.base.metadata import (
    ARRAY_ENCODING_URL,
    BUFFER_ALIGNMENT,
    BytesLike,
    EncodedPage,
    Footer,
    Page,
    pack_column,
)
from spark_lance.file.base.pages import PAGE_FORMATS, FieldWriter
from spark_lance.file.base.schema import Field, Schema, owned_columns
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.blob_references import ReferencedBlobs, Sidecars, is_reference
from spark_lance.file.blob_writer import BlobWriter, check_blobs, has_blobs
from spark_lance.file.threads import spare_threads
from spark_lance.io.store import Store
from spark_lance.proto import encodings20_pb2, file_pb2

# Encoding fewer bytes takes less time than handing them to a thread.
_MIN_THREAD_BYTES = 128 << 10

Encode = Callable[[], Sequence[EncodedPage]]


class PageQueue:
    """A queue that encodes pages in threads and writes them in order.

    Args:
        write: writes one page. It is called in order, from the thread that calls `put` and `drain`.
        limit: maximum bytes of rows whose pages are pending.
        threads: number of encoding threads; with one, `put` encodes and writes the pages itself.
    """

    def __init__(self, write: Callable[[EncodedPage], None], limit: int, threads: int) -> None:
        self._write = write
        self._limit = limit
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pending: deque[tuple[Future[Sequence[EncodedPage]], int]] = deque()
        self._bytes = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the rows whose pages are not written yet."""
        return self._bytes

    def put(self, encode: Encode, size: int) -> None:
        """Queue the encoding of some rows, and write pending pages to stay within the limit.

        Args:
            encode: returns the pages of the rows.
            size: bytes of the rows.

        Raises:
            Exception: an error of `encode` or `write`, for these rows or earlier ones.
        """
        if self._threads < 2 or (size < _MIN_THREAD_BYTES and not self._pending):
            self._write_pages(encode())
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, "spark-lance-encode")
        while self._pending and self._bytes + size > self._limit:
            self._write_next()
        self._pending.append((self._pool.submit(encode), size))
        self._bytes += size

    def drain(self) -> None:
        """Write all pending pages; errors as for `put`."""
        while self._pending:
            self._write_next()

    def close(self) -> None:
        """Stop the threads and discard pending pages."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        self._pending.clear()
        self._bytes = 0

    def _write_next(self) -> None:
        future, size = self._pending.popleft()
        self._bytes -= size
        self._write_pages(future.result())

    def _write_pages(self, pages: Sequence[EncodedPage]) -> None:
        for page in pages:
            self._write(page)


DEFAULT_PAGE_BYTES = 8 << 20
DEFAULT_BUFFER_BYTES = 256 << 20
_STRUCT_HEADER = encodings20_pb2.ArrayEncoding(struct=encodings20_pb2.SimpleStruct()).SerializeToString()
_TABLE_ENTRY = struct.Struct("<QQ")
# Upper bound of page bytes / row bytes: a null or an empty list of one bit may need levels of two bytes each.
_MAX_GROWTH = 64


@dataclass(frozen=True)
class WrittenFile:
    """The facts that a manifest records about a finished data file.

    `field_ids[i]` is the id of the field in column `column_indices[i]`.
    """

    path: str
    size: int
    num_rows: int
    field_ids: tuple[int, ...]
    column_indices: tuple[int, ...]
    version: FileVersion


@dataclass
class _Column:
    """One top-level field: its buffered rows, and the number of rows that are already in pages."""

    field: Field
    writer: FieldWriter
    blobs: BlobWriter | None = None
    pending: list[pa.Array] = dataclasses.field(default_factory=list)
    pending_bytes: int = 0
    rows_in_pages: int = 0


class FileWriter:
    """Writes a data file. Its buffers hold at most `page_bytes` per column and `buffer_bytes` in total.

    In addition, up to `threads` + 2 pages are pending in the queue.

    Args:
        store: target store.
        path: path of the new object. It becomes visible with `finish`.
        schema: the fields of the file, with their ids.
        version: file version.
        page_bytes: size of a page, in bytes of Arrow data.
        buffer_bytes: if all buffers together exceed this, the largest ones are written early.
        referenced: reads the bytes of blobs given as references; None if there are none.
        is_buffered: whether the caller keeps all batches unchanged until `finish`. Then rows are not
            copied. Otherwise the writer holds no reference to a batch after `write` returns.
        threads: number of encoding threads; `spare_threads()` by default.
        first_row: position of the file's first row among all rows of the write, for errors.
        plain_blobs: whether version 2.2 may have blobs that are large_binary.

    Raises:
        SchemaError: the version cannot store a type.
        UnsupportedFormatError: we do not write this type, field metadata or version.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        schema: Schema,
        version: FileVersion = DEFAULT_VERSION,
        page_bytes: int = DEFAULT_PAGE_BYTES,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        referenced: ReferencedBlobs | None = None,
        is_buffered: bool = False,
        threads: int | None = None,
        first_row: int = 0,
        plain_blobs: bool = False,
    ) -> None:
        self.first_row = first_row
        self._schema = schema
        self._version = version
        self._path = path
        self._page_bytes = page_bytes
        self._buffer_bytes = buffer_bytes
        if not version.writable:
            raise UnsupportedFormatError(f"files of version {version.text} are not written here", path)
        self._format = PAGE_FORMATS[version]
        self._owners = owned_columns(schema.fields, version)
        self._sidecars = Sidecars(store, path)
        self._columns = []
        base = 0
        for top in schema.fields:
            check_blobs(top, version, plain=plain_blobs)
            column = _Column(top, self._format.writer(top.as_descriptor(), base, version))
            if has_blobs(top):
                column.blobs = BlobWriter(top, self._sidecars, self._put_blob, referenced)
            self._columns.append(column)
            base += len(owned_columns([top], version))
        self._pages: list[list[Page]] = [[] for _ in self._owners]
        self._rows = 0
        self._buffered_bytes = 0
        self._checked_schema: pa.Schema | None = None
        self._metadata = dict(schema.metadata)
        self._extra_buffers: list[tuple[int, int]] = []
        self._is_buffered = is_buffered
        # Blob bytes are written to the file as soon as rows arrive, so no page may be pending then.
        has_blob_column = any(column.blobs is not None for column in self._columns)
        threads = 1 if has_blob_column else spare_threads() if threads is None else threads
        self._queue = PageQueue(self._write_page, (threads + 2) * page_bytes, threads)
        self._out = store.create(path)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()

    @property
    def bytes_written(self) -> int:
        """Bytes written so far, without buffered rows."""
        self._queue.drain()
        return self._out.tell()

    def has_written(self, limit: int) -> bool:
        """Return whether `bytes_written` is at least `limit`. Waits for pending pages only if it must."""
        if self._out.tell() + _MAX_GROWTH * self._queue.nbytes < limit:
            return False
        return self.bytes_written >= limit

    @property
    def rows_written(self) -> int:
        """Number of rows passed to `write` so far."""
        return self._rows

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Append rows. The batch has the columns of the schema, in the same order.

        Raises:
            SchemaError: columns or types differ, a text is not UTF-8, a blob has neither data nor a uri, or a
                non-nullable field contains a null. A null may be found only in a later call.
        """
        if self._checked_schema is None or not batch.schema.equals(self._checked_schema):
            _check_schema(self._schema, batch.schema)
            self._checked_schema = batch.schema
        for column, values in zip(self._columns, batch.columns, strict=True):
            first = self.first_row + self._rows
            for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
                plain = _to_plain(chunk)
                check_texts(plain, column.field.name, first)
                first += len(plain)
                if column.blobs is not None:
                    plain = column.blobs.describe(plain)
                for run, size in _split_by_size(plain, self._page_bytes):
                    self._buffer_rows(column, run, size)
        self._rows += batch.num_rows
        while self._buffered_bytes > self._buffer_bytes:
            self._flush_column(max(self._columns, key=lambda column: column.pending_bytes))
        if not self._is_buffered:
            self._queue.drain()

    def add_global_buffer(self, data: BytesLike) -> int:
        """Write bytes that belong to the whole file and return the number of the new global buffer."""
        self._queue.drain()
        self._extra_buffers.append(self._write_buffer(data))
        return len(self._extra_buffers)

    def add_metadata(self, entries: Mapping[str, str]) -> None:
        """Add entries to the metadata of the file's schema."""
        self._metadata.update(entries)

    def finish(self, close: Callable[[Callable[[], None]], None] | None = None) -> WrittenFile:
        """Write the remaining rows and the metadata, make the file visible, and return its description.

        Args:
            close: calls the function that makes the file visible, now or later; now by default.
        """
        for column in self._columns:
            self._flush_column(column)
        self._queue.drain()
        self._queue.close()
        self._sidecars.finish_all()
        descriptor = file_pb2.FileDescriptor(length=self._rows)
        descriptor.schema.fields.extend(self._stored_schema().to_protos())
        for key, value in self._metadata.items():
            descriptor.schema.metadata[key] = value.encode()
        global_buffers = [self._write_buffer(descriptor.SerializeToString()), *self._extra_buffers]
        column_start = self._out.tell()
        columns = []
        for owner, pages in zip(self._owners, self._pages, strict=True):
            # Only version 2.0 marks blob columns.
            blob = owner.kind == "blob" and self._version is FileVersion.V2_0
            block = pack_column(pages, blob)
            columns.append((self._out.tell(), len(block)))
            self._out.write(block)
        column_table = self._write_table(columns)
        global_table = self._write_table(global_buffers)
        footer = Footer(
            column_start, column_table, global_table, len(global_buffers), len(columns), *self._version.footer
        )
        self._out.write(footer.pack())
        size = self._out.tell()
        if close is None:
            self._out.close()
        else:
            close(self._out.close)
        ids = tuple(owner.id for owner in self._owners)
        return WrittenFile(self._path, size, self._rows, ids, tuple(range(len(ids))), self._version)

    def abort(self) -> None:
        """Discard the file and its sidecars; nothing remains visible."""
        self._queue.close()
        self._out.abort()
        self._sidecars.abort()

    def _stored_schema(self) -> Schema:
        """Return the schema to store in the file. Blobs that are structs are stored as descriptors."""
        if self._version in (FileVersion.V2_0, FileVersion.V2_1):
            return self._schema
        return Schema(tuple(_stored_field(top) for top in self._schema.fields), self._schema.metadata)

    def _buffer_rows(self, column: _Column, run: pa.Array, size: int) -> None:
        """Buffer a run of rows of `size` bytes and write a page if the buffer is full."""
        if column.pending and (size >= self._page_bytes or column.pending[-1].type != run.type):
            self._flush_column(column)
        full = column.pending_bytes + size >= self._page_bytes
        if not full and not self._is_buffered:
            # Copied because the run may be a slice of a larger allocation that it would keep alive.
            run = pa.concat_arrays([run])
        column.pending.append(run)
        column.pending_bytes += size
        self._buffered_bytes += size
        if full:
            self._flush_column(column)

    def _flush_column(self, column: _Column) -> None:
        """Encode and write the buffered rows of a column."""
        rows = sum(len(array) for array in column.pending)
        encode = partial(_encode_pages, column.writer, column.pending, column.rows_in_pages)
        self._buffered_bytes -= column.pending_bytes
        size, column.pending_bytes = column.pending_bytes, 0
        column.pending = []
        column.rows_in_pages += rows
        if rows:
            self._queue.put(encode, size)

    def _write_page(self, page: EncodedPage) -> None:
        places = tuple(self._write_buffer(data) for data in page.buffers)
        encoding = page.layout.SerializeToString()
        file_page = Page(places, page.length, page.priority, encoding, self._format.type_url)
        pages = self._pages[page.column]
        if pages and _is_struct_header(file_page):
            pages[-1] = dataclasses.replace(pages[-1], length=pages[-1].length + page.length)
        else:
            pages.append(file_page)

    def _write_buffer(self, data: BytesLike) -> tuple[int, int]:
        """Write a buffer at the next aligned position and return (position, size)."""
        gap = padding(self._out.tell(), BUFFER_ALIGNMENT)
        if gap:
            self._out.write(bytes(gap))
        position = self._out.tell()
        content = as_bytes(data)
        if content.nbytes:
            self._out.write(content)
        return position, content.nbytes

    def _put_blob(self, data: BytesLike) -> int:
        return self._write_buffer(data)[0]

    def _write_table(self, entries: list[tuple[int, int]]) -> int:
        position = self._out.tell()
        self._out.write(b"".join(_TABLE_ENTRY.pack(*entry) for entry in entries))
        return position


def _encode_pages(writer: FieldWriter, arrays: Sequence[pa.Array], row: int) -> list[EncodedPage]:
    """Return the pages of a field's arrays, whose first row is row `row` of the file."""
    pages: list[EncodedPage] = []
    for array in join(arrays):
        pages += writer.encode(array, row)
        row += len(array)
    return pages


def _is_struct_header(page: Page) -> bool:
    """Return whether this is the page of a 2.0 struct. Such a column has exactly one page."""
    return page.type_url == ARRAY_ENCODING_URL and page.encoding == _STRUCT_HEADER


def _to_plain(array: pa.Array) -> pa.Array:
    """Return the array with view types cast to plain types and a top-level extension type removed."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    target = _plain_type(array.type)
    return array if target == array.type else array.cast(target)


def _plain_type(arrow: pa.DataType) -> pa.DataType:
    """Return the type with plain types in place of view types."""
    if pa.types.is_string_view(arrow):
        return pa.string()
    if pa.types.is_binary_view(arrow):
        return pa.binary()
    if pa.types.is_dictionary(arrow) or isinstance(arrow, pa.BaseExtensionType) or not arrow.num_fields:
        return arrow
    fields = [arrow.field(i) for i in range(arrow.num_fields)]
    plain = [field.with_type(_plain_type(field.type)) for field in fields]
    if all(old.type == new.type for old, new in zip(fields, plain, strict=True)):
        return arrow
    if pa.types.is_struct(arrow):
        return pa.struct(plain)
    if pa.types.is_map(arrow):
        return pa.map_(plain[0].type.field(0), plain[0].type.field(1))
    return pa.large_list(plain[0]) if pa.types.is_large_list(arrow) else pa.list_(plain[0])


def _array_bytes(array: pa.Array) -> int:
    """Return the bytes of an array. A dictionary counts in proportion to the number of rows."""
    if pa.types.is_dictionary(array.type):
        items = array.dictionary
        share = min(1.0, len(array) / max(1, len(items)))
        return int(array.indices.nbytes + items.nbytes * share)
    return int(array.nbytes)


def _split_by_size(array: pa.Array, page_bytes: int) -> Iterator[tuple[pa.Array, int]]:
    """Yield (slice, size in bytes). An array of two pages or more is split into slices of about a page."""
    size = _array_bytes(array)
    if len(array) == 0:
        return
    if size < 2 * page_bytes or len(array) == 1:
        yield array, size
        return
    rows = max(1, len(array) * page_bytes // size)
    for start in range(0, len(array), rows):
        yield from _split_by_size(array.slice(start, rows), page_bytes)


def _stored_field(field: Field) -> Field:
    if field.kind == "blob":
        return field if field.logical_type == "large_binary" else field.as_descriptor()
    return replace(field, children=tuple(_stored_field(child) for child in field.children))


def _check_schema(schema: Schema, arrow: pa.Schema) -> None:
    """Raise an error if a batch does not match the schema. Names of list items and nullability may differ."""
    expected, actual = [f.name for f in schema.fields], list(arrow.names)
    if expected != actual:
        raise SchemaError(f"the file has columns {expected}, the data has {actual}")
    # Renamed because `from_arrow` rejects the row lineage names, which only columns in files may have.
    renamed = pa.schema([field.with_name(str(position_name)) for position_name, field in enumerate(arrow)])
    for node, arrow_field in zip(schema.fields, Schema.from_arrow(renamed).fields, strict=True):
        _check_field(node, arrow_field, node.name)


def _check_field(node: Field, arrow_field: Field, path: str) -> None:
    if node.kind == "blob" and is_reference(arrow_field.arrow_type()):
        return
    if _storage_name(node) != _storage_name(arrow_field) or len(node.children) != len(arrow_field.children):
        raise SchemaError(
            f"column {path!r} is {node.logical_type} in the file but {arrow_field.logical_type} in the data"
        )
    if node.kind == "struct" and [c.name for c in node.children] != [c.name for c in arrow_field.children]:
        raise SchemaError(
            f"column {path!r} has the fields {[c.name for c in node.children]} in the file "
            f"but {[c.name for c in arrow_field.children]} in the data"
        )
    for child, arrow_child in zip(node.children, arrow_field.children, strict=True):
        _check_field(child, arrow_child, f"{path}.{child.name}")


_STORAGE_NAMES = {
    "json": "large_binary",
    "list.struct": "list",
    "large_list.struct": "large_list",
}


def _storage_name(node: Field) -> str:
    name = _STORAGE_NAMES.get(node.logical_type, node.logical_type)
    return name.replace("lance.bfloat16", "fixed_size_binary:2")
