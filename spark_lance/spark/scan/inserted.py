"""Batch reads of the rows that versions inserted, as Iceberg's incremental appends.

Versions that updated or deleted rows are skipped, as in a stream with the option `skipChangeCommits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.errors import OptionError
from spark_lance.io.store import open_store
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.scan.change_tasks import (
    ChangeColumns,
    ChangeFeed,
    TaskColumns,
    pack_changes,
    read_changes,
)
from spark_lance.spark.scan.changes import last_version
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.schema.read_schema import to_spark_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.system_columns import system_names
from spark_lance.table.reading.version_changes import INSERT
from spark_lance.table.versions.resolve import BranchReader, VersionRef

_PREFETCHED_VERSIONS = 32


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the newest version that the read sees, and the Spark schema of the requested columns.

    The columns are those of the last version. Table columns are nullable, as older versions may lack them.

    Raises:
        VersionNotFoundError: the last version does not exist.
        TableNotFoundError, SchemaError, FormatError, UnsupportedFormatError: see `read.describe`.
    """
    keep_worker_ready()
    ref = pin(options) if ref is None else ref
    store, _ = open_store(options.path, options.storage)
    walk = BranchReader(TableRef(store, ref.root))
    table = walk.manifest(last_version(walk, options, ref)).schema
    schema = to_spark_schema(table, options.projection)
    system = system_names(field.name for field in table.fields)
    for field in schema:
        field.nullable = field.nullable or field.name not in system
    return ref, schema


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> InsertedRowsReader:
    """Return the reader of the columns of `schema`. Spark applies filters itself."""
    keep_worker_ready()
    return InsertedRowsReader(options, schema, ref)


class InsertedRowsReader(DataSourceReader):
    """Reads the rows that the versions after `insertedAfter` inserted.

    Args:
        options: options of the read.
        schema: the columns, in this order.
        ref: the newest version that the read sees.

    Raises:
        OptionError: the last version is older than `insertedAfter`.
        VersionNotFoundError: versions do not exist, or were cleaned up.
        SchemaError, ExpressionError: see `ChangeColumns`.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, ref: VersionRef | None = None) -> None:
        self.ref = pin(options) if ref is None else ref
        store, _ = open_store(options.path, options.storage)
        self._walk = BranchReader(TableRef(store, self.ref.root))
        self._last = last_version(self._walk, options, self.ref)
        self._first = (options.insertedAfter or 0) + 1
        if self._first > self._last + 1:
            raise OptionError(f"insertedAfter = {self._first - 1} is after the last version, {self._last}")
        self._options = options
        self._schema = schema
        self._reference = self._walk.manifest(self._last)
        self._columns = ChangeColumns(self._reference.schema, schema, options.filter, feed=False)
        self._shared = TaskColumns.of(self._columns)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_options", "_schema", "_shared")}

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions: inserted rows of fragments. Small fragments share a partition."""
        if self._first > self._last:
            return []
        self._walk.require(self._first, self._last)
        feed = ChangeFeed(self._walk, self._reference, self._columns, exact=True)
        tasks = []
        # From the newest version to the oldest, because the columns are traced in this direction.
        for version in range(self._last, self._first - 1, -1):
            if (self._last - version) % _PREFETCHED_VERSIONS == 0:
                self._walk.prefetch(range(version, max(0, version - _PREFETCHED_VERSIONS - 1), -1))
            changes = feed.changes(version)
            if all(change.kind == INSERT for change in changes):
                tasks += [feed.task(version, change) for change in reversed(changes)]
        return pack_changes(tasks[::-1], self._columns.fields, self._reference, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        with one_line():
            yield from read_changes(partition, self._schema, self._shared, self._options)
