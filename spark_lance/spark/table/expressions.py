"""User expressions on DataFrames: early errors, casts to column types, and the columns that they need.

Values are assigned to columns by Spark's store assignment rules (ANSI): a number fits every numeric type, a
date every date or time type, and any atomic value fits a string. Text does not fit a number. A value out of
the range of the column's type is an error, never null.

Spark reads Python data sources with all columns, so a job lists the columns that it needs (option `columns`).
They are found in the text of the expression: a word that equals a column name is enough. This sometimes
selects too many columns but never too few. If the text does not show everything (a star, a subquery), the
job reads all columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import pyspark.sql.types as st
from pyspark.errors import AnalysisException

from spark_lance.errors import ExpressionError, SchemaError, suggestion
from spark_lance.spark.schema.string_types import is_widening
from spark_lance.table.reading.system_columns import SYSTEM_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@dataclass(frozen=True)
class ResolvedExpression:
    """An expression of a SQL statement that Spark has resolved.

    Attributes:
        column: the expression. Columns of table and source are qualified by their aliases.
        needs: table columns that it needs, including system columns.
        text: the expression for error messages.
        of_source: lower-cased name of the source column if the expression is only this column.
        equal: lower-cased pairs of a table column and a source column that it compares for equality.
    """

    column: Column
    needs: frozenset[str]
    text: str
    of_source: str | None = None
    equal: tuple[tuple[str, str], ...] = ()


# SQL text, or a Column of the user's session, classic or of Spark Connect; or a part of a SQL statement.
Expression: TypeAlias = "str | Column | ResolvedExpression"

_REPR = re.compile(r"Column<'(.*)'>", re.DOTALL)
# A qualifier at the end of the text before a name.
_QUALIFIED = re.compile(r"(\w+|`(?:[^`]|``)*`)\s*\.\s*`?\Z")
# A star other than a multiplication (written "*(" in the text of a Column), a query, shortened text.
_OPAQUE = re.compile(r"(?:^|[(,.])\s*\*(?!\()|\bselect\b|subquery|exists|\.\.\.", re.IGNORECASE)


def expression_text(expression: Expression) -> str:
    """Return an expression as text: the user's SQL, or Spark's text of a Column."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, ResolvedExpression):
        return expression.text
    text = str(expression)
    match = _REPR.fullmatch(text)
    return match[1] if match else text


def needed_columns(
    names: Iterable[str], expressions: Iterable[Expression], alias: str | None = None
) -> list[str]:
    """Return the columns among `names` that expressions may need, in the order of `names`.

    Names are compared without case, as Spark does by default.

    Args:
        names: the available columns, including system columns.
        expressions: conditions and values.
        alias: alias of the table. A qualified name is a table column only if its qualifier is the alias.
    """
    texts: list[str] = []
    sure: set[str] = set()
    for expression in expressions:
        if isinstance(expression, ResolvedExpression):
            sure |= {name.lower() for name in expression.needs}
        else:
            texts.append(expression_text(expression))
    text = "\n".join(texts)
    if _OPAQUE.search(text):
        return list(names)
    return [name for name in names if name.lower() in sure or _mentions(name, text, alias)]


def _mentions(name: str, text: str, alias: str | None) -> bool:
    pattern = re.escape(name.replace("`", "``"))
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    hits = re.finditer(before + pattern + after, text, re.IGNORECASE)
    return any(_is_own(text[: place.start()], alias) for place in hits)


def _is_own(before: str, alias: str | None) -> bool:
    """Return whether the text before a name allows it to be a table column."""
    qualified = _QUALIFIED.search(before)
    if qualified is None:
        return True
    return alias is not None and qualified[1].strip("`").lower() == alias.lower()


def columns_option(names: Iterable[str]) -> str:
    """Return column names as a value of the read option `columns`."""
    return json.dumps(list(names))


# The hint for plain strings in place of expressions.
QUOTING = """Values are SQL: write a text in quotes, {"name": "'hello'"}, or use lit("hello")"""


def spark_functions(spark: SparkSession) -> Any:
    """Return the module of Spark's functions that belongs to a session: the classic one or Connect's."""
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return import_module("pyspark.sql.connect.functions" if connect else "pyspark.sql.functions")


