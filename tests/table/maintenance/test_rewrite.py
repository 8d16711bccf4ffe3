"""Rewrite and CreateIndex as functions of a manifest, compared with what pylance makes of a rewrite."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyroaring import BitMap

from spark_lance.datasets.dataset import dataset
from spark_lance.datasets.maintain import Compaction
from spark_lance.errors import FormatError, RetryableConflictError, UnsupportedFormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import ManifestNaming
from spark_lance.table.format.rowids import append_row_ids
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.indices.fragment_reuse import extend_history
from spark_lance.table.operations.create_index import create_index, create_index_message
from spark_lance.table.operations.next_version import CommitContext, ReuseEntry
from spark_lance.table.operations.rewrite import rewrite
from spark_lance.table.versions.versions import load_latest, load_version

pb = transaction_pb2.Transaction
CONTEXT = CommitContext("/t", "1-x.txn", 5)


def fragment(number: int, rows: int = 10) -> table_pb2.DataFragment:
    message = table_pb2.DataFragment(id=number, physical_rows=rows)
    message.files.add(path=f"{number}-{rows}.lance", fields=[0], column_indices=[0])
    return message


def index(name: str, covered: list[int], kind: str = "BTree") -> table_pb2.IndexMetadata:
    entry = table_pb2.IndexMetadata(
        uuid=table_pb2.UUID(uuid=uuid.uuid5(uuid.NAMESPACE_OID, name).bytes), name=name, fields=[0]
    )
    entry.fragment_bitmap = BitMap(covered).serialize()
    entry.index_details.type_url = f"/lance.table.{kind}IndexDetails"
    return entry


def manifest(
    fragments: list[table_pb2.DataFragment], *indices: table_pb2.IndexMetadata, stable: bool = False
) -> Manifest:
    message = table_pb2.Manifest(version=7, fragments=fragments, max_fragment_id=9)
    if stable:
        message.reader_feature_flags = message.writer_feature_flags = 2
        for part in message.fragments:
            part.inline_row_ids = append_row_ids(b"", part.id * 100, part.physical_rows)
    section = table_pb2.IndexSection(indices=indices).SerializeToString()
    return Manifest(message, section, ManifestNaming.V2, "/t/_versions/x.manifest")


def groups(base: Manifest, *pairs: tuple[list[int], list[table_pb2.DataFragment]]) -> Any:
    present = {part.id: part for part in base.fragments}
    return pb.Rewrite(
        groups=[
            pb.Rewrite.RewriteGroup(old_fragments=[present[i] for i in old], new_fragments=new)
            for old, new in pairs
        ]
    )


def coverage(after: Manifest) -> dict[str, set[int]]:
    return {entry.name: set(BitMap.deserialize(entry.fragment_bitmap)) for entry in after.indices}


def test_ids_are_given_in_order_and_reserved_ones_are_kept() -> None:
    base = manifest([fragment(i) for i in range(6)])
    operation = groups(base, ([1, 2], [fragment(0, 20)]), ([4], [fragment(0, 6), fragment(0, 4)]))
    after = rewrite(base, operation, CONTEXT)
    assert [(f.id, f.physical_rows) for f in after.fragments] == [
        (0, 10),
        (3, 10),
        (5, 10),
        (10, 20),
        (11, 6),
        (12, 4),
    ]
    assert after.max_fragment_id == 12
    reserved = groups(base, ([1, 2], [fragment(8, 20)]))
    assert [f.id for f in rewrite(base, reserved, CONTEXT).fragments] == [0, 3, 4, 5, 8]
    assert rewrite(base, reserved, CONTEXT).max_fragment_id == 9


def test_a_group_may_leave_nothing() -> None:
    base = manifest([fragment(0), fragment(1)])
    after = rewrite(base, groups(base, ([0, 1], [])), CONTEXT)
    assert not after.fragments
    assert after.max_fragment_id == 9


def test_indices_stay_or_follow() -> None:
    base = manifest([fragment(i) for i in range(4)], index("all", [0, 1, 2, 3]), index("some", [1, 2, 3]))
    operation = groups(base, ([0, 1], [fragment(0, 20)]), ([2, 3], [fragment(0, 20)]))
    assert rewrite(base, operation, CONTEXT).index_section == base.index_section
    new = index("__lance_frag_reuse", [10, 11], "FragmentReuse")
    after = rewrite(base, operation, CommitContext("/t", "x", 5, reuse=ReuseEntry(new, b"")))
    assert coverage(after) == {"all": {10, 11}, "some": {11}, "__lance_frag_reuse": {10, 11}}


def test_a_reuse_entry_replaces_the_one_that_it_was_made_from() -> None:
    old, new = index("__lance_frag_reuse", [3]), index("__lance_frag_reuse", [3, 10])
    new.uuid.uuid = b"n" * 16
    base = manifest([fragment(0), fragment(1)], old, index("a", [0, 1]))
    operation = groups(base, ([0, 1], [fragment(0, 20)]))
    after = rewrite(base, operation, CommitContext("/t", "x", 5, reuse=ReuseEntry(new, old.uuid.uuid)))
    assert coverage(after) == {"a": {10}, "__lance_frag_reuse": {3, 10}}
    for replaces in (b"", b"o" * 16):
        with pytest.raises(RetryableConflictError, match="fragment-reuse"):
            rewrite(base, operation, CommitContext("/t", "x", 5, reuse=ReuseEntry(new, replaces)))


@pytest.mark.parametrize(
    ("kind", "version", "follows"),
    [
        ("Bitmap", 0, True),
        ("Bitmap", 1, False),
        ("LabelList", 1, True),
        ("Inverted", 2, True),
        ("NGram", 0, True),
        ("Vector", 1, True),
        ("BTree", 1, False),
        ("ZoneMap", 0, False),
        ("BloomFilter", 0, False),
        ("Unheard", 0, False),
    ],
)
def test_with_stable_row_ids_the_content_of_an_index_decides(kind: str, version: int, follows: bool) -> None:
    entry, partial = index("whole", [0, 1, 2], kind), index("partial", [0, 2], kind)
    entry.index_version = partial.index_version = version
    base = manifest([fragment(i) for i in range(3)], entry, partial, stable=True)
    new = fragment(0, 20)
    new.inline_row_ids = append_row_ids(b"", 500, 20)
    after = rewrite(base, groups(base, ([0, 1], [new])), CONTEXT)
    assert coverage(after) == {"whole": {2, 10} if follows else {2}, "partial": {2}}


def test_every_row_brings_its_id() -> None:
    base = manifest([fragment(0), fragment(1)], stable=True)
    with pytest.raises(FormatError, match="row ids"):
        rewrite(base, groups(base, ([0, 1], [fragment(0, 20)])), CONTEXT)


def test_rewritten_indices_are_put_in_place() -> None:
    entry = index("a", [0, 1, 2])
    entry.files.add(path="old", size_bytes=5)
    base = manifest([fragment(i) for i in range(3)], entry)
    operation = groups(base, ([0, 1], [fragment(0, 20)]))
    new = operation.rewritten_indices.add(old_id=entry.uuid, new_index_version=3)
    new.new_id.uuid = b"n" * 16
    new.new_index_details.type_url = "/lance.table.Other"
    new.new_index_files.add(path="new", size_bytes=7)
    (after,) = rewrite(base, operation, CONTEXT).indices
    assert (after.uuid.uuid, after.index_version, after.name) == (b"n" * 16, 3, "a")
    assert [(file.path, file.size_bytes) for file in after.files] == [("new", 7)]
    assert set(BitMap.deserialize(after.fragment_bitmap)) == {2, 10}
    partial = manifest([fragment(i) for i in range(3)], index("a", [0, 2]))
    with pytest.raises(FormatError, match="only some fragments"):
        rewrite(partial, operation, CONTEXT)
    replaced = manifest([fragment(i) for i in range(3)])
    with pytest.raises(RetryableConflictError, match="rewritten indexes"):
        rewrite(replaced, operation, CONTEXT)


@pytest.mark.parametrize("change", ["gone", "deleted", "other files"])
def test_a_fragment_that_has_changed_is_not_replaced(change: str) -> None:
    base = manifest([fragment(0), fragment(1)])
    operation = groups(base, ([0, 1], [fragment(0, 20)]))
    now = [] if change == "gone" else [fragment(1, 10 if change == "deleted" else 11)]
    if change == "deleted":
        now[0].deletion_file.num_deleted_rows = 1
    with pytest.raises(RetryableConflictError, match="fragment 1"):
        rewrite(manifest([fragment(0), *now]), operation, CONTEXT)


def test_the_older_form_is_refused() -> None:
    base = manifest([fragment(0)])
    with pytest.raises(UnsupportedFormatError):
        rewrite(base, pb.Rewrite(old_fragments=base.fragments, new_fragments=[fragment(0)]), CONTEXT)


def test_indices_come_and_go() -> None:
    old, remaining, new = index("a", [0]), index("b", [0]), index("c", [0])
    base = manifest([fragment(0)], old, remaining)
    again = index("a", [0, 1])
    after = create_index(base, create_index_message([new, again], []), CONTEXT)
    assert coverage(after) == {"b": {0}, "c": {0}, "a": {0, 1}}
    dropped = create_index(base, create_index_message(removed=[old, remaining]), CONTEXT)
    assert dropped.index_section == b""


def test_a_rewrite_of_pylance_is_built_alike(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for i in range(3):
        data = pa.table({"a": pa.array(range(i * 10, i * 10 + 10), pa.int64())})
        lance.write_dataset(data, path, mode="append" if i else "create")
    table: Any = lance.dataset(path)
    table.create_scalar_index("a", "BTREE")
    lance.dataset(path).optimize.compact_files()
    table_ref = TableRef(*open_store(path))
    theirs = load_latest(table_ref)
    operation: Any = read_transaction(table_ref, theirs).operation
    built = rewrite(load_version(table_ref, theirs.version - 1), operation, CONTEXT)
    assert built.fragments == theirs.fragments
    assert coverage(built) == coverage(theirs)
    assert [e.uuid.uuid for e in built.indices] == [e.uuid.uuid for e in theirs.indices]
    assert built.max_fragment_id == theirs.max_fragment_id


def test_reuse_entries_of_two_writers_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    for i in range(4):
        data = pa.table({"a": pa.array(range(i * 10, i * 10 + 10), pa.int64())})
        lance.write_dataset(data, path, mode="append" if i else "create")
    table: Any = lance.dataset(path)
    table.create_scalar_index("a", "BTREE")
    record = extend_history
    moved: list[int] = []

    def disturbed(*arguments: Any) -> Any:
        recorded = record(*arguments)
        if not moved:
            # After our entry is made and before it is committed, pylance commits another one.
            moved.append(1)
            options: Any = {"defer_index_remap": True, "excluded_fragment_ids": [0, 1]}
            lance.dataset(path).optimize.compact_files(**options)
        return recorded

    monkeypatch.setattr("spark_lance.table.maintenance.compact.extend_history", disturbed)
    ours = dataset(path)
    done = ours.compact_files(defer_index_remap=True, excluded_fragment_ids=[2, 3])
    assert (done.fragments_removed, done.fragments_added) == (2, 1)
    after = dataset(path)
    (reuse,) = (i for i in after.describe_indices() if i.index_type == "FragmentReuse")
    gone = [
        [digest.get("id", 0) for digest in group["old_fragments"]]
        for version in reuse.details["versions"]
        for group in version["groups"]
    ]
    assert gone == [[2, 3], [0, 1]]
    theirs: Any = lance.dataset(path)
    for value in range(40):
        assert theirs.to_table(filter=f"a = {value}")["a"].to_pylist() == [value]
    assert "ScalarIndex" in theirs.scanner(filter="a = 7").explain_plan()
    assert Compaction.plan(after, {"target_rows_per_fragment": 20}).num_tasks() == 0
