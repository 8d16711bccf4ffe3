"""JSON columns in Spark: strings in, strings or variants out, and documents in the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as t

import spark_lance
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.table.table import LanceTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = [(1, '{"b":1,"a":[1,2.5]}', ['{"x":1}', "2"]), (2, None, None), (3, "null", [])]
SCHEMA = "i int, j string, arr array<string>"
FIRST = '{"a":[1,2.5],"b":1}'


@pytest.fixture
def path(spark: SparkSession, tmp_path: Path) -> str:
    frame = spark.createDataFrame(ROWS, SCHEMA)
    writer = frame.write.format("lance").mode("append")
    writer.option("j.lance.json", "true").option("arr.element.lance.json", "true").save(str(tmp_path / "t"))
    return str(tmp_path / "t")


def test_strings_in_and_out(spark: SparkSession, path: str) -> None:
    theirs = lance.dataset(path)
    assert theirs.schema.field("j").type == pa.json_()
    assert theirs.schema.field("arr").type.value_type == pa.json_()
    read = spark.read.format("lance").load(path)
    assert read.schema["j"].dataType == t.StringType()
    assert read.schema["arr"].dataType == t.ArrayType(t.StringType())
    expected = [(1, FIRST, ['{"x":1}', "2"]), (2, None, None), (3, "null", [])]
    assert sorted(map(tuple, read.collect())) == expected
    assert read.filter("j is null").count() == 1
    assert [row.i for row in read.filter(F.col("j") == FIRST).collect()] == [1]
    assert read.filter("get_json_object(j, '$.b') = '1'").count() == 1
    # What was read knows that it is JSON, and makes another JSON column; so do appends.
    copy = path + "_copy"
    read.write.format("lance").mode("append").save(copy)
    spark.createDataFrame(ROWS, SCHEMA).write.format("lance").mode("append").save(copy)
    assert lance.dataset(copy).schema.field("j").type == pa.json_()
    assert lance.dataset(copy).schema.field("arr").type.value_type == pa.json_()
    assert lance.dataset(copy).to_table()["j"].to_pylist().count(FIRST) == 2
    spark.createDataFrame(ROWS, SCHEMA).write.format("lance").mode("overwrite").save(copy)
    assert lance.dataset(copy).schema.field("j").type == pa.json_()
    plain = read.write.format("lance").mode("overwrite").option("j.lance.json", "false")
    plain.option("overwriteSchema", "true").save(copy)
    assert lance.dataset(copy).schema.field("j").type == pa.string()


def test_variants_on_request(spark: SparkSession, path: str) -> None:
    read = spark.read.format("lance").option("json_as", "variant").load(path)
    assert read.schema["j"].dataType == t.VariantType()
    rows = read.select("i", F.expr("variant_get(j, '$.a[1]', 'double') x"), F.expr("j is null n")).collect()
    assert sorted(map(tuple, rows)) == [(1, 2.5, False), (2, None, True), (3, None, False)]
    request = spark.read.format("lance").schema("i int, j variant").load(path).filter("i = 1").collect()
    assert json.loads(request[0].j.toJson()) == {"a": [1, 2.5], "b": 1}


def test_variants_are_written(spark: SparkSession, path: str) -> None:
    documents = ['{"b":[1,2.5,{"c":null}]}', '"text"', "null", "true", "[]", None]
    frame = spark.createDataFrame(list(enumerate(documents, 10)), "i int, s string")
    variants = frame.selectExpr("i", "parse_json(s) AS j")
    new = path + "_variants"
    variants.write.format("lance").mode("append").option("j.lance.json", "true").save(new)
    variants.write.format("lance").mode("append").save(new)
    variants.write.format("lance").mode("append").save(path)
    for table, times in ((new, 2), (path, 1)):
        result = lance.dataset(table).to_table(columns=["i", "j"], filter="i >= 10").sort_by("i")
        assert result.schema.field("j").type == pa.json_()
        assert result["j"].to_pylist() == [text for text in documents for _ in range(times)]
    plain = path + "_plain"
    variants.write.format("lance").mode("append").save(plain)
    assert pa.types.is_struct(lance.dataset(plain).schema.field("j").type)
    value = "named_struct('d', DATE'2024-05-06', 'x', 1.25D)"
    dated = spark.sql(f"SELECT 30 AS i, to_variant_object({value}) AS j")
    dated.write.format("lance").mode("append").save(path)
    stored = lance.dataset(path).to_table(columns=["j"], filter="i = 30")
    assert stored["j"].to_pylist() == ['{"d":"2024-05-06","x":1.25}']


def test_rows_are_changed(spark: SparkSession, path: str) -> None:
    table = LanceTable.forPath(spark, path)
    table.update("i = 2", {"j": F.lit('{"z": 9}')})
    source = spark.createDataFrame([(1, '{"m":1}'), (7, "[7]")], "i int, j string")
    merge = LanceTable.forPath(spark, path).alias("t").merge(source.alias("s"), "t.i = s.i")
    merge = merge.whenMatchedUpdate(set={"j": "s.j"})
    merge.whenNotMatchedInsert(values={"i": "s.i", "j": "s.j"}).execute()
    LanceTable.forPath(spark, path).delete("get_json_object(j, '$.z') = 9")
    results = {row["i"]: row["j"] for row in lance.dataset(path).to_table().to_pylist()}
    assert results == {1: '{"m":1}', 3: "null", 7: "[7]"}


def test_what_is_refused(spark: SparkSession, path: str) -> None:
    frame = spark.createDataFrame([(1, '{"m":')], "i int, j string")
    with pytest.raises(PySparkException, match=r"column .j.: .* is not JSON"):
        frame.write.format("lance").mode("append").save(path)
    with pytest.raises(PySparkException, match="is not text, so it cannot be stored as JSON"):
        frame.write.format("lance").mode("append").option("i.lance.json", "true").save(path + "_new")
    with pytest.raises(PySparkException, match="only an overwrite changes that"):
        frame.write.format("lance").mode("append").option("j.lance.json", "false").save(path)


def test_in_sql(spark: SparkSession, tmp_path: Path) -> None:
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql("CREATE TABLE lance.d (i INT, j STRING) TBLPROPERTIES ('j.lance.json' = 'true')")
    session.sql("""INSERT INTO lance.d VALUES (1, '{"a": 1}'), (2, '{"a": 2}'), (3, NULL)""")
    session.sql("""UPDATE lance.d SET j = '[3]' WHERE i = 3""")
    session.sql("""DELETE FROM lance.d WHERE get_json_object(j, '$.a') = '1'""")
    rows = session.sql("SELECT i, j, get_json_object(j, '$.a') FROM lance.d ORDER BY i").collect()
    assert list(map(tuple, rows)) == [(2, '{"a":2}', "2"), (3, "[3]", None)]
    assert lance.dataset(str(tmp_path / "d.lance")).schema.field("j").type == pa.json_()


def test_changes_have_text(tmp_path: Path) -> None:
    """Reads of changes, planned and answered as Spark's tasks do it."""
    table = pa.table({"i": [1, 2], "j": pa.array(['{"a": 1}', "[2]"], pa.json_())})
    spark_lance.write_dataset(table, tmp_path / "t", enable_stable_row_ids=True)
    spark_lance.dataset(tmp_path / "t").update({"j": "'{\"b\": 2}'"}, where="i = 1")
    source = LanceDataSource({"path": str(tmp_path / "t"), "readChangeFeed": "true", "startingVersion": "0"})
    reader = source.reader(source.schema())
    rows = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    assert {*rows["j"].to_pylist()} == {'{"a":1}', "[2]", '{"b":2}'}


