"""Writes to branches, and what a user says about commits: message, retries, timeout, clean-up by config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import BranchNotFoundError, OptionError, RetriesExhaustedError
from spark_lance.spark.options.options import write_options
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.commits.commit_options import current_options
from spark_lance.table.versions.publish import publish
from tests.spark.sink.test_commit import batch, files, ids, write, writer


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "t")
    lance.write_dataset(pa.table({"id": [1, 2]}), path)
    return path


def save(path: str, *numbers: int, overwrite: bool = False, **options: Any) -> None:
    job = writer(path, overwrite=overwrite, **options)
    job.commit([write(job, batch(*numbers))])


def test_a_branch_takes_writes_of_its_own(path: str) -> None:
    lance.dataset(path).create_branch("audit/today")
    save(path, 3, branch="audit/today")
    save(path, 1, overwrite=True, branch="audit/today", replaceWhere="id = 1")
    branch = f"{path}/tree/audit/today"
    assert (ids(path), ids(branch)) == ([1, 2], [1, 2, 3])
    assert sorted(
        lance.dataset(path).checkout_version(("audit/today", None)).to_table()["id"].to_pylist()
    ) == [
        1,
        2,
        3,
    ]
    # New files are the branch's own.
    assert (files(path), files(branch)) == (1, 2)
    save(path, 4, branch="main")
    assert (ids(path), ids(branch)) == ([1, 2, 4], [1, 2, 3])
    save(path, 9, overwrite=True, branch="audit/today")
    assert (ids(path), ids(branch)) == ([1, 2, 4], [9])


def test_a_branch_that_does_not_exist(path: str) -> None:
    with pytest.raises(BranchNotFoundError, match="nobody"):
        writer(path, branch="nobody")
    with pytest.raises(BranchNotFoundError):
        writer(f"{path}-2", branch="dev")
    assert not Path(f"{path}-2").exists()


def test_a_message(path: str) -> None:
    save(path, 3, userMetadata="nightly load")
    newest = spark_lance.dataset(path).get_transactions()[0]
    assert newest is not None
    assert newest.properties["__lance_commit_message"] == "nightly load"


@pytest.mark.parametrize(("retries", "tries"), [("0", 1), ("3", 4)])
def test_retries(path: str, monkeypatch: pytest.MonkeyPatch, retries: str, tries: int) -> None:
    attempts: list[int] = []

    def beaten(*arguments: Any) -> None:
        attempts.append(arguments[2])
        lance.write_dataset(pa.table({"id": [7]}), path, mode="append")
        publish(*arguments)

    job = writer(path, commit_retries=retries)
    message = write(job, batch(3))
    monkeypatch.setattr(commit_module, "publish", beaten)
    with pytest.raises(RetriesExhaustedError):
        job.commit([message])
    assert len(attempts) == tries
    assert files(path) == 1 + tries
    assert ids(path) == [1, 2, *[7] * tries]


def test_a_timeout(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    job = writer(path, commit_timeout="2m", max_retries="7")
    message = write(job, batch(3))

    def look(*arguments: Any, **options: Any) -> None:
        seen.extend((current_options().retry.total_seconds, current_options().retry.attempts))

    monkeypatch.setattr("spark_lance.spark.sink.write.commit_or_discard", look)
    job.commit([message])
    assert seen == [120, 8]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("200ms", 0.2), ("5m", 300), ("1h", 3600)]
)
def test_times(text: str, seconds: float) -> None:
    assert write_options({"path": "/t", "commit_timeout": text}).commit_timeout == pytest.approx(seconds)
    with pytest.raises(OptionError, match="such as 90, 90s or 5m"):
        write_options({"path": "/t", "commit_timeout": text + "x"})


def test_a_table_that_cleans_up_after_itself(path: str) -> None:
    lance.dataset(path).update_config(
        {"lance.auto_cleanup.interval": "2", "lance.auto_cleanup.older_than": "0s"}
    )
    for number in range(4):
        save(path, number + 3)
    assert ids(path) == [1, 2, 3, 4, 5, 6]
    assert len(lance.dataset(path).versions()) <= 2
