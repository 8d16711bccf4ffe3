"""Rows of several vectors each: columns of lists of vectors, such as one vector per word of a text.

A query has several vectors, too. Each of them has a distance to the nearest of the row's vectors, and the sum
of these is the distance of the row. Rows without a vector are not found. (Lance index format,
multi-vectors.)
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

# Distances of vectors to vectors that are held at once.
_BLOCK = 1 << 24


def flat_vectors(column: pa.Array | pa.ChunkedArray) -> tuple[Vectors, Ints]:
    """Return the vectors of a column, of one or of several vectors a row, and the row of each, ascending."""
    array = one_array(column)
    if not is_multi(array.type):
        matrix, there = as_matrix(array)
        return matrix, np.flatnonzero(there)
    counts = array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    matrix, there = as_matrix(array.flatten())
    return matrix, np.repeat(np.arange(len(array)), counts)[there]


def row_distances(
    query: Vectors, matrix: Vectors, rows: Ints, metric: Metric, *, exactly: bool
) -> tuple[Ints, Distances]:
    """Return the rows that have vectors, ascending, and the distance of each to a query.

    Args:
        query: (q, dim).
        matrix: (n, dim), the vectors of all rows.
        rows: (n,) the row of each, ascending.
        metric: of single vectors.
        exactly: whether distances are to have the precision of float32, which takes longer.
    """
    starts = np.flatnonzero(np.diff(rows, prepend=-1))
    sums = np.zeros(len(starts), np.float64)
    most = max(1, _BLOCK // max(1, len(query)))
    first = 0
    while first < len(starts):
        # Whole rows, of about as many vectors as may be held.
        last = max(first + 1, int(np.searchsorted(starts, starts[first] + most, side="right")) - 1)
        stop = int(starts[last]) if last < len(starts) else len(rows)
        part, own = matrix[starts[first] : stop], starts[first:last] - starts[first]
        if exactly:
            for vector in query:
                sums[first:last] += np.minimum.reduceat(exact_distances(vector, part, metric), own)
        else:
            sums[first:last] = np.minimum.reduceat(distances(query, part, metric), own, axis=1).sum(axis=0)
        first = last
    return rows[starts], sums.astype(np.float32)


def best_rows(hits: Sequence[TopK], count: int) -> npt.NDArray[np.uint64]:
    """Return the rows that seem nearest, of what each vector of a query found, ascending.

    A row that a vector did not find counts as far as the farthest that it found, which is too near: the more
    each vector finds, the less that matters.
    """
    addresses = np.unique(np.concatenate([np.empty(0, np.uint64), *(hit.addresses for hit in hits)]))
    sums: npt.NDArray[Any] = np.zeros(len(addresses), np.float32)
    for hit in hits:
        if len(hit.addresses):
            scores = np.full(len(addresses), hit.distances.max(), np.float32)
            scores[np.searchsorted(addresses, hit.addresses)] = hit.distances
            sums += scores
    return np.sort(addresses[smallest(sums, count)])
