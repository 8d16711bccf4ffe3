"""The option `compression` of a table: kept in its fields, obeyed by later writes, of pylance too."""

from __future__ import annotations

from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import OptionError
from spark_lance.file.base.schema import Schema
from spark_lance.table.writing.compression import compressed

RNG = np.random.default_rng(4)
ROWS = 30_000


def rows() -> pa.Table:
    steps = np.cumsum(RNG.integers(-3, 4, ROWS))
    words = np.array(["when", "the", "writer", "chooses", "compression", "by", "samples"])
    text = [
        " ".join(words[picks]) + f" {i}" for i, picks in enumerate(RNG.integers(0, len(words), (ROWS, 5)))
    ]
    structs = pa.StructArray.from_arrays([pa.array(steps), pa.array(text)], ["n", "t"])
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, ROWS + 1, 3), pa.int32()), pa.array(steps * 1.5))
    return pa.table(
        {
            "step": steps,
            "walk": np.cumsum(RNG.normal(size=ROWS)).round(3),
            "text": text,
            "struct": structs,
            "list": pa.concat_arrays([lists] * 3),
        }
    )


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in (path / "data").glob("*.lance"))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_a_table_keeps_it(version: str, tmp_path: Path) -> None:
    table = rows()
    sizes = {}
    for scheme in ("zstd", "lz4", "none", None):
        path = tmp_path / str(scheme)
        spark_lance.write_dataset(table, path, data_storage_version=version, compression=scheme)
        spark_lance.write_dataset(table, path, mode="append")
        lance.write_dataset(table.slice(0, 100), str(path), mode="append")
        ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
        expected = pa.concat_tables([table, table, table.slice(0, 100)])
        assert ours.to_table() == expected
        assert theirs.to_table() == expected
        leaf = theirs.schema.field("struct").type.field("t").metadata or {}
        assert leaf.get(b"lance-encoding:compression") == (scheme and scheme.encode())
        first, second = sorted(file.stat().st_size for file in (path / "data").glob("*.lance"))[-2:]
        assert abs(first - second) < 100
        sizes[scheme] = second
    assert sizes["zstd"] < sizes["lz4"] <= sizes["none"]
    assert sizes["zstd"] < 0.8 * sizes["none"]


def test_an_append_may_say_it_for_its_files(tmp_path: Path) -> None:
    table = rows()
    spark_lance.write_dataset(table, tmp_path / "t", compression="none")
    before = size(tmp_path / "t")
    plain = spark_lance.write_dataset(table.slice(0, 0), tmp_path / "u")
    spark_lance.write_dataset(table, tmp_path / "u", mode="append", compression="zstd")
    assert size(tmp_path / "u") < 0.8 * before
    assert spark_lance.dataset(tmp_path / "u").schema == plain.schema
    assert lance.dataset(str(tmp_path / "u")).to_table() == table


def test_columns_that_say_something_keep_it() -> None:
    own = pa.field("a", pa.string(), metadata={"lance-encoding:compression": "none"})
    schema = compressed(Schema.from_arrow(pa.schema([own, pa.field("b", pa.list_(pa.int8()))])), "ZSTD")
    assert schema.fields[0].metadata["lance-encoding:compression"] == "none"
    assert not schema.fields[1].metadata
    assert schema.fields[1].children[0].metadata["lance-encoding:compression"] == "zstd"


def test_a_scheme_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'brotli'.*zstd, lz4"):
        spark_lance.write_dataset(pa.table({"a": [1]}), tmp_path / "t", compression="brotli")
    assert not (tmp_path / "t").exists()
