"""Every metadata key for encodings is obeyed in every version: seen in the pages, read by pylance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, PAGE_LAYOUT_URL
from spark_lance.proto import encodings20_pb2, encodings21_pb2
from tests.file.v2_1.pylance_file import one_column, open_file
from tests.strategies import canonical

TEXT = pa.array([f"{i} the same words in every row, {i % 50}" for i in range(3000)])
FEW = pa.array(np.array(["red", "green", "blue", "a longer name of a colour"])[np.arange(3000) * 7 % 4])
RUNS = pa.array(np.repeat(np.arange(500), 6), pa.int32())
DOUBLES = pa.array(np.cumsum(np.random.default_rng(1).normal(size=3000)))
VECTORS = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(3000.0)), 60)
PAIRS = pa.array([{"x": i, "y": i % 7} for i in range(100)])
BYTES = pa.array([b"abc", b"", b"z" * 300] * 9, pa.large_binary())

ALL, NEW = ("2.0", "2.1", "2.2"), ("2.1", "2.2")
# Key, values, versions, the value of the key that asks for something and what its pages then say, the value
# that asks for the contrary (None: no key), whose pages do not say it.
KEYS: list[tuple[str, pa.Array, tuple[str, ...], str, str, str | None]] = [
    ("compression", TEXT, NEW, "zstd", "COMPRESSION_ZSTD", "none"),
    ("compression", TEXT, NEW, "lz4", "COMPRESSION_LZ4", "none"),
    ("compression", DOUBLES, NEW, "zstd", "COMPRESSION_ZSTD", None),
    ("compression", TEXT, ("2.0",), "zstd", 'scheme: "zstd"', None),
    ("compression", TEXT, ("2.0",), "lz4", 'scheme: "lz4"', "none"),
    ("rle-threshold", RUNS, NEW, "0.9", "rle", "0"),
    ("rle-threshold", RUNS, NEW, "0.9", "rle", "0.1"),
    ("dict-divisor", FEW, NEW, "2", "num_dictionary_items: 4", "2000"),
    ("dict-size-ratio", FEW, NEW, "0.9", "num_dictionary_items: 4", "0.01"),
    ("dict-values-compression", FEW, ("2.2",), "zstd", "COMPRESSION_ZSTD", "none"),
    ("dict-values-compression", FEW, ("2.2",), "lz4", "COMPRESSION_LZ4", "none"),
    ("structural-encoding", TEXT, NEW, "fullzip", "full_zip_layout", "miniblock"),
    ("structural-encoding", VECTORS, NEW, "miniblock", "mini_block_layout", "fullzip"),
    ("packed", PAIRS, ALL, "true", "packed_struct", None),
    ("blob", BYTES, ("2.0", "2.1"), "true", "packed_struct", None),
    ("blob", BYTES, ("2.2",), "true", "variable_packed_struct", None),
]


def pages(table: pa.Table, version: str, root: Path) -> tuple[str, list[int]]:
    """Write a table; return what the pages of its first column say, and the sizes of their buffers."""
    spark_lance.write_dataset(table, root, data_storage_version=version)
    (file,) = (root / "data").glob("*.lance")
    result = open_file(file).column(0).pages
    if version == "2.0":
        text = "".join(str(page.layout(encodings20_pb2.ArrayEncoding, ARRAY_ENCODING_URL)) for page in result)
    else:
        text = "".join(str(page.layout(encodings21_pb2.PageLayout, PAGE_LAYOUT_URL)) for page in result)
    return text, [size for page in result for _, size in page.buffers]


def check(table: pa.Table, root: Path) -> None:
    """Compare what pylance reads; blobs as descriptors, which ours are compared with."""
    theirs, ours = lance.dataset(root), spark_lance.dataset(root).to_table()
    assert canonical(theirs.to_table().column("a")) == canonical(ours.column("a"))
    if ours.column("a").type == table.column("a").type:
        assert canonical(ours.column("a")) == canonical(table.column("a"))
    rows = [0, table.num_rows - 1, 5]
    taken = canonical(theirs.take(rows).column("a"))
    assert taken == canonical([ours.column("a")[row].as_py() for row in rows])


LISTS = pa.array([[1, 2], [], [3]], pa.list_(pa.int32()))
MAPS = pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int32()))
STRUCTS = pa.array(
    [[{"x": 1, "y": "a"}] * 2], pa.list_(pa.struct([("x", pa.int32()), ("y", pa.string())]), 2)
)


@pytest.mark.parametrize(
    ("values", "version"),
    [(LISTS, "2.0"), (LISTS, "2.1"), (LISTS, "2.2"), (MAPS, "2.2"), (STRUCTS, "2.2")],
    ids=["list 2.0", "list 2.1", "list 2.2", "map", "fixed-size list"],
)
@pytest.mark.parametrize("nested", [False, True], ids=["column", "field"])
def test_packed_lists_are_refused_because_pylance_cannot_read_them(
    tmp_path: Path, values: pa.Array, version: Any, nested: bool
) -> None:
    field = pa.field("a", values.type, metadata={"lance-encoding:packed": "true"})
    if nested:
        field = pa.field("s", pa.struct([field]))
        values = pa.StructArray.from_arrays([values], fields=list(field.type))
    table = pa.table([values], schema=pa.schema([field]))
    with pytest.raises(SchemaError, match="is for structs"):
        spark_lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance"))
    lance.write_dataset(table, tmp_path / "p", data_storage_version=version)
    assert spark_lance.dataset(tmp_path / "p").to_table() == table
    try:
        by_pylance = lance.dataset(tmp_path / "p").to_table()
    except (OSError, pa.ArrowInvalid):
        return
    assert by_pylance != table, "pylance reads packed lists now"


@pytest.mark.parametrize("version", ALL)
def test_blobs_in_packed_structs_are_refused(tmp_path: Path, version: Any) -> None:
    kind = pa.struct([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
    schema = pa.schema([pa.field("a", kind, metadata={"lance-encoding:packed": "true"})])
    table = pa.table([pa.array([{"b": b"x"}], kind)], schema=schema)
    with pytest.raises(SchemaError, match="in packed structs"):
        spark_lance.write_dataset(table, tmp_path, data_storage_version=version)
    assert not list(tmp_path.rglob("*.lance"))


@pytest.mark.parametrize(("key", "values", "versions", "asked", "seen", "contrary"), KEYS)
def test_a_key_is_obeyed(
    key: str,
    values: pa.Array,
    versions: tuple[str, ...],
    asked: str,
    seen: str,
    contrary: str | None,
    tmp_path: Path,
) -> None:
    for version in versions:
        table = one_column(values, **{key: asked})
        assert seen in pages(table, version, tmp_path / f"asked {version}")[0]
        check(table, tmp_path / f"asked {version}")
        other = one_column(values, **({} if contrary is None else {key: contrary}))
        assert seen not in pages(other, version, tmp_path / f"contrary {version}")[0]
        check(other, tmp_path / f"contrary {version}")


def sizes(version: str, root: Path, values: pa.Array, **keys: str) -> int:
    table = one_column(values, **keys)
    total = sum(pages(table, version, root)[1])
    check(table, root)
    return total


def smaller(version: str, root: Path, values: pa.Array, low: dict[str, str], high: dict[str, str]) -> None:
    assert sizes(version, root / "high", values, **high) < sizes(version, root / "low", values, **low)


NUMBERED: list[Callable[[str, Path], None]] = [
    lambda version, root: smaller(
        version, root, TEXT,
        {"compression": "zstd", "compression-level": "1"}, {"compression": "zstd", "compression-level": "19"},
    ),
    lambda version, root: smaller(
        version, root, DOUBLES,
        {"compression": "zstd", "bss": "off"}, {"compression": "zstd", "bss": "on"},
    ),
]  # fmt: skip


@pytest.mark.parametrize("version", NEW)
@pytest.mark.parametrize("judge", NUMBERED, ids=["compression-level", "bss"])
def test_a_key_is_obeyed_as_the_size_tells(
    judge: Callable[[str, Path], None], version: str, tmp_path: Path
) -> None:
    judge(version, tmp_path)


def test_the_level_of_dictionaries(tmp_path: Path) -> None:
    words = [f"{i} the same words in every row, {i % 50}" for i in range(900)]
    values = pa.array(words * 4)
    keys = {"dict-values-compression": "zstd", "compression": "none"}
    smaller(
        "2.2", tmp_path, values,
        {**keys, "dict-values-compression-level": "1"}, {**keys, "dict-values-compression-level": "19"},
    )  # fmt: skip


@pytest.mark.parametrize("version", NEW)
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_size_of_chunks(version: str, compression: str, tmp_path: Path) -> None:
    word = 2 if version == "2.1" else 4
    chunks = {}
    for size in (1000, 8000, 200_000):
        table = one_column(TEXT, **{"minichunk-size": str(size), "compression": compression})
        root = tmp_path / str(size)
        chunks[size] = pages(table, version, root)[1][0] // word
        check(table, root)
    assert chunks[1000] > 4 * chunks[8000]
    # The largest chunk of 2.1 has 32 KiB.
    assert chunks[200_000] == 1 if version == "2.2" else 1 < chunks[200_000] < chunks[8000]


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "large"])
def test_a_senseless_size_of_chunks(value: str, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="minichunk-size"):
        spark_lance.write_dataset(one_column(TEXT, **{"minichunk-size": value}), tmp_path / "t")
