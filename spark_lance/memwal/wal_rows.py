"""Rows as logs have them: all columns of the table, and the mark of deleted keys."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import join
from spark_lance.arrow.texts import check_texts
from spark_lance.errors import OptionError, SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.memwal.entries import TOMBSTONE, log_schema, wal_fields
from spark_lance.table.writing.align import Aligner


def plain_schema(schema: Schema) -> pa.Schema:
    """Return the schema of logged rows in memory: that of the log, without metadata of columns."""
    return pa.schema([pa.field(field.name, field.type, field.nullable) for field in log_schema(schema)])


def logged_rows(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return rows as they are logged: all columns of the table in its order, and the mark of deletions.

    Columns that are missing and may be null are null.

    Raises:
        SchemaError: the rows do not fit the table, or a value must not be null.
    """
    aligner = Aligner(reader.schema, Schema(wal_fields(schema), schema.metadata))
    present = aligner.arrow_schema.names
    missing = [field.name for field in schema.fields if not field.nullable and field.name not in present]
    if missing:
        raise SchemaError(f"column {missing[0]!r} must not be null but is missing in the data")
    rows = pa.Table.from_batches([aligner.align(batch) for batch in reader], aligner.arrow_schema)
    for column in schema.fields:
        if not column.nullable and rows[column.name].null_count:
            raise SchemaError(f"column {column.name!r} must not be null, but a value of the data is")
    return _whole(schema, rows, dead=False)


def check_rows(rows: pa.Table) -> None:
    """Check that all text is UTF-8: a log that holds other bytes could not be read.

    Raises:
        SchemaError: a text is not; the message names the field, the row and the byte.
    """
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        first = 0
        for chunk in column.chunks:
            check_texts(chunk, name, first)
            first += len(chunk)


def logged_keys(schema: Schema, reader: pa.RecordBatchReader) -> pa.Table:
    """Return keys as the deletions of their rows are logged; other columns are passed over.

    Raises:
        OptionError: the table has no primary key.
        SchemaError: a column of the key is missing, or null.
    """
    own = Schema(tuple(field for field in schema.fields if field.key_position is not None))
    if not own.fields:
        raise OptionError("rows are deleted by their primary key, and the table declares none")
    names = [field.name for field in own.fields]
    absent = [name for name in names if name not in reader.schema.names]
    if absent:
        raise SchemaError(f"the keys lack the column {absent[0]!r}")
    table = reader.read_all().select(names)
    aligner = Aligner(table.schema, own)
    batches = [aligner.align(batch) for batch in table.to_batches()]
    return _whole(schema, pa.Table.from_batches(batches, aligner.arrow_schema), dead=True)


def _whole(schema: Schema, rows: pa.Table, *, dead: bool) -> pa.Table:
    """Return rows with all columns of the log, each in one chunk; columns that are missing are null."""
    count = rows.num_rows
    columns = []
    plain = plain_schema(schema)
    for target in plain:
        if target.name == TOMBSTONE:
            columns.append(pa.chunked_array([pc.fill_null(pa.nulls(count, pa.bool_()), dead)]))
        elif target.name in rows.column_names:
            chunks = join(rows[target.name].chunks)
            columns.append(pa.chunked_array(chunks, rows[target.name].type).cast(target.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(count, target.type)], target.type))
    return pa.Table.from_arrays(columns, schema=plain)
