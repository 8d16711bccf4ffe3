"""FLAT: unencoded vectors.

    flat: fixed_size_list<T>[dim]      T is the type of the column; normalized with cosine
    metadata {"dim": 32}

(Lance index format, FLAT.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numpy_type
from spark_lance.errors import FormatError
from spark_lance.index.vector.base.ivf import Ivf
from spark_lance.index.vector.base.metrics import Metric, Vectors
from spark_lance.index.vector.quantizers.base import (
    Codes,
    PreparedQuery,
    Quantizer,
    Queries,
    Scorer,
    Training,
    vector_column,
    zero_shifts,
)
from spark_lance.index.vector.quantizers.quantized_points import Matrix, squares


@dataclass(frozen=True)
class Flat(Quantizer):
    """Flat quantizer: vectors of `dim` values with a numpy `dtype`."""

    name = "FLAT"
    squares_cosine = False
    keeps_bits = True
    dim: int
    dtype: np.dtype[Any]
    metric: Metric

    @classmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> Flat:
        """Return the quantizer for the shape and dtype of the sample."""
        return cls(sample.shape[1], dtype, training.metric)

    def columns(self) -> list[pa.Field]:
        """Return the stored column."""
        return [vector_column("flat", self.dim, pa.from_numpy_dtype(self.dtype))]

    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the vectors with the dtype of the column."""
        return {"flat": vectors.astype(self.dtype, copy=False)}

    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the dimension."""
        return {"dim": self.dim}

    def summary(self) -> dict[str, int]:
        """Return no fields: the details message is empty."""
        return {}

    def same_codes(self, other: Quantizer) -> bool:
        """Return whether the other quantizer is flat with the same dimension."""
        return isinstance(other, Flat) and other.dim == self.dim

    def scorer(self, codes: Codes) -> Scorer:
        """Return a scorer over the vectors. Hamming bits become 0 and 1, with the same l2 distance."""
        if self.metric == "hamming":
            points: Matrix = np.unpackbits(codes["flat"], axis=1).astype(np.float32)
            return Scorer(points, squares(points), -2.0, direct=True)
        points = codes["flat"].astype(np.float32, copy=False)
        if self.metric == "l2":
            return Scorer(points, squares(points), -2.0, direct=True)
        ones = np.ones(len(points), dtype=np.float32)
        if self.metric == "dot":
            return Scorer(points, ones, -1.0)
        # Other writers may store vectors that are not normalized.
        lengths: Matrix = np.sqrt(squares(points))
        lengths[lengths == 0] = 1
        return Scorer(points, ones, np.float32(-1) / lengths)

    def prepare(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return the queries as points. The centroid does not matter."""
        vectors = queries.vectors
        points: Matrix = (np.unpackbits(vectors, axis=1) if self.metric == "hamming" else vectors).astype(
            np.float32
        )
        if self.metric in ("l2", "hamming"):
            return PreparedQuery(points, squares(points))
        return PreparedQuery(points, zero_shifts(len(points)))

    @classmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> Flat:
        """Return the quantizer of a file."""
        dim = notes.get("dim")
        if not isinstance(dim, int) or dim < 1:
            raise FormatError(f"a flat vector index of dimension {dim!r}")
        try:
            dtype = numpy_type(columns.field("flat").type.value_type)
        except (KeyError, AttributeError, TypeError) as error:
            raise FormatError(f"a flat vector index without a column of vectors: {error}") from error
        return cls(dim, dtype, metric)
