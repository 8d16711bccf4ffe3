"""Reading one fragment: a run of rows whose columns may be spread over several data files.

A file of the fragment provides the leaves that its field list names; -2 marks a column that a later file
replaced, -3 to -5 are row lineage. Leaves that no file provides are null. Every file has the fragment's
physical rows, deleted ones included. (Lance table format, data files.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import join as join_arrays
from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import ExpressionError, FormatError, UnsupportedFormatError
from spark_lance.expressions.values import common
from spark_lance.file.base.limits import check_fixed_size
from spark_lance.file.base.nested import has_lists, merge_paths
from spark_lance.file.base.pages import FieldReader, RowReader
from spark_lance.file.base.schema import Field
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import DataFileReader, read_field, take_field
from spark_lance.file.threads import spare_threads
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.data_files import open_data_file, physical_rows
from spark_lance.table.format.deletion import read_deletions
from spark_lance.table.format.table_ref import TableRef

# Rows of one lookup that are at most this far apart are read as one run.
_TAKE_GAP = 1024
# Decoding fewer values of a column takes less time than starting a thread.
_MIN_ROWS_FOR_THREADS = 1 << 15


@dataclass(frozen=True)
class _Part:
    """The part of one top-level field that one file contains.

    Attributes:
        file: the data file.
        field: the top-level field, pruned to the leaves in the file.
        reader: reads the field.
        takes: whether single rows can be decoded.
    """

    file: DataFileReader
    field: Field
    reader: FieldReader
    takes: bool

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        return read_field(self.reader, self.field, self.file.path, start, stop)

    def take(self, rows: npt.NDArray[np.int64]) -> pa.ChunkedArray:
        assert self.takes
        return take_field(cast("RowReader", self.reader), self.field, self.file.path, rows)


class FragmentReader:
    """Reads top-level fields of one fragment by physical row.

    Args:
        table: the table of the fragment.
        fragment: the fragment's message.
        fields: fields of the table's schema, possibly pruned.
        bases: the version's base paths; without them all files must be under the root.

    Raises:
        FormatError, UnsupportedFormatError: a data file is missing, damaged or not supported, or a NOT NULL
            column has no data.
    """

    def __init__(
        self,
        table: TableRef,
        fragment: table_pb2.DataFragment,
        fields: Sequence[Field],
        bases: Bases | None = None,
    ) -> None:
        self.fields = tuple(fields)
        bases = bases or Bases(table)
        self._deletions = partial(read_deletions, table, fragment, bases=bases)
        self._has_deletions = fragment.HasField("deletion_file")
        self._positions = {field: place for place, field in enumerate(self.fields)}
        self._files: list[DataFileReader] = []
        self._parts: list[list[_Part]] = [[] for _ in self.fields]
        field_ids: set[int] = set()
        ids = {node.id for field in self.fields for node in field.walk()}
        for message in fragment.files:
            provided = ids.intersection(message.fields) - field_ids
            if provided:
                self._check_stored(message, provided)
                file = open_data_file(bases, message)
                self._files.append(file)
                self._add_parts(file, {id for id in file.columns if id in provided})
                field_ids |= self._leaves_of(provided)
        self.num_rows = fragment.physical_rows or physical_rows(table, fragment, bases)
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

    def _check_stored(self, file: table_pb2.DataFile, provided: set[int]) -> None:
        """Raise an error for fixed-size lists of structs in files of version 2.0.

        pylance accepts such a column, but stores no values, and cannot read it.
        """
        if (file.file_major_version, file.file_minor_version) != FileVersion.V2_0.manifest:
            return
        for field in self.fields:
            for node in field.walk():
                if node.kind == "fsl_struct" and node.id in provided:
                    raise UnsupportedFormatError(
                        f"column {field.name!r}: files of version 2.0 have no values of {node.logical_type}",
                        path=file.path,
                    )

    def is_light(self) -> bool:
        """Return whether the reader holds only open local files, and no decoded pages."""
        parts = (part for parts in self._parts for part in parts)
        light = all(part.takes and cast("RowReader", part.reader).is_light() for part in parts)
        return light and all(file.source.state is not None for file in self._files)

    def begin_again(self) -> bool:
        """Return whether the reader can be used again: False if a file was replaced."""
        return all(file.source.is_current() for file in self._files)

    def _leaves_of(self, ids: set[int]) -> set[int]:
        """Return the ids of leaves; only the ids of parents may be in several files."""
        parents = {node.id for field in self.fields for node in field.walk() if node.kind in _STRUCTURAL}
        return ids - parents

    def _add_parts(self, file: DataFileReader, provided: set[int]) -> None:
        for field, parts in zip(self.fields, self._parts, strict=True):
            pruned = field.prune(lambda leaf: leaf.id in provided)
            if pruned is not None:
                reader = file.open_field(pruned)
                parts.append(_Part(file, pruned, reader, isinstance(reader, RowReader)))

    def read(self, start: int, stop: int, fields: Sequence[Field] | None = None) -> list[pa.ChunkedArray]:
        """Return one column per field for physical rows [start, stop), deleted rows included.

        Args:
            start, stop: the physical rows.
            fields: a subset of the reader's fields; all by default.

        Raises:
            FormatError, UnsupportedFormatError: a page is damaged or its encoding is not supported.
        """
        field_parts = self._field_parts(fields)
        for file in self._files:
            readers = [part.reader for _, parts in field_parts for part in parts if part.file is file]
            if readers:
                file.prefetch(readers, start, stop)
        rows = np.arange(start, stop) if self._has_deletions else None
        columns = self._read_columns(field_parts, start, stop, rows)
        for file in self._files:
            file.source.release()
        return columns

    def _read_columns(
        self,
        field_parts: Sequence[tuple[Field, Sequence[_Part]]],
        start: int,
        stop: int,
        rows: npt.NDArray[np.int64] | None,
    ) -> list[pa.ChunkedArray]:
        """Return physical rows [start, stop), decoding columns in parallel if cores are idle."""
        parts = [part for _, parts in field_parts for part in parts]
        threads = min(spare_threads(), len(parts))
        if threads < 2 or stop - start < _MIN_ROWS_FOR_THREADS:
            return self._merge_columns(field_parts, stop - start, lambda part: part.read(start, stop), rows)
        with ThreadPoolExecutor(threads) as pool:
            waiting = {id(part): pool.submit(part.read, start, stop) for part in parts}
            return self._merge_columns(
                field_parts, stop - start, lambda part: waiting[id(part)].result(), rows
            )

    def take(
        self, rows: npt.NDArray[np.int64], fields: Sequence[Field] | None = None
    ) -> list[pa.ChunkedArray]:
        """Return one column per field for some physical rows.

        Args:
            rows: int64, ascending physical offsets without repeats.
            fields: a subset of the reader's fields; all by default.

        Raises:
            FormatError, UnsupportedFormatError: as `read`.
        """
        field_parts = self._field_parts(fields)
        parts = [part for _, parts in field_parts for part in parts]
        if not all(part.takes for part in parts):
            return self._take_runs(rows, [field for field, _ in field_parts])
        if self._is_mapped:
            return self._merge_columns(field_parts, len(rows), lambda part: part.take(rows), rows)
        for file in self._files:
            readers = [part.reader for part in parts if part.file is file]
            if readers:
                file.prefetch_rows(readers, rows)
        columns = self._merge_columns(field_parts, len(rows), lambda part: part.take(rows), rows)
        for file in self._files:
            file.source.release()
        return columns

    def read_runs(
        self, runs: Sequence[tuple[int, int]], fields: Sequence[Field] | None = None
    ) -> list[pa.ChunkedArray]:
        """Return one column per field for runs of physical rows, concatenated.

        Values that are stored in the layout of the result are not copied.

        Args:
            runs: ascending runs [start, stop).
            fields: a subset of the reader's fields; all by default.

        Raises:
            FormatError, UnsupportedFormatError: as `read`.
        """
        rows = np.concatenate([np.arange(start, stop, dtype=np.int64) for start, stop in runs])
        field_parts = self._field_parts(fields)
        if not self._is_mapped or not all(part.takes for _, parts in field_parts for part in parts):
            return self.take(rows, fields)

        def read(part: _Part) -> pa.ChunkedArray:
            if cast("RowReader", part.reader).is_zero_copy():
                pieces = [part.read(start, stop) for start, stop in runs]
                return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks], pieces[0].type)
            return part.take(rows)

        return self._merge_columns(field_parts, len(rows), read, rows)

    @property
    def _is_mapped(self) -> bool:
        """Whether all files are memory-mapped, so that a read needs no requests."""
        return all(file.source.is_mapped for file in self._files)

    def _take_runs(self, rows: npt.NDArray[np.int64], fields: Sequence[Field]) -> list[pa.ChunkedArray]:
        """Take rows by reading whole runs of rows that are near each other."""
        schema = pa.schema([field.arrow_field() for field in fields])
        tables = [pa.Table.from_batches([], schema)]
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > _TAKE_GAP) + 1):
            if len(run):
                start, stop = int(run[0]), int(run[-1]) + 1
                table = pa.Table.from_arrays(self.read(start, stop, fields), schema=schema)
                tables.append(pick_rows(table, run - start))
        return list(pa.concat_tables(tables).columns)

    def runs_maybe(self, path: Sequence[str], comparison: str, value: Any) -> list[tuple[int, int]]:
        """Return the runs of rows [start, stop) that may match a comparison; all rows without statistics.

        Only legacy files have statistics of the values in their pages.

        Args:
            path: the name of a column, then of struct fields; one of the reader's fields.
            comparison: "=", "<", "<=", ">" or ">=".
            value: a literal.

        Raises:
            FormatError: the statistics are damaged.
        """
        every = [(0, self.num_rows)] if self.num_rows else []
        for field, parts in zip(self.fields, self._parts, strict=True):
            if field.name == path[0] and len(parts) == 1 and isinstance(parts[0].file, LegacyFileReader):
                nested = field.find_path(path[1:])
                leaf = None if nested is None or nested[-1].children else nested[-1]
                scalar = None if leaf is None else _to_stored_type(value, leaf.arrow_type())
                if leaf is not None and scalar is not None:
                    operator = "==" if comparison == "=" else comparison
                    return parts[0].file.page_ranges_maybe(leaf, operator, scalar)
        return every

    def stored_bytes(self, fields: Sequence[Field]) -> int:
        """Return the stored size of some of the reader's fields in bytes."""
        field_parts = self._field_parts(fields)
        return sum(part.file.stored_bytes(part.field) for _, parts in field_parts for part in parts)

    def row_bytes(self, fields: Sequence[Field] | None = None) -> float:
        """Return an estimate of the Arrow bytes per row of `fields`, from types and the sizes of pages."""
        return sum(_field_bytes(field, parts) for field, parts in self._field_parts(fields))

    def _merge_columns(
        self,
        field_parts: Sequence[tuple[Field, Sequence[_Part]]],
        count: int,
        read: Callable[[_Part], pa.ChunkedArray],
        rows: npt.NDArray[np.int64] | None,
    ) -> list[pa.ChunkedArray]:
        """Return one column per field, merged from the results of `read` for its parts.

        Args:
            field_parts: the fields and their parts.
            count: the number of rows.
            read: reads a part.
            rows: the physical offsets of the rows if some of them may be deleted.
        """
        columns = []
        for field, parts in field_parts:
            ignored = None
            if len(parts) > 1 and rows is not None and self._has_deletions and has_lists(field):
                # Files may disagree on deleted rows: even the lengths of lists can differ.
                ignored = np.isin(rows, self._deleted)
            columns.append(_merge_parts(field, parts, count, read, ignored))
        return columns

    @cached_property
    def _deleted(self) -> npt.NDArray[np.uint32]:
        return self._deletions(physical_rows=self.num_rows)

    def _field_parts(self, fields: Sequence[Field] | None) -> list[tuple[Field, list[_Part]]]:
        places = range(len(self.fields)) if fields is None else [self._positions[field] for field in fields]
        return [(self.fields[place], self._parts[place]) for place in places]


