"""Where the values of columns come from in a distributed change: expressions, joins and functions.

Each source runs one Spark job over some fragments of one version, in which tasks write the column files of
whole fragments (see `table.columns.work`). Rows must reach a task in the order of the table:

    expressions    a task reads whole fragments, and Spark evaluates the expressions row by row: no shuffle
    joins          the rows that match are shuffled by fragment and sorted by address
    functions      a task reads what the function gets to see by itself; the rows do not pass through the JVM
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
    analysed,
    as_column,
    columns_option,
    functions_of,
    needed_columns,
    quoted,
    text_of,
)
from spark_lance.table.columns.finished import FragmentResult
from spark_lance.table.columns.work import ColumnWork
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.system_columns import ROW_ADDRESS, system_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_MOST_TASKS = 512


class Source(Protocol):
    """Gives columns their values."""

    def describe(self) -> str:
        """Return what is asked for, as text: two requests with other texts are not one job."""

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """Return the columns of a version that the values are computed from."""

    def finds_moved(self, version: Manifest) -> bool:
        """Whether a row that has moved to another fragment gets its value there."""

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """Let tasks write the columns of some fragments of a version."""


@dataclass(frozen=True)
class Expressions:
    """Values that Spark computes from other columns of the same row.

    Attributes:
        table: the table.
        values: the expressions by the names of the columns.
        where: the rows that get values; all by default.
        fit: makes the columns that are selected of these expressions and a DataFrame to resolve them.
    """

    table: TableBase
    values: Mapping[str, Expression]
    where: Expression | None = None
    fit: Callable[[DataFrame, Mapping[str, Column]], Mapping[str, Column]] = field(
        default=lambda frame, columns: columns, compare=False
    )
    # Frames of the last request: the schema of new columns comes from the DataFrame that is then run.
    _frames: dict[tuple[int, tuple[int, ...]], DataFrame] = field(default_factory=dict, compare=False)

    def describe(self) -> str:
        """See `Source`."""
        parts = [f"{name} = {text_of(value)}" for name, value in self.values.items()]
        return ", ".join(parts) + _where_text(self.where)

    def columns(self, version: Manifest) -> tuple[str, ...]:
        """See `Source`."""
        return _named(self.table, version, [*self.values.values(), *_some(self.where)])

    def finds_moved(self, version: Manifest) -> bool:
        """See `Source`."""
        return True

    def frame(self, version: Manifest, fragments: Sequence[int]) -> DataFrame:
        """Return the rows of some fragments, each whole in one partition: their addresses and values.

        Raises:
            ExpressionError: Spark does not understand an expression, or it looks at more than one row.
        """
        key = version.version, tuple(fragments)
        if key in self._frames:
            return self._frames[key]
        rows = _rows(self.table, version, self.columns(version), fragments)
        functions = functions_of(self.table.spark)
        columns = {}
        for name in self.values:
            columns[name] = self._understood(version, rows, functions, name)
            _refuse_other_rows(rows, columns[name], name)
        selection = _matching(rows, self.where)
        columns = dict(self.fit(rows, columns))
        frame = selection.select(ROW_ADDRESS, *[column.alias(name) for name, column in columns.items()])
        self._frames.clear()
        self._frames[key] = frame
        return frame

    def _understood(self, version: Manifest, rows: DataFrame, functions: Any, name: str) -> Column:
        """Return an expression as a Column that fits the rows."""
        value = self.values[name]
        try:
            with analysed(f"column {name!r}"):
                column = as_column(functions, value)
                _ = rows.select(column).schema
        except ExpressionError:
            # Spark lists the columns that there are, so let it see them all.
            everything = [field.name for field in version.schema.fields]
            with analysed(f"column {name!r}"):
                _ = _rows(self.table, version, everything, None).select(as_column(functions, value)).schema
            raise
        return column

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """See `Source`."""
        return collect_answers(self.frame(version, fragments), work.write)


def _refuse_other_rows(rows: DataFrame, column: Column, name: str) -> None:
    """Refuse windows, aggregates and generators: Spark allows none of them in a condition."""
    try:
        with analysed(f"column {name!r}"):
            _ = rows.where(column.isNotNull()).schema
    except ExpressionError as error:
        raise ExpressionError(
            f"column {name!r} must be computed from one row at a time, without windows and aggregates: "
            f"compute it as a DataFrame with the column {ROW_ADDRESS}, and give that"
        ) from error


@dataclass(frozen=True)
class Joined:
    """Values of a DataFrame, found by the value of keys.

    Attributes:
        table: the table.
        frame: the DataFrame.
        on: the columns of the table with the keys, and the columns of the DataFrame that hold them.
        values: the columns of the DataFrame with the values, by the names of the table's columns.
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
        functions = functions_of(self.table.spark)
        # The columns go by other names meanwhile, so that none is there twice.
        keys = {f"key{place}": pair for place, pair in enumerate(self.on.items())}
        values = {f"value{place}": pair for place, pair in enumerate(self.values.items())}
        right = self.frame.select(
            *[functions.col(quoted(theirs)).alias(name) for name, (_, theirs) in keys.items()],
            *[functions.col(quoted(theirs)).alias(name) for name, (_, theirs) in values.items()],
        )
        if self._by_address(version):
            addresses = functions.col("key0").cast("bigint").alias(ROW_ADDRESS)
            matched = right.where("key0 is not null").select(addresses, *values)
        else:
            rows = _rows(self.table, version, tuple(self.on), fragments)
            own = [functions.col(quoted(mine)).alias(name) for name, (mine, _) in keys.items()]
            matched = rows.select(ROW_ADDRESS, *own).join(right, [*keys], "inner")
        named = [functions.col(name).alias(mine) for name, (mine, _) in values.items()]
        matched = matched.select(ROW_ADDRESS, *named)
        partitions = int(self.table.spark.conf.get("spark.sql.shuffle.partitions", "200") or 200)
        fragment = functions.shiftright(functions.col(ROW_ADDRESS), 32)
        shuffled = matched.repartition(min(len(fragments), partitions), fragment)
        return collect_answers(shuffled.sortWithinPartitions(ROW_ADDRESS), work.write)

    def _by_address(self, version: Manifest) -> bool:
        """Whether the keys are row addresses, so that the table need not be read."""
        if len(self.on) != 1:
            return False
        return ROW_ADDRESS in self.on or (ROW_ID in self.on and not version.uses_stable_row_ids)


