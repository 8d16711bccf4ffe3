"""Where a new table may be: not among the files of something else, nor behind a name that is not a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import dataset, write_dataset
from spark_lance.errors import CommitError, LanceError, LocationInUseError, StoreError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import open_store

ROWS = pa.table({"a": [1, 2, 3]})


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


FOREIGN = {
    "a Delta table": ("_delta_log/00000000000000000000.json", "part-0.snappy.parquet"),
    "an Iceberg table": ("metadata/v1.metadata.json", "data/0.parquet"),
    "a Hudi table": (".hoodie/hoodie.properties",),
    "the output of a stream to files": ("_spark_metadata/0",),
    "another Lance table below it": ("orders.lance/_versions/1.manifest", "orders.lance/data/x.lance"),
    "Parquet files": ("data/year=2020/0.parquet",),
    "ORC files": ("_SUCCESS", "part-0.orc"),
    "CSV files": ("a.csv.gz",),
    "other files": ("data/notes.txt",),
}


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_other_files_are_named_and_left_alone(kind: str, mode: str, tmp_path: Path) -> None:
    put(tmp_path / "t", *FOREIGN[kind])
    with pytest.raises(LocationInUseError, match=f"holds {kind} .*empty folder") as message:
        write_dataset(ROWS, tmp_path / "t", mode)
    assert "\n" not in str(message.value)
    assert isinstance(message.value, FileExistsError)
    assert files(tmp_path / "t") == set(FOREIGN[kind])


def test_what_real_writers_leave(tmp_path: Path) -> None:
    pq.write_to_dataset(ROWS, tmp_path / "p", partition_cols=["a"])
    with pytest.raises(LocationInUseError, match="Parquet files"):
        write_dataset(ROWS, tmp_path / "p", "append")
    write: Any = lance.write_dataset
    write(ROWS, str(tmp_path / "w" / "t.lance"))
    with pytest.raises(LocationInUseError, match="another Lance table below it"):
        write_dataset(ROWS, tmp_path / "w")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    put(tmp_path, "t")
    with pytest.raises(LocationInUseError, match="t is a file: a table needs a folder"):
        write_dataset(ROWS, tmp_path / "t")


@pytest.mark.parametrize(
    "names",
    [
        (),
        (".DS_Store", "_SUCCESS", "_temporary/0/x.parquet", ".ipynb_checkpoints/a.json"),
        ("data/0101abc.lance", "data/.tmp77.x.lance", "_transactions/0-x.txn", "_versions/.tmpx"),
        ("data/0101abc/ff.blob", "data/0101abc.lance", "_deletions/0-1-2.bin", "_column_jobs/j/0-x.json"),
    ],
)
def test_empty_folders_and_leftovers_are_fine(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "t" / "empty" / "deep").mkdir(parents=True)
    put(tmp_path / "t", *names)
    assert write_dataset(ROWS, tmp_path / "t").count_rows() == 3
    assert files(tmp_path / "t") >= set(names)


def test_a_first_write_that_failed_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("spark_lance.table.inserts.write_plan.commit_write", fail)
        patch.setattr("spark_lance.table.inserts.write_plan.delete_fragment_files", lambda *a: None)
        with pytest.raises(OSError, match="killed"):
            write_dataset(ROWS, tmp_path / "t")
    assert list((tmp_path / "t" / "data").glob("*.lance"))
    assert write_dataset(ROWS, tmp_path / "t").to_table() == ROWS


def test_a_table_may_get_company_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there is a table nothing is listed, so writing to it costs no more than before."""
    write_dataset(ROWS, tmp_path / "t")
    put(tmp_path / "t", "README.md")
    monkeypatch.setattr(LocalStore, "first_objects", lambda *a: pytest.fail("the folder was listed"))
    assert write_dataset(ROWS, tmp_path / "t", "append").count_rows() == 6
    assert write_dataset(ROWS, tmp_path / "t", "overwrite").count_rows() == 3


@pytest.mark.parametrize("clone", ["shallow_clone", "deep_clone"])
def test_clones_need_a_folder_of_their_own(clone: str, tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    put(tmp_path / "c", "a.parquet")
    with pytest.raises(LocationInUseError, match="Parquet files"):
        getattr(table, clone)(str(tmp_path / "c"))
    assert files(tmp_path / "c") == {"a.parquet"}


def test_stores_that_list_directories(tmp_path: Path) -> None:
    store, root = open_store("memory://here/t")
    store.put(f"{root}/x=1/part-0.parquet", b"x")
    with pytest.raises(
        LocationInUseError, match=r"memory://.*/here/t .*Parquet files \(x=1/part-0.parquet\)"
    ):
        write_dataset(ROWS, "memory://here/t")
    store.put("/there/t/data/0.lance", b"x")
    assert write_dataset(ROWS, "memory://there/t").count_rows() == 3


NAMES = st.text("ab._=", min_size=1, max_size=4).filter(lambda name: name.strip(".") != "")


@settings(max_examples=60)
@given(st.sets(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=6), st.integers(1, 20))
def test_some_of_the_objects(tmp_path_factory: pytest.TempPathFactory, names: set[str], limit: int) -> None:
    root = tmp_path_factory.mktemp("o")
    for name in sorted(names):
        if not any(name != other and (name + "/").startswith(other + "/") for other in names):
            put(root, name)
    there = files(root)
    store, path = open_store(str(root))
    result = store.first_objects(path, limit)
    assert len(result) == len(set(result)) <= limit
    assert set(result) <= there
    assert set(store.first_objects(path, 1000)) == there


@pytest.mark.parametrize(
    "uri",
    ["dbfs:/x", "hdfs:/x/y", "s3:/bucket/t", "wasbs:/x", "abc+def:/x", "s3:x", "dbfs:x", "file:x", "run:"],
)
def test_a_scheme_with_one_slash_is_no_folder(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[Callable[[], object]] = [lambda: write_dataset(ROWS, uri), lambda: dataset(uri)]
    for call in calls:
        with pytest.raises(StoreError, match=r"(one slash|no slashes) behind") as message:
            call()
        assert "\n" not in str(message.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("uri", ["foo://x/y", "viewfs://x/y", "dbfs://x/y", "hdfs://nowhere/x"])
def test_a_scheme_without_a_driver_is_no_folder(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((StoreError, LanceError)) as message:
        write_dataset(ROWS, uri)
    assert not isinstance(message.value, CommitError)
    assert "\n" not in str(message.value)
    assert list(tmp_path.iterdir()) == []


def test_local_names_with_colons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for uri in ("./dbfs:/x", "a:b", f"file:{tmp_path}/f", f"file://{tmp_path}/g"):
        assert write_dataset(ROWS, uri).count_rows() == 3
    assert {path.name for path in tmp_path.iterdir()} == {"dbfs:", "a:b", "f", "g"}
