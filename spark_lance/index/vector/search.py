"""Searching the vectors of one version of a table: index partitions, fragments without an index, exact
distances.

    1  every segment of the newest index with the right metric gives its best candidates, from its nearest
       partitions; the first index of the column says which metric that is, if the query does not
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
from spark_lance.index.columns import column_values, leaf_field, top_column
from spark_lance.index.entries import Segment, newest_index, segments_of
from spark_lance.index.resolve import RowResolver
from spark_lance.index.vector.best import BestOfMany, Found, merged, smallest
from spark_lance.index.vector.build import as_matrix
from spark_lance.index.vector.create import VECTOR_LABEL, VECTOR_NEWEST, open_segment
from spark_lance.index.vector.graph import Graph, search_graph
from spark_lance.index.vector.metrics import Metric, Vectors, distances, exact_distances
from spark_lance.index.vector.quantizers.base import Asked, Queries, Scorer
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.storage import RowIds, VectorSegment
from spark_lance.proto import table_pb2
from spark_lance.table.reading.scan import ROW_ADDRESS, Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.take import take_addresses

__all__ = ["VectorSearch"]

Addresses = npt.NDArray[np.uint64]
Distances = npt.NDArray[np.float32]

_WINDOW_BYTES = 32 << 20
# Partitions of fewer rows are compared as a whole even if they have a graph: one product of matrices takes
# less time than the many small steps of a walk.
_WORTH_WALKING = 1 << 16
# Below this share of rows that are allowed, a graph is not walked.
_SPARSE = 0.1
_MARGIN = 16
# Distances of queries to a partition that are computed at once.
_BLOCK_BYTES = 2 << 20
# Rows of partitions whose distances are sorted together.
_ROWS_TOGETHER = 1 << 20


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
        snapshot: the version.
        column: a fixed-size list of numbers; with dots, in a struct column.
    """

    def __init__(self, snapshot: Snapshot, column: str) -> None:
        self._snapshot = snapshot
        self._scan = snapshot.scan([top_column(snapshot.schema, column)], with_row_address=True)
        self._column = column
        field = leaf_field(snapshot.schema, column)
        self._kind, self._field = field.arrow_type(), field.id
        self._rows = RowResolver(snapshot)
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
            part = self._snapshot.scan([ROW_ADDRESS], fragments=self.fragments(key[1]))
            found = [table[ROW_ADDRESS].to_numpy() for table in part.tables(filter)]
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
        sources = []
        if used:
            found = merged([self.in_segment(query, *pair, allowed) for pair in used], query.wanted)
            if query.refine_factor is not None or loose:
                refined = self.refined(query.vectors, found, metric)
                found = [Found.best([part], query.k) for part in refined]
            sources.append(found)
        if loose or not used:
            sources.append(self.exact(query.vectors, loose, metric, query.k, allowed))
        return [_within(part, query) for part in merged(sources, query.k)]

    def used_segments(self, query: VectorQuery, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of the newest index of a metric; none if there is none, or none is wanted."""
        if not query.use_index:
            return []
        stored = {pair[0].entry.uuid.uuid: pair[1] for pair in self._segments if pair[1].metric == metric}
        fitting = [pair[0] for pair in self._segments if pair[0].entry.uuid.uuid in stored]
        return [(segment, stored[segment.entry.uuid.uuid]) for segment in newest_index(fitting)]

    def in_segment(
        self, query: VectorQuery, segment: Segment, stored: VectorSegment, allowed: Addresses | None
    ) -> list[Found]:
        """Return the best candidates of one segment for each vector of a query."""
        queries = stored.quantizer.queries(stored.ivf.prepared(query.vectors))
        most = len(stored.ivf) if query.maximum_nprobes is None else query.maximum_nprobes
        first = min(query.minimum_nprobes, most)
        probes = stored.ivf.probe(queries.vectors, first)
        if len(queries) == 1:
            found = [self._of_one(query, queries, segment, stored, probes[0].tolist(), allowed)]
        else:
            found = self._of_many(query, queries, segment, stored, probes, allowed)
        for asker, part in enumerate(found):
            if len(part.addresses) >= query.wanted or first >= most:
                continue
            one = queries[asker : asker + 1]
            for number in stored.ivf.probe(one.vectors, most)[0, first:].tolist():
                more = self._of_one(query, one, segment, stored, [number], allowed)
                found[asker] = Found.best([found[asker], more], query.wanted)
                if len(found[asker].addresses) >= query.wanted:
                    break
        return found

    def _of_many(
        self,
        query: VectorQuery,
        queries: Queries,
        segment: Segment,
        stored: VectorSegment,
        probes: npt.NDArray[np.int64],
        allowed: Addresses | None,
    ) -> list[Found]:
        """Return the best candidates for each query of its partitions `probes` (q, n)."""
        best = BestOfMany(len(queries), query.wanted)
        # A partition is loaded once for all queries that look at it.
        order = np.argsort(probes, axis=None, kind="stable")
        homes = probes.reshape(-1)[order]
        starts = np.flatnonzero(np.diff(homes, prepend=-1))
        for number, mine in zip(homes[starts].tolist(), np.split(order, starts[1:]), strict=True):
            askers = mine // probes.shape[1]
            self._compare(best, askers, queries, segment, stored, number, allowed)
        return best.found()

    def in_partition(
        self,
        query: VectorQuery,
        queries: Queries,
        segment: Segment,
        stored: VectorSegment,
        number: int,
        allowed: Addresses | None = None,
    ) -> list[Found]:
        """Return the best candidates of one partition for each of some queries."""
        if len(queries) == 1:
            return [self._of_one(query, queries, segment, stored, [number], allowed)]
        best = BestOfMany(len(queries), query.wanted)
        self._compare(best, np.arange(len(queries)), queries, segment, stored, number, allowed)
        return best.found()

    def _compare(
        self,
        best: BestOfMany,
        askers: npt.NDArray[np.int64],
        queries: Queries,
        segment: Segment,
        stored: VectorSegment,
        number: int,
        allowed: Addresses | None,
    ) -> None:
        """Compare the queries numbered `askers` with all rows of a partition."""
        if not stored.lengths[number]:
            return
        held = self._load(segment, stored, number)
        addresses, counts = self._counting(held.row_ids, segment, allowed)
        rows = np.flatnonzero(counts)
        step = max(1, _BLOCK_BYTES // (4 * len(counts)))
        for start in range(0, len(askers), step):
            some = askers[start : start + step]
            block = held.scorer.distances(stored.quantizer.ask(queries[some], stored.ivf.centroids[number]))
            block *= _scale(stored)
            best.add(some, addresses[rows], block if len(rows) == len(counts) else block[:, rows])

    def _of_one(
        self,
        query: VectorQuery,
        one: Queries,
        segment: Segment,
        stored: VectorSegment,
        numbers: Sequence[int],
        allowed: Addresses | None,
    ) -> Found:
        """Return the best candidates of some partitions for one query."""
        best = []
        ids: list[RowIds] = []
        scores: list[Distances] = []
        held_rows = 0
        for number in numbers:
            if not stored.lengths[number]:
                continue
            held = self._load(segment, stored, number)
            asked = stored.quantizer.ask(one, stored.ivf.centroids[number])
            walked = self._walk(query, held, asked, segment, allowed) if held.graph is not None else None
            if walked is not None:
                best.append(Found(walked.addresses, walked.distances * _scale(stored)))
                continue
            ids.append(held.row_ids)
            scores.append(held.scorer.distances(asked)[0] * _scale(stored))
            held_rows += len(held.row_ids)
            if held_rows >= _ROWS_TOGETHER:
                best.append(self._nearest(query, scores, ids, segment, allowed))
                ids, scores, held_rows = [], [], 0
        if ids:
            best.append(self._nearest(query, scores, ids, segment, allowed))
        return Found.best(best, query.wanted)

    def _walk(
        self, query: VectorQuery, held: _Loaded, asked: Asked, segment: Segment, allowed: Addresses | None
    ) -> Found | None:
        """Return what a walk through the graph of a partition finds; None if too few rows count for one."""
        assert held.graph is not None
        addresses, counts = self._counting(held.row_ids, segment, allowed)
        if counts.mean() < _SPARSE:
            return None
        ef = query.ef or max(query.wanted, 3 * query.wanted // 2)
        nodes, scores = search_graph(held.graph, held.scorer, asked, ef, counts)
        return Found(addresses[nodes], scores)

    def _nearest(
        self,
        query: VectorQuery,
        scores: Sequence[Distances],
        ids: Sequence[RowIds],
        segment: Segment,
        allowed: Addresses | None,
    ) -> Found:
        """Return the nearest rows of partitions that count.

        Resolving a row may be dear, so only the nearest are, and more of them if too few count.
        """
        every, row_ids = np.concatenate(scores), np.concatenate(ids)
        wanted = query.wanted + _MARGIN
        while True:
            near = smallest(every, wanted)
            addresses, counts = self._counting(row_ids[near], segment, allowed)
            if wanted >= len(every) or int(counts.sum()) >= query.wanted:
                return Found(addresses[counts], every[near][counts])
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
            matrix, there = as_matrix(column_values(table, self._column))
            addresses = table.column(ROW_ADDRESS).to_numpy()[there]
            if allowed is not None:
                counts = _contains(allowed, addresses)
                matrix, addresses = matrix[counts], addresses[counts]
            if not len(addresses):
                continue
            scores = distances(vectors, matrix, metric)
            for number, vector in enumerate(vectors):
                near = smallest(scores[number], wanted + _MARGIN)
                exactly = exact_distances(vector, matrix[near], metric)
                best[number] = [Found.best([*best[number], Found(addresses[near], exactly)], wanted)]
        return [Found.best(parts, wanted) for parts in best]

    def refined(self, vectors: Vectors, found: Sequence[Found], metric: Metric) -> list[Found]:
        """Return rows with their exact distances to each of some vectors."""
        wanted = np.unique(np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in found)]))
        table = take_addresses(self._scan, wanted)
        matrix, there = as_matrix(column_values(table, self._column))
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
