"""The module that pylance calls `lance`, without pylance: `import spark_lance.compat.lance as lance`.

Datasets change in place, as pylance's do. docs/python.md lists the missing parts.
"""

from __future__ import annotations

from spark_lance.compat.lance import util
from spark_lance.compat.lance.blob import Blob, BlobArray, BlobColumn, blob_array, blob_field
from spark_lance.compat.lance.dataset import (
    DatasetBasePath,
    DataStatistics,
    FieldStatistics,
    Index,
    IndexFile,
    LanceDataset,
    LanceOperation,
    LanceScanner,
    MergeInsertBuilder,
    Transaction,
    dataset,
    write_dataset,
)
from spark_lance.compat.lance.fragment import FragmentMetadata, LanceFragment
from spark_lance.compat.lance.scanning import ScanStatistics
from spark_lance.compat.lance.schema import json_to_schema, schema_to_json
from spark_lance.compat.lance.session import Session
from spark_lance.compat.lance.udf import batch_udf
from spark_lance.io.counters import read_counts
from spark_lance.table.reading.blobs import BlobFile
from spark_lance.table.versions.cleanup import CleanupStats

__version__ = "14.0.2"
__all__ = [
    "Blob",
    "BlobArray",
    "BlobColumn",
    "BlobFile",
    "CleanupStats",
    "DataStatistics",
    "DatasetBasePath",
    "FieldStatistics",
    "FragmentMetadata",
    "Index",
    "IndexFile",
    "LanceDataset",
    "LanceFragment",
    "LanceOperation",
    "LanceScanner",
    "MergeInsertBuilder",
    "ScanStatistics",
    "Session",
    "Transaction",
    "__version__",
    "batch_udf",
    "blob_array",
    "blob_field",
    "bytes_read_counter",
    "dataset",
    "iops_counter",
    "json_to_schema",
    "schema_to_json",
    "util",
    "write_dataset",
]


def iops_counter() -> int:
    """Return how many ranges of bytes this process has read."""
    return read_counts().reads


def bytes_read_counter() -> int:
    """Return how many bytes this process has read."""
    return read_counts().bytes
