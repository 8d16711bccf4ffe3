"""A merge reads only the rows of the table that may have a key of its source."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.table import merge_pruning, merging
from spark_lance.spark.table.merging import MergeBuilder

ROWS = 60
UTC = datetime.timezone.utc


@pytest.fixture(autouse=True)
def _for_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_PRUNED_ROWS", 0)


def values(kind: str, number: int) -> Any:
    """Return the key of a number, in the order of numbers."""
    day = datetime.date(2020, 1, 1) + datetime.timedelta(days=number)
    return {
        "long": number - 20,
        "short": number - 20,
        "string": f"it's \"{number:03}\\",
        "date": day,
        "timestamp": datetime.datetime(day.year, day.month, day.day, 1, 2, 3, number, tzinfo=UTC),
        "double": number / 2,
        "decimal": Decimal(number),
    }[kind]


ARROW = {
    "long": pa.int64(),
    "short": pa.int16(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "double": pa.float64(),
    "decimal": pa.decimal128(10, 0),
}


def a_table(path: Path, kind: str, version: str = "2.1") -> str:
    """Write three fragments, keys in order, and a row whose key is null."""
    keys = [values(kind, number) for number in range(ROWS)]
    rows = pa.table({"k": pa.array([*keys, None], ARROW[kind]), "v": pa.array(range(ROWS + 1), pa.int64())})
    spark_lance.write_dataset(rows, str(path), max_rows_per_file=20, data_storage_version=version)
    return str(path)


def frame(spark: SparkSession, kind: str, numbers: Sequence[int | None]) -> Any:
    rows = [(None if n is None else values(kind, n), -1 if n is None else 1000 + n) for n in numbers]
    source = {"long": "int"}.get(kind, kind)
    return spark.createDataFrame(rows, f"k {source}, v long")


def upsert(table: LanceTable, source: Any) -> MergeBuilder:
    merge = table.alias("t").merge(source.alias("s"), "t.k = s.k")
    return merge.whenMatchedUpdateAll().whenNotMatchedInsertAll()


def pairs(path: str) -> list[tuple[Any, int]]:
    rows = spark_lance.dataset(path).to_table()
    return sorted(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True), key=str)


@pytest.mark.parametrize(
    "kind", ["long", *(pytest.param(one, marks=pytest.mark.slow) for one in ("string", "timestamp"))]
)
@pytest.mark.parametrize("few", [True, False], ids=["keys", "range"])
def test_fragments_without_a_key_of_the_source_are_not_opened(
    spark: SparkSession, tmp_path: Path, kind: str, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_table(tmp_path / "t.lance", kind)
    dataset = spark_lance.dataset(path).create_scalar_index("k", "BTREE")
    dataset = spark_lance.dataset(path)
    for fragment in (dataset.manifest.fragments[0], dataset.manifest.fragments[2]):
        (tmp_path / "t.lance" / "data" / fragment.files[0].path).unlink()
    if not few:
        monkeypatch.setattr(merge_pruning, "_MAX_LISTED_KEYS", 1)
    merge = upsert(LanceTable.forPath(spark, path), frame(spark, kind, [25, 31, None]))
    done = merge.execute().collect()[0]
    assert (done.num_updated_rows, done.num_inserted_rows) == (2, 1)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in ("long", "string") else pytest.mark.slow)
        for kind in sorted(ARROW)
    ],
)
def test_a_pruned_merge_does_what_any_merge_does(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    draw = random.Random(kind)
    clauses: dict[str, Callable[[MergeBuilder], MergeBuilder]] = {
        "update": lambda merge: merge.whenMatchedUpdateAll(),
        "insert": lambda merge: merge.whenNotMatchedInsertAll(),
        "both": lambda merge: (
            merge.whenMatchedDelete("s.v % 3 = 0").whenMatchedUpdateAll().whenNotMatchedInsertAll()
        ),
        "not by source": lambda merge: merge.whenMatchedUpdateAll().whenNotMatchedBySourceDelete("t.v < 50"),
    }
    for name, add in clauses.items() if kind == "long" else [("both", clauses["both"])]:
        path = a_table(tmp_path / f"{name}.lance", kind)
        numbers: list[int | None] = [*draw.sample(range(ROWS + 20), 12), None]
        given = {None if n is None else values(kind, n): -1 if n is None else 1000 + n for n in numbers}
        table = LanceTable.forPath(spark, path).alias("t")
        before = pairs(path)
        add(table.merge(frame(spark, kind, numbers).alias("s"), "t.k = s.k")).execute()
        assert pairs(path) == expected(before, given, name), name


def expected(before: list[tuple[Any, int]], given: dict[Any, int], name: str) -> list[tuple[Any, int]]:
    after = []
    for key, value in before:
        matches = key is not None and key in given
        if not matches:
            if name != "not by source" or value >= 50:
                after.append((key, value))
        elif name == "insert":
            after.append((key, value))
        elif name != "both" or given[key] % 3:
            after.append((key, given[key]))
    own = {key for key, _ in before if key is not None}
    if name in ("insert", "both"):
        after += [(key, value) for key, value in given.items() if key is None or key not in own]
    return sorted(after, key=str)


def test_a_source_without_keys_matches_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = a_table(tmp_path / "t.lance", "long")
    for numbers in ([], [None]):
        done = upsert(LanceTable.forPath(spark, path), frame(spark, "long", numbers)).execute().collect()[0]
        assert (done.num_updated_rows, done.num_inserted_rows) == (0, len(numbers))


def test_clauses_added_after_a_run_are_not_pruned_by_it(spark: SparkSession, tmp_path: Path) -> None:
    path = a_table(tmp_path / "t.lance", "long")
    merge = upsert(LanceTable.forPath(spark, path), frame(spark, "long", [1, 2]))
    merge.execute()
    merge.whenNotMatchedBySourceDelete().execute()
    assert sorted(key for key, _ in pairs(path)) == [values("long", 1), values("long", 2)]


def test_keys_outside_of_the_years_of_literals_prune_nothing(spark: SparkSession, tmp_path: Path) -> None:
    path = a_table(tmp_path / "t.lance", "date")
    source = spark.sql(
        "select date_add(date '9999-12-31', 10) k, 5L v union all select date '2020-01-03', 7L"
    )
    done = upsert(LanceTable.forPath(spark, path), source).execute().collect()[0]
    assert (done.num_updated_rows, done.num_inserted_rows) == (1, 1)
