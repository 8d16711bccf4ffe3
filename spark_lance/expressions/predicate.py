"""Conditions and computed columns from SQL text or pyarrow expressions.

They are compiled for a schema once, and then applied to tables that have at least the columns they read. They
can be pickled. The field "x" of a struct column "source" is source.x. Plans show them as SQL text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Union

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import filter_rows
from spark_lance.errors import ExpressionError, OptionTypeError
from spark_lance.expressions.expressions import (
    MIRRORED,
    Call,
    Cast,
    Column,
    Expression,
    Literal,
    bind,
    column_type,
    columns,
    compute,
    constant_value,
    expression_text,
    is_constant,
)
from spark_lance.jsonb.binary import json_texts
from spark_lance.jsonb.columns import is_json_field

Predicate = Union[str, pc.Expression]  # noqa: UP007 (pyarrow's class has no operator | for types)

# If a computed column is one of these operators on a column and a number, the number gets the column's type.
_IN_OWN_TYPE = frozenset({"+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"})

_FAILURES = (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, pa.ArrowTypeError)


@dataclass(frozen=True)
class Condition:
    """A condition on rows.

    Attributes:
        text: the condition as the user gave it.
        columns: the top-level columns that it reads.
    """

    text: str
    columns: tuple[str, ...]
    _tree: Expression | None = None
    _native: pc.Expression | None = None
    _parts: tuple[Condition, ...] = ()

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return a boolean for every row of a table; null if the condition is unknown.

        Raises:
            ExpressionError: the condition does not match the columns of the table.
        """
        if self._parts:
            return pc.and_kleene(*(part.mask(table) for part in self._parts))
        if self._tree is not None:
            return compute(self._tree, table)
        try:
            return _project(table, self._native)
        except _FAILURES as error:
            raise ExpressionError(f"the condition {self.text} cannot be applied: {error}") from error

    def trees(self) -> list[Expression]:
        """Return expressions that are true for every row that the condition keeps; not necessarily all."""
        own = [] if self._tree is None else [self._tree]
        return own + [tree for part in self._parts for tree in part.trees()]

    @property
    def is_complete(self) -> bool:
        """Whether the condition is equivalent to the conjunction of `trees()`."""
        return all(part.is_complete for part in self._parts) if self._parts else self._tree is not None

    def comparisons(self) -> list[tuple[tuple[str, ...], str, Any]]:
        """Return comparisons of columns with literals that hold for every row that the condition keeps.

        Each is a column's path, one of `=`, `<`, `<=`, `>` and `>=`, and a literal or a typed scalar. The
        list may be incomplete.
        """
        result = [comparison for part in self._parts for comparison in part.comparisons()]
        waiting = [] if self._tree is None else [self._tree]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Call) and node.function == "and":
                waiting += node.arguments
            elif isinstance(node, Call) and node.function in MIRRORED and node.function != "is_same":
                left, right = node.arguments
                if isinstance(left, Column) and is_constant(right):
                    result.append((left.path, node.function, constant_value(right)))
                if is_constant(left) and isinstance(right, Column):
                    result.append((right.path, MIRRORED[node.function], constant_value(left)))
        return result

    def and_also(self, other: Condition) -> Condition:
        """Return the conjunction of both conditions."""
        names = tuple(sorted({*self.columns, *other.columns}))
        return Condition(f"({self.text}) and ({other.text})", names, _parts=(self, other))

    def filter(self, table: pa.Table) -> pa.Table:
        """Return the rows of a table for which the condition is true.

        Raises:
            ExpressionError: it does not fit the table.
        """
        return filter_rows(table, self.mask(table)) if table.num_rows else table


@dataclass(frozen=True)
class CompiledExpression:
    """A value computed from the columns of a row.

    Attributes:
        text: the expression as the user gave it.
        columns: the top-level columns that it reads.
        type: the type of its values.
    """

    text: str
    columns: tuple[str, ...]
    type: pa.DataType
    _tree: Expression

    @property
    def is_typed_null(self) -> bool:
        """Whether it is null for every row, with an explicit type."""
        tree = self._tree
        while isinstance(tree, Cast) and isinstance(tree.argument, Cast):
            tree = tree.argument
        return isinstance(tree, Cast) and tree.argument == Literal(None)

    def evaluate(self, table: pa.Table) -> pa.ChunkedArray:
        """Return the value for every row of a table.

        Raises:
            ExpressionError: it does not fit the table, a number overflows, or a cast fails.
        """
        values = compute(self._tree, table)
        return values if values.type == self.type else pc.cast(values, self.type)