def quoted(*names: str) -> str:
    """Return a quoted SQL identifier for a column or a struct field."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


@contextmanager
def analysis_errors(what: str, columns: Iterable[str] = ()) -> Iterator[None]:
    """Convert Spark's analysis errors to ExpressionErrors.

    Args:
        what: name of the expression for the message.
        columns: all column names, if Spark sees only some of them.

    Raises:
        ExpressionError: Spark cannot parse or resolve an expression in the block.
    """
    try:
        yield
    except AnalysisException as error:
        reason = str(error).strip().splitlines()[0]
        raise ExpressionError(f"{what}: {_error_reason(reason, list(columns))}") from error


# Spark's message about an unknown name: the name, and the suggested names.
_AMBIGUOUS = re.compile(r"\[AMBIGUOUS_REFERENCE\] Reference `([^`]+)` is ambiguous")
_UNRESOLVED = re.compile(r"with name (\S+) cannot be resolved\.(?: Did you mean .*?\[(.*?)\])?")


def _error_reason(text: str, columns: list[str]) -> str:
    """Return Spark's first line, or our own message for an unknown name, without internal columns."""
    if ambiguous := _AMBIGUOUS.search(text):
        return f"column {ambiguous[1]!r} is ambiguous: write an alias before it, as in t.{ambiguous[1]}"
    match = _UNRESOLVED.search(text)
    if match is None:
        return text
    name = match[1].replace("`", "")
    proposed = (match[2] or "").replace("`", "").split(", ")
    names = columns or [each for each in proposed if each and not _is_internal(each)]
    similar = suggestion(name, names)
    hint = f". {QUOTING}" if columns and not similar else ""
    return (
        f"no column {name!r}; there are {', '.join(names)}{similar}{hint}" if names else f"no column {name!r}"
    )


def _is_internal(name: str) -> bool:
    return name.startswith("__lance_") or name in SYSTEM_COLUMNS


# A word at the end of an expression, which Spark can read as an alias.
_LAST_WORD = re.compile(r"\s`?[A-Za-z_]\w*`?\s*$")


def as_column(functions: Any, expression: Expression) -> Column:
    """Return an expression as a Column. SQL text is parsed."""
    if isinstance(expression, ResolvedExpression):
        return expression.column
    if not isinstance(expression, str):
        return expression
    # In parentheses Spark does not read a word at the end as an alias, so "a = 1 and" is an error.
    text = f"({expression}\n)" if _LAST_WORD.search(expression) else expression
    column: Column = functions.expr(text)
    return column


def resolve_types(frame: DataFrame, columns: Sequence[Column]) -> list[st.DataType]:
    """Return the types of expressions on a DataFrame. Spark analyses them; no job runs."""
    if not columns:
        return []
    schema = frame.select(*[column.alias(f"e{place}") for place, column in enumerate(columns)]).schema
    return [field.dataType for field in schema.fields]


def is_ansi(spark: SparkSession) -> bool:
    """Return whether casts in the session fail for values that do not fit."""
    return str(spark.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"


def cast_for_storage(
    functions: Any, value: Column, actual: st.DataType, target: st.DataType, place: str, ansi: bool
) -> Column:
    """Cast a value to the type of its column by the store assignment rules.

    Args:
        functions: see `spark_functions`.
        value: the value.
        actual: type of the value.
        target: type of the column.
        place: name of the column for messages.
        ansi: see `is_ansi`.

    Raises:
        SchemaError: values of the type do not fit the column.
    """
    if _same_type(actual, target):
        # Spark does not accept a string with another collation without a cast.
        nullable = _nullable(target)
        return value if _nullable(actual) == nullable else value.cast(nullable)
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return _cast_struct(functions, value, actual, target, place, ansi)
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType) and _has_struct(target):
        inner, element = actual.elementType, target.elementType
        item = f"{place}.element"
        result: Column = functions.transform(
            value, lambda each: cast_for_storage(functions, each, inner, element, item, ansi)
        )
        return result
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType) and _has_struct(target):
        return _cast_map(functions, value, actual, target, place, ansi)
    if not _assignable(actual, target):
        raise SchemaError(
            f"column {place} is {target.simpleString()}; values of type {actual.simpleString()} do not fit"
            f" it: write cast(value AS {target.simpleString()})"
        )
    if ansi or isinstance(actual, st.NullType) or isinstance(target, st.StringType):
        return value.cast(target)
    if _has_items(target):
        raise SchemaError(
            f"column {place} is {target.simpleString()}, not {actual.simpleString()}: cast the values, or set"
            " spark.sql.ansi.enabled, so that values that do not fit are found"
        )
    tried = value.try_cast(target)
    message = f"a value for column {place} does not fit its type {target.simpleString()}"
    checked: Column = (
        functions.when(value.isNull(), functions.lit(None).cast(target))
        .when(tried.isNotNull(), tried)
        .otherwise(functions.raise_error(functions.lit(message)))
    )
    return checked


