"""Manifest files: every one that pylance writes, repacked ones opened by pylance, damaged ones."""

from __future__ import annotations

import random
import shutil
import struct
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.version import DEFAULT_VERSION, FileVersion
from spark_lance.io.local import LocalStore
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.format.manifest import MAX_INLINE_TRANSACTION, Manifest, pack_manifest, read_manifest
from spark_lance.table.format.paths import ManifestNaming
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.versions.versions import list_versions, load_latest, load_version

ROWS = pa.table(
    {
        "a": pa.array(range(40), pa.int64()),
        "s": pa.array([{"x": i, "y": str(i)} for i in range(40)]),
        "v": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(160, np.float32)), 4),
    }
)


def build_history(path: Path, *, stable_row_ids: bool) -> None:
    """Let pylance run through its operations, one or more versions each."""
    dataset: Any = lance.write_dataset(ROWS, path, enable_stable_row_ids=stable_row_ids, max_rows_per_file=15)
    dataset = lance.write_dataset(ROWS.slice(0, 7), path, mode="append")
    dataset.delete("a < 3")
    dataset.update({"a": "a + 1000"}, where="a in (5, 7, 30)")
    dataset.create_scalar_index("a", "BTREE")
    dataset.create_scalar_index("a", "BITMAP", name="second")
    dataset.update_config({"k": "v", "lance.x": "1"})
    dataset.update_metadata({"about": "tests"})
    dataset.tags.create("t", 3)
    dataset.add_columns({"z": "a * 2"})
    dataset.alter_columns({"path": "z", "name": "zz"})
    dataset.drop_columns(["zz"])
    dataset.delete("a > 1000 or a = 11")
    dataset.optimize.compact_files(target_rows_per_fragment=100)
    dataset.checkout_version(2).restore()
    lance.write_dataset(ROWS, path, mode="overwrite")


