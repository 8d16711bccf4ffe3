"""ColumnPredicate: the part of a condition that reads one column, as an index evaluates it.

An index returns a superset of the matching rows, or None if it cannot answer. Scans apply the condition to
all rows they read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import filled_numbers, flags_to_numpy, mask_to_numpy, one_array, to_scalar
from spark_lance.expressions.expressions import (
    MIRRORED,
    Call,
    Column,
    Expression,
    Literal,
    compute,
    constant_value,
    is_constant,
    replaced,
    walk,
)

_VALUE = Column(("value",))
_NULL = Literal(None)
# The column itself, with or without the sign of NaN removed: bounds ignore NaN anyway.
_VALUES = (_VALUE, Call("unsigned_nan", (_VALUE,)))
_BOUNDS = ("<", "<=", ">", ">=")
_BETWEEN = "between"
_RANGES = ("=", *_BOUNDS, _BETWEEN, "in", "starts_with")
# Functions whose result changes between calls.
_VOLATILE = {"now", "current_date"}
_INT64 = np.iinfo(np.int64)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnPredicate:
    """A condition on one column.

    Attributes:
        path: the column, by a longer path a field in a struct column.
        tree: the condition, with the column renamed to "value".
    """

    path: tuple[str, ...]
    tree: Expression

    @cached_property
    def operator(self) -> str:
        """The operator that compares the column itself with constants, such as "<"; "" for other conditions.

        Several bounds on the column (see `conjuncts`) are "between".
        """
        tree = self.tree
        if isinstance(tree, Call) and tree.function == "and":
            bounds = (ColumnPredicate(self.path, part).operator for part in tree.arguments)
            return _BETWEEN if all(bound in _BOUNDS for bound in bounds) else ""
        if not isinstance(tree, Call) or not tree.arguments or tree.arguments[0] not in _VALUES:
            return ""
        # Check literals first, because an IN list can have thousands.
        plain = _are_literals(tree.arguments[1:]) or all(map(is_constant, tree.arguments[1:]))
        if not plain and not (
            tree.function.startswith("array_has")
            and all(_constants(argument) is not None for argument in tree.arguments[1:])
        ):
            return ""
        if tree.function == "is_same":
            return "is_null" if self.literals == [None] else "="
        return tree.function

    @cached_property
    def literals(self) -> list[Any]:
        """The constants that the column is compared with, as Python values or Arrow scalars."""
        assert isinstance(self.tree, Call)
        constants = self.tree.arguments[1:]
        if _are_literals(constants):
            return [constant.value for constant in constants if isinstance(constant, Literal)]
        result: list[Any] = []
        for argument in constants:
            result += _constants(argument) or []
        return result

    def evaluate(self, values: pa.Array | pa.ChunkedArray) -> Mask:
        """Return the mask of values that match the condition.

        Raises:
            ExpressionError: the condition does not fit the type of the values.
        """
        result = compute(self.tree, pa.table({"value": values}))
        return mask_to_numpy(result)

    def maybe_between(self, low: pa.Array, high: pa.Array) -> Mask | None:
        """Return the mask of ranges [low, high] that can have a match; None if the condition has no range.

        A null lower bound means unbounded. A null upper bound means that all values are null. NaN as a bound
        means unbounded.

        Raises:
            ExpressionError: the condition does not fit the type of the values.
        """
        if self.operator not in _RANGES or (self.operator == "in" and not self.literals):
            return None
        points = self.points(low.type)
        result = self._test_constants(low, high) if points is None else _contains_point(points, low, high)
        result &= mask_to_numpy(pc.is_valid(high))
        if pa.types.is_floating(low.type):
            for bound in (low, high):
                result |= mask_to_numpy(pc.is_nan(bound))
        return result

    def points(self, kind: pa.DataType) -> list[int] | list[str] | None:
        """Return the sorted values of a condition `column in values`; None for other conditions and types.

        Args:
            kind: the column's type. Only signed integers and strings are supported.
        """
        if pa.types.is_signed_integer(kind):
            return self._numbers
        return self._texts if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None

    @cached_property
    def _numbers(self) -> list[int] | None:
        """The sorted values of `column in values` if all are integers. Values beyond 64 bits are dropped."""
        values = self._values_of_type(int)
        least, most = int(_INT64.min), int(_INT64.max)
        return None if values is None else [value for value in sorted(values) if least <= value <= most]

    @cached_property
    def _texts(self) -> list[str] | None:
        """The sorted values of `column in values`, if all are strings."""
        values = self._values_of_type(str)
        # Python sorts strings by code point and Arrow by UTF-8 bytes: the order is the same.
        return None if values is None else sorted(values)

    def _values_of_type(self, kind: type) -> list[Any] | None:
        """Return the values of `column in values` without null, if all have the Python type `kind`."""
        if self.operator not in ("=", "in"):
            return None
        values = [value for value in self.literals if value is not None]
        return values if all(type(value) is kind for value in values) else None

    def _test_constants(self, low: pa.Array, high: pa.Array) -> Mask:
        """Return the mask of ranges that can match, testing one constant after the other."""
        bounds = pa.table({"low": low, "high": high})
        result = np.zeros(len(low), dtype=np.bool_)
        assert isinstance(self.tree, Call)
        if self.operator == _BETWEEN:
            parts = [
                ColumnPredicate(self.path, part)._test_constants(low, high) for part in self.tree.arguments
            ]
            return np.asarray(np.logical_and.reduce(parts))
        for constant in self.tree.arguments[1:]:
            if constant == _NULL:
                continue
            here = np.ones(len(low), dtype=np.bool_)
            for test in _tests(self.operator, constant):
                fits = one_array(compute(test, bounds))
                here &= flags_to_numpy(fits) | flags_to_numpy(fits.is_null())
            result |= here
        return result


def _contains_point(points: list[int] | list[str], low: pa.Array, high: pa.Array) -> Mask:
    """Return the mask of ranges [low, high] that contain at least one of the sorted points."""
    if pa.types.is_integer(low.type):
        order: npt.NDArray[Any] = np.array(points, np.int64)
        least, most = (pc.cast(bound, pa.int64()) for bound in (low, high))
        starts = filled_numbers(least, _INT64.min)
        ends = filled_numbers(most, _INT64.min)
    else:
        order = np.array(points, object)
        starts, ends = (
            np.array(pc.fill_null(bound, to_scalar("", bound.type)).to_pylist(), object)
            for bound in (low, high)
        )
    return np.asarray(np.searchsorted(order, starts, "left") < np.searchsorted(order, ends, "right"))


def _tests(operator: str, literal: Expression) -> Iterator[Expression]:
    """Yield the conditions on `low` and `high` that hold if a value in the range can match."""
    low, high = Column(("low",)), Column(("high",))
    if operator in ("<", "<="):
        yield Call(operator, (low, literal))
    elif operator in (">", ">="):
        yield Call(operator, (high, literal))
    elif operator == "starts_with":
        yield Call(">=", (high, literal))
        yield Call("or", (Call("<=", (low, literal)), Call("starts_with", (low, literal))))
    else:
        yield Call("<=", (low, literal))
        yield Call(">=", (high, literal))


def _are_literals(nodes: Sequence[Expression]) -> bool:
    return all(type(node) is Literal for node in nodes)


def _constants(node: Expression) -> list[Any] | None:
    """Return the values of a constant or a list of literals; None for anything else."""
    if is_constant(node):
        return [constant_value(node)]
    if isinstance(node, Call) and node.function == "array":
        values = [argument.value for argument in node.arguments if isinstance(argument, Literal)]
        return values if len(values) == len(node.arguments) else None
    return None


def conjuncts(trees: Sequence[Expression]) -> list[Expression]:
    """Split conditions into the parts that must all hold. The bounds of one value stay together as one "and".

    With a single bound, an index would have to read everything on one side of it.
    """
    result: list[list[Expression]] = []
    bounds: list[tuple[Expression, list[Expression]]] = []
    pending = list(trees)
    while pending:
        tree = pending.pop(0)
        if isinstance(tree, Call) and tree.function == "and":
            pending = [*tree.arguments, *pending]
            continue
        bound = _bound(tree)
        value = None if bound is None else bound.arguments[0]
        parts = next((parts for other, parts in bounds if other == value), None)
        if parts is None:
            parts = []
            result.append(parts)
            if value is not None:
                bounds.append((value, parts))
        parts.append(bound or tree)
    return [parts[0] if len(parts) == 1 else Call("and", tuple(parts)) for parts in result]


def _bound(tree: Expression) -> Call | None:
    """Return a bound (<, <=, >, >=) with the value on the left and a constant on the right; else None."""
    comparison = column_first(tree)
    if not isinstance(comparison, Call) or comparison.function not in _BOUNDS:
        return None
    return comparison if is_constant(comparison.arguments[1]) else None


def parse_column_predicate(node: Expression) -> ColumnPredicate | None:
    """Return the predicate of an expression that reads one column only; None for other expressions."""
    if isinstance(node, Call) and node.function == "in":
        column, *others = node.arguments
        if isinstance(column, Column) and _are_literals(others):
            return ColumnPredicate(column.path, Call("in", (_VALUE, *others)))
    paths = {part.path for part in walk(node) if isinstance(part, Column)}
    is_volatile = any(isinstance(part, Call) and part.function in _VOLATILE for part in walk(node))
    if len(paths) != 1 or is_volatile:
        return None
    return ColumnPredicate(
        paths.pop(), column_first(replaced(node, lambda part: _VALUE if isinstance(part, Column) else None))
    )


def column_first(node: Expression) -> Expression:
    """Return a comparison with the column on the left side."""
    if isinstance(node, Call) and node.function in MIRRORED and is_constant(node.arguments[0]):
        return Call(MIRRORED[node.function], (node.arguments[1], node.arguments[0]))
    return node
