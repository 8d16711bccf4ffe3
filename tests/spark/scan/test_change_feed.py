"""The change feed tells exactly what versions changed: applied to one it gives another."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import spark_lance
from spark_lance.errors import OptionError, SchemaError, VersionNotFoundError
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan.changes import describe, reader
from tests.spark.changing_tables import KINDS, Step, feed, play, read_feed, rows_at, steps
from tests.table.histories import rows

CAME = ("insert", "update_postimage")
DAY = datetime.timedelta(days=1)

every_kind = [(kind, 2, mine) for mine in (True, False) for kind in KINDS]


def check_applied(path: Path, newest: int, *, every: bool = True) -> None:
    """Follow the rows through all versions by the feed, and compare them with what pylance reads.

    Args:
        path: the table.
        newest: its newest version.
        every: end the feed at every version, not just at the newest.
    """
    names = {number: lance.dataset(str(path), version=number).schema.names for number in range(1, newest + 1)}
    for last in range(1 if every else newest, newest + 1):
        changes = feed(path, 1, last)
        state: Counter[tuple[Any, ...]] = Counter()
        for version in range(1, last + 1):
            for change in changes:
                if change["_commit_version"] == version:
                    row = tuple(change[name] for name in names[last])
                    state[row] += 1 if change["_change_type"] in CAME else -1
            assert min(state.values(), default=0) >= 0
            # Columns that were there all the time have the values that they had.
            places = [
                place
                for place, name in enumerate(names[last])
                if all(name in names[v] for v in range(version, last + 1))
            ]
            seen: Counter[tuple[Any, ...]] = Counter()
            for row, count in state.items():
                seen[tuple(row[place] for place in places)] += count
            assert +seen == rows_at(path, version, [names[last][place] for place in places])
        for first in range(2, last + 1, 1 if every else 1 + newest // 4):
            later = [change for change in changes if change["_commit_version"] >= first]
            assert sorted(map(repr, feed(path, first, last))) == sorted(map(repr, later))


def check_kinds(path: Path, newest: int) -> None:
    """Compare what happened to each row, by its stable id, with the ids that pylance reads of versions."""
    before: dict[int, dict[str, Any]] = {}
    columns: set[str] = set()
    changes = feed(path, 1, with_row_id=True)
    for version in range(1, newest + 1):
        table = lance.dataset(str(path), version=version)
        names = [*table.schema.names, "_rowid", "_row_last_updated_at_version"]
        after = {row.pop("_rowid"): row for row in table.to_table(names).to_pylist()}
        stamp = "_row_last_updated_at_version"
        both = before.keys() & after.keys()
        updated = {row for row in both if before[row][stamp] != after[row][stamp]}
        other = {
            row
            for row in both
            if any(before[row].get(name) != after[row][name] for name in table.schema.names)
        }
        found = [change for change in changes if change["_commit_version"] == version]
        ids = {
            kind: [change["_rowid"] for change in found if change["_change_type"] == kind]
            for kind in ("insert", "delete", "update_preimage", "update_postimage")
        }
        assert sorted(ids["insert"]) == sorted(after.keys() - before.keys())
        assert sorted(ids["delete"]) == sorted(before.keys() - after.keys())
        # Nobody sees that a row has other values in a column that is gone (as after a restore).
        if columns <= set(table.schema.names):
            assert sorted(ids["update_preimage"]) == sorted(ids["update_postimage"])
            # An update leaves out rows whose values are the same.
            assert updated & other <= set(ids["update_preimage"]) <= updated
        columns = set(table.schema.names)
        before = after


@settings(max_examples=8)
@given(history=steps(max_size=4), stable=st.booleans())
@example(history=every_kind[: len(KINDS)], stable=True)
@example(history=every_kind[len(KINDS) :], stable=False)
def test_the_feed_applied_to_one_version_gives_another(
    tmp_path_factory: pytest.TempPathFactory, history: list[Step], stable: bool
) -> None:
    path = tmp_path_factory.mktemp("feed") / "t"
    play(path, history, stable=stable)
    newest = lance.dataset(str(path)).version
    check_applied(path, newest, every=len(history) < 4)
    if stable:
        check_kinds(path, newest)


@pytest.mark.slow
@settings(max_examples=60)
@given(history=steps(max_size=9), stable=st.booleans())
def test_the_feed_of_long_histories(
    tmp_path_factory: pytest.TempPathFactory, history: list[Step], stable: bool
) -> None:
    path = tmp_path_factory.mktemp("feed") / "t"
    play(path, history, stable=stable)
    newest = lance.dataset(str(path)).version
    check_applied(path, newest)
    if stable:
        check_kinds(path, newest)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A table with stable row ids: 6 rows, 2 updated, 1 deleted, compacted, 3 more and a column more."""
    place = tmp_path / "t"
    lance.write_dataset(rows(0, 6), place, enable_stable_row_ids=True, max_rows_per_file=3)
    table = spark_lance.dataset(str(place))
    table.update({"b": "'new'"}, where="a in (1, 4)")
    spark_lance.dataset(str(place)).delete("a = 0")
    spark_lance.dataset(str(place)).optimize.compact_files()
    lance.write_dataset(rows(10, 3), place, mode="append")
    spark_lance.dataset(str(place)).add_columns({"c": "a * 10"})
    return place