def _cast_map(
    functions: Any, value: Column, actual: st.MapType, target: st.MapType, place: str, ansi: bool
) -> Column:
    """Cast the keys and values of a map to the types of the column."""

    def entry(each: Column) -> Column:
        key = cast_for_storage(functions, each["key"], actual.keyType, target.keyType, f"{place}.key", ansi)
        item = cast_for_storage(
            functions, each["value"], actual.valueType, target.valueType, f"{place}.value", ansi
        )
        result: Column = functions.struct(key.alias("key"), item.alias("value"))
        return result

    whole: Column = functions.map_from_entries(functions.transform(functions.map_entries(value), entry))
    return whole


def _cast_struct(
    functions: Any, value: Column, actual: st.StructType, target: st.StructType, place: str, ansi: bool
) -> Column:
    """Cast the fields of a struct, matched by name."""
    own = {name.lower(): name for name in actual.names}
    extra = sorted(set(own) - {name.lower() for name in target.names})
    missing = [field.name for field in target if field.name.lower() not in own]
    if extra or missing:
        raise SchemaError(
            f"column {place} is {target.simpleString()}, and the values are {actual.simpleString()}: the "
            "fields differ"
        )
    parts = [
        cast_for_storage(
            functions,
            value.getField(own[field.name.lower()]),
            actual[own[field.name.lower()]].dataType,
            field.dataType,
            f"{place}.{field.name}",
            ansi,
        ).alias(field.name)
        for field in target
    ]
    whole: Column = functions.when(value.isNotNull(), functions.struct(*parts))
    return whole


def _same_type(actual: st.DataType, target: st.DataType) -> bool:
    """Return whether types are equal apart from nullability, which writes check."""
    if isinstance(actual, st.StringType) and isinstance(target, st.StringType):
        return True
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return actual.names == target.names and all(
            _same_type(field.dataType, other.dataType) for field, other in zip(actual, target, strict=True)
        )
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType):
        return _same_type(actual.elementType, target.elementType)
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType):
        return _same_type(actual.keyType, target.keyType) and _same_type(actual.valueType, target.valueType)
    return actual == target


def _nullable(kind: st.DataType) -> st.DataType:
    """Return a type with nullable elements, values and fields."""
    if isinstance(kind, st.StructType):
        return st.StructType([st.StructField(field.name, _nullable(field.dataType)) for field in kind])
    if isinstance(kind, st.ArrayType):
        return st.ArrayType(_nullable(kind.elementType))
    if isinstance(kind, st.MapType):
        return st.MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _has_items(kind: st.DataType) -> bool:
    return isinstance(kind, (st.ArrayType, st.MapType, st.StructType))


def _has_struct(kind: st.DataType) -> bool:
    if isinstance(kind, st.ArrayType):
        return _has_struct(kind.elementType)
    if isinstance(kind, st.MapType):
        return _has_struct(kind.keyType) or _has_struct(kind.valueType)
    return isinstance(kind, st.StructType)


def _assignable(actual: st.DataType, target: st.DataType) -> bool:
    """Return whether Spark's ANSI store assignment accepts values of one type for another."""
    if _same_type(actual, target) or isinstance(actual, st.NullType):
        return True
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType):
        return _assignable(actual.elementType, target.elementType)
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType):
        return _assignable(actual.keyType, target.keyType) and _assignable(actual.valueType, target.valueType)
    times = (st.DateType, st.TimestampType, st.TimestampNTZType)
    return (
        (isinstance(actual, st.NumericType) and isinstance(target, st.NumericType))
        or (isinstance(actual, st.AtomicType) and isinstance(target, st.StringType))
        or (isinstance(actual, times) and isinstance(target, times))
        or is_widening(actual, target)
    )
