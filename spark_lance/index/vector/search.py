"""Searching the vectors of one version of a table: index partitions, fragments without an index, exact
distances.

    1  every segment of the newest index with the right metric gives its best candidates, from its nearest
       partitions; the first index of the column says which metric that is, if the query does not
    2  rows of fragments that no segment covers are compared exactly
    3  candidates are compared exactly if a refine factor asks for it or there are rows of step 2
    4  the k best of all

`VectorSearch.plan` decides what is searched, `VectorSearch.answer` searches a task of it. `VectorSearch.run`
does both and step 4 in one process, Spark lets tasks answer, see `tasks` and `routing`. (Lance index format,
search semantics.)

A segment is searched in its nearest partitions, by codes or by a walk through a graph. Rows that do not count
(`RowResolver`), or that may not be found, are left out before candidates are chosen. (Lance index format,
search semantics.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.errors import FormatError
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import Segment, newest_index, segments_of
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.base.search_rows import (
    Addresses,
    Fragments,
    allowed_rows,
    contains,
    covered_by,
    unindexed,
)
from spark_lance.index.vector.base.metrics import Metric, Vectors, distances, exact_distances
from spark_lance.index.vector.build import as_matrix
from spark_lance.index.vector.create import open_segment
from spark_lance.index.vector.graph import Graph, search_graph
from spark_lance.index.vector.kinds import VECTOR_LABEL, VECTOR_NEWEST, is_multi
from spark_lance.index.vector.multi import best_rows, flat_vectors, row_distances
from spark_lance.index.vector.quantizers.base import PreparedQuery, Queries, Scorer, estimate_each
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.storage import RowIds, VectorSegment
from spark_lance.index.vector.top_k import BatchTopK, TopK, merged, smallest
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.proto import table_pb2
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import OpenFragments

Distances = npt.NDArray[np.float32]

# Partitions of fewer rows are compared as a whole even if they have a graph: one product of matrices takes
# less time than the many small steps of a walk.
_WORTH_WALKING = 1 << 16
# Below this share of rows that are allowed, a graph is not walked.
_SPARSE = 0.1
_SEGMENT_MARGIN = 16
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
        segment, content: the segment, and what it stores.
        rows: says where rows are, and which count.
        allowed: addresses of the rows that may be found, ascending; None for all.
    """

    query: VectorQuery
    segment: Segment
    content: VectorSegment
    rows: RowResolver
    allowed: Addresses | None

    @cached_property
    def _queries(self) -> Queries:
        return self.content.quantizer.queries(self.content.ivf.prepared(self.query.vectors))

    def run(self) -> list[TopK]:
        """Return the best candidates of the segment for each vector of the query."""
        with self.segment.decoding():
            return self._run()

    def _run(self) -> list[TopK]:
        query, queries, content = self.query, self._queries, self.content
        most = len(content.ivf) if query.maximum_nprobes is None else query.maximum_nprobes
        first = min(query.minimum_nprobes, most)
        probes = content.ivf.probe(queries.vectors, first)
        alone = len(queries) == 1
        results = [self._of_one(queries, probes[0].tolist())] if alone else self._of_many(probes)
        for asker, part in enumerate(results):
            if len(part.addresses) >= query.candidates or first >= most:
                continue
            one = queries[asker : asker + 1]
            for number in content.ivf.probe(one.vectors, most)[0, first:].tolist():
                more = self._of_one(one, [number])
                results[asker] = TopK.best([results[asker], more], query.candidates)
                if len(results[asker].addresses) >= query.candidates:
                    break
        return results

    def _of_many(self, probes: npt.NDArray[np.int64]) -> list[TopK]:
        """Return the best candidates for each query of its partitions `probes` (q, n)."""
        best = BatchTopK(len(self._queries), self.query.candidates)
        # A partition is loaded once for all queries that look at it.
        order = np.argsort(probes, axis=None, kind="stable")
        homes = probes.reshape(-1)[order]
        starts = np.flatnonzero(np.diff(homes, prepend=-1))
        for number, mine in zip(homes[starts].tolist(), np.split(order, starts[1:]), strict=True):
            askers = mine // probes.shape[1]
            self._compare(best, askers, number)
        return best.nearest()

    def in_partition(self, number: int) -> list[TopK]:
        """Return the best candidates of one partition for each vector of the query."""
        with self.segment.decoding():
            if len(self._queries) == 1:
                return [self._of_one(self._queries, [number])]
            return self._of_many(np.full((len(self._queries), 1), number))

    def _compare(self, best: BatchTopK, askers: npt.NDArray[np.int64], number: int) -> None:
        """Compare the queries numbered `askers` with all rows of a partition."""
        content = self.content
        if not content.lengths[number]:
            return
        partition = self._load(number)
        addresses, counts = self._counting(partition.row_ids)
        for start in range(0, len(askers), _BLOCK_QUERIES):
            some = askers[start : start + _BLOCK_QUERIES]
            prepared = content.quantizer.ask(self._queries[some], content.ivf.centroids[number])
            step = max(1, _BLOCK_BYTES // (4 * len(some)))
            for first in range(0, len(counts), step):
                part = slice(first, first + step)
                block = partition.scorer.part(part).distances(prepared)
                block *= _scale(content)
                rows = np.flatnonzero(counts[part])
                left = len(rows) < block.shape[1]
                best.add(some, addresses[part][rows], block[:, rows] if left else block)

    def _of_one(self, one: Queries, numbers: Sequence[int]) -> TopK:
        """Return the best candidates of some partitions for one query."""
        content = self.content
        full = [number for number in numbers if content.lengths[number]]
        best: list[TopK] = []
        group: list[tuple[_Loaded, PreparedQuery]] = []
        size = 0
        for number, prepared in zip(
            full, content.quantizer.ask_each(one, content.ivf.centroids[full]), strict=True
        ):
            partition = self._load(number)
            walked = self._walk(partition, prepared) if partition.graph is not None else None
            if walked is not None:
                best.append(TopK(walked.addresses, walked.distances * _scale(content)))
                continue
            group.append((partition, prepared))
            size += partition.scorer.nbytes
            if size >= _BYTES_TOGETHER:
                best.append(self._nearest(group))
                group, size = [], 0
        if group:
            best.append(self._nearest(group))
        return TopK.best(best, self.query.candidates)

    def _walk(self, partition: _Loaded, prepared: PreparedQuery) -> TopK | None:
        """Return what a walk through the graph of a partition finds; None if too few rows count for one."""
        assert partition.graph is not None
        addresses, counts = self._counting(partition.row_ids)
        if counts.mean() < _SPARSE:
            return None
        query = self.query
        ef = query.ef or max(query.candidates, 3 * query.candidates // 2)
        nodes, scores = search_graph(partition.graph, partition.scorer, prepared, ef, counts)
        return TopK(addresses[nodes], scores)

    def _nearest(self, group: Sequence[tuple[_Loaded, PreparedQuery]]) -> TopK:
        """Return the nearest rows of partitions that count.

        Resolving a row may be slow, so only the nearest are, and more of them if too few count.
        """
        row_ids = np.concatenate([partition.row_ids for partition, _ in group])
        ends = np.cumsum([len(partition.row_ids) for partition, _ in group])
        scores = np.empty(len(row_ids), np.float32)
        afar = sum(partition.scorer.nbytes for partition, _ in group) > _NEARBY_BYTES
        estimate_each([(partition.scorer, prepared) for partition, prepared in group], scores, afar=afar)
        rounding = max(partition.scorer.rounding(prepared) for partition, prepared in group)
        count = self.query.candidates + _SEGMENT_MARGIN
        while True:
            near, distances = _smallest(scores, count, rounding, group, ends)
            addresses, counts = self._counting(row_ids[near])
            if count >= len(scores) or int(np.count_nonzero(counts)) >= self.query.candidates:
                return TopK(addresses[counts], distances[counts] * _scale(self.content))
            count *= 8

    def _counting(self, row_ids: RowIds) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of rows, and which of them may be found."""
        addresses, counts = self.rows.addresses(row_ids, self.segment.covered)
        return addresses, counts if self.allowed is None else counts & contains(self.allowed, addresses)

    def _load(self, number: int) -> _Loaded:
        segment, content = self.segment, self.content

        def load() -> _Loaded:
            partition = content.partition(number)
            graph = content.graph(number) if len(partition.row_ids) >= _WORTH_WALKING else None
            try:
                scorer = content.quantizer.scorer(partition.codes)
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


def _scale(content: VectorSegment) -> Any:
    """Codes estimate the squared distance of vectors of length 1, which is twice their cosine distance."""
    return np.float32(0.5 if content.metric == "cosine" and content.quantizer.squares_cosine else 1)


def _smallest(
    scores: Distances,
    count: int,
    rounding: float,
    group: Sequence[tuple[_Loaded, PreparedQuery]],
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


_WINDOW_BYTES = 32 << 20
_MARGIN = 16
# Where rows have several vectors: this many times k rows are found by each vector of the query, which costs
# little as partitions are compared as a whole; and this many times k of all of these are compared exactly.
_HITS, _REFINED = 100, 10
# Rows of fragments without an index that one task has.
_SHARE_ROWS = 1 << 20


@dataclass(frozen=True)
class SearchTask:
    """A part of the rows that are searched: those of segments, or of fragments without an index.

    Attributes:
        metric: by which rows are compared.
        exactly: whether candidates of the index are compared exactly.
        segments: uuids.
        fragments: ids.
    """

    metric: Metric
    exactly: bool
    segments: tuple[bytes, ...] = ()
    fragments: tuple[int, ...] = ()


class VectorSearch:
    """Searches one column of one version.

    Args:
        snapshot: the version.
        column: a fixed-size list of numbers, or a list of such; with dots, in a struct column.

    Attributes:
        kind: the type of the column.
    """

    def __init__(self, snapshot: Snapshot, column: str) -> None:
        self._snapshot = snapshot
        self._scan = snapshot.scan([top_column(snapshot.schema, column)], with_row_address=True)
        self._column = column
        field = leaf_field(snapshot.schema, column)
        self.kind, self._field = field.arrow_type(), field.id
        self._multi = is_multi(self.kind)
        self._rows = RowResolver(snapshot)
        self._allowed: dict[tuple[str, frozenset[int]], Addresses | None] = {}
        self._rest: dict[tuple[Metric, bool, bool], Fragments] = {}
        self._by_metric: dict[Metric, list[tuple[Segment, VectorSegment]]] = {}
        self._fragments_of_rows = OpenFragments(self._scan)

    @cached_property
    def _segments(self) -> list[tuple[Segment, VectorSegment]]:
        segments = segments_of(self._snapshot, VECTOR_LABEL, VECTOR_NEWEST, self._field)
        return [(segment, open_segment(segment)) for segment in segments]

    def metric(self, query: VectorQuery) -> Metric:
        """Return the metric for the distances of a query's rows."""
        if query.metric is not None:
            return query.metric
        if query.use_index and self._segments:
            return self._segments[0][1].metric
        return "hamming" if self.kind.value_type == pa.uint8() else "l2"

    def index_name(self, query: VectorQuery) -> str | None:
        """Return the name of the index that a query uses, None if it uses none."""
        used = self._used(self.metric(query)) if query.use_index else []
        return used[0][0].entry.name if used else None

    def plan(self, query: VectorQuery, *, apart: bool = False) -> list[SearchTask]:
        """Decide what a query searches: at least one task, which may be empty.

        Args:
            query: what is asked.
            apart: make a task of each segment, and of about a million rows without an index; otherwise all
                segments are one task, and all these rows another one.
        """
        metric = self.metric(query)
        used = [segment for segment, _ in self._used(metric)] if query.use_index else []
        key = (metric, query.use_index, query.fast_search)
        if key not in self._rest:
            self._rest[key] = unindexed(self._scan.fragments, used, query.fast_search)
        rest = self._rest[key]
        exactly = self._multi or query.refine_factor is not None or bool(used and rest)
        uuids = [segment.entry.uuid.uuid for segment in used]
        groups = [(uuid,) for uuid in uuids] if apart else [tuple(uuids)] if uuids else []
        tasks = [SearchTask(metric, exactly, segments=group) for group in groups]
        parts = _by_rows(rest, apart)
        tasks += [SearchTask(metric, exactly, fragments=tuple(f.id for f in part)) for part in parts]
        return tasks or [SearchTask(metric, exactly)]

    def _used(self, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of the newest index of a metric, and what they store."""
        if metric not in self._by_metric:
            self._by_metric[metric] = self._find_used(metric)
        return self._by_metric[metric]

    def _find_used(self, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        contents = {pair[0].entry.uuid.uuid: pair[1] for pair in self._segments if pair[1].metric == metric}
        fitting = [pair[0] for pair in self._segments if pair[0].entry.uuid.uuid in contents]
        return [(segment, contents[segment.entry.uuid.uuid]) for segment in newest_index(fitting)]

    def run(self, query: VectorQuery, allowed: Addresses | None = None) -> list[TopK]:
        """Return the nearest rows of each vector of a query.

        Args:
            query: what is asked.
            allowed: addresses of the rows that may be found, ascending; all by default.

        Raises:
            OptionError: the query does not fit the column.
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        query = query.fitted(self.kind)
        answers = [self.answer(query, task, allowed) for task in self.plan(query)]
        return [_within(part, query) for part in merged(answers, query.k)]

    def answer(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> list[TopK]:
        """Return the best rows of one task for each vector of a query; args and errors as those of `run`.

        Where rows have several vectors there is one answer, to all vectors of the query.
        """
        if self._multi:
            return [self._of_several(query, task, allowed)]
        if not task.segments:
            return self._exact(query, task, allowed)
        searches = [self.in_segment(query, *pair, allowed) for pair in self.segments(task)]
        result = merged([search.run() for search in searches], query.candidates)
        if task.exactly:
            result = self.refined(query.vectors, result, task.metric)
        elif query.candidates == query.k:
            return result
        return [TopK.best([part], query.k) for part in result]

    def segments(self, task: SearchTask) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of a task, and what they store."""
        return [pair for pair in self._used(task.metric) if pair[0].entry.uuid.uuid in task.segments]

    def in_segment(
        self, query: VectorQuery, segment: Segment, content: VectorSegment, allowed: Addresses | None
    ) -> SegmentSearch:
        """Return the search of one segment for a query."""
        return SegmentSearch(query, segment, content, self._rows, allowed)

    def allowed(self, filter: str | None, task: SearchTask) -> Addresses | None:
        """Return the addresses of the rows of a task that a filter keeps, ascending; None for all."""
        if filter is None:
            return None
        numbers = task.fragments or covered_by(segment for segment, _ in self.segments(task))
        key = (filter, frozenset(numbers))
        if key not in self._allowed:
            self._allowed[key] = allowed_rows(self._snapshot, filter, self._fragments(numbers))
        return self._allowed[key]

    def _fragments(self, numbers: Iterable[int]) -> list[table_pb2.DataFragment]:
        """Return the fragments of some ids."""
        fragment_ids = set(numbers)
        return [fragment for fragment in self._scan.fragments if fragment.id in fragment_ids]

    def _exact(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> list[TopK]:
        """Return the nearest rows of some fragments for every vector, all of them compared."""
        vectors, limit, metric = query.vectors, query.k, task.metric
        best: list[list[TopK]] = [[] for _ in vectors]
        scan = self._scan
        fragments = tuple(self._fragments(task.fragments))
        part = Scan(scan.table, scan.manifest, scan.names, fragments)
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            matrix, there = as_matrix(column_values(table, self._column))
            addresses = table.column(ROW_ADDRESS).to_numpy()[there]
            if allowed is not None:
                counts = contains(allowed, addresses)
                matrix, addresses = matrix[counts], addresses[counts]
            if not len(addresses):
                continue
            scores = distances(vectors, matrix, metric)
            for number, vector in enumerate(vectors):
                near = smallest(scores[number], limit + _MARGIN)
                exactly = exact_distances(vector, matrix[near], metric)
                best[number] = [TopK.best([*best[number], TopK(addresses[near], exactly)], limit)]
        return [TopK.best(parts, limit) for parts in best]

    def _of_several(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> TopK:
        """Return the nearest rows of one task, whose rows have several vectors each.

        An index cannot rank such rows alone: it returns only the rows that each vector of the query finds
        first, so a row that all of them find later may be nearer. Many are taken, and compared exactly.
        """
        if not task.segments:
            return self._exact_of_several(query, task, allowed)
        factor = query.refine_factor or _REFINED
        each = replace(query, k=max(_HITS, factor) * query.k, refine_factor=None, ef=None)
        searches = [self.in_segment(each, *pair, allowed) for pair in self.segments(task)]
        hits = merged([search.run() for search in searches], each.k)
        hit_rows = best_rows(hits, factor * query.k)
        return TopK.best(
            [self._compared(query, self._fragments_of_rows.take(hit_rows), task.metric)], query.k
        )

    def _exact_of_several(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> TopK:
        scan = self._scan
        fragments = tuple(self._fragments(task.fragments))
        part = Scan(scan.table, scan.manifest, scan.names, fragments)
        best: list[TopK] = []
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            if allowed is not None:
                table = table.filter(pa.array(contains(allowed, table.column(ROW_ADDRESS).to_numpy())))
            best = [TopK.best([*best, self._compared(query, table, task.metric)], query.k)]
        return TopK.best(best, query.k)

    def _compared(self, query: VectorQuery, table: pa.Table, metric: Metric) -> TopK:
        """Return the nearest rows of a table with exact distances; there may be more than wanted."""
        matrix, owners = flat_vectors(column_values(table, self._column))
        rows, scores = row_distances(query.vectors, matrix, owners, metric, exactly=False)
        near = np.sort(rows[smallest(scores, query.k + _MARGIN)])
        mine = np.flatnonzero(np.isin(owners, near))
        rows, scores = row_distances(query.vectors, matrix[mine], owners[mine], metric, exactly=True)
        return TopK(table.column(ROW_ADDRESS).to_numpy()[rows].astype(np.uint64), scores)

    def refined(self, vectors: Vectors, results: Sequence[TopK], metric: Metric) -> list[TopK]:
        """Return rows with their exact distances to each of some vectors."""
        row_addresses = np.unique(
            np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in results)])
        )
        table = self._fragments_of_rows.take(row_addresses)
        matrix, there = as_matrix(column_values(table, self._column))
        addresses = table.column(ROW_ADDRESS).to_numpy()[there]
        exact = []
        for vector, part in zip(vectors, results, strict=True):
            places = np.searchsorted(addresses, part.addresses)
            places = places[contains(addresses, part.addresses)]
            exact.append(TopK(addresses[places], exact_distances(vector, matrix[places], metric)))
        return exact


def _by_rows(fragments: Sequence[table_pb2.DataFragment], apart: bool) -> list[list[table_pb2.DataFragment]]:
    """Return fragments in parts of about `_SHARE_ROWS` rows, or as one part."""
    parts: list[list[table_pb2.DataFragment]] = []
    room = 0
    for fragment in fragments:
        if not parts or (apart and fragment.physical_rows > room):
            parts.append([])
            room = _SHARE_ROWS
        parts[-1].append(fragment)
        room -= fragment.physical_rows
    return parts


def _within(result: TopK, query: VectorQuery) -> TopK:
    low, high = query.distance_range
    keep = np.ones(len(result.distances), dtype=np.bool_)
    if low is not None:
        keep &= result.distances >= low
    if high is not None:
        keep &= result.distances < high
    return TopK(result.addresses[keep], result.distances[keep])
