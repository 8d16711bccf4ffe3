"""`MergeBuilder`, with Delta's method names, and upserts through the table's MemWAL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING
from uuid import UUID

import pyarrow as pa

from spark_lance.datasets.spelling import SpellingHintMixin
from spark_lance.errors import MergeError, OptionError, SchemaError
from spark_lance.memwal.compact import (
    WalCompaction,
    compact_shard,
    resolve_shards,
)
from spark_lance.memwal.staged import (
    Lease,
    StagedPiece,
    WriteId,
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
from spark_lance.spark.table.base import NO_SUBQUERIES, SubqueryColumns, TableBase
from spark_lance.spark.table.expressions import Expression, expression_text, quoted, spark_functions
from spark_lance.spark.table.merge_plan import MATCHED, MISSING, NEW, Clause, MergePlan
from spark_lance.spark.table.merge_pruning import SourceKeys, read_source_keys
from spark_lance.spark.table.row_commits import (
    RETRIES,
    RETRY_TIMEOUT,
    Attempt,
    ChangeResult,
    may_repeat,
    policy,
    run_attempts,
)
from spark_lance.spark.table.row_tasks import ChangeRows, TaskAnswer
from spark_lance.spark.table.staging import check_session_stages
from spark_lance.table.commits.commit_options import STATEMENT, commit_options
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.upkeep import log_errors
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.row_rewrites import check_movable
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.writing.align import check_added_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class UpsertLog:
    """Writes DataFrames to the MemWAL of a table. Get it from `LanceTable.upsertLog`.

    Tasks assign the rows to shards, then one task per shard appends them to the shard's log. Readers with
    option `fresh` see the rows immediately. The write fences other writers of the shards.
    """

    table: TableBase

    def upsert(self, rows: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Insert or update rows by the table's primary key.

        If several rows have the same key, any of them may win, so pass each key once.

        Args:
            rows: columns of the table; missing columns become null.
            txnAppId, txnVersion: name of the job and number of this write. A write with the same name and
                number is done only once.

        Returns:
            The number of rows appended to logs; 0 if the write was done before.

        Raises:
            OptionError: the table has no MemWAL, its shards cannot be computed from the rows, or only one of
                `txnAppId` and `txnVersion` is set.
            SchemaError: the rows do not fit the table.
            WriterFencedError: another writer claimed a shard concurrently.
        """
        return self._append_rows(rows, _once(txnAppId, txnVersion), deletes=False)

    def delete(self, keys: DataFrame, txnAppId: str | None = None, txnVersion: int | None = None) -> int:
        """Delete rows by primary key.

        Args:
            keys: the primary key columns; other columns are ignored.
            txnAppId, txnVersion: as for `upsert`.

        Returns:
            The number of keys appended to logs; 0 if the write was done before.

        Raises:
            OptionError, SchemaError, WriterFencedError: as `upsert`.
        """
        return self._append_rows(keys, _once(txnAppId, txnVersion), deletes=True)

    def _append_rows(self, frame: DataFrame, write_id: WriteId | None, *, deletes: bool) -> int:
        at = self.table.dataset().snapshot
        if write_id is not None and has_epoch(at.table, write_id):
            return 0
        staging = Staging.plan(at, frame.columns, deletes=deletes)

        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[StagedPiece, ...]]:
            yield staging.stage(batches)

        try:
            with Lease(at.table, staging.job):
                pieces = [piece for its in collect_answers(frame, stage) for piece in its]
                shards = staging.router.shards(at.table)
                tasks = [
                    (at, staging.router.shard_for(at.table, value, shards), its, write_id)
                    for value, its in pieces_by_value(pieces).items()
                ]
                rows = sum(map_tasks(self.table.spark, tasks, _append))
            if write_id is not None:
                record_epoch(at.table, write_id)
        finally:
            with log_errors("staged rows are left to collectWal"):
                delete_staged(at.table, staging.job)
        return rows


def _append(task: tuple[Snapshot, UUID, list[StagedPiece], WriteId | None]) -> int:
    return append_staged(*task)


