"""The mistakes that a new implementation of the table format is likely to make, each with its test.

`TRAPS` names the tests of each: those of this file, and those of others where such a test exists already. All
compare with pylance.
"""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.errors import UnsupportedFormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.versions.versions import load_latest
from tests.strategies import canonical

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]

REPOSITORY = Path(__file__).parents[2]
HERE = "tests/table/test_traps.py::"

# The number of a mistake: the tests that fail if somebody makes it.
TRAPS: dict[int, tuple[str, ...]] = {
    # The parent of a top-level field is 0 and not -1.
    1: ("tests/table/test_traps.py::test_trap_01_top_level_fields_have_the_parent_minus_one",),
    # The offset 0 means that a section is absent.
    2: ("tests/table/format/test_manifest.py::test_an_offset_of_zero_is_an_offset",),
    # The inline transaction is in field 21.
    3: (
        "tests/table/test_traps.py::test_trap_03_the_inline_transaction_is_where_pylance_has_it",
        "tests/table/format/test_transaction.py::test_the_older_place_of_the_inline_copy_is_read",
    ),
    # A commit leaves no transaction.
    4: ("tests/table/test_alternating_pylance.py::test_a_stale_pylance_writer_rebases_onto_ours",),
    # Manifests grow in place, or replace those of others.
    5: (
        "tests/table/test_traps.py::test_trap_05_a_manifest_gets_its_name_when_it_is_whole",
        "tests/table/test_alternating_pylance.py::test_four_writers_at_once_lose_nothing",
        "tests/table/commits/test_race.py::test_few_writers",
    ),
    # Ids of fragments begin again.
    6: (
        "tests/table/test_alternating_pylance.py::test_fragment_ids_go_on_after_overwrite_delete_and_restore",
        "tests/table/operations/test_restore.py::test_rows_written_after_a_restore_get_new_ids",
    ),
    # Feature flags are inherited or cleared, not computed.
    7: (
        "tests/table/test_traps.py::test_trap_07_flags_follow_what_the_table_has",
        "tests/table/format/test_features.py::test_a_forged_flag_is_judged_as_pylance_judges_it",
        "tests/table/format/test_features.py::test_sticky_flags_stay",
    ),
    # Half of a paired flag passes.
    8: (
        "tests/table/format/test_features.py::test_a_forged_flag_is_judged_as_pylance_judges_it",
        "tests/table/format/test_features.py::test_half_of_a_paired_flag_is_corruption",
        "tests/table/format/test_features.py::test_the_field_id_flag_needs_its_mark_and_only_the_writer_word",
    ),
    # Deletion files have the schema that is written in the specification.
    9: (
        "tests/table/rows/test_delete.py::test_our_arrow_files_are_what_pylance_writes",
        "tests/table/format/test_deletion.py::test_files_of_pylance",
        "tests/table/format/test_deletion.py::test_other_arrow_files_are_refused",
    ),
    # Deleted rows are sorted, and their number tells the kind of the file.
    10: (
        "tests/table/format/test_deletion.py::test_order_duplicates_and_compression",
        "tests/table/format/test_deletion.py::test_a_merged_delete_is_a_bitmap_of_two_rows",
        "tests/table/format/test_deletion.py::test_files_of_pylance",
        "tests/table/format/test_deletion.py::test_bitmaps_with_run_containers",
    ),
    # Deletion files hold ids or addresses, or only the newest deletions.
    11: (
        "tests/table/rows/test_delete.py::test_taking_turns",
        "tests/table/rows/test_delete.py::test_manifests_equal_those_of_pylance",
        "tests/table/format/test_deletion.py::test_a_second_delete_replaces_the_file",
    ),
    # Deleted rows are not counted, or new columns have none for them.
    12: ("tests/table/columns/test_evolve_cases.py::test_values_stay_with_their_rows_when_some_are_deleted",),
    # The fields of a data file are listed with their parents, or in 2.0 without.
    13: ("tests/table/test_traps.py::test_trap_13_data_files_list_the_fields_that_pylance_lists",),
    # Bitmaps of row ids begin with the highest bit.
    14: (
        "tests/table/format/test_rowids.py::test_sequences_that_pylance_wrote",
        "tests/table/format/test_rowids.py::test_every_version_scans_as_pylance_scans_it",
        "tests/table/format/test_rowids.py::test_packed_as_pylance_does",
        "tests/table/format/test_rowids.py::test_pylance_reads_what_is_packed",
    ),
    # Rows that move lose their ids.
    15: ("tests/table/test_traps.py::test_trap_15_rows_keep_their_ids_wherever_they_go",),
    # Versions of rows are spans of rows, and every rewrite changes them.
    16: (
        "tests/table/test_traps.py::test_trap_16_versions_of_rows_change_as_with_pylance",
        "tests/table/format/test_rowids.py::test_version_runs_count_values_of_any_span",
        "tests/table/reading/test_lineage.py::test_lineage_is_the_same_whoever_writes",
        "tests/table/reading/test_changes_feed.py::test_any_two_versions_with_stable_row_ids",
    ),
    # Ids of fields are used again, or given in another way.
    17: (
        "tests/table/test_traps.py::test_trap_17_a_dropped_field_shifts_nothing_and_an_overwrite_begins_at_zero",
        "tests/table/columns/test_evolve.py::test_ids_are_given_as_pylance_gives_them",
        "tests/table/columns/test_evolve.py::test_the_same_steps_give_the_same_versions",
        "tests/table/test_alternating_pylance.py::test_field_ids_that_are_never_reused",
    ),
    # A column without a file is an error, or shifts others.
    18: (
        "tests/table/test_traps.py::test_trap_18_columns_without_a_file_are_null",
        "tests/table/columns/test_evolved_tables.py::test_every_version_reads_as_pylance_reads_it",
        "tests/table/reading/test_lineage.py::test_every_version_of_a_spilled_table",
    ),
    # The id of a base path is a place in a list, and every base is a table.
    19: (
        "tests/table/format/test_bases.py::test_a_clone_of_a_clone_is_read_and_the_ids_of_its_bases_are_keys",
        "tests/table/format/test_bases.py::test_directories_that_are_no_table",
        "tests/table/format/test_bases.py::test_a_branch_is_read_and_changed",
        "tests/table/versions/test_branches.py::test_relative_sources_are_cloned_by_their_absolute_path",
    ),
    # Branches and tags are looked for beside the branch, or by their plain name.
    20: (
        "tests/table/versions/test_branches.py::test_branches_of_pylance",
        "tests/table/versions/test_branches.py::test_branches_are_recorded_as_by_pylance",
        "tests/table/versions/test_branches.py::test_both_write_to_one_branch",
        "tests/table/versions/test_branches.py::test_tags_on_branches",
    ),
    # Only changes of one fragment are in conflict.
    21: (
        "tests/table/commits/test_conflict_grid.py::test_a_sample_of_pairs_ends_as_in_pylance",
        "tests/table/commits/test_conflict_grid.py::test_all_pairs_end_as_in_pylance",
        "tests/table/commits/test_conflicts.py::test_pairs_end_as_with_pylance",
        "tests/table/commits/test_conflicts.py::test_an_unknown_operation_is_incompatible_with_everything",
    ),
    # Deletions of two writers are merged whatever else happened.
    22: (
        "tests/table/rows/test_delete.py::test_deletes_of_different_rows_both_survive",
        "tests/table/rows/test_delete.py::test_delete_after_any_change_that_it_did_not_know",
        "tests/table/rows/test_update.py::test_stale_handles_on_one_row_are_run_again",
        "tests/table/columns/test_evolve_cases.py::test_updates_of_columns_meet_other_writers",
    ),
    # Index entries go, cover too much, or lose what is unknown.
    23: (
        "tests/table/test_traps.py::test_trap_23_an_index_answers_as_a_scan_after_every_change",
        "tests/table/operations/test_index_upkeep.py::test_a_delete_keeps_the_entries_that_pylance_keeps",
        "tests/table/operations/test_index_upkeep.py::test_what_stays_is_kept_whole",
    ),
    # Any name beside the manifests is one, and the hint is right.
    24: (
        "tests/table/versions/test_refs.py::test_detached_versions_are_no_history",
        "tests/table/versions/test_refs.py::test_files_in_the_making_are_no_versions",
        "tests/table/versions/test_refs.py::test_hints_are_never_trusted",
        "tests/table/versions/test_refs.py::test_two_naming_schemes_are_refused_but_versions_still_open",
        "tests/table/test_alternating_pylance.py::test_taking_turns",
    ),
    # Clean-up deletes what is young, tagged, branched from, or not of the table.
    25: (
        "tests/table/versions/test_cleanup.py::test_survivors",
        "tests/table/versions/test_cleanup.py::test_policies",
    ),
}


