"""SQ: each value of a vector is one of 256 steps between a lower and an upper bound, common to all values.

    __sq_code: fixed_size_list<uint8>[dim]
    metadata {"dim": 32, "num_bits": 8, "bounds": {"start": -4.88, "end": 3.76}}

A value's code is (value - start) * 255 / (end - start), computed in float64, truncated, and clipped to 0 and
255. l2 and cosine compare codes with the query's codes; dot compares decoded values with the query.
(Lance index format, SQ.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
)
from spark_lance.index.vector.quantizers.quantized_points import Matrix, NarrowCodes, squares

_COLUMN = "__sq_code"
_STEPS = 255
# float32 represents all integers up to this one exactly.
_MAX_EXACT = 1 << 24


@dataclass(frozen=True)
class ScalarQuantizer(Quantizer):
    """Scalar quantizer: the bounds of all values of vectors with `dim` values."""

    name = "SQ"
    dim: int
    start: float
    end: float
    metric: Metric

    @classmethod
    def train(cls, sample: Vectors, metric: Metric) -> ScalarQuantizer:
        """Return a quantizer with the bounds of a sample (n, dim)."""
        return cls(sample.shape[1], float(sample.min()), float(sample.max()), metric)

    @classmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> ScalarQuantizer:
        """Return a quantizer with the bounds of a sample."""
        return cls.train(sample, training.metric)

    @property
    def _step(self) -> float:
        return (self.end - self.start) / _STEPS

    def _codes(self, vectors: Vectors) -> npt.NDArray[np.uint8]:
        if self.end <= self.start:
            return np.zeros(vectors.shape, dtype=np.uint8)
        scaled = (vectors.astype(np.float64) - self.start) * _STEPS / (self.end - self.start)
        return np.clip(scaled, 0, _STEPS, out=scaled).astype(np.uint8)

    def columns(self) -> list[pa.Field]:
        """Return the stored column."""
        return [vector_column(_COLUMN, self.dim, pa.uint8())]

    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the codes of the values."""
        return {_COLUMN: self._codes(vectors)}

    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the bounds."""
        return {"dim": self.dim, "num_bits": 8, "bounds": {"start": self.start, "end": self.end}}

    def summary(self) -> dict[str, int]:
        """Return the number of bits."""
        return {"num_bits": 8}

    def same_codes(self, other: Quantizer) -> bool:
        """Return whether the other quantizer has the same bounds."""
        return isinstance(other, ScalarQuantizer) and (self.start, self.end) == (other.start, other.end)

    def scorer(self, codes: Codes) -> Scorer:
        """Return a scorer over the codes."""
        # Copy, because the array may be a view of a larger one.
        points = NarrowCodes(codes[_COLUMN].copy())
        if self.metric == "dot":
            return Scorer(points, np.ones(len(points.codes), dtype=np.float32), -float(self._step))
        square = self._step**2
        add = points.squares() * np.float32(square)
        return Scorer(points, add, -2 * square, whole=points.shape[1] * _STEPS**2 <= _MAX_EXACT)

    def comparable(self, codes: Codes) -> Matrix:
        """Return the decoded values of the codes."""
        decoded: Matrix = codes[_COLUMN].astype(np.float32)
        decoded *= np.float32(self._step)
        decoded += np.float32(self.start)
        return decoded

    def prepare(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return the codes of the queries, or the queries themselves with dot."""
        if self.metric == "dot":
            points: Matrix = queries.vectors.astype(np.float32)
            return PreparedQuery(points, (-self.start * points.sum(axis=1)).astype(np.float32))
        points = self._codes(queries.vectors).astype(np.float32)
        return PreparedQuery(points, squares(points) * np.float32(self._step**2))

    @classmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> ScalarQuantizer:
        """Return the quantizer of a file."""
        try:
            bounds = notes["bounds"]
            dim, bits = int(notes["dim"]), int(notes["num_bits"])
            start, end = float(bounds["start"]), float(bounds["end"])
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"malformed metadata of scalar codes: {error!r}") from error
        if bits != 8 or dim < 1:
            raise FormatError(f"scalar codes of {bits} bits for {dim} values")
        return cls(dim, start, end, metric)
