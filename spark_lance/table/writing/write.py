"""Write rows to data files of new fragments. Nothing here commits.

File names are unique for each attempt, so a retried task leaves at worst files that no version refers to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import OptionError, SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.file.blob_references import (
    ReferencedBlobs,
    holds_references,
    is_blob_field,
    is_reference,
    map_references,
    sidecar_folder,
    split_by_bytes,
)
from spark_lance.file.writer import FileWriter, WrittenFile
from spark_lance.io.locations import join
from spark_lance.io.store import Store
from spark_lance.io.uploads import settle_uploads, upload
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.partition_bounds import (
    bounds_of_rows,
    bounds_text,
    column_places,
    partition_key,
)
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.paths import DATA_DIR, new_data_file_name
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.blob_sources import BlobSources
from spark_lance.table.writing.targets import MAX_BYTES_PER_FILE, MAX_ROWS_PER_FILE, FileTarget, own_target

logger = logging.getLogger(__name__)

# A task of at most this size writes one file, even if it has rows of several partitions.
FEW_ROWS = 10_000
FEW_BYTES = 8 << 20
_REFERENCED_BYTES = 16 << 20
_MAX_COLUMN_BYTES = 2**31 - 1

# Called with a serialized `DataFragment`, and whether its file is complete.
FragmentListener = Callable[[bytes, bool], None]
_listener: ContextVar[FragmentListener | None] = ContextVar("spark_lance_fragments", default=None)


@contextmanager
def reporting_fragments(listener: FragmentListener | None) -> Iterator[None]:
    """Call a function at the start and at the end of each file that the block writes, for this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def write_fragments(
    batches: Iterable[pa.RecordBatch],
    table: TableRef,
    schema: Schema,
    *,
    version: FileVersion = DEFAULT_VERSION,
    max_rows_per_file: int = MAX_ROWS_PER_FILE,
    max_bytes_per_file: int = MAX_BYTES_PER_FILE,
    operation: str = "",
    in_memory: bool = False,
    targets: Sequence[FileTarget] = (),
    partitions: PartitionSpec | None = None,
    ending: str = "",
) -> list[bytes]:
    """Write batches of exactly `schema` to new data files of a table.

    Args:
        batches: the rows; without rows no file is written. Columns of blobs or bytes can be references (see
            `file.blob_references`), whose bytes are copied.
        table: the table.
        schema: fields with the table's ids, in the order of the batches' columns.
        version: the version of the data files.
        max_rows_per_file: the number of rows after which a new file (and fragment) is started.
        max_bytes_per_file: the size after which a new file is started; checked after every batch.
        operation: see `new_data_file_name`.
        in_memory: whether no batch changes until this function returns, see `FileWriter`.
        targets: the folders among which files are distributed in turns; the table's own folder by default.
        partitions: the partition spec by which files are split, see `_PartitionCutter`.
        ending: without `partitions`, the end of the files' names, see `partition_bounds`.

    Returns:
        Serialized `DataFragment` messages, one per file, with id 0. The commit assigns the ids. Inside a
        block of `background_uploads` the uploads may still run; the commit waits for them.

    Raises:
        SchemaError: a NOT NULL column has a null, or the version cannot store a type.
        BlobSourceError: the bytes of a reference cannot be read.
        OSError: the store failed. The files are deleted before any error is raised.
    """
    for name, limit in (("max_rows_per_file", max_rows_per_file), ("max_bytes_per_file", max_bytes_per_file)):
        if limit < 1:
            raise OptionError(f"{name} must be at least 1, not {limit}")
    sources = BlobSources(table.store, table)
    files = _FragmentWriter(
        table, targets or (own_target(table),), schema, version, operation, in_memory, sources, ending
    )
    cutter = _PartitionCutter(partitions, column_places(schema, version)) if partitions else None
    try:
        for batch, border in _split_by_partition(_replace_references(batches, schema, sources), cutter):
            if border is not None:
                files.finish()
                files.ending = border
            for part in _split_by_rows(batch, max_rows_per_file, files.rows_written):
                files.write(part)
                if files.rows_written >= max_rows_per_file or files.has_written(max_bytes_per_file):
                    files.finish()
        files.finish()
    except BaseException:
        files.abort()
        raise
    return files.fragments


def _report(fragment: bytes, *, complete: bool) -> None:
    listener = _listener.get()
    if listener is not None:
        listener(fragment, complete)


