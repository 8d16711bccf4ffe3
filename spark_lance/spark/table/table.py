"""`LanceTable`, the Spark API of a table. Its method names follow Delta's `DeltaTable`.

Related methods are grouped in objects: `table.columns`, `table.indexes`, `table.searches`, `table.tags` and
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
from spark_lance.spark.table.builder import TableBuilder, column_builder, locate_table, option_texts
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
from spark_lance.table.versions.resolve import MAIN, Reference, version_as_of_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_lance.table.schema.constraints import Constraint


@dataclass(frozen=True, repr=False)
class LanceTable(SearchableTable):
    """A Lance table in a Spark session, with methods to read, change, evolve and maintain it.

    Get one with `forPath` or `forName`. Spark jobs do all the work on rows, so Spark Connect sessions work,
    too. This process makes the commits, so it needs access to the table's store.
    """

    def __repr__(self) -> str:
        try:
            return repr(self.dataset()).replace("LanceDataset(", "LanceTable(", 1)
        except (LanceError, OSError) as error:
            return f"LanceTable({self.path!r}, which cannot be read: {error})"

    def _repr_html_(self) -> str:
        """Return HTML for a notebook: a description of the table, and its first rows."""
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
            spark: the session, classic or Spark Connect. If you pass only a path, the active session is used.
            path: path or URI of the table.
            options: data source options for every read and write, such as storage options.
                `storage={"key": ...}` sets the option `storage.key`. `branch` opens that branch.

        Raises:
            TableNotFoundError: there is no table at the path.
            OptionError: an option is unknown or has a bad value, or no session is active.
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
        """Return the table with this name in a catalog.

        Storage options come from the settings of the table's catalog, `spark.sql.catalog.<name>.storage.*`.

        Args:
            spark: the session.
            tableOrViewName: a table name as in SQL: `db.t`, `shop.db.t`, or ``db.`t@dev` `` for a branch.

        Raises:
            OptionError: the name is not a Lance table in a catalog of `spark_lance.enable`.
        """
        check_session(spark, "LanceTable.forName(spark, name)")
        path, options = locate_table(spark, tableOrViewName)
        return cls.forPath(spark, path, **options)

    @classmethod
    def isLanceTable(cls, spark: SparkSession, path: str | os.PathLike[str], **options: object) -> bool:
        """Return whether a Lance table exists at a path; arguments as for `forPath`."""
        try:
            cls.forPath(spark, path, **options)
        except TableNotFoundError:
            return False
        return True

    @classmethod
    def convertToLance(
        cls, spark: SparkSession, identifier: str, partitionSchema: st.StructType | str | None = None
    ) -> LanceTable:
        """Create a Lance table from a folder of Parquet files, in the same folder, and return it.

        The rows are copied. The Parquet files are kept.

        Args:
            spark: the session.
            identifier: the folder, as "parquet.`/data/events`".
            partitionSchema: partition columns in the subfolder names, with their types, such as "day date".

        Raises:
            TableExistsError: the folder already has a Lance table.
            OptionError: the subfolders have other partition columns than `partitionSchema`.
        """
        check_session(spark, "LanceTable.convertToLance(spark, identifier)")
        return cls.forPath(spark, convert_files(spark, identifier, partitionSchema))

    columnBuilder = staticmethod(column_builder)

    @classmethod
    def create(cls, spark: SparkSession | None = None, **options: object) -> TableBuilder[LanceTable]:
        """Return a builder that creates an empty table and fails if the table exists.

        Args:
            spark: the session, classic or Spark Connect. Default: the active session.
            options: as for `forPath`; also `enable_stable_row_ids` and `data_storage_version`.

        Raises:
            OptionError: no session is given or active.
        """
        return TableBuilder(_session(spark, "LanceTable.create(spark)"), "create", cls, option_texts(options))

    @classmethod
    def createIfNotExists(
        cls, spark: SparkSession | None = None, **options: object
    ) -> TableBuilder[LanceTable]:
        """Return a builder that creates an empty table unless the table exists; see `create`."""
        return TableBuilder(
            _session(spark, "LanceTable.createIfNotExists(spark)"),
            "create_if_not_exists",
            cls,
            option_texts(options),
        )

    @classmethod
    def replace(cls, spark: SparkSession | None = None, **options: object) -> TableBuilder[LanceTable]:
        """Return a builder that gives an existing table new columns and removes its rows; see `create`."""
        return TableBuilder(
            _session(spark, "LanceTable.replace(spark)"), "replace", cls, option_texts(options)
        )

    @classmethod
    def createOrReplace(
        cls, spark: SparkSession | None = None, **options: object
    ) -> TableBuilder[LanceTable]:
        """Return a builder that creates an empty table, or replaces the existing one; see `create`."""
        return TableBuilder(
            _session(spark, "LanceTable.createOrReplace(spark)"),
            "create_or_replace",
            cls,
            option_texts(options),
        )

    def toDF(self, version: Reference | None = None) -> DataFrame:
        """Return the rows of a version as a DataFrame, under the table's alias if it has one.

        Args:
            version: a version number of this branch, a tag, or (branch, number). A number of None means the
                branch's newest version. Default: the newest version of the table.

        Raises:
            VersionNotFoundError: the version, tag or branch does not exist.
        """
        if version is None:
            frame = self.read()
        else:
            dataset = self.dataset().checkout_version(version)
            frame = replace(self, path=dataset.uri).read(version=dataset.version)
        return frame if self.aliased is None else frame.alias(self.aliased)

    def alias(self, aliasName: str) -> LanceTable:
        """Return the table with an alias for conditions and expressions, such as `t` in `t.id = s.id`."""
        return replace(self, aliased=aliasName)

    def detail(self) -> DataFrame:
        """Return one row that describes the newest version.

        The first columns are Delta's; a column without a counterpart in Lance is null or empty. Then follow
        `version`, `branch`, `numVersions`, `numRows`, `numDeletedRows`, `numFragments`,
        `dataStorageVersion`, `stableRowIds`, `primaryKey` and `indices`.
        """
        return detail_frame(self)

    def history(self, limit: int | None = None) -> DataFrame:
        """Return one row per version with the operation that created it, newest first.

        The columns are Delta's: `version`, `timestamp`, `userName`, `operation`, `operationParameters`,
        `job`, `readVersion`, `isBlindAppend`, `operationMetrics`, `userMetadata` and more. The data source
        returns the same rows with option `table` = `history`.

        Args:
            limit: number of versions to return. Default: all.

        Raises:
            OptionTypeError: the limit is not a whole number.
        """
        check_number("limit", limit, "10 for the newest ten versions", whole=True)
        frame = self.read(table="history")
        return frame if limit is None else frame.limit(limit)

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return self.dataset().version

    def restoreToVersion(self, version: int) -> DataFrame:
        """Commit a new version with the content of an old one.

        Args:
            version: the version number to restore.

        Returns:
            One row with Delta's columns: `table_size_after_restore`, `num_of_files_after_restore`,
            `num_removed_files`, `num_restored_files`, `removed_files_size`, `restored_files_size`. Sizes are
            in bytes.

        Raises:
            VersionNotFoundError: the version does not exist.
            CommitError: the commit failed; see its subclasses.
        """
        return restore_version(self, version)

    def restoreToTimestamp(self, timestamp: datetime | str) -> DataFrame:
        """Commit a new version with the content that the table had at a given time.

        Args:
            timestamp: a datetime, or ISO 8601 text. Without a time zone, `spark.sql.session.timeZone`
                applies.

        Returns:
            One row, as `restoreToVersion`.

        Raises:
            VersionNotFoundError: the table has no version at or before the time.
            OptionError: the text is not a time.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self.dataset()
        moment = in_zone(timestamp, self.spark.conf.get(SESSION_ZONE))
        return restore_version(self, version_as_of_time(dataset.table, moment))

    def restoreToTag(self, tag: str) -> DataFrame:
        """Commit a new version with the content of a tagged version of the same branch.

        Returns:
            One row, as `restoreToVersion`.

        Raises:
            TagNotFoundError: the tag does not exist.
            OptionError: the tag is on another branch.
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
        """The tags of the table."""
        return TableTags(self)

    @property
    def branches(self) -> TableBranches:
        """The branches of the table."""
        return TableBranches(self)

    def clone(self, target: str, isShallow: bool = True, *, version: Reference | None = None) -> LanceTable:
        """Create a copy of a version of this table at another path, and return it.

        A shallow clone references the files of this table, so this table must not move. Vacuum of this
        table does not check for clones: tag the cloned version to keep its files. A deep clone copies all
        files, in this process.

        Args:
            target: path or URI of the clone.
            isShallow: whether the clone references this table's files (True) or copies them (False).
            version: the version to clone, as for `toDF`. Default: the newest version.

        Raises:
            TableExistsError: the target already has a table.
            VersionNotFoundError: the version does not exist.
            CommitError: the commit failed; see its subclasses.
        """
        dataset = self.dataset()
        make = dataset.shallow_clone if isShallow else dataset.deep_clone
        make(replace(self, path=target).writeOptions.path, version)
        return replace(self, path=target)

    @property
    def config(self) -> dict[str, str]:
        """The table's config as a dict, without the internal keys of this package."""
        return self.dataset().config()

    def setConfig(self, values: Mapping[str, str | None]) -> None:
        """Set keys of the table's config. Keys that start with `lance.` belong to the format.

        Args:
            values: key -> value. A value of None deletes the key.

        Raises:
            OptionError: a key is internal.
            IncompatibleConflictError: another writer updated one of the keys concurrently.
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
        """Delete the rows that match a condition.

        Spark reads only the columns that the condition uses. Deletion files mark the deleted rows; no data
        file is rewritten. Fragments without remaining rows are dropped. If no row matches, no version is
        created.

        Args:
            condition: SQL such as "day < '2024-01-01'", or a Column. Default: all rows.
            conflictRetries: how often to search for the rows again after another writer changed them.
            retryTimeout: start no new attempt after this time.

        Returns:
            One row: num_affected_rows, num_updated_rows, num_deleted_rows, num_inserted_rows, bytes_written,
            version.

        Raises:
            ExpressionError: Spark cannot resolve the condition on the table's columns.
            OptionError: spark.wap.branch or spark.wap.id directs the session's writes to a branch.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
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
        """Set columns of the rows that match a condition.

        All new values are computed from the old row, and cast by Spark's store assignment rules: a number
        too large for its column is an error. Only the changed rows are rewritten. Columns without a new
        value do not pass through Spark. With stable row ids, rows keep their `_rowid`.

        Args:
            condition: SQL or a Column. Default: all rows.
            set: column name, or path of a struct field (`a.b`) -> SQL text or Column.
            conflictRetries: how often to compute the change again after another writer changed its rows.
            retryTimeout: start no new attempt after this time.

        Returns:
            One row, as `delete`.

        Raises:
            OptionError: `set` is empty, or spark.wap.branch or spark.wap.id directs writes to a branch.
            ExpressionError: Spark cannot resolve the condition or a value on the table's columns.
            SchemaError: a column does not exist, is set twice, or cannot hold values of that type.
            CommitError: the commit conflicts with other writers; see its subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot write.
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
        """Return a merge builder, to update, insert and delete rows by comparing them with a source.

            table.alias("t").merge(changes.alias("s"), "t.id = s.id")
                .whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()

        Args:
            source: the rows to merge, as a DataFrame of the same session.
            condition: SQL or a Column that is true if a table row and a source row match. Null keys match
                nothing.
        """
        if not hasattr(source, "sparkSession"):
            raise OptionTypeError(f"merge() takes a DataFrame, such as spark.table(name), not {source!r}")
        return MergeBuilder(self, source, condition)

    @property
    def columns(self) -> TableColumns:
        """Methods that add, update, alter and drop columns."""
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
        """Rewrite the values of columns in place; see `columns.update`."""
        return self.columns.update(
            columns, where=where, on=on, inputs=inputs, outputs=outputs, batchSize=batchSize, resume=resume
        )

    def dropColumns(self, *columns: str) -> None:
        """Drop columns, or struct fields ("a.b"). Only the schema changes; no file is rewritten.

        See `columns.drop`.
        """
        return self.columns.drop(*columns)

    def unsetPrimaryKey(self) -> None:
        """Remove the primary key declaration; see `columns.unsetPrimaryKey`."""
        return self.columns.unsetPrimaryKey()

    def renameColumn(self, existing: str, new: str) -> None:
        """Rename a column, or a struct field ("a.b" becomes "a.c" if `new` is "c").

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
        """Change the type, nullability, comment or default of a column; see `columns.alter`."""
        return self.columns.alter(name, type=type, nullable=nullable, comment=comment, default=default)

    def moveColumn(self, name: str, *, after: str | None = None) -> None:
        """Move a column after another one, or to the front; see `columns.move`."""
        return self.columns.move(name, after=after)

    def alterColumns(self, *alterations: Mapping[str, Any]) -> None:
        """Alter several columns in one commit; see `columns.alterAll`."""
        return self.columns.alterAll(*alterations)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The table's constraints, sorted by name."""
        return self.dataset().settings.constraints

    def addConstraint(self, name: str, expression: str) -> None:
        """Add a CHECK constraint: writes of rows for which its expression is false fail.

        Args:
            name: name of the constraint, unique in the table.
            expression: SQL such as "price >= 0 AND currency IS NOT NULL". A null result is not a violation.

        Raises:
            ConstraintError: the name is taken, the expression is not a condition on the table's columns, or
                an existing row violates it; the message quotes the row.
            CommitError: the commit failed; see its subclasses.
        """
        add_check(self.spark, self.dataset(), name, expression)

    def dropConstraint(self, name: str, *, ifExists: bool = False) -> None:
        """Drop a constraint.

        Raises:
            ConstraintError: the constraint does not exist, and `ifExists` is false.
            CommitError: the commit failed; see its subclasses.
        """
        self.dataset().settings.drop_constraint(name, if_exists=ifExists)

    @property
    def indexes(self) -> TableIndexes:
        """Methods that create, optimize, drop and list vector, scalar and full-text indexes."""
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
        """Build a vector index; see `indexes.create`."""
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
        """Build a scalar or full-text index; see `indexes.createScalar`."""
        return self.indexes.createScalar(
            column, indexType, name, replace=replace, numSegments=numSegments, **options
        )

    def optimizeIndices(self, name: str | None = None, merge: int | None = None) -> DataFrame:
        """Add rows that indexes do not cover yet, with one task per index; see `indexes.optimize`."""
        return self.indexes.optimize(name, merge)

    def dropIndex(self, name: str) -> None:
        """Remove an index from the table; older versions keep it. See `indexes.drop`."""
        return self.indexes.drop(name)

    def indices(self) -> DataFrame:
        """Return one row per index; see `indexes.list`."""
        return self.indexes.list()

    def optimize(self, **options: Any) -> Optimizing:
        """Return an object whose methods compact or cluster the data files.

        Args:
            options: options of `LanceDataset.compact_files` in camelCase, such as `targetRowsPerFragment`,
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

        The newest version, tagged versions, and the start versions of branches are kept, with every file
        that these versions or a branch need. Files that no version references are deleted after seven
        days.

        A DataFrame reads the version that was the newest when it was created; a stream reads the version of
        its last micro-batch. Keep versions longer than your longest-running reader. Versions younger than 24
        hours are therefore kept unless `allowShortRetention` is true. The table config
        `spark_lance.vacuum.min_retention`, such as `3days`, raises these 24 hours.

        Args:
            retentionHours: delete versions older than this many hours. Default: two weeks, if
                `retainVersions` is not set either.
            dryRun: list the files without deleting them. A dry run accepts a shorter retention.
            retainVersions: number of newest versions to keep. Older versions are deleted once they are 24
                hours old, or `retentionHours` old if both are set.
            deleteUnverified: delete files that no version references regardless of their age. Use it only
                while nobody writes to the table.
            allowShortRetention: delete versions younger than 24 hours, too. Use it only while nobody reads
                old versions.

        Returns:
            One row with the numbers of deleted bytes, versions and files. A dry run returns one row per file
            that would be deleted.

        Raises:
            OptionError: a number is out of range, or retentionHours is too short.
            FormatError, UnsupportedFormatError: a version cannot be read; nothing was deleted.
        """
        request = VacuumRequest(retentionHours, dryRun, retainVersions, deleteUnverified, allowShortRetention)
        return vacuum(self, request, PYTHON_WORDS)

    def repair(self) -> DataFrame:
        """Move torn manifests aside, such as after a power failure. No rows are read.

        Returns:
            One row: the newest version, the version whose content it restores (null if the newest manifest
            was intact), and the new paths of the torn files.

        Raises:
            TornManifestError: no version has an intact manifest.
            CommitError: the restore failed; see its subclasses. Nothing was moved.
        """
        return repair_frame(self)

    def upsertLog(self) -> UpsertLog:
        """Return a writer of DataFrames to the table's MemWAL; see `UpsertLog`."""
        return UpsertLog(self)

    def compactWal(self, flush: bool = False) -> WalCompaction:
        """Merge the rows of MemWAL SSTables into the table, with one Spark task per shard.

        Args:
            flush: also merge rows that are only in the logs. Writers and streams wait for it and go on;
                pylance's writers are fenced.

        Returns:
            The counts of merged SSTables and rows, and the version.

        Raises:
            OptionError: the table has no MemWAL.
            CommitError: the commit conflicts with other writers; see its subclasses. Rows that were merged
                before stay merged.
        """
        return compact_logs(self, flush)

    def generate(self, mode: str) -> None:
        """Raise an error: a Lance table has no Parquet files to list for other engines.

        Raises:
            UnsupportedFormatError: always; the message says what to write instead.
        """
        raise UnsupportedFormatError(
            f"generate({mode!r}) lists Parquet files, which a Lance table has not: write a copy, "
            "toDF().write.parquet('/data/copy')"
        )

    def upgradeTableProtocol(self, readerVersion: int, writerVersion: int) -> None:
        """Raise an error: a Lance table has no protocol versions.

        Raises:
            UnsupportedFormatError: always; the message says what to write instead.
        """
        raise UnsupportedFormatError(
            "a Lance table has no protocol versions, and a write that needs a feature switches it on: leave "
            f"out upgradeTableProtocol({readerVersion}, {writerVersion}); detail() has the features in use"
        )

    def collectWal(self, retentionHours: float | None = None, dryRun: bool = False) -> WalCollection:
        """Delete MemWAL SSTables, log entries and shard manifests that are no longer needed.

        Args:
            retentionHours: delete only files older than this many hours. Default: one hour.
            dryRun: count the files without deleting them.

        Returns:
            The numbers of SSTables, log entries and shard manifests, their bytes and their paths.

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
