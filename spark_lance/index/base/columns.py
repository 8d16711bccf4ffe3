"""Find indexed columns: top-level columns, or struct fields by a dotted path (`d.e`)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.base.schema import Field, Schema, split_path


def leaf_field(schema: Schema, column: str) -> Field:
    """Return the field at the end of a column's path.

    Raises:
        SchemaError: the column does not exist.
    """
    return schema.find(column, only_structs=True)[-1]


def top_column(schema: Schema, column: str) -> str:
    """Return the name of the top-level column that contains a column.

    Raises:
        SchemaError: the column does not exist.
    """
    return schema.find(column, only_structs=True)[0].name


def column_values(table: pa.Table, column: str) -> pa.ChunkedArray:
    """Return the values of a column, given a table with its top-level column. A null struct gives null."""
    if column in table.column_names:
        return table.column(column)
    top, *steps = split_path(column)
    values = table.column(top)
    for step in steps:
        values = pc.struct_field(values, step)
    return values if isinstance(values, pa.ChunkedArray) else pa.chunked_array([values])
