"""The table that these tests make, change and look into, with what is to be found in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import spark_lance
from spark_lance.datasets.dataset import LanceDataset

__all__ = ["DIM", "KINDS", "WORDS", "make", "rows", "sorted_rows"]

DIM = 8
WORDS = ("apple", "pear", "plum", "cherry", "quince")
# The version of the data files, and "-stable" for tables with stable row ids.
KINDS = ("2.0", "2.1", "2.1-stable", "2.2", "2.2-stable")


def rows(first: int, count: int) -> pa.Table:
    """Return some rows: numbers with nulls, texts, lists, structs, vectors, the same on every run."""
    numbers = range(first, first + count)
    points = np.random.default_rng(first).random((count, DIM), dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "kind": pa.array([None if i % 11 == 3 else i % 7 for i in numbers], pa.int32()),
            "words": pa.array([f"{WORDS[i % 5]} {WORDS[i % 3]}" for i in numbers]),
            "marks": pa.array([[f"a{i % 3}"] * (i % 4) for i in numbers], pa.list_(pa.string())),
            "place": pa.array([{"x": i / 4, "s": f"s{i % 5}"} for i in numbers]),
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), DIM),
        }
    )


def make(path: str, kind: str) -> list[dict[str, Any]]:
    """Make a table that was appended to, deleted from, updated, merged into and indexed; return its rows."""
    version, _, stable = kind.partition("-")
    ds = spark_lance.write_dataset(
        rows(0, 300), path, data_storage_version=version, enable_stable_row_ids=bool(stable)
    )
    ds = spark_lance.write_dataset(rows(300, 100), path, mode="append")
    ds = ds.delete("id % 10 = 4").update({"kind": "kind + 100"}, where="id in (1, 2, 302)").dataset
    merge = ds.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    ds = merge.execute(rows(390, 20)).dataset
    ds = ds.add_columns({"twice": "id * 2"})
    ds = ds.create_scalar_index("id", "BTREE").create_scalar_index("kind", "BITMAP")
    ds = ds.create_scalar_index("words", "INVERTED")
    ds = ds.create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=2)
    more = rows(700, 10).append_column("twice", pa.array(range(1400, 1420, 2), pa.int64()))
    return sorted_rows(spark_lance.write_dataset(more, path, mode="append"))


def sorted_rows(dataset: LanceDataset | Any) -> list[dict[str, Any]]:
    """Return the rows of a dataset, ours or pylance's, by their ids."""
    return sorted(dataset.to_table().to_pylist(), key=lambda row: int(row["id"]))