def test_variants_are_merged(spark: SparkSession, tmp_path: Path) -> None:
    """Into a column of variants, and as documents into one of JSON."""
    session = spark_lance.enable(spark.newSession(), root=str(tmp_path))
    session.sql("CREATE TABLE lance.v AS SELECT id, parse_json('{\"a\":1}') AS v FROM range(4)")
    session.sql("CREATE TABLE lance.j (id BIGINT, v STRING) TBLPROPERTIES ('v.lance.json' = 'true')")
    session.sql("""INSERT INTO lance.j SELECT id, '{"a": 1}' FROM range(4)""")
    new = "(SELECT id, parse_json(concat('{\"b\": ', id, '}')) AS v FROM range(2, 5))"
    for name, text in (("v", "to_json(v)"), ("j", "v")):
        merge = (
            f"MERGE INTO lance.{name} t USING {new} s ON t.id = s.id WHEN MATCHED AND s.id = 3 THEN DELETE"
        )
        session.sql(f"{merge} WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *")
        values = session.sql(f"SELECT id, {text} AS v FROM lance.{name}").collect()
        assert {row.id: row.v for row in values} == {
            0: '{"a":1}',
            1: '{"a":1}',
            2: '{"b":2}',
            4: '{"b":4}',
        }
    builder = LanceTable.forPath(session, str(tmp_path / "j.lance")).alias("t")
    rows = session.sql("SELECT 0L AS id, parse_json('[1]') AS v").alias("s")
    builder.merge(rows, "t.id = s.id").whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    assert session.sql("SELECT v FROM lance.j WHERE id = 0").collect()[0].v == "[1]"
