"""`lance_blob` in queries, and blob columns that are read as bytes, as descriptions or not at all."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, Row

import spark_lance
from spark_lance.errors import BlobSourceError, OptionError, OptionTypeError
from spark_lance.io.counters import read_counts
from spark_lance.spark.options.option_values import BlobHandling, blob_handling
from spark_lance.spark.worker.blob_function import batches_of_bytes, bytes_of_row

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning")

VERSIONS = ["2.0", "2.1", "2.2", "external"]
# In 2.2 these are inline, packed, and files of their own.
BLOBS = [b"small", b"", None, bytes(range(256)) * 400, b"l" * 3_000_000 + b"end", b"last"]


def made(folder: Path, version: str) -> tuple[str, list[bytes | None]]:
    """Write a table of blobs of all storage classes in files of two rows; return its path and the blobs."""
    path, blobs = str(folder / "t"), list(BLOBS)
    field = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    options: dict[str, Any] = {"data_storage_version": version}
    values: Any = pa.array(blobs, pa.large_binary())
    if version in ("2.2", "external"):
        options = {"data_storage_version": "2.2", "allow_external_blob_outside_bases": True}
        field = lance.blob_field("b")
        if version == "external":
            (folder / "outside").write_bytes(b"somewhere else")
            blobs[-1] = b"somewhere else"
        where = [(folder / "outside").as_uri() if version == "external" else b"last"]
        values = lance.blob_array([*blobs[:-1], *where])
    ids = pa.array(range(len(blobs)), pa.int64())
    table = pa.table([ids, values], schema=pa.schema([pa.field("id", pa.int64()), field]))
    lance.write_dataset(table, path, max_rows_per_file=2, **options)
    return path, blobs


def cut(blob: bytes | None, offset: int | None, length: int | None) -> bytes | None:
    if blob is None or offset is None or length is None:
        return None
    return blob[offset : offset + length]


@pytest.fixture
def spark(spark: SparkSession) -> SparkSession:
    """A session that may be enabled and changed."""
    return spark.newSession()


@pytest.mark.parametrize("version", VERSIONS)
def test_random_ranges(tmp_path: Path, spark: SparkSession, version: str) -> None:
    path, blobs = made(tmp_path, version)
    rng = random.Random(version)
    edges = [0, 1, 255, 256, 100_000, 3_000_000, 3_000_003, 3_000_004, 2**40]
    cases = [
        (i, rng.choice([*edges, rng.randrange(3_000_100)]), rng.choice([0, 1, 5, 1000, 2**40]))
        for i in range(len(blobs))
        for _ in range(12)
    ] + [(3, None, 1), (3, 1, None)]
    spark_lance.enable(spark)
    request = spark.createDataFrame(cases, "id bigint, start bigint, count bigint")
    rows = spark.read.format("lance").load(path).join(request, "id")
    values = rows.selectExpr("id", "start", "count", "lance_blob(b, start, count) part").collect()
    assert len(values) == len(cases)
    for row in values:
        part = None if row.part is None else bytes(row.part)
        assert part == cut(blobs[row.id], row.start, row["count"]), (row.id, row.start, row["count"])


def test_ways_to_call_it(tmp_path: Path, spark: SparkSession) -> None:
    path, blobs = made(tmp_path, "2.2")
    spark_lance.enable(spark)
    frame = spark.read.format("lance").load(path)
    by_name = frame.orderBy("id").select(
        sf.call_function("lance_blob", "b").alias("whole"),
        sf.call_function("lance_blob", sf.col("b"), sf.lit(2)).alias("rest"),
        sf.expr("lance_blob(b, 0, 2)").alias("head"),
    )
    for row, blob in zip(by_name.collect(), blobs, strict=True):
        expected = (blob, blob and blob[2:], blob and blob[:2])
        assert tuple(None if value is None else bytes(value) for value in row) == expected
    frame.createOrReplaceTempView("pictures")
    (one,) = spark.sql(f"SELECT id FROM lance.`{path}` WHERE lance_blob(b, 0, 5) = X'736d616c6c'").collect()
    assert one.id == 0
    plain = spark.read.format("lance").option("blob_handling", "b=bytes").load(path)
    assert plain.schema["b"].dataType == BinaryType()
    cuts = plain.where("id = 3").selectExpr("lance_blob(b, 254, 4) c").collect()
    assert bytes(cuts[0].c) == bytes([254, 255, 0, 1])
    for wrong, says in (
        ("b, -1", "0 or more, not -1"),
        ("b, 0, -2", "0 or more"),
        ("id", "takes a blob column"),
    ):
        with pytest.raises(PySparkException, match=says):
            frame.selectExpr(f"lance_blob({wrong})").collect()


def table_of(path: str, spark: SparkSession) -> pa.Array:
    rows = spark.read.format("lance").load(path).orderBy("id").collect()
    return pa.array([row.b and row.b.asDict() for row in rows])


@pytest.mark.parametrize("version", VERSIONS)
def test_only_the_range_is_fetched(tmp_path: Path, spark: SparkSession, version: str) -> None:
    path, blobs = made(tmp_path, version)
    array = table_of(path, spark)

    def batch() -> Iterator[tuple[pa.Array, ...]]:
        yield array, pa.array([10] * len(array)), pa.array([3] * len(array))

    before = read_counts()
    (result,) = batches_of_bytes(batch())
    read = read_counts() - before
    assert result.to_pylist() == [cut(blob, 10, 3) for blob in blobs]
    # Beside the ranges only the last four bytes of each data file, which say that it is one.
    parts = sum(len(value or b"") for value in result.to_pylist())
    assert read.bytes <= parts + 4 * 3
    assert read.reads <= len(blobs) + 3


def test_rows_and_batches_are_alike(tmp_path: Path, spark: SparkSession) -> None:
    """Spark 4.0 calls the function row by row."""
    path, blobs = made(tmp_path, "2.2")
    rows = spark.read.format("lance").load(path).orderBy("id").collect()
    for row, blob in zip(rows, blobs, strict=True):
        assert bytes_of_row(row.b) == blob
        assert bytes_of_row(row.b, 1, 3) == cut(blob, 1, 3)
        assert bytes_of_row(row.b, None) is None
    assert bytes_of_row(bytearray(b"abcdef"), 2) == b"cdef"
    assert bytes_of_row(None, 1, 2) is None
    with pytest.raises(OptionError, match="not 4 arguments"):
        bytes_of_row(b"a", 1, 2, 3)
    for wrong in (Row(position=1, size=2), 3, "text"):
        with pytest.raises(OptionTypeError, match="takes a blob column"):
            bytes_of_row(wrong)


def test_large_blobs_come_in_several_batches() -> None:
    blob = pa.array([b"x" * 9_000_000] * 4, pa.binary())
    sizes = [len(result) for result in batches_of_bytes(iter([(blob,)]))]
    assert sum(sizes) == 4
    assert max(sizes) == 1
    assert [len(result) for result in batches_of_bytes(iter([(blob[:0],)]))] == [0]


def test_a_blob_that_is_gone(tmp_path: Path, spark: SparkSession) -> None:
    path, _ = made(tmp_path, "2.2")
    array = table_of(path, spark)
    for file in Path(path).rglob("*.blob"):
        file.unlink()
    with pytest.raises(BlobSourceError, match="does not exist"):
        list(batches_of_bytes(iter([(array,)])))


def test_as_what_each_column_is_read(tmp_path: Path, spark: SparkSession) -> None:
    path = str(tmp_path / "t")
    blob = {"lance-encoding:blob": "true"}
    fields = [pa.field("id", pa.int64()), *(pa.field(n, pa.large_binary(), metadata=blob) for n in "abc")]
    rows = pa.table(
        [pa.array([1]), *(pa.array([n.encode()], pa.large_binary()) for n in "abc")], pa.schema(fields)
    )
    lance.write_dataset(rows, path)

    def read(handling: str, **more: str) -> Any:
        reader = spark.read.format("lance").option("blob_handling", handling)
        return reader.options(**more).load(path)

    frame = read("a=bytes, B=descriptions, *=none")
    assert frame.columns == ["id", "a", "b"]
    (row,) = frame.collect()
    assert (bytes(row.a), row.b.size) == (b"a", 1)
    assert read("none").columns == ["id"]
    assert read("none, c=bytes").columns == ["id", "c"]
    assert "c" in read("none", columns="id,c").columns
    assert read("c=none").columns == ["id", "a", "b"]
    for wrong, says in (
        ("d=bytes", "'d' is not a column of blobs; there are a, b, c"),
        ("id=none", "not a column"),
    ):
        with pytest.raises(PySparkException, match=says):
            read(wrong).schema.simpleString()
    for wrong in ("a=all", "a=bytes,a=none", "=bytes", "bytes,none", ""):
        with pytest.raises(PySparkException, match="blob_handling"):
            read(wrong).schema.simpleString()


def test_the_text_of_the_option() -> None:
    result = blob_handling(" a = bytes ,*=none")
    assert result == BlobHandling("none", (("a", "all_binary"),))
    assert [result.of(name) for name in ("A", "b")] == ["all_binary", "none"]
    assert blob_handling(str(result)) == result