def told(changes: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("_commit_version", "_change_type", "a", "b")
    return sorted(tuple(change[name] for name in names) for change in changes)


def made_at(path: Path) -> dict[int, datetime.datetime]:
    """Return when versions were committed. (pylance's answers may be a microsecond off.)"""
    versions = spark_lance.dataset(str(path)).versions()
    return {version["version"]: version["timestamp"].astimezone() for version in versions}


def test_spark_reads_the_feed(spark: SparkSession, path: Path) -> None:
    read = spark.read.format("lance").option("readChangeFeed", "true")
    changes = read.option("startingVersion", 2).option("endingVersion", 4).load(str(path))
    assert changes.columns == ["a", "b", "_change_type", "_commit_version", "_commit_timestamp"]
    assert sorted(
        tuple(row) for row in changes.select("_commit_version", "_change_type", "a", "b").collect()
    ) == [
        (2, "update_postimage", 1, "new"),
        (2, "update_postimage", 4, "new"),
        (2, "update_preimage", 1, "b1"),
        (2, "update_preimage", 4, "b4b4b4b4"),
        (3, "delete", 0, ""),
    ]
    seconds = changes.select("_commit_version", f.col("_commit_timestamp").cast("double")).collect()
    results = {number: at.timestamp() for number, at in made_at(path).items()}
    assert all(abs(at - results[version]) < 1 for version, at in seconds)


def test_inserted_rows_after_a_version(spark: SparkSession, path: Path) -> None:
    """Versions that changed rows are skipped, and so is the compaction."""

    def read(**options: int) -> DataFrame:
        return spark.read.format("lance").options(**options).load(str(path))

    appended = read(**{"start-snapshot-id": 1, "end-snapshot-id": 5})
    assert appended.columns == ["a", "b"]
    assert sorted(row.a for row in appended.collect()) == [10, 11, 12]
    everything = read(insertedAfter=0)
    assert everything.where("a > 3").select("c", "a").orderBy("a").collect() == [
        *((None, a) for a in (4, 5)),
        *((None, a) for a in (10, 11, 12)),
    ]
    assert everything.count() == 9
    assert read(insertedAfter=6, endingVersion=6).count() == 0
    for options, told in (
        ({"insertedAfter": 6, "endingVersion": 4}, "insertedAfter = 6 is after the last version, 4"),
        ({"insertedAfter": 0, "endingVersion": 99}, "has no version 99 yet"),
        ({"insertedAfter": 0, "with_row_offset": True}, "cannot be combined with option 'with_row_offset'"),
    ):
        with pytest.raises(PySparkException, match=told):
            read(**options).collect()
    stream = spark.readStream.format("lance").option("insertedAfter", 1).load(str(path))
    writer = stream.writeStream.format("noop").trigger(availableNow=True)
    with pytest.raises(
        PySparkException, match="'insertedAfter' is for batches: use option 'startingVersion'"
    ):
        writer.start().awaitTermination()


def test_the_optimizer_rule_and_counts_find_the_same(spark: SparkSession, path: Path) -> None:
    session = spark_lance.enable(spark.newSession())
    read = session.read.format("lance").option("readChangeFeed", "true").option("startingVersion", 0)
    changes = read.load(str(path))
    assert changes.count() == len(feed(path, 1)) == 30
    kinds = changes.where("_commit_version > 1").groupBy("_change_type").count().collect()
    assert {row[0]: row[1] for row in kinds} == {
        "insert": 3,
        "delete": 1,
        "update_preimage": 10,
        "update_postimage": 10,
    }
    assert changes.where(f.col("b") == "new").select("a").distinct().count() == 2


def test_only_columns_that_are_asked_for_are_read(path: Path) -> None:
    changes = feed(path, 2, columns="b,_commit_version")
    assert list(changes[0]) == ["b", "_commit_version", "_change_type", "_commit_timestamp"]
    counted = feed(path, 1, 5, columns="_commit_version")
    assert Counter(change["_commit_version"] for change in counted) == {1: 6, 2: 4, 3: 1, 5: 3}
    for file in (path / "data").iterdir():
        file.unlink()
    # Only the rows of an update are compared.
    counted = feed(path, 3, 5, columns="_commit_version")
    assert Counter(change["_commit_version"] for change in counted) == {3: 1, 5: 3}


def test_a_filter_may_name_any_column(path: Path) -> None:
    changes = feed(path, 1, filter="a > 3 and _change_type = 'insert' and c is null", columns="a")
    assert [change["a"] for change in changes] == [4, 5, 10, 11, 12]


def test_columns_of_the_last_version_count(path: Path) -> None:
    assert "c" not in feed(path, 1, 5)[0]
    changes = feed(path, 5)
    assert [c["c"] for c in changes if c["_commit_version"] == 5] == [None] * 3
    assert {c["c"] for c in changes if c["_change_type"] == "update_preimage"} == {None}
    assert sorted(c["c"] for c in changes if c["_change_type"] == "update_postimage")[-1] == 120


def test_times_choose_versions(path: Path) -> None:
    result = made_at(path)
    raw = {"startingTimestamp": result[2].isoformat(), "endingTimestamp": result[3].isoformat()}
    options = read_options({"path": str(path), "readChangeFeed": "true", **raw})
    assert told(read_feed(options)) == told(feed(path, 2, 3))
    later = (result[6] + DAY).isoformat()
    early = {"startingTimestamp": (result[1] - DAY).isoformat(), "endingTimestamp": later}
    options = read_options({"path": str(path), "readChangeFeed": "true", **early})
    assert told(read_feed(options)) == told(feed(path, 1))
    options = read_options({"path": str(path), "readChangeFeed": "true", "startingTimestamp": later})
    with pytest.raises(VersionNotFoundError, match="no version as young as"):
        read_feed(options)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, OptionError, "needs one of the options startingVersion and startingTimestamp"),
        ({"startingVersion": "1", "startingTimestamp": "2026-01-01T00:00:00Z"}, OptionError, "needs one of"),
        ({"startingVersion": "latest"}, OptionError, "for streams"),
        ({"startingVersion": "7"}, VersionNotFoundError, "no version 7 yet; its newest is 6"),
        ({"startingVersion": "1", "endingVersion": "9"}, VersionNotFoundError, "no version 9 yet"),
        ({"startingVersion": "3", "endingVersion": "2"}, OptionError, "3, is after the last version, 2"),
        ({"startingVersion": "1", "version": "2"}, OptionError, "names one version"),
        ({"startingVersion": "1", "columns": "a,_rowoffset"}, SchemaError, "counts the rows of one version"),
    ],
)
def test_what_makes_no_range_is_refused(
    path: Path, options: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        read_feed(read_options({"path": str(path), "readChangeFeed": "true", **options}))


def test_a_range_needs_a_feed(spark: SparkSession, path: Path) -> None:
    with pytest.raises(PySparkException, match="add readChangeFeed=true"):
        spark.read.format("lance").option("startingVersion", 1).load(str(path)).count()


def test_versions_that_were_cleaned_up_are_named(path: Path) -> None:
    spark_lance.dataset(str(path)).cleanup_old_versions(retain_versions=3)
    left = sorted(v["version"] for v in lance.dataset(str(path)).versions())
    assert left == [4, 5, 6]
    with pytest.raises(
        VersionNotFoundError, match=r"version 1 to 3 has been cleaned up: .* startingVersion 5 on"
    ):
        feed(path, 1)
    with pytest.raises(VersionNotFoundError, match="version 3 has been cleaned up"):
        feed(path, 4)
    assert len(feed(path, 5)) == 3 + 2 * 8


def test_a_column_of_that_name_is_in_the_way(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"_change_type": [1]}), tmp_path / "t")
    with pytest.raises(SchemaError, match="'_change_type'"):
        feed(tmp_path / "t", 1)


