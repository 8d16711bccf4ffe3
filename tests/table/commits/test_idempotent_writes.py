"""Commits that land once: whatever happens to the first attempt, and whoever commits in between."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
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
    CommitError,
    CommitOutcomeUnknownError,
    FormatError,
    OptionError,
)
from spark_lance.io.store import open_store
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.commits import idempotent_writes as once_module
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.idempotent_writes import (
    MAX_AGE,
    MAX_JOBS,
    AppliedWrites,
    IdempotentWrite,
    read_idempotent_writes,
)
from spark_lance.table.commits.proposal import CommitEnv
from spark_lance.table.format.manifest import read_manifest
from spark_lance.table.format.reserved_names import APPLIED_WRITES
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.inserts.write_plan import commit_write, find_latest, plan_write
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.publish import publish
from spark_lance.table.versions.versions import load_latest
from spark_lance.table.writing.write import write_fragments


def pylance(path: str, **options: Any) -> Any:
    return lance.dataset(path, **options)


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def write(path: str, write_id: IdempotentWrite | None, *values: int, mode: str = "append") -> int | None:
    """Write as a job does; None if it was superfluous."""
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), rows().schema, mode)
    batches = rows(*values).to_batches()
    fragments = write_fragments(batches, table, plan.schema, version=plan.version)
    try:
        return commit_write(table, plan, fragments, write_id=write_id).version
    except AlreadyCommittedError:
        return None


def values(path: str) -> list[int]:
    return sorted(spark_lance.dataset(path).to_table()["a"].to_pylist())


def record(path: str) -> Any:
    return json.loads(spark_lance.dataset(path).manifest.config[APPLIED_WRITES])


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_a_repeated_write_lands_once(path: str, mode: str) -> None:
    assert write(path, IdempotentWrite("job", 3), 1, mode=mode) == 1
    assert write(path, IdempotentWrite("job", 3), 1, mode=mode) is None
    assert write(path, IdempotentWrite("job", 2), 1, mode=mode) is None
    assert write(path, IdempotentWrite("other", 2), 2) == 2
    assert write(path, IdempotentWrite("job", 2, "stream"), 3) == 3
    assert write(path, IdempotentWrite("job", 4), 4, mode=mode) == 4
    assert write(path, IdempotentWrite("job", 3), 1, mode=mode) is None
    assert values(path) == ([1, 2, 3, 4] if mode == "append" else [4])
    assert record(path)["through"] == 4
    pairs = {job: pair[:2] for job, pair in record(path)["applications"].items()}
    assert pairs == {"txn:other": [2, 2], "stream:job": [2, 3], "txn:job": [4, 4]}


def test_writes_without_a_pair_keep_no_record(path: str) -> None:
    write(path, None, 1)
    write(path, None, 2)
    assert pylance(path).config() == spark_lance.dataset(path).config() == {}
    write(path, IdempotentWrite("job", 1), 3)
    drop_record(path)
    write(path, None, 4)
    assert APPLIED_WRITES not in pylance(path).config()


def test_the_pair_is_in_the_transaction(path: str) -> None:
    write(path, IdempotentWrite("query", 7, "stream"), 1)
    table = TableRef(*open_store(path))
    properties = dict(read_transaction(table, load_latest(table)).properties)
    assert properties == {"lance.streaming.queryId": "query", "lance.streaming.epochId": "7"}


def test_a_write_without_rows_is_known_to_be_done(path: str) -> None:
    write(path, None, 1)
    assert write(path, IdempotentWrite("job", 0)) == 2
    assert write(path, IdempotentWrite("job", 0), 2) is None
    assert values(path) == [1]
    assert pylance(path).to_table() == rows(1)


def test_two_creators_with_one_pair(path: str) -> None:
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), rows().schema, "append")
    files = [
        write_fragments(rows(1).to_batches(), table, plan.schema, version=plan.version) for _ in range(2)
    ]
    assert commit_write(table, plan, files[0], write_id=IdempotentWrite("job", 1)).version == 1
    with pytest.raises(AlreadyCommittedError, match="as version 1") as caught:
        commit_write(table, plan, files[1], write_id=IdempotentWrite("job", 1))
    assert caught.value.version == 1
    assert values(path) == [1]


def test_a_repeated_overwrite_gives_no_conflict(path: str) -> None:
    """Both were planned on one version, so the second is in conflict with the first as well."""
    write(path, None, 0)
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), rows().schema, "overwrite")
    commit_write(table, plan, [], write_id=IdempotentWrite("job", 1))
    write(path, None, 5)
    with pytest.raises(AlreadyCommittedError):
        commit_write(table, plan, [], write_id=IdempotentWrite("job", 1))
    assert values(path) == [5]


@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
@pytest.mark.parametrize("blind", [True, False], ids=["nobody can tell", "read back"])
@pytest.mark.parametrize("exists", [True, False], ids=["existing table", "no table yet"])
def test_the_answer_of_the_first_attempt_is_lost(
    path: str, monkeypatch: pytest.MonkeyPatch, landed: bool, blind: bool, exists: bool
) -> None:
    if exists:
        write(path, None, 0)
    answers = iter([False])

    def fail(*arguments: Any) -> None:
        if next(answers, True):
            publish(*arguments)
            return
        if landed:
            publish(*arguments)
        raise ConnectionError("reset")

    def no_answer(*arguments: Any) -> Any:
        raise ConnectionError("no route to store")

    with monkeypatch.context() as patch:
        patch.setattr(commit_module, "publish", fail)
        if blind:
            patch.setattr(commit_module, "read_manifest", no_answer)
            with pytest.raises(CommitOutcomeUnknownError):
                write(path, IdempotentWrite("job", 1), 1)
        else:
            assert write(path, IdempotentWrite("job", 1), 1) == 1 + exists
    done = write(path, IdempotentWrite("job", 1), 1)
    assert (done is None) == (landed or not blind)
    assert values(path) == [0, 1] if exists else [1]


def test_a_lost_answer_is_ours_though_the_job_has_gone_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our version landed, its answer did not; before we look, a repetition skipped it and number 2 landed."""
    write(path, None, 0)
    real = publish

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(commit_module, "publish", real)
        real(*arguments)
        assert write(path, IdempotentWrite("job", 1), 1) is None
        assert write(path, IdempotentWrite("job", 2), 2) == 3
        raise FileExistsError("a repeated request lost against itself")

    monkeypatch.setattr(commit_module, "publish", slow)
    # Superfluous it is not: its files are the table's.
    assert write(path, IdempotentWrite("job", 1), 1) == 2
    assert values(path) == [0, 1, 2]


