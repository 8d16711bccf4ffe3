"""All that a process caches of tables stays within one budget: indices, manifests and metadata of files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.io.cache import CACHE

TABLES, ROWS, WIDTH = 6, 20_000, 8
BUDGET = 1 << 20


@pytest.fixture
def resized() -> Iterator[None]:
    budget = CACHE.budget
    CACHE.clear()
    yield
    CACHE.resize(budget)


@pytest.mark.usefixtures("resized")
def test_many_tables_share_one_budget(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.random((ROWS, WIDTH), np.float32)
    rows = pa.table(
        {"key": range(ROWS), "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), WIDTH)}
    )
    paths = [str(tmp_path / f"{number}.lance") for number in range(TABLES)]
    for path in paths:
        ds = write_dataset(rows, path, max_rows_per_file=ROWS // 4)
        ds.create_scalar_index("key", "BTREE")
        ds.create_index("v", "IVF_FLAT", num_partitions=4)

    def ask_all() -> int:
        """Query every table; return the most bytes that the cache had afterwards."""
        most = 0
        for path in paths:
            ds = dataset(path)
            assert ds.to_table(["key"], "key IN (5, 19000)")["key"].to_pylist() == [5, 19000]
            nearest = ds.to_table(["key"], nearest={"column": "v", "q": vectors[7], "k": 1, "nprobes": 4})
            assert nearest["key"].to_pylist() == [7]
            most = max(most, CACHE.num_bytes)
            assert CACHE.num_bytes == sum(CACHE.sizes().values())
        return most

    assert ask_all() > 2 * BUDGET
    names = {name for name, size in CACHE.sizes().items() if size}
    assert names >= {"manifests", "column metadata", "pages of B-trees", "partitions of vectors"}
    CACHE.resize(BUDGET)
    assert 0 < CACHE.num_bytes <= BUDGET
    assert ask_all() <= BUDGET
    CACHE.resize(0)
    assert ask_all() == 0


@pytest.mark.usefixtures("resized")
def test_the_rows_of_a_filter_are_those_of_the_version(tmp_path: Path) -> None:
    def rows(shift: int) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(100.0, dtype=np.float32)), 1)
        keys = (np.arange(100) + shift) % 10
        words = [f"word{key}" for key in range(100)]
        return pa.table({"id": np.arange(100), "key": keys, "v": vectors, "t": words})

    def ask(ds: Any, **more: Any) -> list[int]:
        nearest = {"column": "v", "q": [4.0], "k": 3}
        return list(ds.to_table(["id"], "key = 3", nearest=nearest, prefilter=True, **more)["id"].to_pylist())

    path = str(tmp_path / "t.lance")
    first = write_dataset(rows(0), path)
    assert [ask(first) for _ in range(2)] == [[3, 13, 23]] * 2
    assert CACHE.sizes()["rows of filters"] > 0
    first.delete("id = 13")
    assert ask(dataset(path)) == [3, 23, 33]
    assert ask(dataset(path, version=1)) == [3, 13, 23]
    query: dict[str, Any] = {"full_text_query": "word23 word24", "prefilter": True}
    dataset(path).create_scalar_index("t", "INVERTED")
    assert dataset(path).to_table(["id"], "key = 3", **query)["id"].to_pylist() == [23]
    shutil.rmtree(path)
    # The same versions of another table in the same place.
    again = write_dataset(rows(1), path)
    assert again.version == 1
    assert ask(again) == ask(dataset(path)) == [2, 12, 22]
    CACHE.resize(0)
    assert ask(dataset(path)) == [2, 12, 22]
