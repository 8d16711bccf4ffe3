"""Data files of version 2.1 and 2.2 written by pylance."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa

from spark_lance.file.reader import FileReader
from spark_lance.file.v2_1.read.page import page_layout
from spark_lance.io.store import open_store
from spark_lance.proto import encodings21_pb2 as pb

__all__ = ["layouts", "one_column", "open_file", "pylance_file"]


def pylance_file(table: pa.Table | pa.RecordBatchReader, version: str, root: Path) -> Path:
    """Write a table as one data file and return its path; the table itself is at `root`."""
    lance.write_dataset(
        table,
        str(root),
        data_storage_version=version,  # type: ignore[arg-type]
        max_rows_per_file=1 << 30,
    )
    (file,) = (root / "data").iterdir()
    return file


def open_file(path: Path) -> FileReader:
    """Open a data file of the local disk."""
    store, inside = open_store(str(path))
    return FileReader(store, inside)


def layouts(reader: FileReader, column: int = 0) -> list[pb.PageLayout]:
    """Return the page descriptions of a column."""
    return [page_layout(page) for page in reader.column(column).pages]


def one_column(values: pa.Array | pa.ChunkedArray, **metadata: str) -> pa.Table:
    """Return a table with the column "a"; keywords are field metadata named `lance-encoding:<keyword>`."""
    keys = {f"lance-encoding:{key.replace('_', '-')}": value for key, value in metadata.items()}
    field = pa.field("a", values.type, metadata=keys or None)
    return pa.Table.from_arrays([values], schema=pa.schema([field]))
