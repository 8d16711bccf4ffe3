"""The columns of a change feed: those of one version of the table, found again in other versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.expressions.predicate import Condition, compile_predicate
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.blob_writer import has_blobs
from spark_lance.spark.options.projection import Projection
from spark_lance.spark.schema.read_schema import find_column, narrow, resolve_projection, spark_schema_of
from spark_lance.spark.schema.types import spark_type
from spark_lance.table.reading.change_task import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    FEED_COLUMNS,
    feed_field,
)
from spark_lance.table.reading.system_columns import (
    ROW_OFFSET,
    nameable,
    system_field,
    system_names,
)
from spark_lance.table.schema.history import PastColumn

__all__ = ["ChangeColumns", "described_changes"]

_FEED_TYPES = {
    CHANGE_TYPE: st.StringType(),
    COMMIT_VERSION: st.LongType(),
    COMMIT_TIMESTAMP: st.TimestampType(),
}


def described_changes(schema: Schema, projection: Projection) -> st.StructType:
    """Return the Spark schema of changed rows: no column is NOT NULL, as older versions may lack it.

    The three columns that tell what happened to a row stand behind the others, unless they are named.

    Args:
        schema: the table's.
        projection: the columns that are read, perhaps some of the three, and as what types.

    Raises:
        SchemaError: a column does not exist, Spark has no type for it, or the table has a column of the
            name of one of the three.
    """
    taken = [field.name for field in schema.fields if field.name.lower() in FEED_COLUMNS]
    if taken:
        raise SchemaError(f"the table has a column {taken[0]!r}, so its changes cannot be told")
    columns = projection.columns
    plain = None if columns is None else tuple(name for name in columns if name not in FEED_COLUMNS)
    seen = spark_schema_of(schema, replace(projection, columns=plain))
    stored = {field.name: field for field in seen}
    if ROW_OFFSET in stored:
        raise SchemaError(f"{ROW_OFFSET} counts the rows of one version: a change feed has none")
    feed_fields = {name: st.StructField(name, kind, False) for name, kind in _FEED_TYPES.items()}
    order = [*(columns or ()), *stored, *feed_fields]
    system = system_names(field.name for field in schema.fields)
    for name in stored:
        if name not in system:
            stored[name].nullable = True
    fields = {**stored, **feed_fields}
    # The names asked for may be spelled in another case than the table's.
    named = [name if name in fields else find_column(schema, name).name for name in order]
    return st.StructType([fields[name] for name in dict.fromkeys(named)])


class ChangeColumns:
    """The columns that a read of changes was asked for, and those that its filter names.

    Args:
        table: the schema of the version whose columns these are.
        projection: the Spark columns, in order.
        filter: an SQL condition on any column of the table, system columns and those of the feed.
        feed: whether there are the three columns that tell what happened to a row.

    Attributes:
        names: the columns asked for.
        schema: all columns that a task yields; those that only the filter needs come last.
        condition: the filter.
        blobs: the blob columns among those asked for.

    Raises:
        SchemaError: columns do not exist, or have other types.
        ExpressionError: the filter does not fit.
    """

    def __init__(
        self, table: Schema, projection: st.StructType, filter: str | None, *, feed: bool = True
    ) -> None:
        self._feed = FEED_COLUMNS if feed else ()
        plain = st.StructType([field for field in projection if field.name not in self._feed])
        stored, fields = resolve_projection(table, plain)
        spelled = dict(zip(plain.names, stored, strict=True))
        self.names = tuple(spelled.get(name, name) for name in projection.names)
        self._required = {spelled.get(field.name) for field in plain if not field.nullable}
        self.condition = self._condition(table, filter)
        read = self.condition.columns if self.condition else ()
        extra = [name for name in read if name not in self.names]
        narrowed = {field.name: field for field in fields}
        narrowed.update({field.name: field.described() for field in table.fields if field.name in extra})
        self.blobs = tuple(field for field in table.fields if field.name in self.names and has_blobs(field))
        system = system_names(field.name for field in table.fields)
        self._system = [name for name in (*self.names, *extra) if name in system]
        self._narrowed = [replace(field, nullable=True) for field in narrowed.values()]
        whole = {field.name: field for field in table.fields}
        self.columns: list[PastColumn | None] = [PastColumn(whole[name]) for name in narrowed]
        self.takes_all = set(whole) == set(narrowed)
        self.schema = pa.schema([self._arrow(name) for name in (*self.names, *extra)])

    @property
    def fields(self) -> Sequence[Field]:
        """The table's fields among the columns."""
        return self._narrowed

    @property
    def system(self) -> Sequence[str]:
        """The system columns among them."""
        return self._system

    def at(
        self, columns: Sequence[PastColumn | None], version: int
    ) -> tuple[tuple[str, ...], tuple[Field, ...]]:
        """Return what a scan of another version reads: names, system columns too, and fields.

        Args:
            columns: what the columns are there.
            version: its number.

        Raises:
            SchemaError: a column had a type there that cannot become the present one.
        """
        pairs = zip(self._narrowed, columns, strict=True)
        fields = [_past(field, column, version) for field, column in pairs if column is not None]
        return (*(field.name for field in fields), *self._system), tuple(fields)

    def found_by_name(self, table: Schema) -> list[PastColumn | None] | str:
        """Return what the columns are in a version after theirs, or how that version's columns differ."""
        columns: list[PastColumn | None] = []
        there = {field.name: field for field in table.fields}
        for column in self.columns:
            assert column is not None  # these are columns of the version itself
            other = there.pop(column.field.name, None)
            if other is None:
                return f"column {column.field.name!r} was dropped or renamed"
            was, now = column.field.arrow_type(), other.arrow_type()
            if was != now:
                return f"column {column.field.name!r} was {was}, and is {now}"
            columns.append(PastColumn(other, other.id == column.field.id))
        if there and self.takes_all:
            return f"column {next(iter(there))!r} was added"
        return self.columns if columns == self.columns else columns

    def _arrow(self, name: str) -> pa.Field:
        if name in self._feed:
            return feed_field(name)
        if name in self._system:
            return system_field(name)
        field = next(field for field in self._narrowed if field.name == name).arrow_field()
        return field.with_nullable(field.name not in self._required)

    def _condition(self, table: Schema, filter: str | None) -> Condition | None:
        if filter is None:
            return None
        return compile_predicate(filter, pa.schema([*nameable(table), *map(feed_field, self._feed)]))


def _past(field: Field, column: PastColumn, version: int) -> Field:
    """Return the field to read in an older version, under the name that it has now."""
    if column.is_same:
        return field
    past = column.field
    now, then = field.arrow_type(), past.arrow_type()
    if pa.types.is_nested(now) and pa.types.is_nested(then):
        try:
            past = narrow(past, spark_type(now))
        except KeyError:
            raise _other_type(field, past, version) from None
    if past.arrow_type() != now and (pa.types.is_nested(now) or pa.types.is_nested(then)):
        raise _other_type(field, column.field, version)
    return replace(past, name=field.name, nullable=True)


def _other_type(now: Field, then: Field, version: int) -> SchemaError:
    return SchemaError(
        f"column {now.name!r} is {now.arrow_type()}, but was {then.arrow_type()} in version {version}: read "
        f"the changes up to version {version} and those after it by themselves"
    )
