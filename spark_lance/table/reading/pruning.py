"""Prune fragments, and rows of fragments, that cannot match a condition, without reading them.

A `Pruner` returns the fragments that can contain matching rows of one condition, and the rows themselves if
it can determine them. It returns None if it has no information. Rows that any pruner excludes are not read.
The condition is still applied to all rows that are read, so a pruner may return too many rows, but never too
few.

This module has the pruners of row numbers, for conditions on `_rowaddr`, `_rowid` and `_fragid`. The caller
passes others, such as indexes, to `prune`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from pyroaring import BitMap

from spark_lance.expressions.expressions import Call, Column, Expression, Literal
from spark_lance.expressions.predicate import Condition
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import RowSet, split_address
from spark_lance.table.format.rowids import locate_row_ids
from spark_lance.table.reading.lineage import ROW_ID
from spark_lance.table.reading.system_columns import FRAGMENT_ID, ROW_ADDRESS, SYSTEM_COLUMNS

Fragments: TypeAlias = Sequence[table_pb2.DataFragment]
Pruner: TypeAlias = Callable[[Condition, Fragments], RowSet | None]

_MAX = 2**64 - 1


def prune(
    condition: Condition | None,
    fragments: Fragments,
    stable_row_ids: bool,
    others: Iterable[Pruner] = (),
    system: Sequence[str] = SYSTEM_COLUMNS,
) -> tuple[list[table_pb2.DataFragment], dict[int, BitMap]]:
    """Return the fragments that can contain matching rows, in scan order.

    Args:
        condition: the condition, compiled for the table; None matches every row.
        fragments: the fragments of the version to prune.
        stable_row_ids: whether the table has stable row ids.
        others: more pruners, such as indexes.
        system: the names of system columns in this table.

    Returns:
        The fragments, and a map from fragment id to the physical rows that can match. The map has only the
        fragments whose rows are known. The rows may include deleted rows and rows beyond the fragment's end.

    Raises:
        FormatError: a fragment's row ids cannot be decoded.
    """
    if condition is None:
        return list(fragments), {}
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
    return remaining, {fragment.id: rows[fragment.id] for fragment in remaining if fragment.id in rows}


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
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
    if node.function in ("=", "is_same", *_MIRRORED) and isinstance(first, Literal):
        (other,) = others
        return _allowed_by_comparison(_MIRRORED.get(node.function, node.function), other, [first], path)
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
