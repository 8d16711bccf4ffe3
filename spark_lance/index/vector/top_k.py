"""Select the nearest rows of one query from several results, or of many queries partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints

Addresses = npt.NDArray[np.uint64]
Distances = npt.NDArray[np.float32]

# Number of collected candidates above which candidates beyond the bounds are dropped.
_MAX_CANDIDATES = 1 << 22
# Number of groups per requested row. The minimum of each group gives a bound for the requested rows.
_GROUPS = 4


@dataclass(frozen=True)
class TopK:
    """Rows ordered by distance: addresses (n,) uint64 and distances (n,) float32, ascending."""

    addresses: Addresses
    distances: Distances

    @classmethod
    def best(cls, parts: Sequence[TopK], k: int) -> TopK:
        """Return the k nearest distinct rows of several results. Ties are ordered by address."""
        addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
        scores = np.concatenate([np.empty(0, np.float32), *(part.distances for part in parts)])
        if len(scores) > 4 * k:
            near = np.flatnonzero(scores <= np.partition(scores, k - 1)[k - 1])
            addresses, scores = addresses[near], scores[near]
        order = np.lexsort((addresses, scores))
        addresses, scores = addresses[order], scores[order]
        _, first = np.unique(addresses, return_index=True)
        positions = np.sort(first)[:k]
        return cls(addresses[positions], scores[positions])


def merged(results: Sequence[list[TopK]], k: int) -> list[TopK]:
    """Merge several results, each with one entry per query, into the k nearest rows per query."""
    return results[0] if len(results) == 1 else [TopK.best(parts, k) for parts in zip(*results, strict=True)]


def smallest(scores: Distances, count: int) -> Ints:
    """Return the indices of the `count` smallest scores along the last axis, unordered."""
    width = scores.shape[-1]
    if count >= width:
        return np.broadcast_to(np.arange(width), scores.shape)
    near = _near_smallest(scores, count) if scores.ndim == 1 else None
    if near is None:
        return np.argpartition(scores, count - 1, axis=-1)[..., :count]
    return near if len(near) == count else near[np.argpartition(scores[near], count - 1)[:count]]


def _near_smallest(scores: Distances, count: int) -> Ints | None:
    """Return indices of scores (n,) that include the `count` smallest and few others; None if unknown.

    The scores are split into groups. The `count`-th smallest group minimum is an upper bound of the scores to
    return. Finding it takes a tenth of the time of a partition of all scores.
    """
    groups = _GROUPS * count
    depth = len(scores) // groups
    if depth < _GROUPS:
        return None
    least = scores[: depth * groups].reshape(depth, groups).min(axis=0)
    bound = np.partition(least, count - 1)[count - 1]
    # The minimum of a group with NaN is NaN, which sorts last.
    return None if np.isnan(bound) else np.flatnonzero(scores <= bound)


class BatchTopK:
    """Collects the k nearest rows of each of many queries from matrices of distances.

    Only keeps rows that can be among the k: not farther than the k-th nearest of the rows added so far.

    Args:
        queries: number of queries.
        k: rows per query.
    """

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._bounds = np.full(queries, np.inf, dtype=np.float32)
        self._parts: list[tuple[Ints, Addresses, Distances]] = []
        self._num_candidates = 0

    def add(self, askers: Ints, addresses: Addresses, scores: Distances) -> None:
        """Add distances (q, n) of the queries with indices `askers` (q,) to the rows at `addresses` (n,)."""
        if not scores.size:
            return
        bounds = np.fmin(self._bounds[askers], _bounds(scores, self._k))
        self._bounds[askers] = bounds
        # NaN (of codes that overflow) counts as infinitely far.
        query_rows, row_columns = np.nonzero(~(scores > bounds[:, None]))
        self._parts.append((askers[query_rows], addresses[row_columns], scores[query_rows, row_columns]))
        self._num_candidates += len(query_rows)
        if self._num_candidates > max(_MAX_CANDIDATES, 2 * len(self._bounds) * self._k):
            self._parts = [self._sort_candidates()]
            self._num_candidates = len(self._parts[0][0])

    def nearest(self) -> list[TopK]:
        """Return the k nearest rows of every query."""
        queries = len(self._bounds)
        askers, addresses, scores = self._sort_candidates()
        starts = np.searchsorted(askers, np.arange(queries + 1))
        return [
            TopK(addresses[start:end], scores[start:end])
            for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]

    def _sort_candidates(self) -> tuple[Ints, Addresses, Distances]:
        """Return the best collected candidates, ordered by query and distance."""
        askers = np.concatenate([np.empty(0, np.int64), *(part[0] for part in self._parts)])
        addresses = np.concatenate([np.empty(0, np.uint64), *(part[1] for part in self._parts)])
        scores = np.concatenate([np.empty(0, np.float32), *(part[2] for part in self._parts)])
        near = np.flatnonzero(~(scores > self._bounds[askers]))
        askers, addresses, scores = askers[near], addresses[near], scores[near]
        # A row that occurs twice counts with its smaller distance.
        order = np.lexsort((scores, addresses, askers))
        same = (np.diff(askers[order]) == 0) & (np.diff(addresses[order]) == 0)
        order = order[~np.concatenate([np.zeros(min(1, len(order)), np.bool_), same])]
        order = order[np.lexsort((addresses[order], scores[order], askers[order]))]
        askers, addresses, scores = askers[order], addresses[order], scores[order]
        ranks = np.arange(len(askers)) - np.searchsorted(askers, askers)
        keep = ranks < self._k
        return askers[keep], addresses[keep], scores[keep]


def _bounds(scores: Distances, k: int) -> Distances:
    """Return for each row of a matrix an upper bound of its k smallest values, often the k-th smallest.

    The bound is infinite if there are fewer than k values.
    """
    count = scores.shape[1]
    if count < k:
        return np.full(len(scores), np.inf, dtype=np.float32)
    depth = count // (_GROUPS * k)
    if depth > 1:
        grouped = scores[:, : depth * _GROUPS * k].reshape(len(scores), depth, _GROUPS * k)
        scores = grouped.min(axis=1)
    return np.partition(scores, k - 1, axis=1)[:, k - 1]
