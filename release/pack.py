"""Packs a wheel again with zopfli: the same files, 3 % smaller than zlib makes them.

Every installer unpacks it, as only the compressor differs. `zipfile` takes no bytes that are compressed
already, so the archive is written here, as PKWARE's APPNOTE says in sections 4.3.7, 4.3.12 and 4.3.16:

    archive = (local name data)* (central name)* end
    local   = "PK\\3\\4" entry length-of-name:u16 0:u16
    central = "PK\\1\\2" made-by:u16 entry length-of-name:u16 0:u16{4} attributes:u32 offset-of-local:u32
    end     = "PK\\5\\6" 0:u16{2} count:u16{2} size-of-centrals:u32 offset-of-centrals:u32 0:u16
    entry   = version:u16 flags:u16 method:u16 time:u16 date:u16 crc:u32 compressed:u32 size:u32
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import zopfli.zlib

__all__ = ["pack"]

DEFLATED = zipfile.ZIP_DEFLATED
# Version 2.0 of the format, which has deflate; attributes are those of Unix.
VERSION = 20
MADE_BY = 3 << 8 | VERSION
# The oldest date there is: the same sources give the same bytes.
DATE = 1 << 5 | 1


def pack(path: Path) -> None:
    """Pack the archive at a path again, in its place. Raises ValueError if it would hold anything else."""
    with zipfile.ZipFile(path) as archive:
        files = [(info, archive.read(info)) for info in archive.infolist()]
    body, centrals = bytearray(), bytearray()
    for info, content in files:
        name = info.filename.encode("ascii")
        # Without zlib's two bytes before the data, and its checksum behind them.
        data = zopfli.zlib.compress(content, numiterations=5)[2:-4]
        sizes = (info.CRC, len(data), len(content))
        entry = struct.pack("<5H3I2H", VERSION, 0, DEFLATED, 0, DATE, *sizes, len(name), 0)
        place = struct.pack("<3H2I", 0, 0, 0, info.external_attr, len(body))
        centrals += b"PK\1\2" + struct.pack("<H", MADE_BY) + entry + place + name
        body += b"PK\3\4" + entry + name + data
    count = len(files)
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, count, count, len(centrals), len(body), 0)
    packed = path.with_suffix(".packed")
    packed.write_bytes(body + centrals + end)
    with zipfile.ZipFile(packed) as archive:
        if [(info.filename, archive.read(info)) for info in archive.infolist()] != [
            (info.filename, content) for info, content in files
        ]:
            raise ValueError(f"{packed} does not hold what {path} does")
    packed.replace(path)
