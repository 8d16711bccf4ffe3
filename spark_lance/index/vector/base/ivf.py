"""Inverted file (IVF): centroids, and the assignment of vectors to partitions.

    message IVF {
      uint64 offsets[], uint32 lengths[]    row range of each partition in the file that carries the message
      Tensor centroids_tensor               (partitions, dim), dtype of the column
    }

With cosine, input vectors are already normalized. With dot, centroids are normalized and a vector belongs to
the centroid with the largest inner product. Otherwise it belongs to the nearest centroid. (Lance index
format, IVF and metrics.)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.index.vector.base.kmeans import PreparedCentroids, assign, nearest, train_kmeans
from spark_lance.index.vector.base.metrics import METRICS, Floats, Metric, Vectors, distances, unit
from spark_lance.proto import index_pb2

_TENSOR_TYPES: dict[index_pb2.Tensor.DataType, np.dtype[Any]] = {
    index_pb2.Tensor.FLOAT16: np.dtype("<f2"),
    index_pb2.Tensor.FLOAT32: np.dtype("<f4"),
    index_pb2.Tensor.FLOAT64: np.dtype("<f8"),
    index_pb2.Tensor.UINT8: np.dtype("u1"),
    index_pb2.Tensor.UINT16: np.dtype("<u2"),
    index_pb2.Tensor.UINT32: np.dtype("<u4"),
    index_pb2.Tensor.UINT64: np.dtype("<u8"),
}
_TENSOR_CODES = {kind: code for code, kind in _TENSOR_TYPES.items()}


@dataclass(frozen=True)
class Ivf:
    """The centroids of an index.

    Attributes:
        centroids: (partitions, dim), floats, or uint8 for hamming.
        metric: the metric of the index.
    """

    centroids: Vectors
    metric: Metric

    def __post_init__(self) -> None:
        assert self.metric in METRICS

    @classmethod
    def train(cls, sample: Vectors, partitions: int, metric: Metric, *, iterations: int = 50) -> Ivf:
        """Train centroids on a sample (n, dim) of vectors prepared by `prepared`."""
        if metric == "hamming":
            return cls(_medoids(sample, partitions), metric)
        spherical = metric == "dot"
        return cls(train_kmeans(sample, partitions, spherical=spherical, iterations=iterations), metric)

    def __len__(self) -> int:
        return len(self.centroids)

    def assign(self, vectors: Vectors) -> Ints:
        """Return the partition (n,) int64 of each vector (n, dim)."""
        self._check(vectors)
        if self.metric == "hamming":
            result: Ints = np.argmin(distances(vectors, self.centroids, "hamming"), axis=1)
            return result
        return assign(vectors, self.centroids, spherical=self.metric == "dot")[0]

    def probe(self, queries: Vectors, count: int) -> Ints:
        """Return the `count` nearest partitions (q, count) of each query (q, dim), nearest first."""
        self._check(queries)
        if self.metric == "hamming":
            order = np.argsort(distances(queries, self.centroids, "hamming"), axis=1, kind="stable")
            return order[:, :count].astype(np.int64)
        return nearest(queries, self._prepared_centroids, count)

    def _check(self, vectors: Vectors) -> None:
        if vectors.shape[1] != self.centroids.shape[1]:
            raise FormatError(
                f"centroids of length {self.centroids.shape[1]} for vectors of length {vectors.shape[1]}"
            )

    @cached_property
    def _prepared_centroids(self) -> PreparedCentroids:
        return PreparedCentroids.of(self.centroids, spherical=self.metric == "dot")

    def prepared(self, vectors: Vectors) -> Vectors:
        """Return vectors as float32 or float64, normalized for cosine; unchanged for hamming."""
        return prepared(vectors, self.metric)


def prepared(vectors: Vectors, metric: Metric) -> Vectors:
    """Prepare vectors for an index of a metric, see `Ivf.prepared`."""
    if metric == "hamming":
        return vectors
    floats: Floats = vectors.astype(np.float64 if vectors.dtype == np.float64 else np.float32, copy=False)
    return unit(floats) if metric == "cosine" else floats


def _medoids(sample: Vectors, partitions: int) -> Vectors:
    """Return centroids of bit vectors by k-means. Bits have no mean, so the bitwise majority is used."""
    random = np.random.default_rng(42)
    centroids = sample[np.sort(random.choice(len(sample), partitions, replace=len(sample) < partitions))]
    for _ in range(10):
        owners = np.argmin(distances(sample, centroids, "hamming"), axis=1)
        updated = centroids.copy()
        for cluster in np.unique(owners):
            bits = np.unpackbits(sample[owners == cluster], axis=1)
            updated[cluster] = np.packbits(2 * bits.sum(axis=0) >= len(bits))
        if np.array_equal(updated, centroids):
            break
        centroids = updated
    return centroids


def partition_ranges(message: index_pb2.IVF, rows: int) -> tuple[Ints, Ints]:
    """Return offsets and lengths (int64) of the partitions of a file with `rows` rows.

    Raises:
        FormatError: a partition reaches beyond the end of the file.
    """
    offsets = np.array(message.offsets, dtype=np.uint64)
    lengths = np.array(message.lengths, dtype=np.uint64)
    if len(offsets) != len(lengths):
        raise FormatError(f"an index has {len(offsets)} partition offsets but {len(lengths)} lengths")
    # Check single values first: the sum of two large ones could overflow.
    most = max((int(part.max()) for part in (offsets, lengths) if len(part)), default=0)
    if most > rows or (len(offsets) and int((offsets + lengths).max()) > rows):
        raise FormatError(f"a partition reaches beyond the {rows} rows of the index file")
    return offsets.astype(np.int64), lengths.astype(np.int64)


def pack_tensor(array: Vectors) -> index_pb2.Tensor:
    """Encode an array as a Tensor message."""
    kind = array.dtype.newbyteorder("<") if array.dtype.itemsize > 1 else array.dtype
    data = np.ascontiguousarray(array, dtype=kind).tobytes()
    return index_pb2.Tensor(data_type=_TENSOR_CODES[kind], shape=array.shape, data=data)


def unpack_tensor(message: index_pb2.Tensor) -> Vectors:
    """Decode a Tensor message to an array. bfloat16 becomes float32.

    Raises:
        FormatError: the message is damaged, or its type is unknown.
    """
    shape = tuple(message.shape)
    count = int(np.prod(np.array(shape, dtype=object))) if shape else 0
    if message.data_type == index_pb2.Tensor.BFLOAT16 and len(message.data) == 2 * count:
        upper = np.frombuffer(message.data, dtype="<u2").astype(np.uint32) << 16
        return upper.view(np.float32).reshape(shape)
    kind = _TENSOR_TYPES.get(message.data_type)
    if kind is None or len(message.data) != count * kind.itemsize:
        raise FormatError(f"a tensor of shape {shape} cannot have {len(message.data)} bytes of its type")
    result: Vectors = np.frombuffer(message.data, dtype=kind).reshape(shape)
    return result
