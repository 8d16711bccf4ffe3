"""Options of single columns: what they ask reaches the table's types, its key and the pages of its files."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyspark.sql.types as t
import pytest
from lance.file import LanceFileReader

import spark_lance
from spark_lance.errors import OptionError, SchemaError
from spark_lance.spark.options.column_options import COLUMN_OPTIONS, column_option
from spark_lance.spark.options.options import option_table, write_options
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.sink.write import LanceWriter
from spark_lance.spark.source import LanceDataSource

FLOATS = t.ArrayType(t.FloatType())


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def write(
    path: str, schema: t.StructType, rows: dict[str, Any], overwrite: bool = False, /, **options: Any
) -> None:
    """Play a write of Spark's with one task."""
    writer = LanceDataSource({"path": path, **options}).writer(schema, overwrite)
    assert isinstance(writer, LanceWriter)
    table = pa.table(rows, schema=arrow_schema(schema))
    writer.commit([writer.write(iter(table.to_batches()))])


def encodings(path: str, column: int) -> str:
    """What pylance tells of the pages of a column of the newest file."""
    fragment = lance.dataset(path).get_fragments()[-1]
    (file,) = fragment.data_files()
    metadata = LanceFileReader(str(Path(path) / "data" / file.path)).metadata()
    return " ".join(page.encoding for page in metadata.columns[column].pages)


def size(path: str) -> int:
    """Bytes of the newest data file."""
    (file,) = lance.dataset(path).get_fragments()[-1].data_files()
    return (Path(path) / "data" / file.path).stat().st_size


def test_types(path: str) -> None:
    schema = t.StructType(
        [
            t.StructField("v", FLOATS),
            t.StructField("h", t.FloatType()),
            t.StructField(
                "s", t.StructType([t.StructField("Text", t.StringType()), t.StructField("w", FLOATS)])
            ),
            t.StructField("b", t.BinaryType()),
        ]
    )
    options: dict[str, Any] = {
        "v.arrow.fixed-size-list.size": "2",
        "v.arrow.float16": "true",
        "h.arrow.float16": "true",
        "s.text.arrow.large_var_char": "true",
        "s.w.arrow.fixed-size-list.size": "3",
        "b.arrow.large_var_char": "true",
    }
    rows = {"v": [[1, 0.5]], "h": [2.5], "s": [{"Text": "x", "w": [1, 2, 3]}], "b": [b"q"]}
    write(path, schema, rows, **options)
    stored = lance.dataset(path).schema
    assert stored.field("v").type == pa.list_(pa.float16(), 2)
    assert stored.field("h").type == pa.float16()
    assert stored.field("s").type == pa.struct({"Text": pa.large_string(), "w": pa.list_(pa.float32(), 3)})
    assert stored.field("b").type == pa.large_binary()
    # The same options go with an append, and so do none.
    write(path, schema, rows, **options)
    write(path, schema, rows)
    assert lance.dataset(path).to_table() == spark_lance.dataset(path).to_table()
    assert lance.dataset(path).count_rows() == 3
    # An overwrite keeps what it is not told.
    write(path, schema, rows, True, **{"h.arrow.float16": "false"})
    assert lance.dataset(path).schema.field("v").type == pa.list_(pa.float16(), 2)
    assert lance.dataset(path).schema.field("h").type == pa.float32()


def test_the_same_by_metadata(path: str) -> None:
    schema = t.StructType(
        [
            t.StructField("v", FLOATS, True, {"arrow.fixed-size-list.size": 2, "arrow.float16": True}),
            t.StructField("s", t.StringType(), True, {"arrow:large-var-char": "true"}),
            t.StructField("k", t.LongType(), True, {"lance-schema:unenforced-primary-key": "true"}),
            t.StructField("z", t.StringType(), True, {"lance-encoding:compression": "zstd"}),
        ]
    )
    write(path, schema, {"v": [[1, 2]], "s": ["x"], "k": [1], "z": ["x"]})
    stored = lance.dataset(path).schema
    assert stored.field("v").type == pa.list_(pa.float16(), 2)
    assert stored.field("s").type == pa.large_string()
    assert not stored.field("k").nullable
    assert stored.field("z").metadata == {b"lance-encoding:compression": b"zstd"}


