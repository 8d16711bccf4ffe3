"""Several small data files read as one: their bytes end to end, their pages one after the other.

Opening a file and decoding a page cost about the same however few rows there are. Pages of many files that
are described alike are decoded together, as those of one file are. (Lance file format 2.1 and 2.2.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.columns import owned_columns
from spark_lance.file.base.metadata import ColumnMetadata, Page
from spark_lance.file.base.pages import PAGE_FORMATS
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader, read_field
from spark_lance.io.store import Store

__all__ = ["JoinedFiles", "can_join", "open_whole"]

# In 2.0 a struct has a page of its own for the whole file.
_VERSIONS = frozenset({FileVersion.V2_1, FileVersion.V2_2})


class _Memory(PageSource):
    """Bytes in memory in place of a file's."""

    def __init__(self, path: str, data: pa.Buffer) -> None:
        self.path = path
        self.size = data.size
        self._mapped = data
        self._fetched = {}


def can_join(version: FileVersion, fields: Sequence[Field]) -> bool:
    """Whether these fields of files of a version can be read together.

    Not those of fixed-size lists of structs, whose pages count in other units than rows.
    """
    return version in _VERSIONS and not any(n.kind == "fsl_struct" for top in fields for n in top.walk())


def open_whole(store: Store, path: str, columns: Mapping[int, int]) -> FileReader:
    """Open a small file after fetching all of it in one request.

    Args:
        store, path: where the file is.
        columns: field id -> column number, as the manifest's DataFile says.

    Raises:
        FileNotFoundError: there is no such file.
        FormatError, UnsupportedFormatError: as `FileReader`.
    """
    mapped = store.map(path)
    data = pa.py_buffer(store.read(path)) if mapped is None else mapped
    return FileReader(store, path, columns=columns, source=_Memory(path, data))


class JoinedFiles:
    """Reads whole fields of several files at once, the rows of the first before those of the second.

    Args:
        files: files of one version, as `open_whole` gives them; `can_join` tells which and what.

    Raises:
        UnsupportedFormatError: the files are not of one version.
    """

    def __init__(self, files: Sequence[FileReader]) -> None:
        self._version = files[0].version
        if any(file.version is not self._version for file in files):
            raise UnsupportedFormatError("files of several versions cannot be read together", files[0].path)
        self._files = files
        self._path = f"{files[0].path} and {len(files) - 1} more"
        contents = [file.source.get(0, file.source.size) for file in files]
        self._source = _Memory(self._path, pa.py_buffer(b"".join(memoryview(part) for part in contents)))
        self.num_rows = sum(file.num_rows for file in files)

    def read(self, field: Field) -> pa.ChunkedArray:
        """Return all rows of a top-level field.

        Raises:
            FormatError, UnsupportedFormatError: a file lacks the field, or is damaged; read the files one by
                one to learn which.
        """
        columns = {owner.id: self._column(owner) for owner in owned_columns([field], self._version)}
        reader = PAGE_FORMATS[self._version].reader(field, columns, self._source, self._version)
        return read_field(reader, field, self._path, 0, self.num_rows)

    def _column(self, owner: Field) -> ColumnMetadata:
        """Return the pages of a column in all files, at their places in the joined bytes."""
        pages: list[Page] = []
        base = rows = 0
        for file in self._files:
            if owner.id not in file.columns:
                raise FormatError(f"the file has no column for field {owner.name!r}", file.path)
            column = file.column(file.columns[owner.id])
            if column.num_rows != file.num_rows:
                raise FormatError(
                    f"column {owner.name!r} has {column.num_rows} rows where the file has {file.num_rows}",
                    file.path,
                )
            for page in column.pages:
                buffers = tuple((base + offset, size) for offset, size in page.buffers)
                pages.append(Page(buffers, page.length, rows + page.priority, page.encoding, page.type_url))
            base += file.source.size
            rows += file.num_rows
        return ColumnMetadata(0, tuple(pages))
