"""The changed rows of one fragment, as a task that can be pickled and runs anywhere.

It yields columns as a newer version has them, whatever they were when the rows were stored. Three more
columns describe the change of each row:

    _change_type         `insert`, `update_preimage`, `update_postimage` or `delete`
    _commit_version      the version that did it
    _commit_timestamp    when that version was committed
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_lance.errors import SchemaError
from spark_lance.expressions.predicate import Condition
from spark_lance.table.reading.fragment_rows import rows_without_columns
from spark_lance.table.reading.scan_task import ScanTask
from spark_lance.table.reading.version_changes import ChangedRows

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
FEED_COLUMNS = (CHANGE_TYPE, COMMIT_VERSION, COMMIT_TIMESTAMP)

_FEED_TYPES = {
    CHANGE_TYPE: pa.string(),
    COMMIT_VERSION: pa.int64(),
    COMMIT_TIMESTAMP: pa.timestamp("us", "UTC"),
}


def feed_field(name: str) -> pa.Field:
    """Return the Arrow field of one of the three columns that describe a change."""
    return pa.field(name, _FEED_TYPES[name], nullable=False)


@dataclass(frozen=True)
class ChangeTask:
    """Rows that a version changed in one way.

    Attributes:
        scan: reads the fragment; its columns have the names that they have in `schema`.
        change: which rows, and what happened to them.
        version: the version that changed them.
        timestamp: when it was committed, in microseconds since 1970.
        schema: the columns to yield; what `scan` does not read, and is not a column of the feed, is null.
        span: the physical rows [start, stop) to yield; all by default.
    """

    scan: ScanTask
    change: ChangedRows
    version: int
    timestamp: int
    schema: pa.Schema
    span: tuple[int, int] | None = None

    def tables(self, target_bytes: int, condition: Condition | None = None) -> Iterator[pa.Table]:
        """Yield the rows as tables of about `target_bytes`.

        Args:
            target_bytes: of one table.
            condition: keep the rows for which it is true; it may name the columns of `schema`.

        Raises:
            SchemaError: a value does not fit the type that its column has in `schema`, or is null.
            FormatError, UnsupportedFormatError: stored bytes are damaged or not supported.
            ExpressionError: the condition does not fit the columns.
        """
        for stored in self._stored(target_bytes):
            table = self._dressed(stored)
            if condition is not None:
                table = condition.filter(table)
            if table.num_rows:
                yield table

    def _stored(self, target_bytes: int) -> Iterator[pa.Table]:
        scan = self.scan
        assert scan.bases is not None
        offsets = self.change.offsets(scan.store, scan.root, scan.bases)
        if offsets is None:
            yield from scan.tables(target_bytes)
            return
        if self.span is not None:
            first, last = np.searchsorted(offsets, self.span)
            offsets = offsets[first:last]
        if len(offsets):
            yield from scan.rows(offsets, target_bytes)

    def _dressed(self, stored: pa.Table) -> pa.Table:
        rows = stored.num_rows
        if not self.schema.names:
            return rows_without_columns(rows)
        constants = {
            CHANGE_TYPE: self.change.kind,
            COMMIT_VERSION: self.version,
            COMMIT_TIMESTAMP: self.timestamp,
        }
        names = set(stored.column_names)
        columns = []
        for field in self.schema:
            if field.name in names:
                columns.append(_cast(stored[field.name], field, self.version))
            elif field.name in constants:
                value = pa.scalar(constants[field.name], field.type)
                columns.append(pa.chunked_array([pa.repeat(value, rows)]))
            else:
                columns.append(pa.chunked_array([pa.nulls(rows, field.type)]))
            if columns[-1].null_count and not field.nullable:
                raise SchemaError(
                    f"column {field.name!r} is NOT NULL now, but was null in version {self.version}"
                )
        return pa.Table.from_arrays(columns, schema=self.schema)


def _cast(column: pa.ChunkedArray, field: pa.Field, version: int) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaError(
            f"column {field.name!r} had another type in version {version}, and a value does not fit the "
            f"present one: {error}"
        ) from None
