"""Searching one segment of a vector index: its nearest partitions, by codes or by a walk through a graph.

Rows that do not count (`RowResolver`), or that may not be found, are left out before candidates are chosen.
(Lance index format, search semantics.)
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_lance.errors import FormatError
from spark_lance.index.entries import Segment
from spark_lance.index.resolve import RowResolver
from spark_lance.index.search_rows import Addresses, contains
from spark_lance.index.vector.graph import Graph, search_graph
from spark_lance.index.vector.quantizers.base import Asked, Queries, Scorer, estimate_each
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.storage import RowIds, VectorSegment
from spark_lance.index.vector.top_k import BatchTopK, TopK, smallest
from spark_lance.io.cache import CACHE, CacheSection

__all__ = ["SegmentSearch"]

Distances = npt.NDArray[np.float32]

# Partitions of fewer rows are compared as a whole even if they have a graph: one product of matrices takes
# less time than the many small steps of a walk.
_WORTH_WALKING = 1 << 16
# Below this share of rows that are allowed, a graph is not walked.
_SPARSE = 0.1
_MARGIN = 16
# Distances of queries to a partition that are computed at once. Of up to so many queries, so that rows which
# are decoded for them serve many.
_BLOCK_BYTES = 2 << 20
_BLOCK_QUERIES = 1 << 10
# The part of a core's caches that partitions of an earlier query may still fill.
_NEARBY_BYTES = 4 << 20
# Bytes of partitions whose distances are sorted together.
_BYTES_TOGETHER = 64 << 20


@dataclass(frozen=True)
class _Loaded:
    """A partition, ready to be searched."""

    row_ids: RowIds
    scorer: Scorer
    graph: Graph | None


_PARTITIONS: CacheSection[_Loaded] = CacheSection("partitions of vectors", CACHE)


@dataclass(frozen=True)
class SegmentSearch:
    """One query, of one vector or several, for the rows of one segment.

    Attributes:
        query: what is asked; it fits the column.
        segment, stored: the segment, and what it stores.
        rows: says where rows are, and which count.
        allowed: addresses of the rows that may be found, ascending; None for all.
    """

    query: VectorQuery
    segment: Segment
    stored: VectorSegment
    rows: RowResolver
    allowed: Addresses | None

    @cached_property
    def _queries(self) -> Queries:
        return self.stored.quantizer.queries(self.stored.ivf.prepared(self.query.vectors))

    def run(self) -> list[TopK]:
        """Return the best candidates of the segment for each vector of the query."""
        with self.segment.decoding():
            return self._run()

    def _run(self) -> list[TopK]:
        query, queries, stored = self.query, self._queries, self.stored
        most = len(stored.ivf) if query.maximum_nprobes is None else query.maximum_nprobes
        first = min(query.minimum_nprobes, most)
        probes = stored.ivf.probe(queries.vectors, first)
        alone = len(queries) == 1
        results = [self._of_one(queries, probes[0].tolist())] if alone else self._of_many(probes)
        for asker, part in enumerate(results):
            if len(part.addresses) >= query.wanted or first >= most:
                continue
            one = queries[asker : asker + 1]
            for number in stored.ivf.probe(one.vectors, most)[0, first:].tolist():
                more = self._of_one(one, [number])
                results[asker] = TopK.best([results[asker], more], query.wanted)
                if len(results[asker].addresses) >= query.wanted:
                    break
        return results

    def _of_many(self, probes: npt.NDArray[np.int64]) -> list[TopK]:
        """Return the best candidates for each query of its partitions `probes` (q, n)."""
        best = BatchTopK(len(self._queries), self.query.wanted)
        # A partition is loaded once for all queries that look at it.
        order = np.argsort(probes, axis=None, kind="stable")
        homes = probes.reshape(-1)[order]
        starts = np.flatnonzero(np.diff(homes, prepend=-1))
        for number, mine in zip(homes[starts].tolist(), np.split(order, starts[1:]), strict=True):
            askers = mine // probes.shape[1]
            self._compare(best, askers, number)
        return best.found()

    def in_partition(self, number: int) -> list[TopK]:
        """Return the best candidates of one partition for each vector of the query."""
        with self.segment.decoding():
            if len(self._queries) == 1:
                return [self._of_one(self._queries, [number])]
            return self._of_many(np.full((len(self._queries), 1), number))

    def _compare(self, best: BatchTopK, askers: npt.NDArray[np.int64], number: int) -> None:
        """Compare the queries numbered `askers` with all rows of a partition."""
        stored = self.stored
        if not stored.lengths[number]:
            return
        partition = self._load(number)
        addresses, counts = self._counting(partition.row_ids)
        for start in range(0, len(askers), _BLOCK_QUERIES):
            some = askers[start : start + _BLOCK_QUERIES]
            prepared = stored.quantizer.ask(self._queries[some], stored.ivf.centroids[number])
            step = max(1, _BLOCK_BYTES // (4 * len(some)))
            for first in range(0, len(counts), step):
                part = slice(first, first + step)
                block = partition.scorer.part(part).distances(prepared)
                block *= _scale(stored)
                rows = np.flatnonzero(counts[part])
                left = len(rows) < block.shape[1]
                best.add(some, addresses[part][rows], block[:, rows] if left else block)

    def _of_one(self, one: Queries, numbers: Sequence[int]) -> TopK:
        """Return the best candidates of some partitions for one query."""
        stored = self.stored
        full = [number for number in numbers if stored.lengths[number]]
        best: list[TopK] = []
        group: list[tuple[_Loaded, Asked]] = []
        size = 0
        for number, prepared in zip(
            full, stored.quantizer.ask_each(one, stored.ivf.centroids[full]), strict=True
        ):
            partition = self._load(number)
            walked = self._walk(partition, prepared) if partition.graph is not None else None
            if walked is not None:
                best.append(TopK(walked.addresses, walked.distances * _scale(stored)))
                continue
            group.append((partition, prepared))
            size += partition.scorer.nbytes
            if size >= _BYTES_TOGETHER:
                best.append(self._nearest(group))
                group, size = [], 0
        if group:
            best.append(self._nearest(group))
        return TopK.best(best, self.query.wanted)

    def _walk(self, partition: _Loaded, prepared: Asked) -> TopK | None:
        """Return what a walk through the graph of a partition finds; None if too few rows count for one."""
        assert partition.graph is not None
        addresses, counts = self._counting(partition.row_ids)
        if counts.mean() < _SPARSE:
            return None
        query = self.query
        ef = query.ef or max(query.wanted, 3 * query.wanted // 2)
        nodes, scores = search_graph(partition.graph, partition.scorer, prepared, ef, counts)
        return TopK(addresses[nodes], scores)

    def _nearest(self, group: Sequence[tuple[_Loaded, Asked]]) -> TopK:
        """Return the nearest rows of partitions that count.

        Resolving a row may be slow, so only the nearest are, and more of them if too few count.
        """
        row_ids = np.concatenate([partition.row_ids for partition, _ in group])
        ends = np.cumsum([len(partition.row_ids) for partition, _ in group])
        scores = np.empty(len(row_ids), np.float32)
        afar = sum(partition.scorer.nbytes for partition, _ in group) > _NEARBY_BYTES
        estimate_each([(partition.scorer, prepared) for partition, prepared in group], scores, afar=afar)
        rounding = max(partition.scorer.rounding(prepared) for partition, prepared in group)
        count = self.query.wanted + _MARGIN
        while True:
            near, distances = _smallest(scores, count, rounding, group, ends)
            addresses, counts = self._counting(row_ids[near])
            if count >= len(scores) or int(np.count_nonzero(counts)) >= self.query.wanted:
                return TopK(addresses[counts], distances[counts] * _scale(self.stored))
            count *= 8

    def _counting(self, row_ids: RowIds) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of rows, and which of them may be found."""
        addresses, counts = self.rows.addresses(row_ids, self.segment.covered)
        return addresses, counts if self.allowed is None else counts & contains(self.allowed, addresses)

    def _load(self, number: int) -> _Loaded:
        segment, stored = self.segment, self.stored

        def load() -> _Loaded:
            partition = stored.partition(number)
            graph = stored.graph(number) if len(partition.row_ids) >= _WORTH_WALKING else None
            try:
                scorer = stored.quantizer.scorer(partition.codes)
                # The steps of a walk are so small that decoding would take most of their time.
                scorer = scorer if graph is None else scorer.decoded()
            except (KeyError, IndexError) as error:
                raise FormatError(f"codes that do not fit the index: {error}", segment.directory) from error
            return _Loaded(partition.row_ids, scorer, graph)

        def size(loaded: _Loaded) -> int:
            links = 0 if loaded.graph is None else loaded.graph.nbytes
            return loaded.scorer.nbytes + loaded.row_ids.nbytes + links

        return _PARTITIONS.get((self._place, number), load, size)

    @cached_property
    def _place(self) -> Hashable:
        return self.segment.store.cache_key(self.segment.directory)


