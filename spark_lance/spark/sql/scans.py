"""Scans that the driver's own Python plans, and answers itself where little has to be read.

Every question has `read`: the options of a read, the version if it is known ([root, branch, number]), the
columns as Spark was told of them, and a token by which questions of one table are told from those of another.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceReader

from spark_lance.errors import OptionError
from spark_lance.file.schema import Schema
from spark_lance.index.cache import ByteCache
from spark_lance.spark.options.options import ReadOptions, check_batch, read_options
from spark_lance.spark.scan import rows
from spark_lance.spark.scan.metadata import MetadataReader
from spark_lance.spark.scan.predicates import expression_of
from spark_lance.spark.scan.rows import LanceReader
from spark_lance.spark.scan.search import SearchReader
from spark_lance.spark.scan.task_read import pickled_read
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.session.planner_marks import PlannerMarks
from spark_lance.spark.source import read_kind
from spark_lance.spark.sql.catalogs import Question
from spark_lance.table.predicates.expressions import Expression
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.resolve import VersionRef

__all__ = ["describe_read", "pin_read", "plan_scan", "push_aggregates", "push_limit", "push_predicates"]

# A limit up to this is met by one task, whose stream then ends by itself, where this task may have to look at
# no more than these bytes.
_ALONE_ROWS = 100_000
_ALONE_BYTES = 64 << 20

# Open versions, by token and options: a version never changes, and a table in the place of another one has
# another token.
_OPEN: ByteCache[tuple[VersionRef, Snapshot]] = ByteCache(64 << 20)
# What a version takes at least, and for each byte of its manifest.
_LEAST_OPEN_BYTES, _OPEN_PER_BYTE = 1 << 20, 4


@dataclass(frozen=True)
class _Read:
    """What the questions about one table have in common."""

    asked: dict[str, Any]

    @cached_property
    def options(self) -> ReadOptions:
        return read_options(CaseInsensitiveDict(self.asked["options"]))

    @cached_property
    def seen(self) -> st.StructType:
        return st.StructType.fromJson(json.loads(self.asked["schema"]))

    @cached_property
    def ref(self) -> VersionRef | None:
        return VersionRef(*self.asked["ref"]) if self.asked.get("ref") else None

    @cached_property
    def opened(self) -> tuple[VersionRef, Snapshot]:
        """The version that is read; kept for the next question."""
        key = (self.asked["token"], str(self.ref), *sorted(self.asked["options"].items()))
        return _OPEN.get(
            key,
            lambda: rows.opened(self.options, self.ref),
            lambda found: found[1].manifest.message.ByteSize(),
        )

    def expressions(self, predicates: Iterable[Any]) -> list[Expression | None]:
        """Return predicates as expressions, None for each that Spark has to apply."""
        kind = self.options.kind
        if kind == "rows":
            schema = self.opened[1].schema
        elif kind == "metadata":
            schema = Schema.from_arrow(MetadataReader.columns(self.options))
        else:
            return [None for _ in predicates]
        return [expression_of(predicate, schema, self.seen) for predicate in predicates]


def describe_read(question: Question) -> dict[str, Any]:
    """Return the Spark schema of a read, and the version that is pinned."""
    read = _Read(question.asked["read"])
    if read.options.kind == "rows":
        ref, snapshot = read.opened
        schema = rows.described(snapshot, read.options)
    else:
        ref, schema = read_kind(read.options).describe(read.options, None)
    return {"schema": schema.json(), "ref": _placed(ref)}


def pin_read(question: Question) -> list[Any]:
    """Return the version of a read that is not pinned yet."""
    read = _Read(question.asked["read"])
    if read.options.kind == "rows":
        return _placed(read.opened[0])
    return _placed(read_kind(read.options).describe(read.options, None)[0])


def push_predicates(question: Question) -> list[bool]:
    """Return which predicates are applied exactly as Spark would; the others stay with Spark."""
    read = _Read(question.asked["read"])
    return [tree is not None for tree in read.expressions(question.asked["predicates"])]


def push_limit(question: Question) -> bool:
    """Return whether a limit is met here, so that Spark has nothing left to cut off."""
    read = _Read(question.asked["read"])
    if read.options.kind != "rows" or question.asked["limit"] > _ALONE_ROWS:
        return False
    reader = _reader(read, read.seen, question.asked)
    return not reader.filters or reader.size()[1] <= _ALONE_BYTES


def push_aggregates(question: Question) -> dict[str, Any] | None:
    """Return the one row of aggregates, as `plan_scan` returns rows; None if tasks have to find it."""
    asked = question.asked
    read = _Read(asked["read"])
    others = [one for one in asked["aggregates"] if one["function"] != "count" or one["path"]]
    if read.options.kind != "rows" or others:
        return None
    check_batch(read.options)
    rows = _reader(read, st.StructType(), asked).count(*_bounds(asked))
    if rows is None:
        return None
    fields = [st.StructField(f"count{i}", st.LongType(), False) for i in range(len(asked["aggregates"]))]
    schema = st.StructType(fields)
    columns = [pa.array([rows], pa.int64()) for _ in fields]
    answer = _rows([pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema))], schema)
    ref = read.opened[0]
    return {**answer, "schema": schema.json(), "ref": _placed(ref)}


def plan_scan(question: Question) -> dict[str, Any]:
    """Return the rows of a scan, if these are few and little has to be read for them, or its tasks.

    `kind` is "rows" or "tasks"; both have the version (`ref`), and `rows` and `bytes` that are read at most,
    tasks also what is to be told of them.
    Rows come as a stream of Arrow, tasks as what Spark's reader of Python data sources takes, all in base64.
    """
    asked = question.asked
    read = _Read(asked["read"])
    check_batch(read.options)
    schema = st.StructType.fromJson(json.loads(asked["columns"]))
    most_rows, most_bytes = _bounds(asked)
    reader: DataSourceReader
    if read.options.kind == "rows":
        reader = planned = _reader(read, schema, asked)
        ref = planned.ref
        few = None if asked.get("runtime") else planned.bounded(most_rows, most_bytes)
        size: tuple[int, int] | None = None if few is not None else planned.size()
    else:
        placed = read_kind(read.options).reader(read.options, schema, read.ref, False)
        reader, ref = placed, placed.ref  # type: ignore[assignment]
        few, size = None, None
        if isinstance(reader, MetadataReader):
            reader.narrow(_taken(read, asked))
        if isinstance(reader, MetadataReader | SearchReader):
            few = reader.bounded(most_rows, most_bytes)
    answer = {"ref": _placed(ref)}
    if few is not None:
        return {**answer, **_rows(few, schema)}
    function, partitions = pickled_read(reader, schema)
    return {
        **answer,
        "kind": "tasks",
        "rows": None if size is None else size[0],
        "bytes": None if size is None else size[1],
        **_account(reader, f"version: {ref.version}; {read.options.kind}"),
        "function": _text(function),
        "partitions": [_text(partition) for partition in partitions],
    }


def _account(reader: DataSourceReader, otherwise: str) -> dict[str, Any]:
    """Return what EXPLAIN says of a read (`about`), and what Spark's UI shows of it (`amounts`).

    Args:
        reader: planned.
        otherwise: what is said of other reads than those of a version's rows.
    """
    if not isinstance(reader, LanceReader):
        return {"about": otherwise, "amounts": []}
    fragments, skipped, rows, size = reader.amounts()
    shown = (
        ("lanceFragments", "fragments read", fragments),
        ("lanceSkipped", "fragments skipped", skipped),
        ("lanceRows", "rows looked at, at most", rows),
        ("lanceBytes", "bytes of these rows, about", size),
    )
    return {"about": reader.about(), "amounts": shown}


def _reader(read: _Read, schema: st.StructType, asked: Any) -> LanceReader:
    ref, snapshot = read.opened
    marks = PlannerMarks(True, asked["cores"])
    reader = LanceReader(read.options, schema, ref, snapshot, marks)
    reader.narrow(
        _taken(read, asked), asked.get("limit"), alone=bool(asked.get("alone")), skip=asked.get("offset") or 0
    )
    return reader


def _taken(read: _Read, asked: Any) -> list[Expression]:
    """Return the conditions that rows are read by: those that were taken over, and what a join has found."""
    taken = read.expressions(asked["predicates"])
    assert None not in taken  # only what was accepted comes back
    found = read.expressions(asked.get("runtime") or [])
    return [tree for tree in (*taken, *found) if tree is not None]


def _rows(batches: Sequence[pa.RecordBatch], schema: st.StructType) -> dict[str, Any]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, arrow_schema(schema)) as stream:
        for batch in batches:
            stream.write_batch(batch)
    count, size = sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
    return {"kind": "rows", "rows": count, "bytes": size, "arrow": _text(sink.getvalue().to_pybytes())}


def _bounds(asked: Any) -> tuple[int, int]:
    """Return how many rows, and bytes, the driver reads itself."""
    found = []
    for name in ("localRows", "localBytes"):
        try:
            found.append(int(asked[name]))
        except ValueError:
            raise OptionError(f"spark.lance.{name} is a whole number, not {asked[name]!r}") from None
    return found[0], found[1]


def _placed(ref: VersionRef) -> list[Any]:
    return [ref.root, ref.branch, ref.version]


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
