"""Read rows by address, fragment by fragment and piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows
from spark_lance.file.base.schema import Field
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import Offsets
from spark_lance.table.reading import system_columns
from spark_lance.table.reading.blobs import blob_sizes, blob_values
from spark_lance.table.reading.fragment import FragmentReader
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.snapshot import Snapshot

_PIECE_BYTES = 16 << 20
_MAX_PIECE_ROWS = 1 << 20
# Rows are read as one run if the run has at most this many times as many rows.
_MAX_RUN_RATIO = 4


def descriptor_schema(manifest: Manifest) -> pa.Schema:
    """Return the Arrow schema of a version's columns, with blobs as descriptors."""
    return pa.schema([field.as_descriptor().arrow_field() for field in manifest.schema.fields])


def filterable_schema(manifest: Manifest) -> pa.Schema:
    """Return the Arrow schema of all columns that a condition on a version's rows may refer to."""
    return system_columns.filterable_schema(manifest.schema)


def read_rows(
    snapshot: Snapshot,
    rows: Mapping[int, Offsets],
    fields: Sequence[Field],
    piece_bytes: int = _PIECE_BYTES,
    extra_bytes: float = 0.0,
) -> Iterator[tuple[int, Offsets, pa.Table]]:
    """Yield fields of some rows in tables of about `piece_bytes` Arrow bytes, with the bytes of blobs.

    Fragments are in scan order.

    Args:
        snapshot: the version.
        rows: fragment id -> physical offsets, ascending.
        fields: top-level fields of the version's schema, possibly pruned.
        piece_bytes: target size of one table in bytes.
        extra_bytes: bytes that the caller adds to each row; they count towards `piece_bytes`.

    Yields:
        The fragment's id, the offsets of the rows, and the rows.

    Raises:
        FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
    """
    descriptors = [field.as_descriptor() for field in fields]
    schema = pa.schema([field.arrow_field() for field in descriptors])
    blobs = [(place, field) for place, field in enumerate(fields) if field.is_blob]
    for fragment in snapshot.fragments:
        offsets = rows.get(fragment.id)
        if offsets is None:
            continue
        reader = FragmentReader(snapshot.table, fragment, descriptors, snapshot.bases)
        row_bytes = max(reader.row_bytes() + extra_bytes, 0.125)
        start = 0
        while start < len(offsets):
            count = int(min(max(1, piece_bytes / row_bytes), _MAX_PIECE_ROWS))
            piece = offsets[start : start + count]
            table = _read_piece(reader, piece.astype(np.int64), schema)
            if not blobs:
                yield fragment.id, piece, table
            for part in split_by_blob_bytes(table, blobs, piece_bytes) if blobs else ():
                rows_of_part = table.slice(part.start, part.stop - part.start)
                for place, field in blobs:
                    values = blob_values(snapshot.bases, field, rows_of_part.column(place), fragment)
                    rows_of_part = rows_of_part.set_column(place, field.arrow_field(), values)
                yield fragment.id, piece[part], rows_of_part
            # As in a scan: the measured size replaces the estimate, and a piece grows at most fourfold.
            row_bytes = max(table.nbytes / len(piece) + extra_bytes, row_bytes / 4, 0.125)
            start += len(piece)


def split_by_blob_bytes(table: pa.Table, blobs: Sequence[tuple[int, Field]], limit: int) -> Iterator[slice]:
    """Yield runs of at least one row, each with blobs of at most `limit` bytes if it has several rows."""
    ends = np.cumsum(sum(blob_sizes(table.column(place)) for place, _ in blobs))
    start = 0
    while start < table.num_rows:
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + limit, side="right")))
        yield slice(start, stop)
        start = stop


def _read_piece(reader: FragmentReader, rows: npt.NDArray[np.int64], schema: pa.Schema) -> pa.Table:
    if not reader.fields:
        return rows_without_columns(len(rows))
    first, stop = int(rows[0]), int(rows[-1]) + 1
    if stop - first > _MAX_RUN_RATIO * len(rows):
        return pa.Table.from_arrays(reader.take(rows), schema=schema)
    table = pa.Table.from_arrays(reader.read(first, stop), schema=schema)
    return table if stop - first == len(rows) else pick_rows(table, rows - first)
