"""Computes aggregates in the driver: from the manifest, from indexes, and from small columns.

An index can answer if it covers all rows of a version. With a condition it can answer if it returns exactly
the rows that meet the condition. For the least and the greatest value, an index returns the positions of
their rows, and the values are read from these rows. Without an index, the columns are scanned if they are
small. If a result is not certain, there is no answer, and Spark's tasks compute it.

Scanned columns are aggregated batch by batch, in any order of rows. The results are exactly Spark's, or there
is no answer. Sums are computed for integers and decimals that cannot overflow in any order. Sums of floats
depend on the order, so Spark computes them.

If Spark pushes down an average, it does so as a sum and a count; otherwise it adds doubles. So if a query has
a sum and a count for one column, doubles must represent the sum exactly. Spark computes averages of decimals,
because it may round them differently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.arrow.arrays import one_array
from spark_lance.spark.options.options import check_batch
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.scans import (
    Read,
    TargetRows,
    create_reader,
    find_spark_type,
    find_top_rows,
    has_spark_order,
    has_spark_values,
    local_bounds,
    rows_answer,
    target_rows,
    version_answer,
)
from spark_lance.table.format.row_set import RowSet

# Bounds for absolute sums that cannot overflow in any order: for bigint, and for integers in doubles.
_LONG, _EXACT_DOUBLE = 1 << 63, 1 << 53
# The most digits of decimals that are added here, and the digits that Spark adds for a sum. With fewer rows
# than `_MAX_ROWS`, a sum cannot overflow.
_SUM_DIGITS, _MORE_DIGITS, _MAX_DIGITS = 28, 10, 38
_MAX_ROWS = 10**_MORE_DIGITS


class Accumulator(Protocol):
    """An aggregate of the rows so far."""

    @property
    def kind(self) -> st.DataType:
        """Spark's type of the result."""

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        """Add the column's values of further rows. `values` is None for an aggregate without a column."""

    def value(self) -> pa.Array | None:
        """Return the result as an array of one value; None if Spark must compute it."""


def new_accumulator(
    aggregate: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    kind: st.DataType | None,
    *,
    ordered: bool,
) -> Accumulator | None:
    """Return an empty accumulator for an aggregate; None if Spark must compute the aggregate.

    Args:
        aggregate: `function`, `path` and `distinct`.
        others: all aggregates of the query.
        kind: Spark's type of the column; None for an aggregate without a column.
        ordered: whether the values have the same order in Spark.
    """
    function = aggregate["function"]
    if aggregate["distinct"]:
        return None
    if function == "count":
        return _Count()
    if kind is None or not ordered:
        return None
    if function != "sum":
        return _Extreme(kind, function == "max")
    is_average = any(one["function"] == "count" and one["path"] == aggregate["path"] for one in others)
    if isinstance(kind, st.IntegralType):
        return _Sum(_EXACT_DOUBLE if is_average else _LONG)
    if isinstance(kind, st.DecimalType) and kind.precision <= _SUM_DIGITS and not is_average:
        return _DecimalSum(kind)
    return None


class _Count:
    kind = st.LongType()

    def __init__(self) -> None:
        self._result = 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        self._result += rows if values is None else rows - values.null_count

    def value(self) -> pa.Array:
        return pa.array([self._result], pa.int64())


class _Sum:
    """A sum of integers.

    Args:
        bound: the sum of all absolute values must be less, so that it overflows in no order.
    """

    kind = st.LongType()

    def __init__(self, bound: int) -> None:
        self._bound, self._result, self._rows, self._largest = bound, 0, 0, 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        assert values is not None
        ends = pc.min_max(values)
        if not ends["min"].is_valid:
            return
        self._rows += rows
        self._largest = max(self._largest, abs(ends["min"].as_py()), abs(ends["max"].as_py()))
        self._result += pc.sum(values).as_py()

    def value(self) -> pa.Array | None:
        if self._largest * self._rows >= self._bound:
            return None  # sums of batches may have overflowed, too
        return pa.array([self._result if self._rows else None], pa.int64())


