"""The nearest rows: of one query from several results, or of many queries partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints

Addresses = npt.NDArray[np.uint64]
Distances = npt.NDArray[np.float32]

# Candidates that are kept before those beyond the bounds are dropped.
_HELD = 1 << 22
# Groups of rows per wanted row, whose nearest rows tell how far the wanted ones may be.
_GROUPS = 4


@dataclass(frozen=True)
class TopK:
    """Rows by distance: addresses (n,) uint64 and distances (n,) float32, ascending."""

    addresses: Addresses
    distances: Distances

    @classmethod
    def best(cls, parts: Sequence[TopK], k: int) -> TopK:
        """Return the k nearest rows of several results, ties by address; a row counts once."""
        addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
        scores = np.concatenate([np.empty(0, np.float32), *(part.distances for part in parts)])
        if len(scores) > 4 * k:
            near = np.flatnonzero(scores <= np.partition(scores, k - 1)[k - 1])
            addresses, scores = addresses[near], scores[near]
        order = np.lexsort((addresses, scores))
        addresses, scores = addresses[order], scores[order]
        _, first = np.unique(addresses, return_index=True)
        places = np.sort(first)[:k]
        return cls(addresses[places], scores[places])


def merged(results: Sequence[list[TopK]], k: int) -> list[TopK]:
    """Return the k nearest rows for every query of several results, each sorted."""
    return results[0] if len(results) == 1 else [TopK.best(parts, k) for parts in zip(*results, strict=True)]


def smallest(scores: Distances, count: int) -> Ints:
    """Return the places of the smallest scores along the last axis, in no order."""
    width = scores.shape[-1]
    if count >= width:
        return np.broadcast_to(np.arange(width), scores.shape)
    near = _near(scores, count) if scores.ndim == 1 else None
    if near is None:
        return np.argpartition(scores, count - 1, axis=-1)[..., :count]
    return near if len(near) == count else near[np.argpartition(scores[near], count - 1)[:count]]


def _near(scores: Distances, count: int) -> Ints | None:
    """Return places of scores (n,) that include the `count` smallest, often few more; None if unknown.

    The scores are cut into groups. The `count`-th smallest of the groups' least values is a bound for the
    scores to return. To find it takes a tenth of the time of partitioning the places of all scores.
    """
    groups = _GROUPS * count
    depth = len(scores) // groups
    if depth < _GROUPS:
        return None
    least = scores[: depth * groups].reshape(depth, groups).min(axis=0)
    bound = np.partition(least, count - 1)[count - 1]
    # The least value of a group with NaN is NaN, which is sorted last.
    return None if np.isnan(bound) else np.flatnonzero(scores <= bound)


class BatchTopK:
    """Gathers the k nearest rows of each of many queries from matrices of distances.

    Only rows of a matrix are kept that may be among the k: at most as far as the k-th nearest of some rows
    already seen.

    Args:
        queries: how many.
        k: rows per query.
    """

    def __init__(self, queries: int, k: int) -> None:
        self._k = k
        self._bounds = np.full(queries, np.inf, dtype=np.float32)
        self._parts: list[tuple[Ints, Addresses, Distances]] = []
        self._held = 0

    def add(self, askers: Ints, addresses: Addresses, scores: Distances) -> None:
        """Take the distances (q, n) of the queries `askers` (q,) to rows at `addresses` (n,)."""
        if not scores.size:
            return
        bounds = np.fmin(self._bounds[askers], _bounds(scores, self._k))
        self._bounds[askers] = bounds
        # NaN, of codes that overflow, is as far as can be.
        who, which = np.nonzero(~(scores > bounds[:, None]))
        self._parts.append((askers[who], addresses[which], scores[who, which]))
        self._held += len(who)
        if self._held > max(_HELD, 2 * len(self._bounds) * self._k):
            self._parts = [self._sorted()]
            self._held = len(self._parts[0][0])

    def nearest(self) -> list[TopK]:
        """Return the k nearest rows of every query."""
        queries = len(self._bounds)
        askers, addresses, scores = self._sorted()
        starts = np.searchsorted(askers, np.arange(queries + 1))
        return [
            TopK(addresses[start:end], scores[start:end])
            for start, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
        ]

    def _sorted(self) -> tuple[Ints, Addresses, Distances]:
        """Return the best of what is held, by query and distance."""
        askers = np.concatenate([np.empty(0, np.int64), *(part[0] for part in self._parts)])
        addresses = np.concatenate([np.empty(0, np.uint64), *(part[1] for part in self._parts)])
        scores = np.concatenate([np.empty(0, np.float32), *(part[2] for part in self._parts)])
        near = np.flatnonzero(~(scores > self._bounds[askers]))
        askers, addresses, scores = askers[near], addresses[near], scores[near]
        # A row that is there twice counts with its smaller distance.
        order = np.lexsort((scores, addresses, askers))
        same = (np.diff(askers[order]) == 0) & (np.diff(addresses[order]) == 0)
        order = order[~np.concatenate([np.zeros(min(1, len(order)), np.bool_), same])]
        order = order[np.lexsort((addresses[order], scores[order], askers[order]))]
        askers, addresses, scores = askers[order], addresses[order], scores[order]
        ranks = np.arange(len(askers)) - np.searchsorted(askers, askers)
        keep = ranks < self._k
        return askers[keep], addresses[keep], scores[keep]


def _bounds(scores: Distances, k: int) -> Distances:
    """Return for each row of a matrix a number that at least k of its values do not exceed, often just k.

    Infinite if there are fewer values.
    """
    count = scores.shape[1]
    if count < k:
        return np.full(len(scores), np.inf, dtype=np.float32)
    depth = count // (_GROUPS * k)
    if depth > 1:
        grouped = scores[:, : depth * _GROUPS * k].reshape(len(scores), depth, _GROUPS * k)
        scores = grouped.min(axis=1)
    return np.partition(scores, k - 1, axis=1)[:, k - 1]
