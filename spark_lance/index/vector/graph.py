"""Navigable graphs over the vectors of a partition (HNSW): searching and building.

Every node is on level 0, fewer and fewer on the levels above. A search walks greedily down from the entry
point on the top level. Then it keeps the `ef` best nodes it has met on level 0 and looks at their neighbours
until nothing gets better.

Building does not insert node by node, which would be a loop over values. Products of matrices find the
nearest nodes of all nodes of a level (within the nearest cells of a k-means, where there are many nodes).
Every node keeps those that are nearer to it than to another that it already keeps. Links are made to go both
ways, and nodes that cannot be reached then are linked to the nearest node that can.
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
from spark_lance.index.vector.base.kmeans import Turned, assign, nearest, train_kmeans
from spark_lance.index.vector.quantizers.base import PreparedQuery, Scorer
from spark_lance.index.vector.quantizers.quantized_points import Matrix

Nodes = npt.NDArray[np.uint32]

# A node chooses its neighbours from so many candidates.
_CANDIDATES = 64
# Levels of more nodes are cut into cells of about this many for finding neighbours.
_CELL = 2048
_WHOLE = 8 * _CELL
_CELLS_SEARCHED = 8
_BLOCK_NODES = 1024
# Distances between the candidates of some nodes that are held at once: about what the caches hold.
_BETWEEN_VALUES = 1 << 19
_MOST_LOOKED_AT = 4096
# Groups of values per wanted one, whose least values tell how far the wanted ones may be.
_GROUPS = 4

# Rows, and those among which their neighbours are looked for; and links: from, to, distance.
_Block: TypeAlias = tuple[Ints, Ints]
_Links: TypeAlias = tuple[Ints, Ints, Matrix]


@dataclass(frozen=True)
class GraphParams:
    """How a graph is built: links per node (twice as many on level 0), effort, most levels."""

    m: int = 20
    ef_construction: int = 150
    max_level: int = 7


@dataclass(frozen=True)
class Level:
    """The links of one level: those of nodes[i] are neighbors[starts[i] : starts[i + 1]]."""

    nodes: Nodes
    starts: Ints
    neighbors: Nodes
    distances: Matrix

    def of(self, row: int) -> Nodes:
        """Return the neighbours of nodes[row]."""
        return self.neighbors[self.starts[row] : self.starts[row + 1]]


@dataclass(frozen=True)
class Graph:
    """Levels from 0 up, and the node on the top one where a search starts."""

    levels: tuple[Level, ...]
    entry_point: int
    params: GraphParams

    @property
    def nbytes(self) -> int:
        """The bytes of the links."""
        return sum(
            level.nodes.nbytes + level.starts.nbytes + level.neighbors.nbytes + level.distances.nbytes
            for level in self.levels
        )


def search_graph(
    graph: Graph, scorer: Scorer, query: PreparedQuery, ef: int, allowed: npt.NDArray[np.bool_] | None = None
) -> tuple[Ints, Matrix]:
    """Return the nodes nearest to one query that the walk finds, nearest first.

    Args:
        graph: of the partition.
        scorer: the partition's rows; node i is row i.
        query: one query.
        ef: the number of candidates that are kept; at most this many nodes are returned.
        allowed: (n,) bool; other nodes are walked over but not returned.

    Returns:
        Nodes and distances.
    """
    best = graph.entry_point
    score = float(scorer.some(query, np.array([best]))[0])
    for level in reversed(graph.levels[1:]):
        rows = {int(node): row for row, node in enumerate(level.nodes)}
        while best in rows:
            around = level.of(rows[best])
            if not len(around):
                break
            scores = scorer.some(query, around)
            nearer = int(np.argmin(scores))
            if scores[nearer] >= score:
                break
            best, score = int(around[nearer]), float(scores[nearer])
    return _beam(graph.levels[0], scorer, query, (best, score), ef, allowed)


def _beam(
    level: Level,
    scorer: Scorer,
    query: PreparedQuery,
    entry: tuple[int, float],
    ef: int,
    allowed: npt.NDArray[np.bool_] | None,
) -> tuple[Ints, Matrix]:
    """Search level 0, on which node i has row i."""
    seen = np.zeros(len(level.nodes), dtype=np.bool_)
    seen[entry[0]] = True
    waiting = [(entry[1], entry[0])]
    # The worst of the kept nodes is on top: distances are negative.
    best: list[tuple[float, int]] = []
    if allowed is None or allowed[entry[0]]:
        best.append((-entry[1], entry[0]))
    while waiting:
        score, node = heapq.heappop(waiting)
        if len(best) >= ef and score > -best[0][0]:
            break
        around = level.of(node)
        around = around[~seen[around]]
        if not len(around):
            continue
        seen[around] = True
        scores = scorer.some(query, around)
        for near, other in zip(scores.tolist(), around.tolist(), strict=True):
            if len(best) < ef or near < -best[0][0]:
                heapq.heappush(waiting, (near, other))
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
    """Return a graph of the rows of a matrix.

    Args:
        points: (n, dim) float32, n at least 1.
        params: links and levels.
        inner: nearness is the inner product, not the distance.
        seed: of the choice of levels.
    """
    random = np.random.default_rng(seed)
    drawn = -np.log(1 - random.random(len(points))) / np.log(max(params.m, 2))
    heights = np.minimum(drawn.astype(np.int64), params.max_level - 1)
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
        which, place = np.nonzero(_diverse(points, rows, candidates, distances, params.m, inner))
        return rows[which], candidates[which, place], distances[which, place]

    sources, targets, lengths = zip(*_in_threads(links, _blocks(points)), strict=True)
    source, target, length = _both_ways(
        np.concatenate(sources), np.concatenate(targets), np.concatenate(lengths), count, degree
    )
    source, target, length = _connected(points, source, target, length, inner)
    starts = np.concatenate([[0], np.cumsum(np.bincount(source, minlength=count))]).astype(np.int64)
    return Level(nodes.astype(np.uint32), starts, nodes[target].astype(np.uint32), length)


def _distances(rows: Matrix, others: Matrix, inner: bool) -> Matrix:
    """Return distances (a, b); smaller is nearer."""
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
    """Yield what is made of blocks, in order; as many at a time as there are threads, and one more."""
    threads = spare_threads()
    if threads < 2:
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(threads) as pool:
        under_way: deque[Future[_Links]] = deque()
        for block in blocks:
            under_way.append(pool.submit(work, block))
            if len(under_way) > threads:
                yield under_way.popleft().result()
        for future in under_way:
            yield future.result()


def _blocks(points: Matrix) -> Iterator[_Block]:
    """Yield rows, all of them in the end, and the rows among which their nearest are looked for."""
    count = len(points)
    if count <= _WHOLE:
        everything = np.arange(count)
        for start in range(0, count, _BLOCK_NODES):
            yield everything[start : start + _BLOCK_NODES], everything
        return
    random = np.random.default_rng(0)
    sample = points[np.sort(random.choice(count, min(count, 64 * count // _CELL), replace=False))]
    centers = train_kmeans(sample, count // _CELL, iterations=10)
    owners = assign(points, centers)[0]
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners, minlength=len(centers)))
    around = nearest(centers, Turned.of(centers), _CELLS_SEARCHED)
    for cell in range(len(centers)):
        mine = order[ends[cell - 1] if cell else 0 : ends[cell]]
        pool = np.concatenate([order[ends[c - 1] if c else 0 : ends[c]] for c in around[cell].tolist()])
        for start in range(0, len(mine), _BLOCK_NODES):
            yield mine[start : start + _BLOCK_NODES], pool


def _nearest_others(points: Matrix, rows: Ints, pool: Ints, count: int, inner: bool) -> tuple[Ints, Matrix]:
    """Return the `wanted` nearest others of rows among a pool, nearest first, and the distances to them."""
    if count < 1:
        return np.empty((len(rows), 0), np.int64), np.empty((len(rows), 0), np.float32)
    block = _distances(points[rows], points[pool], inner)
    block[rows[:, None] == pool[None, :]] = np.inf
    some, scores = _smallest(block, count)
    order = np.argsort(scores, axis=1, kind="stable")[:, :count]
    return pool[np.take_along_axis(some, order, axis=1)], np.take_along_axis(scores, order, axis=1)


def _smallest(block: Matrix, count: int) -> tuple[Ints, Matrix]:
    """Return the places of the `wanted` smallest values of each row, and the values; perhaps some more.

    The `wanted`-th smallest of the least values of groups bounds those of the row: what does not exceed it is
    found several times faster than by partitioning all values.
    """
    groups = _GROUPS * count
    depth = block.shape[1] // groups
    if depth > 1:
        least = block[:, : depth * groups].reshape(len(block), depth, groups).min(axis=1)
        bound = np.partition(least, count - 1, axis=1)[:, count - 1]
        which, place = np.nonzero(block <= bound[:, None])
        counts = np.bincount(which, minlength=len(block))
        most = int(counts.max())
        # Values that are all alike, or no numbers, are left to what sorts them anyhow.
        if count <= int(counts.min()) and most <= _GROUPS * count:
            some = np.zeros((len(block), most), np.int64)
            scores = np.full((len(block), most), np.inf, np.float32)
            column = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
            some[which, column] = place
            scores[which, column] = block[which, place]
            return some, scores
    some = np.argpartition(block, count - 1, axis=1)[:, :count]
    return some, np.take_along_axis(block, some, axis=1)


def _diverse(
    points: Matrix, rows: Ints, candidates: Ints, distances: Matrix, most: int, inner: bool
) -> npt.NDArray[np.bool_]:
    """Return which candidates each row keeps: those nearer to it than to any that it keeps already."""
    keep = np.zeros(candidates.shape, dtype=np.bool_)
    width = candidates.shape[1]
    step = max(1, _BETWEEN_VALUES // max(width * width, 1))
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
        for place in range(width):
            fits = (length[:, place] < closest[:, place]) & (room > 0)
            keep[part, place] = fits
            room -= fits
            fitting = np.flatnonzero(fits)
            rest = slice(place + 1, width)
            closest[fitting, rest] = np.minimum(closest[fitting, rest], between[fitting, place, rest])
    return keep


def _both_ways(
    source: Ints, target: Ints, length: Matrix, count: int, degree: int
) -> tuple[Ints, Ints, Matrix]:
    """Return links in both directions, at most `degree` of a node, the shortest; sorted by source."""
    ends = np.concatenate([source, target])
    others = np.concatenate([target, source])
    sizes = np.concatenate([length, length])
    _, first = np.unique(ends * count + others, return_index=True)
    ends, others, sizes = ends[first], others[first], sizes[first]
    order = np.lexsort((sizes, ends))
    ends, others, sizes = ends[order], others[order], sizes[order]
    starts = np.searchsorted(ends, np.arange(count))
    place = np.arange(len(ends)) - starts[ends]
    keep = place < degree
    return ends[keep], others[keep], sizes[keep]


def _connected(
    points: Matrix, source: Ints, target: Ints, length: Matrix, inner: bool
) -> tuple[Ints, Ints, Matrix]:
    """Return the links with those added that make every node reachable from the first one."""
    count = len(points)
    added: list[tuple[int, int, float]] = []
    reached = np.zeros(count, dtype=np.bool_)
    _reach(reached, [0], source, target)
    while not reached.all():
        outside, inside = np.flatnonzero(~reached), np.flatnonzero(reached)
        some = outside[:: max(1, len(outside) // _MOST_LOOKED_AT)][:_MOST_LOOKED_AT]
        near = inside[:: max(1, len(inside) // _MOST_LOOKED_AT)][:_MOST_LOOKED_AT]
        block = _distances(points[some], points[near], inner)
        row, column = np.unravel_index(int(np.argmin(block)), block.shape)
        far, close = int(some[row]), int(near[column])
        added.append((close, far, float(block[row, column])))
        _reach(reached, [far], source, target)
    if not added:
        return source, target, length
    # A link that connects takes the place of none: nodes may have a few more than `degree` then.
    links = np.array([(a, b) for a, b, _ in added] + [(b, a) for a, b, _ in added], dtype=np.int64)
    sizes = np.array([d for *_, d in added] * 2, dtype=np.float32)
    source = np.concatenate([source, links[:, 0]])
    order = np.argsort(source, kind="stable")
    target = np.concatenate([target, links[:, 1]])[order]
    return source[order], target, np.concatenate([length, sizes])[order]


def _reach(reached: npt.NDArray[np.bool_], begin: list[int], source: Ints, target: Ints) -> None:
    """Mark what can be reached from some nodes along links sorted by source."""
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
