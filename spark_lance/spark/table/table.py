"""`LanceTable`, the table in Spark, with names as Delta's `DeltaTable` has.

Groups of methods are objects of their own: `table.columns`, `table.indexes`, `table.searches`, `table.tags`,
`table.branches`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from html import escape
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyspark.sql.types as st
from pyspark.sql import SparkSession

from spark_lance.datasets.spelling import snake_options
from spark_lance.errors import (
    LanceError,
    OptionError,
    OptionTypeError,
    TableNotFoundError,
    UnsupportedFormatError,
)
from spark_lance.memwal.compact import WalCollection, WalCompaction, collect_wal
from spark_lance.memwal.names import GRACE
from spark_lance.spark.driver.arguments import check_number, check_session
from spark_lance.spark.options.options import SESSION_ZONE, in_zone
from spark_lance.spark.table.builder import TableBuilder, column_builder, option_texts, place_of
from spark_lance.spark.table.changing import delete_rows, update_rows
from spark_lance.spark.table.constraints import add_check
from spark_lance.spark.table.convert_files import convert_files
from spark_lance.spark.table.describing import (
    TableBranches,
    TableTags,
    detail_frame,
    restore_version,
)
from spark_lance.spark.table.evolving import BATCH_ROWS, Batches, TableColumns
from spark_lance.spark.table.expressions import QUOTING, Expression
from spark_lance.spark.table.indexing import TableIndexes
from spark_lance.spark.table.maintaining import (
    PYTHON_WORDS,
    Optimizing,
    VacuumRequest,
    repair_frame,
    vacuum,
)
from spark_lance.spark.table.merging import MergeBuilder, UpsertLog, compact_logs
from spark_lance.spark.table.row_commits import RETRIES, RETRY_TIMEOUT, policy
from spark_lance.spark.table.searching import SearchableTable
from spark_lance.spark.table.staging import check_session_stages
from spark_lance.table.versions.ages import age_of_hours
from spark_lance.table.versions.resolve import MAIN, Reference, version_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.table.schema.constraints import Constraint


@dataclass(frozen=True, repr=False)
class LanceTable(SearchableTable):
    """A Lance table in a Spark session. Its methods change, evolve and maintain the table in Spark jobs.

    Create it with `forPath`. DataFrames do all work on rows, so a session of Spark Connect works as well.
    This process makes the commits, so it needs access to the table's store.
    """

    def __repr__(self) -> str:
        try:
            return repr(self.dataset()).replace("LanceDataset(", "LanceTable(", 1)
        except (LanceError, OSError) as error:
            return f"LanceTable({self.path!r}, which cannot be read: {error})"

    def _repr_html_(self) -> str:
        """Return the table for a notebook: what it is, and its first rows."""
        try:
            return self.dataset()._repr_html_()
        except (LanceError, OSError):
            return f"<code>{escape(repr(self))}</code>"

    @classmethod
    def forPath(
        cls,
        spark: SparkSession | str | os.PathLike[str],
        path: str | os.PathLike[str] | None = None,
        **options: object,
    ) -> LanceTable:
        """Return the table at a path.

        Args:
            spark: the session, classic or of Spark Connect; with the path alone, the active session.
            path: where the table is.
            options: options of the data source for every read and write, such as those of the store;
                `storage={"key": ...}` stands for the options `storage.key`, .... With `branch` the table is
                that branch.

        Raises:
            TableNotFoundError: there is no table.
            OptionError: an option cannot be used.
        """
        branch = options.pop("branch", None)
        if path is None:
            spark, path = _session(None, "LanceTable.forPath(spark, path)"), cast("str", spark)
        spark = cast("SparkSession", spark)
        table = cls(spark, os.fspath(path) if isinstance(path, os.PathLike) else path, option_texts(options))
        table.dataset()
        return table if branch is None else table.branches.get(str(branch))

    @classmethod
    def forName(cls, spark: SparkSession, tableOrViewName: str) -> LanceTable:
        """Return the table of a name, as SQL has it: `db.t`, `shop.db.t`, a branch ``db.`t@dev` ``.

        The options of the store are those of the table's catalog, `spark.sql.catalog.<name>.storage.*`.

        Raises:
            OptionError: the name is not one of a Lance table in a catalog of `spark_lance.enable`.
        """
        check_session(spark, "LanceTable.forName(spark, name)")
        path, options = place_of(spark, tableOrViewName)
        return cls.forPath(spark, path, **options)

    @classmethod
    def isLanceTable(cls, spark: SparkSession, path: str | os.PathLike[str], **options: object) -> bool:
        """Whether there is a table at a path; arguments as for `forPath`."""
        try:
            cls.forPath(spark, path, **options)
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def convertToLance(
        cls, spark: SparkSession, identifier: str, partitionSchema: st.StructType | str | None = None
    ) -> LanceTable:
        """Make a Lance table of the Parquet files in a folder, in this folder, and return it.

        The rows are copied. The Parquet files stay.

        Args:
            spark: the session.
            identifier: the files, as "parquet.`/data/events`".
            partitionSchema: the columns in the names of subfolders, with their types, such as "day date".

        Raises:
            TableExistsError: the folder has a Lance table.
            OptionError: the folders have other partition columns.
        """
        check_session(spark, "LanceTable.convertToLance(spark, identifier)")
        return cls.forPath(spark, convert_files(spark, identifier, partitionSchema))

    columnBuilder = staticmethod(column_builder)

    @classmethod
    def create(cls, spark: SparkSession | None = None, **options: object) -> TableBuilder[LanceTable]:
        """Begin to make an empty table where there is none.

        Args:
            spark: the session, classic or of Spark Connect; the active one by default.
            options: as for `forPath`; also `enable_stable_row_ids` and `data_storage_version`.
        """
        return TableBuilder(_session(spark, "LanceTable.create(spark)"), "create", cls, option_texts(options))

    @classmethod
    def createIfNotExists(
        cls, spark: SparkSession | None = None, **options: object
    ) -> TableBuilder[LanceTable]:
        """Begin to make an empty table, or to take the one that is there as it is; see `create`."""
        return TableBuilder(
            _session(spark, "LanceTable.createIfNotExists(spark)"),
            "create_if_not_exists",
            cls,
            option_texts(options),
        )

    @classmethod
    def replace(cls, spark: SparkSession | None = None, **options: object) -> TableBuilder[LanceTable]:
        """Begin to replace the columns and rows of a table by other columns and no rows; see `create`."""
        return TableBuilder(
            _session(spark, "LanceTable.replace(spark)"), "replace", cls, option_texts(options)
        )

    @classmethod
    def createOrReplace(
        cls, spark: SparkSession | None = None, **options: object
    ) -> TableBuilder[LanceTable]:
        """Begin to make an empty table, whether or not there is one; see `create` and `replace`."""
        return TableBuilder(
            _session(spark, "LanceTable.createOrReplace(spark)"),
            "create_or_replace",
            cls,
            option_texts(options),
        )

    def toDF(self, version: Reference | None = None) -> DataFrame:
        """Return the rows of a version as a DataFrame, under the table's alias if it has one.

        Args:
            version: a number on this line, a tag, or (branch, number), where None is the newest. The newest
                version of the table by default.

        Raises:
            VersionNotFoundError: there is no such version, tag or branch.
        """
        if version is None:
            frame = self.read()
        else:
            dataset = self.dataset().checkout_version(version)
            frame = replace(self, path=dataset.uri).read(version=dataset.version)
        return frame if self.aliased is None else frame.alias(self.aliased)

    def alias(self, aliasName: str) -> LanceTable:
        """Return the same table under a name for conditions and expressions, such as `t` in `t.id = s.id`."""
        return replace(self, aliased=aliasName)

    def detail(self) -> DataFrame:
        """Return one row about the newest version.

        The first columns are Delta's; a column without a counterpart in Lance is null or empty. The others
        are `version`, `branch`, `numVersions`, `numRows`, `numDeletedRows`, `numFragments`,
        `dataStorageVersion`, `stableRowIds`, `primaryKey` and `indices`.
        """
        return detail_frame(self)

    def history(self, limit: int | None = None) -> DataFrame:
        """Return what made the versions, newest first, in Delta's columns.

        `version`, `timestamp`, `userName`, `operation`, `operationParameters`, `job`, `readVersion`,
        `isBlindAppend`, `operationMetrics`, `userMetadata`, and more; see option `table` = `history` of the
        data source.

        Args:
            limit: how many of the newest versions; all by default.
        """
        check_number("limit", limit, "10 for the newest ten versions", whole=True)
        frame = self.read(table="history")
        return frame if limit is None else frame.limit(limit)

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return self.dataset().version

    def restoreToVersion(self, version: int) -> DataFrame:
        """Make the content of a version the newest version.

        Returns:
            One row of numbers of files and bytes, as Delta's.

        Raises:
            VersionNotFoundError: there is no such version.
            CommitError: the commit failed; see its subclasses.
        """
        return restore_version(self, version)

    def restoreToTimestamp(self, timestamp: datetime | str) -> DataFrame:
        """Make the content of the version that was the newest at a time the newest version.

        Args:
            timestamp: a time, or its ISO 8601 text; without a zone it is in the session's zone,
                `spark.sql.session.timeZone`.

        Raises:
            VersionNotFoundError: every version is younger.
            OptionError: the text is not a time.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self.dataset()
        moment = in_zone(timestamp, self.spark.conf.get(SESSION_ZONE))
        return restore_version(self, version_at(dataset.table, moment))

    def restoreToTag(self, tag: str) -> DataFrame:
        """Make the content of a tagged version of this line the newest version.

        Raises:
            TagNotFoundError: there is no such tag.
            OptionError: the tag is on another line.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self.dataset()
        tagged = dataset.tags.list()
        branch = tagged[tag]["branch"] if tag in tagged else dataset.branch
        if branch != dataset.branch:
            raise OptionError(f"tag {tag!r} is on the line {branch or MAIN}, not on {dataset.branch or MAIN}")
        return restore_version(self, dataset.tags.get_version(tag))

    @property
    def tags(self) -> TableTags:
        """The names of versions."""
        return TableTags(self)

    @property
    def branches(self) -> TableBranches:
        """The branches of the table."""
        return TableBranches(self)

    def clone(self, target: str, isShallow: bool = True, *, version: Reference | None = None) -> LanceTable:
        """Create a table elsewhere that begins as a version of this one, and return it.

        A shallow clone shares the files of this table, which must stay where it is and whose clean-up does
        not know of the clone: tag the version that was cloned. A deep one copies all files, in this process.

        Args:
            target: where the clone is to be.
            isShallow: whether files are shared.
            version: as for `toDF`.

        Raises:
            TableExistsError: there is a table already.
            VersionNotFoundError: there is no such version.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self.dataset()
        make = dataset.shallow_clone if isShallow else dataset.deep_clone
        make(replace(self, path=target).writeOptions.path, version)
        return replace(self, path=target)

    @property
    def config(self) -> dict[str, str]:
        """The table's settings, without the internal ones of this package."""
        return self.dataset().config()

    def setConfig(self, values: Mapping[str, str | None]) -> None:
        """Set settings of the table; None deletes one. Keys beginning with `lance.` belong to the format.

        Raises:
            OptionError: a key is internal.
            IncompatibleConflictError: another writer has updated one of the keys meanwhile.
            CommitError: the commit failed; see its subclasses.
        """
        self.dataset().update_config(values)

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
            OptionError: spark.wap.branch or spark.wap.id directs the session's writes to a branch.
            CommitError: other writers were in the way; see its subclasses.
            UnsupportedFormatError: the table needs a feature that is not written here.
        """
        check_session_stages(self)
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
            OptionError: nothing is set, or spark.wap.branch or spark.wap.id directs writes to a branch.
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
        check_session_stages(self)
        reruns = policy(conflictRetries, retryTimeout)
        return update_rows(self, condition, set, reruns).frame(self.spark)

    def merge(self, source: DataFrame, condition: Expression) -> MergeBuilder:
        """Return a builder of a merge: update, insert and delete rows by comparing them with a source.

            table.alias("t").merge(changes.alias("s"), "t.id = s.id")
                .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

        Args:
            source: the rows to merge, a DataFrame of the same session.
            condition: SQL or a Column that is true for a row of the table and one of the source that match;
                null keys match nothing.
        """
        return MergeBuilder(self, source, condition)

    @property
    def columns(self) -> TableColumns:
        """Adding, updating, altering and dropping columns."""
        return TableColumns(self)

    def addColumns(
        self,
        columns: Mapping[str, Expression] | DataFrame | Batches | pa.Schema | pa.Field | st.StructType,
        *,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        inputs: Sequence[str] | None = None,
        schema: pa.Schema | st.StructType | str | None = None,
        batchSize: int = BATCH_ROWS,
        vectorSizes: Mapping[str, int] | None = None,
        resume: str | None = None,
    ) -> DataFrame:
        """Add columns; see `columns.add`."""
        return self.columns.add(
            columns,
            on=on,
            inputs=inputs,
            schema=schema,
            batchSize=batchSize,
            vectorSizes=vectorSizes,
            resume=resume,
        )

    def updateColumns(
        self,
        columns: Mapping[str, Expression] | DataFrame | Batches,
        *,
        where: Expression | None = None,
        on: str | Sequence[str] | Mapping[str, str] | None = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        batchSize: int = BATCH_ROWS,
        resume: str | None = None,
    ) -> DataFrame:
        """Give columns new values in place; see `columns.update`."""
        return self.columns.update(
            columns, where=where, on=on, inputs=inputs, outputs=outputs, batchSize=batchSize, resume=resume
        )

    def dropColumns(self, *columns: str) -> None:
        """Drop columns, or fields of structs ("a.b"). Only the schema changes, no file is rewritten.

        See `columns.drop`.
        """
        return self.columns.drop(*columns)

    def unsetPrimaryKey(self) -> None:
        """See `columns.unsetPrimaryKey`."""
        return self.columns.unsetPrimaryKey()

    def renameColumn(self, existing: str, new: str) -> None:
        """Rename a column, or a field of a struct ("a.b", which becomes "a.c" if `new` is "c").

        See `columns.rename`.
        """
        return self.columns.rename(existing, new)

    def renameColumns(self, names: Mapping[str, str]) -> None:
        """Rename several columns at once; see `columns.renameAll`."""
        return self.columns.renameAll(names)

    def alterColumn(
        self,
        name: str,
        *,
        type: st.DataType | pa.DataType | str | None = None,
        nullable: bool | None = None,
        comment: str | None = None,
        default: str | None = None,
    ) -> None:
        """Change what a column is; see `columns.alter`."""
        return self.columns.alter(name, type=type, nullable=nullable, comment=comment, default=default)

    def moveColumn(self, name: str, *, after: str | None = None) -> None:
        """Move a column behind another, or to the front; see `columns.move`."""
        return self.columns.move(name, after=after)

    def alterColumns(self, *alterations: Mapping[str, Any]) -> None:
        """See `columns.alterAll`."""
        return self.columns.alterAll(*alterations)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The constraints of the table, by name."""
        return self.dataset().settings.constraints

    def addConstraint(self, name: str, expression: str) -> None:
        """Add a CHECK constraint: from now on no row for which its expression is false can be written.

        Args:
            name: of the constraint, new in the table.
            expression: SQL such as "price >= 0 AND currency IS NOT NULL". Null is no violation.

        Raises:
            ConstraintError: the name is taken, the expression is no condition on the table's columns, or a
                row of the table violates it; the message has the row.
            CommitError: the commit failed; see its subclasses.
        """
        add_check(self.spark, self.dataset(), name, expression)

    def dropConstraint(self, name: str, *, ifExists: bool = False) -> None:
        """Drop a constraint.

        Raises:
            ConstraintError: there is none of the name, and not `ifExists`.
            CommitError: the commit failed; see its subclasses.
        """
        self.dataset().settings.drop_constraint(name, if_exists=ifExists)

    @property
    def indexes(self) -> TableIndexes:
        """Indexes of vectors, values and words."""
        return TableIndexes(self)

    def createIndex(
        self,
        column: str,
        indexType: str = "IVF_PQ",
        name: str | None = None,
        metric: str = "l2",
        *,
        numPartitions: int | None = None,
        numSubVectors: int | None = None,
        numBits: int | None = None,
        replace: bool = True,
        numSegments: int | None = None,
        **options: Any,
    ) -> DataFrame:
        """Build an index over a column of vectors; see `indexes.create`."""
        return self.indexes.create(
            column,
            indexType,
            name,
            metric,
            numPartitions=numPartitions,
            numSubVectors=numSubVectors,
            numBits=numBits,
            replace=replace,
            numSegments=numSegments,
            **options,
        )

    def createScalarIndex(
        self,
        column: str,
        indexType: str = "BTREE",
        name: str | None = None,
        *,
        replace: bool = True,
        numSegments: int | None = None,
        **options: Any,
    ) -> DataFrame:
        """See `indexes.createScalar`."""
        return self.indexes.createScalar(
            column, indexType, name, replace=replace, numSegments=numSegments, **options
        )

    def optimizeIndices(self, name: str | None = None, merge: int | None = None) -> DataFrame:
        """Index the rows that indices do not cover yet, in one task per index; see `indexes.optimize`."""
        return self.indexes.optimize(name, merge)

    def dropIndex(self, name: str) -> None:
        """Take an index out of the table; its files stay for older versions; see `indexes.drop`."""
        return self.indexes.drop(name)

    def indices(self) -> DataFrame:
        """Return one row per index; see `indexes.list`."""
        return self.indexes.list()

    def optimize(self, **options: Any) -> Optimizing:
        """Begin to rewrite data files; a method of the result chooses how.

        Args:
            options: those of `LanceDataset.compact_files` in camelCase, such as `targetRowsPerFragment`,
                `maxBytesPerFile`, `maxSourceBytes`, `deferIndexRemap`, `remapIndices`,
                `dataStorageVersion`.
        """
        return Optimizing(self, snake_options(options))

    def vacuum(
        self,
        retentionHours: float | None = None,
        dryRun: bool = False,
        *,
        retainVersions: int | None = None,
        deleteUnverified: bool = False,
        allowShortRetention: bool = False,
    ) -> DataFrame:
        """Delete old versions and the files that only they need.

        The newest version stays, and so do tagged versions, those at which a branch begins, and every file
        that one of these or a branch needs. Files that no version names go when they are seven days old.

        A DataFrame reads the version that was the newest when it was made, and a stream that of its last
        micro-batch: keep versions for as long as the longest of them takes. Versions younger than 24 hours
        therefore stay unless `allowShortRetention` is given; the table's config
        `spark_lance.vacuum.min_retention`, such as `3days`, raises these 24 hours.

        Args:
            retentionHours: age of the versions that go; two weeks if neither this nor `retainVersions` is
                given.
            dryRun: delete nothing; may show what a shorter retention would delete.
            retainVersions: how many of the newest versions stay; older ones go once they are 24 hours old,
                or `retentionHours` if both are given.
            allowShortRetention: let younger versions go. Only while nothing reads older versions.
            deleteUnverified: delete files that no version names whatever their age. Do so only while nobody
                writes to the table.

        Returns:
            One row with the numbers of bytes, versions and files that went; for a dry run a row for each
            file that would go.

        Raises:
            OptionError: a number cannot be used, or retentionHours is too short.
            FormatError, UnsupportedFormatError: a version cannot be read; nothing was deleted.
        """
        request = VacuumRequest(retentionHours, dryRun, retainVersions, deleteUnverified, allowShortRetention)
        return vacuum(self, request, PYTHON_WORDS)

    def repair(self) -> DataFrame:
        """Move manifests that are not whole aside, as after a power failure; no rows are read.

        Returns:
            One row: the newest version, the version that was restored as it (null if the newest manifest was
            whole), and where the torn files are now.

        Raises:
            TornManifestError: no version is whole.
            CommitError: the restore failed; see its subclasses. Nothing was moved.
        """
        return repair_frame(self)

    def upsertLog(self) -> UpsertLog:
        """Return what writes DataFrames to the logs of the table; see `UpsertLog`."""
        return UpsertLog(self)

    def compactWal(self, flush: bool = False) -> WalCompaction:
        """Bring the rows of SSTables into the table, a Spark task for each shard; return what was done.

        Args:
            flush: bring what is only in logs, too. That claims each shard: a writer at work is fenced.

        Raises:
            OptionError: the table has no MemWAL.
            CommitError: other writers were in the way; see its subclasses. What was brought in stays.
        """
        return compact_logs(self, flush)

    def generate(self, mode: str) -> None:
        """Refuse to list Parquet files for other engines.

        Raises:
            UnsupportedFormatError: always; the message has what to write instead.
        """
        raise UnsupportedFormatError(
            f"generate({mode!r}) lists Parquet files, which a Lance table has not: write a copy, "
            "toDF().write.parquet('/data/copy')"
        )

    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Refuse to set the versions of a protocol.

        Raises:
            UnsupportedFormatError: always; the message has what to write instead.
        """
        raise UnsupportedFormatError(
            "a Lance table has no protocol versions, and a write that needs a feature switches it on: leave "
            f"out upgradeTableProtocol({readerVersion}, {writerVersion}); detail() has the features in use"
        )

    def collectWal(self, retentionHours: float | None = None, dryRun: bool = False) -> WalCollection:
        """Delete SSTables, entries of logs and manifests of shards that nobody needs any more.

        Args:
            retentionHours: only what is older; an hour by default.
            dryRun: delete nothing.

        Raises:
            OptionError: the table has no MemWAL.
        """
        age = GRACE if retentionHours is None else age_of_hours(retentionHours, "retentionHours")
        return collect_wal(self.dataset().snapshot, older_than=age, dry_run=dryRun)


def _session(spark: SparkSession | None, usage: str) -> SparkSession:
    if spark is not None:
        check_session(spark, usage)
        return spark
    active = SparkSession.getActiveSession()
    if active is None:
        raise OptionError(f"there is no active Spark session: write {usage}")
    return active
