"""Scans that the driver's own Python plans, and answers itself where little has to be read.

Every request has `read`: the options of a read, the version if it is known ([root, branch, number]), and the
columns as Spark has them. A token identifies the table object that the requests are about.

Which columns have the order for Spark that they have in the table, and which values Spark tells apart.

Columns whose values change on their way to Spark, as those of extension types may, and text with a collation
have another order there.
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
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from spark_lance.errors import OptionError
from spark_lance.expressions.expressions import Expression
from spark_lance.expressions.predicate import Condition
from spark_lance.file.base.extensions import EXTENSION_NAME
from spark_lance.file.base.schema import Field, Schema
from spark_lance.index.scalar.column_facts import leading_rows
from spark_lance.index.scalar.full_coverage import exact_rows
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import table_pb2
from spark_lance.spark.driver.interpreters import check_package
from spark_lance.spark.options.option_fields import ReadOptions
from spark_lance.spark.options.options import check_batch, read_options
from spark_lance.spark.scan import rows
from spark_lance.spark.scan.kinds import read_kind
from spark_lance.spark.scan.metadata import MetadataReader
from spark_lance.spark.scan.predicates import expression_of, pushdown_of
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.schema.read_schema import resolve_projection
from spark_lance.spark.schema.string_types import has_collation
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sql.catalogs import BridgeRequest
from spark_lance.spark.sql.partition_fields import partition_text, partitioning
from spark_lance.spark.worker.read import LancePartition
from spark_lance.spark.worker.transport import TASK_AMOUNTS, pickled_read
from spark_lance.table.format.partition_bounds import single_partition
from spark_lance.table.format.partitions import PartitionSpec
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.resolve import VersionRef

_Types = pa.types
# Test of the stored type -> Spark's type for it, whose order is the same.
_ALIKE = (
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


def is_ordered_alike(path: Sequence[str], schema: Schema, seen: st.StructType) -> bool:
    """Return whether the order of a stored column, or field of a struct, is that of Spark.

    Several stored values may be one for Spark, such as times with nanoseconds.

    Args:
        path: the column.
        schema: of the table.
        seen: the columns as Spark was told of them.
    """
    kind, fields = spark_type_of(path, seen), schema.along(path)
    if kind is None or fields is None or _has_own_meaning(fields[-1]):
        return False
    if isinstance(kind, st.StringType) and kind != st.StringType():
        return False
    column_type = fields[-1].arrow_type()
    return any(test(column_type) and isinstance(kind, types) for test, types in _ALIKE)


def is_same_value(path: Sequence[str], schema: Schema, seen: st.StructType) -> bool:
    """Return whether two stored values of a column are one for Spark only if they are equal; see above."""
    if not is_ordered_alike(path, schema, seen):
        return False
    fields = schema.along(path)
    assert fields is not None
    column_type = fields[-1].arrow_type()
    return not _Types.is_floating(column_type) and not (
        _Types.is_timestamp(column_type) and column_type.unit == "ns"
    )


def spark_type_of(path: Sequence[str], seen: st.StructType) -> st.DataType | None:
    """Return Spark's type of a column, or of a field of a struct; None if there is none."""
    kind: st.DataType = seen
    for name in path:
        if not isinstance(kind, st.StructType) or name not in kind.names:
            return None
        kind = kind[name].dataType
    return kind


def _has_own_meaning(field: Field) -> bool:
    if EXTENSION_NAME in field.metadata or has_collation(field.metadata):
        return True
    return isinstance(field.arrow_type(), pa.BaseExtensionType)


# Rows that the driver reads as columns at most, which are bounded by their bytes; and about the most bytes
# of a part of them, for one task: Spark warns of tasks of more than 1,000 KiB.
_MOST_HELD_ROWS, _PART_BYTES = 1 << 24, 900 << 10
# Rows of fewer bytes go into an answer: a file takes as long as text of this size.
_FILE_BYTES = 32 << 10
# Rows of an order that are looked for in an index at most.
_MOST_TOP = 10_000

# Open versions, by token and options: a version never changes, and a table in the place of another one has
# another token.
_OPEN: CacheSection[tuple[VersionRef, Snapshot]] = CacheSection("open versions", CACHE, share=1 / 8)
# The least memory of a cached version, and the memory for each byte of its manifest.
_LEAST_OPEN_BYTES, _OPEN_PER_BYTE = 1 << 20, 4


