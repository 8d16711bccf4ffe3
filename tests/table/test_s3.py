"""Tables on S3, with and without DynamoDB: in turns with pylance, in races, with faults of the store."""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as st
import pytest

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import (
    CommitError,
    CommitOutcomeUnknownError,
    LocationInUseError,
    StoreAccessError,
    StoreError,
    TableExistsError,
    TableNotFoundError,
    VersionNotFoundError,
)
from spark_lance.io.cache import CACHE
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import open_store
from spark_lance.spark.options.options import write_options
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.versions import load_latest
from tests import object_store
from tests.object_store import (
    Server,
    cut_short,
    expired,
    lost_answer,
    make_manifest_table,
    never_arrived,
    server_error,
    slow,
    storage_options,
    throttled,
)

_SPARK_ROWS = st.StructType().add("a", st.LongType()).add("b", st.StringType())
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": ["x", "y", "z"]})
Options = dict[str, Any]


@pytest.fixture(autouse=True)
def both(s3_client: str) -> None:
    """Run each test with both clients."""


@pytest.fixture(scope="module")
def services(s3_server: Server) -> Iterator[tuple[Server, Any, Any]]:
    s3, dynamodb = (object_store.client(s3_server, name) for name in ("s3", "dynamodb"))
    object_store.make_bucket(s3)
    make_manifest_table(dynamodb, "versions")
    yield s3_server, s3, dynamodb
    s3.close()
    dynamodb.close()


@pytest.fixture
def server(services: tuple[Server, Any, Any]) -> Server:
    services[0].forget()
    return services[0]


@pytest.fixture
def options(server: Server, monkeypatch: pytest.MonkeyPatch) -> Options:
    # The only place where pylance looks for the endpoint.
    monkeypatch.setenv("DYNAMODB_ENDPOINT", server.url)
    return storage_options(server, client_max_retries="4")


@pytest.fixture(params=["s3", "s3+ddb"])
def uri(request: pytest.FixtureRequest) -> str:
    name = uuid.uuid4().hex
    if request.param == "s3":
        return f"s3://bucket/tables/{name}"
    return f"s3+ddb://bucket/tables/{name}?ddbTableName=versions"


def ours(uri: str, options: Options, version: int | None = None) -> LanceDataset:
    return dataset(uri, version, storage_options=options)


def theirs(uri: str, options: Options, version: int | None = None) -> Any:
    return lance.dataset(uri, version, storage_options=options)


def in_order(table: pa.Table) -> list[dict[str, Any]]:
    return sorted(table.to_pylist(), key=lambda row: (row["a"], row["b"]))


def test_turns_with_pylance(uri: str, options: Options) -> None:
    expected: list[dict[str, Any]] = []

    def check(version: int) -> None:
        for table in (ours(uri, options), theirs(uri, options)):
            assert table.version == version
            assert in_order(table.to_table()) == sorted(expected, key=lambda row: (row["a"], row["b"]))
        history = [entry["version"] for entry in theirs(uri, options).versions()]
        assert history == list(range(1, version + 1))

    def more(start: int) -> pa.Table:
        data = pa.table({"a": pa.array([start, start + 1], pa.int64()), "b": ["n", "m"]})
        expected.extend(data.to_pylist())
        return data

    write_dataset(more(0), uri, storage_options=options)
    check(1)
    lance.write_dataset(more(10), uri, mode="append", storage_options=options)
    check(2)
    write_dataset(more(20), uri, mode="append", storage_options=options)
    check(3)
    theirs(uri, options).delete("a = 10")
    expected[:] = [row for row in expected if row["a"] != 10]
    check(4)
    ours(uri, options).delete(pc.field("a") == 20)
    expected[:] = [row for row in expected if row["a"] != 20]
    check(5)
    expected.clear()
    write_dataset(more(30), uri, mode="overwrite", storage_options=options)
    check(6)
    expected.clear()
    lance.write_dataset(more(40), uri, mode="overwrite", storage_options=options)
    check(7)
    write_dataset(more(50), uri, mode="append", storage_options=options)
    check(8)
    assert ours(uri, options, 3).count_rows() == theirs(uri, options, 3).count_rows() == 6
    with pytest.raises(TableExistsError):
        write_dataset(ROWS, uri, storage_options=options)
    with pytest.raises(VersionNotFoundError):
        ours(uri, options, 99)


