"""Changing columns by Spark jobs: against a model of rows, and read by pylance."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pyspark.sql.types as t
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import spark_lance
from spark_lance.errors import (
    ExpressionError,
    IncompatibleConflictError,
    LanceError,
    MergeError,
    OptionError,
    SchemaError,
)
from spark_lance.spark.table.table import LanceTable
from tests.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # an example takes too long to be shrunk
Row = dict[str, Any]


def make(path: Path, total: int, fragments: int = 1, **options: Any) -> str:
    """Write a table of ids, texts and vectors."""
    ids = range(total)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "t": [f"t{i}" for i in ids],
            "v": pa.array([[float(i), 0.5] for i in ids], pa.list_(pa.float32(), 2)),
        }
    )
    lance.write_dataset(table, path, max_rows_per_file=-(-total // fragments), **options)
    return str(path)


def rows_of(path: str) -> list[Row]:
    """Return the rows by id; they are the same through pylance and through us."""
    theirs: Any = lance.dataset(path)
    theirs.validate()
    rows: list[Row] = theirs.to_table().to_pylist()
    assert spark_lance.dataset(path).to_table().to_pylist() == rows
    return sorted(rows, key=lambda row: int(row["id"]))


def leftovers(path: str) -> set[str]:
    """Return the data files that no version names, and the records of jobs."""
    named = {
        file.path
        for version in spark_lance.dataset(path).versions()
        for fragment in spark_lance.dataset(path, version=version["version"]).manifest.fragments
        for file in fragment.files
    }
    there = {file.name for file in Path(path, "data").iterdir()}
    return (there - named) | {str(file) for file in Path(path).glob("_column_jobs/*/*")}


class Steps:
    """Draws changes and makes them on a table and on a model of its rows."""

    def __init__(self, spark: SparkSession, path: str, rows: list[Row], data: st.DataObject) -> None:
        self.table = LanceTable.forPath(spark, path)
        self.spark = spark
        self.path = path
        self.rows = {row["id"]: row for row in rows}
        self.data = data
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"c{self.names}"

    def some(self) -> list[int]:
        """Draw ids, those of rows that are not there too."""
        return self.data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=6, unique=True))

    def add_expressions(self) -> None:
        one, two = self.name(), self.name()
        self.table.addColumns(
            {one: F.col("id") * 2, two: "array(v[0], v[1], cast(id as float))"}, vectorSizes={two: 3}
        )
        for key, row in self.rows.items():
            row[one] = key * 2
            row[two] = [*row["v"], float(key)] if row["v"] is not None else [None, None, float(key)]

    def add_function(self) -> None:
        name = self.name()

        def call(batch: pa.RecordBatch) -> pa.RecordBatch:
            texts = [{"n": [len(x)] * len(x), "x": x} if x else None for x in batch["t"].to_pylist()]
            kind = pa.struct([pa.field("n", pa.list_(pa.int16())), pa.field("x", pa.string())])
            return pa.RecordBatch.from_arrays([pa.array(texts, kind)], [name])

        self.table.addColumns(call, inputs=["t"], batchSize=self.data.draw(st.integers(1, 10)))
        for row in self.rows.values():
            row[name] = {"n": [len(row["t"])] * len(row["t"]), "x": row["t"]} if row["t"] else None

    def _values(self, name: str, key: str) -> tuple[Any, dict[int, Any]]:
        ids = self.some()
        values = {i: None if i % 4 == 3 else f"value {i}" for i in ids}
        frame = self.spark.createDataFrame([(i, values[i]) for i in ids], f"id bigint, {name} string")
        if key == "id":
            return frame, values
        addresses = self.table.read(columns=f"id,{key}")
        return addresses.join(frame, "id").select(key, name), values

    def add_join(self) -> None:
        name, key = self.name(), self.data.draw(st.sampled_from(["id", "_rowaddr", "_rowid"]))
        frame, values = self._values(name, key)
        self.table.addColumns(frame, on=key)
        for number, row in self.rows.items():
            row[name] = values.get(number)

    def add_nulls(self) -> None:
        name = self.name()
        self.table.addColumns(t.StructType([t.StructField(name, t.ArrayType(t.StringType()))]))
        for row in self.rows.values():
            row[name] = None

    def update_expressions(self) -> None:
        limit = self.data.draw(st.integers(0, 40))
        self.table.updateColumns({"t": "concat(t, '!')", "v": F.lit(None)}, where=F.col("id") < limit)
        for key, row in self.rows.items():
            if key < limit:
                row["t"] = None if row["t"] is None else row["t"] + "!"
                row["v"] = None

    def update_join(self) -> None:
        key = self.data.draw(st.sampled_from(["id", "_rowaddr", "_rowid"]))
        frame, values = self._values("t", key)
        self.table.updateColumns(frame, on=key)
        for number, row in self.rows.items():
            row["t"] = values.get(number, row["t"])

    def update_function(self) -> None:
        limit = self.data.draw(st.sampled_from([None, 7]))

        def call(batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([pc.binary_join_element_wise(batch["t"], "?", "")], ["t"])

        where = None if limit is None else f"id % {limit} = 1"
        self.table.updateColumns(call, inputs=["t"], where=where, batchSize=3)
        for key, row in self.rows.items():
            if limit is None or key % limit == 1:
                row["t"] = None if row["t"] is None else row["t"] + "?"

    def delete(self) -> None:
        ids = self.some()
        spark_lance.dataset(self.path).delete(f"id in ({', '.join(map(str, ids))})")
        for number in ids:
            self.rows.pop(number, None)

    def append(self) -> None:
        start = max(self.rows, default=0) + 100
        new = pa.table({"id": pa.array([start, start + 1], pa.int64()), "t": ["new", None]})
        spark_lance.write_dataset(new, self.path, mode="append")
        names = spark_lance.dataset(self.path).schema.names
        for number, text in ((start, "new"), (start + 1, None)):
            self.rows[number] = {**dict.fromkeys(names), "id": number, "t": text}

    def compact(self) -> None:
        spark_lance.dataset(self.path).compact_files()

    def take(self) -> str:
        kinds = ["add_expressions", "add_function", "add_join", "update_expressions", "update_join"]
        more = ["add_nulls", "update_function", "delete", "append", "compact"]
        kind = self.data.draw(st.sampled_from([*kinds, *more]))
        getattr(self, kind)()
        return kind


def run_steps(spark: SparkSession, folder: Path, data: st.DataObject, count: int) -> None:
    fragments = data.draw(st.integers(1, 3))
    version = data.draw(st.sampled_from(["2.1", "2.2"]))
    stable = data.draw(st.booleans())
    path = make(folder / "t", 20, fragments, data_storage_version=version, enable_stable_row_ids=stable)
    steps = Steps(spark, path, rows_of(path), data)
    taken = []
    for _ in range(count):
        taken.append(steps.take())
        assert rows_of(path) == [steps.rows[key] for key in sorted(steps.rows)], taken
    assert not leftovers(path)


@settings(max_examples=1, phases=PHASES)
@given(data=st.data())
def test_steps(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    run_steps(spark, tmp_path_factory.mktemp("steps"), data, 3)


@pytest.mark.slow
@settings(max_examples=30, phases=PHASES)
@given(data=st.data())
def test_many_steps(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run_steps(spark, tmp_path_factory.mktemp("steps"), data, 8)


def test_a_column_is_written_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 20, 2, enable_stable_row_ids=True)
    spark_lance.dataset(path).delete("id % 6 = 4")
    table = LanceTable.forPath(spark, path)
    before = Path(path, "data")
    files = {file: file.stat().st_mtime_ns for file in before.iterdir()}
    metrics = table.addColumns({"double": "id * 2"}).collect()[0]
    assert (metrics.version, metrics.num_rows, metrics.num_files_written) == (3, 17, 2)
    assert metrics.bytes_written == sum(file.stat().st_size for file in before.iterdir() if file not in files)
    assert all(file.stat().st_mtime_ns == files[file] for file in files)
    assert [row["double"] for row in rows_of(path)] == [2 * i for i in range(20) if i % 6 != 4]


MARK = pytest.mark.parametrize


@MARK(
    ("change", "error", "match"),
    [
        (
            lambda t: t.addColumns({"w": "row_number() over (order by id)"}),
            ExpressionError,
            "one row at a time",
        ),
        (lambda t: t.addColumns({"w": "sum(id)"}), ExpressionError, "one row at a time"),
        (lambda t: t.addColumns({"w": "nope + 1"}), ExpressionError, "no column 'nope'; there are id, "),
        (lambda t: t.addColumns({"w": "id +"}), ExpressionError, "column 'w'"),
        (lambda t: t.addColumns({"id": "1"}), SchemaError, "exists already"),
        (lambda t: t.addColumns({"w": "v"}, vectorSizes={"w": 3}), SchemaError, "vectors of length 3"),
        (lambda t: t.addColumns({}), OptionError, "no columns"),
        (lambda t: t.addColumns({"w": "1"}, on="id"), OptionError, "on cannot be given with expressions"),
        (lambda t: t.addColumns(t.toDF()), OptionError, "needs `on`"),
        (lambda t: t.addColumns(t.toDF(), on="nope"), SchemaError, "no column 'nope'"),
        (lambda t: t.addColumns(t.toDF(), on="id"), SchemaError, "exists already"),
        (lambda t: t.addColumns(7), OptionError, "cannot be made of int"),
        (lambda t: t.addColumns({"w": "1"}, resume="a/b"), OptionError, "not a name for a job"),
        (lambda t: t.updateColumns({"nope": "1"}), SchemaError, "nope"),
        (lambda t: t.updateColumns({"id": "t"}), SchemaError, "do not fit"),
        (lambda t: t.updateColumns({"id": "1"}, where="nope > 1"), ExpressionError, "nope"),
        (lambda t: t.dropColumns("nope"), SchemaError, "nope"),
        (lambda t: t.renameColumn("id", "t"), SchemaError, "twice"),
        (lambda t: t.alterColumn("id"), OptionError, "nothing|give a type"),
        (lambda t: t.alterColumn("id", type="nonsense"), ExpressionError, "nonsense"),
        (lambda t: t.alterColumn("id", type="string"), SchemaError, "cannot be cast"),
    ],
)
def test_errors_are_found_before_or_after_the_job(
    spark: SparkSession,
    shared: str,
    change: Callable[[LanceTable], object],
    error: type[LanceError],
    match: str,
) -> None:
    table = LanceTable.forPath(spark, shared)
    before = rows_of(shared)
    with pytest.raises(error, match=match):
        change(table)
    assert rows_of(shared) == before
    assert not leftovers(shared)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make(tmp_path_factory.mktemp("shared") / "t", 6, 2)


def test_errors_of_tasks_are_typed(spark: SparkSession, shared: str) -> None:
    table = LanceTable.forPath(spark, shared)
    twice = spark.createDataFrame([(1, "a"), (1, "b")], "id bigint, w string")
    with pytest.raises(MergeError, match="several values for the row with offset 1"):
        table.addColumns(twice, on="id")
    with pytest.raises(SchemaError, match="fragment 99, which the table does not have"):
        table.addColumns(spark.createDataFrame([(99 << 32, "a")], "_rowaddr bigint, w string"), on="_rowaddr")
    with pytest.raises(SchemaError, match="2 new values came back for 3 rows"):
        table.addColumns(lambda batch: batch.slice(1).rename_columns(["w"]), inputs=["id"], schema="w bigint")
    with pytest.raises(SchemaError, match="string in the data and int64"):
        table.addColumns(
            lambda batch: pa.record_batch({"w": ["a"] * batch.num_rows}), inputs=["id"], schema="w bigint"
        )
    assert not leftovers(shared)


def test_a_job_is_resumed(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 20, 4)
    calls, broken = tmp_path / "calls", tmp_path / "broken"
    calls.mkdir()
    broken.touch()

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch["id"][0].as_py()
        if first == 15 and broken.exists():
            raise RuntimeError("out of memory")
        (calls / str(first)).touch(exist_ok=False)
        return pa.RecordBatch.from_arrays([pc.add(batch["id"], 1)], ["next"])

    table = LanceTable.forPath(spark, path)
    add = partial(table.addColumns, call, inputs=["id"], schema="next bigint", resume="next")
    with pytest.raises(PythonException, match="out of memory"):
        add()
    done = {file.name for file in calls.iterdir()}
    assert "15" not in done
    assert len(leftovers(path)) == 2 * len(done)
    with pytest.raises(OptionError, match="was started to"):
        table.addColumns(call, inputs=["id"], schema="other bigint", resume="next")
    # What others do meanwhile counts.
    spark_lance.dataset(path).delete("id = 2")
    spark_lance.write_dataset(spark_lance.dataset(path).to_table().slice(0, 1), path, mode="append")
    for file in calls.iterdir():
        if file.name == "0":
            file.unlink()  # the appended row begins with the same id
            (calls / "00").touch()
    broken.unlink()
    metrics = add().collect()[0]
    assert metrics.num_files_reused == len(done)
    assert metrics.num_files_written == 5 - len(done)
    assert all(row["next"] == row["id"] + 1 for row in rows_of(path))
    assert len(rows_of(path)) == 20
    assert not leftovers(path)
    assert not Path(path, "_column_jobs").exists()


def test_a_job_without_a_name_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 20, 4)

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch["id"][0].as_py() == 15:
            raise RuntimeError("out of memory")
        return batch.rename_columns(["next"])

    with pytest.raises(PythonException, match="out of memory"):
        LanceTable.forPath(spark, path).addColumns(call, inputs=["id"], schema="next bigint")
    assert not leftovers(path)


def append_row(path: str) -> None:
    row = pa.table({"id": pa.array([100], pa.int64()), "t": ["new"]})
    spark_lance.write_dataset(row, path, mode="append")


MEANWHILE: dict[str, Callable[[str], object]] = {
    "append": append_row,
    "delete": lambda path: spark_lance.dataset(path).delete("id in (1, 7)"),
    "delete a fragment": lambda path: spark_lance.dataset(path).delete("id < 5"),
    "compaction": lambda path: spark_lance.dataset(path).compact_files(),
    "update rows": lambda path: spark_lance.dataset(path).update({"id": "id + 50"}, where="id = 3"),
    "update the column": lambda path: spark_lance.dataset(path).update_columns(
        pa.table({"t": ["t3"], "id": pa.array([53], pa.int64())}), "t"
    ),
    "another column": lambda path: spark_lance.dataset(path).add_columns({"other": "id * 3"}),
    "a cast": lambda path: spark_lance.dataset(path).alter_columns(
        {"path": "t", "data_type": pa.large_string()}
    ),
}


# A pair of each kind that goes its own way; the others take too long for every run.
QUICK = {
    ("function", "compaction"),
    ("expression", "update rows"),
    ("join", "append"),
    ("update", "delete"),
}
PAIRS = [
    pytest.param(how, what, marks=() if (how, what) in QUICK else pytest.mark.slow)
    for how in ("function", "expression", "join", "update")
    for what in sorted(MEANWHILE)
]


@MARK(("how", "what"), PAIRS)
def test_what_others_do_meanwhile_is_not_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, what: str
) -> None:
    path = make(tmp_path / "t", 15, 3, enable_stable_row_ids=what == "compaction")
    table = LanceTable.forPath(spark, path)
    before = len(rows_of(path))
    act_once(monkeypatch, lambda: MEANWHILE[what](path))
    if how == "function":
        add = lambda b: pa.RecordBatch.from_arrays([pc.add(b["id"], 1)], ["next"])  # noqa: E731
        table.addColumns(add, inputs=["id"], schema="next bigint")
    elif how == "expression":
        table.addColumns({"next": "id + 1"})
    elif how == "join":
        table.addColumns(spark.range(0, 120).selectExpr("id", "id + 1 AS next"), on="id")
    else:
        table.addColumns({"next": "-1"})
        act_once(monkeypatch, lambda: None)
        table.updateColumns({"next": "id + 1"}, where="id >= 0")
    rows = rows_of(path)
    assert [row["next"] for row in rows] == [row["id"] + 1 for row in rows]
    expected = {"append": before + 1, "delete": before - 2, "delete a fragment": before - 5}
    assert len(rows) == expected.get(what, before)
    if what.startswith("update"):
        assert 53 in {row["id"] for row in rows}
    if what == "another column":
        assert all(row["other"] == row["id"] * 3 for row in rows)
    assert not leftovers(path)


def act_once(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen to the table when the first round of a job has been computed."""
    from spark_lance.spark.table import column_jobs

    original = column_jobs.ColumnJob._compute
    done: list[bool] = []

    def compute(*args: Any) -> Any:
        result = original(*args)
        if not done:
            done.append(True)
            act()
        return result

    monkeypatch.setattr(column_jobs.ColumnJob, "_compute", compute)


