"""Writes that replace the rows for which a condition is true."""

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
    CommitOutcomeUnknownError,
    ExpressionError,
    IncompatibleConflictError,
    RetryableConflictError,
    SchemaError,
)
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.commits.idempotent_writes import IdempotentWrite
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.inserts.replace_rows import RowCheck
from spark_lance.table.versions.publish import publish
from spark_lance.table.versions.versions import load_latest
from tests.table.inserts.test_merge_schema import Job, rows, table


def replacing(path: str, where: str, data: pa.Table, **options: Any) -> Job:
    return Job(path, data, "overwrite", replace_where=where, merge=False, **options)


def files(path: str) -> set[str]:
    return {str(file) for file in Path(path).rglob("*") if file.parent.name in ("data", "_deletions")}


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    lance.write_dataset(table(a=range(10), b=["x"] * 10), path, max_rows_per_file=4)
    return path


def test_one_transaction_deletes_and_adds(path: str) -> None:
    assert replacing(path, "a between 2 and 4", table(b=["y", "z"], a=[3, 3])).commit() == 2
    assert [row["a"] for row in rows(path)] == [0, 1, 5, 6, 7, 8, 9, 3, 3]
    store = spark_lance.dataset(path).store
    assert read_transaction(TableRef(store, path), load_latest(TableRef(store, path))).name == "update"
    lance.dataset(path).optimize.compact_files()
    assert len(rows(path)) == 9


def test_whole_fragments_and_nothing(path: str) -> None:
    replacing(path, "a < 4", table(a=[1])).commit()
    assert [row["a"] for row in rows(path)] == [4, 5, 6, 7, 8, 9, 1]
    replacing(path, "a > 100", table(a=pa.array([], pa.int64()))).commit()
    assert len(rows(path)) == 7
    replacing(path, "true", table(a=pa.array([], pa.int64()))).commit()
    assert rows(path) == []
    replacing(path, "a = 1", table(a=[1])).commit()
    assert len(rows(path)) == 1


