"""Index types, their options, and models of vector indexes."""

from __future__ import annotations

import enum

from spark_lance.compat.lance.changes import IndexConfig
from spark_lance.compat.lance.indices.builder import IndicesBuilder
from spark_lance.compat.lance.indices.ivf import IvfModel
from spark_lance.compat.lance.indices.pq import PqModel

__all__ = [
    "IndexConfig",
    "IndexFileVersion",
    "IndicesBuilder",
    "IvfModel",
    "PqModel",
    "SupportedDistributedIndices",
]


class SupportedDistributedIndices(str, enum.Enum):
    """The index types whose parts `merge_index_metadata` can merge."""

    BTREE = "BTREE"
    INVERTED = "INVERTED"
    BITMAP = "BITMAP"
    LABEL_LIST = "LABEL_LIST"
    NGRAM = "NGRAM"
    ZONEMAP = "ZONEMAP"
    BLOOMFILTER = "BLOOMFILTER"


class IndexFileVersion(str, enum.Enum):
    """The file format of vector indexes."""

    LEGACY = "Legacy"
    V3 = "V3"
