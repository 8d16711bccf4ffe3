"""Deletion files of both kinds, written by pylance and by hand."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.deletion import _parse_arrow, keep_mask, pack_deletions, read_deletions
from spark_lance.table.format.paths import deletion_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import load_latest

ARROW, BITMAP = table_pb2.DeletionFile.ARROW_ARRAY, table_pb2.DeletionFile.BITMAP
COLUMN = pa.field("row_id", pa.uint32(), nullable=False)


def arrow_bytes(
    offsets: list[int], field: pa.Field = COLUMN, batches: int = 1, compression: str | None = None
) -> bytes:
    sink = io.BytesIO()
    schema = pa.schema([field])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(pa.record_batch([pa.array(offsets, field.type)], schema=schema))
    return sink.getvalue()


def read(tmp_path: Path, kind: int, data: bytes, deleted: int, rows: int = 100) -> list[int]:
    fragment = table_pb2.DataFragment(id=3, physical_rows=rows)
    fragment.deletion_file.file_type = kind  # type: ignore[assignment]
    fragment.deletion_file.num_deleted_rows = deleted
    store = LocalStore()
    store.put(deletion_path(str(tmp_path), 3, fragment.deletion_file), data)
    offsets = read_deletions(TableRef(store, str(tmp_path)), fragment)
    assert offsets.dtype == np.uint32
    return [int(offset) for offset in offsets]


@pytest.mark.parametrize("deleted", [1, 10, 31, 4999, 5000, 5001, 19999])
def test_files_of_pylance(tmp_path: Path, deleted: int) -> None:
    rows = pa.table({"a": range(20000)})
    dataset = lance.write_dataset(rows, tmp_path / "t")
    dataset.delete(f"a < {deleted}")
    store, root = open_store(tmp_path / "t")
    (fragment,) = load_latest(TableRef(store, root)).fragments
    assert np.array_equal(read_deletions(TableRef(store, root), fragment), np.arange(deleted))


def test_a_second_delete_replaces_the_file(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": range(100)}), tmp_path / "t", max_rows_per_file=50)
    dataset.delete("a in (60, 99)")
    dataset.delete("a in (50, 61)")
    store, root = open_store(tmp_path / "t")
    first, second = load_latest(TableRef(store, root)).fragments
    assert len(read_deletions(TableRef(store, root), first)) == 0
    assert read_deletions(TableRef(store, root), second).tolist() == [0, 10, 11, 49]


def test_a_merged_delete_is_a_bitmap_of_two_rows(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(pa.table({"a": range(100)}), path)
    one, two = lance.dataset(str(path)), lance.dataset(str(path))
    one.delete("a = 5")
    two.delete("a = 7")
    store, root = open_store(path)
    (fragment,) = load_latest(TableRef(store, root)).fragments
    assert fragment.deletion_file.file_type == BITMAP
    assert read_deletions(TableRef(store, root), fragment).tolist() == [5, 7]


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_order_duplicates_and_compression(tmp_path: Path, compression: str | None) -> None:
    data = arrow_bytes([9, 3, 3, 70, 0] * 50, compression=compression)
    assert read(tmp_path, ARROW, data, 4) == [0, 3, 9, 70]
    assert read(tmp_path, ARROW, data, 250) == [0, 3, 9, 70]


def test_bitmaps_with_run_containers(tmp_path: Path) -> None:
    bitmap = BitMap(range(10, 90000))
    bitmap.run_optimize()
    data = bitmap.serialize()
    assert data[:2] == b"\x3b\x30"
    assert read(tmp_path, BITMAP, data, 89990, 100000) == list(range(10, 90000))


@given(st.sets(st.integers(0, 199_999), max_size=300), st.booleans())
@settings(max_examples=50, deadline=None)
def test_any_set_of_rows(tmp_path_factory: pytest.TempPathFactory, rows: set[int], runs: bool) -> None:
    bitmap = BitMap(rows)
    if runs:
        bitmap.run_optimize()
    place = tmp_path_factory.mktemp("d")
    assert read(place, BITMAP, bitmap.serialize(), len(rows), 200_000) == sorted(rows)
    assert read(place, ARROW, arrow_bytes(list(rows)), len(rows), 200_000) == sorted(rows)


@pytest.mark.parametrize(
    "data",
    [
        arrow_bytes([1, 2], pa.field("row_id", pa.int32(), nullable=False)),
        arrow_bytes([1, 2], pa.field("row_id", pa.uint32())),
        arrow_bytes([1, 2], pa.field("rowid", pa.uint32(), nullable=False)),
        arrow_bytes([1], batches=2),
        arrow_bytes([1], batches=0),
        b"",
        b"ARROW1",
        arrow_bytes([1, 2])[8:],
    ],
    ids=["int32", "nullable", "other name", "two batches", "no batch", "empty", "magic", "no magic"],
)
def test_other_arrow_files_are_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(FormatError, match=r"3-0-0\.arrow"):
        read(tmp_path, ARROW, data, 2)


@pytest.mark.parametrize("kind", [ARROW, BITMAP])
def test_rows_outside_the_fragment_and_wrong_counts(tmp_path: Path, kind: int) -> None:
    data = arrow_bytes([1, 100]) if kind == ARROW else BitMap([1, 100]).serialize()
    assert read(tmp_path, kind, data, 2, rows=101) == [1, 100]
    with pytest.raises(FormatError, match="row 100 in a fragment of 100"):
        read(tmp_path, kind, data, 2)
    with pytest.raises(FormatError, match="3 in the manifest"):
        read(tmp_path, kind, data, 3, rows=101)


@pytest.mark.parametrize("kind", [ARROW, BITMAP])
def test_damage_is_an_error_or_another_set(tmp_path: Path, kind: int) -> None:
    offsets = list(range(0, 100, 3))
    data = arrow_bytes(offsets, compression="zstd") if kind == ARROW else BitMap(offsets).serialize()
    for length in range(0, len(data), 7):
        with pytest.raises(FormatError):
            read(tmp_path, kind, data[:length], len(offsets))
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        try:
            result = read(tmp_path, kind, bytes(damaged), len(offsets))
            # A flip may make offsets equal, and Arrow files may repeat offsets; bitmaps cannot.
            assert len(result) == len(offsets) or (kind == ARROW and 0 < len(result) < len(offsets))
            assert result == sorted(set(result))
            assert result[-1] < 100
        except FormatError:
            pass


def test_more_rows_than_there_are_bytes_are_not_read() -> None:
    rows, message = 0x777, 0x777000
    data = arrow_bytes(list(range(rows)), compression=None)
    length = struct.pack("<q", rows)
    assert length in data
    with pytest.raises(FormatError, match="undecodable deletion file"):
        _parse_arrow(data.replace(length, struct.pack("<q", message)))


def test_a_bitmap_of_more_rows_than_there_are_is_not_unpacked(tmp_path: Path) -> None:
    many = BitMap(range(2**24))
    many.run_optimize()
    with pytest.raises(FormatError, match="deletions name row 16777215 in a fragment of 100 rows"):
        read(tmp_path, BITMAP, many.serialize(), 100)


def test_all_rows_of_a_fragment_may_be_deleted(tmp_path: Path) -> None:
    every = list(range(100))
    assert read(tmp_path, BITMAP, BitMap(every).serialize(), 100) == every
    assert read(tmp_path, ARROW, arrow_bytes(every), 100) == every


def test_a_missing_file(tmp_path: Path) -> None:
    fragment = table_pb2.DataFragment(id=3, physical_rows=4)
    fragment.deletion_file.num_deleted_rows = 1
    with pytest.raises(FormatError, match="missing"):
        read_deletions(TableRef(LocalStore(), str(tmp_path)), fragment)
    fragment.deletion_file.base_id = 0
    with pytest.raises(FormatError, match="base path"):
        read_deletions(TableRef(LocalStore(), str(tmp_path)), fragment)


def test_keep_mask() -> None:
    deleted = np.array([0, 3, 4, 9], np.uint32)
    assert keep_mask(deleted, 0, 10).tolist() == [
        False,
        True,
        True,
        False,
        False,
        True,
        True,
        True,
        True,
        False,
    ]
    assert keep_mask(deleted, 4, 6).tolist() == [False, True]
    assert keep_mask(deleted, 5, 9).all()
    assert keep_mask(deleted, 4, 4).tolist() == []
    assert keep_mask(np.empty(0, np.uint32), 0, 3).all()


def test_keep_mask_at_the_end_of_what_offsets_can_say() -> None:
    most = 2**32 - 1
    deleted = np.array([most - 2, most - 1], np.uint32)
    assert keep_mask(deleted, most - 3, most).tolist() == [True, False, False]
    # A stop beyond the type of the offsets is no offset of a row.
    assert keep_mask(deleted, most - 3, most + 1).tolist() == [True, False, False, True]


def fragment_with(kind: int | None) -> table_pb2.DataFragment:
    fragment = table_pb2.DataFragment(id=3, physical_rows=100_000)
    if kind is not None:
        fragment.deletion_file.file_type = kind  # type: ignore[assignment]
    return fragment


@pytest.mark.parametrize(
    ("present", "rows", "bitmap", "expected"),
    [
        (None, 1, False, ARROW),
        (None, 5000, False, ARROW),
        (None, 5001, False, BITMAP),
        (None, 1, True, BITMAP),
        (ARROW, 1, False, ARROW),
        (ARROW, 5001, False, BITMAP),
        (BITMAP, 1, False, BITMAP),
    ],
)
def test_the_kind_of_a_new_file(
    tmp_path: Path, present: int | None, rows: int, bitmap: bool, expected: int
) -> None:
    """Few rows are an Arrow file, unless the fragment has a bitmap or the rows of two writers are merged."""
    offsets = np.arange(7, 7 + rows, dtype=np.uint32)
    fragment = fragment_with(present)
    entry, data = pack_deletions(fragment, offsets, version=5, bitmap=bitmap)
    assert (entry.file_type, entry.read_version, entry.num_deleted_rows) == (expected, 5, rows)
    fragment.deletion_file.CopyFrom(entry)
    store = LocalStore()
    store.put(deletion_path(str(tmp_path), 3, entry), data)
    assert np.array_equal(read_deletions(TableRef(store, str(tmp_path)), fragment), offsets)


def test_new_files_have_names_of_their_own_and_arrow_files_are_compressed() -> None:
    offsets = np.arange(5000, dtype=np.uint32)
    results = [pack_deletions(fragment_with(None), offsets, version=1) for _ in range(20)]
    assert len({entry.id for entry, _ in results}) == 20
    assert {entry.file_type for entry, _ in results} == {ARROW}
    assert max(entry.id for entry, _ in results) >= 2**60
    assert len(results[0][1]) < offsets.nbytes


def test_a_fragment_that_does_not_tell_its_rows(tmp_path: Path) -> None:
    fragment = table_pb2.DataFragment(id=3)
    fragment.deletion_file.file_type = BITMAP
    store = LocalStore()
    store.put(deletion_path(str(tmp_path), 3, fragment.deletion_file), BitMap([1, 9]).serialize())
    assert read_deletions(TableRef(store, str(tmp_path)), fragment, 10).tolist() == [1, 9]
    for rows in (9, None):
        with pytest.raises(FormatError):
            read_deletions(TableRef(store, str(tmp_path)), fragment, rows)
    store.put(deletion_path(str(tmp_path), 3, fragment.deletion_file), BitMap([0]).serialize())
    with pytest.raises(FormatError, match="in a fragment of 0"):
        read_deletions(TableRef(store, str(tmp_path)), fragment)
    store.put(deletion_path(str(tmp_path), 3, fragment.deletion_file), BitMap([1, 9]).serialize())
    fragment.physical_rows = 10
    # The manifest's number comes first.
    assert read_deletions(TableRef(store, str(tmp_path)), fragment, 9).tolist() == [1, 9]


def test_a_manifest_that_counts_no_rows_is_not_compared(tmp_path: Path) -> None:
    assert read(tmp_path, BITMAP, BitMap([1, 9]).serialize(), 0) == [1, 9]
    assert read(tmp_path, ARROW, arrow_bytes([1, 9]), 0) == [1, 9]


def test_nothing_is_deleted_without_a_file_or_with_an_empty_one(tmp_path: Path) -> None:
    none = read_deletions(
        TableRef(LocalStore(), str(tmp_path)), table_pb2.DataFragment(id=3, physical_rows=4)
    )
    assert none.dtype == np.uint32
    assert not len(none)
    assert read(tmp_path, BITMAP, BitMap().serialize(), 0) == []
    assert read(tmp_path, ARROW, arrow_bytes([]), 0) == []


def test_the_file_may_lie_below_another_base_path(tmp_path: Path) -> None:
    fragment = table_pb2.DataFragment(id=3, physical_rows=10)
    fragment.deletion_file.file_type, fragment.deletion_file.base_id = BITMAP, 7
    manifest = table_pb2.Manifest()
    manifest.base_paths.add(id=7, path=f"file://{tmp_path}/other", is_dataset_root=True)
    store = LocalStore()
    store.put(deletion_path(f"{tmp_path}/other", 3, fragment.deletion_file), BitMap([2]).serialize())
    bases = Bases.of(TableRef(store, str(tmp_path)), manifest)
    assert read_deletions(TableRef(store, str(tmp_path)), fragment, bases=bases).tolist() == [2]


def test_nulls_are_damage_where_the_schema_forbids_them(tmp_path: Path) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.uint32())], schema=pa.schema([COLUMN]))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    with pytest.raises(FormatError, match=r"null|undecodable"):
        read(tmp_path, ARROW, sink.getvalue(), 2)


def test_files_of_an_unknown_type_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match="type 7"):
        read(tmp_path, 7, BitMap([1]).serialize(), 1)
