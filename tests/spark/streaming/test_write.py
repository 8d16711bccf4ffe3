"""Every micro-batch of a stream lands once, whatever fails on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, datasource
from pyspark.sql import functions as f
from pyspark.sql import types as st

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.spark.options.options import write_options
from spark_lance.spark.streaming import write as stream_write
from tests.conftest import ROOT
from tests.table.histories import rows

needs_limits = pytest.mark.skipif(
    find_spec("pyspark.sql.streaming.datasource") is None, reason="Spark 4.0 and 4.1 set no limits"
)

if not hasattr(datasource, "DataSourceStreamArrowWriter"):
    pytest.skip("Spark 4.0 hands no Arrow batches to streams", allow_module_level=True)

SCHEMA = st.StructType([st.StructField("a", st.LongType()), st.StructField("b", st.StringType())])


def batch(start: int, count: int) -> pa.RecordBatch:
    (result,) = rows(start, count).combine_chunks().to_batches()
    return result


def write(path: Path, number: int, data: Sequence[pa.RecordBatch], mode: str = "append", **more: str) -> None:
    """Write one micro-batch as Spark does: a writer for the tasks, another one for the commit."""
    raw = {"path": str(path), "streamingQueryId": "q", **more}
    messages = []
    for part in data or [None]:
        result = stream_write.stream_writer(
            write_options(raw, mode == "complete"), SCHEMA, mode == "complete"
        )
        messages.append(result.write(iter([] if part is None else [part])))
    committer = stream_write.stream_writer(write_options(raw, mode == "complete"), SCHEMA, mode == "complete")
    committer.commit(list(messages), number)


def keys(path: Path) -> list[int]:
    return sorted(lance.dataset(str(path)).to_table()["a"].to_pylist())


def test_a_batch_lands_once_however_often_it_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, 0, [batch(0, 2), batch(2, 2)])
    files = sorted((path / "data").iterdir())
    write(path, 0, [batch(0, 2), batch(2, 2)])
    assert sorted((path / "data").iterdir()) == files
    write(path, 1, [batch(4, 2)])
    lance.write_dataset(rows(100, 1), path, mode="append")
    spark_lance.dataset(str(path)).cleanup_old_versions(retain_versions=1)
    write(path, 1, [batch(4, 2)])
    assert keys(path) == [0, 1, 2, 3, 4, 5, 100]
    write(path, 1, [batch(6, 1)], streamingQueryId="another")
    assert keys(path)[-2:] == [6, 100]
    result: Any = lance.dataset(str(path)).read_transaction(4)
    assert result.transaction_properties == {
        "lance.streaming.queryId": "another",
        "lance.streaming.epochId": "1",
    }


def test_empty_batches_make_no_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, 0, [])
    assert not path.exists()
    write(path, 1, [batch(0, 1)])
    write(path, 2, [])
    assert lance.dataset(str(path)).version == 1
    write(path, 3, [], "complete")
    assert keys(path) == []


def test_complete_batches_take_the_place_of_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, 0, [batch(0, 3)], "complete")
    write(path, 1, [batch(5, 2)], "complete")
    write(path, 1, [batch(8, 2)], "complete")
    assert keys(path) == [5, 6]


def test_files_are_committed_by_the_plan_that_they_were_written_by(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(path, 0, [batch(0, 2)])
    raw = {"path": str(path), "streamingQueryId": "q"}
    result = stream_write.stream_writer(write_options(raw, False), SCHEMA, False).write(iter([batch(2, 2)]))
    spark_lance.dataset(str(path)).add_columns({"c": "a + 1"})
    stream_write.stream_writer(write_options(raw, False), SCHEMA, False).commit([result], 1)
    table = lance.dataset(str(path)).to_table().sort_by("a").to_pydict()
    assert (table["a"], table["c"]) == ([0, 1, 2, 3], [1, 2, None, None])


def test_the_query_is_known_by_its_checkpoint(tmp_path: Path) -> None:
    path, place = tmp_path / "t", tmp_path / "point"
    place.mkdir()
    (place / "metadata").write_text(json.dumps({"id": "one"}))
    write(path, 0, [batch(0, 1)], streamingQueryId="", checkpointLocation=str(place))
    write(path, 0, [batch(1, 1)], streamingQueryId="", checkpointLocation=f"file:{place}")
    # A new checkpoint in the same place is another query, which numbers its batches anew.
    (place / "metadata").write_text(json.dumps({"id": "two"}))
    write(path, 0, [batch(2, 1)], streamingQueryId="", checkpointLocation=str(place))
    assert keys(path) == [0, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "set it with option 'checkpointLocation'"),
        ({"checkpointLocation": "/no/such/place"}, "cannot be read from its checkpoint /no/such/place"),
        ({"streamingQueryId": "q", "txnAppId": "a", "txnVersion": "1"}, "'txnAppId' is for batch writes"),
    ],
)
def test_what_cannot_land_once_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        stream_write.stream_writer(
            write_options({"path": str(tmp_path / "t"), **options}, False), SCHEMA, False
        )


def test_spark_40_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_write, "DataSourceStreamArrowWriter", None)
    with pytest.raises(OptionError, match="foreachBatch"):
        write(tmp_path / "t", 0, [batch(0, 1)])


def test_columns_that_reads_add_are_not_streamed_into_a_table(tmp_path: Path) -> None:
    write(tmp_path / "t", 0, [batch(0, 3)])
    for name, advice in (
        ("_change_type", "a change feed adds it"),
        ("_fragid", "an option of the read adds it"),
    ):
        wider = st.StructType([*SCHEMA, st.StructField(name, st.StringType())])
        for more in ({}, {"mergeSchema": "true"}):
            options = write_options({"path": str(tmp_path / "t"), "streamingQueryId": "q", **more})
            with pytest.raises(SchemaError, match=advice):
                stream_write.stream_writer(options, wider, False)
    reserved = st.StructType([*SCHEMA, st.StructField("_rowid", st.LongType())])
    with pytest.raises(SchemaError, match="'_rowid' is reserved"):
        stream_write.stream_writer(
            write_options({"path": str(tmp_path / "n"), "streamingQueryId": "q"}), reserved, False
        )


def test_rows_that_do_not_fit_stop_the_query(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"a": ["text"]}), path)
    with pytest.raises(SchemaError, match="'a'"):
        write(path, 0, [batch(0, 1)])


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A table of 6 rows in 3 fragments."""
    place = str(tmp_path / "source")
    lance.write_dataset(rows(0, 6), place, max_rows_per_file=2)
    return place


