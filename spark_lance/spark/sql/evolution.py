"""Schema changes of statements WITH SCHEMA EVOLUTION and of ALTER TABLE ... REPLACE COLUMNS.

With schema evolution, a source can add columns and fields. It can also widen the type of a column if no
stored value changes:

    TINYINT, SMALLINT, INT -> a wider integer          DATE -> TIMESTAMP_NTZ
    FLOAT -> DOUBLE                                     DECIMAL -> DECIMAL with no fewer digits on either side

For all other differences, the column keeps its type, and Spark casts the source's values by its store
assignment rules. So do columns with an index, columns of the primary key, partition columns, vectors, and
the keys of a map.

REPLACE COLUMNS lists the new columns of a table, in order. Spark's own implementation drops all columns and
adds new ones. Here a column or struct field with an existing name keeps its values. So the statement adds
columns, changes their types and moves them. It never drops a column: a statement without an existing column
is refused.
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


# Changes that the values of rows can forbid. They are made first, so that a refused statement changes less.
VALUE_CHECKED = frozenset({"column_type", "column_nullability"})


def check_evolution(manifest: Manifest, changes: Sequence[Mapping[str, Any]]) -> None:
    """Check that a statement WITH SCHEMA EVOLUTION makes only supported changes.

    Spark 4.2 and newer ask for each change and leave out unsupported ones. Spark 4.1 requests all changes.

    Raises:
        UnsupportedFormatError: a column cannot be widened to the new type, or a new field is in the keys of a
            map.
    """
    for change in changes:
        if is_supported(manifest, change):
            continue
        name = ".".join(change["column"])
        if change["kind"] != "column_type":
            raise UnsupportedFormatError(
                f"schema evolution cannot add field {name!r}: it is in the keys of a map"
            )
        fields = fields_along(manifest.schema.fields, change["column"])
        present = "its type" if fields[-1] is None else str(fields[-1].arrow_type())
        raise UnsupportedFormatError(
            f"schema evolution would change column {name!r} from {present} to "
            f"{parse_type(change['type']).simpleString()}, and this release of Spark cannot leave that out: "
            "cast the source's column to the type of the table's column, use "
            "LanceTable.merge(...).withSchemaEvolution(), or Spark 4.2"
        )


def is_supported(manifest: Manifest, change: Mapping[str, Any]) -> bool:
    """Return whether schema evolution can make a change: add a column or field, or widen a column.

    Args:
        manifest: the version of the table.
        change: the change, in the form of `TableChange`.
    """
    fields = fields_along(manifest.schema.fields, change["column"])
    outer = [None if field is None else field.kind for field in fields[:-1]]
    if any(kind not in ("struct", "list", "map") for kind in outer):
        return False
    if any(kind == "map" and part == "key" for kind, part in zip(outer, change["column"][1:], strict=True)):
        return False
    if change["kind"] == "add_column":
        return True
    field = fields[-1]
    if field is None or change["kind"] != "column_type":
        return False
    return _can_widen(field.arrow_type(), parse_type(change["type"])) and not _is_fixed(manifest, fields)


def fitting_type(
    manifest: Manifest, path: Sequence[str], table: st.DataType, source: st.DataType
) -> st.DataType:
    """Return the type to cast a source's column to, so that the table needs only supported changes.

    New fields of the source are kept, in the source's order.

    Args:
        manifest: the version of the table.
        path: the path of the column or field, as Spark names it.
        table: the type in the table.
        source: the type in the source.
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
    if isinstance(table, st.MapType) and isinstance(source, st.MapType):
        value = fitting_type(manifest, (*path, "value"), table.valueType, source.valueType)
        return st.MapType(table.keyType, value, source.valueContainsNull)
    if table == source:
        return source
    change = {"kind": "column_type", "column": list(path), "type": source.json()}
    return source if is_supported(manifest, change) else table


