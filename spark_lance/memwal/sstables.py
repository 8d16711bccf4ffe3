"""Write an SSTable: the rows of one generation of a shard, as a small Lance table.

    data file, manifest        one fragment; the table's columns with their ids, and `_tombstone`; rows in the
                               order of the writes
    deletion file              masks all rows except the newest row of each key, so that a scan returns only
    it _pk_index/                 a B-tree from key to row for all rows, including masked rows; readers use it
    to
                               check whether a newer SSTable has a key

In the index, a key of several columns is one binary value, whose bytes sort like the key. Each column is 00
for null, or 01 and the value. A signed integer or date has 8 bytes, big-endian, with the sign bit flipped. An
unsigned integer has 8 bytes, big-endian; a boolean has one byte. In text and bytes, 00 is written as 00 ff,
and 00 00 is added at the end. Example: ("x", 1) is 01 78 00 00 01 80 00 00 00 00 00 00 01. (MemWAL, SSTable.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.building import Rows, SegmentTarget
from spark_lance.index.scalar.btree import BTree
from spark_lance.io.local import sync_files
from spark_lance.memwal.entries import TOMBSTONE, wal_fields
from spark_lance.memwal.fresh_sources import newest_rows
from spark_lance.proto import table_pb2
from spark_lance.table.commits.commit import create_table
from spark_lance.table.format.deletion import pack_deletions
from spark_lance.table.format.paths import deletion_path
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.writing.write import write_fragments

PK_INDEX_DIR = "_pk_index"
_PLAIN_KEYS = (
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def check_key(schema: Schema) -> tuple[Field, ...]:
    """Return the fields of a table's primary key, after checking that a MemWAL supports their types.

    Raises:
        SchemaError: a key column is inside another column, or has a type that other engines refuse in a
            MemWAL.
    """
    key = primary_key(schema)
    for field in key:
        if field not in schema.fields:
            raise SchemaError(
                f"key column {field.name!r} is nested: a MemWAL supports only top-level key columns"
            )
        kind = field.arrow_type()
        if not any(test(kind) for test in _PLAIN_KEYS):
            raise SchemaError(
                f"key column {field.name!r} is {kind}: a MemWAL supports integers, booleans, text and bytes"
            )
    return key


def write_sstable(
    table: TableRef, rows: pa.Table, schema: Schema, version: FileVersion, sync: bool = False
) -> int:
    """Write an SSTable.

    Args:
        table: the SSTable.
        rows: the rows, oldest first, with the columns of `schema` and `_tombstone`.
        schema: the schema of the table.
        version: the version of the data file.
        sync: whether to sync all files to disk.

    Returns:
        The size of the keys in memory, in bytes.

    Raises:
        OSError, CommitError: the store failed. Files that were written remain, but nothing refers to them.
    """
    fields = wal_fields(schema)
    mark = Field(1 + max(node.id for node in schema.walk()), TOMBSTONE, "bool", nullable=False)
    sstable_schema = Schema((*fields, mark), schema.metadata)
    arrow = sstable_schema.to_arrow()
    data = pa.Table.from_arrays(rows.columns, schema=arrow)
    (message,) = write_fragments(
        data.to_batches(), table, sstable_schema, version=version, max_rows_per_file=max(1, data.num_rows)
    )
    fragment = table_pb2.DataFragment.FromString(message)
    names = [field.name for field in primary_key(schema)]
    key_bytes = 0
    if names:
        codes = KeyIndex([data[name] for name in names]).codes
        masked = np.setdiff1d(np.arange(data.num_rows), newest_rows(codes)).astype(np.uint32)
        if len(masked):
            entry, bitmap = pack_deletions(fragment, masked, version=1, bitmap=True)
            fragment.deletion_file.CopyFrom(entry)
            table.store.put(deletion_path(table.root, 0, entry), bitmap)
        key_bytes = sum(int(data[name].nbytes) for name in names)
        _write_key_index(table, data, names)
    create_table(table, sstable_schema, [fragment], version=version)
    if sync and table.store.is_local:
        sync_files(item.path for item in table.store.list_objects(table.root, recursive=True))
    return key_bytes


def _write_key_index(table: TableRef, data: pa.Table, names: list[str]) -> None:
    values = one_array(data[names[0]]) if len(names) == 1 else encoded_keys(data.select(names))
    numbers = np.arange(data.num_rows, dtype=np.uint64)
    rows = Rows(lambda: iter([(values, numbers)]), values.type, {0: data.num_rows})
    BTree.build(rows, SegmentTarget(table.store, table.path(PK_INDEX_DIR), FileVersion.V2_0))


def encoded_keys(keys: pa.Table) -> pa.Array:
    """Return keys of several columns, without nulls, as binary values with the same order."""
    parts = []
    for column in keys.columns:
        values = one_array(column)
        kind = values.type
        if pa.types.is_boolean(kind):
            raw = values.cast(pa.uint8()).to_numpy().reshape(-1, 1)
            parts += [_binary_scalar(b"\x01"), _binary_array(raw)]
        elif pa.types.is_integer(kind) or pa.types.is_date32(kind):
            signed = not pa.types.is_unsigned_integer(kind)
            wide = values.cast(pa.int32()) if pa.types.is_date32(kind) else values
            wide = wide.cast(pa.int64() if signed else pa.uint64()).to_numpy()
            bits = wide.view(np.uint64) ^ np.uint64(1 << 63) if signed else wide
            parts += [
                _binary_scalar(b"\x01"),
                _binary_array(bits.astype(">u8").view(np.uint8).reshape(-1, 8)),
            ]
        else:
            raw = values.cast(pa.large_binary())
            escaped = pc.replace_substring(raw, pattern=b"\0", replacement=b"\0\xff")
            parts += [_binary_scalar(b"\x01"), escaped, _binary_scalar(b"\0\0")]
    joined = pc.binary_join_element_wise(*parts, _binary_scalar(b""))
    return one_array(joined).cast(pa.binary())


def _binary_scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _binary_array(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    width = rows.shape[1]
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, data]).cast(pa.large_binary())
