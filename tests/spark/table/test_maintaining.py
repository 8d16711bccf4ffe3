"""Compaction, sorting, Z-order and clean-up by Spark jobs: the same rows, and pylance reads them."""

from __future__ import annotations

import threading
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import (
    ExpressionError,
    LanceError,
    OptionError,
    RetryableConflictError,
    SchemaError,
    UnsupportedFormatError,
)
from spark_lance.io.retry import RetryPolicy
from spark_lance.spark.driver.jobs import map_tasks
from spark_lance.spark.table import maintaining
from spark_lance.spark.table.maintaining import Clustering, is_carried
from spark_lance.table.commits.commit import retry_operation
from spark_lance.table.maintenance.verify import verify
from tests.strategies import canonical

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

BOTH_ROW_IDS = pytest.mark.parametrize(
    "stable", [pytest.param(False, id="addresses", marks=pytest.mark.slow), pytest.param(True, id="stable")]
)
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(start: int, count: int = 100) -> pa.Table:
    """Rows of the types that Spark carries unchanged, and of some that it does not."""
    rng = np.random.default_rng(start)
    numbers = range(start, start + count)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 4, np.float32)), 4)
    halves = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 2).astype(np.float16)), 2)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "x": pa.array([None if i % 11 == 0 else int(i) for i in rng.integers(0, 50, count)], pa.int32()),
            "y": rng.random(count),
            "s": pa.array([None if i % 5 == 0 else f"text {i % 13}" for i in numbers], pa.large_string()),
            "v": vectors,
            "h": halves,
            "big": pa.array([2**64 - 1 - i for i in numbers], pa.uint64()),
            "money": pa.array([Decimal(i) / 4 for i in numbers], pa.decimal128(12, 2)),
            "nanos": pa.array(rng.integers(0, 2**60, count), pa.timestamp("ns")),
            "word": pa.array([f"w{i % 3}" for i in numbers]).dictionary_encode(),
            "st": pa.array([None if i % 4 == 0 else {"a": i, "l": [i] * (i % 3)} for i in numbers]),
        }
    )


def make(path: Path, fragments: int = 6, **options: Any) -> str:
    """Write a table by pylance, of fragments of 100 rows of which some are deleted."""
    for number in range(fragments):
        theirs: Any = lance.write_dataset(rows(number * 100), str(path), mode="append", **options)
    theirs.delete("id % 9 = 4")
    return str(path)


def content(path: str, stable: bool = False) -> dict[str, list[Any]]:
    """Return the columns, ordered by id; through pylance and through us they are the same."""
    theirs: Any = lance.dataset(path)
    theirs.validate()
    names = [*theirs.schema.names, *(LINEAGE if stable else ())]
    ours = spark_lance.dataset(path).to_table(columns=names)
    shown = theirs.to_table(columns=names)
    order = np.argsort(ours["id"].to_numpy(), kind="stable")
    columns = {name: ours[name].to_pylist() for name in names}
    for name in names:
        assert canonical(columns[name]) == canonical(shown[name])
    ds = spark_lance.dataset(path)
    assert not verify(ds.snapshot).damaged
    return {name: [values[place] for place in order] for name, values in columns.items()}


def metrics(frame: Any) -> dict[str, int]:
    (row,) = frame.collect()
    result: dict[str, int] = row.asDict()
    return result


def fragment_rows(path: str) -> list[int]:
    theirs: Any = lance.dataset(path)
    return [fragment.count_rows() for fragment in theirs.get_fragments()]


REWRITTEN = ("fragments_removed", "fragments_added", "files_removed", "files_added")


