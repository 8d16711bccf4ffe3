"""Deleting and updating rows by Spark jobs: no shuffle, one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_lance.io.retry import RetryPolicy
from spark_lance.spark.lance_table.at_hand import gather_changes, whole_row_bytes
from spark_lance.spark.lance_table.base import TableBase
from spark_lance.spark.lance_table.column_references import Expression, text_of
from spark_lance.spark.lance_table.expressions import (
    analysed,
    as_column,
    functions_of,
    is_ansi,
    quoted,
    types_of,
)
from spark_lance.spark.lance_table.reading import AS_THEY_ARE, Widened, few_partitions, read_needed
from spark_lance.spark.lance_table.row_commits import (
    Attempt,
    Changed,
    run_attempts,
)
from spark_lance.spark.lance_table.row_tasks import Action, ChangeRows, MarkRows
from spark_lance.spark.lance_table.targets import Assignments
from spark_lance.spark.progress import operation, step
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.find_rows import find_rows
from spark_lance.table.rows.row_rewrites import check_movable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["delete_rows", "update_rows"]


def delete_rows(
    table: TableBase, condition: Expression | None, reruns: RetryPolicy, widened: Widened = AS_THEY_ARE
) -> Changed:
    """Delete the rows for which a condition is true, all rows without one; see `Changing.delete`.

    Args:
        table: the table.
        condition: see `Changing.delete`.
        reruns: how often to look for the rows again because another writer changed them.
        widened: adds columns that the condition names beside those of the table.
    """

    def attempt(at: Attempt) -> Changed:
        if condition is None:
            return at.delete_all(find_rows(at.base.snapshot, None))
        frame = _where(table, at.manifest, condition, [], widened)
        marked = frame.select(quoted(ROW_ADDRESS))
        with step(table.spark, "find rows"):
            answers = gather_changes(marked, MarkRows(), 0)
        return at.delete_rows(answers, text_of(condition))

    with operation(table.spark, "deletion", table.path):
        return run_attempts(table.dataset(), attempt, reruns)


def update_rows(
    table: TableBase,
    condition: Expression | None,
    values: Mapping[str, Expression],
    reruns: RetryPolicy,
    widened: Widened = AS_THEY_ARE,
) -> Changed:
    """Set columns of the rows for which a condition is true; see `Changing.update` and `delete_rows`."""

    def attempt(at: Attempt) -> Changed:
        check_movable(at.manifest)
        assigned = Assignments.of(at.manifest.schema, values, table.aliased)
        needed = [*assigned.expressions, *map(quoted, assigned.partly)]
        frame = _where(table, at.manifest, condition, needed, widened)
        changed = _new_values(table, frame, assigned)
        names = tuple(field.name for field in assigned.fields)
        action = Action("update", names, tuple(range(len(names))))
        work = ChangeRows(at.pinned(), (action,), at.operation)
        packed = few_partitions(changed, at.manifest, functions_of(table.spark))
        with step(table.spark, "find and write rows"):
            answers = at.run(lambda: gather_changes(packed, work, whole_row_bytes(at.manifest)))
        return at.change_rows(answers, assigned.field_ids)

    with operation(table.spark, "update", table.path):
        return run_attempts(table.dataset(), attempt, reruns)


def _where(
    table: TableBase,
    manifest: Manifest,
    condition: Expression | None,
    values: list[Expression],
    widened: Widened,
) -> DataFrame:
    """Return the rows for which a condition is true, with what it and the values need."""
    functions = functions_of(table.spark)
    named = values if condition is None else [condition, *values]
    with analysed("the subqueries"):
        frame = widened.table(read_needed(table, manifest, named))
    if condition is None:
        return frame
    names = [field.name for field in manifest.schema.fields]
    with analysed(f"the condition {text_of(condition)!r}", names):
        matching = frame.where(as_column(functions, condition))
        assert matching.schema  # Spark Connect analyses only when it is asked for something
    return matching


def _new_values(table: TableBase, frame: DataFrame, assigned: Assignments) -> DataFrame:
    """Return action, address and new values of the rows of a frame."""
    functions = functions_of(table.spark)
    with analysed("the new values", [field.name for field in assigned.schema.fields]):
        raw = [as_column(functions, expression) for expression in assigned.expressions]
        types = types_of(frame, raw)
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
    with analysed("the new values"):
        result = frame.select(*head, *[value.alias(f"v{i}") for i, value in enumerate(values)])
        assert result.schema
    return result
