"""Expressions over the columns of a table: a small tree, computed with Arrow.

There are four kinds of nodes: columns, literals, casts and calls. `FUNCTIONS` (functions.py) has the function
of each call. Parsers of other notations (SQL, the filters of an engine) build this tree.

A column is a path: ("st", "x") is the field x of the struct column st. A literal has no type of its own
until it meets a typed value; it then takes that value's type if nothing is lost (values.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Union

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, suggestion
from spark_lance.expressions.functions import FUNCTIONS
from spark_lance.expressions.geo_functions import extension_name
from spark_lance.expressions.values import Value, as_column, cast, is_typed, plain, try_cast


@dataclass(frozen=True)
class Column:
    """A column, or by a longer path a field inside a struct column."""

    path: tuple[str, ...]


@dataclass(frozen=True)
class Literal:
    """A constant. Numbers are ints, Decimals (written with a point) or floats (written with an exponent)."""

    value: bool | int | float | str | bytes | Decimal | datetime.date | datetime.datetime | None


@dataclass(frozen=True)
class Cast:
    """A cast; a value that does not fit raises an error, or is null. Fractions are truncated."""

    argument: Expression
    type: pa.DataType
    or_null: bool = False


@dataclass(frozen=True)
class Call:
    """A function or operator of `FUNCTIONS` with its arguments."""

    function: str
    arguments: tuple[Expression, ...]


_NO_ROWS = pa.table({})
_INFIX = frozenset({"=", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "and", "or", "like", "||"})
_COMPARISONS = frozenset({"=", "!=", "<", "<=", ">", ">=", "is_same"})
# Comparison -> the same comparison with swapped sides.
MIRRORED = {"=": "=", "is_same": "is_same", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

Expression = Union[Column, Literal, Cast, Call]  # noqa: UP007 (evaluated at run time on Python 3.10)


def walk(node: Expression) -> Iterator[Expression]:
    """Yield a node and all its descendants."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, Call):
            waiting += node.arguments
        elif isinstance(node, Cast):
            waiting.append(node.argument)


def replaced(node: Expression, new: Callable[[Expression], Expression | None]) -> Expression:
    """Return an expression with each node replaced by the result of `new`; None keeps a node."""
    other = new(node)
    if other is not None:
        return other
    if isinstance(node, Call):
        return Call(node.function, tuple(replaced(argument, new) for argument in node.arguments))
    if isinstance(node, Cast):
        return Cast(replaced(node.argument, new), node.type, node.or_null)
    return node


def columns(node: Expression) -> tuple[str, ...]:
    """Return the top-level columns that an expression reads, sorted."""
    return tuple(sorted({part.path[0] for part in walk(node) if isinstance(part, Column)}))


def expression_text(node: Expression, as_sql: bool = False) -> str:
    """Return an expression as text.

    Args:
        node: the expression.
        as_sql: write constants as SQL literals. Otherwise strings have no quotes, as in Lance's plans.
    """
    if isinstance(node, Column):
        return ".".join(node.path)
    if isinstance(node, Literal):
        return _sql_literal(node.value) if as_sql else str(node.value)
    if isinstance(node, Cast):
        return (
            f"{'try_' if node.or_null else ''}cast({expression_text(node.argument, as_sql)} as {node.type})"
        )
    if node.function == "geometry":
        return expression_text(node.arguments[0], as_sql)
    parts = [
        f"({expression_text(part, as_sql)})"
        if isinstance(part, Call) and part.function in ("and", "or") and len(part.arguments) > 1
        else expression_text(part, as_sql)
        for part in node.arguments
    ]
    if node.function in _INFIX and len(parts) > 1:
        return f" {node.function.upper()} ".join(parts)
    if node.function in ("and", "or") and parts:
        return parts[0]
    if node.function == "is_null":
        return f"{parts[0]} IS NULL"
    if node.function == "in":
        values = ", ".join(parts[1:])
        return f"{parts[0]} IN ({values})" if as_sql else f"{parts[0]} IN [{values}]"
    return f"{node.function}({', '.join(parts)})"


def _sql_literal(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "NULL" if value is None else str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, bytes):
        return f"X'{value.hex().upper()}'"
    if isinstance(value, datetime.date):
        kind = "TIMESTAMP" if isinstance(value, datetime.datetime) else "DATE"
        return f"{kind} '{value}'"
    return str(value)