@dataclass(frozen=True)
class Function:
    """Values that a Python function makes of batches of other columns.

    Attributes:
        table: the table.
        inputs: what the function gets to see.
        call: from a batch to a batch of as many rows.
        outputs: the columns that it gives.
        rows: the most rows of a batch.
        where: the rows for which it is called; all by default.
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
        return tuple(dict.fromkeys([*self.inputs, *_named(self.table, version, _some(self.where))]))

    def finds_moved(self, version: Manifest) -> bool:
        """See `Source`."""
        return True

    def run(self, version: Manifest, fragments: Sequence[int], work: ColumnWork) -> list[FragmentResult]:
        """See `Source`."""
        inputs, call, most = self.inputs, self.call, self.rows
        if self.where is not None:
            columns = _named(self.table, version, [self.where])
            frame = _matching(_rows(self.table, version, columns, fragments), self.where)

            def on_some(batches: Iterable[pa.RecordBatch]) -> Iterator[FragmentResult]:
                for number, offsets in _offsets(batches):
                    yield work.compute(number, inputs, call, most, selection=offsets)

            return collect_answers(frame.select(ROW_ADDRESS), on_some)

        return over_fragments(
            self.table.spark, fragments, lambda number: work.compute(number, inputs, call, most)
        )


def over_fragments(
    spark: SparkSession, fragments: Sequence[int], work: Callable[[int], FragmentResult]
) -> list[FragmentResult]:
    """Run `work` on fragments, named by their ids, in Spark tasks of some neighbours each."""

    def on_group(numbers: Sequence[int]) -> list[FragmentResult]:
        return [work(number) for number in numbers]

    groups = [group.tolist() for group in np.array_split(fragments, min(len(fragments), _MOST_TASKS))]
    return [result for group in map_tasks(spark, groups, on_group) for result in group]


def _offsets(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, BitMap]]:
    """Yield fragments and the offsets of rows whose addresses come, all of a fragment one after the other."""
    now, offsets = -1, BitMap()
    for batch in batches:
        addresses = batch.column(0).to_numpy()
        for number, rows in RowSet.from_addresses(addresses.astype(np.uint64)).bitmaps.items():
            if number != now:
                if offsets:
                    yield now, offsets
                now, offsets = number, BitMap()
            offsets |= rows
    if offsets:
        yield now, offsets


def _rows(
    table: TableBase, version: Manifest, columns: Iterable[str], fragments: Sequence[int] | None
) -> DataFrame:
    """Return columns of fragments of a version with the row addresses; each fragment in one partition."""
    names = list(dict.fromkeys([*columns, ROW_ADDRESS]))
    options = {"fragments": _ranges(fragments)} if fragments else {}
    rows = table.read(version=version.version, columns=columns_option(names), **options)
    return rows if table.aliased is None else rows.alias(table.aliased)


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text such as "0-3,7"."""
    ordered = np.unique(np.asarray(numbers, np.int64))
    runs = np.split(ordered, np.flatnonzero(np.diff(ordered) != 1) + 1)
    return ",".join(f"{run[0]}-{run[-1]}" for run in runs)


def _matching(rows: DataFrame, where: Expression | None) -> DataFrame:
    if where is None:
        return rows
    with analysed("the condition"):
        selection = rows.where(as_column(functions_of(rows.sparkSession), where))
        _ = selection.schema
    return selection


def _named(table: TableBase, version: Manifest, expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Return the columns of a version that expressions may name."""
    names = [field.name for field in version.schema.fields]
    system = system_names(names)
    columns_to_read = needed_columns([*names, *system], expressions, table.aliased)
    # An expression that cannot be parsed may use everything; but a star does not include system columns.
    return tuple(names if len(columns_to_read) == len(names) + len(system) else columns_to_read)


def _some(where: Expression | None) -> list[Expression]:
    return [] if where is None else [where]


def _where_text(where: Expression | None) -> str:
    return "" if where is None else f" where {text_of(where)}"


def fields_among(version: Manifest, names: Iterable[str]) -> tuple[Field, ...]:
    """Return the version's fields among columns; system columns are none.

    Raises:
        SchemaError: a column does not exist.
    """
    system = system_names(field.name for field in version.schema.fields)
    table_columns = [name for name in names if name not in system]
    if not all(table_columns):
        raise SchemaError("a column has no name")
    return tuple(version.schema.field(name) for name in table_columns)
