"""Copies of index files, as they are or with other row numbers in one column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from spark_lance.arrow.arrays import one_array
from spark_lance.errors import FormatError
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.io.store import Store
from spark_lance.table.format.row_set import RowSet

Numbers = npt.NDArray[np.uint64]


class RowAddressMap(Protocol):
    """Where the rows are that a segment names."""

    def __call__(self, numbers: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Return where rows are, and which of them are still there."""
        ...

    @property
    def possible(self) -> Mapping[int, BitMap]:
        """The rows that the segment can name, by fragment."""
        ...

    def bounded(self, rows: RowSet) -> RowSet:
        """Return the rows of a set that the segment can name.

        Raises:
            FormatError: a fragment has fewer rows.
        """
        ...


_PIECE_BYTES = 32 << 20
_MIN_ROWS = 4096


def new_numbers(remap: RowAddressMap, numbers: Numbers) -> Numbers:
    """Return where rows are; rows that are gone keep a number that names nothing any more."""
    return remap(numbers)[0]


def copy_file(source: IndexFile, store: Store, path: str) -> int:
    """Copy a file byte for byte and return its size.

    Raises:
        FormatError: it does not exist.
    """
    try:
        if source.store == store:
            store.copy(source.path, path)
            return store.size(path)
        data = source.store.read(source.path)
    except FileNotFoundError:
        raise FormatError("a file of an index is missing", source.path) from None
    store.put(path, data)
    return len(data)


def copy_renumbered(
    source: IndexFile, store: Store, path: str, version: FileVersion, column: str, remap: RowAddressMap
) -> int:
    """Write a file with the same rows in the same order, buffers and notes, but new row numbers.

    Args:
        source: the file.
        store, path, version: of the copy.
        column: holds the row numbers.
        remap: where rows are; those that are gone keep their numbers.

    Returns:
        The size of the copy.
    """
    schema = source.arrow_schema
    place = schema.get_field_index(column)
    if place < 0:
        raise FormatError(f"the index file has no column {column}", source.path)
    rows = source.num_rows
    step = max(_MIN_ROWS, rows * _PIECE_BYTES // max(source.num_bytes, 1))
    with IndexFileWriter(store, path, schema, version) as writer:
        # Notes name buffers by number, so these are added in their order and before any others.
        for number in range(1, source.num_buffers):
            writer.add_buffer(source.buffer(number))
        for start in range(0, rows, step):
            table = source.read(schema.names, start, start + step)
            columns = [one_array(table.column(name)) for name in schema.names]
            numbers = columns[place].to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
            columns[place] = pa.array(new_numbers(remap, numbers), pa.uint64())
            writer.write(columns)
        return writer.finish(source.metadata)
