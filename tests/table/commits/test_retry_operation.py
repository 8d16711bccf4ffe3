"""Operations that are run again after a conflict: how often, on which version, for how long."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import IncompatibleConflictError, RetryableConflictError, UnsupportedFormatError
from spark_lance.io.retry import RetryPolicy
from spark_lance.table.commits.commit import CONFLICT_RETRIES, retry_operation, retry_policy
from spark_lance.table.commits.commit_options import commit_options
from spark_lance.table.commits.proposal import CommitEnv
from spark_lance.table.reading.snapshot import Snapshot


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def env(self) -> CommitEnv:
        return CommitEnv(lambda: 1, lambda: self.now, self.sleep, lambda: 0.5)


@pytest.fixture
def path(tmp_path: Path) -> str:
    spark_lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    return str(tmp_path / "t")


def tried(path: str, policy: RetryPolicy, clock: Clock, wins: int = -1) -> list[int]:
    """Run an attempt that meets another writer each time but the last; return the versions it was given."""
    seen: list[int] = []

    def attempt(at: Snapshot) -> list[int]:
        seen.append(at.version)
        if len(seen) == wins:
            return seen
        spark_lance.write_dataset(pa.table({"a": [2]}), path, mode="append")
        raise RetryableConflictError(f"attempt {len(seen)}")

    if wins > 0:
        assert retry_operation(spark_lance.dataset(path).snapshot, attempt, policy, clock.env()) is seen
    else:
        with pytest.raises(RetryableConflictError) as caught:
            retry_operation(spark_lance.dataset(path).snapshot, attempt, policy, clock.env())
        assert str(caught.value) == f"attempt {len(seen)}"
    return seen


def test_each_attempt_is_on_the_newest_version(path: str) -> None:
    clock = Clock()
    assert tried(path, RetryPolicy(attempts=5), clock, wins=3) == [1, 2, 3]
    assert clock.now > 100


def test_attempts_are_counted(path: str) -> None:
    assert tried(path, RetryPolicy(attempts=3), Clock()) == [1, 2, 3]


def test_the_first_attempt_does_not_wait(path: str) -> None:
    clock = Clock()
    assert tried(path, RetryPolicy(attempts=1), clock) == [1]
    assert clock.now == 100


def test_time_is_bounded(path: str) -> None:
    """Waits of six seconds: after the second one there is no time for a third."""
    clock = Clock()
    policy = RetryPolicy(attempts=100, base_seconds=8, cap_seconds=8, total_seconds=12)
    assert tried(path, policy, clock) == [1, 2, 3]
    assert clock.now == 112


def test_no_later_wait_is_looked_at(path: str) -> None:
    """A wait that is too long ends it, also if the next one, which is drawn anew, would be short enough."""
    clock, drawn = Clock(), iter([1.0, 0.0, 0.0])
    env = CommitEnv(lambda: 1, lambda: clock.now, clock.sleep, lambda: next(drawn))
    calls: list[int] = []

    def attempt(at: Snapshot) -> None:
        calls.append(at.version)
        raise RetryableConflictError("taken")

    policy = RetryPolicy(attempts=3, base_seconds=8, cap_seconds=8, total_seconds=6)
    with pytest.raises(RetryableConflictError):
        retry_operation(spark_lance.dataset(path).snapshot, attempt, policy, env)
    assert (calls, clock.now) == ([1], 100)


def test_a_version_that_cannot_be_written_upon_ends_it(path: str) -> None:
    calls: list[int] = []

    def attempt(at: Snapshot) -> None:
        calls.append(at.version)
        # Another writer is first, with a feature that is not written here.
        spark_lance.write_dataset(pa.table({"a": [2]}), path, mode="append")
        manifest = spark_lance.dataset(path).manifest
        old = manifest.message.SerializeToString()
        manifest.message.writer_feature_flags |= 1 << 40
        new = manifest.message.SerializeToString()
        file = Path(manifest.path)
        data = file.read_bytes()
        start = data.index(len(old).to_bytes(4, "little") + old)
        file.write_bytes(data[:start] + len(new).to_bytes(4, "little") + new + data[-16:])
        raise RetryableConflictError("taken")

    with pytest.raises(UnsupportedFormatError, match="flag"):
        retry_operation(spark_lance.dataset(path).snapshot, attempt, RetryPolicy(attempts=5), Clock().env())
    assert calls == [1]


def test_other_errors_end_it(path: str) -> None:
    calls: list[int] = []

    def attempt(at: Snapshot) -> None:
        calls.append(at.version)
        raise IncompatibleConflictError("no")

    with pytest.raises(IncompatibleConflictError):
        retry_operation(spark_lance.dataset(path).snapshot, attempt, RetryPolicy(attempts=5), Clock().env())
    assert calls == [1]


def test_users_have_a_say() -> None:
    assert retry_policy() is CONFLICT_RETRIES
    mine = RetryPolicy(attempts=2)
    with commit_options(retry=mine):
        assert retry_policy() is mine
