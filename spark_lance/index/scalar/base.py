"""Base class of the scalar indexes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from spark_lance.errors import OptionError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.index.base.building import Numbers, Rows, SegmentTarget
from spark_lance.index.base.entries import Segment
from spark_lance.index.base.files import RowAddressMap
from spark_lance.index.scalar.column_predicate import ColumnPredicate
from spark_lance.proto import table_pb2
from spark_lance.table.format.row_set import RowSet


class ScalarIndex(ABC):
    """One open segment of a scalar index. Each call of `find` reads only the parts of the files it needs."""

    name: ClassVar[str]
    # Last part of the details' type URL in lower case; the type URL; highest supported format version.
    label: ClassVar[str]
    type_url: ClassVar[str]
    newest: ClassVar[int] = 0
    # Whether `find` returns exactly the rows that match a condition.
    is_exact: ClassVar[bool] = False
    # Whether `move` is supported.
    can_move: ClassVar[bool] = False

    def __init__(self, segment: Segment, values: pa.DataType | None = None) -> None:
        """Open a segment.

        Args:
            segment: the segment.
            values: type of the indexed values. Not all files store it; without it `find` may return None.
        """
        self.segment = segment
        self.values = values

    @property
    def has_addresses(self) -> bool:
        """Whether this segment refers to rows by address even if the table has stable row ids."""
        return self.addresses_when(self.segment.entry.index_version)

    @classmethod
    def addresses_when(cls, version: int) -> bool:
        """Return whether a format version refers to rows by address even if the table has stable row ids."""
        return False

    @abstractmethod
    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return a superset of the rows that match a condition; None if the index cannot answer.

        Raises:
            ExpressionError: the condition does not fit the values.
            FormatError: stored bytes are damaged.
        """

    def find_bytes(self, probe: ColumnPredicate) -> int | None:
        """Estimate the bytes that `find` reads; None if it cannot answer, or the size is unknown."""
        del probe
        return None

    @classmethod
    @abstractmethod
    def supports_type(cls, kind: pa.DataType) -> bool:
        """Return whether values of this type can be indexed."""

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column with values of this type can be indexed."""
        return not field.is_json and cls.supports_type(kind)

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return whether we can extend an index of a column, including indexes of other writers.

        Other writers index the stored JSONB bytes or the text; we do neither.
        """
        return not field.is_json

    @classmethod
    @abstractmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write a segment; return file name -> size in bytes."""

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite this segment with the current addresses of its rows; return file name -> size in bytes.

        Args:
            target: location of the new files.
            remap: maps row numbers to current addresses.

        Raises:
            FormatError, UnsupportedFormatError: the segment is damaged, or uses an unsupported feature.
        """
        raise UnsupportedFormatError(f"moving the rows of an index {self.name}")

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        existing_rows: Callable[[RowSet], RowSet],
    ) -> dict[str, int] | None:
        """Merge several segments that cover different fragments into one.

        Args:
            segments: uncommitted segments with the same options. All their rows are live.
            kind: type of the values.
            target: location of the new segment.
            existing_rows: removes rows that cannot exist from a stored set.

        Returns:
            File name -> size in bytes; None if the segment must be built from the table again.
        """
        return None

    def figures(self) -> dict[str, Any]:
        """Return the statistics of this segment, by name."""
        return {}

    def can_add_segments(self) -> bool:
        """Return whether new segments can be added next to this one."""
        return True

    def options(self) -> dict[str, Any]:
        """Return the options that build a segment like this one."""
        return {}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Check that this kind of index has the given options.

        Raises:
            OptionError: an option is unknown or has an invalid value.
        """
        if options:
            raise OptionError(f"an index {cls.name} takes no options: leave out {', '.join(options)}")

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the encoded details for the manifest entry of a segment with these options."""
        return b""

    @classmethod
    def built_by_address(cls, stable_row_ids: bool, options: Mapping[str, Any]) -> bool:
        """Return whether a new segment refers to rows by address instead of row id.

        Raises:
            OptionError: a segment with these options cannot be built for such a table.
        """
        return cls.addresses_when(cls.index_version(stable_row_ids))

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return the format version of new segments."""
        return 0


def remap_sets(sets: Sequence[Numbers], remap: RowAddressMap) -> list[Numbers]:
    """Return each set with current row numbers, ascending, without rows that no longer exist."""
    owners = np.repeat(np.arange(len(sets)), [len(rows) for rows in sets])
    numbers, is_present = remap(np.concatenate([np.empty(0, np.uint64), *sets]))
    numbers, owners = numbers[is_present], owners[is_present]
    counts = np.bincount(owners, minlength=len(sets))
    return np.split(numbers[np.lexsort((numbers, owners))], np.cumsum(counts)[:-1])
