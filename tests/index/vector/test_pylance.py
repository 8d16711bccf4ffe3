"""Vector indices of all types, both ways: ours searches what pylance built, and pylance what we built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.index.vector.base.metrics import Metric
from spark_lance.index.vector.build import IndexParams
from spark_lance.index.vector.create import create_vector_index, extend_vector_index, open_segment
from spark_lance.index.vector.graph import GraphParams
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from tests.index.vectors import (
    Matrix,
    clustered,
    exact_neighbours,
    pylance_neighbours,
    table_of,
    write_pylance,
)

ROWS, DIM, PARTITIONS = 1500, 16, 5
VECTORS = clustered(ROWS, DIM)
QUERIES = clustered(6, DIM, seed=1)
METRICS: tuple[Metric, ...] = ("l2", "cosine", "dot")
TYPES: list[tuple[str, dict[str, Any]]] = [
    ("IVF_FLAT", {}),
    ("IVF_PQ", {"num_sub_vectors": 8, "num_bits": 4}),
    ("IVF_PQ", {"num_sub_vectors": 4, "num_bits": 8}),
    ("IVF_SQ", {}),
    ("IVF_RQ", {"num_bits": 1}),
    ("IVF_RQ", {"num_bits": 5}),
    ("IVF_HNSW_FLAT", {}),
    ("IVF_HNSW_SQ", {}),
    ("IVF_HNSW_PQ", {"num_sub_vectors": 4}),
]
CASES = [
    pytest.param(kind, options, metric, id=f"{kind}-{options.get('num_bits', '')}-{metric}")
    for kind, options in TYPES
    for metric in METRICS
]


def searched(path: Path) -> VectorSearch:
    return VectorSearch(dataset(path).snapshot, "v")


def ours(path: Path, query: Matrix, k: int, **options: Any) -> tuple[list[int], list[float]]:
    """Return ids and distances that we find; the tables here have ids in the order of their rows."""
    search = searched(path)
    (result,) = search.run(VectorQuery.parse({"column": "v", "q": query, "k": k, **options}))
    rows = dataset(path).to_table(["id"], with_row_address=True)
    ids = dict(zip(rows["_rowaddr"].to_pylist(), rows["id"].to_pylist(), strict=True))
    return [ids[address] for address in result.addresses.tolist()], result.distances.tolist()


def scale_of(kind: str, metric: Metric) -> float:
    """Pylance shows twice the cosine distance where codes estimate it."""
    return 2.0 if metric == "cosine" and "FLAT" not in kind else 1.0


def has_tables(kind: str) -> bool:
    """Pylance estimates RQ distances by tables of 8 bits, or of 16 if it is asked to be accurate."""
    return kind == "IVF_RQ"


def assert_alike(path: Path, kind: str, metric: Metric) -> None:
    """Pylance and we find the same rows at the same distances in every partition of an index."""
    extra: dict[str, Any] = {"ef": 200} if "HNSW" in kind else {}
    if has_tables(kind):
        extra["approx_mode"] = "accurate"
    for query in QUERIES:
        options = {"metric": metric, "nprobes": PARTITIONS}
        their_ids, their_distances = pylance_neighbours(path, query, 20, **options, **extra)
        our_ids, our_distances = ours(path, query, 20, **options)
        known = dict(zip(our_ids, our_distances, strict=True))
        common = set(our_ids) & set(their_ids)
        assert len(common) >= 18
        for number, distance in zip(their_ids, their_distances, strict=True):
            if number in common:
                scaled = distance / scale_of(kind, metric)
                allowed = (2e-3 if has_tables(kind) else 1e-4) * max(1.0, abs(scaled))
                assert abs(scaled - known[number]) <= allowed


@pytest.mark.parametrize(("kind", "options", "metric"), CASES)
def test_we_search_what_pylance_built(
    kind: str, options: dict[str, Any], metric: Metric, tmp_path: Path
) -> None:
    table = write_pylance(tmp_path / "t", VECTORS)
    table.create_index("v", kind, metric=metric, num_partitions=PARTITIONS, **options)
    assert_alike(tmp_path / "t", kind, metric)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("kind", "options", "metric"), CASES)
def test_pylance_searches_what_we_built(
    kind: str, options: dict[str, Any], metric: Metric, tmp_path: Path
) -> None:
    path = tmp_path / "t"
    write_pylance(path, VECTORS, max_rows_per_file=600)
    build(path, IndexParams(kind, metric, num_partitions=PARTITIONS, **options))
    nearest = {"column": "v", "q": QUERIES[0], "k": 3, "metric": metric}
    plan = lance.dataset(str(path)).scanner(nearest=nearest).explain_plan(True)
    assert "ANN" in plan
    assert "v_idx" in plan
    assert_alike(path, kind, metric)


def build(path: Path, recipe: IndexParams) -> None:
    ds = dataset(path)
    create_vector_index(ds.snapshot, "v", recipe)


@pytest.mark.parametrize(
    "options", [{"num_bits": bits} for bits in (2, 3, 4, 6, 7, 8, 9)] + [{"rotation": "matrix"}]
)
@pytest.mark.parametrize("metric", METRICS)
def test_pylance_reads_all_forms_of_rq_codes(options: dict[str, Any], metric: Metric, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_pylance(path, VECTORS)
    build(path, IndexParams("IVF_RQ", metric, num_partitions=PARTITIONS, **options))
    assert_alike(path, "IVF_RQ", metric)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ"])
def test_other_floats(kind: str, dtype: Any, tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_pylance(path, VECTORS.astype(dtype))
    build(path, IndexParams(kind, "l2", num_partitions=PARTITIONS))
    accurate = {"approx_mode": "accurate"} if has_tables(kind) else {}
    query = QUERIES[0].astype(dtype)
    ids, distances = pylance_neighbours(path, query, 20, nprobes=PARTITIONS, **accurate)
    our_ids, our_distances = ours(path, query, 20, nprobes=PARTITIONS)
    assert len(set(ids) & set(our_ids)) >= 18
    assert np.allclose(distances, our_distances, rtol=5e-3)


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_HNSW_FLAT"])
def test_a_vector_is_0_from_itself_and_none_is_nearer(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    vectors = VECTORS + np.float32(100)  # far from 0, where rounding is felt
    write_pylance(path, vectors)
    build(path, IndexParams(kind, "l2", num_partitions=PARTITIONS))
    for number in range(0, ROWS, 75):
        ids, distances = ours(path, vectors[number], 3)
        assert (ids[0], distances[0]) == (number, 0.0)
    many = VectorQuery.parse({"column": "v", "q": vectors[::75], "k": 3})
    assert min(result.distances.min() for result in searched(path).run(many)) >= 0


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_HNSW_FLAT"])
@pytest.mark.parametrize("builder", ["ours", "pylance"])
def test_bits_are_compared_by_hamming(kind: str, builder: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    vectors = np.random.default_rng(0).integers(0, 256, (800, 8)).astype(np.uint8)
    write_pylance(path, vectors[:600])
    if builder == "ours":
        build(path, IndexParams(kind, "hamming", num_partitions=4))
    else:
        lance.dataset(str(path)).create_index("v", kind, num_partitions=4, metric="hamming")
    for start in (600, 700):
        lance.write_dataset(table_of(vectors[start : start + 100], start), str(path), mode="append")
        # pylance cannot extend graphs of bits.
        by_pylance = start == 600 and kind == "IVF_FLAT"
        table: Any = lance.dataset(str(path)) if by_pylance else dataset(path)
        table.optimize.optimize_indices()
    ids, distances = ours(path, vectors[3], 10, nprobes=4, ef=400)
    theirs = pylance_neighbours(path, vectors[3], 10, nprobes=4, ef=400, metric="hamming")
    assert ids[0] == 3
    assert distances == theirs[1]
    assert distances == sorted(exact_of(vectors, vectors[3]))[:10]


def exact_of(vectors: Matrix, query: Matrix) -> list[float]:
    apart: Matrix = np.unpackbits(np.bitwise_xor(vectors, query).astype(np.uint8), axis=1)
    return [float(bits) for bits in apart.sum(axis=1)]


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ"])
def test_both_extend_one_index_in_turns(kind: str, stable: bool, tmp_path: Path) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {"num_sub_vectors": 4, "num_bits": 4} if "PQ" in kind else {}
    write_pylance(path, VECTORS[:600], enable_stable_row_ids=stable)
    build(path, IndexParams(kind, "l2", num_partitions=PARTITIONS, graph=GraphParams(m=8), **options))
    lance.write_dataset(table_of(VECTORS[600:900], 600), str(path), mode="append")
    lance.dataset(str(path)).optimize.optimize_indices(num_indices_to_merge=0)
    lance.write_dataset(table_of(VECTORS[900:1200], 900), str(path), mode="append")
    ds = dataset(path)
    extend_vector_index(ds.snapshot, "v_idx", merge=0)
    assert len(dataset(path).manifest.indices) == 3
    assert_finds_all(path, kind, 1200)
    ds = dataset(path)
    extend_vector_index(ds.snapshot, "v_idx")
    assert len(dataset(path).manifest.indices) == 1
    assert_finds_all(path, kind, 1200)
    lance.write_dataset(table_of(VECTORS[1200:], 1200), str(path), mode="append")
    lance.dataset(str(path)).optimize.optimize_indices(num_indices_to_merge=1)
    assert_finds_all(path, kind, ROWS)
    (segment,) = searched(path)._segments
    assert open_segment(segment[0]).num_rows == ROWS


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("IVF_FLAT", {}),
        ("IVF_PQ", {"num_sub_vectors": 4, "num_bits": 4}),
        ("IVF_RQ", {"num_bits": 3, "rotation": "matrix"}),
    ],
)
def test_a_retrained_index_has_new_centroids(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "t"
    write_pylance(path, VECTORS[:900])
    build(path, IndexParams(kind, "l2", num_partitions=PARTITIONS, **options))
    lance.write_dataset(table_of(VECTORS[900:] + 7, 900), str(path), mode="append")
    extend_vector_index(dataset(path).snapshot, "v_idx", merge=0)
    before = open_segment(searched(path)._segments[0][0])
    dataset(path).optimize.optimize_indices(retrain=True)
    (segment,) = searched(path)._segments
    after = open_segment(segment[0])
    assert after.num_rows == ROWS
    assert (before.ivf.centroids.shape, after.ivf.centroids.shape) == ((PARTITIONS, DIM), (1, DIM))
    assert (after.kind, after.quantizer.summary()) == (before.kind, before.quantizer.summary())
    query = VECTORS[1000] + 7
    assert ours(path, query, 1, nprobes=1, refine_factor=20)[0] == [1000]
    assert list(pylance_neighbours(path, query, 1, nprobes=1, refine_factor=20)[0]) == [1000]


def assert_finds_all(path: Path, kind: str, rows: int) -> None:
    """Pylance and we find the nearest rows of all there are, by exact distances."""
    for query in QUERIES[:3]:
        exact = exact_neighbours(VECTORS[:rows], query, 10, "l2")
        options = {"nprobes": PARTITIONS, "refine_factor": 20}
        graph = {"ef": 200} if "HNSW" in kind else {}
        assert len(set(pylance_neighbours(path, query, 10, **options, **graph)[0]) & set(exact)) >= 9
        assert len(set(ours(path, query, 10, **options)[0]) & set(exact)) >= 9


@pytest.mark.parametrize("kind", ["IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"])
def test_pylance_compacts_files_with_our_graph_index(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    vectors = clustered(900, 16)
    for start in range(0, 900, 300):
        part = pa.FixedSizeListArray.from_arrays(pa.array(vectors[start : start + 300].ravel()), 16)
        write_dataset(pa.table({"v": part}), path, "append" if start else "create")
    dataset(path).create_index("v", kind, num_partitions=3)
    metrics = lance.dataset(path).optimize.compact_files()
    assert (metrics.fragments_removed, metrics.fragments_added) == (3, 1)
    for table in (dataset(path), lance.dataset(path)):
        nearest = {"column": "v", "q": vectors[700], "k": 1, "nprobes": 3, "ef": 100, "refine_factor": 20}
        assert table.to_table(nearest=nearest)["v"].to_pylist() == [vectors[700].tolist()]
