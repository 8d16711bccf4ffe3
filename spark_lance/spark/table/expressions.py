"""Expressions of users, fitted to DataFrames: errors before any job runs, and values in the types of columns.

Values are assigned to columns by Spark's rules of store assignment (ANSI): a number fits every type of
numbers, a date every type of times, everything simple fits a string; text does not fit a number. A value that
the column's type cannot hold is an error, never null.

Which columns of a table conditions and expressions need.

Spark reads Python data sources with all columns, so a job that evaluates a condition states itself which
columns it reads (option `columns`). The columns of an expression are taken from its text: a word that equals
the name of a column is enough. That sometimes finds too many columns, never too few. Where the text does not
show everything (a star, a subquery), all columns are read.
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
class Resolved:
    """An expression of a SQL statement that Spark has resolved, with what is known of it for sure.

    Attributes:
        column: the expression, in which columns of the table and of a source are behind their aliases.
        needs: the columns of the table that it needs, system columns too.
        text: the expression for people.
        of_source: the column of the source, in lower case, that it is if it is nothing else.
        equal: pairs of a column of the table and one of the source, in lower case, that must be equal for
            it to be true.
    """

    column: Column
    needs: frozenset[str]
    text: str
    of_source: str | None = None
    equal: tuple[tuple[str, str], ...] = ()


# SQL text, or a Column of the user's session, classic or of Spark Connect; or a part of a SQL statement.
Expression: TypeAlias = "str | Column | Resolved"

_REPR = re.compile(r"Column<'(.*)'>", re.DOTALL)
# The end of a text before a name with a qualifier.
_QUALIFIED = re.compile(r"(\w+|`(?:[^`]|``)*`)\s*\.\s*`?\Z")
# A star other than a multiplication (written "*(" in the text of a Column), a query, shortened text.
_OPAQUE = re.compile(r"(?:^|[(,.])\s*\*(?!\()|\bselect\b|subquery|exists|\.\.\.", re.IGNORECASE)


def text_of(expression: Expression) -> str:
    """Return an expression as text: that of the user, or Spark's for a Column."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Resolved):
        return expression.text
    text = str(expression)
    match = _REPR.fullmatch(text)
    return match[1] if match else text


def needed_columns(
    names: Iterable[str], expressions: Iterable[Expression], alias: str | None = None
) -> list[str]:
    """Return the columns among `names` that expressions may need, in their order.

    Names are compared as Spark does by default, whatever their case.

    Args:
        names: the columns there are, system columns too.
        expressions: conditions and values.
        alias: the table's; a word behind a dot is a column of the table only if that stands before the dot.
    """
    texts: list[str] = []
    sure: set[str] = set()
    for expression in expressions:
        if isinstance(expression, Resolved):
            sure |= {name.lower() for name in expression.needs}
        else:
            texts.append(text_of(expression))
    text = "\n".join(texts)
    if _OPAQUE.search(text):
        return list(names)
    return [name for name in names if name.lower() in sure or _named(name, text, alias)]


def _named(name: str, text: str, alias: str | None) -> bool:
    pattern = re.escape(name.replace("`", "``"))
    before = r"(?<!\w)" if re.match(r"\w", name) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", name) else ""
    hits = re.finditer(before + pattern + after, text, re.IGNORECASE)
    return any(_is_own(text[: place.start()], alias) for place in hits)


def _is_own(before: str, alias: str | None) -> bool:
    """Whether what stands before a name lets it be a column of the table."""
    qualified = _QUALIFIED.search(before)
    if qualified is None:
        return True
    return alias is not None and qualified[1].strip("`").lower() == alias.lower()


def columns_option(names: Iterable[str]) -> str:
    """Return names as the value of the option `columns`."""
    return json.dumps(list(names))


# The hint for plain strings in place of expressions.
QUOTING = """Values are SQL: write a text in quotes, {"name": "'hello'"}, or use lit("hello")"""


def functions_of(spark: SparkSession) -> Any:
    """Return the module of Spark's functions that belongs to a session: the classic one or Connect's."""
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    return import_module("pyspark.sql.connect.functions" if connect else "pyspark.sql.functions")


def quoted(*names: str) -> str:
    """Return the name of a column, or of a field inside one, as SQL."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


@contextmanager
def analysed(what: str, columns: Iterable[str] = ()) -> Iterator[None]:
    """Turn Spark's complaints about an expression into ours.

    Args:
        what: the expression, for the message.
        columns: the columns there are, if Spark knows only some of them.

    Raises:
        ExpressionError: Spark cannot parse or resolve what the block gives it.
    """
    try:
        yield
    except AnalysisException as error:
        reason = str(error).strip().splitlines()[0]
        raise ExpressionError(f"{what}: {_reason(reason, list(columns))}") from error


# The message of Spark about an unknown name: the name, and the names that it proposes.
_UNRESOLVED = re.compile(r"with name (\S+) cannot be resolved\.(?: Did you mean .*?\[(.*?)\])?")


def _reason(text: str, columns: list[str]) -> str:
    """Return Spark's first line about an expression; an unknown name in our words, without our columns."""
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


