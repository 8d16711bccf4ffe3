"""Metadata tables without Spark: true for whatever history, lazy, and silent on what is not known."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.proto import table_pb2
from spark_lance.table.format.rowids import pack_row_ids, row_id_bounds
from spark_lance.table.metadata import METADATA_TABLES, metadata_table, versions
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import read_whole
from tests.table.histories import Step, play, rows, steps


def subject(path: Path | str, version: Any = None) -> Snapshot:
    """Return what metadata tables of a version are made from."""
    table = spark_lance.dataset(str(path), version, allowed_bases=[tempfile.gettempdir(), "/dev/shm"])
    return table.snapshot


def told(path: Path | str, name: str, *columns: str, version: Any = None) -> list[dict[str, Any]]:
    """Return the rows of a metadata table; maps as dicts."""
    result = METADATA_TABLES[name].to_arrow(subject(path, version), columns or None)
    maps = [field.name for field in result.schema if pa.types.is_map(field.type)]
    return [
        {key: dict(value) if key in maps and value is not None else value for key, value in row.items()}
        for row in result.to_pylist()
    ]


def data_files(table: Any) -> set[str]:
    return {file.path for fragment in table.get_fragments() for file in fragment.metadata.files}


@settings(max_examples=15)
@example([("merge", 3, True), ("delete", 4, False), ("merge", 2, False), ("compact", 9, True)], True)
@example([("merge", 3, True), ("overwrite", 0, False), ("update", 2, False)], False)
@given(done=steps(max_size=5), stable=st.booleans())
def test_versions_and_history_are_true_for_every_history(done: list[Step], stable: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        play(path, done, stable=stable)
        latest = lance.dataset(path)
        assert [row["version"] for row in told(path, "history", "version")] == [
            each["version"] for each in reversed(latest.versions())
        ]
        histories = {row["version"]: row for row in told(path, "history")}
        for row in told(path, "versions"):
            number = row["version"]
            table = lance.dataset(path, version=number)
            assert row["rows"] == table.count_rows()
            assert row["deleted_rows"] == sum(part.num_deletions for part in table.get_fragments())
            assert (row["fragments"], row["data_files"]) == (
                len(table.get_fragments()),
                len(data_files(table)),
            )
            check_history(histories[number], path, number, stable)


# Lance's operation -> the statements that make it.
STATEMENTS = {
    "Append": {"WRITE", "MERGE"},
    "Overwrite": {"WRITE", "CREATE TABLE AS SELECT"},
    "Delete": {"DELETE", "MERGE"},
    "Update": {"UPDATE", "MERGE"},
    "Rewrite": {"OPTIMIZE"},
    "Merge": {"ADD COLUMNS"},
    "Project": {"DROP COLUMNS", "CHANGE COLUMNS"},
    "CreateIndex": {"CREATE INDEX", "DROP INDEX"},
    "UpdateConfig": {"SET TBLPROPERTIES"},
    "BaseOperation": {"OPTIMIZE", "RESERVE FRAGMENTS", "SET TBLPROPERTIES"},  # pylance has no class for these
}


def check_history(row: dict[str, Any], path: Path, number: int, stable: bool) -> None:
    """Compare a row of the history with what the two versions hold, as pylance reads them."""
    table = lance.dataset(path, version=number)
    before = lance.dataset(path, version=number - 1) if number > 1 else None
    counts = {name: int(value) for name, value in row["operationMetrics"].items()}
    old, new = data_files(before) if before else set(), data_files(table)
    assert (counts["numAddedFiles"], counts["numRemovedFiles"]) == (len(new - old), len(old - new))
    transaction: Any = table.read_transaction(number)
    operation = type(transaction.operation).__name__
    assert row["operation"] in STATEMENTS[operation]
    operation = "Rewrite" if row["operation"] == "OPTIMIZE" else operation
    assert row["readVersion"] == (transaction.read_version or None)
    assert row["isBlindAppend"] == (operation == "Append")
    rows_now, rows_before = table.count_rows(), before.count_rows() if before else 0
    if operation == "Append":
        assert counts["numOutputRows"] == rows_now - rows_before
    elif operation == "Overwrite":
        assert (counts["numOutputRows"], counts["numDeletedRows"]) == (rows_now, rows_before)
    elif operation == "Delete":
        assert counts["numDeletedRows"] == rows_before - rows_now
    elif operation == "Rewrite":
        added = {part.fragment_id for part in table.get_fragments()}
        added -= {part.fragment_id for part in before.get_fragments()} if before else set()
        copied = sum(part.count_rows() for part in table.get_fragments() if part.fragment_id in added)
        assert counts["numCopiedRows"] == copied
    elif operation == "Update":
        assert counts["numOutputRows"] - counts["numRemovedRows"] == rows_now - rows_before
        if stable and "numInsertedRows" in counts:
            assert before is not None
            check_update(counts, before, table, number)
    else:
        assert rows_now == rows_before


def check_update(counts: dict[str, int], before: Any, after: Any, number: int) -> None:
    ids = set(before.to_table(columns=["_rowid"])["_rowid"].to_pylist())
    now = after.to_table(columns=["_rowid", "_row_last_updated_at_version"]).to_pylist()
    touched = {row["_rowid"] for row in now if row["_row_last_updated_at_version"] == number}
    remaining = {row["_rowid"] for row in now}
    assert counts["numInsertedRows"] == len(remaining - ids)
    assert counts["numUpdatedRows"] == len(touched & ids)
    assert counts["numDeletedRows"] == len(ids - remaining)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of nine versions: rows deleted, a branch, tags, an index, an added column, settings."""
    path = tmp_path_factory.mktemp("metadata") / "t"
    lance.write_dataset(rows(0, 30), path, max_rows_per_file=8)  # 1
    lance.dataset(path).delete("a % 10 = 3")  # 2
    lance.dataset(path).create_scalar_index("a", "BTREE")  # 3
    with spark_lance.commit_options(message="nightly load", properties={"job": "7"}):
        spark_lance.write_dataset(rows(100, 5), str(path), mode="append")  # 4
    table = lance.dataset(path)
    table.add_columns({"c": "a * 2"})  # 5
    lance.write_dataset(rows(200, 4), path, mode="append")  # 6
    table = lance.dataset(path)
    table.tags.create("loaded", 4)
    table.tags.create("again", 4)
    table.create_branch("dev", 4)
    table.update_config({"owner": "etl"})  # 7
    table = lance.dataset(path)
    table.update_schema_metadata({"unit": "m"})  # 8
    lance.write_dataset(rows(300, 2), lance.dataset(path).checkout_version(("dev", None)), mode="append")
    spark_lance.dataset(str(path), 2).restore()  # 9
    return path