def test_an_attempt_that_lost_the_race_finds_the_winner(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, None, 0)
    real = publish

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(commit_module, "publish", real)
        assert write(path, IdempotentWrite("job", 1), 1) == 2
        lance.write_dataset(rows(9), path, mode="append")
        real(*arguments)

    monkeypatch.setattr(commit_module, "publish", late)
    assert write(path, IdempotentWrite("job", 1), 1) is None
    assert values(path) == [0, 1, 9]


def test_processes_that_race_commit_every_pair_once(path: str) -> None:
    pairs, count = 8, 2
    worker = Path(__file__).with_name("once_worker.py")
    command = [sys.executable, str(worker), path, str(pairs), "2"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    for process in workers:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in workers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in workers]
    assert [process.returncode for process in workers] == [0] * count
    # A number is skipped only by who finds it or a higher one; whoever committed that came past this one.
    assert sum(int(output) for output in outputs) == pairs
    result = spark_lance.dataset(path).to_table()["pair"].to_pylist()
    assert sorted(result) == sorted([*range(pairs)] * 2)


def drop_record(path: str) -> None:
    if APPLIED_WRITES in pylance(path).config():
        pylance(path).delete_config_keys([APPLIED_WRITES])


OTHERS: dict[str, Callable[[str], Any]] = {
    "append": lambda path: lance.write_dataset(rows(100), path, mode="append"),
    "overwrite": lambda path: lance.write_dataset(rows(200), path, mode="overwrite"),
    "restore": lambda path: pylance(path, version=max(1, pylance(path).version - 2)).restore(),
    "delete": lambda path: pylance(path).delete("a = 100"),
    "alter column": lambda path: pylance(path).alter_columns({"path": "a", "nullable": True}),
    "drop the record": drop_record,
    "compact": lambda path: pylance(path).optimize.compact_files(),
    "our restore": lambda path: spark_lance.dataset(
        path, version=max(1, spark_lance.dataset(path).version - 2)
    ).restore(),
    "our append": lambda path: write(path, None, 300),
    "our overwrite": lambda path: write(path, None, 400, mode="overwrite"),
    "our delete": lambda path: spark_lance.dataset(path).delete("a = 300"),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(sorted(OTHERS)), st.integers(0, 4)), min_size=2, max_size=9))
def test_no_number_lands_twice_whoever_commits_in_between(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str | int]
) -> None:
    path = str(tmp_path_factory.mktemp("t") / "t")
    write(path, None, 0)
    highest = -1
    for step in steps:
        if isinstance(step, int):
            done = write(path, IdempotentWrite("job", step), 1000 + step)
            assert (done is None) == (step <= highest), (step, highest)
            highest = max(highest, step)
        else:
            OTHERS[step](path)
    assert write(path, IdempotentWrite("job", highest), 1) is None if highest >= 0 else True
    assert values(path) == sorted(pylance(path).to_table()["a"].to_pylist())


