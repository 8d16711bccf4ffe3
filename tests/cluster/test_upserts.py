"""Streams of upserts on a cluster whose tasks are repeated, copied and killed: each log has its rows once."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import datasource

from tests.cluster import jobs
from tests.cluster.driver import Driver
from tests.cluster.jobs import Trouble
from tests.memwal.tables import Rows, make
from tests.spark.streaming.test_upsert import entries, seen

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address, and /proc"),
    pytest.mark.skipif(
        not hasattr(datasource, "DataSourceStreamArrowWriter"),
        reason="Spark 4.0 hands no Arrow batches to streams",
    ),
]


@pytest.mark.parametrize("trouble", [jobs.none, jobs.stuck, jobs.fails_once, jobs.kills_its_executor])
def test_a_micro_batch_is_logged_once(
    driver: Driver, path: str, marks: Path, tmp_path: Path, trouble: Trouble
) -> None:
    make(path, *((key, "base") for key in range(30)), bucket_column="id", num_buckets=4)
    expected: Rows = dict.fromkeys(range(30), "base")
    folder = tmp_path / "stream"
    (folder / "in").mkdir(parents=True)
    for number in range(2):
        batch = dict.fromkeys(range(number * 10, number * 10 + 25), f"batch {number}")
        table = pa.table({"id": pa.array(batch, pa.int64()), "val": list(batch.values())})
        pq.write_table(table, folder / "in" / f"{number}.parquet")
        expected |= batch
        driver.run(jobs.upsert_stream, path, str(folder), jobs.none if number else trouble, str(marks))
        assert seen(Path(path)) == expected
    logged = Counter((shard, epoch) for shard, epoch, _ in entries(Path(path)))
    assert set(logged.values()) == {1}
    assert {epoch for _, epoch in logged} == {"0", "1"}
    written = Counter(mark.name.split(".")[0] for mark in marks.glob("*.written"))
    assert len(written) > 1
