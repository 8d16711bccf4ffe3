"""Opening a data file of any version: the one place that chooses between the two families of containers.

Files of version 2.0 and later have a footer of 40 bytes, legacy files (0.1) one of 16. The last 8 bytes of
both are u16 major, u16 minor and "LANC". The manifest names the version of each data file, so that usually
nothing needs to be read to know it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Protocol

from spark_lance.errors import FormatError
from spark_lance.file.base.footer import MAGIC
from spark_lance.file.base.pages import FieldReader
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.io.store import Store

_END = struct.Struct("<HH4s")


class DataFileReader(Protocol):
    """The common part of the readers of all file versions."""

    path: str
    source: PageSource

    @property
    def version(self) -> FileVersion:
        """The file's version."""

    @property
    def num_rows(self) -> int:
        """Rows in the file, deleted ones included."""

    @property
    def schema(self) -> Schema:
        """The schema that the file itself carries."""

    @property
    def columns(self) -> Mapping[int, int]:
        """The ids of the fields that have data of their own in the file, and the numbers of their columns."""

    def open_field(self, field: Field) -> FieldReader:
        """Return a reader of one top-level field, which may be pruned to some of its leaves."""

    def prefetch(self, readers: Iterable[FieldReader], start: int, stop: int) -> None:
        """Fetch in few requests what the readers will need for rows [start, stop)."""

    def stored_bytes(self, field: Field) -> int:
        """Return how many bytes a field takes in the file, exactly or about."""


def open_file(
    store: Store,
    path: str,
    *,
    version: FileVersion | None = None,
    size: int | None = None,
    columns: Mapping[int, int] | None = None,
) -> DataFileReader:
    """Open a data file.

    Args:
        store, path: where the file is.
        version: the file's version if the manifest tells; otherwise it is read from the file.
        size: its length in bytes if known.
        columns: field id -> column number, as the manifest's DataFile says; of legacy files the ids count.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError: footer or tables are damaged.
        UnsupportedFormatError: the file's version is not supported.
    """
    length = size or store.size(path)
    if version is None:
        version = _read_version(store, path, length)
    if version is FileVersion.V0_1:
        return LegacyFileReader(store, path, size=length, field_ids=columns or ())
    return FileReader(store, path, size=length, columns=columns)


def _read_version(store: Store, path: str, size: int) -> FileVersion:
    if size < _END.size:
        raise FormatError(f"a data file of {size} bytes", path)
    end = store.read_ranges(path, [(size - _END.size, _END.size)])[0]
    major, minor, magic = _END.unpack(bytes(end))
    if magic != MAGIC:
        raise FormatError("the file does not end in the magic LANC", path)
    return FileVersion.from_footer(major, minor)