def compile_predicate(predicate: Predicate, schema: pa.Schema) -> Condition:
    """Compile a condition for a schema.

    Args:
        predicate: SQL such as "a > 1 and st.x is null", or a pyarrow expression.
        schema: all available columns, including system columns.

    Raises:
        ExpressionError: the predicate is not a condition on these columns.
        OptionTypeError: the predicate is neither text nor a pyarrow expression.
    """
    empty = _empty(schema)
    if isinstance(predicate, str):
        tree = bind(_parse_condition(predicate), schema)
        condition = Condition(predicate, columns(tree), _tree=tree)
    elif isinstance(predicate, pc.Expression):
        condition = Condition(str(predicate), (), _native=predicate)
    else:
        raise OptionTypeError(f"a condition is SQL text or an expression of pyarrow, not {predicate!r}")
    _check_condition(condition, empty)
    if not isinstance(predicate, str):
        return Condition(condition.text, _native_columns(predicate, empty), _native=predicate)
    return condition


def compile_tree(tree: Expression, schema: pa.Schema) -> Condition:
    """Compile an expression tree as a condition for a schema.

    Raises:
        ExpressionError: the tree is not a condition on these columns.
    """
    tree = bind(tree, schema)
    condition = Condition(expression_text(tree, as_sql=True), columns(tree), _tree=tree)
    return _check_condition(condition, _empty(schema))


def compile_expression(sql: str, schema: pa.Schema) -> CompiledExpression:
    """Compile an SQL expression such as "a * 2" for a schema.

    Raises:
        ExpressionError: the text is not an expression over these columns.
    """
    tree = _with_own_type(bind(_parse(sql), schema), schema)
    return CompiledExpression(sql, columns(tree), compute(tree, _empty(schema)).type, tree)


def _with_own_type(tree: Expression, schema: pa.Schema) -> Expression:
    """Return the expression; if it is only `column + number`, it gets the column's type."""
    if not isinstance(tree, Call) or tree.function not in _IN_OWN_TYPE:
        return tree
    left, right = tree.arguments
    if isinstance(left, Column) and isinstance(right, Literal):
        return Call(tree.function, (left, _as_type_of(left, right, schema)))
    if isinstance(left, Literal) and isinstance(right, Column):
        return Call(tree.function, (_as_type_of(right, left, schema), right))
    return tree


def _as_type_of(column: Column, literal: Literal, schema: pa.Schema) -> Expression:
    kind, value = column_type(column, schema), literal.value
    whole = type(value) is int
    if pa.types.is_floating(kind) and (whole or isinstance(value, float | Decimal)):
        return Cast(literal, pa.float32() if pa.types.is_float16(kind) else kind)
    if whole and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        typed = Cast(literal, kind)
        try:
            compute(typed, _empty(schema))
        except ExpressionError:
            return literal
        return typed
    return literal


def _parse(sql: str) -> Expression:
    # Imported here because the import takes a quarter of a second, which queries without SQL need not spend.
    from spark_lance.expressions.sql import parse_sql

    return parse_sql(sql)


def _parse_condition(sql: str) -> Expression:
    from spark_lance.expressions.sql import as_condition

    return as_condition(_parse(sql))


def _check_condition(condition: Condition, empty: pa.Table) -> Condition:
    kind = condition.mask(empty).type
    if kind != pa.bool_():
        raise ExpressionError(
            f"{condition.text} is not a condition, because its values are of type {kind}: compare it, as in "
            f"{condition.text} = ..., or write {condition.text} is not null"
        )
    return condition


def _empty(schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches([], schema)


def compute_native(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    """Return the values of a pyarrow expression.

    Raises:
        ExpressionError: it does not fit the table.
    """
    try:
        return _project(table, expression)
    except _FAILURES as error:
        raise ExpressionError(f"the expression {expression} cannot be computed: {error}") from error


def _project(table: pa.Table, expression: pc.Expression) -> pa.ChunkedArray:
    table = _with_json_texts(table)
    # Imported here because it imports pandas, which takes half a second and is rarely needed.
    import pyarrow.acero as acero

    steps = [
        acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
        acero.Declaration("project", acero.ProjectNodeOptions([expression], ["value"])),
    ]
    return acero.Declaration.from_sequence(steps).to_table(use_threads=False).column(0)


def _with_json_texts(table: pa.Table) -> pa.Table:
    """Return a table with JSON columns as text, as users see them in expressions."""
    for place, field in enumerate(table.schema):
        if is_json_field(field):
            texts = [json_texts(chunk) for chunk in table.column(place).chunks]
            table = table.set_column(place, field.name, pa.chunked_array(texts, pa.string()))
    return table


def _native_columns(expression: pc.Expression, empty: pa.Table) -> tuple[str, ...]:
    """Return the columns that a pyarrow expression reads, by attempts to bind it without some of them."""

    def fits_without(names: Sequence[str]) -> bool:
        try:
            _project(empty.drop_columns(list(names)), expression)
        except _FAILURES:
            return False
        return True

    def search(names: list[str]) -> list[str]:
        if not names or fits_without(names):
            return []
        if len(names) == 1:
            return names
        half = len(names) // 2
        return search(names[:half]) + search(names[half:])

    return tuple(sorted(search(list(empty.schema.names))))


def condition_text(condition: Condition) -> str:
    """Return a condition as text."""
    trees = condition.trees()
    return " AND ".join(expression_text(tree) for tree in trees) if trees else condition.text
