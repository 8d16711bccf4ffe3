"""Centroids of a vector index, as a value that files can store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.file import LanceFileReader, LanceFileWriter

__all__ = ["IvfModel", "load_model", "save_model"]


def save_model(uri: str, name: str, values: pa.Array, notes: Mapping[str, str], options: Any) -> None:
    """Write a file of one column, with notes in its schema."""
    schema = pa.schema([pa.field(name, values.type)], metadata=dict(notes))
    with LanceFileWriter(uri, schema, storage_options=options) as writer:
        writer.write_batch(pa.table([values], schema=schema))


def load_model(uri: str, name: str, options: Any) -> tuple[pa.Array, Mapping[str, str]]:
    """Return the column of a file that `save_model` wrote, and its notes."""
    reader = LanceFileReader(uri, storage_options=options)
    metadata = reader.metadata().schema.metadata or {}
    column = reader.read_all().to_table().column(name)
    return column.combine_chunks(), {key.decode(): value.decode() for key, value in metadata.items()}


class IvfModel:
    """Centroids.

    Attributes:
        centroids: a fixed-size list per partition.
        distance_type: l2, cosine, dot or hamming.
    """

    def __init__(self, centroids: pa.Array, distance_type: str) -> None:
        self.centroids = centroids
        self.distance_type = distance_type

    @property
    def num_partitions(self) -> int:
        """The number of centroids."""
        return len(self.centroids)

    def save(self, uri: str, *, storage_options: Mapping[str, str] | None = None) -> None:
        """Write it as a file."""
        save_model(uri, "centroids", self.centroids, {"distance_type": self.distance_type}, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> IvfModel:
        """Read it from a file."""
        centroids, notes = load_model(uri, "centroids", storage_options)
        return cls(centroids, notes["distance_type"])
