"""Searches as reads: options `nearest` and `full_text_query`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql.types import BinaryType, FloatType, LongType, StringType, StructField, StructType

import spark_lance
from spark_lance.errors import ExpressionError, LanceError, OptionError, SchemaError
from spark_lance.spark.options.options import read_options, write_options
from spark_lance.spark.source import LanceDataSource
from spark_lance.spark.streaming.read import LanceStreamReader
from tests.index.vectors import clustered, exact_neighbours, table_of
from tests.spark.carriers import pyspark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VECTORS = clustered(600, 8)
QUERY = clustered(1, 8, seed=7)[0]
NEAR = exact_neighbours(VECTORS, QUERY, 600, "l2")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table with an index over 600 rows, and one row more in its second version, which has a tag."""
    path = str(tmp_path_factory.mktemp("nearest") / "t")
    words = pa.array([f"word{n % 7} all" if n % 5 else None for n in range(601)])
    struct = pa.array([{"a": n, "b": str(n)} for n in range(601)])
    rows = table_of(np.concatenate([VECTORS, QUERY[None]])).append_column("t", words)
    rows = rows.append_column("s", struct)
    spark_lance.write_dataset(rows.slice(0, 600), path, max_rows_per_file=250)
    table = spark_lance.write_dataset(rows.slice(600), path, mode="append")
    table.tags.create("whole")
    table.create_index("v", "IVF_FLAT", num_partitions=4)
    return path


def nearest(k: int = 5, **keys: Any) -> str:
    return json.dumps({"column": "v", "q": QUERY.tolist(), "k": k, "nprobes": 4, **keys})


def load(spark: SparkSession, path: str, **options: object) -> DataFrame:
    reader = spark.read.format("lance")
    return reader.options(**{key: str(value) for key, value in options.items()}).load(path)


def rows_of(path: str, schema: StructType | None = None, **options: str) -> tuple[StructType, pa.Table]:
    """Return what a read answers, without a session of Spark."""
    source = pickle.loads(dumps(LanceDataSource({"path": path, **options})))  # type: ignore[no-untyped-call]
    schema = schema or source.schema()
    reader = pickle.loads(dumps(source.reader(schema)))  # type: ignore[no-untyped-call]
    (partition,) = reader.partitions()
    batches = list(reader.read(partition))
    assert all(batch.schema.equals(pyspark_schema(schema)) for batch in batches)
    return schema, pa.Table.from_batches(batches)


def test_the_nearest_rows_of_a_version(path: str) -> None:
    schema, result = rows_of(path, nearest=nearest())
    assert schema.names == ["id", "v", "t", "s", "_distance"]
    assert result["id"].to_pylist() == [600, *NEAR[:4]]
    assert result["_distance"].to_pylist()[0] == 0
    assert rows_of(path, nearest=nearest(), version="1")[1]["id"].to_pylist() == NEAR[:5]
    assert rows_of(path, nearest=nearest(), tag="whole")[1]["id"].to_pylist()[0] == 600
    remaining = rows_of(
        path, nearest=nearest(), filter="id % 40 = 0", columns="_distance,id", with_row_id="true"
    )
    assert remaining[0].names == ["_distance", "id", "_rowid"]
    assert remaining[1]["id"].to_pylist() == [600, *[n for n in NEAR if n % 40 == 0][:4]]
    small = rows_of(path, nearest=nearest(500), batch_size="100", columns="id")[1]
    assert max(len(chunk) for chunk in small["id"].chunks) == 100


def test_words(path: str) -> None:
    schema, result = rows_of(path, full_text_query=json.dumps({"query": "word3", "column": "t", "k": 4}))
    assert schema.names[-1] == "_score"
    assert [n % 7 for n in result["id"].to_pylist()] == [3] * 4
    spark_lance.dataset(path).create_scalar_index("t", "INVERTED")
    result = rows_of(path, full_text_query="word3", filter="id < 100", columns="id")[1]
    assert sorted(result["id"].to_pylist()) == [n for n in range(100) if n % 7 == 3 and n % 5]


