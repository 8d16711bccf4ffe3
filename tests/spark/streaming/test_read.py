"""Streams read what versions bring, once, in batches as large as asked for, across restarts and clean-up."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.errors import FormatError, OptionError, SchemaError, VersionNotFoundError
from spark_lance.spark.options.options import read_options
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.streaming.read import LanceStreamReader
from tests.spark.changing_tables import Step, feed, play, steps
from tests.table.histories import rows

streams = pytest.importorskip("pyspark.sql.streaming.datasource", reason="Spark 4.0 and 4.1 set no limits")


class Query:
    """Asks a reader as Spark does: one reader for a run, the schema found before, offsets kept as JSON."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        self._raw = {"path": str(path), **{name: str(value) for name, value in options.items()}}
        self.offset: dict[str, Any] | None = None
        self.restart()

    def restart(self, **options: Any) -> None:
        """Begin another run of the query, perhaps with other options."""
        self._raw |= {name: str(value) for name, value in options.items()}
        source = LanceDataSource(self._raw)
        self.reader: Any = source.streamReader(source.schema())

    def batches(self, limit: Any = None) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of batches until there is nothing new."""
        if self.offset is None:
            self.offset = self.reader.initialOffset()
        while True:
            start = json.loads(json.dumps(self.offset))
            end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
            if end == start:
                return
            result = self.rows(start, end)
            # A batch that is repeated after a failure is the same.
            assert result == self.rows(start, end)
            self.offset = end
            yield result

    def rows(self, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
        parts = self.reader.partitions(start, json.loads(json.dumps(end)))
        return [row for part in parts for batch in self.reader.read(part) for row in batch.to_pylist()]

    def all(self, limit: Any = None) -> list[int]:
        """Return the keys that the batches bring."""
        return [row["a"] for batch in self.batches(limit) for row in batch]


def append(path: Path | str, start: int, count: int) -> None:
    spark_lance.write_dataset(rows(start, count), str(path), mode="append")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of 10 rows in 5 fragments."""
    place = str(tmp_path / "t")
    lance.write_dataset(rows(0, 10), place, max_rows_per_file=2)
    return place


def test_the_first_batches_are_a_snapshot_and_then_come_new_rows(path: str) -> None:
    query = Query(path, maxFilesPerTrigger=2)
    assert [[row["a"] for row in batch] for batch in query.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert query.all() == []
    for start in (10, 12, 14):
        append(path, start, 2)
    assert [[row["a"] for row in batch] for batch in query.batches()] == [[10, 11, 12, 13], [14, 15]]


@pytest.mark.parametrize(
    ("limit", "sizes"),
    [
        ({"maxRowsPerTrigger": 5}, [4, 4, 2]),
        ({"maxRowsPerTrigger": 1}, [2, 2, 2, 2, 2]),
        ({"maxBytesPerTrigger": "1"}, [2, 2, 2, 2, 2]),
        ({"maxBytesPerTrigger": "1g"}, [10]),
        ({}, [10]),
    ],
)
def test_batches_are_limited_at_fragments(path: str, limit: dict[str, Any], sizes: list[int]) -> None:
    assert [len(batch) for batch in Query(path, **limit).batches()] == sizes
    everything = Query(path, **limit).batches(streams.ReadAllAvailable())
    assert [len(batch) for batch in everything] == [10]


def test_a_restart_in_the_middle_of_a_snapshot_goes_on_there(path: str) -> None:
    query = Query(path, maxFilesPerTrigger=2)
    first = next(query.batches())
    append(path, 10, 2)
    spark_lance.dataset(path).optimize.compact_files()
    query.restart(maxFilesPerTrigger=1)
    assert sorted([row["a"] for row in first] + query.all()) == list(range(12))


def test_compaction_is_no_change_but_moves_the_stream_on(path: str) -> None:
    query = Query(path)
    query.all()
    spark_lance.dataset(path).optimize.compact_files()
    spark_lance.dataset(path).update_config({"k": "v"})
    assert list(query.batches()) == [[]]
    spark_lance.dataset(path).cleanup_old_versions(retain_versions=1)
    append(path, 10, 1)
    assert query.all() == [10]


def test_a_start_may_be_given(path: str) -> None:
    append(path, 10, 2)
    append(path, 12, 2)
    assert Query(path, startingVersion=2).all() == [10, 11, 12, 13]
    assert Query(path, startingVersion=0).all() == list(range(14))
    result: Any = lance.dataset(path).versions()
    # pylance makes its times of floats, which may come out a microsecond late.
    stamp = (result[2]["timestamp"].astimezone() - timedelta(microseconds=1)).isoformat()
    assert Query(path, startingTimestamp=stamp).all() == [12, 13]
    latest = Query(path, startingVersion="latest")
    assert latest.all() == []
    append(path, 14, 1)
    assert latest.all() == [14]
    soon = Query(path, startingVersion=5)
    assert soon.all() == []
    append(path, 15, 1)
    assert soon.all() == [15]
    with pytest.raises(VersionNotFoundError, match="no version 9 yet"):
        Query(path, startingVersion=9).all()


@pytest.mark.parametrize(
    ("option", "value", "error", "text"),
    [
        ("startingVersion", "9", "VersionNotFoundError", "no version 9 yet"),
        ("versionAsOf", "1", "OptionError", "versionAsOf"),
        ("table", "history", "OptionError", "metadata tables cannot be read as streams"),
    ],
)
def test_a_stream_that_cannot_begin_says_why_without_a_stack(
    spark: SparkSession, path: Path, option: str, value: str, error: str, text: str
) -> None:
    append(path, 0, 1)
    stream = spark.readStream.format("lance").option(option, value).load(str(path))
    with TemporaryDirectory() as checkpoint:
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(60)
    message = str(caught.value).partition("=== Streaming Query ===")[0]
    assert f"spark_lance.errors.{error}: " in message
    assert text in message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ("delete", {"ignoreDeletes": [], "ignoreChanges": [], "skipChangeCommits": []}),
        ("update", {"ignoreChanges": [3], "skipChangeCommits": []}),
        ("overwrite", {"ignoreChanges": [70, 71], "skipChangeCommits": []}),
    ],
)
def test_changes_of_rows_stop_the_stream_unless_an_option_says_otherwise(
    path: str, change: str, kept: dict[str, list[int]]
) -> None:
    offsets = []
    query = Query(path)
    query.all()
    if change == "delete":
        spark_lance.dataset(path).delete("a = 3")
    elif change == "update":
        spark_lance.dataset(path).update({"b": "'new'"}, where="a = 3")
    else:
        spark_lance.write_dataset(rows(70, 2), path, mode="overwrite")
    append(path, 10, 1)
    for option in ("ignoreDeletes", "ignoreChanges", "skipChangeCommits"):
        other = Query(path, **{option: "true"})
        other.offset = query.offset
        if option in kept:
            assert other.all() == [*kept[option], 10]
            offsets.append(other.offset)
        else:
            with pytest.raises(OptionError, match=r"version 2 .* updated or deleted rows"):
                other.all()
    assert all(offset == offsets[0] for offset in offsets)
    with pytest.raises(OptionError, match="skipChangeCommits=true"):
        query.all()


