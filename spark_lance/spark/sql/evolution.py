"""Changes of schemas by statements: WITH SCHEMA EVOLUTION, and ALTER TABLE ... REPLACE COLUMNS.

With schema evolution a source may add columns and fields, and widen the type of a column so that no stored
value changes:

    TINYINT, SMALLINT, INT -> a wider integer          DATE -> TIMESTAMP_NTZ
    FLOAT -> DOUBLE                                     DECIMAL -> DECIMAL with no fewer digits on either side

Every other difference of types is left to Spark, which casts the source's values by its rules of store
assignment. So are columns with an index, columns of the primary key, vectors, and what is inside a map.

REPLACE COLUMNS names the columns that the table has after it, in their order. Spark drops all columns and
adds the new ones. Here a column, or a field of a struct, whose name the table has keeps its values. So the
statement adds columns, changes their types and moves them. It drops none: a column that it leaves out is
refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st

from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.spark.base.compat import type_of_json
from spark_lance.spark.table.expressions import quoted
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.reserved_names import MEM_WAL
from spark_lance.table.schema.defaults import CURRENT_DEFAULT
from spark_lance.table.schema.keys import primary_key

_INTEGERS: tuple[tuple[pa.DataType, type[st.DataType]], ...] = (
    (pa.int8(), st.ByteType),
    (pa.int16(), st.ShortType),
    (pa.int32(), st.IntegerType),
    (pa.int64(), st.LongType),
)


def check_evolution(manifest: Manifest, changes: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a change of types that evolution must not make.

    Spark 4.3 asks before and leaves such changes out. Older releases demand all of them.

    Raises:
        UnsupportedFormatError: a column would get a type that cannot hold its values, or cannot be widened.
    """
    for change in changes:
        if is_supported(manifest, change):
            continue
        name = ".".join(change["column"])
        if change["kind"] != "column_type":
            raise UnsupportedFormatError(f"schema evolution cannot add field {name!r}: it is inside a map")
        fields = fields_along(manifest.schema.fields, change["column"])
        present = "its type" if fields[-1] is None else str(fields[-1].arrow_type())
        raise UnsupportedFormatError(
            f"schema evolution would change column {name!r} from {present} to "
            f"{parse_type(change['type']).simpleString()}, and this release of Spark cannot leave that out: "
            "cast the source's column to the type of the table's column, use "
            "LanceTable.merge(...).withSchemaEvolution(), or Spark 4.3"
        )


def is_supported(manifest: Manifest, change: Mapping[str, Any]) -> bool:
    """Return whether evolution may make a change: add a column or field, or widen a column.

    Args:
        manifest: the version of the table.
        change: the change as the SQL catalog describes it.
    """
    fields = fields_along(manifest.schema.fields, change["column"])
    outer = [None if field is None else field.kind for field in fields[:-1]]
    if any(kind not in ("struct", "list") for kind in outer):
        return False
    if change["kind"] == "add_column":
        return True
    field = fields[-1]
    if field is None or change["kind"] != "column_type":
        return False
    return _widens(field.arrow_type(), parse_type(change["type"])) and not _is_fixed(manifest, fields)


def fitting_type(
    manifest: Manifest, path: Sequence[str], table: st.DataType, source: st.DataType
) -> st.DataType:
    """Return a type for a source's column that causes only supported changes of the table.

    Fields that the table lacks stay, in the source's order.

    Args:
        manifest: the version of the table.
        path: the names that lead to the column or field, as Spark has them.
        table: its type.
        source: the type that the source has for it.
    """
    if isinstance(table, st.StructType) and isinstance(source, st.StructType):
        fields = []
        for field in source:
            own = match_name(table, field.name)
            kind = (
                field.dataType
                if own is None
                else fitting_type(manifest, (*path, own.name), own.dataType, field.dataType)
            )
            fields.append(st.StructField(field.name, kind, field.nullable, field.metadata))
        return st.StructType(fields)
    if isinstance(table, st.ArrayType) and isinstance(source, st.ArrayType):
        element = fitting_type(manifest, (*path, "element"), table.elementType, source.elementType)
        return st.ArrayType(element, source.containsNull)
    if table == source:
        return source
    change = {"kind": "column_type", "column": list(path), "type": source.json()}
    return source if is_supported(manifest, change) else table


def merged_schema(table: st.StructType, rows: st.StructType, *, by_name: bool) -> st.StructType:
    """Return the columns of a table together with those of rows that it lacks.

    Types of the table's columns stay, but structs get the fields that they lack.

    Args:
        table: the columns of the table.
        rows: the columns of the rows.
        by_name: whether columns belong together by their names; otherwise by their places.
    """
    if not by_name:
        pairs = [(own, row.dataType) for own, row in zip(table, rows, strict=False)]
        fields = [_with_type(own, _merged(own.dataType, kind)) for own, kind in pairs]
        fields += table.fields[len(pairs) :]
        return st.StructType([*fields, *rows.fields[len(table.fields) :]])
    merged = _merged(table, rows)
    assert isinstance(merged, st.StructType)
    return merged