class _DecimalSum:
    def __init__(self, kind: st.DecimalType) -> None:
        self.kind = st.DecimalType(min(kind.precision + _MORE_DIGITS, _MAX_DIGITS), kind.scale)
        self._wide = pa.decimal128(_MAX_DIGITS, kind.scale)
        self._sums: list[pa.Array] = []
        self._rows = 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        assert values is not None
        self._rows += rows
        self._sums.append(pa.array([pc.sum(values.cast(self._wide)).as_py()], self._wide))

    def value(self) -> pa.Array | None:
        if self._rows >= _MAX_ROWS:
            return None
        total = pc.sum(one_array(pa.chunked_array(self._sums, self._wide))).as_py()
        return pa.array([total], pa.decimal128(self.kind.precision, self.kind.scale))


class _Extreme:
    def __init__(self, kind: st.DataType, is_max: bool) -> None:
        self.kind, self._is_max = kind, is_max
        self._ends: list[pa.Array] = []

    def add(self, values: pa.Array | None, _rows: int, /) -> None:
        assert values is not None
        if pa.types.is_floating(values.type):
            values = values.drop_null()
            is_nan = pc.is_nan(values)
            self._ends.append(values.filter(is_nan).slice(0, 1))
            values = values.filter(pc.invert(is_nan))
        ends = pc.min_max(values)
        self._ends.append(pa.repeat(ends["max" if self._is_max else "min"], 1))

    def value(self) -> pa.Array | None:
        kind = arrow_schema(st.StructType([st.StructField("value", self.kind)])).types[0]
        ends = one_array(pa.chunked_array(self._ends, kind))
        return least_or_greatest(ends.drop_null(), self._is_max)


def least_or_greatest(values: pa.Array, is_max: bool) -> pa.Array | None:
    """Return the least or greatest value as an array of one value, which is null if `values` is empty.

    None if the result is 0.0 or -0.0: they are equal, so which of them Spark returns is unknown.
    """
    if pa.types.is_floating(values.type):
        is_number = pc.invert(pc.is_nan(values))
        numbers = values.filter(is_number)
        if len(numbers) and not (is_max and len(numbers) < len(values)):
            values = numbers
        elif len(values):
            return values.filter(pc.invert(is_number)).slice(0, 1)
    both = pc.min_max(values)
    value = both["max" if is_max else "min"]
    if pa.types.is_floating(values.type) and value.is_valid and value.as_py() == 0:
        return None
    return pa.repeat(value, 1) if value.is_valid else pa.nulls(1, values.type)


# The most rows that are scanned for one value: the rows of a few zones.
_MAX_SCANNED_ROWS = 1 << 16
# Types that Spark can use to estimate joins and filters.
_ESTIMATED_TYPES = (st.IntegralType, st.DecimalType, st.DateType, st.TimestampType, st.BooleanType)


def push_aggregates(request: BridgeRequest) -> dict[str, Any] | None:
    """Return the result rows of aggregates in the form of `plan_scan`; None if tasks must compute them.

    `groups` are the paths of the grouping columns. `aggregates` have a `function`, a `path` (None for all
    rows), and `distinct`. The result has the grouping columns first.
    """
    body = request.body
    read = Read(body["read"])
    if read.options.kind != "rows":
        return None
    check_batch(read.options)
    facts = _LocalAggregates(read, body)
    answer = facts.by_group() if body["groups"] else facts.of_all()
    if answer is None:
        return None
    schema, columns = answer
    rows = rows_answer([pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))], schema)
    return {**rows, "schema": schema.json(), "ref": version_answer(read.version)}


def column_statistics(request: BridgeRequest) -> dict[str, Any]:
    """Return statistics of columns of a scan from indexes, for Spark's estimates.

    `columns` has `nulls` and `distinct` (None if unknown) by column name. The two rows are the least and the
    greatest values, null if they are unknown.
    """
    body = request.body
    read = Read(body["read"])
    statistics, fields, ends = {}, [], []
    if read.options.kind == "rows" and read.snapshot.manifest.index_section:
        # Imported here and in the functions below, because a table without indexes needs none of these
        # modules.
        from spark_lance.index.scalar.column_facts import column_bounds

        ref_schema = read.snapshot.schema
        for column in st.StructType.fromJson(json.loads(body["columns"])).fields:
            path = [column.name]
            bounds = (
                column_bounds(read.snapshot, path)
                if has_spark_values(path, ref_schema, read.scan_schema)
                else None
            )
            if bounds is None:
                continue
            statistics[column.name] = {"nulls": bounds.nulls, "distinct": bounds.distinct}
            fields.append(st.StructField(column.name, column.dataType, True))
            ends.append(_ends(bounds.low, bounds.high, fields[-1]))
    schema = st.StructType(fields)
    answer = rows_answer(
        [pa.RecordBatch.from_arrays(ends, schema=arrow_schema(schema))] if ends else [], schema
    )
    return {**answer, "schema": schema.json(), "columns": statistics}