_STRUCTURAL = frozenset({"list", "map", "struct", "fsl_struct"})


def _merge_parts(
    field: Field,
    parts: Sequence[_Part],
    rows: int,
    read: Callable[[_Part], pa.ChunkedArray],
    ignored: npt.NDArray[np.bool_] | None,
) -> pa.ChunkedArray:
    if not parts:
        check_fixed_size(field.arrow_type(), rows)
        return pa.chunked_array([pa.nulls(rows, field.arrow_type())])
    if len(parts) == 1 and parts[0].field == field:
        return read(parts[0])
    arrays = [_combine_chunks(read(part)) for part in parts]
    try:
        return pa.chunked_array([merge_paths(field, arrays, ignored)])
    except FormatError as error:
        raise error.at(parts[0].file.path, f"column {field.name!r}") from error


def _combine_chunks(array: pa.ChunkedArray) -> pa.Array:
    arrays = join_arrays(array.chunks) or [pa.array([], array.type)]
    if len(arrays) > 1:
        raise UnsupportedFormatError(f"rows of {array.type} whose dictionaries cannot be merged")
    return arrays[0]


def _field_bytes(field: Field, parts: Sequence[_Part]) -> float:
    """Return bytes per row: of the type if it has a fixed width, else twice the stored size."""
    try:
        return fixed_width(field.arrow_type())
    except ValueError:
        byte_count = sum(part.file.stored_bytes(part.field) for part in parts)
        rows = max((part.file.num_rows for part in parts), default=0) or 1
        return 2.0 * byte_count / rows + 8


def fixed_width(kind: pa.DataType) -> float:
    """Return the bytes of one Arrow value, including its validity bit.

    Raises:
        ValueError: the type has no fixed width.
    """
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * fixed_width(kind.value_type) + 0.125
    if pa.types.is_struct(kind):
        return sum((fixed_width(field.type) for field in kind), 0.125)
    return float(kind.bit_width) / 8 + 0.125


def _to_stored_type(value: Any, kind: pa.DataType) -> pa.Scalar | None:
    """Return a literal in a stored type; None if it does not fit or the type's statistics are unusable."""
    # Bounds of floats exclude NaN, which is greater than all other numbers.
    if value is None or pa.types.is_floating(kind) or pa.types.is_dictionary(kind):
        return None
    try:
        column, scalar = common(pa.nulls(1, kind), value)
    except (ExpressionError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return scalar if column.type == kind and scalar.type == kind else None
