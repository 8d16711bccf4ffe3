"""Column defaults, generated columns and identity columns.

A default is the value of a column in rows that are written without the column. Defaults are field metadata
under Spark's keys. Other engines ignore them.

    CURRENT_DEFAULT    SQL of the value for new rows
    EXISTS_DEFAULT     SQL of the value for rows that existed when the column was added

When a column is added, its default is written into new data files for the existing rows. So readers do not
need `EXISTS_DEFAULT`, and a changed default changes no row.

A default can be any Spark SQL expression. Spark computes it when it plans a write. Writers without Spark
support literals: `5`, `-1.5`, `'text'`, `DATE '2020-01-01'`, `X'00'`, TRUE, NULL. If a column has another
default, they refuse rows without the column.

A generated column is computed from other columns of the row (`GENERATION_EXPRESSION`). Every commit checks
its values, as it checks constraints. An identity column (`IDENTITY`) gets numbers, see `commits.identity`.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from spark_lance.errors import FormatError, SchemaError
from spark_lance.file.base.schema import Field
from spark_lance.io.stored_json import parse_json, parse_object

CURRENT_DEFAULT = "CURRENT_DEFAULT"
EXISTS_DEFAULT = "EXISTS_DEFAULT"
DEFAULT_KEYS = (CURRENT_DEFAULT, EXISTS_DEFAULT)
# Metadata of a generated column: the SQL of its values (Java has the same name), and the columns that the SQL
# reads, as JSON.
GENERATION_EXPRESSION = "spark_lance.generation_expression"
GENERATION_COLUMNS = "spark_lance.generation_columns"
# Metadata of an identity column, as JSON (Java has the same name).
IDENTITY = "spark_lance.identity"
# Metadata of columns. Copies of rows by a query do not get it.
DECLARATION_KEYS = (*DEFAULT_KEYS, GENERATION_EXPRESSION, GENERATION_COLUMNS, IDENTITY)

# Text without backslashes and quotes, whose meaning depends on Spark's settings.
_TEXT = r"'([^'\\]*)'"
_LITERALS: tuple[tuple[re.Pattern[str], Callable[[str], Any]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL | re.ASCII), value)
    for pattern, value in (
        (r"(NULL)", lambda _: None),
        (r"(TRUE|FALSE)", lambda text: text.upper() == "TRUE"),
        (r"([+-]?\d{1,38})[LSY]?", int),
        (r"([+-]?(?:\d+\.\d*|\.\d+))(?:BD)?", Decimal),
        (_TEXT, str),
        (rf"DATE\s*{_TEXT}", datetime.date.fromisoformat),
        (rf"X\s*{_TEXT}", bytes.fromhex),
    )
)


@dataclass(frozen=True)
class Identity:
    """The declaration of an identity column.

    Attributes:
        start: the first value.
        step: the difference of consecutive values; not 0.
        always: whether rows must not have their own values (GENERATED ALWAYS).
        sequence: the name of the counter, see `commits.identity`; empty until the table is created.
    """

    start: int = 1
    step: int = 1
    always: bool = True
    sequence: str = ""

    def text(self) -> str:
        """Return the declaration as field metadata, in JSON."""
        return json.dumps(asdict(self))

    @property
    def sql(self) -> str:
        """The declaration in the syntax of CREATE TABLE."""
        kind = "ALWAYS" if self.always else "BY DEFAULT"
        return f"GENERATED {kind} AS IDENTITY (START WITH {self.start} INCREMENT BY {self.step})"


def read_identity(text: str, name: str) -> Identity:
    """Return the declaration of an identity column from its metadata.

    Raises:
        FormatError: the metadata is not a declaration that this release supports.
    """
    try:
        result = Identity(**parse_object(text))
        whole = all(type(number) is int for number in (result.start, result.step)) and result.step != 0
        if not whole or {type(result.always), type(result.sequence)} != {bool, str}:
            raise ValueError(text)
    except (ValueError, TypeError) as error:
        raise FormatError(f"metadata {IDENTITY} of column {name!r} is no identity: {text[:80]!r}") from error
    return result


def get_identity(field: Field) -> Identity | None:
    """Return the declaration of an identity column; None if it is not an identity column."""
    text = field.metadata.get(IDENTITY)
    return read_identity(text, field.name) if text else None


def default_sql(field: Field) -> str | None:
    """Return the SQL of a column's default for new rows; None if it has no default."""
    return field.metadata.get(CURRENT_DEFAULT) or None


def generation_sql(field: Field) -> str | None:
    """Return the SQL of a generated column; None if the column is not generated."""
    return field.metadata.get(GENERATION_EXPRESSION) or None


def generation_columns(field: Field) -> tuple[str, ...]:
    """Return the names of the columns in the SQL of a generated column.

    Raises:
        FormatError: the metadata is not a list of names.
    """
    text = field.metadata.get(GENERATION_COLUMNS, "[]")
    try:
        names = parse_json(text)
    except ValueError:
        names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise FormatError(f"metadata {GENERATION_COLUMNS} of column {field.name!r} is no list: {text[:80]!r}")
    return tuple(names)


def default_array(field: Field, count: int) -> pa.Array:
    """Return the values of a column for rows that do not have it: its default, or nulls.

    Args:
        field: the column.
        count: the number of rows.

    Raises:
        SchemaError: the default is not a literal, or does not have the column's type.
    """
    sql, kind = default_sql(field), field.arrow_type()
    if generation := generation_sql(field):
        raise SchemaError(
            f"column {field.name!r} is missing in the rows, and only Spark computes it, by {generation}: add "
            f"it, as selectExpr('*', '{generation} AS `{field.name}`') does, or run INSERT INTO with the "
            "table's name in a catalog"
        )
    if sql is None:
        return pa.nulls(count, kind)
    try:
        scalar = _to_scalar(_parse_literal(sql.strip()), kind)
    except (ValueError, ArithmeticError, TypeError, pa.ArrowException):
        raise SchemaError(
            f"column {field.name!r} is missing in the rows, and only Spark computes its DEFAULT {sql}: add "
            "the column to the rows, or write by the table's name in a catalog"
        ) from None
    return pa.nulls(count, kind) if not scalar.is_valid else pa.repeat(scalar, count)


def _parse_literal(sql: str) -> Any:
    """Return the Python value of a literal."""
    for pattern, value in _LITERALS:
        if match := pattern.fullmatch(sql):
            return value(match[1])
    raise ValueError(sql)


def _to_scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a literal cast to a column type as in Spark; raise if Spark may cast it differently."""
    if value is None:
        return pa.scalar(None, kind)
    own = pa.scalar(value)
    if own.type == kind:
        return own
    same_family = (
        (isinstance(value, str) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)))
        or (isinstance(value, bytes) and (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)))
        or (type(value) is int and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)))
        or (isinstance(value, Decimal) and pa.types.is_decimal(kind))
    )
    if same_family:
        return pa.scalar(value, kind)
    if type(value) in (int, Decimal) and (pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        return pa.scalar(float(value), kind)
    raise TypeError(f"{value!r} is no {kind}")
