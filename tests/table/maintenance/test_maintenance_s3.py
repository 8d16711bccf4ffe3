"""Maintenance of tables on an object store: what it costs in requests, and that it is right."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from tests import object_store
from tests.object_store import Server, storage_options


@pytest.fixture(scope="module")
def server(s3_server: Server) -> Server:
    client = object_store.client(s3_server, "s3")
    object_store.make_bucket(client)
    client.close()
    return s3_server


def test_compaction_and_clean_up(server: Server) -> None:
    options: Any = storage_options(server)
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    for start in range(0, 200, 100):
        data = pa.table({"a": pa.array(range(start, start + 100), pa.int64())})
        write_dataset(data, uri, "append", max_rows_per_file=10, storage_options=options)
    table = dataset(uri, storage_options=options)
    server.forget()
    done = table.compact_files(target_rows_per_fragment=100)
    assert (done.fragments_removed, done.fragments_added) == (20, 2)
    assert server.count("GET", "/data/") == 20, "a small file is fetched at once"
    theirs: Any = lance.dataset(uri, storage_options=options)
    assert theirs.to_table()["a"].to_pylist() == list(range(200))
    server.forget()
    stats = dataset(uri, storage_options=options).cleanup_old_versions(older_than=timedelta(0))
    assert (stats.old_versions, stats.data_files_removed, stats.failed_deletes) == (2, 20, 0)
    assert server.count("POST", "") == 2, "manifests first, and then files, many at a time"
    assert server.count("DELETE", "") == 0
    theirs = lance.dataset(uri, storage_options=options)
    assert theirs.to_table()["a"].to_pylist() == list(range(200))
    assert [version["version"] for version in theirs.versions()] == [3]
    assert theirs.cleanup_old_versions(older_than=timedelta(0)).bytes_removed == 0