def test_values_that_a_half_float_cannot_hold(path: str) -> None:
    schema = t.StructType([t.StructField("h", t.FloatType())])
    with pytest.raises(SchemaError, match="not exact in half precision"):
        write(path, schema, {"h": [0.1]}, **{"h.arrow.float16": "true"})


KEYED = t.StructType(
    [
        t.StructField("a", t.LongType()),
        t.StructField("s", t.StructType([t.StructField("b", t.StringType())])),
        t.StructField("c", t.LongType()),
    ]
)


def test_a_primary_key(path: str) -> None:
    key: dict[str, Any] = {
        "a.lance-schema:unenforced-primary-key:position": "2",
        "s.b.lance-schema:unenforced-primary-key:position": "1",
    }
    rows = {"a": [1], "s": [{"b": "x"}], "c": [1]}
    write(path, KEYED, rows, **key)
    stored = lance.dataset(path).schema
    assert (stored.field("a").nullable, stored.field("s").nullable, stored.field("c").nullable) == (
        False,
        False,
        True,
    )
    write(path, KEYED, rows, **key)
    assert lance.dataset(path).to_table() == spark_lance.dataset(path).to_table()
    with pytest.raises(SchemaError, match="must not be null"):
        write(path, KEYED, {**rows, "a": [None]})
    with pytest.raises(OptionError, match="only an overwrite changes that"):
        write(path, KEYED, rows, **{"c.lance-schema:unenforced-primary-key": "true"})


def test_pylance_knows_the_key(path: str) -> None:
    schema = t.StructType([t.StructField("k", t.StringType()), t.StructField("x", t.LongType())])
    write(path, schema, {"k": ["a"], "x": [1]}, **{"k.lance-schema:unenforced-primary-key": "true"})
    dataset: Any = lance.dataset(path)
    new = pa.table({"k": ["a", "b"], "x": [5, 6]}, schema=dataset.schema)
    dataset.merge_insert().when_matched_update_all().when_not_matched_insert_all().execute(new)
    assert sorted(dataset.to_table().to_pylist(), key=str) == new.to_pylist()


# Column type, values, option and value, what pylance then says of the pages, and without the option.
PAGES = [
    (t.StringType(), "text", "compression", "zstd", "zstd", None),
    (t.StringType(), "text", "compression", "lz4", "lz4", None),
    (t.StringType(), "text", "compression", "none", "", "lz4"),
    (t.LongType(), "walk", "compression", "zstd", "zstd", "zstd"),
    (t.LongType(), "skewed", "compression", "zstd", "zstd", "zstd"),
    (t.DoubleType(), "steps", "bss", "on", "", None),
    (t.StringType(), "text", "structural-encoding", "fullzip", "FullZip", "FullZip"),
    (FLOATS, "vectors", "structural-encoding", "miniblock", "MiniBlock", "MiniBlock"),
    (t.LongType(), "some runs", "rle-threshold", "0.9", "Rle", "Rle"),
    (t.ArrayType(t.StringType()), "lists", "compression", "zstd", "zstd", None),
    (t.BinaryType(), "binary", "compression", "lz4", "lz4", None),
]


