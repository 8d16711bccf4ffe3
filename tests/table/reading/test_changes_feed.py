"""What changed between two versions, against pylance's scans of both and against its own delta."""

from __future__ import annotations

import tempfile
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance.datasets.dataset as ours
from spark_lance.errors import OptionError, SchemaError, UnsupportedFormatError, VersionNotFoundError
from tests.table.histories import Step, play, rows, steps

VERSIONS = ["_row_created_at_version", "_row_last_updated_at_version"]


def by_id(path: Path, version: int, system: list[str]) -> dict[int, dict[str, object]]:
    """Return the rows of a version by id, as pylance scans them; version 0 has none."""
    if not version:
        return {}
    table = lance.dataset(str(path), version=version)
    names = [name for name in table.schema.names if name in ("a", "b")]
    values = table.to_table(columns=[*names, "_rowid", *system]).to_pylist()
    return {row["_rowid"]: row for row in values}


def ordered(reader: pa.RecordBatchReader) -> list[dict[str, object]]:
    values: list[dict[str, object]] = reader.read_all().to_pylist()
    return sorted(values, key=lambda row: str(row["_rowid"]))


def assert_changes(path: Path, begin: int, end: int, system: list[str]) -> None:
    before, after = by_id(path, begin, system), by_id(path, end, system)
    inserted = [row for number, row in after.items() if number not in before]
    deleted = [row for number, row in before.items() if number not in after]
    updated = [
        row
        for number, row in after.items()
        if number in before and system and row[VERSIONS[1]] != before[number][VERSIONS[1]]
    ]
    changes = ours.dataset(path).diff(begin, end)
    for reader, expected in (
        (changes.inserted(["a", "b"]), inserted),
        (changes.updated(["a", "b"]), updated),
        (changes.deleted(["a", "b"]) if begin else changes.deleted([]), deleted),
    ):
        assert ordered(reader) == sorted(expected, key=lambda row: str(row["_rowid"]))
    assert changes.counts() == {
        "inserted": len(inserted),
        "updated": len(updated),
        "deleted": len(deleted),
    }


@settings(max_examples=10, deadline=None)
@given(changes=steps(), data=st.data())
def test_any_two_versions_with_stable_row_ids(changes: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=True)
        if data.draw(st.booleans(), "restore"):
            latest = lance.dataset(str(path)).version
            lance.dataset(str(path), version=data.draw(st.integers(1, latest), "restored")).restore()  # type: ignore[no-untyped-call]
            restored = True
        else:
            restored = False
        latest = lance.dataset(str(path)).version
        end = data.draw(st.integers(1, latest), "end")
        begin = data.draw(st.integers(0, end), "begin")
        assert_changes(path, begin, end, VERSIONS)
        if not restored:
            theirs = lance.dataset(str(path), version=end).delta(begin_version=begin, end_version=end)
            mine = ours.dataset(path, version=end).delta(begin_version=begin, end_version=end)
            assert ordered(mine.get_inserted_rows()) == ordered(theirs.get_inserted_rows())
            assert ordered(mine.get_updated_rows()) == ordered(theirs.get_updated_rows())
            if begin:
                assert ordered(mine.get_deleted_row_ids()) == ordered(theirs.get_deleted_row_ids())
            assert [t.uuid for t in mine.list_transactions()] == [t.uuid for t in theirs.list_transactions()]


@settings(max_examples=8, deadline=None)
@given(changes=steps("append", "delete", "overwrite"), data=st.data())
def test_appends_and_deletes_without_stable_row_ids(changes: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=False)
        end = data.draw(st.integers(1, lance.dataset(str(path)).version), "end")
        assert_changes(path, data.draw(st.integers(0, end), "begin"), end, [])


@pytest.mark.parametrize("step", ["update", "merge", "compact", "add column"])
def test_moved_rows_without_stable_row_ids_are_refused(tmp_path: Path, step: str) -> None:
    path = tmp_path / "t"
    play(path, [("append", 1, False), (step, 9, True), ("append", 1, False)], stable=False)
    latest = ours.dataset(path)
    assert latest.diff(latest.version - 1).counts()["inserted"] == 6
    with pytest.raises(UnsupportedFormatError, match="neither stable row ids nor a primary key"):
        latest.diff(1).inserted()


def test_schemas_and_values_are_those_of_their_versions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    play(path, [("delete", 3, False), ("add column", 0, True), ("update", 1, False)], stable=True)
    changes = ours.dataset(path).diff(1)
    assert changes.inserted().schema.names == ["a", "b", "c1", "_rowid", *VERSIONS]
    assert changes.deleted().schema.names == ["a", "b", "_rowid", *VERSIONS]
    assert changes.deleted().read_all()["a"].to_pylist() == [3, 13, 23]
    assert changes.updated(["c1"]).read_all()["c1"].null_count == 0
    with pytest.raises(SchemaError, match="c1"):
        changes.deleted(["c1"])


def test_versions_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    play(path, [("append", 1, False)], stable=True)
    table = ours.dataset(path)
    with pytest.raises(OptionError, match="later"):
        table.diff(2, 1)
    with pytest.raises(VersionNotFoundError):
        table.diff(9)
    with pytest.raises(OptionError, match="begin_version and end_version"):
        table.delta(begin_version=1)
    lance.dataset(str(path)).tags.create("first", 1)
    assert table.diff("first").counts()["inserted"] == 6
    assert table.delta(1).get_inserted_rows().read_all()["a"].to_pylist() == list(range(100, 106))
    lance.dataset(str(path)).create_branch("side")
    lance.write_dataset(rows(500, 3), path / "tree" / "side", mode="append")
    side = ours.dataset(path / "tree" / "side")
    assert side.diff(2).counts() == {"inserted": 3, "updated": 0, "deleted": 0}
    with pytest.raises(OptionError, match="another branch"):
        side.diff("first")


def test_a_restored_version_changes_rows_back(tmp_path: Path) -> None:
    path = tmp_path / "t"
    play(path, [("update", 1, False), ("delete", 4, False)], stable=True)
    lance.dataset(str(path), version=1).restore()  # type: ignore[no-untyped-call]
    changes = ours.dataset(path).diff(3)
    assert changes.inserted(["a"]).read_all()["a"].to_pylist() == [4, 14, 24]
    assert changes.updated(["a"]).read_all()["a"].to_pylist() == [1, 8, 15, 22, 29]
    assert changes.deleted(["a"]).read_all().num_rows == 0
    assert ours.dataset(path).diff(1).counts() == {"inserted": 0, "updated": 0, "deleted": 0}