@dataclass
class _FragmentWriter:
    """Writes the files of one call of `write_fragments`, one at a time.

    Attributes:
        ending: the end of the names of the next files, see `partition_bounds`.
        fragments: serialized messages of the finished files.
    """

    table: TableRef
    targets: Sequence[FileTarget]
    schema: Schema
    version: FileVersion
    operation: str
    in_memory: bool
    sources: BlobSources
    ending: str = ""
    fragments: list[bytes] = field(default_factory=list)
    _writer: FileWriter | None = None
    _written: list[tuple[Store, str]] = field(default_factory=list)
    _rows: int = 0

    @property
    def rows_written(self) -> int:
        """The number of rows in the open file; 0 if no file is open."""
        return self._writer.rows_written if self._writer else 0

    def has_written(self, size: int) -> bool:
        """Return whether the open file has at least `size` bytes."""
        return self._writer is not None and self._writer.has_written(size)

    def write(self, part: pa.RecordBatch) -> None:
        """Write rows to the open file, or start a new file."""
        if self._writer is None:
            target = self._target()
            _report(table_pb2.DataFragment().SerializeToString(), complete=False)
            self._writer = FileWriter(
                target.store,
                join(target.folder, new_data_file_name(self.operation, self.ending)),
                self.schema,
                self.version,
                referenced=self.sources,
                is_buffered=self.in_memory,
                first_row=self._rows,
            )
        self._writer.write(part)
        self._rows += part.num_rows

    def finish(self) -> None:
        """Finish the open file, if any."""
        if self._writer is None:
            return
        target = self._target()
        file = self._writer.finish(upload)
        self._writer = None
        self._written.append((target.store, file.path))
        self.fragments.append(_serialize_fragment(file, target.base_id))
        _report(self.fragments[-1], complete=True)

    def abort(self) -> None:
        """Delete all files."""
        if self._writer is not None:
            self._writer.abort()
        _delete_files(self._written, self.table.root)

    def _target(self) -> FileTarget:
        return self.targets[len(self.fragments) % len(self.targets)]


def _split_by_partition(
    batches: Iterator[pa.RecordBatch], cutter: _PartitionCutter | None
) -> Iterator[tuple[pa.RecordBatch, str | None]]:
    """Yield (part of a batch, file name ending); the ending is None if the part continues a file."""
    return ((batch, None) for batch in batches) if cutter is None else cutter.parts(batches)