def test_one_name_added_twice_at_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "t", 6, 2)
    act_once(monkeypatch, lambda: spark_lance.dataset(path).add_columns({"next": "id * 3"}))
    with pytest.raises(SchemaError, match="exists already"):
        LanceTable.forPath(spark, path).addColumns({"next": "id + 1"})
    assert [row["next"] for row in rows_of(path)] == [3 * i for i in range(6)]
    assert not leftovers(path)


def test_row_addresses_that_have_moved_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 6, 2)
    table = LanceTable.forPath(spark, path)
    old = table.read(columns="_rowaddr,id").selectExpr("_rowaddr", "id + 1 AS next")
    old.first()
    spark_lance.dataset(path).compact_files()
    with pytest.raises(SchemaError, match="they have moved"):
        table.addColumns(old, on="_rowaddr")


def test_rows_that_move_meanwhile_are_not_left_without_values(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "t", 6, 2)
    table = LanceTable.forPath(spark, path)
    values = table.read(columns="_rowaddr,id").selectExpr("_rowaddr", "id + 1 AS next")
    act_once(monkeypatch, lambda: MEANWHILE["update rows"](path))
    with pytest.raises(IncompatibleConflictError, match="have moved rows"):
        table.addColumns(values, on="_rowaddr")
    assert not leftovers(path)


