"""Small fragments read together give what they give one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.format.manifest import pack_manifest
from spark_lance.table.maintenance import compact_task
from spark_lance.table.reading.scan import Scan


def rows(start: int, count: int = 10) -> pa.Table:
    values = pa.array(range(start, start + count), pa.int64())
    return pa.table({"a": values, "t": pa.array([f"text {i}" for i in range(start, start + count)])})


def read(table: LanceDataset) -> pa.Table:
    tasks = Scan.plan(table.table, table.manifest).tasks()
    return pa.concat_tables(compact_task.read_tasks(tasks))


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of how many fragments were read as one, each time."""
    sizes: list[int] = []
    whole = compact_task._read_joined

    def noted(run: Any) -> pa.Table:
        table = whole(run)
        sizes.append(len(run))
        return table

    monkeypatch.setattr(compact_task, "_read_joined", noted)
    return sizes


def test_neighbours_are_read_as_one(tmp_path: Path, joined: list[int]) -> None:
    write_dataset(rows(0, 50), tmp_path / "t", max_rows_per_file=10)
    table = dataset(tmp_path / "t").delete(pc.field("a").isin([0, 13, 14, 49]))
    assert read(table) == table.to_table()
    assert joined == [5]


@pytest.mark.parametrize("name", ["_JOINED_FILES", "_JOINED_BYTES", "_JOINED_ARROW_BYTES"])
def test_runs_are_cut(tmp_path: Path, joined: list[int], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_dataset(rows(0, 50), tmp_path / "t", max_rows_per_file=10)
    table = dataset(tmp_path / "t")
    size = table.manifest.fragments[0].files[0].file_size_bytes
    limits = {"_JOINED_FILES": 2, "_JOINED_BYTES": 2 * size + 10, "_JOINED_ARROW_BYTES": 900}
    monkeypatch.setattr(compact_task, name, limits[name])
    assert read(table) == table.to_table()
    assert joined == [2, 2]


def test_what_differs_is_read_apart(tmp_path: Path, joined: list[int]) -> None:
    path = tmp_path / "t"
    versions: list[Any] = ["2.1", "2.1", "2.2", "2.2", "2.0"]
    for start, version in zip(range(0, 50, 10), versions, strict=True):
        lance.write_dataset(
            rows(start), path, mode="append" if start else "create", data_storage_version=version
        )
    lance.write_dataset(rows(50).select(["a"]), path, mode="append", data_storage_version="2.2")
    assert read(dataset(path)) == dataset(path).to_table()
    assert joined == [2, 2]
    lance.dataset(str(path)).add_columns({"b": "a + 1"})
    assert read(dataset(path)) == dataset(path).to_table()
    assert joined == [2, 2]


def test_large_fragments_are_streamed(
    tmp_path: Path, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compact_task, "_SMALL_BYTES", 10)
    write_dataset(rows(0, 50), tmp_path / "t", max_rows_per_file=10)
    assert read(dataset(tmp_path / "t")) == rows(0, 50)
    assert joined == []


def test_stores_that_are_not_mapped() -> None:
    write_dataset(rows(0, 300), "memory://small/t", max_rows_per_file=10)
    assert read(dataset("memory://small/t")) == rows(0, 300)


def test_the_damaged_file_is_named(tmp_path: Path) -> None:
    write_dataset(rows(0, 30), tmp_path / "t", max_rows_per_file=10)
    table = dataset(tmp_path / "t")
    name = table.manifest.fragments[1].files[0].path
    file = tmp_path / "t" / "data" / name
    file.write_bytes(file.read_bytes()[:-4] + b"XXXX")
    with pytest.raises(FormatError, match=name):
        read(table)


def test_a_file_with_fewer_columns_than_fields(tmp_path: Path) -> None:
    write_dataset(rows(0, 30), tmp_path / "t", max_rows_per_file=10)
    table = dataset(tmp_path / "t")
    manifest = table_pb2.Manifest.FromString(table.manifest.message.SerializeToString())
    del manifest.fragments[1].files[0].column_indices[-1]
    file = Path(table.manifest.path)
    file.unlink()
    file.write_bytes(pack_manifest(manifest, b"", b""))
    table = dataset(tmp_path / "t")
    for call in (lambda: read(table), lambda: table.stats.data_stats()):
        with pytest.raises(FormatError, match="2 fields but 1 column indices"):
            call()


def test_nothing_to_read() -> None:
    store, root = open_store("memory://small/none")
    assert list(compact_task.read_tasks([])) == []
    assert not store.exists(root)