def test_history_tells_parameters_messages_and_engines(path: Path) -> None:
    results = {row["version"]: row for row in told(path, "history")}
    assert [results[number]["operation"] for number in range(1, 10)] == [
        *("CREATE TABLE AS SELECT", "DELETE", "CREATE INDEX", "WRITE", "ADD COLUMNS", "WRITE"),
        *("SET TBLPROPERTIES", "SET TBLPROPERTIES", "RESTORE"),
    ]
    assert results[1]["operationParameters"] == {"mode": "Create", "columns": '["a", "b"]'}
    assert results[1]["readVersion"] is None
    assert results[2]["operationParameters"] == {"predicate": "a % 10 = 3"}
    assert results[3]["operationParameters"] == {"created": '["a_idx"]', "removed": "[]"}
    assert results[4]["userMetadata"] == "nightly load"
    assert results[5]["operationParameters"] == {"columns": '["a", "b", "c"]'}
    assert results[7]["operationParameters"] == {"config_updates": '{"owner": "etl"}'}
    assert results[9]["operationParameters"] == {"version": "2"}
    assert [results[number]["userMetadata"] for number in (1, 2, 9)] == [None] * 3
    assert results[2]["engineInfo"] == f"lance {lance.__version__}"
    assert results[4]["engineInfo"] == f"spark_lance {spark_lance.__version__}"


