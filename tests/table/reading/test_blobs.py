"""Blob columns written by pylance: descriptors, whole blobs, ranges, damage."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.blob import Blob, blob_array, blob_field

import spark_lance
from spark_lance.errors import FormatError, LanceError, SchemaError, UnsupportedFormatError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import open_store
from spark_lance.table.reading.blobs import BlobFile
from tests.wrapped_store import WrappedStore

VERSIONS = ("2.0", "2.1", "2.2")
BLOB = {"lance-encoding:blob": "true", "user": "x"}
FIELD = pa.field("b", pa.large_binary(), metadata=BLOB)
DATA = [b"abc", None, b"", b"x" * 70_000, bytes(range(256)) * 20_000, b"z" * 60_000, b"q", None]


def write(path: Path, array: pa.Array, version: Any, field: pa.Field = FIELD, **options: Any) -> str:
    table = pa.table([pa.array(range(len(array))), array], schema=pa.schema([("id", pa.int64()), field]))
    lance.write_dataset(table, path, data_storage_version=version, **options)
    return str(path)


def check(path: str, column: str = "b", *, listed: bool = False) -> None:
    """Compare descriptors and, unless the blobs are in lists, bytes with pylance's."""
    theirs, ours = lance.dataset(path), spark_lance.dataset(path)
    expected, got = theirs.to_table(), ours.to_table()
    got.validate(full=True)
    assert got.schema.equals(expected.schema, check_metadata=True)
    assert got.to_pylist() == expected.to_pylist()
    if not listed:
        rows = list(range(expected.num_rows))[::-1]
        blobs = theirs.take_blobs(column, indices=rows)
        expected_rows = [None if blob is None else blob.read() for blob in blobs]
        assert [blob and blob.read() for blob in ours.take_blobs(column, rows)] == expected_rows


@pytest.mark.parametrize("version", VERSIONS)
def test_descriptors_and_bytes(tmp_path: Path, version: str) -> None:
    data = pa.array(DATA, pa.large_binary())
    check(write(tmp_path / "t", data, version))
    check(write(tmp_path / "files", data, version, max_rows_per_file=3))
    check(write(tmp_path / "nulls", pa.nulls(5, pa.large_binary()), version))
    full = pa.array([b"a", b"", b"ccc"], pa.large_binary())
    check(write(tmp_path / "required", full, version, FIELD.with_nullable(False)))
    many = pa.array([None if i % 7 == 0 else b"%d" % i * (i % 5) for i in range(5000)], pa.large_binary())
    check(write(tmp_path / "many", many, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_in_structs_and_lists(tmp_path: Path, version: str) -> None:
    values = pa.array([b"a", None, b"", b"dd"], pa.large_binary())
    fields = [FIELD, pa.field("i", pa.int64())]
    mask = None if version == "2.0" else pa.array([False, False, False, True])
    structs = pa.StructArray.from_arrays([values, pa.array([1, 2, 3, 4])], fields=fields, mask=mask)
    path = write(tmp_path / "s", structs, version, pa.field("s", structs.type))
    check(path, "s.b")
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 4]), values, type=pa.list_(FIELD))
    path = write(tmp_path / "l", lists, version, pa.field("l", lists.type))
    if version == "2.1":
        # pylance's own reader panics.
        with pytest.raises(UnsupportedFormatError, match="lists of blobs"):
            spark_lance.dataset(path).to_table()
    else:
        check(path, listed=True)


def test_external_objects(tmp_path: Path) -> None:
    target = tmp_path / "object.bin"
    target.write_bytes(b"0123456789" * 10)
    uri = target.as_uri()
    blobs = blob_array([b"in", Blob.from_uri(uri), Blob.from_uri(uri, 5, 7), None])
    path = write(tmp_path / "t", blobs, "2.2", blob_field("b"), allow_external_blob_outside_bases=True)
    check(path)
    files = spark_lance.dataset(path).take_blobs("b", [2, 1])
    assert [file and file.size() for file in files] == [7, 100]
    target.unlink()
    with pytest.raises(FileNotFoundError):
        spark_lance.dataset(path).take_blobs("b", [1])


@pytest.mark.parametrize("version", VERSIONS)
def test_deleted_rows_versions_and_filters(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "t", pa.array(DATA, pa.large_binary()), version, max_rows_per_file=3)
    dataset = lance.dataset(path)
    dataset.delete("id in (0, 4)")
    check(path)
    ours = spark_lance.dataset(path)
    assert [blob and blob.size() for blob in ours.take_blobs("b", np.array([5, 2, 0]))] == [
        None,
        70_000,
        None,
    ]
    assert ours.to_table(["id"], filter=pc.field("id") > 2).column("id").to_pylist() == [3, 5, 6, 7]
    large = ours.to_table(["id"], filter=pc.field("b", "size") >= 60_000).column("id").to_pylist()
    assert large == [3, 5]
    assert ours.count_rows(pc.field("b").is_valid()) == dataset.to_table().column("b").drop_null().length()