def test_a_hundred_fragments(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 300, 100)
    table = LanceTable.forPath(spark, path)
    assert table.addColumns({"e": "id + 1"}).collect()[0].num_fragments == 100
    values = spark.range(0, 300, 7).selectExpr("id", "id + 1 AS j")
    assert table.addColumns(values, on="id").collect()[0].num_rows == 43
    rows = rows_of(path)
    assert [row["e"] for row in rows] == [i + 1 for i in range(300)]
    assert [row["j"] for row in rows] == [None if i % 7 else i + 1 for i in range(300)]


def test_columns_are_altered(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 6, 2)
    table = LanceTable.forPath(spark, path)
    table.addColumns({"s": "named_struct('a', id, 'b', t)"})
    table.renameColumns({"s.a": "number", "t": "text"})
    table.alterColumn("id", type="int", nullable=True, comment="the key")
    table.alterColumns({"path": "v", "data_type": pa.list_(pa.float64(), 2)})
    table.dropColumns("s.b")
    assert [row["s"] for row in rows_of(path)] == [{"number": i} for i in range(6)]
    schema = table.toDF().schema
    assert schema["id"].dataType == t.IntegerType()
    assert schema["id"].metadata == {"comment": "the key"}
    assert schema.names == ["id", "text", "v", "s"]
    assert lance.dataset(path).schema.field("v").type == pa.list_(pa.float64(), 2)
    table.updateColumns({"id": "id * 1000"})
    with pytest.raises(SchemaError, match="cannot hold"):
        table.alterColumn("id", type="tinyint")
    table.alterColumn("id", nullable=False, comment="")
    assert not table.toDF().schema["id"].metadata
    assert not leftovers(path)


