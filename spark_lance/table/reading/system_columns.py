"""System columns: facts about a row that a scan can return in addition to its values; uint64 without nulls.

    _rowid                          the stable row id; in tables without stable ids the row address
    _rowaddr                        the row address: fragment id << 32 | physical row
    _rowoffset                      the position among the table's live rows in scan order, from 0
    _fragid                         the id of the fragment that holds the row
    _row_created_at_version         the version that inserted the row; 1 in tables without stable row ids
    _row_last_updated_at_version    the version that last changed the row; 1 in tables without stable row ids

Lance reserves these names except `_fragid`, which only we define: if a table has a column of that name, the
name means the table's column. A column with a reserved name, which some writers create by mistake, is hidden.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark_lance.file.base.schema import Schema
from spark_lance.table.reading.lineage import CREATED_AT, ROW_ID, UPDATED_AT

ROW_ADDRESS = "_rowaddr"
ROW_OFFSET = "_rowoffset"
FRAGMENT_ID = "_fragid"
SYSTEM_COLUMNS = (ROW_ID, ROW_ADDRESS, ROW_OFFSET, FRAGMENT_ID, CREATED_AT, UPDATED_AT)


def system_field(name: str) -> pa.Field:
    """Return the Arrow field of a system column."""
    return pa.field(name, pa.uint64())


def filterable_schema(schema: Schema) -> pa.Schema:
    """Return the columns that a filter may refer to: table columns, blobs as descriptors, and system columns.

    The row offset is excluded, because it counts the rows that pass the filter.
    """
    system = system_names(field.name for field in schema.fields)
    columns = [field.as_descriptor().arrow_field() for field in schema.fields if field.name not in system]
    return pa.schema([*columns, *(system_field(name) for name in system if name != ROW_OFFSET)])


def system_names(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the names that mean system columns in a table with these columns."""
    has_fragment_id = FRAGMENT_ID in columns
    return tuple(name for name in SYSTEM_COLUMNS if not (has_fragment_id and name == FRAGMENT_ID))
