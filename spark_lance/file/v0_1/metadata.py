"""The parts of a legacy (0.1) file that say where its values are.

    last 16 bytes   i64 position of the metadata, i16 major (0), i16 minor (1 or 2), "LANC"
    metadata        u32 length, message Metadata: batch offsets (cumulative rows, first 0), positions of the
                    schema and of the page table, and optionally statistics
    schema          u32 length, message Manifest of which only the fields count; position 0 = not in the file
    page table      i64 pairs (position, length), [highest field id - lowest field id + 1][batches];
                    ids without pages, such as structs, have (0, 0)

Rows are stored in batches. A page holds the values of one field in one batch; its length counts array
elements, for lists one more than lists. All integers are little-endian. (Lance file format 0.1.)
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from spark_lance.errors import FormatError
from spark_lance.file.base.footer import MAGIC
from spark_lance.file.base.source import PageSource
from spark_lance.proto import file_pb2, table_pb2

_FOOTER = struct.Struct("<qhh4s")
_LENGTH = struct.Struct("<I")
FOOTER_SIZE = _FOOTER.size
_ENTRY_SIZE = 16


@dataclass(frozen=True)
class PageTable:
    """Where each page is: int64 (fields, batches, 2) of (position, length); row 0 is field `first_id`."""

    first_id: int
    entries: npt.NDArray[np.int64]

    def page(self, field_id: int, batch: int) -> tuple[int, int]:
        """Return (position in bytes, length in elements) of a field's page.

        Raises:
            FormatError: the table has no such field or batch, or the entry is negative.
        """
        row = field_id - self.first_id
        if not (0 <= row < self.entries.shape[0] and 0 <= batch < self.entries.shape[1]):
            raise FormatError(f"the page table has no page for field {field_id} in batch {batch}")
        position, length = (int(value) for value in self.entries[row, batch])
        if position < 0 or length < 0:
            raise FormatError(f"a page of {length} elements at {position}")
        return position, length

    @classmethod
    def read(
        cls, source: PageSource, position: int, first_id: int, num_fields: int, num_batches: int
    ) -> PageTable:
        """Read the table at a position.

        Raises:
            FormatError: it is not inside the file.
        """
        data = source.get(position, num_fields * num_batches * _ENTRY_SIZE)
        entries = np.frombuffer(data, dtype="<i8").reshape(num_fields, num_batches, 2)
        return cls(first_id, entries)


def footer_position(source: PageSource) -> int:
    """Return the position of the metadata, from the footer.

    Raises:
        FormatError: this is not a legacy file.
    """
    if source.size < FOOTER_SIZE:
        raise FormatError(f"a legacy file has at least {FOOTER_SIZE} bytes, this one has {source.size}")
    footer = source.get(source.size - FOOTER_SIZE, FOOTER_SIZE).to_pybytes()
    position, major, minor, magic = _FOOTER.unpack(footer)
    if magic != MAGIC:
        raise FormatError("the file does not end in the magic LANC")
    if not (major == 0 and 0 <= minor <= 2):
        raise FormatError(f"a file of version {major}.{minor} where a legacy file (0.1) was expected")
    return int(position)


def _read_message(source: PageSource, position: int, what: str) -> bytes:
    try:
        (length,) = _LENGTH.unpack(source.get(position, _LENGTH.size).to_pybytes())
        return bytes(source.get(position + _LENGTH.size, length))
    except FormatError as error:
        raise error.at(place=what) from error


def read_metadata(source: PageSource) -> file_pb2.Metadata:
    """Read the file's metadata message.

    Raises:
        FormatError: this is not a legacy file, or it is damaged.
    """
    data = _read_message(source, footer_position(source), "metadata")
    try:
        return file_pb2.Metadata.FromString(data)
    except DecodeError as error:
        raise FormatError("the metadata is not a valid message", place="metadata") from error


def read_schema(source: PageSource, position: int) -> table_pb2.Manifest:
    """Read the message that holds the file's fields.

    Raises:
        FormatError: it is damaged.
    """
    data = _read_message(source, position, "schema")
    try:
        return table_pb2.Manifest.FromString(data)
    except DecodeError as error:
        raise FormatError("the schema is not a valid message", place="schema") from error


def batch_offsets(metadata: file_pb2.Metadata) -> list[int]:
    """Return the row with which each batch begins, and the number of rows.

    Raises:
        FormatError: they do not rise from 0.
    """
    offsets = list(metadata.batch_offsets) or [0]
    if offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)):
        raise FormatError("the batch offsets do not rise from 0", place="metadata")
    return offsets
