"""One ETL job of Spark against each kind of store; pylance judges where it can reach the server."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance import LanceTable
from spark_lance.io.store import open_store
from tests.stores.services import Service

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
Rows = dict[int, tuple[str, float]]


def judged(service: Service, uri: str, folder: Path) -> pa.Table:
    """Return the newest version as pylance reads it: on the server, or a copy of all objects if it cannot."""
    if service.has_pylance:
        return lance.dataset(uri, storage_options=service.options).to_table()
    store, root = open_store(uri, service.options)
    copy = folder / uuid.uuid4().hex
    for result in store.list_objects(root, recursive=True):
        target = copy / result.path.removeprefix(f"{root}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.read(result.path))
    return lance.dataset(str(copy)).to_table()


def test_an_etl_job(spark: SparkSession, service: Service, tmp_path: Path) -> None:
    uri = service.uri(f"etl job {uuid.uuid4().hex}")
    options = {f"storage.{name}": str(value) for name, value in service.options.items()}
    expected: Rows = {}

    def frame(start: int, stop: int, note: str) -> Any:
        rows = [(i, f"{note} {i}", i / 2) for i in range(start, stop)]
        expected.update({i: (text, number) for i, text, number in rows})
        return spark.createDataFrame(rows, "id long, note string, value double").repartition(3)

    def check() -> None:
        result = spark.read.format("lance").options(**options).load(uri)
        assert {row.id: (row.note, row.value) for row in result.collect()} == expected
        assert result.count() == len(expected)
        theirs = judged(service, uri, tmp_path).to_pylist()
        assert {row["id"]: (row["note"], row["value"]) for row in theirs} == expected
        assert len(theirs) == len(expected)

    frame(0, 300, "first").write.format("lance").mode("append").options(**options).save(uri)
    check()
    first = dict(expected)
    frame(300, 500, "second").write.format("lance").mode("append").options(**options).save(uri)
    check()
    table = LanceTable.forPath(spark, uri, **options)
    table.delete("id % 10 = 3")
    for key in [key for key in expected if key % 10 == 3]:
        del expected[key]
    check()
    table.update("id < 20", {"note": F.lit("updated"), "value": F.col("value") + 1})
    for key in [key for key in expected if key < 20]:
        expected[key] = ("updated", expected[key][1] + 1)
    check()
    source = frame(490, 520, "merged").alias("s")
    merge = table.alias("t").merge(source, "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    check()
    old = spark.read.format("lance").options(**options).option("version", 1).load(uri)
    assert {row.id: (row.note, row.value) for row in old.collect()} == first
    versions = [row.version for row in table.history().collect()]
    assert sorted(versions) == list(range(1, 6))
    # Another engine appends in between.
    if service.has_pylance:
        more = pa.table({"id": pa.array([900], pa.int64()), "note": ["theirs"], "value": [0.5]})
        lance.write_dataset(more, uri, mode="append", storage_options=service.options)
        expected[900] = ("theirs", 0.5)
        check()
    filtered = spark.read.format("lance").options(**options, filter="id >= 500").load(uri)
    assert {row.id for row in filtered.collect()} == {key for key in expected if key >= 500}
    table.optimize().executeCompaction()
    check()
    table.vacuum(retainVersions=1, allowShortRetention=True).collect()
    check()
    assert len(spark_lance.dataset(uri, storage_options=service.options).versions()) == 1
    store, root = open_store(uri, service.options)
    left = [result.path for result in store.list_objects(root, recursive=True)]
    assert sum("/data/" in path for path in left) <= 4, "vacuum left old files"
