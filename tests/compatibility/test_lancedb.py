"""LanceDB and this package change the same tables in turns, and search with the indices of each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.catalog.directory import DirectoryCatalog

# LanceDB is not in the environments of this project: `pip install lancedb` and run this file with `-m ''`.
lancedb = pytest.importorskip("lancedb", reason="needs LanceDB, which is no dependency of the tests")
pytest.importorskip("lancedb.rerankers")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
CONDITIONS = [
    "id between 10 and 40",
    "label = 'beta'",
    "label in ('beta', 'eta') and id > 700",
    "array_has_any(tags, ['zeta'])",
    "contains(text, 'eta z')",
]


def rows(count: int, start: int = 0) -> pa.Table:
    rng = np.random.default_rng(start)
    vectors = pa.array(rng.random(count * 16).astype(np.float32))
    return pa.table(
        {
            "id": pa.array(range(start, start + count)),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 16),
            "text": [" ".join(rng.choice(WORDS, 4)) for _ in range(count)],
            "label": [WORDS[i % 8] for i in range(count)],
            "tags": [[WORDS[i % 7], WORDS[i % 3]] for i in range(count)],
        }
    )


def assert_same_answers(table: Any, path: str) -> None:
    """Compare conditions, searches of text, and the five nearest of all partitions."""
    table.checkout_latest()
    ours = spark_lance.dataset(path)
    for condition in CONDITIONS:
        theirs = table.search().where(condition).limit(10_000).to_arrow()["id"].to_pylist()
        assert sorted(ours.to_table(["id"], filter=condition)["id"].to_pylist()) == sorted(theirs), condition
    for query in ("alpha", "beta gamma"):
        theirs = table.search(query, query_type="fts", fts_columns="text").limit(10_000).to_arrow()
        answer = ours.to_table(["id"], full_text_query={"query": query, "columns": ["text"]}, limit=10_000)
        assert sorted(answer["id"].to_pylist()) == sorted(theirs["id"].to_pylist()), query
    vector = np.random.default_rng(99).random(16).astype(np.float32)
    nearest = {"column": "vector", "q": vector, "k": 5, "nprobes": 4, "refine_factor": 400}
    theirs = table.search(vector).limit(5).nprobes(4).refine_factor(400).to_arrow()
    assert ours.to_table(["id"], nearest=nearest)["id"].to_pylist() == theirs["id"].to_pylist()


def change_in_turns(table: Any, path: str) -> None:
    """Let each side change and maintain the table, and compare after each step."""

    def ours() -> spark_lance.LanceDataset:
        return spark_lance.dataset(path)

    def merge(rows: pa.Table) -> None:
        for target, argument in ((table, rows), (ours(), rows)):
            merged = target.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merged.execute(argument)

    steps: list[Callable[[], Any]] = [
        lambda: spark_lance.write_dataset(rows(100, 5000), path, "append"),
        lambda: table.add(rows(50, 7000)),
        lambda: merge(rows(300, 1900)),
        lambda: table.update(where="id < 20", values={"label": "theirs"}),
        lambda: ours().update({"label": "'ours'"}, where="id > 5050"),
        lambda: table.optimize(),
        lambda: ours().delete("id % 11 = 0"),
        lambda: ours().optimize.compact_files(),
        lambda: ours().optimize.optimize_indices(),
        lambda: table.delete("id % 13 = 0"),
        lambda: table.optimize(),
        lambda: table.add_columns({"twice": "id * 2"}),
        lambda: ours().add_columns({"thrice": "id * 3"}),
    ]
    assert_same_answers(table, path)
    for step in steps:
        table.checkout_latest()
        step()
        assert_same_answers(table, path)
    numbers = ours().to_table(["id", "twice", "thrice"]).to_pylist()
    assert all(row["twice"] == 2 * row["id"] and row["thrice"] == 3 * row["id"] for row in numbers)
    assert ours().count_rows() == table.count_rows()
    assert len(ours().versions()) == len(table.list_versions())


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ"])
def test_a_table_of_lancedb(kind: str, tmp_path: Path) -> None:
    table = lancedb.connect(str(tmp_path)).create_table("t", rows(1500))
    table.create_index(metric="l2", vector_column_name="vector", index_type=kind, num_partitions=4)
    for column, index_type in (("id", "BTREE"), ("label", "BITMAP"), ("tags", "LABEL_LIST")):
        table.create_scalar_index(column, index_type=index_type)
    table.create_fts_index("text")
    change_in_turns(table, str(tmp_path / "t.lance"))


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ", "IVF_RQ"])
def test_a_table_of_ours(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    ours = spark_lance.write_dataset(rows(1500), path)
    ours = ours.create_index("vector", kind, num_partitions=4, metric="l2")
    for column, index_type in (
        ("id", "BTREE"),
        ("label", "BITMAP"),
        ("tags", "LABEL_LIST"),
        ("text", "NGRAM"),
    ):
        ours = ours.create_scalar_index(column, index_type, name=f"{column}_{index_type}")
    ours.create_scalar_index("text", "INVERTED")
    table = lancedb.connect(str(tmp_path)).open_table("t")
    assert len(table.list_indices()) == 6
    assert "ANN" in table.search(np.zeros(16, np.float32)).limit(5).explain_plan()
    change_in_turns(table, path)


def test_one_folder_as_database_and_catalog(tmp_path: Path) -> None:
    """LanceDB does not read the list of the catalog, so the catalog drops the tables that are in it."""
    database, catalog = lancedb.connect(str(tmp_path)), DirectoryCatalog(str(tmp_path))
    database.create_table("theirs", rows(5))
    spark_lance.write_dataset(rows(2), catalog.declare(("ours",), {}))
    assert sorted(database.table_names()) == ["ours", "theirs"]
    assert sorted(catalog.tables()) == [("ours",), ("theirs",)]
    database.open_table("ours").add(rows(3))
    assert spark_lance.dataset(catalog.table(("ours",)).uri).count_rows() == 5
    assert spark_lance.dataset(catalog.table(("theirs",)).uri).count_rows() == 5
    catalog.drop(("ours",))
    assert list(database.table_names()) == ["theirs"]
    database.drop_table("theirs")
    assert list(database.table_names()) == catalog.tables() == []


def test_hybrid_searches_have_the_ranking_of_lancedb(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    count = 400
    vectors = pa.array(rng.random(count * 8).astype(np.float32))
    # Texts of different lengths have different scores, so that no search has ties.
    texts = [" ".join([*rng.choice(WORDS, 5), *["filler"] * row]) for row in rng.permutation(count)]
    table = pa.table(
        {"id": range(count), "vector": pa.FixedSizeListArray.from_arrays(vectors, 8), "text": texts}
    )
    theirs = lancedb.connect(str(tmp_path)).create_table("t", table)
    theirs.create_fts_index("text")
    ours = spark_lance.dataset(tmp_path / "t.lance")
    for _ in range(25):
        vector = rng.random(8).astype(np.float32)
        words = " ".join(rng.choice(WORDS, rng.integers(1, 4), replace=False))
        k = int(rng.integers(1, 40))
        query = theirs.search(query_type="hybrid").vector(vector).text(words).limit(k)
        expected = query.rerank(lancedb.rerankers.RRFReranker()).to_arrow()
        answer = ours.hybrid_search(
            {"column": "vector", "q": vector}, {"query": words, "columns": ["text"]}, k, candidates=k
        )
        scores = dict(zip(answer["id"].to_pylist(), answer["_relevance_score"].to_pylist(), strict=True))
        theirs_scores = dict(
            zip(expected["id"].to_pylist(), expected["_relevance_score"].to_pylist(), strict=True)
        )
        assert sorted(scores.values()) == pytest.approx(sorted(theirs_scores.values()), abs=1e-6)
        # The order of rows with equal relevance is not defined, so the last rows can differ.
        least = min(scores.values()) + 1e-6
        assert {row: pytest.approx(score, abs=1e-6) for row, score in scores.items() if score > least} == {
            row: score for row, score in theirs_scores.items() if score > least
        }
