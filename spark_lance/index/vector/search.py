"""Search the vectors of one table version.

    1  Each segment of the newest index with the right metric returns its best candidates, from its nearest
       partitions. If the query has no metric, the metric of the column's first index is used.
    2  Rows of fragments that no segment covers are compared exactly.
    3  Candidates are compared exactly if the query has a refine factor, or if step 2 has rows.
    4  The k best of all results are returned.

`VectorSearch.plan` splits a search into tasks, and `VectorSearch.answer` runs one task. `VectorSearch.run`
does everything in one process. Spark runs each task separately, see `search_tasks`.

A segment is searched in its nearest partitions, by codes or by a graph search. Deleted rows (`RowResolver`)
and rows that fail the filter are dropped before candidates are chosen. (Lance index format, search
semantics.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
from spark_lance.errors import FormatError
from spark_lance.index.base.columns import column_values, leaf_field, top_column
from spark_lance.index.base.entries import Segment, find_segments, newest_index
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.base.search_rows import (
    Addresses,
    Fragments,
    RowMask,
    allowed_rows,
    contains,
    find_covered_fragments,
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
from spark_lance.index.vector.storage import Partition, RowIds, VectorSegment
from spark_lance.index.vector.top_k import BatchTopK, TopK, merged, smallest
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.parallel import run_together
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS
from spark_lance.table.reading.take import OpenFragments

Distances = npt.NDArray[np.float32]

# Smaller partitions are compared as a whole even if they have a graph: one matrix product is faster than the
# many small steps of a graph search.
_MIN_GRAPH_ROWS = 1 << 16
# A graph is not searched if a smaller fraction of its rows is allowed.
_MIN_ALLOWED_FRACTION = 0.1
_SEGMENT_MARGIN = 16
# Size of one block of distances between queries and a partition, and its maximum number of queries. A decoded
# row is used for all queries of the block.
_BLOCK_BYTES = 2 << 20
_BLOCK_QUERIES = 1 << 10
# Partitions up to this size may still be in a core's cache from an earlier query.
_CACHED_BYTES = 4 << 20
# Maximum number of partitions that a search loads from an object store at the same time.
_MAX_LOADED = 32
# Bytes of partitions whose distances are ranked together.
_GROUP_BYTES = 64 << 20
# Below this fraction of allowed rows, other rows are not compared.
_MAX_SELECTED_FRACTION = 0.25


@dataclass(frozen=True)
class _LoadedPartition:
    """A partition in memory, ready for search."""

    row_ids: RowIds
    scorer: Scorer
    graph: Graph | None


_PARTITIONS: CacheSection[_LoadedPartition] = CacheSection("partitions of vectors", CACHE)
# The mask of some rows, with the manifest of their version and the rows themselves.
_MASKS: CacheSection[tuple[Manifest, Addresses, RowMask | None]] = CacheSection(
    "masks of rows", CACHE, share=1 / 4
)
_Group: TypeAlias = Sequence[tuple[_LoadedPartition, PreparedQuery]]


@dataclass(frozen=True)
class SegmentSearch:
    """A search of one segment for one or several query vectors.

    Attributes:
        query: the query, fitted to the column.
        segment, content: the segment and its stored content.
        rows: resolves row ids to current addresses.
        allowed: addresses of the rows that pass the filter, ascending; None for all.
        fraction: fraction of the version's rows that pass the filter.
        mask: the rows that pass the filter, if their addresses are the row ids of the index and they are few.
    """

    query: VectorQuery
    segment: Segment
    content: VectorSegment
    rows: RowResolver
    allowed: Addresses | None
    fraction: float = 1.0
    mask: RowMask | None = None

    @cached_property
    def _queries(self) -> Queries:
        return self.content.quantizer.queries(self.content.ivf.prepared(self.query.vectors))

    def run(self) -> list[TopK]:
        """Return the best candidates of the segment for each query vector."""
        with self.segment.decoding():
            return self._run()

    def _run(self) -> list[TopK]:
        query, queries, content = self.query, self._queries, self.content
        max_probes = len(content.ivf) if query.maximum_nprobes is None else query.maximum_nprobes
        first = min(query.minimum_nprobes, max_probes)
        probes = content.ivf.probe(queries.vectors, first)
        is_single = len(queries) == 1
        results = (
            [self._search_partitions(queries, probes[0].tolist())]
            if is_single
            else self._search_batch(probes)
        )
        for asker, part in enumerate(results):
            if len(part.addresses) >= query.candidates or first >= max_probes:
                continue
            query_part = queries[asker : asker + 1]
            for number in content.ivf.probe(query_part.vectors, max_probes)[0, first:].tolist():
                more = self._search_partitions(query_part, [number])
                results[asker] = TopK.best([results[asker], more], query.candidates)
                if len(results[asker].addresses) >= query.candidates:
                    break
        return results

    def _search_batch(self, probes: npt.NDArray[np.int64]) -> list[TopK]:
        """Return the best candidates of each query from its partitions `probes` (q, n)."""
        best = BatchTopK(len(self._queries), self.query.candidates)
        # Each partition is loaded once for all queries that probe it.
        order = np.argsort(probes, axis=None, kind="stable")
        partition_ids = probes.reshape(-1)[order]
        starts = np.flatnonzero(np.diff(partition_ids, prepend=-1))
        selections = dict(zip(partition_ids[starts].tolist(), np.split(order, starts[1:]), strict=True))
        for number, partition in self._partitions(list(selections)):
            self._compare(best, selections[number] // probes.shape[1], number, partition)
        return best.nearest()

    def search_partition(self, number: int) -> list[TopK]:
        """Return the best candidates of one partition for each query vector."""
        with self.segment.decoding():
            if len(self._queries) == 1:
                return [self._search_partitions(self._queries, [number])]
            return self._search_batch(np.full((len(self._queries), 1), number))

    def _compare(
        self, best: BatchTopK, askers: npt.NDArray[np.int64], number: int, partition: _LoadedPartition
    ) -> None:
        """Add the rows of a partition to the results of the queries with indices `askers`."""
        content = self.content
        addresses, counts = self._resolve_rows(partition.row_ids)
        for start in range(0, len(askers), _BLOCK_QUERIES):
            some = askers[start : start + _BLOCK_QUERIES]
            prepared = content.quantizer.prepare(self._queries[some], content.ivf.centroids[number])
            step = max(1, _BLOCK_BYTES // (4 * len(some)))
            for first in range(0, len(counts), step):
                part = slice(first, first + step)
                block = partition.scorer.part(part).distances(prepared)
                block *= _scale(content)
                rows = np.flatnonzero(counts[part])
                left = len(rows) < block.shape[1]
                best.add(some, addresses[part][rows], block[:, rows] if left else block)

    def _search_partitions(self, query_part: Queries, numbers: Sequence[int]) -> TopK:
        """Return the best candidates of the given partitions for one query."""
        content = self.content
        full = [number for number in numbers if content.lengths[number]]
        best: list[TopK] = []
        group: list[tuple[_LoadedPartition, PreparedQuery]] = []
        size = 0
        for prepared, (_, partition) in zip(
            content.quantizer.prepare_each(query_part, content.ivf.centroids[full]),
            self._partitions(full),
            strict=True,
        ):
            graph_result = self._search_graph(partition, prepared) if partition.graph is not None else None
            if graph_result is not None:
                best.append(TopK(graph_result.addresses, graph_result.distances * _scale(content)))
                continue
            group.append((partition, prepared))
            size += partition.scorer.nbytes
            if size >= _GROUP_BYTES:
                best.append(self._nearest(group))
                group, size = [], 0
        if group:
            best.append(self._nearest(group))
        return TopK.best(best, self.query.candidates)

    def _search_graph(self, partition: _LoadedPartition, prepared: PreparedQuery) -> TopK | None:
        """Return the result of a graph search in a partition; None if too few of its rows are allowed."""
        assert partition.graph is not None
        addresses, counts = self._resolve_rows(partition.row_ids)
        if counts.mean() < _MIN_ALLOWED_FRACTION:
            return None
        query = self.query
        ef = query.ef or max(query.candidates, 3 * query.candidates // 2)
        nodes, scores = search_graph(partition.graph, partition.scorer, prepared, ef, counts)
        return TopK(addresses[nodes], scores)

    def _nearest(self, group: _Group) -> TopK:
        """Return the nearest allowed rows of a group of partitions.

        Resolving rows can be slow, so only the nearest are resolved, and more if too few of them are allowed.
        """
        fraction = self.fraction
        if self.mask is not None:
            group, fraction = self._select_allowed(group, self.mask), 1.0
        if not group:
            return TopK.best([], self.query.candidates)
        row_ids = np.concatenate([partition.row_ids for partition, _ in group])
        ends = np.cumsum([len(partition.row_ids) for partition, _ in group])
        scores = np.empty(len(row_ids), np.float32)
        afar = sum(partition.scorer.nbytes for partition, _ in group) > _CACHED_BYTES
        estimate_each([(partition.scorer, prepared) for partition, prepared in group], scores, afar=afar)
        is_direct = group[0][0].scorer.direct
        rounding = max(part.scorer.rounding(prepared) for part, prepared in group) if is_direct else 0.0
        count = self.query.candidates + _SEGMENT_MARGIN
        count = min(len(scores), int(count / fraction)) if fraction else len(scores)
        while True:
            near, distances = _nearest_rows(scores, count, rounding, group, ends)
            addresses, counts = self._resolve_rows(row_ids[near])
            if count >= len(scores) or int(np.count_nonzero(counts)) >= self.query.candidates:
                return TopK(addresses[counts], distances[counts] * _scale(self.content))
            count *= 8

    def _select_allowed(self, group: _Group, mask: RowMask) -> _Group:
        """Return the partitions of a group with only their allowed rows."""
        counts = [len(partition.row_ids) for partition, _ in group]
        ends = np.cumsum(counts)
        rows = np.flatnonzero(mask.contains(np.concatenate([partition.row_ids for partition, _ in group])))
        cuts = np.searchsorted(rows, ends).tolist()
        result = []
        for (partition, prepared), first, last, start in zip(
            group, [0, *cuts], cuts, (ends - counts).tolist(), strict=False
        ):
            if first < last:
                own = rows[first:last] - start
                part = _LoadedPartition(partition.row_ids[own], partition.scorer.part(own), None)
                result.append((part, prepared))
        return result

    def _resolve_rows(self, row_ids: RowIds) -> tuple[Addresses, npt.NDArray[np.bool_]]:
        """Return the addresses of rows, and the mask of live rows that pass the filter."""
        addresses, counts = self.rows.addresses(row_ids, self.segment.covered)
        return addresses, counts if self.allowed is None else counts & contains(self.allowed, addresses)

    def _partitions(self, numbers: Sequence[int]) -> Iterator[tuple[int, _LoadedPartition]]:
        """Yield partitions that have rows, with their numbers. Several are loaded at once."""
        lengths = self.content.lengths[list(numbers)]
        sizes = lengths * self.content.row_bytes
        if len(numbers) <= _MAX_LOADED and sizes.sum() <= _GROUP_BYTES and lengths.all():
            yield from zip(numbers, self._load(numbers), strict=True)
            return
        group: list[int] = []
        room = float(_GROUP_BYTES)
        for number, size in zip(numbers, sizes.tolist(), strict=True):
            if not size:
                continue
            group.append(number)
            room -= size
            if len(group) == _MAX_LOADED or room < 0:
                yield from zip(group, self._load(group), strict=True)
                group, room = [], float(_GROUP_BYTES)
        yield from zip(group, self._load(group), strict=True)

    def _load(self, numbers: Sequence[int]) -> list[_LoadedPartition]:
        segment, content = self.segment, self.content

        def load(number: int, partition: Partition) -> _LoadedPartition:
            graph = content.graph(number) if len(partition.row_ids) >= _MIN_GRAPH_ROWS else None
            try:
                scorer = content.quantizer.scorer(partition.codes)
                # Graph search compares a few rows per step, where decoding would dominate.
                scorer = scorer if graph is None else scorer.decoded()
            except (KeyError, IndexError) as error:
                raise FormatError(f"codes that do not fit the index: {error}", segment.directory) from error
            return _LoadedPartition(partition.row_ids, scorer, graph)

        def size(partition: _LoadedPartition) -> int:
            links = 0 if partition.graph is None else partition.graph.nbytes
            return partition.scorer.nbytes + partition.row_ids.nbytes + links

        def load_all(keys: Sequence[tuple[Hashable, int]]) -> list[_LoadedPartition]:
            missing = sorted(number for _, number in keys)
            partitions = dict(zip(missing, content.some_partitions(missing), strict=True))
            return [load(number, partitions[number]) for _, number in keys]

        return _PARTITIONS.get_all([(self._cache_key, number) for number in numbers], load_all, size)

    @cached_property
    def _cache_key(self) -> Hashable:
        return self.segment.store.cache_key(self.segment.directory)


def _scale(content: VectorSegment) -> Any:
    """Return the factor from estimates to distances: a squared distance is twice the cosine distance."""
    return np.float32(0.5 if content.metric == "cosine" and content.quantizer.squares_cosine else 1)


def _nearest_rows(
    scores: Distances,
    count: int,
    rounding: float,
    group: _Group,
    ends: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], Distances]:
    """Return the `count` nearest rows of a group of partitions (positions, unordered) and their distances.

    Args:
        scores: estimated distances of the rows of all partitions.
        count: number of rows; all rows if there are fewer.
        rounding: maximum error of an estimate. If it is not 0, the nearest rows are compared exactly.
        group: each partition with the query prepared for it.
        ends: end position of each partition's rows in `scores`.
    """
    near = smallest(scores, count)
    if not rounding:
        return near, scores[near]
    # The estimate of a true nearest row exceeds the `count`-th smallest estimate by at most two roundings.
    # NaN (of vectors that overflow) can be anywhere.
    limit = scores[near].max() + np.float32(2 * rounding)
    near = np.flatnonzero(~(scores > limit))
    cuts = np.searchsorted(near, ends).tolist()
    parts = []
    for (partition, prepared), first, last, end in zip(group, [0, *cuts], cuts, ends.tolist(), strict=False):
        if first < last:
            parts.append(
                partition.scorer.select_distances(prepared, near[first:last] - (end - len(partition.row_ids)))
            )
    exact = np.concatenate(parts)
    best = smallest(exact, count)
    return near[best], exact[best]


_WINDOW_BYTES = 32 << 20
_MARGIN = 16
# For rows with several vectors: each query vector finds `_HITS` * k rows (cheap, because whole partitions are
# compared), and the best `_REFINED` * k of all of them are compared exactly.
_HITS, _REFINED = 100, 10
# Approximate number of unindexed rows per task.
_TASK_ROWS = 1 << 20


@dataclass(frozen=True)
class SearchTask:
    """One part of a search: index segments, or fragments without an index.

    Attributes:
        metric: distance metric.
        exactly: whether index candidates are compared exactly.
        segments: UUIDs of segments.
        fragments: ids of fragments.
    """

    metric: Metric
    exactly: bool
    segments: tuple[bytes, ...] = ()
    fragments: tuple[int, ...] = ()


class VectorSearch:
    """Searches one column of one version.

    Args:
        snapshot: the version.
        column: a column of vectors or of lists of vectors, or the dotted path of a struct field.

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
        self._unindexed: dict[tuple[Metric, bool, bool], Fragments] = {}
        self._by_metric: dict[Metric, list[tuple[Segment, VectorSegment]]] = {}
        self._fragments_of_rows = OpenFragments(self._scan)

    @cached_property
    def _segments(self) -> list[tuple[Segment, VectorSegment]]:
        segments = find_segments(self._snapshot, VECTOR_LABEL, VECTOR_NEWEST, self._field)
        return [(segment, open_segment(segment)) for segment in segments]

    def metric(self, query: VectorQuery) -> Metric:
        """Return the distance metric of a query: its own, the index's, or the default of the column type."""
        if query.metric is not None:
            return query.metric
        if query.use_index and self._segments:
            return self._segments[0][1].metric
        return "hamming" if self.kind.value_type == pa.uint8() else "l2"

    def index_name(self, query: VectorQuery) -> str | None:
        """Return the name of the index that a query uses; None if it uses no index."""
        index_segments = self._segments_for(self.metric(query)) if query.use_index else []
        return index_segments[0][0].entry.name if index_segments else None

    def plan(self, query: VectorQuery, *, apart: bool = False) -> list[SearchTask]:
        """Split a query into tasks. There is at least one task, which may be empty.

        Args:
            query: the query, fitted to the column.
            apart: whether to make one task per segment and per million unindexed rows. Otherwise all segments
                are one task, and all unindexed rows another.
        """
        metric = self.metric(query)
        index_segments = [segment for segment, _ in self._segments_for(metric)] if query.use_index else []
        key = (metric, query.use_index, query.fast_search)
        if key not in self._unindexed:
            self._unindexed[key] = unindexed(self._scan.fragments, index_segments, query.fast_search)
        unindexed_fragments = self._unindexed[key]
        exactly = (
            self._multi or query.refine_factor is not None or bool(index_segments and unindexed_fragments)
        )
        uuids = [segment.entry.uuid.uuid for segment in index_segments]
        groups = [(uuid,) for uuid in uuids] if apart else [tuple(uuids)] if uuids else []
        tasks = [SearchTask(metric, exactly, segments=group) for group in groups]
        parts = _split_by_rows(unindexed_fragments, apart)
        tasks += [SearchTask(metric, exactly, fragments=tuple(f.id for f in part)) for part in parts]
        return tasks or [SearchTask(metric, exactly)]

    def _segments_for(self, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of the newest index with a metric, each with its content."""
        if metric not in self._by_metric:
            self._by_metric[metric] = self._find_newest_index(metric)
        return self._by_metric[metric]

    def _find_newest_index(self, metric: Metric) -> list[tuple[Segment, VectorSegment]]:
        contents = {pair[0].entry.uuid.uuid: pair[1] for pair in self._segments if pair[1].metric == metric}
        fitting = [pair[0] for pair in self._segments if pair[0].entry.uuid.uuid in contents]
        return [(segment, contents[segment.entry.uuid.uuid]) for segment in newest_index(fitting)]

    def run(self, query: VectorQuery, allowed: Addresses | None = None) -> list[TopK]:
        """Return the nearest rows for each vector of a query.

        Args:
            query: the query.
            allowed: addresses of the rows that may be returned, ascending; all by default.

        Raises:
            OptionError: the query does not fit the column.
            FormatError, UnsupportedFormatError: files of the index or the table are damaged or not supported.
        """
        query = query.cast_to(self.kind)
        answers = [self.answer(query, task, allowed) for task in self.plan(query)]
        return [_filter_range(part, query) for part in merged(answers, query.k)]

    def answer(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> list[TopK]:
        """Return the best rows of one task for each vector of a query. See `run` for arguments and errors.

        If rows have several vectors, there is one result for all query vectors.
        """
        if self._multi:
            return [self._search_multi(query, task, allowed)]
        if not task.segments:
            return self._scan_exactly(query, task, allowed)
        searches = [self.search_segment(query, *pair, allowed) for pair in self.segments(task)]
        parts = run_together(self._scan.store, [search.run for search in searches])
        result = merged(parts, query.candidates)
        if task.exactly:
            result = self.refined(query.vectors, result, task.metric)
        elif query.candidates == query.k:
            return result
        return [TopK.best([part], query.k) for part in result]

    def segments(self, task: SearchTask) -> list[tuple[Segment, VectorSegment]]:
        """Return the segments of a task, each with its content."""
        return [pair for pair in self._segments_for(task.metric) if pair[0].entry.uuid.uuid in task.segments]

    def search_segment(
        self, query: VectorQuery, segment: Segment, content: VectorSegment, allowed: Addresses | None
    ) -> SegmentSearch:
        """Return the search of one segment for a query."""
        if allowed is None:
            return SegmentSearch(query, segment, content, self._rows, None)
        fraction = min(1.0, len(allowed) / max(1, self._physical_rows))
        has_moves = self._scan.manifest.uses_stable_row_ids or self._rows.has_remaps
        mask = None if has_moves or fraction > _MAX_SELECTED_FRACTION else self._mask(allowed)
        return SegmentSearch(query, segment, content, self._rows, allowed, fraction, mask)

    @cached_property
    def _physical_rows(self) -> int:
        return sum(fragment.physical_rows for fragment in self._snapshot.fragments)

    def _mask(self, allowed: Addresses) -> RowMask | None:
        manifest = self._snapshot.manifest
        # The cached value references the manifest and the rows, so no others can get their ids.
        _, _, mask = _MASKS.get(
            (id(manifest), id(allowed)),
            lambda: (manifest, allowed, RowMask.of(allowed, self._snapshot.fragments)),
            lambda value: value[1].nbytes + (0 if value[2] is None else value[2].nbytes),
        )
        return mask

    def allowed(self, filter: str | None, task: SearchTask) -> Addresses | None:
        """Return the addresses of the rows of a task that pass a filter, ascending; None for all."""
        if filter is None:
            return None
        numbers = task.fragments or find_covered_fragments(segment for segment, _ in self.segments(task))
        key = (filter, frozenset(numbers))
        if key not in self._allowed:
            self._allowed[key] = allowed_rows(self._snapshot, filter, self._fragments(numbers))
        return self._allowed[key]

    def _fragments(self, numbers: Iterable[int]) -> list[table_pb2.DataFragment]:
        """Return the fragments with the given ids."""
        fragment_ids = set(numbers)
        return [fragment for fragment in self._scan.fragments if fragment.id in fragment_ids]

    def _scan_exactly(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> list[TopK]:
        """Return the nearest rows of the task's fragments for every query vector, comparing all rows."""
        vectors, limit, metric = query.vectors, query.k, task.metric
        best: list[list[TopK]] = [[] for _ in vectors]
        scan = self._scan
        fragments = tuple(self._fragments(task.fragments))
        part = Scan(scan.table, scan.manifest, scan.names, fragments)
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            matrix, has_vector = as_matrix(column_values(table, self._column))
            addresses = numbers_to_numpy(one_array(table.column(ROW_ADDRESS)))[has_vector]
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

    def _search_multi(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> TopK:
        """Return the nearest rows of one task if rows have several vectors.

        An index cannot rank such rows: it returns the nearest rows per query vector, but a row that is
        further down in all these lists can have a smaller total. So many rows are taken and compared exactly.
        """
        if not task.segments:
            return self._scan_multi(query, task, allowed)
        factor = query.refine_factor or _REFINED
        each = replace(query, k=max(_HITS, factor) * query.k, refine_factor=None, ef=None)
        searches = [self.search_segment(each, *pair, allowed) for pair in self.segments(task)]
        hits = merged([search.run() for search in searches], each.k)
        hit_rows = best_rows(hits, factor * query.k)
        return TopK.best(
            [self._compare_multi(query, self._fragments_of_rows.take(hit_rows), task.metric)], query.k
        )

    def _scan_multi(self, query: VectorQuery, task: SearchTask, allowed: Addresses | None) -> TopK:
        scan = self._scan
        fragments = tuple(self._fragments(task.fragments))
        part = Scan(scan.table, scan.manifest, scan.names, fragments)
        best: list[TopK] = []
        for table in part.tables(target_bytes=_WINDOW_BYTES):
            if allowed is not None:
                table = table.filter(
                    pa.array(contains(allowed, numbers_to_numpy(one_array(table.column(ROW_ADDRESS)))))
                )
            best = [TopK.best([*best, self._compare_multi(query, table, task.metric)], query.k)]
        return TopK.best(best, query.k)

    def _compare_multi(self, query: VectorQuery, table: pa.Table, metric: Metric) -> TopK:
        """Return the nearest rows of a table with exact distances, at least k if there are that many."""
        matrix, owners = flat_vectors(column_values(table, self._column))
        rows, scores = row_distances(query.vectors, matrix, owners, metric, exactly=False)
        near = np.sort(rows[smallest(scores, query.k + _MARGIN)])
        selection = np.flatnonzero(np.isin(owners, near))
        rows, scores = row_distances(
            query.vectors, matrix[selection], owners[selection], metric, exactly=True
        )
        return TopK(numbers_to_numpy(one_array(table.column(ROW_ADDRESS)))[rows].astype(np.uint64), scores)

    def refined(self, vectors: Vectors, results: Sequence[TopK], metric: Metric) -> list[TopK]:
        """Return the rows of each result with their exact distances to the corresponding vector."""
        row_addresses = np.unique(
            np.concatenate([np.empty(0, np.uint64), *(part.addresses for part in results)])
        )
        table = self._fragments_of_rows.take(row_addresses)
        matrix, has_vector = as_matrix(column_values(table, self._column))
        addresses = numbers_to_numpy(one_array(table.column(ROW_ADDRESS)))[has_vector]
        exact = []
        for vector, part in zip(vectors, results, strict=True):
            positions = np.searchsorted(addresses, part.addresses)
            positions = positions[contains(addresses, part.addresses)]
            exact.append(TopK(addresses[positions], exact_distances(vector, matrix[positions], metric)))
        return exact


def _split_by_rows(
    fragments: Sequence[table_pb2.DataFragment], apart: bool
) -> list[list[table_pb2.DataFragment]]:
    """Split fragments into parts of about `_SHARE_ROWS` rows if `apart`; otherwise return one part."""
    parts: list[list[table_pb2.DataFragment]] = []
    room = 0
    for fragment in fragments:
        if not parts or (apart and fragment.physical_rows > room):
            parts.append([])
            room = _TASK_ROWS
        parts[-1].append(fragment)
        room -= fragment.physical_rows
    return parts


def _filter_range(result: TopK, query: VectorQuery) -> TopK:
    low, high = query.distance_range
    keep = np.ones(len(result.distances), dtype=np.bool_)
    if low is not None:
        keep &= result.distances >= low
    if high is not None:
        keep &= result.distances < high
    return TopK(result.addresses[keep], result.distances[keep])
