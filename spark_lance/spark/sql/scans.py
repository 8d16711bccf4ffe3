"""Plans scans in the driver's own Python, and returns the rows of small scans directly.

Every request has `read`: the options of a read, the version if it is known ([root, branch, number]), and
Spark's columns. A cache key identifies the table object of the request.

This module also decides which columns have the same order in Spark as in the table, and which stored values
are different values in Spark. Values that are converted for Spark, as those of extension types may be, and
text with a collation have another order in Spark.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from spark_lance.errors import OptionError
from spark_lance.expressions.expressions import Expression
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.file.base.schema import Field, Schema
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import table_pb2
from spark_lance.spark.driver.interpreters import check_package
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.options.options import check_batch, read_options
from spark_lance.spark.scan import rows
from spark_lance.spark.scan.kinds import read_kind
from spark_lance.spark.scan.predicates import pushdown_description, translate_predicate
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.read_schema import resolve_projection
from spark_lance.spark.schema.string_types import has_collation
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.partition_fields import partition_text, partitioning
from spark_lance.spark.worker.read import LancePartition
from spark_lance.spark.worker.transport import TASK_METRICS, pickled_read
from spark_lance.table.format.partition_bounds import single_partition
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.resolve import VersionRef

if TYPE_CHECKING:
    from spark_lance.spark.scan.metadata import MetadataReader

_Types = pa.types
# Test of the stored type -> Spark's type for it, whose order is the same.
_SAME_ORDER = (
    (_Types.is_boolean, st.BooleanType),
    (_Types.is_signed_integer, st.IntegralType),
    (_Types.is_unsigned_integer, (st.IntegralType, st.DecimalType)),
    (_Types.is_floating, st.FractionalType),
    (_Types.is_decimal, st.DecimalType),
    (_Types.is_string, st.StringType),
    (_Types.is_large_string, st.StringType),
    (_Types.is_binary, st.BinaryType),
    (_Types.is_large_binary, st.BinaryType),
    (_Types.is_date32, st.DateType),
    (_Types.is_timestamp, (st.TimestampType, st.TimestampNTZType)),
)


def has_spark_order(path: Sequence[str], schema: Schema, scan_schema: st.StructType) -> bool:
    """Return whether a stored column, or field of a struct, has the same order in Spark.

    Several stored values may be one value in Spark, such as times with nanoseconds.

    Args:
        path: the column, or the path of a field.
        schema: the table's schema.
        scan_schema: the Spark schema of the scan.
    """
    kind, fields = find_spark_type(path, scan_schema), schema.find_path(path)
    if kind is None or fields is None or _has_other_values(fields[-1]):
        return False
    if isinstance(kind, st.StringType) and kind != st.StringType():
        return False
    column_type = fields[-1].arrow_type()
    return any(test(column_type) and isinstance(kind, types) for test, types in _SAME_ORDER)


def has_spark_values(path: Sequence[str], schema: Schema, scan_schema: st.StructType) -> bool:
    """Return whether a column has Spark's order, and different stored values are different in Spark."""
    if not has_spark_order(path, schema, scan_schema):
        return False
    fields = schema.find_path(path)
    assert fields is not None
    column_type = fields[-1].arrow_type()
    return not _Types.is_floating(column_type) and not (
        _Types.is_timestamp(column_type) and column_type.unit == "ns"
    )


