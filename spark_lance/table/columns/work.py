"""The task of a distributed column change: write values with row addresses to column files.

The input is batches of row addresses and new values, grouped by fragment and in row order. For each fragment,
the task writes one data file while the values arrive, and records it.

A column file needs values for all physical rows of a fragment. The input values come in runs: ascending
physical offsets, and a batch with one row per offset. Other rows get null, or keep their values.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.arrow.arrays import make_filterable
from spark_lance.errors import MergeError, SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.proto import table_pb2
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import Addresses, address_offsets, runs_by_fragment
from spark_lance.table.format.table_ref import TableRef, TableRefMixin
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.column_files import fill_deleted, write_column_file

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class Run:
    """Values of some rows of a fragment.

    Attributes:
        offsets: the physical offsets, ascending and distinct.
        batch: the values, one row per offset.
    """

    offsets: npt.NDArray[np.int64]
    batch: pa.RecordBatch

    def part(self, start: int, stop: int) -> Run:
        """Return the values at positions [start, stop) of the run."""
        return Run(self.offsets[start:stop], self.batch.slice(start, stop - start))


def with_nulls(runs: Iterable[Run], rows: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the values of all physical rows of a fragment, null for missing rows, in batches of about 8 MiB.

    Args:
        runs: the values, in row order.
        rows: the number of physical rows.
        schema: the schema of the values.
    """
    position = 0
    step = _rows_in_a_batch(None)
    for run in runs:
        step = _rows_in_a_batch(run.batch)
        end = int(run.offsets[-1]) + 1
        while position < end:
            stop = min(position + step, end)
            first, last = (int(place) for place in np.searchsorted(run.offsets, [position, stop]))
            yield _fill_gaps(run.part(first, last), position, stop, schema)
            position = stop
    while position < rows:
        stop = min(position + step, rows)
        arrays = [pa.nulls(stop - position, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        position = stop


def _rows_in_a_batch(like: pa.RecordBatch | None) -> int:
    if like is None or not like.num_rows:
        return 1 << 14
    return int(np.clip(_BATCH_BYTES * like.num_rows // max(like.nbytes, 1), 1, _MAX_BATCH_ROWS))


def _fill_gaps(run: Run, start: int, stop: int, schema: pa.Schema) -> pa.RecordBatch:
    """Return the physical rows [start, stop), with null where the run has no value."""
    count = len(run.offsets)
    if count == stop - start:
        return run.batch
    picks = np.zeros(stop - start, np.int64)
    blank = np.ones(stop - start, np.bool_)
    picks[run.offsets - start] = np.arange(count)
    blank[run.offsets - start] = False
    places = pa.array(picks, mask=blank)
    arrays = [
        make_filterable(column).take(places) if count else pa.nulls(stop - start, column.type)
        for column in run.batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def overlaid(old: Iterable[Run], new: Iterable[Run]) -> Iterator[pa.RecordBatch]:
    """Yield the old values, replaced by new values where they exist.

    Args:
        old: the values of all live rows.
        new: new values of some rows, in columns of the same types.

    Raises:
        SchemaError: a new value is for a row that does not exist, or the dictionaries of a column cannot be
            merged.
    """
    new_runs = iter(new)
    rest = next(new_runs, None)
    for before in old:
        parts = []
        while rest is not None and rest.offsets[0] <= before.offsets[-1]:
            count = int(np.searchsorted(rest.offsets, before.offsets[-1], side="right"))
            parts.append(rest.part(0, count))
            rest = rest.part(count, len(rest.offsets)) if count < len(rest.offsets) else next(new_runs, None)
        yield _replace_values(before, parts) if parts else before.batch
    if rest is not None:
        raise SchemaError(f"there are values for row {int(rest.offsets[0])}, which does not exist")


def _replace_values(before: Run, parts: list[Run]) -> pa.RecordBatch:
    offsets = np.concatenate([part.offsets for part in parts])
    places = np.searchsorted(before.offsets, offsets)
    if not np.array_equal(before.offsets[places], offsets):
        wrong = offsets[before.offsets[places] != offsets]
        raise SchemaError(f"there are values for row {int(wrong[0])}, which does not exist")
    picks = np.arange(len(before.offsets))
    picks[places] = len(before.offsets) + np.arange(len(offsets))
    columns = []
    for number, field in enumerate(before.batch.schema):
        both = join_arrays([before.batch.column(number), *(part.batch.column(number) for part in parts)])
        if len(both) > 1:
            raise SchemaError(
                f"column {field.name!r}: the dictionaries of old and new values cannot be merged"
            )
        columns.append(make_filterable(both[0]).take(pa.array(picks)))
    return pa.RecordBatch.from_arrays(columns, schema=before.batch.schema)


BATCH_BYTES = 16 << 20


class UnchangedColumns(enum.Enum):
    """The treatment of rows without a new value."""

    FORBIDDEN = "every row must get a value"
    NULL = "they get null"
    KEPT = "they keep the value that they have"


@dataclass(frozen=True)
class ColumnWork(TableRefMixin):
    """The parameters of a task that writes columns of fragments. Can be pickled.

    Attributes:
        table: the table.
        records: the records of finished fragments; None to write no records.
        fields: the columns to write, possibly pruned, with their ids.
        sources: the fields from which the values are computed.
        others: the treatment of rows without a value.
        version: the version of the data files.
        bases: the version's base paths.
        stable_row_ids: whether the table has stable row ids.
        fragments: fragment id -> serialized fragment, for the fragments to write.
        elsewhere: the ids of the table's other fragments; values for them are skipped.
    """

    table: TableRef
    records: JobRecords | None
    fields: tuple[Field, ...]
    sources: tuple[Field, ...]
    others: UnchangedColumns
    version: FileVersion
    bases: Bases
    stable_row_ids: bool
    fragments: dict[int, bytes]
    elsewhere: frozenset[int] = frozenset()

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids of the written fields, depth first."""
        return tuple(part.id for top in self.fields for part in top.walk())

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[FragmentResult]:
        """Write the columns of the fragments in the input, and yield the result of each fragment.

        Args:
            batches: row addresses in the column `_rowaddr`, ascending, and the values.

        Raises:
            SchemaError: the rows are out of order, a row is missing or does not exist in the table, or the
                values do not fit the columns.
            MergeError: a row has several values.
        """
        runs = _split_by_fragment(batches)
        run = next(runs, None)
        fragment_ids: set[int] = set()
        while run is not None:
            number = run[0]
            if number in fragment_ids:
                raise SchemaError(_OUT_OF_ORDER)
            fragment_ids.add(number)
            fragment_runs = _FragmentRuns(number, run, runs)
            if number in self.fragments:
                yield self.finish(number, fragment_runs)
            elif number not in self.elsewhere:
                raise SchemaError(
                    f"there are values for rows of fragment {number}, which the table does not have: "
                    "they have moved since their addresses were read"
                )
            run = fragment_runs.next_run()

    def compute(
        self,
        number: int,
        columns: tuple[str, ...],
        call: Callable[[pa.RecordBatch], pa.RecordBatch],
        rows: int,
        selection: BitMap | None = None,
    ) -> FragmentResult:
        """Write the columns of a fragment with the results of a function of other columns.

        Args:
            number: the fragment's id.
            columns: the columns that are passed to the function.
            call: the function; it returns as many rows as it gets.
            rows: the maximal number of rows of one call.
            selection: the offsets of the rows for which the function is called; all by default.

        Raises:
            SchemaError: the function returns another number of rows, or values that do not fit the columns.
        """
        names = (*columns, ROW_ADDRESS) if ROW_ADDRESS not in columns else columns
        task = self._task(number, names, self.sources)
        batches = task.batches(BATCH_BYTES, rows)
        if selection is not None:
            positions = np.array(selection.to_array(), np.int64)
            tables = task.rows(positions, BATCH_BYTES)
            batches = (batch for table in tables for batch in table.to_batches(max_chunksize=rows))

        def runs() -> Iterator[Run]:
            for batch in batches:
                result = call(batch.select(columns))
                if result.num_rows != batch.num_rows:
                    raise SchemaError(f"{result.num_rows} new values came back for {batch.num_rows} rows")
                yield Run(_offsets(batch.column(ROW_ADDRESS)), result)

        return self.finish(number, runs())

    def finish(self, number: int, runs: Iterable[Run]) -> FragmentResult:
        """Write the columns of a fragment, write its record, and return its result.

        Args:
            number: the fragment's id.
            runs: the values, in row order.

        Raises:
            SchemaError, MergeError: see `write`.
        """
        fragment = table_pb2.DataFragment.FromString(self.fragments[number])
        rows = physical_rows(self.table, fragment, self.bases)
        deleted = read_deletions(self.table, fragment, rows, self.bases)
        deleted_rows = BitMap(deleted)
        counter = _RunChecker(deleted_rows, rows, lenient=self.others is not UnchangedColumns.FORBIDDEN)
        file: table_pb2.DataFile | None = None
        values = counter.check(self._align_runs(runs))
        first = next(values, None)
        if first is not None or self.others is UnchangedColumns.FORBIDDEN:
            values = values if first is None else chain([first], values)
            batches = self._fill_rows(number, counter, values, rows, deleted)
            file = write_column_file(self.table, fragment, self.fields, batches, self.version, rows)
        result = FragmentResult.of(
            fragment,
            self.sources,
            self.ids,
            file,
            deleted,
            offsets=counter.offsets if self.others is UnchangedColumns.KEPT else None,
            values=counter.count,
        )
        if self.records is not None:
            self.records.add(result)
        return result

    def _fill_rows(
        self,
        number: int,
        counter: _RunChecker,
        values: Iterator[Run],
        rows: int,
        deleted: npt.NDArray[np.uint32],
    ) -> Iterator[pa.RecordBatch]:
        """Return the values of all physical rows, with nulls or old values for rows without a new value."""
        schema = Schema(self.fields).to_arrow()
        if self.others is UnchangedColumns.NULL:
            return with_nulls(values, rows, schema)
        batches: Iterable[pa.RecordBatch]
        if self.others is UnchangedColumns.KEPT:
            names = tuple(field.name for field in self.fields)
            task = self._task(number, (*names, ROW_ADDRESS), self.fields)
            old = (
                Run(
                    _offsets(batch.column(ROW_ADDRESS)),
                    pa.RecordBatch.from_arrays(batch.columns[:-1], schema=schema),
                )
                for batch in task.batches(BATCH_BYTES)
            )
            batches = overlaid(old, values)
        else:
            batches = counter.complete(run.batch for run in values)
        return iter(fill_deleted(batches, deleted, rows, schema) if len(deleted) else batches)

    def _align_runs(self, runs: Iterable[Run]) -> Iterator[Run]:
        aligner: Aligner | None = None
        source: pa.Schema | None = None
        for run in runs:
            if aligner is None or run.batch.schema != source:
                source = run.batch.schema
                aligner = Aligner(source, Schema(self.fields))
            yield replace(run, batch=aligner.align(run.batch))

    def _task(self, number: int, names: tuple[str, ...], fields: tuple[Field, ...]) -> ScanTask:
        messages = {field.name: field.as_descriptor() for field in fields}
        return ScanTask(
            self.table,
            names,
            tuple(messages[name] for name in names if name in messages),
            self.fragments[number],
            self.stable_row_ids,
            self.bases,
        )


_OUT_OF_ORDER = (
    "the rows come in another order than the table's, so an expression depends on other rows: "
    "compute it as a DataFrame with the column _rowaddr, and give that"
)


class _RunChecker:
    """Checks and counts the offsets of runs.

    Args:
        deleted: the deleted rows of the fragment.
        rows: the number of its physical rows.
        lenient: whether to skip values for deleted rows instead of raising an error.
    """

    def __init__(self, deleted: BitMap, rows: int, *, lenient: bool) -> None:
        self._deleted = deleted
        self._rows = rows
        self._lenient = lenient
        self.offsets = BitMap()
        self.count = 0

    def complete(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches unchanged, and check at the end that every live row has a value."""
        yield from batches
        live = self._rows - len(self._deleted)
        if self.count != live:
            raise SchemaError(f"there are values for {self.count} rows of a fragment with {live}")

    def check(self, runs: Iterable[Run]) -> Iterator[Run]:
        """Yield the runs without values for deleted rows, and check that offsets are ascending and exist."""
        last = -1
        for run in runs:
            offsets = run.offsets
            if not len(offsets):
                continue
            steps = np.diff(offsets, prepend=last)
            if (steps <= 0).any():
                at = int(np.argmax(steps <= 0))
                if steps[at] == 0:
                    raise MergeError(f"there are several values for the row with offset {int(offsets[at])}")
                raise SchemaError(_OUT_OF_ORDER)
            last = int(offsets[-1])
            if last >= self._rows:
                raise SchemaError(f"there are values for row {last} of a fragment with {self._rows} rows")
            live_run = run
            hits = BitMap(offsets.astype(np.uint32))
            deleted_rows = hits & self._deleted
            if deleted_rows:
                if not self._lenient:
                    raise SchemaError(f"there are values for row {deleted_rows[0]}, which is deleted")
                is_live = ~np.isin(offsets, np.array(deleted_rows.to_array(), np.int64))
                columns = [make_filterable(column).filter(pa.array(is_live)) for column in run.batch.columns]
                live_run = Run(offsets[is_live], pa.RecordBatch.from_arrays(columns, schema=run.batch.schema))
                hits -= deleted_rows
            if len(live_run.offsets):
                self.count += len(live_run.offsets)
                self.offsets |= hits
                yield live_run


class _FragmentRuns:
    """Iterates over the runs of one fragment, and then returns the first run of the next fragment."""

    def __init__(self, number: int, first: tuple[int, Run], runs: Iterator[tuple[int, Run]]) -> None:
        self._number = number
        self._next: tuple[int, Run] | None = first
        self._runs = runs

    def __iter__(self) -> Iterator[Run]:
        while self._next is not None and self._next[0] == self._number:
            _, run = self._next
            yield run
            self._next = next(self._runs, None)

    def next_run(self) -> tuple[int, Run] | None:
        """Skip the remaining runs; return the first run of the next fragment."""
        for _ in self:
            pass
        return self._next


def _split_by_fragment(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Run]]:
    """Yield (fragment id, run) for batches of row addresses and values."""
    for batch in batches:
        if not batch.num_rows:
            continue
        place = batch.schema.get_field_index(ROW_ADDRESS)
        addresses = batch.column(place)
        if addresses.null_count:
            raise SchemaError("a row address is null")
        offsets = _offsets(addresses)
        values = batch.select([i for i in range(batch.num_columns) if i != place])
        for number, part in runs_by_fragment(_numbers(addresses)):
            yield number, Run(offsets[part], values.slice(part.start, part.stop - part.start))


def _offsets(addresses: pa.Array) -> npt.NDArray[np.int64]:
    return address_offsets(_numbers(addresses)).astype(np.int64)


def _numbers(addresses: pa.Array) -> Addresses:
    # Spark has signed integers only.
    numbers: Addresses = addresses.to_numpy(zero_copy_only=False).astype(np.uint64)
    return numbers
