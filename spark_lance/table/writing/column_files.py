"""Data files with some columns of an existing fragment.

Such a file has a row for every physical row of the fragment, deleted ones included. The value of a deleted
row does not matter, so it is one that takes little space: the value of a neighbour, or null for values of
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

# Fragments worked on at once where every request is waited for.
_AT_ONCE = 8


def each_fragment(
    store: Store,
    fragments: Sequence[Fragment],
    work: Callable[[Fragment], Outcome],
) -> list[Outcome]:
    """Return the results of `work` for fragments, or ids, in order; in threads unless the store is local."""
    if store.is_local or len(fragments) < 2:
        return [work(fragment) for fragment in fragments]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        waiting = [pool.submit(work, fragment) for fragment in fragments]
        try:
            return [one.result() for one in waiting]
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
    """Write columns of a fragment from the values of its rows that are not deleted.

    Args:
        table: the table.
        fragment: the fragment, as it is in the version that the values belong to.
        fields: the columns, possibly pruned, with their ids.
        batches: the values in row order, one for every row that is not deleted.
        version: version of the file.
        bases: the version's base paths.

    Returns:
        What a manifest says about the file, and the offsets of the deleted rows.

    Raises:
        SchemaError: there are more or fewer rows, or the values do not fit the fields.
        OSError: the store failed. No file is left behind by any error.
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
    """Write columns of a fragment from values of all its physical rows; return the manifest's entry.

    Arguments and errors are those of `write_live_rows`; `rows` is the number of physical rows, by default as
    the fragment's message says.
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
        written = writer.finish()
    except BaseException:
        writer.abort()
        raise
    major, minor = version.manifest
    return table_pb2.DataFile(
        path=name,
        fields=written.field_ids,
        column_indices=written.column_indices,
        file_major_version=major,
        file_minor_version=minor,
        file_size_bytes=written.size,
    )


def delete_column_files(table: TableRef, files: Iterable[table_pb2.DataFile]) -> None:
    """Delete files that no version refers to. One that cannot be deleted is logged and left."""
    fragments = [table_pb2.DataFragment(files=[file]).SerializeToString() for file in files]
    delete_fragment_files(table, fragments)


def fill_deleted(
    batches: Iterable[pa.RecordBatch], deleted: npt.NDArray[np.uint32], rows: int, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Put a row in the place of every deleted one.

    Args:
        batches: the rows that are not deleted, in order.
        deleted: physical offsets of the deleted rows, ascending.
        rows: the number of physical rows.
        schema: of the batches.

    Yields:
        All physical rows, in batches that end where those of `batches` do, and one for what comes after.

    Raises:
        SchemaError: all rows are deleted, and a column must not be null.
    """
    gaps = deleted.astype(np.int64)
    # Before the k-th deleted row there are gaps[k] - k others.
    before = gaps - np.arange(len(gaps))
    live = start = 0
    last: pa.RecordBatch | None = None
    for batch in batches:
        if not batch.num_rows:
            continue
        live += batch.num_rows
        stop = live + int(np.searchsorted(before, live, side="left"))
        homes = np.arange(start, stop)
        inside = gaps[np.searchsorted(gaps, start) : np.searchsorted(gaps, stop)] - start
        is_gap = np.zeros(stop - start, np.bool_)
        is_gap[inside] = True
        # A gap gets the row before it; the first rows, having none, get the first.
        homes = np.maximum(np.cumsum(~is_gap) - 1, 0)
        yield batch if not len(inside) else _spread(batch, homes, is_gap)
        start, last = stop, batch
    missing = rows - start
    if missing and last is not None:
        yield _spread(last, np.full(missing, last.num_rows - 1), np.ones(missing, np.bool_))
    elif missing:
        if not all(field.nullable for field in schema):
            raise SchemaError("a fragment without any row cannot get columns that must not be null")
        arrays = [pa.nulls(missing, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _spread(
    batch: pa.RecordBatch, homes: npt.NDArray[np.int64], is_gap: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """Return the rows at `homes`; those of gaps as nulls where that takes less room."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        blank = is_gap if field.nullable and _has_length(field.type) else None
        columns.append(make_filterable(column).take(pa.array(homes, mask=blank)))
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _has_length(kind: pa.DataType) -> bool:
    """Whether values of a type differ in length. Structs do not count: 2.0 files have no null structs."""
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return False
    try:
        return not kind.bit_width
    except ValueError:
        return True
