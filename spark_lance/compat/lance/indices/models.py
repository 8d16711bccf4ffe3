"""Results of training vector indices, as values that can be stored in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.file import LanceFileReader, LanceFileWriter

__all__ = ["IvfModel", "PqModel"]


def _save(uri: str, name: str, values: pa.Array, notes: Mapping[str, str], options: Any) -> None:
    schema = pa.schema([pa.field(name, values.type)], metadata=dict(notes))
    with LanceFileWriter(uri, schema, storage_options=options) as writer:
        writer.write_batch(pa.table([values], schema=schema))


def _load(uri: str, name: str, options: Any) -> tuple[pa.Array, Mapping[str, str]]:
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
        _save(uri, "centroids", self.centroids, {"distance_type": self.distance_type}, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> IvfModel:
        """Read it from a file."""
        centroids, notes = _load(uri, "centroids", storage_options)
        return cls(centroids, notes["distance_type"])


class PqModel:
    """Codewords.

    Attributes:
        num_subvectors: parts of a vector that have codewords of their own.
        codebook: their values in the order [part][codeword][value], in lists as long as a vector.
        num_bits: of a code.
    """

    def __init__(self, num_subvectors: int, codebook: pa.FixedSizeListArray, *, num_bits: int = 8) -> None:
        self.num_subvectors = num_subvectors
        self.codebook = codebook
        self.num_bits = num_bits

    @property
    def dimension(self) -> int:
        """The length of the vectors."""
        size: int = self.codebook.type.list_size
        return size

    def save(self, uri: str, *, storage_options: Mapping[str, str] | None = None) -> None:
        """Write it as a file."""
        notes = {"num_subvectors": str(self.num_subvectors), "num_bits": str(self.num_bits)}
        _save(uri, "codebook", self.codebook, notes, storage_options)

    @classmethod
    def load(cls, uri: str, *, storage_options: Mapping[str, str] | None = None) -> PqModel:
        """Read it from a file."""
        codebook, notes = _load(uri, "codebook", storage_options)
        return cls(int(notes["num_subvectors"]), codebook, num_bits=int(notes.get("num_bits", "8")))
