"""External manifest stores: what every one must do, and how they are named."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_lance.errors import OptionError, StoreError
from spark_lance.io.manifest_dynamodb import DynamoManifestStore
from spark_lance.io.manifest_store import ManifestEntry, ManifestStore
from spark_lance.io.manifest_stores import SqliteManifestStore, split_uri
from spark_lance.io.store import open_store
from tests import object_store
from tests.object_store import (
    Server,
    expired,
    lost_answer,
    make_manifest_table,
    throttled,
)

ROOT = "bucket/some/table"


class ManifestStoreTests:
    """The contract; `manifests` is an empty store."""

    def test_rows(self, manifests: ManifestStore) -> None:
        assert manifests.get(ROOT, 1) is None
        assert manifests.get_latest(ROOT) is None
        rows = {v: ManifestEntry(v, f"{ROOT}/_versions/{v}.manifest", v * 10) for v in (2, 10, 9)}
        for row in rows.values():
            manifests.put_if_absent(ROOT, row)
        manifests.put_if_absent(f"{ROOT}2", ManifestEntry(99, f"{ROOT}2/x"))
        assert manifests.get(ROOT, 9) == rows[9]
        assert manifests.get_latest(ROOT) == rows[10]
        assert manifests.get(f"{ROOT}2", 99) == ManifestEntry(99, f"{ROOT}2/x", None)

    def test_the_first_row_of_a_version_wins(self, manifests: ManifestStore) -> None:
        first = ManifestEntry(1, f"{ROOT}/a", 1)
        manifests.put_if_absent(ROOT, first)
        with pytest.raises(FileExistsError):
            manifests.put_if_absent(ROOT, ManifestEntry(1, f"{ROOT}/b", 2))
        assert manifests.get(ROOT, 1) == first

    def test_only_a_row_can_be_replaced(self, manifests: ManifestStore) -> None:
        with pytest.raises(FileNotFoundError):
            manifests.put_if_exists(ROOT, ManifestEntry(1, f"{ROOT}/a", 1))
        assert manifests.get(ROOT, 1) is None
        manifests.put_if_absent(ROOT, ManifestEntry(1, f"{ROOT}/a", 1))
        manifests.put_if_exists(ROOT, ManifestEntry(1, f"{ROOT}/b", 2))
        assert manifests.get(ROOT, 1) == ManifestEntry(1, f"{ROOT}/b", 2)

    def test_delete(self, manifests: ManifestStore) -> None:
        for version in (1, 2, 3):
            manifests.put_if_absent(ROOT, ManifestEntry(version, f"{ROOT}/a", 1))
        manifests.put_if_absent("bucket/other", ManifestEntry(1, "bucket/other/a", 1))
        manifests.delete(ROOT, 3)
        manifests.delete(ROOT, 3)
        latest = manifests.get_latest(ROOT)
        assert latest is not None
        assert latest.version == 2
        manifests.delete(ROOT)
        assert manifests.get_latest(ROOT) is None
        assert manifests.get_latest("bucket/other") is not None

    def test_one_of_many_wins(self, manifests: ManifestStore) -> None:
        winners: list[tuple[int, int]] = []
        barrier = threading.Barrier(4)

        def run(me: int) -> None:
            for version in range(1, 11):
                barrier.wait()
                try:
                    manifests.put_if_absent(ROOT, ManifestEntry(version, f"{ROOT}/{me}", 1))
                except FileExistsError:
                    continue
                winners.append((version, me))

        threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(version for version, _ in winners) == list(range(1, 11))
        for version, me in winners:
            assert manifests.get(ROOT, version) == ManifestEntry(version, f"{ROOT}/{me}", 1)

    def test_pickles(self, manifests: ManifestStore) -> None:
        manifests.put_if_absent(ROOT, ManifestEntry(1, f"{ROOT}/a", 1))
        again: ManifestStore = pickle.loads(pickle.dumps(manifests))
        assert again.get(ROOT, 1) == ManifestEntry(1, f"{ROOT}/a", 1)


class TestSqlite(ManifestStoreTests):
    @pytest.fixture
    def manifests(self, tmp_path: Path) -> ManifestStore:
        return SqliteManifestStore(str(tmp_path / "deeper" / "m.db"), "s3")

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "m.db").write_bytes(b"something else" * 100)
        with pytest.raises(StoreError, match=r"m\.db failed"):
            SqliteManifestStore(str(tmp_path / "m.db"), "s3").get(ROOT, 1)

    def test_protocols_are_kept_apart(self, tmp_path: Path) -> None:
        file = str(tmp_path / "m.db")
        SqliteManifestStore(file, "s3").put_if_absent(ROOT, ManifestEntry(1, "x"))
        assert SqliteManifestStore(file, "gs").get_latest(ROOT) is None


@pytest.fixture(scope="module")
def server(s3_server: Server) -> Server:
    return s3_server


class TestDynamo(ManifestStoreTests):
    @pytest.fixture
    def client(self, server: Server) -> Iterator[Any]:
        server.forget()
        dynamodb = object_store.client(server, "dynamodb")
        yield dynamodb
        for name in {"manifests", "wrong"}.intersection(dynamodb.list_tables()["TableNames"]):
            dynamodb.delete_table(TableName=name)
        dynamodb.close()

    @pytest.fixture
    def manifests(self, server: Server, client: Any) -> DynamoManifestStore:
        make_manifest_table(client, "manifests")
        return DynamoManifestStore("manifests", server.url, "us-east-1", None, ("a", "hunter2", None))

    def test_the_layout_is_the_references(self, manifests: DynamoManifestStore, client: Any) -> None:
        manifests.put_if_absent(ROOT, ManifestEntry(7, f"{ROOT}/_versions/7.manifest", 5))
        assert client.scan(TableName="manifests")["Items"] == [
            {
                "base_uri": {"S": "some/table"},
                "version": {"N": "7"},
                "path": {"S": "some/table/_versions/7.manifest"},
                "size": {"N": "5"},
                "committer": {"S": "spark_lance"},
            }
        ]

    def test_reads_are_repeated_and_conditions_are_not(
        self, manifests: DynamoManifestStore, server: Server
    ) -> None:
        manifests.get(ROOT, 1)
        server.forget()
        server.fault(throttled, "POST", "GetItem")
        assert manifests.get(ROOT, 1) is None
        assert server.count("POST", "GetItem") == 2
        server.fault(throttled, "POST", "PutItem")
        with pytest.raises(StoreError, match="overloaded"):
            manifests.put_if_absent(ROOT, ManifestEntry(1, f"{ROOT}/a"))
        assert server.count("POST", "PutItem") == 1
        server.fault(lost_answer, "POST", "PutItem")
        with pytest.raises(StoreError, match="connection"):
            manifests.put_if_absent(ROOT, ManifestEntry(1, f"{ROOT}/a"))
        assert manifests.get(ROOT, 1) == ManifestEntry(1, f"{ROOT}/a")

    def test_failures_are_told(self, server: Server, client: Any) -> None:
        make_manifest_table(client, "wrong", "base_uri", "number")
        keys = ("a", "hunter2", None)
        with pytest.raises(StoreError, match="keys must be base_uri"):
            DynamoManifestStore("wrong", server.url, "us-east-1", None, keys).get(ROOT, 1)
        with pytest.raises(StoreError, match="DynamoDB table nowhere does not exist"):
            DynamoManifestStore("nowhere", server.url, "us-east-1", None, keys).get(ROOT, 1)
        make_manifest_table(client, "manifests")
        server.fault(expired, "POST", "GetItem")
        with pytest.raises(StoreError) as caught:
            DynamoManifestStore("manifests", server.url, "us-east-1", None, keys).get(ROOT, 1)
        assert "hunter2" not in str(caught.value)

    def test_secrets_stay_out_of_repr(self) -> None:
        assert "hunter2" not in repr(DynamoManifestStore("manifests", credentials=("a", "hunter2", None)))


def test_a_uri_names_a_dynamodb_table() -> None:
    assert split_uri("s3+ddb://b/p/q?ddbTableName=T") == ("s3://b/p/q", "dynamodb://T")
    assert split_uri("s3://b/p?x=1") == ("s3://b/p?x=1", None)


@pytest.mark.parametrize("query", ["", "?table=T", "?ddbTableName=T&x=1", "?ddbTableName=T&ddbTableName=U"])
def test_a_uri_names_one_dynamodb_table(query: str) -> None:
    with pytest.raises(OptionError, match="exactly one parameter"):
        split_uri(f"s3+ddb://b/p{query}")


@pytest.mark.parametrize("url", ["sqlite:/x", "sqlite://", "sqlite://x.db", "redis://x", "T", "dynamodb://T"])
def test_manifest_stores_that_cannot_be(url: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        open_store(tmp_path, {"manifest_store": url})


def test_a_manifest_store_is_named_by_an_option(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path, {"manifest_store": f"sqlite://{tmp_path}/m.db"})
    assert store.manifests == SqliteManifestStore(f"{tmp_path}/m.db", "file")
