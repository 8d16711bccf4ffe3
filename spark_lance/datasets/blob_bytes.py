"""Reads of blob columns as bytes instead of descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import address_fragments
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

if TYPE_CHECKING:
    pass


def blob_columns(schema: Schema, names: tuple[str, ...]) -> list[str]:
    """Return the blob columns among some top-level columns.

    Raises:
        UnsupportedFormatError: a column has blobs in structs or lists.
    """
    result = []
    for field in schema.fields:
        if field.name not in names:
            continue
        if field.is_blob:
            result.append(field.name)
        elif any(node.is_blob for node in field.walk()):
            raise UnsupportedFormatError(
                f"column {field.name!r} has blobs inside: read them with take_blobs, as `{field.name}.name`"
            )
    return result


def with_blob_bytes(table: pa.Table, snapshot: Snapshot, columns: list[str]) -> pa.Table:
    """Return rows with blob columns as large_binary. Reads the bytes of all blobs.

    Args:
        table: rows with `_rowaddr`.
        snapshot: the version of the rows.
        columns: top-level blob columns.

    Raises:
        FormatError: a description points outside its file, or names a file that does not exist.
        FileNotFoundError: an external object does not exist.
    """
    from spark_lance.table.reading.blobs import descriptors, open_blobs, read_blobs

    by_id: dict[int, table_pb2.DataFragment] = {fragment.id: fragment for fragment in snapshot.fragments}
    fragments = [by_id[number] for number in address_fragments(table[ROW_ADDRESS].to_numpy()).tolist()]
    for name in columns:
        field = snapshot.schema.field(name)
        files = open_blobs(snapshot.bases, field, descriptors(table[name], (field,)), fragments)
        place = table.schema.get_field_index(name)
        values = pa.array(read_blobs(files), pa.large_binary())
        table = table.set_column(place, pa.field(name, pa.large_binary(), field.nullable), values)
    return table