def spark_functions(file: Path) -> set[str]:
    tree = ast.parse(file.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_trap_has_tests_that_exist() -> None:
    assert list(TRAPS) == list(range(1, 26))
    assert all(TRAPS.values())
    named = {name for names in TRAPS.values() for name in names}
    files = {name.partition("::")[0] for name in named}
    present = {f"{file}::{test}" for file in files for test in spark_functions(REPOSITORY / file)}
    assert named - present == set()
    assert {name for name in present if name.startswith(f"{HERE}test_trap_")} <= named


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": pa.array([n % 7 for n in numbers], pa.int64())})


def latest(path: Path) -> Manifest:
    return load_latest(TableRef(*open_store(path)))


def words(path: Path) -> tuple[int, int]:
    message = latest(path).message
    return message.reader_feature_flags, message.writer_feature_flags


def theirs(path: Path) -> Any:
    """Open a table with pylance, after it has checked it."""
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    return dataset


def assert_same(path: Path) -> None:
    """Compare what both read."""
    expected, result = theirs(path).to_table(), spark_lance.dataset(path).to_table()
    assert result.schema == expected.schema
    for name in expected.column_names:
        assert canonical(result[name]) == canonical(expected[name]), name


def test_trap_01_top_level_fields_have_the_parent_minus_one(tmp_path: Path) -> None:
    data = rows(0, 5).append_column("s", pa.array([{"x": n} for n in range(5)]))
    fields = []
    for side in (spark_lance, lance):
        path = tmp_path / side.__name__
        side.write_dataset(data, str(path))
        assert theirs(path).to_table() == data
        fields.append([(field.name, field.id, field.parent_id) for field in latest(path).message.fields])
    assert fields[0] == fields[1] == [("a", 0, -1), ("b", 1, -1), ("s", 2, -1), ("x", 3, 2)]


def test_trap_03_the_inline_transaction_is_where_pylance_has_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    stale = lance.write_dataset(rows(0, 5), path)
    for version in (1, 2):
        manifest = latest(path)
        assert manifest.version == version
        assert manifest.message.HasField("transaction_section")
        assert not manifest.message.HasField("transaction_section_deprecated")
        (file,) = (path / "_transactions").iterdir()
        assert file.name == manifest.transaction_file
        file.unlink()
        assert read_transaction(TableRef(*open_store(path)), manifest).file_name == manifest.transaction_file
        if version == 1:
            spark_lance.write_dataset(rows(5, 5), path, "append")
    lance.write_dataset(rows(10, 5), stale, mode="append")
    assert theirs(path).to_table() == rows(0, 15)


def test_trap_05_a_manifest_gets_its_name_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 5), path)
    link = os.link
    staged: dict[str, bytes] = {}

    def watched(source: Any, target: Any) -> None:
        assert not Path(target).exists()
        staged[str(target)] = Path(source).read_bytes()
        link(source, target)

    monkeypatch.setattr(os, "link", watched)
    spark_lance.write_dataset(rows(5, 5), path, "append")
    file = Path(latest(path).path)
    assert staged[str(file)] == file.read_bytes()
    with pytest.raises(FileExistsError):
        open_store(path)[0].put_if_absent(str(file), b"another")
    assert staged[str(file)] == file.read_bytes()
    assert not list(file.parent.glob(".tmp*"))
    assert theirs(path).to_table() == rows(0, 10)


