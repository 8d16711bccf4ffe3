"""Rows that the driver hands over: values of all types, in the answer or in a file, and lists of literals."""

from __future__ import annotations

import datetime
import json
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark.sql.types as st
import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.expressions.expressions import Call, Column, Literal
from spark_lance.file.base.schema import Schema
from spark_lance.spark.scan.predicates import translate_predicate
from spark_lance.spark.sql import scans

ROWS = 3000


@pytest.fixture(scope="module")
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark_lance.enable(spark.newSession())
    spark.newSession()


def of_every_type(rows: int) -> pa.Table:
    rng = np.random.default_rng(4)
    numbers = rng.integers(-100, 100, rows)
    moments = rng.integers(0, 1 << 50, rows)

    def with_nulls(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(values, kind, mask=rng.random(rows) < 0.2)

    columns = {
        "long": with_nulls(numbers * 10**12, pa.int64()),
        "integer": with_nulls(numbers * 10**6, pa.int32()),
        "short": with_nulls(numbers * 100, pa.int16()),
        "byte": with_nulls(numbers, pa.int8()),
        "double": with_nulls(numbers / 7, pa.float64()),
        "float": with_nulls((numbers / 4).astype(np.float32), pa.float32()),
        "flag": with_nulls(numbers > 0, pa.bool_()),
        "text": with_nulls([f"é{n}" * (n % 3) for n in numbers.tolist()], pa.string()),
        "bytes": with_nulls([bytes([n % 256]) * (n % 4) for n in numbers.tolist()], pa.binary()),
        "day": with_nulls(numbers.astype(np.int32), pa.date32()),
        "moment": with_nulls(moments, pa.timestamp("us", "UTC")),
        "local": with_nulls(moments, pa.timestamp("us")),
        "small": with_nulls([Decimal(n) / 100 for n in numbers.tolist()], pa.decimal128(9, 2)),
        "large": with_nulls([Decimal(n * 10**20) for n in numbers.tolist()], pa.decimal128(38, 4)),
    }
    return pa.table({"id": range(rows), **columns})


def left_behind() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("spark-lance-*") if path.is_file()}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("count", [1, 5, 2000])
def test_values_of_every_type(enabled: SparkSession, tmp_path: Path, count: int, nested: bool) -> None:
    rows = of_every_type(ROWS)
    if nested:
        rows = rows.append_column("list", pa.array([[i] * (i % 3) if i % 5 else None for i in range(ROWS)]))
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(rows, path, max_rows_per_file=1100)
    spark_lance.dataset(path).create_scalar_index("id", "BTREE")
    files = left_behind()
    keys = sorted(np.random.default_rng(count).choice(ROWS, count, replace=False).tolist())
    result = (
        enabled.read.format("lance").load(path).where(f"id IN ({', '.join(map(str, [*keys, -1, keys[0]]))})")
    )
    assert "LocalTableScan" in result._jdf.queryExecution().executedPlan().toString()
    # Spark and Arrow make the same of a value when both end up in Python.
    expected = rows.take(keys).to_pylist()
    times = {"moment": datetime.timezone.utc, "local": None}
    for row in result.collect():
        own = row.asDict()
        want = expected[keys.index(own["id"])]
        for name, zone in times.items():
            value = own[name]
            if value is not None and zone is not None:
                own[name] = value.astimezone(zone)
        assert {n: v for n, v in own.items() if n != "bytes"} == {
            n: v for n, v in want.items() if n != "bytes"
        }
        assert (None if own["bytes"] is None else bytes(own["bytes"])) == want["bytes"]
    assert result.count() == count
    assert result.orderBy("id").select("id").limit(3).collect() == [(key,) for key in keys[:3]]
    result.explain()
    assert left_behind() == files


def test_many_bytes_are_a_file_where_it_is_asked_for(tmp_path: Path) -> None:
    schema = st.StructType([st.StructField("id", st.LongType())])
    few, many = (pa.record_batch({"id": np.arange(rows)}) for rows in (10, 10_000))
    assert "arrow" in scans.rows_answer([many], schema)
    assert "arrow" in scans.rows_answer([few], schema, in_file=True)
    answer = scans.rows_answer([many], schema, in_file=True)
    file = Path(answer["file"])
    try:
        assert pa.ipc.open_stream(file.read_bytes()).read_all()["id"].to_pylist() == list(range(10_000))
        assert (answer["rows"], "arrow" in answer) == (10_000, False)
    finally:
        file.unlink()


def test_a_driver_whose_files_cannot_be_read_gets_the_rows_in_the_answer(
    enabled: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(pa.table({"id": range(9000)}), path)
    real = scans.rows_answer
    requests = []

    def elsewhere(*given: Any, **how: Any) -> dict[str, Any]:
        answer = real(*given, **how)
        requests.append("file" in answer)
        if "file" in answer:
            Path(answer["file"]).unlink()
        return answer

    monkeypatch.setattr(scans, "rows_answer", elsewhere)
    assert enabled.read.format("lance").load(path).count() == 9000
    rows = enabled.read.format("lance").load(path).where("id >= 0").collect()
    assert [row["id"] for row in rows] == list(range(9000))
    # Another test of this JVM may have taught the driver that it cannot read files.
    assert requests[-2:] in ([True, False], [False])


SEEN = st.StructType([st.StructField("a", st.LongType()), st.StructField("s", st.StringType())])
TABLE = Schema.from_arrow(pa.schema([("a", pa.int64()), ("s", pa.string())]))


def test_literals_come_together_or_one_by_one() -> None:
    long, text = (json.dumps(name) for name in ("long", "string"))
    for args in (
        [{"type": long, "values": ["3", None, "4"]}],
        [{"type": long, "value": "3"}, {"type": long, "values": [None, "4"]}],
        [{"type": long, "value": "3"}, {"type": long, "value": None}, {"type": long, "value": "4"}],
    ):
        result = translate_predicate({"op": "IN", "args": [{"path": ["a"]}, *args]}, TABLE, SEEN)
        assert result == Call("in", (Column(("a",)), Literal(3), Literal(None), Literal(4)))
    words = {"op": "IN", "args": [{"path": ["s"]}, {"type": text, "values": ["x", "y"]}]}
    assert translate_predicate({"op": "NOT", "args": [words]}, TABLE, SEEN) == Call(
        "not", (Call("in", (Column(("s",)), Literal("x"), Literal("y"))),)
    )


def test_literals_without_the_same_meaning_stay_with_spark() -> None:
    for kind, values in ((json.dumps("variant"), ["1"]), (json.dumps("date"), ["99999999"])):
        node = {"op": "IN", "args": [{"path": ["a"]}, {"type": kind, "values": values}]}
        assert translate_predicate(node, TABLE, SEEN) is None
