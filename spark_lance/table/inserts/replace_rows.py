"""Replacing the rows for which a condition is true by new ones: one transaction deletes and adds.

The transaction is an Update, so what other writers do to other rows meanwhile stays: deletions of both are
merged, appends go on. Where they changed the same rows, the rows to delete are looked for again in the newest
version; the new rows are there already and are not written a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, SchemaError
from spark_lance.file.schema import Schema
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.retry_operation import retry_operation, retry_policy
from spark_lance.table.inserts.merge_schema import renumbered
from spark_lance.table.manifest import Manifest
from spark_lance.table.operations.update import update_message
from spark_lance.table.predicates.predicate import Condition, compile_predicate
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.find_rows import find_rows
from spark_lance.table.writing.differences import row_text

__all__ = ["RowCheck", "replace_rows"]


@dataclass(frozen=True)
class RowCheck:
    """Whether rows fulfil a condition. Can be pickled.

    Attributes:
        condition: the condition.
        schema: the columns of the table that it reads.
    """

    condition: Condition
    schema: pa.Schema

    @classmethod
    def of(cls, text: str, table: Schema) -> RowCheck:
        """Fit a condition, SQL text, to a table.

        Raises:
            ExpressionError: it is not a condition on the columns of the table.
        """
        columns = pa.schema([field.described().arrow_field() for field in table.fields])
        condition = compile_predicate(text, columns)
        if any(node.is_blob for name in condition.columns for node in table.field(name).walk()):
            raise ExpressionError(f"the condition {text} names a blob column")
        return cls(condition, pa.schema([columns.field(name) for name in condition.columns]))

    def check(self, batch: pa.RecordBatch) -> None:
        """Refuse rows for which the condition is not true. A column that they lack counts as null.

        Raises:
            SchemaError: there is such a row.
        """
        if not batch.num_rows:
            return
        columns = [
            batch.column(field.name)
            if field.name in batch.schema.names
            else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        if columns:
            mask = self.condition.mask(pa.Table.from_arrays(columns, names=self.schema.names))
        else:
            mask = self.condition.mask(pa.Table.from_batches([batch]))
        kept = pc.sum(pc.fill_null(mask, False)).as_py() or 0
        if kept < batch.num_rows:
            bad = pc.index(pc.fill_null(mask, False), False).as_py()
            raise SchemaError(
                f"{batch.num_rows - kept} of {batch.num_rows} rows of a batch do not fulfil the condition "
                f"{self.condition.text} of the rows that are replaced, such as {row_text(batch, bad)}"
            )


def replace_rows(
    base: Snapshot,
    condition: str,
    fragments: Sequence[bytes],
    written: Schema,
    properties: Mapping[str, str] | None = None,
    once: IdempotentWrite | None = None,
) -> Manifest:
    """Delete the rows for which a condition is true, add fragments in their place; return the new version.

    Args:
        base: the version in which the rows are looked for first.
        condition: SQL text.
        fragments: serialized DataFragment messages of the new rows.
        written: the schema by which their files were written.
        properties: key-value pairs kept with the transaction.
        once: commit only if the same job has not committed this number or a higher one.

    Raises:
        AlreadyCommittedError: it has.
        RetryableConflictError: other writers were in the way each time.
        IncompatibleConflictError: another writer changed the columns that the new rows have.
        CommitError: see its other subclasses. The new rows' files are the caller's to delete.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        added = renumbered(fragments, written, version.schema)
        # All columns: the new rows are not copies of old ones in any of them.
        fields = sorted(field.id for field in version.schema.walk())
        return commit_row_changes(
            find_rows(at, condition),
            lambda outcome: update_message(outcome.updated, outcome.removed, added, fields),
            properties=properties,
            once=once,
        )

    return retry_operation(base, attempt, retry_policy())