KILLED_JOB = """
import glob, sys, time
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from spark_lance import LanceTable
from spark_lance.spark.java import prepare_environment

prepare_environment()
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
path = sys.argv[1]

def call(batch):
    if len(glob.glob(path + "/_column_jobs/next/[0-9]*.json")) >= 2:
        time.sleep(600)
    return batch.rename_columns(["next"]).set_column(0, "next", pc.add(batch["id"], 1))

LanceTable.forPath(spark, path).addColumns(call, inputs=["id"], schema="next bigint", resume="next")
"""


@pytest.mark.slow
def test_a_killed_job_is_resumed_by_another_process(spark: SparkSession, tmp_path: Path) -> None:
    path = make(tmp_path / "t", 20, 4)
    root = str(ROOT)
    environment = {**os.environ, "PYTHONPATH": root, "SPARK_LOCAL_DIRS": str(tmp_path)}
    log = (tmp_path / "log").open("w+")
    command = [sys.executable, "-c", KILLED_JOB, path]
    with (
        log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True) as job,
    ):
        try:
            deadline = time.monotonic() + 300
            while len(list(Path(path).glob("_column_jobs/next/[0-9]*.json"))) < 2:
                log.seek(0)
                assert job.poll() is None, log.read()
                assert time.monotonic() < deadline, "the job finished no fragment"
                time.sleep(0.1)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)
    table = LanceTable.forPath(spark, path)

    def call(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pc.add(batch["id"], 1)], ["next"])

    metrics = table.addColumns(call, inputs=["id"], schema="next bigint", resume="next").collect()[0]
    assert (metrics.num_files_reused, metrics.num_files_written) == (2, 2)
    assert [row["next"] for row in rows_of(path)] == list(range(1, 21))
    # What was being written when the process died is left to clean-up.
    assert all(name.startswith(".tmp") for name in leftovers(path))
