"""Which rows of a table a merge has to look at: those that may have a key of its source.

Where rows without a key of the source do not matter, the keys become a condition of the read. As in every
read, fragments and pages are picked by it, with the indices that there are:

    few rows in the source    t.key in (1, 5, 7)
    more                      t.key >= 1 and t.key <= 900

A condition may keep too many rows and never too few: what matches is found by Spark's join behind it. So only
those types count whose values are compared here as Spark does, without a cast.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.spark.scan.predicates import is_same_in_spark
from spark_lance.spark.schema.types import field_type
from spark_lance.spark.table.expressions import functions_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# So many keys are named one by one; text is parsed for every read.
_FEW_KEYS = 1000
_MOST_TEXT = 1 << 20
_WHOLE = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_EPOCH = datetime.datetime(1970, 1, 1)

# The condition that no row meets.
_NOTHING = "false"


@dataclass(frozen=True)
class KeyPair:
    """A column of a table and one of a source that are equal where rows match.

    Attributes:
        table: the table's.
        source: the source's name.
    """

    table: Field
    source: str


@dataclass(frozen=True)
class SourceKeys:
    """The keys of a source, as a filter on the rows of a table.

    Attributes:
        pairs: the keys.
        condition: SQL that is true for every row of the table whose key is in the source.
    """

    pairs: Sequence[KeyPair]
    condition: str


@dataclass(frozen=True)
class _Kind:
    """How values of a type come to this process and stand in conditions.

    Attributes:
        fetched: (functions, column) -> what is collected, ordered as the column is.
        literal: a collected value -> SQL; None if it has none.
    """

    fetched: Callable[[Any, Column], Column]
    literal: Callable[[Any], str | None]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _date(days: int) -> str | None:
    moment = _moment(days=days)
    return None if moment is None else f"date '{moment.date().isoformat()}'"


def _timestamp(micros: int) -> str | None:
    moment = _moment(microseconds=micros)
    return None if moment is None else f"timestamp '{moment.isoformat(sep=' ')}Z'"


def _moment(**since: int) -> datetime.datetime | None:
    """Return the time so long after the epoch; None outside of the years 1 to 9999, which literals have."""
    try:
        return _EPOCH + datetime.timedelta(**since)
    except OverflowError:
        return None


_KINDS: dict[type[st.DataType], _Kind] = {
    **dict.fromkeys(_WHOLE, _Kind(lambda _, column: column, str)),
    st.StringType: _Kind(lambda _, column: column, _text),
    st.DateType: _Kind(lambda F, column: F.unix_date(column), _date),
    st.TimestampType: _Kind(lambda F, column: F.unix_micros(column), _timestamp),
}


def key_pairs(schema: Schema, source: st.StructType, pairs: Iterable[tuple[str, str]]) -> list[KeyPair]:
    """Return those pairs of equal columns whose values are compared alike by Spark and here.

    Args:
        schema: the table's.
        source: the source's.
        pairs: lower-cased names of a column of the table and one of the source.
    """
    result = []
    for mine, theirs in pairs:
        own = [field for field in schema.fields if field.name.lower() == mine]
        candidates = [field for field in source.fields if field.name.lower() == theirs]
        if len(own) == len(candidates) == 1 and _compares(own[0], candidates[0].dataType):
            result.append(KeyPair(own[0], candidates[0].name))
    return result


def _compares(field: Field, source_type: st.DataType) -> bool:
    try:
        table_type = field_type(field.read_field())
    except SchemaError:
        return False
    same = source_type == table_type or (isinstance(source_type, _WHOLE) and isinstance(table_type, _WHOLE))
    return same and type(source_type) in _KINDS and not field.is_blob and is_same_in_spark(field)


def keys_of(spark: SparkSession, source: DataFrame, pairs: Sequence[KeyPair]) -> SourceKeys | None:
    """Return what rows of a table with a key of the source have in common; None if it cannot be said briefly.

    Args:
        spark: the session.
        source: rows that are the same each time they are looked at.
        pairs: at least one.
    """
    F = functions_of(spark)
    kinds = [_KINDS[type(source.schema[pair.source].dataType)] for pair in pairs]
    columns = [
        kind.fetched(F, F.col(quoted(pair.source))).alias(f"k{i}")
        for i, (kind, pair) in enumerate(zip(kinds, pairs, strict=True))
    ]
    keys = source.select(*columns)
    rows: list[tuple[Any, ...]] = list(keys.limit(_FEW_KEYS + 1).collect())
    few = len(rows) <= _FEW_KEYS
    if not few:
        ends = [each(f"k{i}") for i in range(len(pairs)) for each in (F.min, F.max)]
        bounds = keys.agg(*ends).collect()[0]
        rows = [tuple(bounds)[0::2], tuple(bounds)[1::2]]
    parts = []
    for place, (kind, pair) in enumerate(zip(kinds, pairs, strict=True)):
        values = {row[place] for row in rows} - {None}
        if not values:
            return SourceKeys(pairs, _NOTHING)
        literals = [kind.literal(value) for value in (sorted(values) if few else (min(values), max(values)))]
        texts = [literal for literal in literals if literal is not None]
        if len(texts) == len(literals):
            parts.append(_condition(pair.table.name, texts, few))
    text = " and ".join(parts)
    return SourceKeys(pairs, text) if 0 < len(text) <= _MOST_TEXT else None


def _condition(name: str, texts: Sequence[str], few: bool) -> str:
    column = quoted(name)
    if few:
        return f"{column} in ({', '.join(texts)})"
    return f"{column} >= {texts[0]} and {column} <= {texts[-1]}"
