"""Deleting rows: deletion files, the operation, merging with the deletions of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import (
    ExpressionError,
    FormatError,
    IncompatibleConflictError,
    RetryableConflictError,
)
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.deletion import pack_deletions, read_deletions
from spark_lance.table.format.features import DELETION_FILES
from spark_lance.table.format.paths import deletion_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.rows.update import delete_rows, find_rows
from spark_lance.table.versions.versions import load_latest
from tests.wrapped_store import WrappedStore

Kind = table_pb2.DeletionFile
a = pc.field("a")


def rows(start: int, count: int) -> pa.Table:
    values = range(start, start + count)
    return pa.table({"a": pa.array(values, pa.int64()), "s": [str(value) for value in values]})


def values(path: Path) -> list[int]:
    """Return the live values as pylance sees them, after it has checked the table and its counts."""
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    result: list[int] = dataset.to_table(columns=["a"])["a"].to_pylist()
    assert dataset.count_rows() == len(result)
    assert spark_lance.dataset(path).to_table(["a"])["a"].to_pylist() == result
    return result


def deletion_files(path: Path) -> list[str]:
    return sorted(file.suffix for file in (path / "_deletions").glob("*"))


@given(
    offsets=st.lists(st.integers(0, 8999), unique=True, max_size=40),
    many=st.booleans(),
    bitmap=st.booleans(),
)
def test_deletion_files_read_back(offsets: list[int], many: bool, bitmap: bool) -> None:
    store, root = open_store("memory://deletions")
    deleted = np.union1d(np.array(offsets, np.uint32), np.arange(5001 if many else 0, dtype=np.uint32))
    fragment = table_pb2.DataFragment(id=3, physical_rows=9000)
    entry, data = pack_deletions(fragment, deleted.astype(np.uint32), version=7, bitmap=bitmap)
    store.put(deletion_path(root, fragment.id, entry), data)
    assert entry.num_deleted_rows == len(deleted)
    assert entry.read_version == 7
    assert entry.file_type == (Kind.BITMAP if bitmap or len(deleted) > 5000 else Kind.ARROW_ARRAY)
    fragment.deletion_file.CopyFrom(entry)
    np.testing.assert_array_equal(read_deletions(TableRef(store, root), fragment), deleted)


@pytest.mark.parametrize("count", [4999, 5000, 5001])
def test_pylance_reads_both_kinds_and_bitmaps_stay_bitmaps(tmp_path: Path, count: int) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 9000), path)
    ours = spark_lance.dataset(path).delete(a < count)
    (fragment,) = ours.manifest.fragments
    expected = Kind.BITMAP if count > 5000 else Kind.ARROW_ARRAY
    assert fragment.deletion_file.file_type == expected
    assert values(path) == list(range(count, 9000))
    lance.dataset(str(path)).delete("a = 8000")
    ours = spark_lance.dataset(path).delete(a == 8001)
    (fragment,) = ours.manifest.fragments
    assert fragment.deletion_file.num_deleted_rows == count + 2
    assert fragment.deletion_file.file_type == (Kind.BITMAP if count > 4998 else Kind.ARROW_ARRAY)
    assert values(path) == [*range(count, 8000), *range(8002, 9000)]


def test_our_arrow_files_are_what_pylance_writes(tmp_path: Path) -> None:
    tables = []
    for side in ("lance", "ours"):
        path = tmp_path / side
        dataset = lance.write_dataset(rows(0, 100), path)
        if side == "lance":
            dataset.delete("a < 40")
        else:
            spark_lance.dataset(path).delete(a < 40)
        (file,) = (path / "_deletions").iterdir()
        with pa.ipc.open_file(str(file)) as reader:
            tables.append(reader.read_all())
    assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
    assert tables[0].sort_by("row_id") == tables[1]


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_taking_turns(tmp_path: Path, version: str, stable: bool) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, **options)
    before = lance.dataset(str(path)).to_table(columns=["a", "_rowid"])
    expected = set(range(30))
    for turn, value in enumerate([0, 5, 11, 12, 29, 19, 20, 21]):
        if turn % 2:
            lance.dataset(str(path)).delete(f"a = {value}")
        else:
            spark_lance.dataset(path).delete(a == value)
        expected.remove(value)
        assert values(path) == sorted(expected)
    after = lance.dataset(str(path)).to_table(columns=["a", "_rowid"])
    assert after == before.filter(~pc.field("a").isin([0, 5, 11, 12, 29, 19, 20, 21]))


def test_manifests_equal_those_of_pylance(tmp_path: Path) -> None:
    manifests = []
    for side in ("lance", "ours"):
        path = tmp_path / side
        dataset = lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, enable_stable_row_ids=True)
        dataset.create_scalar_index("a", "BTREE")
        if side == "lance":
            dataset.delete("a < 12")
        else:
            spark_lance.dataset(path).delete(a < 12)
        latest = load_latest(TableRef(*open_store(path)))
        transaction = read_transaction(TableRef(*open_store(path)), latest)
        assert transaction.read_version == 2
        manifests.append((latest, transaction.message.delete))
    (theirs, operation), (ours, our_operation) = manifests
    assert our_operation.deleted_fragment_ids == operation.deleted_fragment_ids == [0]
    for fragment in (*ours.fragments, *theirs.fragments, *our_operation.updated_fragments):
        fragment.deletion_file.ClearField("id")
        for file in fragment.files:
            file.ClearField("path")
    assert ours.fragments == theirs.fragments
    for name in ("max_fragment_id", "next_row_id", "reader_feature_flags", "writer_feature_flags", "fields"):
        assert getattr(ours.message, name) == getattr(theirs.message, name)
    assert [index.fragment_bitmap for index in ours.indices] == [
        index.fragment_bitmap for index in theirs.indices
    ]
    path = tmp_path / "ours"
    for use in (True, False):
        scanned = lance.dataset(str(path)).scanner(filter="a < 15", use_scalar_index=use).to_table()
        assert scanned["a"].to_pylist() == [12, 13, 14]


def test_fragments_without_rows_go_and_their_ids_do_not_return(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 20), path, max_rows_per_file=10)
    dataset = spark_lance.dataset(path).delete(a >= 10)
    assert [fragment.id for fragment in dataset.manifest.fragments] == [0]
    assert not dataset.manifest.message.reader_feature_flags & DELETION_FILES
    dataset = dataset.delete(a < 4).delete(pc.scalar(True))
    assert values(path) == []
    assert dataset.manifest.message.reader_feature_flags == 0
    lance.write_dataset(rows(50, 2), path, mode="append")
    spark_lance.write_dataset(rows(60, 2), path, "append")
    assert [fragment.id for fragment in spark_lance.dataset(path).manifest.fragments] == [2, 3]
    assert values(path) == [50, 51, 60, 61]


def test_deleting_nothing_makes_a_version_as_with_pylance(tmp_path: Path) -> None:
    path = tmp_path / "t"
    assert lance.write_dataset(rows(0, 5), path).delete("a > 100") == {"num_deleted_rows": 0}
    dataset = spark_lance.dataset(path)
    assert dataset.version == 2
    assert dataset.delete(a > 100).version == 3
    assert not (path / "_deletions").exists()
    assert values(path) == list(range(5))


def test_nulls_are_not_deleted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(pa.table({"a": pa.array([1, None, 3], pa.int64())}), path)
    assert spark_lance.dataset(path).delete(a != 1).to_table()["a"].to_pylist() == [1, None]
    assert values(path) == [1, None]


def test_predicates_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset = spark_lance.write_dataset(rows(0, 3), path)
    with pytest.raises(ExpressionError):
        dataset.delete(pc.field("nope") == 1)
    assert dataset.latest_version == 1


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_deletes_of_different_rows_both_survive(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t"
    theirs = lance.write_dataset(rows(0, 20), path, max_rows_per_file=10)
    ours = spark_lance.dataset(path)
    if first == "ours":
        ours.delete(a == 1)
        theirs.delete("a = 2")
    else:
        theirs.delete("a = 2")
        ours = ours.delete((a == 1) | (a == 11))
        assert ours.version == 3
        transaction = read_transaction(ours.table, ours.manifest)
        assert transaction.read_version == 2
        assert transaction.file_name == ours.manifest.transaction_file
        merged, own = ours.manifest.fragments
        assert merged.deletion_file.file_type == Kind.BITMAP
        assert merged.deletion_file.read_version == 2
        assert merged.deletion_file.num_deleted_rows == 2
        assert own.deletion_file.file_type == Kind.ARROW_ARRAY
        # The file that the merged one replaced before it was ever visible is gone.
        assert deletion_files(path) == [".arrow", ".arrow", ".bin"]
    gone = {1, 2} if first == "ours" else {1, 2, 11}
    assert values(path) == [value for value in range(20) if value not in gone]


def test_merged_deletions_that_leave_no_row_remove_the_fragment(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 4), path)
    ours = spark_lance.dataset(path)
    lance.dataset(str(path)).delete("a < 2")
    assert not ours.delete(a >= 2).manifest.fragments
    assert values(path) == []


def test_what_the_low_level_commit_refuses_is_run_again_by_delete(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    stale = spark_lance.dataset(path)
    lance.dataset(str(path)).delete("a = 1 or a = 3")
    changes = find_rows(stale.snapshot, a < 3)
    outcome = changes.apply()
    message = delete_message(outcome.updated, outcome.removed, "a < 3")
    for known in (changes, None):
        with pytest.raises(RetryableConflictError):
            commit_operation(stale.table, message, read_version=1, rows=known)
    assert stale.latest_version == 2
    assert stale.delete(a < 3).version == 3
    assert values(path) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.update({"s": "'x'"}, where="a = 2"),
        lambda dataset: dataset.add_columns({"b": "a + 1"}),
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.delete("a < 10"),
        lambda dataset: dataset.alter_columns({"path": "a", "data_type": pa.int32()}),
        lambda dataset: dataset.drop_columns(["s"]),
        lambda dataset: dataset.create_scalar_index("a", "BTREE"),
        lambda dataset: dataset.update_config({"k": "v"}),
    ],
    ids=["update", "add", "compact", "remove fragment", "cast", "drop", "index", "config"],
)
def test_delete_after_any_change_that_it_did_not_know(tmp_path: Path, change: Callable[[Any], None]) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 20), path, max_rows_per_file=10)
    stale = spark_lance.dataset(path)
    change(lance.dataset(str(path)))
    expected = [value for value in sorted(values(path)) if value not in (2, 15)]
    stale.delete(a.isin([2, 15]))
    assert sorted(values(path)) == expected


def test_an_overwrite_is_no_reason_to_run_again(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    stale = spark_lance.dataset(path)
    lance.write_dataset(rows(0, 10), path, mode="overwrite")
    with pytest.raises(IncompatibleConflictError):
        stale.delete(a == 1)
    assert values(path) == list(range(10))
    assert not list((path / "_deletions").glob("*"))


def test_a_delete_that_names_missing_fragments_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = TableRef(*open_store(path))
    lance.write_dataset(rows(0, 10), path)
    for message in (delete_message([], [7], ""), delete_message([table_pb2.DataFragment(id=7)], [], "")):
        with pytest.raises(FormatError, match="7"):
            commit_operation(table, message, read_version=1)


class _LostAnswer(WrappedStore):
    """A store whose first put of a manifest lands but seems to fail."""

    lost = False

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        super().put_if_absent(path, data, sync=sync)
        if not type(self).lost:
            type(self).lost = True
            raise OSError("the connection was closed")


def test_a_lost_answer_to_a_merged_delete_is_recognized(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    stale = spark_lance.dataset(path)
    lance.dataset(str(path)).delete("a = 1")
    store = _LostAnswer.around(stale.store)
    assert delete_rows(replace(stale, table=replace(stale.table, store=store)).snapshot, a == 2).version == 3
    assert store.lost
    assert values(path) == [0, *range(3, 10)]


def test_retries_of_a_merged_delete_reach_the_newest_version(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 40), path)
    stale = spark_lance.dataset(path)
    turns = iter(range(20, 24))

    class Overtaken(WrappedStore):
        def put_if_absent(self, path_: str, data: bytes, *, sync: bool = False) -> None:
            if (turn := next(turns, None)) is not None:
                lance.dataset(str(path)).delete(f"a = {turn}")
            super().put_if_absent(path_, data, sync=sync)

    store = Overtaken.around(stale.store)
    committed = delete_rows(replace(stale, table=replace(stale.table, store=store)).snapshot, a == 2)
    assert committed.version == 6
    assert values(path) == [value for value in range(40) if value not in (2, *range(20, 24))]
    # Four of pylance's, one of ours: those of the lost attempts are gone.
    assert len(deletion_files(path)) == 5
    assert Path(deletion_path(stale.root, 0, committed.fragments[0].deletion_file)).exists()


def test_files_that_cannot_be_discarded_do_not_undo_a_commit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    stale = spark_lance.dataset(path)
    lance.dataset(str(path)).delete("a = 1")

    class Undeletable(WrappedStore):
        def delete(self, path: str, root: str) -> None:
            raise PermissionError(path)

    store = Undeletable.around(stale.store)
    assert delete_rows(replace(stale, table=replace(stale.table, store=store)).snapshot, a == 2).version == 3
    assert values(path) == [0, *range(3, 10)]
    assert len(deletion_files(path)) == 3


def test_deleters_and_appenders_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 200), path, max_rows_per_file=50)
    each = 12
    collisions = []

    def ours(first: int) -> None:
        for value in range(first, first + each):
            before = spark_lance.dataset(path)
            after = delete_rows(before.snapshot, a == value, reruns=RetryPolicy(100, 0.005, 0.05))
            collisions.append(after.version > before.version + 1)

    def theirs(first: int) -> None:
        for value in range(first, first + each):
            lance.dataset(str(path)).delete(f"a = {value}")

    def append() -> None:
        for value in range(1000, 1000 + each):
            spark_lance.write_dataset(rows(value, 1), path, "append")

    with ThreadPoolExecutor(4) as pool:
        tasks = [pool.submit(ours, 0), pool.submit(ours, 20), pool.submit(theirs, 35), pool.submit(append)]
        for task in tasks:
            task.result()
    gone = {value + turn for value, turn in itertools.product((0, 20, 35), range(each))}
    assert sorted(values(path)) == [*(v for v in range(200) if v not in gone), *range(1000, 1000 + each)]
    assert spark_lance.dataset(path).version == 4 * each + 1
    assert any(collisions)
