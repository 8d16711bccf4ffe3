"""Centroids of a vector index, with methods to save and load them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.file import LanceFileReader, LanceFileWriter

__all__ = ["IvfModel", "load_model", "save_model"]


def save_model(uri: str, name: str, values: pa.Array, notes: Mapping[str, str], options: Any) -> None:
    """Write a file with one column and with `notes` as its schema metadata."""
    schema = pa.schema([pa.field(name, values.type)], metadata=dict(notes))
    with LanceFileWriter(uri, schema, storage_options=options) as writer:
        writer.write_batch(pa.table([values], schema=schema))


def load_model(uri: str, name: str, options: Any) -> tuple[pa.Array, Mapping[str, str]]:
    """Return the column and the notes of a file from `save_model`."""
    reader = LanceFileReader(uri, storage_options=options)
    metadata = reader.metadata().schema.metadata or {}
    column = reader.read_all().to_table().column(name)
    return column.combine_chunks(), {key.decode(): value.decode() for key, value in metadata.items()}


class IvfModel:
    """The centroids of a vector index.

    Attributes:
        centroids: one fixed-size list per partition.
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
        """Write the model to a file."""
        save_model(uri, "centroids", self.centroids, {"distance_type": self.distance_type}, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> IvfModel:
        """Return the model from a file."""
        centroids, notes = load_model(uri, "centroids", storage_options)
        return cls(centroids, notes["distance_type"])