def test_history_names_statements(tmp_path: Path) -> None:
    empty = pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], pa.string())})
    table = spark_lance.write_dataset(empty, str(tmp_path / "t"))
    for first in (0, 4):
        table = spark_lance.write_dataset(rows(first, 4), table.uri, mode="append")
    table.merge_insert("a").when_not_matched_insert_all().execute(rows(5, 9))
    table = spark_lance.dataset(table.uri)
    table.update({"b": "'x'"}, where="a = 1")
    table = spark_lance.dataset(table.uri)
    table.create_scalar_index("a", "BTREE", name="i")
    table = spark_lance.dataset(table.uri)
    table.drop_index("i")
    table.alter_columns({"path": "b", "name": "c"})
    table = spark_lance.dataset(table.uri)
    table.drop_columns(["c"])
    table = spark_lance.dataset(table.uri)
    table.optimize.compact_files()
    spark_lance.write_dataset(rows(0, 1), table.uri, mode="overwrite")
    assert [row["operation"] for row in reversed(told(tmp_path / "t", "history"))] == [
        *("CREATE TABLE", "WRITE", "WRITE", "MERGE", "UPDATE", "CREATE INDEX", "DROP INDEX"),
        *("CHANGE COLUMNS", "DROP COLUMNS", "OPTIMIZE", "WRITE"),
    ]
    names = [row["operation"] for row in told(tmp_path / "t", "transactions")]
    assert names[-4:] == ["Update", "Append", "Append", "Overwrite"]
    assert [row["isBlindAppend"] for row in told(tmp_path / "t", "history")][-4:] == [
        False,
        True,
        True,
        False,
    ]


def test_transactions_are_those_of_pylance(path: Path) -> None:
    table = lance.dataset(path)
    for row in told(path, "transactions"):
        other: Any = table.read_transaction(row["version"])
        assert (row["uuid"], row["read_version"]) == (other.uuid, other.read_version or None)
        assert row["properties"] == (other.transaction_properties or {})
        assert (path / "_transactions" / row["file"]).exists()
        assert row["inline"] is True
    assert told(path, "transactions", version=4)[0]["properties"]["job"] == "7"


def test_a_table_tells_of_the_version_that_is_looked_from(path: Path) -> None:
    assert [row["version"] for row in told(path, "versions", "version", version=3)] == [3, 2, 1]
    assert [row["tags"] for row in told(path, "versions", "tags", version=4)] == [["again", "loaded"]] + [
        []
    ] * 3
    assert {row["id"] for row in told(path, "fragments", "id", version=1)} == {0, 1, 2, 3}
    branch = told(path, "history", "version", "operation", version=("dev", None))
    assert branch == [{"version": 5, "operation": "WRITE"}, {"version": 4, "operation": "CLONE"}]
    assert told(path, "tags") == told(path, "tags", version=("dev", None))


def test_fragments_are_those_of_pylance(path: Path) -> None:
    for number in (2, 6):
        results = {row["id"]: row for row in told(path, "fragments", version=number)}
        theirs = lance.dataset(path, version=number).get_fragments()
        assert list(results) == [fragment.fragment_id for fragment in theirs]
        for fragment in theirs:
            row = results[fragment.fragment_id]
            assert (row["rows"], row["physical_rows"]) == (fragment.count_rows(), fragment.physical_rows)
            assert row["deleted_rows"] == fragment.num_deletions
            assert row["data_files"] == [file.path for file in fragment.data_files()]
            assert row["bytes"] == sum((path / "data" / name).stat().st_size for name in row["data_files"])
            assert (row["deletion_file"] is not None) == bool(fragment.num_deletions)
            ids = fragment.to_table(columns=["_rowid"])["_rowid"].to_pylist()
            assert row["row_ids"] == "address"
            assert row["min_row_id"] <= min(ids) <= max(ids) <= row["max_row_id"]
    *others, last = told(path, "fragments", "columns", version=6)
    assert last["columns"] == ["a", "b"]
    assert all(row["columns"] == ["a", "b", "c"] for row in others)


