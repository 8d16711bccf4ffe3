"""Restoring older versions: what comes back, what never goes back, turns with pylance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.errors import UnsupportedFormatError, VersionNotFoundError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.features import FIELD_ID_MARK, MIXED_FILE_VERSIONS, STABLE_ROW_IDS
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.next_version import CommitContext
from spark_lance.table.operations.restore import restore
from spark_lance.table.versions.versions import load_latest, load_version

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
Restore = transaction_pb2.Transaction.Restore
ROWS = pa.table({"a": pa.array(range(10), pa.int64())})


def theirs(path: Path, version: int | None = None) -> Any:
    """Open a table with pylance."""
    return lance.dataset(str(path), version=version)


def _history(path: Path) -> None:
    """Five versions: rows; more rows; an index and config; a column; an overwrite with another schema."""
    dataset: Any = lance.write_dataset(ROWS, path, max_rows_per_file=5, enable_stable_row_ids=True)
    dataset = lance.write_dataset(ROWS, path, mode="append")
    dataset.delete("a = 3")
    dataset.create_scalar_index("a", "BTREE")
    dataset.update_config({"k": "v"})
    dataset.add_columns({"b": "a + 1"})
    lance.write_dataset(pa.table({"c": ["x"]}), path, mode="overwrite")


@pytest.mark.parametrize("version", range(1, 8))
def test_restored_manifests_equal_those_of_pylance(tmp_path: Path, version: int) -> None:
    manifests, contents = [], []
    for side in ("lance", "ours"):
        path = tmp_path / side
        _history(path)
        expected = theirs(path, version).to_table()
        if side == "lance":
            theirs(path, version).restore()
        else:
            restored = spark_lance.dataset(path, version).restore()
            assert restored.version == 8
            assert restored.to_table() == expected
        dataset = theirs(path)
        dataset.validate()
        assert dataset.version == 8
        assert dataset.to_table() == expected
        lance.write_dataset(expected.slice(0, 1), path, mode="append")
        assert theirs(path).to_table().num_rows == expected.num_rows + 1
        contents.append(dataset.to_table(columns=["_rowid"])["_rowid"].to_pylist())
        manifests.append(load_version(TableRef(*open_store(path)), 8))
    expected_rows, ours = manifests
    assert contents[0] == contents[1]
    for name in ("max_fragment_id", "next_row_id", "config", "fields", "schema_metadata"):
        assert getattr(ours.message, name) == getattr(expected_rows.message, name), name
    assert ours.message.reader_feature_flags == expected_rows.message.reader_feature_flags
    assert ours.message.writer_feature_flags == expected_rows.message.writer_feature_flags
    assert [fragment.id for fragment in ours.fragments] == [
        fragment.id for fragment in expected_rows.fragments
    ]
    assert [index.name for index in ours.indices] == [index.name for index in expected_rows.indices]


def test_rows_written_after_a_restore_get_new_ids(tmp_path: Path) -> None:
    path = tmp_path / "t"
    _history(path)
    spark_lance.dataset(path, 1).restore()
    spark_lance.write_dataset(ROWS, path, "append")
    manifest = load_latest(TableRef(*open_store(path)))
    assert [fragment.id for fragment in manifest.fragments] == [0, 1, 4]
    ids = theirs(path).to_table(columns=["_rowid"])["_rowid"].to_pylist()
    assert ids == [*range(10), *range(21, 31)]


def test_turns_with_pylance(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    spark_lance.dataset(path).delete(pc.field("a") < 5)
    theirs(path, 1).restore()
    assert spark_lance.dataset(path).count_rows() == 10
    spark_lance.dataset(path, 2).restore()
    assert theirs(path).count_rows() == 5
    theirs(path).delete("a = 7")
    assert spark_lance.dataset(path).restore().to_table()["a"].to_pylist() == [5, 6, 8, 9]
    assert spark_lance.dataset(path).version == 6


def test_a_stale_write_after_a_restore_is_stopped(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    lance.write_dataset(ROWS, path, mode="append")
    stale = theirs(path)
    ours = spark_lance.dataset(path)
    spark_lance.dataset(path, 1).restore()
    with pytest.raises(spark_lance.errors.IncompatibleConflictError, match="restore"):
        ours.delete(pc.field("a") == 1)
    with pytest.raises(OSError, match="ncompatible"):
        stale.delete("a = 1")
    assert theirs(path).count_rows() == 10


def test_versions_that_cannot_be_restored(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset = spark_lance.write_dataset(ROWS, path)
    with pytest.raises(VersionNotFoundError, match="7"):
        commit_operation(dataset.table, Restore(version=7), read_version=1)
    with pytest.raises(ValueError, match="context"):
        restore(dataset.manifest, Restore(version=1), CommitContext(dataset.root, "1-x.txn", 0))
    assert dataset.latest_version == 1


def test_marks_are_kept(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)
    lance.write_dataset(ROWS, path, mode="append")

    def mark(message: table_pb2.Manifest) -> None:
        message.max_allocated_field_id = 9
        message.reader_feature_flags |= MIXED_FILE_VERSIONS
        message.writer_feature_flags |= MIXED_FILE_VERSIONS | FIELD_ID_MARK

    forge(path, mark)
    restored = spark_lance.dataset(path, 1).restore().manifest.message
    assert restored.max_allocated_field_id == 9
    assert restored.reader_feature_flags == MIXED_FILE_VERSIONS
    assert restored.writer_feature_flags == MIXED_FILE_VERSIONS | FIELD_ID_MARK
    assert theirs(path).to_table() == ROWS


def test_stable_row_ids_are_not_given_up(tmp_path: Path) -> None:
    plain, stable = tmp_path / "plain", tmp_path / "stable"
    spark_lance.write_dataset(ROWS, plain)
    base = spark_lance.write_dataset(ROWS, stable, enable_stable_row_ids=True).manifest
    assert base.message.reader_feature_flags & STABLE_ROW_IDS
    context = CommitContext("r", "1-x.txn", 0, load_latest(TableRef(*open_store(plain))))
    with pytest.raises(UnsupportedFormatError, match="stable row ids"):
        restore(base, Restore(version=1), context)


def test_a_version_that_must_not_be_written_is_not_restored(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(ROWS, path)

    def forbid(message: table_pb2.Manifest) -> None:
        message.writer_feature_flags |= 1 << 40

    forge(path, forbid)
    manifest = load_latest(TableRef(*open_store(path)))
    base = spark_lance.write_dataset(ROWS, tmp_path / "other").manifest
    with pytest.raises(UnsupportedFormatError, match="writing"):
        restore(base, Restore(version=1), CommitContext("r", "1-x.txn", 0, manifest))
