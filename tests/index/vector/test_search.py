"""One query in several partitions: the nearest are compared exactly, however rough their estimates are."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.index.base.search_rows import RowMask, contains
from spark_lance.index.vector import search
from spark_lance.index.vector.quantizers.quantized_points import QuantizedPoints
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search import VectorSearch
from spark_lance.index.vector.storage import all_partitions
from spark_lance.proto import table_pb2


def indexed(
    root: Path, vectors: np.ndarray, kind: str = "IVF_FLAT", partitions: int = 8, **options: Any
) -> LanceDataset:
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    table = pa.table(
        {"id": np.arange(len(vectors)), "name": [f"n{i}" for i in range(len(vectors))], "v": values}
    )
    dataset = spark_lance.write_dataset(table, root, max_rows_per_file=len(vectors) // 3 + 1)
    dataset.create_index("v", kind, num_partitions=partitions, **options)
    return spark_lance.dataset(root)


def found(dataset: LanceDataset, query: np.ndarray, k: int = 10, **asked: object) -> pa.Table:
    return dataset.to_table(["id"], nearest={"column": "v", "q": query, "k": k, **asked})


@pytest.mark.parametrize("offset", [0.0, 30.0, 1000.0])
def test_vectors_far_from_zero(offset: float, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    vectors = (offset + random.normal(size=(3000, 24))).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors)
    for query in vectors[:20]:
        rows = found(dataset, query, nprobes=8)
        apart = vectors - query
        true = np.einsum("ij,ij->i", apart, apart)
        assert np.array_equal(rows["id"].to_numpy(), np.argsort(true, kind="stable")[:10])
        assert np.allclose(rows["_distance"].to_numpy(), np.sort(true)[:10], rtol=1e-5)
        assert rows["_distance"][0].as_py() == 0


def test_many_equal_vectors_and_deleted_rows(tmp_path: Path) -> None:
    vectors = np.zeros((2000, 8), np.float32)
    vectors[1000:] += 1
    dataset = indexed(tmp_path / "t", vectors, partitions=2)
    dataset.delete("id < 900")
    dataset = spark_lance.dataset(tmp_path / "t")
    rows = found(dataset, np.zeros(8), k=150, nprobes=2)
    assert rows["_distance"].to_pylist() == [0.0] * 100 + [8.0] * 50
    assert set(rows["id"].to_pylist()[:100]) == set(range(900, 1000))


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize(("kind", "options"), [("IVF_PQ", {"num_sub_vectors": 6}), ("IVF_HNSW_PQ", {})])
def test_codes_of_vectors_far_from_zero(
    offset: float, kind: str, options: dict[str, int], tmp_path: Path
) -> None:
    """They stand for differences from centroids, so that their distances do not lose digits."""
    random = np.random.default_rng(1)
    near = random.normal(size=(3000, 24)).astype(np.float32)
    dataset = indexed(tmp_path / "t", (offset + near).astype(np.float32), kind, 4, **options)
    (stored,) = (stored for _, stored in VectorSearch(dataset.snapshot, "v")._segments)
    points, ids = [], []
    for number, partition in enumerate(all_partitions(stored)):
        rest = stored.quantizer.comparable(partition.codes).astype(np.float64)
        points.append(rest + stored.ivf.centroids[number])
        ids.append(partition.row_ids)
    lies, rows = np.concatenate(points), np.concatenate(ids)
    for query in (offset + near[:20]).astype(np.float32):
        answer = dataset.to_table(
            ["id"], nearest={"column": "v", "q": query, "k": 10, "nprobes": 4}, with_row_id=True
        )
        true = ((lies - query) ** 2).sum(axis=1)
        assert np.allclose(answer["_distance"].to_numpy(), np.sort(true)[:10], rtol=2e-5)
        place = {row: i for i, row in enumerate(rows.tolist())}
        mine = true[[place[row] for row in answer["_rowid"].to_pylist()]]
        assert np.allclose(mine, np.sort(true)[:10], rtol=2e-5)


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ"])
@pytest.mark.parametrize(("queries", "size"), [(3, 1 << 21), (40, 1 << 21), (40, 256), (40, 4)])
def test_many_queries_in_blocks(
    kind: str, queries: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.random.default_rng(6).normal(size=(900, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors, kind, partitions=3)
    dataset.delete("id % 4 = 1")
    dataset = spark_lance.dataset(tmp_path / "t")
    alone = [found(dataset, query, nprobes=2) for query in vectors[:queries]]
    monkeypatch.setattr(search, "_BLOCK_QUERIES", 7)
    monkeypatch.setattr(search, "_BLOCK_BYTES", size)
    together = found(dataset, vectors[:queries], nprobes=2)
    for number, expected in enumerate(alone):
        part = together.slice(number * len(expected), len(expected))
        distances = expected["_distance"].to_numpy()
        assert np.allclose(part["_distance"], distances, rtol=1e-4, atol=1e-4)
        # Rows of equal codes have equal distances but for rounding, which differs between the two ways.
        surely = distances < distances[-1] - 1e-3
        assert set(part["id"].to_numpy()[surely]) == set(expected["id"].to_numpy()[surely])


@pytest.mark.parametrize("bound", [100, 1 << 16])
def test_only_what_is_walked_is_decoded(bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MIN_GRAPH_ROWS", bound)
    vectors = np.random.default_rng(7).normal(size=(700, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors, "IVF_HNSW_SQ", partitions=1)
    vector_search = VectorSearch(dataset.snapshot, "v")
    query = VectorQuery.parse({"column": "v", "q": vectors[3], "k": 5}).cast_to(vector_search.kind)
    ((segment, stored),) = vector_search._segments
    partition = vector_search.search_segment(query, segment, stored, None)._load([0])[0]
    assert isinstance(partition.scorer.points, QuantizedPoints) is (bound > 700)
    assert found(dataset, vectors[3], k=5)["id"][0].as_py() == 3


def test_threads_share_a_dataset(tmp_path: Path) -> None:
    vectors = np.random.default_rng(2).normal(size=(3000, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors)
    alone = [found(spark_lance.dataset(tmp_path / "t"), query) for query in vectors[:40]]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda query: found(dataset, query), vectors[:40]))
    assert together == alone


def test_a_dataset_can_be_pickled_after_a_search(tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(500, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors)
    rows = found(dataset, vectors[7], refine_factor=2)
    assert found(pickle.loads(pickle.dumps(dataset)), vectors[7], refine_factor=2) == rows


def test_columns_of_several_searches(tmp_path: Path) -> None:
    vectors = np.random.default_rng(4).normal(size=(900, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors)
    request = {"column": "v", "q": vectors[5], "k": 3}
    sets = [
        ["id"],
        ["name"],
        ["id", "name"],
        ["name", "id"],
        [],
        ["id", "v"],
        ["v"],
        ["name", "v"],
        ["id"],
    ] * 2
    for columns in sets:
        rows = dataset.to_table(columns, nearest=request, with_row_id=len(columns) == 1)
        assert rows.column_names == [*columns, "_distance", *(["_rowid"] if len(columns) == 1 else [])]
        if "name" in columns:
            assert rows["name"][0].as_py() == "n5"


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted by Linux's /proc")
def test_few_files_stay_open(tmp_path: Path) -> None:
    vectors = np.random.default_rng(5).normal(size=(600, 4)).astype(np.float32)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4)
    table = pa.table({"id": np.arange(600), "v": values})
    dataset = spark_lance.write_dataset(table, tmp_path / "t", max_rows_per_file=10)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert found(dataset, vectors[0], k=600).num_rows == 600
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 40


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ"])
def test_filters_that_few_rows_pass(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = np.random.default_rng(8).normal(size=(1500, 16)).astype(np.float32)
    dataset = indexed(tmp_path / "t", vectors, kind, partitions=5)
    dataset.delete("id % 7 = 1")
    dataset = spark_lance.dataset(tmp_path / "t")
    filters = [
        f"id >= {first} and id < {first + count}" for count in (3, 40, 300) for first in (0, 450, 1190)
    ]

    def answers(table: LanceDataset) -> list[pa.Table]:
        return [
            table.to_table(
                ["id"],
                nearest={"column": "v", "q": query, "k": 10, "nprobes": 3},
                filter=condition,
                prefilter=True,
            )
            for condition in filters
            for query in vectors[:5]
        ]

    selected = answers(dataset)
    monkeypatch.setattr(search, "_MAX_SELECTED_FRACTION", -1)
    for some, expected in zip(selected, answers(spark_lance.dataset(tmp_path / "t")), strict=True):
        assert np.allclose(some["_distance"], expected["_distance"], rtol=1e-4, atol=1e-4)
        assert some.num_rows == expected.num_rows
        if kind == "IVF_FLAT":
            assert some["id"].equals(expected["id"])


@pytest.mark.parametrize("fragments", [[0], [3], [0, 1, 2], [2, 900]])
def test_masks_of_rows(fragments: list[int]) -> None:
    random = np.random.default_rng(9)
    messages = [table_pb2.DataFragment(id=number, physical_rows=50 + number) for number in fragments]
    rows = np.unique(
        [number << 32 | int(row) for number in fragments for row in random.integers(0, 50 + number, 30)]
    ).astype(np.uint64)
    mask = RowMask.of(rows, messages)
    assert mask is not None
    every = [number << 32 | row for number in (*fragments, 1, 4, 1 << 30) for row in range(50)]
    addresses = np.array([*every, 2**64 - 1], np.uint64)
    assert np.array_equal(mask.contains(addresses), contains(rows, addresses))
    assert RowMask.of(rows, [table_pb2.DataFragment(id=0)]) is None
    assert RowMask.of(rows, [table_pb2.DataFragment(id=1 << 30, physical_rows=5)]) is None
