"""Base classes of the vector encodings of a partition.

All encodings estimate a distance by the same formula, which BLAS computes for many queries and rows at once:

    distance(query, row) = gain[query] * add[row] + scale[row] * <q, point[row]> + shift[query]

`points`, `add` and `scale` come from the stored codes of a partition (`Scorer`). q, `shift` and `gain`
(usually 1) come from the query and the partition's centroid (`Quantizer.prepare`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.index.vector.base.ivf import Ivf
from spark_lance.index.vector.base.metrics import Metric, Vectors
from spark_lance.index.vector.quantizers.quantized_points import Matrix, QuantizedPoints, Rows, squares

# Above `_ONE_THREAD` values, BLAS uses all cores for a product and busy-waits for them. A query of ten
# partitions would wait ten times for cores that others use. Above `_MOST_ALONE` values, all cores are faster.
_ONE_THREAD = 1 << 18
_MAX_ONE_THREAD = 1 << 23
# For narrower vectors, a numpy loop reads memory no faster than BLAS.
_MIN_EINSUM_WIDTH = 64
_ROUNDING = float(np.finfo(np.float32).epsneg)
# Column name -> one row per vector: (n,) or (n, width).
Codes = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Queries:
    """A batch of query vectors, before they are prepared for a partition.

    Attributes:
        vectors: (q, dim), prepared by `Ivf.prepared`.
        rotated: (q, dim), rotated if the quantizer rotates, otherwise the same as `vectors`.
    """

    vectors: Vectors
    rotated: Vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | npt.NDArray[np.integer[Any]]) -> Queries:
        """Return the selected queries."""
        return Queries(self.vectors[rows], self.rotated[rows])


@dataclass(frozen=True)
class PreparedQuery:
    """Queries prepared for comparison with the rows of one partition.

    Attributes:
        points: (q, width) float32.
        shift: (q,) float32.
        gain: (q,) float32, or one value for all queries.
    """

    points: Matrix
    shift: Matrix
    gain: Matrix | float = 1.0


@dataclass(frozen=True)
class Scorer:
    """The rows of one partition, ready for comparison.

    Attributes:
        points: (n, width) float32, or codes for such points.
        add: (n,) float32.
        scale: (n,) float32, or one value for all rows.
        direct: whether distances are squared differences. `select_distances` then computes them directly for
            the nearest rows, without the rounding error of the formula, which matters for distances near 0.
        whole: whether points and queries are integers whose products have no rounding error.
    """

    points: Matrix | QuantizedPoints
    add: Matrix
    scale: Matrix | float
    direct: bool = False
    whole: bool = False

    def distances(self, query: PreparedQuery) -> Matrix:
        """Return the estimated distances of queries to all rows: (q, n) float32."""
        result: Matrix
        if isinstance(self.points, QuantizedPoints):
            result = np.empty((len(query.points), self.points.shape[0]), dtype=np.float32)
            self.points.products(query.points, result)
        else:
            result = query.points @ self.points.T
        result *= self.scale
        result += self.add if isinstance(query.gain, float) else np.multiply.outer(query.gain, self.add)
        result += query.shift[:, None]
        return np.maximum(result, 0, out=result) if self.direct else result

    def estimate(self, query: PreparedQuery, out: Matrix, *, afar: bool = False) -> None:
        """Write the estimated distances of one query to all rows into `out`.

        Args:
            query: the query.
            out: (n,) float32.
            afar: whether the rows are probably not in a core's cache.
        """
        self.write_products(query, out, afar=afar)
        self.finish(query, out)

    def write_products(self, query: PreparedQuery, out: Matrix, *, afar: bool) -> None:
        """Write the products of one query with all points into `out`; arguments as for `estimate`."""
        if isinstance(self.points, QuantizedPoints):
            self.points.products(query.points, out[None])
        elif (
            afar
            and self.points.shape[1] >= _MIN_EINSUM_WIDTH
            and self.points.size <= _MAX_ONE_THREAD
            and (self.direct or self.whole)
        ):
            # Reads memory 1.5 times as fast as BLAS. The order of the sum differs, which is fine here.
            np.einsum("ij,j->i", self.points, query.points[0], out=out, casting="same_kind")
        else:
            self._products(self.points, query, out)

    def finish(self, query: PreparedQuery, out: Matrix) -> None:
        """Turn the products of one query with all points, in `out`, into distances."""
        out *= self.scale
        out += self.add if isinstance(query.gain, float) else self.add * query.gain[0]
        out += query.shift[0]

    def _products(self, points: Matrix, query: PreparedQuery, out: Matrix) -> None:
        """Write the products of one query with all rows, in one BLAS thread unless there are very many."""
        rows, width = points.shape
        step = rows if points.size > _MAX_ONE_THREAD else max(1, _ONE_THREAD // max(1, width))
        for start in range(0, rows, step):
            part = slice(start, start + step)
            np.matmul(points[part], query.points[0], out=out[part], casting="same_kind")

    def part(self, rows: Rows) -> Scorer:
        """Return the scorer of some of the rows."""
        points = self.points.part(rows) if isinstance(self.points, QuantizedPoints) else self.points[rows]
        scale = self.scale if isinstance(self.scale, float) else self.scale[rows]
        return replace(self, points=points, add=self.add[rows], scale=scale)

    def decoded(self) -> Scorer:
        """Return a scorer with the points decoded to floats."""
        return (
            replace(self, points=self.points.floats()) if isinstance(self.points, QuantizedPoints) else self
        )

    def rounding(self, query: PreparedQuery) -> float:
        """Return the maximum error of the estimates of one query; 0 unless `direct`."""
        return self._rounding * (self._max_add + float(query.shift[0])) if self.direct else 0.0

    @cached_property
    def _max_add(self) -> float:
        return float(self.add.max(initial=0))

    @cached_property
    def _rounding(self) -> float:
        # The error of a sum of n products is at most n rounding errors, and there are two such sums.
        return 2 * int(self.points.shape[1]) * _ROUNDING

    def select_distances(self, query: PreparedQuery, rows: npt.NDArray[np.integer[Any]]) -> Matrix:
        """Return the distances of one query to the given rows."""
        if self.direct:
            return squares(self.points[rows] - query.points)
        scale = self.scale if isinstance(self.scale, float) else self.scale[rows]
        add = self.add[rows] if isinstance(query.gain, float) else self.add[rows] * query.gain[0]
        result: Matrix = (self.points[rows] @ query.points[0]) * scale + add + query.shift[0]
        return result

    @cached_property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        scale = 0 if isinstance(self.scale, float) else self.scale.nbytes
        return self.points.nbytes + self.add.nbytes + scale


def estimate_each(group: Sequence[tuple[Scorer, PreparedQuery]], out: Matrix, *, afar: bool = False) -> None:
    """Write the estimated distances of one query to the rows of several partitions. See `Scorer.estimate`.

    Args:
        group: the rows of each partition, all with the same encoding, and the query prepared for it.
        out: (n,) float32, for the rows of all partitions.
        afar: whether the rows are probably not in a core's cache.
    """
    quantized = [scorer.points for scorer, _ in group if isinstance(scorer.points, QuantizedPoints)]
    if len(quantized) == len(group):
        type(quantized[0]).products_of_each(quantized, [query.points for _, query in group], out)
    else:
        start = 0
        for scorer, query in group:
            end = start + len(scorer.add)
            scorer.write_products(query, out[start:end], afar=afar)
            start = end
    _finish_each(group, out)


def _finish_each(group: Sequence[tuple[Scorer, PreparedQuery]], out: Matrix) -> None:
    """Turn the products in `out` into distances, see `Scorer.finish`: one operation for all partitions."""
    first, query = group[0]
    if len(group) == 1:
        first.finish(query, out)
        return
    counts = [len(scorer.add) for scorer, _ in group]
    scales = [scorer.scale for scorer, _ in group if not isinstance(scorer.scale, float)]
    out *= np.concatenate(scales) if scales else first.scale
    add = np.concatenate([scorer.add for scorer, _ in group])
    gains = [query.gain for _, query in group if not isinstance(query.gain, float)]
    if gains:
        add *= np.repeat(np.concatenate(gains), counts)
    out += add
    shifts = np.concatenate([query.shift for _, query in group])
    out += shifts[0] if (shifts == shifts[0]).all() else np.repeat(shifts, counts)


class Training(Protocol):
    """Training parameters of a quantizer. `IndexParams` implements this protocol."""

    @property
    def metric(self) -> Metric:
        """Distance metric of the index."""

    @property
    def num_sub_vectors(self) -> int | None:
        """Number of sub-vectors, each with its own code."""

    @property
    def num_bits(self) -> int | None:
        """Number of bits per code."""

    @property
    def codebook(self) -> Vectors | None:
        """A trained codebook to use instead of training one."""

    @property
    def sample_rate(self) -> int:
        """Number of sampled rows per codeword."""

    @property
    def max_iterations(self) -> int:
        """Maximum iterations of each k-means."""

    @property
    def rotation(self) -> Literal["fast", "matrix"]:
        """Kind of rotation."""

    @property
    def rotation_signs(self) -> bytes | None:
        """Sign bytes for the rotation "fast"; random signs by default."""


class Quantizer(ABC):
    """A vector encoding. An instance has the trained parameters.

    Input vectors are prepared by `Ivf.prepared`. Codes are row-major, except in the stored order that `pack`
    returns and `unpack` accepts.
    """

    name: ClassVar[str]
    # The index format version for this encoding.
    index_version: ClassVar[int] = 1
    # Whether estimates of cosine distances are squared distances of vectors of length 1.
    squares_cosine: ClassVar[bool] = True
    # Whether bit vectors are supported, for the metric hamming.
    keeps_bits: ClassVar[bool] = False
    # Whether vectors are rotated before encoding.
    rotates: ClassVar[bool] = False

    @classmethod
    def codewords(cls, bits: int | None) -> int:
        """Return the number of codewords to train for codes of `bits` bits; 0 if there is no codebook."""
        return 0

    @classmethod
    @abstractmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> Quantizer:
        """Train a quantizer on a sample of vectors.

        Args:
            sample: (n, dim), prepared; n is at least 1.
            ivf: the partitions of the index.
            training: training parameters.
            dtype: dtype of the column's values.

        Raises:
            OptionError: the parameters do not fit the vectors.
        """

    @abstractmethod
    def columns(self) -> list[pa.Field]:
        """Return the stored columns, without the row id column."""

    @abstractmethod
    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the codes of vectors (n, dim) in the partitions `owners` (n,)."""

    @abstractmethod
    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return the file's JSON metadata of the quantizer. Larger parts are added as buffers."""

    @abstractmethod
    def summary(self) -> dict[str, int]:
        """Return the fields of the details message in the manifest."""

    def figures(self) -> dict[str, Any]:
        """Return more index statistics about the codes, by pylance's names."""
        return {}

    @abstractmethod
    def same_codes(self, other: Quantizer) -> bool:
        """Return whether row-major codes of the other quantizer are valid for this one."""

    @abstractmethod
    def scorer(self, codes: Codes) -> Scorer:
        """Return a scorer for the rows of one partition, whose codes are in stored order."""

    def queries(self, vectors: Vectors) -> Queries:
        """Return the queries for `prepare`, given vectors (q, dim) prepared by `Ivf.prepared`."""
        return Queries(vectors, vectors)

    @abstractmethod
    def prepare(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Prepare queries for the partition of a centroid."""

    def prepare_each(self, query: Queries, centroids: Vectors) -> Sequence[PreparedQuery]:
        """Prepare one query for each of several partitions with centroids (p, dim).

        By default the centroid does not matter. Override this if it does.
        """
        return [self.prepare(query, centroids[0])] * len(centroids) if len(centroids) else []

    def pack(self, codes: Codes) -> Codes:
        """Return the codes of one partition in stored order."""
        return codes

    def unpack(self, codes: Codes) -> Codes:
        """Return the stored codes of one partition in row-major order."""
        return codes

    def comparable(self, codes: Codes) -> Matrix:
        """Return the points (n, width) of row-major codes, as input to build a graph."""
        points = self.scorer(self.pack(codes)).points
        return points.floats() if isinstance(points, QuantizedPoints) else points

    @classmethod
    @abstractmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> Quantizer:
        """Return the quantizer of a file.

        Args:
            notes: the file's JSON metadata, see `notes`.
            buffer: returns a global buffer of the file by number.
            metric: metric of the index.
            columns: the file's columns.

        Raises:
            FormatError: the metadata is malformed.
            UnsupportedFormatError: the file uses an unsupported feature.
        """


def split_queries(points: Matrix, shift: Matrix) -> list[PreparedQuery]:
    """Return one query prepared for several partitions: points (p, width) or (1, width), shift (p,)."""
    is_shared = len(points) == 1
    return [
        PreparedQuery(points if is_shared else points[i : i + 1], shift[i : i + 1]) for i in range(len(shift))
    ]


def zero_shifts(count: int) -> Matrix:
    """Return zero shifts (count,) float32."""
    return np.zeros(count, dtype=np.float32)


def vector_column(name: str, width: int, kind: pa.DataType) -> pa.Field:
    """Return the field of a column of fixed-size lists."""
    return pa.field(name, pa.list_(pa.field("item", kind), width))
