"""Deletion files: the deleted physical rows of a fragment.

    {fragment}-{read_version}-{id}.arrow   Arrow IPC file: one record batch, one column `row_id`, uint32, not
                                           nullable, in any order; buffers plain or compressed
    {fragment}-{read_version}-{id}.bin     32-bit Roaring bitmap in its portable form

Both have offsets of the fragment's physical rows, counted from 0. A file is cumulative: it replaces the file
of the previous version. Either kind may have any number of rows. This package writes Arrow files for up to
5000 rows and bitmaps for more; a bitmap is never replaced by an Arrow file. The manifest has the number of
deleted rows; 0 means that an old writer did not record it.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_arrow_file
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.bitmaps import parse_offsets
from spark_lance.table.format.table_ref import TableRef

UInt32Array = npt.NDArray[np.uint32]

MAX_ARROW_ROWS = 5000
_MAX_U32 = 2**32 - 1
_COLUMN = pa.field("row_id", pa.uint32(), nullable=False)


def read_deletions(
    table: TableRef,
    fragment: table_pb2.DataFragment,
    physical_rows: int | None = None,
    bases: Bases | None = None,
) -> UInt32Array:
    """Return the offsets of a fragment's deleted rows: uint32, ascending, unique.

    Args:
        table: the table.
        fragment: the fragment; without a deletion file the result is empty.
        physical_rows: the fragment's number of rows, if the manifest does not have it.
        bases: the version's base paths; without them, the file must be under the root.

    Raises:
        FormatError: the file is missing, damaged, or does not fit the fragment.
        UnsupportedFormatError: the file has an unknown type, or more rows than `MAX_OFFSETS`.
    """
    if not fragment.HasField("deletion_file"):
        return np.empty(0, np.uint32)
    deletion = fragment.deletion_file
    rows = fragment.physical_rows or physical_rows or 0
    store, path = (bases or Bases(table)).deletion_file(fragment.id, deletion)
    try:
        data = store.read(path)
    except FileNotFoundError:
        raise FormatError("the deletion file is missing", path=path) from None
    try:
        if deletion.file_type == table_pb2.DeletionFile.ARROW_ARRAY:
            raw = _parse_arrow(data)
            offsets = np.unique(raw)
            counts = {len(raw), len(offsets)}  # writers may repeat offsets, and count them either way
        elif deletion.file_type == table_pb2.DeletionFile.BITMAP:
            offsets = parse_offsets(data, rows, "deletions")
            counts = {len(offsets)}
        else:
            raise UnsupportedFormatError(f"deletion file type {deletion.file_type}")
        if len(offsets) and int(offsets[-1]) >= rows:
            raise FormatError(f"deleted row {int(offsets[-1])} in a fragment of {rows} rows")
        if deletion.num_deleted_rows and deletion.num_deleted_rows not in counts:
            raise FormatError(f"{len(offsets)} deleted rows, and {deletion.num_deleted_rows} in the manifest")
    except (FormatError, UnsupportedFormatError) as error:
        raise error.at(path=path) from error
    return offsets


def pack_deletions(
    fragment: table_pb2.DataFragment, offsets: UInt32Array, *, version: int, bitmap: bool = False
) -> tuple[table_pb2.DeletionFile, bytes]:
    """Return the manifest entry and the bytes of a new deletion file.

    Args:
        fragment: the fragment as it is in `version`.
        offsets: all deleted rows, including the rows of the current deletion file: ascending, unique.
        version: the version that the deletion is computed from.
        bitmap: write a bitmap even for few rows.
    """
    kinds = table_pb2.DeletionFile
    was_bitmap = fragment.HasField("deletion_file") and fragment.deletion_file.file_type == kinds.BITMAP
    as_bitmap = bitmap or was_bitmap or len(offsets) > MAX_ARROW_ROWS
    entry = table_pb2.DeletionFile(
        file_type=kinds.BITMAP if as_bitmap else kinds.ARROW_ARRAY,
        read_version=version,
        id=secrets.randbits(64),
        num_deleted_rows=len(offsets),
    )
    return entry, BitMap(offsets).serialize() if as_bitmap else _pack_arrow(offsets)


def keep_mask(deleted: UInt32Array, start: int, stop: int) -> npt.NDArray[np.bool_]:
    """Return a boolean mask of the physical rows [start, stop): True for rows that are not deleted.

    Args:
        deleted: ascending offsets, as returned by `read_deletions`.
        start: the first row.
        stop: the row after the last one.
    """
    keep = np.ones(stop - start, np.bool_)
    # Bounds of the array's own dtype, because searchsorted copies the array for any other dtype.
    first, last = np.searchsorted(deleted, np.array([start, min(stop, _MAX_U32)], np.uint32))
    keep[deleted[first:last].astype(np.int64) - start] = False
    return keep


def _pack_arrow(offsets: UInt32Array) -> bytes:
    schema = pa.schema([_COLUMN])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([pa.array(offsets, pa.uint32())], schema=schema))
    return bytes(sink.getvalue())


def _parse_arrow(data: bytes) -> UInt32Array:
    check_arrow_file(data)
    try:
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            if reader.num_record_batches != 1:
                raise FormatError(f"a deletion file has one record batch, not {reader.num_record_batches}")
            batch = reader.get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise FormatError(f"undecodable deletion file: {error}") from error
    if len(batch.schema) != 1 or not batch.schema.field(0).equals(_COLUMN):
        raise FormatError(f"a deletion file has the column {_COLUMN}, not {batch.schema.to_string()}")
    column = batch.column(0)
    if column.null_count:
        raise FormatError("a deletion file holds nulls")
    offsets: UInt32Array = numbers_to_numpy(one_array(column))
    return offsets
