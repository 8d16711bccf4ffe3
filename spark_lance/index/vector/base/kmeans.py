"""K-means, in blocks of rows so that the distances of a block to all centroids fit into the caches.

`spherical` clusters by inner product: centroids have length 1 and a row belongs to the one it has the largest
product with (metric dot). Otherwise squared distances decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.index.vector.base.metrics import Floats, unit

_Matrix = npt.NDArray[np.float32]

# Floats of one block of distances: 2 MiB, about what a core's own cache holds.
_BLOCK_VALUES = 1 << 19
_TOLERANCE = 1e-4
# Rows per cluster that the first passes look at.
_FEW_ROWS = 32
# Passes over all rows after those.
_LAST_PASSES = 10
# A centroid whose cluster is split moves this far to both sides, relative to its length.
_SPLIT = 1e-3


def train_kmeans(
    rows: Floats, clusters: int, *, spherical: bool = False, iterations: int = 50, seed: int = 42
) -> _Matrix:
    """Return the centroids of the rows.

    Starts from rows chosen at random, first with some of the rows, then with all. A cluster that loses all
    its rows gets half of the largest one, so none is empty as long as there are as many different rows. Ends
    when the mean distance no longer falls.

    Args:
        rows: (n, dim) floats.
        clusters: how many; with fewer rows some centroids are repeated.
        spherical: cluster by inner product.
        iterations: most passes over the rows.
        seed: of the random choice.

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
    few = max(_FEW_ROWS * clusters, len(data) // 8)
    if 2 * few <= len(data):
        some = data[np.sort(random.choice(len(data), few, replace=False))]
        centroids = _passes(some, centroids, spherical, iterations)
        iterations = min(iterations, _LAST_PASSES)
    return _passes(data, centroids, spherical, iterations)


def _passes(data: _Matrix, centroids: _Matrix, spherical: bool, most: int) -> _Matrix:
    """Return centroids after as many passes over the rows as make the mean distance fall."""
    former = np.inf
    for _ in range(most):
        owners, scores = assign(data, centroids, spherical=spherical)
        loss = float(scores.mean(dtype=np.float64))
        if former - loss <= _TOLERANCE * abs(former) and np.isfinite(former):
            break
        former = loss
        centroids = _means(data, owners, centroids)
        if spherical:
            centroids = np.asarray(unit(centroids), dtype=np.float32)
    return centroids


def assign(rows: Floats, centroids: Floats, *, spherical: bool = False) -> tuple[Ints, _Matrix]:
    """Return for every row the number of its centroid, and the distance to it.

    Returns:
        (n,) int64 and (n,) float32: the squared distance, or minus the inner product if `spherical`.
    """
    owners = np.empty(len(rows), dtype=np.int64)
    scores = np.empty(len(rows), dtype=np.float32)
    for part, block in _scores(rows, Turned.of(centroids, spherical=spherical)):
        owners[part] = np.argmin(block, axis=1)
        scores[part] = block[np.arange(len(block)), owners[part]]
    if not spherical:
        data = rows.astype(np.float32, copy=False)
        scores += np.einsum("ij,ij->i", data, data)
        np.maximum(scores, 0, out=scores)
    return owners, scores


@dataclass(frozen=True)
class Turned:
    """Centroids, ready to be compared with many rows.

    Attributes:
        points: (dim, clusters), times -2, or -1 if inner products decide.
        lengths: squared, (clusters,); None if inner products decide.
    """

    points: _Matrix
    lengths: _Matrix | None

    @classmethod
    def of(cls, centroids: Floats, *, spherical: bool = False) -> Turned:
        """Prepare centroids (clusters, dim)."""
        points = np.ascontiguousarray(centroids, dtype=np.float32)
        turned = np.ascontiguousarray(points.T) * np.float32(-1 if spherical else -2)
        return cls(turned, None if spherical else np.einsum("ij,ij->i", points, points))

    def __len__(self) -> int:
        return int(self.points.shape[1])


def nearest(rows: Floats, centroids: Turned, count: int) -> Ints:
    """Return for every row the numbers of its `count` nearest centroids, nearest first: (n, count) int64."""
    count = min(count, len(centroids))
    result = np.empty((len(rows), count), dtype=np.int64)
    for part, block in _scores(rows, centroids):
        if count < block.shape[1]:
            some = np.argpartition(block, count - 1, axis=1)[:, :count]
        else:
            some = np.broadcast_to(np.arange(count), (len(block), count))
        order = np.argsort(np.take_along_axis(block, some, axis=1), axis=1, kind="stable")
        result[part] = np.take_along_axis(some, order, axis=1)
    return result


def _scores(rows: Floats, centroids: Turned) -> Iterator[tuple[slice, _Matrix]]:
    """Yield blocks of rows with what orders their centroids, the row's own length left out."""
    step = max(64, _BLOCK_VALUES // max(len(centroids), 1))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        block = rows[part].astype(np.float32, copy=False) @ centroids.points
        if centroids.lengths is not None:
            block += centroids.lengths
        yield part, block


def _means(rows: _Matrix, owners: Ints, centroids: _Matrix) -> _Matrix:
    """Return the mean of every cluster; empty ones take half of the largest."""
    clusters = len(centroids)
    counts = np.bincount(owners, minlength=clusters)
    # Numpy sorts 16-bit numbers by radix, which is many times faster.
    order = np.argsort(owners.astype(np.uint16) if clusters <= 1 << 16 else owners, kind="stable")
    full = np.flatnonzero(counts)
    starts = (np.cumsum(counts) - counts)[full]
    means: _Matrix = centroids.copy()
    means[full] = np.add.reduceat(rows[order], starts, axis=0) / counts[full, None]
    sizes = counts.astype(np.float64)
    for empty in np.flatnonzero(counts == 0):
        largest = int(np.argmax(sizes))
        apart = np.abs(means[largest]) * np.float32(_SPLIT) + np.float32(1e-7)
        means[empty] = means[largest] + apart
        means[largest] -= apart
        sizes[largest] = sizes[empty] = sizes[largest] / 2
    return means
