"""Searches for each row of a relation find what one search for each of its values finds, without Spark."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

import spark_lance

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

WORDS = ("red", "blue", "fox", "sea", "stone", "bird", "a", "cloud")


def rows(seed: int, count: int) -> list[tuple[int, str | None, list[float] | None]]:
    """Return ids, texts and vectors, some of which are null."""
    chance = random.Random(seed)
    return [
        (
            number,
            None if chance.random() < 0.1 else " ".join(chance.choices(WORDS, k=chance.randint(1, 6))),
            None if chance.random() < 0.1 else [chance.uniform(-1, 1) for _ in range(3)],
        )
        for number in range(count)
    ]


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[SparkSession, Path]:
    """A session, and a root with a table: indices of most of its rows, others without, and deleted ones."""
    root = tmp_path_factory.mktemp("lateral")
    session = spark_lance.enable(spark.newSession(), catalog="lateral", root=str(root))
    session.sql(
        "CREATE TABLE lateral.t (id INT, words STRING, v ARRAY<FLOAT>) "
        "TBLPROPERTIES ('v.arrow.fixed-size-list.size' = '3')"
    ).collect()
    schema = session.table("lateral.t").schema
    session.createDataFrame(rows(1, 150), schema).repartition(3).writeTo("lateral.t").append()
    session.sql("CALL lateral.system.create_index('t', 'words', 'INVERTED')").collect()
    session.sql("CALL lateral.system.create_index('t', 'v', 'IVF_FLAT', partitions => 2)").collect()
    session.createDataFrame([(n + 150, w, v) for n, w, v in rows(2, 50)], schema).writeTo(
        "lateral.t"
    ).append()
    session.sql("DELETE FROM lateral.t WHERE id % 7 = 3").collect()
    session.createDataFrame(rows(3, 25), schema).createOrReplaceTempView("queries")
    return session, root


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"phrase": "true"},
        {"filter": "id > 60"},
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ({"operator": "and"}, {"fast_search": "true"})
        ),
    ],
)
def test_words_of_each_row(place: tuple[SparkSession, Path], options: dict[str, str]) -> None:
    session, root = place
    given = json.dumps(options)
    answer = session.sql(
        f"SELECT q.id, f.id, f._score, f.words FROM queries q, "
        f"LATERAL text_search('lateral.t', 'words', q.words, 9, '{given}') f"
    )
    results: dict[int, list[Any]] = {}
    for number, *row in answer.collect():
        results.setdefault(number, []).append(tuple(row))
    table = spark_lance.dataset(str(root / "t.lance"))
    keys: dict[str, Any] = {key: value for key, value in options.items() if key != "filter"}
    for number, words, _ in rows(3, 25):
        if words is None:
            assert number not in results
            continue
        one = table.to_table(
            ["id", "words", "_score"],
            options.get("filter"),
            9,
            full_text_query={"query": words, "column": "words", **keys},
            prefilter=True,
        )
        expected = [(row["id"], row["_score"], row["words"]) for row in one.to_pylist()]
        assert sorted(results.get(number, [])) == sorted(expected)
    assert results


@pytest.mark.parametrize("given", ["vector", "words", "both"])
def test_words_and_vectors_of_each_row(place: tuple[SparkSession, Path], given: str) -> None:
    session, root = place
    vector = "array(0.5, 0.1, -0.2)" if given == "words" else "q.v"
    words = "'red fox'" if given == "vector" else "q.words"
    answer = session.sql(
        "SELECT q.id, f.* FROM queries q, "
        f"LATERAL hybrid_search('lateral.t', 'v', {vector}, 'words', {words}, 6, "
        "map('filter', 'id < 190', 'candidates', '20', 'text_weight', '0.5', 'nprobes', '2')) f"
    )
    results: dict[int, list[Any]] = {}
    for number, *row in answer.drop("v").collect():
        results.setdefault(number, []).append(tuple(row))
    table = spark_lance.dataset(str(root / "t.lance"))
    for number, text, near in rows(3, 25):
        request = [0.5, 0.1, -0.2] if given == "words" else near
        text = "red fox" if given == "vector" else text
        if text is None or request is None:
            assert number not in results
            continue
        one = table.hybrid_search(
            {"column": "v", "q": request, "nprobes": 2},
            {"column": "words", "query": text},
            6,
            columns=["id", "words"],
            filter="id < 190",
            candidates=20,
            text_weight=0.5,
        )
        expected = [tuple(row.values()) for row in one.to_pylist()]
        assert sorted(results[number], key=lambda row: row[0]) == sorted(expected, key=lambda row: row[0])
    assert results


def test_rows_of_a_join_keep_their_columns(place: tuple[SparkSession, Path]) -> None:
    """Nothing of the rows is needed, or all of it, maps included, which have no order."""
    session, _ = place
    alone = session.sql(
        "SELECT count(*) FROM queries q, LATERAL text_search('lateral.t', 'words', q.words, 2) f"
    ).first()
    assert alone is not None
    whole = session.sql(
        "SELECT * FROM (SELECT *, map(id, words) AS m FROM queries) q "
        "LEFT JOIN LATERAL text_search('lateral.t', 'words', q.words, 2) f"
    ).collect()
    texts = [words for _, words, _ in rows(3, 25)]
    assert alone[0] == 2 * sum(words is not None for words in texts)
    assert len(whole) == alone[0] + texts.count(None)
    assert all(row.m == {row[0]: row[1]} for row in whole)
