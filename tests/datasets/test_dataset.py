"""The Spark-free dataset: writing modes, versions, scans, limits, clean-up after failures."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import (
    CommitOutcomeUnknownError,
    ExpressionError,
    FormatError,
    IncompatibleConflictError,
    OptionError,
    SchemaError,
    TableExistsError,
    TableNotFoundError,
    VersionNotFoundError,
)
from spark_lance.io.store import open_store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import commit_write, find_latest, plan_write
from spark_lance.table.reading.scan import Scan, filter_columns
from spark_lance.table.writing.write import write_fragments
from tests.conftest import ROOT


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def numbers(start: int, stop: int) -> pa.Table:
    return pa.table({"id": np.arange(start, stop), "t": [f"row {i}" for i in range(start, stop)]})


def data_files(path: str) -> set[str]:
    return {file.name for file in (Path(path) / "data").glob("*")}


def test_create_append_overwrite_and_time_travel(path: str) -> None:
    spark_lance.write_dataset(numbers(0, 10), path)
    spark_lance.write_dataset(numbers(10, 15), path, "append")
    ds = spark_lance.write_dataset(pa.table({"z": [1.5]}), path, "overwrite")
    assert ds.version == ds.latest_version == 3
    assert ds.to_table().to_pydict() == {"z": [1.5]}
    assert spark_lance.dataset(path, 2).to_table()["id"].to_pylist() == list(range(15))
    assert ds.checkout_version(1).count_rows() == 10
    assert [row["version"] for row in ds.versions()] == [1, 2, 3]
    stamps = [row["timestamp"] for row in ds.versions()]
    assert stamps == sorted(stamps)


def test_each_write_mode_where_it_cannot_work(path: str) -> None:
    with pytest.raises(TableNotFoundError, match="no Lance table"):
        spark_lance.dataset(path)
    with pytest.raises(OptionError, match="upsert"):
        spark_lance.write_dataset(numbers(0, 1), path, "upsert")
    spark_lance.write_dataset(numbers(0, 1), path)
    with pytest.raises(TableExistsError):
        spark_lance.write_dataset(numbers(0, 1), path)
    with pytest.raises(VersionNotFoundError, match="version 9"):
        spark_lance.dataset(path, version=9)
    assert len(data_files(path)) == 1


def test_files_are_cut_by_rows(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 25), path, max_rows_per_file=10)
    assert [f.count_rows() for f in ds.get_fragments()] == [10, 10, 5]
    assert [f.fragment_id for f in ds.get_fragments()] == [0, 1, 2]
    assert ds.get_fragments()[2].to_table()["id"].to_pylist() == list(range(20, 25))
    assert ds.to_table(with_row_address=True)["_rowaddr"].to_pylist()[10] == 1 << 32


def test_files_are_cut_by_bytes(path: str) -> None:
    table = pa.table({"v": pa.array(np.zeros(3_000_000))})
    batches = table.to_batches(max_chunksize=100_000)
    ds = spark_lance.write_dataset(batches, path, schema=table.schema, max_bytes_per_file=9_000_000)
    assert len(ds.get_fragments()) > 1
    assert ds.count_rows() == 3_000_000


def test_every_accepted_kind_of_data(path: str) -> None:
    table = numbers(0, 3)
    spark_lance.write_dataset(table, path)
    spark_lance.write_dataset(table.to_batches()[0], path, "append")
    spark_lance.write_dataset(table.to_reader(), path, "append")
    spark_lance.write_dataset(table.to_pandas(), path, "append")
    spark_lance.write_dataset(iter(table.to_batches()), path, "append", schema=table.schema)
    spark_lance.write_dataset(iter(table.to_batches()), path, "append")
    assert spark_lance.dataset(path).count_rows() == 18
    with pytest.raises(OptionError, match="schema"):
        spark_lance.write_dataset(iter([]), path, "append")


def test_an_empty_table_can_be_written_and_read(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 0), path)
    assert ds.to_table().schema == numbers(0, 0).schema
    assert ds.count_rows() == 0
    assert list(ds.to_batches()) == []
    assert spark_lance.write_dataset(numbers(0, 0), path, "append").version == 1


@given(limit=st.none() | st.integers(0, 40), offset=st.integers(0, 40), batch_size=st.integers(1, 9))
def test_limit_and_offset(
    tmp_path_factory: pytest.TempPathFactory, limit: int, offset: int, batch_size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "limits.lance"
    if not path.exists():
        spark_lance.write_dataset(numbers(0, 30), path, max_rows_per_file=7)
    ds = spark_lance.dataset(path)
    expected = list(range(30))[offset:][:limit]
    assert ds.to_table(limit=limit, offset=offset)["id"].to_pylist() == expected
    batches = list(ds.to_batches(limit=limit, offset=offset, batch_size=batch_size))
    assert [v for batch in batches for v in batch.column("id").to_pylist()] == expected
    assert all(batch.num_rows <= batch_size for batch in batches)


def test_batches_are_bounded_by_bytes(path: str) -> None:
    rows = 20_000
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 128, np.float32)), 128)
    spark_lance.write_dataset(pa.table({"id": np.arange(rows), "v": vectors}), path)
    sizes = [batch.nbytes for batch in spark_lance.dataset(path).to_batches(batch_bytes=1 << 20)]
    assert len(sizes) >= 8
    assert max(sizes) <= 2 << 20


def test_columns_and_filters(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 10), path)
    assert ds.to_table(columns=["t", "id"]).column_names == ["t", "id"]
    assert ds.to_table(columns=["t"], filter=pc.field("id") > 7)["t"].to_pylist() == ["row 8", "row 9"]
    assert ds.to_table(columns=["_rowid"], filter=pc.field("_rowid") == 3).to_pydict() == {"_rowid": [3]}
    assert ds.count_rows(pc.field("id") >= 4) == 6
    assert ds.to_table(columns=[]).num_rows == 10
    assert ds.to_table(columns=[], limit=30, offset=4).num_rows == 6
    assert sum(batch.num_rows for batch in ds.to_batches(columns=[])) == 10
    assert sum(batch.num_rows for batch in ds.to_batches(columns=[], filter=pc.field("id") > 7)) == 2
    with pytest.raises(SchemaError, match="no column 'x'; the table has id, t"):
        ds.to_table(columns=["x"])
    with pytest.raises(SchemaError, match="twice"):
        ds.to_table(columns=["id", "id"])
    with pytest.raises(ExpressionError):
        ds.to_table(filter=pc.field("nope") == 1)
    with pytest.raises(ExpressionError):
        ds.to_table(filter=pc.field("t") > 1)
    with pytest.raises(OptionError):
        ds.to_table(limit=-1)


@given(used=st.sets(st.sampled_from([f"c{i}" for i in range(12)]), min_size=1))
def test_the_columns_of_a_filter_are_found(used: set[str]) -> None:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(12)])
    expression = pc.scalar(True)
    for name in used:
        expression = expression & (pc.field(name) > 3)
    assert set(filter_columns(expression, schema)) == used


def test_take_keeps_order_and_repeats(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 30), path, max_rows_per_file=11)
    assert ds.take([29, 0, 11, 0, 10])["id"].to_pylist() == [29, 0, 11, 0, 10]
    assert ds.take([], columns=["t"]).num_rows == 0
    for wrong in ([30], [-1]):
        with pytest.raises(IndexError):
            ds.take(wrong)


def test_scan_tasks_survive_pickling(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 20), path, max_rows_per_file=7)
    tasks = Scan.plan(ds.table, ds.manifest, ["id"], with_row_id=True).tasks()
    tasks[0].arrow_schema  # noqa: B018 a filled cache must not be pickled along
    copies = pickle.loads(pickle.dumps(tasks))
    rows = [batch.to_pydict() for task in copies for batch in task.batches(1 << 20)]
    assert [i for batch in rows for i in batch["id"]] == list(range(20))
    assert rows[1]["_rowid"][0] == 1 << 32


def test_a_refused_append_leaves_no_file(path: str) -> None:
    spark_lance.write_dataset(numbers(0, 3), path)
    before = data_files(path)
    with pytest.raises(SchemaError):
        spark_lance.write_dataset(pa.table({"id": ["x"]}), path, "append")

    def breaks() -> object:
        yield from numbers(0, 3).to_batches()
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        spark_lance.write_dataset(breaks(), path, "append", schema=numbers(0, 1).schema, max_rows_per_file=2)
    assert data_files(path) == before


def test_a_conflict_deletes_the_files_of_the_loser(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_lance.write_dataset(numbers(0, 3), path)

    def overwritten_meanwhile(*args: object, **kwargs: object) -> list[bytes]:
        fragments = write_fragments(*args, **kwargs)  # type: ignore[arg-type]
        monkeypatch.undo()
        spark_lance.write_dataset(numbers(5, 6), path, "overwrite")
        return fragments

    monkeypatch.setattr("spark_lance.table.writing.write.write_fragments", overwritten_meanwhile)
    with pytest.raises(IncompatibleConflictError):
        spark_lance.write_dataset(numbers(3, 4), path, "append")
    assert spark_lance.dataset(path).to_table()["id"].to_pylist() == [5]
    assert len(data_files(path)) == 2


def test_an_unknown_outcome_deletes_nothing(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spark_lance.write_dataset(numbers(0, 3), path)

    def lost(*args: object) -> int:
        raise CommitOutcomeUnknownError("no answer")

    monkeypatch.setattr("spark_lance.table.inserts.write_plan.commit_write", lost)
    with pytest.raises(CommitOutcomeUnknownError):
        spark_lance.write_dataset(numbers(3, 4), path, "append")
    assert len(data_files(path)) == 2


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_lost_creation_becomes_what_was_asked(path: str, mode: str) -> None:
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), numbers(0, 1).schema, mode)
    fragments = write_fragments(numbers(7, 9).to_batches(), table, plan.schema)
    spark_lance.write_dataset(numbers(0, 2), path)
    assert commit_write(table, plan, fragments).version == 2
    expected = [0, 1, 7, 8] if mode == "append" else [7, 8]
    assert spark_lance.dataset(path).to_table()["id"].to_pylist() == expected


def test_a_lost_creation_with_another_schema_is_refused(path: str) -> None:
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), numbers(0, 1).schema, "append")
    fragments = write_fragments(numbers(7, 9).to_batches(), table, plan.schema)
    spark_lance.write_dataset(pa.table({"other": [1]}), path)
    with pytest.raises(SchemaError, match="another schema"):
        commit_write(table, plan, fragments)


def test_a_missing_data_file_is_named(path: str) -> None:
    ds = spark_lance.write_dataset(numbers(0, 3), path)
    (name,) = data_files(path)
    (Path(path) / "data" / name).unlink()
    with pytest.raises(FormatError, match=name):
        ds.to_table()


def test_memory_tables_work() -> None:
    ds = spark_lance.write_dataset(
        numbers(0, 100), "memory://tables/t.lance", "overwrite", max_rows_per_file=30
    )
    assert ds.to_table(columns=["t"], filter=pc.field("id") == 64)["t"].to_pylist() == ["row 64"]


def test_the_function_is_not_hidden_by_a_module() -> None:
    program = (
        "import spark_lance.datasets.dataset, spark_lance; assert spark_lance.dataset.__name__ == 'dataset'"
    )
    program += "; assert callable(spark_lance.dataset)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    assert importlib.util.find_spec("spark_lance.dataset") is None


def test_one_fragment_is_made_and_committed(path: str) -> None:
    ds = spark_lance.write_dataset({"a": [1, 2]}, path)
    result = spark_lance.LanceFragment.create(ds, {"a": range(3, 30)}, fragment_id=7)
    assert (result.id, result.physical_rows, len(result.files)) == (7, 27, 1)
    assert spark_lance.dataset(path).version == 1
    append = spark_lance.LanceOperation.Append([result])
    assert spark_lance.LanceDataset.commit(path, append, read_version=1).count_rows() == 29
    with pytest.raises(OptionError, match="no rows"):
        spark_lance.LanceFragment.create(ds, pa.table({"a": pa.array([], pa.int64())}))


def test_a_text_is_no_list_of_columns_to_drop(path: str) -> None:
    ds = spark_lance.write_dataset({"a": [1], "b": [2]}, path)
    with pytest.raises(TypeError, match=r"as in \['b'\]"):
        ds.drop_columns("b")
    assert ds.drop_columns(["b"]).schema.names == ["a"]
