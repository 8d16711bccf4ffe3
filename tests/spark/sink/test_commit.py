"""The protocol of a write, played by hand: what is committed, what is deleted, and what is left alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps
from pyspark.sql.types import LongType, StringType, StructType

import spark_lance
from spark_lance.errors import (
    AtomicPutUnsupportedError,
    CommitError,
    CommitOutcomeUnknownError,
    IncompatibleConflictError,
    RetriesExhaustedError,
    SchemaError,
    StoreError,
)
from spark_lance.io.local import LocalStore
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.worker.write import LanceCommitMessage
from spark_lance.table.inserts import write_plan as commit_module

SCHEMA = StructType().add("id", LongType())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def sent(thing: Any) -> Any:
    """What arrives in another process."""
    return pickle.loads(dumps(thing))  # type: ignore[no-untyped-call]


def writer(path: str, *, overwrite: bool = False, schema: StructType = SCHEMA, **options: str) -> LanceWriter:
    result = sent(LanceDataSource({"path": path, **options}).writer(schema, overwrite))
    assert isinstance(result, LanceWriter)
    return result


def batch(*ids: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], names=["id"])


def write(to: LanceWriter, *batches: pa.RecordBatch) -> LanceCommitMessage:
    message = sent(sent(to).write(iter(batches)))
    assert isinstance(message, LanceCommitMessage)
    return message


def ids(path: str) -> list[int]:
    return sorted(row["id"] for row in spark_lance.dataset(path).to_table().to_pylist())


def files(path: str) -> int:
    return len(list((Path(path) / "data").glob("*")))


def test_the_files_of_all_tasks_become_one_version(path: str) -> None:
    job = writer(path)
    messages = [write(job, batch(1, 2), batch(3)), write(job), write(job, batch(4))]
    assert [message.rows for message in messages] == [3, 0, 1]
    sent(job).commit(messages)
    assert ids(path) == [1, 2, 3, 4]
    assert spark_lance.dataset(path).version == 1
    assert len(spark_lance.dataset(path).get_fragments()) == 2


def test_nothing_is_visible_before_the_commit(path: str) -> None:
    write(writer(path), batch(1))
    assert not (Path(path) / "_versions").exists()


def test_two_creators_lose_nothing(path: str) -> None:
    first, second = writer(path), writer(path)
    messages = write(first, batch(1)), write(second, batch(2))
    first.commit([messages[0]])
    second.commit([messages[1]])
    assert ids(path) == [1, 2]


def test_a_creator_whose_schema_differs_from_the_winner_s_leaves_nothing(path: str) -> None:
    first = writer(path)
    second = writer(path, schema=StructType().add("name", StringType()))
    message = write(second, pa.RecordBatch.from_arrays([pa.array(["x"])], names=["name"]))
    first.commit([write(first, batch(1))])
    with pytest.raises(SchemaError, match="another writer created"):
        second.commit([message])
    assert (ids(path), files(path)) == ([1], 1)


def test_of_two_overwriting_creators_the_later_one_wins(path: str) -> None:
    first, second = writer(path, overwrite=True), writer(path, overwrite=True)
    messages = write(first, batch(1)), write(second, batch(2))
    first.commit([messages[0]])
    second.commit([messages[1]])
    assert ids(path) == [2]


def test_an_append_that_lost_its_table_to_an_overwrite_leaves_nothing(path: str) -> None:
    writer(path).commit([write(writer(path), batch(1))])
    append, overwrite = writer(path), writer(path, overwrite=True)
    message = write(append, batch(2))
    overwrite.commit([write(overwrite, batch(3))])
    before = files(path)
    with pytest.raises(IncompatibleConflictError):
        append.commit([message])
    assert (ids(path), files(path)) == ([3], before - 1)


def test_rows_that_got_lost_are_noticed(path: str) -> None:
    job = writer(path)
    message = write(job, batch(1, 2))
    with pytest.raises(CommitError, match="given 3 rows but stored 2"):
        job.commit([replace(message, rows=3)])
    assert not (Path(path) / "_versions").exists()
    assert files(path) == 0


def failing(error: Exception) -> Callable[..., int]:
    def commit_write(*_: Any, **__: Any) -> int:
        raise error

    return commit_write


@pytest.mark.parametrize("error", [RetriesExhaustedError("x"), StoreError("x"), PermissionError("x")])
def test_a_commit_that_surely_failed_is_cleaned_up(
    path: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = writer(path)
    messages = [write(job, batch(1)), write(job, batch(2))]
    monkeypatch.setattr(commit_module, "commit_write", failing(error))
    with pytest.raises(type(error)):
        job.commit(list(messages))
    assert files(path) == 0


def test_a_commit_that_may_have_landed_is_never_cleaned_up(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = writer(path)
    messages = [write(job, batch(1)), write(job, batch(2))]
    monkeypatch.setattr(commit_module, "commit_write", failing(CommitOutcomeUnknownError("x")))
    with pytest.raises(CommitOutcomeUnknownError):
        job.commit(list(messages))
    # Spark calls abort after a failed commit, in another process.
    sent(job).abort(list(messages))
    assert files(path) == 2


def test_abort_after_a_commit_that_landed_deletes_nothing(path: str) -> None:
    job = writer(path)
    messages = [write(job, batch(1)), write(job, batch(2))]
    job.commit(list(messages))
    sent(job).abort(list(messages))
    assert ids(path) == [1, 2]


def test_abort_of_an_unfinished_write_finds_files_of_which_no_message_came(path: str) -> None:
    """Of a task that was killed after it wrote, or whose first attempt failed."""
    other, job = writer(path), writer(path)
    remaining = write(other, batch(1))
    write(job, batch(2))
    write(job, batch(3))
    sent(job).abort([None, None])
    assert files(path) == 1
    other.commit([remaining])
    assert ids(path) == [1]


def test_abort_of_an_unfinished_write_deletes_what_its_tasks_wrote(path: str) -> None:
    writer(path).commit([write(writer(path), batch(1))])
    job = writer(path)
    message = write(job, batch(2))
    sent(job).abort([message, None])
    sent(job).abort([None, None])
    assert (ids(path), files(path)) == ([1], 1)


def test_a_task_that_fails_deletes_its_own_files(path: str) -> None:
    def breaking() -> Any:
        yield batch(*range(100))
        yield batch(*range(100))
        raise RuntimeError("upstream")

    with pytest.raises(RuntimeError):
        writer(path, max_rows_per_file="50").write(breaking())
    assert files(path) == 0


def test_attempts_of_one_task_never_share_a_file(path: str) -> None:
    job = writer(path)
    first, second = write(job, batch(1)), write(job, batch(1))
    assert first.fragments != second.fragments
    job.commit([second])
    assert (ids(path), files(path)) == ([1], 2)


def test_stores_without_atomic_creation_are_refused_before_any_task(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "can_create", False)
    with pytest.raises(AtomicPutUnsupportedError, match="file://"):
        writer(path)
