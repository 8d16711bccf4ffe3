"""The common part of all indices of single values."""

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
    """One open segment. `find` reads the parts of its files that it needs when it is called."""

    name: ClassVar[str]
    # Last part of the details' type URL in lower case; the URL itself; highest format version known here.
    label: ClassVar[str]
    type_url: ClassVar[str]
    newest: ClassVar[int] = 0
    # Whether `find` returns exactly the rows for which a condition is true.
    is_exact: ClassVar[bool] = False
    # Whether `move` works.
    can_move: ClassVar[bool] = False

    def __init__(self, segment: Segment, values: pa.DataType | None = None) -> None:
        """Open a segment.

        Args:
            segment: what is opened.
            values: the type of the indexed values, which not all files tell; without it `find` may not help.
        """
        self.segment = segment
        self.values = values

    @property
    def has_addresses(self) -> bool:
        """Whether this segment names rows by address even in a table with stable row ids."""
        return self.addresses_when(self.segment.entry.index_version)

    @classmethod
    def addresses_when(cls, version: int) -> bool:
        """Return whether a format version names rows by address even in tables with stable row ids."""
        return False

    @abstractmethod
    def find(self, probe: ColumnPredicate) -> RowSet | None:
        """Return rows that hold all for which a condition is true; None if the index does not help.

        Raises:
            ExpressionError: the condition does not fit the values.
            FormatError: stored bytes are damaged.
        """

    def find_bytes(self, probe: ColumnPredicate) -> int | None:
        """Return about the bytes that `find` reads; None if it does not help, or this is not known."""
        del probe
        return None

    @classmethod
    @abstractmethod
    def fits(cls, kind: pa.DataType) -> bool:
        """Return whether values of a type can be indexed."""

    @classmethod
    def fits_field(cls, field: Field, kind: pa.DataType) -> bool:
        """Return whether a column whose values are of a type can be indexed."""
        return not field.is_json and cls.fits(kind)

    @classmethod
    def extends(cls, entry: table_pb2.IndexMetadata, field: Field) -> bool:
        """Return whether an index of a column, which others may have made, can be extended here.

        Others index documents of JSON as what they are stored as, or as texts, which is not done here.
        """
        return not field.is_json

    @classmethod
    @abstractmethod
    def build(cls, rows: Rows, target: SegmentTarget) -> dict[str, int]:
        """Write a segment; return file name -> bytes."""

    def move(self, target: SegmentTarget, remap: RowAddressMap) -> dict[str, int]:
        """Rewrite this segment with the current addresses of its rows; return file name -> bytes.

        Args:
            target: where it goes.
            remap: tells where rows are.

        Raises:
            FormatError, UnsupportedFormatError: the segment is damaged, or has what is not known here.
        """
        raise UnsupportedFormatError(f"moving the rows of an index {self.name}")

    @classmethod
    def merge(
        cls,
        segments: Sequence[Segment],
        kind: pa.DataType,
        target: SegmentTarget,
        bounded: Callable[[RowSet], RowSet],
    ) -> dict[str, int] | None:
        """Write one segment with the rows of several, which cover different fragments.

        Args:
            segments: built with the same options, just now: all their rows count.
            kind: type of the values.
            target: where the segment goes.
            bounded: returns the rows of a stored set that the table can have.

        Returns:
            File name -> bytes; None if the values are to be read from the table again.
        """
        return None

    def figures(self) -> dict[str, Any]:
        """Return figures of this segment, by name."""
        return {}

    def stands_beside(self) -> bool:
        """Whether an index may have this segment and new ones that are built here."""
        return True

    def options(self) -> dict[str, Any]:
        """Return the options with which a segment like this one is built."""
        return {}

    @classmethod
    def check(cls, options: Mapping[str, Any]) -> None:
        """Refuse options that a kind of index does not have.

        Raises:
            OptionError: there is one.
        """
        if options:
            raise OptionError(f"an index {cls.name} has no option {', '.join(options)}")

    @classmethod
    def details(cls, options: Mapping[str, Any]) -> bytes:
        """Return the message of the manifest entry of a segment that is built with some options."""
        return b""

    @classmethod
    def built_by_address(cls, stable_row_ids: bool, options: Mapping[str, Any]) -> bool:
        """Return whether rows are named by address, and not by row id, when a segment is built.

        Raises:
            OptionError: a segment with these options cannot be built for such a table.
        """
        return cls.addresses_when(cls.index_version(stable_row_ids))

    @classmethod
    def index_version(cls, stable_row_ids: bool) -> int:
        """Return the format version that is written."""
        return 0


def moved_sets(sets: Sequence[Numbers], remap: RowAddressMap) -> list[Numbers]:
    """Return sets of rows as they are now, ascending; those that are gone are left out."""
    owners = np.repeat(np.arange(len(sets)), [len(rows) for rows in sets])
    numbers, there = remap(np.concatenate([np.empty(0, np.uint64), *sets]))
    numbers, owners = numbers[there], owners[there]
    counts = np.bincount(owners, minlength=len(sets))
    return np.split(numbers[np.lexsort((numbers, owners))], np.cumsum(counts)[:-1])