class Counting(WrappedStore):
    """A store that notes the ranges it was asked for."""

    asked: list[tuple[int, int]]

    def read_ranges(self, path: str, ranges: Any) -> list[pa.Buffer]:
        self.asked.extend(ranges)
        return super().read_ranges(path, ranges)


def test_only_the_asked_bytes_are_read(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4
    target = tmp_path / "f"
    target.write_bytes(b"head" + content + b"tail")
    store = Counting.around(LocalStore())
    object.__setattr__(store, "asked", [])
    blob = BlobFile(store, str(target), 4, len(content))
    assert store.asked == []
    assert (blob.size(), blob.tell(), blob.readable(), blob.seekable(), blob.writable()) == (
        1024, 0, True, True, False,
    )  # fmt: skip
    assert blob.read(3) == content[:3]
    assert blob.seek(-4, os.SEEK_END) == 1020
    assert blob.read(100) == content[-4:]
    assert blob.read(5) == b""
    assert blob.read_range(10, 5) == content[10:15]
    assert blob.tell() == 1024
    assert blob.seek(500) == 500
    assert blob.seek(12, os.SEEK_CUR) == 512
    into = bytearray(6)
    assert blob.readinto(into) == 6
    assert bytes(into) == content[512:518]
    assert store.asked == [(4, 3), (1024, 4), (14, 5), (516, 6)]
    assert blob.readall() == content[518:]
    blob.seek(0)
    assert io.BufferedReader(blob, 64).read() == content
    with pytest.raises(ValueError, match="before the start"):
        BlobFile(store, str(target), 4, 5).seek(-1)
    with pytest.raises(ValueError, match="negative"):
        BlobFile(store, str(target), 4, 5).read_range(0, -1)
    with pytest.raises(ValueError, match="closed"):
        blob.read()


def test_wrong_columns_and_positions(tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.array(DATA, pa.large_binary()), "2.2")
    ours = spark_lance.dataset(path)
    for column in ("id", "nope", "b.data", "id.x"):
        with pytest.raises(SchemaError):
            ours.take_blobs(column, [0])
    for row in (-1, len(DATA)):
        with pytest.raises(IndexError):
            ours.take_blobs("b", [row])
    assert ours.take_blobs("b", []) == []


def read_everything(path: str) -> int:
    ours = spark_lance.dataset(path)
    ours.to_table().validate(full=True)
    return sum(len(blob.read()) for blob in ours.take_blobs("b", range(ours.count_rows())) if blob)


def test_missing_and_short_sidecars(tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.array(DATA, pa.large_binary()), "2.2")
    sidecars = sorted((tmp_path / "t").rglob("*.blob"))
    assert len(sidecars) == 2
    for sidecar in sidecars:
        content = sidecar.read_bytes()
        sidecar.write_bytes(content[:-1])
        with pytest.raises(FormatError, match=r"\.blob"):
            read_everything(path)
        sidecar.unlink()
        with pytest.raises(FormatError, match=r"\.blob"):
            read_everything(path)
        sidecar.write_bytes(content)
    assert read_everything(path) == sum(len(each) for each in DATA if each)


@pytest.mark.parametrize("version", VERSIONS)
def test_flipped_bytes_give_typed_errors(tmp_path: Path, version: str) -> None:
    data = pa.array([b"abc", None, b"", b"x" * 100, None, b"z" * 60], pa.large_binary())
    path = write(tmp_path / "t", data, version)
    file = next((tmp_path / "t" / "data").glob("*.lance"))
    good = file.read_bytes()
    rng = np.random.default_rng(11)
    outcomes = {"error": 0, "read": 0}
    for position in rng.permutation(len(good))[:500]:
        damaged = bytearray(good)
        damaged[position] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        try:
            read_everything(path)
        except LanceError:
            outcomes["error"] += 1
        else:
            outcomes["read"] += 1
    assert min(outcomes.values()) > 20


def test_a_store_without_mapping(tmp_path: Path) -> None:
    path = write(tmp_path / "t", pa.array(DATA, pa.large_binary()), "2.2")
    store, root = open_store("memory://blobs/t")
    for file in (tmp_path / "t").rglob("*"):
        if file.is_file():
            store.put(f"{root}/{file.relative_to(tmp_path / 't').as_posix()}", file.read_bytes())
    content = DATA[4]
    assert content is not None
    far = spark_lance.dataset("memory://blobs/t")
    assert far.to_table().to_pylist() == lance.dataset(path).to_table().to_pylist()
    blobs = far.take_blobs("b", [4, 3])
    assert [blob and blob.read_range(1000, 4) for blob in blobs] == [content[1000:1004], b"xxxx"]