def test_trap_07_flags_follow_what_the_table_has(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    spark_lance.dataset(path).delete(pc.field("a") < 5)
    assert words(path) == (1, 1)
    spark_lance.write_dataset(rows(10, 5), path, "append")
    assert words(path) == (1, 1)
    theirs(path).optimize.compact_files()
    assert words(path) == (0, 0)
    spark_lance.dataset(path).update_config({"k": "v"})
    assert words(path) == (0, 8)
    assert theirs(path).to_table() == rows(5, 10)
    reader, writer = tmp_path / "reader", tmp_path / "writer"
    for copy, word in ((reader, "reader_feature_flags"), (writer, "writer_feature_flags")):
        shutil.copytree(path, copy)
        forge(copy, lambda message, word=word: setattr(message, word, getattr(message, word) | 4096))  # type: ignore[misc]
    with pytest.raises(UnsupportedFormatError, match="4096"):
        spark_lance.dataset(reader)
    with pytest.raises((OSError, ValueError)):
        lance.dataset(str(reader))
    assert_same(writer)
    with pytest.raises(UnsupportedFormatError, match="4096"):
        spark_lance.write_dataset(rows(0, 1), writer, "append")
    with pytest.raises((OSError, ValueError)):
        lance.write_dataset(rows(0, 1), writer, mode="append")


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_trap_13_data_files_list_the_fields_that_pylance_lists(tmp_path: Path, version: str) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.float32()), 3)
    pair = pa.struct([("x", pa.int32()), ("y", pa.int64())])
    columns: list[tuple[pa.Field, Any]] = [
        (pa.field("s", pair), [{"x": n, "y": -n} for n in range(4)]),
        (pa.field("l", pa.list_(pa.int32())), [[n] * n for n in range(4)]),
        (pa.field("v", vectors.type), vectors),
        (pa.field("o", pa.list_(pair)), [[{"x": n, "y": 1}] * n for n in range(4)]),
        (pa.field("p", pair, metadata={"packed": "true"}), [{"x": n, "y": 0} for n in range(4)]),
        (pa.field("a", pa.int8()), range(4)),
    ]
    if version == "2.2":
        columns.append((pa.field("m", pa.map_(pa.string(), pa.int8())), [[("k", n)] for n in range(4)]))
    data = pa.table(
        [pa.array(values, field.type) for field, values in columns],
        pa.schema([field for field, _ in columns]),
    )
    lists = []
    for side in (spark_lance, lance):
        path = tmp_path / side.__name__
        side.write_dataset(data, str(path), data_storage_version=version)
        assert canonical(theirs(path).to_table()["s"]) == canonical(data["s"])
        assert_same(path)
        (fragment,) = latest(path).fragments
        (file,) = fragment.files
        lists.append((list(file.fields), list(file.column_indices)))
    assert lists[0] == lists[1]
    fields = latest(path).message.fields
    parents = {field.parent_id for field in fields} - {-1}
    packed = {field.id for field in fields if field.name == "p"}
    assert parents & set(lists[0][0]) == (parents if version == "2.0" else packed)