def _merged(table: st.DataType, rows: st.DataType) -> st.DataType:
    if isinstance(table, st.ArrayType) and isinstance(rows, st.ArrayType):
        return st.ArrayType(_merged(table.elementType, rows.elementType), table.containsNull)
    if not isinstance(table, st.StructType) or not isinstance(rows, st.StructType):
        return table
    matches = {own.name: field for field in rows if (own := match_name(table, field.name)) is not None}
    fields = [
        _with_type(own, _merged(own.dataType, matches[own.name].dataType)) if own.name in matches else own
        for own in table
    ]
    return st.StructType([*fields, *(field for field in rows if match_name(table, field.name) is None)])


def _with_type(field: st.StructField, kind: st.DataType) -> st.StructField:
    return st.StructField(field.name, kind, field.nullable, field.metadata)


def match_name(schema: st.StructType, name: str) -> st.StructField | None:
    """Return the field of a name; the case matters only where names differ in nothing else."""
    if name in schema.names:
        return schema[name]
    alike = [field for field in schema if field.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _is_fixed(manifest: Manifest, fields: Sequence[Field | None]) -> bool:
    """Return whether a field keeps its type: for an index, a key, or the partitions of the table."""
    ids = {field.id for field in fields if field is not None}
    keys = {field.id for field in primary_key(manifest.schema)}
    names = {field.name for field in fields if field is not None}
    partitions = PartitionSpec.of_config(manifest.config).present(manifest.schema)
    return (
        bool(ids & keys)
        or any(field.source in names for field in partitions.fields)
        or any(index.name == MEM_WAL or ids.intersection(index.fields) for index in manifest.indices)
    )


def _widens(column_type: pa.DataType, kind: st.DataType) -> bool:
    """Return whether every value of a stored type is the same value in another type."""
    if isinstance(kind, st.DoubleType):
        return bool(column_type == pa.float32())
    if isinstance(kind, st.TimestampNTZType):
        return bool(column_type == pa.date32())
    if isinstance(kind, st.DecimalType):
        return (
            bool(pa.types.is_decimal(column_type))
            and kind.scale >= int(column_type.scale)
            and kind.precision - kind.scale >= int(column_type.precision) - int(column_type.scale)
        )
    arrow = [one for one, _ in _INTEGERS]
    spark = [one for _, one in _INTEGERS]
    return column_type in arrow and type(kind) in spark and spark.index(type(kind)) > arrow.index(column_type)


def fields_along(fields: Sequence[Field], parts: Sequence[str]) -> list[Field | None]:
    """Return the fields that Spark's names lead to; the items of a list, `element` there, have names here."""
    path: list[Field | None] = []
    children = fields
    for part in parts:
        items = children[:1] if path and path[-1] is not None and path[-1].kind == "list" else ()
        named = [child for child in items or children if items or child.name == part]
        path.append(named[0] if named else None)
        children = named[0].children if named else ()
    return path


def refuse_in_map(fields: Sequence[Field], change: Mapping[str, Any]) -> None:
    """Refuse to change a part of a map: its keys, its values, and their fields.

    Raises:
        SchemaError: the change is one; the message has the statement that computes the column anew.
    """
    parts = change.get("column", ())
    outer = fields_along(fields, parts)[:-1]
    if not any(field is not None and field.kind == "map" for field in outer):
        return
    column = quoted(parts[0])
    values = _new_map(fields_along(fields, parts[:1])[0], column, parts[1:], change) or "..."
    raise SchemaError(
        f"column {'.'.join(parts)!r} is a part of a map, which ALTER TABLE cannot change; write CREATE OR "
        f"REPLACE TABLE t AS SELECT * EXCEPT ({column}), {values} AS {column} FROM t"
    )


def _new_map(field: Field | None, column: str, parts: Sequence[str], change: Mapping[str, Any]) -> str | None:
    """Return the SQL of a map whose values have a change; None for changes that have none."""
    if field is None or field.kind != "map" or parts[0] != "value":
        return None
    kind = parse_type(change["type"]).simpleString() if "type" in change else ""
    if len(parts) == 1 and change["kind"] == "column_type":
        return f"transform_values({column}, (k, v) -> CAST(v AS {kind}))"
    value = field.children[0].children[1]
    if len(parts) != 2 or value.kind != "struct":
        return None
    members = {child.name: (child.name, f"v.{quoted(child.name)}") for child in value.children}
    name = parts[1]
    if change["kind"] == "add_column":
        members[name] = (name, f"CAST(NULL AS {kind})")
    elif change["kind"] == "column_type":
        members[name] = (name, f"CAST(v.{quoted(name)} AS {kind})")
    elif change["kind"] == "rename_column":
        members[name] = (change["to"], f"v.{quoted(name)}")
    elif change["kind"] == "drop_column" and len(members) > 1:
        del members[name]
    else:
        return None
    struct = ", ".join(f"{_literal(new)}, {sql}" for new, sql in members.values())
    return f"transform_values({column}, (k, v) -> IF(v IS NULL, NULL, named_struct({struct})))"


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("\\", "\\\\").replace("'", "\\'"))