def test_a_stream_of_all_changes(path: str) -> None:
    query = Query(path, readChangeFeed="true", maxFilesPerTrigger=1)
    first = [row for batch in query.batches() for row in batch]
    assert {(row["_change_type"], row["_commit_version"]) for row in first} == {("insert", 1)}
    assert len(first) == 10
    spark_lance.dataset(path).delete("a < 3")
    append(path, 10, 1)
    later = [row for batch in query.batches() for row in batch]
    assert later == feed(path, 2)
    assert [(row["_change_type"], row["a"]) for row in later] == [
        ("delete", 0),
        ("delete", 1),
        ("delete", 2),
        ("insert", 10),
    ]


def test_all_changes_of_a_version_come_in_one_batch(path: str) -> None:
    query = Query(path, readChangeFeed="true", maxFilesPerTrigger=1, startingVersion=1)
    assert [len(batch) for batch in query.batches()] == [10]
    spark_lance.dataset(path).update({"b": "'new'"}, where="a % 2 = 0")
    append(path, 10, 1)
    append(path, 11, 1)
    query.restart(maxFilesPerTrigger=12)
    assert [{row["_commit_version"] for row in batch} for batch in query.batches()] == [{2, 3, 4}]
    other = Query(path, readChangeFeed="true", maxRowsPerTrigger=11, startingVersion=2)
    assert [len(batch) for batch in other.batches()] == [11, 1]


@settings(max_examples=10)
@given(
    history=steps(
        "append", "delete", "update", "compact", "rewrite column", "overwrite", "settings", max_size=5
    ),
    stable=st.booleans(),
    limits=st.lists(st.integers(1, 4), min_size=1, max_size=3),
)
def test_batches_of_any_size_bring_the_whole_feed(
    tmp_path_factory: pytest.TempPathFactory, history: Sequence[Step], stable: bool, limits: list[int]
) -> None:
    path = tmp_path_factory.mktemp("stream") / "t"
    play(path, history, stable=stable)
    query = Query(path, readChangeFeed="true", startingVersion=1, columns="a,b")
    results = []
    number = 0
    while True:
        # Every batch is the first of another run.
        query.restart(maxFilesPerTrigger=limits[number % len(limits)])
        number += 1
        batch = next(query.batches(), None)
        if batch is None:
            break
        results += batch
    assert sorted(map(repr, results)) == sorted(map(repr, feed(path, 1, columns="a,b")))


