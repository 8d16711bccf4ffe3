"""Extend values for some rows of a fragment to values for all its physical rows.

The values come in runs: ascending physical offsets, and a batch with a row for each of them. The other rows
get null, or keep their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.arrow.arrays import movable
from spark_lance.errors import SchemaError

__all__ = ["Run", "overlaid", "with_nulls"]

_BATCH_BYTES = 8 << 20
_MOST_ROWS = 1 << 20


@dataclass(frozen=True)
class Run:
    """Values of some rows of a fragment.

    Attributes:
        offsets: their physical offsets, ascending, each of them once.
        batch: the values.
    """

    offsets: npt.NDArray[np.int64]
    batch: pa.RecordBatch

    def part(self, start: int, stop: int) -> Run:
        """Return the values from one place in the run to another."""
        return Run(self.offsets[start:stop], self.batch.slice(start, stop - start))


def with_nulls(runs: Iterable[Run], rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the values of all physical rows of a fragment, null where none comes, in batches of some MB.

    Args:
        runs: the values, in the order of the rows.
        rows: the number of physical rows.
        schema: of the values.
    """
    done = 0
    step = _rows_in_a_batch(None)
    for run in runs:
        step = _rows_in_a_batch(run.batch)
        end = int(run.offsets[-1]) + 1
        while done < end:
            stop = min(done + step, end)
            first, last = (int(place) for place in np.searchsorted(run.offsets, [done, stop]))
            yield _spread(run.part(first, last), done, stop, schema)
            done = stop
    while done < rows:
        stop = min(done + step, rows)
        arrays = [pa.nulls(stop - done, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        done = stop


def _rows_in_a_batch(like: pa.RecordBatch | None) -> int:
    if like is None or not like.num_rows:
        return 1 << 14
    return int(np.clip(_BATCH_BYTES * like.num_rows // max(like.nbytes, 1), 1, _MOST_ROWS))


def _spread(run: Run, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the physical rows from `start` to `stop`, with null where the run has no value."""
    count = len(run.offsets)
    if count == stop - start:
        return run.batch
    picks = np.zeros(stop - start, np.int64)
    blank = np.ones(stop - start, np.bool_)
    picks[run.offsets - start] = np.arange(count)
    blank[run.offsets - start] = False
    places = pa.array(picks, mask=blank)
    arrays = [
        movable(column).take(places) if count else pa.nulls(stop - start, column.type)
        for column in run.batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def overlaid(old: Iterable[Run], new: Iterable[Run]) -> Iterator[pa.RecordBatch]:
    """Yield the old values with the new ones in their places.

    Args:
        old: the values of all rows that are not deleted.
        new: values of some of them, in columns of the same types.

    Raises:
        SchemaError: a new value is for a row that there is not, or the dictionaries of a column are too many.
    """
    coming = iter(new)
    rest = next(coming, None)
    for before in old:
        parts = []
        while rest is not None and rest.offsets[0] <= before.offsets[-1]:
            count = int(np.searchsorted(rest.offsets, before.offsets[-1], side="right"))
            parts.append(rest.part(0, count))
            rest = rest.part(count, len(rest.offsets)) if count < len(rest.offsets) else next(coming, None)
        yield _replaced(before, parts) if parts else before.batch
    if rest is not None:
        raise SchemaError(f"there are values for row {int(rest.offsets[0])}, which there is not")


def _replaced(before: Run, parts: list[Run]) -> pa.RecordBatch:
    offsets = np.concatenate([part.offsets for part in parts])
    places = np.searchsorted(before.offsets, offsets)
    if not np.array_equal(before.offsets[places], offsets):
        wrong = offsets[before.offsets[places] != offsets]
        raise SchemaError(f"there are values for row {int(wrong[0])}, which there is not")
    picks = np.arange(len(before.offsets))
    picks[places] = len(before.offsets) + np.arange(len(offsets))
    columns = []
    for number, field in enumerate(before.batch.schema):
        both = join_arrays([before.batch.column(number), *(part.batch.column(number) for part in parts)])
        if len(both) > 1:
            raise SchemaError(f"column {field.name!r}: the dictionaries of old and new values are too many")
        columns.append(movable(both[0]).take(pa.array(picks)))
    return pa.RecordBatch.from_arrays(columns, schema=before.batch.schema)
