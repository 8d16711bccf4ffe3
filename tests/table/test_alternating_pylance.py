"""One table, two writers: our commits and pylance's in turns and at the same time."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.errors import CommitError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import WRITABLE_VERSIONS, FileVersion
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import commit_operation, create_table
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import ManifestNaming
from spark_lance.table.format.rowids import fragment_row_ids
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.append import append_message
from spark_lance.table.operations.overwrite import overwrite_message
from spark_lance.table.versions.versions import list_versions, load_latest, load_version

Loose = Callable[..., list[table_pb2.DataFragment]]
Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]

STRUCT = pa.struct({"x": pa.int64(), "y": pa.list_(pa.utf8())})


def rows(start: int, count: int = 5) -> pa.Table:
    values = range(start, start + count)
    return pa.table(
        {
            "a": pa.array(values, pa.int64()),
            "s": pa.array([{"x": i, "y": [str(i)] * (i % 3)} for i in values], STRUCT),
        }
    )


def our_append(
    path: Path, fragments: list[table_pb2.DataFragment], read_version: int | None = None
) -> Manifest:
    table = TableRef(*open_store(path))
    version = read_version or load_latest(table).version
    return commit_operation(table, append_message(fragments), read_version=version)


def latest(path: Path) -> Manifest:
    return load_latest(TableRef(*open_store(path)))


def values(path: Path) -> list[int]:
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    return sorted(dataset.to_table(columns=["a"])["a"].to_pylist())


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("v2_names", [True, False], ids=["V2", "V1"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_taking_turns(tmp_path: Path, loose: Loose, version: str, v2_names: bool, stable: bool) -> None:
    path = tmp_path / "t"
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(rows(0), path, enable_v2_manifest_paths=v2_names, **options)
    for turn in range(1, 9):
        data = rows(turn * 5)
        if turn % 2:
            our_append(path, loose(path, data, mode="append"))
        else:
            lance.write_dataset(data, path, mode="append")
    assert values(path) == list(range(45))
    table = TableRef(*open_store(path))
    versions = list_versions(table)
    assert {file.naming for file in versions} == {ManifestNaming.V2 if v2_names else ManifestNaming.V1}
    assert [file.version for file in versions] == list(range(1, 10))
    assert [fragment.id for fragment in latest(path).fragments] == list(range(9))
    hint = json.loads((path / "_versions" / "latest_version_hint.json").read_bytes())
    assert hint == {"version": 9}
    if stable:
        scanned = lance.dataset(str(path)).to_table(columns=["_rowid", "_row_created_at_version"])
        assert scanned["_rowid"].to_pylist() == list(range(45))
        assert scanned["_row_created_at_version"].to_pylist() == [
            turn for turn in range(1, 10) for _ in range(5)
        ]
        assert [len(fragment_row_ids(fragment)) for fragment in latest(path).fragments] == [5] * 9


@pytest.mark.parametrize("version", WRITABLE_VERSIONS, ids=lambda version: version.text)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_pylance_goes_on_with_a_table_of_ours(
    tmp_path: Path, loose: Loose, version: FileVersion, stable: bool
) -> None:
    path = tmp_path / "t"
    table = TableRef(*open_store(path))
    fragments = loose(path, rows(0, 20), data_storage_version=version.text, max_rows_per_file=8)
    schema = Schema.from_arrow(rows(0).schema)
    create_table(table, schema, fragments, version=version, stable_row_ids=stable, config={"k": "v"})
    dataset = lance.dataset(str(path))
    assert dataset.data_storage_version == version.text
    assert dataset.config() == {"k": "v"}
    assert dataset.to_table() == rows(0, 20)
    dataset.delete("a = 3")
    our_append(path, loose(path, rows(20), mode="append", data_storage_version=version.text))
    dataset = lance.dataset(str(path))
    dataset.update({"a": "a + 100"}, where="a = 4")
    dataset.add_columns({"b": "a + 1"})
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    assert values(path) == sorted({*range(25), 104} - {3, 4})
    ids = [fragment.id for fragment in latest(path).fragments]
    our_append(path, loose(path, lance.dataset(str(path)).to_table().slice(0, 1), mode="append"))
    assert [fragment.id for fragment in latest(path).fragments] == [*ids, ids[-1] + 1]
    assert len(values(path)) == 25


def test_index_entries_do_not_change_when_we_append(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0, 100), path)
    dataset.create_scalar_index("a", "BTREE")
    dataset.create_scalar_index("a", "BITMAP", name="second")
    before = latest(path)
    assert len(before.indices) == 2
    our_append(path, loose(path, rows(100, 50), mode="append"))
    assert latest(path).index_section == before.index_section
    lance.dataset(str(path)).delete("a = 20")
    our_append(path, loose(path, rows(20, 3), mode="append"))
    dataset = lance.dataset(str(path))
    for condition in ("a = 20", "a = 120", "a < 30", "a >= 99"):
        indexed = dataset.to_table(filter=condition)
        scanned = dataset.scanner(filter=condition, use_scalar_index=False).to_table()
        assert sorted(indexed["a"].to_pylist()) == sorted(scanned["a"].to_pylist())
        assert indexed.num_rows


def test_indices_go_when_we_overwrite(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0), path)
    dataset.create_scalar_index("a", "BTREE")
    table = TableRef(*open_store(path))
    fragments = loose(path, rows(50), mode="append")
    operation = overwrite_message(latest(path).schema, fragments)
    after = commit_operation(table, operation, read_version=2)
    assert after.index_section == b""
    assert not after.message.HasField("index_section")
    assert lance.dataset(str(path)).describe_indices() == []
    assert values(path) == list(range(50, 55))


def test_tags_config_and_metadata_survive(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0), path)
    dataset.tags.create("first", 1)
    dataset.update_config({"lance.auto_cleanup.interval": "1000", "k": "v"})
    dataset.update_metadata({"about": "tests"})
    dataset.update_field_metadata({"a": {"unit": "m"}})
    our_append(path, loose(path, rows(5), mode="append"))
    dataset = lance.dataset(str(path))
    assert dataset.config() == {"lance.auto_cleanup.interval": "1000", "k": "v"}
    assert dataset.metadata == {"about": "tests"}
    assert dataset.schema.field("a").metadata == {b"unit": b"m"}
    assert lance.dataset(str(path), version="first").count_rows() == 5
    lance.write_dataset(rows(10), path, mode="append")
    assert values(path) == list(range(15))


@pytest.mark.parametrize("kept", ["inline", "file", "both"])
def test_a_stale_pylance_writer_rebases_onto_ours(
    tmp_path: Path, loose: Loose, forge: Forge, kept: str
) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0), path)
    appender, deleter = lance.dataset(str(path)), lance.dataset(str(path))
    ours = our_append(path, loose(path, rows(5), mode="append"))
    if kept == "inline":
        shutil.rmtree(path / "_transactions")
    elif kept == "file":
        forge(path, lambda message: message.ClearField("transaction_section"))
    lance.write_dataset(rows(10), appender, mode="append")
    deleter.delete("a = 2")
    assert values(path) == [0, 1, *range(3, 15)]
    assert ours.version == 2


def test_pylance_reads_our_transaction(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0), path)
    table = TableRef(*open_store(path))
    operation = append_message(loose(path, rows(5), mode="append"))
    ours = commit_operation(
        table, operation, read_version=1, properties={"__lance_commit_message": "second", "job": "7"}
    )
    theirs: Any = lance.dataset(str(path)).read_transaction(2)
    assert theirs.uuid == read_transaction(table, ours).uuid
    assert theirs.read_version == 1
    assert theirs.transaction_properties == {"__lance_commit_message": "second", "job": "7"}
    assert isinstance(theirs.operation, lance.LanceOperation.Append)


def test_a_stale_append_of_ours_goes_on_top_of_everything_compatible(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    dataset: Any = lance.write_dataset(rows(0, 20), path, max_rows_per_file=5)
    fragments = loose(path, rows(20), mode="append")
    dataset.delete("a in (1, 7)")
    dataset.create_scalar_index("a", "BTREE")
    dataset.add_columns({"b": "a * 2"})
    dataset.optimize.compact_files(target_rows_per_fragment=1000)
    dataset.update_config({"k": "v"})
    indices = latest(path).index_section
    our_append(path, fragments, read_version=1)
    assert values(path) == sorted({*range(25)} - {1, 7})
    assert latest(path).index_section == indices
    added = lance.dataset(str(path)).to_table(filter="a >= 20")
    assert added["b"].to_pylist() == [None] * 5


def test_fragment_ids_go_on_after_overwrite_delete_and_restore(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0), path)
    our_append(path, loose(path, rows(5), mode="append"))
    table = TableRef(*open_store(path))
    schema = latest(path).schema
    overwritten = overwrite_message(schema, loose(path, rows(10), mode="append"))
    commit_operation(table, overwritten, read_version=2)
    assert [fragment.id for fragment in latest(path).fragments] == [2]
    lance.dataset(str(path)).delete("true")
    assert len(latest(path).fragments) == 0
    our_append(path, loose(path, rows(15), mode="append"))
    assert [fragment.id for fragment in latest(path).fragments] == [3]
    old: Any = lance.dataset(str(path), version=1)
    old.restore()
    our_append(path, loose(path, rows(20), mode="append"))
    assert [fragment.id for fragment in latest(path).fragments] == [0, 4]
    lance.write_dataset(rows(25), path, mode="append")
    assert values(path) == [*range(5), *range(20, 30)]


def test_rows_of_another_file_version_set_the_flag_as_pylance_does(tmp_path: Path, loose: Loose) -> None:
    words = []
    for ours in (True, False):
        path = tmp_path / str(ours)
        lance.write_dataset(rows(0), path, data_storage_version="2.1")
        if ours:
            our_append(path, loose(path, rows(5), data_storage_version="2.2"))
        else:
            lance.write_dataset(rows(5), path, mode="append", data_storage_version="2.2")
        message = latest(path).message
        words.append(
            (message.reader_feature_flags, message.writer_feature_flags, message.data_format.version)
        )
        assert values(path) == list(range(10))
    assert words[0] == words[1] == (256, 256, "2.1")


def test_field_ids_that_are_never_reused(tmp_path: Path, loose: Loose, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"a": [1], "b": [2]}), path)

    def mark(message: table_pb2.Manifest) -> None:
        message.max_allocated_field_id = 7
        message.writer_feature_flags |= 32768

    forge(path, mark)
    schema = Schema.from_arrow(pa.schema({"c": pa.int64(), "d": pa.utf8()}), latest(path).first_new_field_id)
    assert [field.id for field in schema.fields] == [8, 9]
    table = TableRef(*open_store(path))
    commit_operation(table, overwrite_message(schema, []), read_version=1)
    assert latest(path).first_new_field_id == 10
    lance.write_dataset(pa.table({"c": [1], "d": ["x"]}), path, mode="append")
    lance.write_dataset(pa.table({"e": [1]}), path, mode="overwrite")
    assert [field.id for field in latest(path).schema.fields] == [10]


def test_four_writers_at_once_lose_nothing(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 1), path)
    each = 16
    batches = {
        writer: [loose(path, rows(writer * 1000 + turn, 1), mode="append") for turn in range(each)]
        for writer in (1, 2)
    }
    collisions: Counter[int] = Counter()
    # Both read a version before one of them commits, so the commits of each turn collide.
    have_read = Barrier(2)

    def ours(writer: int) -> None:
        table = TableRef(*open_store(path))
        for fragments in batches[writer]:
            before = load_latest(table).version
            have_read.wait(timeout=60)
            policy = RetryPolicy(attempts=200, base_seconds=0.005, cap_seconds=0.05)
            after = commit_operation(table, append_message(fragments), read_version=before, retry=policy)
            collisions[writer] += after.version > before + 1

    def theirs(writer: int) -> None:
        for turn in range(each):
            lance.write_dataset(rows(writer * 1000 + turn, 1), path, mode="append")

    def read() -> None:
        for _ in range(30):
            manifest = latest(path)
            assert len(manifest.fragments) == manifest.version

    with ThreadPoolExecutor(5) as pool:
        tasks = [pool.submit(ours, 1), pool.submit(ours, 2), pool.submit(theirs, 3), pool.submit(theirs, 4)]
        tasks.append(pool.submit(read))
        for task in tasks:
            task.result()
    expected = [0, *(writer * 1000 + turn for writer, turn in itertools.product(range(1, 5), range(each)))]
    assert values(path) == expected
    assert latest(path).version == 4 * each + 1
    assert collisions.total() >= each
    store, root = open_store(path)
    for file in list_versions(TableRef(store, root)):
        manifest = load_version(TableRef(store, root), file.version)
        assert read_transaction(TableRef(store, root), manifest).file_name == manifest.transaction_file


def test_a_failed_commit_of_ours_leaves_the_table_to_pylance(tmp_path: Path, loose: Loose) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0), path)
    fragments = loose(path, rows(5), mode="append")
    lance.write_dataset(rows(10), path, mode="overwrite")
    with pytest.raises(CommitError):
        our_append(path, fragments, read_version=1)
    lance.write_dataset(rows(15), path, mode="append")
    assert values(path) == list(range(10, 20))