def test_trap_15_rows_keep_their_ids_wherever_they_go(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, enable_stable_row_ids=True)
    counters = [latest(path).next_row_id]

    def ids() -> dict[int, int]:
        counters.append(latest(path).next_row_id)
        table = theirs(path).to_table(columns=["a", "_rowid"])
        result = dict(zip(table["a"].to_pylist(), table["_rowid"].to_pylist(), strict=True))
        assert len(set(result.values())) == len(result) == theirs(path).count_rows()
        mine = spark_lance.dataset(path).to_table(["a", "_rowid"])
        assert dict(zip(mine["a"].to_pylist(), mine["_rowid"].to_pylist(), strict=True)) == result
        return result

    known = ids()
    spark_lance.dataset(path).update({"b": "b + 100"}, "a % 3 = 1")
    assert ids() == known
    merge = spark_lance.dataset(path).merge_insert("a").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(rows(25, 10))
    merged = ids()
    assert {key: merged[key] for key in known} == known
    assert sorted(merged[key] for key in range(30, 35)) == list(range(30, 35))
    spark_lance.dataset(path).delete(pc.field("a").isin([2, 27, 33]))
    spark_lance.dataset(path).optimize.compact_files()
    assert len(latest(path).fragments) == 1
    assert ids() == {key: value for key, value in merged.items() if key not in (2, 27, 33)}
    spark_lance.write_dataset(rows(0, 3), path, "overwrite")
    assert set(ids().values()) == {35, 36, 37}
    spark_lance.dataset(path, 1).restore()
    assert ids() == known
    spark_lance.write_dataset(rows(50, 2), path, "append")
    added = ids()
    assert {added[50], added[51]} == {38, 39}
    lance.write_dataset(rows(60, 1), path, mode="append")
    assert ids()[60] == 40
    assert counters == sorted(counters)


LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
STEPS: list[Callable[[Any, Any], object]] = [
    lambda side, uri: side.write_dataset(rows(30, 5), uri, mode="append"),
    lambda side, uri: side.dataset(uri).update({"b": "b + 100"}, where="a in (1, 3, 12, 31)"),
    lambda side, uri: side.dataset(uri).delete("a in (2, 3, 20)"),
    lambda side, uri: side.dataset(uri).update({"b": "b + 1"}, where="a % 4 = 0"),
    lambda side, uri: side.dataset(uri).add_columns({"c": "a * 2"}),
    lambda side, uri: side.dataset(uri).delete("a = 8"),
    lambda side, uri: side.dataset(uri).optimize.compact_files(target_rows_per_fragment=1000),
]


def test_trap_16_versions_of_rows_change_as_with_pylance(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    for path in (mine, other):
        lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, enable_stable_row_ids=True)
    for step in STEPS:
        step(spark_lance, str(mine))
        step(lance, str(other))
        # pylance's compaction takes two versions, but changes those of no row.
        expected = theirs(other).to_table(columns=["a", "b", *LINEAGE]).sort_by("a")
        assert theirs(mine).to_table(columns=["a", "b", *LINEAGE]).sort_by("a") == expected
        for path in (mine, other):
            assert spark_lance.dataset(path).to_table(["a", "b", *LINEAGE]).sort_by("a") == expected
    for version in range(2, len(STEPS) + 2):
        sources: list[Any] = [
            spark_lance.dataset(mine, version),
            lance.dataset(str(mine), version=version),
            lance.dataset(str(other), version=version),
        ]
        inserted, updated = [], []
        for source in sources:
            delta = source.delta(begin_version=version - 1, end_version=version)
            inserted.append(sorted(delta.get_inserted_rows().read_all()["_rowid"].to_pylist()))
            updated.append(sorted(delta.get_updated_rows().read_all()["_rowid"].to_pylist()))
        assert inserted[0] == inserted[1] == inserted[2]
        assert updated[0] == updated[1] == updated[2]
        assert bool(inserted[0]) == (version == 2)
        assert bool(updated[0]) == (version in (3, 5, 6))


def test_trap_17_a_dropped_field_shifts_nothing_and_an_overwrite_begins_at_zero(tmp_path: Path) -> None:
    given = []
    data = rows(0, 5).append_column("s", pa.array([{"x": n, "y": -n} for n in range(5)]))
    for side in (spark_lance, lance):
        path = tmp_path / side.__name__
        side.write_dataset(data, str(path))
        dataset: Any = side.dataset(str(path))
        dataset.drop_columns(["s.x"])
        assert_same(path)
        assert spark_lance.dataset(path).to_table()["s"].to_pylist() == [{"y": -n} for n in range(5)]
        dataset = side.dataset(str(path))
        dataset.alter_columns({"path": "a", "name": "A"}, {"path": "b", "data_type": pa.int32()})
        assert_same(path)
        side.dataset(str(path)).add_columns({"x": "A + 1"})
        given.append([(field.name, field.id) for field in latest(path).message.fields])
        side.write_dataset(rows(0, 3), str(path), mode="overwrite")
        given.append([(field.name, field.id) for field in latest(path).message.fields])
    assert given[:2] == given[2:]
    assert given[1] == [("a", 0), ("b", 1)]


