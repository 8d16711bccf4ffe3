"""Prune fragments, and rows of fragments, that cannot match a condition, without reading them.

A `Pruner` returns the fragments that can contain matching rows of one condition, and the rows themselves if
it can determine them. It returns None if it has no information. Rows that any pruner excludes are not read.
The condition is still applied to all rows that are read, so a pruner may return too many rows, but never too
few.

This module has the pruners of row numbers, for conditions on `_rowaddr`, `_rowid` and `_fragid`. The caller
passes others, such as indices, to `prune`.
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
    """Return the fragments that may have rows that a condition keeps, in their order.

    Args:
        condition: fitted to the table; None keeps every row.
        fragments: the fragments of the version to prune.
        stable_row_ids: whether the table has stable row ids.
        others: what knows more of the table.
        system: the names that mean system columns in this table.

    Returns:
        The fragments, and by id those physical rows of a fragment beyond which none is kept, for fragments of
        which they are known. Deleted rows may be among them, and numbers that the fragment does not have.

    Raises:
        FormatError: a fragment's row ids cannot be decoded.
    """
    if condition is None:
        return list(fragments), {}
    rows: dict[int, BitMap] = {}
    remaining = list(fragments)
    own: list[Pruner] = [_by_fragment] if FRAGMENT_ID in system else []
    own += [_by_address, partial(_by_row_id, stable_row_ids)]
    for pruner in (*own, *others):
        where = pruner(condition, remaining)
        if where is None:
            continue
        for fragment, here in where.items():
            if here is not None:
                rows[fragment] = rows[fragment] & here if fragment in rows else here
        remaining = [
            fragment for fragment in remaining if fragment.id in where and rows.get(fragment.id, True)
        ]
    return remaining, {fragment.id: rows[fragment.id] for fragment in remaining if fragment.id in rows}


def uses_of(pruner: Any, condition: Condition) -> Sequence[tuple[str, str, str]]:
    """Return query, name and kind of the indices that a pruner uses; pruners of row numbers use none."""
    explain = getattr(pruner, "explain", None)
    uses: Sequence[tuple[str, str, str]] = explain(condition) if explain is not None else ()
    return uses


def _by_fragment(condition: Condition, fragments: Fragments) -> RowSet | None:
    allowed = _Allowed.of(condition, FRAGMENT_ID)
    if allowed == _ANY:
        return None
    return RowSet.whole(fragment.id for fragment in fragments if allowed.has(fragment.id))


def _by_address(condition: Condition, fragments: Fragments) -> RowSet | None:
    return _addressed(_Allowed.of(condition, ROW_ADDRESS), fragments)


def _by_row_id(stable: bool, condition: Condition, fragments: Fragments) -> RowSet | None:
    allowed = _Allowed.of(condition, ROW_ID)
    if not stable:
        return _addressed(allowed, fragments)
    if allowed.values is None:
        return None
    row_ids = np.array(sorted(allowed.values), np.uint64)
    rows: dict[int, BitMap | None] = {}
    for fragment in fragments:
        if fragment.WhichOneof("row_id_sequence") != "inline_row_ids":
            # Its ids are a column of a data file, which readers of the fragment look through.
            rows[fragment.id] = None
            continue
        offsets, _ = locate_row_ids(fragment.inline_row_ids, fragment.physical_rows, row_ids)
        if len(offsets):
            rows[fragment.id] = BitMap(offsets.astype(np.uint32))
    return RowSet(rows)


def _addressed(allowed: _Allowed, fragments: Fragments) -> RowSet | None:
    if allowed.values is not None:
        return RowSet.from_addresses(np.array(list(allowed.values), np.uint64))
    if allowed == _ANY:
        return None
    (first, _), (last, _) = split_address(allowed.low), split_address(allowed.high)
    return RowSet.whole(fragment.id for fragment in fragments if first <= fragment.id <= last)


@dataclass(frozen=True)
class _Allowed:
    """Which numbers a column of uint64 can have in rows that a condition keeps.

    Attributes:
        values: all of them, None if that is not known.
        low, high: otherwise bounds, inclusive.
    """

    values: frozenset[int] | None = None
    low: int = 0
    high: int = _MAX

    @classmethod
    def of(cls, condition: Condition, column: str) -> _Allowed:
        allowed = _ANY
        if column in condition.columns:
            for tree in condition.trees():
                allowed = allowed.common(_allowed(tree, (column,)))
        return allowed

    def has(self, value: int) -> bool:
        return value in self.values if self.values is not None else self.low <= value <= self.high

    def common(self, other: _Allowed) -> _Allowed:
        one, two = (self, other) if self.values is not None else (other, self)
        if one.values is not None:
            return _Allowed(frozenset(value for value in one.values if two.has(value)))
        return _Allowed(None, max(self.low, other.low), min(self.high, other.high))

    def either(self, other: _Allowed) -> _Allowed:
        if self.values is not None and other.values is not None:
            return _Allowed(self.values | other.values)
        bounds = [bound for part in (self, other) for bound in part._bounds()]
        return _Allowed(None, min(bounds), max(bounds)) if bounds else _NONE

    def _bounds(self) -> Iterator[int]:
        if self.values is None:
            yield from (self.low, self.high)
        elif self.values:
            yield from (min(self.values), max(self.values))


_ANY = _Allowed()
_NONE = _Allowed(frozenset())
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _allowed(node: Expression, path: tuple[str, ...]) -> _Allowed:
    """Return the possible numbers of a column in rows that match a condition; any number if undecidable."""
    if not isinstance(node, Call) or not node.arguments:
        return _ANY
    if node.function in ("and", "or"):
        allowed, *rest = (_allowed(argument, path) for argument in node.arguments)
        for part in rest:
            allowed = allowed.common(part) if node.function == "and" else allowed.either(part)
        return allowed
    first, *others = node.arguments
    if node.function in ("=", "is_same", *_MIRRORED) and isinstance(first, Literal):
        (other,) = others
        return _compared(_MIRRORED.get(node.function, node.function), other, [first], path)
    return _compared(node.function, first, others, path)


def _compared(
    function: str, column: Expression, others: Sequence[Expression], path: tuple[str, ...]
) -> _Allowed:
    numbers = [other.value for other in others if isinstance(other, Literal) and type(other.value) is int]
    if not isinstance(column, Column) or column.path != path:
        return _ANY
    if function == "in":
        nulls = sum(isinstance(other, Literal) and other.value is None for other in others)
        complete = len(numbers) + nulls == len(others)
        return _Allowed(_in_range(numbers)) if complete else _ANY
    if len(numbers) != 1:
        return _ANY
    (number,) = numbers
    if function in ("=", "is_same"):
        return _Allowed(_in_range(numbers))
    bounds = {"<": (0, number - 1), "<=": (0, number), ">": (number + 1, _MAX), ">=": (number, _MAX)}
    if function not in bounds:
        return _ANY
    low, high = bounds[function]
    return _Allowed(None, max(low, 0), min(high, _MAX)) if low <= _MAX and high >= 0 else _NONE


def _in_range(numbers: Iterable[int]) -> frozenset[int]:
    return frozenset(number for number in numbers if 0 <= number <= _MAX)