def values(kind: str) -> list[Any]:
    numbers = np.random.default_rng(1)
    draw = random.Random(1)
    words = ["spark", "lance", "column", "page", "table", "value", "a", "of", "the"]
    texts = [" ".join(draw.choices(words, k=20)) for _ in range(3000)]
    results: dict[str, Any] = {
        "text": texts,
        "binary": [text.encode() for text in texts],
        "lists": [text.split(" ", 3) for text in texts],
        "walk": 2**40 + np.cumsum(numbers.integers(0, 1000, 3000)),
        "skewed": np.minimum(numbers.geometric(0.3, 3000), 50),
        "steps": np.arange(3000) * 0.1,
        "some runs": np.repeat(numbers.integers(0, 2**62, 2600), np.arange(2600) % 7 // 6 + 1),
        "vectors": list(numbers.normal(size=(300, 300)).astype(np.float32)),
    }
    return list(results[kind])


@pytest.mark.parametrize(("kind", "data", "name", "value", "told", "untold"), PAGES)
@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_pages(
    path: str, version: str, kind: t.DataType, data: str, name: str, value: str, told: str, untold: str | None
) -> None:
    schema = t.StructType([t.StructField("c", kind)])
    rows = {"c": values(data)}
    options: dict[str, Any] = {"data_storage_version": version}
    if data == "vectors":
        options["c.arrow.fixed-size-list.size"] = "300"
    write(path, schema, rows, **options)
    before = encodings(path, 0)
    if untold is not None:
        assert untold.lower() not in before.lower()
    # On append it holds for the new file alone.
    write(path, schema, rows, **options, **{f"c.lance.{name}": value})
    after = encodings(path, 0)
    assert told.lower() in after.lower(), (before, after)
    assert not lance.dataset(path).schema.field("c").metadata
    result = lance.dataset(path).to_table()
    assert result == spark_lance.dataset(path).to_table()
    count = len(rows["c"])
    assert result.slice(0, count) == result.slice(count)
    # In a new table it holds for files to come, too.
    write(path, schema, rows, True, **options, **{f"c.lance.{name}": value})
    assert lance.dataset(path).schema.field("c").metadata[f"lance-encoding:{name}".encode()] == value.encode()
    write(path, schema, rows)
    assert told.lower() in encodings(path, 0).lower()


def test_compression_of_all_columns(path: str) -> None:
    schema = t.StructType(
        [
            t.StructField("a", t.StringType()),
            t.StructField("b", t.LongType()),
            t.StructField("c", t.LongType()),
        ]
    )
    rows = {"a": values("text"), "b": values("skewed"), "c": values("walk")}
    write(path, schema, rows, **{"compression": "zstd", "c.lance.compression": "none"})
    stored = lance.dataset(path).schema
    assert [(field.metadata or {}).get(b"lance-encoding:compression") for field in stored] == [
        b"zstd", b"zstd", b"none",
    ]  # fmt: skip
    # Without the option, too: the table keeps it.
    write(path, schema, rows)
    assert ["zstd" in encodings(path, column).lower() for column in range(3)] == [True, True, False]
    assert lance.dataset(path).to_table() == spark_lance.dataset(path).to_table()
    with pytest.raises(OptionError, match="zstd, lz4, fsst or none"):
        write(path, schema, rows, compression="brotli")


def test_a_level_of_compression(path: str) -> None:
    schema = t.StructType([t.StructField("c", t.StringType())])
    sizes = []
    for level in ("1", "19"):
        options: dict[str, Any] = {"c.lance.compression": "zstd", "c.lance.compression-level": level}
        write(path, schema, {"c": values("text")}, True, **options)
        sizes.append(size(path))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_blobs(path: str, version: str) -> None:
    schema = t.StructType([t.StructField("id", t.LongType()), t.StructField("b", t.BinaryType())])
    rows: dict[str, Any] = {"id": [1, 2, 3], "b": [b"x" * 100_000, None, b"small"]}
    write(path, schema, rows, **{"b.lance.encoding": "blob", "data_storage_version": version})
    write(path, schema, rows)
    assert spark_lance.dataset(path).manifest.schema.field("b").is_blob
    for dataset in (lance.dataset(path), spark_lance.dataset(path)):
        blobs: Any = dataset.take_blobs("b", indices=[0, 2, 3, 5])
        assert [blob.read() for blob in blobs] == [rows["b"][0], b"small", rows["b"][0], b"small"]
    write(path, schema, rows, True)
    assert spark_lance.dataset(path).manifest.schema.field("b").is_blob
    write(path, schema, rows, True, overwriteSchema="true")
    assert not spark_lance.dataset(path).manifest.schema.field("b").is_blob
    with pytest.raises(OptionError, match="only an overwrite changes that"):
        write(path, schema, rows, **{"b.lance.encoding": "blob"})


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"x.arrow.float16": "true"}, OptionError, "no column 'x'"),
        ({"id.arrow.float16": "true"}, SchemaError, "neither float nor an array of float"),
        ({"id.arrow.large_var_char": "true"}, SchemaError, "neither text nor binary"),
        ({"id.lance.encoding": "blob"}, SchemaError, "not binary"),
        ({"id.lance.encoding": "zip"}, OptionError, "must be blob"),
        ({"id.lance.compression": "brotli"}, OptionError, "zstd, lz4, fsst or none"),
        ({"id.lance.compression-level": "high"}, OptionError, "a whole number"),
        ({"id.lance.rle-threshold": "2"}, OptionError, "from 0 to 1"),
        ({"id.lance.bss": "maybe"}, OptionError, "on, off or auto"),
        ({"id.lance.structural-encoding": "zip"}, OptionError, "miniblock or fullzip"),
        ({"m.lance-schema:unenforced-primary-key": "true"}, SchemaError, "primary key"),
        ({"l.element.lance-schema:unenforced-primary-key": "true"}, SchemaError, "in a list"),
        ({"id.lance.compresion": "zstd"}, OptionError, r"did you mean 'id\.lance\.compression'"),
    ],
)
def test_refusals_for_a_new_table(
    path: str, options: dict[str, str], error: type[Exception], message: str
) -> None:
    schema = t.StructType(
        [
            t.StructField("id", t.LongType()),
            t.StructField("m", t.MapType(t.StringType(), t.LongType())),
            t.StructField("l", t.ArrayType(t.LongType())),
        ]
    )
    with pytest.raises(error, match=message):
        LanceDataSource({"path": path, **options}).writer(schema, False)