def _ends(low: pa.Array | None, high: pa.Array | None, field: st.StructField) -> pa.Array:
    target = arrow_schema(st.StructType([field]))
    if low is None or high is None or not isinstance(field.dataType, _ESTIMATED_TYPES):
        return pa.nulls(2, target.types[0])
    return _convert(pa.concat_arrays([low, high]), target)


def _convert(values: pa.Array, target: pa.Schema) -> pa.Array:
    source = pa.schema([pa.field(target.names[0], values.type)])
    return BatchConverter.plan(source, target)(pa.RecordBatch.from_arrays([values], schema=source)).column(0)


_Answer = tuple[st.StructType, list[pa.Array]]
_TypedValue = tuple[st.DataType, pa.Array]


@dataclass(frozen=True)
class _LocalAggregates:
    """Computes aggregates of a read without tasks."""

    read: Read
    body: Mapping[str, Any] = dataclass_field(repr=False)

    @cached_property
    def _reader(self) -> LanceReader:
        return create_reader(self.read, st.StructType(), self.body)

    @cached_property
    def _target(self) -> TargetRows | None:
        """The rows to aggregate; None if they are unknown without a scan."""
        return target_rows(self.read, self.body) if local_bounds(self.body)[0] > 0 else None

    def of_all(self) -> _Answer | None:
        """Return one row with a value for each aggregate."""
        aggregates = self.body["aggregates"]
        readers = {"count": self._count_rows, "min": self._extreme, "max": self._extreme}
        answers = [
            readers[one["function"]](one) if one["function"] in readers else None for one in aggregates
        ]
        unknown = [one for one, answer in zip(aggregates, answers, strict=True) if answer is None]
        if unknown:
            scanned = self._scan_columns(unknown)
            if scanned is None:
                return None
            rest = iter(scanned)
            answers = [answer or next(rest) for answer in answers]
        fields, columns = [], []
        for number, (one, answer) in enumerate(zip(aggregates, answers, strict=True)):
            assert answer is not None  # every aggregate has been computed above
            fields.append(st.StructField(f"a{number}", answer[0], one["function"] != "count"))
            columns.append(answer[1])
        return st.StructType(fields), columns

    def _scan_columns(self, aggregates: Sequence[Mapping[str, Any]]) -> list[_TypedValue] | None:
        """Compute aggregates by a scan of their columns, if the columns are small."""
        most_rows, most_bytes = local_bounds(self.body)
        scan_schema, schema = self.read.scan_schema, self.read.snapshot.schema
        pending: list[Accumulator] = []
        for one in aggregates:
            path = one["path"]
            kind = None if path is None else find_spark_type(path, scan_schema)
            ordered = path is not None and has_spark_order(path, schema, scan_schema)
            accumulator = new_accumulator(one, self.body["aggregates"], kind, ordered=ordered)
            if accumulator is None or (path is not None and kind is None):
                return None
            pending.append(accumulator)
        paths = [one["path"] for one in aggregates]
        columns = _nested_columns([path for path in paths if path is not None], scan_schema)
        batches = (
            create_reader(self.read, columns, self.body).stream_if_small(most_bytes)
            if most_rows > 0
            else None
        )
        if batches is None:
            return None
        for batch in batches:
            for aggregate, path in zip(pending, paths, strict=True):
                values = None if path is None else _inner_values(batch.column(path[0]), path[1:])
                aggregate.add(values, batch.num_rows)
        ends = [(end.kind, values) for end in pending if (values := end.value()) is not None]
        return ends if len(ends) == len(pending) else None

    def _count_rows(self, one: Mapping[str, Any]) -> _TypedValue | None:
        path = one["path"]
        if path is None:
            rows = self._count_all()
        elif self._target is None:
            return None
        elif one["distinct"]:
            rows = self._distinct(path)
        else:
            rows = self._count_values(path, self._target.rows)
        return None if rows is None else (st.LongType(), pa.array([rows], pa.int64()))

    def _count_all(self) -> int | None:
        """Return the number of rows, if it is known without a scan."""
        target_rows = self._target.rows if self._target is not None else None
        return self._reader.count_from_manifest() if target_rows is None else target_rows.num_rows

    def _count_values(self, path: Sequence[str], rows: RowSet | None) -> int | None:
        """Return the number of rows that are not null in a column."""
        snapshot = self.read.snapshot
        if not (snapshot.manifest.index_section and find_spark_type(path, self.read.scan_schema)):
            return None
        from spark_lance.index.scalar.column_facts import null_count
        from spark_lance.index.scalar.full_coverage import rows_without

        if rows is None:
            empty = null_count(snapshot, path)
            return None if empty is None else snapshot.live_rows() - empty
        without = rows_without(snapshot, path, local_bounds(self.body)[1])
        return None if without is None else rows.num_rows - (rows & without).num_rows

    def _distinct(self, path: Sequence[str]) -> int | None:
        groups = self._groups(path)
        return None if groups is None else len(groups[0]) - groups[0].null_count

    def _groups(self, path: Sequence[str]) -> tuple[pa.Array, Any] | None:
        snapshot = self.read.snapshot
        if self._target is None or not snapshot.manifest.index_section:
            return None
        if not has_spark_values(path, snapshot.schema, self.read.scan_schema):
            return None
        from spark_lance.index.scalar.column_facts import value_counts

        return value_counts(snapshot, path, *local_bounds(self.body), within=self._target.rows)

    def by_group(self) -> _Answer | None:
        """Return a row for each value of the one grouping column."""
        aggregates = self.body["aggregates"]
        if len(self.body["groups"]) != 1 or any(one["function"] != "count" for one in aggregates):
            return None
        (path,) = self.body["groups"]
        kind = find_spark_type(path, self.read.scan_schema)
        if kind is None or any(one["path"] not in (None, path) or one["distinct"] for one in aggregates):
            return None
        groups = self._groups(path)
        if groups is None:
            return None
        values, counts = groups
        fields = [st.StructField("g0", kind, True)]
        columns = [_convert(values, arrow_schema(st.StructType(fields)))]
        rows = pa.array(counts, pa.int64())
        for number, one in enumerate(aggregates):
            fields.append(st.StructField(f"a{number}", st.LongType(), False))
            columns.append(rows if one["path"] is None else pc.if_else(pc.is_null(values), 0, rows))
        return st.StructType(fields), columns

    def _extreme(self, one: Mapping[str, Any]) -> _TypedValue | None:
        """Read the least or greatest value of a column from the rows that an index returns."""
        path, schema = one["path"], self.read.snapshot.schema
        if self._target is None or not has_spark_order(path, schema, self.read.scan_schema):
            return None
        is_max = one["function"] == "max"
        top = {"path": path, "descending": is_max, "nulls": "none", "rows": 1}
        rows = find_top_rows(self.read, top, self._target.rows)
        if rows is None:
            return None
        columns = _nested_columns([path], self.read.scan_schema)
        reader = create_reader(self.read, columns, self.body)
        reader.set_rows(rows)
        most_rows, most_bytes = local_bounds(self.body)
        batches = reader.read_if_small(max(most_rows, _MAX_SCANNED_ROWS), most_bytes)
        kind = find_spark_type(path, columns)
        if batches is None or kind is None:
            return None
        values = [_inner_values(batch.column(0), path[1:]) for batch in batches]
        empty = arrow_schema(st.StructType([st.StructField("value", kind)])).types[0]
        value = least_or_greatest(one_array(pa.chunked_array(values, empty)).drop_null(), is_max)
        return None if value is None else (kind, value)


def _nested_columns(paths: Sequence[Sequence[str]], scan_schema: st.StructType) -> st.StructType:
    """Return a schema of the columns of some paths, with only the fields at the ends of the paths."""
    fields = []
    for field in scan_schema.fields:
        parts = [path[1:] for path in paths if path[0] == field.name]
        if parts and all(parts):
            assert isinstance(field.dataType, st.StructType)
            field = st.StructField(field.name, _nested_columns(parts, field.dataType), field.nullable)
        if parts:
            fields.append(field)
    return st.StructType(fields)


def _inner_values(values: pa.Array, path: Sequence[str]) -> pa.Array:
    return pc.struct_field(values, list(path)) if path else values
