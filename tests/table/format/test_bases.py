"""Base paths, against pylance: clones of clones, other data directories, branches; other stores."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import fsspec
import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance.datasets.dataset as ours
from spark_lance.errors import BaseNotAllowedError, FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import BasePath, Bases
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.scan import Scan
from spark_lance.table.versions.versions import load_latest

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"a": pa.array(range(start, stop)), "s": [f"s{i}" for i in range(start, stop)]})


def assert_same(path: Path | str) -> None:
    theirs = lance.dataset(str(path))
    mine = ours.dataset(path)
    assert mine.to_table().equals(theirs.to_table())
    assert mine.count_rows() == theirs.count_rows()
    picked = list(range(0, mine.count_rows(), 2))
    assert mine.take(picked).equals(theirs.take(picked))


def clone_of_clone(tmp_path: Path) -> Path:
    first, second, third = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    lance.write_dataset(rows(0, 10), first)
    lance.dataset(str(first)).delete("a = 3")
    source = lance.dataset(str(first))
    source.shallow_clone(str(second), source.version)
    lance.write_dataset(rows(10, 15), second, mode="append")
    middle = lance.dataset(str(second))
    middle.delete("a = 12")
    middle.shallow_clone(str(third), middle.version)
    lance.write_dataset(rows(20, 22), third, mode="append")
    return third


def test_a_clone_of_a_clone_is_read_and_the_ids_of_its_bases_are_keys(tmp_path: Path) -> None:
    third = clone_of_clone(tmp_path)
    message = ours.dataset(third).manifest.message
    assert {base.id for base in message.base_paths} == {0, 1}
    assert {file.base_id for fragment in message.fragments for file in fragment.files} >= {0, 1}
    assert_same(third)


def test_a_delete_on_a_clone_writes_the_whole_deletion_file_beside_the_clone(tmp_path: Path) -> None:
    third = clone_of_clone(tmp_path)
    ours.dataset(third).delete(pc.field("a").isin([1, 13]))
    assert_same(third)
    message = ours.dataset(third).manifest.message
    entries = [f.deletion_file for f in message.fragments if f.HasField("deletion_file")]
    assert [entry.num_deleted_rows for entry in entries] == [2, 2]
    assert not any(entry.HasField("base_id") for entry in entries)
    assert len(list((third / "_deletions").iterdir())) == 2
    lance.dataset(str(third)).delete("a = 4")
    assert_same(third)


def test_appends_alternate_on_a_clone(tmp_path: Path) -> None:
    third = clone_of_clone(tmp_path)
    before = load_latest(TableRef(*open_store(third))).message
    ours.write_dataset(rows(30, 33), third, mode="append")
    lance.write_dataset(rows(40, 43), third, mode="append")
    assert_same(third)
    after = load_latest(TableRef(*open_store(third))).message
    assert sorted(b.SerializeToString() for b in after.base_paths) == sorted(
        b.SerializeToString() for b in before.base_paths
    )
    assert after.reader_feature_flags & 16
    assert after.writer_feature_flags & 16


def test_directories_that_are_no_table(tmp_path: Path) -> None:
    bases = [
        lance.DatasetBasePath(str(tmp_path / "plain"), name="plain", is_dataset_root=False),
        lance.DatasetBasePath(str(tmp_path / "rooted"), name="rooted", is_dataset_root=True),
    ]
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 5), path, initial_bases=bases, target_bases=["plain"])
    lance.write_dataset(rows(5, 9), path, mode="append", target_bases=["rooted"])
    lance.write_dataset(rows(9, 11), path, mode="append")
    assert [file.suffix for file in (tmp_path / "plain").iterdir()] == [".lance"]
    assert_same(path)
    ours.dataset(path).delete(pc.field("a").isin([2, 6]))
    assert_same(path)


def test_a_branch_is_read_and_changed(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 6), path)
    lance.dataset(str(path)).create_branch("feat/x")
    tree = path / "tree" / "feat" / "x"
    lance.dataset(str(tree)).delete("a = 2")
    assert_same(tree)
    ours.dataset(tree).delete(pc.field("a") == 4)
    assert_same(tree)
    assert ours.dataset(tree).manifest.message.branch == "feat/x"
    assert ours.dataset(path).count_rows() == 6


def test_a_task_needs_neither_manifest_nor_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lance.write_dataset(rows(0, 6), tmp_path / "t")
    monkeypatch.chdir(tmp_path)
    source = lance.dataset("t")
    source.shallow_clone(str(tmp_path / "clone"), source.version)
    manifest = ours.dataset(tmp_path / "clone").manifest
    assert manifest.message.base_paths[0].path == "t"
    plan = Scan.plan(TableRef(*open_store(tmp_path / "clone")), manifest)
    (data,) = [pickle.dumps(task) for task in plan.tasks()]
    for file in (tmp_path / "clone" / "_versions").iterdir():
        file.unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (table,) = pickle.loads(data).tables(1 << 20)
    assert table.equals(rows(0, 6))


def test_blobs_of_a_clone(tmp_path: Path) -> None:
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table({"b": pa.array([b"x" * 10, None, b"y" * 100_000], pa.large_binary())}, pa.schema([field]))
    for version in ("2.1", "2.2"):
        lance.write_dataset(data, tmp_path / version, data_storage_version=version)
        source = lance.dataset(str(tmp_path / version))
        clone = tmp_path / f"clone{version}"
        source.shallow_clone(str(clone), source.version)
        blobs = ours.dataset(clone).take_blobs("b", [0, 1, 2])
        assert [blob and blob.read() for blob in blobs] == data["b"].to_pylist()


def test_blobs_below_a_base_path(tmp_path: Path, forge: Forge) -> None:
    (tmp_path / "pool" / "deep").mkdir(parents=True)
    (tmp_path / "pool" / "deep" / "o.bin").write_bytes(b"outside")
    base = lance.DatasetBasePath(str(tmp_path / "pool"), name="pool", is_dataset_root=False)
    outside = lance.Blob.from_uri((tmp_path / "pool" / "deep" / "o.bin").as_uri())
    data = pa.table([lance.blob_array([outside, b"inside", None])], pa.schema([lance.blob_field("b")]))
    path = tmp_path / "t"
    lance.write_dataset(data, path, data_storage_version="2.2", initial_bases=[base])
    table = ours.dataset(path)
    assert table.to_table()["b"][0].as_py()["blob_uri"] == "deep/o.bin"
    assert [blob and blob.read() for blob in table.take_blobs("b", [0, 1, 2])] == [
        b"outside",
        b"inside",
        None,
    ]
    forge(path, lambda message: message.ClearField("base_paths"))
    with pytest.raises(FormatError, match="base path 1 is not in the manifest"):
        ours.dataset(path).take_blobs("b", [0])


@pytest.mark.parametrize("location", ["/etc/hosts", "../o", "a/../../o"])
def test_locations_stay_below_their_base_path(location: str) -> None:
    store = open_store("memory://x")[0]
    bases = Bases(TableRef(store, "/x"), (BasePath(3, False, "memory://pool"),))
    assert bases.external(3, "a..b/o") == (store, "/pool/a..b/o")
    with pytest.raises(FormatError, match="below base path 3"):
        bases.external(3, location)


def test_another_store(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 6), path)
    memory = fsspec.filesystem("memory")
    for file in (path / "data").iterdir():
        memory.pipe_file(f"/elsewhere/{file.name}", file.read_bytes())
        file.unlink()

    def edit(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=7, path="memory://elsewhere")
        message.reader_feature_flags |= 16
        message.writer_feature_flags |= 16
        message.fragments[0].files[0].base_id = 7

    forge(path, edit)
    with pytest.raises(BaseNotAllowedError, match=r"base path 7 of .* allowed_bases=memory://elsewhere"):
        ours.dataset(path).to_table()
    assert ours.dataset(path, allowed_bases=["memory://elsewhere"]).to_table().equals(rows(0, 6))


def test_an_unknown_base_is_named(tmp_path: Path, forge: Forge) -> None:
    path = clone_of_clone(tmp_path)

    def edit(message: table_pb2.Manifest) -> None:
        message.fragments[0].files[0].base_id = 5

    forge(path, edit)
    with pytest.raises(FormatError, match="base path 5 is not in the manifest"):
        ours.dataset(path).to_table()
    with pytest.raises((OSError, ValueError)):
        lance.dataset(str(path)).to_table()


def test_deletions_must_be_under_the_root_of_a_table(tmp_path: Path, forge: Forge) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 6), path)
    lance.dataset(str(path)).delete("a = 2")

    def edit(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=7, path=str(path))
        message.fragments[0].deletion_file.base_id = 7

    forge(path, edit)
    with pytest.raises(FormatError, match="not the root of a table"):
        ours.dataset(path).to_table()
    with pytest.raises((OSError, ValueError), match="not a dataset root"):
        lance.dataset(str(path)).to_table()


def test_index_directories() -> None:
    store = open_store("memory://x")[0]
    bases = Bases(TableRef(store, "/x"), (BasePath(0, True, "memory://y"), BasePath(1, False, "memory://z")))
    uuid = bytes(range(16))
    text = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    entry = table_pb2.IndexMetadata(uuid=table_pb2.UUID(uuid=uuid))
    assert bases.index_dir(entry) == (store, f"/x/_indices/{text}")
    entry.base_id = 0
    assert bases.index_dir(entry) == (store, f"/y/_indices/{text}")
    entry.base_id = 1
    assert bases.index_dir(entry) == (store, f"/z/{text}")
