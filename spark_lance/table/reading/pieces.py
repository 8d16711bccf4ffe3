"""Rows of a fragment piece by piece: as many in a piece as take about so many bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import filter_rows, join
from spark_lance.table.reading.fragment_rows import (
    Columns,
    FragmentRows,
    batch_without_columns,
    rows_without_columns,
)

_MAX_WINDOW_ROWS = 1 << 22
_MIN_ROW_BYTES = 0.125


class BatchSizer:
    """The number of rows in a piece of a given size: first by an estimate, then by what was read."""

    def __init__(self, target_bytes: int, row_bytes: float) -> None:
        self._target = target_bytes
        self._row_bytes = max(row_bytes, _MIN_ROW_BYTES)

    def rows(self) -> int:
        """Return how many rows the next piece has."""
        return int(min(max(1, self._target / self._row_bytes), _MAX_WINDOW_ROWS))

    def saw(self, nbytes: int, rows: int) -> None:
        """Learn from a piece that was read: its bytes and rows."""
        # Growth is limited, for the next rows may be wider.
        self._row_bytes = max(nbytes / rows, self._row_bytes / 4, _MIN_ROW_BYTES)


def windows(
    rows: FragmentRows, columns: Columns, target_bytes: int, runs: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, pa.Table]]:
    """Yield runs of physical rows piece by piece: first row, row after the last, and their values."""
    pace = BatchSizer(target_bytes, rows.row_bytes(columns))
    for start, end in runs:
        while start < end:
            stop = min(start + pace.rows(), end)
            table = rows.read(columns, start, stop)
            pace.saw(table.nbytes, stop - start)
            yield start, stop, table
            start = stop


def kept_of(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows of a table for which `keep` is true."""
    if keep.all():
        return table
    if not table.num_columns:
        return rows_without_columns(int(np.count_nonzero(keep)))
    return filter_rows(table, pa.array(keep))


def in_batches(tables: Iterable[pa.Table], batch_size: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of tables as record batches of at most `batch_size` rows."""
    for table in tables:
        for first in range(0, table.num_rows, batch_size):
            # Arrow does not stop a slice at the end of a table without columns.
            yield from _as_batches(table.slice(first, min(batch_size, table.num_rows - first)))


def _as_batches(table: pa.Table) -> list[pa.RecordBatch]:
    """Return the table as one batch; more only where the chunks of a column cannot be joined."""
    if not table.num_columns:
        return [batch_without_columns(table.num_rows)]
    columns = [join(column.chunks) for column in table.columns]
    if all(len(chunks) == 1 for chunks in columns):
        return [pa.RecordBatch.from_arrays([chunks[0] for chunks in columns], schema=table.schema)]
    return list(table.to_batches())
