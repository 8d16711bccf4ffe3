"""Write data files with some columns of an existing fragment.

Such a file has a row for every physical row of the fragment, including deleted rows. The value of a deleted
row does not matter, so we store a small one: the value of a neighbouring row, or null if the type has
variable length. (Lance table format, data files.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import make_filterable
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.paths import DATA_DIR, new_data_file_name
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.writing.write import delete_fragment_files

logger = logging.getLogger(__name__)

Fragment = TypeVar("Fragment")
Outcome = TypeVar("Outcome")

# The number of threads on stores other than local ones, where most of the time is spent waiting for requests.
_THREADS = 8


def each_fragment(
    store: Store,
    fragments: Sequence[Fragment],
    work: Callable[[Fragment], Outcome],
) -> list[Outcome]:
    """Return the result of `work` for each fragment, in order; uses threads unless the store is local."""
    if store.is_local or len(fragments) < 2:
        return [work(fragment) for fragment in fragments]
    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(work, fragment) for fragment in fragments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def write_live_rows(
    table: TableRef,
    fragment: table_pb2.DataFragment,
    fields: Sequence[Field],
    batches: Iterable[pa.RecordBatch],
    version: FileVersion,
    bases: Bases | None = None,
) -> tuple[table_pb2.DataFile, npt.NDArray[np.uint32]]:
    """Write columns of a fragment from the values of its live rows.

    Args:
        table: the table.
        fragment: the fragment in the version of the values.
        fields: the columns with their ids, possibly pruned.
        batches: the values in row order, one for every live row.
        version: the version of the file.
        bases: the version's base paths.

    Returns:
        The file's message for the manifest, and the physical offsets of the deleted rows, ascending.

    Raises:
        SchemaError: the number of rows is wrong, or the values do not fit the fields.
        OSError: the store failed. The file is deleted after every error.
    """
    rows = physical_rows(table, fragment, bases)
    deleted = read_deletions(table, fragment, rows, bases)
    schema = pa.schema([field.arrow_field() for field in fields])
    aligned = fill_deleted(batches, deleted, rows, schema) if len(deleted) else batches
    return write_column_file(table, fragment, fields, aligned, version, rows), deleted


def write_column_file(
    table: TableRef,
    fragment: table_pb2.DataFragment,
    fields: Sequence[Field],
    batches: Iterable[pa.RecordBatch],
    version: FileVersion,
    rows: int | None = None,
) -> table_pb2.DataFile:
    """Write columns of a fragment from values of all its physical rows; return the file's message.

    Arguments and errors are as in `write_live_rows`. `rows` is the number of physical rows; the default is
    the number in the fragment's message.
    """
    expected = fragment.physical_rows if rows is None else rows
    name = new_data_file_name()
    writer = FileWriter(table.store, table.path(DATA_DIR, name), Schema(tuple(fields)), version)
    try:
        for batch in batches:
            writer.write(batch)
        if writer.rows_written != expected:
            raise SchemaError(
                f"{writer.rows_written} values for the {expected} rows of fragment {fragment.id}"
            )
        file = writer.finish()
    except BaseException:
        writer.abort()
        raise
    major, minor = version.manifest
    return table_pb2.DataFile(
        path=name,
        fields=file.field_ids,
        column_indices=file.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=file.size,
    )


def delete_column_files(table: TableRef, files: Iterable[table_pb2.DataFile]) -> None:
    """Delete files that no version refers to. A file that cannot be deleted is logged and left in place."""
    fragments = [table_pb2.DataFragment(files=[file]).SerializeToString() for file in files]
    delete_fragment_files(table, fragments)


def fill_deleted(
    batches: Iterable[pa.RecordBatch], deleted: npt.NDArray[np.uint32], rows: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Insert a placeholder row for every deleted row.

    Args:
        batches: the live rows, in order.
        deleted: physical offsets of the deleted rows, ascending.
        rows: the number of physical rows.
        schema: the schema of the batches.

    Yields:
        All physical rows. Each batch ends with the last row of a batch of `batches`; a last batch has the
        deleted rows after it.

    Raises:
        SchemaError: all rows are deleted, and a column is NOT NULL.
    """
    gaps = deleted.astype(np.int64)
    # gaps[k] - k live rows precede the k-th deleted row.
    before = gaps - np.arange(len(gaps))
    live = start = 0
    last: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        live += batch.num_rows
        stop = live + int(np.searchsorted(before, live, side="left"))
        sources = np.arange(start, stop)
        inside = gaps[np.searchsorted(gaps, start) : np.searchsorted(gaps, stop)] - start
        is_gap = np.zeros(stop - start, np.bool_)
        is_gap[inside] = True
        # A gap gets a copy of the row before it, or of the first row if no row precedes it.
        sources = np.maximum(np.cumsum(~is_gap) - 1, 0)
        yield batch if not len(inside) else _take_with_gaps(batch, sources, is_gap)
        start, last = stop, batch
    missing = rows - start
    if missing and last is not None:
        yield _take_with_gaps(last, np.full(missing, last.num_rows - 1), np.ones(missing, np.bool_))
    elif missing:
        if not all(field.nullable for field in schema):
            raise SchemaError("a fragment without any row cannot get columns that must not be null")
        arrays = [pa.nulls(missing, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _take_with_gaps(
    batch: pa.RecordBatch, sources: npt.NDArray[np.int64], is_gap: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """Return the rows at `sources`; gaps become null in columns where a null needs less space."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        blank = is_gap if field.nullable and _is_variable_length(field.type) else None
        columns.append(make_filterable(column).take(pa.array(sources, mask=blank)))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _is_variable_length(kind: pa.DataType) -> bool:
    """Return whether a type has variable length; False for structs, which cannot be null in 2.0 files."""
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return False
    try:
        return not kind.bit_width
    except ValueError:
        return True
