"""The last 40 bytes of a data file.

    offset  type   meaning
         0  u64    position of the first column-metadata block
         8  u64    position of the column-metadata offset table: per column (u64 position, u64 size)
        16  u64    position of the global-buffer offset table: per buffer (u64 position, u64 size)
        24  u32    number of global buffers
        28  u32    number of columns
        32  u16    major version
        34  u16    minor version
        36  4      "LANC"

All integers are little-endian (Lance file format, container).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from spark_lance.errors import FormatError

MAGIC = b"LANC"
_LAYOUT = struct.Struct("<QQQIIHH4s")
FOOTER_SIZE = _LAYOUT.size


@dataclass(frozen=True)
class Footer:
    """Positions (bytes from the start of the file), counts and version numbers of one data file."""

    column_metadata_start: int
    column_table_start: int
    global_table_start: int
    num_global_buffers: int
    num_columns: int
    major: int
    minor: int

    def pack(self) -> bytes:
        """Return the 40 bytes."""
        return _LAYOUT.pack(
            self.column_metadata_start,
            self.column_table_start,
            self.global_table_start,
            self.num_global_buffers,
            self.num_columns,
            self.major,
            self.minor,
            MAGIC,
        )

    @classmethod
    def parse(cls, tail: bytes) -> Footer:
        """Parse the footer at the end of `tail`, the last bytes of a file (40 or more).

        Raises:
            FormatError: too short, or the magic is missing.
        """
        if len(tail) < FOOTER_SIZE:
            raise FormatError(f"a data file has at least {FOOTER_SIZE} bytes, this one has {len(tail)}")
        *numbers, magic = _LAYOUT.unpack(tail[-FOOTER_SIZE:])
        if magic != MAGIC:
            raise FormatError("the file does not end in the magic LANC")
        return cls(*numbers)
