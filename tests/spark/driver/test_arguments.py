"""What callers give in place of a session, a path, a number or SQL: one line that says what to write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import lit

import spark_lance
from spark_lance import LanceTable
from spark_lance.errors import ColumnTypeError, ExpressionError, LanceError, OptionError, OptionTypeError
from spark_lance.spark.driver.arguments import check_running

ROWS = pa.table({"id": range(300), "name": ["a"] * 300})


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> LanceTable:
    spark_lance.write_dataset(ROWS, tmp_path / "t")
    return LanceTable.forPath(spark, tmp_path / "t")


def message(call: Callable[[], Any], kind: type[LanceError]) -> str:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_what_is_no_session_is_refused(spark: SparkSession, table: LanceTable) -> None:
    nothing, path = cast("SparkSession", None), cast("SparkSession", table.path)
    for call, usage in (
        (lambda: spark_lance.enable(nothing), "enable(spark)"),
        (lambda: spark_lance.enable(path), "enable(spark)"),
        (lambda: LanceTable.forPath(nothing, table.path), "LanceTable.forPath(spark, path)"),
        (lambda: LanceTable.forPath(path, cast("str", spark)), "LanceTable.forPath(spark, path)"),
        (lambda: LanceTable.isLanceTable(path, cast("str", spark)), "LanceTable.forPath(spark, path)"),
        (lambda: LanceTable.create(path), "LanceTable.create(spark)"),
        (lambda: LanceTable.createOrReplace(path), "LanceTable.createOrReplace(spark)"),
    ):
        assert f"write {usage} with" in message(call, OptionTypeError)
    assert "path of a table is text" in message(
        lambda: LanceTable.forPath(spark, cast("str", None)), OptionTypeError
    )


def test_a_stopped_session_is_called_that(table: LanceTable) -> None:
    """Stopping the shared session would end the other tests' too, so a stand-in has been stopped."""

    class Stopped:
        _sc = SimpleNamespace(_jsc=None)

        def createDataFrame(self) -> None:
            """What tells a session."""

    spark = cast("SparkSession", Stopped())
    stopped = LanceTable(spark, table.path)
    for call in (
        lambda: spark_lance.enable(spark),
        lambda: LanceTable.forPath(spark, table.path),
        stopped.toDF,
        stopped.history,
        stopped.vacuum,
        stopped.delete,
        lambda: stopped.update(set={"id": "1"}),
        lambda: stopped.optimize().executeCompaction(),
        lambda: LanceTable.create(spark).location(table.path).addColumn("a", pa.int64()).execute(),
    ):
        assert "has been stopped: make one with" in message(call, OptionError)
    check_running(table.spark)


def test_numbers_of_a_vacuum(table: LanceTable) -> None:
    hours: Any = "7 days"
    assert "such as 168 for 7 days" in message(lambda: table.vacuum(hours), OptionTypeError)
    assert "retainVersions is a whole number" in message(
        lambda: table.vacuum(retainVersions=cast("int", "3")), OptionTypeError
    )
    assert table.vacuum(168).count() == 1


def test_text_in_place_of_sql(table: LanceTable) -> None:
    output = message(lambda: table.update(cast("str", {"name": "hello"})), OptionTypeError)
    assert "update(set={...})" in output
    for values in ({"name": "hello"}, {"name": "id + hello"}):
        output = message(lambda values=values: table.update("id = 1", values), ExpressionError)  # type: ignore[misc]
        assert "there are id, name" in output
    (quoted,) = re.findall(r'\{"name": "(.*?)"\}', output)
    (call,) = re.findall(r"lit\(\"(\w+)\"\)", output)
    table.update("id = 1", {"name": quoted})
    table.update("id = 2", {"name": lit(call)})
    assert table.toDF().where("name = 'hello'").count() == 2


def test_lists_that_were_meant_as_vectors(spark: SparkSession, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((300, 16))
    rows = pa.table({"v": pa.array(values.tolist(), pa.list_(pa.float64()))})
    spark_lance.write_dataset(rows, tmp_path / "t")
    spark_lance.write_dataset(rows, tmp_path / "d")
    lists, ds = LanceTable.forPath(spark, tmp_path / "t"), spark_lance.dataset(tmp_path / "d")
    search = {"column": "v", "q": [0.1] * 16, "k": 3}
    output = message(lambda: ds.to_table(nearest=search), OptionTypeError)
    (kind,) = re.findall(r"in Spark alterColumn\(column, type=(pa\.list_\(.*?\))\)", output)
    (change,) = re.findall(r"alter_columns\((\{.*?\})\)", output)
    (option, size) = re.findall(r"option '<column>\.(\S+)' = (\d+)", output)[0]
    assert "'<column>.arrow.fixed-size-list.size' = length" in message(
        lambda: lists.createIndex("v", "IVF_FLAT", numPartitions=1), ColumnTypeError
    )
    lists.alterColumn("v", type=eval(kind, {"pa": pa}))
    lists.createIndex("v", "IVF_FLAT", numPartitions=1)
    ds.alter_columns(eval(change, {"pa": pa, "column": "v"}))
    assert spark_lance.dataset(tmp_path / "d").to_table(nearest=search).num_rows == 3
    frame = spark.createDataFrame([(row,) for row in values[:3].tolist()], "v array<double>")
    frame.write.format("lance").option(f"v.{option}", size).mode("append").save(str(tmp_path / "s"))
    assert spark_lance.dataset(tmp_path / "s").to_table(nearest=search).num_rows == 3


def test_parts_that_do_not_divide_a_vector(spark: SparkSession, tmp_path: Path) -> None:
    values = pa.array(np.random.default_rng(0).random(300 * 16), pa.float32())
    spark_lance.write_dataset(pa.table({"v": pa.FixedSizeListArray.from_arrays(values, 16)}), tmp_path / "t")
    table = LanceTable.forPath(spark, tmp_path / "t")
    output = message(lambda: table.createIndex("v", "IVF_PQ", numPartitions=1, numSubVectors=5), OptionError)
    usable = [int(number) for number in output.partition("use one of ")[2].split(", ")]
    assert usable == [1, 2, 4, 8, 16]
    table.createIndex("v", "IVF_PQ", numPartitions=1, numSubVectors=usable[2])
    output = message(
        lambda: table.createIndex("v", "IVF_PQ", numPartitions=1, numSubVectors=1, numBits=4), OptionError
    )
    assert output.endswith("use one of 2, 4, 8, 16")


def test_a_primary_key_gives_rows_ids_that_stay(spark: SparkSession, tmp_path: Path) -> None:
    for name, option, stable in (("a", None, True), ("b", "false", False), ("c", "true", True)):
        builder = (
            LanceTable.create(spark).location(tmp_path / name).addColumn("id", "bigint").primaryKey("id")
        )
        if option is not None:
            builder.option("enable_stable_row_ids", option)
        builder.execute()
        assert spark_lance.dataset(tmp_path / name).has_stable_row_ids is stable
    LanceTable.create(spark).location(tmp_path / "d").addColumn("id", "bigint").execute()
    assert not spark_lance.dataset(tmp_path / "d").has_stable_row_ids
    spark_lance.write_dataset(spark_lance.dataset(tmp_path / "a").schema.empty_table(), tmp_path / "e")
    assert spark_lance.dataset(tmp_path / "e").has_stable_row_ids