@runtime_checkable
class _Bounded(Protocol):
    """A reader that can tell its rows at once."""

    def read_if_small(self, most_rows: int, most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return all rows, if these are few and little has to be read for them; None otherwise."""


@dataclass(frozen=True)
class Read:
    """The common part of all requests about one table."""

    request: dict[str, Any] = field(repr=False)

    @cached_property
    def options(self) -> ReadOptions:
        """The options of the read."""
        return read_options(CaseInsensitiveDict(self.request["options"]))

    @cached_property
    def seen(self) -> st.StructType:
        """The columns as Spark was told of them."""
        return st.StructType.fromJson(json.loads(self.request["schema"]))

    @cached_property
    def ref(self) -> VersionRef | None:
        """The version, if it is known."""
        return VersionRef(*self.request["ref"]) if self.request.get("ref") else None

    @cached_property
    def opened(self) -> tuple[VersionRef, Snapshot]:
        """The version that is read; kept for the next request."""
        key = (self.request["token"], str(self.ref), *sorted(self.request["options"].items()))
        return _OPEN.get(
            key,
            lambda: rows.opened(self.options, self.ref),
            lambda entry: max(_LEAST_OPEN_BYTES, _OPEN_PER_BYTE * entry[1].manifest.message.ByteSize()),
        )

    @property
    def table_schema(self) -> Schema | None:
        """The schema of the columns that predicates may test; None if Spark applies all predicates."""
        if self.options.kind == "rows":
            return self.opened[1].schema
        if self.options.kind == "metadata":
            return Schema.from_arrow(MetadataReader.columns(self.options))
        return None

    def expressions(self, predicates: Iterable[Any]) -> list[Expression | None]:
        """Return predicates as expressions, None for each that Spark has to apply."""
        schema = self.table_schema
        if schema is None:
            return [None for _ in predicates]
        return [expression_of(predicate, schema, self.seen) for predicate in predicates]


def describe_read(request: BridgeRequest) -> dict[str, Any]:
    """Return the Spark schema of a read, the version that is pinned, and what Spark may push down."""
    read = Read(request.body["read"])
    if read.options.kind == "rows":
        ref, snapshot = read.opened
        schema = rows.described(snapshot, read.options)
        pushdown = pushdown_of(read.options, snapshot.schema, schema)
    else:
        ref, schema = read_kind(read.options).describe(read.options, None)
        pushdown = pushdown_of(read.options, read.table_schema, schema)
    return {"schema": schema.json(), "ref": version_answer(ref), "pushdown": pushdown}


def describe_pushdown(request: BridgeRequest) -> dict[str, Any]:
    """Return what Spark may push down into a read whose options its table does not know."""
    read = Read(request.body["read"])
    return pushdown_of(read.options, read.table_schema, read.seen)


def pin_read(request: BridgeRequest) -> list[Any]:
    """Return the version of a read that is not pinned yet.

    Raises:
        SchemaError: the columns are `given` by the user, and do not fit the table.
    """
    read = Read(request.body["read"])
    if read.options.kind == "rows":
        ref, snapshot = read.opened
        if request.body["has_user_schema"]:
            resolve_projection(snapshot.schema, read.seen)
        return version_answer(ref)
    kind = read_kind(read.options)
    if request.body["has_user_schema"]:
        return version_answer(kind.reader(read.options, read.seen, None).ref)
    return version_answer(kind.describe(read.options, None)[0])


@dataclass(frozen=True)
class TargetRows:
    """The rows that a read is about: all of a version, or those that indices name exactly."""

    rows: RowSet | None


def target_rows(read: Read, body: Mapping[str, Any]) -> TargetRows | None:
    """Return the rows that a read of a version is about; None if only a look at them tells.

    Raises:
        FormatError: an index is damaged.
    """
    _, most_bytes = local_bounds(body)
    if read.options.fragments is not None or body.get("limit") is not None:
        return None
    condition = reader_of(read, st.StructType(), body).condition
    if condition is None:
        return TargetRows(None)
    row_set = _index_exact_rows(condition, read.opened[1], most_bytes)
    return None if row_set is None else TargetRows(row_set)


def _index_exact_rows(condition: Condition, snapshot: Snapshot, most_bytes: int) -> RowSet | None:
    """Return exactly the rows that meet a condition; None if only a look at them tells."""
    return exact_rows(snapshot, condition.trees(), most_bytes) if condition.is_told else None


def first_of(read: Read, top: Mapping[str, Any], within: RowSet | None) -> RowSet | None:
    """Return rows that hold the first ones of an order; None if no index tells.

    Args:
        read: of a version.
        top: `path` of the column, `descending`, `nulls`, and how many `rows`; as `leading_rows` has them.
        within: the rows that are meant; all of the version without it.
    """
    path, snapshot = top["path"], read.opened[1]
    if not is_ordered_alike(path, snapshot.schema, read.seen):
        return None
    order = {"descending": top["descending"], "nulls": top["nulls"]}
    return leading_rows(snapshot, path, top["rows"], **order, within=within)


def plan_scan(request: BridgeRequest) -> dict[str, Any]:
    """Return the rows of a scan, if these are few and little has to be read for them, or its tasks.

    `kind` is "rows", "columns" or "tasks". Every answer has the version (`ref`), and the most `rows` and
    `bytes` of the read; columns and tasks also have their metrics, see `_account`.

    Rows are an Arrow stream, and tasks are the input of Spark's reader of Python data sources, both in
    base64. Tasks read only the first rows of the order `top` where they are `ordered`. Columns are in a file,
    see `columns_answer`; so are rows of many bytes where the request has `files`. Columns are for more rows
    than Spark's local scans are made for, if the request says that the caller can read them (`columnar`).

    Raises:
        WorkerPythonError: the workers that would run the tasks have no spark_lance.
    """
    body = request.body
    read = Read(body["read"])
    check_batch(read.options)
    all_columns = body["columns"] == body["read"]["schema"]
    schema = read.seen if all_columns else st.StructType.fromJson(json.loads(body["columns"]))
    most_rows, most_bytes = local_bounds(body)
    reader: DataSourceReader
    is_ordered = False
    if read.options.kind == "rows":
        reader = row_reader = reader_of(read, schema, body)
        ref = row_reader.ref
        is_ordered = _keep_first(row_reader, read, body)
        if row_reader.condition is not None and body.get("limit") is None and read.options.fragments is None:
            row_set = _index_exact_rows(row_reader.condition, read.opened[1], most_bytes)
            if row_set is not None and row_set.num_rows <= most_rows:
                row_reader.set_rows(row_set.only(number for number, rows in row_set.items() if rows))
        local_rows = (
            max(most_rows, _MOST_HELD_ROWS)
            if body.get("columnar") and most_rows and row_reader.columns
            else most_rows
        )
        few = None if body.get("runtime") else row_reader.read_if_small(local_rows, most_bytes)
        size: tuple[int, int] | None = None if few is not None else row_reader.size()
    else:
        placed = read_kind(read.options).reader(read.options, schema, read.ref)
        reader, ref = placed, placed.ref  # type: ignore[assignment]
        few, size = None, None
        if isinstance(reader, MetadataReader):
            reader.set_filters(_pushed_trees(read, body), body.get("limit"))
        if isinstance(reader, _Bounded):
            few = reader.read_if_small(most_rows, most_bytes)
    answer = {"ref": version_answer(ref)}
    if few is not None and sum(batch.num_rows for batch in few) > most_rows:
        about = _account(reader, "")
        return {**answer, **about, **columns_answer(few, schema)}
    if few is not None:
        return {**answer, **rows_answer(few, schema, in_file=bool(body.get("files")))}
    check_package(request.spark)
    fields, keyed = _by_partition(reader, read, schema) if body.get("grouped") else ([], None)
    if keyed is None or not (keyed or body.get("runtime")):
        fields, keyed = [], None
    parts = None if keyed is None else [part for _, part in keyed]
    function, partitions = pickled_read(reader, schema, parts)
    return {
        **answer,
        "kind": "tasks",
        "ordered": is_ordered,
        "rows": None if size is None else size[0],
        "bytes": None if size is None else size[1],
        **_account(reader, f"version: {ref.version}; {read.options.kind}"),
        "function": _text(function),
        "partitions": [_text(partition) for partition in partitions],
        "partition_fields": fields,
        "partition_values": [key for key, _ in keyed or ()],
    }


def _by_partition(
    reader: DataSourceReader, read: Read, schema: st.StructType
) -> tuple[list[dict[str, Any]], list[tuple[tuple[str | None, ...], LancePartition]] | None]:
    """Return the partition fields of a table, and the work of tasks that each read one partition of it.

    The work is None if a file has rows of several partitions. The same holds if a column of the fields is not
    read, or if Spark compares its values in its own way.
    """
    if not isinstance(reader, LanceReader):
        return [], None
    snapshot = read.opened[1]
    fields = partitioning(snapshot.manifest.config, snapshot.schema)
    if not fields:
        return [], None
    spec = PartitionSpec.of_config(snapshot.manifest.config).bound(snapshot.schema)
    for name in spec.sources():
        if name not in schema.names or not is_same_value([name], snapshot.schema, read.seen):
            return [], None

    def key_of(fragment: table_pb2.DataFragment) -> tuple[str | None, ...] | None:
        bounds = single_partition(spec, fragment)
        return None if bounds is None else tuple(partition_text(each.low) for each in bounds)

    return fields, reader.partitions_by(key_of)


def _account(reader: DataSourceReader, otherwise: str) -> dict[str, Any]:
    """Return what EXPLAIN says of a read (`about`), and what Spark's UI shows of it (`amounts`).

    `taskAmounts` are those that tasks add up.

    Args:
        reader: planned.
        otherwise: what is said of other reads than those of a version's rows.
    """
    if not isinstance(reader, LanceReader):
        return {"about": otherwise, "amounts": [], "taskAmounts": []}
    fragments, skipped, rows, size = reader.metrics()
    lines = [
        ("lanceFragments", "fragments read", fragments),
        ("lanceSkipped", "fragments skipped", skipped),
        ("lanceRows", "rows looked at, at most", rows),
        ("lanceBytes", "bytes of these rows, about", size),
    ]
    return {"about": reader.explain(), "amounts": lines, "taskAmounts": TASK_AMOUNTS}


def reader_of(read: Read, schema: st.StructType, body: Any) -> LanceReader:
    """Return the reader of some columns, with all that was taken over so far."""
    ref, snapshot = read.opened
    reader = LanceReader(read.options, schema, ref, snapshot, body["cores"])
    reader.set_filters(
        _pushed_trees(read, body),
        body.get("limit"),
        alone=bool(body.get("alone")),
        skip=body.get("offset") or 0,
    )
    return reader


def _keep_first(reader: LanceReader, read: Read, body: Any) -> bool:
    """Read only rows that hold the first ones of an order, if an index tells; Spark still orders them."""
    if not body.get("top") or body["top"]["rows"] > _MOST_TOP:
        return False
    row_set = target_rows(read, body)
    rows = None if row_set is None else first_of(read, body["top"], row_set.rows)
    if rows is not None:
        reader.set_rows(rows)
    return rows is not None


def _pushed_trees(read: Read, body: Any) -> list[Expression]:
    """Return the conditions that rows are read by.

    These are the pushed predicates, which Spark does not apply any more, and what is known of others, which
    it applies: conditions on documents (`candidates`) and the keys of a join (`runtime`).
    """
    trees = read.expressions(body["predicates"])
    assert None not in trees  # Java pushes what `pushdown_of` allows
    others = read.expressions([*body["candidates"], *(body.get("runtime") or [])])
    return [tree for tree in (*trees, *others) if tree is not None]


def rows_answer(
    batches: Sequence[pa.RecordBatch], schema: st.StructType, *, in_file: bool = False
) -> dict[str, Any]:
    """Return rows as Java takes them: in the answer, or if they are many bytes, in a file that it deletes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema(schema)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    count, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    stream, answer = sink.getvalue(), {"kind": "rows", "rows": count, "bytes": size}
    if not in_file or stream.size < _FILE_BYTES:
        return {**answer, "arrow": _text(stream.to_pybytes())}
    descriptor, name = tempfile.mkstemp(prefix="spark-lance-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(stream)
    except BaseException:
        Path(name).unlink()
        raise
    return {**answer, "file": name}


def columns_answer(batches: Sequence[pa.RecordBatch], schema: st.StructType) -> dict[str, Any]:
    """Return rows for tasks that read them from memory, as columns.

    They stand in a file, which Java takes in and deletes: text of this size would cost more than reading the
    rows. `parts` are the lengths of its streams of Arrow, a task's each.
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
    """Return how many rows, and bytes, the driver reads itself."""
    bounds = []
    for name in ("localRows", "localBytes"):
        try:
            bounds.append(int(body[name]))
        except ValueError:
            raise OptionError(f"spark.lance.{name} is a whole number, not {body[name]!r}") from None
    return bounds[0], bounds[1]


def version_answer(ref: VersionRef) -> list[Any]:
    """Return a version in the form that Java receives and sends back."""
    return [ref.root, ref.branch, ref.version]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