def merged_schema(table: st.StructType, rows: st.StructType, *, by_name: bool) -> st.StructType:
    """Return the columns of a table, followed by the new columns of rows.

    The table's columns keep their types, but structs get the new fields of the rows.

    Args:
        table: the columns of the table.
        rows: the columns of the rows.
        by_name: whether columns match by name. Otherwise they match by position.
    """
    if not by_name:
        pairs = [(own, row.dataType) for own, row in zip(table, rows, strict=False)]
        fields = [_with_type(own, _merge_types(own.dataType, kind)) for own, kind in pairs]
        fields += table.fields[len(pairs) :]
        return st.StructType([*fields, *rows.fields[len(table.fields) :]])
    merged = _merge_types(table, rows)
    assert isinstance(merged, st.StructType)
    return merged


def _merge_types(table: st.DataType, rows: st.DataType) -> st.DataType:
    if isinstance(table, st.ArrayType) and isinstance(rows, st.ArrayType):
        return st.ArrayType(_merge_types(table.elementType, rows.elementType), table.containsNull)
    if isinstance(table, st.MapType) and isinstance(rows, st.MapType):
        value = _merge_types(table.valueType, rows.valueType)
        return st.MapType(table.keyType, value, table.valueContainsNull)
    if not isinstance(table, st.StructType) or not isinstance(rows, st.StructType):
        return table
    matches = {own.name: field for field in rows if (own := match_name(table, field.name)) is not None}
    fields = [
        _with_type(own, _merge_types(own.dataType, matches[own.name].dataType))
        if own.name in matches
        else own
        for own in table
    ]
    return st.StructType([*fields, *(field for field in rows if match_name(table, field.name) is None)])


def _with_type(field: st.StructField, kind: st.DataType) -> st.StructField:
    return st.StructField(field.name, kind, field.nullable, field.metadata)


