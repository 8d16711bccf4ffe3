"""Reads metadata tables from Spark: option `table` names a table of `spark_lance.table.metadata`.

One task reads the table. It computes only the columns that Spark requests and the rows that filters keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.expressions.expressions import Call, Expression
from spark_lance.expressions.predicate import Condition, compile_predicate, compile_tree
from spark_lance.file.base.schema import Schema
from spark_lance.io.store import open_store
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.options.option_values import Projection
from spark_lance.spark.scan.rows import pin
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.read_schema import resolve_projection, to_spark_schema
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.worker.failures import one_line
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.metadata import metadata_table
from spark_lance.table.metadata.columns import MetadataTable
from spark_lance.table.reading.fragment_rows import batch_without_columns
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.resolve import VersionRef
from spark_lance.table.versions.versions import find_version, load_version


def _table(options: ReadOptions) -> MetadataTable:
    assert options.table is not None
    return metadata_table(options.table)


def describe(options: ReadOptions, ref: VersionRef | None) -> tuple[VersionRef, st.StructType]:
    """Return the version that a metadata table describes, and the Spark schema of the requested columns.

    Args:
        options: options of the read, with `table`.
        ref: the version, if it has been resolved before.

    Raises:
        OptionError: the metadata table does not exist.
        TableNotFoundError, VersionNotFoundError: the table or the version does not exist.
        SchemaError: a column does not exist.
    """
    schema = Schema.from_arrow(_table(options).schema)
    return ref or pin(options), to_spark_schema(schema, Projection(options.columns))


def reader(options: ReadOptions, schema: st.StructType, ref: VersionRef | None) -> MetadataReader:
    """Return the reader of a metadata table."""
    return MetadataReader(options, schema, ref or pin(options))


class MetadataReader(DataSourceReader):
    """Reads columns of a metadata table.

    Args:
        options: options of the read, with `table`.
        schema: the columns, in this order.
        ref: the version that the metadata table describes.

    Raises:
        OptionError: the metadata table does not exist.
        SchemaError: the schema names columns that do not exist, or types other than theirs.
        ExpressionError: the option `filter` does not fit the columns.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, ref: VersionRef) -> None:
        self.ref = ref
        self._options = options
        self._schema = schema
        self._columns = _table(options).schema
        self._names, _ = resolve_projection(Schema.from_arrow(self._columns), schema)
        self._condition: Condition | None = None
        if options.filter is not None:
            self._condition = compile_predicate(options.filter, self._columns)
        self._limit: int | None = None
        store, _ = open_store(options.path, options.storage)
        find_version(TableRef(store, ref.root), ref.version)

    @staticmethod
    def columns(options: ReadOptions) -> pa.Schema:
        """Return all columns of the metadata table in option `table`.

        Raises:
            OptionError: the metadata table does not exist.
        """
        return _table(options).schema

    def set_filters(self, trees: Sequence[Expression], limit: int | None = None) -> None:
        """Read only rows that meet all conditions on columns of the table, at most `limit` of them."""
        self._limit = limit
        if trees:
            condition = compile_tree(Call("and", tuple(trees)), self._columns)
            self._condition = condition if self._condition is None else self._condition.and_also(condition)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the one partition."""
        return [InputPartition(0)]

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return all rows, if they have at most this many rows and bytes; None otherwise."""
        batches: list[pa.RecordBatch] = []
        for batch in self.read(self.partitions()[0]):
            batches.append(batch)
            most_rows, most_bytes = most_rows - batch.num_rows, most_bytes - batch.nbytes
            if most_rows < 0 or most_bytes < 0:
                return None
        return batches

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows in small batches."""
        with one_line():
            store, _ = open_store(self._options.path, self._options.storage)
            manifest = load_version(TableRef(store, self.ref.root), self.ref.version)
            snapshot = Snapshot(TableRef(store, self.ref.root), manifest)
            batches = _table(self._options).batches(snapshot, self._names, self._condition, self._limit)
            convert: BatchConverter | None = None
            for rows in batches:
                if not self._names:
                    yield batch_without_columns(rows.num_rows)
                    continue
                convert = convert or BatchConverter.plan(rows.schema, arrow_schema(self._schema))
                for batch in rows.to_batches():
                    yield convert(batch)
