"""What is read is counted, from mapped files and from stores that answer requests."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance.compat.lance as lance
from spark_lance.io.counters import ReadCounts, count_read, read_counts
from spark_lance.io.store import open_store


@pytest.mark.parametrize("remote", [False, True])
def test_ranges_are_counted(tmp_path: Path, remote: bool) -> None:
    place = f"memory://{uuid.uuid4()}/file" if remote else str(tmp_path / "file")
    store, path = open_store(place)
    store.put(path, bytes(1000))
    before = read_counts()
    store.read_ranges(path, [(0, 10), (20, 30)])
    assert read_counts() - before == ReadCounts(2, 1 if remote else 2, 40)
    before = read_counts()
    store.read(path)
    assert read_counts() - before == ReadCounts(1, 1, 1000)


def test_threads_lose_no_count() -> None:
    before = read_counts()

    def read(_: int) -> None:
        for _ in range(1000):
            count_read(3)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))
    assert read_counts() - before == ReadCounts(8000, 8000, 24000)


def test_a_scan_tells_what_it_read(tmp_path: Path) -> None:
    table = pa.table({"id": range(10_000), "wide": [b"x" * 100] * 10_000})
    ds = lance.write_dataset(table, tmp_path / "t")
    messages: list[lance.ScanStatistics] = []
    ds.scanner(columns=["id"], scan_stats_callback=messages.append).to_table()
    assert (
        sum(batch.num_rows for batch in ds.scanner(scan_stats_callback=messages.append).to_batches())
        == 10_000
    )
    few, all_columns = messages
    assert 0 < few.bytes_read < all_columns.bytes_read
    assert few.all_counts == {"iops": few.iops, "requests": few.requests, "bytes_read": few.bytes_read}
    assert lance.iops_counter() >= few.iops + all_columns.iops
    assert lance.bytes_read_counter() >= few.bytes_read + all_columns.bytes_read
    assert json.dumps(dict(few.all_counts))
    plan = ds.scanner(columns=["id"], filter="id < 10").analyze_plan()
    assert "output_rows=10, rows_scanned=" in plan
    assert "bytes_read=" in plan
