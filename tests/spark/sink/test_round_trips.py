"""What a small append asks of a store: how often, whether its table has one version or many."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from tests import object_store
from tests.object_store import Server
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS

# Other test modules import pylance, which warns when Spark starts its JVM. It is not used in that process.
pytestmark = [pytest.mark.s3, pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with object_store.running_server() as server:
        client = object_store.client(server, "s3")
        object_store.make_bucket(client)
        yield server
        client.close()


@pytest.fixture(scope="module")
def storage(server: Server) -> dict[str, str]:
    given = object_store.storage_options(server)
    return {f"storage.{key}": value for key, value in given.items()}


@pytest.fixture(scope="module")
def driver(spark: SparkSession, storage: dict[str, str]) -> Iterator[SparkSession]:
    session = spark.newSession()
    for key, value in storage.items():
        session.conf.set(f"spark.sql.catalog.far.{key}", value)
    yield spark_lance.enable(session, catalog="far", root=f"s3://bucket/{uuid.uuid4()}")
    spark.newSession()


def asked(server: Server, work: Callable[[], object]) -> list[str]:
    """What some work asks of the store, but for its data file and its manifest: method and folder."""
    server.forget()
    work()
    results = []
    for method, path, _ in server.seen:
        folder = next((name for name in ("data", "_transactions", "_versions") if f"/{name}" in path), path)
        results.append("LIST" if "list-type=2" in path else f"{method} {folder}")
    for own in ("PUT data", "PUT _versions"):
        assert results.count(own) == 1, results
        results.remove(own)
    return results


def test_an_append_by_path(driver: SparkSession, server: Server, storage: dict[str, str]) -> None:
    path = f"s3://bucket/{uuid.uuid4()}"
    row = driver.range(1).selectExpr("id", "cast(id AS string) AS name")
    append = row.write.format("lance").options(**storage).mode("append").save
    append(path)
    costs = [asked(server, lambda: append(path)) for _ in range(5)]
    # The transaction is sent while the second listing, of eight names, is on its way.
    assert all(sorted(cost) == ["LIST", "LIST", "PUT _transactions"] for cost in costs), costs


def test_an_insert_by_name(driver: SparkSession, server: Server) -> None:
    driver.sql("CREATE TABLE far.t (id bigint, name string)")
    insert = "INSERT INTO far.t VALUES (1, 'x')"
    driver.sql(insert)
    costs = [asked(server, lambda: driver.sql(insert)) for _ in range(5)]
    # Before the append, the name is looked for: in the list of tables, in its folder, and for its columns.
    assert all(sorted(cost) == ["LIST"] * 5 + ["PUT _transactions"] for cost in costs), costs


@pytest.mark.skipif(not COUNTS_WITHOUT_COLUMNS, reason="streams need Spark 4.1")
def test_a_micro_batch(driver: SparkSession, server: Server, storage: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = driver.readStream.schema("id bigint, name string").json(str(tmp_path / "in"))
    query = (
        rows.writeStream.format("lance")
        .options(**storage)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start(f"s3://bucket/{uuid.uuid4()}")
    )

    def batch(number: int) -> None:
        text = json.dumps({"id": number, "name": "x"})
        (tmp_path / "in" / f"{number}.json").write_text(text)
        query.processAllAvailable()

    try:
        for number in range(2):
            batch(number)
        costs = [asked(server, partial(batch, number)) for number in range(2, 6)]
    finally:
        query.stop()
    assert all(sorted(cost) == ["LIST", "LIST", "PUT _transactions"] for cost in costs), costs