def find_spark_type(path: Sequence[str], scan_schema: st.StructType) -> st.DataType | None:
    """Return Spark's type of a column, or of a field of a struct; None if it does not exist."""
    kind: st.DataType = scan_schema
    for name in path:
        if not isinstance(kind, st.StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind


def _has_other_values(field: Field) -> bool:
    if EXTENSION_NAME in field.metadata or has_collation(field.metadata):
        return True
    return isinstance(field.arrow_type(), pa.BaseExtensionType)


# The most rows that the driver reads in columnar form (their bytes have another limit), and the approximate
# size of the part for one task: Spark warns about tasks of more than 1,000 KiB.
_MAX_COLUMNAR_ROWS, _PART_BYTES = 1 << 24, 900 << 10
# Answers contain the rows up to this size: a file takes as long as text of this size.
_FILE_BYTES = 32 << 10
# The most rows of ORDER BY ... LIMIT that are searched in an index.
_MAX_TOP_ROWS = 10_000

# Open versions by cache key and options. A version never changes, and a table that replaces another one has
# another cache key.
_OPEN_VERSIONS: CacheSection[tuple[VersionRef, Snapshot]] = CacheSection("open versions", CACHE, share=1 / 2)
# The minimum memory of a cached version, and the memory for each byte of its manifest.
_MIN_OPEN_BYTES, _OPEN_PER_BYTE = 1 << 20, 4


@runtime_checkable
class _SmallReader(Protocol):
    """A reader that can return the rows of a small scan directly."""

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return all rows if they are few and the scan is small; None otherwise."""


@dataclass(frozen=True)
class Read:
    """The common part of all requests about one table."""

    request: dict[str, Any] = field(repr=False)

    @cached_property
    def options(self) -> ReadOptions:
        """The options of the read."""
        return read_options(CaseInsensitiveDict(self.request["options"]))

    @cached_property
    def scan_schema(self) -> st.StructType:
        """The Spark schema of the scan."""
        return st.StructType.fromJson(json.loads(self.request["schema"]))

    @cached_property
    def ref(self) -> VersionRef | None:
        """The version, if it is known."""
        return VersionRef(*self.request["ref"]) if self.request.get("ref") else None

    @cached_property
    def _open_version(self) -> tuple[VersionRef, Snapshot]:
        """The version of the read, cached for the next request."""
        key = (self.request["cacheKey"], str(self.ref), *sorted(self.request["options"].items()))
        return _OPEN_VERSIONS.get(
            key,
            lambda: rows.open_snapshot(self.options, self.ref),
            lambda entry: max(_MIN_OPEN_BYTES, _OPEN_PER_BYTE * entry[1].manifest.message.ByteSize()),
        )

    @property
    def version(self) -> VersionRef:
        """The reference of the version of the read."""
        return self._open_version[0]

    @property
    def snapshot(self) -> Snapshot:
        """The version of the read."""
        return self._open_version[1]

    @property
    def table_schema(self) -> Schema | None:
        """The schema of the columns that predicates may test; None if Spark applies all predicates."""
        if self.options.kind == "rows":
            return self.snapshot.schema
        if self.options.kind == "metadata":
            # Imported here because reads of rows need none of the modules for metadata tables.
            from spark_lance.spark.scan.metadata import MetadataReader

            return Schema.from_arrow(MetadataReader.columns(self.options))
        return None

    def expressions(self, predicates: Iterable[Any]) -> list[Expression | None]:
        """Translate predicates to expressions; None for each predicate that Spark must apply."""
        schema = self.table_schema
        if schema is None:
            return [None for _ in predicates]
        return [translate_predicate(predicate, schema, self.scan_schema) for predicate in predicates]


def describe_read(request: BridgeRequest) -> dict[str, Any]:
    """Return the Spark schema of a read, its pinned version, and the rules for push-down."""
    read = Read(request.body["read"])
    if read.options.kind == "rows":
        ref, snapshot = read.version, read.snapshot
        schema = rows.requested_schema(snapshot, read.options)
        pushdown = pushdown_description(read.options, snapshot.schema, schema)
    else:
        ref, schema = read_kind(read.options).describe(read.options, None)
        pushdown = pushdown_description(read.options, read.table_schema, schema)
    return {"schema": schema.json(), "ref": version_answer(ref), "pushdown": pushdown}


def describe_pushdown(request: BridgeRequest) -> dict[str, Any]:
    """Return the rules for push-down into a read with options of its own."""
    read = Read(request.body["read"])
    return pushdown_description(read.options, read.table_schema, read.scan_schema)


def pin_read(request: BridgeRequest) -> list[Any]:
    """Return the version of a read that is not pinned yet.

    Raises:
        SchemaError: the user has set the columns (`has_user_schema`), and they do not fit the table.
    """
    read = Read(request.body["read"])
    if read.options.kind == "rows":
        ref, snapshot = read.version, read.snapshot
        if request.body["has_user_schema"]:
            resolve_projection(snapshot.schema, read.scan_schema)
        return version_answer(ref)
    kind = read_kind(read.options)
    if request.body["has_user_schema"]:
        return version_answer(kind.reader(read.options, read.scan_schema, None).ref)
    return version_answer(kind.describe(read.options, None)[0])


@dataclass(frozen=True)
class TargetRows:
    """The rows of a read: all rows of a version (None), or the rows that indexes return exactly."""

    rows: RowSet | None


def target_rows(read: Read, body: Mapping[str, Any]) -> TargetRows | None:
    """Return the rows of a read of a version; None if they are unknown without a scan.

    Raises:
        FormatError: an index is damaged.
    """
    _, most_bytes = local_bounds(body)
    if read.options.fragments is not None or body.get("limit") is not None:
        return None
    condition = create_reader(read, st.StructType(), body).condition
    if condition is None:
        return TargetRows(None)
    row_set = _index_exact_rows(condition, read.snapshot, most_bytes)
    return None if row_set is None else TargetRows(row_set)


def _index_exact_rows(condition: Condition, snapshot: Snapshot, most_bytes: int) -> RowSet | None:
    """Return exactly the rows that meet a condition; None if indexes cannot return them."""
    if not (condition.is_complete and snapshot.manifest.index_section):
        return None
    # Imported here because a table without indexes needs none of these modules.
    from spark_lance.index.scalar.full_coverage import exact_rows

    return exact_rows(snapshot, condition.trees(), most_bytes)


def find_top_rows(read: Read, top: Mapping[str, Any], within: RowSet | None) -> RowSet | None:
    """Return rows that contain the first rows of an order; None if no index has the order.

    Args:
        read: a read of a version.
        top: `path` of the column, `descending`, `nulls`, and the number of `rows`, see `leading_rows`.
        within: the rows to consider; None for all rows of the version.
    """
    path, snapshot = top["path"], read.snapshot
    if not (snapshot.manifest.index_section and has_spark_order(path, snapshot.schema, read.scan_schema)):
        return None
    # Imported here because a table without indexes needs none of these modules.
    from spark_lance.index.scalar.column_facts import leading_rows

    order = {"descending": top["descending"], "nulls": top["nulls"]}
    return leading_rows(snapshot, path, top["rows"], **order, within=within)


def plan_scan(request: BridgeRequest) -> dict[str, Any]:
    """Return the rows of a scan if they are few and the scan is small, or the tasks of the scan.

    `kind` is "rows", "columns" or "tasks". Every answer has the version (`ref`), and the largest number of
    `rows` and `bytes` of the read. Columns and tasks also have metrics, see `_scan_metrics`.

    Rows are an Arrow stream, and tasks are the input of Spark's reader of Python data sources, both in
    base64. If tasks are `ordered`, they read only rows that contain the first rows of the order `top`.
    Columns are in a file, see `columns_answer`. So are large rows if the request has `files`. Columns are for
    more rows than Spark's local scans support, if the caller can read them (`columnar`).

    Raises:
        WorkerPythonError: the workers that would run the tasks have no spark_lance.
    """
    body = request.body
    read = Read(body["read"])
    check_batch(read.options)
    all_columns = body["columns"] == body["read"]["schema"]
    schema = read.scan_schema if all_columns else st.StructType.fromJson(json.loads(body["columns"]))
    most_rows, most_bytes = local_bounds(body)
    reader: DataSourceReader
    is_ordered = False
    if read.options.kind == "rows":
        reader = row_reader = create_reader(read, schema, body)
        ref = row_reader.ref
        is_ordered = _keep_top_rows(row_reader, read, body)
        if row_reader.condition is not None and body.get("limit") is None and read.options.fragments is None:
            row_set = _index_exact_rows(row_reader.condition, read.snapshot, most_bytes)
            if row_set is not None and row_set.num_rows <= most_rows:
                row_reader.set_rows(
                    row_set.select_fragments(number for number, rows in row_set.items() if rows)
                )
        local_rows = (
            max(most_rows, _MAX_COLUMNAR_ROWS)
            if body.get("columnar") and most_rows and row_reader.columns
            else most_rows
        )
        few = None if body.get("runtime") else row_reader.read_if_small(local_rows, most_bytes)
        size: tuple[int, int] | None = None if few is not None else row_reader.size()
    else:
        versioned = read_kind(read.options).reader(read.options, schema, read.ref)
        reader, ref = versioned, versioned.ref  # type: ignore[assignment]
        few, size = None, None
        if read.options.kind == "metadata":
            cast("MetadataReader", reader).set_filters(_pushed_trees(read, body), body.get("limit"))
        if isinstance(reader, _SmallReader):
            few = reader.read_if_small(most_rows, most_bytes)
    answer = {"ref": version_answer(ref)}
    if few is not None and sum(batch.num_rows for batch in few) > most_rows:
        metrics = _scan_metrics(reader, "")
        return {**answer, **metrics, **columns_answer(few, schema)}
    if few is not None:
        return {**answer, **rows_answer(few, schema, in_file=bool(body.get("files")))}
    check_package(request.spark)
    fields, tasks_by_partition = _partition_tasks(reader, read, schema) if body.get("grouped") else ([], None)
    if tasks_by_partition is None or not (tasks_by_partition or body.get("runtime")):
        fields, tasks_by_partition = [], None
    parts = None if tasks_by_partition is None else [part for _, part in tasks_by_partition]
    function, partitions = pickled_read(reader, schema, parts)
    return {
        **answer,
        "kind": "tasks",
        "ordered": is_ordered,
        "rows": None if size is None else size[0],
        "bytes": None if size is None else size[1],
        **_scan_metrics(reader, f"version: {ref.version}; {read.options.kind}"),
        "function": _base64_text(function),
        "partitions": [_base64_text(partition) for partition in partitions],
        "partition_fields": fields,
        "partition_values": [key for key, _ in tasks_by_partition or ()],
    }


def _partition_tasks(
    reader: DataSourceReader, read: Read, schema: st.StructType
) -> tuple[list[dict[str, Any]], list[tuple[tuple[str | None, ...], LancePartition]] | None]:
    """Return the partition fields of a table, and tasks that each read one of its partitions.

    There are no tasks (None) if a file has rows of several partitions. The same holds if the scan lacks a
    source column of the fields, or if Spark compares its values differently.
    """
    if not isinstance(reader, LanceReader):
        return [], None
    snapshot = read.snapshot
    fields = partitioning(snapshot.manifest.config, snapshot.schema)
    if not fields:
        return [], None
    spec = PartitionSpec.of_config(snapshot.manifest.config).bound(snapshot.schema)
    for name in spec.sources():
        if name not in schema.names or not has_spark_values([name], snapshot.schema, read.scan_schema):
            return [], None

    def partition_key(fragment: table_pb2.DataFragment) -> tuple[str | None, ...] | None:
        bounds = single_partition(spec, fragment)
        return None if bounds is None else tuple(partition_text(each.low) for each in bounds)

    return fields, reader.partitions_by(partition_key)


def _scan_metrics(reader: DataSourceReader, otherwise: str) -> dict[str, Any]:
    """Return the text of a read for EXPLAIN (`explanation`), and its metrics for Spark's UI (`metrics`).

    `taskMetrics` are the metrics that tasks add up.

    Args:
        reader: the planned reader.
        otherwise: the text for readers other than `LanceReader`.
    """
    if not isinstance(reader, LanceReader):
        return {"explanation": otherwise, "metrics": [], "taskMetrics": []}
    fragments, skipped, rows, size = reader.metrics()
    lines = [
        ("lanceFragments", "fragments read", fragments),
        ("lanceSkipped", "fragments skipped", skipped),
        ("lanceRows", "rows looked at, at most", rows),
        ("lanceBytes", "bytes of these rows, about", size),
    ]
    return {"explanation": reader.explain(), "metrics": lines, "taskMetrics": TASK_METRICS}


def create_reader(read: Read, schema: st.StructType, body: Any) -> LanceReader:
    """Return the reader of some columns, with the pushed-down filters, limit and offset."""
    ref, snapshot = read.version, read.snapshot
    reader = LanceReader(read.options, schema, ref, snapshot, body["cores"])
    reader.set_filters(
        _pushed_trees(read, body),
        body.get("limit"),
        by_one_task=bool(body.get("byOneTask")),
        skip=body.get("offset") or 0,
    )
    return reader


def _keep_top_rows(reader: LanceReader, read: Read, body: Any) -> bool:
    """Restrict a reader to rows with the first ones of an order, if an index has it. Spark sorts them."""
    if not body.get("top") or body["top"]["rows"] > _MAX_TOP_ROWS:
        return False
    row_set = target_rows(read, body)
    rows = None if row_set is None else find_top_rows(read, body["top"], row_set.rows)
    if rows is not None:
        reader.set_rows(rows)
    return rows is not None


def _pushed_trees(read: Read, body: Any) -> list[Expression]:
    """Return the pushed-down filters and other conditions that can skip rows.

    Spark no longer applies the pushed predicates. It still applies the others: conditions on documents
    (`candidates`) and the keys of a join (`runtime`).
    """
    trees = read.expressions(body["predicates"])
    assert None not in trees  # Java pushes only predicates that `pushdown_description` allows
    others = read.expressions([*body["candidates"], *(body.get("runtime") or [])])
    return [tree for tree in (*trees, *others) if tree is not None]


def rows_answer(
    batches: Sequence[pa.RecordBatch], schema: st.StructType, *, in_file: bool = False
) -> dict[str, Any]:
    """Return the answer with rows for Java. Large ones are in a file, which Java deletes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema(schema)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    count, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    stream, answer = sink.getvalue(), {"kind": "rows", "rows": count, "bytes": size}
    if not in_file or stream.size < _FILE_BYTES:
        return {**answer, "arrow": _base64_text(stream.to_pybytes())}
    descriptor, name = tempfile.mkstemp(prefix="spark-lance-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(stream)
    except BaseException:
        Path(name).unlink()
        raise
    return {**answer, "file": name}


def columns_answer(batches: Sequence[pa.RecordBatch], schema: st.StructType) -> dict[str, Any]:
    """Return the answer with columns for tasks that read them from memory.

    They are in a file, which Java loads and deletes: text of this size would cost more than reading the rows.
    `parts` are the lengths of the Arrow streams in the file, one for each task.
    """
    rows = pa.Table.from_batches(batches, arrow_schema(schema))
    step = max(1, rows.num_rows * _PART_BYTES // max(1, rows.nbytes))
    descriptor, name = tempfile.mkstemp(prefix="spark-lance-")
    parts, end = [], 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            for first in range(0, rows.num_rows, step):
                with pa.ipc.new_stream(file, rows.schema) as stream:
                    stream.write_table(rows.slice(first, step))
                parts.append(file.tell() - end)
                end = file.tell()
    except BaseException:
        Path(name).unlink()
        raise
    return {"kind": "columns", "rows": rows.num_rows, "bytes": rows.nbytes, "file": name, "parts": parts}


def local_bounds(body: Any) -> tuple[int, int]:
    """Return the most rows and bytes that the driver reads itself."""
    bounds = []
    for name in ("localRows", "localBytes"):
        try:
            bounds.append(int(body[name]))
        except ValueError:
            raise OptionError(f"spark.lance.{name} is a whole number, not {body[name]!r}") from None
    return bounds[0], bounds[1]


def version_answer(ref: VersionRef) -> list[Any]:
    """Return a version in the form in which Java receives and returns it."""
    return [ref.root, ref.branch, ref.version]


def _base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