def match_name(schema: st.StructType, name: str) -> st.StructField | None:
    """Return the field with a name; None if there is none.

    Case is ignored, unless several fields differ only in case.
    """
    if name in schema.names:
        return schema[name]
    alike = [field for field in schema if field.name.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _is_fixed(manifest: Manifest, fields: Sequence[Field | None]) -> bool:
    """Return whether a field must keep its type: an index, the primary key or the partitioning uses it."""
    ids = {field.id for field in fields if field is not None}
    keys = {field.id for field in primary_key(manifest.schema)}
    column = fields[0]
    partitions = PartitionSpec.of_config(manifest.config).present(manifest.schema)
    return (
        bool(ids & keys)
        or any(column is not None and field.source == column.name for field in partitions.fields)
        or any(index.name == MEM_WAL or ids.intersection(index.fields) for index in manifest.indices)
    )


def _can_widen(column_type: pa.DataType, kind: st.DataType) -> bool:
    """Return whether a Spark type can represent every value of a stored type."""
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
    """Return the fields along a path; None for a part that does not exist.

    Spark calls the items of a list `element`. The stored field can have another name. A map has the parts
    `key` and `value`; its struct of entries, which Spark does not name, is left out.
    """
    path: list[Field | None] = []
    children = fields
    for part in parts:
        kind = path[-1].kind if path and path[-1] is not None else ""
        if kind == "map":
            children = children[0].children
        items = children[:1] if kind == "list" else ()
        matches = [child for child in items or children if items or child.name == part]
        path.append(matches[0] if matches else None)
        children = matches[0].children if matches else ()
    return path


def refuse_keys(fields: Sequence[Field], change: Mapping[str, Any]) -> None:
    """Check that a change does not concern the keys of a map or a field in them.

    Raises:
        SchemaError: it does. The message has a statement that computes the column again.
    """
    parts = change.get("column", ())
    path = fields_along(fields, parts)
    for depth, field in enumerate(path[:-1]):
        if field is None or field.kind != "map" or parts[depth + 1] != "key":
            continue
        column, keys = quoted(parts[0]), "..."
        if change["kind"] == "column_type" and len(parts) == 2:
            kind = parse_type(change["type"]).simpleString()
            keys = f"transform_keys({column}, (k, v) -> CAST(k AS {kind}))"
        raise SchemaError(
            f"column {'.'.join(parts)!r} is a part of the keys of a map, which ALTER TABLE cannot change; "
            f"write CREATE OR REPLACE TABLE t AS SELECT * EXCEPT ({column}), {keys} AS {column} FROM t"
        )


def parse_type(text: str) -> st.DataType:
    """Return the Spark type of a JSON text."""
    return type_of_json(json.loads(text))


Change = Mapping[str, Any]
Parts = tuple[str, ...]


def replaces_columns(schema: st.StructType, changes: Sequence[Change]) -> bool:
    """Return whether Spark made the changes of an ALTER TABLE from REPLACE COLUMNS."""
    dropped = {change["column"][0] for change in changes if _is_column_change(change, "drop_column")}
    added = any(_is_column_change(change, "add_column") for change in changes)
    return added and dropped >= set(schema.names)


def column_changes(name: str, schema: st.StructType, changes: Sequence[Change]) -> list[Change]:
    """Return the changes that turn the columns of a table into those of REPLACE COLUMNS.

    Args:
        name: the name of the table, for errors.
        schema: the columns of the table, with declared types such as CHAR(n).
        changes: the changes of the statement, as Spark makes them.

    Raises:
        SchemaError: the statement leaves out an existing column or field, or has one twice.
    """
    adds = [change for change in changes if _is_column_change(change, "add_column")]
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
    return [*result, {"kind": "column_positions", "moves": moves}] if moves else result


def _is_column_change(change: Change, kind: str) -> bool:
    return bool(change["kind"] == kind and len(change["column"]) == 1)


def _type_changes(table: str, path: Parts, old: st.DataType, new: st.DataType) -> Iterator[Change]:
    """Yield the changes of the types of a column or field and its nested fields, without moves."""
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
    elif isinstance(old, st.MapType) and isinstance(new, st.MapType):
        yield from _type_changes(table, (*path, "key"), old.keyType, new.keyType)
        yield from _type_changes(table, (*path, "value"), old.valueType, new.valueType)
    elif old.simpleString() != new.simpleString():
        yield {"kind": "column_type", "column": path, "type": new.json()}


def _moves(
    table: str, path: Parts, old: st.StructType, new: st.StructType
) -> Iterator[tuple[Parts, str | None]]:
    """Yield each column or field to move, with the column or field before it; None for the first."""
    names = []
    for field in new:
        own = match_name(old, field.name)
        names.append(field.name if own is None else own.name)
        if own is not None:
            yield from _nested_moves(table, (*path, own.name), own.dataType, field.dataType)
    missing = [name for name in old.names if name not in names]
    if missing:
        column = ".".join((*path, missing[0]))
        raise SchemaError(
            f"REPLACE COLUMNS would lose the values of {column}: add it to the list, or first run "
            f"ALTER TABLE {table} DROP COLUMN {column}"
        )
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"REPLACE COLUMNS has {'.'.join((*path, twice))!r} twice: leave one out")
    order = [*old.names, *(name for name in names if name not in old.names)]
    if order != names:
        for name, before in zip(names, [None, *names], strict=False):
            yield (*path, name), before


def _nested_moves(
    table: str, path: Parts, old: st.DataType, new: st.DataType
) -> Iterator[tuple[Parts, str | None]]:
    if isinstance(old, st.StructType) and isinstance(new, st.StructType):
        yield from _moves(table, path, old, new)
    elif isinstance(old, st.ArrayType) and isinstance(new, st.ArrayType):
        yield from _nested_moves(table, (*path, "element"), old.elementType, new.elementType)
    elif isinstance(old, st.MapType) and isinstance(new, st.MapType):
        yield from _nested_moves(table, (*path, "value"), old.valueType, new.valueType)
