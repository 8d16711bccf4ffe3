"""Prune fragments by the bounds of partitions in the names of their data files, without opening a file."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import (
    MIRRORED,
    Call,
    Column,
    Expression,
    constant_value,
    is_constant,
)
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.partition_bounds import FieldBounds, Value, bounds_of_fragment, ordinal
from spark_lance.table.format.row_set import RowSet


@dataclass(frozen=True)
class PartitionPruner:
    """Returns the fragments whose partitions can contain matching rows; see `pruning.Pruner`.

    Attributes:
        schema: the schema of the version.
    """

    schema: Schema

    def __call__(self, condition: Condition, fragments: Sequence[table_pb2.DataFragment]) -> RowSet | None:
        """Return the fragments; None if no file name has bounds of the condition's columns."""
        columns = {field.id: field.name for field in self.schema.fields if field.name in condition.columns}
        trees = condition.trees()
        if not columns or not trees:
            return None
        kinds = {name: self.schema.field(name).arrow_type() for name in columns.values()}
        fragment_ids: list[int] = []
        is_useful = False
        for fragment in fragments:
            bounds = {
                columns[number]: parts
                for number, parts in bounds_of_fragment(fragment).items()
                if number in columns
            }
            is_useful = is_useful or bool(bounds)
            test = _BoundsTest(bounds, kinds)
            if not bounds or all(test.may_be_true(tree) for tree in trees):
                fragment_ids.append(fragment.id)
        return RowSet.from_fragments(fragment_ids) if is_useful else None


@dataclass(frozen=True)
class _BoundsTest:
    """Tests whether a condition can be true for a row of a fragment, from the bounds of its partition."""

    bounds: Mapping[str, Sequence[FieldBounds]]
    kinds: Mapping[str, pa.DataType]

    def may_be_true(self, node: Expression) -> bool:
        if isinstance(node, Column):
            return self._compare("=", node, True) if self._is_boolean(node) else True
        if not isinstance(node, Call):
            return True
        if node.function in ("and", "or"):
            parts = (self.may_be_true(argument) for argument in node.arguments)
            return all(parts) if node.function == "and" else any(parts)
        if node.function == "not":
            return self._may_be_false(node.arguments[0])
        if node.function == "is_null":
            return self._nulls(node.arguments[0], False)
        if node.function == "in":
            column, *values = node.arguments
            return not all(map(is_constant, values)) or any(
                self._compare("=", column, _constant(value)) for value in values
            )
        if node.function not in MIRRORED:
            return True
        left, right = node.arguments
        if is_constant(left):
            return self._compare(MIRRORED[node.function], right, _constant(left))
        return not is_constant(right) or self._compare(node.function, left, _constant(right))

    def _may_be_false(self, node: Expression) -> bool:
        if isinstance(node, Column) and self._is_boolean(node):
            return self._compare("=", node, False)
        if isinstance(node, Call) and node.function == "is_null":
            return self._nulls(node.arguments[0], True)
        return True

    def _is_boolean(self, column: Column) -> bool:
        return len(column.path) == 1 and pa.types.is_boolean(self.kinds.get(column.path[0], pa.null()))

    def _nulls(self, column: Expression, others: bool) -> bool:
        """Return whether a value of a column may be null, or with `others`, may be not null."""
        if not isinstance(column, Column) or len(column.path) > 1:
            return True
        parts = self.bounds.get(column.path[0], ())
        return all(part.low is not None if others else part.nulls or part.low is None for part in parts)

    def _compare(self, function: str, column: Expression, value: Any) -> bool:
        if not isinstance(column, Column) or len(column.path) > 1:
            return True
        parts = self.bounds.get(column.path[0], ())
        kind = self.kinds.get(column.path[0])
        return kind is None or all(_may_match(part, function, value, kind) for part in parts)


def _constant(node: Expression) -> Any:
    try:
        value = constant_value(node)
    except ExpressionError:
        return None
    return value.as_py() if isinstance(value, pa.Scalar) else value


def _may_match(bounds: FieldBounds, function: str, value: Any, kind: pa.DataType) -> bool:
    """Return whether a column value within bounds may satisfy `column <function> value`."""
    if value is None or not _has_type(value, kind):
        return True
    if bounds.low is None or bounds.high is None:
        return False
    try:
        column = pa.chunked_array([pa.array([value], kind)])
        other = ordinal(bounds.field("c").values(column)[0].as_py())
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return True
    if other is None or not (_is_comparable(other, bounds.low) and _is_comparable(other, bounds.high)):
        return True
    low: Any = bounds.low
    high: Any = bounds.high
    if bounds.transform.startswith("truncate") and type(other) is int and other > value:
        return True  # The truncated number overflowed.
    if function in ("=", "is_same"):
        return bool(low <= other <= high)
    if bounds.transform.startswith("bucket"):
        return True
    # Transforms keep the order, but can map different values to the same one: so every bound is inclusive.
    is_exact = bounds.transform == "identity"
    if function == "<":
        return bool(low < other if is_exact else low <= other)
    if function == ">":
        return bool(high > other if is_exact else high >= other)
    return bool(low <= other if function == "<=" else high >= other)


def _has_type(value: Any, kind: pa.DataType) -> bool:
    """Return whether a constant has the type of a column, so that it can be compared with bounds."""
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind):
        return type(value) is int
    if pa.types.is_decimal128(kind):
        return type(value) is int or isinstance(value, Decimal)
    if pa.types.is_date32(kind):
        return isinstance(value, datetime.date) and not isinstance(value, datetime.datetime)
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime.datetime) and (value.tzinfo is not None) == (kind.tz is not None)
    return isinstance(value, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_comparable(one: Value, other: Value) -> bool:
    numbers = (int, Decimal)
    if isinstance(one, numbers) and isinstance(other, numbers):
        return isinstance(one, bool) == isinstance(other, bool)
    return type(one) is type(other)
