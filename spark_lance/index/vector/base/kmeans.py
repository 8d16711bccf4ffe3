"""K-means, in blocks of rows so that the distances of a block to all centroids fit in the cache.

`spherical` clusters by inner product (metric dot): centroids are normalized, and a row belongs to the
centroid with the largest product. Otherwise a row belongs to the nearest centroid by squared distance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.index.vector.base.metrics import Floats, unit

_Matrix = npt.NDArray[np.float32]

# Values of one block of distances: 2 MiB, about the size of a core's own cache.
_BLOCK_VALUES = 1 << 19
_TOLERANCE = 1e-4
# Sampled rows per cluster for the first passes.
_SAMPLE_ROWS = 32
# Maximum passes over all rows after the first passes.
_MAX_FULL_PASSES = 10
# Relative shift, to both sides, of a centroid whose cluster is split.
_SPLIT = 1e-3


def train_kmeans(
    rows: Floats, clusters: int, *, spherical: bool = False, iterations: int = 50, seed: int = 42
) -> _Matrix:
    """Train centroids on rows.

    Starts from random rows, first with a sample of the rows, then with all rows. An empty cluster takes half
    of the largest cluster, so no cluster is empty if there are enough distinct rows. Stops when the mean
    distance no longer falls.

    Args:
        rows: (n, dim) floats.
        clusters: number of clusters. With fewer rows, some centroids are repeated.
        spherical: whether to cluster by inner product.
        iterations: maximum passes over the rows.
        seed: random seed.

    Returns:
        (clusters, dim) float32.
    """
    random = np.random.default_rng(seed)
    data = np.ascontiguousarray(rows, dtype=np.float32)
    row_numbers = random.choice(len(data), clusters, replace=len(data) < clusters)
    centroids: _Matrix = data[np.sort(row_numbers)].copy()
    if spherical:
        centroids = np.asarray(unit(centroids), dtype=np.float32)
    # Many passes over a few rows find rough centroids; few passes over all rows refine them.
    sample_size = max(_SAMPLE_ROWS * clusters, len(data) // 8)
    if 2 * sample_size <= len(data):
        selected = data[np.sort(random.choice(len(data), sample_size, replace=False))]
        centroids = _run_passes(selected, centroids, spherical, iterations)
        iterations = min(iterations, _MAX_FULL_PASSES)
    return _run_passes(data, centroids, spherical, iterations)


def _run_passes(data: _Matrix, centroids: _Matrix, spherical: bool, max_passes: int) -> _Matrix:
    """Return the centroids after passes over the rows, until the mean distance no longer falls."""
    previous_loss = np.inf
    for _ in range(max_passes):
        owners, scores = assign(data, centroids, spherical=spherical)
        loss = float(scores.mean(dtype=np.float64))
        if previous_loss - loss <= _TOLERANCE * abs(previous_loss) and np.isfinite(previous_loss):
            break
        previous_loss = loss
        centroids = _means(data, owners, centroids)
        if spherical:
            centroids = np.asarray(unit(centroids), dtype=np.float32)
    return centroids


def assign(rows: Floats, centroids: Floats, *, spherical: bool = False) -> tuple[Ints, _Matrix]:
    """Return the nearest centroid of each row, and the distance to it.

    Returns:
        (n,) int64 and (n,) float32: the squared distance, or minus the inner product if `spherical`.
    """
    owners = np.empty(len(rows), dtype=np.int64)
    scores = np.empty(len(rows), dtype=np.float32)
    for part, block in _scores(rows, PreparedCentroids.of(centroids, spherical=spherical)):
        owners[part] = np.argmin(block, axis=1)
        scores[part] = block[np.arange(len(block)), owners[part]]
    if not spherical:
        data = rows.astype(np.float32, copy=False)
        scores += np.einsum("ij,ij->i", data, data)
        np.maximum(scores, 0, out=scores)
    return owners, scores


@dataclass(frozen=True)
class PreparedCentroids:
    """Transposed centroids, prepared for comparison with many rows.

    Attributes:
        points: (dim, clusters), multiplied by -2, or by -1 for inner products.
        lengths: squared lengths (clusters,); None for inner products.
    """

    points: _Matrix
    lengths: _Matrix | None

    @classmethod
    def of(cls, centroids: Floats, *, spherical: bool = False) -> PreparedCentroids:
        """Prepare centroids (clusters, dim)."""
        points = np.ascontiguousarray(centroids, dtype=np.float32)
        transposed = np.ascontiguousarray(points.T) * np.float32(-1 if spherical else -2)
        return cls(transposed, None if spherical else np.einsum("ij,ij->i", points, points))

    def __len__(self) -> int:
        return int(self.points.shape[1])


def nearest(rows: Floats, centroids: PreparedCentroids, count: int) -> Ints:
    """Return the `count` nearest centroids of each row, nearest first: (n, count) int64."""
    count = min(count, len(centroids))
    result = np.empty((len(rows), count), dtype=np.int64)
    for part, block in _scores(rows, centroids):
        if count < block.shape[1]:
            selected = np.argpartition(block, count - 1, axis=1)[:, :count]
        else:
            selected = np.broadcast_to(np.arange(count), (len(block), count))
        order = np.argsort(np.take_along_axis(block, selected, axis=1), axis=1, kind="stable")
        result[part] = np.take_along_axis(selected, order, axis=1)
    return result


def _scores(rows: Floats, centroids: PreparedCentroids) -> Iterator[tuple[slice, _Matrix]]:
    """Yield blocks of rows with scores (rows, clusters) that rank centroids like distances do."""
    step = max(64, _BLOCK_VALUES // max(len(centroids), 1))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = rows[part].astype(np.float32, copy=False) @ centroids.points
        if centroids.lengths is not None:
            block += centroids.lengths
        yield part, block


def _means(rows: _Matrix, owners: Ints, centroids: _Matrix) -> _Matrix:
    """Return the mean of each cluster. Empty clusters take half of the largest one."""
    clusters = len(centroids)
    counts = np.bincount(owners, minlength=clusters)
    # numpy uses radix sort for 16-bit integers, which is many times faster.
    order = np.argsort(owners.astype(np.uint16) if clusters <= 1 << 16 else owners, kind="stable")
    full = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[full]
    means: _Matrix = centroids.copy()
    means[full] = np.add.reduceat(rows[order], starts, axis=0) / counts[full, None]
    sizes = counts.astype(np.float64)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(sizes))
        shift = np.abs(means[largest]) * np.float32(_SPLIT) + np.float32(1e-7)
        means[empty] = means[largest] + shift
        means[largest] -= shift
        sizes[largest] = sizes[empty] = sizes[largest] / 2
    return means
