"""Upkeep that moves a dataset to the version it makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.datasets.maintain import Compaction as _Compaction
from spark_lance.table.maintenance.compact import CompactionMetrics, CompactionPlan, RewriteResult

__all__ = [
    "Compaction",
    "CompactionMetrics",
    "CompactionPlan",
    "DatasetOptimizer",
    "RewriteResult",
]


@raises_os_errors
class DatasetOptimizer:
    """The methods of `LanceDataset.optimize`."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def compact_files(self, **options: Any) -> CompactionMetrics:
        """Rewrite small fragments to larger ones."""
        arguments = {name: value for name, value in options.items() if value is not None}
        for hint in ("max_rows_per_group", "binary_copy_read_batch_bytes"):
            arguments.pop(hint, None)
        if arguments.get("compaction_mode") in ("reencode", "try_binary_copy"):
            arguments.pop("compaction_mode")
        metrics: CompactionMetrics = self._dataset.value.optimize.compact_files(**arguments)
        self._dataset.checkout_latest()
        return metrics

    def optimize_indices(self, **options: Any) -> None:
        """Index the rows that indices do not cover yet."""
        for hint in ("retrain", "num_indices_to_merge"):
            if options.get(hint) is None:
                options.pop(hint, None)
        self._dataset.value.optimize.optimize_indices(**options)
        self._dataset.checkout_latest()

    def enable_auto_cleanup(self, auto_cleanup_config: Mapping[str, int], **_: Any) -> None:
        """Let the table clean up by itself."""
        latest = self._dataset.value.checkout_latest()
        self._dataset.value = latest.settings.enable_auto_cleanup(auto_cleanup_config)

    def disable_auto_cleanup(self, **_: Any) -> None:
        """Let the table clean up no more by itself."""
        self._dataset.value = self._dataset.value.checkout_latest().settings.disable_auto_cleanup()


@raises_os_errors
class Compaction:
    """Compaction in steps."""

    @staticmethod
    def plan(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionPlan:
        """Return what there is to rewrite."""
        return _Compaction.plan(dataset.value, options)

    @staticmethod
    def commit(dataset: Any, rewrites: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Commit results; the dataset moves to the new version."""
        metrics = _Compaction.commit(dataset.value, rewrites, options)
        dataset.checkout_latest()
        return metrics

    @staticmethod
    def execute(dataset: Any, options: Mapping[str, Any] | None = None) -> CompactionMetrics:
        """Plan, rewrite and commit; the dataset moves to the new version."""
        metrics = _Compaction.execute(dataset.value, options)
        dataset.checkout_latest()
        return metrics