def run(
    frame: DataFrame, tmp_path: Path, mode: str = "append", format: str = "lance", **options: Any
) -> None:
    out = frame.writeStream.format(format).outputMode(mode).options(**options)
    out = out.option("checkpointLocation", str(tmp_path / "point"))
    out.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()


@needs_limits
@pytest.mark.parametrize("place", [pytest.param("before", marks=pytest.mark.slow), "after"])
def test_a_query_that_fails_in_a_commit_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, source: str, place: str
) -> None:
    from tests.spark.streaming.faulty_source import FaultySource

    # Spark looks for Python sources in the active session.
    spark = spark_lance.enable(spark.newSession())
    spark.dataSource.register(FaultySource)
    frame = spark.readStream.format("lance").option("maxFilesPerTrigger", 1).load(source)
    fault = {"fault.place": place, "fault.batch": "1", "fault.marker": str(tmp_path / "marker")}
    with pytest.raises(PySparkException, match="a fault, as asked for"):
        run(frame, tmp_path, format="lance_faulty", **fault)
    assert keys(tmp_path / "out") == list(range(2 if place == "before" else 4))
    run(frame, tmp_path, format="lance_faulty", **fault)
    assert keys(tmp_path / "out") == list(range(6))
    table: Any = lance.dataset(str(tmp_path / "out"))
    epochs = [
        table.read_transaction(version).transaction_properties["lance.streaming.epochId"]
        for version in range(1, table.version + 1)
    ]
    assert epochs == ["0", "1", "2"]


def test_complete_results_and_refused_updates(spark: SparkSession, tmp_path: Path, source: str) -> None:
    frame = spark.readStream.format("lance").load(source)
    counts = frame.groupBy((f.col("a") % 2).alias("odd")).count()
    run(counts, tmp_path, "complete")
    lance.write_dataset(rows(6, 3), source, mode="append")
    run(counts, tmp_path, "complete")
    table = lance.dataset(str(tmp_path / "out"))
    assert sorted(zip(*table.to_table().to_pydict().values(), strict=True)) == [(0, 5), (1, 4)]
    assert table.version == 2
    with pytest.raises(PySparkException, match="lance does not support Update mode"):
        run(counts, tmp_path / "other", "update")


@needs_limits
def test_foreach_batch_lands_once_by_name_and_number(
    spark: SparkSession, tmp_path: Path, source: str
) -> None:
    def save(frame: DataFrame, number: int) -> None:
        out = frame.write.format("lance").mode("append").option("txnAppId", "copy")
        for _ in range(2):
            out.option("txnVersion", number).save(str(tmp_path / "out"))

    frame = spark.readStream.format("lance").option("maxFilesPerTrigger", 2).load(source)
    out = frame.writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path / "point"))
    out.trigger(availableNow=True).start().awaitTermination()
    assert keys(tmp_path / "out") == list(range(6))
    assert lance.dataset(str(tmp_path / "out")).version == 2


@pytest.mark.slow
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_driver_that_is_killed_in_a_commit_goes_on_where_it_was(
    tmp_path: Path, source: str, place: str
) -> None:
    def job(*more: str) -> int:
        places = (source, str(tmp_path / "out"), str(tmp_path / "point"))
        inherited = os.environ.get("PYTHONPATH")
        path = f"{ROOT}{os.pathsep}{inherited}" if inherited else str(ROOT)
        command = [sys.executable, "-m", "tests.spark.streaming.stream_job", *places, *more]
        # What dies takes its pipes along only when the last worker is gone: hence a file.
        with (tmp_path / "log").open("wb") as log:
            environment = {**os.environ, "PYTHONPATH": path}
            done = subprocess.run(
                command, env=environment, cwd=ROOT, check=False, timeout=600, stdout=log, stderr=log
            )
        return done.returncode

    status = job(place, str(tmp_path / "marker"))
    assert status == -signal.SIGKILL, (tmp_path / "log").read_text()
    assert keys(tmp_path / "out") == list(range(2 if place == "before" else 4))
    assert job() == 0, (tmp_path / "log").read_text()
    assert keys(tmp_path / "out") == list(range(6))
    assert lance.dataset(str(tmp_path / "out")).version == 3