def test_versions_that_were_cleaned_up_are_not_needed(path: str) -> None:
    write(path, IdempotentWrite("job", 1), 1)
    for number in range(3):
        lance.write_dataset(rows(10 + number), path, mode="append")
    write(path, None, 20)
    pylance(path).cleanup_old_versions(datetime.timedelta(0))
    assert len(pylance(path).versions()) == 1
    assert write(path, IdempotentWrite("job", 1), 1) is None


def test_a_branch_and_a_clone_know_what_they_hold(path: str) -> None:
    write(path, IdempotentWrite("job", 1), 1)
    pylance(path).create_branch("dev")
    branch = f"{path}/tree/dev"
    assert write(branch, IdempotentWrite("job", 1), 1) is None
    assert write(branch, IdempotentWrite("job", 2), 2) == 2
    assert values(path) == [1]
    assert write(path, IdempotentWrite("job", 2), 2) == 2
    pylance(path).shallow_clone(f"{path}-clone", reference=pylance(path).version)
    assert write(f"{path}-clone", IdempotentWrite("job", 2), 2) is None
    assert values(f"{path}-clone") == [1, 2]


def test_only_versions_after_the_record_are_read(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, IdempotentWrite("job", 1), 1)
    for number in range(20):
        write(path, None, number)
    reads: list[str] = []
    real = read_manifest

    def counted(store: Any, path: str, naming: Any) -> Any:
        reads.append(path)
        return real(store, path, naming)

    monkeypatch.setattr(once_module, "read_whole", counted)
    assert write(path, IdempotentWrite("job", 1), 1) is None
    assert reads == []
    for number in range(3):
        lance.write_dataset(rows(number), path, mode="append")
    assert write(path, IdempotentWrite("job", 1), 1) is None
    # The newest one has been read by the commit itself.
    assert len(reads) == 2


def test_pairs_of_other_connectors_count(path: str) -> None:
    """Written by a connector that keeps no record."""
    write(path, None, 1)
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), rows().schema, "append")
    properties = {"lance.streaming.queryId": "q", "lance.streaming.epochId": "5"}
    fragments = write_fragments(rows(2).to_batches(), table, plan.schema, version=plan.version)
    commit_write(table, plan, fragments, properties)
    lance.write_dataset(rows(3), path, mode="append")
    assert write(path, IdempotentWrite("q", 5, "stream"), 2) is None
    assert write(path, IdempotentWrite("q", 6, "stream"), 4) is not None


def test_what_was_learned_is_not_read_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        lance.write_dataset(rows(number), path, mode="append" if number else "create")
    store, root = open_store(path)
    table = TableRef(store, root)
    known = AppliedWrites()
    known.learn(TableRef(store, root), load_latest(table))
    assert known.through == 3
    lance.write_dataset(rows(9), path, mode="append")
    reads: list[str] = []
    monkeypatch.setattr(once_module, "read_whole", lambda *asked: reads.append(asked[1]))
    known.learn(TableRef(store, root), load_latest(table))
    assert (known.through, reads) == (4, [])


@pytest.mark.parametrize("later", [0, 1, 12])
def test_a_pair_that_made_the_table_counts(path: str, later: int) -> None:
    """Written by a connector that keeps no record, as version 1; others have committed since."""
    store, root = open_store(path)
    table = TableRef(store, root)
    plan = plan_write(TableRef(store, root), find_latest(table), rows().schema, "append")
    properties = {"lance.streaming.queryId": "q", "lance.streaming.epochId": "0"}
    fragments = write_fragments(rows(1).to_batches(), table, plan.schema, version=plan.version)
    assert commit_write(table, plan, fragments, properties).version == 1
    for number in range(later):
        lance.write_dataset(rows(10 + number), path, mode="append")
    assert write(path, IdempotentWrite("q", 0, "stream"), 1) is None
    assert write(path, IdempotentWrite("q", 1, "stream"), 2) == later + 2


def test_jobs_that_did_not_commit_for_long_are_forgotten(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, None, 100)
    pylance(path).update_config({MAX_JOBS: "3"})
    for number in range(5):
        write(path, IdempotentWrite(f"job {number}", 1), number)
    assert sorted(record(path)["applications"]) == ["txn:job 2", "txn:job 3", "txn:job 4"]
    version = spark_lance.dataset(path).version
    for number in (1, 2):
        with pytest.raises(CommitError, match=r"nobody knows whether 'job 0' .*dropped from the record"):
            write(path, IdempotentWrite("job 0", number), 0)
    assert write(path, IdempotentWrite("job 4", 1), 4) is None
    assert spark_lance.dataset(path).version == version
    assert write(path, IdempotentWrite("a new job", 0), 7) == version + 1


