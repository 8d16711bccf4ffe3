"""Strings and lists whose 32-bit offsets do not reach: reads give more chunks, never another type.

One Arrow array of type string, binary or list holds up to 2^31 - 1 bytes or items. Rows beyond that come in
several chunks of the same type; large_* types come in one. A single row that is larger is refused, with the
advice to make the column large_*. Most tests lower the limit.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.arrow.arrays import join
from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.pages import RowReader
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import Store, open_store

VERSIONS = ["2.0", "2.1", "2.2"]
LIMIT = 1000
# Lists are decoded by chunks, of up to 8192 values, and the chunk after the last row is read with it.
LIST_LIMITS = {"lists": 16_500, "texts in lists": 400_000}
TEXTS = [None if i % 5 == 3 else f"{i:03}" * (i % 40) for i in range(100)]
NOISE = np.random.default_rng(5).integers(0, 256, (4000, 40), np.uint8)
COLUMNS = {
    "text": pa.array(TEXTS),
    "wide text": pa.array(["w" * 300 if i % 3 else "v" * 290 for i in range(20)]),
    "few texts": pa.array(["red" * 9, "green" * 9, "blue" * 9, None] * 100),
    "lists": pa.array([None if i % 7 == 2 else list(range(i * 4)) for i in range(100)], pa.list_(pa.int16())),
    "texts in lists": pa.array([[bytes(row).hex()] * (i % 6) for i, row in enumerate(NOISE)]),
    "texts in structs": pa.array([{"s": text, "i": i} for i, text in enumerate(TEXTS)]),
}


def lower(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    for module in ("v2_0.variable", "v2_1.base.blocks", "v2_1.read.page"):
        monkeypatch.setattr(f"spark_lance.file.{module}._INT32_MAX", limit)


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    lower(monkeypatch, LIMIT)


def write(store: Store, path: str, table: pa.Table, version: str) -> FileReader:
    writer = FileWriter(store, path, Schema.from_arrow(table.schema), FileVersion.parse(version))
    writer.write(table)
    writer.finish()
    return FileReader(store, path)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", COLUMNS)
def test_more_comes_in_more_chunks(
    name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lower(monkeypatch, LIST_LIMITS.get(name, LIMIT))
    table = pa.table({"a": COLUMNS[name]})
    store, path = open_store(str(tmp_path / "f.lance"))
    reader = write(store, path, table, version)
    got = reader.read().column("a")
    assert got.type == table.column("a").type
    assert got.to_pylist() == table.column("a").to_pylist()
    assert got.num_chunks > 1
    field = reader.open_field(reader.schema.fields[0])
    assert field.read(3, 19).to_pylist() == table.column("a").to_pylist()[3:19]
    if isinstance(field, RowReader):
        rows = np.arange(0, len(table), 2)
        assert field.take(rows).to_pylist() == table.column("a").to_pylist()[::2]


@pytest.mark.usefixtures("lowered")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("value", ["x" * (LIMIT + 1), list(range(LIMIT + 1))], ids=["text", "list"])
def test_one_row_beyond_the_limit_is_refused(value: object, version: str, tmp_path: Path) -> None:
    table = pa.table({"a": pa.array([value, value, None])})
    store, path = open_store(str(tmp_path / "f.lance"))
    reader = write(store, path, table, version)
    with pytest.raises(UnsupportedFormatError, match=r"row 0 holds more than 2 GiB .*large_"):
        reader.read()
    assert reader.open_field(reader.schema.fields[0]).read(2, 3).to_pylist() == [None]


@pytest.mark.usefixtures("lowered")
@pytest.mark.parametrize("version", VERSIONS)
def test_large_types_know_no_limit(version: str, tmp_path: Path) -> None:
    large = pa.array(TEXTS, pa.large_string())
    lists = pa.array([list(range(i % 50)) for i in range(100)], pa.large_list(pa.int16()))
    store, path = open_store(str(tmp_path / "f.lance"))
    got = write(store, path, pa.table({"a": large, "b": lists}), version).read()
    assert [column.num_chunks for column in got.columns] == [1, 1]
    assert got.to_pydict() == {"a": large.to_pylist(), "b": lists.to_pylist()}


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_the_real_limit(version: str, tmp_path: Path) -> None:
    """2.3 GB of text in one column, 36 values of 64 MB: written, scanned and read in one go."""
    value = pa.array(["0123456789abcdef" * (4 << 20)])
    schema = pa.schema([pa.field("a", pa.string(), metadata={"lance-encoding:compression": "zstd"})])
    batches = [pa.record_batch([value], schema=schema)] * 36
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    spark_lance.write_dataset(reader, tmp_path / "t", data_storage_version=version)
    (file,) = (tmp_path / "t" / "data").glob("*.lance")
    got = FileReader(*open_store(str(file))).read().column("a")
    assert len(got) == 36
    assert got.nbytes > 2**31
    assert all(chunk[0].as_buffer().equals(value[0].as_buffer()) for chunk in got.chunks)
    assert len(join(got.chunks)) == got.num_chunks > 1
    assert spark_lance.dataset(tmp_path / "t").count_rows() == 36