def _scale(stored: VectorSegment) -> Any:
    """Codes estimate the squared distance of vectors of length 1, which is twice their cosine distance."""
    return np.float32(0.5 if stored.metric == "cosine" and stored.quantizer.squares_cosine else 1)


def _smallest(
    scores: Distances,
    count: int,
    rounding: float,
    group: Sequence[tuple[_Loaded, Asked]],
    ends: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], Distances]:
    """Return the `wanted` rows of a group of partitions that are nearest, in no order, and their distances.

    Args:
        scores: estimates for the rows of all partitions.
        count: how many rows; all if there are fewer.
        rounding: how far an estimate may be off; if it may, the nearest are compared exactly.
        group: the partitions, and the query as they see it.
        ends: how many rows there are up to the end of each.
    """
    near = smallest(scores, count)
    if not rounding:
        return near, scores[near]
    # A nearest row is no further off than the last of them by estimate and two roundings. NaN, of vectors
    # that overflow, is anywhere.
    limit = scores[near].max() + np.float32(2 * rounding)
    near = np.flatnonzero(~(scores > limit))
    cuts = np.searchsorted(near, ends).tolist()
    parts = []
    for (partition, prepared), first, last, end in zip(group, [0, *cuts], cuts, ends.tolist(), strict=False):
        if first < last:
            parts.append(partition.scorer.some(prepared, near[first:last] - (end - len(partition.row_ids))))
    exact = np.concatenate(parts)
    best = smallest(exact, count)
    return near[best], exact[best]
