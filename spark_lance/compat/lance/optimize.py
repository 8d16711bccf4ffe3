"""Maintenance of a dataset. Each method moves the dataset to the new version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.fragment_metadata import FragmentMetadata
from spark_lance.datasets.maintain import Compaction as _Compaction
from spark_lance.table.maintenance import compact_task
from spark_lance.table.maintenance.compact_task import CompactionMetrics, RewriteResult

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionOptions",
    "CompactionPlan",
    "CompactionTask",
    "DatasetOptimizer",
    "RewriteResult",
]


class CompactionOptions(TypedDict, total=False):
    """Options of `compact_files` and of compaction plans, by name."""

    target_rows_per_fragment: int | None
    max_rows_per_group: int | None
    max_bytes_per_file: int | None
    materialize_deletions: bool | None
    materialize_deletions_threshold: float | None
    num_threads: int | None
    batch_size: int | None
    io_buffer_size: int | None
    compaction_mode: str | None
    binary_copy_read_batch_bytes: int | None
    defer_index_remap: bool | None
    max_source_fragments: int | None
    max_source_rows: int | None
    max_source_bytes: int | None
    excluded_fragment_ids: list[int] | None
    data_storage_version: str | None


@raises_os_errors
class DatasetOptimizer:
    """The methods of `LanceDataset.optimize`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments into larger fragments."""
        arguments = {name: value for name, value in options.items() if value is not None}
        for hint in ("max_rows_per_group", "binary_copy_read_batch_bytes"):
            arguments.pop(hint, None)
        if arguments.get("compaction_mode") in ("reencode", "try_binary_copy"):
            arguments.pop("compaction_mode")
        metrics: CompactionMetrics = self._dataset.value.optimize.compact_files(**arguments)
        self._dataset.checkout_latest()
        return metrics

    def optimize_indices(self, **options: Any) -> None:
        """Add the rows that indexes do not cover yet to the indexes.

        `retrain=True` builds each index again from all rows, as one segment.
        """
        if options.get("retrain") or options.get("num_indices_to_merge") is None:
            options.pop("num_indices_to_merge", None)
        if options.get("retrain") is None:
            options.pop("retrain", None)
        self._dataset.value.optimize.optimize_indices(**options)
        self._dataset.checkout_latest()

    def enable_auto_cleanup(self, auto_cleanup_config: Mapping[str, int], **_: Any) -> None:
        """Enable automatic cleanup of old versions."""
        latest = self._dataset.value.checkout_latest()
        self._dataset.value = latest.settings.enable_auto_cleanup(auto_cleanup_config)

    def disable_auto_cleanup(self, **_: Any) -> None:
        """Disable automatic cleanup of old versions."""
        self._dataset.value = self._dataset.value.checkout_latest().settings.disable_auto_cleanup()


@raises_os_errors
@dataclass(frozen=True)
class CompactionTask:
    """A group of fragments to rewrite. Can be pickled.

    Attributes:
        value: the task of this package.
    """

    value: compact_task.CompactionTask

    def __repr__(self) -> str:
        return f"CompactionTask(read_version={self.read_version}, fragments={self.fragments})"

    @property
    def fragments(self) -> list[FragmentMetadata]:
        """The fragments to rewrite."""
        return [FragmentMetadata.of(message) for message in self.value.fragments]

    @property
    def read_version(self) -> int:
        """The version that is read."""
        return self.value.read_version

    def execute(self, dataset: Any) -> RewriteResult:
        """Write the new files and return the result for `Compaction.commit`."""
        return self.value.execute()


@dataclass(frozen=True)
class CompactionPlan:
    """The tasks of a compaction.

    Attributes:
        read_version: the version that the plan is based on.
        tasks: one per group of fragments; they can run in any order and on any machine.
    """

    read_version: int
    tasks: list[CompactionTask]

    def __repr__(self) -> str:
        return (
            f"CompactionPlan(read_version={self.read_version}, tasks=<{self.num_tasks()} compaction tasks>)"
        )

    def num_tasks(self) -> int:
        """Return the number of tasks."""
        return len(self.tasks)


@raises_os_errors
class Compaction:
    """Compaction in steps."""

    @staticmethod
    def plan(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Return the plan: the fragments to rewrite."""
        plan = _Compaction.plan(dataset.value, options)
        return CompactionPlan(plan.read_version, [CompactionTask(task) for task in plan.tasks])

    @staticmethod
    def commit(dataset: Any, rewrites: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Commit the results of a plan, and move the dataset to the new version."""
        metrics = _Compaction.commit(dataset.value, rewrites, options)
        dataset.checkout_latest()
        return metrics

    @staticmethod
    def execute(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Plan, rewrite and commit, and move the dataset to the new version."""
        metrics = _Compaction.execute(dataset.value, options)
        dataset.checkout_latest()
        return metrics