@pytest.fixture(scope="module", params=[False, True], ids=["addresses", "stable"])
def history(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "t"
    build_history(path, stable_row_ids=request.param)
    return path


def test_every_version_of_pylance_is_read(history: Path) -> None:
    table = TableRef(*open_store(history))
    versions = list_versions(table)
    operations = set()
    assert [file.version for file in versions] == [
        entry["version"] for entry in lance.dataset(str(history)).versions()
    ]
    assert len(versions) >= 15
    for file in versions:
        theirs = lance.dataset(str(history), version=file.version)
        ours = load_version(table, file.version)
        assert ours.version == file.version == theirs.version
        assert ours.schema.to_arrow() == theirs.schema
        assert [f.id for f in ours.fragments] == [f.fragment_id for f in theirs.get_fragments()]
        live = sum(f.physical_rows - f.deletion_file.num_deleted_rows for f in ours.fragments)
        assert live == theirs.count_rows()
        assert {index.name for index in ours.indices} == {index.name for index in theirs.describe_indices()}
        assert dict(ours.config) == theirs.config()
        assert ours.file_version is FileVersion.V2_2
        assert ours.uses_stable_row_ids == theirs.has_stable_row_ids
        transaction = read_transaction(table, ours)
        assert transaction.file_name == ours.transaction_file
        assert transaction.name is not None
        operations.add(transaction.name)
    assert operations >= {
        *("overwrite", "append", "delete", "update", "create_index", "update_config", "merge", "project"),
        *("rewrite", "restore", "reserve_fragments"),
    }


def test_timestamps_and_counters(history: Path) -> None:
    table = TableRef(*open_store(history))
    latest = load_latest(table)
    entry: dict[str, Any] = dict(lance.dataset(str(history)).versions()[-1])
    # pylance goes through a float, which may cost a microsecond.
    assert abs(latest.timestamp.replace(tzinfo=None) - entry["timestamp"]) <= timedelta(microseconds=1)
    assert latest.timestamp.tzinfo is timezone.utc
    # Fragments 0 to 3 were written, 4 by the update, 5 by the compaction, 6 by the overwrite.
    assert latest.max_fragment_id == 6
    assert latest.first_new_field_id == 0
    if latest.uses_stable_row_ids:
        assert latest.next_row_id >= 87


def test_an_offset_of_zero_is_an_offset(tmp_path: Path) -> None:
    dataset = lance.write_dataset(ROWS, tmp_path / "t")
    table = TableRef(*open_store(tmp_path / "t"))
    first = load_latest(table)
    assert first.message.HasField("transaction_section")
    assert first.message.transaction_section == 0
    shutil.rmtree(tmp_path / "t" / "_transactions")
    assert read_transaction(table, first).file_name == first.transaction_file
    dataset.create_scalar_index("a", "BTREE")
    second = load_latest(table)
    assert second.message.index_section == 0
    assert len(second.indices) == 1


def repack(file: Path, naming: ManifestNaming = ManifestNaming.V2) -> None:
    """Read a manifest file and write it anew with our own layout."""
    store = LocalStore()
    manifest = read_manifest(store, str(file), naming)
    assert manifest.inline_transaction is not None
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    file.write_bytes(pack_manifest(message, manifest.index_section, manifest.inline_transaction))


def uuid_of(dataset: Any, version: int) -> str:
    return str(dataset.read_transaction(version).uuid)


def test_pylance_opens_repacked_manifests(history: Path, tmp_path: Path) -> None:
    copy = tmp_path / "t"
    shutil.copytree(history, copy)
    shutil.rmtree(copy / "_transactions")
    for file in (copy / "_versions").glob("*.manifest"):
        repack(file)
    table = TableRef(*open_store(copy))
    for version in range(1, lance.dataset(str(history)).version + 1):
        before = lance.dataset(str(history), version=version)
        after = lance.dataset(str(copy), version=version)
        assert after.to_table() == before.to_table()
        assert list(map(repr, after.describe_indices())) == list(map(repr, before.describe_indices()))
        if read_transaction(table, load_version(table, version)).name != "rewrite":
            # pylance cannot show compactions that rewrote an index.
            assert uuid_of(after, version) == uuid_of(before, version)
        assert after.config() == before.config()


def test_a_long_manifest_is_read_in_pieces(tmp_path: Path) -> None:
    rows = pa.table({"a": pa.array(range(1200), pa.int32())})
    dataset = lance.write_dataset(rows, tmp_path / "t", max_rows_per_file=1)
    dataset.create_scalar_index("a", "BTREE")
    store, root = open_store(tmp_path / "t")
    table = TableRef(store, root)
    latest = load_latest(table)
    assert store.size(latest.path) > 65536
    assert len(latest.fragments) == 1200
    assert [index.name for index in latest.indices] == ["a_idx"]
    known = load_version(table, 1)
    first = read_manifest(store, known.path, known.naming)
    assert first.inline_transaction is None  # it lies before the part that was read
    assert len(read_transaction(table, first).message.overwrite.fragments) == 1200


def test_what_the_manifest_leaves_out(tmp_path: Path) -> None:
    message = table_pb2.Manifest(version=1)
    manifest = Manifest(message, b"", ManifestNaming.V2, "m")
    assert manifest.timestamp.year == 1970
    assert manifest.file_version is FileVersion.V0_1
    message.writer_feature_flags = 4
    assert Manifest(message, b"", ManifestNaming.V2, "m").file_version is DEFAULT_VERSION
    assert manifest.max_fragment_id is None
    message.fragments.add().files.add(file_major_version=2, file_minor_version=1)
    assert Manifest(message, b"", ManifestNaming.V2, "m").file_version is FileVersion.V2_1


def test_legacy_tables_say_so() -> None:
    message = table_pb2.Manifest(version=1)
    message.data_format.version = "0.1"
    assert Manifest(message, b"", ManifestNaming.V2, "m").file_version is FileVersion.V0_1


@pytest.mark.parametrize("name", ["2.4", "9.9"])
def test_other_versions_of_data_files_are_refused_by_name(name: str) -> None:
    message = table_pb2.Manifest(version=1)
    message.data_format.version = name
    with pytest.raises(UnsupportedFormatError, match=name):
        _ = Manifest(message, b"", ManifestNaming.V2, "m").file_version


def test_a_timestamp_outside_the_calendar() -> None:
    message = table_pb2.Manifest(version=1)
    message.timestamp.seconds = 2**60
    with pytest.raises(FormatError, match="calendar"):
        _ = Manifest(message, b"", ManifestNaming.V2, "m").timestamp


def test_huge_transactions_are_not_inlined() -> None:
    fits = b"x" * MAX_INLINE_TRANSACTION
    message = table_pb2.Manifest(version=1)
    assert len(pack_manifest(message, b"", fits)) > len(fits)
    assert message.HasField("transaction_section")
    assert len(pack_manifest(message, b"", fits + b"x")) < 100
    assert not message.HasField("transaction_section")


def small_manifest() -> bytes:
    index = table_pb2.IndexSection()
    index.indices.add(name="i", fields=[0])
    transaction = transaction_pb2.Transaction(uuid="u", read_version=1)
    message = table_pb2.Manifest(version=3, transaction_file="1-u.txn")
    message.fields.add(name="a", id=0, parent_id=-1, logical_type="int32")
    return pack_manifest(message, index.SerializeToString(), transaction.SerializeToString())


def open_bytes(tmp_path: Path, data: bytes) -> Manifest:
    file = tmp_path / "m"
    file.write_bytes(data)
    return read_manifest(LocalStore(), str(file), ManifestNaming.V2)


def test_the_layout_is_as_documented(tmp_path: Path) -> None:
    data = small_manifest()
    manifest = open_bytes(tmp_path, data)
    (position,) = struct.unpack_from("<q", data, len(data) - 16)
    assert data[-8:] == b"\0\0\2\0LANC"
    assert struct.unpack_from("<I", data, position) == (len(data) - 16 - 4 - position,)
    assert manifest.message.index_section == 0
    (length,) = struct.unpack_from("<I", data, 0)
    assert data[4 : 4 + length] == manifest.index_section
    assert manifest.message.transaction_section == 4 + length


def test_every_cut_is_found(tmp_path: Path) -> None:
    data = small_manifest()
    for length in range(len(data)):
        with pytest.raises(FormatError, match=str(tmp_path / "m")):
            open_bytes(tmp_path, data[:length])


def test_growth_is_found(tmp_path: Path) -> None:
    data = small_manifest()
    for grown in (data + b"\0", b"\0" + data, data[:-16] + b"\0" + data[-16:]):
        with pytest.raises(FormatError):
            open_bytes(tmp_path, grown)


def test_flipped_bytes_give_a_manifest_or_a_typed_error(tmp_path: Path) -> None:
    data = small_manifest()
    result = 0
    source = random.Random(5)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << source.randrange(8)
        try:
            manifest = open_bytes(tmp_path, bytes(damaged))
            assert manifest.indices is not None
            assert manifest.schema is not None
            read_transaction(TableRef(LocalStore(), str(tmp_path)), manifest)
        except LanceError:
            result += 1
    # Protobuf has no checksum, so some flips only change a value.
    assert result > len(data) // 3


def test_numbers_that_point_nowhere(tmp_path: Path) -> None:
    data = small_manifest()
    for position in (-1, -(2**63), 2**63 - 1, len(data), len(data) - 19):
        with pytest.raises(FormatError):
            open_bytes(tmp_path, data[:-16] + struct.pack("<q", position) + data[-8:])
    for section in ("index_section", "transaction_section"):
        message = open_bytes(tmp_path, data).message
        setattr(message, section, 2**40)
        body = message.SerializeToString()
        with pytest.raises(FormatError, match="outside the file"):
            open_bytes(tmp_path, struct.pack("<I", len(body)) + body + struct.pack("<q", 0) + data[-8:])


def test_a_version_number_is_required(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="version number"):
        open_bytes(tmp_path, pack_manifest(table_pb2.Manifest(), b"", b""))
