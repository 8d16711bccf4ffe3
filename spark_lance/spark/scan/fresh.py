"""Reads tables together with logged rows that are not merged into the table yet: option `fresh`.

When the driver plans, it fixes the base version, the SSTables and the positions of logs. The rows of the base
are read like the rows of any version, but without rows for which a shard has a newer state. Each SSTable and
each log is a partition of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import InputPartition

from spark_lance.io.store import open_store
from spark_lance.memwal.fresh import ChosenRows, FreshRows, open_fresh
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.scan import rows
from spark_lance.spark.scan.partitions import ROW_HEADER_BYTES, split_row_count
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import with_nullable_system_columns
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.spark.worker.process import keep_worker_ready
from spark_lance.spark.worker.read import TaskRows
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment_rows import batch_without_columns
from spark_lance.table.reading.scan_task import rebatch
from spark_lance.table.versions.resolve import VersionRef


@dataclass
class FreshPartition(InputPartition):
    """Rows of a shard that one Spark task reads."""

    rows: ChosenRows

    def __init__(self, rows: ChosenRows) -> None:
        self.rows = rows


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the base version and the Spark schema of the requested columns.

    Raises:
        TableNotFoundError, UnsupportedFormatError, SchemaError: see `rows.describe`.
    """
    ref, schema = rows.describe(options, ref)
    return ref, with_nullable_system_columns(schema)


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> FreshReader:
    """Return the reader of the columns of `schema`. Spark applies filters itself."""
    keep_worker_ready()
    ref = rows.pin(options) if ref is None else ref
    store, _ = open_store(options.path, options.storage)
    fresh = open_fresh(TableRef(store, ref.root))
    return FreshReader(options, schema, VersionRef(ref.root, ref.branch, fresh.base.version), fresh)


class FreshTaskRows(TaskRows):
    """Reads partitions of the base and of shards."""

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches."""
        if not isinstance(partition, FreshPartition):
            yield from super().read(partition)
            return
        with one_line():
            keep_worker_ready()
            target = arrow_schema(self.schema)
            convert: BatchConverter | None = None
            tables = partition.rows.tables(self.condition, self.batch_bytes)
            if not partition.rows.names:
                for table in tables:
                    yield batch_without_columns(table.num_rows)
                return
            for batch in rebatch(tables, self.batch_size):
                convert = convert or BatchConverter.plan(batch.schema, target)
                yield convert(batch)


class FreshReader(LanceReader):
    """Reads the columns of a Spark schema from a table and its shards.

    Args:
        options, schema: as in `LanceReader`.
        ref: the base version.
        fresh: the rows of the base and of the shards.
    """

    def __init__(
        self, options: ReadOptions, schema: st.StructType, ref: VersionRef, fresh: FreshRows
    ) -> None:
        super().__init__(options, schema, ref, fresh.base)
        self._fresh = fresh.scan(self._names)
        self._scan = self._fresh

    def count(self, most_rows: int, most_bytes: int) -> int | None:
        """Return the number of rows if there is no filter or little has to be read; None otherwise."""
        if self._condition is None:
            return self._fresh.count()
        batches = self.read_if_small(most_rows, most_bytes)
        return None if batches is None else sum(batch.num_rows for batch in batches)

    def size(self) -> tuple[int, int]:
        """Return the estimated largest number of rows, and their size in bytes in Spark."""
        rows = self._fresh.count()
        return rows, int(rows * (self._width + ROW_HEADER_BYTES))

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return all rows that meet the filter, if the table has few rows; None otherwise."""
        if self._fresh.count() > most_rows or self.size()[1] > most_bytes:
            return None
        return [batch for partition in self.partitions() for batch in self.read(partition)]

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the base, and one partition for each part of a shard."""
        if not self._names and self._condition is None:
            return split_row_count(self._fresh.count())
        shards = [FreshPartition(part) for part in self._fresh.parts(self._condition)]
        return [*super().partitions(), *shards]

    def _task_rows(self) -> FreshTaskRows:
        rows = super()._task_rows()
        return FreshTaskRows(*(getattr(rows, field.name) for field in fields(rows)))
