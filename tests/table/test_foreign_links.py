"""Folders of a table that are links to another place: nothing that deletes follows them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import StoreError
from spark_lance.io.deletion import delete_file
from spark_lance.io.store import Store, open_store
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import claim_shard, create_shard
from spark_lance.table.columns.job_records import JobRecords
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.drop import drop_table
from spark_lance.table.writing.write import delete_operation_files

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})
OLD = (datetime.now(timezone.utc) - timedelta(days=30)).timestamp()
NAMES = (
    "x.lance", "x/0.blob", "1-1-1.arrow", "1-x.txn", ".tmpx", "job/1-x.json", "1-x.json",
    "6b1b2a30-1f0a-4f0e-8a53-1b5f3a9d2c11/index.idx", "job/a.arrow", "wal/1.arrow", "d1.manifest",
)  # fmt: skip


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of old files whose names are those that every kind of clean-up looks for."""
    place = tmp_path / "victim"
    for name in NAMES:
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
        os.utime(file, (OLD, OLD))
    return place


def content(place: Path) -> dict[str, bytes]:
    return {str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*") if file.is_file()}


def make_link(place: Path, target: Path) -> None:
    if place.exists():
        for file in place.iterdir():
            file.unlink()
        place.rmdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(target)


def make_table(place: Path) -> spark_lance.LanceDataset:
    ds = spark_lance.write_dataset(ROWS, str(place))
    return spark_lance.write_dataset(ROWS, ds, mode="append")


FOLDERS = ("data", "_deletions", "_indices", "_transactions", "_column_jobs")


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("unverified", [False, True])
def test_clean_ups_stay_inside(tmp_path: Path, victim: Path, folder: str, unverified: bool) -> None:
    table = make_table(tmp_path / "t")
    before = content(victim)
    make_link(tmp_path / "t" / folder, victim)
    table.checkout_latest().cleanup_old_versions(older_than=timedelta(0), delete_unverified=unverified)
    assert content(victim) == before


@pytest.mark.parametrize("folder", FOLDERS)
def test_appends_that_clean_up_stay_inside(tmp_path: Path, victim: Path, folder: str) -> None:
    table = make_table(tmp_path / "t").settings.enable_auto_cleanup({"interval": 1, "older_than_seconds": 0})
    make_link(tmp_path / "t" / folder, victim)
    before = set(content(victim))
    spark_lance.write_dataset(ROWS, table.checkout_latest(), mode="append")
    assert set(content(victim)) >= before


@pytest.mark.parametrize("link", ["tree/dev/data", "tree/dev/_transactions", "tree/dev", "tree"])
def test_branches_stay_inside(tmp_path: Path, victim: Path, link: str) -> None:
    table = make_table(tmp_path / "t")
    table.create_branch("dev")
    for name in ("data", "_versions", "dev/data", "dev/_versions"):
        (victim / name).mkdir(parents=True, exist_ok=True)
        (victim / name / "x.lance").write_text("precious")
    before = content(victim)
    place = tmp_path / "t" / link
    if place.exists():
        place.rename(tmp_path / "moved")
    make_link(place, victim)
    table.branches.delete("dev")
    assert content(victim) == before


def test_cleaning_a_branch_stays_inside(tmp_path: Path, victim: Path) -> None:
    dev = make_table(tmp_path / "t").create_branch("dev")
    dev = spark_lance.write_dataset(ROWS, dev, mode="overwrite")
    before = content(victim)
    (tmp_path / "t" / "tree" / "dev" / "data").rename(tmp_path / "moved")
    make_link(tmp_path / "t" / "tree" / "dev" / "data", victim)
    dev.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)
    assert content(victim) == before


@pytest.mark.parametrize("link", ["_mem_wal", "_mem_wal/shard", "_mem_wal/shard/wal", "_wal_staging"])
def test_logs_stay_inside(tmp_path: Path, victim: Path, link: str) -> None:
    key = {"lance-schema:unenforced-primary-key:position": "0"}
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key)])
    table = spark_lance.write_dataset(ROWS.cast(schema), str(tmp_path / "t")).initialize_mem_wal(
        unsharded=True
    )
    shard = uuid.uuid4()
    paths = ShardPaths(TableRef(table.store, str(tmp_path / "t")), shard)
    create_shard(paths, 1)
    for number in range(1, 4):
        (victim / f"{number:064b}.arrow").write_text("precious")
    (victim / str(shard)).mkdir()
    (victim / str(shard) / "x.arrow").write_text("precious")
    before = content(victim)
    place = tmp_path / "t" / link.replace("shard", str(shard))
    if place.exists():
        place.rename(tmp_path / "moved")
    make_link(place, victim)
    table.wal.collect(older_than=timedelta(0))
    table.wal.drop(delete_shards=True)
    assert content(victim) == before


