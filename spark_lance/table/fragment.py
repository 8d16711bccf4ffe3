"""Reading one fragment: a run of rows whose columns may be spread over several data files.

A file of the fragment provides the leaves that its field list names; -2 marks a column that a later file
replaced. Leaves that no file provides are null. Every file has the fragment's physical rows, deleted ones
included. (Lance table format, data files.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.arrays import join as join_arrays
from spark_lance.file.nested import merge_paths
from spark_lance.file.opening import DataFileReader, open_file
from spark_lance.file.pages import FieldReader
from spark_lance.file.reader import read_field
from spark_lance.file.schema import Field
from spark_lance.file.version import FileVersion
from spark_lance.io.store import Store, join
from spark_lance.proto import table_pb2
from spark_lance.table.paths import DATA_DIR

__all__ = ["FragmentReader", "physical_rows"]


def physical_rows(store: Store, root: str, fragment: table_pb2.DataFragment) -> int:
    """Return the rows of a fragment, deleted ones included; from a data file if the manifest is silent.

    Raises:
        FormatError: neither tells.
    """
    if fragment.physical_rows or not fragment.files:
        return fragment.physical_rows
    return _open_file(store, root, fragment.files[0]).num_rows


def _open_file(store: Store, root: str, file: table_pb2.DataFile) -> DataFileReader:
    if file.HasField("base_id"):
        raise UnsupportedFormatError("data files in other base paths are not supported", file.path)
    version = FileVersion.from_manifest(file.file_major_version, file.file_minor_version)
    path = join(root, DATA_DIR, file.path)
    try:
        return open_file(
            store, path, version=version, size=file.file_size_bytes or None, columns=_columns(file, version)
        )
    except FileNotFoundError as error:
        raise FormatError("the manifest names a data file that does not exist", path) from error


def _columns(file: table_pb2.DataFile, version: FileVersion) -> dict[int, int]:
    """Return field id -> column number; legacy files have no columns, only fields."""
    if version is FileVersion.V0_1:
        return dict.fromkeys((field for field in file.fields if field >= 0), 0)
    if len(file.fields) != len(file.column_indices):
        raise FormatError(
            f"{len(file.fields)} fields but {len(file.column_indices)} column indices", file.path
        )
    return {
        field: column for field, column in zip(file.fields, file.column_indices, strict=True) if field >= 0
    }


@dataclass(frozen=True)
class _Part:
    """What one file provides of one top-level field."""

    file: DataFileReader
    field: Field
    reader: FieldReader

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        return read_field(self.reader, self.field, self.file.path, start, stop)


class FragmentReader:
    """Reads top-level fields of one fragment by physical row.

    Args:
        store, root: the table.
        fragment: its message.
        fields: fields of the table's schema, possibly pruned.

    Raises:
        FormatError, UnsupportedFormatError: a data file is missing, damaged or not supported, or a column
            that may not be null has no data.
    """

    def __init__(
        self, store: Store, root: str, fragment: table_pb2.DataFragment, fields: Sequence[Field]
    ) -> None:
        self.fields = tuple(fields)
        self._files: list[DataFileReader] = []
        self._parts: list[list[_Part]] = [[] for _ in self.fields]
        taken: set[int] = set()
        wanted = {node.id for field in self.fields for node in field.walk()}
        for message in fragment.files:
            provided = wanted.intersection(message.fields) - taken
            if provided:
                file = _open_file(store, root, message)
                self._files.append(file)
                self._add_parts(file, {id for id in file.columns if id in provided})
                taken |= self._leaves_of(provided)
        self.num_rows = fragment.physical_rows or physical_rows(store, root, fragment)
        for file in self._files:
            if file.num_rows != self.num_rows:
                raise FormatError(
                    f"the file has {file.num_rows} rows, its fragment {fragment.id} has {self.num_rows}",
                    file.path,
                )
        for field, parts in zip(self.fields, self._parts, strict=True):
            if not parts and not field.nullable and self.num_rows:
                raise FormatError(
                    f"column {field.name!r} must not be null, but fragment {fragment.id} lacks it"
                )

    def _leaves_of(self, ids: set[int]) -> set[int]:
        """Return those ids that are leaves: parents may be listed by several files."""
        parents = {node.id for field in self.fields for node in field.walk() if node.kind in _STRUCTURAL}
        return ids - parents

    def _add_parts(self, file: DataFileReader, provided: set[int]) -> None:
        for field, parts in zip(self.fields, self._parts, strict=True):
            pruned = field.prune(lambda leaf: leaf.id in provided)
            if pruned is not None:
                parts.append(_Part(file, pruned, file.open_field(pruned)))

    def read(self, start: int, stop: int) -> list[pa.ChunkedArray]:
        """Return physical rows [start, stop) of every field, in the order of `fields`.

        Raises:
            FormatError, UnsupportedFormatError: a page is damaged or its encoding is not supported.
        """
        for file in self._files:
            readers = [part.reader for parts in self._parts for part in parts if part.file is file]
            file.prefetch(readers, start, stop)
        columns = [
            self._read_field(field, parts, start, stop)
            for field, parts in zip(self.fields, self._parts, strict=True)
        ]
        for file in self._files:
            file.source.release()
        return columns

    def _read_field(self, field: Field, parts: Sequence[_Part], start: int, stop: int) -> pa.ChunkedArray:
        if not parts:
            return pa.chunked_array([pa.nulls(stop - start, field.arrow_type())])
        if len(parts) == 1 and parts[0].field == field:
            return parts[0].read(start, stop)
        arrays = [_combined(part.read(start, stop)) for part in parts]
        try:
            return pa.chunked_array([merge_paths(field, arrays)])
        except FormatError as error:
            raise error.at(parts[0].file.path, f"column {field.name!r}") from error

    def row_bytes(self) -> float:
        """Estimate the Arrow bytes of one row, from types and the sizes of pages."""
        return sum(_field_bytes(field, parts) for field, parts in zip(self.fields, self._parts, strict=True))


_STRUCTURAL = frozenset({"list", "map", "struct", "fsl_struct"})


def _combined(array: pa.ChunkedArray) -> pa.Array:
    arrays = join_arrays(array.chunks) or [pa.array([], array.type)]
    if len(arrays) > 1:
        raise UnsupportedFormatError(f"rows of {array.type} whose dictionaries cannot be united")
    return arrays[0]


def _field_bytes(field: Field, parts: Sequence[_Part]) -> float:
    """Return the width of a fixed-width field, else twice what its pages take on disk, per row."""
    try:
        return float(field.arrow_type().bit_width) / 8 + 0.125
    except ValueError:
        stored = sum(part.file.stored_bytes(part.field) for part in parts)
        rows = max((part.file.num_rows for part in parts), default=0) or 1
        return 2.0 * stored / rows + 8