def test_files_exist_and_have_their_sizes(path: Path) -> None:
    result = told(path, "files", version=6)
    for row in result:
        assert Path(row["path"]).exists()
        assert row["bytes"] in (None, Path(row["path"]).stat().st_size)
        content = {"data": 0, "deletion": 1}.get(row["role"])
        assert (row["content"], row["file_path"]) == (content, None if content is None else row["path"])
    roles = [row["role"] for row in result]
    assert [roles.count(role) for role in ("manifest", "transaction", "data", "deletion")] == [1, 1, 11, 3]
    assert {row["index"] for row in result if row["role"] == "index"} == {"a_idx"}
    assert {tuple(row["fields"]) for row in result if row["role"] == "data"} == {("a", "b"), ("c",)}
    assert {row["file_version"] for row in result if row["role"] == "data"} == {"2.2"}


def test_files_of_a_clone_are_found_at_their_base(path: Path, tmp_path: Path) -> None:
    spark_lance.dataset(str(path), 6).shallow_clone(str(tmp_path / "clone"))
    data = [row for row in told(tmp_path / "clone", "files") if row["role"] == "data"]
    assert {row["base"] for row in data} == {0} or all(row["base"] is not None for row in data)
    assert all(Path(row["path"]).parent == path / "data" and Path(row["path"]).exists() for row in data)
    assert told(tmp_path / "clone", "history", "operation", "operationMetrics") == [
        {"operation": "CLONE", "operationMetrics": None}
    ]


def test_schema_and_config(path: Path, tmp_path: Path) -> None:
    field = pa.field("x", pa.int32(), nullable=False, metadata={"k": "v"})
    table = pa.table(
        {"s": pa.array([{"x": 1, "y": [2.0]}], pa.struct([field, ("y", pa.list_(pa.float32()))]))}
    )
    spark_lance.write_dataset(table, str(tmp_path / "s"))
    result = told(tmp_path / "s", "schema")
    assert [(row["id"], row["parent_id"], row["path"], row["type"]) for row in result] == [
        (0, None, "s", "struct"),
        (1, 0, "s.x", "int32"),
        (2, 0, "s.y", "list"),
        (3, 2, "s.y.item", "float"),
    ]
    assert [row["nullable"] for row in result] == [True, False, True, True]
    assert result[1]["metadata"] == {"k": "v"}
    assert result[2]["arrow_type"] == "list<item: float>"
    config = {(row["scope"], row["key"]): row["value"] for row in told(path, "config", version=8)}
    assert config["config", "owner"] == "etl"
    assert config["schema metadata", "unit"] == "m"


def test_indices_tell_what_they_cover(path: Path) -> None:
    (row,) = told(path, "indices", version=6)
    statistics: Any = lance.dataset(path, version=6).stats.index_stats("a_idx")
    for mine, theirs in (
        ("indexed_rows", "num_indexed_rows"),
        ("unindexed_rows", "num_unindexed_rows"),
        ("indexed_fragments", "num_indexed_fragments"),
        ("unindexed_fragments", "num_unindexed_fragments"),
    ):
        assert row[mine] == statistics[theirs], mine
    assert (row["name"], row["type"], row["fields"]) == ("a_idx", "BTree", ["a"])
    (segment,) = row["segments"]
    assert segment["fragments"] == [0, 1, 2, 3]
    assert row["bytes"] == segment["bytes"]


def test_tags_and_branches_are_those_of_pylance(path: Path) -> None:
    table = lance.dataset(path)
    assert {row["name"]: row["version"] for row in told(path, "tags")} == {
        name: tag["version"] for name, tag in table.tags.list().items()
    }
    (branch,) = told(path, "branches")
    assert (branch["name"], branch["parent_branch"], branch["parent_version"]) == ("dev", None, 4)
    assert branch["latest_version"] == 5


