"""All that a process caches of tables stays within one budget: indices, manifests and metadata of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