def as_column(functions: Any, expression: Expression) -> Column:
    """Return an expression as a Column; SQL text is parsed."""
    if isinstance(expression, Resolved):
        return expression.column
    column: Column = functions.expr(expression) if isinstance(expression, str) else expression
    return column


def types_of(frame: DataFrame, columns: Sequence[Column]) -> list[st.DataType]:
    """Return the types of expressions over a DataFrame; Spark analyses them, no job runs."""
    if not columns:
        return []
    schema = frame.select(*[column.alias(f"e{place}") for place, column in enumerate(columns)]).schema
    return [field.dataType for field in schema.fields]


def is_ansi(spark: SparkSession) -> bool:
    """Whether casts of the session fail where a value does not fit."""
    return str(spark.conf.get("spark.sql.ansi.enabled", "true")).lower() == "true"


def stored(
    functions: Any, value: Column, actual: st.DataType, target: st.DataType, place: str, ansi: bool
) -> Column:
    """Return a value in the type of its column.

    Args:
        functions: see `functions_of`.
        value: the value, of the type `actual`.
        actual: its type.
        target: the column's type.
        place: the column, for messages.
        ansi: see `is_ansi`.

    Raises:
        SchemaError: values of the type do not fit the column.
    """
    if _same(actual, target):
        # Strings of two collations are no values of one column for Spark.
        nullable = _nullable(target)
        return value if _nullable(actual) == nullable else value.cast(nullable)
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return _stored_struct(functions, value, actual, target, place, ansi)
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType) and _has_struct(target):
        inner, element = actual.elementType, target.elementType
        item = f"{place}.element"
        result: Column = functions.transform(
            value, lambda each: stored(functions, each, inner, element, item, ansi)
        )
        return result
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType) and _has_struct(target):
        return _stored_map(functions, value, actual, target, place, ansi)
    if not _assignable(actual, target):
        raise SchemaError(
            f"column {place} is {target.simpleString()}; values of type {actual.simpleString()} do not fit it"
            " (a cast may help)"
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


def _stored_map(
    functions: Any, value: Column, actual: st.MapType, target: st.MapType, place: str, ansi: bool
) -> Column:
    """Return a map with each key and each value in the type of the column."""

    def entry(each: Column) -> Column:
        key = stored(functions, each["key"], actual.keyType, target.keyType, f"{place}.key", ansi)
        item = stored(functions, each["value"], actual.valueType, target.valueType, f"{place}.value", ansi)
        result: Column = functions.struct(key.alias("key"), item.alias("value"))
        return result

    whole: Column = functions.map_from_entries(functions.transform(functions.map_entries(value), entry))
    return whole


def _stored_struct(
    functions: Any, value: Column, actual: st.StructType, target: st.StructType, place: str, ansi: bool
) -> Column:
    """Return a struct field by field, found by name."""
    own = {name.lower(): name for name in actual.names}
    extra = sorted(set(own) - {name.lower() for name in target.names})
    missing = [field.name for field in target if field.name.lower() not in own]
    if extra or missing:
        raise SchemaError(
            f"column {place} is {target.simpleString()}, and the values are {actual.simpleString()}: the "
            "fields differ"
        )
    parts = [
        stored(
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


def _same(actual: st.DataType, target: st.DataType) -> bool:
    """Whether the types are equal but for nullability, which is checked when rows are written."""
    if isinstance(actual, st.StringType) and isinstance(target, st.StringType):
        return True
    if isinstance(actual, st.StructType) and isinstance(target, st.StructType):
        return actual.names == target.names and all(
            _same(mine.dataType, other.dataType) for mine, other in zip(actual, target, strict=True)
        )
    if isinstance(actual, st.ArrayType) and isinstance(target, st.ArrayType):
        return _same(actual.elementType, target.elementType)
    if isinstance(actual, st.MapType) and isinstance(target, st.MapType):
        return _same(actual.keyType, target.keyType) and _same(actual.valueType, target.valueType)
    return actual == target


def _nullable(kind: st.DataType) -> st.DataType:
    """Return a type whose elements, values and fields may be null."""
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
    """Whether Spark's ANSI store assignment takes values of a type for another."""
    if _same(actual, target) or isinstance(actual, st.NullType):
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
