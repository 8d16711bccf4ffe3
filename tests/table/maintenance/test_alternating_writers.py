"""Maintenance in company: pylance and we look after one table in turns, on branches, clones, other stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from tests.table.versions.test_cleanup import NOW

LINEAGE = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(start: int, count: int = 20) -> pa.Table:
    values = range(start, start + count)
    texts = pa.array([f"text {i % 5}" for i in values])
    inner = pa.array([{"x": i, "y": [i] * (i % 3)} for i in values])
    return pa.table({"a": pa.array(values, pa.int64()), "t": texts, "s": inner})


def theirs(path: Path | str) -> Any:
    opened: Any = lance.dataset(str(path))
    opened.validate()
    return opened


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_taking_turns(tmp_path: Path, version: Any, stable: bool) -> None:
    path = tmp_path / "t"
    write_dataset(rows(0), path, data_storage_version=version, enable_stable_row_ids=stable)
    theirs(path).create_scalar_index("a", "BTREE")
    expected = set(range(20))
    for turn in range(1, 9):
        ours = turn % 2 == 0
        (write_dataset if ours else lance.write_dataset)(rows(turn * 20), path, mode="append")
        gone = turn * 20 - 7
        if ours:
            theirs(path).delete(f"a = {gone}")
        else:
            dataset(path).delete(pc.field("a") == gone)
        expected = (expected | set(range(turn * 20, turn * 20 + 20))) - {gone}
        before = theirs(path).to_table(columns=["a", *LINEAGE]).sort_by("a") if stable else None
        table: Any = dataset(path) if turn % 4 < 2 else theirs(path)
        table.optimize.compact_files(target_rows_per_fragment=50, materialize_deletions_threshold=0.0)
        cleaner: Any = theirs(path) if turn % 4 < 2 else dataset(path)
        cleaner.cleanup_old_versions(older_than=NOW)
        assert set(theirs(path).to_table()["a"].to_pylist()) == expected
        assert dataset(path).to_table() == theirs(path).to_table()
        assert theirs(path).to_table(filter=f"a = {gone - 1}").num_rows == 1
        assert theirs(path).to_table(filter=f"a = {gone}").num_rows == 0
        if before is not None:
            assert theirs(path).to_table(columns=["a", *LINEAGE]).sort_by("a") == before
    assert len(list((path / "_versions").glob("*.manifest"))) == 1
    assert len(dataset(path).manifest.fragments) <= 6


def test_a_branch_is_compacted(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for start in range(0, 60, 20):
        lance.write_dataset(rows(start), path, mode="append" if start else "create")
    theirs(path).delete("a = 3")
    branch = theirs(path).create_branch("feat/x")
    lance.write_dataset(rows(60), branch.uri, mode="append")
    ours = dataset(path).checkout_version(("feat/x", None))
    expected = ours.to_table()
    done = ours.compact_files()
    assert (done.fragments_removed, done.fragments_added) == (4, 1)
    again = theirs(path).checkout_version(("feat/x", None))
    assert again.to_table() == expected
    (fragment,) = dataset(path).checkout_version(("feat/x", None)).manifest.fragments
    assert not fragment.files[0].HasField("base_id")
    assert dataset(path).version == theirs(path).version == 4
    stats = dataset(path).checkout_version(("feat/x", None)).cleanup_old_versions(older_than=NOW)
    assert stats.data_files_removed == 1, "the main line's files are its own"
    assert theirs(path).count_rows() == 59
    assert theirs(path).checkout_version(("feat/x", None)).to_table() == expected


def test_a_clone_is_compacted(tmp_path: Path) -> None:
    path, copy = tmp_path / "t", tmp_path / "copy"
    for start in range(0, 60, 20):
        lance.write_dataset(rows(start), path, mode="append" if start else "create")
    theirs(path).create_scalar_index("a", "BTREE")
    theirs(path).shallow_clone(str(copy), 4)
    expected = theirs(copy).to_table()
    dataset(copy).compact_files(defer_index_remap=True)
    assert theirs(copy).to_table() == expected
    assert theirs(copy).to_table(filter="a = 33").num_rows == 1
    dataset(copy).cleanup_old_versions(older_than=NOW)
    assert theirs(path).to_table() == theirs(copy).to_table() == expected


def test_lineage_in_data_files_is_carried(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0), path, enable_stable_row_ids=True)
    theirs(path).update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"})
    lance.write_dataset(rows(20), path, mode="append")
    theirs(path).update({"t": "'new'"}, where="a % 4 = 1")
    theirs(path).optimize.compact_files()
    lance.write_dataset(rows(40), path, mode="append")
    theirs(path).delete("a = 10")
    assert any(f.WhichOneof("row_id_sequence") == "column_row_ids" for f in dataset(path).manifest.fragments)
    before = theirs(path).to_table(columns=["a", "t", *LINEAGE])
    dataset(path).compact_files()
    assert theirs(path).to_table(columns=["a", "t", *LINEAGE]) == before
    assert theirs(path).count_rows(filter="t = 'new'") == 10


def test_a_table_in_memory() -> None:
    uri = "memory://maintenance/t"
    for start in range(0, 80, 20):
        write_dataset(rows(start), uri, "append")
    table = dataset(uri)
    assert table.compact_files().fragments_added == 1
    expected = dataset(uri).to_table()
    stats = dataset(uri).cleanup_old_versions(older_than=NOW)
    assert (stats.old_versions, stats.data_files_removed, stats.failed_deletes) == (4, 4, 0)
    assert dataset(uri).to_table() == expected
    names = {result.name for result in table.store.list_objects(f"{table.root}/data")}
    assert names == {file.path for f in dataset(uri).manifest.fragments for file in f.files}