def test_spark_asks_for_less(spark: SparkSession, path: str) -> None:
    for session in (spark.newSession(), spark_lance.enable(spark.newSession())):
        result = load(session, path, nearest=nearest(20))
        assert [tuple(row) for row in result.select("s.a", "id").limit(2).collect()] == [
            (600, 600),
            (NEAR[0], NEAR[0]),
        ]
        some = result.where("id % 2 = 0 AND _distance > 0").select("id").limit(3)
        assert [row.id for row in some.collect()] == [n for n in NEAR[:19] if n % 2 == 0][:3]
        session.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW near USING lance OPTIONS "
            f"(path '{path}', nearest '{nearest(20)}', columns 'id')"
        )
        both = session.sql("SELECT count(*) FROM near a JOIN near b ON a.id = b.id AND a._distance >= 0")
        assert both.collect()[0][0] == 20
    own = spark.read.format("lance").schema("_distance float").option("nearest", nearest(2)).load(path)
    assert own.where("_distance = 0").count() == 1
    with pytest.raises(PySparkException, match="vector search must be a whole number"):
        load(spark, path, nearest=nearest(k="ten")).collect()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"nearest": '{"column": "v", "q": [1, '}, OptionError, "JSON, but this is not"),
        ({"nearest": "[" * 100_000}, OptionError, "JSON, but this is not"),
        ({"nearest": "[1, 2]"}, OptionError, "JSON object"),
        ({"nearest": '{"q": [1]}'}, OptionError, "needs column"),
        ({"nearest": '{"column": "v", "q": [1, 2]}'}, OptionError, "2 values"),
        ({"nearest": '{"column": 0, "q": [1, 2]}'}, OptionError, "must be text"),
        ({"nearest": nearest(q=[[0] * 8, [1] * 8])}, OptionError, "searchBatch"),
        ({"nearest": nearest(q=[None] * 8)}, OptionError, "contains NaN"),
        ({"nearest": nearest(q={"a": 1})}, OptionError, "must be a list of numbers"),
        ({"nearest": nearest(k=0)}, OptionError, "1 or more"),
        ({"nearest": nearest(k=True)}, OptionError, "whole number"),
        ({"nearest": nearest(metric=3)}, OptionError, "must be text"),
        ({"nearest": nearest(metric="far")}, OptionError, "no metric"),
        ({"nearest": nearest(use_index="no")}, OptionError, "true or false"),
        ({"nearest": nearest(distance_range=[1])}, OptionError, "two numbers"),
        ({"nearest": nearest(probes=3)}, OptionError, "unknown keys"),
        ({"nearest": nearest(column="id")}, OptionError, "no vectors"),
        ({"nearest": nearest(column="w")}, SchemaError, "w"),
        ({"nearest": nearest(), "filter": "nope = 1"}, ExpressionError, "nope"),
        ({"nearest": nearest(), "columns": "nope"}, SchemaError, "nope"),
        ({"nearest": nearest(), "full_text_query": "a"}, OptionError, "by vector, by text or by both"),
        ({"nearest": nearest(), "fragments": "0"}, OptionError, "cannot be combined with"),
        ({"nearest": nearest(), "table": "files"}, OptionError, "for rows"),
        ({"full_text_query": '{"query": "a", "column": "t", "k": "b"}'}, OptionError, "whole number"),
        ({"full_text_query": '{"query": "a", "column": "id"}'}, SchemaError, "no text"),
        ({"full_text_query": '{"column": "t"}'}, OptionError, "needs the text"),
    ],
)
def test_what_cannot_be_searched(
    path: str, options: dict[str, str], error: type[LanceError], message: str
) -> None:
    with pytest.raises(error, match=message):
        LanceDataSource({"path": path, **options}).schema()


def test_schemas_that_do_not_fit(path: str, tmp_path: Path) -> None:
    for name, kind in (("_distance", LongType()), ("x", StringType()), ("_score", FloatType())):
        with pytest.raises(SchemaError, match=name):
            rows_of(path, StructType([StructField(name, kind)]), nearest=nearest())
    taken = table_of(VECTORS).append_column("_distance", pa.array(range(600)))
    spark_lance.write_dataset(taken, tmp_path / "taken")
    hidden = rows_of(str(tmp_path / "taken"), nearest=nearest(2))[1]
    assert hidden.schema.names.count("_distance") == 1
    assert hidden["_distance"].type == pa.float32()
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    blobs = table_of(VECTORS).append_column(blob, pa.array([b"x"] * 600, pa.large_binary()))
    spark_lance.write_dataset(blobs, tmp_path / "blobs")
    described = rows_of(str(tmp_path / "blobs"), nearest=nearest(2))[1]
    assert [row["size"] for row in described["b"].to_pylist()] == [1, 1]
    with pytest.raises(OptionError, match="bytes of blob column 'b'"):
        rows_of(str(tmp_path / "blobs"), StructType([StructField("b", BinaryType())]), nearest=nearest())


def test_searches_are_for_batches_and_for_reading(path: str) -> None:
    options = {"path": path, "nearest": nearest()}
    with pytest.raises(OptionError, match="as streams"):
        LanceStreamReader(read_options(options), StructType([StructField("id", LongType())]), None)
    with pytest.raises(OptionError, match="for reading"):
        write_options(options)