@pytest.mark.parametrize(
    "option",
    [
        {"v.arrow.fixed-size-list.size": "3"},
        {"v.arrow.float16": "true"},
        {"s.arrow.large_var_char": "true"},
        {"l.arrow.fixed-size-list.size": "2"},
        {"nobody.lance.compression": "zstd"},
    ],
)
@pytest.mark.parametrize("more", [{}, {"mergeSchema": "true"}])
def test_refusals_for_a_table_that_is_there(path: str, option: dict[str, str], more: dict[str, str]) -> None:
    kinds = {"v": pa.list_(pa.float32(), 2), "s": pa.string(), "l": pa.list_(pa.float32())}
    lance.write_dataset(pa.table({name: [] for name in kinds}, schema=pa.schema(kinds)), path)
    schema = t.StructType(
        [t.StructField("v", FLOATS), t.StructField("s", t.StringType()), t.StructField("l", FLOATS)]
    )
    with pytest.raises(OptionError, match=r"only an overwrite changes|has no column 'nobody'"):
        LanceDataSource({"path": path, **option, **more}).writer(schema, False)


def test_wishes_for_new_columns_of_a_table(path: str) -> None:
    lance.write_dataset(pa.table({"id": [1], "s": [{"a": 1}]}), path)
    schema = t.StructType(
        [
            t.StructField("v", FLOATS),
            t.StructField("s", t.StructType([t.StructField("w", FLOATS), t.StructField("a", t.LongType())])),
        ]
    )
    options: dict[str, Any] = {
        "v.arrow.fixed-size-list.size": "2",
        "s.w.arrow.float16": "true",
        "id.lance.compression": "zstd",
        "mergeSchema": "true",
    }
    write(path, schema, {"v": [[1, 2]], "s": [{"w": [1.5], "a": 2}]}, **options)
    assert lance.dataset(path).schema.field("v").type == pa.list_(pa.float32(), 2)
    assert lance.dataset(path).schema.field("s").type.field("w").type == pa.list_(pa.float16())
    assert lance.dataset(path).to_table() == spark_lance.dataset(path).to_table()


def test_names() -> None:
    for option in COLUMN_OPTIONS:
        assert column_option(f"a.b.{option.name}") == ("a.b", option)
        assert column_option(f".{option.name}") is None
        assert any(row[0] == f"<column>.{option.name}" for row in option_table()["Columns"])
    key = "a.lance-schema:unenforced-primary-key"
    parsed = write_options({"path": "/t", key: "true", f"{key}:position": "3"})
    assert parsed.column_settings == {
        "a": {"lance-schema:unenforced-primary-key": True, "lance-schema:unenforced-primary-key:position": 3}
    }
