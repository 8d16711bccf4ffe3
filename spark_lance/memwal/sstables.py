"""Writing an SSTable: the rows of one generation of a shard, as a small Lance table.

    data file, manifest        one fragment; the table's columns with their ids, and `_tombstone`; rows in the
                               order in which they were written
    deletion file              masks all but the newest row of each key, so that a scan gives one
    _pk_index/                 a B-tree from key to row of all rows, masked ones too, which readers ask
                               whether a newer SSTable has a key

A key of several columns is one binary value there, whose bytes order as the key does. Per column it has 00
for null, otherwise 01 and the value. A signed integer or date has 8 bytes, big-endian, with the sign bit
flipped; an unsigned one 8 bytes, big-endian; a boolean one byte. Text and bytes have 00 written as 00 ff, and
00 00 at the end. Example: ("x", 1) is 01 78 00 00 01 80 00 00 00 00 00 00 01. (MemWAL, SSTable.)
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
    """Return the fields of a table's primary key, none if it has none.

    Raises:
        SchemaError: a column of the key is inside another one, or of a type that other engines refuse here.
    """
    key = primary_key(schema)
    for field in key:
        if field not in schema.fields:
            raise SchemaError(
                f"the key column {field.name!r} is inside another column: a MemWAL cannot have it"
            )
        kind = field.arrow_type()
        if not any(test(kind) for test in _PLAIN_KEYS):
            raise SchemaError(
                f"key column {field.name!r} is {kind}: a MemWAL has keys of integers, booleans, text or bytes"
            )
    return key


def write_sstable(
    table: TableRef, rows: pa.Table, schema: Schema, version: FileVersion, sync: bool = False
) -> int:
    """Write an SSTable.

    Args:
        table: the SSTable.
        rows: oldest first, with the columns of `schema` and `_tombstone`.
        schema: of the table.
        version: of the data file, that of the table's.
        sync: force all files to the disk.

    Returns:
        The bytes of the keys in memory.

    Raises:
        OSError, CommitError: the store failed. What was written stays; nothing names it.
    """
    fields = wal_fields(schema)
    mark = Field(1 + max(node.id for node in schema.walk()), TOMBSTONE, "bool", nullable=False)
    own = Schema((*fields, mark), schema.metadata)
    arrow = own.to_arrow()
    data = pa.Table.from_arrays(rows.columns, schema=arrow)
    (message,) = write_fragments(
        data.to_batches(), table, own, version=version, max_rows_per_file=max(1, data.num_rows)
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
    create_table(table, own, [fragment], version=version)
    if sync and table.store.is_local:
        sync_files(item.path for item in table.store.list_objects(table.root, recursive=True))
    return key_bytes


def _write_key_index(table: TableRef, data: pa.Table, names: list[str]) -> None:
    values = one_array(data[names[0]]) if len(names) == 1 else encoded_keys(data.select(names))
    numbers = np.arange(data.num_rows, dtype=np.uint64)
    rows = Rows(lambda: iter([(values, numbers)]), values.type, {0: data.num_rows})
    BTree.build(rows, SegmentTarget(table.store, table.path(PK_INDEX_DIR), FileVersion.V2_0))


def encoded_keys(keys: pa.Table) -> pa.Array:
    """Return keys of several columns, without nulls, as binary values that order as they do."""
    parts = []
    for column in keys.columns:
        values = one_array(column)
        kind = values.type
        if pa.types.is_boolean(kind):
            raw = values.cast(pa.uint8()).to_numpy().reshape(-1, 1)
            parts += [_constant(b"\x01"), _fixed(raw)]
        elif pa.types.is_integer(kind) or pa.types.is_date32(kind):
            signed = not pa.types.is_unsigned_integer(kind)
            wide = values.cast(pa.int32()) if pa.types.is_date32(kind) else values
            wide = wide.cast(pa.int64() if signed else pa.uint64()).to_numpy()
            bits = wide.view(np.uint64) ^ np.uint64(1 << 63) if signed else wide
            parts += [_constant(b"\x01"), _fixed(bits.astype(">u8").view(np.uint8).reshape(-1, 8))]
        else:
            raw = values.cast(pa.large_binary())
            escaped = pc.replace_substring(raw, pattern=b"\0", replacement=b"\0\xff")
            parts += [_constant(b"\x01"), escaped, _constant(b"\0\0")]
    joined = pc.binary_join_element_wise(*parts, _constant(b""))
    return one_array(joined).cast(pa.binary())


def _constant(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())


def _fixed(rows: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> pa.Array:
    width = rows.shape[1]
    data = pa.py_buffer(np.ascontiguousarray(rows))
    return pa.Array.from_buffers(pa.binary(width), len(rows), [None, data]).cast(pa.large_binary())