def test_a_lost_transaction_is_null_and_nothing_else(
    tmp_path: Path, forge: Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
) -> None:
    spark_lance.write_dataset(rows(0, 5), str(tmp_path / "t"))
    spark_lance.write_dataset(rows(5, 5), str(tmp_path / "t"), mode="append")
    (name,) = (row["file"] for row in told(tmp_path / "t", "transactions") if row["version"] == 2)
    (tmp_path / "t" / "_transactions" / name).unlink()
    assert told(tmp_path / "t", "history")[0]["operation"] == "WRITE", "the inline copy is left"
    forge(tmp_path / "t", lambda message: message.ClearField("transaction_section"))
    newest, first = told(tmp_path / "t", "history")
    assert first["operation"] == "CREATE TABLE AS SELECT"
    assert newest["version"] == 2
    assert newest["timestamp"] > first["timestamp"]
    assert newest["engineInfo"] == first["engineInfo"]
    for column in ("operation", "operationParameters", "operationMetrics", "readVersion", "isBlindAppend"):
        assert newest[column] is None, column
    (row, _) = told(tmp_path / "t", "transactions")
    assert (row["uuid"], row["file"], row["inline"]) == (None, name, False)


def test_counts_that_would_need_a_version_that_is_gone_are_null(tmp_path: Path) -> None:
    for start in range(4):
        spark_lance.write_dataset(rows(start, 1), str(tmp_path / "t"), mode="append")
    spark_lance.dataset(str(tmp_path / "t")).cleanup_old_versions(timedelta(0), retain_versions=2)
    newest, oldest = told(tmp_path / "t", "history")
    assert newest["operationMetrics"]["numOutputRows"] == "1"
    assert (oldest["version"], oldest["operation"], oldest["operationMetrics"]) == (3, "WRITE", None)


def test_a_time_that_no_writer_has_told_is_null(
    tmp_path: Path, forge: Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
) -> None:
    spark_lance.write_dataset(rows(0, 5), str(tmp_path / "t"))
    forge(tmp_path / "t", lambda message: message.ClearField("timestamp"))
    assert told(tmp_path / "t", "versions", "timestamp") == [{"timestamp": None}]


def test_no_manifest_is_read_for_columns_that_need_none(path: Path) -> None:
    here = subject(path)
    condition = compile_predicate("version = 4", METADATA_TABLES["history"].schema)
    with mock.patch.object(versions, "read_whole", wraps=read_whole) as read:
        numbers = METADATA_TABLES["history"].to_arrow(here, ["version"])["version"].to_pylist()
        assert numbers == list(range(9, 0, -1))
        assert read.call_count == 0
        (result,) = METADATA_TABLES["history"].batches(here, ["operationMetrics", "version"], condition)
        assert result["version"].to_pylist() == [4]
        assert read.call_count == 2, "the version and the one before it"


def test_limit_and_order_of_columns(path: Path) -> None:
    result = METADATA_TABLES["history"].to_arrow(subject(path), ["operation", "version"], limit=2)
    assert result.to_pylist() == [
        {"operation": "RESTORE", "version": 9},
        {"operation": "SET TBLPROPERTIES", "version": 8},
    ]
    assert METADATA_TABLES["history"].to_arrow(subject(path), limit=0).num_rows == 0


def test_unknown_names_list_those_that_exist(path: Path) -> None:
    with pytest.raises(
        OptionError, match="metadata table 'snapshot' does not exist; use one of versions, history"
    ):
        metadata_table("snapshot")
    with pytest.raises(SchemaError, match="no column nope; it has id, rows"):
        METADATA_TABLES["fragments"].to_arrow(subject(path), ["id", "nope"])


def test_a_table_of_very_many_fragments_comes_in_small_parts(
    tmp_path: Path, forge: Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
) -> None:
    spark_lance.write_dataset(rows(0, 5), str(tmp_path / "t"))

    def multiply(message: table_pb2.Manifest) -> None:
        for number in range(1, 20_000):
            message.fragments.add().CopyFrom(message.fragments[0])
            message.fragments[number].id = number

    forge(tmp_path / "t", multiply)
    parts = METADATA_TABLES["fragments"].batches(subject(tmp_path / "t"), ["id", "rows", "columns"])
    sizes = [(part.num_rows, part.nbytes) for part in parts]
    assert sum(count for count, _ in sizes) == 20_000
    assert max(size for _, size in sizes) < 1 << 20


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=50, unique=True), st.booleans())
def test_bounds_of_row_ids(ids: list[int], ascending: bool) -> None:
    given_ids = np.array(sorted(ids) if ascending else ids, np.uint64)
    assert row_id_bounds(pack_row_ids(given_ids), len(ids)) == (min(ids), max(ids))
