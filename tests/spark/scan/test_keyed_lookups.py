"""Look-ups by keys that an index has, beside rows in memory: fragments, deletes, nulls, rows that moved."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_lance


@pytest.fixture(scope="module")
def enabled(spark: SparkSession) -> SparkSession:
    return spark_lance.enable(spark.newSession())


def table_of(draw: np.random.Generator, rows: int) -> pa.Table:
    """Return rows whose columns have encodings of many kinds, with keys that come twice or are null."""
    keys = draw.integers(0, rows, rows)
    near = np.sort(draw.integers(0, 1 << 40, rows))
    lists = [[int(key)] * (key % 4) if key % 5 else None for key in keys]
    return pa.table(
        {
            "key": pa.array(keys, mask=draw.random(rows) < 0.02),
            "text": pa.array([f"key {key % 997}" for key in keys], mask=draw.random(rows) < 0.1),
            "long": pa.array([f"https://example.org/{key}/{i}" for i, key in enumerate(keys)]),
            "near": near,
            "runs": np.repeat(draw.integers(0, 9, rows // 50 + 1), 50)[:rows],
            "same": pa.repeat(7, rows),
            "part": pa.array(draw.random(rows), mask=draw.random(rows) < 0.3),
            "flag": draw.random(rows) < 0.5,
            "list": pa.array(lists, pa.list_(pa.int32())),
            "at": pa.array(draw.integers(0, 1 << 50, rows), pa.timestamp("us", "UTC")),
        }
    )


def changed(path: str, draw: np.random.Generator, index: str, stable: bool) -> None:
    """Write a table in fragments and change it, before and after it gets indices."""
    rows = int(draw.integers(200, 4000))
    data = table_of(draw, rows)
    spark_lance.write_dataset(data, path, max_rows_per_file=rows // 3 + 1, enable_stable_row_ids=stable)
    spark_lance.dataset(path).delete(f"key % 7 = {draw.integers(0, 7)}")
    spark_lance.dataset(path).create_scalar_index("key", index)
    spark_lance.dataset(path).update({"key": "key + 3"}, where=f"key % 11 = {draw.integers(0, 11)}")
    spark_lance.dataset(path).delete(f"runs = {draw.integers(0, 9)}")
    if draw.random() < 0.5:
        spark_lance.dataset(path).optimize.compact_files()
    spark_lance.write_dataset(table_of(draw, 150), path, mode="append")


def check(session: SparkSession, path: str, draw: np.random.Generator) -> None:
    """Compare look-ups of a few keys, and of many, with a filter over all rows."""
    whole = spark_lance.dataset(path).to_table(with_row_id=True).to_pylist()
    pool = [row["key"] for row in whole if row["key"] is not None] or [0]
    frame = session.read.format("lance").option("with_row_id", "true").load(path)

    def found(condition: str) -> list[str]:
        return sorted(repr(row.asDict()) for row in frame.where(condition).select(*whole[0]).collect())

    def expected(rows: list[dict[str, Any]]) -> list[str]:
        zoned = [{**row, "at": row["at"].astimezone().replace(tzinfo=None)} for row in rows]
        return sorted(map(repr, zoned))

    for size in (1, 12, 400):
        keys = {int(key) for key in draw.choice(pool, size)} | {-5, 10**15}
        request = ", ".join(map(str, keys))
        assert found(f"key IN ({request})") == expected([row for row in whole if row["key"] in keys])
        assert found(f"key IN ({request}, null) AND NOT flag") == expected(
            [row for row in whole if row["key"] in keys and not row["flag"]]
        )
    one = int(draw.choice(pool))
    assert found(f"key = {one}") == expected([row for row in whole if row["key"] == one])
    assert found("key IS NULL") == expected([row for row in whole if row["key"] is None])
    some = [row["_rowid"] for row in random.Random(one).sample(whole, min(30, len(whole)))]
    assert found(f"_rowid IN ({', '.join(map(str, some))})") == expected(
        [row for row in whole if row["_rowid"] in some]
    )


@pytest.mark.parametrize("stable", [False, True])
def test_look_ups_find_what_a_filter_finds(enabled: SparkSession, tmp_path: Path, stable: bool) -> None:
    draw = np.random.default_rng(5 + stable)
    changed(path := str(tmp_path / "t.lance"), draw, "BTREE", stable)
    check(enabled, path, draw)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_look_ups_of_any_table(enabled: SparkSession, tmp_path: Path, seed: int) -> None:
    draw = np.random.default_rng(100 + seed)
    changed(path := str(tmp_path / "t.lance"), draw, ("BTREE", "ZONEMAP", "BITMAP")[seed % 3], seed % 2 == 1)
    check(enabled, path, draw)
