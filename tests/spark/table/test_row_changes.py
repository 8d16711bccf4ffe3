"""delete, update and merge of `LanceTable`: values, ids, other writers, failures."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    ExpressionError,
    NullValueError,
    OptionError,
    RetryableConflictError,
    SchemaError,
)
from spark_lance.file.blob_references import sidecar_folder
from spark_lance.spark.table import base, changing, merging, row_tasks
from spark_lance.spark.table.row_commits import Attempt
from spark_lance.table.commits import commit_rows

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Three fragments of ten rows with stable row ids."""
    path = str(tmp_path / "t")
    ids = list(range(30))
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "v": pa.array([i * 10 for i in ids], pa.int32()),
            "vec": pa.array([[float(i), 0.5] for i in ids], pa.list_(pa.float32(), 2)),
            "s": pa.array([{"a": i, "b": {"c": str(i)}} if i % 7 else None for i in ids]),
        }
    )
    spark_lance.write_dataset(table, path, max_rows_per_file=10, enable_stable_row_ids=True)
    return path


def metrics(frame: DataFrame) -> dict[str, int]:
    row: dict[str, int] = frame.collect()[0].asDict()
    return row


def rows(path: str, *columns: str, where: str | None = None) -> list[dict[str, Any]]:
    """Return rows by pylance, ordered by id; this package reads the same."""
    names = list(columns) or None
    theirs = lance.dataset(path).to_table(columns=names, filter=where)
    assert spark_lance.dataset(path).to_table(columns=names, filter=where).equals(theirs)
    values: list[dict[str, Any]] = theirs.sort_by("id").to_pylist()
    return values


def data_files(path: str) -> set[str]:
    return {file.name for file in (Path(path) / "data").iterdir()}


def test_delete(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    done = metrics(table.delete("id < 10 or id % 10 = 3"))
    assert (done["num_affected_rows"], done["num_deleted_rows"], done["version"]) == (12, 12, 2)
    assert [row["id"] for row in rows(path)] == [i for i in range(10, 30) if i % 10 != 3]
    assert [f.fragment_id for f in lance.dataset(path).get_fragments()] == [1, 2]
    # Deletion files only, which are small.
    assert 0 < done["bytes_written"] < 2000
    assert len(data_files(path)) == 3
    done = metrics(table.alias("t").delete(F.col("t.id").isin(10, 20)))
    assert (done["num_deleted_rows"], done["version"]) == (2, 3)
    assert metrics(table.delete("id = 1000"))["version"] == 3

    done = metrics(table.delete())
    assert (done["num_deleted_rows"], done["version"]) == (16, 4)
    assert rows(path) == []
    assert metrics(table.delete())["version"] == 4


def test_update_of_columns_and_of_fields_inside(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    before = lance.dataset(path).to_table(with_row_id=True).to_pylist()
    done = metrics(
        table.alias("t").update(
            "id % 10 in (0, 4)",
            {"t.s.b.c": "concat('new ', id)", "v": F.col("t.v") + 1, "vec": "array(v, -1.0)"},
        )
    )
    assert (done["num_updated_rows"], done["num_affected_rows"], done["version"]) == (6, 6, 2)
    expected = []
    for row in before:
        if row["id"] % 10 in (0, 4):
            a = row["s"] and row["s"]["a"]
            row = {**row, "s": {"a": a, "b": {"c": f"new {row['id']}"}}, "vec": [row["v"], -1.0]}
            row["v"] += 1
        expected.append(row)
    after = lance.dataset(path).to_table(with_row_id=True).sort_by("id").to_pylist()
    assert after == expected
    names = ["id", "_row_created_at_version", "_row_last_updated_at_version"]
    lineage = lance.dataset(path).to_table(columns=names).sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in lineage] == [
        (i, 1, 2 if i % 10 in (0, 4) else 1) for i in range(30)
    ]
    assert metrics(table.update(set={"v": "0"}))["num_updated_rows"] == 30
    assert {row["v"] for row in rows(path, "id", "v")} == {0}


def test_columns_without_new_values_keep_what_spark_has_no_type_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    table = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.uint16()),
            "ns": pa.array([1, 2, 2**62 + 1], pa.timestamp("ns")),
            "big": pa.array([Decimal("1" * 60)] * 3, pa.decimal256(60, 0)),
            "half": pa.array([1.0, None, 0.5], pa.float16()),
            "text": pa.array(["a", "b", "a"]).dictionary_encode(),
        }
    )
    lance.write_dataset(table, path)
    LanceTable.forPath(spark, path).update("id >= 2", {"id": "id + 10"})
    source = spark.sql("SELECT 12 AS id, 2.5F AS half").alias("s")
    merge = LanceTable.forPath(spark, path).alias("t").merge(source, "t.id = s.id")
    merge.whenMatchedUpdate(set={"half": "s.half"}).execute()
    got = lance.dataset(path).to_table().sort_by("id")
    assert got["id"].to_pylist() == [1, 12, 13]
    assert got["half"].to_pylist() == [1.0, 2.5, 0.5]
    for name in ("ns", "big", "text"):
        assert got[name].to_pylist() == table[name].to_pylist()
        assert got.schema.field(name).type == table.schema.field(name).type


