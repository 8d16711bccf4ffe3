"""Compaction: the same rows in fewer fragments, whoever reads, indexes and changes the table besides."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lance.optimize import Compaction as TheirCompaction
from pyroaring import BitMap

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.datasets.maintain import Compaction
from spark_lance.errors import FormatError, OptionError, RetryableConflictError, UnsupportedFormatError
from spark_lance.table.indices import fragment_reuse
from spark_lance.table.maintenance.compact_task import CompactionMetrics, CompactionTask
from tests.strategies import canonical, tables

VERSIONS = ["2.0", "2.1", "2.2"]
LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(start: int, count: int = 100) -> pa.Table:
    rng = np.random.default_rng(start)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 8, np.float32)), 8)
    values = pa.array(range(start, start + count), pa.int64())
    texts = pa.array([f"word {i % 7}" for i in range(start, start + count)])
    return pa.table({"a": values, "t": texts, "v": vectors})


def small_fragments(path: Path, count: int, **options: Any) -> None:
    for i in range(count):
        lance.write_dataset(rows(i * 100), path, mode="append" if i else "create", **options)


def newest(path: Path) -> LanceDataset:
    return dataset(path)


def theirs(path: Path) -> Any:
    opened: Any = lance.dataset(str(path))
    opened.validate()
    return opened


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=4)
@given(data=st.data())
def test_any_table_is_the_same_afterwards(version: str, stable: bool, data: st.DataObject) -> None:
    table = data.draw(tables(version, max_rows=30, max_columns=2, max_depth=2))
    number = pa.array(range(table.num_rows), pa.int64())
    table = table.append_column(pa.field("number", pa.int64(), nullable=False), number)
    gone = data.draw(st.lists(st.integers(0, max(0, table.num_rows - 1)), max_size=10))
    with TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
        write_dataset(table, path, max_rows_per_file=7, **options)
        newest(path).delete(pc.field("number").isin(gone))
        write_dataset(table.slice(0, 5), path, "append")
        before = newest(path)
        expected = [canonical(column) for column in before.to_table().columns]
        try:
            theirs(path).to_table()
        except (OSError, pa.ArrowInvalid):
            assume(False)  # pylance cannot read some types that it writes
        lineage = theirs(path).to_table(columns=["number", *LINEAGE]) if stable else None
        before.optimize.compact_files(target_rows_per_fragment=25)
        after = newest(path)
        assert [canonical(column) for column in after.to_table().columns] == expected
        assert [canonical(column) for column in theirs(path).to_table().columns] == expected
        assert len(after.manifest.fragments) <= len(before.manifest.fragments)
        if lineage is not None:
            assert theirs(path).to_table(columns=["number", *LINEAGE]) == lineage


@settings(max_examples=25)
@given(
    sizes=st.lists(st.sampled_from([3, 10, 20, 45]), min_size=1, max_size=8),
    target=st.sampled_from([5, 10, 21, 30, 1000]),
    modulus=st.sampled_from([0, 3, 12]),
    materialize=st.booleans(),
    excluded=st.lists(st.integers(0, 9), max_size=2),
)
def test_the_plan_is_that_of_pylance(
    sizes: list[int], target: int, modulus: int, materialize: bool, excluded: list[int]
) -> None:
    with TemporaryDirectory() as directory:
        for i, size in enumerate(sizes):
            lance.write_dataset(pa.table({"a": range(size)}), directory, mode="append" if i else "create")
        if modulus:
            lance.dataset(directory).delete(f"a % {modulus} = 1")
        options: Any = {
            "target_rows_per_fragment": target,
            "materialize_deletions": materialize,
            "excluded_fragment_ids": excluded,
        }
        theirs = TheirCompaction.plan(lance.dataset(directory), options)
        ours = Compaction.plan(dataset(directory), options)
        expected = [[fragment.id for fragment in task.fragments] for task in theirs.tasks]
        assert [[fragment.id for fragment in task.fragments] for task in ours.tasks] == expected


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_the_numbers_are_those_of_pylance(tmp_path: Path, stable: bool) -> None:
    outcomes = []
    for path in (tmp_path / "ours", tmp_path / "theirs"):
        small_fragments(path, 5, enable_stable_row_ids=stable)
        lance.dataset(path).delete("a % 10 < 3 and a > 150")
        table: Any = newest(path) if path.name == "ours" else lance.dataset(path)
        done = table.optimize.compact_files(target_rows_per_fragment=150)
        names = ("fragments_removed", "fragments_added", "files_removed", "files_added")
        after: Any = lance.dataset(path)
        sizes = [fragment.physical_rows for fragment in after.get_fragments()]
        outcomes.append(([getattr(done, name) for name in names], sizes, after.to_table()))
    assert outcomes[0] == outcomes[1]


def check_index(path: Path) -> None:
    """Compare what pylance finds with indices and without."""
    table = theirs(path)
    filters = ["a = 7", "a > 150 and a < 180", "t = 'word 3'", "contains(t, 'word 5')"]
    for text in filters:
        columns = ["a", "t"]
        by_scan = table.to_table(columns=columns, filter=text, use_scalar_index=False)
        assert table.to_table(columns=columns, filter=text).sort_by("a") == by_scan.sort_by("a"), text
    query = {"column": "v", "q": np.full(8, 0.5, np.float32), "k": 12}
    exact = table.to_table(columns=["a", "_distance"], nearest={**query, "use_index": False})
    result = table.to_table(columns=["a", "_distance"], nearest={**query, "nprobes": 2})
    # Distances from the index may differ in their last bits.
    assert result["a"] == exact["a"]


def with_indices(path: Path, stable: bool = False) -> None:
    small_fragments(path, 4, enable_stable_row_ids=stable)
    table: Any = lance.dataset(path)
    table.create_scalar_index("a", "BTREE")
    table.create_scalar_index("a", "ZONEMAP", name="zones")
    table.create_scalar_index("t", "BITMAP")
    table.create_scalar_index("t", "NGRAM", name="grams")
    table.create_index("v", "IVF_FLAT", num_partitions=2)
    lance.write_dataset(rows(400), path, mode="append")
    lance.write_dataset(rows(500), path, mode="append")


@pytest.mark.parametrize(
    ("stable", "defer"),
    [(False, False), (False, True), (True, False)],
    ids=["addresses", "deferred", "stable"],
)
def test_indices_of_pylance_stay_right(tmp_path: Path, stable: bool, defer: bool) -> None:
    path = tmp_path / "t"
    with_indices(path, stable)
    theirs(path).delete("a % 9 = 4")
    done = newest(path).optimize.compact_files(defer_index_remap=defer)
    assert (done.fragments_removed, done.fragments_added) == (6, 2)
    check_index(path)
    covered: dict[str, Any] = {i.name: i.segments[0].fragment_ids for i in newest(path).describe_indices()}
    first = newest(path).manifest.fragments[0].id
    for name in ("a_idx", "zones", "t_idx", "grams", "v_idx"):
        follows = defer or name != "zones"
        assert covered[name] == (frozenset({first}) if follows else frozenset()), name
    other = {i.name: set(i.segments[0].fragment_ids) for i in theirs(path).describe_indices()}
    present = {fragment.id for fragment in newest(path).manifest.fragments}
    assert {name: other[name] & present for name in covered} == covered
    # Again, over the first; then changes by either side.
    theirs(path).delete("a % 9 = 5")
    newest(path).optimize.compact_files(defer_index_remap=defer, materialize_deletions_threshold=0.01)
    check_index(path)
    newest(path).delete(pc.field("a") == 180)
    theirs(path).delete("a = 181")
    lance.write_dataset(rows(600), path, mode="append")
    check_index(path)
    theirs(path).optimize.optimize_indices()
    check_index(path)
    newest(path).optimize.compact_files(defer_index_remap=defer)
    theirs(path).optimize.compact_files(defer_index_remap=defer)
    check_index(path)


def test_the_index_is_still_used(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_indices(path)
    newest(path).optimize.compact_files(defer_index_remap=True)
    table = theirs(path)
    assert "ScalarIndex" in table.scanner(filter="a = 7").explain_plan()
    assert [i.num_rows_indexed for i in table.describe_indices() if i.name == "a_idx"] == [400]


def test_long_histories_are_kept_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragment_reuse, "MAX_INLINE_DETAILS", 100)
    path = tmp_path / "t"
    with_indices(path)
    newest(path).optimize.compact_files(defer_index_remap=True)
    assert len(list(path.glob("_indices/*/details.binpb"))) == 1
    check_index(path)
    theirs(path).delete("a % 9 = 5")
    newest(path).optimize.compact_files(defer_index_remap=True, materialize_deletions_threshold=0.01)
    check_index(path)
    (reuse,) = (i for i in newest(path).describe_indices() if i.index_type == "FragmentReuse")
    assert len(reuse.details["versions"]) == 2


def test_rewrites_that_no_index_needs_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_indices(path)

    def compact() -> int:
        theirs(path).delete(f"a % 9 = {newest(path).version % 9}")
        newest(path).compact_files(defer_index_remap=True, materialize_deletions_threshold=0.01)
        check_index(path)
        (reuse,) = (i for i in newest(path).describe_indices() if i.index_type == "FragmentReuse")
        return len(reuse.details["versions"])

    assert [compact(), compact()] == [1, 2]
    for name in ("zones", "t_idx", "grams", "v_idx"):
        newest(path).drop_index(name)
    assert compact() == 3, "the index on a is as old as ever"
    theirs(path).create_scalar_index("a", "BTREE", replace=True)
    assert [compact(), compact()] == [1, 2]


def test_coverage_is_brought_up_to_date_before_the_next_change(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with_indices(path)
    theirs(path).optimize.compact_files(defer_index_remap=True)
    before = newest(path)
    new = before.manifest.fragments[0].id
    named = {e.name: set(BitMap.deserialize(e.fragment_bitmap)) for e in before.manifest.indices}
    assert named["a_idx"] == {0, 1, 2, 3}
    after = before.delete(pc.field("a") == 3)
    named = {e.name: set(BitMap.deserialize(e.fragment_bitmap)) for e in after.manifest.indices}
    assert named["a_idx"] == named["v_idx"] == {new}
    check_index(path)


def test_moves_of_rows_with_stable_ids_are_not_recorded(tmp_path: Path) -> None:
    small_fragments(tmp_path / "t", 3, enable_stable_row_ids=True)
    with pytest.raises(UnsupportedFormatError, match="stable row ids"):
        newest(tmp_path / "t").optimize.compact_files(defer_index_remap=True)


def test_dropped_and_added_columns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 3)
    theirs(path).drop_columns(["t"])
    theirs(path).add_columns({"b": "a + 1"})
    lance.write_dataset(rows(300).select(["a"]), path, mode="append")
    before = theirs(path).to_table()
    done = newest(path).optimize.compact_files()
    assert done == CompactionMetrics(4, 1, 7, 1)
    assert theirs(path).to_table() == before
    (fragment,) = newest(path).manifest.fragments
    live = {node.id for top in newest(path).lance_schema.fields for node in top.walk()}
    assert set(fragment.files[0].fields) <= live


@pytest.mark.parametrize("target", VERSIONS)
def test_files_of_another_version(tmp_path: Path, target: str) -> None:
    path = tmp_path / "t"
    small_fragments(path, 3, data_storage_version="2.1")
    lance.write_dataset(rows(300, 200), path, mode="append")
    before = theirs(path).to_table()
    newest(path).optimize.compact_files(data_storage_version=target, target_rows_per_fragment=200)
    after = newest(path)
    # What is rewritten moves behind the fragment that is large enough.
    assert theirs(path).to_table() == after.to_table() == pa.concat_tables([before[300:], before[:300]])
    assert after.manifest.message.data_format.version == "2.1"
    newer = after.manifest.fragments[-1].files[0]
    assert (newer.file_major_version, newer.file_minor_version) == tuple(map(int, target.split(".")))


def test_large_groups_are_cut_by_rows_and_bytes(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 10)
    newest(path).optimize.compact_files(max_bytes_per_file=20_000, batch_size=64)
    sizes = [fragment.files[0].file_size_bytes for fragment in newest(path).manifest.fragments]
    assert len(sizes) > 1
    assert all(size < 25_000 for size in sizes)
    assert theirs(path).to_table(columns=["a"])["a"].to_pylist() == list(range(1000))


@pytest.mark.parametrize(
    ("limits", "groups"),
    [
        ({"max_source_fragments": 4}, [[0, 1, 2, 3]]),
        ({"max_source_fragments": 1}, []),
        ({"max_source_rows": 299}, [[0, 1]]),
        ({"max_source_bytes": 11_000}, [[0, 1]]),
        ({"max_source_fragments": 5, "target_rows_per_fragment": 200}, [[0, 1], [2, 3]]),
    ],
)
def test_limits_of_one_run(tmp_path: Path, limits: dict[str, int], groups: list[list[int]]) -> None:
    small_fragments(tmp_path / "t", 6)
    plan = Compaction.plan(newest(tmp_path / "t"), limits)
    assert [[fragment.id for fragment in task.fragments] for task in plan.tasks] == groups


def test_options_come_from_the_config(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 4)
    theirs(path).update_config({"lance.compaction.target_rows_per_fragment": "200"})
    assert Compaction.plan(newest(path)).num_tasks() == 2
    assert Compaction.plan(newest(path), {"target_rows_per_fragment": 1000}).num_tasks() == 1
    newest(path).update_config({"lance.compaction.defer_index_remap": "maybe"})
    with pytest.raises(OptionError, match="maybe"):
        newest(path).compact_files()


@pytest.mark.parametrize(
    "options",
    [
        {"bogus": 1},
        {"target_rows_per_fragment": 0},
        {"compaction_mode": "sideways"},
        {"compaction_mode": "force_binary_copy"},
        {"data_storage_version": "9.9"},
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any]) -> None:
    small_fragments(tmp_path / "t", 1)
    with pytest.raises(OptionError):
        newest(tmp_path / "t").compact_files(**options)


def test_tasks_run_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 4)
    table = newest(path)
    plan = pickle.loads(pickle.dumps(Compaction.plan(table, {"target_rows_per_fragment": 200})))
    results = [pickle.loads(pickle.dumps(task.execute(table))) for task in plan.tasks]
    assert newest(path).version == table.version
    assert Compaction.commit(table, results) == CompactionMetrics(4, 2, 4, 2)
    assert theirs(path).to_table(columns=["a"])["a"].to_pylist() == list(range(400))
    assert Compaction.commit(newest(path), []) == CompactionMetrics()


def test_nothing_to_do_commits_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 1)
    assert newest(path).compact_files() == CompactionMetrics()
    assert newest(path).version == 1


def test_lost_rows_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    small_fragments(path, 2)
    whole = CompactionTask._tables
    monkeypatch.setattr(CompactionTask, "_tables", lambda task: list(whole(task))[:-1])
    with pytest.raises(FormatError, match="lose rows"):
        newest(path).compact_files()
    assert newest(path).version == 2
    assert len(list((path / "data").iterdir())) == 2


def test_results_in_which_another_writer_deleted_do_not_land(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 4)
    table = newest(path)
    results = [task.execute() for task in Compaction.plan(table, {"target_rows_per_fragment": 200}).tasks]
    theirs(path).delete("a = 5")
    with pytest.raises(RetryableConflictError):
        Compaction.commit(table, results)
    assert Compaction.commit(table, results[1:]).fragments_removed == 2
    assert theirs(path).count_rows() == 399


def test_only_what_another_writer_changed_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    small_fragments(path, 6)
    table = newest(path)
    executed: list[list[int]] = []
    execute = CompactionTask.execute

    def disturbed(task: CompactionTask) -> Any:
        if not executed:
            theirs(path).delete("a = 5")
            lance.write_dataset(rows(600), path, mode="append")
        executed.append([fragment.id for fragment in task.fragments])
        return execute(task)

    monkeypatch.setattr(CompactionTask, "execute", disturbed)
    done = table.compact_files(target_rows_per_fragment=200)
    assert executed == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert done == CompactionMetrics(6, 3, 7, 3)
    assert sorted(theirs(path).to_table(columns=["a"])["a"].to_pylist()) == sorted({*range(700)} - {5})
    named = {file.path for fragment in newest(path).manifest.fragments for file in fragment.files}
    written = {file.name for file in (path / "data").iterdir()}
    assert len(written - named) == 6, "the files of the group that was done again are gone"


def test_beside_other_writers(tmp_path: Path) -> None:
    path = tmp_path / "t"
    small_fragments(path, 4)
    failures: list[BaseException] = []

    def appending() -> None:
        try:
            for i in range(8):
                lance.write_dataset(rows(1000 + i * 100), path, mode="append")
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failures.append(error)

    def deleting() -> None:
        try:
            for i in range(8):
                dataset(path).delete(pc.field("a") == i * 13)
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failures.append(error)

    threads = [threading.Thread(target=appending), threading.Thread(target=deleting)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        newest(path).compact_files(target_rows_per_fragment=250, materialize_deletions_threshold=0.0)
    for thread in threads:
        thread.join()
    assert not failures
    left = {*range(400), *range(1000, 1800)} - {i * 13 for i in range(8)}
    assert sorted(theirs(path).to_table(columns=["a"])["a"].to_pylist()) == sorted(left)
    assert sorted(newest(path).to_table(["a"])["a"].to_pylist()) == sorted(left)


@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_are_copied(tmp_path: Path, version: str) -> None:
    path = tmp_path / "t"
    marked = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("a", pa.int64()), marked])
    blobs = [None if i % 5 == 2 else bytes([i]) * (i * 997 % 100_000) for i in range(24)]
    for start in range(0, 24, 8):
        part = pa.table({"a": range(start, start + 8), "b": blobs[start : start + 8]}, schema)
        write_dataset(part, path, "append", data_storage_version=version)
    newest(path).delete(pc.field("a") == 3)
    assert newest(path).compact_files().fragments_added == 1
    left = [blob for i, blob in enumerate(blobs) if i != 3]
    for table, named in ((newest(path), "indices"), (theirs(path), "indices")):
        result = table.take_blobs("b", **{named: list(range(23))})
        assert [None if blob is None else blob.read() for blob in result] == left
