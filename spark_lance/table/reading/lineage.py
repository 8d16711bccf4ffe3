"""Row lineage: the stable ids of a fragment's rows, and the versions that created and last changed them.

A fragment records the place of each of the three sequences:

    row_id_sequence                    inline_row_ids                     column_row_ids
    created_at_version_sequence        inline_created_at_versions         column_created_at_versions
    last_updated_at_version_sequence   inline_last_updated_at_versions    column_last_updated_at_versions

The inline ones are in the manifest (see `rowids`). The others are empty messages: exactly one data file of
the fragment lists the field -3, -4 or -5, a column of uint64 without nulls and a value for each physical row.
Such a column is valid only if the fragment has the empty message: otherwise an inline sequence replaces it. A
missing version sequence means version 1 for every row. (Lance table format, stable row ids.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import numbers_to_numpy, one_array
from spark_lance.errors import FormatError
from spark_lance.file.base.schema import Field, Schema
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.rowids import (
    CREATED_AT_FIELD,
    ROW_ID_FIELD,
    UPDATED_AT_FIELD,
    decode_row_ids,
    decode_row_versions,
    pack_row_ids,
    pack_row_versions,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment import FragmentReader

UInt64Array = npt.NDArray[np.uint64]

ROW_ID = "_rowid"
CREATED_AT = "_row_created_at_version"
UPDATED_AT = "_row_last_updated_at_version"

_FIRST_VERSION = 1


@dataclass(frozen=True)
class _Sequence:
    """The protobuf fields of one sequence, its column in data files, and the decoder of its inline form."""

    arms: str
    inline: str
    field: Field
    decode: Callable[[bytes, int], UInt64Array]


_SEQUENCES = {
    name: _Sequence(arms, inline, Field(number, name, "uint64", nullable=False), decode)
    for name, arms, inline, number, decode in (
        (ROW_ID, "row_id_sequence", "inline_row_ids", ROW_ID_FIELD, decode_row_ids),
        (
            CREATED_AT,
            "created_at_version_sequence",
            "inline_created_at_versions",
            CREATED_AT_FIELD,
            decode_row_versions,
        ),
        (
            UPDATED_AT,
            "last_updated_at_version_sequence",
            "inline_last_updated_at_versions",
            UPDATED_AT_FIELD,
            decode_row_versions,
        ),
    )
}

# The three sequences as columns of data files, in the order of `Lineage`.
LINEAGE_COLUMNS = tuple(sequence.field for sequence in _SEQUENCES.values())

# The config key of a table that stores its sequences in data files when rows are rewritten.
SPILL = "lance.row_lineage.spill"


class Lineage(NamedTuple):
    """A value for each physical row of a fragment; None for all three in a table without stable row ids."""

    row_ids: UInt64Array | None
    created: UInt64Array | None
    updated: UInt64Array | None


def fragment_lineage(
    table: TableRef, fragment: table_pb2.DataFragment, bases: Bases | None = None
) -> Lineage:
    """Return the row ids and row versions of a fragment, from the manifest or from data files.

    Args:
        table: the table.
        fragment: the fragment's message; `physical_rows` must be set.
        bases: the version's base paths; without them all files must be under the root.

    Raises:
        FormatError, UnsupportedFormatError: a sequence does not fit the fragment, or its file cannot be read.
    """
    if fragment.WhichOneof("row_id_sequence") is None:
        return Lineage(None, None, None)
    rows = fragment.physical_rows
    readers = [LineageReader(table, fragment, name, rows, bases) for name in _SEQUENCES]
    return Lineage(*(reader.read(0, rows) for reader in readers))


def with_lineage(schema: Schema) -> Schema:
    """Return the schema of data files that store the three sequences after the columns of `schema`."""
    return replace(schema, fields=(*schema.fields, *LINEAGE_COLUMNS))


def mark_spilled(fragment: table_pb2.DataFragment) -> None:
    """Mark a fragment as one whose data file contains the three sequences."""
    fragment.column_row_ids.SetInParent()
    fragment.column_created_at_versions.SetInParent()
    fragment.column_last_updated_at_versions.SetInParent()


def give_lineage(
    fragments: Sequence[table_pb2.DataFragment],
    ids: npt.NDArray[np.uint64],
    created: npt.NDArray[np.uint64],
    updated: npt.NDArray[np.uint64],
) -> None:
    """Store the three sequences inline in the messages of new fragments.

    Args:
        fragments: new fragments with `physical_rows` set, and without deletions.
        ids, created, updated: one value per row of all fragments, concatenated.
    """
    start = 0
    for fragment in fragments:
        rows = slice(start, start + fragment.physical_rows)
        fragment.inline_row_ids = pack_row_ids(ids[rows])
        fragment.inline_created_at_versions = pack_row_versions(created[rows])
        fragment.inline_last_updated_at_versions = pack_row_versions(updated[rows])
        start = rows.stop


class LineageReader:
    """Reads one of the sequences of a fragment by physical row.

    Args:
        table: the table of the fragment.
        fragment: the fragment's message.
        name: `_rowid`, `_row_created_at_version` or `_row_last_updated_at_version`.
        rows: the number of physical rows of the fragment.
        bases: the version's base paths.

    Raises:
        FormatError, UnsupportedFormatError: the sequence is missing, or it does not fit the fragment.
    """

    def __init__(
        self,
        table: TableRef,
        fragment: table_pb2.DataFragment,
        name: str,
        rows: int,
        bases: Bases | None = None,
    ) -> None:
        kind = _SEQUENCES[name]
        self._name, self._number = name, fragment.id
        self._values: UInt64Array | None = None
        self._column: FragmentReader | None = None
        arm = fragment.WhichOneof(kind.arms)
        if arm is None and name == ROW_ID:
            raise FormatError(f"fragment {fragment.id} has no row ids")
        if arm == kind.inline:
            self._values = kind.decode(getattr(fragment, kind.inline), rows)
        elif arm is not None:
            file_count = sum(kind.field.id in file.fields for file in fragment.files)
            if file_count != 1:
                raise FormatError(
                    f"{file_count} data files of fragment {fragment.id} hold its {name}, not one"
                )
            self._column = FragmentReader(table, fragment, [kind.field], bases)

    def read(self, start: int, stop: int) -> UInt64Array:
        """Return the values of physical rows [start, stop).

        Raises:
            FormatError, UnsupportedFormatError: as `FragmentReader.read`.
        """
        if self._column is not None:
            return self._without_nulls(self._column.read(start, stop)[0])
        if self._values is not None:
            return self._values[start:stop]
        return np.full(stop - start, _FIRST_VERSION, np.uint64)

    def take(self, rows: npt.NDArray[np.int64]) -> UInt64Array:
        """Return the values of physical rows by ascending offsets without repeats; errors as `read`."""
        if self._column is not None:
            return self._without_nulls(self._column.take(rows)[0])
        if self._values is not None:
            return self._values[rows]
        return np.full(len(rows), _FIRST_VERSION, np.uint64)

    def _without_nulls(self, column: pa.ChunkedArray) -> UInt64Array:
        if column.null_count:
            raise FormatError(f"{self._name} of fragment {self._number} holds nulls")
        values: UInt64Array = numbers_to_numpy(one_array(column))
        return values
