"""Keeping a table small and fast; compaction in one call, or in steps as in pylance."""

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
        """Return what there is to rewrite in a version.

        Args:
            dataset: the version, as a LanceDataset.
            options: options of `compact_files` by name.

        Raises:
            OptionError: an option cannot be used.
            UnsupportedFormatError: the table uses what is not rewritten here.
        """
        settings = read_options(dataset.manifest.config, options or {})
        return plan_compaction(dataset.snapshot, settings, None, SegmentRemap())

    @staticmethod
    def commit(
        dataset: LanceDataset,
        rewrites: Sequence[RewriteResult],
        options: Mapping[str, Any] | None = None,  # noqa: ARG004 (pylance's signature)
    ) -> CompactionMetrics:
        """Commit the results of tasks of one plan, all or none of them.

        Args:
            dataset: the table.
            rewrites: the results; none is fine and commits nothing.
            options: not needed; taken because pylance takes them.

        Raises:
            RetryableConflictError: a rewritten fragment has been changed meanwhile. The new files stay: plan
                anew, or commit fewer results.
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
        """Plan, rewrite and commit; the same as `compact_files`."""
        settings = read_options(dataset.manifest.config, options or {})
        return compact_table(dataset.snapshot, settings, remap=SegmentRemap())


@dataclass(frozen=True)
class DatasetOptimizer:
    """Compaction, upkeep of indices, clean-up and repair. Made by `LanceDataset.optimize`."""

    dataset: LanceDataset

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments, and those with many deleted rows, to few larger ones.

        Rows keep their order inside what is rewritten, their ids (where these are stable) and their versions.
        Neighbours are put together; a small fragment between two large ones stays. The rows of this version
        are rewritten; where another writer changes them meanwhile, it is done again with the newest version.
        The new version is not this one: open it with `checkout_version(latest_version)`.

        Indices that refer to rows by address are rewritten with the new addresses. With `defer_index_remap`
        (not with stable row ids) only a record says where rows went. With `remap_indices=False` they no
        longer cover the rewritten fragments. Zone maps and Bloom filters never cover them.

        Args:
            options: `target_rows_per_fragment` (1048576), `max_bytes_per_file` (90 GiB),
                `materialize_deletions` (True) and `materialize_deletions_threshold` (0.1),
                `defer_index_remap` (False), `remap_indices` (True), `num_threads` (1), `batch_size`,
                `max_source_fragments`, `max_source_rows`, `max_source_bytes`, `excluded_fragment_ids`,
                `data_storage_version` ("2.0", "2.1" or "2.2"; by default the table's). See
                `CompactionOptions`. Defaults can be put in the table's config under `lance.compaction.` and
                the option's name.

        Raises:
            OptionError: an option does not exist or its value cannot be used.
            RetryableConflictError: other writers were in the way each time.
            CommitError: the commit failed; see its other subclasses.
            UnsupportedFormatError: the table uses what is not rewritten here.
        """
        settings = read_options(self.dataset.manifest.config, options)
        return compact_table(self.dataset.snapshot, settings, remap=SegmentRemap())

    def optimize_indices(
        self, *, num_indices_to_merge: int | None = None, index_names: Sequence[str] | None = None
    ) -> None:
        """Index the rows that indices do not cover yet.

        The new version is not the dataset's: open it with `checkout_version(latest_version)`.

        Args:
            num_indices_to_merge: how many of the newest segments of an index become one with the new rows. 0
                adds a segment; by default all are merged.
            index_names: the indices; by default all that are known here; those whose form is too
                old to be read are passed over with a warning in the log.

        Raises:
            IndexNotFoundError: there is no index of a name, or it is of a kind that is not built here.
            CommitError: a commit failed; see its subclasses.
        """
        self.dataset.indices.optimize(num_indices_to_merge=num_indices_to_merge, index_names=index_names)

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
        """Delete old versions of this line, and the files that only they need.

        Versions go to which all of `older_than`, `retain_versions` and `versions` apply, as far as they are
        given; without any of them, those older than two weeks. This version and later ones, tagged versions
        and those at which a branch begins stay, and so does every file that they or a branch need. Clones of
        the table at other places are not known: they lose what only old versions need.

        As with pylance, no version is too young to go: readers of a version that goes lose its files. The
        method `LanceTable.vacuum` and the command `vacuum` keep what is younger than 24 hours.

        Args:
            older_than: age of the versions that go.
            retain_versions: how many of the newest stay.
            delete_unverified: delete files that no version names whatever their age, not just those that are
                seven days old. Do so only while nobody writes to the table.
            error_if_tagged_old_versions: raise if a version that would go has a tag; otherwise it stays.
            delete_rate_limit: files to delete in a second at most.
            versions: the versions that may go.
            dry_run: delete nothing; `files` of the result says what would go.

        Raises:
            OptionError: an argument cannot be used, or a version that would go has a tag.
            FormatError, UnsupportedFormatError: a version cannot be read; nothing was deleted.
        """
        if older_than is not None and not isinstance(older_than, timedelta):
            raise OptionTypeError(f"older_than is a timedelta, as in timedelta(days=14), not {older_than!r}")
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
        """Move manifests that are not whole aside, as after a power failure, and return the newest version.

        If the newest manifest is torn, the newest whole version is restored under the next free number. The
        torn files go to `_torn/`; nothing is deleted.

        Raises:
            TornManifestError: no version is whole.
            CommitError: the restore failed; see its subclasses. Nothing was moved.
        """
        return self.dataset.at(repair(self.dataset.table).manifest)