def test_stable_row_ids_and_an_index(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    lance.write_dataset(table(a=range(10)), path, enable_stable_row_ids=True)
    lance.dataset(path).create_scalar_index("a", "BTREE")
    replacing(path, "a >= 5", table(a=[5, 6, 20])).commit()
    result = lance.dataset(path).to_table(with_row_id=True)
    assert result["_rowid"].to_pylist() == [0, 1, 2, 3, 4, 10, 11, 12]
    assert lance.dataset(path).to_table(filter="a > 4")["a"].to_pylist() == [5, 6, 20]
    changes = lance.dataset(path).delta(compared_against=1)
    assert changes.get_inserted_rows().read_all()["a"].to_pylist() == [5, 6, 20]


@pytest.mark.parametrize("condition", ["a = 1", "a = 1 or a is null", "a % 2 = 1", "b is not null"])
def test_new_rows_that_do_not_fulfil_the_condition(path: str, condition: str) -> None:
    check = RowCheck.of(condition, spark_lance.dataset(path).manifest.schema)
    check.check(pa.record_batch({"a": pa.array([1, 1]), "b": ["u", "v"]}))
    with pytest.raises(SchemaError, match=r"1 of 2 rows .* do not match"):
        check.check(pa.record_batch({"a": pa.array([1, 2]), "b": ["x", None]}))


def test_columns_that_new_rows_lack_count_as_null(path: str) -> None:
    check = RowCheck.of("b is null", spark_lance.dataset(path).manifest.schema)
    check.check(pa.record_batch({"a": pa.array([1])}))
    check = RowCheck.of("b = 'x'", spark_lance.dataset(path).manifest.schema)
    with pytest.raises(SchemaError, match="do not match"):
        check.check(pa.record_batch({"a": pa.array([1])}))


@pytest.mark.parametrize("condition", ["c = 1", "a", "a = ", "_rowid = 3"])
def test_conditions_that_do_not_fit_are_refused_at_once(path: str, condition: str) -> None:
    with pytest.raises(ExpressionError):
        replacing(path, condition, table(a=[1]))


def test_columns_must_fit_as_for_an_append(path: str) -> None:
    with pytest.raises(SchemaError, match="'c' is not in the table"):
        replacing(path, "a = 1", table(c=[1]))
    Job(path, table(a=[1], c=[2]), "overwrite", replace_where="a = 1").commit()
    assert rows(path)[-1] == {"a": 1, "b": None, "c": 2}
    assert len(rows(path)) == 10


def test_a_table_that_is_created(tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    jobs = [replacing(path, "a = 1", table(a=[1, 1])), replacing(path, "a = 1", table(a=[1]))]
    assert [job.commit() for job in jobs] == [1, 2]
    assert rows(path) == [{"a": 1}]


def test_a_repeated_job_replaces_once(path: str) -> None:
    jobs = [replacing(path, "a = 1", table(a=[1])) for _ in range(2)]
    jobs[0].commit(IdempotentWrite("job", 1))
    with pytest.raises(AlreadyCommittedError):
        jobs[1].commit(IdempotentWrite("job", 1))
    assert len(rows(path)) == 10


def test_the_answer_is_lost(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*arguments: Any) -> None:
        publish(*arguments)
        raise ConnectionError("reset")

    def blind(*arguments: Any) -> Any:
        raise ConnectionError("no route to store")

    job = replacing(path, "a = 1", table(a=[1]))
    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "publish", lost)
        patch.setattr(commit_module, "read_manifest", blind)
        with pytest.raises(CommitOutcomeUnknownError):
            job.commit(IdempotentWrite("job", 1))
    assert len(rows(path)) == 10
    with pytest.raises(AlreadyCommittedError):
        replacing(path, "a = 1", table(a=[1])).commit(IdempotentWrite("job", 1))


def test_rows_that_another_writer_changed_are_looked_for_again(path: str) -> None:
    job = replacing(path, "b = 'x'", table(a=[100], b=["x"]))
    lance.dataset(path).update({"b": "'y'"}, where="a < 6")
    job.commit()
    assert sorted(row["a"] for row in rows(path)) == [0, 1, 2, 3, 4, 5, 100]


def test_changed_columns_are_a_conflict(path: str) -> None:
    job = replacing(path, "a = 1", table(a=[1], b=["q"]))
    lance.dataset(path).drop_columns(["b"])
    lance.dataset(path).add_columns({"c": "a"})
    before = files(path)
    with pytest.raises(IncompatibleConflictError, match="column 'b' is gone"):
        job.commit()
    assert files(path) == before
    job = replacing(path, "a = 1", table(a=[1]))
    lance.write_dataset(table(a=[1]), path, mode="overwrite")
    with pytest.raises(IncompatibleConflictError):
        job.commit()


def test_nothing_of_a_lost_attempt_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt writes deletion files; those of attempts that failed are deleted."""
    job = replacing(path, "a = 1", table(a=[1]))

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RetryableConflictError("not now")

    before = files(path)
    with monkeypatch.context() as patch:
        patch.setattr("spark_lance.table.commits.commit_rows.commit_operation", refuse)
        patience = RetryPolicy(attempts=3, base_seconds=0)
        with commit_options(retry=patience), pytest.raises(RetryableConflictError):
            job.commit()
    assert files(path) == before


OTHERS: dict[str, Callable[[str], Any]] = {
    "append": lambda path: lance.write_dataset(table(a=[1, 50], b=["n", "n"]), path, mode="append"),
    "delete same": lambda path: lance.dataset(path).delete("a = 2"),
    "delete other": lambda path: lance.dataset(path).delete("a = 7"),
    "update other": lambda path: lance.dataset(path).update({"b": "'u'"}, where="a = 8"),
    "update same": lambda path: lance.dataset(path).update({"b": "'u'"}, where="a = 3"),
    "compact": lambda path: lance.dataset(path).optimize.compact_files(),
    "add column": lambda path: lance.dataset(path).add_columns({"z": "a"}),
}


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(sorted(OTHERS)), min_size=1, max_size=3, unique=True), st.booleans())
def test_changes_of_other_rows_stay(
    tmp_path_factory: pytest.TempPathFactory, others: list[str], stable: bool
) -> None:
    path = str(tmp_path_factory.mktemp("t") / "t")
    data = table(a=range(10), b=["x"] * 10)
    lance.write_dataset(data, path, max_rows_per_file=4, enable_stable_row_ids=stable)
    job = replacing(path, "a < 5", table(a=[0, 0, 0], b=["new"] * 3))
    for other in others:
        OTHERS[other](path)
    before = {(row["a"], row["b"]) for row in rows(path)}
    job.commit()
    after = [(row["a"], row["b"]) for row in rows(path)]
    assert after.count((0, "new")) == 3
    # Appended meanwhile: it was not there when the job began, so it may stay or go.
    after = [row for row in after if row not in ((0, "new"), (1, "n"))]
    assert sorted(after) == sorted(row for row in before if row[0] >= 5)
