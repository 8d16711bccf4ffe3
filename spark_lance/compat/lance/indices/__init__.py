"""Kinds of indices and their options as values."""

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
    """The kinds of indices that `merge_index_metadata` puts together from parts."""

    BTREE = "BTREE"
    INVERTED = "INVERTED"
    BITMAP = "BITMAP"
    LABEL_LIST = "LABEL_LIST"
    NGRAM = "NGRAM"
    ZONEMAP = "ZONEMAP"
    BLOOMFILTER = "BLOOMFILTER"


class IndexFileVersion(str, enum.Enum):
    """The format of the files of vector indices."""

    LEGACY = "Legacy"
    V3 = "V3"