def test_jobs_are_forgotten_by_age(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, IdempotentWrite("old", 1), 1)
    pylance(path).update_config({MAX_AGE: "30days"})
    later = CommitEnv(time_ns=lambda: time.time_ns() + 40 * 86_400 * 10**9)
    table = TableRef(*open_store(path))
    commit_operation(table, append_message([]), read_version=2, write_id=IdempotentWrite("new", 1), env=later)
    assert list(record(path)["applications"]) == ["txn:new"]
    with pytest.raises(CommitError, match="nobody knows whether 'old'"):
        write(path, IdempotentWrite("old", 1), 1)
    assert write(path, IdempotentWrite("new", 1), 1) is None


@pytest.mark.parametrize(
    "bound", [{MAX_JOBS: "0"}, {MAX_JOBS: "x"}, {MAX_AGE: "-1day"}, {MAX_JOBS: "9" * 99}]
)
def test_bounds_that_cannot_be_used(path: str, bound: dict[str, str]) -> None:
    write(path, IdempotentWrite("job", 1), 1)
    pylance(path).update_config(bound)
    with pytest.raises(OptionError, match=next(iter(bound))):
        write(path, IdempotentWrite("job", 2), 2)
    assert write(path, None, 3) == 3


def test_pairs_that_a_restore_hides_are_not_written_twice(path: str) -> None:
    """Another engine restores the version before a job's commit, then all but the newest are cleaned up."""
    write(path, IdempotentWrite("first", 1), 1)
    write(path, IdempotentWrite("second", 1), 2)
    lance.dataset(path, version=1).restore()  # type: ignore[no-untyped-call]
    lance.write_dataset(rows(5), path, mode="append")
    spark_lance.dataset(path).cleanup_old_versions(versions=[2])
    with pytest.raises(CommitError, match="another engine restored an older version, and version 2"):
        write(path, IdempotentWrite("second", 1), 2)
    assert write(path, IdempotentWrite("first", 1), 1) is None
    assert write(path, IdempotentWrite("first", 2), 3) == 5


def test_records_without_times_are_read(path: str) -> None:
    write(path, None, 0)
    pylance(path).update_config({APPLIED_WRITES: '{"through": 1, "applications": {"txn:job": [4, 1]}}'})
    assert write(path, IdempotentWrite("job", 4), 1) is None
    assert write(path, IdempotentWrite("job", 5), 1) == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"through": 1}', '{"through": 1, "applications": {"a": 1}}', '{"through": "x"}']
)
def test_a_damaged_record_stops_only_who_needs_it(path: str, text: str) -> None:
    write(path, None, 0)
    pylance(path).update_config({APPLIED_WRITES: text})
    with pytest.raises(FormatError, match=r"spark_lance\.transactions"):
        write(path, IdempotentWrite("job", 1), 1)
    write(path, None, 2)
    assert pylance(path).config()[APPLIED_WRITES] == text
    pylance(path).delete_config_keys([APPLIED_WRITES])
    assert write(path, IdempotentWrite("job", 1), 1) is not None


def test_a_record_that_claims_the_future_is_not_believed(path: str) -> None:
    write(path, IdempotentWrite("job", 1), 1)
    pylance(path).update_config({APPLIED_WRITES: '{"through": 99, "applications": {}}'})
    table = TableRef(*open_store(path))
    assert AppliedWrites.parse(load_latest(table)).through == 2


@pytest.mark.parametrize("pair", [("", 1, "txn"), ("a", -1, "txn"), ("a", 1, "other")])
def test_what_is_no_pair(pair: tuple[str, int, str]) -> None:
    with pytest.raises(OptionError):
        IdempotentWrite(*pair)


def test_properties_that_are_no_pair_are_passed_over() -> None:
    assert (
        list(read_idempotent_writes({"lance.streaming.queryId": "q", "lance.streaming.epochId": "-1"})) == []
    )
    assert list(read_idempotent_writes({"lance.streaming.epochId": "1"})) == []
    assert list(read_idempotent_writes(IdempotentWrite("a", 1).properties)) == [IdempotentWrite("a", 1)]


@pytest.mark.parametrize(
    ("key", "value"),
    [(MAX_JOBS, "0"), (MAX_JOBS, "x"), (MAX_JOBS, "9" * 99), (MAX_AGE, "-1day"), (MAX_AGE, "soon")],
)
def test_bounds_are_checked_when_they_are_set(tmp_path: Path, key: str, value: str) -> None:
    table = spark_lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t")
    with pytest.raises(OptionError, match=f"setting {key}"):
        table.update_config({key: value})
    assert table.update_config({MAX_JOBS: "5", MAX_AGE: "90days"}).config()[MAX_JOBS] == "5"
