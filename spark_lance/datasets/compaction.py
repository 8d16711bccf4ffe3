"""Compaction in steps, as pylance has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from spark_lance.errors import OptionError
from spark_lance.index.remap import SegmentRemap
from spark_lance.table.commits.commit import SYSTEM_ENV
from spark_lance.table.maintenance.compact import (
    CompactionMetrics,
    CompactionPlan,
    RewriteResult,
    commit_compaction,
    compact_table,
    plan_compaction,
)
from spark_lance.table.maintenance.compact_plan import read_options

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
        chosen = read_options(dataset.manifest.config, options or {})
        return plan_compaction(dataset.snapshot, chosen, None, SegmentRemap())

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
        chosen = read_options(dataset.manifest.config, options or {})
        return compact_table(dataset.snapshot, chosen, remap=SegmentRemap())
