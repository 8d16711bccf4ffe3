"""Build and search navigable graphs over the vectors of a partition (HNSW).

Level 0 has all nodes; each higher level has fewer. A search descends greedily from the entry point on the top
level. On level 0 it keeps the `ef` best nodes found so far and visits their neighbours until none is better.

The build does not insert nodes one by one, because that is a loop over values. Matrix products find the
nearest nodes of all nodes of a level (of the nearest k-means cells, if there are many nodes). A node keeps a
neighbour only if the neighbour is nearer to the node than to the neighbours kept before. Links are made
bidirectional, and unreachable nodes are linked to the nearest reachable node.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from spark_lance.arrow.numpy_types import Ints
from spark_lance.file.threads import spare_threads
from spark_lance.index.vector.base.kmeans import PreparedCentroids, assign, nearest, train_kmeans
from spark_lance.index.vector.quantizers.base import PreparedQuery, Scorer
from spark_lance.index.vector.quantizers.quantized_points import Matrix

Nodes = npt.NDArray[np.uint32]

# Number of neighbour candidates per node.
_CANDIDATES = 64
# Approximate nodes per k-means cell. Larger levels than the maximum are split into cells.
_CELL_NODES = 2048
_MAX_UNSPLIT_NODES = 8 * _CELL_NODES
_CELLS_SEARCHED = 8
_BLOCK_NODES = 1024
# Maximum distances between candidates in memory at a time, so that they fit in the cache.
_MAX_PAIR_DISTANCES = 1 << 19
_MAX_COMPARED = 4096
# Number of groups per requested value. The minimum of each group gives a bound for the requested values.
_GROUPS = 4

# (rows, candidate rows for their neighbours), and (source, target, distance) of links.
_Block: TypeAlias = tuple[Ints, Ints]
_Links: TypeAlias = tuple[Ints, Ints, Matrix]


@dataclass(frozen=True)
class GraphParams:
    """Build parameters: links per node `m` (twice as many on level 0), search effort, maximum levels."""

    m: int = 20
    ef_construction: int = 150
    max_level: int = 7


@dataclass(frozen=True)
class Level:
    """The links of one level. The neighbours of nodes[i] are neighbors[starts[i] : starts[i + 1]]."""

    nodes: Nodes
    starts: Ints
    neighbors: Nodes
    distances: Matrix

    def of(self, row: int) -> Nodes:
        """Return the neighbours of nodes[row]."""
        return self.neighbors[self.starts[row] : self.starts[row + 1]]


@dataclass(frozen=True)
class Graph:
    """The levels from 0 up, and the entry point of searches on the top level."""

    levels: tuple[Level, ...]
    entry_point: int
    params: GraphParams

    @property
    def nbytes(self) -> int:
        """Memory size in bytes."""
        return sum(
            level.nodes.nbytes + level.starts.nbytes + level.neighbors.nbytes + level.distances.nbytes
            for level in self.levels
        )


def search_graph(
    graph: Graph, scorer: Scorer, query: PreparedQuery, ef: int, allowed: npt.NDArray[np.bool_] | None = None
) -> tuple[Ints, Matrix]:
    """Return the approximately nearest nodes (int64) of a query, nearest first, and their distances.

    Args:
        graph: the graph of the partition.
        scorer: the partition's rows; node i is row i.
        query: one query.
        ef: number of candidates to keep; at most this many nodes are returned.
        allowed: (n,) bool; other nodes are visited but not returned.
    """
    best = graph.entry_point
    score = float(scorer.select_distances(query, np.array([best]))[0])
    for level in reversed(graph.levels[1:]):
        rows = {int(node): row for row, node in enumerate(level.nodes)}
        while best in rows:
            neighbours = level.of(rows[best])
            if not len(neighbours):
                break
            scores = scorer.select_distances(query, neighbours)
            nearer = int(np.argmin(scores))
            if scores[nearer] >= score:
                break
            best, score = int(neighbours[nearer]), float(scores[nearer])
    return _search_level0(graph.levels[0], scorer, query, (best, score), ef, allowed)


def _search_level0(
    level: Level,
    scorer: Scorer,
    query: PreparedQuery,
    entry: tuple[int, float],
    ef: int,
    allowed: npt.NDArray[np.bool_] | None,
) -> tuple[Ints, Matrix]:
    """Search level 0, where node i has row i, and return nodes and distances."""
    visited = np.zeros(len(level.nodes), dtype=np.bool_)
    visited[entry[0]] = True
    pending = [(entry[1], entry[0])]
    # Max-heap by negative distance: the worst kept node is on top.
    best: list[tuple[float, int]] = []
    if allowed is None or allowed[entry[0]]:
        best.append((-entry[1], entry[0]))
    while pending:
        score, node = heapq.heappop(pending)
        if len(best) >= ef and score > -best[0][0]:
            break
        neighbours = level.of(node)
        neighbours = neighbours[~visited[neighbours]]
        if not len(neighbours):
            continue
        visited[neighbours] = True
        scores = scorer.select_distances(query, neighbours)
        for near, other in zip(scores.tolist(), neighbours.tolist(), strict=True):
            if len(best) < ef or near < -best[0][0]:
                heapq.heappush(pending, (near, other))
                if allowed is None or allowed[other]:
                    heapq.heappush(best, (-near, other))
                    if len(best) > ef:
                        heapq.heappop(best)
    ordered = sorted((-negative, node) for negative, node in best)
    return (
        np.array([node for _, node in ordered], dtype=np.int64),
        np.array([score for score, _ in ordered], dtype=np.float32),
    )


def build_graph(points: Matrix, params: GraphParams, *, inner: bool = False, seed: int = 42) -> Graph:
    """Build the graph of the rows of a matrix.

    Args:
        points: (n, dim) float32, n at least 1.
        params: build parameters.
        inner: whether to use the inner product instead of the distance.
        seed: seed of the random levels.
    """
    random = np.random.default_rng(seed)
    random_heights = -np.log(1 - random.random(len(points))) / np.log(max(params.m, 2))
    heights = np.minimum(random_heights.astype(np.int64), params.max_level - 1)
    levels = []
    for height in range(int(heights.max()) + 1):
        nodes = np.flatnonzero(heights >= height)
        degree = 2 * params.m if height == 0 else params.m
        levels.append(_build_level(points[nodes], nodes, params, degree, inner))
    return Graph(tuple(levels), int(levels[-1].nodes[0]), params)


def _build_level(points: Matrix, nodes: Ints, params: GraphParams, degree: int, inner: bool) -> Level:
    count = len(points)
    nearby = min(count - 1, max(_CANDIDATES, 2 * params.m), max(params.ef_construction, params.m))

    def links(block: _Block) -> _Links:
        rows, pool = block
        candidates, distances = _nearest_others(points, rows, pool, min(nearby, len(pool) - 1), inner)
        row_index, position = np.nonzero(
            _select_diverse(points, rows, candidates, distances, params.m, inner)
        )
        return rows[row_index], candidates[row_index, position], distances[row_index, position]

    sources, targets, lengths = zip(*_in_threads(links, _blocks(points)), strict=True)
    source, target, length = _make_bidirectional(
        np.concatenate(sources), np.concatenate(targets), np.concatenate(lengths), count, degree
    )
    source, target, length = _connect_components(points, source, target, length, inner)
    starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))]).astype(np.int64)
    return Level(nodes.astype(np.uint32), starts, nodes[target].astype(np.uint32), length)


def _distances(rows: Matrix, others: Matrix, inner: bool) -> Matrix:
    """Return the distances (a, b), where smaller is nearer."""
    result: Matrix = rows @ others.T
    if inner:
        np.subtract(np.float32(1), result, out=result)
        return result
    result *= -2
    result += np.einsum("ij,ij->i", others, others)
    result += np.einsum("ij,ij->i", rows, rows)[:, None]
    np.maximum(result, 0, out=result)
    return result


def _in_threads(work: Callable[[_Block], _Links], blocks: Iterator[_Block]) -> Iterator[_Links]:
    """Yield the results of all blocks, in order. At most one more block than threads is pending."""
    threads = spare_threads()
    if threads < 2:
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[_Links]] = deque()
        for block in blocks:
            pending.append(pool.submit(work, block))
            if len(pending) > threads:
                yield pending.popleft().result()
        for future in pending:
            yield future.result()


def _blocks(points: Matrix) -> Iterator[_Block]:
    """Yield blocks that together have all rows, each with the candidate rows for neighbours."""
    count = len(points)
    if count <= _MAX_UNSPLIT_NODES:
        all_rows = np.arange(count)
        for start in range(0, count, _BLOCK_NODES):
            yield all_rows[start : start + _BLOCK_NODES], all_rows
        return
    random = np.random.default_rng(0)
    sample = points[np.sort(random.choice(count, min(count, 64 * count // _CELL_NODES), replace=False))]
    centers = train_kmeans(sample, count // _CELL_NODES, iterations=10)
    owners = assign(points, centers)[0]
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(centers)))
    neighbours = nearest(centers, PreparedCentroids.of(centers), _CELLS_SEARCHED)
    for cell in range(len(centers)):
        cell_rows = order[ends[cell - 1] if cell else 0 : ends[cell]]
        pool = np.concatenate([order[ends[c - 1] if c else 0 : ends[c]] for c in neighbours[cell].tolist()])
        for start in range(0, len(cell_rows), _BLOCK_NODES):
            yield cell_rows[start : start + _BLOCK_NODES], pool


def _nearest_others(points: Matrix, rows: Ints, pool: Ints, count: int, inner: bool) -> tuple[Ints, Matrix]:
    """Return the `count` nearest other rows in a pool for each row, nearest first, and their distances."""
    if count < 1:
        return np.empty((len(rows), 0), np.int64), np.empty((len(rows), 0), np.float32)
    block = _distances(points[rows], points[pool], inner)
    block[rows[:, None] == pool[None, :]] = np.inf
    selected, scores = _smallest_values(block, count)
    order = np.argsort(scores, axis=1, kind="stable")[:, :count]
    return pool[np.take_along_axis(selected, order, axis=1)], np.take_along_axis(scores, order, axis=1)


def _smallest_values(block: Matrix, count: int) -> tuple[Ints, Matrix]:
    """Return the column indices and values of at least the `count` smallest values of each row.

    The `count`-th smallest group minimum is an upper bound of the requested values. Selecting the values up
    to the bound is several times faster than a partition of all values.
    """
    groups = _GROUPS * count
    depth = block.shape[1] // groups
    if depth > 1:
        least = block[:, : depth * groups].reshape(len(block), depth, groups).min(axis=1)
        bound = np.partition(least, count - 1, axis=1)[:, count - 1]
        row_index, position = np.nonzero(block <= bound[:, None])
        counts = np.bincount(row_index, minlength=len(block))
        most = int(counts.max())
        # If many values are equal or NaN, the bound does not help: partition all values.
        if count <= int(counts.min()) and most <= _GROUPS * count:
            selected = np.zeros((len(block), most), np.int64)
            scores = np.full((len(block), most), np.inf, np.float32)
            column = np.arange(len(row_index)) - np.repeat(np.cumsum(counts) - counts, counts)
            selected[row_index, column] = position
            scores[row_index, column] = block[row_index, position]
            return selected, scores
    selected = np.argpartition(block, count - 1, axis=1)[:, :count]
    return selected, np.take_along_axis(block, selected, axis=1)


def _select_diverse(
    points: Matrix, rows: Ints, candidates: Ints, distances: Matrix, most: int, inner: bool
) -> npt.NDArray[np.bool_]:
    """Return the mask of candidates that are nearer to their row than to any candidate kept before."""
    keep = np.zeros(candidates.shape, dtype=np.bool_)
    width = candidates.shape[1]
    step = max(1, _MAX_PAIR_DISTANCES // max(width * width, 1))
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        near = points[candidates[part]]
        between = np.matmul(near, near.transpose(0, 2, 1))
        if inner:
            np.subtract(np.float32(1), between, out=between)
        else:
            squares = np.einsum("ijk,ijk->ij", near, near)
            between *= -2
            between += squares[:, :, None]
            between += squares[:, None, :]
        length = distances[part]
        closest = np.full(length.shape, np.inf, dtype=np.float32)
        room = np.full(len(length), most)
        for position in range(width):
            fits = (length[:, position] < closest[:, position]) & (room > 0)
            keep[part, position] = fits
            room -= fits
            fitting = np.flatnonzero(fits)
            rest = slice(position + 1, width)
            closest[fitting, rest] = np.minimum(closest[fitting, rest], between[fitting, position, rest])
    return keep


def _make_bidirectional(
    source: Ints, target: Ints, length: Matrix, count: int, degree: int
) -> tuple[Ints, Ints, Matrix]:
    """Return bidirectional links sorted by source, with only the `degree` shortest links per node."""
    ends = np.concatenate([source, target])
    others = np.concatenate([target, source])
    sizes = np.concatenate([length, length])
    _, first = np.unique(ends * count + others, return_index=True)
    ends, others, sizes = ends[first], others[first], sizes[first]
    order = np.lexsort((sizes, ends))
    ends, others, sizes = ends[order], others[order], sizes[order]
    starts = np.searchsorted(ends, np.arange(count))
    position = np.arange(len(ends)) - starts[ends]
    keep = position < degree
    return ends[keep], others[keep], sizes[keep]


def _connect_components(
    points: Matrix, source: Ints, target: Ints, length: Matrix, inner: bool
) -> tuple[Ints, Ints, Matrix]:
    """Return the links plus new links, so that every node is reachable from node 0."""
    count = len(points)
    added: list[tuple[int, int, float]] = []
    reached = np.zeros(count, dtype=np.bool_)
    _mark_reachable(reached, [0], source, target)
    while not reached.all():
        outside, inside = np.flatnonzero(~reached), np.flatnonzero(reached)
        selected = outside[:: max(1, len(outside) // _MAX_COMPARED)][:_MAX_COMPARED]
        near = inside[:: max(1, len(inside) // _MAX_COMPARED)][:_MAX_COMPARED]
        block = _distances(points[selected], points[near], inner)
        row, column = np.unravel_index(int(np.argmin(block)), block.shape)
        far, close = int(selected[row]), int(near[column])
        added.append((close, far, float(block[row, column])))
        _mark_reachable(reached, [far], source, target)
    if not added:
        return source, target, length
    # These links do not replace others, so nodes can have a few more than `degree`.
    links = np.array([(a, b) for a, b, _ in added] + [(b, a) for a, b, _ in added], dtype=np.int64)
    sizes = np.array([d for *_, d in added] * 2, dtype=np.float32)
    source = np.concatenate([source, links[:, 0]])
    order = np.argsort(source, kind="stable")
    target = np.concatenate([target, links[:, 1]])[order]
    return source[order], target, np.concatenate([length, sizes])[order]


def _mark_reachable(reached: npt.NDArray[np.bool_], begin: list[int], source: Ints, target: Ints) -> None:
    """Mark all nodes reachable from the nodes `begin`. Links are sorted by source."""
    starts = np.searchsorted(source, np.arange(len(reached) + 1))
    front = np.array(begin)
    reached[front] = True
    while len(front):
        first, counts = starts[front], starts[front + 1] - starts[front]
        total = int(counts.sum())
        within = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        reachable = np.unique(target[np.repeat(first, counts) + within])
        front = reachable[~reached[reachable]]
        reached[front] = True
