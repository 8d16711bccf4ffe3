"""Rows to delete or to move, fitted onto what other writers did to their fragments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import RetryableConflictError
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.versions.versions import load_latest

pb = transaction_pb2.Transaction
ROWS = pa.table({"a": pa.array(range(8), pa.int64()), "b": [str(i) for i in range(8)]})


@pytest.fixture
def table(tmp_path: Path) -> spark_lance.LanceDataset:
    """Two fragments of four rows."""
    lance.write_dataset(ROWS, tmp_path / "t", max_rows_per_file=4)
    return spark_lance.dataset(tmp_path / "t")


def changes(table: spark_lance.LanceDataset, **rows: list[int]) -> RowChanges:
    """Rows of fragments by their offsets: `f0=[1, 2]`."""
    offsets = {int(name[1:]): np.array(numbers, np.uint32) for name, numbers in rows.items()}
    return RowChanges(table.snapshot, RowSet.from_offsets(offsets))


def commit(table: spark_lance.LanceDataset, rows: RowChanges, operation: Any = None) -> Any:
    """Commit a Delete of the rows, or another operation with them, from the version they were found in."""
    if operation is None:
        outcome = rows.apply()
        operation = delete_message(outcome.updated, outcome.removed, "a test")
    return commit_operation(table.table, operation, read_version=rows.source.version, rows=rows)


def values(table: spark_lance.LanceDataset) -> list[int]:
    rows: list[int] = lance.dataset(table.root).to_table(columns=["a"])["a"].to_pylist()
    assert spark_lance.dataset(table.root).to_table(["a"])["a"].to_pylist() == rows
    return rows


def with_other_file(fragment: table_pb2.DataFragment) -> table_pb2.DataFragment:
    changed = table_pb2.DataFragment()
    changed.CopyFrom(fragment)
    changed.files[0].fields[1] = -2
    file = changed.files.add()
    file.CopyFrom(fragment.files[0])
    file.path = "other.lance"
    del file.fields[0], file.column_indices[0]
    return changed


def test_rows_of_a_fragment_with_other_data_files_are_looked_for_again(
    table: spark_lance.LanceDataset,
) -> None:
    ours, untouched = changes(table, f0=[1]), changes(table, f1=[1])
    column = pb.Update(
        updated_fragments=[with_other_file(table.manifest.fragments[0])],
        fields_modified=[1],
        update_mode=pb.Update.REWRITE_COLUMNS,
    )
    commit_operation(table.table, column, read_version=1)
    with pytest.raises(RetryableConflictError, match="fragment 0 has been rewritten"):
        commit(table, ours)
    with pytest.raises(RetryableConflictError, match="fragment 0 has been rewritten"):
        ours.apply(load_latest(table.table))
    assert commit(table, untouched).version == 3


def test_rows_of_a_fragment_that_is_gone_are_looked_for_again(table: spark_lance.LanceDataset) -> None:
    ours = changes(table, f0=[1])
    gone = pb.Delete(deleted_fragment_ids=[0])
    commit_operation(table.table, gone, read_version=1)
    with pytest.raises(RetryableConflictError, match="fragment 0 has been rewritten or removed"):
        commit(table, ours)


def moved(table: spark_lance.LanceDataset, rows: RowChanges, new: list[Any]) -> pb.Update:
    """An Update that moves the rows into new fragments."""
    outcome = rows.apply()
    return pb.Update(
        updated_fragments=outcome.updated,
        removed_fragment_ids=outcome.removed,
        new_fragments=new,
        fields_for_preserving_frag_bitmap=[0, 1],
    )


Loose = Callable[..., list[table_pb2.DataFragment]]


def test_an_update_keeps_the_deletions_of_others(table: spark_lance.LanceDataset, loose: Loose) -> None:
    rows = changes(table, f0=[0, 1], f1=[2])
    operation = moved(table, rows, loose(Path(table.root), ROWS.slice(0, 3), mode="append"))
    lance.dataset(table.root).delete("a in (2, 7)")
    committed = commit(table, rows, operation)
    assert values(table) == [3, 4, 5, 0, 1, 2]
    first = committed.fragments[0]
    assert read_deletions(table.table, first).tolist() == [0, 1, 2]
    transaction = read_transaction(table.table, committed)
    assert (transaction.name, transaction.read_version) == ("update", 2)
    assert list(transaction.message.update.updated_fragments) == list(committed.fragments[:2])
    assert len(transaction.message.update.new_fragments) == 1


def test_an_update_that_takes_the_last_rows_removes_the_fragment(
    table: spark_lance.LanceDataset, loose: Loose
) -> None:
    rows = changes(table, f0=[0, 1])
    operation = moved(table, rows, loose(Path(table.root), ROWS.slice(0, 2), mode="append"))
    lance.dataset(table.root).delete("a in (2, 3)")
    committed = commit(table, rows, operation)
    assert values(table) == [4, 5, 6, 7, 0, 1]
    update = read_transaction(table.table, committed).message.update
    assert (list(update.removed_fragment_ids), list(update.updated_fragments)) == ([0], [])


def test_an_update_of_a_row_that_another_updated_is_run_again(
    table: spark_lance.LanceDataset, loose: Loose
) -> None:
    rows = changes(table, f0=[0])
    operation = moved(table, rows, loose(Path(table.root), ROWS.slice(0, 1), mode="append"))
    lance.dataset(table.root).update({"b": "'x'"}, where="a = 0")
    with pytest.raises(RetryableConflictError, match="a row of fragment 0"):
        commit(table, rows, operation)
    assert load_latest(table.table).version == 2


def test_without_its_rows_an_update_in_the_same_fragment_is_run_again(
    table: spark_lance.LanceDataset, loose: Loose
) -> None:
    operation = moved(table, changes(table, f0=[0]), [])
    lance.dataset(table.root).delete("a = 3")
    with pytest.raises(RetryableConflictError, match="run the operation again"):
        commit_operation(table.table, operation, read_version=1)


def test_the_highest_fragment_id_is_kept_when_its_fragment_goes(
    table: spark_lance.LanceDataset, forge: Callable[..., None]
) -> None:
    def forget(message: table_pb2.Manifest) -> None:
        message.ClearField("max_fragment_id")

    forge(Path(table.root), forget)
    table = spark_lance.dataset(table.root)
    assert table.manifest.max_fragment_id is None
    gone = commit(table, changes(table, f1=[0, 1, 2, 3]))
    assert gone.max_fragment_id == 1
    spark_lance.write_dataset(ROWS.slice(0, 1), table.root, mode="append")
    assert [fragment.id for fragment in load_latest(table.table).fragments] == [0, 2]


def marks(table: spark_lance.LanceDataset) -> set[str]:
    """The deletion files that are there."""
    return {str(file) for file in Path(table.root).glob("_deletions/*")}


def test_files_are_written_again_only_for_fragments_that_changed(table: spark_lance.LanceDataset) -> None:
    ours = changes(table, f0=[1], f1=[1])
    ours.apply()
    first = list(ours.written)
    ours.apply()
    assert list(ours.written) == first
    lance.dataset(table.root).delete("a = 7")
    ours.apply(load_latest(table.table))
    assert list(ours.written)[:2] == first
    assert len(ours.written) == 3


def test_discarding_keeps_what_the_version_names(table: spark_lance.LanceDataset) -> None:
    ours = changes(table, f0=[1], f1=[1])
    operation = ours.apply()
    theirs = lance.dataset(table.root)
    theirs.delete("a = 7")
    before = marks(table) - set(ours.written)
    committed = commit(table, ours, delete_message(operation.updated, operation.removed, "a test"))
    remaining, unused, named = ours.written
    # As in pylance, what is fitted onto a newer version is a bitmap.
    assert [file.rpartition(".")[2] for file in ours.written] == ["arrow", "arrow", "bin"]
    ours.discard(committed)
    assert marks(table) == before | {remaining, named}
    assert unused not in marks(table)
    assert values(table) == [0, 2, 3, 4, 6]
    ours.discard()
    assert marks(table) == before


def test_a_file_that_cannot_be_deleted_stays_and_is_told_of(
    table: spark_lance.LanceDataset, caplog: pytest.LogCaptureFixture
) -> None:
    ours = changes(table, f0=[1], f1=[1])
    ours.apply()
    lost, other = ours.written
    Path(lost).unlink()
    Path(lost).mkdir()
    ours.discard()
    assert f"the unused deletion file {lost} stays behind" in caplog.text
    assert other not in marks(table)


def test_many_fragments_are_marked_at_once(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"a": range(24)}), tmp_path / "t", max_rows_per_file=2)
    table = spark_lance.dataset(tmp_path / "t")
    ours = changes(table, **{f"f{number}": [1] for number in range(12)})
    assert values(table) == list(range(24))
    commit(table, ours)
    assert values(table) == list(range(0, 24, 2))
    with pytest.raises(RetryableConflictError, match="a row of fragment"):
        ours.apply(load_latest(table.table))


@pytest.mark.parametrize("rival", ["a = 1", "a in (1, 2, 3)"], ids=["some rows", "what ours leave"])
@pytest.mark.parametrize("update", [False, True], ids=["delete", "update"])
def test_fragments_without_rows_go_though_others_were_first(
    table: spark_lance.LanceDataset, rival: str, update: bool
) -> None:
    """Ours takes all rows of fragment 1, and with what the rival took perhaps all of fragment 0."""
    spark_lance.dataset(table.root).delete(rival)
    ours = "a = 0 or a >= 4"
    if update:
        table.update({"b": "'new'"}, where=ours)
    else:
        table.delete(ours)
    newest = load_latest(table.table)
    operation: Any = read_transaction(table.table, newest).operation
    gone = [1] if rival == "a = 1" else [0, 1]
    message = operation.removed_fragment_ids if update else operation.deleted_fragment_ids
    assert sorted(message) == gone
    assert [fragment.id for fragment in newest.fragments if fragment.id < 2] == [
        n for n in (0, 1) if n not in gone
    ]
    left = [2, 3] if rival == "a = 1" else []
    assert sorted(values(table)) == sorted([*left, *([0, 4, 5, 6, 7] if update else [])])
