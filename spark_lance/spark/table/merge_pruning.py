"""Pruning of a merge: read only the table rows that can have a key of the source.

If table rows without a key of the source do not matter, the keys become a filter of the read. As in every
read, this filter prunes fragments and pages, with the table's indexes:

    few rows in the source    t.key in (1, 5, 7)
    more                      t.key >= 1 and t.key <= 900

The filter may keep too many rows but never too few, because Spark's join then finds the matches. So it uses
only types that this package compares as Spark does, without a cast.
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
from spark_lance.spark.table.expressions import quoted, spark_functions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Maximum number of keys in an IN list, and maximum length of the filter, which every read parses.
_MAX_LISTED_KEYS = 1000
_MAX_CONDITION_LENGTH = 1 << 20
_INTEGER_TYPES = (st.ByteType, st.ShortType, st.IntegerType, st.LongType)
_EPOCH = datetime.datetime(1970, 1, 1)

# The condition that no row matches.
_NOTHING = "false"


@dataclass(frozen=True)
class KeyPair:
    """A table column and a source column that the merge condition compares for equality.

    Attributes:
        table: field of the table column.
        source: name of the source column.
    """

    table: Field
    source: str


@dataclass(frozen=True)
class SourceKeys:
    """The keys of a source, as a filter on the rows of a table.

    Attributes:
        pairs: the key columns.
        condition: SQL that is true for every table row whose key is in the source.
    """

    pairs: Sequence[KeyPair]
    condition: str


@dataclass(frozen=True)
class _KeyType:
    """How keys of a type are collected and written as SQL.

    Attributes:
        key_column: (functions, column) -> the column to collect, in the same order as the key column.
        literal: a collected value -> SQL literal, or None if SQL has no literal for it.
    """

    key_column: Callable[[Any, Column], Column]
    literal: Callable[[Any], str | None]


def _text_literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _date_literal(days: int) -> str | None:
    moment = _after_epoch(days=days)
    return None if moment is None else f"date '{moment.date().isoformat()}'"


def _timestamp_literal(micros: int) -> str | None:
    moment = _after_epoch(microseconds=micros)
    return None if moment is None else f"timestamp '{moment.isoformat(sep=' ')}Z'"


def _after_epoch(**since: int) -> datetime.datetime | None:
    """Return the epoch plus a duration; None outside the years 1 to 9999, which SQL literals cover."""
    try:
        return _EPOCH + datetime.timedelta(**since)
    except OverflowError:
        return None


_KEY_TYPES: dict[type[st.DataType], _KeyType] = {
    **dict.fromkeys(_INTEGER_TYPES, _KeyType(lambda _, column: column, str)),
    st.StringType: _KeyType(lambda _, column: column, _text_literal),
    st.DateType: _KeyType(lambda F, column: F.unix_date(column), _date_literal),
    st.TimestampType: _KeyType(lambda F, column: F.unix_micros(column), _timestamp_literal),
}


def key_pairs(schema: Schema, source: st.StructType, pairs: Iterable[tuple[str, str]]) -> list[KeyPair]:
    """Return the pairs of equal columns whose values Spark and this package compare in the same way.

    Args:
        schema: schema of the table.
        source: schema of the source.
        pairs: lower-cased names of a table column and a source column.
    """
    result = []
    for target_name, source_name in pairs:
        own = [field for field in schema.fields if field.name.lower() == target_name]
        candidates = [field for field in source.fields if field.name.lower() == source_name]
        if len(own) == len(candidates) == 1 and _compares(own[0], candidates[0].dataType):
            result.append(KeyPair(own[0], candidates[0].name))
    return result


def _compares(field: Field, source_type: st.DataType) -> bool:
    try:
        table_type = field_type(field.read_field())
    except SchemaError:
        return False
    same = source_type == table_type or (
        isinstance(source_type, _INTEGER_TYPES) and isinstance(table_type, _INTEGER_TYPES)
    )
    return same and type(source_type) in _KEY_TYPES and not field.is_blob and is_same_in_spark(field)


def read_source_keys(spark: SparkSession, source: DataFrame, pairs: Sequence[KeyPair]) -> SourceKeys | None:
    """Return a filter for table rows that can have a key of the source; None if it would be too long.

    Args:
        spark: the session.
        source: the source rows, which must be the same at every evaluation.
        pairs: the key columns, at least one pair.
    """
    F = spark_functions(spark)
    kinds = [_KEY_TYPES[type(source.schema[pair.source].dataType)] for pair in pairs]
    columns = [
        kind.key_column(F, F.col(quoted(pair.source))).alias(f"k{i}")
        for i, (kind, pair) in enumerate(zip(kinds, pairs, strict=True))
    ]
    keys = source.select(*columns)
    rows: list[tuple[Any, ...]] = list(keys.limit(_MAX_LISTED_KEYS + 1).collect())
    few = len(rows) <= _MAX_LISTED_KEYS
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
            parts.append(_key_condition(pair.table.name, texts, few))
    text = " and ".join(parts)
    return SourceKeys(pairs, text) if 0 < len(text) <= _MAX_CONDITION_LENGTH else None


def _key_condition(name: str, texts: Sequence[str], few: bool) -> str:
    column = quoted(name)
    if few:
        return f"{column} in ({', '.join(texts)})"
    return f"{column} >= {texts[0]} and {column} <= {texts[-1]}"
