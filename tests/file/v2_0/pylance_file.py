"""2.0 data files written by pylance, opened by FileReader."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa

from spark_lance.file.reader import FileReader
from spark_lance.io.store import open_store

__all__ = ["one_column", "open_file", "pylance_file", "written_by_pylance"]


def pylance_file(table: pa.Table, root: Path) -> Path:
    """Write a table with pylance and return its only data file."""
    lance.write_dataset(table, str(root), data_storage_version="2.0")
    (file,) = (root / "data").iterdir()
    return file


def open_file(path: Path) -> FileReader:
    """Open a data file of the local disk."""
    store, inside = open_store(str(path))
    return FileReader(store, inside)


def written_by_pylance(table: pa.Table, root: Path) -> FileReader:
    """Write a table with pylance and open its only data file."""
    return open_file(pylance_file(table, root))


def one_column(values: pa.Array | pa.ChunkedArray, **metadata: str) -> pa.Table:
    """Return a table with the column "a"; keywords are field metadata named `lance-encoding:<keyword>`."""
    keys = {f"lance-encoding:{key}": value for key, value in metadata.items()}
    return pa.Table.from_arrays(
        [values], schema=pa.schema([pa.field("a", values.type, metadata=keys or None)])
    )
