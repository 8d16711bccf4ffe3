"""The stored size of each column, and the encodings of its pages. Only the footers of files are read."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from spark_lance.errors import UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.file.reader import FileReader, encoding_names
from spark_lance.io.progress import report
from spark_lance.proto import table_pb2
from spark_lance.table.format.data_files import open_data_file
from spark_lance.table.reading.snapshot import Snapshot

_READERS = 16


@dataclass(frozen=True)
class ColumnSize:
    """The size of a top-level column.

    Attributes:
        name: the column.
        type: its Arrow type; None if this release does not support it.
        bytes: the size of its pages in all data files.
        pages: the number of pages; None if there are legacy files, whose pages have no description.
        encodings: the number of pages per encoding, the most frequent first.
    """

    name: str
    type: str | None
    bytes: int
    pages: int | None
    encodings: dict[str, int]


def column_sizes(snapshot: Snapshot) -> list[ColumnSize]:
    """Return the sizes of the columns of a version, in order; includes deleted rows, but not bytes of blobs.

    Raises:
        FormatError, UnsupportedFormatError: a data file is damaged or not supported.
    """
    fields = snapshot.manifest.schema.fields
    files = [file for fragment in snapshot.manifest.fragments for file in fragment.files]
    sizes_by_field: Counter[int] = Counter()
    encodings: dict[int, Counter[str]] = {field.id: Counter() for field in fields}
    legacy = False

    def read_sizes(file: table_pb2.DataFile) -> tuple[dict[int, int], dict[int, Counter[str]] | None]:
        return _read_file_sizes(snapshot, fields, file)

    with ThreadPoolExecutor(_READERS) as pool:
        for count, (sizes, pages) in enumerate(pool.map(read_sizes, files), 1):
            sizes_by_field.update(sizes)
            legacy = legacy or pages is None
            for number, counts in (pages or {}).items():
                encodings[number].update(counts)
            report("reading files", count, len(files), "files")
    return [
        ColumnSize(
            field.name,
            _type_of(field),
            sizes_by_field[field.id],
            None if legacy else encodings[field.id].total(),
            dict(encodings[field.id].most_common()),
        )
        for field in fields
    ]


def _read_file_sizes(
    snapshot: Snapshot, fields: tuple[Field, ...], file: table_pb2.DataFile
) -> tuple[dict[int, int], dict[int, Counter[str]] | None]:
    """Return the sizes and the encodings by field id; None instead of encodings for legacy files."""
    reader = open_data_file(snapshot.bases, file)
    present = [top for top in fields if any(node.id in reader.columns for node in top.walk())]
    sizes = {top.id: reader.stored_bytes(top) for top in present}
    if not isinstance(reader, FileReader):
        return sizes, None
    pages = {
        top.id: Counter(
            encoding_names(page)
            for node in top.walk()
            if node.id in reader.columns
            for page in reader.column(reader.columns[node.id]).pages
        )
        for top in present
    }
    return sizes, pages


def _type_of(field: Field) -> str | None:
    try:
        return str(field.arrow_type())
    except UnsupportedFormatError:
        return None