def bind(node: Expression, schema: pa.Schema) -> Expression:
    """Return the expression with its column names resolved against a schema.

    A name without an exact match may match a name that differs only in case. Columns in arguments of geometry
    functions get the name of their Arrow extension type.

    Raises:
        ExpressionError: a column does not exist, or several differ only in case.
    """
    if isinstance(node, Column):
        return Column(_find(node.path, schema))
    if isinstance(node, Cast):
        return Cast(bind(node.argument, schema), node.type, node.or_null)
    if isinstance(node, Call):
        # Lists have thousands of literals.
        arguments = tuple(
            argument if type(argument) is Literal else bind(argument, schema) for argument in node.arguments
        )
        if FUNCTIONS[node.function].takes_geometries:
            arguments = tuple(_with_extension(argument, schema) for argument in arguments)
        return Call(node.function, arguments)
    return node


def _with_extension(node: Expression, schema: pa.Schema) -> Expression:
    if not isinstance(node, Column):
        return node
    field = schema.field(node.path[0])
    for step in node.path[1:]:
        field = field.type.field(step)
    extension = extension_name(field)
    return Call("geometry", (node, Literal(extension))) if extension else node


# Columns of every table that error messages leave out of lists.
_SYSTEM_COLUMNS = frozenset(
    {"_rowid", "_rowaddr", "_rowoffset", "_fragid", "_row_created_at_version", "_row_last_updated_at_version"}
)


def _find(path: tuple[str, ...], schema: pa.Schema) -> tuple[str, ...]:
    names = list(schema.names)
    kind: pa.DataType | None = None
    columns: list[str] = []
    for step in path:
        name = step if step in names else None
        if name is None:
            alike = [other for other in names if other.lower() == step.lower()]
            if len(alike) != 1:
                where = f" in {'.'.join(columns)}" if columns else ""
                if columns and not names:
                    raise ExpressionError(
                        f"there is no field {step!r}{where}, which is a {kind}, not a struct"
                    )
                choices = [other for other in names if other not in _SYSTEM_COLUMNS]
                problem = f"the names {', '.join(alike)} fit" if alike else f"there are {', '.join(choices)}"
                similar = suggestion(step, names)
                quoting = "" if similar or alike or columns else f"; a text needs quotes, '{step}'"
                raise ExpressionError(f"there is no column {step!r}{where}: {problem}{similar}{quoting}")
            name = alike[0]
        kind = schema.field(name).type if kind is None else kind.field(name).type
        names = [kind.field(i).name for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []
        columns.append(name)
    return tuple(columns)


def column_type(column: Column, schema: pa.Schema) -> pa.DataType:
    """Return the type of a column, or of a nested field, that `bind` has resolved."""
    kind = schema.field(column.path[0]).type
    for step in column.path[1:]:
        kind = kind.field(step).type
    return kind


def is_constant(node: Expression) -> bool:
    """Whether a node can be compared with bounds of values: a literal, or one with a type such as a date.

    Typed floats cannot: they distinguish zeros and NaN, and bounds need not.
    """
    if isinstance(node, Cast):
        return not node.or_null and not pa.types.is_floating(node.type) and is_constant(node.argument)
    return isinstance(node, Literal)


def constant_value(node: Expression) -> Value:
    """Return the value of a node for which `is_constant` is true: a literal's, or a scalar of a type.

    Raises:
        ExpressionError: the value does not fit the type.
    """
    return _compute(node, _NO_ROWS)


def compute(node: Expression, table: pa.Table) -> pa.ChunkedArray:
    """Compute an expression for every row of a table.

    Args:
        node: an expression that `bind` has resolved against the table's schema.
        table: has at least the columns of the expression.

    Returns:
        One value per row.

    Raises:
        ExpressionError: types do not fit, a number overflows, or a value cannot be cast.
    """
    try:
        return as_column(_compute(node, table), table.num_rows)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowKeyError) as error:
        raise ExpressionError(f"the expression cannot be computed: {error}") from error
    except RecursionError as error:
        raise ExpressionError("the expression is nested too deeply") from error


def _compute(node: Expression, table: pa.Table) -> Value:
    if isinstance(node, Column):
        value = table.column(node.path[0])
        for step in node.path[1:]:
            value = pc.struct_field(value, step)
        return plain(value)
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Cast):
        return (try_cast if node.or_null else cast)(_compute(node.argument, table), node.type)
    function: Callable[..., Value] = FUNCTIONS[node.function].compute
    values = [
        argument.value if type(argument) is Literal else _compute(argument, table)
        for argument in node.arguments
    ]
    if node.function in _COMPARISONS and not any(isinstance(part, Column) for part in node.arguments):
        # A number takes the precision of a column only if it is compared with the column itself.
        values = [_precise(value) for value in values]
    return function(*values)


def _precise(value: Value) -> Value:
    return cast(value, pa.float64()) if is_typed(value) and pa.types.is_float32(value.type) else value