def test_available_now_ends_with_what_there_was(path: str) -> None:
    query = Query(path, maxFilesPerTrigger=3)
    query.reader.prepareForTriggerAvailableNow()
    append(path, 10, 2)
    assert query.all() == list(range(10))
    query.restart()
    assert query.all() == [10, 11]


def test_spark_without_limits_takes_all_there_is(path: str) -> None:
    query = Query(path)
    end = query.reader.latestOffset()
    append(path, 10, 2)
    start = query.reader.initialOffset()
    assert [row["a"] for row in query.rows(start, end)] == list(range(10))
    assert [row["a"] for row in query.rows(end, query.reader.latestOffset())] == [10, 11]


def test_unread_versions_that_were_cleaned_up_stop_the_stream(path: str) -> None:
    query = Query(path)
    query.all()
    append(path, 10, 1)
    append(path, 11, 1)
    spark_lance.dataset(path).cleanup_old_versions(retain_versions=1)
    query.restart()
    with pytest.raises(VersionNotFoundError, match=r"has not read version 2 .* new checkpoint"):
        query.all()


def test_an_append_needs_no_other_version(path: str) -> None:
    query = Query(path)
    query.all()
    append(path, 10, 1)
    spark_lance.dataset(path).cleanup_old_versions(retain_versions=1)
    query.restart()
    assert query.all() == [10]


def test_other_columns_stop_the_stream_until_it_is_loaded_anew(path: str) -> None:
    query = Query(path)
    narrow = Query(path, columns="a", ignoreChanges="true")
    assert query.all() == narrow.all()
    append(path, 10, 1)
    lance.dataset(path).add_columns(pa.field("c", pa.int64()))
    spark_lance.write_dataset(rows(11, 1).append_column("c", pa.array([5])), path, mode="append")
    with pytest.raises(SchemaError, match="changed in version 3: column 'c' was added"):
        query.all()
    query.restart()
    assert [(row["a"], row["c"]) for batch in query.batches() for row in batch] == [(10, None), (11, 5)]
    assert narrow.all() == [10, 11]
    spark_lance.dataset(path).alter_columns({"path": "a", "data_type": pa.int32()})
    with pytest.raises(SchemaError, match="column 'a' was int64, and is int32"):
        narrow.all()


def test_another_table_in_the_place_stops_the_stream(path: str) -> None:
    query = Query(path)
    query.all()
    shutil.rmtree(path)
    lance.write_dataset(rows(0, 3), path)
    query.restart()
    with pytest.raises(FormatError, match="another table"):
        query.all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endingVersion": 3}, "'endingVersion' is for batches"),
        ({"version": 1}, "names one version"),
        ({"startingVersion": 1, "startingTimestamp": "2026-01-01T00:00:00Z"}, "give one of the options"),
    ],
)
def test_options_of_batches_are_refused(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Query(path, **options).all()


@pytest.mark.parametrize("offset", [{}, {"format": 2, "version": 1}, {"format": 1, "version": "x"}])
def test_offsets_of_others_are_refused(path: str, offset: dict[str, Any]) -> None:
    query = Query(path)
    with pytest.raises(FormatError, match="the checkpoint holds"):
        query.reader.latestOffset(offset, None)


def test_a_filter_and_the_reader_of_the_tasks(path: str) -> None:
    options = read_options({"path": path, "filter": "a > 6", "columns": "b"})
    reader = LanceStreamReader(options, LanceDataSource({"path": path, "columns": "b"}).schema())
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, streams.ReadAllAvailable()))
    task: Any = object.__new__(LanceStreamReader)
    task.__dict__.update(reader.__getstate__())
    results = [text for batch in task.read(part) for text in batch.to_pydict()["b"]]
    assert results == rows(7, 3)["b"].to_pylist()


def test_spark_runs_the_stream_and_restarts_it(spark: SparkSession, path: str, tmp_path: Path) -> None:
    # Streams go Spark's own way.
    session = spark_lance.enable(spark.newSession())

    def run(**options: Any) -> list[tuple[int, int]]:
        frame = session.readStream.format("lance").options(**options).load(path).where("a >= 0")
        out = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "point"))
        query = out.trigger(availableNow=True).start(str(tmp_path / "out"))
        query.awaitTermination()
        return [(batch["batchId"], batch["numInputRows"]) for batch in query.recentProgress]

    assert run(maxFilesPerTrigger=3) == [(0, 6), (1, 4)]
    spark_lance.dataset(path).optimize.compact_files()
    append(path, 10, 2)
    assert run() == [(2, 2)]
    values = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["a"] for row in values) == list(range(12))
    spark_lance.dataset(path).delete("a = 3")
    with pytest.raises(PySparkException, match="ignoreDeletes=true"):
        run()
