"""Graphs: what a search finds, and what a built graph looks like."""

from __future__ import annotations

import numpy as np
import pytest

from spark_lance.index.vector import graph as graphs
from spark_lance.index.vector.graph import Graph, GraphParams, build_graph, search_graph
from spark_lance.index.vector.quantizers.flat import Flat
from tests.index.vectors import clustered


def recall(vectors: np.ndarray, graph: Graph, metric: str, ef: int = 60) -> float:
    flat = Flat(vectors.shape[1], np.dtype(np.float32), metric)  # type: ignore[arg-type]
    scorer = flat.scorer({"flat": vectors})
    hits = 0
    queries = clustered(20, vectors.shape[1], seed=5)
    for query in queries:
        request = flat.prepare(flat.queries(query[None]), query)
        result, scores = search_graph(graph, scorer, request, ef)
        assert (np.diff(scores) >= 0).all()
        hits += len(set(result[:10].tolist()) & set(np.argsort(scorer.distances(request)[0])[:10].tolist()))
    return hits / 10 / len(queries)


@pytest.mark.parametrize("metric", ["l2", "dot"])
def test_a_search_finds_nearly_all(metric: str) -> None:
    vectors = clustered(3000, 16, clusters=40)
    graph = build_graph(vectors, GraphParams(), inner=metric == "dot")
    assert recall(vectors, graph, metric) > 0.95


def test_large_levels_are_built_cell_by_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_MAX_UNSPLIT_NODES", 500)
    monkeypatch.setattr(graphs, "_CELL_NODES", 250)
    vectors = clustered(3000, 16, clusters=40)
    assert recall(vectors, build_graph(vectors, GraphParams()), "l2") > 0.9


def test_far_clusters_are_connected() -> None:
    parts = [clustered(40, 4, clusters=1, seed=i) * np.float32(0.01) + np.float32(100 * i) for i in range(8)]
    vectors = np.concatenate(parts)
    graph = build_graph(vectors, GraphParams(m=4, ef_construction=8))
    level = graph.levels[0]
    reached, front = {graph.entry_point}, [graph.entry_point]
    while front:
        front = [int(n) for node in front for n in level.of(node) if int(n) not in reached]
        reached.update(front)
    assert len(reached) == len(vectors)


def test_levels_and_links_are_as_the_format_wants() -> None:
    vectors = clustered(2000, 8)
    params = GraphParams(m=8, ef_construction=40, max_level=4)
    graph = build_graph(vectors, params)
    assert len(graph.levels) <= params.max_level
    assert graph.levels[0].nodes.tolist() == list(range(2000))
    assert graph.entry_point == graph.levels[-1].nodes[0]
    for height, level in enumerate(graph.levels):
        nodes = set(level.nodes.tolist())
        degrees = np.diff(level.starts)
        assert set(level.neighbors.tolist()) <= nodes
        assert (degrees <= (16 if height == 0 else 8)).mean() > 0.99
        assert all(int(node) not in level.of(row) for row, node in enumerate(level.nodes))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_tiny_graphs(count: int) -> None:
    vectors = clustered(count, 4)
    graph = build_graph(vectors, GraphParams())
    flat = Flat(4, np.dtype(np.float32), "l2")
    result, _ = search_graph(
        graph, flat.scorer({"flat": vectors}), flat.prepare(flat.queries(vectors[:1]), vectors[0]), 5
    )
    assert sorted(result.tolist()) == list(range(count))


def test_rows_that_are_not_allowed_are_walked_over() -> None:
    vectors = clustered(500, 8)
    graph = build_graph(vectors, GraphParams())
    flat = Flat(8, np.dtype(np.float32), "l2")
    allowed = np.arange(500) % 3 == 0
    request = flat.prepare(flat.queries(vectors[:1]), vectors[0])
    result, _ = search_graph(graph, flat.scorer({"flat": vectors}), request, 50, allowed)
    assert len(result) == 50
    assert allowed[result].all()


@pytest.mark.parametrize("kind", ["random", "alike", "few", "infinite"])
def test_the_smallest_of_rows(kind: str) -> None:
    random = np.random.default_rng(3)
    block = random.random((50, 30 if kind == "few" else 900)).astype(np.float32)
    if kind == "alike":
        block = np.round(block * 3)
    if kind == "infinite":
        block[:, ::2] = np.inf
        block[7] = np.inf
    for expected in (1, 8, 20):
        places, values = graphs._smallest_values(block, expected)
        order = np.argsort(values, axis=1)[:, :expected]
        result = np.take_along_axis(values, order, axis=1)
        assert np.array_equal(result, np.sort(block, axis=1)[:, :expected])
        chosen = np.take_along_axis(places, order, axis=1)
        assert np.array_equal(np.take_along_axis(block, chosen, axis=1), result)
        assert all(len(set(row)) == expected for row in chosen.tolist())
