"""One question to an index: the part of a condition that concerns one column.

An index answers with rows that hold every row for which the part is true, or says that it does not know. It
may name more rows: scans apply the condition to all that they read.
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
# The column itself, also where the sign of NaN does not count: bounds say nothing of NaN anyway.
_VALUES = (_VALUE, Call("unsigned_nan", (_VALUE,)))
_BOUNDS = ("<", "<=", ">", ">=")
_BETWEEN = "between"
_RANGES = ("=", *_BOUNDS, _BETWEEN, "in", "starts_with")
# Functions whose answer is not the same every time, or that do not belong to a value.
_UNFIT = {"now", "current_date"}
_INT64 = np.iinfo(np.int64)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ColumnPredicate:
    """A condition on one column.

    Attributes:
        path: the column, by a longer path a field in a struct column.
        tree: the condition, on a column called "value".
    """

    path: tuple[str, ...]
    tree: Expression

    @cached_property
    def operator(self) -> str:
        """The comparison of the column itself with constants, such as "<" or "is_null"; "" if it is another.

        Several bounds together, see `conjuncts`, are "between".
        """
        tree = self.tree
        if isinstance(tree, Call) and tree.function == "and":
            bounds = (ColumnPredicate(self.path, part).operator for part in tree.arguments)
            return _BETWEEN if all(bound in _BOUNDS for bound in bounds) else ""
        if not isinstance(tree, Call) or not tree.arguments or tree.arguments[0] not in _VALUES:
            return ""
        # Lists have thousands of literals.
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
        """The operands of the comparison: literals, and scalars if their type is known."""
        assert isinstance(self.tree, Call)
        constants = self.tree.arguments[1:]
        if _are_literals(constants):
            return [constant.value for constant in constants if isinstance(constant, Literal)]
        result: list[Any] = []
        for argument in constants:
            result += _constants(argument) or []
        return result

    def true_for(self, values: pa.Array | pa.ChunkedArray) -> Mask:
        """Return for which values the condition is true.

        Raises:
            ExpressionError: it does not fit the values.
        """
        result = compute(self.tree, pa.table({"value": values}))
        return np.asarray(pc.fill_null(result, False).to_numpy(zero_copy_only=False), dtype=np.bool_)

    def maybe_between(self, low: pa.Array, high: pa.Array) -> Mask | None:
        """Return where a value between two bounds, inclusive, may fulfil the condition; None: not known.

        A lower bound of null is none at all; where the upper one is null, there are only nulls. NaN may be
        at either end: it bounds nothing.

        Raises:
            ExpressionError: the condition does not fit the values.
        """
        if self.operator not in _RANGES or (self.operator == "in" and not self.literals):
            return None
        points = self.points(low.type)
        result = self._any_between(low, high) if points is None else _holds_one(points, low, high)
        result &= pc.is_valid(high).to_numpy(zero_copy_only=False)
        if pa.types.is_floating(low.type):
            for bound in (low, high):
                result |= pc.fill_null(pc.is_nan(bound), False).to_numpy(zero_copy_only=False)
        return result

    def points(self, kind: pa.DataType) -> list[int] | list[str] | None:
        """Return the values of a condition `column in values`, in order, if they are numbers or texts.

        Args:
            kind: the column's type, a signed integer or text.

        Returns:
            None for other types and conditions.
        """
        if pa.types.is_signed_integer(kind):
            return self._numbers
        return self._texts if pa.types.is_string(kind) or pa.types.is_large_string(kind) else None

    @cached_property
    def _numbers(self) -> list[int] | None:
        """The values of a condition `column in values`, in order, if they are integers of 64 bits."""
        values = self._all_of(int)
        least, most = int(_INT64.min), int(_INT64.max)
        return None if values is None else [value for value in sorted(values) if least <= value <= most]

    @cached_property
    def _texts(self) -> list[str] | None:
        """The same, if they are texts."""
        values = self._all_of(str)
        # In Python's order of texts, by code points, and in Arrow's, by bytes of UTF-8, they stand alike.
        return None if values is None else sorted(values)

    def _all_of(self, kind: type) -> list[Any] | None:
        """Return the values of a condition `column in values`, if they are of a type of Python's."""
        if self.operator not in ("=", "in"):
            return None
        values = [value for value in self.literals if value is not None]
        return values if all(type(value) is kind for value in values) else None

    def _any_between(self, low: pa.Array, high: pa.Array) -> Mask:
        """Return where one of the constants may be met, which are tried one by one."""
        bounds = pa.table({"low": low, "high": high})
        result = np.zeros(len(low), dtype=np.bool_)
        assert isinstance(self.tree, Call)
        if self.operator == _BETWEEN:
            parts = [ColumnPredicate(self.path, part)._any_between(low, high) for part in self.tree.arguments]
            return np.asarray(np.logical_and.reduce(parts))
        for constant in self.tree.arguments[1:]:
            if constant == _NULL:
                continue
            here = np.ones(len(low), dtype=np.bool_)
            for test in _tests(self.operator, constant):
                here &= pc.fill_null(compute(test, bounds), True).to_numpy(zero_copy_only=False)
            result |= here
        return result


