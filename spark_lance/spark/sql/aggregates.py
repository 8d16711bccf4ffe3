"""Aggregates that the driver answers: from the manifest, from indices, and from columns of few bytes.

An index can answer if it covers all rows of a version. With a condition it can answer if it finds exactly the
rows that meet the condition. For the least and the greatest value, an index returns the place of their rows,
and the values are read from these rows. Without an index, the columns are scanned if they are small.
If a result is not certain, there is no answer, and Spark's tasks compute it.

Scanned columns are aggregated batch by batch, in any order of rows. The results are exactly Spark's, or
there is no answer. Sums are computed for whole numbers and decimals that cannot
overflow in any order. Sums of floats depend on the order, and are left to Spark.

Spark pushes down an average as a sum and a count if it pushes down aggregates; otherwise it is a sum of
doubles. So if a query has both for one column, doubles must hold the sum exactly. Averages of decimals are
left to Spark, which may round them in another way.
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
from spark_lance.index.scalar.column_facts import bounds_of, null_count, value_counts
from spark_lance.index.scalar.full_coverage import rows_without
from spark_lance.spark.options.options import check_batch
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.scans import (
    Read,
    TargetRows,
    first_of,
    is_ordered_alike,
    is_same_value,
    local_bounds,
    reader_of,
    rows_answer,
    spark_type_of,
    target_rows,
    version_answer,
)
from spark_lance.table.format.row_set import RowSet

# Sums below are in range in any order: of a bigint, and of whole numbers in doubles.
_LONG, _EXACT_DOUBLE = 1 << 63, 1 << 53
# Digits of decimals whose sums have 38 digits at most for Spark, and cannot get there with rows that fit
# into one version here.
_SUM_DIGITS, _MORE_DIGITS, _MOST_DIGITS = 28, 10, 38
_MOST_ROWS = 10**_MORE_DIGITS


class Running(Protocol):
    """An aggregate of the rows so far."""

    @property
    def kind(self) -> st.DataType:
        """Spark's type of it."""

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        """Take the values of further rows: of its column, None for all rows."""

    def value(self) -> pa.Array | None:
        """Return the one value of the aggregate; None if Spark has to find it."""


