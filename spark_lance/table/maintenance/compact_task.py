"""A task of a compaction: rewrite a group of fragments to new files, with blobs and row lineage.

A task commits nothing and reads no manifest. At the end, it checks that the numbers of live rows, of rows
read and of rows written are equal. (Lance table format, compaction.)

Runs of small fragments whose files have the same columns are read together. Other fragments (with several
files, overlays, missing columns, or files that cannot be decoded together) are read one by one.

To read small files together, their bytes are concatenated and their pages are listed as the pages of one
file. Opening a file and decoding a page cost about the same for any number of rows. So pages with the same
description are decoded together, as in one file. (Lance file format 2.1 and 2.2.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import filter_rows
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import ColumnMetadata, Page
from spark_lance.file.base.pages import PAGE_FORMATS
from spark_lance.file.base.schema import Field, Schema, owned_columns
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader, read_field
from spark_lance.io.progress import report
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import column_numbers, physical_rows
from spark_lance.table.format.deletion import keep_mask, read_deletions
from spark_lance.table.format.partition_bounds import merged_bounds_text
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.indices.fragment_reuse import pack_addresses
from spark_lance.table.maintenance.compact_plan import CompactionOptions
from spark_lance.table.reading.blobs import blob_values
from spark_lance.table.reading.fragment import fixed_width
from spark_lance.table.reading.lineage import (
    LINEAGE_COLUMNS,
    Lineage,
    fragment_lineage,
    give_lineage,
    mark_spilled,
    with_lineage,
)
from spark_lance.table.reading.row_lookup import split_by_blob_bytes
from spark_lance.table.reading.scan_task import ScanTask, rebatch
from spark_lance.table.writing.write import delete_fragment_files, write_fragments

# Not 2.0, where a struct has its own page for the whole file.
_VERSIONS = frozenset({FileVersion.V2_1, FileVersion.V2_2})


class _MemorySource(PageSource):
    """A page source with the bytes of a file in memory."""

    def __init__(self, path: str, data: pa.Buffer) -> None:
        self.path = path
        self.size = data.size
        self._mapped = data
        self._fetched, self._tail = ([], []), None


def can_join(version: FileVersion, fields: Sequence[Field]) -> bool:
    """Return whether fields of several files of a version can be read together.

    Fixed-size lists of structs cannot, because the length of their pages is not in rows.
    """
    return version in _VERSIONS and not any(n.kind == "fsl_struct" for top in fields for n in top.walk())


def open_whole(store: Store, path: str, columns: Mapping[int, int]) -> FileReader:
    """Fetch a small file in one request and open it.

    Args:
        store, path: the location of the file.
        columns: field id -> column number, from the manifest's DataFile.

    Raises:
        FileNotFoundError: the file does not exist.
        FormatError, UnsupportedFormatError: as `FileReader`.
    """
    mapped = store.map(path)
    data = pa.py_buffer(store.read(path)) if mapped is None else mapped
    return FileReader(store, path, columns=columns, source=_MemorySource(path, data))


class JoinedFiles:
    """Reads complete fields of several files together; the rows are in the order of the files.

    Args:
        files: results of `open_whole` of the same version; see `can_join`.

    Raises:
        UnsupportedFormatError: the files have different versions.
    """

    def __init__(self, files: Sequence[FileReader]) -> None:
        self._version = files[0].version
        if any(file.version is not self._version for file in files):
            raise UnsupportedFormatError("files of several versions cannot be read together", files[0].path)
        self._files = files
        self._path = f"{files[0].path} and {len(files) - 1} more"
        contents = [file.source.get(0, file.source.size) for file in files]
        self._source = _MemorySource(
            self._path, pa.py_buffer(b"".join(memoryview(part) for part in contents))
        )
        self.num_rows = sum(file.num_rows for file in files)

    def read(self, field: Field) -> pa.ChunkedArray:
        """Return all rows of a top-level field.

        Raises:
            FormatError, UnsupportedFormatError: a file lacks the field, or is damaged; read the files one by
                one to find out which file.
        """
        columns = {owner.id: self._column(owner) for owner in owned_columns([field], self._version)}
        reader = PAGE_FORMATS[self._version].reader(field, columns, self._source, self._version)
        return read_field(reader, field, self._path, 0, self.num_rows)

    def _column(self, owner: Field) -> ColumnMetadata:
        """Return the pages of a column of all files, with their offsets in the concatenated bytes."""
        pages: list[Page] = []
        base = rows = 0
        for file in self._files:
            if owner.id not in file.columns:
                raise FormatError(f"the file has no column for field {owner.name!r}", file.path)
            column = file.column(file.columns[owner.id])
            if column.num_rows != file.num_rows:
                raise FormatError(
                    f"column {owner.name!r} has {column.num_rows} rows where the file has {file.num_rows}",
                    file.path,
                )
            for page in column.pages:
                buffers = tuple((base + offset, size) for offset, size in page.buffers)
                pages.append(Page(buffers, page.length, rows + page.priority, page.encoding, page.type_url))
            base += file.source.size
            rows += file.num_rows
        return ColumnMetadata(0, tuple(pages))


_WINDOW_BYTES = 32 << 20
# Larger fragments are read one after the other, window by window.
_SMALL_BYTES = 2 << 20
# The limits of fragments that are read together; the Arrow size is estimated.
_JOINED_FILES = 128
_JOINED_BYTES = 4 << 20
_JOINED_ARROW_BYTES = 16 << 20
_TEXT_BYTES = 32
# The number of runs of small fragments to prefetch, so that several requests to the store are concurrent, and
# the number of files of a run that are opened at the same time.
_AHEAD = 4
_OPEN_FILES = 24

Run: TypeAlias = list[ScanTask]


def read_tasks(tasks: Sequence[ScanTask]) -> Iterator[pa.Table]:
    """Yield the live rows of tasks of one scan, in order; small fragments are read together and prefetched.

    Args:
        tasks: tasks with the same fields and without system columns.

    Raises:
        FormatError, UnsupportedFormatError: as `ScanTask.tables`.
    """
    if not tasks:
        return
    if tasks[0].store.is_local:
        for run in _find_runs(tasks):
            yield from _read_tables(run)
        return
    with ThreadPoolExecutor(_AHEAD) as pool:
        ahead: deque[Future[list[pa.Table]] | Run] = deque()
        for run in _find_runs(tasks):
            large = len(run) == 1 and _stored_bytes(run[0].message) >= _SMALL_BYTES
            ahead.append(run if large else pool.submit(_read_run, run))
            if len(ahead) > _AHEAD:
                yield from _run_tables(ahead.popleft())
        while ahead:
            yield from _run_tables(ahead.popleft())


def _run_tables(rows: Future[list[pa.Table]] | Run) -> Iterator[pa.Table]:
    return _read_tables(rows) if isinstance(rows, list) else iter(rows.result())


def _read_run(run: Run) -> list[pa.Table]:
    return list(_read_tables(run))


def _stored_bytes(fragment: table_pb2.DataFragment) -> int:
    return sum(file.file_size_bytes or _SMALL_BYTES for file in fragment.files)


def _find_runs(tasks: Sequence[ScanTask]) -> Iterator[Run]:
    """Yield runs of consecutive tasks that can be read together."""
    fields = tasks[0].fields
    columns_by_version = {
        version: {owner.id for owner in owned_columns(fields, version)}
        for version in FileVersion
        if can_join(version, fields)
    }
    row_bytes = sum(_row_bytes(field) for field in fields)
    run: Run = []
    run_key: object = None
    stored_bytes = arrow = 0
    for task in tasks:
        key = _join_key(task.message, columns_by_version)
        stored_bytes += _stored_bytes(task.message)
        arrow += int(row_bytes * task.message.physical_rows)
        full = len(run) >= _JOINED_FILES or stored_bytes > _JOINED_BYTES or arrow > _JOINED_ARROW_BYTES
        if run and (key is None or key != run_key or full):
            yield run
            run = []
        if not run:
            stored_bytes, arrow = _stored_bytes(task.message), int(row_bytes * task.message.physical_rows)
        run.append(task)
        run_key = key
    if run:
        yield run


def _join_key(fragment: table_pb2.DataFragment, columns_by_version: dict[FileVersion, set[int]]) -> object:
    """Return a key that is equal for fragments that can be read together; None for a separate fragment."""
    if len(fragment.files) != 1 or fragment.overlays or not fragment.physical_rows:
        return None
    (file,) = fragment.files
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    small = 0 < file.file_size_bytes < _SMALL_BYTES
    if (
        not small
        or version not in columns_by_version
        or not columns_by_version[version].issubset(file.fields)
    ):
        return None
    return version


def _row_bytes(field: Field) -> float:
    try:
        return fixed_width(field.arrow_type())
    except ValueError:
        return _TEXT_BYTES


def _read_tables(run: Run) -> Iterator[pa.Table]:
    try:
        joined = _read_joined(run) if len(run) > 1 else None
    except (FormatError, UnsupportedFormatError):
        joined = None  # read one by one: the damaged fragment raises its own error
    if joined is not None:
        yield joined
        return
    for task in run:
        yield from task.tables(_WINDOW_BYTES)


def _read_joined(run: Run) -> pa.Table:
    """Read the live rows of several fragments together."""
    if run[0].store.is_local:
        parts = [_open_with_mask(task) for task in run]
    else:
        with ThreadPoolExecutor(min(_OPEN_FILES, len(run))) as pool:
            parts = list(pool.map(_open_with_mask, run))
    files = [file for file, _ in parts]
    keep = [mask for _, mask in parts]
    joined = JoinedFiles(files)
    arrays = [joined.read(field) for field in run[0].fields]
    table = pa.Table.from_arrays(arrays, schema=run[0].arrow_schema)
    mask = np.concatenate(keep)
    return table if mask.all() else filter_rows(table, pa.array(mask))


def _open_with_mask(task: ScanTask) -> tuple[FileReader, npt.NDArray[np.bool_]]:
    """Return the only file of a fragment, in memory, and the mask of its live rows."""
    fragment = task.message
    (entry,) = fragment.files
    if task.bases is None:
        raise UnsupportedFormatError("fragments without base paths", task.root)
    store, path = task.bases.data_file(entry)
    try:
        file = open_whole(store, path, column_numbers(entry))
    except FileNotFoundError as error:
        raise FormatError("the manifest names a data file that does not exist", path) from error
    if file.num_rows != fragment.physical_rows or file.source.size != entry.file_size_bytes:
        raise FormatError("the file is not the one that the manifest describes", path)
    deleted = read_deletions(task.table, fragment, file.num_rows, task.bases)
    return file, keep_mask(deleted, 0, file.num_rows)


# The bytes of blobs that are copied at once.
_BLOB_BYTES = 16 << 20
# The bytes of rows with lineage columns that are read at once.
_TABLE_BYTES = 32 << 20
# The rows of a batch if only bytes are limited.
_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class CompactionMetrics:
    """The metrics of a compaction.

    Attributes:
        fragments_removed, fragments_added: the numbers of rewritten fragments and of new fragments.
        files_removed: the number of data files and deletion files that the table no longer uses.
        files_added: the number of new data files.
        removed_sizes, added_sizes: the sizes of the data files among them, in bytes; 0 if it is not known.
    """

    fragments_removed: int = 0
    fragments_added: int = 0
    files_removed: int = 0
    files_added: int = 0
    removed_sizes: tuple[int, ...] = field(default=(), repr=False, compare=False)
    added_sizes: tuple[int, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def from_fragments(
        cls, old: Sequence[table_pb2.DataFragment], new: Sequence[table_pb2.DataFragment]
    ) -> CompactionMetrics:
        """Return the metrics of fragments that new fragments replace."""
        removed, added = _data_file_sizes(old), _data_file_sizes(new)
        deletion_files = sum(fragment.HasField("deletion_file") for fragment in old)
        return cls(len(old), len(new), len(removed) + deletion_files, len(added), removed, added)

    def __add__(self, other: CompactionMetrics) -> CompactionMetrics:
        return CompactionMetrics(
            self.fragments_removed + other.fragments_removed,
            self.fragments_added + other.fragments_added,
            self.files_removed + other.files_removed,
            self.files_added + other.files_added,
            self.removed_sizes + other.removed_sizes,
            self.added_sizes + other.added_sizes,
        )


def _data_file_sizes(fragments: Sequence[table_pb2.DataFragment]) -> tuple[int, ...]:
    return tuple(file.file_size_bytes for fragment in fragments for file in fragment.files)


@dataclass(frozen=True)
class RewriteResult:
    """The output of a task. Can be pickled.

    Attributes:
        read_version: the version that was read.
        old, new: the serialized DataFragments that are removed, and the new ones, with id 0.
        old_addresses: the treemap of the old addresses of all rows; empty if the plan does not need it.
        deferred: whether the moves are recorded in the table instead of rewriting indexes.
    """

    read_version: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    old_addresses: bytes = b""
    deferred: bool = False

    @cached_property
    def old_fragments(self) -> list[table_pb2.DataFragment]:
        """The fragments that were rewritten."""
        return [table_pb2.DataFragment.FromString(data) for data in self.old]

    @cached_property
    def new_fragments(self) -> list[table_pb2.DataFragment]:
        """The new fragments."""
        return [table_pb2.DataFragment.FromString(data) for data in self.new]

    @property
    def metrics(self) -> CompactionMetrics:
        """The metrics of this result."""
        return CompactionMetrics.from_fragments(self.old_fragments, self.new_fragments)


@dataclass(frozen=True)
class CompactionTask(TableRefMixin):
    """A group of fragments to rewrite. Can be pickled; reads no manifest.

    Attributes:
        table: the table.
        read_version: the version that is read.
        old: the serialized DataFragments to rewrite.
        schema: the schema of the version.
        version: the version of the new files.
        rows_per_file: the number of rows of a new file.
        options: the options of the compaction.
        bases: the base paths of the version.
        stable_row_ids: whether the table has stable row ids.
        tracks_moves: whether to record the old addresses of the rows.
        spills: whether row ids and row versions are written to the new data files instead of the manifest.
    """

    table: TableRef
    read_version: int
    old: tuple[bytes, ...]
    schema: Schema
    version: FileVersion
    rows_per_file: int
    options: CompactionOptions
    bases: Bases
    stable_row_ids: bool
    tracks_moves: bool
    spills: bool = False

    @property
    def fragments(self) -> list[table_pb2.DataFragment]:
        """The fragments to rewrite."""
        return [table_pb2.DataFragment.FromString(data) for data in self.old]

    @property
    def rows(self) -> int:
        """The number of live rows in the manifest."""
        return sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in self.fragments)

    @property
    def stored_bytes(self) -> int:
        """The total size of the data files to rewrite, as far as the manifest has the sizes."""
        return sum(file.file_size_bytes for fragment in self.fragments for file in fragment.files)

    def execute(self, dataset: object = None) -> RewriteResult:  # noqa: ARG002 (pylance's signature)
        """Write the new files and return the result, which the caller commits.

        Args:
            dataset: ignored; pylance's tasks need it.

        Raises:
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported, or rows are
                missing.
            OSError: the store failed. Files written before an error are deleted.
        """
        count = _RowCounter(self._tables(), self.rows)
        schema = with_lineage(self.schema) if self.spills else self.schema
        new = write_fragments(
            count.batches(self.options.batch_size),
            self.table,
            schema,
            version=self.version,
            max_rows_per_file=self.rows_per_file,
            max_bytes_per_file=self.options.max_bytes_per_file,
            ending=merged_bounds_text(self.fragments, schema, self.version),
        )
        try:
            return self._make_result([table_pb2.DataFragment.FromString(data) for data in new], count.rows)
        except BaseException:
            delete_fragment_files(self.table, new)
            raise

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows of the fragments in order."""
        names = tuple(top.name for top in self.schema.fields)
        if self.spills:
            names += tuple(column.name for column in LINEAGE_COLUMNS)
        descriptors = tuple(top.as_descriptor() for top in self.schema.fields)
        tasks = [
            ScanTask(self.table, names, descriptors, data, self.stable_row_ids, self.bases)
            for data in self.old
        ]
        blobs = [(place, top) for place, top in enumerate(self.schema.fields) if top.is_blob]
        if blobs:
            return self._with_blobs(tasks, blobs)
        if self.spills:
            return chain.from_iterable(task.tables(_TABLE_BYTES) for task in tasks)
        return read_tasks(tasks)

    def _with_blobs(
        self, tasks: Iterable[ScanTask], blobs: Sequence[tuple[int, Field]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of tasks with the bytes of their blobs, about `_BLOB_BYTES` at once."""
        for task in tasks:
            for table in task.tables(_BLOB_BYTES):
                for part in split_by_blob_bytes(table, blobs, _BLOB_BYTES):
                    rows = table.slice(part.start, part.stop - part.start)
                    for place, top in blobs:
                        values = blob_values(self.bases, top, rows.column(place), task.message)
                        rows = rows.set_column(place, top.arrow_field(), values)
                    yield rows

    def _make_result(self, new: list[table_pb2.DataFragment], rows_read: int) -> RewriteResult:
        """Check the number of rows, add the lineage to the new fragments, and return the result."""
        old = self.fragments
        deleted = [read_deletions(self.table, fragment, self._rows(fragment), self.bases) for fragment in old]
        live = sum(self._rows(f) - len(deleted_rows) for f, deleted_rows in zip(old, deleted, strict=True))
        rows_written = sum(fragment.physical_rows for fragment in new)
        if not live == rows_read == rows_written:
            raise FormatError(
                f"compaction would lose rows: {live} exist, {rows_read} were read, "
                f"{rows_written} were written",
                path=self.root,
            )
        if self.spills:
            for fragment in new:
                mark_spilled(fragment)
        elif self.stable_row_ids:
            self._carry_lineage(old, deleted, new)
        old_addresses = b""
        if self.tracks_moves:
            old_addresses = pack_addresses(
                (fragment.id, self._rows(fragment), deleted_rows)
                for fragment, deleted_rows in zip(old, deleted, strict=True)
            )
        return RewriteResult(
            self.read_version,
            self.old,
            tuple(fragment.SerializeToString() for fragment in new),
            old_addresses,
            self.options.defer_index_remap,
        )

    def _rows(self, fragment: table_pb2.DataFragment) -> int:
        return physical_rows(self.table, fragment, self.bases)

    def _carry_lineage(
        self,
        old: Sequence[table_pb2.DataFragment],
        deleted: Sequence[npt.NDArray[np.uint32]],
        new: Sequence[table_pb2.DataFragment],
    ) -> None:
        """Store the old ids and versions of the rows in the new fragments."""
        parts: list[list[npt.NDArray[np.uint64]]] = [[], [], []]
        for fragment, deleted_rows in zip(old, deleted, strict=True):
            lineage: Lineage = fragment_lineage(self.table, fragment, self.bases)
            keep = keep_mask(deleted_rows, 0, fragment.physical_rows)
            for column, values in zip(parts, lineage, strict=True):
                assert values is not None
                column.append(values[keep])
        give_lineage(new, *(np.concatenate(column) for column in parts))


@dataclass
class _RowCounter:
    """Counts the rows of tables on their way to the writer, and reports progress."""

    tables: Iterable[pa.Table]
    total: int
    rows: int = 0

    def batches(self, batch_size: int | None) -> Iterator[pa.RecordBatch]:
        """Yield the tables as record batches."""
        for table in self.tables:
            self.rows += table.num_rows
            yield from rebatch([table], batch_size or _BATCH_ROWS)
            report("rewriting", self.rows, self.total, "rows")