def parse_type(text: str) -> st.DataType:
    """Return the Spark type that a JSON text describes."""
    return type_of_json(json.loads(text))


Change = Mapping[str, Any]
Parts = tuple[str, ...]


def replaces_columns(schema: st.StructType, changes: Sequence[Change]) -> bool:
    """Return whether the changes of an ALTER TABLE are those of REPLACE COLUMNS."""
    dropped = {change["column"][0] for change in changes if _is_of_column(change, "drop_column")}
    added = any(_is_of_column(change, "add_column") for change in changes)
    return added and dropped >= set(schema.names)


def column_changes(name: str, schema: st.StructType, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that make the columns of a table those of REPLACE COLUMNS.

    Args:
        name: of the table, for errors.
        schema: its columns, with the types that they were declared with.
        changes: those of the statement.

    Raises:
        SchemaError: the statement leaves a column or field out, or names one twice.
    """
    adds = [change for change in changes if _is_of_column(change, "add_column")]
    new = st.StructType(
        [st.StructField(add["column"][0], parse_type(add["type"]), add["nullable"]) for add in adds]
    )
    result: list[Change] = []
    for add, column in zip(adds, new, strict=True):
        old = match_name(schema, column.name)
        if old is None:
            result.append({**add, "position": None, "after": None})
            continue
        path = (old.name,)
        result.extend(_type_changes(name, path, old.dataType, column.dataType))
        if old.nullable != column.nullable:
            result.append({"kind": "column_nullability", "column": path, "nullable": column.nullable})
        metadata = old.metadata or {}
        if (add["comment"] or "") != metadata.get("comment", ""):
            result.append({"kind": "column_comment", "column": path, "comment": add["comment"]})
        if (add["default"] or "") != metadata.get(CURRENT_DEFAULT, ""):
            result.append({"kind": "column_default", "column": path, "default": add["default"]})
    moves = list(_moves(name, (), schema, new))
    # First the changes that the values of rows can forbid.
    result.sort(key=lambda change: change["kind"] not in ("column_type", "column_nullability"))
    return [*result, {"kind": "column_positions", "moves": moves}] if moves else result


def _is_of_column(change: Change, kind: str) -> bool:
    return bool(change["kind"] == kind and len(change["column"]) == 1)


def _type_changes(table: str, path: Parts, old: st.DataType, new: st.DataType) -> Iterator[Change]:
    """Yield the changes of a column or field and of the fields in it, but for their order."""
    if isinstance(old, st.StructType) and isinstance(new, st.StructType):
        for field in new:
            own = match_name(old, field.name)
            if own is not None:
                yield from _type_changes(table, (*path, own.name), own.dataType, field.dataType)
                continue
            yield {
                "kind": "add_column",
                "column": (*path, field.name),
                "type": field.dataType.json(),
                "nullable": True,
                "default": None,
                "comment": (field.metadata or {}).get("comment"),
                "position": None,
                "after": None,
            }
    elif isinstance(old, st.ArrayType) and isinstance(new, st.ArrayType):
        yield from _type_changes(table, (*path, "element"), old.elementType, new.elementType)
    elif old.simpleString() != new.simpleString():
        yield {"kind": "column_type", "column": path, "type": new.json()}


def _moves(
    table: str, path: Parts, old: st.StructType, new: st.StructType
) -> Iterator[tuple[Parts, str | None]]:
    """Yield each column or field that moves, with the one in front of it: None for the first."""
    names = []
    for field in new:
        own = match_name(old, field.name)
        names.append(field.name if own is None else own.name)
        if own is not None:
            yield from _inner_moves(table, (*path, own.name), own.dataType, field.dataType)
    missing = [name for name in old.names if name not in names]
    if missing:
        column = ".".join((*path, missing[0]))
        raise SchemaError(
            f"REPLACE COLUMNS would lose the values of {column}: name it too, or write first "
            f"ALTER TABLE {table} DROP COLUMN {column}"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"REPLACE COLUMNS has {'.'.join((*path, twice))!r} twice: leave one of them out")
    order = [*old.names, *(name for name in names if name not in old.names)]
    if order != names:
        for name, before in zip(names, [None, *names], strict=False):
            yield (*path, name), before


def _inner_moves(
    table: str, path: Parts, old: st.DataType, new: st.DataType
) -> Iterator[tuple[Parts, str | None]]:
    if isinstance(old, st.StructType) and isinstance(new, st.StructType):
        yield from _moves(table, path, old, new)
    elif isinstance(old, st.ArrayType) and isinstance(new, st.ArrayType):
        yield from _inner_moves(table, (*path, "element"), old.elementType, new.elementType)