def running(
    aggregate: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    kind: st.DataType | None,
    *,
    ordered: bool,
) -> Running | None:
    """Return what finds an aggregate, from no rows on; None if it is left to Spark.

    Args:
        aggregate: `function`, `path` and `distinct`.
        others: all that are asked together.
        kind: Spark's type of the column; None for all rows.
        ordered: whether the values are Spark's and have its order.
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
    averaged = any(one["function"] == "count" and one["path"] == aggregate["path"] for one in others)
    if isinstance(kind, st.IntegralType):
        return _Sum(_EXACT_DOUBLE if averaged else _LONG)
    if isinstance(kind, st.DecimalType) and kind.precision <= _SUM_DIGITS and not averaged:
        return _DecimalSum(kind)
    return None


class _Count:
    kind = st.LongType()

    def __init__(self) -> None:
        self._found = 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        self._found += rows if values is None else rows - values.null_count

    def value(self) -> pa.Array:
        return pa.array([self._found], pa.int64())


class _Sum:
    """A sum of whole numbers.

    Args:
        bound: what the sum of all absolute values must be below, that no order of them overflows.
    """

    kind = st.LongType()

    def __init__(self, bound: int) -> None:
        self._bound, self._found, self._rows, self._largest = bound, 0, 0, 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        assert values is not None
        ends = pc.min_max(values)
        if not ends["min"].is_valid:
            return
        self._rows += rows
        self._largest = max(self._largest, abs(ends["min"].as_py()), abs(ends["max"].as_py()))
        self._found += pc.sum(values).as_py()

    def value(self) -> pa.Array | None:
        if self._largest * self._rows >= self._bound:
            return None  # sums of batches may have overflowed, too
        return pa.array([self._found if self._rows else None], pa.int64())


class _DecimalSum:
    def __init__(self, kind: st.DecimalType) -> None:
        self.kind = st.DecimalType(min(kind.precision + _MORE_DIGITS, _MOST_DIGITS), kind.scale)
        self._wide = pa.decimal128(_MOST_DIGITS, kind.scale)
        self._sums: list[pa.Array] = []
        self._rows = 0

    def add(self, values: pa.Array | None, rows: int, /) -> None:
        assert values is not None
        self._rows += rows
        self._sums.append(pa.array([pc.sum(values.cast(self._wide)).as_py()], self._wide))

    def value(self) -> pa.Array | None:
        if self._rows >= _MOST_ROWS:
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
    """Return one value, null if there is none; None if it is one of 0.0 and -0.0, which are equal."""
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


# Rows that are looked at for one value: those of a few zones.
_MOST_LOOKED = 1 << 16
# Types that Spark's estimates of a join or a filter can use.
_ESTIMATED = (st.IntegralType, st.DecimalType, st.DateType, st.TimestampType, st.BooleanType)


def push_aggregates(request: BridgeRequest) -> dict[str, Any] | None:
    """Return the rows of aggregates, as `plan_scan` returns rows; None if tasks have to find them.

    `groups` are the paths of the columns that rows are grouped by, `aggregates` have a `function`, its `path`
    (None for all rows), and whether it is `distinct`. Answers have the groups first.
    """
    body = request.body
    read = Read(body["read"])
    if read.options.kind != "rows":
        return None
    check_batch(read.options)
    facts = _Facts(read, body)
    answer = facts.by_group() if body["groups"] else facts.of_all()
    if answer is None:
        return None
    schema, columns = answer
    rows = rows_answer([pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))], schema)
    return {**rows, "schema": schema.json(), "ref": version_answer(read.opened[0])}


def column_statistics(request: BridgeRequest) -> dict[str, Any]:
    """Return statistics of columns of a scan from indices, for estimates.

    `columns` have `nulls` and `distinct` (None if not known) by name; the two rows are the least and the
    greatest values, null where they are not known.
    """
    body = request.body
    read = Read(body["read"])
    statistics, fields, ends = {}, [], []
    if read.options.kind == "rows":
        ref_schema = read.opened[1].schema
        for column in st.StructType.fromJson(json.loads(body["columns"])).fields:
            path = [column.name]
            bounds = bounds_of(read.opened[1], path) if is_same_value(path, ref_schema, read.seen) else None
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
    if low is None or high is None or not isinstance(field.dataType, _ESTIMATED):
        return pa.nulls(2, target.types[0])
    return _converted(pa.concat_arrays([low, high]), target)


def _converted(values: pa.Array, target: pa.Schema) -> pa.Array:
    source = pa.schema([pa.field(target.names[0], values.type)])
    return BatchConverter.plan(source, target)(pa.RecordBatch.from_arrays([values], schema=source)).column(0)


_Answer = tuple[st.StructType, list[pa.Array]]
_Found = tuple[st.DataType, pa.Array]


@dataclass(frozen=True)
class _Facts:
    """Facts about the rows of a read that need no tasks."""

    read: Read
    body: Mapping[str, Any] = dataclass_field(repr=False)

    @cached_property
    def _reader(self) -> LanceReader:
        return reader_of(self.read, st.StructType(), self.body)

    @cached_property
    def _target(self) -> TargetRows | None:
        """The rows that are asked about; None if only a look at them tells."""
        return target_rows(self.read, self.body) if local_bounds(self.body)[0] > 0 else None

    def of_all(self) -> _Answer | None:
        """Return one row with a value for each aggregate."""
        aggregates = self.body["aggregates"]
        readers = {"count": self._counted, "min": self._extreme, "max": self._extreme}
        answers = [
            readers[one["function"]](one) if one["function"] in readers else None for one in aggregates
        ]
        unknown = [one for one, answer in zip(aggregates, answers, strict=True) if answer is None]
        if unknown:
            looked = self._looked(unknown)
            if looked is None:
                return None
            rest = iter(looked)
            answers = [answer or next(rest) for answer in answers]
        fields, columns = [], []
        for number, (one, answer) in enumerate(zip(aggregates, answers, strict=True)):
            assert answer is not None  # all were known or looked for
            fields.append(st.StructField(f"a{number}", answer[0], one["function"] != "count"))
            columns.append(answer[1])
        return st.StructType(fields), columns

    def _looked(self, aggregates: Sequence[Mapping[str, Any]]) -> list[_Found] | None:
        """Return aggregates that are found by looking through their columns, if these are few bytes."""
        most_rows, most_bytes = local_bounds(self.body)
        seen, schema = self.read.seen, self.read.opened[1].schema
        pending: list[Running] = []
        for one in aggregates:
            path = one["path"]
            kind = None if path is None else spark_type_of(path, seen)
            ordered = path is not None and is_ordered_alike(path, schema, seen)
            accumulator = running(one, self.body["aggregates"], kind, ordered=ordered)
            if accumulator is None or (path is not None and kind is None):
                return None
            pending.append(accumulator)
        paths = [one["path"] for one in aggregates]
        columns = _only([path for path in paths if path is not None], seen)
        batches = (
            reader_of(self.read, columns, self.body).stream_if_small(most_bytes) if most_rows > 0 else None
        )
        if batches is None:
            return None
        for batch in batches:
            for aggregate, path in zip(pending, paths, strict=True):
                values = None if path is None else _inner(batch.column(path[0]), path[1:])
                aggregate.add(values, batch.num_rows)
        ends = [(end.kind, values) for end in pending if (values := end.value()) is not None]
        return ends if len(ends) == len(pending) else None

    def _counted(self, one: Mapping[str, Any]) -> _Found | None:
        path = one["path"]
        if path is None:
            rows = self._all()
        elif self._target is None:
            return None
        elif one["distinct"]:
            rows = self._distinct(path)
        else:
            rows = self._filled(path, self._target.rows)
        return None if rows is None else (st.LongType(), pa.array([rows], pa.int64()))

    def _all(self) -> int | None:
        """Return how many rows there are, if it takes no look at them."""
        target_rows = self._target.rows if self._target is not None else None
        return self._reader.known_rows() if target_rows is None else target_rows.num_rows

    def _filled(self, path: Sequence[str], rows: RowSet | None) -> int | None:
        """Return how many of the rows have a value."""
        snapshot = self.read.opened[1]
        if not spark_type_of(path, self.read.seen):
            return None
        if rows is None:
            empty = null_count(snapshot, path)
            return None if empty is None else snapshot.live_rows() - empty
        without = rows_without(snapshot, path, local_bounds(self.body)[1])
        return None if without is None else rows.num_rows - (rows & without).num_rows

    def _distinct(self, path: Sequence[str]) -> int | None:
        groups = self._groups(path)
        return None if groups is None else len(groups[0]) - groups[0].null_count

    def _groups(self, path: Sequence[str]) -> tuple[pa.Array, Any] | None:
        snapshot = self.read.opened[1]
        if self._target is None or not is_same_value(path, snapshot.schema, self.read.seen):
            return None
        return value_counts(snapshot, path, *local_bounds(self.body), within=self._target.rows)

    def by_group(self) -> _Answer | None:
        """Return a row for each value of the one column that rows are grouped by."""
        aggregates = self.body["aggregates"]
        if len(self.body["groups"]) != 1 or any(one["function"] != "count" for one in aggregates):
            return None
        (path,) = self.body["groups"]
        kind = spark_type_of(path, self.read.seen)
        if kind is None or any(one["path"] not in (None, path) or one["distinct"] for one in aggregates):
            return None
        groups = self._groups(path)
        if groups is None:
            return None
        values, counts = groups
        fields = [st.StructField("g0", kind, True)]
        columns = [_converted(values, arrow_schema(st.StructType(fields)))]
        rows = pa.array(counts, pa.int64())
        for number, one in enumerate(aggregates):
            fields.append(st.StructField(f"a{number}", st.LongType(), False))
            columns.append(rows if one["path"] is None else pc.if_else(pc.is_null(values), 0, rows))
        return st.StructType(fields), columns

    def _extreme(self, one: Mapping[str, Any]) -> _Found | None:
        """Return the least or greatest value of a column; an index tells where it is read."""
        path, ref = one["path"], self.read.opened
        if self._target is None or not is_ordered_alike(path, ref[1].schema, self.read.seen):
            return None
        is_max = one["function"] == "max"
        top = {"path": path, "descending": is_max, "nulls": "none", "rows": 1}
        rows = first_of(self.read, top, self._target.rows)
        if rows is None:
            return None
        schema = _only([path], self.read.seen)
        reader = reader_of(self.read, schema, self.body)
        reader.set_rows(rows)
        most_rows, most_bytes = local_bounds(self.body)
        batches = reader.read_if_small(max(most_rows, _MOST_LOOKED), most_bytes)
        kind = spark_type_of(path, schema)
        if batches is None or kind is None:
            return None
        values = [_inner(batch.column(0), path[1:]) for batch in batches]
        empty = arrow_schema(st.StructType([st.StructField("value", kind)])).types[0]
        value = least_or_greatest(one_array(pa.chunked_array(values, empty)).drop_null(), is_max)
        return None if value is None else (kind, value)


def _only(paths: Sequence[Sequence[str]], seen: st.StructType) -> st.StructType:
    """Return a schema of the columns of some paths, with only the fields at the ends of the paths."""
    fields = []
    for field in seen.fields:
        parts = [path[1:] for path in paths if path[0] == field.name]
        if parts and all(parts):
            assert isinstance(field.dataType, st.StructType)
            field = st.StructField(field.name, _only(parts, field.dataType), field.nullable)
        if parts:
            fields.append(field)
    return st.StructType(fields)


def _inner(values: pa.Array, path: Sequence[str]) -> pa.Array:
    return pc.struct_field(values, list(path)) if path else values
