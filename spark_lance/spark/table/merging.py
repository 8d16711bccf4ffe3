"""Merges of DataFrames into a table, with the words of Delta; upserts by its MemWAL, and their upkeep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark_lance.datasets.spelling import OneSpelling
from spark_lance.errors import MergeError, OptionError, SchemaError
from spark_lance.memwal.compact import (
    WalCompaction,
    compact_shard,
    shards_of,
)
from spark_lance.memwal.staged import (
    Lease,
    Once,
    StagedPiece,
    append_staged,
    delete_staged,
    has_epoch,
    pieces_by_value,
    record_epoch,
)
from spark_lance.spark.driver.delta_settings import merges_schemas
from spark_lance.spark.driver.jobs import collect_answers, map_tasks
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.schema.new_fields import new_field
from spark_lance.spark.streaming.upsert import Staging
from spark_lance.spark.table.base import AS_THEY_ARE, TableBase, WithSubqueryColumns
from spark_lance.spark.table.expressions import Expression, functions_of, quoted, text_of
from spark_lance.spark.table.merge_plan import MATCHED, MISSING, NEW, Clause, MergePlan
from spark_lance.spark.table.merge_pruning import SourceKeys, keys_of
from spark_lance.spark.table.row_commits import (
    RETRIES,
    RETRY_TIMEOUT,
    Attempt,
    Changed,
    may_repeat,
    policy,
    run_attempts,
)
from spark_lance.spark.table.row_tasks import ChangeRows, TaskAnswer
from spark_lance.spark.table.staging import check_session_stages
from spark_lance.table.commits.commit_options import STATEMENT, commit_options
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.upkeep import only_logged
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.row_rewrites import check_movable
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.writing.align import check_added_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class UpsertLog:
    """Writes DataFrames to the logs of a table. Made by `LanceTable.upsertLog`.

    Tasks spread the rows over the shards, then one task for each shard appends them to its log. Readers with
    option `fresh` see them from then on. A shard that another writer holds is taken from it.
    """

    table: TableBase

    def upsert(self, rows: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Insert or update rows by the table's primary key; return how many were appended to logs.

        If several rows have the same key, any of them may win, so give each key once.

        Args:
            rows: columns of the table; those that are missing become null.
            txnAppId, txnVersion: name of the job and number of this write, which is done once then.

        Raises:
            OptionError: the table has no MemWAL whose shards follow from the rows.
            SchemaError: the rows do not fit the table.
            WriterFencedError: another writer claimed a shard meanwhile.
        """
        return self._log(rows, _once(txnAppId, txnVersion), deletes=False)

    def delete(self, keys: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Delete the rows of keys; return how many keys were appended to logs.

        Args:
            keys: the columns of the primary key; others are passed over.
            txnAppId, txnVersion: as for `upsert`.

        Raises:
            OptionError, SchemaError, WriterFencedError: as `upsert`.
        """
        return self._log(keys, _once(txnAppId, txnVersion), deletes=True)

    def _log(self, frame: DataFrame, once: Once | None, *, deletes: bool) -> int:
        at = self.table.dataset().snapshot
        if once is not None and has_epoch(at.table, once):
            return 0
        staging = Staging.plan(at, frame.columns, deletes=deletes)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[StagedPiece, ...]]:
            yield staging.stage(batches)

        try:
            with Lease(at.table, staging.job):
                pieces = [piece for its in collect_answers(frame, stage) for piece in its]
                shards = staging.router.shards(at.table)
                tasks = [
                    (at, staging.router.shard_for(at.table, value, shards), its, once)
                    for value, its in pieces_by_value(pieces).items()
                ]
                rows = sum(map_tasks(self.table.spark, tasks, _append))
            if once is not None:
                record_epoch(at.table, once)
        finally:
            with only_logged("staged rows are left to collectWal"):
                delete_staged(at.table, staging.job)
        return rows


def _append(task: tuple[Snapshot, UUID, list[StagedPiece], Once | None]) -> int:
    return append_staged(*task)


def _once(name: str | None, number: int | None) -> Once | None:
    if (name is None) != (number is None):
        raise OptionError("txnAppId and txnVersion must be set together")
    return None if name is None or number is None else Once(name, number)


def compact_logs(table: TableBase, flush: bool) -> WalCompaction:
    """Bring the rows of SSTables into the table; see `LanceTable.compactWal`."""
    at = table.dataset().snapshot
    total = WalCompaction(at.version)
    tasks = [(at, shard, flush) for shard in shards_of(at)]
    for its in map_tasks(table.spark, tasks, _compact):
        total = total.and_also(its)
    return total


def _compact(task: tuple[Snapshot, UUID, bool]) -> WalCompaction:
    snapshot, shard, flush = task
    return compact_shard(snapshot, shard, flush=flush)


_EVOLUTIONS = 5
# For tables from this many rows on it pays to keep the source and read only rows that may have its keys.
_PRUNED_ROWS = 1 << 21
# For tables from this many rows on it pays to pick the rows that have its keys before they are joined; with a
# source of this many rows at most, for its keys are held by every task.
_MANY_ROWS = 1 << 24
_FEW_ROWS = 1 << 21


class MergeBuilder(OneSpelling):
    """A merge in the making. Its methods change it and return it, so that calls can be chained.

    Clauses of one kind are checked in the order in which they were added. The first whose condition is true
    counts; rows for which none is true stay as they are. Expressions of matched clauses can use columns of
    both sides, expressions of inserts columns of the source. Clauses for rows that the source does not match
    can use columns of the table. A row of the table that several rows of the source would change is an error,
    unless the only matched clause deletes without a condition.
    """

    def __init__(
        self,
        table: TableBase,
        source: DataFrame,
        condition: Expression,
        widened: WithSubqueryColumns = AS_THEY_ARE,
    ) -> None:
        self._table = table
        # Adds columns that expressions may use in addition to the table's columns.
        self._widened = widened
        self._source = source
        self._condition = condition
        self._clauses: list[Clause] = []
        self._evolving = merges_schemas(table.spark)
        self._retries = RETRIES
        self._timeout = RETRY_TIMEOUT
        self._planned: tuple[int, MergePlan] | None = None
        self._kept: DataFrame | None = None
        self._narrow = False
        self._rows: SourceKeys | None = None

    def __repr__(self) -> str:
        clauses = ", ".join(f"when {clause.rows} then {clause.kind}" for clause in self._clauses)
        return (
            f"MergeBuilder(into {self._table.path!r} on {text_of(self._condition)!r}, "
            f"{clauses or 'no clause'}; not executed: call execute())"
        )

    def whenMatchedUpdate(
        self, condition: Expression | None = None, set: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Set columns of rows that match: column or field inside one -> SQL or Column over both sides."""
        return self._with(Clause(MATCHED, "update", condition, _values_of(set, "set")))

    def whenMatchedUpdateAll(
        self, condition: Expression | None = None, exceptCols: Sequence[str] = ()
    ) -> MergeBuilder:
        """Set all columns of rows that match to the source's columns of the same name, but some."""
        return self._with(Clause(MATCHED, "update", condition, None, tuple(exceptCols)))

    def whenMatchedDelete(self, condition: Expression | None = None) -> MergeBuilder:
        """Delete rows that match."""
        return self._with(Clause(MATCHED, "delete", condition))

    def whenNotMatchedInsert(
        self, condition: Expression | None = None, values: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Insert rows of the source that match none: column -> value; other columns become null."""
        return self._with(Clause(NEW, "insert", condition, _values_of(values, "values")))

    def whenNotMatchedInsertAll(
        self, condition: Expression | None = None, exceptCols: Sequence[str] = ()
    ) -> MergeBuilder:
        """Insert rows of the source that match none, with the columns of the same names, but some."""
        return self._with(Clause(NEW, "insert", condition, None, tuple(exceptCols)))

    def whenNotMatchedBySourceUpdate(
        self, condition: Expression | None = None, set: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Set columns of rows of the table that no row of the source matches."""
        return self._with(Clause(MISSING, "update", condition, _values_of(set, "set")))

    def whenNotMatchedBySourceDelete(self, condition: Expression | None = None) -> MergeBuilder:
        """Delete rows of the table that no row of the source matches."""
        return self._with(Clause(MISSING, "delete", condition))

    def withSchemaEvolution(self) -> MergeBuilder:
        """Let the table take in columns that only the source has, and let the source lack some.

        The new columns are added, null everywhere, by a version of their own before that of the merge.
        Fields inside columns are not added. Columns that a read of a table adds, such as `_change_type`, are
        refused.
        """
        self._evolving, self._planned = True, None
        return self

    def withRetries(
        self, conflictRetries: int = RETRIES, retryTimeout: timedelta = RETRY_TIMEOUT
    ) -> MergeBuilder:
        """Set how often, and for how long, to merge again because another writer changed the same rows."""
        policy(conflictRetries, retryTimeout)
        self._retries, self._timeout = conflictRetries, retryTimeout
        return self

    def execute(self) -> DataFrame:
        """Merge in one transaction, and return the counts. If nothing changes, no version is created.

        If two merges insert the same key concurrently, the later one starts again and finds the key. For that
        its commit records its keys, if the condition compares columns for equality and the inserts store
        these columns. Otherwise any concurrent insert makes it start again.

        The source is evaluated once in each attempt. If it is merged into a large table by equal columns, it
        is evaluated once for all attempts, and Spark keeps it (local checkpoint) as long as this object. Its
        keys are collected first, and only rows of the table that may have them are read, with the table's
        indices. That does not apply if a clause is about rows that the source does not match.

        Returns:
            One row: num_affected_rows, num_updated_rows, num_deleted_rows, num_inserted_rows, bytes_written,
            version.

        Raises:
            OptionError: there is no clause, or one that can never count; or spark.wap.branch or spark.wap.id
                directs the session's writes to a branch.
            ExpressionError: an expression does not fit table and source.
            SchemaError: a column does not exist, is set twice, or cannot hold values of that type.
            MergeError: several rows of the source would change one row of the table.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table uses what is not written here.
        """
        check_session_stages(self._table)
        return self.run().frame(self._table.spark)

    def run(self) -> Changed:
        """Merge as `execute` does, and return what was done as an object."""
        with (
            operation(self._table.spark, "merge", self._table.path),
            commit_options(properties={STATEMENT: "MERGE"}),
        ):
            return self._run()

    def _run(self) -> Changed:
        _check_order(self._clauses)
        dataset = self._table.dataset()
        # Errors come before anything is done.
        self._plan(dataset.manifest)
        if self._evolving:
            self._evolve()
            dataset = self._table.dataset()
        reruns = policy(self._retries, self._timeout)
        return run_attempts(dataset, self._attempt, reruns)

    def _with(self, clause: Clause) -> MergeBuilder:
        self._clauses.append(clause)
        self._planned = None
        return self

    def _plan(self, manifest: Manifest) -> MergePlan:
        """Return the merge fitted to a version; the same one for the same version."""
        if self._planned is None or self._planned[0] != manifest.version:
            plan = MergePlan.of(
                self._table,
                manifest,
                self._source if self._kept is None else self._kept,
                self._condition,
                self._clauses,
                self._evolving,
                self._narrow,
                self._rows,
                self._widened,
            )
            self._planned = manifest.version, plan
        return self._planned[1]

    def _ready(self, manifest: Manifest) -> MergePlan:
        """Return the plan for a version; for a large table with the source kept, if that saves work."""
        plan = self._plan(manifest)
        rows = sum(fragment.physical_rows for fragment in manifest.fragments)
        prunes = bool(plan.pairs) and rows >= _PRUNED_ROWS
        narrows = plan.can_narrow and rows >= _MANY_ROWS
        if self._kept is not None or not (prunes or narrows):
            return plan
        with step(self._table.spark, "read the source and its keys"):
            self._kept = self._source.localCheckpoint()
            if prunes:
                self._rows = keys_of(self._table.spark, self._kept, plan.pairs)
            self._narrow = narrows and self._kept.count() <= _FEW_ROWS
        self._planned = None
        return self._plan(manifest)

    def _attempt(self, at: Attempt) -> Changed:
        check_movable(at.manifest)
        plan = self._ready(at.manifest)
        matched = [clause for clause in self._clauses if clause.rows == MATCHED]
        # Deleted in any case, so it does not matter how often they are found.
        repeated = len(matched) == 1 and matched[0].kind == "delete" and matched[0].condition is None
        inserts = any(clause.kind == "insert" for clause in self._clauses)
        names = None if plan.key is None else tuple(key.name for key in plan.key)
        unique = _declared_key(at.manifest) if inserts else ()
        work = ChangeRows(at.ref(), plan.actions, at.operation, names, repeated, unique)
        with step(self._table.spark, "join and write rows"):
            answers = at.run(lambda: collect_answers(plan.frame, work))
        if may_repeat(answers):
            at.run(lambda: self._refuse_repeated(plan, unique))
        ids = None if plan.key is None else [key.id for key in plan.key]
        return at.change_rows(answers, plan.field_ids, ids, inserts=inserts, repeated=repeated)

    def _refuse_repeated(self, plan: MergePlan, unique: tuple[str, ...]) -> list[TaskAnswer]:
        """Refuse to insert a primary key twice.

        Raises:
            MergeError: two inserted rows have the same key.
        """
        F = functions_of(self._table.spark)
        frames = [
            plan.frame.where(F.col("action") == number).select(
                *[F.col(f"v{action.places[action.columns.index(name)]}").alias(name) for name in unique]
            )
            for number, action in enumerate(plan.actions)
            if action.kind == "insert" and set(unique) <= set(action.columns)
        ]
        if not frames:
            return []
        keys = reduce(lambda one, other: one.unionAll(other), frames)
        grouped = keys.groupBy(*[quoted(name) for name in unique]).agg(
            F.count(F.lit(1)).alias("__lance_count")
        )
        repeated = grouped.where(F.col("__lance_count") > 1).limit(1).collect()
        if repeated:
            values = ", ".join(f"{name} = {repeated[0][i]!r}" for i, name in enumerate(unique))
            raise MergeError(
                f"several rows of the source would be inserted with one primary key: {values}. "
                "Make the source's keys unique, such as by dropDuplicates"
            )
        return []

    def _evolve(self) -> None:
        """Add the columns that only the source has."""
        for left in range(_EVOLUTIONS, 0, -1):
            dataset = self._table.dataset()
            existing = {top.name.lower() for top in dataset.manifest.schema.fields}
            columns = self._source_columns()
            fresh = [
                new_field(one, {})
                for one in self._source.schema.fields
                if one.name.lower() not in existing and one.name.lower() in columns
            ]
            if not fresh:
                return
            check_added_names(field.name for field in fresh)
            try:
                dataset.add_columns(fresh)
            except SchemaError:
                # Another merge may have added them meanwhile.
                if left == 1:
                    raise

    def _source_columns(self) -> set[str]:
        """Return the names of columns that clauses take from the source."""
        columns: set[str] = set()
        for clause in self._clauses:
            if clause.is_all:
                names = {name.lower() for name in self._source.columns}
                columns |= names - {name.lower() for name in clause.without}
        return columns


def _declared_key(manifest: Manifest) -> tuple[str, ...]:
    """Return the columns of the declared primary key; none if it has a field of a struct, or no key."""
    key = primary_key(manifest.schema)
    tops = {top.id for top in manifest.schema.fields}
    return tuple(field.name for field in key) if all(field.id in tops for field in key) else ()


def _values_of(values: Mapping[str, Expression] | None, name: str) -> Mapping[str, Expression]:
    if not values:
        raise OptionError(f'give {name} as a dict from columns to values, such as {{"a": "s.a"}}')
    return dict(values)


def _check_order(clauses: Sequence[Clause]) -> None:
    """Refuse clauses that can never count."""
    if not clauses:
        raise OptionError(
            "a merge needs a clause: write .whenMatchedUpdateAll() or .whenNotMatchedInsertAll() before "
            ".execute()"
        )
    for rows in (MATCHED, NEW, MISSING):
        kind = [clause for clause in clauses if clause.rows == rows]
        if any(clause.condition is None for clause in kind[:-1]):
            raise OptionError(
                f"of several clauses when {rows} only the last may have no condition: those behind it would "
                "never count"
            )