@pytest.mark.parametrize("ansi", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_values_that_do_not_fit_are_errors(spark: SparkSession, path: str, ansi: str) -> None:
    table = LanceTable.forPath(spark, path)
    files = data_files(path)
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        for column, value in {"v": "id * 1000000000000", "vec": "array(1f)"}.items():
            # The rows of the first fragment fit, so there are files to remove.
            with pytest.raises((PySparkException, SchemaError)):
                table.update("id in (0, 25)", {column: f"if(id = 0, {column}, {value})"})
        with pytest.raises(SchemaError, match="column `v` is int"):
            table.update(set={"v": "'1'"})
        assert metrics(table.update("id = 1", {"v": "2.9D"}))["num_updated_rows"] == 1
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert rows(path, "id", "v", where="id = 1") == [{"id": 1, "v": 2}]
    assert len(data_files(path)) == len(files) + 1
    assert lance.dataset(path).version == 2


def test_errors_before_any_job(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    with pytest.raises(ExpressionError, match=r"'nope = 1'.*no column 'nope'; there are id, v, vec, s"):
        table.delete("nope = 1")
    with pytest.raises(ExpressionError, match="the condition 'id >'"):
        table.delete("id >")
    with pytest.raises(ExpressionError):
        table.delete("id + 1")
    with pytest.raises(OptionError, match="at least one column"):
        table.update("id = 1")
    with pytest.raises(ExpressionError, match="new values"):
        table.update(set={"v": "nope"})
    for name, reason in {
        "x": "no column",
        "s.z": "no field 'z'",
        "v.a": "no field",
        "s.": "not a name",
    }.items():
        with pytest.raises(SchemaError, match=reason):
            table.update(set={name: "1"})
    with pytest.raises(SchemaError, match="set twice"):
        table.update(set={"s.b.c": "'x'", "s.b": "s.b"})
    with pytest.raises(SchemaError, match="and the column that it is in"):
        table.update(set={"s": "s", "s.a": "1"})
    with pytest.raises(SchemaError, match="the fields differ"):
        table.update(set={"s": "named_struct('a', 1)"})
    with pytest.raises(OptionError, match="negative"):
        table.delete("id = 1", conflictRetries=-1)
    assert lance.dataset(path).version == 1


def test_only_needed_columns_are_read(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path).alias("t")
    manifest = table.dataset().manifest
    assert base.read_needed(table, manifest, ["t.v > 1"]).columns == ["v", "_rowaddr"]
    assert base.read_needed(table, manifest, [F.col("s.a") + F.col("ID")]).columns == [
        "id",
        "s",
        "_rowaddr",
    ]
    source = spark.sql("SELECT 1L AS id, 5 AS v").alias("s2")
    merge = table.merge(source, "t.id = s2.id").whenMatchedUpdate(set={"v": "s2.v"})
    plan = merge._plan(manifest).frame._jdf.queryExecution().optimizedPlan().toString()
    scan = next(line for line in plan.splitlines() if "RelationV2" in line)
    assert "id#" in scan
    assert "v#" not in scan


def between(
    monkeypatch: pytest.MonkeyPatch, module: Any, other: Callable[[], object], times: int = 1
) -> list[int]:
    """Let something happen between the work of an operation and its commit; return how often it worked."""
    jobs: list[int] = []
    name = "gather_changes" if hasattr(module, "gather_changes") else "collect_answers"
    real = getattr(module, name)

    def gather(*work: Any) -> Any:
        answers = real(*work)
        jobs.append(len(answers))
        if len(jobs) <= times:
            monkeypatch.setattr(module, name, real)
            other()
            monkeypatch.setattr(module, name, gather)
        return answers

    monkeypatch.setattr(module, name, gather)
    return jobs


def test_changes_of_other_rows_are_taken_in(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LanceTable.forPath(spark, path)
    jobs = between(monkeypatch, changing, lambda: lance.dataset(path).delete("id = 5"))
    assert metrics(table.delete("id = 4"))["version"] == 3
    between(monkeypatch, changing, lambda: lance.dataset(path).update({"v": "7"}, "id = 7"))
    assert metrics(table.update("id = 6", {"v": "6"}))["version"] == 5
    assert len(jobs) == 2
    results = {row["id"]: row["v"] for row in rows(path, "id", "v")}
    assert results == {i: (i if i in (6, 7) else i * 10) for i in range(30) if i not in (4, 5)}


def test_changes_of_the_same_rows_are_run_again(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LanceTable.forPath(spark, path)
    jobs = between(monkeypatch, changing, lambda: lance.dataset(path).update({"v": "v + 1"}, "id = 6"))
    assert metrics(table.update("id = 6", {"v": "v * 2"}))["num_updated_rows"] == 1
    assert len(jobs) == 2
    assert rows(path, "id", "v", where="id = 6") == [{"id": 6, "v": 122}]
    files = data_files(path)
    between(monkeypatch, changing, lambda: spark_lance.dataset(path).delete("id = 6"))
    with pytest.raises(RetryableConflictError):
        table.update("id = 6", {"v": "0"}, conflictRetries=0)
    assert data_files(path) == files
    between(monkeypatch, changing, lambda: spark_lance.dataset(path).delete("id = 7"))
    with pytest.raises(RetryableConflictError):
        table.delete("id = 7", conflictRetries=0)


def upsert(table: LanceTable, frame: DataFrame, condition: str = "t.id = u.id") -> merging.MergeBuilder:
    merge = table.alias("t").merge(frame.alias("u"), condition)
    values = {"id": "u.id", "v": "u.v"}
    return merge.whenMatchedUpdate(set={"v": "t.v + u.v"}).whenNotMatchedInsert(values=values)


@pytest.mark.parametrize(
    ("condition", "other", "jobs"),
    [
        ("t.id = u.id", 100, 2),  # the same key: the second merge finds it
        ("t.id = u.id", 200, 1),  # another key: the filters tell them apart
        pytest.param("t.id <=> u.id", 200, 2, marks=pytest.mark.slow),  # no keys that could be told
    ],
)
def test_racing_merges_do_not_insert_a_key_twice(
    spark: SparkSession,
    path: str,
    monkeypatch: pytest.MonkeyPatch,
    condition: str,
    other: int,
    jobs: int,
) -> None:
    table = LanceTable.forPath(spark, path)

    def theirs() -> None:
        upsert(table, spark.sql(f"SELECT {other}L AS id, 1 AS v")).execute()

    seen = between(monkeypatch, merging, theirs)
    done = metrics(upsert(table, spark.sql("SELECT 100L AS id, 5 AS v"), condition).execute())
    assert len(seen) == jobs
    expected = {100: 6} if other == 100 else {100: 5, other: 1}
    assert {row["id"]: row["v"] for row in rows(path, "id", "v", where="id >= 30")} == expected
    assert len(rows(path, "id", where="id >= 30")) == len(expected)
    assert (done["num_updated_rows"], done["num_inserted_rows"]) == ((1, 0) if other == 100 else (0, 1))


@pytest.mark.parametrize("few", [1 << 21, pytest.param(0, marks=pytest.mark.slow)])
def test_a_source_of_chance_is_evaluated_once(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    """Into a large table rows are merged by a join that looks at the source twice, or at one of many rows."""
    monkeypatch.setattr(merging, "_MANY_ROWS", 0)
    monkeypatch.setattr(merging, "_FEW_ROWS", few)
    source = spark.range(20).selectExpr("id + if(rand() < 0.5, 0, 1000) AS id", "-1 AS v")
    merge = upsert(LanceTable.forPath(spark, path), source)
    done = metrics(merge.execute())
    assert merge._narrow == (few > 0)
    assert done["num_updated_rows"] + done["num_inserted_rows"] == 20
    ids = [row["id"] for row in rows(path, "id")]
    assert len(ids) == len(set(ids)) == 30 + done["num_inserted_rows"]
    assert len({i % 1000 for i in ids}) == 30


def test_merges_of_pylance_do_not_insert_a_key_twice(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def theirs() -> None:
        data = pa.table({"id": pa.array([100], pa.int64()), "v": pa.array([1], pa.int32())})
        merge = lance.dataset(path).merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(data)

    between(monkeypatch, merging, theirs)
    upsert(LanceTable.forPath(spark, path), spark.sql("SELECT 100L AS id, 5 AS v")).execute()
    assert rows(path, "id", "v", where="id >= 30") == [{"id": 100, "v": 6}]


def test_failed_jobs_leave_nothing(spark: SparkSession, path: str) -> None:
    files = data_files(path)
    broken = F.udf(lambda value: value * 250 // (250 - value), "int")
    with pytest.raises(PySparkException, match="ZeroDivisionError"):
        LanceTable.forPath(spark, path, partition_bytes="1k").update(set={"v": broken(F.col("v"))})
    assert data_files(path) == files
    assert lance.dataset(path).version == 1


def test_a_failed_attempt_deletes_its_data_files_and_their_sidecars(path: str) -> None:
    files = set(Path(path).rglob("*"))
    attempt = Attempt(spark_lance.dataset(path), "0123456789abcdef")
    data_file = Path(path, "data", "10110123456789abcdef01.lance")
    sidecar = Path(sidecar_folder(str(data_file)), "0.blob")
    sidecar.parent.mkdir()
    for file in (data_file, sidecar):
        file.write_bytes(b"written before the failure")
    attempt.delete_files()
    assert {file for file in Path(path).rglob("*") if file.is_file()} == {f for f in files if f.is_file()}


def test_an_unknown_outcome_deletes_nothing(
    spark: SparkSession, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: Any, **__: Any) -> None:
        raise CommitOutcomeUnknownError("the answer was lost")

    files = data_files(path)
    monkeypatch.setattr(commit_rows, "commit_operation", unknown)
    with pytest.raises(CommitOutcomeUnknownError):
        LanceTable.forPath(spark, path).update("id = 1", {"v": "0"})
    assert len(data_files(path)) == len(files) + 1


def test_schema_evolution(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path).alias("t")
    source = spark.sql("SELECT 1L AS id, 'x' AS note UNION ALL SELECT 50L, 'y'").alias("s")
    merge = table.merge(source, "t.id = s.id")
    with pytest.raises(SchemaError, match="the source has no 'v'"):
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    done = metrics(merge.withSchemaEvolution().execute())
    assert (done["num_updated_rows"], done["num_inserted_rows"]) == (1, 1)
    results = {row["id"]: (row["v"], row["note"]) for row in rows(path, "id", "v", "note")}
    assert len(results) == 31
    assert (results[1], results[50], results[2]) == ((10, "x"), (None, "y"), (20, None))
    wrong = merge.withSchemaEvolution().whenNotMatchedBySourceUpdate(set={"v": "nope"})
    with pytest.raises(ExpressionError):
        wrong.execute()


@pytest.mark.slow
def test_many_fragments_make_few_new_ones(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t")
    monkeypatch.setattr(base, "_MANY_FRAGMENTS", 8)
    data = pa.table({"id": list(range(200)), "v": [0] * 200})
    spark_lance.write_dataset(data, path, max_rows_per_file=10, enable_stable_row_ids=True)
    table = LanceTable.forPath(spark, path, partition_bytes="1k")
    ids = lance.dataset(path).to_table(columns=["id"], with_row_id=True).to_pylist()
    assert metrics(table.update("id % 10 < 5", {"v": "id + 1"}))["num_updated_rows"] == 100
    assert len(lance.dataset(path).get_fragments()) <= 20 + 4
    got = lance.dataset(path).to_table(with_row_id=True).sort_by("id").to_pylist()
    assert [{"id": row["id"], "_rowid": row["_rowid"]} for row in got] == ids
    assert [row["v"] for row in got] == [i + 1 if i % 10 < 5 else 0 for i in range(200)]
    done = metrics(table.delete("v > 0"))
    assert done["num_deleted_rows"] == 100


def test_new_values_are_written_in_windows(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of many batches, fragments and actions, in windows of few rows and in no order."""
    monkeypatch.setattr(row_tasks, "_WINDOW_ROWS", 4)
    dataset = spark_lance.dataset(path)
    pinned = dataset.snapshot.ref()
    actions = (
        row_tasks.Action("update", ("v",), (0,)),
        row_tasks.Action("insert", ("id", "v"), (1, 0)),
        row_tasks.Action("delete"),
    )
    expected = [5, 3, 25, 14, 7, 1, 2]
    todo: list[tuple[int | None, ...]] = [(0, (i // 10 << 32) + i % 10, -i, None) for i in expected]
    todo += [(1, None, 7, 100 + i) for i in range(6)]
    todo += [(2, (2 << 32) + 9, None, None), (2, 0, None, None)]
    names, kinds = ["action", "address", "v", "id"], [pa.int32(), pa.int64(), pa.int32(), pa.int64()]
    columns = [pa.array(list(c), kind) for c, kind in zip(zip(*todo, strict=True), kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, names=names)
    batches = iter([batch.slice(i, 3) for i in range(0, batch.num_rows, 3)])
    work = row_tasks.ChangeRows(pinned, actions, "ab" * 8, key=("id",))
    (answer,) = list(work(batches))
    assert answer.counts == {"update": 7, "insert": 6, "delete": 2}
    assert answer.doubled is None
    assert answer.keys
    assert [name for name in data_files(path) if "ab" * 8 in name]
    twice = pa.RecordBatch.from_arrays(
        [pa.array([0, 0], pa.int32()), pa.array([3, 3]), pa.array([1, 2], pa.int32())], names=names[:3]
    )
    (answer,) = list(row_tasks.ChangeRows(pinned, actions[:1], "cd" * 8)(iter([twice])))
    assert answer.doubled == 3


def test_instants_and_unset_columns(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    schema = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", "UTC"))]
    )
    spark_lance.write_dataset(pa.table({"id": [1], "at": [None]}, schema=schema), path)
    table = LanceTable.forPath(spark, path).alias("t")
    table.update(set={"at": "date'2024-02-03'"})
    assert rows(path)[0]["at"].replace(tzinfo=None) == datetime(2024, 2, 3)
    source = spark.sql("SELECT 2L AS id").alias("s")
    with pytest.raises(NullValueError, match="null"):
        table.merge(source, "t.id = s.id").whenNotMatchedInsert(values={"at": "now()"}).execute()
    assert len(data_files(path)) == 2