def _once(name: str | None, number: int | None) -> WriteId | None:
    if (name is None) != (number is None):
        raise OptionError("txnAppId and txnVersion must be set together")
    return None if name is None or number is None else WriteId(name, number)


def compact_logs(table: TableBase, flush: bool) -> WalCompaction:
    """Merge the rows of SSTables into the table; see `LanceTable.compactWal`."""
    at = table.dataset().snapshot
    total = WalCompaction(at.version)
    tasks = [(at, shard, flush) for shard in resolve_shards(at)]
    for its in map_tasks(table.spark, tasks, _compact):
        total = total.and_also(its)
    return total


def _compact(task: tuple[Snapshot, UUID, bool]) -> WalCompaction:
    snapshot, shard, flush = task
    return compact_shard(snapshot, shard, flush=flush)


_EVOLUTIONS = 5
# From this table size on, caching the source and reading only rows that can match its keys saves time.
_PRUNED_ROWS = 1 << 21
# From this table size on, filtering table rows by the source's keys before the join saves time. Every task
# holds the keys, so the source may have at most `_FEW_ROWS` rows.
_MANY_ROWS = 1 << 24
_FEW_ROWS = 1 << 21


class MergeBuilder(SpellingHintMixin):
    """A merge of a source DataFrame into a table. Get it from `LanceTable.merge`.

    Every method but `execute` changes the builder and returns it. Clauses of one kind apply in the order in
    which they are added: the first clause whose condition is true applies to a row. Rows that no clause
    applies to do not change.

    Expressions of `whenMatched` clauses can use columns of table and source. Expressions of `whenNotMatched`
    clauses can use only source columns, and expressions of `whenNotMatchedBySource` clauses only table
    columns. The merge fails if several source rows would change the same table row, unless the only matched
    clause deletes without a condition.
    """

    def __init__(
        self,
        table: TableBase,
        source: DataFrame,
        condition: Expression,
        subqueries: SubqueryColumns = NO_SUBQUERIES,
    ) -> None:
        self._table = table
        # Adds columns that expressions may use in addition to the table's columns.
        self._subqueries = subqueries
        self._source = source
        self._condition = condition
        self._clauses: list[Clause] = []
        self._evolves_schema = merges_schemas(table.spark)
        self._retries = RETRIES
        self._timeout = RETRY_TIMEOUT
        self._cached_plan: tuple[int, MergePlan] | None = None
        self._cached_source: DataFrame | None = None
        self._narrow = False
        self._source_keys: SourceKeys | None = None

    def __repr__(self) -> str:
        clauses = ", ".join(f"when {clause.rows} then {clause.kind}" for clause in self._clauses)
        return (
            f"MergeBuilder(into {self._table.path!r} on {expression_text(self._condition)!r}, "
            f"{clauses or 'no clause'}; not executed: call execute())"
        )

    def whenMatchedUpdate(
        self, condition: Expression | None = None, set: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Add a clause that updates matched rows.

        Args:
            condition: SQL or a Column over table and source columns. Default: all matched rows.
            set: table column, or path of a struct field (`a.b`) -> SQL or Column.

        Raises:
            OptionError: `set` is empty.
        """
        return self._add_clause(Clause(MATCHED, "update", condition, _check_values(set, "set")))

    def whenMatchedUpdateAll(
        self, condition: Expression | None = None, exceptCols: Sequence[str] = ()
    ) -> MergeBuilder:
        """Add a clause that sets all columns of matched rows to the source columns of the same name.

        Args:
            condition: SQL or a Column over table and source columns. Default: all matched rows.
            exceptCols: table columns that keep their values.
        """
        return self._add_clause(Clause(MATCHED, "update", condition, None, tuple(exceptCols)))

    def whenMatchedDelete(self, condition: Expression | None = None) -> MergeBuilder:
        """Add a clause that deletes matched rows.

        Args:
            condition: SQL or a Column over table and source columns. Default: all matched rows.
        """
        return self._add_clause(Clause(MATCHED, "delete", condition))

    def whenNotMatchedInsert(
        self, condition: Expression | None = None, values: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Add a clause that inserts source rows without a match.

        Args:
            condition: SQL or a Column over source columns. Default: all source rows without a match.
            values: table column -> SQL or Column. Other columns get their default, or null.

        Raises:
            OptionError: `values` is empty.
        """
        return self._add_clause(Clause(NEW, "insert", condition, _check_values(values, "values")))

    def whenNotMatchedInsertAll(
        self, condition: Expression | None = None, exceptCols: Sequence[str] = ()
    ) -> MergeBuilder:
        """Add a clause that inserts source rows without a match, using the source columns of the same name.

        Args:
            condition: SQL or a Column over source columns. Default: all source rows without a match.
            exceptCols: table columns that get their default, or null.
        """
        return self._add_clause(Clause(NEW, "insert", condition, None, tuple(exceptCols)))

    def whenNotMatchedBySourceUpdate(
        self, condition: Expression | None = None, set: Mapping[str, Expression] | None = None
    ) -> MergeBuilder:
        """Add a clause that updates table rows without a match in the source.

        Args:
            condition: SQL or a Column over table columns. Default: all table rows without a match.
            set: table column, or path of a struct field (`a.b`) -> SQL or Column.

        Raises:
            OptionError: `set` is empty.
        """
        return self._add_clause(Clause(MISSING, "update", condition, _check_values(set, "set")))

    def whenNotMatchedBySourceDelete(self, condition: Expression | None = None) -> MergeBuilder:
        """Add a clause that deletes table rows without a match in the source.

        Args:
            condition: SQL or a Column over table columns. Default: all table rows without a match.
        """
        return self._add_clause(Clause(MISSING, "delete", condition))

    def withSchemaEvolution(self) -> MergeBuilder:
        """Add columns that only the source has to the table, and accept a source that lacks table columns.

        A separate commit before the merge adds the new columns, with null in every existing row. Struct
        fields are not added. System columns such as `_change_type` are rejected.
        """
        self._evolves_schema, self._cached_plan = True, None
        return self

    def withRetries(
        self, conflictRetries: int = RETRIES, retryTimeout: timedelta = RETRY_TIMEOUT
    ) -> MergeBuilder:
        """Set how often, and for how long, to merge again after another writer changed the same rows.

        Args:
            conflictRetries: maximum number of new attempts.
            retryTimeout: start no new attempt after this time.

        Raises:
            OptionError: an argument is out of range.
        """
        policy(conflictRetries, retryTimeout)
        self._retries, self._timeout = conflictRetries, retryTimeout
        return self

    def execute(self) -> DataFrame:
        """Run the merge in one transaction. If nothing changes, no version is created.

        If two merges insert the same key concurrently, the later one retries and finds the key. The commit
        records the inserted keys for this check if the condition compares columns for equality and the
        inserts store these columns. Otherwise the merge retries after any concurrent insert.

        Each attempt evaluates the source once. For an equality merge into a large table, all attempts share
        one evaluation, and Spark caches it (local checkpoint) as long as this object exists. The merge then
        collects the source's keys first, and reads only table rows that can have them, with the table's
        indexes. This does not apply if there is a `whenNotMatchedBySource` clause.

        Returns:
            One row: num_affected_rows, num_updated_rows, num_deleted_rows, num_inserted_rows, bytes_written,
            version.

        Raises:
            OptionError: there is no clause, or a clause can never apply; or spark.wap.branch or spark.wap.id
                directs the session's writes to a branch.
            ExpressionError: Spark cannot resolve an expression on table and source.
            SchemaError: a column does not exist, is set twice, or cannot hold values of that type.
            MergeError: several source rows would change the same table row, or would be inserted with the
                same primary key.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
        """
        check_session_stages(self._table)
        return self.run().frame(self._table.spark)

    def run(self) -> ChangeResult:
        """Run the merge like `execute`, and return the counts as an object."""
        with (
            operation(self._table.spark, "merge", self._table.path),
            commit_options(properties={STATEMENT: "MERGE"}),
        ):
            return self._run()

    def _run(self) -> ChangeResult:
        _check_order(self._clauses)
        dataset = self._table.dataset()
        # Raise errors of the clauses before the table changes.
        self._plan(dataset.manifest)
        if self._evolves_schema:
            self._evolve()
            dataset = self._table.dataset()
        reruns = policy(self._retries, self._timeout)
        return run_attempts(dataset, self._attempt, reruns)

    def _add_clause(self, clause: Clause) -> MergeBuilder:
        self._clauses.append(clause)
        self._cached_plan = None
        return self

    def _plan(self, manifest: Manifest) -> MergePlan:
        """Return the plan of the merge for a version, cached per version."""
        if self._cached_plan is None or self._cached_plan[0] != manifest.version:
            plan = MergePlan.of(
                self._table,
                manifest,
                self._source if self._cached_source is None else self._cached_source,
                self._condition,
                self._clauses,
                self._evolves_schema,
                self._narrow,
                self._source_keys,
                self._subqueries,
            )
            self._cached_plan = manifest.version, plan
        return self._cached_plan[1]

    def _prepare_plan(self, manifest: Manifest) -> MergePlan:
        """Return the plan for a version. For a large table, cache the source first if this saves work."""
        plan = self._plan(manifest)
        rows = sum(fragment.physical_rows for fragment in manifest.fragments)
        prunes = bool(plan.pairs) and rows >= _PRUNED_ROWS
        narrows = plan.can_narrow and rows >= _MANY_ROWS
        if self._cached_source is not None or not (prunes or narrows):
            return plan
        with step(self._table.spark, "read the source and its keys"):
            self._cached_source = self._source.localCheckpoint()
            if prunes:
                self._source_keys = read_source_keys(self._table.spark, self._cached_source, plan.pairs)
            self._narrow = narrows and self._cached_source.count() <= _FEW_ROWS
        self._cached_plan = None
        return self._plan(manifest)

    def _attempt(self, at: Attempt) -> ChangeResult:
        check_movable(at.manifest)
        plan = self._prepare_plan(at.manifest)
        matched = [clause for clause in self._clauses if clause.rows == MATCHED]
        # The clause deletes every matched row, so several matches of a row are harmless.
        repeated = len(matched) == 1 and matched[0].kind == "delete" and matched[0].condition is None
        inserts = any(clause.kind == "insert" for clause in self._clauses)
        names = None if plan.key is None else tuple(key.name for key in plan.key)
        unique = _declared_key(at.manifest) if inserts else ()
        work = ChangeRows(at.ref(), plan.actions, at.operation, names, repeated, unique)
        with step(self._table.spark, "join and write rows"):
            answers = at.run(lambda: collect_answers(plan.frame, work))
        if may_repeat(answers):
            at.run(lambda: self._check_unique_inserts(plan, unique))
        ids = None if plan.key is None else [key.id for key in plan.key]
        return at.change_rows(answers, plan.field_ids, ids, inserts=inserts, repeated=repeated)

    def _check_unique_inserts(self, plan: MergePlan, unique: tuple[str, ...]) -> list[TaskAnswer]:
        """Check that no primary key is inserted twice.

        Raises:
            MergeError: two inserted rows have the same key.
        """
        F = spark_functions(self._table.spark)
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
    """Return the columns of the declared primary key; empty without a key, or with a struct field in it."""
    key = primary_key(manifest.schema)
    tops = {top.id for top in manifest.schema.fields}
    return tuple(field.name for field in key) if all(field.id in tops for field in key) else ()


def _check_values(values: Mapping[str, Expression] | None, name: str) -> Mapping[str, Expression]:
    if not values:
        raise OptionError(f'write {name}= as a dict from columns to values, such as {name}={{"a": "s.a"}}')
    return dict(values)


def _check_order(clauses: Sequence[Clause]) -> None:
    """Check that there are clauses and that each of them can apply."""
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
