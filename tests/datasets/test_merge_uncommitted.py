"""Merges whose files are written by one process and committed by another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance import LanceDataset, LanceOperation, dataset, write_dataset
from spark_lance.errors import CommitError, MergeError, OptionError


def rows_of(keys: Any, value: int) -> pa.Table:
    keys = list(keys)
    return pa.table({"id": pa.array(keys, pa.int64()), "v": pa.array([value] * len(keys), pa.int64())})


def builder(table: LanceDataset, draw: random.Random) -> Any:
    result: Any = table.merge_insert("id")
    if draw.random() < 0.8:
        result = result.when_matched_update_all(draw.choice([None, "source.v > target.v + 5"]))
    elif draw.random() < 0.5:
        result = result.when_matched_delete()
    result = result.when_not_matched_insert_all()
    return result.when_not_matched_by_source_delete("id % 7 = 3") if draw.random() < 0.3 else result


@pytest.mark.parametrize("seed", range(8))
def test_the_table_is_that_of_a_merge_that_commits(tmp_path: Path, seed: int) -> None:
    """Ids stay with rows that are updated, and the versions that made them."""
    both = []
    for way in ("at_once", "later"):
        draw = random.Random(seed)
        stable = draw.random() < 0.5
        path = tmp_path / way
        table = write_dataset(rows_of(range(60), 0), path, max_rows_per_file=17, enable_stable_row_ids=stable)
        source = rows_of(draw.sample(range(90), 40), draw.choice([3, 9]))
        if way == "at_once":
            done = builder(table, draw).execute(source)
            counts = {
                name: getattr(done, name)
                for name in ("num_inserted_rows", "num_updated_rows", "num_deleted_rows")
            }
        else:
            transaction, counts = builder(table, draw).execute_uncommitted(source)
            assert isinstance(transaction.operation, LanceOperation.Update)
            assert dataset(path).version == 1
            LanceDataset.commit(path, transaction)
        expected = ["id", "v", *(["_rowid", "_row_created_at_version"] if stable else [])]
        rows = sorted(tuple(row.values()) for row in dataset(path).to_table(expected).to_pylist())
        theirs = lance.dataset(str(path)).to_table(["id", "v"]).to_pylist()
        assert [row[:2] for row in rows] == sorted((row["id"], row["v"]) for row in theirs)
        both.append((rows, counts))
    assert both[0] == both[1]


def test_a_key_that_another_writer_inserts_is_seen(tmp_path: Path) -> None:
    table = write_dataset(rows_of(range(5), 0), tmp_path / "t")
    first, second = (
        table.merge_insert("id").when_not_matched_insert_all().execute_uncommitted(rows_of([7], value))[0]
        for value in (1, 2)
    )
    LanceDataset.commit(table, first)
    with pytest.raises(CommitError):
        LanceDataset.commit(table, second)
    assert dataset(tmp_path / "t").to_table(filter="id = 7")["v"].to_pylist() == [1]


def test_what_fails_leaves_no_files(tmp_path: Path) -> None:
    table = write_dataset(rows_of(range(5), 0), tmp_path / "t")
    before = sorted(path.name for path in (tmp_path / "t").rglob("*"))
    twice = pa.concat_tables([rows_of([1], 1), rows_of([1], 2)])
    with pytest.raises(MergeError, match="id = 1"):
        table.merge_insert("id").when_matched_update_all().execute_uncommitted(twice)
    with pytest.raises(OptionError, match="never change anything"):
        table.merge_insert("id").execute_uncommitted(rows_of([1], 1))
    assert sorted(path.name for path in (tmp_path / "t").rglob("*")) == before