@BOTH_ROW_IDS
def test_compaction(spark: SparkSession, tmp_path: Path, stable: bool) -> None:
    path = make(tmp_path / "t", enable_stable_row_ids=stable)
    before = content(path, stable)
    table = LanceTable.forPath(spark, path)
    frame = table.optimize(targetRowsPerFragment=150).executeCompaction()
    assert {name: metrics(frame)[name] for name in REWRITTEN} == {
        "fragments_removed": 6,
        "fragments_added": 3,
        "files_removed": 12,
        "files_added": 3,
    }
    sizes = [file.file_size_bytes for f in spark_lance.dataset(path).manifest.fragments for file in f.files]
    (row,) = frame.select("path", "metrics.numFilesRemoved", "metrics.filesAdded.*").collect()
    assert tuple(row) == (path, 6, min(sizes), max(sizes), sum(sizes) / 3, 3, sum(sizes))
    assert content(path, stable) == before
    assert metrics(table.optimize(targetRowsPerFragment=150).executeCompaction())["fragments_removed"] == 0
    theirs: Any = lance.dataset(path)
    theirs.delete("id < 30")
    again = metrics(table.optimize(dataStorageVersion="2.1").executeCompaction())
    assert again["fragments_added"] == 1
    files = [file for f in spark_lance.dataset(path).manifest.fragments for file in f.files]
    assert {(file.file_major_version, file.file_minor_version) for file in files} == {(2, 1)}
    assert content(path)["id"] == [i for i in before["id"] if i >= 30]


