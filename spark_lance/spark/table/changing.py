"""Deletes and updates of rows in Spark jobs: no shuffle, one transaction.

If the driver already has the rows, the change needs no Spark job and no Python worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError

from spark_lance.file.blob_writer import has_blobs
from spark_lance.io.retry import RetryPolicy
from spark_lance.spark.base.compat import java_class, java_frame, jvm_view
from spark_lance.spark.driver.jobs import collect_answers, local_bytes
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.table.assignments import Assignments
from spark_lance.spark.table.base import (
    NO_SUBQUERIES,
    SubqueryColumns,
    TableBase,
    few_partitions,
    read_needed,
)
from spark_lance.spark.table.expressions import (
    Expression,
    analysis_errors,
    as_column,
    expression_text,
    is_ansi,
    quoted,
    resolve_types,
    spark_functions,
)
from spark_lance.spark.table.row_commits import (
    Attempt,
    ChangeResult,
    run_attempts,
)
from spark_lance.spark.table.row_tasks import Action, ChangeRows, MarkRows
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.row_rewrites import check_movable
from spark_lance.table.rows.update import find_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Answer = TypeVar("Answer")

_ROWS = "org.lance.spark.rowlevel.LanceLocalRows"
# Size of a row in memory, as a multiple of its average size in files; and the size of its address.
_MEMORY_FACTOR, _ADDRESS_BYTES = 4, 16
_INT_MAX = 2**31 - 1


def gather_changes(
    frame: DataFrame,
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[Answer]],
    row_bytes: float | None,
) -> list[Answer]:
    """Pass the rows of a frame to `work`, and return what it yielded.

    Like `collect_answers`, but the driver does the work itself if Spark's plan already has the rows (for
    example, after an index lookup) and the work is small.

    Args:
        frame: the rows.
        work: see `collect_answers`.
        row_bytes: approximate bytes that the work reads and writes per row; None if unknown.
    """
    most = 0 if row_bytes is None else int(local_bytes(frame.sparkSession) / (row_bytes + _ADDRESS_BYTES))
    rows = _collect_local(frame, most) if most else None
    if rows is None:
        return collect_answers(frame, work)
    with pa.ipc.open_stream(rows) as batches:
        return list(work(iter(batches)))


def estimate_row_bytes(manifest: Manifest) -> float | None:
    """Return the approximate bytes of a row in memory; None if the file sizes are unknown."""
    rows = sum(fragment.physical_rows for fragment in manifest.fragments)
    sizes = [file.file_size_bytes for fragment in manifest.fragments for file in fragment.files]
    if not rows or not all(sizes) or any(map(has_blobs, manifest.schema.fields)):
        return None
    return _MEMORY_FACTOR * sum(sizes) / rows


def _collect_local(frame: Any, most: int) -> bytes | None:
    """Return a classic frame's rows as an Arrow stream if they are few and need no job, else None."""
    try:
        collector = java_class(jvm_view(frame.sparkSession), _ROWS)
        rows: bytes | None = collector.rows(java_frame(frame), min(most, _INT_MAX))
        return rows
    except Py4JError:
        # The job reports what is wrong with the rows; or this release of Spark has no such class.
        return None


def delete_rows(
    table: TableBase,
    condition: Expression | None,
    reruns: RetryPolicy,
    subqueries: SubqueryColumns = NO_SUBQUERIES,
) -> ChangeResult:
    """Delete the rows that match a condition, or all rows; see `LanceTable.delete`.

    Args:
        table: the table.
        condition: see `LanceTable.delete`.
        reruns: how often to search for the rows again after another writer changed them.
        subqueries: adds columns that the condition uses in addition to the table's columns.
    """

    def attempt(at: Attempt) -> ChangeResult:
        if condition is None:
            return at.delete_all(find_rows(at.base.snapshot, None))
        frame = _matching_rows(table, at.manifest, condition, [], subqueries)
        marked = frame.select(quoted(ROW_ADDRESS))
        with step(table.spark, "find rows"):
            answers = gather_changes(marked, MarkRows(), 0)
        return at.delete_rows(answers, expression_text(condition))

    with operation(table.spark, "deletion", table.path):
        return run_attempts(table.dataset(), attempt, reruns)


def update_rows(
    table: TableBase,
    condition: Expression | None,
    values: Mapping[str, Expression],
    reruns: RetryPolicy,
    subqueries: SubqueryColumns = NO_SUBQUERIES,
) -> ChangeResult:
    """Set columns of the rows that match a condition; see `LanceTable.update` and `delete_rows`."""

    def attempt(at: Attempt) -> ChangeResult:
        check_movable(at.manifest)
        assigned = Assignments.of(at.manifest.schema, values, table.aliased).with_generated()
        columns_to_read = [*assigned.expressions, *map(quoted, assigned.partial_columns)]
        frame = _matching_rows(table, at.manifest, condition, columns_to_read, subqueries)
        changed = _new_values(table, frame, assigned)
        names = tuple(field.name for field in assigned.fields)
        action = Action("update", names, tuple(range(len(names))))
        work = ChangeRows(at.ref(), (action,), at.operation)
        packed = few_partitions(changed, at.manifest, spark_functions(table.spark))
        with step(table.spark, "find and write rows"):
            answers = at.run(lambda: gather_changes(packed, work, estimate_row_bytes(at.manifest)))
        return at.change_rows(answers, assigned.field_ids)

    with operation(table.spark, "update", table.path):
        return run_attempts(table.dataset(), attempt, reruns)


def _matching_rows(
    table: TableBase,
    manifest: Manifest,
    condition: Expression | None,
    values: list[Expression],
    subqueries: SubqueryColumns,
) -> DataFrame:
    """Return the rows that match a condition, with the columns that condition and values need."""
    functions = spark_functions(table.spark)
    named = values if condition is None else [condition, *values]
    with analysis_errors("the subqueries"):
        frame = subqueries.add_to_rows(read_needed(table, manifest, named))
    if condition is None:
        return frame
    names = [field.name for field in manifest.schema.fields]
    with analysis_errors(f"the condition {expression_text(condition)!r}", names):
        matching = frame.where(as_column(functions, condition))
        assert matching.schema  # makes Spark Connect analyse the frame
    return matching


def _new_values(table: TableBase, frame: DataFrame, assigned: Assignments) -> DataFrame:
    """Return action, address and new values of the rows of a frame."""
    functions = spark_functions(table.spark)
    with analysis_errors("the new values", [field.name for field in assigned.schema.fields]):
        raw = [as_column(functions, expression) for expression in assigned.expressions]
        types = resolve_types(frame, raw)
    ansi = is_ansi(table.spark)
    values = assigned.columns(
        functions,
        raw,
        types,
        ansi,
        lambda name: functions.col(quoted(name)),
        assigned.referenced(types),
    )
    head = [
        functions.lit(0).cast("int").alias("action"),
        functions.col(quoted(ROW_ADDRESS)).alias("address"),
    ]
    with analysis_errors("the new values"):
        result = frame.select(*head, *[value.alias(f"v{i}") for i, value in enumerate(values)])
        assert result.schema
    return result
