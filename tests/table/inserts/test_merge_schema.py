"""Appends that bring columns along which the table lacks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import (
    AlreadyCommittedError,
    IncompatibleConflictError,
    SchemaError,
)
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.io.store import open_store
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.merge_schema import missing_columns
from spark_lance.table.inserts.write_plan import WritePlan, commit_write, find_latest, plan_write
from spark_lance.table.operations.next_version import empty_manifest
from spark_lance.table.schema.changes import add_fields
from spark_lance.table.writing.align import Aligner
from spark_lance.table.writing.write import write_fragments


class Job:
    """A write in its three steps, so that others can come in between."""

    def __init__(self, path: str, data: pa.Table, mode: str = "append", **options: Any) -> None:
        self.store, self.root = open_store(path)
        self.table = TableRef(self.store, self.root)
        self.data = data
        if options.pop("merge", True):
            options["new_columns"] = data.schema
        self.plan: WritePlan = plan_write(self.table, find_latest(self.table), data.schema, mode, **options)
        aligner = Aligner(data.schema, self.plan.schema)
        self.fragments = write_fragments(
            map(aligner.align, data.to_batches()),
            self.table,
            self.plan.schema,
            version=self.plan.version,
        )

    def commit(self, write_id: IdempotentWrite | None = None) -> int:
        return commit_write(self.table, self.plan, self.fragments, write_id=write_id).version


def merge(path: str, data: pa.Table, mode: str = "append", **options: Any) -> int:
    return Job(path, data, mode, **options).commit()


def table(**columns: Any) -> pa.Table:
    return pa.table(columns)


def rows(path: str) -> list[dict[str, Any]]:
    ours = spark_lance.dataset(path).to_table()
    theirs = lance.dataset(path).to_table()
    assert ours.to_pylist() == theirs.to_pylist()
    assert ours.schema.names == theirs.schema.names
    checked: Any = lance.dataset(path)
    checked.validate()
    return ours.to_pylist()  # type: ignore[no-any-return]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def test_new_columns_are_null_in_the_rows_that_were_there(path: str) -> None:
    lance.write_dataset(table(a=[1, 2]), path)
    assert merge(path, table(b=["x"], a=[3])) == 3
    assert rows(path) == [{"a": 1, "b": None}, {"a": 2, "b": None}, {"a": 3, "b": "x"}]
    assert merge(path, table(b=["y"])) == 4
    assert rows(path)[-1] == {"a": None, "b": "y"}


def test_fields_of_structs_and_of_structs_in_lists(path: str) -> None:
    first = table(s=[{"x": 1, "t": {"u": 1}}, None], l=[[{"p": 1}, None], None])
    lance.write_dataset(first, path)
    merge(path, table(s=[{"y": "n", "t": {"v": 2}}], l=[[{"q": 2, "p": 3}]]))
    assert rows(path) == [
        {"s": {"x": 1, "t": {"u": 1, "v": None}, "y": None}, "l": [{"p": 1, "q": None}, None]},
        {"s": None, "l": None},
        {"s": {"x": None, "t": {"u": None, "v": 2}, "y": "n"}, "l": [{"p": 3, "q": 2}]},
    ]


def test_a_table_with_stable_row_ids_deletions_and_an_index(path: str) -> None:
    lance.write_dataset(table(a=range(100)), path, enable_stable_row_ids=True)
    lance.dataset(path).create_scalar_index("a", "BTREE")
    lance.dataset(path).delete("a < 50")
    merge(path, table(a=[200], b=[1]))
    assert len(rows(path)) == 51
    assert lance.dataset(path).to_table(filter="a = 200").to_pylist() == [{"a": 200, "b": 1}]
    assert lance.dataset(path).to_table(filter="a = 60", with_row_id=True)["_rowid"].to_pylist() == [60]
    lance.dataset(path).optimize.compact_files()
    assert len(rows(path)) == 51


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (table(a=["x"]), "column 'a' is string in the data and int64"),
        (table(A=[1]), "differ only in the case"),
        (table(s=[{"X": 1}]), r"column 's\.X' and column 'x' of the table differ only in the case"),
        (table(s=[1]), "column 's' is int64 in the data and struct"),
        (table(a=[1.5]), "column 'a' is double in the data and int64"),
    ],
)
def test_what_cannot_be_merged_is_refused_by_name(path: str, data: pa.Table, message: str) -> None:
    lance.write_dataset(table(a=[1], s=[{"x": 1}]), path)
    with pytest.raises(SchemaError, match=message):
        Job(path, data)


def test_narrower_numbers_go_into_wider_columns(path: str) -> None:
    lance.write_dataset(table(a=[1], f=[1.0]), path)
    merge(path, table(a=pa.array([2], pa.int16()), f=pa.array([2.5], pa.float32())))
    assert rows(path)[-1] == {"a": 2, "f": 2.5}
    assert spark_lance.dataset(path).schema == lance.dataset(path).schema == table(a=[1], f=[1.0]).schema


def test_structs_of_older_files_do_not_grow(path: str) -> None:
    lance.write_dataset(table(s=[{"x": 1}]), path, data_storage_version="2.1")
    with pytest.raises(SchemaError, match=r"from 2\.2 on"):
        Job(path, table(s=[{"y": 1}]))
    merge(path, table(s=[{"x": 2}], b=[1]))
    assert rows(path) == [{"s": {"x": 1}, "b": None}, {"s": {"x": 2}, "b": 1}]


def test_nothing_changes_if_nothing_is_missing(path: str) -> None:
    lance.write_dataset(table(a=[1]), path)
    assert merge(path, table(a=[2])) == 2
    assert merge(path, table(a=pa.array([], pa.int64()))) == 2


def test_a_table_that_is_created(path: str) -> None:
    assert merge(path, table(a=[1])) == 1
    assert rows(path) == [{"a": 1}]


def test_two_jobs_that_bring_columns_at_once(path: str) -> None:
    lance.write_dataset(table(a=[1]), path)
    jobs = [
        Job(path, table(a=[2], b=["x"])),
        Job(path, table(c=[1.5], a=[3])),
        Job(path, table(b=["y"])),
    ]
    for job in jobs:
        job.commit()
    assert rows(path) == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": "x", "c": None},
        {"a": 3, "b": None, "c": 1.5},
        {"a": None, "b": "y", "c": None},
    ]


def test_creators_with_different_columns_both_land(path: str) -> None:
    jobs = [Job(path, table(a=[1])), Job(path, table(a=[2], b=["x"]))]
    for job in jobs:
        job.commit()
    assert rows(path) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_one_column_of_two_types_lands_once(path: str) -> None:
    lance.write_dataset(table(a=[1]), path)
    jobs = [Job(path, table(b=["x"])), Job(path, table(b=[1]))]
    jobs[0].commit()
    with pytest.raises(IncompatibleConflictError, match="column 'b' is string, not int64"):
        jobs[1].commit()
    assert len(rows(path)) == 2


OTHERS: dict[str, Callable[[str], Any]] = {
    "append": lambda path: lance.write_dataset(table(a=[9]), path, mode="append"),
    "delete": lambda path: lance.dataset(path).delete("a = 0"),
    "update": lambda path: lance.dataset(path).update({"a": "a + 1"}, where="a = 1"),
    "compact": lambda path: lance.dataset(path).optimize.compact_files(),
    "add column": lambda path: lance.dataset(path).add_columns({"z": "a"}),
    "index": lambda path: lance.dataset(path).create_scalar_index("a", "BTREE", replace=True),
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(sorted(OTHERS)), max_size=3, unique=True), st.booleans())
def test_other_writers_commit_in_between(
    tmp_path_factory: pytest.TempPathFactory, others: list[str], stable: bool
) -> None:
    path = str(tmp_path_factory.mktemp("t") / "t")
    lance.write_dataset(table(a=[0, 1, 2]), path, enable_stable_row_ids=stable, max_rows_per_file=2)
    job = Job(path, table(a=[3], b=["new"]))
    for other in others:
        OTHERS[other](path)
    before = rows(path)
    job.commit()
    after = rows(path)
    assert after[:-1] == [{**row, "b": None} for row in before]
    assert {key: value for key, value in after[-1].items() if value is not None} == {"a": 3, "b": "new"}


def test_an_overwrite_in_between_is_a_conflict(path: str) -> None:
    lance.write_dataset(table(a=[1]), path)
    job = Job(path, table(a=[2], b=[1]))
    lance.write_dataset(table(c=[1]), path, mode="overwrite")
    with pytest.raises(IncompatibleConflictError):
        job.commit()


def test_a_repeated_job_adds_no_columns_again(path: str) -> None:
    lance.write_dataset(table(a=[1]), path)
    Job(path, table(a=[2], b=[1])).commit(IdempotentWrite("job", 1))
    lance.dataset(path).drop_columns(["b"])
    version = spark_lance.dataset(path).version
    with pytest.raises(AlreadyCommittedError):
        Job(path, table(a=[2], b=[1])).commit(IdempotentWrite("job", 1))
    assert spark_lance.dataset(path).version == version


def test_an_overwrite_that_keeps_the_columns(path: str) -> None:
    kinds = pa.schema([pa.field("v", pa.list_(pa.float32(), 2)), pa.field("u", pa.uint8(), nullable=False)])
    lance.write_dataset(pa.table({"v": [[1, 2]], "u": [1]}, schema=kinds), path)
    data = pa.table({"u": pa.array([7], pa.int16())})
    merge(path, data, "overwrite", keep_schema=True, merge=False)
    assert rows(path) == [{"v": None, "u": 7}]
    assert lance.dataset(path).schema == kinds
    merge(path, table(w=["x"], u=pa.array([8], pa.int16())), "overwrite", keep_schema=True)
    assert rows(path) == [{"v": None, "u": 8, "w": "x"}]
    with pytest.raises(SchemaError, match="'w2' is not in the table"):
        Job(path, table(w2=["x"]), "overwrite", keep_schema=True, merge=False)


names = st.sampled_from(["a", "b", "c"])
leaves = st.sampled_from([pa.int64(), pa.string()])
kinds = st.recursive(
    leaves,
    lambda inner: st.one_of(
        # A list of lists takes no fields.
        inner.map(lambda kind: kind if pa.types.is_list(kind) else pa.list_(kind)),
        st.lists(st.tuples(names, inner), min_size=1, max_size=3, unique_by=lambda f: f[0]).map(pa.struct),
    ),
    max_leaves=5,
)
schemas = st.lists(st.tuples(names, kinds), min_size=1, max_size=3, unique_by=lambda f: f[0]).map(pa.schema)


def test_structs_in_lists_of_lists_take_no_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark_lance.write_dataset(table(v=pa.array([[[{"a": 1}]]])), path)
    with pytest.raises(SchemaError, match="only structs and lists of structs get new fields"):
        merge(path, table(v=pa.array([[[{"a": 1, "b": 2}]]])))
    assert spark_lance.dataset(path).version == 1


@settings(max_examples=150, deadline=None)
@given(schemas, schemas)
def test_what_is_missing_completes_the_table(given: pa.Schema, present: pa.Schema) -> None:
    manifest = empty_manifest(FileVersion.V2_2, stable_row_ids=False)
    manifest.message.fields.extend(Schema.from_arrow(present).to_protos())
    lacking = missing_columns(Schema.from_arrow(given), manifest.schema)
    grown = add_fields(manifest, lacking)[0] if lacking.names else manifest.schema
    # Everything that was there is there, and nothing is missing any more.
    assert missing_columns(manifest.schema, grown).names == []
    assert missing_columns(Schema.from_arrow(given), grown).names == []
    remaining = {field.id: (field.name, field.logical_type) for field in manifest.schema.walk()}
    assert remaining.items() <= {f.id: (f.name, f.logical_type) for f in grown.walk()}.items()
