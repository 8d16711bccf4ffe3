"""Table maintenance: compaction (in one call or in steps, as in pylance), index updates, cleanup, repair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spark_lance.errors import OptionError, OptionTypeError
from spark_lance.index.remap import SegmentRemap
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.maintenance.compact import (
    CompactionPlan,
    commit_compaction,
    compact_table,
    plan_compaction,
)
from spark_lance.table.maintenance.compact_plan import read_options
from spark_lance.table.maintenance.compact_task import CompactionMetrics, RewriteResult
from spark_lance.table.maintenance.verify import repair
from spark_lance.table.versions.cleanup import CleanupPolicy, CleanupStats, cleanup

if TYPE_CHECKING:
    from spark_lance.datasets.lance_dataset import LanceDataset


class Compaction:
    """Compaction in steps that can run on different machines: plan, execute each task, commit the results."""

    @staticmethod
    def plan(dataset: LanceDataset, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Return the compaction tasks of a version.

        Args:
            dataset: the version, as a LanceDataset.
            options: options of `compact_files` by name.

        Raises:
            OptionError: an option does not exist or has a bad value.
            UnsupportedFormatError: the table uses a feature that this package cannot rewrite.
        """
        settings = read_options(dataset.manifest.config, options or {})
        return plan_compaction(dataset.snapshot, settings, None, SegmentRemap())

    @staticmethod
    def commit(
        dataset: LanceDataset,
        rewrites: Sequence[RewriteResult],
        options: Mapping[str, Any] | None = None,  # noqa: ARG004 (pylance's signature)
    ) -> CompactionMetrics:
        """Commit the results of tasks of one plan atomically.

        Args:
            dataset: the table.
            rewrites: the results. An empty sequence commits nothing.
            options: ignored; for compatibility with pylance.

        Raises:
            RetryableConflictError: another writer changed a rewritten fragment. The new files are kept: plan
                again, or commit fewer results.
            CommitError: the commit failed; see its other subclasses.
        """
        if not rewrites:
            return CompactionMetrics()
        versions = {result.read_version for result in rewrites}
        if len(versions) > 1:
            raise OptionError(f"results of several plans, made from the versions {sorted(versions)}")
        return commit_compaction(dataset.table, versions.pop(), rewrites, SYSTEM_ENV, SegmentRemap())

    @staticmethod
    def execute(dataset: LanceDataset, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Plan, execute and commit a compaction; the same as `LanceDataset.optimize.compact_files`."""
        settings = read_options(dataset.manifest.config, options or {})
        return compact_table(dataset.snapshot, settings, remap=SegmentRemap())


@dataclass(frozen=True)
class DatasetOptimizer:
    """Methods for compaction, index maintenance, cleanup and repair. Get it as `LanceDataset.optimize`."""

    dataset: LanceDataset

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Merge small fragments and fragments with many deleted rows into larger ones.

        Rows keep their order, their stable row ids and their versions. Only adjacent fragments are merged; a
        small fragment between two large ones is not rewritten. If another writer changes the rows during
        the compaction, the compaction retries with the newest version. The dataset stays at its version: open
        the new one with `checkout_version(latest_version)`.

        Indexes that refer to rows by address are rewritten with the new addresses. With `defer_index_remap`
        (only without stable row ids), the commit only records the moves of rows. With `remap_indices=False`,
        the indexes no longer cover the rewritten fragments. Zone maps and Bloom filters never cover them.

        Args:
            options: `target_rows_per_fragment` (1048576), `max_bytes_per_file` (90 GiB),
                `materialize_deletions` (True) and `materialize_deletions_threshold` (0.1),
                `defer_index_remap` (False), `remap_indices` (True), `num_threads` (1), `batch_size`,
                `max_source_fragments`, `max_source_rows`, `max_source_bytes`, `excluded_fragment_ids`,
                `data_storage_version` ("2.0", "2.1" or "2.2"; default: the table's). See
                `CompactionOptions`. The table config `lance.compaction.<option>` sets a default for the
                table.

        Returns:
            The numbers of removed and added fragments and files.

        Raises:
            OptionError: an option does not exist or has a bad value.
            RetryableConflictError: every attempt conflicted with other writers.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table uses a feature that this package cannot rewrite.
        """
        settings = read_options(self.dataset.manifest.config, options)
        return compact_table(self.dataset.snapshot, settings, remap=SegmentRemap())

    def optimize_indices(
        self,
        *,
        num_indices_to_merge: int | None = None,
        index_names: Sequence[str] | None = None,
        retrain: bool = False,
    ) -> None:
        """Add rows to indexes that do not cover them yet.

        The dataset stays at its version. Open the new one with `checkout_version(latest_version)`.

        Args:
            num_indices_to_merge: how many of the newest segments of an index to merge with the new rows. 0
                adds a segment. Default: merge all segments.
            index_names: names of the indexes. Default: all indexes of types that this package can extend. An
                index in a format too old to read is skipped with a warning in the log.
            retrain: whether to build each index again from all rows, as one segment. A vector index gets new
                centroids and codewords, and the default number of partitions for its rows.

        Raises:
            IndexNotFoundError: an index does not exist, or this package cannot extend its type.
            CommitError: a commit failed; see its subclasses.
        """
        self.dataset.indices.optimize(
            num_indices_to_merge=num_indices_to_merge, index_names=index_names, retrain=retrain
        )

    def cleanup_old_versions(
        self,
        older_than: timedelta | None = None,
        retain_versions: int | None = None,
        *,
        delete_unverified: bool = False,
        error_if_tagged_old_versions: bool = True,
        delete_rate_limit: int | None = None,
        versions: Sequence[int] | None = None,
        dry_run: bool = False,
    ) -> CleanupStats:
        """Delete old versions of this branch, and the files that only they need.

        A version is deleted if it meets every one of `older_than`, `retain_versions` and `versions` that is
        set. If none is set, versions older than two weeks are deleted. This version and later ones, tagged
        versions, and the start versions of branches are kept, with every file that they or a branch need.
        Clones are unknown to this table: they lose files that only deleted versions need.

        As in pylance, there is no minimum age: readers of a deleted version lose its files.
        `LanceTable.vacuum` and the CLI command `vacuum` keep versions younger than 24 hours.

        Args:
            older_than: delete only versions older than this.
            retain_versions: number of newest versions to keep.
            delete_unverified: delete files that no version references regardless of their age. By default
                they must be seven days old. Use it only while nobody writes to the table.
            error_if_tagged_old_versions: whether to raise an error if a version to delete has a tag. If
                false, the version is kept.
            delete_rate_limit: maximum number of files to delete per second.
            versions: delete only versions with these numbers.
            dry_run: delete nothing; `files` of the result lists the files that would be deleted.

        Returns:
            The numbers of deleted bytes, versions and files.

        Raises:
            OptionError: an argument has a bad value, or a version to delete has a tag.
            FormatError, UnsupportedFormatError: a version cannot be read; nothing was deleted.
        """
        if older_than is not None and not isinstance(older_than, timedelta):
            raise OptionTypeError(f"older_than is a timedelta, as in timedelta(days=14), not {older_than!r}")
        if retain_versions is not None and not hasattr(retain_versions, "__index__"):
            raise OptionTypeError(f"retain_versions is a whole number, such as 3, not {retain_versions!r}")
        policy = CleanupPolicy(
            older_than, retain_versions, versions, delete_unverified, error_if_tagged_old_versions
        )
        return cleanup(
            self.dataset.table,
            self.dataset.manifest,
            policy,
            dry_run=dry_run,
            delete_rate_limit=delete_rate_limit,
        )

    def repair(self) -> LanceDataset:
        """Move torn manifests aside, such as after a power failure, and return the newest version.

        If the newest manifest is torn, the newest intact version is restored under the next free number. The
        torn files are moved to `_torn/`; nothing is deleted.

        Raises:
            TornManifestError: no version has an intact manifest.
            CommitError: the restore failed; see its subclasses. Nothing was moved.
        """
        return self.dataset.at(repair(self.dataset.table).manifest)
