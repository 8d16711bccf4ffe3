"""Text that is not UTF-8 in tables of others: the error of a read, and the option that it names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_lance.errors import OptionError
from spark_lance.spark.options.options import read_options
from tests.wrong_texts import WORDS, text, write_unchecked

pytest.importorskip("pyspark.sql.datasource")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("texts") / "t"
    words = text(WORDS)
    rows: dict[str, Any] = {
        "id": pa.array(range(len(WORDS)), pa.int64()),
        "name": words,
        "s": pa.StructArray.from_arrays([words], ["a"]),
        "tags": pa.ListArray.from_arrays(pa.array(range(len(WORDS) + 1), pa.int32()), words),
    }
    write_unchecked(Path(place), pa.table(rows))
    return str(place)


def test_the_option_that_the_error_names(spark: Any, path: str) -> None:
    with pytest.raises(Exception, match=r"text is not UTF-8 \(byte 0xE9\)") as error:
        spark.read.format("lance").load(path).select("name").collect()
    name, value = re.findall(r"(text_as)=(\w+)", str(error.value))[0]
    frame = spark.read.format("lance").option(name, value).load(path)
    assert [field.dataType.simpleString() for field in frame.schema] == [
        "bigint",
        "binary",
        "struct<a:binary>",
        "array<binary>",
    ]
    rows = frame.orderBy("id").collect()
    plain = [None if row.name is None else bytes(row.name) for row in rows]
    assert plain == WORDS
    assert [None if row.s.a is None else bytes(row.s.a) for row in rows] == WORDS
    assert [None if row.tags[0] is None else bytes(row.tags[0]) for row in rows] == WORDS


def test_conditions_and_aggregates(spark: Any, path: str) -> None:
    frame = spark.read.format("lance").option("text_as", "binary").load(path)

    def ids(condition: str) -> list[int]:
        return [row.id for row in frame.where(condition).select("id").orderBy("id").collect()]

    assert ids("name = X'636166E9'") == [4]
    assert ids("name = 'good'") == [0]
    assert ids("name in (X'676F6F64', X'6C617374')") == [0, 5]
    assert ids("name is null") == [1]
    assert ids("s.a = X'636166E9'") == [4]
    assert ids("decode(name, 'ISO-8859-1') = 'café'") == [4]
    assert frame.where("name > X'676F6F64'").count() == 2
    assert frame.selectExpr("count(name)", "count(distinct name)").first()[:] == (5, 5)
    assert bytes(frame.selectExpr("max(name)").first()[0]) == "né".encode()
    some = spark.read.format("lance").option("text_as", "binary").option("filter", "name = 'good'").load(path)
    assert [row.id for row in some.collect()] == [0]


def test_the_table_is_repaired_with_the_bytes(spark: Any, path: str, tmp_path: Path) -> None:
    frame = spark.read.format("lance").option("text_as", "binary").load(path)
    words = frame.selectExpr("id", "decode(name, 'ISO-8859-1') AS name")
    words.write.format("lance").mode("append").save(f"{tmp_path}/repaired")
    read = spark.read.format("lance").load(f"{tmp_path}/repaired").where("id = 4")
    assert read.first().name == "café"


def test_a_view_has_the_option(spark: Any, path: str) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW texts USING lance OPTIONS (path '{path}', text_as 'binary')")
    try:
        assert spark.sql("SELECT id FROM texts WHERE name = X'636166E9'").collect()[0].id == 4
    finally:
        spark.catalog.dropTempView("texts")


@pytest.mark.parametrize("other", ["table", "fresh", "readChangeFeed", "full_text_query"])
def test_other_reads_refuse_it(other: str) -> None:
    value = {"table": "files", "full_text_query": "word"}.get(other, "true")
    problem = (
        "'text_as' is for rows" if other == "table" else f"'text_as' cannot be combined with option '{other}'"
    )
    with pytest.raises(OptionError, match=problem):
        read_options({"path": "p", "text_as": "binary", other: value})
    with pytest.raises(OptionError, match="text_as"):
        read_options({"path": "p", "text_as": "bytes"})
