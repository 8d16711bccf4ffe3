"""What operations do to index entries, compared with what pylance does to the same entries."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

import spark_lance
from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import pack_manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.index_upkeep import (
    drop_indices_without_fields,
    keep_relevant,
    remove_fragments_from_bitmaps,
    retain,
)
from spark_lance.table.versions.versions import load_latest

# (name, fields, fragments or None for no bitmap, dataset version)
Entry = tuple[str, list[int], "list[int] | None", int]
DETAILS = "/lance.table.BTreeIndexDetails"
# Field 60 of an index entry, which no reader knows.
UNKNOWN = b"\xe2\x03\x03new"


def entry(name: str, fields: list[int], fragments: list[int] | None, version: int) -> table_pb2.IndexMetadata:
    message = table_pb2.IndexMetadata(fields=fields, name=name, dataset_version=version, index_version=0)
    message.uuid.uuid = os.urandom(16)
    message.index_details.type_url = DETAILS
    if fragments is not None:
        message.fragment_bitmap = BitMap(fragments).serialize()
    message.MergeFromString(UNKNOWN)
    return message


def section(entries: list[Entry]) -> bytes:
    return table_pb2.IndexSection(indices=[entry(*parts) for parts in entries]).SerializeToString()


def entries_of(path: Path) -> list[tuple[bytes, list[int], list[int] | None]]:
    results = []
    for index in load_latest(TableRef(*open_store(path))).indices:
        known = index.HasField("fragment_bitmap")
        covered = list(BitMap.deserialize(index.fragment_bitmap)) if known else None
        results.append((index.uuid.uuid, list(index.fields), covered))
    return results


def entry_strategy() -> st.SearchStrategy[Entry]:
    fragments = st.none() | st.lists(st.sampled_from([0, 1, 2, 77, 78]), unique=True, max_size=4)
    fields = st.sampled_from([[0], [1], [0, 1], [0, 99]])
    return st.tuples(st.sampled_from(["x", "y"]), fields, fragments, st.integers(1, 3))


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three fragments with 10 rows each and an index section; no index is ever on column c."""
    path = tmp_path_factory.mktemp("upkeep") / "t"
    rows = pa.table({"a": pa.array(range(30)), "b": pa.array(range(30)), "c": pa.array(range(30))})
    dataset: Any = lance.write_dataset(rows, path, max_rows_per_file=10)
    dataset.create_scalar_index("a", "BTREE")
    return path


@settings(max_examples=40)
@example(
    [("x", [0], [77], 3), ("x", [0], [78], 2), ("x", [0], [79], 2), ("y", [1], None, 1), ("y", [1], [78], 1)]
)
@example([("x", [0], [0], 1), ("x", [0], [1], 2), ("y", [0, 99], [1], 1)])
@given(st.lists(entry_strategy(), min_size=1, max_size=7))
def test_a_delete_keeps_the_entries_that_pylance_keeps(indexed: Path, entries: list[Entry]) -> None:
    source = load_latest(TableRef(*open_store(indexed)))
    assert source.inline_transaction is not None
    message = table_pb2.Manifest()
    message.CopyFrom(source.message)
    data = pack_manifest(message, section(entries), source.inline_transaction)
    outcomes = []
    deletes: list[Callable[[Path], object]] = [
        lambda path: lance.dataset(str(path)).delete("c < 15"),
        lambda path: spark_lance.dataset(path).delete(pc.field("c") < 15),
    ]
    for number, delete in enumerate(deletes):
        path = indexed.with_name(f"copy{number}")
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(indexed, path)
        (path / "_versions" / Path(source.path).name).write_bytes(data)
        delete(path)
        outcomes.append(entries_of(path))
    assert outcomes[0] == outcomes[1]


def test_nothing_changes_means_the_same_bytes() -> None:
    # Serialized in another order than ours, so that parsing and serializing would not give the same bytes.
    parts = [entry("x", [0], [1, 2], 1).SerializeToString(), entry("y", [1], [5], 1).SerializeToString()]
    shuffled = [UNKNOWN + part.replace(UNKNOWN, b"") for part in parts]
    data = b"".join(b"\x0a" + bytes([len(part)]) + part for part in shuffled)
    assert table_pb2.IndexSection.FromString(data).SerializeToString() != data
    fragments = [table_pb2.DataFragment(id=i) for i in (1, 2)]
    assert retain(data, fragments) is data
    assert drop_indices_without_fields(data, {0, 1, 2}) is data
    assert remove_fragments_from_bitmaps(data, {1, 2}, {1, 7}) is data
    assert remove_fragments_from_bitmaps(data, {9}, {0, 1}) is data
    manifest = table_pb2.Manifest(fragments=fragments)
    manifest.fields.add(id=0)
    manifest.fields.add(id=1)
    assert keep_relevant(data, manifest) is data
    assert keep_relevant(b"", manifest) == b""


def test_what_stays_is_kept_whole() -> None:
    data = section([("x", [0], [1, 2], 1), ("y", [1], [5], 1), ("x", [0], [3], 1)])
    x, y, x2 = table_pb2.IndexSection.FromString(data).indices
    pruned = table_pb2.IndexSection.FromString(remove_fragments_from_bitmaps(data, [2, 3], [0])).indices
    assert [list(BitMap.deserialize(index.fragment_bitmap)) for index in pruned] == [[1], [5], []]
    assert pruned[1] == y
    for index, before in zip(pruned, (x, y, x2), strict=True):
        index.fragment_bitmap = before.fragment_bitmap
        assert index.SerializeToString() == before.SerializeToString()
        assert UNKNOWN in index.SerializeToString()
    remaining = retain(data, [table_pb2.DataFragment(id=3)])
    assert list(table_pb2.IndexSection.FromString(remaining).indices) == [y, x2]
    assert list(table_pb2.IndexSection.FromString(drop_indices_without_fields(data, {1})).indices) == [y]
    assert drop_indices_without_fields(data, set()) == b""


def test_damage_is_reported() -> None:
    with pytest.raises(FormatError, match="index section"):
        drop_indices_without_fields(b"\x0a\x7f", {1})
    broken = table_pb2.IndexSection()
    broken.indices.add(name="x", fields=[0], fragment_bitmap=b"junk")
    with pytest.raises(FormatError, match="bitmap of index 'x'"):
        remove_fragments_from_bitmaps(broken.SerializeToString(), [1], [0])
