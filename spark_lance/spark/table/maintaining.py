"""Keeping a table small and fast, by Spark jobs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import (
    OptionError,
    RetryableConflictError,
    SchemaError,
)
from spark_lance.index.remap import SegmentRemap
from spark_lance.spark.driver.arguments import check_number
from spark_lance.spark.driver.jobs import local_bytes, spread
from spark_lance.spark.driver.progress import operation, step
from spark_lance.spark.table.base import TableBase
from spark_lance.spark.table.clustering import Clustering
from spark_lance.spark.table.column_references import Expression, columns_option, needed_columns
from spark_lance.spark.table.expressions import analysed, as_column, functions_of
from spark_lance.table.commits.discard import discarding
from spark_lance.table.commits.retry_operation import retry_operation
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.maintenance.cluster import ClusterPart, check_clusterable, check_parts, commit_parts
from spark_lance.table.maintenance.compact import compact_table, execute_all
from spark_lance.table.maintenance.compact_plan import CompactionOptions, read_options
from spark_lance.table.maintenance.compact_task import CompactionMetrics, CompactionTask, RewriteResult
from spark_lance.table.maintenance.repair import repair
from spark_lance.table.maintenance.retention import guarded_age, min_retention, table_retention
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.versions.ages import age_of_hours
from spark_lance.table.versions.cleanup import CleanupFile, CleanupStats
from spark_lance.table.versions.retention import branch_retention, drop_expired_refs
from spark_lance.table.writing.write import delete_fragment_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["PYTHON_WORDS", "Optimizing", "VacuumRequest", "VacuumWords", "repair_frame", "vacuum"]

logger = logging.getLogger(__name__)

_METRICS = "fragments_removed bigint, fragments_added bigint, files_removed bigint, files_added bigint"
_CLEANUP = (
    "bytes_removed bigint, old_versions bigint, data_files_removed bigint, transaction_files_removed bigint, "
    "index_files_removed bigint, deletion_files_removed bigint, failed_deletes bigint"
)
_DOOMED = "path string, kind string, size_bytes bigint, unverified boolean"


@dataclass(frozen=True)
class VacuumRequest:
    """The arguments of `LanceTable.vacuum`."""

    retention_hours: float | None = None
    dry_run: bool = False
    retain_versions: int | None = None
    delete_unverified: bool = False
    allow_short_retention: bool = False


@dataclass(frozen=True)
class VacuumWords:
    """How a caller of vacuum writes its arguments, for errors.

    Attributes:
        hours, retain: names of the arguments `retentionHours` and `retainVersions`.
        allow_short: how `allowShortRetention` is set.
    """

    hours: str
    retain: str
    allow_short: str


PYTHON_WORDS = VacuumWords("retentionHours", "retainVersions", "allowShortRetention=True")


def _own_retention(dataset: LanceDataset) -> tuple[float | None, int | None]:
    """Return the hours and the number of versions that the branch or the table keeps, if it says so."""
    hour = timedelta(hours=1)
    if dataset.branch is not None:
        least = min_retention(dataset.manifest) / hour
        age, count = branch_retention(dataset.store, dataset.main_root, dataset.branch)
        if age is not None or count is not None:
            return None if age is None else max(age / hour, least), count
    age = table_retention(dataset.manifest)
    return None if age is None else age / hour, None


def vacuum(table: TableBase, request: VacuumRequest, words: VacuumWords) -> DataFrame:
    """Delete old versions; see `vacuum`. Errors name the arguments in the words of the caller."""
    hours, retain = request.retention_hours, request.retain_versions
    check_number(words.hours, hours, "168 for 7 days")
    check_number(words.retain, retain, "10", whole=True)
    dataset = table.dataset()
    if not request.dry_run:
        drop_expired_refs(dataset.store, dataset.main_root)
    if hours is None and retain is None:
        hours, retain = _own_retention(dataset)
    age = guarded_age(
        dataset.manifest,
        None if hours is None else age_of_hours(hours, words.hours),
        retain is not None,
        allow_short=request.allow_short_retention or (request.dry_run and hours is not None),
        source=f"{words.hours}={hours:g}" if hours is not None else "",
        remedy=words.allow_short,
    )
    with operation(table.spark, "clean-up", table.path):
        stats = dataset.cleanup_old_versions(
            older_than=age,
            retain_versions=retain,
            delete_unverified=request.delete_unverified,
            error_if_tagged_old_versions=False,
            dry_run=request.dry_run,
        )
    if request.dry_run:
        return table.spark.createDataFrame([_doomed(file) for file in stats.files], _DOOMED)
    return _removed(table, stats)


def _removed(table: TableBase, stats: CleanupStats) -> DataFrame:
    names = [column.split()[0] for column in _CLEANUP.split(", ")]
    return table.spark.createDataFrame([tuple(getattr(stats, name) for name in names)], _CLEANUP)


def repair_frame(table: TableBase) -> DataFrame:
    """Move torn manifests aside; see `LanceTable.repair`."""
    dataset = table.dataset()
    done = repair(dataset.table)
    row = (done.manifest.version, done.restored, list(done.moved))
    return table.spark.createDataFrame([row], "version bigint, restored bigint, moved array<string>")


def _doomed(file: CleanupFile) -> tuple[str, str, int, bool]:
    return file.path, file.kind, file.size_bytes, file.unverified


@dataclass(frozen=True)
class Optimizing:
    """Data files about to be rewritten. Made by `LanceTable.optimize`.

    All methods that rewrite return one row: `fragments_removed`, `fragments_added`, `files_removed` and
    `files_added`. Other writers need not stop meanwhile: appends go in between, and where another writer
    changes rows of a fragment that is being rewritten, what was done to that fragment is done again.

    Attributes:
        table: the table.
        options: how.
        conditions: only fragments that hold a row for which all of them are true.
    """

    table: TableBase
    options: Mapping[str, Any] = field(default_factory=dict)
    conditions: tuple[Expression, ...] = ()

    def where(self, condition: Expression) -> Optimizing:
        """Return the same for the fragments that hold at least one row for which a condition is true.

        Spark looks for them once, before anything is rewritten. Other rows of these fragments are rewritten
        as well; files are not cut by conditions.

        Args:
            condition: SQL text or a Column.
        """
        return replace(self, conditions=(*self.conditions, condition))

    def executeCompaction(self) -> DataFrame:
        """Merge small fragments and drop deleted rows, see `LanceDataset.compact_files`.

        Each group of fragments is one Spark task, which needs memory for a few pages only. If the fragments
        have few stored bytes (`spark.lance.localBytes`), the driver rewrites them itself. One commit adds all
        new files. The driver rebuilds indices that refer to rows by address. `maxSourceBytes` bounds one
        call; calling again continues where the last call ended.

        Raises:
            OptionError: an option does not exist or its value cannot be used.
            RetryableConflictError: other writers were in the way each time.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table uses what is not rewritten here.
        """
        dataset = self.table.dataset()
        chosen = read_options(dataset.manifest.config, self.options)

        def execute(tasks: Sequence[CompactionTask]) -> list[RewriteResult]:
            if sum(task.stored_bytes for task in tasks) <= local_bytes(self.table.spark):
                return execute_all(tasks)
            with step(self.table.spark, f"rewrite {len(tasks)} groups of fragments"):
                return spread(self.table.spark, tasks, CompactionTask.execute)

        with operation(self.table.spark, "compaction", self.table.path):
            only = self._matching(dataset) if self.conditions else None
            metrics = compact_table(
                dataset.snapshot,
                chosen,
                only=only,
                execute=execute,
                remap=SegmentRemap(),
            )
        return self._metrics(metrics)

    def executeSortBy(self, *columns: str) -> DataFrame:
        """Rewrite the rows sorted by columns, nulls first, so that readers can skip what they do not need.

        The files get about `targetRowsPerFragment` rows each, and the sorted rows come after the fragments
        that are not rewritten. With stable row ids the rows keep them, and indices of row ids stay as they
        are; without, indices lose the rewritten rows. The ids and versions of many rows are stored in the new
        data files, which readers older than this format feature refuse. The table's config
        `lance.row_lineage.spill` = false keeps them in the manifest, at up to a hundred bytes a row.

        Args:
            columns: names; dots lead into structs. A direction may follow, as in `id DESC NULLS LAST`.

        Raises:
            SchemaError: a column does not exist, or Spark has no type for it.
            RetryableConflictError: other writers changed the rows each time.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table has blobs, or uses what is not written here.
        """
        return self._cluster(columns, interleaved=False)

    def executeZOrderBy(self, *columns: str) -> DataFrame:
        """Rewrite the rows so that rows with similar values in all of the columns are close to each other.

        See `executeSortBy`. The ranges of the columns come from a sample, so values can be uneven.
        """
        return self._cluster(columns, interleaved=True)

    def _cluster(self, columns: Sequence[str], *, interleaved: bool) -> DataFrame:
        if not columns or not all(isinstance(column, str) for column in columns):
            raise SchemaError("give the names of one or more columns to sort by")
        dataset = self.table.dataset()
        chosen = read_options(dataset.manifest.config, self.options)
        if chosen.defer_index_remap:
            raise OptionError("deferIndexRemap is for compaction: it cannot tell where sorted rows went")

        def attempt(at: Snapshot) -> CompactionMetrics:
            return self._cluster_once(dataset.at(at.manifest), tuple(columns), chosen, interleaved)

        with operation(self.table.spark, "clustering", self.table.path):
            return self._metrics(retry_operation(dataset.snapshot, attempt))

    def _cluster_once(
        self, dataset: LanceDataset, columns: tuple[str, ...], options: CompactionOptions, interleaved: bool
    ) -> CompactionMetrics:
        """Rewrite one version's rows and commit; nothing is left behind if that fails."""
        snapshot, manifest = dataset.snapshot, dataset.manifest
        check_clusterable(manifest)
        old = {fragment.id for fragment in manifest.fragments} - set(options.excluded_fragment_ids)
        if self.conditions:
            old &= self._matching(dataset)
        if not old:
            return CompactionMetrics()
        work = Clustering(self.table.spark, snapshot, frozenset(old), columns, options)
        parts = work.run(interleaved=interleaved)
        new = [data for part in parts for data in part.new]
        try:
            with discarding(lambda: delete_fragment_files(snapshot.table, new)):
                check_parts(snapshot, old, parts)
                commit_parts(snapshot, old, parts)
        except RetryableConflictError as error:
            logger.info("sorting %s: %s", snapshot.root, error)
            raise
        return _moved(manifest, old, parts)

    def _matching(self, dataset: LanceDataset) -> set[int]:
        """Return the ids of the fragments of a version that hold a row of the condition."""
        columns = [*needed_columns(dataset.schema.names, self.conditions), ROW_ADDRESS]
        rows = self.table.read(version=dataset.version, columns=columns_option(columns))
        with analysed("the condition of optimize().where"):
            for condition in self.conditions:
                rows = rows.where(as_column(functions_of(self.table.spark), condition))
        numbers = rows.selectExpr(f"shiftright(`{ROW_ADDRESS}`, 32) AS fragment").distinct()
        with step(self.table.spark, "find fragments with matching rows"):
            return {row.fragment for row in numbers.collect()}

    def _metrics(self, metrics: CompactionMetrics) -> DataFrame:
        row = (
            metrics.fragments_removed,
            metrics.fragments_added,
            metrics.files_removed,
            metrics.files_added,
        )
        return self.table.spark.createDataFrame([row], _METRICS)


def _moved(manifest: Manifest, old: set[int], parts: Sequence[ClusterPart]) -> CompactionMetrics:
    gone = [fragment for fragment in manifest.fragments if fragment.id in old]
    files = sum(len(fragment.files) + fragment.HasField("deletion_file") for fragment in gone)
    added = sum(len(part.new) for part in parts)
    return CompactionMetrics(len(gone), added, files, added)
