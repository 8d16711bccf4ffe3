"""Indices that Spark jobs build, and searches that Spark jobs run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.query import PhraseQuery
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_lance import LanceTable, dataset, write_dataset
from spark_lance.errors import IndexNotFoundError, OptionError, SchemaError
from spark_lance.spark.table import indexing
from tests.index.vectors import clustered, exact_neighbours, pylance_neighbours, table_of

VECTORS = clustered(3000, 16)
QUERY = clustered(1, 16, seed=7)[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_dataset(table_of(VECTORS), tmp_path / "t", max_rows_per_file=700)
    return tmp_path / "t"


@pytest.fixture
def table(spark: SparkSession, path: Path) -> LanceTable:
    return LanceTable.forPath(spark, str(path))


@pytest.mark.parametrize(
    ("kind", "segments", "expected"),
    [
        pytest.param("IVF_FLAT", None, 1, marks=pytest.mark.slow),
        ("IVF_SQ", 2, 2),
        ("IVF_HNSW_FLAT", None, 3),
    ],
)
def test_tasks_build_an_index_that_pylance_uses(
    kind: str,
    segments: int | None,
    expected: int,
    table: LanceTable,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "_TASK_ROWS", 1000)
    done = table.createIndex("v", kind, numPartitions=6, numSegments=segments)
    assert [row.asDict() for row in done.collect()] == [{"fragments_indexed": 5, "index_name": "v_idx"}]
    (index,) = table.indices().collect()
    assert (index.type, index.segments, index.rows_indexed, index.rows_not_indexed) == (
        kind,
        expected,
        3000,
        0,
    )
    exact = exact_neighbours(VECTORS, QUERY, 10, "l2")
    options = {"ef": 100} if "HNSW" in kind else {}
    ids, _ = pylance_neighbours(path, QUERY, 10, nprobes=6, refine_factor=3, **options)
    assert ids == exact
    rows = table.search(QUERY.tolist(), "v", 10, nprobes=6, refineFactor=3).collect()
    assert [row.id for row in rows] == exact
    directories = list((path / "_indices").iterdir())
    assert sum(any(directory.iterdir()) for directory in directories) == expected


def test_a_search_without_an_index_or_with_half_of_one(table: LanceTable, path: Path) -> None:
    exact = exact_neighbours(VECTORS, QUERY, 5, "l2")
    assert [row.id for row in table.search(QUERY.tolist(), "v", 5).collect()] == exact
    table.createIndex("v", "IVF_PQ", numPartitions=4, numBits=4, numSubVectors=8)
    write_dataset(table_of(QUERY[None], 9000), path, mode="append")
    result = table.search(QUERY.tolist(), "v", 3, columns=["id"])
    assert result.columns == ["id", "_distance"]
    assert result.collect()[0].asDict() == {"id": 9000, "_distance": 0.0}
    assert 9000 not in [r.id for r in table.search(QUERY.tolist(), "v", 3, fastSearch=True).collect()]
    table.optimizeIndices("v_idx")
    assert [row.rows_not_indexed for row in table.indices().collect()] == [0]
    table.dropIndex("v_idx")
    with pytest.raises(IndexNotFoundError):
        table.optimizeIndices("v_idx")


def test_filters_before_and_after(table: LanceTable) -> None:
    table.createIndex("v", "IVF_FLAT", numPartitions=4)
    near = exact_neighbours(VECTORS, QUERY, 3000, "l2")
    before = table.search(QUERY.tolist(), "v", 5, filter="id % 40 = 0", columns=["id"], nprobes=4)
    assert [row.id for row in before.collect()] == [n for n in near if n % 40 == 0][:5]
    after = table.search(QUERY.tolist(), "v", 5, filter="id % 2 = 0", prefilter=False, nprobes=4)
    assert [row.id for row in after.collect()] == [n for n in near[:5] if n % 2 == 0]


@pytest.mark.parametrize(
    "indexed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("no", "all")), "half"]
)
def test_many_queries_are_joined(indexed: str, spark: SparkSession, table: LanceTable, path: Path) -> None:
    vectors = VECTORS
    if indexed != "no":
        table.createIndex("v", "IVF_FLAT", numPartitions=6)
    if indexed == "half":
        more = clustered(500, 16, seed=21)
        write_dataset(table_of(more, 3000), path, mode="append")
        vectors = np.concatenate([VECTORS, more])
    request = clustered(40, 16, seed=9)
    rows: list[Any] = [(f"q{i}", [float(x) for x in query]) for i, query in enumerate(request)]
    queries = spark.createDataFrame(rows, "name string, point array<float>")
    result = table.searchBatch(
        queries, "v", 4, queryVector="point", queryId="name", nprobes=6, columns=["id"]
    )
    assert result.columns == ["query_id", "id", "_distance"]
    answers: dict[str, list[tuple[float, int]]] = {}
    for row in result.collect():
        answers.setdefault(row.query_id, []).append((row._distance, row.id))
    assert len(answers) == 40
    for i, query in enumerate(request):
        assert [number for _, number in sorted(answers[f"q{i}"])] == exact_neighbours(vectors, query, 4, "l2")


def test_scalar_indices_are_built_by_tasks(spark: SparkSession, table: LanceTable, path: Path) -> None:
    table.createScalarIndex("id", "BTREE", numSegments=2)
    assert [(row.type, row.segments) for row in table.indices().collect()] == [("BTree", 2)]
    plan = lance.dataset(str(path)).scanner(filter="id = 7", columns=["id"]).explain_plan(True)
    assert "ScalarIndexQuery" in plan
    read = spark.read.format("lance").option("filter", "id in (7, 2999)").load(str(path))
    assert sorted(row.id for row in read.select("id").collect()) == [7, 2999]
    assert dataset(path).count_rows("id > 2990") == 9


def test_what_cannot_be_built_says_so(table: LanceTable) -> None:
    with pytest.raises(SchemaError, match="cannot have a vector index"):
        table.createIndex("id", "IVF_FLAT")
    with pytest.raises(OptionError, match="IVF_ABC"):
        table.createIndex("v", "IVF_ABC")
    with pytest.raises(OptionError, match="no scalar index"):
        table.createScalarIndex("id", "TREE")
    with pytest.raises(OptionError, match="3 values"):
        table.search([1.0, 2.0, 3.0], "v")


def test_words_are_searched(spark: SparkSession, tmp_path: Path) -> None:
    texts = ["the quick brown fox", "brown quick", "a fox", None, "quick brown"] * 20
    write_dataset(pa.table({"id": range(100), "t": texts}), tmp_path / "t", max_rows_per_file=40)
    table = LanceTable.forPath(spark, str(tmp_path / "t"))
    table.createScalarIndex("t", "INVERTED", withPosition=True)
    rows = table.textSearch("quick fox", "t", 5, columns=["id"]).collect()
    # Shorter texts score higher: "a" is a stop word, so one word is left of "a fox".
    assert [row.id % 5 for row in rows] == [2] * 5
    theirs: Any = lance.dataset(str(tmp_path / "t"))
    scores = theirs.to_table(["id"], full_text_query="quick fox", limit=5)["_score"].to_pylist()
    assert [row._score for row in rows] == pytest.approx(scores)
    assert rows[0]._score > 0
    phrase = table.textSearch("quick brown", "t", 100, phrase=True, filter="id >= 50").collect()
    assert sorted(row.id for row in phrase) == [n for n in range(50, 100) if n % 5 in (0, 4)]
    assert table.textSearch("nothing", "t").count() == 0


def test_options_of_text_indices_reach_the_tasks(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    texts = ["Quick brown fox", "brown quick", "quick-brown", "quick brown"] * 20
    write_dataset(pa.table({"id": range(80), "t": texts}), path, max_rows_per_file=40)
    table = LanceTable.forPath(spark, path)
    options: dict[str, Any] = {"withPosition": True, "lowerCase": False, "baseTokenizer": "whitespace"}
    table.createScalarIndex("t", "INVERTED", numSegments=2, **options)
    phrase = PhraseQuery("quick brown", "t")
    theirs = lance.dataset(path).to_table(["id"], full_text_query=phrase)["id"].to_pylist()
    ours = table.textSearch("quick brown", "t", 80, phrase=True).collect()
    assert sorted(theirs) == sorted(row.id for row in ours) == list(range(3, 80, 4))
    with pytest.raises(OptionError, match="stemming"):
        table.createScalarIndex("t", "INVERTED", stemming=True)


def test_rows_of_several_vectors(spark: SparkSession, tmp_path: Path) -> None:
    """Lists of vectors come from arrays of arrays, and are searched by lists of vectors."""
    rng = np.random.default_rng(1)
    lists = [rng.normal(size=(1 + i % 4, 4)).astype(np.float32).tolist() for i in range(200)]
    path = str(tmp_path / "several")
    frame = spark.createDataFrame(list(enumerate(lists)), "id int, mv array<array<float>>")
    writer = frame.repartition(2).write.format("lance").mode("append")
    writer.option("mv.element.arrow.fixed-size-list.size", 4).save(path)
    stored = lance.dataset(path)
    assert stored.schema.field("mv").type == pa.list_(pa.list_(pa.float32(), 4))
    read = spark.read.format("lance").load(path)
    read.write.format("lance").mode("append").save(path + "_copy")
    assert lance.dataset(path + "_copy").schema.field("mv").type == stored.schema.field("mv").type
    table = LanceTable.forPath(spark, path)
    table.createIndex("mv", "IVF_FLAT", metric="cosine", numPartitions=2)
    frame.limit(3).withColumn("id", F.col("id") + 1000).write.format("lance").mode("append").save(path)
    table = LanceTable.forPath(spark, path)
    queries = {number: rng.normal(size=(2, 4)).tolist() for number in range(2)}
    request = spark.createDataFrame(list(queries.items()), "q int, v array<array<double>>")
    batch = table.searchBatch(request, "mv", 3, queryVector="v", queryId="q", columns=["id"]).collect()
    for number, query in queries.items():
        nearest = {"column": "mv", "q": query, "k": 3, "use_index": False, "metric": "cosine"}
        expected = lance.dataset(path).to_table(columns=["id"], nearest=nearest).to_pydict()
        rows = table.search(query, "mv", 3, columns=["id"]).collect()
        np.testing.assert_allclose([row._distance for row in rows], expected["_distance"], atol=1e-5)
        mine = sorted((row._distance, row.id) for row in batch if row.query_id == number)
        np.testing.assert_allclose([distance for distance, _ in mine], expected["_distance"], atol=1e-5)
        option = json.dumps({"column": "mv", "q": query, "k": 3})
        by_option = spark.read.format("lance").option("nearest", option).load(path).collect()
        assert {row.id for row in by_option} == {row.id for row in rows}