def _holds_one(points: list[int] | list[str], low: pa.Array, high: pa.Array) -> Mask:
    """Return between which bounds one of some points in order lies."""
    if pa.types.is_integer(low.type):
        order: npt.NDArray[Any] = np.array(points, np.int64)
        least, most = (pc.cast(bound, pa.int64()) for bound in (low, high))
        starts = pc.fill_null(least, _INT64.min).to_numpy(zero_copy_only=False)
        ends = pc.fill_null(most, _INT64.min).to_numpy(zero_copy_only=False)
    else:
        order = np.array(points, object)
        starts, ends = (np.array(pc.fill_null(bound, "").to_pylist(), object) for bound in (low, high))
    return np.asarray(np.searchsorted(order, starts, "left") < np.searchsorted(order, ends, "right"))


def _tests(operator: str, literal: Expression) -> Iterator[Expression]:
    """Yield what bounds must fulfil if a value between them may."""
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
    """Return the values of a constant or of a list of literals; None for anything else."""
    if is_constant(node):
        return [constant_value(node)]
    if isinstance(node, Call) and node.function == "array":
        values = [argument.value for argument in node.arguments if isinstance(argument, Literal)]
        return values if len(values) == len(node.arguments) else None
    return None


def conjuncts(trees: Sequence[Expression]) -> list[Expression]:
    """Return the parts of conditions that must all hold, bounds of one value together as one "and".

    An index would read all that lies on one side of each bound alone.
    """
    result: list[list[Expression]] = []
    bounds: list[tuple[Expression, list[Expression]]] = []
    waiting = list(trees)
    while waiting:
        tree = waiting.pop(0)
        if isinstance(tree, Call) and tree.function == "and":
            waiting = [*tree.arguments, *waiting]
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
    """Return a comparison of a value with a constant above or below it, the value on the left."""
    comparison = turned(tree)
    if not isinstance(comparison, Call) or comparison.function not in _BOUNDS:
        return None
    return comparison if is_constant(comparison.arguments[1]) else None


def column_predicate_of(node: Expression) -> ColumnPredicate | None:
    """Return the question to the index of a column, if an expression concerns one column only."""
    if isinstance(node, Call) and node.function == "in":
        column, *others = node.arguments
        if isinstance(column, Column) and _are_literals(others):
            return ColumnPredicate(column.path, Call("in", (_VALUE, *others)))
    paths = {part.path for part in walk(node) if isinstance(part, Column)}
    unfit = any(isinstance(part, Call) and part.function in _UNFIT for part in walk(node))
    if len(paths) != 1 or unfit:
        return None
    return ColumnPredicate(
        paths.pop(), turned(replaced(node, lambda part: _VALUE if isinstance(part, Column) else None))
    )


def turned(node: Expression) -> Expression:
    """Return a comparison with the column on the left."""
    if isinstance(node, Call) and node.function in MIRRORED and is_constant(node.arguments[0]):
        return Call(MIRRORED[node.function], (node.arguments[1], node.arguments[0]))
    return node
