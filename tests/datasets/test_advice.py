"""The advice in errors of datasets works; tests/spark/sql/advice.sql has that of SQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import LanceError


class Case(NamedTuple):
    """A call that fails, the words of its advice, and the call that follows the advice.

    Both get a table of ids, words and vectors in two fragments, and the folder of the test.
    """

    wrong: Callable[[LanceDataset, Path], object]
    advice: str
    right: Callable[[LanceDataset, Path], object]


def rows(start: int = 0, count: int = 40) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "word": [f"w{number % 7}" for number in numbers],
            "json": pa.array(['{"a": 1}'] * count, pa.json_()),
            "v": pa.array([[number, 1.0, 0.5] for number in numbers], pa.list_(pa.float32(), 3)),
        }
    )


def write(data: Any, target: Path, **options: Any) -> LanceDataset:
    return spark_lance.write_dataset(data, str(target), **options)


def with_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.csv").write_text("1")
    return folder


def without_files(folder: Path) -> Path:
    for path in folder.iterdir():
        path.unlink()
    return folder


def without_branches(dataset: LanceDataset, *names: str) -> LanceDataset:
    for name in names:
        dataset.branches.delete(name)
    return dataset


def create_index(dataset: LanceDataset, column: str, name: str) -> object:
    return spark_lance.dataset(dataset.uri).create_scalar_index(column, "BTREE", name=name)


def nearest(dataset: Any, **options: Any) -> pa.Table:
    table: pa.Table = dataset.to_table(nearest={"column": "v", "q": [1.0, 1.0, 0.5], "k": 2}, **options)
    return table


def with_tag(dataset: LanceDataset) -> LanceDataset:
    dataset.tags.create("old", 1)
    dataset.delete("id = 0")
    return spark_lance.dataset(dataset.uri)


def clean(dataset: LanceDataset, **options: Any) -> object:
    return with_tag(dataset).cleanup_old_versions(older_than=timedelta(0), **options)


def delete_parent(dataset: LanceDataset, *, child_first: bool) -> None:
    dataset.create_branch("parent", 1).create_branch("child")
    if child_first:
        dataset.branches.delete("child")
    dataset.branches.delete("parent")


MAPS = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32()))})

CASES = {
    "version and time": Case(
        lambda ds, _: spark_lance.dataset(ds.uri, version=1, asof="2100-01-01"),
        "give a version or a time, not both",
        lambda ds, _: spark_lance.dataset(ds.uri, version=1),
    ),
    "search in a fragment": Case(
        lambda ds, _: nearest(ds.get_fragments()[0]),
        r"call LanceDataset.scanner\(fragments=\[...\]\)",
        lambda ds, _: nearest(ds, fragments=ds.get_fragments()[:1]),
    ),
    "maps in 2.1": Case(
        lambda _, path: write(MAPS, path / "m", data_storage_version="2.1"),
        "use version 2.2",
        lambda _, path: write(MAPS, path / "m", data_storage_version="2.2"),
    ),
    "a name of an index twice": Case(
        lambda ds, _: [create_index(ds, column, "x") for column in ("id", "word")],
        "drop it, or give another name",
        lambda ds, _: create_index(ds, "word", "y"),
    ),
    "a JSON index of stable row ids": Case(
        lambda _, path: write(rows(), path / "s", enable_stable_row_ids=True).create_scalar_index(
            "json", "JSON", path="a", target_index_type="btree"
        ),
        "use bitmap or zonemap",
        lambda _, path: spark_lance.dataset(str(path / "s")).create_scalar_index(
            "json", "JSON", path="a", target_index_type="bitmap"
        ),
    ),
    "odd parts of 4 bits": Case(
        lambda ds, _: ds.create_index("v", "IVF_PQ", num_partitions=1, num_sub_vectors=3, num_bits=4),
        "use num_bits=8",
        lambda ds, _: ds.create_index("v", "IVF_PQ", num_partitions=1, num_sub_vectors=3, num_bits=8),
    ),
    "two ways to spread rows": Case(
        lambda ds, _: ds.initialize_mem_wal(unsharded=True, identity_column="id"),
        "give bucket_column, identity_column or unsharded",
        lambda ds, _: ds.initialize_mem_wal(unsharded=True),
    ),
    "a branch twice": Case(
        lambda ds, _: [ds.create_branch("b", 1), ds.create_branch("b", 1)],
        "use it, or delete it first",
        lambda ds, _: without_branches(ds, "b").create_branch("b", 1),
    ),
    "a branch in use": Case(
        lambda ds, _: delete_parent(ds, child_first=False),
        "in use by branch child: delete these first",
        lambda ds, _: without_branches(ds, "child", "parent"),
    ),
    "clean-up of a tagged version": Case(
        lambda ds, _: clean(ds, error_if_tagged_old_versions=True),
        "pass error_if_tagged_old_versions=False",
        lambda ds, _: ds.cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False),
    ),
    "a tag with a blank": Case(
        lambda ds, _: ds.tags.create("last week", 1),
        "use letters, digits, '.', '-' and '_'",
        lambda ds, _: ds.tags.create("last_week", 1),
    ),
    "no version": Case(
        lambda ds, _: ds.tags.create("t", 1.5),  # type: ignore[arg-type]
        r"give a number, tag or \(branch, number\)",
        lambda ds, _: ds.tags.create("t", (None, 1)),
    ),
    "a column alone": Case(
        lambda _, path: write(pd.Series([1, 2], name="n"), path / "n"),
        r"give a table, such as data.to_frame\(\)",
        lambda _, path: write(pd.Series([1, 2], name="n").to_frame(), path / "n"),
    ),
    "data of no kind": Case(
        lambda _, path: write(7, path / "n"),
        "a dict of columns",
        lambda _, path: write({"n": [7]}, path / "n"),
    ),
    "batches that may be none": Case(
        lambda _, path: write(iter([]), path / "n"),
        "needs the argument schema",
        lambda _, path: write(iter([]), path / "n", schema=pa.schema([("n", pa.int32())])),
    ),
    "a folder in use": Case(
        lambda _, path: write(rows(), with_file(path / "used")),
        "write to an empty folder, or delete these files first",
        lambda _, path: write(rows(), without_files(path / "used")),
    ),
    "two choices of base paths": Case(
        lambda ds, path: write(
            rows(),
            path / "b",
            initial_bases=[DatasetBasePath(str(path / "x"), "x")],
            target_bases=["x"],
            target_all_bases=True,
        ),
        "give target_bases or target_all_bases",
        lambda ds, path: write(
            rows(), path / "b", initial_bases=[DatasetBasePath(str(path / "x"), "x")], target_bases=["x"]
        ),
    ),
    "pages copied by a compaction": Case(
        lambda ds, _: ds.optimize.compact_files(compaction_mode="force_binary_copy"),
        "use compaction_mode 'reencode'",
        lambda ds, _: ds.optimize.compact_files(compaction_mode="reencode"),
    ),
    "text and a number": Case(
        lambda ds, _: ds.to_table(filter="word = id"),
        r"use cast\(\)",
        lambda ds, _: ds.to_table(filter="word = cast(id as string)"),
    ),
    "a constraint as a setting": Case(
        lambda ds, _: ds.update_config({"delta.constraints.positive": "id >= 0"}),
        r"LanceTable.addConstraint\('positive', condition\)",
        lambda ds, _: ds.validate(),
    ),
}


@pytest.fixture
def dataset(tmp_path: Path) -> LanceDataset:
    write(rows(), tmp_path / "t")
    return write(rows(40), tmp_path / "t", mode="append")


@pytest.mark.parametrize("name", CASES)
def test_the_advice_of_an_error_works(dataset: LanceDataset, tmp_path: Path, name: str) -> None:
    case = CASES[name]
    with pytest.raises(LanceError, match=case.advice):
        case.wrong(dataset, tmp_path)
    case.right(spark_lance.dataset(dataset.uri), tmp_path)
