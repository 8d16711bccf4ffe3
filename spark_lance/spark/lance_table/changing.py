"""Deleting and updating rows by Spark jobs: no shuffle, one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.io.retry import RetryPolicy
from spark_lance.spark.lance_table.at_hand import gather_changes, whole_row_bytes
from spark_lance.spark.lance_table.base import TableBase
from spark_lance.spark.lance_table.column_references import Expression, text_of
from spark_lance.spark.lance_table.expressions import (
    QUOTING,
    analysed,
    as_column,
    functions_of,
    is_ansi,
    quoted,
    types_of,
)
from spark_lance.spark.lance_table.reading import AS_THEY_ARE, Widened, few_partitions, read_needed
from spark_lance.spark.lance_table.row_commits import (
    RETRIES,
    RETRY_TIMEOUT,
    Attempt,
    Changed,
    policy,
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

__all__ = ["Changing", "delete_rows", "update_rows"]


class Changing(TableBase):
    """Deleting and updating rows."""

    def delete(
        self,
        condition: Expression | None = None,
        *,
        conflictRetries: int = RETRIES,
        retryTimeout: timedelta = RETRY_TIMEOUT,
    ) -> DataFrame:
        """Delete the rows for which a condition is true; all rows without one.

        Spark reads the columns that the condition names; deletion files say which rows are gone. Fragments
        without a row left are dropped. If no row matches, no version is made.

        Args:
            condition: SQL such as "day < '2024-01-01'", or a Column.
            conflictRetries: how often to look for the rows again because another writer changed them.
            retryTimeout: no new attempt is begun after this time.

        Returns:
            One row: num_affected_rows, num_updated_rows, num_deleted_rows, num_inserted_rows, bytes_written,
            version.

        Raises:
            ExpressionError: the condition does not fit the table.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table needs a feature that is not written here.
        """
        reruns = policy(conflictRetries, retryTimeout)
        return delete_rows(self, condition, reruns).frame(self.spark)

    def update(
        self,
        condition: Expression | None = None,
        set: Mapping[str, Expression] | None = None,
        *,
        conflictRetries: int = RETRIES,
        retryTimeout: timedelta = RETRY_TIMEOUT,
    ) -> DataFrame:
        """Set columns of the rows for which a condition is true, of all rows without one.

        All values are computed from the old row. They are cast by Spark's rules of store assignment: a
        number too large for its column is an error. Only the changed rows are rewritten, and columns without
        a new value do not pass through Spark. With stable row ids rows keep their `_rowid`.

        Args:
            condition: SQL or a Column.
            set: column, or field inside one (`a.b`) -> SQL text or Column.
            conflictRetries: how often to compute the change again because another writer changed its rows.
            retryTimeout: no new attempt is begun after this time.

        Returns:
            One row, as `delete`.

        Raises:
            OptionError: nothing is set.
            ExpressionError: the condition or a value does not fit the table.
            SchemaError: a column does not exist, is set twice, or cannot hold values of that type.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses what is not written here.
        """
        if isinstance(condition, Mapping):
            raise OptionTypeError(
                "the first argument of update() is the condition: write update(set={...}) for all rows, or "
                f"update(condition, set={{...}}). {QUOTING}"
            )
        if not set:
            raise OptionError('an update needs at least one column: update(condition, set={"a": "a + 1"})')
        reruns = policy(conflictRetries, retryTimeout)
        return update_rows(self, condition, set, reruns).frame(self.spark)


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
        return run_attempts(table._dataset(), attempt, reruns)


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
        return run_attempts(table._dataset(), attempt, reruns)


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