def test_compaction_of_some_fragments(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    before = content(path)
    table = LanceTable.forPath(spark, path)
    some = table.optimize().where("id >= 250").where(F.col("id") < 450)
    assert metrics(some.executeCompaction())["fragments_removed"] == 3
    assert fragment_rows(path) == [89, 89, 89, 266]
    assert metrics(table.optimize().where("id = 4").executeCompaction())["fragments_removed"] == 0
    limited = table.optimize(maxSourceFragments=2).executeCompaction()
    assert metrics(limited)["fragments_removed"] == 2
    assert content(path) == before


@pytest.mark.parametrize("defer", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_compaction_takes_indices_along(spark: SparkSession, tmp_path: Path, defer: bool) -> None:
    path = make(tmp_path / "t")
    theirs: Any = lance.dataset(path)
    theirs.create_scalar_index("id", "BTREE")
    LanceTable.forPath(spark, path).optimize(deferIndexRemap=defer).executeCompaction()
    theirs = lance.dataset(path)
    assert theirs.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    assert theirs.to_table(filter="id = 311", columns=["id"])["id"].to_pylist() == [311]


@BOTH_ROW_IDS
def test_sorting(spark: SparkSession, tmp_path: Path, stable: bool) -> None:
    path = make(tmp_path / "t", enable_stable_row_ids=stable)
    before = content(path, stable)
    table = LanceTable.forPath(spark, path)
    result = metrics(table.optimize(targetRowsPerFragment=200).executeSortBy("x", "st.a"))
    assert (result["fragments_removed"], result["files_removed"]) == (6, 12)
    assert content(path, stable) == before
    sorted_rows = spark_lance.dataset(path).to_table(columns=["x", "st"]).to_pylist()
    keys = [(row["x"], row["st"] and row["st"]["a"]) for row in sorted_rows]
    assert keys == sorted(keys, key=lambda key: [(part is not None, part or 0) for part in key])
    assert len(fragment_rows(path)) == result["fragments_added"] >= 3
    assert max(fragment_rows(path)) <= 200


@BOTH_ROW_IDS
def test_z_order(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable: bool) -> None:
    if stable:
        # A thousand bounds of each key take seconds to be planned: the slow case has them.
        monkeypatch.setattr(maintaining, "_RANK_BITS", 5)
    path = make(tmp_path / "t", enable_stable_row_ids=stable)
    table = LanceTable.forPath(spark, path)
    if stable:
        table.setConfig({"lance.row_lineage.spill": "true"})
    before = content(path, stable)
    options = {"targetRowsPerFragment": 40, "dataStorageVersion": "2.1"}
    table.optimize(**options).executeZOrderBy("y", "s", "nanos")
    assert content(path, stable) == before
    assert (spark_lance.dataset(path).manifest.message.reader_feature_flags & 2048 > 0) == stable
    # Rows that are close in one of the columns are in few of the files.
    whole = _spread(spark_lance.dataset(path))
    table.optimize(targetRowsPerFragment=40).executeSortBy("id")
    assert content(path, stable) == before
    assert whole < 0.8 * _spread(spark_lance.dataset(path))


def _spread(ds: Any) -> float:
    """Return how much of the range of y a file covers, on the average."""
    ranges = [np.ptp(f.to_table(columns=["y"])["y"].to_numpy()) for f in ds.get_fragments()]
    return float(np.mean(ranges))


def test_sorting_some_fragments_and_none(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    before = content(path)
    table = LanceTable.forPath(spark, path)
    result = metrics(table.optimize().where("id between 100 and 299").executeSortBy("y"))
    assert (result["fragments_removed"], result["fragments_added"]) == (2, 1)
    assert fragment_rows(path) == [89, 89, 88, 89, 178]
    assert metrics(table.optimize().where("id < 0").executeSortBy("y"))["fragments_removed"] == 0
    assert content(path) == before


def test_refusals(spark: SparkSession, tmp_path: Path) -> None:
    table = LanceTable.forPath(spark, make(tmp_path / "t", 1))
    with pytest.raises(SchemaError, match="nope"):
        table.optimize().executeSortBy("nope")
    with pytest.raises(SchemaError, match="one or more columns"):
        table.optimize().executeZOrderBy()
    with pytest.raises(OptionError, match="nope"):
        table.optimize(nope=1).executeCompaction()
    with pytest.raises(OptionError, match="deferIndexRemap"):
        table.optimize(deferIndexRemap=True).executeSortBy("id")
    with pytest.raises(ExpressionError):
        table.optimize().where("nope = 1").executeCompaction()
    with pytest.raises(OptionError, match="0 or more hours"):
        table.vacuum(-1)
    assert spark_lance.dataset(table.path).version == 2


def test_what_spark_carries() -> None:
    for kind in (
        pa.int8(),
        pa.uint64(),
        pa.float16(),
        pa.timestamp("us"),
        pa.timestamp("us", "UTC"),
        pa.binary(3),
    ):
        assert is_carried(kind)
        assert is_carried(pa.list_(kind, 3))
        assert is_carried(pa.struct([("a", kind)]))
    for kind in (
        pa.timestamp("ns"),
        pa.timestamp("s"),
        pa.decimal256(50, 2),
        pa.date64(),
        pa.time64("ns"),
        pa.null(),
    ):
        assert not is_carried(kind)
        assert not is_carried(pa.list_(kind))
        assert not is_carried(pa.struct([("a", pa.int8()), ("b", kind)]))
    assert not is_carried(pa.dictionary(pa.int8(), pa.string()))
    assert not is_carried(pa.struct([]))


@pytest.mark.parametrize(
    "how",
    [
        "executeCompaction",
        *(pytest.param(by, marks=pytest.mark.slow) for by in ("executeSortBy", "executeZOrderBy")),
    ],
)
def test_beside_writers(
    spark: SparkSession, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer changes the table between the reading and the commit of the first attempts."""
    path = make(tmp_path / "t")
    before = content(path)["id"]
    changes: Any = iter(
        [
            lambda ds: ds.delete("id = 1"),
            lambda ds: ds.update({"x": "-5"}, where="id = 205"),
            lambda ds: spark_lance.write_dataset(rows(5000, 10), path, mode="append"),
        ]
    )

    def disturb(*_: object) -> None:
        change = next(changes, None)
        if change is not None:
            change(spark_lance.dataset(path))

    def disturbed(real: Any) -> Any:
        def run(*arguments: Any, **options: Any) -> Any:
            answer = real(*arguments, **options)
            disturb()
            return answer

        return run

    monkeypatch.setattr(maintaining, "map_tasks", disturbed(map_tasks))
    monkeypatch.setattr(Clustering, "run", disturbed(Clustering.run))
    work = LanceTable.forPath(spark, path).optimize(targetRowsPerFragment=200)
    getattr(work, how)(*(() if how == "executeCompaction" else ("y",)))
    after = content(path)
    expected = [i for i in before if i != 1] + list(range(5000, 5010))
    assert after["id"] == expected
    assert after["x"][expected.index(205)] == -5
    files = {file.path for f in spark_lance.dataset(path).manifest.fragments for file in f.files}
    named = {
        file.path
        for v in spark_lance.dataset(path).versions()
        for f in spark_lance.dataset(path, version=v["version"]).manifest.fragments
        for file in f.files
    }
    assert files <= named == {file.name for file in Path(path, "data").glob("*.lance")}


def test_sorting_gives_up(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "t", 1)
    files = sorted(Path(path, "data").iterdir())
    monkeypatch.setattr(Clustering, "run", lambda self, interleaved: [])

    def refuse(*_: object) -> None:
        raise RetryableConflictError("in the way")

    monkeypatch.setattr(maintaining, "check_parts", refuse)
    monkeypatch.setattr(
        maintaining, "retry_operation", partial(retry_operation, policy=RetryPolicy(attempts=2))
    )
    with pytest.raises(RetryableConflictError):
        LanceTable.forPath(spark, path).optimize().executeSortBy("id")
    assert sorted(Path(path, "data").iterdir()) == files


def test_two_compactions_and_a_sort_at_once(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t")
    before = content(path)
    failures: list[BaseException] = []

    def run(how: str, *columns: str) -> None:
        try:
            getattr(LanceTable.forPath(spark, path).optimize(targetRowsPerFragment=200), how)(*columns)
        except LanceError as error:
            failures.append(error)

    jobs = [("executeCompaction",), ("executeCompaction",), ("executeSortBy", "y")]
    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert content(path) == before


def test_vacuum(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 3)
    table = LanceTable.forPath(spark, path)
    table.tags.create("kept", 2)
    table.optimize().executeCompaction()
    files = sorted(Path(path).rglob("*"))
    doomed = table.vacuum(0, dryRun=True).collect()
    assert {row.kind for row in doomed} == {"manifest", "data", "deletion", "transaction"}
    assert sorted(Path(path).rglob("*")) == files
    for hours in (0, 23.9):
        with pytest.raises(
            OptionError, match=f"retentionHours={hours:g} is less than the 24 hours"
        ) as message:
            table.vacuum(hours)
        assert "pass allowShortRetention=True" in str(message.value)
    assert metrics(table.vacuum(24))["old_versions"] == metrics(table.vacuum())["old_versions"] == 0
    assert sorted(Path(path).rglob("*")) == files
    result = metrics(table.vacuum(0, allowShortRetention=True))
    assert result["old_versions"] == 3
    assert result["bytes_removed"] == sum(row.size_bytes for row in doomed)
    assert result["data_files_removed"] == sum(row.kind == "data" for row in doomed)
    assert [v["version"] for v in spark_lance.dataset(path).versions()] == [2, 5]
    assert spark_lance.dataset(path, version="kept").count_rows() == 200
    assert metrics(table.vacuum())["old_versions"] == 0
    table.setConfig({"a": "b"})
    assert metrics(table.vacuum(retainVersions=1))["old_versions"] == 0
    table.setConfig({"spark_lance.vacuum.min_retention": "3days"})
    with pytest.raises(OptionError, match="retentionHours=71 is less than the 72 hours"):
        table.vacuum(71)
    assert metrics(table.vacuum(72))["old_versions"] == 0
    table.setConfig({"spark_lance.vacuum.min_retention": "1h"})
    with pytest.raises(OptionError, match="less than the 24 hours"):
        table.vacuum(2)
    assert metrics(table.vacuum(retainVersions=1, allowShortRetention=True))["old_versions"] == 3
    assert table.toDF().count() == spark_lance.dataset(path).count_rows() > 0


def test_commits_of_spark_clean_up_by_themselves(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = LanceTable.create(spark).location(path).addColumn("id", "bigint")
    table.property("lance.auto_cleanup.interval", "3").property(
        "lance.auto_cleanup.retain_versions", "2"
    ).execute()
    for start in range(5):
        spark.range(start, start + 1, 1, 1).write.format("lance").mode("append").save(path)
    assert len(spark_lance.dataset(path).versions()) < 6
    assert spark_lance.dataset(path).count_rows() == 5


def test_blobs(spark: SparkSession, tmp_path: Path) -> None:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    path = str(tmp_path / "t")
    for value in (b"one", b"two"):
        spark_lance.write_dataset(pa.table({"b": [value]}, schema=pa.schema([field])), path, mode="append")
    table = LanceTable.forPath(spark, path)
    with pytest.raises(UnsupportedFormatError, match="blobs"):
        table.optimize().executeSortBy("b")
    assert metrics(table.optimize().executeCompaction())["fragments_added"] == 1
    blobs = spark_lance.dataset(path).take_blobs("b", [0, 1])
    assert [blob.read() for blob in blobs if blob is not None] == [b"one", b"two"]