def test_other_types_of_a_column_are_converted_or_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    lance.write_dataset(pa.table({"a": [1, 2], "s": [{"x": 1}, {"x": 2}]}), place)
    lance.write_dataset(pa.table({"a": ["3"], "s": [{"x": 3}]}), place, mode="overwrite")
    assert [change["a"] for change in feed(place, 1, columns="a")] == ["1", "2", "1", "2", "3"]
    lance.write_dataset(pa.table({"a": [4], "s": [7]}), place, mode="overwrite")
    assert [change["a"] for change in feed(place, 3, columns="a")] == [3, 4]
    with pytest.raises(SchemaError, match=r"column 's' is int64, but was struct<x: int64> in version 2"):
        feed(place, 3)


def test_large_fragments_are_cut_and_small_ones_share_a_task(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    lance.write_dataset(rows(0, 20_000), place)
    for number in range(5):
        lance.write_dataset(rows(number, 3), place, mode="append")
    spark_lance.dataset(place).delete("a % 2 = 0")
    raw = {"path": place, "readChangeFeed": "true", "startingVersion": "1"}
    options = read_options(raw)
    assert len(reader(options, describe(options, None)[1], None).partitions()) == 1
    options = read_options({**raw, "partition_bytes": "200k"})
    assert len(reader(options, describe(options, None)[1], None).partitions()) > 5
    assert told(read_feed(options)) == told(feed(place, 1))
    assert len(feed(place, 1)) == 20_015 + 10_000 + 8


def test_a_branch_begins_with_all_its_rows(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    lance.write_dataset(rows(0, 4), place)
    lance.write_dataset(rows(4, 2), place, mode="append")
    lance.dataset(place).create_branch("dev", 2)
    spark_lance.dataset(place).checkout_version(("dev", None)).delete("a = 3")
    assert told(feed(place, 3, branch="dev")) == [(3, "delete", 3, "b3b3b3")]
    assert len(feed(place, 2, branch="dev")) == 7


def test_blobs_of_deleted_rows_can_still_be_read(tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    blob = pa.field("x", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table({"a": [1, 2], "x": [b"one", b"two"]}, pa.schema([pa.field("a", pa.int64()), blob]))
    lance.write_dataset(data, place, data_storage_version="2.1")
    spark_lance.dataset(place).delete("a = 1")
    (gone,) = feed(place, 2, blob_handling="all_binary")
    assert (gone["x"], gone["_change_type"]) == (b"one", "delete")
    assert feed(place, 2)[0]["x"]["size"] == 3


def test_fragments_of_one_version_cannot_be_chosen(path: Path) -> None:
    with pytest.raises(OptionError, match="'fragments' names fragments of one version"):
        feed(path, 1, fragments="0")
