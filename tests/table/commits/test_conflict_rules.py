"""Each rule of the conflict grid on small messages; `test_conflict_grid` compares them with pylance's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from google.protobuf.message import Message
from pyroaring import BitMap

from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.conflicts import RULES, Verdict
from spark_lance.table.format.index_kinds import INDEX_KINDS
from spark_lance.table.format.reserved_names import FRAGMENT_REUSE, MEM_WAL

pb = transaction_pb2.Transaction
FINE, REBASE, MERGE, RETRY, INCOMPATIBLE = (
    Verdict.FINE,
    Verdict.REBASE,
    Verdict.MERGE,
    Verdict.RETRY,
    Verdict.INCOMPATIBLE,
)
ROWS, COLUMNS = pb.Update.REWRITE_ROWS, pb.Update.REWRITE_COLUMNS
BTREE, NGRAM = INDEX_KINDS["btreeindexdetails"].type_url, INDEX_KINDS["ngramindexdetails"].type_url


def fragments(*numbers: int) -> list[table_pb2.DataFragment]:
    return [table_pb2.DataFragment(id=number) for number in numbers]


def delete(*updated: int, gone: Sequence[int] = ()) -> Message:
    return pb.Delete(updated_fragments=fragments(*updated), deleted_fragment_ids=gone)


def update(
    *updated: int, gone: Sequence[int] = (), keys: pb.KeyExistenceFilter | None = None, **more: Any
) -> Message:
    return pb.Update(
        updated_fragments=fragments(*updated), removed_fragment_ids=gone, inserted_rows=keys, **more
    )


def exact(*hashes: int, fields: Sequence[int] = (1,)) -> pb.KeyExistenceFilter:
    return pb.KeyExistenceFilter(field_ids=fields, exact={"key_hashes": hashes})


def bloom(
    bitmap: bytes, *, fields: Sequence[int] = (1,), items: int = 8, bits: int = 0
) -> pb.KeyExistenceFilter:
    return pb.KeyExistenceFilter(
        field_ids=fields,
        bloom={
            "bitmap": bitmap,
            "num_bits": bits or 8 * len(bitmap),
            "number_of_items": items,
            "probability": 0.01,
        },
    )


def rewrite(*groups: Iterable[int]) -> Message:
    return pb.Rewrite(groups=[pb.Rewrite.RewriteGroup(old_fragments=fragments(*group)) for group in groups])


def project(*fields: int, keeps: bool = True) -> Message:
    return pb.Project(schema=[{"id": number} for number in fields], preserves_nullability=keeps)


def replacement(*cells: tuple[int, int]) -> Message:
    entries = [{"fragment_id": fragment, "new_file": {"fields": [field]}} for fragment, field in cells]
    return pb.DataReplacement(replacements=entries)


def entry(
    name: str = "i",
    covered: Iterable[int] | None = (0,),
    *,
    fields: Sequence[int] = (1,),
    number: int = 1,
    type_url: str = BTREE,
) -> table_pb2.IndexMetadata:
    result = table_pb2.IndexMetadata(name=name, fields=fields)
    result.uuid.uuid = bytes([number]) * 16
    result.index_details.type_url = type_url
    if covered is not None:
        result.fragment_bitmap = BitMap(covered).serialize()
    return result


def index(*new: table_pb2.IndexMetadata, gone: Sequence[table_pb2.IndexMetadata] = ()) -> Message:
    return pb.CreateIndex(new_indices=new, removed_indices=gone)


def texts(*written: str, deleted: Sequence[str] = (), replace: bool = False) -> pb.UpdateMap:
    entries = [{"key": key, "value": "x"} for key in written] + [{"key": key} for key in deleted]
    return pb.UpdateMap(update_entries=entries, replace=replace)


def config(*written: str, deleted: Sequence[str] = (), **more: Any) -> Message:
    return pb.UpdateConfig(config_updates=texts(*written, deleted=deleted), **more)


def overwrite(*keys: str) -> Message:
    return pb.Overwrite(config_upsert_values=dict.fromkeys(keys, "x"))


def bases(*places: tuple[int, str | None, str]) -> Message:
    return pb.UpdateBases(new_bases=[{"id": i, "name": name, "path": path} for i, name, path in places])


ONE_WORD = b"\x01" + bytes(31)
EVERY_WORD = (b"\x01" + bytes(3)) * 8
UNREADABLE = entry("i", None)
UNREADABLE.fragment_bitmap = b"no bitmap"
MERGE_OF_ALL = pb.Merge(preserves_nullability=True)

CASES: dict[str, list[tuple[Message, Message, Verdict]]] = {
    "d": [
        (delete(0), delete(1), FINE),
        (delete(0), delete(0), MERGE),
        (delete(gone=[0]), delete(0), RETRY),
        (delete(0), delete(gone=[0]), MERGE),
        (delete(gone=[0]), delete(gone=[1]), FINE),
        (delete(0), update(0), MERGE),
        (update(0), delete(gone=[0]), MERGE),
        (delete(0), update(gone=[0]), MERGE),
    ],
    "e": [
        (update(0), update(1), FINE),
        (update(0), update(0), MERGE),
        (update(gone=[0]), update(0), RETRY),
        (update(0, keys=exact(1, 2)), update(1), RETRY),
        (update(0), update(1, keys=exact(1)), FINE),
        (update(0, keys=exact(1, 2)), update(1, keys=exact(3)), FINE),
        (update(0, keys=exact(1, 2)), update(1, keys=exact(2)), RETRY),
        (update(0, keys=exact(1)), update(1, keys=exact(3, fields=(2,))), RETRY),
        (update(0, keys=exact(1)), update(1, keys=bloom(EVERY_WORD)), RETRY),
        (update(0, keys=pb.KeyExistenceFilter(field_ids=[1])), update(1, keys=exact(1)), RETRY),
        (
            update(0, keys=pb.KeyExistenceFilter(field_ids=[1])),
            update(1, keys=pb.KeyExistenceFilter(field_ids=[1])),
            RETRY,
        ),
        (update(0, keys=bloom(EVERY_WORD)), update(1, keys=bloom(EVERY_WORD)), RETRY),
        (update(0, keys=bloom(EVERY_WORD)), update(1, keys=bloom(ONE_WORD)), FINE),
        (update(0, keys=bloom(bytes(32))), update(1, keys=bloom(EVERY_WORD)), FINE),
        # Bits of one block do not make a key with those of another.
        (
            update(0, keys=bloom(EVERY_WORD[:16] + bytes(32) + EVERY_WORD[16:])),
            update(1, keys=bloom(EVERY_WORD * 2)),
            FINE,
        ),
        (
            update(0, keys=bloom(bytes(32) + EVERY_WORD)),
            update(1, keys=bloom(EVERY_WORD * 2)),
            RETRY,
        ),
        # Filters of other shapes say nothing of each other.
        (update(0, keys=bloom(bytes(32))), update(1, keys=bloom(bytes(32), items=9)), RETRY),
        (update(0, keys=bloom(bytes(32))), update(1, keys=bloom(bytes(64))), RETRY),
        (update(0, keys=bloom(bytes(32))), update(1, keys=bloom(bytes(32), bits=7)), RETRY),
        # Not made of blocks of eight words: any common bit may be a key.
        (update(0, keys=bloom(b"\x01\x00")), update(1, keys=bloom(b"\x01\x02")), RETRY),
        (update(0, keys=bloom(b"\x01\x00")), update(1, keys=bloom(b"\x02\x02")), FINE),
        (update(0, keys=exact(1)), update(0, keys=exact(3)), MERGE),
    ],
    "p": [
        (update(0), pb.Append(), FINE),
        (update(0, keys=exact(1)), pb.Append(), RETRY),
    ],
    "f": [
        (delete(0), rewrite([0, 1]), RETRY),
        (delete(gone=[1]), rewrite([0, 1]), RETRY),
        (delete(2), rewrite([0, 1]), FINE),
        (update(gone=[1]), rewrite([0], [1]), RETRY),
        (rewrite([0]), replacement((0, 1)), RETRY),
        (rewrite([0]), replacement((1, 0)), FINE),
        (rewrite([0]), pb.Rewrite(old_fragments=fragments(0)), RETRY),
        (rewrite([0]), pb.DataOverlay(groups=[{"fragment_id": 0}]), RETRY),
        (rewrite([0]), pb.DataOverlay(groups=[{"fragment_id": 1}]), FINE),
    ],
    "w": [
        (update(0), pb.UpdateMemWalState(), FINE),
        (update(0, compacted_sstables=[{}]), pb.UpdateMemWalState(), INCOMPATIBLE),
    ],
    "n": [
        (pb.Append(), project(0), FINE),
        (pb.Append(), project(0, keeps=False), RETRY),
        (pb.Append(), MERGE_OF_ALL, FINE),
    ],
    "z": [
        (project(0), pb.Append(), FINE),
        (project(0, keeps=False), pb.Append(), RETRY),
    ],
    "P": [
        (update(0), project(0), FINE),
        (update(0), project(0, keeps=False), RETRY),
        (update(0, fields_modified=[1]), project(0, 1), FINE),
        (update(0, fields_modified=[1]), project(0), RETRY),
    ],
    "x": [
        (replacement((0, 1)), delete(gone=[0]), INCOMPATIBLE),
        (replacement((0, 1)), delete(0, gone=[1]), FINE),
        (replacement((0, 1)), update(gone=[0]), INCOMPATIBLE),
        (replacement((0, 1)), update(1), FINE),
        (replacement((0, 1)), update(0, new_fragments=fragments(9), update_mode=ROWS), RETRY),
        (replacement((0, 1)), update(1, new_fragments=fragments(9), update_mode=ROWS), FINE),
        (replacement((0, 1)), update(0, update_mode=ROWS), FINE),
        (replacement((0, 1)), update(0, new_fragments=fragments(9), update_mode=COLUMNS), FINE),
        (replacement((0, 1)), update(0, update_mode=COLUMNS, fields_modified=[1]), RETRY),
        (replacement((0, 1)), update(0, update_mode=COLUMNS, fields_modified=[2]), FINE),
    ],
    "y": [
        (replacement((0, 1)), project(0, 1), FINE),
        (replacement((0, 1)), project(0), INCOMPATIBLE),
        (replacement((0, 1)), project(0, 1, keeps=False), RETRY),
        (replacement((0, 1)), project(0, keeps=False), RETRY),
    ],
    "E": [
        (replacement((0, 1)), replacement((0, 1)), RETRY),
        (replacement((0, 1)), replacement((1, 1)), FINE),
        (replacement((0, 1)), replacement((0, 2)), FINE),
        (replacement((0, 1), (3, 1)), replacement((2, 0), (3, 1)), RETRY),
    ],
    "q": [
        (index(entry()), update(0, update_mode=COLUMNS, fields_modified=[1]), REBASE),
        (index(entry()), update(0, update_mode=COLUMNS, fields_modified=[2]), FINE),
        (index(entry()), update(0, update_mode=ROWS, fields_modified=[1]), FINE),
        (index(entry()), update(0, update_mode=COLUMNS), FINE),
        (index(entry(fields=[7]), entry("j")), update(0, update_mode=COLUMNS, fields_modified=[1]), REBASE),
    ],
    "i": [
        (index(entry("i")), index(entry("j")), FINE),
        (index(entry("i")), index(entry("i")), RETRY),
        # One makes a name that the other takes away.
        (index(entry("i")), index(gone=[entry("i", number=2)]), RETRY),
        (index(gone=[entry("i", number=2)]), index(entry("i")), RETRY),
        # Both drop one segment: that is fine unless one of them builds its index anew.
        (index(gone=[entry("i", number=2)]), index(gone=[entry("i", number=2)]), FINE),
        (
            index(entry("i", number=3), gone=[entry("i", number=2)]),
            index(gone=[entry("i", number=2)]),
            RETRY,
        ),
        (
            index(gone=[entry("i", number=2)]),
            index(entry("i", number=3), gone=[entry("i", number=2)]),
            RETRY,
        ),
        # They work on different segments, and ours replaces its own.
        (
            index(entry("i", number=3), gone=[entry("i", number=2)]),
            index(gone=[entry("i", number=4)]),
            FINE,
        ),
        (
            index(gone=[entry("i", number=4)]),
            index(entry("i", number=3), gone=[entry("i", number=2)]),
            FINE,
        ),
        (
            index(entry("j", number=3), gone=[entry("i", number=2)]),
            index(gone=[entry("i", number=2)]),
            FINE,
        ),
    ],
    "h": [
        (index(entry(covered=[0, 1])), rewrite([1, 2]), RETRY),
        (index(entry(covered=[0])), rewrite([1, 2]), FINE),
        (index(entry(covered=None)), rewrite([1]), RETRY),
        (index(UNREADABLE), rewrite([1]), RETRY),
        (index(entry(FRAGMENT_REUSE, [9])), rewrite([1]), RETRY),
        (index(entry(covered=[0]), entry("j", [1])), rewrite([1]), RETRY),
        (index(gone=[entry(covered=[1])]), rewrite([1]), FINE),
    ],
    "j": [
        (rewrite([1, 2]), index(entry(covered=[0, 1])), RETRY),
        (rewrite([1, 2]), index(entry(covered=[0])), FINE),
        (rewrite([1, 2]), index(entry(FRAGMENT_REUSE, [9])), INCOMPATIBLE),
    ],
    "J": [
        (rewrite([1, 2]), index(entry(covered=[0, 1, 2])), FINE),
        (rewrite([1, 2]), index(entry(covered=[1])), RETRY),
        (rewrite([1], [2]), index(entry(covered=[1])), FINE),
        (rewrite([1, 2]), index(entry(covered=[0])), FINE),
        (rewrite([1, 2]), index(entry(covered=None)), RETRY),
        (rewrite([1, 2]), index(UNREADABLE), RETRY),
        (rewrite([1, 2]), index(entry(covered=[1, 2], type_url=NGRAM)), RETRY),
        (rewrite([1, 2]), index(entry(covered=[0], type_url=NGRAM)), FINE),
        (rewrite([1, 2]), index(entry(covered=[1, 2], type_url="/of.SomeoneElse")), FINE),
        (rewrite([1, 2]), index(entry(covered=[1, 2]), entry("j", [2])), RETRY),
    ],
    "r": [
        (index(entry(fields=[1])), replacement((7, 1)), RETRY),
        (index(entry(fields=[1])), replacement((0, 2)), FINE),
        (index(entry(fields=[3]), entry("j", fields=[2])), replacement((0, 2)), RETRY),
    ],
    "u": [
        (replacement((7, 1)), index(entry(fields=[1])), RETRY),
        (replacement((0, 2)), index(entry(fields=[1])), FINE),
    ],
    "l": [
        (index(entry(MEM_WAL)), MERGE_OF_ALL, RETRY),
        (index(entry()), MERGE_OF_ALL, FINE),
    ],
    "a": [
        (MERGE_OF_ALL, index(entry(MEM_WAL)), RETRY),
        (MERGE_OF_ALL, index(entry()), FINE),
    ],
    "o": [
        (overwrite("a"), overwrite("b"), RETRY),
        (overwrite("a", "b"), overwrite("b", "c"), INCOMPATIBLE),
    ],
    "k": [
        (overwrite("a"), config("b"), FINE),
        (overwrite("a"), config("a"), INCOMPATIBLE),
        (overwrite("a"), config("b", deleted=["a"]), INCOMPATIBLE),
        (overwrite("a"), pb.UpdateConfig(upsert_values={"a": "x"}), INCOMPATIBLE),
        (overwrite("a"), pb.UpdateConfig(delete_keys=["a"]), INCOMPATIBLE),
        (overwrite(), config("a"), FINE),
    ],
    "v": [
        (config("a"), overwrite("a"), INCOMPATIBLE),
        (config("a"), overwrite("b"), FINE),
        (config(field_metadata_updates={1: texts("k")}), overwrite(), INCOMPATIBLE),
        (config(schema_metadata_updates=texts()), overwrite(), INCOMPATIBLE),
        (config(schema_metadata={"k": "x"}), overwrite(), INCOMPATIBLE),
        (config(table_metadata_updates=texts("k")), overwrite(), FINE),
    ],
    "g": [
        (config("a"), MERGE_OF_ALL, FINE),
        (config(schema_metadata_updates=texts("k")), MERGE_OF_ALL, RETRY),
        (config(schema_metadata_updates=texts(replace=True)), MERGE_OF_ALL, RETRY),
        (config(schema_metadata_updates=texts()), MERGE_OF_ALL, FINE),
        (config(schema_metadata={"k": "x"}), MERGE_OF_ALL, RETRY),
        (config(field_metadata_updates={1: texts("k")}), MERGE_OF_ALL, RETRY),
    ],
    "G": [
        (MERGE_OF_ALL, config("a"), FINE),
        (MERGE_OF_ALL, config(field_metadata_updates={1: texts("k")}), RETRY),
    ],
    "s": [
        (pb.Restore(version=1), config("a"), FINE),
        (pb.Restore(version=1), config(schema_metadata_updates=texts("k")), INCOMPATIBLE),
    ],
    "t": [
        (config("a"), pb.Restore(version=1), FINE),
        (config(schema_metadata_updates=texts("k")), pb.Restore(version=1), INCOMPATIBLE),
    ],
    "c": [
        (config("a"), config("b"), FINE),
        (config("a"), config("a"), INCOMPATIBLE),
        (config("a"), config(deleted=["a"]), INCOMPATIBLE),
        (config(deleted=["a"]), config("a"), INCOMPATIBLE),
        (config(deleted=["a"]), config(deleted=["a"]), FINE),
        (config("a"), config("b", table_metadata_updates=texts("a")), FINE),
        (config(table_metadata_updates=texts("a")), config(table_metadata_updates=texts("a")), INCOMPATIBLE),
        (
            config(table_metadata_updates=texts(deleted=["a"])),
            config(table_metadata_updates=texts("a")),
            INCOMPATIBLE,
        ),
        (
            config(schema_metadata_updates=texts("a")),
            config(schema_metadata_updates=texts("b")),
            INCOMPATIBLE,
        ),
        (config(schema_metadata_updates=texts("a")), config("b"), FINE),
        (config("b"), config(schema_metadata_updates=texts("a")), FINE),
        (
            config(field_metadata_updates={1: texts("a")}),
            config(field_metadata_updates={1: texts("b")}),
            INCOMPATIBLE,
        ),
        (
            config(field_metadata_updates={1: texts("a")}),
            config(field_metadata_updates={2: texts("a")}),
            FINE,
        ),
    ],
    "B": [
        (bases((0, "a", "/a")), bases((0, "b", "/b")), FINE),
        (bases((0, "a", "/a")), bases((0, "a", "/b")), INCOMPATIBLE),
        (bases((0, "a", "/a")), bases((0, "b", "/a")), INCOMPATIBLE),
        (bases((3, "a", "/a")), bases((3, "b", "/b")), INCOMPATIBLE),
        (bases((3, "a", "/a")), bases((4, "b", "/b")), FINE),
        (bases((0, None, "/a")), bases((0, None, "/b")), FINE),
        (bases((0, "", "/a")), bases((0, None, "/b")), FINE),
        (bases((0, None, "/a")), bases((0, "", "/b")), FINE),
        (bases((0, "", "/a")), bases((0, "", "/b")), INCOMPATIBLE),
        (bases((0, "a", "/a"), (0, "c", "/c")), bases((0, "b", "/b"), (0, "c", "/d")), INCOMPATIBLE),
    ],
}


def test_every_rule_has_cases() -> None:
    assert set(CASES) == set(RULES)


@pytest.mark.parametrize(
    ("letter", "ours", "theirs", "expected"),
    [
        pytest.param(letter, *case, id=f"{letter}{number}")
        for letter, cases in CASES.items()
        for number, case in enumerate(cases)
    ],
)
def test_rules(letter: str, ours: Message, theirs: Message, expected: Verdict) -> None:
    assert RULES[letter](ours, theirs) is expected
