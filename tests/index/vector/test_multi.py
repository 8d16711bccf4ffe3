"""Rows of several vectors: searched, indexed and changed, beside numpy and pylance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import LanceError, OptionError
from spark_lance.index.vector.multi import row_distances
from spark_lance.index.vector.storage import INDEX_TYPES

DIM = 8
Matrix = npt.NDArray[Any]


def multi_table(rows: int, seed: int, kind: pa.DataType | None = None) -> pa.Table:
    """Rows around a few topics; some are null, empty, or have a null vector."""
    rng = np.random.default_rng(seed)
    kind = kind or pa.float32()
    topics = np.random.default_rng(99).normal(size=(12, DIM))
    results: list[Any] = []
    for number in range(rows):
        if number % 37 == 5:
            results.append(None if number % 2 else [])
            continue
        about = topics[rng.integers(0, 12, rng.integers(1, 7))]
        results.append((about + 0.3 * rng.normal(size=about.shape)).astype(kind.to_pandas_dtype()).tolist())
    return pa.table({"id": range(rows), "mv": pa.array(results, pa.list_(pa.list_(kind, DIM)))})


def reference(table: pa.Table, query: Matrix, metric: str) -> dict[int, float]:
    """Return the distance of each row that has vectors, computed row by row."""
    results = {}
    for key, vectors in zip(table["id"].to_pylist(), table["mv"].to_pylist(), strict=True):
        if not vectors:
            continue
        v, q = np.asarray(vectors, np.float64), query.astype(np.float64)
        if metric == "l2":
            each = ((q[:, None] - v[None]) ** 2).sum(axis=2)
        else:
            if metric == "cosine":
                v = v / np.linalg.norm(v, axis=1, keepdims=True)
                q = q / np.linalg.norm(q, axis=1, keepdims=True)
            each = 1 - q @ v.T
        results[key] = float(each.min(axis=1).sum())
    return results


def query_of(seed: int, vectors: int = 4) -> Matrix:
    """Return vectors around some of the topics."""
    rng = np.random.default_rng(seed)
    topics = np.random.default_rng(99).normal(size=(12, DIM))
    return (topics[rng.integers(0, 12, vectors)] + 0.3 * rng.normal(size=(vectors, DIM))).astype(np.float32)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_every_row_is_compared(tmp_path: Path, metric: str, kind: pa.DataType) -> None:
    table = multi_table(300, 1, kind)
    ours = spark_lance.write_dataset(table, tmp_path / "t", max_rows_per_file=120)
    for vectors in (1, 4):
        query = query_of(vectors, vectors)
        nearest = {"column": "mv", "q": query, "k": 20, "metric": metric}
        result = ours.to_table(["id"], nearest=nearest)
        theirs = lance.dataset(str(tmp_path / "t")).to_table(columns=["id"], nearest=nearest)
        known = reference(table, query, metric)
        expected = sorted(known.items(), key=lambda item: item[1])[:20]
        assert result.schema.names == ["id", "_distance"]
        np.testing.assert_allclose(result["_distance"], [d for _, d in expected], atol=2e-5, rtol=2e-5)
        np.testing.assert_allclose(result["_distance"], theirs["_distance"], atol=2e-3, rtol=2e-3)
        if kind != pa.float16():
            assert result["id"].to_pylist() == [key for key, _ in expected] == theirs["id"].to_pylist()


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    matrix, query = rng.normal(size=(500, DIM)).astype(np.float32), query_of(6)
    rows = np.sort(rng.integers(0, 60, 500))
    for exactly in (False, True):
        whole = row_distances(query, matrix, rows, "cosine", exactly=exactly)
        with monkeypatch.context() as patched:
            patched.setattr("spark_lance.index.vector.multi._MAX_DISTANCES", 40)
            parts = row_distances(query, matrix, rows, "cosine", exactly=exactly)
        np.testing.assert_array_equal(whole[0], parts[0])
        np.testing.assert_allclose(whole[1], parts[1], rtol=1e-5)


@pytest.mark.parametrize("kind", list(INDEX_TYPES))
def test_indices_of_all_kinds(tmp_path: Path, kind: str) -> None:
    """Either side builds, both search, and with refinement the true best rows come."""
    table = multi_table(600, 2)
    path = tmp_path / "t"
    options: dict[str, Any] = {"num_partitions": 4, "metric": "cosine"}
    if "PQ" in kind:
        options["num_sub_vectors"] = 4
    ours = spark_lance.write_dataset(table, path, max_rows_per_file=250)
    ours = ours.create_index("mv", kind, name="mine", **options)
    assert ours.index_statistics("mine")["num_indexed_rows"] == 600
    search(ours, path, table)
    theirs = lance.dataset(str(path))
    nearest = {"column": "mv", "q": query_of(3), "k": 5, "nprobes": 4, "refine_factor": 20}
    assert "ANN" in theirs.scanner(nearest=nearest).explain_plan(True)
    known = reference(table, query_of(3), "cosine")
    result = theirs.to_table(columns=["id"], nearest=nearest)
    # It looks at fewer rows, so it may miss some of the best; what it finds has their distances.
    np.testing.assert_allclose(
        result["_distance"], [known[key] for key in result["id"].to_pylist()], atol=1e-5
    )
    assert len({*result["id"].to_pylist()} & {*sorted(known, key=lambda key: known[key])[:5]}) >= 3
    ours.drop_index("mine")
    if "HNSW_PQ" not in kind:  # pylance builds none of lists of vectors
        lance.dataset(str(path)).create_index("mv", kind, name="theirs", **options)
        search(spark_lance.dataset(path), path, table)


def search(ours: Any, path: Path, table: pa.Table) -> None:
    result = 0
    for seed in range(6):
        query = query_of(seed + 10)
        nearest = {"column": "mv", "q": query, "k": 5, "nprobes": 4}
        answer = ours.to_table(["id"], nearest=nearest)
        known = reference(table, query, "cosine")
        exact = [known[key] for key in answer["id"].to_pylist()]
        np.testing.assert_allclose(answer["_distance"], exact, atol=1e-5)
        expected = [key for key, _ in sorted(known.items(), key=lambda item: item[1])[:5]]
        result += len({*expected} & {*answer["id"].to_pylist()})
        remaining = ours.to_table(["id"], "id % 3 = 0", nearest=nearest, prefilter=True)["id"].to_pylist()
        best = [key for key, _ in sorted(known.items(), key=lambda item: item[1]) if key % 3 == 0][:5]
        assert all(key % 3 == 0 for key in remaining)
        assert len({*best} & {*remaining}) >= 4
        plain = ours.to_table(["id"], nearest={**nearest, "use_index": False, "metric": "cosine"})
        assert plain["id"].to_pylist() == expected
    assert result >= 28, path


def test_through_changes_in_turns(tmp_path: Path) -> None:
    table, path = multi_table(300, 3), tmp_path / "t"
    ours = spark_lance.write_dataset(table, path, max_rows_per_file=100)
    ours = ours.create_index("mv", "IVF_FLAT", metric="cosine", num_partitions=2)
    ours.delete("id % 10 = 1")
    more = multi_table(60, 4).set_column(0, "id", pa.array(range(300, 360)))
    lance.write_dataset(more, str(path), mode="append")
    rows = pa.concat_tables([table, more]).to_pylist()
    left = pa.Table.from_pylist([row for row in rows if row["id"] % 10 != 1], schema=table.schema)
    for step in (
        lambda: None,
        lambda: spark_lance.dataset(path).optimize.optimize_indices(),
        lambda: spark_lance.dataset(path).optimize.compact_files(),
        lambda: lance.dataset(str(path)).optimize.compact_files(),
        lambda: lance.dataset(str(path)).optimize.optimize_indices(),
    ):
        step()
        search(spark_lance.dataset(path), path, left)
        stored = lance.dataset(str(path)).to_table()
        assert stored.equals(spark_lance.dataset(path).to_table())


def test_what_is_refused(tmp_path: Path) -> None:
    ours = spark_lance.write_dataset(multi_table(60, 5), tmp_path / "t")
    with pytest.raises(OptionError, match="metric cosine"):
        ours.create_index("mv", "IVF_FLAT", metric="l2", num_partitions=1)
    with pytest.raises(OptionError, match="the query has 3 values"):
        ours.to_table(nearest={"column": "mv", "q": [[1.0, 2.0, 3.0]], "k": 1})
    with pytest.raises(LanceError):
        ours.to_table(nearest={"column": "mv", "q": query_of(1), "k": 1, "metric": "hamming"})
    large = pa.table({"mv": pa.array([[[1.0] * DIM]], pa.large_list(pa.list_(pa.float32(), DIM)))})
    other = spark_lance.write_dataset(large, tmp_path / "large")
    with pytest.raises(OptionError, match="no vectors of one length"):
        other.to_table(nearest={"column": "mv", "q": [1.0] * DIM, "k": 1})
