"""Columns that are indexed: top-level ones, and fields of structs by a path with dots (`d.e`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ColumnNotFoundError, SchemaError
from spark_lance.file.schema import Field, Schema

__all__ = ["column_values", "indexed_path", "leaf_field", "top_column"]


def _path(schema: Schema, column: str) -> tuple[Field, ...]:
    """Return the fields on the way to a column, the top-level one first.

    A top-level column of the whole name, dots included, goes first.

    Raises:
        SchemaError: there is no such column.
    """
    steps = [column] if any(field.name == column for field in schema.fields) else column.split(".")
    field = schema.field(steps[0])
    found = [field]
    for step in steps[1:]:
        children = {child.name: child for child in field.children} if field.kind == "struct" else {}
        if step not in children:
            raise ColumnNotFoundError(f"there is no column {column!r} in the table")
        field = children[step]
        found.append(field)
    return tuple(found)


def leaf_field(schema: Schema, column: str) -> Field:
    """Return the field at the end of a column's path.

    Raises:
        SchemaError: there is no such column.
    """
    return _path(schema, column)[-1]


def top_column(schema: Schema, column: str) -> str:
    """Return the name of the top-level column that a column is in.

    Raises:
        SchemaError: there is no such column.
    """
    return _path(schema, column)[0].name


def column_values(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the values of a column from a table that has its top-level column; null where a struct is."""
    if column in table.column_names:
        return table.column(column)
    top, *steps = column.split(".")
    values = table.column(top)
    for step in steps:
        values = pc.struct_field(values, step)
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])


def indexed_path(schema: Schema, number: int) -> str:
    """Return the path of the field of an id.

    Raises:
        SchemaError: there is none.
    """
    waiting = [(top.name, top) for top in schema.fields]
    while waiting:
        path, field = waiting.pop()
        if field.id == number:
            return path
        waiting += [(f"{path}.{child.name}", child) for child in field.children]
    raise SchemaError(f"the indexed column, field {number}, does not exist")
