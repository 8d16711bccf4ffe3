"""Aggregates of columns that are computed batch by batch, in any order of rows.

They are exactly Spark's, or there is none. Sums are computed for whole numbers and decimals that cannot
overflow in any order. Sums of floats depend on the order, and are left to Spark.

Spark pushes down an average as a sum and a count if it pushes down aggregates; otherwise it is a sum of
doubles. So if a query has both for one column, doubles must hold the sum exactly. Averages of decimals are
left to Spark, which may round them in another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st

from spark_lance.arrow.arrays import one_array
from spark_lance.spark.schema.types import arrow_schema

__all__ = ["Running", "least_or_greatest", "running"]

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