def test_nothing_there(uri: str, options: Options) -> None:
    with pytest.raises(TableNotFoundError):
        ours(uri, options)


def test_a_data_file_in_parts(server: Server, options: Options) -> None:
    uri = f"s3://bucket/tables/{uuid.uuid4().hex}"
    noise = random.Random(7)  # which no compression makes small
    values = [noise.randbytes(1008) for _ in range(22_000)]
    data = pa.table({"x": pa.array(values)})
    server.fault(throttled, "PUT", "partNumber=2")
    write_dataset(data, uri, storage_options=options)
    assert server.count("PUT", "partNumber=2") == 2
    assert theirs(uri, options).to_table() == data
    rows = [5, 21_999, 12_000]
    assert ours(uri, options).take(rows).to_pydict() == data.take(rows).to_pydict()


def race(uri: str, options: Options, writers: list[Callable[[], None]]) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(writers))

    def run(write: Callable[[], None]) -> None:
        try:
            barrier.wait()
            write()
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(write,)) for write in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_appenders_race(uri: str, server: Server, options: Options, caplog: pytest.LogCaptureFixture) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    patient = RetryPolicy(attempts=100, base_seconds=0.01, cap_seconds=0.1)
    commits = 4

    def append() -> None:
        table = TableRef(*open_store(uri, options))
        for _ in range(commits):
            latest = load_latest(table)
            operation = append_message([latest.message.fragments[0]])
            commit_operation(table, operation, read_version=latest.version, retry=patient)

    def append_in_pylance() -> None:
        for _ in range(commits):
            lance.write_dataset(ROWS, uri, mode="append", storage_options=options)

    # The first manifests of all are under way at the same time.
    server.fault(slow(0.5), "PUT", "_versions/", times=5)
    with caplog.at_level("INFO", "spark_lance.table.commits.commit"):
        race(uri, options, [append, append, append, append_in_pylance])
    assert "failed: " in caplog.text, "nobody collided, so nothing was tested"
    for table in (ours(uri, options), theirs(uri, options)):
        assert table.version == 1 + 4 * commits
        assert table.count_rows() == 3 * (1 + 4 * commits)
    store, root = open_store(uri, options)
    names = store.list(f"{root}/_versions")
    assert sorted(names) == sorted(ManifestNaming.V2.file_name(v) for v in range(1, 2 + 4 * commits))


FAULTS = [throttled, server_error, never_arrived, lost_answer, slow(0.2)]
PLACES = [
    ("s3", "PUT", "_versions/"),
    ("s3", "PUT", "_transactions/"),
    ("s3", "PUT", "data/"),
    ("s3", "GET", "list-type"),
    ("s3", "GET", "_versions/"),
    ("s3+ddb", "PUT", "_versions/.*manifest$"),
    ("s3+ddb", "POST", "PutItem"),
    ("s3+ddb", "POST", "Query"),
]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("uri", "method", "path"), PLACES, indirect=["uri"])
def test_appends_outlive_faults(
    fault: object_store.Fault, method: str, path: str, server: Server, uri: str, options: Options
) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    CACHE.clear()
    server.fault(fault, method, path)
    dataset = write_dataset(ROWS, uri, mode="append", storage_options=options)
    assert server.is_calm(), "the fault was never met"
    assert dataset.version == 2
    for table in (ours(uri, options), theirs(uri, options)):
        assert (table.version, table.count_rows()) == (2, 6)


