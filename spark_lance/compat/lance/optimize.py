"""Maintenance of a dataset. Each method moves the dataset to the new version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.maintain import Compaction as _Compaction
from spark_lance.table.maintenance.compact import CompactionPlan
from spark_lance.table.maintenance.compact_task import CompactionMetrics, CompactionTask, RewriteResult

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
class Compaction:
    """Compaction in steps."""

    @staticmethod
    def plan(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Return the plan: the fragments to rewrite."""
        return _Compaction.plan(dataset.value, options)

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
