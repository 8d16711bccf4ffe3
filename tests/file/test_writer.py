"""The container that FileWriter makes, the pages it cuts, and what it keeps in memory."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.base.metadata import FOOTER_SIZE, ColumnMetadata, Footer, parse_column
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.writer import FileWriter, WrittenFile
from spark_lance.io.store import open_store
from spark_lance.proto import file_pb2
from tests.file.v2_1.pylance_table import open_in_pylance

VERSIONS = ("2.0", "2.1", "2.2")
MIB = 1 << 20


def open_writer(root: Path, schema: pa.Schema, version: str = "2.2", **sizes: Any) -> FileWriter:
    store, path = open_store(str(root / "data" / "x.lance"))
    return FileWriter(store, path, Schema.from_arrow(schema), FileVersion.parse(version), **sizes)


def write(root: Path, data: pa.Table, version: str = "2.2", **sizes: Any) -> WrittenFile:
    writer = open_writer(root, data.schema, version, **sizes)
    writer.write(data)
    return writer.finish()


def columns_of(written: WrittenFile) -> list[ColumnMetadata]:
    data = Path(written.path).read_bytes()
    footer = Footer.parse(data[-FOOTER_SIZE:])
    columns = []
    for i in range(footer.num_columns):
        position, size = struct.unpack_from("<QQ", data, footer.column_table_start + 16 * i)
        columns.append(parse_column(i, data[position : position + size], len(data)))
    return columns


@pytest.mark.parametrize("version", VERSIONS)
def test_container(version: str, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("a", pa.int32(), metadata={"k": "v"}),
            ("l", pa.list_(pa.struct([("x", pa.int8()), ("y", pa.string())]))),
        ],
        metadata={"table": "t"},
    )
    rows = [{"a": 1, "l": [{"x": 1, "y": "a"}]}, {"a": None, "l": []}]
    written = write(tmp_path, pa.Table.from_pylist(rows, schema), version)
    data = Path(written.path).read_bytes()
    assert len(data) == written.size
    footer = Footer.parse(data[-FOOTER_SIZE:])
    assert (footer.major, footer.minor) == FileVersion.parse(version).footer
    position, size = struct.unpack_from("<QQ", data, footer.global_table_start)
    assert position % 64 == 0
    descriptor = file_pb2.FileDescriptor.FromString(data[position : position + size])
    assert descriptor.length == written.num_rows == 2
    stored = Schema.from_protos(descriptor.schema.fields, descriptor.schema.metadata)
    assert stored == Schema.from_arrow(schema)
    ids = (0, 3, 4) if version != "2.0" else (0, 1, 2, 3, 4)
    assert written.field_ids == ids
    assert written.column_indices == tuple(range(len(ids)))
    columns = columns_of(written)
    assert len(columns) == footer.num_columns == len(ids)
    for column in columns:
        for page in column.pages:
            assert all(offset % 64 == 0 for offset, _ in page.buffers)


def test_field_ids_are_those_of_the_schema(tmp_path: Path) -> None:
    schema = Schema.from_arrow(pa.schema([("a", pa.int8()), ("b", pa.int8())]), first_id=7)
    store, path = open_store(str(tmp_path / "x.lance"))
    writer = FileWriter(store, path, schema)
    writer.write(pa.table({"a": pa.array([1], pa.int8()), "b": pa.array([2], pa.int8())}))
    assert writer.finish().field_ids == (7, 8)


def test_pages_are_about_as_large_as_asked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    n = 300_000
    table = pa.table({"long": rng.integers(0, 2**62, n), "byte": pa.array(rng.integers(0, 9, n), pa.int8())})
    writer = open_writer(tmp_path, table.schema, page_bytes=200_000)
    for batch in table.to_batches(max_chunksize=1000):
        writer.write(batch)
    long, byte = columns_of(writer.finish())
    assert {page.length for page in long.pages[:-1]} == {25_000}
    assert {page.length for page in byte.pages[:-1]} == {200_000}
    for column in (long, byte):
        starts = np.cumsum([0, *(page.length for page in column.pages)])
        assert [page.priority for page in column.pages] == starts[:-1].tolist()
        assert starts[-1] == n


def test_a_large_array_is_cut_by_its_bytes(tmp_path: Path) -> None:
    texts = ["x"] * 5000 + ["y" * 10_000] * 500
    column = columns_of(write(tmp_path, pa.table({"c": texts}), page_bytes=MIB))[0]
    assert sum(page.length for page in column.pages) == len(texts)
    for page in column.pages:
        assert sum(size for _, size in page.buffers) < 2.5 * MIB


def test_one_value_larger_than_a_page(tmp_path: Path) -> None:
    table = pa.table({"c": [b"a", b"b" * 3_000_000, b"c", b"d" * 3_000_000]})
    written = write(tmp_path, table, page_bytes=1000)
    assert open_in_pylance(tmp_path, table.schema, [written]).to_table().equals(table)


@pytest.mark.parametrize("version", VERSIONS)
def test_structs_over_many_pages(version: str, tmp_path: Path) -> None:
    kind = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
    rows = [{"x": i, "y": {"z": str(i)}} for i in range(3000)]
    lists = [[row] * (i % 4) for i, row in enumerate(rows)]
    table = pa.table({"s": pa.array(rows, kind), "l": pa.array(lists, pa.list_(kind))})
    written = write(tmp_path, table, version, page_bytes=2000)
    assert max(len(column.pages) for column in columns_of(written)) > 10
    assert open_in_pylance(tmp_path, table.schema, [written]).to_table().equals(table)


@pytest.mark.parametrize("version", VERSIONS)
def test_views_and_extension_types_are_stored_plainly(version: str, tmp_path: Path) -> None:
    uuids = pa.array([b"0" * 16, None], pa.binary(16))
    table = pa.table(
        {
            "v": pa.array(["a", "b" * 30], pa.string_view()),
            "l": pa.array([["a", None], None], pa.list_(pa.string_view())),
            "u": pa.ExtensionArray.from_storage(pa.uuid(), uuids),
        }
    )
    written = write(tmp_path, table, version)
    got = open_in_pylance(tmp_path, Schema.from_arrow(table.schema).to_arrow(), [written]).to_table()
    assert got["v"].to_pylist() == table["v"].to_pylist()
    assert got["l"].to_pylist() == table["l"].to_pylist()
    assert got["u"].cast(pa.binary(16)).to_pylist() == uuids.to_pylist()


def test_batches_of_differing_item_names_and_dictionaries(tmp_path: Path) -> None:
    schema = pa.schema([("l", pa.list_(pa.field("item", pa.int8())))])
    writer = open_writer(tmp_path, schema)
    writer.write(pa.table({"l": pa.array([[1]], pa.list_(pa.field("item", pa.int8())))}))
    writer.write(pa.table({"l": pa.array([[2], None], pa.list_(pa.field("element", pa.int8())))}))
    got = open_in_pylance(tmp_path, schema, [writer.finish()]).to_table()
    assert got["l"].to_pylist() == [[1], [2], None]


def ipc_batches(path: Path, batch: pa.RecordBatch, count: int) -> Any:
    """Batches as they come from a stream: all columns of one share one allocation."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as stream:
        for _ in range(count):
            stream.write_batch(batch)
    return pa.ipc.open_stream(pa.OSFile(str(path)))


def test_narrow_columns_do_not_keep_the_batches_alive(tmp_path: Path) -> None:
    rows = 1000
    batch = pa.record_batch(
        {
            "wide": pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(rows * 512, np.float32)), 512),
            "narrow": pa.array(np.arange(rows) % 100, pa.int8()),
        }
    )
    writer = open_writer(tmp_path, batch.schema, page_bytes=MIB)
    before = pa.total_allocated_bytes()
    most = 0
    for one in ipc_batches(tmp_path / "stream", batch, 40):
        writer.write(one)
        del one
        most = max(most, pa.total_allocated_bytes() - before)
    writer.finish()
    # Of 80 MiB, at any time: a batch, a page in the making and its encoded form.
    assert most < 12 * MIB


def test_a_small_slice_does_not_keep_its_parent_alive(tmp_path: Path) -> None:
    writer = open_writer(tmp_path, pa.schema([("c", pa.string())]))
    before = pa.total_allocated_bytes()
    for _ in range(5):
        texts = pa.concat_arrays([pa.array(["x" * 100])] * 100_000)
        writer.write(pa.table({"c": texts.slice(50, 10)}))
        del texts
    assert pa.total_allocated_bytes() - before < MIB
    writer.abort()
