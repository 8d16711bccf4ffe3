"""Prune fragments, and rows of fragments, that cannot match a condition, without reading them.

A `Pruner` returns the fragments that can contain matching rows of one condition, and the rows themselves if
it can determine them. It returns None if it has no information. Rows that any pruner excludes are not read.
The condition is still applied to all rows that are read, so a pruner may return too many rows, but never too
few.

This module has the pruners of row numbers, for conditions on `_rowaddr`, `_rowid` and `_fragid`, and the
pruner of the partition bounds in the names of data files. The caller passes others, such as indexes, to
`prune`.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import ExpressionError
from spark_lance.expressions.expressions import (
    MIRRORED,
    Call,
    Column,
    Expression,
    Literal,
    constant_value,
    is_constant,
)
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.partition_bounds import FieldBounds, Value, bounds_of_fragment, ordinal
from spark_lance.table.format.row_set import RowSet, split_address
from spark_lance.table.format.rowids import locate_row_ids
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.system_columns import FRAGMENT_ID, ROW_ADDRESS, SYSTEM_COLUMNS

Fragments: TypeAlias = Sequence[table_pb2.DataFragment]
Pruner: TypeAlias = Callable[[Condition, Fragments], RowSet | None]

_MAX = 2**64 - 1


def prune(
    condition: Condition,
    fragments: Fragments,
    stable_row_ids: bool,
    others: Iterable[Pruner] = (),
    system: Sequence[str] = SYSTEM_COLUMNS,
) -> RowSet:
    """Return the rows that can match a condition, by fragment in scan order.

    Args:
        condition: the condition, compiled for the table.
        fragments: the fragments of the version to prune.
        stable_row_ids: whether the table has stable row ids.
        others: more pruners, such as indexes.
        system: the names of system columns in this table.

    Returns:
        The physical rows of the fragments that can contain matching rows; None for fragments whose rows are
        not known. The rows may include deleted rows and rows beyond the fragment's end.

    Raises:
        FormatError: a fragment's row ids cannot be decoded.
    """
    rows: dict[int, BitMap] = {}
    remaining = list(fragments)
    own: list[Pruner] = [_prune_by_fragment] if FRAGMENT_ID in system else []
    own += [_prune_by_address, partial(_prune_by_row_id, stable_row_ids)]
    for pruner in (*own, *others):
        row_set = pruner(condition, remaining)
        if row_set is None:
            continue
        for fragment, offsets in row_set.items():
            if offsets is not None:
                rows[fragment] = rows[fragment] & offsets if fragment in rows else offsets
        remaining = [
            fragment for fragment in remaining if fragment.id in row_set and rows.get(fragment.id, True)
        ]
    return RowSet({fragment.id: rows.get(fragment.id) for fragment in remaining})


def find_used_indexes(pruner: Any, condition: Condition) -> Sequence[tuple[str, str, str]]:
    """Return (query, name, kind) of the indexes that a pruner uses; pruners of row numbers use none."""
    explain = getattr(pruner, "explain", None)
    uses: Sequence[tuple[str, str, str]] = explain(condition) if explain is not None else ()
    return uses


def _prune_by_fragment(condition: Condition, fragments: Fragments) -> RowSet | None:
    allowed = _AllowedValues.of(condition, FRAGMENT_ID)
    if allowed == _ANY:
        return None
    return RowSet.from_fragments(fragment.id for fragment in fragments if allowed.has(fragment.id))


def _prune_by_address(condition: Condition, fragments: Fragments) -> RowSet | None:
    return _rows_at_addresses(_AllowedValues.of(condition, ROW_ADDRESS), fragments)


def _prune_by_row_id(stable: bool, condition: Condition, fragments: Fragments) -> RowSet | None:
    allowed = _AllowedValues.of(condition, ROW_ID)
    if not stable:
        return _rows_at_addresses(allowed, fragments)
    if allowed.values is None:
        return None
    row_ids = np.array(sorted(allowed.values), np.uint64)
    rows: dict[int, BitMap | None] = {}
    for fragment in fragments:
        if fragment.WhichOneof("row_id_sequence") != "inline_row_ids":
            # Its ids are in a data file: the scan applies the condition to them.
            rows[fragment.id] = None
            continue
        offsets, _ = locate_row_ids(fragment.inline_row_ids, fragment.physical_rows, row_ids)
        if len(offsets):
            rows[fragment.id] = BitMap(offsets.astype(np.uint32))
    return RowSet(rows)


def _rows_at_addresses(allowed: _AllowedValues, fragments: Fragments) -> RowSet | None:
    if allowed.values is not None:
        return RowSet.from_addresses(np.array(list(allowed.values), np.uint64))
    if allowed == _ANY:
        return None
    (first, _), (last, _) = split_address(allowed.low), split_address(allowed.high)
    return RowSet.from_fragments(fragment.id for fragment in fragments if first <= fragment.id <= last)


@dataclass(frozen=True)
class _AllowedValues:
    """The values that a uint64 column can have in rows that match a condition.

    Attributes:
        values: the set of all values; None if it is unknown.
        low, high: inclusive bounds, if `values` is None.
    """

    values: frozenset[int] | None = None
    low: int = 0
    high: int = _MAX

    @classmethod
    def of(cls, condition: Condition, column: str) -> _AllowedValues:
        allowed = _ANY
        if column in condition.columns:
            for tree in condition.trees():
                allowed = allowed.intersect(_allowed_values(tree, (column,)))
        return allowed

    def has(self, value: int) -> bool:
        return value in self.values if self.values is not None else self.low <= value <= self.high

    def intersect(self, other: _AllowedValues) -> _AllowedValues:
        one, two = (self, other) if self.values is not None else (other, self)
        if one.values is not None:
            return _AllowedValues(frozenset(value for value in one.values if two.has(value)))
        return _AllowedValues(None, max(self.low, other.low), min(self.high, other.high))

    def union(self, other: _AllowedValues) -> _AllowedValues:
        if self.values is not None and other.values is not None:
            return _AllowedValues(self.values | other.values)
        bounds = [bound for part in (self, other) for bound in part._bounds()]
        return _AllowedValues(None, min(bounds), max(bounds)) if bounds else _NONE

    def _bounds(self) -> Iterator[int]:
        if self.values is None:
            yield from (self.low, self.high)
        elif self.values:
            yield from (min(self.values), max(self.values))


_ANY = _AllowedValues()
_NONE = _AllowedValues(frozenset())


def _allowed_values(node: Expression, path: tuple[str, ...]) -> _AllowedValues:
    """Return the possible values of a column in rows that match a condition; `_ANY` if undecidable."""
    if not isinstance(node, Call) or not node.arguments:
        return _ANY
    if node.function in ("and", "or"):
        allowed, *rest = (_allowed_values(argument, path) for argument in node.arguments)
        for part in rest:
            allowed = allowed.intersect(part) if node.function == "and" else allowed.union(part)
        return allowed
    first, *others = node.arguments
    if node.function in MIRRORED and isinstance(first, Literal):
        (other,) = others
        return _allowed_by_comparison(MIRRORED[node.function], other, [first], path)
    return _allowed_by_comparison(node.function, first, others, path)


def _allowed_by_comparison(
    function: str, column: Expression, others: Sequence[Expression], path: tuple[str, ...]
) -> _AllowedValues:
    numbers = [other.value for other in others if isinstance(other, Literal) and type(other.value) is int]
    if not isinstance(column, Column) or column.path != path:
        return _ANY
    if function == "in":
        nulls = sum(isinstance(other, Literal) and other.value is None for other in others)
        complete = len(numbers) + nulls == len(others)
        return _AllowedValues(_in_range(numbers)) if complete else _ANY
    if len(numbers) != 1:
        return _ANY
    (number,) = numbers
    if function in ("=", "is_same"):
        return _AllowedValues(_in_range(numbers))
    bounds = {"<": (0, number - 1), "<=": (0, number), ">": (number + 1, _MAX), ">=": (number, _MAX)}
    if function not in bounds:
        return _ANY
    low, high = bounds[function]
    return _AllowedValues(None, max(low, 0), min(high, _MAX)) if low <= _MAX and high >= 0 else _NONE


def _in_range(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(number for number in numbers if 0 <= number <= _MAX)


@dataclass(frozen=True)
class PartitionPruner:
    """Returns the fragments whose partitions can contain matching rows; see `Pruner`. No file is opened.

    Attributes:
        schema: the schema of the version.
    """

    schema: Schema

    def __call__(self, condition: Condition, fragments: Fragments) -> RowSet | None:
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
