"""Rows with several vectors each: columns of lists of vectors, such as one vector per word of a text.

A query also has several vectors. The distance of a row is the sum, over the query vectors, of the distance to
the row's nearest vector. Rows without vectors are not returned. (Lance index format, multi-vectors.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import one_array
from spark_lance.arrow.numpy_types import Ints
from spark_lance.index.vector.base.metrics import Metric, Vectors, distances, exact_distances
from spark_lance.index.vector.build import as_matrix
from spark_lance.index.vector.kinds import is_multi
from spark_lance.index.vector.top_k import TopK, smallest

Distances = npt.NDArray[np.float32]

# Maximum vector-to-vector distances in memory at a time.
_MAX_DISTANCES = 1 << 24


def flat_vectors(column: pa.Array | pa.ChunkedArray) -> tuple[Vectors, Ints]:
    """Return the vectors (n, dim) of a column, and the row of each (n,), ascending."""
    array = one_array(column)
    if not is_multi(array.type):
        matrix, has_vector = as_matrix(array)
        return matrix, np.flatnonzero(has_vector)
    counts = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    matrix, has_vector = as_matrix(array.flatten())
    return matrix, np.repeat(np.arange(len(array)), counts)[has_vector]


def row_distances(
    query: Vectors, matrix: Vectors, rows: Ints, metric: Metric, *, exactly: bool
) -> tuple[Ints, Distances]:
    """Return the rows that have vectors, ascending, and the distance (float32) of each to a query.

    Args:
        query: (q, dim).
        matrix: (n, dim), the vectors of all rows.
        rows: (n,), the row of each vector, ascending.
        metric: metric of single vectors.
        exactly: whether to compute distances to float32 precision, which is slower.
    """
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    sums = np.zeros(len(starts), np.float64)
    most = max(1, _MAX_DISTANCES // max(1, len(query)))
    first = 0
    while first < len(starts):
        # Take whole rows, up to about `most` vectors.
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
        stop = int(starts[last]) if last < len(starts) else len(rows)
        part, row_starts = matrix[starts[first] : stop], starts[first:last] - starts[first]
        if exactly:
            for vector in query:
                sums[first:last] += np.minimum.reduceat(exact_distances(vector, part, metric), row_starts)
        else:
            sums[first:last] = np.minimum.reduceat(distances(query, part, metric), row_starts, axis=1).sum(
                axis=0
            )
        first = last
    return rows[starts], sums.astype(np.float32)


def best_rows(hits: Sequence[TopK], count: int) -> npt.NDArray[np.uint64]:
    """Return the `count` apparently nearest rows from the hits of each query vector, ascending.

    A row that is not in a vector's hits gets the distance of the farthest hit, which underestimates its
    distance. The more hits each vector has, the less that matters.
    """
    addresses = np.unique(np.concatenate([np.empty(0, np.uint64), *(hit.addresses for hit in hits)]))
    sums: npt.NDArray[Any] = np.zeros(len(addresses), np.float32)
    for hit in hits:
        if len(hit.addresses):
            scores = np.full(len(addresses), hit.distances.max(), np.float32)
            scores[np.searchsorted(addresses, hit.addresses)] = hit.distances
            sums += scores
    return np.sort(addresses[smallest(sums, count)])
