"""Sources of column values in a distributed change: expressions, joins and functions.

Each source runs one Spark job over some fragments of one version. Its tasks write the column files of whole
fragments (see `table.columns.work`). Rows must reach a task in table order:

    expressions    a task reads whole fragments, and Spark evaluates the expressions row by row: no shuffle
    joins          the matching rows are shuffled by fragment and sorted by address
    functions      a task reads the function's input itself; the rows do not pass through the JVM
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.spark.driver.jobs import collect_answers, map_tasks
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.expressions import (
    Expression,
    analysis_errors,
    as_column,
    columns_option,
    expression_text,
    needed_columns,
    quoted,
    spark_functions,
)
from spark_lance.table.columns.job_records import FragmentResult
from spark_lance.table.columns.work import ColumnWork
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.system_columns import ROW_ADDRESS, system_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MAX_TASKS = 512


class Source(Protocol):
    """A source of column values."""

    def describe(self) -> str:
        """Return the request as text. Requests with different texts are different jobs."""

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """Return the columns of a version that the values are computed from."""

    def finds_moved(self, version: Manifest) -> bool:
        """Return whether a row that moved to another fragment still gets its value."""

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """Run a job that writes the columns of some fragments of a version."""


@dataclass(frozen=True)
class Expressions:
    """Values that Spark computes from other columns of the same row.

    Attributes:
        table: the table.
        values: column name -> expression.
        where: condition on the rows; None for all rows.
        fit: (DataFrame, columns) -> columns, such as casts to the table's types.
    """

    table: TableBase
    values: Mapping[str, Expression]
    where: Expression | None = None
    fit: Callable[[DataFrame, Mapping[str, Column]], Mapping[str, Column]] = field(
        default=lambda frame, columns: columns, compare=False
    )
    # The frame of the last request: the schema of new columns comes from the frame that runs later.
    _frames: dict[tuple[int, tuple[int, ...]], DataFrame] = field(default_factory=dict, compare=False)

    def describe(self) -> str:
        """See `Source`."""
        parts = [f"{name} = {expression_text(value)}" for name, value in self.values.items()]
        return ", ".join(parts) + _where_text(self.where)

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """See `Source`."""
        return _used_columns(self.table, version, [*self.values.values(), *_as_list(self.where)])

    def finds_moved(self, version: Manifest) -> bool:
        """See `Source`."""
        return True

    def frame(self, version: Manifest, fragments: Sequence[int]) -> DataFrame:
        """Return addresses and values of the rows of some fragments, with each fragment in one partition.

        Raises:
            ExpressionError: Spark cannot resolve an expression, or it depends on more than one row.
        """
        key = version.version, tuple(fragments)
        if key in self._frames:
            return self._frames[key]
        rows = _read_fragments(self.table, version, self.columns(version), fragments)
        functions = spark_functions(self.table.spark)
        columns = {}
        for name in self.values:
            columns[name] = self._resolve_column(version, rows, functions, name)
            _check_row_expression(rows, columns[name], name)
        selection = _filter_rows(rows, self.where)
        columns = dict(self.fit(rows, columns))
        frame = selection.select(ROW_ADDRESS, *[column.alias(name) for name, column in columns.items()])
        self._frames.clear()
        self._frames[key] = frame
        return frame

    def _resolve_column(self, version: Manifest, rows: DataFrame, functions: Any, name: str) -> Column:
        """Return an expression as a Column that Spark can resolve on the rows."""
        value = self.values[name]
        try:
            with analysis_errors(f"column {name!r}"):
                column = as_column(functions, value)
                _ = rows.select(column).schema
        except ExpressionError:
            # Resolve it on all columns, so that Spark's message lists them.
            everything = [field.name for field in version.schema.fields]
            with analysis_errors(f"column {name!r}"):
                _ = (
                    _read_fragments(self.table, version, everything, None)
                    .select(as_column(functions, value))
                    .schema
                )
            raise
        return column

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """See `Source`."""
        return collect_answers(self.frame(version, fragments), work.write)


def _check_row_expression(rows: DataFrame, column: Column, name: str) -> None:
    """Check for windows, aggregates and generators, which Spark does not allow in a condition."""
    try:
        with analysis_errors(f"column {name!r}"):
            _ = rows.where(column.isNotNull()).schema
    except ExpressionError as error:
        raise ExpressionError(
            f"column {name!r} must be computed from one row at a time, without windows and aggregates: "
            f"compute it as a DataFrame with the column {ROW_ADDRESS}, and give that"
        ) from error


@dataclass(frozen=True)
class JoinedFrame:
    """Values of a DataFrame that is joined by keys.

    Attributes:
        table: the table.
        frame: the DataFrame.
        on: key column of the table -> key column of the DataFrame.
        values: column of the table -> column of the DataFrame.
    """

    table: TableBase
    frame: DataFrame
    on: Mapping[str, str]
    values: Mapping[str, str]

    def describe(self) -> str:
        """See `Source`."""
        return f"{', '.join(self.values)} joined on {', '.join(self.on)}"

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """See `Source`."""
        return () if self._by_address(version) else tuple(self.on)

    def finds_moved(self, version: Manifest) -> bool:
        """See `Source`."""
        return not self._by_address(version)

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """See `Source`."""
        functions = spark_functions(self.table.spark)
        # Temporary names make all columns unique.
        keys = {f"key{place}": pair for place, pair in enumerate(self.on.items())}
        values = {f"value{place}": pair for place, pair in enumerate(self.values.items())}
        right = self.frame.select(
            *[functions.col(quoted(source_name)).alias(name) for name, (_, source_name) in keys.items()],
            *[functions.col(quoted(source_name)).alias(name) for name, (_, source_name) in values.items()],
        )
        if self._by_address(version):
            addresses = functions.col("key0").cast("bigint").alias(ROW_ADDRESS)
            matched = right.where("key0 is not null").select(addresses, *values)
        else:
            rows = _read_fragments(self.table, version, tuple(self.on), fragments)
            own = [functions.col(quoted(target_name)).alias(name) for name, (target_name, _) in keys.items()]
            matched = rows.select(ROW_ADDRESS, *own).join(right, [*keys], "inner")
        value_columns = [functions.col(name).alias(target_name) for name, (target_name, _) in values.items()]
        matched = matched.select(ROW_ADDRESS, *value_columns)
        partitions = int(self.table.spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
        fragment = functions.shiftright(functions.col(ROW_ADDRESS), 32)
        shuffled = matched.repartition(min(len(fragments), partitions), fragment)
        return collect_answers(shuffled.sortWithinPartitions(ROW_ADDRESS), work.write)

    def _by_address(self, version: Manifest) -> bool:
        """Return whether the keys are row addresses, so that the job need not read the table."""
        if len(self.on) != 1:
            return False
        return ROW_ADDRESS in self.on or (ROW_ID in self.on and not version.uses_stable_row_ids)


@dataclass(frozen=True)
class Function:
    """Values that a Python function computes from batches of other columns.

    Attributes:
        table: the table.
        inputs: columns that the function receives.
        call: the function, from a batch to a batch with the same number of rows.
        outputs: columns that it returns.
        rows: maximum number of rows per batch.
        where: condition on the rows; None for all rows.
    """

    table: TableBase
    inputs: tuple[str, ...]
    call: Callable[[pa.RecordBatch], pa.RecordBatch]
    outputs: tuple[str, ...]
    rows: int
    where: Expression | None = None

    def describe(self) -> str:
        """See `Source`."""
        text = f"{', '.join(self.outputs)} by a function of {', '.join(self.inputs)}"
        return text + _where_text(self.where)

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """See `Source`."""
        return tuple(dict.fromkeys([*self.inputs, *_used_columns(self.table, version, _as_list(self.where))]))

    def finds_moved(self, version: Manifest) -> bool:
        """See `Source`."""
        return True

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """See `Source`."""
        inputs, call, most = self.inputs, self.call, self.rows
        if self.where is not None:
            columns = _used_columns(self.table, version, [self.where])
            frame = _filter_rows(_read_fragments(self.table, version, columns, fragments), self.where)

            def compute_selected(batches: Iterable[pa.RecordBatch]) -> Iterator[FragmentResult]:
                for number, offsets in _group_offsets(batches):
                    yield work.compute(number, inputs, call, most, selection=offsets)

            return collect_answers(frame.select(ROW_ADDRESS), compute_selected)

        return over_fragments(
            self.table.spark, fragments, lambda number: work.compute(number, inputs, call, most)
        )


def over_fragments(
    spark: SparkSession, fragments: Sequence[int], work: Callable[[int], FragmentResult]
) -> list[FragmentResult]:
    """Run `work` on fragment ids in Spark tasks. Each task gets adjacent fragments."""

    def run_group(numbers: Sequence[int]) -> list[FragmentResult]:
        return [work(number) for number in numbers]

    groups = [group.tolist() for group in np.array_split(fragments, min(len(fragments), _MAX_TASKS))]
    return [result for group in map_tasks(spark, groups, run_group) for result in group]


def _group_offsets(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, BitMap]]:
    """Yield fragment ids and row offsets from row addresses that are grouped by fragment."""
    current, offsets = -1, BitMap()
    for batch in batches:
        addresses = batch.column(0).to_numpy()
        for number, rows in RowSet.from_addresses(addresses.astype(np.uint64)).bitmaps.items():
            if number != current:
                if offsets:
                    yield current, offsets
                current, offsets = number, BitMap()
            offsets |= rows
    if offsets:
        yield current, offsets


def _read_fragments(
    table: TableBase, version: Manifest, columns: Iterable[str], fragments: Sequence[int] | None
) -> DataFrame:
    """Return columns and row addresses of fragments of a version, with each fragment in one partition."""
    names = list(dict.fromkeys([*columns, ROW_ADDRESS]))
    options = {"fragments": _format_ranges(fragments)} if fragments else {}
    rows = table.read(version=version.version, columns=columns_option(names), **options)
    return rows if table.aliased is None else rows.alias(table.aliased)


def _format_ranges(numbers: Sequence[int]) -> str:
    """Return numbers as ranges in text, such as "0-3,7"."""
    ordered = np.unique(np.asarray(numbers, np.int64))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    return ",".join(f"{run[0]}-{run[-1]}" for run in runs)


def _filter_rows(rows: DataFrame, where: Expression | None) -> DataFrame:
    if where is None:
        return rows
    with analysis_errors("the condition"):
        selection = rows.where(as_column(spark_functions(rows.sparkSession), where))
        _ = selection.schema
    return selection


def _used_columns(table: TableBase, version: Manifest, expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Return the columns of a version that expressions may use."""
    names = [field.name for field in version.schema.fields]
    system = system_names(names)
    columns_to_read = needed_columns([*names, *system], expressions, table.aliased)
    # An expression that cannot be parsed may use everything; but a star does not include system columns.
    return tuple(names if len(columns_to_read) == len(names) + len(system) else columns_to_read)


def _as_list(where: Expression | None) -> list[Expression]:
    return [] if where is None else [where]


def _where_text(where: Expression | None) -> str:
    return "" if where is None else f" where {expression_text(where)}"


def fields_among(version: Manifest, names: Iterable[str]) -> tuple[Field, ...]:
    """Return the fields of columns, without system columns.

    Raises:
        SchemaError: a column does not exist.
    """
    system = system_names(field.name for field in version.schema.fields)
    table_columns = [name for name in names if name not in system]
    if not all(table_columns):
        raise SchemaError("a column has no name")
    return tuple(version.schema.field(name) for name in table_columns)
