"""The conflict grid: as text, and executed against pylance."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyroaring import BitMap

import spark_lance
from spark_lance.errors import CommitError, IncompatibleConflictError, RetryableConflictError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.conflicts import CONFLICTS, Verdict, verdict
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction
from spark_lance.table.operations import OPERATIONS
from spark_lance.table.operations.append import append_message
from spark_lance.table.operations.delete import delete_message
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.operations.row_effects import ROW_EFFECTS
from spark_lance.table.rows.update import find_rows

Loose = Callable[..., list[table_pb2.DataFragment]]
pb = transaction_pb2.Transaction
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": pa.array([1.0, 2.0, 3.0])})


def judge(ours: str, theirs: str, **fields: object) -> Verdict:
    """Verdict of two operations, theirs with the given fields."""
    messages = {field.name: field for field in pb.DESCRIPTOR.oneofs_by_name["operation"].fields}

    def build(name: str, content: dict[str, object]) -> Transaction:
        kind = getattr(pb, messages[name].message_type.name)  # type: ignore[union-attr]
        return Transaction.new(kind(**content), 1)

    return verdict(build(ours, {}), build(theirs, fields))


def test_each_operation_of_the_format_has_a_row() -> None:
    assert {field.name for field in pb.DESCRIPTOR.oneofs_by_name["operation"].fields} == OPERATIONS.keys()


def test_the_grid_has_a_row_for_what_is_executed_and_a_column_for_everything() -> None:
    executed = {name for name, build in OPERATIONS.items() if build is not None}
    assert set(CONFLICTS) == executed | {"rewrite_deferred"}
    assert ROW_EFFECTS.keys() == OPERATIONS.keys()
    for row in CONFLICTS.values():
        assert set(row) == set(OPERATIONS)


def test_the_fixed_cells() -> None:
    # All others are fine.
    expected = {
        "append": {
            Verdict.REBASE: "append reserve_fragments",
            Verdict.INCOMPATIBLE: "overwrite restore update_mem_wal_state",
            Verdict.RETRY: "merge project",
        },
        "overwrite": {
            Verdict.REBASE: "append",
            Verdict.INCOMPATIBLE: "update_mem_wal_state",
            Verdict.RETRY: "overwrite",
        },
        "delete": {
            Verdict.INCOMPATIBLE: "overwrite restore update_mem_wal_state",
            Verdict.RETRY: "merge",
        },
        "restore": {
            Verdict.REBASE: "append",
            Verdict.INCOMPATIBLE: "update_mem_wal_state",
        },
        "reserve_fragments": {
            Verdict.REBASE: "append reserve_fragments",
            Verdict.INCOMPATIBLE: "overwrite restore",
        },
        "update_config": {},
        "update_bases": {},
    }
    for ours, cells in expected.items():
        named = {theirs: outcome for outcome, names in cells.items() for theirs in names.split()}
        fine = dict.fromkeys(OPERATIONS, Verdict.FINE)
        assert {theirs: judge(ours, theirs) for theirs in OPERATIONS} == {**fine, **named}


def test_schema_changes_that_keep_nulls_legal_do_not_stop_an_append() -> None:
    for theirs in ("merge", "project"):
        assert judge("append", theirs, preserves_nullability=True) is Verdict.FINE
        assert judge("append", theirs, preserves_nullability=False) is Verdict.RETRY


def test_config_keys_that_two_overwrites_set() -> None:
    ours = Transaction.new(pb.Overwrite(config_upsert_values={"k": "1", "m": "2"}), 1)
    same = Transaction.new(pb.Overwrite(config_upsert_values={"k": "1"}), 1)
    other = Transaction.new(pb.Overwrite(config_upsert_values={"z": "1"}), 1)
    assert verdict(ours, same) is Verdict.INCOMPATIBLE
    assert verdict(ours, other) is Verdict.RETRY


def test_config_keys_that_an_overwrite_and_an_update_share() -> None:
    ours = Transaction.new(pb.Overwrite(config_upsert_values={"k": "1"}), 1)
    updates = pb.UpdateMap(update_entries=[pb.UpdateMapEntry(key="k", value="2")])
    deletes = pb.UpdateMap(update_entries=[pb.UpdateMapEntry(key="k")])
    for clash in (
        pb.UpdateConfig(config_updates=updates),
        pb.UpdateConfig(config_updates=deletes),
        pb.UpdateConfig(upsert_values={"k": "2"}),
        pb.UpdateConfig(delete_keys=["k"]),
    ):
        assert verdict(ours, Transaction.new(clash, 1)) is Verdict.INCOMPATIBLE
    for apart in (
        pb.UpdateConfig(table_metadata_updates=updates),
        pb.UpdateConfig(config_updates=pb.UpdateMap(update_entries=[pb.UpdateMapEntry(key="z")])),
    ):
        assert verdict(ours, Transaction.new(apart, 1)) is Verdict.FINE


def test_base_paths_that_two_writers_add() -> None:
    def added(path: str, name: str | None = None, number: int = 0) -> Transaction:
        return Transaction.new(
            pb.UpdateBases(new_bases=[table_pb2.BasePath(id=number, name=name, path=path)]), 1
        )

    for ours, theirs in (
        (added("/x", "n"), added("/y", "n")),
        (added("/x"), added("/x", "n")),
        (added("/x", "n", 7), added("/y", "m", 7)),
    ):
        assert verdict(ours, theirs) is verdict(theirs, ours) is Verdict.INCOMPATIBLE
    assert verdict(added("/x", "n"), added("/y", "m")) is Verdict.FINE
    assert verdict(added("/x", "n", 1), added("/y", "m", 2)) is Verdict.FINE


def test_keys_that_two_updates_insert() -> None:
    kind = pb.KeyExistenceFilter

    def inserts(**content: Any) -> Transaction:
        return Transaction.new(pb.Update(inserted_rows=kind(field_ids=[0], **content)), 1)

    def bloom(first: int, items: int = 9) -> Transaction:
        # One block of eight words, in each of which a key sets a bit.
        words = bytes([first, 0, 0, 0]) * 8
        bits = kind.BloomFilter(bitmap=words, num_bits=256, number_of_items=items, probability=0.1)
        return inserts(bloom=bits)

    exact = [inserts(exact=kind.ExactKeySet(key_hashes=hashes)) for hashes in ([1, 2], [2, 3], [4])]
    assert verdict(exact[0], exact[1]) is Verdict.RETRY
    assert verdict(exact[0], exact[2]) is Verdict.FINE
    assert verdict(bloom(3), bloom(1)) is Verdict.RETRY
    assert verdict(bloom(3), bloom(4)) is Verdict.FINE
    # What cannot be compared may be equal.
    assert verdict(bloom(3), bloom(4, items=8)) is verdict(exact[0], bloom(4)) is Verdict.RETRY
    other_field = Transaction.new(
        pb.Update(inserted_rows=kind(field_ids=[1], exact=kind.ExactKeySet(key_hashes=[4]))), 1
    )
    assert verdict(exact[0], other_field) is Verdict.RETRY
    # Without a filter theirs may have inserted anything; without one of its own, ours does not care.
    plain, append = Transaction.new(pb.Update(), 1), Transaction.new(pb.Append(), 1)
    assert verdict(exact[0], plain) is verdict(exact[0], append) is Verdict.RETRY
    assert verdict(plain, exact[0]) is verdict(plain, append) is Verdict.FINE


def test_a_deferred_rewrite_needs_indices_that_cover_its_groups_wholly() -> None:
    def index(covered: list[int] | None, kind: str = "BTree") -> Transaction:
        entry = table_pb2.IndexMetadata(name="i", fields=[0], uuid=table_pb2.UUID(uuid=bytes(16)))
        entry.index_details.type_url = f"/lance.table.{kind}IndexDetails"
        if covered is not None:
            entry.fragment_bitmap = BitMap(covered).serialize()
        return Transaction.new(pb.CreateIndex(new_indices=[entry]), 1)

    group = pb.Rewrite.RewriteGroup(old_fragments=[table_pb2.DataFragment(id=i) for i in (1, 2)])
    ours = Transaction.new(pb.Rewrite(groups=[group]), 1)
    for covered, plain, deferred in (
        ([0, 1, 2], Verdict.RETRY, Verdict.FINE),
        ([1], Verdict.RETRY, Verdict.RETRY),
        ([0], Verdict.FINE, Verdict.FINE),
        (None, Verdict.RETRY, Verdict.RETRY),
    ):
        assert verdict(ours, index(covered)) is plain
        assert verdict(ours, index(covered), deferred=True) is deferred
    assert verdict(ours, index([1, 2], "NGram"), deferred=True) is Verdict.RETRY
    damaged = index([1])
    damaged.message.create_index.new_indices[0].fragment_bitmap = b"no bitmap"
    assert verdict(ours, damaged) is Verdict.RETRY


def test_deletes_and_what_others_did_to_the_same_fragments() -> None:
    fragments = [table_pb2.DataFragment(id=number) for number in range(4)]
    ours = Transaction.new(pb.Delete(updated_fragments=fragments[1:2], deleted_fragment_ids=[2]), 1)
    whole = Transaction.new(pb.Delete(deleted_fragment_ids=[1, 2]), 1)
    group = pb.Rewrite.RewriteGroup
    replaced = pb.DataReplacementGroup
    for number in range(4):
        overlaps = number in (1, 2)
        merged: list[Any] = [
            pb.Delete(updated_fragments=[fragments[number]]),
            pb.Delete(deleted_fragment_ids=[number]),
            pb.Update(updated_fragments=[fragments[number]]),
            pb.Update(removed_fragment_ids=[number], new_fragments=[fragments[2]]),
        ]
        moved: list[Any] = [
            pb.Rewrite(old_fragments=[fragments[number]], new_fragments=[fragments[2]]),
            pb.Rewrite(groups=[group(old_fragments=[fragments[number]], new_fragments=[fragments[2]])]),
            pb.DataReplacement(replacements=[replaced(fragment_id=number)]),
        ]
        for operation in merged:
            theirs = Transaction.new(operation, 1)
            assert verdict(ours, theirs) is (Verdict.MERGE if overlaps else Verdict.FINE)
            assert verdict(whole, theirs) is (Verdict.RETRY if overlaps else Verdict.FINE)
        for operation in moved:
            theirs = Transaction.new(operation, 1)
            assert verdict(ours, theirs) is (Verdict.RETRY if overlaps else Verdict.FINE)


def test_config_updates_of_the_older_form_count_too() -> None:
    updates = pb.UpdateMap(update_entries=[pb.UpdateMapEntry(key="k", value="2")])
    ours = Transaction.new(pb.UpdateConfig(config_updates=updates), 1)
    schema = Transaction.new(pb.UpdateConfig(schema_metadata_updates=pb.UpdateMap()), 1)
    old_values, old_keys, old_schema = (
        Transaction.new(message, 1)
        for message in (
            pb.UpdateConfig(upsert_values={"k": "1"}),
            pb.UpdateConfig(delete_keys=["k"]),
            pb.UpdateConfig(schema_metadata={"m": "1"}),
        )
    )
    assert verdict(ours, old_values) is verdict(ours, old_keys) is Verdict.INCOMPATIBLE
    assert verdict(ours, old_schema) is verdict(schema, old_values) is Verdict.FINE
    assert verdict(schema, old_schema) is Verdict.INCOMPATIBLE


def test_an_unknown_operation_is_incompatible_with_everything() -> None:
    future = Transaction(pb(uuid="f", read_version=1))
    for operation in (pb.Append(), pb.Overwrite()):
        assert verdict(Transaction.new(operation, 1), future) is Verdict.INCOMPATIBLE


def _stale(path: Path) -> Any:
    return lance.dataset(str(path), version=1)


THEIRS: dict[str, Callable[[Path], object]] = {
    "append": lambda path: lance.write_dataset(ROWS, path, mode="append"),
    "overwrite": lambda path: lance.write_dataset(ROWS, path, mode="overwrite"),
    "delete": lambda path: _stale(path).delete("a = 1"),
    "update": lambda path: _stale(path).update({"b": "9.0"}, where="a = 2"),
    "create_index": lambda path: _stale(path).create_scalar_index("a", "BTREE"),
    "rewrite": lambda path: lance.dataset(str(path)).optimize.compact_files(),
    "merge": lambda path: _stale(path).add_columns({"c": "a + 1"}),
    "project": lambda path: _stale(path).drop_columns(["b"]),
    "tighten": lambda path: _stale(path).alter_columns({"path": "b", "nullable": False}),
    "restore": lambda path: _stale(path).restore(),
    "update_config": lambda path: _stale(path).update_config({"k": "v"}),
    "update_metadata": lambda path: _stale(path).update_metadata({"k": "v"}),
    "update_schema": lambda path: _stale(path).update_schema_metadata({"k": "v"}),
    "update_field": lambda path: _stale(path).update_field_metadata({"a": {"k": "v"}}),
}


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except RetryableConflictError:
        return "retry"
    except IncompatibleConflictError:
        return "incompatible"
    except CommitError as error:
        return type(error).__name__
    except OSError as error:
        text = str(error)
        return (
            "retry"
            if "Retryable commit conflict" in text
            else "incompatible"
            if "ncompatible" in text
            else text
        )
    return "fine"


def _rows_of_one(dataset: spark_lance.LanceDataset) -> Any:
    changes = find_rows(dataset.snapshot, pc.field("a") == 2)
    outcome = changes.apply()
    return delete_message(outcome.updated, outcome.removed, "a = 2")


# The operation for pylance and the message for us, both made from the version that is then left behind.
Ours = tuple[Callable[[Any], Any], Callable[[spark_lance.LanceDataset, list[table_pb2.DataFragment]], Any]]
OURS: dict[str, Ours] = {
    "append": (
        lambda theirs: lance.LanceOperation.Append(_written(theirs)),
        lambda ours, fragments: append_message(fragments),
    ),
    "overwrite": (
        lambda theirs: lance.LanceOperation.Overwrite(ROWS.schema, _written(theirs)),
        lambda ours, fragments: overwrite_message(ours.lance_schema, fragments),
    ),
    "delete": (
        lambda theirs: lance.LanceOperation.Delete([theirs.get_fragments()[0].delete("a = 2")], [], "a = 2"),
        lambda ours, fragments: _rows_of_one(ours),
    ),
    "restore": (
        lambda theirs: lance.LanceOperation.Restore(1),
        lambda ours, fragments: pb.Restore(version=1),
    ),
}


def _written(dataset: Any) -> Any:
    return lance.fragment.write_fragments(ROWS, dataset.uri, mode="append")


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("ours", OURS)
def test_pairs_end_as_with_pylance(tmp_path: Path, loose: Loose, ours: str, theirs: str) -> None:
    outcomes = []
    as_theirs, as_ours = OURS[ours]
    for side in ("lance", "spark_lance"):
        path = tmp_path / side
        lance.write_dataset(ROWS, path)
        if theirs == "rewrite":
            # Two small fragments to compact, so that the version read by ours is the second one.
            lance.write_dataset(ROWS, path, mode="append")
        dataset = lance.dataset(str(path))
        operation = as_theirs(dataset)
        message = as_ours(spark_lance.dataset(path), loose(path, ROWS, mode="append"))
        THEIRS[theirs](path)
        if side == "lance":
            outcomes.append(
                outcome(lambda: lance.LanceDataset.commit(str(path), operation, read_version=dataset.version))  # noqa: B023
            )
        else:
            store, root = open_store(path)
            attempt = partial(commit_operation, TableRef(store, root), message, read_version=dataset.version)
            outcomes.append(outcome(attempt))
    assert outcomes[0] == outcomes[1]
    if outcomes[0] == "fine":
        tables = [lance.dataset(str(tmp_path / side)).to_table() for side in ("lance", "spark_lance")]
        assert tables[0].column("a") == tables[1].column("a")