def test_trap_18_columns_without_a_file_are_null(tmp_path: Path) -> None:
    path = tmp_path / "t"
    data = rows(0, 10).append_column("t", pa.array([f"text {n}" for n in range(10)]))
    lance.write_dataset(data, path, max_rows_per_file=5)
    lance.write_dataset(data.select(["b"]), path, mode="append")
    assert_same(path)
    theirs(path).add_columns(pa.field("s", pa.struct([("x", pa.int8()), ("l", pa.list_(pa.string()))])))
    assert_same(path)
    result = spark_lance.dataset(path).to_table()
    assert result["a"].to_pylist() == [*range(10), *[None] * 10]
    assert result["t"].null_count == 10
    assert result["s"].to_pylist() == [None] * 20
    dataset = theirs(path)
    source = pa.table({"a": [6, 8], "t": ["six", "eight"]})
    updated, changed = dataset.get_fragment(1).update_columns(source, left_on="a", right_on="a")
    operation = lance.LanceOperation.Update(updated_fragments=[updated], fields_modified=changed)
    lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
    assert -2 in latest(path).fragments[1].files[0].fields
    assert_same(path)
    result = spark_lance.dataset(path).to_table(["t"], filter=pc.field("a") >= 5)
    assert result["t"].to_pylist() == ["text 5", "six", "text 7", "eight", "text 9"]
    spark_lance.write_dataset(pa.table({"t": ["ours"]}), path, "append")
    assert_same(path)


def test_trap_23_an_index_answers_as_a_scan_after_every_change(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 40), path, max_rows_per_file=20)
    theirs(path).create_scalar_index("a", "BTREE")

    def entries() -> list[bytes]:
        return [entry.SerializeToString(deterministic=True) for entry in latest(path).indices]

    def assert_answers(**expected: int) -> None:
        assert "ScalarIndex" in theirs(path).scanner(filter="a = 3").explain_plan()
        for where in ("a = 3", "a = 30", "a = 45", "a = 1000", "a >= 18 and a < 42"):
            indexed, scanned = (
                theirs(path).scanner(filter=where, use_scalar_index=use).to_table().sort_by("a")
                for use in (True, False)
            )
            assert indexed == scanned, where
            value = where.replace(" = ", "")
            assert value not in expected or scanned.num_rows == expected[value], where

    before = entries()
    spark_lance.write_dataset(rows(40, 10), path, "append")
    assert entries() == before
    assert_answers(a3=1, a30=1, a45=1, a1000=0)
    spark_lance.dataset(path).delete(pc.field("a").isin([3, 19]))
    assert entries() == before
    assert_answers(a3=0, a30=1, a45=1, a1000=0)
    spark_lance.dataset(path).update({"a": "a + 970"}, "a = 30")
    assert_answers(a3=0, a30=0, a45=1, a1000=1)
    # The column is rewritten in place in the first fragment, which the index then no longer covers.
    spark_lance.dataset(path).update_columns(pa.table({"b": [5], "a": [3]}), "b")
    assert -2 in latest(path).fragments[0].files[0].fields
    assert len(latest(path).indices) <= 1
    for where in ("a = 3", "a = 5", "a = 12", "a = 40"):
        indexed, scanned = (
            theirs(path).scanner(filter=where, use_scalar_index=use).to_table() for use in (True, False)
        )
        assert indexed.num_rows == scanned.num_rows, where
    assert theirs(path).count_rows("a = 3") == 6
    assert_same(path)
