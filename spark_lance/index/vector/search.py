"""Searching the vectors of one version of a table: index partitions, fragments without an index, exact
distances.

    1  every segment of an index with the right metric gives its best candidates, from its nearest partitions
    2  rows of fragments that no segment covers are compared exactly
    3  candidates are compared exactly if a refine factor asks for it or there are rows of step 2
    4  the k best of all

Rows that do not count (`RowResolver`), or that a filter does not allow, are left out before candidates are
chosen, so k rows come back if there are as many. (Lance index format, search semantics.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.errors import FormatError
from spark_lance.index.cache import CACHE_BYTES, ByteCache
from spark_lance.index.entries import Segment, segments_of
from spark_lance.index.resolve import RowResolver
from spark_lance.index.vector.build import as_matrix
from spark_lance.index.vector.create import VECTOR_LABEL, VECTOR_NEWEST, open_segment
from spark_lance.index.vector.graph import Graph, search_graph
from spark_lance.index.vector.metrics import Metric, Vectors, distances, exact_distances
from spark_lance.index.vector.quantizers.base import Asked, Scorer
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.storage import RowIds, VectorSegment
from spark_lance.io.store import Store
from spark_lance.proto import table_pb2
from spark_lance.table.manifest import Manifest
from spark_lance.table.predicates.predicate import compile_predicate
from spark_lance.table.reading.scan import ROW_ADDRESS, Scan
from spark_lance.table.reading.system_columns import nameable
from spark_lance.table.reading.take import take_addresses

__all__ = ["Found", "VectorSearch"]

Addresses = npt.NDArray[np.uint64]
Distances = npt.NDArray[np.float32]

_WINDOW_BYTES = 32 << 20
# Partitions of fewer rows are compared as a whole even if they have a graph: one product of matrices takes
# less time than the many small steps of a walk.
_WORTH_WALKING = 1 << 16
# Below this share of rows that are allowed, a graph is not walked.
_SPARSE = 0.1
_MARGIN = 16
# Vectors that are compared with a partition at once.
_QUERY_BLOCK = 512


@dataclass(frozen=True)
class Found:
    """Rows by distance: addresses (n,) uint64 and distances (n,) float32, ascending."""

    addresses: Addresses
    distances: Distances

    @classmethod
    def best(cls, parts: Sequence[Found], k: int) -> Found:
        """Return the k nearest rows of several results, ties by address; a row counts once."""
        addresses = np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in parts)])
        scores = np.concatenate([np.empty(0, np.float32), *(part.distances for part in parts)])
        if len(scores) > 4 * k:
            near = np.flatnonzero(scores <= np.partition(scores, k - 1)[k - 1])
            addresses, scores = addresses[near], scores[near]
        order = np.lexsort((addresses, scores))
        addresses, scores = addresses[order], scores[order]
        _, first = np.unique(addresses, return_index=True)
        kept = np.sort(first)[:k]
        return cls(addresses[kept], scores[kept])


_NOTHING = Found(np.empty(0, np.uint64), np.empty(0, np.float32))


@dataclass(frozen=True)
class _Loaded:
    """A partition, ready to be searched."""

    row_ids: RowIds
    scorer: Scorer
    graph: Graph | None


_PARTITIONS: ByteCache[_Loaded] = ByteCache(CACHE_BYTES)


class VectorSearch:
    """Searches one column of one version.

    Args:
        store, root, manifest: the version.
        column: a fixed-size list of numbers.
    """

    def __init__(self, store: Store, root: str, manifest: Manifest, column: str) -> None:
        self._scan = Scan.plan(store, root, manifest, [column], with_row_address=True)
        self._column = column
        self._kind = manifest.schema.field(column).arrow_type()
        self._field = manifest.schema.field(column).id
        self._rows = RowResolver(store, root, manifest)
        self._allowed: dict[tuple[str, frozenset[int]], Addresses] = {}

    @cached_property
    def _segments(self) -> list[tuple[Segment, VectorSegment]]:
        scan = self._scan
        found = segments_of(scan.store, scan.root, scan.manifest, VECTOR_LABEL, VECTOR_NEWEST, self._field)
        return [(segment, open_segment(segment)) for segment in found]

    @property
    def scan(self) -> Scan:
        """A scan of the column."""
        return self._scan

    @property
    def kind(self) -> pa.DataType:
        """The type of the column."""
        return self._kind

    def allowed(self, filter: str | None, fragments: Iterable[int]) -> Addresses | None:
        """Return the addresses of the rows of some fragments that a filter keeps, ascending; None for all."""
        if filter is None:
            return None
        key = (filter, frozenset(fragments))
        if key not in self._allowed:
            scan = self._scan
            condition = compile_predicate(filter, nameable(scan.manifest.schema))
            chosen = tuple(self.fragments(key[1]))
            part = Scan(scan.store, scan.root, scan.manifest, (ROW_ADDRESS,), chosen)
            found = [table[ROW_ADDRESS].to_numpy() for table in part.tables(condition)]
            self._allowed[key] = np.sort(np.concatenate([np.empty(0, np.uint64), *found]))
        return self._allowed[key]

    def fragments(self, numbers: Iterable[int]) -> list[table_pb2.DataFragment]:
        """Return the fragments of some ids."""
        wanted = set(numbers)
        return [fragment for fragment in self._scan.fragments if fragment.id in wanted]

    def metric(self, query: VectorQuery) -> Metric:
        """Return the metric by which a query's rows are compared."""
        if query.metric is not None:
            return query.metric
        if query.use_index and self._segments:
            return self._segments[0][1].metric
        return "hamming" if self._kind.value_type == pa.uint8() else "l2"

    def run(self, query: VectorQuery, allowed: Addresses | None = None) -> list[Found]:
        """Return the nearest rows of each vector of a query.

        Args:
            query: what is asked.
            allowed: addresses of the rows that may be found, ascending; all by default.

        Raises:
            OptionError: the query does not fit the column.
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        query = query.fitted(self._kind)
        metric = self.metric(query)
        used = self.used_segments(query, metric)
        covered = BitMap().union(*(pair[0].covered for pair in used)) if used else BitMap()
        loose = [f for f in self._scan.fragments if f.id not in covered]
        if used and query.fast_search:
            loose = []
        exact = self.exact(query.vectors, loose, metric, query.wanted, allowed)
        indexed: list[list[Found]] = [[] for _ in query.vectors]
        for pair in used:
            found = self.in_segment(query, *pair, allowed)
            for parts, part in zip(indexed, found, strict=True):
                parts.append(part)
        best = [Found.best(parts, query.wanted) for parts in indexed]
        if query.refine_factor is not None or (loose and used):
            best = self.refined(query.vectors, best, metric)
        return [
            _within(Found.best([one, other], query.k), query) for one, other in zip(best, exact, strict=True)
        ]

    def used_segments(self, query: VectorQuery, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of the one index that a query is answered with, none if there is none."""
        if not query.use_index:
            return []
        fitting = [pair for pair in self._segments if pair[1].metric == metric]
        return [pair for pair in fitting if pair[0].name == fitting[0][0].name]

    def in_segment(
        self, query: VectorQuery, segment: Segment, stored: VectorSegment, allowed: Addresses | None
    ) -> list[Found]:
        """Return the best candidates of one segment for each vector of a query."""
        vectors = stored.ivf.prepared(query.vectors)
        most = len(stored.ivf) if query.maximum_nprobes is None else query.maximum_nprobes
        first = min(query.minimum_nprobes, most)
        probes = stored.ivf.probe(vectors, most if len(vectors) == 1 else first)
        found: list[list[Found]] = [[] for _ in vectors]
        # A partition is loaded once for all vectors that look at it.
        order = np.argsort(probes[:, :first], axis=None, kind="stable")
        homes = probes[:, :first].reshape(-1)[order]
        for mine in np.split(order, np.flatnonzero(np.diff(homes)) + 1):
            number = int(probes.reshape(len(vectors), -1)[mine[0] // first, mine[0] % first])
            askers = mine // first
            parts = self.in_partition(query, vectors[askers], segment, stored, number, allowed)
            for asker, part in zip(askers.tolist(), parts, strict=True):
                found[asker].append(part)
        for asker, parts in enumerate(found):
            count = sum(len(part.addresses) for part in parts)
            if count >= query.wanted or first >= most:
                continue
            vector = vectors[asker : asker + 1]
            for number in stored.ivf.probe(vector, most)[0, first:].tolist():
                parts += self.in_partition(query, vector, segment, stored, number, allowed)
                count += len(parts[-1].addresses)
                if count >= query.wanted:
                    break
        return [Found.best(parts, query.wanted) for parts in found]

    def in_partition(
        self,
        query: VectorQuery,
        vectors: Vectors,
        segment: Segment,
        stored: VectorSegment,
        number: int,
        allowed: Addresses | None = None,
    ) -> list[Found]:
        """Return the best candidates of one partition for each of some vectors, prepared for the index."""
        if not stored.lengths[number]:
            return [_NOTHING] * len(vectors)
        held = self._load(segment, stored, number)
        asked = stored.quantizer.ask(vectors, stored.ivf.centroids[number])
        if held.graph is not None and len(vectors) == 1:
            addresses, counts = self._counting(held.row_ids, segment, allowed)
            if counts.mean() >= _SPARSE:
                ef = query.ef or max(query.wanted, 3 * query.wanted // 2)
                nodes, scores = search_graph(held.graph, held.scorer, asked, ef, counts)
                return [Found(addresses[nodes], scores * _scale(stored))]
        if len(vectors) == 1:
            scores = held.scorer.distances(asked)[0] * _scale(stored)
            return [self._nearest(query, scores, held, segment, allowed)]
        addresses, counts = self._counting(held.row_ids, segment, allowed)
        rows = np.flatnonzero(counts)
        best = []
        for start in range(0, len(vectors), _QUERY_BLOCK):
            part = Asked(
                asked.points[start : start + _QUERY_BLOCK], asked.shift[start : start + _QUERY_BLOCK]
            )
            block = held.scorer.distances(part)
            block = block if len(rows) == len(counts) else block[:, rows]
            near = _smallest(block, query.wanted)
            scores = np.take_along_axis(block, near, axis=1) * _scale(stored)
            best += [Found(addresses[rows[n]], d) for n, d in zip(near, scores, strict=True)]
        return best

    def _nearest(
        self,
        query: VectorQuery,
        scores: Distances,
        held: _Loaded,
        segment: Segment,
        allowed: Addresses | None,
    ) -> Found:
        """Return the nearest rows of a partition that count.

        Resolving a row may be dear, so only the nearest are, and more of them if too few count.
        """
        wanted = query.wanted + _MARGIN
        while True:
            near = _smallest(scores, wanted)
            addresses, counts = self._counting(held.row_ids[near], segment, allowed)
            if wanted >= len(scores) or int(counts.sum()) >= query.wanted:
                return Found(addresses[counts], scores[near][counts])
            wanted *= 8

    def _counting(
        self, row_ids: RowIds, segment: Segment, allowed: Addresses | None
    ) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of rows, and which of them may be found."""
        addresses, counts = self._rows.addresses(row_ids, segment.covered)
        return addresses, counts if allowed is None else counts & _contains(allowed, addresses)

    def _load(self, segment: Segment, stored: VectorSegment, number: int) -> _Loaded:
        def load() -> _Loaded:
            partition = stored.partition(number)
            graph = stored.graph(number) if len(partition.row_ids) >= _WORTH_WALKING else None
            try:
                scorer = stored.quantizer.scorer(partition.codes)
            except (KeyError, IndexError) as error:
                raise FormatError(f"codes that do not fit the index: {error}", segment.directory) from error
            return _Loaded(partition.row_ids, scorer, graph)

        def size(loaded: _Loaded) -> int:
            return loaded.scorer.nbytes + loaded.row_ids.nbytes

        return _PARTITIONS.get((segment.store.uri(segment.directory), number), load, size)

    def exact(
        self,
        vectors: Vectors,
        fragments: Sequence[table_pb2.DataFragment],
        metric: Metric,
        wanted: int,
        allowed: Addresses | None,
    ) -> list[Found]:
        """Return the nearest rows of some fragments for every vector, all of them compared."""
        best: list[list[Found]] = [[] for _ in vectors]
        scan = self._scan
        part = Scan(scan.store, scan.root, scan.manifest, scan.names, tuple(fragments))
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            matrix, there = as_matrix(table.column(self._column))
            addresses = table.column(ROW_ADDRESS).to_numpy()[there]
            if allowed is not None:
                counts = _contains(allowed, addresses)
                matrix, addresses = matrix[counts], addresses[counts]
            if not len(addresses):
                continue
            scores = distances(vectors, matrix, metric)
            for number, vector in enumerate(vectors):
                near = _smallest(scores[number], wanted + _MARGIN)
                exactly = exact_distances(vector, matrix[near], metric)
                best[number] = [Found.best([*best[number], Found(addresses[near], exactly)], wanted)]
        return [Found.best(parts, wanted) for parts in best]

    def refined(self, vectors: Vectors, found: Sequence[Found], metric: Metric) -> list[Found]:
        """Return rows with their exact distances to each of some vectors."""
        wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in found)]))
        table = take_addresses(self._scan, wanted)
        matrix, there = as_matrix(table.column(self._column))
        addresses = table.column(ROW_ADDRESS).to_numpy()[there]
        exact = []
        for vector, part in zip(vectors, found, strict=True):
            places = np.searchsorted(addresses, part.addresses)
            places = places[_contains(addresses, part.addresses)]
            exact.append(Found(addresses[places], exact_distances(vector, matrix[places], metric)))
        return exact


def _scale(stored: VectorSegment) -> Any:
    """Codes estimate the squared distance of vectors of length 1, which is twice their cosine distance."""
    return np.float32(0.5 if stored.metric == "cosine" and stored.quantizer.name != "FLAT" else 1)


def _smallest(scores: Distances, count: int) -> npt.NDArray[np.int64]:
    """Return the places of the smallest scores along the last axis, in no order."""
    width = scores.shape[-1]
    if count >= width:
        return np.broadcast_to(np.arange(width), scores.shape)
    return np.argpartition(scores, count - 1, axis=-1)[..., :count]


def _contains(rows: Addresses, asked: Addresses) -> npt.NDArray[np.bool_]:
    """Return which addresses are among ascending ones."""
    if not len(rows):
        return np.zeros(len(asked), dtype=np.bool_)
    places = np.minimum(np.searchsorted(rows, asked), len(rows) - 1)
    found: npt.NDArray[np.bool_] = rows[places] == asked
    return found


def _within(found: Found, query: VectorQuery) -> Found:
    low, high = query.distance_range
    keep = np.ones(len(found.distances), dtype=np.bool_)
    if low is not None:
        keep &= found.distances >= low
    if high is not None:
        keep &= found.distances < high
    return Found(found.addresses[keep], found.distances[keep])
