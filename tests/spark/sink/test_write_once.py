"""Jobs that are repeated: options `txnAppId` and `txnVersion` of a Spark write."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.errors import CommitOutcomeUnknownError, OptionError
from spark_lance.spark.options.options import write_options
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.table.inserts import write_plan as commit_module
from spark_lance.table.inserts.write_plan import commit_write
from tests.spark.sink.test_commit import batch, files, ids, write, writer


def job(path: str, number: int) -> LanceWriter:
    return writer(path, txnAppId="job", txnVersion=str(number))


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_job_that_is_run_twice_writes_once(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    path = str(tmp_path / "t")
    for number in (1, 1, 2, 1):
        frame = spark.range(number * 10, number * 10 + 3)
        named = frame.write.format("lance").mode(mode).option("txnAppId", "nightly")
        named.option("txnVersion", number).save(path)
    assert ids(path) == ([10, 11, 12, 20, 21, 22] if mode == "append" else [20, 21, 22])
    assert spark_lance.dataset(path).version == 2


def test_a_skipped_write_leaves_no_files(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    first, second = job(path, 5), job(path, 5)
    messages = write(first, batch(1)), write(second, batch(1))
    first.commit([messages[0]])
    second.commit([messages[1]])
    assert (ids(path), files(path)) == ([1], 1)
    older = job(path, 4)
    older.commit([write(older, batch(2))])
    assert (ids(path), files(path)) == ([1], 1)


def test_a_job_whose_fate_was_unknown_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t")
    real = commit_write

    def landed(*arguments: object, **options: object) -> int:
        real(*arguments, **options)  # type: ignore[arg-type]
        raise CommitOutcomeUnknownError("no answer")

    first = job(path, 5)
    message = write(first, batch(1))
    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "commit_write", landed)
        with pytest.raises(CommitOutcomeUnknownError):
            first.commit([message])
    first.abort([message])
    again = job(path, 5)
    again.commit([write(again, batch(1))])
    assert (ids(path), files(path)) == ([1], 1)


@pytest.mark.parametrize(
    "given", [{"txnappid": "a"}, {"txnversion": "1"}, {"txnappid": "", "txnversion": "1"}]
)
def test_the_two_options_come_together(given: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="must be set together"):
        write_options({"path": "/t", **given})
    with pytest.raises(OptionError, match="0 or more"):
        write_options({"path": "/t", "txnappid": "a", "txnversion": "-1"})
