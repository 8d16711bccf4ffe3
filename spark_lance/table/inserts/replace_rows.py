"""Replace the rows that match a condition with new rows, in one transaction.

The transaction is an Update, so concurrent changes of other rows are kept: deletions are merged, and appends
are not affected. If another writer changed the same rows, the rows to delete are searched again in the newest
version. The new rows are not written a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import ExpressionError, OptionError, SchemaError, suggestion
from spark_lance.expressions.expressions import Expression
from spark_lance.expressions.predicate import Condition, compile_predicate, compile_tree
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import retry_operation, retry_policy
from spark_lance.table.commits.commit_options import STATEMENT
from spark_lance.table.commits.commit_rows import commit_row_changes
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_keys import KeyIndex, check_key_type
from spark_lance.table.format.row_set import Offsets, RowSet, address_offsets
from spark_lance.table.inserts.merge_schema import renumber_fields
from spark_lance.table.inserts.replace_pairs import PairMatch
from spark_lance.table.inserts.replace_partitions import PartitionMatch
from spark_lance.table.operations.update import update_message
from spark_lance.table.reading.scan_task import Filter
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.rows.key_lookup import KeyFilter, key_filter, key_tasks
from spark_lance.table.rows.update import find_rows
from spark_lance.table.writing.align import row_text

_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class RowCheck:
    """Checks that rows satisfy a condition. Can be pickled.

    Attributes:
        condition: the condition.
        schema: the columns of the table that the condition reads.
        filter: the filter that finds the rows of a version that satisfy the condition.
    """

    condition: Condition
    schema: pa.Schema
    filter: Filter

    @classmethod
    def of(cls, predicate: str | Expression, table: Schema) -> RowCheck:
        """Compile a condition, SQL text or an expression, for a table.

        Raises:
            ExpressionError: the condition does not fit the columns of the table, or uses a blob column.
        """
        columns = pa.schema([field.as_descriptor().arrow_field() for field in table.fields])
        if isinstance(predicate, str):
            condition = compile_predicate(predicate, columns)
        else:
            condition = compile_tree(predicate, columns)
        if any(node.is_blob for name in condition.columns for node in table.field(name).walk()):
            raise ExpressionError(f"the condition {condition.text} names a blob column")
        read = pa.schema([columns.field(name) for name in condition.columns])
        return cls(condition, read, predicate if isinstance(predicate, str) else condition)

    def check(self, batch: pa.RecordBatch) -> None:
        """Check that the condition is true for all rows of a batch. Missing columns count as null.

        Raises:
            SchemaError: the condition is false or null for a row.
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
        valid = pc.sum(pc.fill_null(mask, False)).as_py() or 0
        if valid < batch.num_rows:
            bad = row_text(batch, pc.index(pc.fill_null(mask, False), False).as_py())
            raise SchemaError(
                f"{batch.num_rows - valid} of {batch.num_rows} rows of a batch do not match the condition of "
                f"the rows that are replaced, {self.condition.text}, such as {bad}: leave them out, or "
                f"delete the rows that match and append"
            )


@dataclass(frozen=True)
class KeyMatch:
    """Finds the rows of a table that are equal to a new row in some columns. Can be pickled.

    Null equals nothing. Numbers are compared as in Spark: 0.0 equals -0.0, and NaN equals NaN.

    Attributes:
        columns: the names of the columns.
    """

    columns: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], table: Schema, source: Sequence[str]) -> KeyMatch:
        """Resolve column names, ignoring case, in a table and in the columns of new rows.

        Args:
            names: the column names.
            table: the table's schema.
            source: the names of the columns of the new rows.

        Raises:
            OptionError: a name occurs twice, or the table or the new rows lack the column.
            SchemaError: a column cannot be compared.
        """
        columns: list[str] = []
        for name in names:
            exact = [field.name for field in table.fields if field.name == name]
            alike = exact or [field.name for field in table.fields if field.name.lower() == name.lower()]
            if len(alike) != 1 or alike[0] not in source:
                raise OptionError(
                    f"the rows to replace are named by column {name!r}, which must be a column of the table "
                    f"and of the new rows: write one of {', '.join(sorted(source))}{suggestion(name, source)}"
                )
            if alike[0] in columns:
                raise OptionError(f"the rows to replace are named by column {name!r} twice: write it once")
            check_key_type(alike[0], table.field(alike[0]).arrow_type())
            columns.append(alike[0])
        return cls(tuple(columns))

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The columns of the table that are compared."""
        return self.columns

    def read_rows(self, at: Snapshot, fragments: Sequence[table_pb2.DataFragment]) -> pa.Table:
        """Return the columns of new rows, without rows with a null in one of the columns."""
        scan = at.scan(list(self.columns), fragments=fragments)
        rows = pa.concat_tables([scan.arrow_schema.empty_table(), *scan.tables()])
        for name in self.columns:
            rows = rows.filter(pc.is_valid(rows[name]))
        return rows

    def find(self, at: Snapshot, keys: pa.Table) -> RowChanges:
        """Return the rows of a version that have one of the keys."""
        rows: dict[int, Offsets] = {}
        if not keys.num_rows:
            return RowChanges(at, RowSet.from_offsets(rows))
        index = KeyIndex([_comparable(keys[name]) for name in self.columns])
        scan = at.scan([*self.columns, ROW_ADDRESS])
        # Indexes cannot be used for floats, because they compare bits.
        exact = [at.schema.field(name) for name in self.columns if not _is_float(keys[name].type)]
        tasks = key_tasks(scan, exact, keys) if exact else scan.tasks()
        for task in tasks:
            parts = [np.empty(0, np.uint32)]
            for table in task.tables(_WINDOW_BYTES):
                matches = index.lookup([_comparable(table[name]) for name in self.columns]) >= 0
                parts.append(address_offsets(table[ROW_ADDRESS].to_numpy()[matches]))
            offsets = np.concatenate([rows.get(task.message.id, parts[0]), *parts])
            if len(offsets):
                rows[task.message.id] = np.unique(offsets)
        return RowChanges(at, RowSet.from_offsets(rows))


def _is_float(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column in which equal numbers have equal bits: -0.0 becomes 0.0."""
    if not _is_float(column.type):
        return column
    return pc.add(column.cast(pa.float64()), pa.scalar(0.0, pa.float64()))


