"""Names that pylance keeps in its native module."""

from __future__ import annotations

from spark_lance.compat.lance.optimize import Compaction, CompactionMetrics, CompactionPlan, RewriteResult
from spark_lance.compat.lance.scanning import ScanStatistics
from spark_lance.datasets.lance_schema import LanceField, LanceSchema
from spark_lance.table.reading.blobs import BlobFile
from spark_lance.table.versions.cleanup import CleanupStats

__all__ = [
    "BlobFile",
    "CleanupStats",
    "Compaction",
    "CompactionMetrics",
    "CompactionPlan",
    "LanceField",
    "LanceSchema",
    "RewriteResult",
    "ScanStatistics",
]
