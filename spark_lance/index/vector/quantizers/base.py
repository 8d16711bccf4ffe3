"""The common part of all encodings of the vectors of a partition.

However vectors are kept, the estimate of a distance has one form, which BLAS computes for many queries and
rows at once:

    distance(query, row) = gain[query] * add[row] + scale[row] * <q, point[row]> + shift[query]

`points`, `add` and `scale` come from the stored codes of a partition (`Scorer`); q, `shift` and `gain`, which
is mostly 1, from the query and the partition's centroid (`Quantizer.ask`).
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
from spark_lance.index.vector.quantizers.quantized_points import Matrix, QuantizedPoints, squares

# BLAS takes all cores for products of somewhat more numbers than this, and waits for them with its own core
# busy: a query that looks at ten partitions waits ten times for cores that others use. With more it pays.
_ONE_THREAD = 1 << 18
_MOST_ALONE = 1 << 23
# Vectors of fewer values are read from memory no faster by a loop of numpy than by BLAS.
_WIDE = 64
_ROUNDING = float(np.finfo(np.float32).epsneg)
# Column name -> one row per vector: (n,) or (n, width).
Codes = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Queries:
    """Queries as all partitions see them: `vectors` (q, dim), prepared, and what is made of each once.

    Attributes:
        vectors: (q, dim).
        turned: (q, dim), rotated where the quantizer rotates, else the vectors themselves.
    """

    vectors: Vectors
    turned: Vectors

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice | npt.NDArray[np.integer[Any]]) -> Queries:
        """Return some of the queries."""
        return Queries(self.vectors[rows], self.turned[rows])


@dataclass(frozen=True)
class PreparedQuery:
    """Queries as the rows of a partition are compared with them.

    Attributes:
        points: (q, width) float32.
        shift: (q,) float32.
        gain: (q,) float32, or one number for all queries.
    """

    points: Matrix
    shift: Matrix
    gain: Matrix | float = 1.0


@dataclass(frozen=True)
class Scorer:
    """The rows of one partition, ready to be compared.

    Attributes:
        points: (n, width) float32, or codes that stand for such.
        add: (n,) float32.
        scale: (n,) float32, or one number for all rows.
        direct: whether distances are squared differences. The nearest of one query are computed so (`some`),
            without the rounding of the sum above, which is felt where they are near 0.
        whole: whether points and queries are whole numbers whose products add up without rounding.
    """

    points: Matrix | QuantizedPoints
    add: Matrix
    scale: Matrix | float
    direct: bool = False
    whole: bool = False

    def distances(self, query: PreparedQuery) -> Matrix:
        """Return the distances of queries to all rows: (q, n) float32."""
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
        """Write the distances of one query to all rows into an array (n,) float32, rounded as sums are.

        Args:
            query: the query.
            out: where to.
            afar: whether the rows are in memory rather than in the caches of a core.
        """
        if isinstance(self.points, QuantizedPoints):
            self.points.products(query.points, out[None])
        elif (
            afar
            and self.points.shape[1] >= _WIDE
            and self.points.size <= _MOST_ALONE
            and (self.direct or self.whole)
        ):
            # Reads memory half as fast again as BLAS, but adds in another order: where that does not matter.
            np.einsum("ij,j->i", self.points, query.points[0], out=out, casting="same_kind")
        else:
            self._products(self.points, query, out)
        self.finish(query, out)

    def finish(self, query: PreparedQuery, out: Matrix) -> None:
        """Make the distances of one query to all rows of its products with their points."""
        out *= self.scale
        out += self.add if isinstance(query.gain, float) else self.add * query.gain[0]
        out += query.shift[0]

    def _products(self, points: Matrix, query: PreparedQuery, out: Matrix) -> None:
        """Write the products of one query with all rows, by one thread of BLAS unless there are very many."""
        rows, width = points.shape
        step = rows if points.size > _MOST_ALONE else max(1, _ONE_THREAD // max(1, width))
        for start in range(0, rows, step):
            part = slice(start, start + step)
            np.matmul(points[part], query.points[0], out=out[part], casting="same_kind")

    def part(self, rows: slice) -> Scorer:
        """Return some of the rows."""
        points = self.points.part(rows) if isinstance(self.points, QuantizedPoints) else self.points[rows]
        scale = self.scale if isinstance(self.scale, float) else self.scale[rows]
        return replace(self, points=points, add=self.add[rows], scale=scale)

    def decoded(self) -> Scorer:
        """Return the rows as floats."""
        return (
            replace(self, points=self.points.floats()) if isinstance(self.points, QuantizedPoints) else self
        )

    def rounding(self, query: PreparedQuery) -> float:
        """Return how far estimates of direct distances of one query may be off at most."""
        return self._rounding * (self._most + float(query.shift[0])) if self.direct else 0.0

    @cached_property
    def _most(self) -> float:
        return float(self.add.max(initial=0))

    @cached_property
    def _rounding(self) -> float:
        # A sum of n products is off by n rounding errors of their size at most; there are two such sums.
        return 2 * int(self.points.shape[1]) * _ROUNDING

    def some(self, query: PreparedQuery, rows: npt.NDArray[np.integer[Any]]) -> Matrix:
        """Return the distances of one query to some rows."""
        if self.direct:
            return squares(self.points[rows] - query.points)
        scale = self.scale if isinstance(self.scale, float) else self.scale[rows]
        add = self.add[rows] if isinstance(query.gain, float) else self.add[rows] * query.gain[0]
        result: Matrix = (self.points[rows] @ query.points[0]) * scale + add + query.shift[0]
        return result

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        scale = 0 if isinstance(self.scale, float) else self.scale.nbytes
        return self.points.nbytes + self.add.nbytes + scale


def estimate_each(group: Sequence[tuple[Scorer, PreparedQuery]], out: Matrix, *, afar: bool = False) -> None:
    """Write the distances of one query to the rows of several partitions, as `Scorer.estimate` does.

    Args:
        group: the rows of each partition, all kept alike, and the query as the partition sees it.
        out: (n,) float32, n the rows of all partitions.
        afar: whether the rows are in memory rather than in the caches of a core.
    """
    coded = [scorer.points for scorer, _ in group if isinstance(scorer.points, QuantizedPoints)]
    together = len(coded) == len(group)
    if together:
        type(coded[0]).products_of_each(coded, [query.points for _, query in group], out)
    start = 0
    for scorer, query in group:
        mine = out[start : start + len(scorer.add)]
        if together:
            scorer.finish(query, mine)
        else:
            scorer.estimate(query, mine, afar=afar)
        start += len(mine)


class Training(Protocol):
    """How a quantizer is trained; see `IndexParams`, which is this."""

    @property
    def metric(self) -> Metric:
        """Metric of the index."""

    @property
    def num_sub_vectors(self) -> int | None:
        """Parts of a vector that have codes of their own."""

    @property
    def num_bits(self) -> int | None:
        """Bits of a code."""

    @property
    def codebook(self) -> Vectors | None:
        """Codewords that need not be found any more."""

    @property
    def sample_rate(self) -> int:
        """Rows per codeword that are looked at."""

    @property
    def max_iterations(self) -> int:
        """The most iterations of each k-means."""

    @property
    def rotation(self) -> Literal["fast", "matrix"]:
        """How vectors are rotated."""

    @property
    def rotation_signs(self) -> bytes | None:
        """Signs of the rotation "fast" that are used instead of random ones."""


class Quantizer(ABC):
    """One way of keeping vectors; an instance has what training found.

    Vectors given to it are prepared (`Ivf.prepared`); codes are row by row, except between `pack` and
    `unpack`, the order in which a partition is stored.
    """

    name: ClassVar[str]
    # The format version of indices whose codes are these.
    index_version: ClassVar[int] = 1
    # Whether estimates of cosine distances are squared distances of vectors of length 1.
    squares_cosine: ClassVar[bool] = True
    # Whether vectors of bits can be kept, for the metric hamming.
    keeps_bits: ClassVar[bool] = False
    # Whether vectors are rotated before they are coded.
    rotates: ClassVar[bool] = False

    @classmethod
    def codewords(cls, bits: int | None) -> int:
        """Return how many codewords training finds for codes of `bits` bits; 0 if it finds none."""
        return 0

    @classmethod
    @abstractmethod
    def fit(cls, sample: Vectors, ivf: Ivf, training: Training, dtype: np.dtype[Any]) -> Quantizer:
        """Return the quantizer for vectors like those of a sample.

        Args:
            sample: (n, dim), prepared; n is at least 1.
            ivf: the partitions of the index.
            training: how it is trained.
            dtype: of the column's values.

        Raises:
            OptionError: what is asked does not fit the vectors.
        """

    @abstractmethod
    def columns(self) -> list[pa.Field]:
        """Return the stored columns, without that of row ids."""

    @abstractmethod
    def encode(self, vectors: Vectors, owners: npt.NDArray[np.int64], ivf: Ivf) -> Codes:
        """Return the codes of vectors (n, dim) that lie in the partitions `owners` (n,)."""

    @abstractmethod
    def notes(self, add_buffer: Callable[[bytes], int]) -> dict[str, Any]:
        """Return what the file says of the quantizer (JSON); larger parts become buffers of the file."""

    @abstractmethod
    def summary(self) -> dict[str, int]:
        """Return what the manifest's details say: fields of their message."""

    def figures(self) -> dict[str, Any]:
        """Return the other figures of a segment about its codes, by pylance's names."""
        return {}

    @abstractmethod
    def same_codes(self, other: Quantizer) -> bool:
        """Return whether codes of the other, row by row, mean the same here."""

    @abstractmethod
    def scorer(self, codes: Codes) -> Scorer:
        """Return the rows of one partition, given in stored order."""

    def queries(self, vectors: Vectors) -> Queries:
        """Return queries for `ask` of vectors (q, dim), which `Ivf.prepared` has seen."""
        return Queries(vectors, vectors)

    @abstractmethod
    def ask(self, queries: Queries, centroid: Vectors) -> PreparedQuery:
        """Return queries as they are compared with the rows of the partition that a centroid has."""

    def ask_each(self, query: Queries, centroids: Vectors) -> Sequence[PreparedQuery]:
        """Return one query as it is compared with the rows of each of some partitions (p, dim).

        To be overridden where the centroid matters: here all partitions see the query alike.
        """
        return [self.ask(query, centroids[0])] * len(centroids) if len(centroids) else []

    def pack(self, codes: Codes) -> Codes:
        """Return the codes of one partition in the order in which they are stored."""
        return codes

    def unpack(self, codes: Codes) -> Codes:
        """Return the stored codes of one partition row by row."""
        return codes

    def comparable(self, codes: Codes) -> Matrix:
        """Return what the codes of one partition, row by row, stand for: what a graph is built of."""
        points = self.scorer(self.pack(codes)).points
        return points.floats() if isinstance(points, QuantizedPoints) else points

    @classmethod
    @abstractmethod
    def load(
        cls, notes: Mapping[str, Any], buffer: Callable[[int], bytes], metric: Metric, columns: pa.Schema
    ) -> Quantizer:
        """Return the quantizer of a file.

        Args:
            notes: what the file says, see `notes`.
            buffer: returns a global buffer of the file.
            metric: of the index.
            columns: the file's columns.

        Raises:
            FormatError: what the file says is malformed.
            UnsupportedFormatError: a newer form.
        """


def each_of(points: Matrix, shift: Matrix) -> list[PreparedQuery]:
    """Return one query as several partitions see it: points (p, width), or (1, width) for all, shift (p,)."""
    alike = len(points) == 1
    return [
        PreparedQuery(points if alike else points[i : i + 1], shift[i : i + 1]) for i in range(len(shift))
    ]


def no_shift(count: int) -> Matrix:
    """Return shifts of queries that have none."""
    return np.zeros(count, dtype=np.float32)


def vector_column(name: str, width: int, kind: pa.DataType) -> pa.Field:
    """Return the field of a column of fixed-size lists."""
    return pa.field(name, pa.list_(pa.field("item", kind), width))
