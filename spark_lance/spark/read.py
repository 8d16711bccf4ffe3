"""Reading tables from Spark: fragments become input partitions, stored columns become Spark's Arrow batches.

The reader is made where the driver plans; it reads the manifest of the pinned version there and puts all
that a task needs into its partition. What travels to the tasks besides is the schema and two limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import DataSourceReader, InputPartition

from spark_lance.errors import SchemaError
from spark_lance.file.schema import Field, Schema
from spark_lance.io.store import Store, open_store
from spark_lance.spark.convert import BatchConverter, rows_without_columns
from spark_lance.spark.failures import one_line
from spark_lance.spark.options import ReadOptions
from spark_lance.spark.types import arrow_schema, covers, spark_schema, spark_type
from spark_lance.table.fragment import physical_rows
from spark_lance.table.manifest import Manifest
from spark_lance.table.refs import find_version, latest_version, load_latest, load_version
from spark_lance.table.scan import Scan, ScanTask

# Spark 4.0 takes batches without columns for empty ones. The release that put it right brought pushFilters.
_KEEPS_ROWS_WITHOUT_COLUMNS = hasattr(DataSourceReader, "pushFilters")

__all__ = ["LancePartition", "LanceReader", "describe", "find_column", "resolve_version"]


def resolve_version(options: ReadOptions) -> int:
    """Return the version that a read sees: the asked one, or the latest now.

    Raises:
        TableNotFoundError, VersionNotFoundError: there is none.
    """
    store, root = open_store(options.path, options.storage)
    if options.version is not None:
        return find_version(store, root, options.version).version
    return latest_version(store, root).version


def describe(options: ReadOptions, version: int | None) -> tuple[int, st.StructType]:
    """Return the version that a read sees and the Spark schema of the columns it was asked for.

    Args:
        version: the version if it has been resolved before.

    Raises:
        TableNotFoundError, VersionNotFoundError: there is no table or no such version.
        UnsupportedFormatError: the table needs a feature that is not read here.
        SchemaError: a column does not exist, or Spark has no type for it.
    """
    _, _, manifest = _open(options, version)
    chosen = manifest.schema.fields
    if options.columns is not None:
        chosen = tuple(find_column(manifest.schema, name) for name in options.columns)
    return manifest.version, spark_schema(field.arrow_field() for field in chosen)


def _open(options: ReadOptions, version: int | None) -> tuple[Store, str, Manifest]:
    store, root = open_store(options.path, options.storage)
    pinned = version if version is not None else options.version
    return store, root, load_latest(store, root) if pinned is None else load_version(store, root, pinned)


def find_column(schema: Schema, name: str) -> Field:
    """Return the top-level field called `name`; the case matters only where two names differ by nothing else.

    Raises:
        SchemaError: there is none, or several that differ by case; the message lists those that exist.
    """
    folded = [field for field in schema.fields if field.name.lower() == name.lower()]
    exact = [field for field in folded if field.name == name]
    if len(exact) == 1 or len(folded) == 1:
        return (exact or folded)[0]
    there = ", ".join(field.name for field in schema.fields)
    raise SchemaError(f"no column {name!r} in the table, which has {there}")


@dataclass(frozen=True)
class LancePartition(InputPartition):
    """The rows that one Spark task reads."""

    task: ScanTask


class LanceReader(DataSourceReader):
    """Reads the columns of a Spark schema from one version of a table.

    Args:
        options: what the read was asked for.
        schema: the columns, in this order; structs may lack fields that the table has.
        version: the pinned version; without it the asked or the latest one is taken.

    Raises:
        TableNotFoundError, VersionNotFoundError, UnsupportedFormatError: see `describe`.
        SchemaError: the schema names columns that do not exist, or types other than Spark's for them.
    """

    def __init__(self, options: ReadOptions, schema: st.StructType, version: int | None = None) -> None:
        store, root, manifest = _open(options, version)
        self.version = manifest.version
        self._schema = schema
        self._batch_bytes = options.batch_bytes
        self._batch_size = options.batch_size
        fields = _fit(manifest.schema, schema)
        if not fields and not _KEEPS_ROWS_WITHOUT_COLUMNS:
            raise SchemaError("this Spark version cannot count rows without columns: ask for a column")
        scan = Scan.plan(store, root, manifest, [field.name for field in fields])
        self._tasks = [replace(task, fields=fields) for task in scan.tasks()]

    def __getstate__(self) -> dict[str, Any]:
        # Every task gets a copy of the reader, and its own work in its partition.
        return {**self.__dict__, "_tasks": []}

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per fragment."""
        return [LancePartition(task) for task in self._tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition in batches of at most `batch_bytes` (about) and `batch_size` rows."""
        # A table without fragments has no partitions, for which Spark runs one task without a value.
        if not isinstance(partition, LancePartition):
            return
        with one_line():
            task = partition.task
            if not task.names:
                yield from self._count(task)
                return
            convert = BatchConverter.plan(task.arrow_schema, arrow_schema(self._schema))
            for batch in task.batches(self._batch_bytes, self._batch_size):
                yield convert(batch)

    def _count(self, task: ScanTask) -> Iterator[pa.RecordBatch]:
        """Yield as many rows without columns as the fragment has; no data file is opened for them."""
        rows = (
            physical_rows(task.store, task.root, task.message, task.bases)
            - task.message.deletion_file.num_deleted_rows
        )
        for first in range(0, rows, self._batch_size):
            yield rows_without_columns(min(self._batch_size, rows - first))


def _fit(table: Schema, asked: st.StructType) -> tuple[Field, ...]:
    """Return the table's fields for the asked columns, with only the nested fields that are asked for."""
    fields, reasons = [], []
    unknown = []
    for column in asked:
        try:
            field = find_column(table, column.name)
        except SchemaError:
            unknown.append(column.name)
            continue
        actual = spark_type(field.arrow_type())
        if column.dataType != actual and not covers(actual, column.dataType):
            reasons.append(
                f"column {column.name!r} is {actual.simpleString()}, not {column.dataType.simpleString()}"
            )
        elif field.nullable and not column.nullable:
            reasons.append(f"column {column.name!r} may hold nulls, but the schema says NOT NULL")
        else:
            fields.append(_narrow(field, column.dataType))
    if unknown:
        there = ", ".join(field.name for field in table.fields)
        reasons.append(f"there is no column {', '.join(unknown)}, but {there}")
    if reasons:
        raise SchemaError(f"the schema does not fit the table: {'; '.join(reasons)}")
    doubled = sorted({field.name for field in fields if [f.id for f in fields].count(field.id) > 1})
    if doubled:
        raise SchemaError(f"the schema names a column twice: {', '.join(doubled)}")
    return tuple(fields)


def _narrow(field: Field, asked: st.DataType) -> Field:
    """Return the field with just the struct fields that are asked for, so that no others are fetched."""
    if field.kind == "struct" and isinstance(asked, st.StructType):
        parts = [
            _narrow(child, asked[child.name].dataType)
            for child in field.children
            if child.name in asked.names
        ]
        # A struct of which nothing is asked for still has rows that are null, and a child tells which.
        return replace(field, children=tuple(parts) or field.children[:1])
    if field.kind == "list" and isinstance(asked, st.ArrayType):
        return replace(field, children=(_narrow(field.children[0], asked.elementType),))
    return field