def replace_matches(
    base: Snapshot,
    match: KeyMatch | PairMatch | PartitionMatch,
    fragments: Sequence[bytes],
    file_schema: Schema,
    properties: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
) -> Manifest:
    """Delete the rows that match a new row, add the new rows, and return the new version.

    If two writers add the same key concurrently, the later writer searches its rows again. If `match` is a
    `PartitionMatch` and another writer changed one of the partitions, nothing is committed. Other arguments
    and errors are as in `replace_rows`.

    Args:
        match: finds the rows that the new rows replace.
    """
    first: RowSet | None = None

    def attempt(at: Snapshot) -> Manifest:
        nonlocal first
        version = at.manifest
        added = renumber_fields(fragments, file_schema, version.schema)
        rows = match.read_rows(at, _with_new_ids(version, added))
        fields = sorted(field.id for field in version.schema.walk())
        inserted = _inserted_keys(match, version.schema, rows)
        changes = match.find(at, rows)
        if isinstance(match, PartitionMatch):
            first = changes.rows if first is None else first
            match.check_unchanged(first, changes.rows, at, rows)
        return commit_row_changes(
            changes,
            lambda outcome: update_message(outcome.updated, outcome.removed, added, fields, inserted),
            properties={STATEMENT: "WRITE", **(properties or {})},
            write_id=write_id,
        )

    return retry_operation(base, attempt, retry_policy())


def _inserted_keys(match: KeyMatch | PairMatch | PartitionMatch, schema: Schema, rows: pa.Table) -> KeyFilter:
    """Return the filter of inserted keys; for a `PairMatch` it has every key, so every insert conflicts."""
    if isinstance(match, PartitionMatch):
        return match.inserted_keys(rows)
    if isinstance(match, KeyMatch):
        ids = [schema.field(name).id for name in match.columns]
        return key_filter(ids, [rows[name] for name in match.columns])
    match_all = KeyFilter()
    bloom = match_all.bloom
    bloom.bitmap, bloom.num_bits, bloom.number_of_items, bloom.probability = b"\xff" * 32, 256, 1, 1.0
    return match_all


def _with_new_ids(
    version: Manifest, fragments: Sequence[table_pb2.DataFragment]
) -> list[table_pb2.DataFragment]:
    """Return copies of fragments with ids that no fragment of a version has."""
    first = 1 + max((fragment.id for fragment in version.fragments), default=0)
    copies = []
    for number, fragment in enumerate(fragments, first):
        copy = table_pb2.DataFragment()
        copy.CopyFrom(fragment)
        copy.id = number
        copies.append(copy)
    return copies


def replace_rows(
    base: Snapshot,
    condition: Filter,
    fragments: Sequence[bytes],
    file_schema: Schema,
    properties: Mapping[str, str] | None = None,
    write_id: IdempotentWrite | None = None,
) -> Manifest:
    """Delete the rows for which a condition is true, add new rows, and return the new version.

    Args:
        base: the version in which the rows are searched first.
        condition: the condition of the rows to delete.
        fragments: serialized DataFragment messages of the new rows.
        file_schema: the schema with which the new files were written.
        properties: key-value pairs to store with the transaction.
        write_id: commit only if the same job has not committed this number or a higher one.

    Raises:
        AlreadyCommittedError: the job has already committed this number or a higher one.
        RetryableConflictError: every attempt conflicted with another writer.
        IncompatibleConflictError: another writer changed columns of the new rows.
        CommitError: see its other subclasses. The caller must delete the files of the new rows.
    """

    def attempt(at: Snapshot) -> Manifest:
        version = at.manifest
        added = renumber_fields(fragments, file_schema, version.schema)
        # List all columns as modified, because new rows have new values in all of them.
        fields = sorted(field.id for field in version.schema.walk())
        return commit_row_changes(
            find_rows(at, condition),
            lambda outcome: update_message(outcome.updated, outcome.removed, added, fields),
            properties={STATEMENT: "WRITE", **(properties or {})},
            write_id=write_id,
        )

    return retry_operation(base, attempt, retry_policy())