def test_jobs_stay_inside(tmp_path: Path, victim: Path) -> None:
    make_table(tmp_path / "t")
    table = TableRef(*open_store(str(tmp_path / "t")))
    before = content(victim)
    make_link(tmp_path / "t" / "_column_jobs" / "job", victim)
    JobRecords(table, "job", "").clear()
    (tmp_path / "t" / "_column_jobs" / "job").unlink()
    (tmp_path / "t" / "_column_jobs").rmdir()
    make_link(tmp_path / "t" / "_column_jobs", victim)
    JobRecords(table, "job", "").clear()
    assert content(victim) == before


def test_failed_commits_stay_inside(tmp_path: Path, victim: Path) -> None:
    make_table(tmp_path / "t")
    table = TableRef(*open_store(str(tmp_path / "t")))
    (victim / "0123456789abcdef.lance").write_text("precious")
    before = content(victim)
    make_link(tmp_path / "t" / "data", victim)
    delete_operation_files(table, "0123456789abcdef")
    assert content(victim) == before


@pytest.mark.parametrize("link", ["data", "tree/dev", "more", "data/more", "."])
def test_drops_stay_inside(tmp_path: Path, victim: Path, link: str) -> None:
    place = tmp_path / "tables" / "t.lance"
    make_table(place)
    before = content(victim)
    if link == ".":
        place.rename(victim / "t.lance")
        before = content(victim)
        place.symlink_to(victim / "t.lance")
    else:
        make_link(place / link, victim)
    drop_table(TableRef(*open_store(str(place))))
    assert list((tmp_path / "tables").iterdir()) == []
    assert content(victim) == before


def test_hints_are_not_written_through_links(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    precious = tmp_path / "precious"
    precious.write_text("precious, and longer than any hint would ever be")
    hint = tmp_path / "t" / "_versions" / "latest_version_hint.json"
    hint.unlink()
    hint.symlink_to(precious)
    spark_lance.write_dataset(ROWS, table, mode="append")
    assert precious.read_text().startswith("precious, and")
    assert not hint.is_symlink()
    assert hint.read_text() == '{"version":3}'


def test_hints_of_shards_are_not_written_through_links(tmp_path: Path) -> None:
    store, root = open_store(str(tmp_path))
    paths = ShardPaths(TableRef(store, root), uuid.uuid4())
    create_shard(paths, 1)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    Path(paths.hint).unlink()
    Path(paths.hint).symlink_to(precious)
    claim_shard(paths, 1)
    assert precious.read_text() == "precious"
    assert Path(paths.hint).read_text() == '{"version":2}'


def test_pipes_in_place_of_hints_stop_nothing(tmp_path: Path) -> None:
    table = make_table(tmp_path / "t")
    hint = tmp_path / "t" / "_versions" / "latest_version_hint.json"
    hint.unlink()
    os.mkfifo(hint)
    assert spark_lance.write_dataset(ROWS, table, mode="append").version == 3


@pytest.mark.parametrize(
    "path", ["{root}/../x", "{root}", "{root}/", "{root}x/y", "{root}/a/../../x", "/x", "x"]
)
def test_nothing_outside_is_deleted(tmp_path: Path, path: str) -> None:
    root = str(tmp_path / "t")
    with pytest.raises(StoreError, match="is not below"):
        delete_file(path.format(root=root), root)


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path, victim: Path) -> None:
    (tmp_path / "t" / "data").mkdir(parents=True)
    (tmp_path / "t" / "data" / "x.lance").write_text("ours")
    store, root = open_store(str(tmp_path / "t"))
    listed = store.list_to_delete(f"{root}/data", root)
    before = content(victim)
    (tmp_path / "t" / "data").rename(tmp_path / "moved")
    make_link(tmp_path / "t" / "data", victim)
    with pytest.raises(StoreError, match=r"t/data is a link"):
        store.delete_many([result.path for result in listed], root)
    assert content(victim) == before


def test_a_root_may_be_reached_by_links(tmp_path: Path) -> None:
    make_table(tmp_path / "real" / "t")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = spark_lance.dataset(str(tmp_path / "link" / "t"))
    table = spark_lance.write_dataset(ROWS, table, mode="overwrite")
    assert table.cleanup_old_versions(older_than=timedelta(0)).data_files_removed == 2


def test_without_descriptors_paths_are_compared(
    tmp_path: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_lance.io.deletion._BY_DESCRIPTOR", False)
    tests: list[Callable[[Store, str], object]] = [
        lambda store, root: store.list_to_delete(f"{root}/data", root),
        lambda store, root: store.list_to_delete(root, root, recursive=True),
        lambda store, root: store.remove_empty(f"{root}/data", root),
    ]
    before = content(victim)
    make_table(tmp_path / "t")
    store, root = open_store(str(tmp_path / "t"))
    assert len(store.list_to_delete(f"{root}/data", root)) == 2
    make_link(tmp_path / "t" / "data", victim)
    for test in tests:
        test(store, root)
    with pytest.raises(StoreError, match="is a link"):
        store.delete(f"{root}/data/x.lance", root)
    store.delete(f"{root}/data", root)
    assert content(victim) == before
    assert not (tmp_path / "t" / "data").exists()