def test_a_commit_that_times_out_and_arrives_later(server: Server, options: Options) -> None:
    uri = f"s3://bucket/tables/{uuid.uuid4().hex}"
    write_dataset(ROWS, uri, storage_options=options)
    server.fault(slow(1.5), "PUT", "_versions/")
    dataset = write_dataset(ROWS, uri, mode="append", storage_options={**options, "timeout": "500ms"})
    assert dataset.version == 2
    time.sleep(1.5)
    for table in (ours(uri, options), theirs(uri, options)):
        assert (table.version, table.count_rows()) == (2, 6)


def test_scans_outlive_faults(uri: str, server: Server, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    for fault in (throttled, server_error, never_arrived, cut_short, slow(0.2)):
        server.fault(fault, "GET", "/data/", times=2)
        server.fault(fault, "GET", "/_versions/", times=2)
        assert ours(uri, options).to_table() == ROWS


def test_a_lost_answer_after_which_a_rival_commits(server: Server, options: Options) -> None:
    uri = f"s3://bucket/tables/{uuid.uuid4().hex}"
    write_dataset(ROWS, uri, storage_options=options)

    def lost_to_a_rival(app: Any, environ: Any, start: Any) -> Any:
        # Ours goes through; before we hear of it pylance appends on top.
        object_store.carry_out(app, environ)
        lance.write_dataset(ROWS, uri, mode="append", storage_options=options)
        return throttled(app, environ, start)

    server.fault(lost_to_a_rival, "PUT", "_versions/")
    assert write_dataset(ROWS, uri, mode="append", storage_options=options).version == 2
    assert ours(uri, options).version == theirs(uri, options).version == 3
    assert ours(uri, options).count_rows() == 9


def test_expired_credentials(uri: str, server: Server, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    server.fault(expired, "GET", "bucket", times=999)
    with pytest.raises(StoreAccessError, match="the credentials have expired"):
        ours(uri, options)
    server.forget()
    server.fault(expired, "PUT", "bucket", times=999)
    with pytest.raises(StoreAccessError, match="the credentials have expired"):
        write_dataset(ROWS, uri, mode="append", storage_options=options)
    server.forget()
    assert ours(uri, options).version == 1


def test_credentials_that_expire_during_the_commit(server: Server, options: Options) -> None:
    uri = f"s3://bucket/tables/{uuid.uuid4().hex}"
    table = write_dataset(ROWS, uri, storage_options=options)
    before = len(table.store.list(f"{table.root}/data"))

    def from_now_on(app: Any, environ: Any, start: Any) -> Any:
        for method in ("GET", "PUT", "HEAD", "POST", "DELETE"):
            server.fault(expired, method, "bucket", times=999)
        return expired(app, environ, start)

    server.fault(from_now_on, "PUT", "_versions/")
    with pytest.raises(CommitOutcomeUnknownError, match="Nothing was deleted"):
        write_dataset(ROWS, uri, mode="append", storage_options=options)
    server.forget()
    assert len(table.store.list(f"{table.root}/data")) == before + 1


def test_a_dead_store_ends_the_commit(server: Server, options: Options) -> None:
    uri = f"s3://bucket/tables/{uuid.uuid4().hex}"
    write_dataset(ROWS, uri, storage_options=options)
    server.fault(server_error, "PUT", "_transactions/", times=999)
    with pytest.raises(StoreError, match="the store failed"):
        write_dataset(ROWS, uri, mode="append", storage_options={**options, "client_max_retries": 1})
    server.forget()
    assert ours(uri, options).version == 1
    store, root = open_store(uri, options)
    assert len(store.list(f"{root}/data")) == 1


@pytest.fixture
def staged(services: tuple[Server, Any, Any]) -> Callable[[str, int], None]:
    """Return a function that puts a version back to the state in which it is chosen but not in place."""

    def put_back(uri: str, version: int) -> None:
        base = uri.partition("bucket/")[2].partition("?")[0]
        final = manifest_path(base, version, ManifestNaming.V2)
        path = f"{final}-{uuid.uuid4()}"
        services[1].copy_object(Bucket="bucket", Key=path, CopySource=f"bucket/{final}")
        services[1].delete_object(Bucket="bucket", Key=final)
        services[2].update_item(
            TableName="versions",
            Key={"base_uri": {"S": base}, "version": {"N": str(version)}},
            UpdateExpression="SET #p = :p",
            ExpressionAttributeNames={"#p": "path"},
            ExpressionAttributeValues={":p": {"S": path}},
        )

    return put_back


@pytest.mark.parametrize("uri", ["s3+ddb"], indirect=True)
def test_each_side_finishes_what_the_other_left(
    uri: str, options: Options, staged: Callable[[str, int], None]
) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    lance.write_dataset(ROWS, uri, mode="append", storage_options=options)
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    for opened in (ours, theirs):
        staged(uri, 3)
        assert opened(uri, options).version == 3
        staged(uri, 2)
        assert opened(uri, options, 2).count_rows() == 6
        staged(uri, 3)
        assert len(opened(uri, options).versions()) == 3
    staged(uri, 3)
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    staged(uri, 4)
    lance.write_dataset(ROWS, uri, mode="append", storage_options=options)
    assert ours(uri, options).count_rows() == theirs(uri, options).count_rows() == 15
    store, root = open_store(uri, options)
    assert all(name.endswith(".manifest") for name in store.list(f"{root}/_versions"))


@pytest.mark.parametrize("uri", ["s3+ddb"], indirect=True)
def test_versions_that_pylance_cleaned_up(uri: str, options: Options) -> None:
    for _ in range(3):
        lance.write_dataset(ROWS, uri, mode="append", storage_options=options)
    theirs(uri, options).cleanup_old_versions(older_than=timedelta(0))
    # Their rows are still there.
    assert ours(uri, options).version == 3
    with pytest.raises(VersionNotFoundError, match=r"available: 3\)"):
        ours(uri, options, 1)


@pytest.mark.parametrize("uri", ["s3+ddb"], indirect=True)
def test_a_table_without_rows_gets_them(uri: str, options: Options) -> None:
    plain = uri.replace("s3+ddb", "s3").partition("?")[0]
    lance.write_dataset(ROWS, plain, storage_options=options)
    assert ours(uri, options).version == 1
    assert write_dataset(ROWS, uri, mode="append", storage_options=options).version == 2
    assert theirs(uri, options).count_rows() == 6
    named = {**options, "manifest_store": "dynamodb://versions"}
    assert write_dataset(ROWS, plain, mode="append", storage_options=named).version == 3
    assert theirs(uri, options).version == 3


def test_a_missing_dynamodb_table(options: Options) -> None:
    with pytest.raises(StoreError, match="DynamoDB table nowhere does not exist"):
        ours("s3+ddb://bucket/x?ddbTableName=nowhere", options)


def test_a_new_table_looks_once_at_what_is_there(
    uri: str, options: Options, services: tuple[Server, Any, Any]
) -> None:
    """One request for at most one page of names, and none any more once there is a table."""
    server, s3, _ = services
    root = uri.partition("?")[0].partition("bucket/")[2]
    looks = rf"(?=.*max-keys=1000).*prefix={root.replace('/', '%2F')}%2F(&|$)"
    for number in range(3):
        s3.put_object(Bucket="bucket", Key=f"{root}/year=2020/part-{number}.parquet", Body=b"x")
    for mode in ("append", "overwrite"):
        with pytest.raises(LocationInUseError, match=r"Parquet files .year=2020/part-0.parquet"):
            write_dataset(ROWS, uri, mode, storage_options=options)
    assert s3.list_objects_v2(Bucket="bucket", Prefix=root)["KeyCount"] == 3
    for number in range(3):
        s3.delete_object(Bucket="bucket", Key=f"{root}/year=2020/part-{number}.parquet")
    s3.put_object(Bucket="bucket", Key=f"{root}/", Body=b"")
    s3.put_object(Bucket="bucket", Key=f"{root}/data/left.lance", Body=b"x")
    server.forget()
    write_dataset(ROWS, uri, storage_options=options)
    assert server.count("GET", looks) == 1
    s3.put_object(Bucket="bucket", Key=f"{root}/notes.txt", Body=b"x")
    server.forget()
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    assert server.count("GET", looks) == 0
    assert ours(uri, options).count_rows() == 6


def append_by_dataset(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, mode="append", storage_options=options)


def append_by_sink(uri: str, options: Options) -> None:
    """As the driver of Spark does."""
    given = {"path": uri, **{f"storage.{key}": _as_text(value) for key, value in options.items()}}
    writer = LanceWriter(write_options(given, False), _SPARK_ROWS, False)
    writer.commit([writer.write(iter(ROWS.to_batches()))])


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# An append of few rows by the dataset begins with the newest version that the process knows.
@pytest.mark.parametrize(("append", "listings"), [(append_by_dataset, 1), (append_by_sink, 2)])
def test_an_append_waits_for_few_requests(
    append: Callable[[str, Options], None],
    listings: int,
    options: Options,
    services: tuple[Server, Any, Any],
) -> None:
    """Beside the listings, an append writes one data file, one transaction and one manifest."""
    server = services[0]
    uri = f"s3://bucket/{uuid.uuid4()}"
    for _ in range(4):
        append(uri, options)
    costs = []
    for _ in range(12):
        server.forget()
        append(uri, options)
        costs.append([(method, path) for method, path, _ in server.seen])
    assert ours(uri, options).version == 16
    assert ours(uri, options).count_rows() == 48
    for requests in costs:
        lists = [path for method, path in requests if method == "GET"]
        assert len(lists) == listings, requests
        assert all("list-type=2" in path and "max-keys=8" in path for path in lists)
        puts = [path for method, path in requests if method == "PUT"]
        for folder in ("data", "_transactions", "_versions"):
            assert [f"/{folder}/" in path for path in puts].count(True) == 1
        assert {method for method, _ in requests} == {"GET", "PUT"}, requests


def test_a_table_in_the_place_of_another_is_not_taken_for_it(
    options: Options, services: tuple[Server, Any, Any]
) -> None:
    """Its versions have the same numbers, and this process has written those of the first."""
    _, s3, _ = services
    name = str(uuid.uuid4())
    uri = f"s3://bucket/{name}"
    write_dataset(ROWS, uri, storage_options=options)
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    for result in s3.list_objects_v2(Bucket="bucket", Prefix=name)["Contents"]:
        s3.delete_object(Bucket="bucket", Key=result["Key"])
    other = pa.table({"c": pa.array([1.5, 2.5])})
    for mode in ("create", "append"):
        lance.write_dataset(other, uri, mode=mode, storage_options=options)
    write_dataset(other, uri, mode="append", storage_options=options)
    table = ours(uri, options)
    assert table.version == 3
    assert table.to_table().to_pydict() == {"c": [1.5, 2.5] * 3}
    assert theirs(uri, options).to_table().to_pydict() == {"c": [1.5, 2.5] * 3}


def test_a_refused_commit_leaves_no_transaction_behind(
    options: Options, services: tuple[Server, Any, Any]
) -> None:
    """It was sent while the newest version was looked for."""
    _, s3, _ = services
    name = str(uuid.uuid4())
    uri = f"s3://bucket/{name}"
    write_dataset(ROWS, uri, storage_options=options)
    stale = ours(uri, options)
    write_dataset(ROWS, uri, mode="overwrite", storage_options=options)
    before = s3.list_objects_v2(Bucket="bucket", Prefix=f"{name}/_transactions/")["KeyCount"]
    with pytest.raises(CommitError):
        stale.delete("a > 1")
    assert s3.list_objects_v2(Bucket="bucket", Prefix=f"{name}/_transactions/")["KeyCount"] == before