@dataclass
class _PartitionCutter:
    """Splits the rows of a task where the partition changes, so that a file has the rows of one partition.

    Small tasks (at most 10,000 rows and 8 MiB) write one file, whose name has the range of the partitions.
    One file per partition would have only a handful of rows. Larger tasks start a new file for each
    partition, as long as the rows are clustered, as Spark sends them to a partitioned table. If a partition
    occurs a second time, the rows are not clustered, and the remaining rows go to files without bounds.

    Attributes:
        spec: the partition spec, bound to the columns of the rows.
        places: the positions of the columns in the files, see `column_places`.
    """

    spec: PartitionSpec
    places: Mapping[str, int]
    _partition_keys: set[tuple[Any, ...]] = field(default_factory=set)
    _key: tuple[Any, ...] | None = None
    _is_clustered: bool = True

    def parts(self, batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        """Yield (part of a batch, file name ending); the ending is None if the part continues a file."""
        source = iter(batches)
        first_batches: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in source:
            first_batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows > FEW_ROWS or size > FEW_BYTES:
                break
        else:
            yield from self._keep_together(first_batches)
            return
        for batch in first_batches:
            yield from self._split(batch)
        del first_batches
        for batch in source:
            yield from self._split(batch)

    def _values(self, batches: list[pa.RecordBatch]) -> pa.Table:
        names = [name for name in self.spec.sources() if name in batches[0].schema.names]
        columns = [pa.chunked_array([batch.column(name) for batch in batches]) for name in names]
        rows = pa.Table.from_arrays(columns, names=names) if names else pa.Table.from_batches(batches)
        return self.spec.values(rows)

    def _keep_together(self, batches: list[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        if not batches:
            return
        name: str | None = bounds_text(bounds_of_rows(self.spec, self._values(batches), self.places))
        for batch in batches:
            yield batch, name
            name = None

    def _split(self, batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, str | None]]:
        if not self._is_clustered or not batch.num_rows:
            yield batch, None
            return
        values = self._values([batch])
        starts = [0, *_find_borders(values).tolist()]
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            key = tuple(partition_key(column[start]) for column in values.columns)
            if key == self._key:
                yield batch.slice(start, stop - start), None
                continue
            if key in self._partition_keys:
                self._is_clustered = False
                yield batch.slice(start), ""
                return
            self._partition_keys.add(key)
            self._key = key
            bounds = bounds_of_rows(self.spec, values.slice(start, 1), self.places)
            yield batch.slice(start, stop - start), bounds_text(bounds)


def _find_borders(values: pa.Table) -> Ints:
    """Return the rows whose partition differs from the partition of the previous row."""
    changes = np.zeros(max(values.num_rows - 1, 0), np.bool_)
    for column in values.columns:
        encoded = column.combine_chunks()
        if pa.types.is_null(encoded.type):
            continue
        codes = encoded.dictionary_encode(null_encoding="encode").indices.to_numpy()
        changes |= codes[1:] != codes[:-1]
    borders: Ints = np.flatnonzero(changes) + 1
    return borders


def _split_by_rows(batch: pa.RecordBatch, limit: int, written: int) -> Iterator[pa.RecordBatch]:
    """Split a batch where a file with `written` rows reaches `limit`, and then every `limit` rows."""
    start = 0
    room = limit - written
    while start < batch.num_rows:
        part = batch.slice(start, room)
        yield part
        start += part.num_rows
        room = limit


def _replace_references(
    batches: Iterable[pa.RecordBatch], schema: Schema, sources: ReferencedBlobs
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches; references in columns of bytes are replaced by the bytes.

    References in blob columns stay references: the file writer fetches their bytes.

    Args:
        batches: batches from `Aligner`.
        schema: the schema of the batches.
        sources: reads the bytes of references.

    Yields:
        Batches without references unchanged. Other batches are split to about 16 MiB of blobs, at least one
        row each.

    Raises:
        SchemaError: a blob is larger than the type of its column can hold.
        BlobSourceError: the bytes of a reference cannot be read.
    """
    fields = [field.arrow_field() for field in schema.fields]
    for batch in batches:
        places = [
            i
            for i, column in enumerate(batch.columns)
            if holds_references(column.type) and (column.type != fields[i].type or is_blob_field(fields[i]))
        ]
        if not places or not batch.num_rows:
            yield batch
            continue
        sizes = sum(
            (_referenced_sizes(batch.column(i), sources) for i in places), np.zeros(batch.num_rows, np.int64)
        )
        for start, stop in split_by_bytes(sizes, _REFERENCED_BYTES):
            rows = batch.slice(start, stop - start)
            columns, kinds = list(rows.columns), list(rows.schema)
            for i in places:
                columns[i] = _replace_column(columns[i], fields[i], sources)
                kinds[i] = kinds[i].with_type(columns[i].type)
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(kinds, rows.schema.metadata))


def _referenced_sizes(array: pa.Array, sources: ReferencedBlobs) -> Ints:
    """Return the number of bytes that the references of each row point to."""
    if is_reference(array.type):
        return sources.sizes(array)
    total = np.zeros(len(array), np.int64)
    if not holds_references(array.type):
        return total
    if pa.types.is_struct(array.type):
        return sum((_referenced_sizes(part, sources) for part in array.flatten()), total)
    items = _referenced_sizes(array.flatten(), sources)
    np.add.at(total, pc.list_parent_indices(array).to_numpy(zero_copy_only=False), items)
    return total


def _replace_column(array: pa.Array, field: pa.Field, sources: ReferencedBlobs) -> pa.Array:
    def change(references: pa.StructArray, target: pa.Field) -> pa.Array:
        if is_blob_field(target):
            return references
        sizes = sources.sizes(references)
        if not pa.types.is_large_binary(target.type) and sizes.sum() > _MAX_COLUMN_BYTES:
            raise SchemaError(
                f"column {field.name!r} has a blob of {sizes.max()} bytes, more than {target.type} can hold: "
                "store it as a blob"
            )
        return sources.read(references).cast(target.type)

    return map_references(array, field, change)


def _serialize_fragment(file: WrittenFile, base_id: int | None) -> bytes:
    major, minor = file.version.manifest
    data_file = table_pb2.DataFile(
        path=file.path.rpartition("/")[2],
        fields=file.field_ids,
        column_indices=file.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=file.size,
        base_id=base_id,
    )
    return table_pb2.DataFragment(files=[data_file], physical_rows=file.num_rows).SerializeToString()


def delete_fragment_files(table: TableRef, fragments: Sequence[bytes], bases: Bases | None = None) -> None:
    """Delete the data files of fragments that were certainly never committed.

    A file that cannot be deleted is logged and left in place; no version refers to it.

    Args:
        table: the table.
        fragments: serialized DataFragment messages.
        bases: the base paths of the version. Files in other base paths are left in place.
    """
    base_paths = bases or Bases(table)
    base_ids = {base.id for base in base_paths.others}
    files = [file for data in fragments for file in table_pb2.DataFragment.FromString(data).files]
    _delete_files(
        [base_paths.data_file(f) for f in files if not f.HasField("base_id") or f.base_id in base_ids],
        table.root,
    )


def delete_operation_files(table: TableRef, operation: str) -> None:
    """Delete the data files whose names contain the id of an operation that was never committed.

    This includes files of killed tasks. Files that cannot be listed or deleted are logged and left in place.
    """
    folder = table.path(DATA_DIR)
    try:
        objects = table.store.list_to_delete(folder, table.root)
    except OSError as error:
        logger.warning("could not look for uncommitted files in %s: %s", folder, error)
        return
    names = [entry.name for entry in objects if operation in entry.name and entry.name.endswith(".lance")]
    _delete_files([(table.store, join(folder, name)) for name in names], table.root)


def _delete_files(files: Iterable[tuple[Store, str]], root: str) -> None:
    settle_uploads()
    for store, path in files:
        # A file outside the root is in the folder of a base path, which the caller of the write chose.
        top = root if path.startswith(f"{root}/") else path.rpartition("/")[0]
        try:
            sidecars = store.list_to_delete(sidecar_folder(path), top)
            store.delete_many((entry.path for entry in sidecars), top)
            store.delete(path, top)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("could not delete the uncommitted file %s: %s", path, error)
