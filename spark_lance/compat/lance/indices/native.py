"""Functions of the pylance module `lance.lance.indices`."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from spark_lance.compat.lance.indices.builder import IndicesBuilder
from spark_lance.compat.lance.indices.ivf import IvfModel
from spark_lance.index.vector.quantizers.rabit import RabitQuantizer

__all__ = ["build_rq_model", "train_ivf_model", "train_pq_model"]


def train_ivf_model(
    dataset: Any,
    column: str,
    dimension: int,  # noqa: ARG001
    num_partitions: int,
    distance_type: str,
    sample_rate: int,
    max_iters: int,
    fragment_ids: list[int] | None = None,
) -> pa.FixedSizeListArray:
    """Train and return the centroids of a column."""
    builder = IndicesBuilder(dataset, column)
    options: dict[str, Any] = {"sample_rate": sample_rate, "max_iters": max_iters}
    model = builder.train_ivf(
        num_partitions, distance_type=distance_type, fragment_ids=fragment_ids, **options
    )
    return model.centroids


def train_pq_model(
    dataset: Any,
    column: str,
    dimension: int,  # noqa: ARG001
    num_subvectors: int,
    distance_type: str,
    sample_rate: int,
    max_iters: int,
    ivf_centroids: pa.Array,
    fragment_ids: list[int] | None = None,
    num_bits: int = 8,
) -> pa.FixedSizeListArray:
    """Train and return the codebook of a column."""
    model = IndicesBuilder(dataset, column).train_pq(
        IvfModel(ivf_centroids, distance_type),
        num_subvectors,
        sample_rate=sample_rate,
        max_iters=max_iters,
        num_bits=num_bits,
        fragment_ids=fragment_ids,
    )
    return model.codebook


def build_rq_model(dimension: int, num_bits: int = 5, dtype: str = "float32") -> str:  # noqa: ARG001
    """Return a rotation for `rabitq_model` of `create_index_uncommitted`.

    Raises:
        OptionError: the dimension or the number of bits is invalid.
    """
    notes = RabitQuantizer.train(dimension, num_bits, "l2").notes(lambda _: 0)
    return json.dumps({**notes, "packed": False})
