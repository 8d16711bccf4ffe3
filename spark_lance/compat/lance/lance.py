"""Names that pylance keeps in its native module."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spark_lance.compat.lance.base import DatasetBase
from spark_lance.compat.lance.optimize import (
    Compaction,
    CompactionMetrics,
    CompactionPlan,
    CompactionTask,
    RewriteResult,
)
from spark_lance.compat.lance.scanning import ScanStatistics
from spark_lance.compat.lance.session import Session
from spark_lance.datasets.lance_schema import LanceField, LanceSchema
from spark_lance.table.reading.blobs import BlobFile
from spark_lance.table.versions.cleanup import CleanupStats

__all__ = [
    "BlobFile",
    "CleanupStats",
    "Compaction",
    "CompactionMetrics",
    "CompactionPlan",
    "CompactionTask",
    "LanceField",
    "LanceSchema",
    "RewriteResult",
    "ScanStatistics",
    "Session",
    "manifest_needs_migration",
]


def __getattr__(name: str) -> Any:
    if name == "indices":
        return import_module("spark_lance.compat.lance.indices.native")
    raise AttributeError(f"module {__name__} has no attribute {name}")


def manifest_needs_migration(dataset: DatasetBase) -> bool:
    """Whether fragments do not tell how many rows they have, or have deleted, as old releases left them."""
    return any(
        not fragment.physical_rows
        or (fragment.HasField("deletion_file") and not fragment.deletion_file.num_deleted_rows)
        for fragment in dataset.value.manifest.message.fragments
    )
