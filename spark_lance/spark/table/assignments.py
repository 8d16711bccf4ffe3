"""The assignments of an update or a merge clause: columns, or fields inside them, and their new values."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.jsonb.columns import text_field
from spark_lance.spark.schema.blobs import BlobValue, is_description
from spark_lance.spark.schema.read_schema import find_column
from spark_lance.spark.schema.types import field_type
from spark_lance.spark.table.expressions import Expression, quoted, stored
from spark_lance.table.schema.defaults import generation_columns, generation_sql

if TYPE_CHECKING:
    from pyspark.sql import Column

_BYTES = (pa.binary(), pa.large_binary())
_PART = re.compile(r"`((?:[^`]|``)+)`|([^`.]+)")

# The number of the value of a column or field, or values by the lower-cased names of the fields inside.
_Tree: TypeAlias = "int | dict[str, _Tree]"
# Instead of such a number, for the value of a generated column.
_GENERATED = -1


@dataclass(frozen=True)
class Assignments:
    """New values of columns.

    Attributes:
        expressions: the values, as the user gave them.
        targets: by column, which value it gets, or which values its fields get.
        schema: the table's.
        inserts: whether rows are new; others have old values.
    """

    expressions: tuple[Expression, ...]
    targets: Mapping[str, _Tree]
    schema: Schema
    inserts: bool = False

    @classmethod
    def of(
        cls, schema: Schema, expressions: Mapping[str, Expression], alias: str | None = None
    ) -> Assignments:
        """Parse what is set.

        Args:
            schema: the table's.
            given: column or dotted path -> value.
            alias: the table's alias, which paths may begin with.

        Raises:
            SchemaError: a column or field does not exist, is inside a list, or is set twice.
        """
        targets: dict[str, _Tree] = {}
        for number, name in enumerate(expressions):
            _assign(targets, _path(schema, name, alias), number, name)
        return cls(tuple(expressions.values()), targets, schema)

    def with_generated(self, *, inserts: bool = False) -> Assignments:
        """Return the same with values for generated columns that are not set and that depend on what is."""
        computed = {
            field.name: _GENERATED
            for field in self.schema.fields
            if generation_sql(field) is not None
            and field.name not in self.targets
            and (inserts or not self.targets.keys().isdisjoint(generation_columns(field)))
        }
        return replace(self, targets={**self.targets, **computed}, inserts=inserts)

    @property
    def fields(self) -> list[Field]:
        """The columns that get values, wholly or in part."""
        return [self.schema.field(name) for name in self.targets]

    @property
    def field_ids(self) -> list[int]:
        """The ids of these columns and of all fields inside them."""
        return sorted(node.id for field in self.fields for node in field.walk())

    def referenced(self, types: Sequence[st.DataType]) -> set[str]:
        """Return the columns that are given descriptions of blobs, or bytes for blobs of version 2.

        Args:
            types: of the expressions.
        """
        names = set()
        for field in self.fields:
            tree = self.targets[field.name]
            if (
                isinstance(tree, int)
                and tree != _GENERATED
                and (field.is_blob or field.arrow_type() in _BYTES)
            ):
                is_struct = field.is_blob and field.logical_type == "struct"
                if is_description(types[tree]) or (is_struct and isinstance(types[tree], st.BinaryType)):
                    names.add(field.name)
        return names

    @property
    def partly(self) -> list[str]:
        """The columns whose old values are needed: to keep some fields, or to compute other columns."""
        partly = [name for name, tree in self.targets.items() if not isinstance(tree, int)]
        sources = (
            name
            for field in self.fields
            if self.targets[field.name] == _GENERATED and not self.inserts
            for name in generation_columns(field)
            if name not in self.targets
        )
        return list(dict.fromkeys((*partly, *sources)))

    def columns(
        self,
        functions: Any,
        values: Sequence[Column],
        types: Sequence[st.DataType],
        ansi: bool,
        old: Callable[[str], Column],
        referenced: Collection[str] = (),
    ) -> list[Column]:
        """Return the new values of `fields`, in their types.

        Args:
            functions: of the session.
            values: the expressions as Columns.
            types: their types.
            ansi: whether casts fail where a value does not fit.
            old: returns the present values of a column.
            referenced: columns whose values are to be of the type `BlobValue`.

        Raises:
            SchemaError: values of such a type do not fit a column.
        """

        def build(tree: _Tree, target: st.DataType, base: Callable[[], Column], place: str) -> Column:
            if isinstance(tree, int):
                return stored(functions, values[tree], types[tree], target, place, ansi)
            assert isinstance(target, st.StructType)
            parts = []
            for field in target:
                inner = tree.get(field.name.lower())
                whole = base().getField(field.name)
                if inner is not None:
                    whole = build(inner, field.dataType, lambda w=whole: w, f"{place}.{field.name}")  # type: ignore[misc]
                parts.append(whole.alias(field.name))
            result: Column = functions.struct(*parts)
            return result

        columns: dict[str, Column] = {}
        for field in self.fields:
            tree = self.targets[field.name]
            if tree == _GENERATED:
                continue
            if field.name in referenced and isinstance(tree, int):
                columns[field.name] = _blob_value(functions, values[tree], types[tree], quoted(field.name))
                continue
            target = field_type(text_field(field.arrow_field()))
            columns[field.name] = build(tree, target, lambda name=field.name: old(name), quoted(field.name))  # type: ignore[misc]
        own = self.schema.field
        return [
            columns[field.name]
            if field.name in columns
            else _computed(functions, field, columns, own, None if self.inserts else old)
            for field in self.fields
        ]


def _computed(
    functions: Any,
    field: Field,
    values: Mapping[str, Column],
    own: Callable[[str], Field],
    old: Callable[[str], Column] | None,
) -> Column:
    """Return the values of a generated column.

    The SQL names columns, which have values that are no columns yet: lambda variables have their names.

    Args:
        functions: of the session.
        field: the generated column.
        values: new values of other columns.
        own: returns a column of the table by name.
        old: returns the present values of a column; None if rows are new.
    """
    body, names = f"({generation_sql(field)})", generation_columns(field)
    parts = []
    for number, name in enumerate(names):
        if name in values:
            value = values[name]
        elif old is not None:
            value = old(name)
        else:
            value = functions.lit(None).cast(field_type(text_field(own(name).arrow_field())))
        parts.append(value.alias(f"c{number}"))
        body = f"transform(array(__row.c{number}), {quoted(name)} -> {body})[0]"
    kind = field_type(text_field(field.arrow_field()))
    value = functions.expr(body)
    if names:
        row = functions.array(functions.struct(*parts))
        value = functions.call_function("transform", row, functions.expr(f"__row -> {body}")).getItem(0)
    result: Column = value.cast(kind)
    return result


def _blob_value(functions: Any, value: Column, actual: st.DataType, place: str) -> Column:
    """Return bytes, a description or null as a `BlobValue`.

    Raises:
        SchemaError: values of the type are none of these.
    """
    if isinstance(actual, st.NullType):
        return value.cast(BlobValue)
    if isinstance(actual, st.BinaryType):
        named = {"data": value}
    elif is_description(actual):
        assert isinstance(actual, st.StructType)
        named = {name: value.getField(name) for name in actual.names}
    else:
        raise SchemaError(
            f"column {place} gets blobs; values of type {actual.simpleString()} are neither binary nor "
            "descriptions of blobs"
        )
    nothing = functions.lit(None)
    parts = [named.get(part.name, nothing).cast(part.dataType).alias(part.name) for part in BlobValue]
    result: Column = functions.when(value.isNotNull(), functions.struct(*parts))
    return result


def _path(schema: Schema, name: str, alias: str | None) -> list[str]:
    """Return the names of a column and of the fields that lead to what is set, as the table spells them."""
    folded = [field.name for field in schema.fields if field.name.lower() == name.lower()]
    parts = [name] if folded else _split(name)
    if len(parts) > 1 and alias is not None and parts[0].lower() == alias.lower():
        own = [field.name.lower() for field in schema.fields]
        # As in Spark, a column of the alias comes before a field of a column that is called like the alias.
        parts = parts[1:] if parts[1].lower() in own or parts[0].lower() not in own else parts
    field = find_column(schema, parts[0])
    path = [field.name]
    for part in parts[1:]:
        inside = [child for child in field.children if child.name.lower() == part.lower()]
        exact = [child for child in inside if child.name == part]
        if field.kind not in ("struct", "packed_struct") or len(exact or inside) != 1:
            raise SchemaError(f"there is no field {part!r} to set in {'.'.join(path)!r}")
        field = (exact or inside)[0]
        path.append(field.name)
    return path


def _split(name: str) -> list[str]:
    """Split a dotted path; names with dots are in backquotes."""
    parts, place = [], 0
    while place < len(name):
        match = _PART.match(name, place)
        if match is None:
            raise SchemaError(f"{name!r} is not a name of a column or field")
        parts.append(match[1].replace("``", "`") if match[1] else match[2])
        place = match.end()
        if place < len(name):
            if name[place] != "." or place + 1 == len(name):
                raise SchemaError(f"{name!r} is not a name of a column or field")
            place += 1
    return parts or [name]


def _assign(targets: dict[str, _Tree], path: list[str], number: int, name: str) -> None:
    level = targets
    keys = [path[0], *(part.lower() for part in path[1:])]
    for key in keys[:-1]:
        inner = level.setdefault(key, {})
        if isinstance(inner, int):
            raise SchemaError(f"{name} and the column that it is in are both set: leave one of them out")
        level = inner
    if keys[-1] in level:
        raise SchemaError(f"{name} is set twice, as a whole or in part")
    level[keys[-1]] = number
