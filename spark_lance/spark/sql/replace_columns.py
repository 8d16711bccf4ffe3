"""ALTER TABLE ... REPLACE COLUMNS: the columns that the table has after it, in their order.

Spark drops all columns and adds the new ones. Here a column, or a field of a struct, whose name the table has
keeps its values. So the statement adds columns, changes their types and moves them. It drops none: a column
that it leaves out is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyspark.sql.types as st

from spark_lance.errors import SchemaError
from spark_lance.spark.sql.evolution import match_name, parse_type
from spark_lance.table.schema.defaults import CURRENT_DEFAULT

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
