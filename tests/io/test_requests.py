"""docs/sizing.md has the requests of each operation on S3; they are counted here."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.io.cache import CACHE
from spark_lance.io.handle_cache import evict_all
from tests import object_store
from tests.conftest import ROOT
from tests.object_store import Server

pytestmark = pytest.mark.s3
PAGE = (ROOT / "docs" / "sizing.md").read_text()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with object_store.running_server() as server:
        client = object_store.client(server, "s3")
        object_store.make_bucket(client, "bucket")
        client.close()
        yield server


def test_requests_of_each_operation(server: Server) -> None:
    uri = f"s3://bucket/{uuid.uuid4().hex}"
    options = object_store.storage_options(server)
    rows = pa.table({"id": range(100_000), "value": [n * 0.5 for n in range(100_000)]})

    def append(part: pa.Table) -> None:
        spark_lance.write_dataset(part, uri, mode="append", storage_options=options)

    def opened() -> LanceDataset:
        return spark_lance.dataset(uri, storage_options=options)

    for start in range(0, 100_000, 25_000):
        append(rows.slice(start, 25_000))
    opened().create_scalar_index("id", "BTREE")
    steps: list[tuple[str, Callable[[], object]]] = [
        ("open the newest version", lambda: opened().version),
        ("scan two columns of 4 fragments", lambda: opened().to_table().num_rows),
        ("count the rows", lambda: opened().count_rows()),
        ("look up one key by a BTREE", lambda: opened().to_table(filter="id = 77000").num_rows),
        ("append one file", lambda: append(rows.slice(0, 9))),
        ("delete one row", lambda: opened().delete("id = 5")),
        ("compact 5 fragments into 1", lambda: opened().compact_files()),
    ]
    lines = []
    for name, step in steps:
        CACHE.clear()
        evict_all()
        server.forget()
        step()
        counts = [server.count(method, "/") for method in ("GET", "HEAD", "PUT", "POST", "DELETE")]
        lists = server.count("GET", "list-type")
        get, head, put, post, delete = counts
        lines.append(f"| {name} | {get + head - lists} | {lists} | {put + post} | {delete} |")
    table = re.search(r"<!-- requests -->\n(?:\|.*\n){2}((?:\|.*\n)*)", PAGE)
    assert table is not None
    assert table[1].splitlines() == lines, "\n".join(lines)
