"""What finds rows by a condition in Spark leaves out the fragments that an index knows to be without them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_lance import LanceTable, dataset
from spark_lance.spark.enable import enable

ROWS, PART = 900, 300
KINDS = ["BTREE", "BITMAP"]


@pytest.fixture(params=KINDS)
def path(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A table of three fragments with indices over all of them."""
    data = pa.table(
        {
            "id": range(ROWS),
            "word": [f"w{n % 5}" for n in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(
                pa.array(np.random.default_rng(1).random(ROWS * 2, np.float32)), 2
            ),
        }
    )
    lance.write_dataset(data, str(tmp_path / "t"), max_rows_per_file=PART)
    result = dataset(tmp_path / "t").create_scalar_index("id", request.param)
    result.create_index("v", "IVF_FLAT", num_partitions=2).create_scalar_index("word", "INVERTED")
    return str(tmp_path / "t")


@contextmanager
def only_readable(path: str, fragment: int) -> Iterator[None]:
    """Hide the data files of all other fragments: to open one of them is an error."""
    hidden = []
    for part in dataset(path).manifest.fragments:
        if part.id != fragment:
            hidden += [Path(path) / "data" / file.path for file in part.files]
    for file in hidden:
        file.rename(f"{file}.hidden")
    try:
        yield
    finally:
        for file in hidden:
            Path(f"{file}.hidden").rename(file)


def ids(path: str) -> list[int]:
    rows: list[int] = lance.dataset(path).to_table(columns=["id"])["id"].to_pylist()
    return rows


def test_replace_where(spark: SparkSession, path: str) -> None:
    new = spark.createDataFrame([(400, "new", [0.0, 0.0])], "id long, word string, v array<float>")
    with only_readable(path, 1):
        new.write.format("lance").mode("overwrite").option("replaceWhere", "id = 400").save(path)
    assert ids(path) == [*(n for n in range(ROWS) if n != 400), 400]


def test_delete_and_update(spark: SparkSession, path: str) -> None:
    session = spark.newSession()
    enable(session)
    table = LanceTable.forPath(session, path)
    with only_readable(path, 1):
        assert [row["num_deleted_rows"] for row in table.delete("id = 400").collect()] == [1]
        changed = table.update("id = 401", {"word": "'x'"})
        assert [row["num_updated_rows"] for row in changed.collect()] == [1]
    assert ids(path) == [*(n for n in range(ROWS) if n not in (400, 401)), 401]


def test_searches_with_a_filter(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    with only_readable(path, 1):
        near = table.search([0.5, 0.5], "v", 3, filter="id in (400, 500)", columns=["id"])
        assert sorted(row["id"] for row in near.collect()) == [400, 500]
        queries = spark.createDataFrame([(1, [0.1, 0.2]), (2, [0.8, 0.9])], "id long, vector array<float>")
        batch = table.searchBatch(queries, "v", 3, filter="id = 400", columns=["id"]).collect()
        assert sorted((row["query_id"], row["id"]) for row in batch) == [(1, 400), (2, 400)]
        words = table.textSearch("w0", "word", filter="id in (400, 401)", columns=["id"])
        assert [row["id"] for row in words.collect()] == [400]
