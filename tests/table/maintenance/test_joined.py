"""Files read as one give what they give one by one."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import Store, open_store
from spark_lance.table.maintenance.compact_task import JoinedFiles, can_join, open_whole
from tests.strategies import canonical, tables


def write(store: Store, table: pa.Table, version: FileVersion, root: str = "/joined") -> tuple[str, Schema]:
    schema = Schema.from_arrow(table.schema)
    path = f"{root}/{uuid.uuid4().hex}.lance"
    with FileWriter(store, path, schema, version) as writer:
        for batch in table.to_batches():
            writer.write(batch)
        writer.finish()
    return path, schema


def opened(store: Store, path: str) -> FileReader:
    return open_whole(store, path, FileReader(store, path).columns)


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2], ids=lambda version: version.text)
@settings(max_examples=12)
@given(data=st.data())
def test_joined_files_give_what_they_give_alone(version: FileVersion, data: st.DataObject) -> None:
    table = data.draw(tables(version.text, max_rows=40, max_columns=2))
    cuts = sorted(data.draw(st.lists(st.integers(0, table.num_rows), max_size=4)))
    parts = [
        table.slice(start, stop - start)
        for start, stop in zip([0, *cuts], [*cuts, table.num_rows], strict=True)
        if start < stop
    ]
    assume(parts)
    store, _ = open_store("memory://")
    written = [write(store, part, version) for part in parts]
    schema = written[0][1]
    joined = JoinedFiles([opened(store, path) for path, _ in written])
    assert joined.num_rows == table.num_rows
    if not can_join(version, schema.fields):
        return
    for field, column in zip(schema.fields, table.columns, strict=True):
        assert canonical(joined.read(field)) == canonical(column)


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    plain = Schema.from_arrow(pa.schema([("a", pa.int64())]))
    items = pa.list_(pa.struct([("x", pa.int64())]), 2)
    assert can_join(FileVersion.V2_1, plain.fields)
    assert not can_join(FileVersion.V2_0, plain.fields)
    assert not can_join(FileVersion.V2_2, Schema.from_arrow(pa.schema([("a", items)])).fields)
    table = pa.table({"a": pa.array([1, 2], pa.int64())})
    store, root = open_store(tmp_path)
    first, second = (write(store, table, v, root) for v in (FileVersion.V2_1, FileVersion.V2_2))
    with pytest.raises(UnsupportedFormatError, match="several versions"):
        JoinedFiles([opened(store, first[0]), opened(store, second[0])])


def test_a_file_without_the_field(tmp_path: Path) -> None:
    store, root = open_store(tmp_path)
    table = pa.table({"a": pa.array([1, 2], pa.int64()), "b": pa.array(["x", "y"])})
    path, schema = write(store, table, FileVersion.V2_2, root)
    less, _ = write(store, table.select(["a"]), FileVersion.V2_2, root)
    joined = JoinedFiles([opened(store, path), opened(store, less)])
    assert joined.read(schema.fields[0]).to_pylist() == [1, 2, 1, 2]
    with pytest.raises(FormatError, match="no column for field 'b'"):
        joined.read(schema.fields[1])
