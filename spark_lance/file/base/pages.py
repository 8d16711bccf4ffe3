"""The modules that decode and encode the pages of each file version."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, PAGE_LAYOUT_URL, ColumnMetadata, EncodedPage
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource, Plan
from spark_lance.file.base.version import FileVersion


class FieldReader(Protocol):
    """Decodes one top-level field of one file. `field` may be pruned to some of its leaves."""

    @property
    def num_rows(self) -> int:
        """Number of rows of the field, from its page descriptions."""

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the (offset, size) byte ranges that are known to be needed for rows [start, stop)."""

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        """Return rows [start, stop) as the field's Arrow type.

        Raises:
            FormatError: the pages are damaged.
            UnsupportedFormatError: an encoding is not supported.
        """


@runtime_checkable
class RowReader(Protocol):
    """Further methods of field readers for file versions that can decode single rows."""

    def take(self, rows: npt.NDArray[np.int64]) -> pa.ChunkedArray:
        """Return the rows with these ascending unique numbers. Errors as for `FieldReader.read`."""

    def plan_read(self, start: int, stop: int) -> Plan:
        """Return the byte ranges that `read` needs, step by step. Errors as for `FieldReader.read`."""
        ...

    def plan_take(self, rows: npt.NDArray[np.int64]) -> Plan:
        """Return the byte ranges that `take` needs, step by step. Errors as for `FieldReader.read`."""
        ...

    def is_zero_copy(self) -> bool:
        """Return whether reads are slices of the file, without a copy."""

    def is_light(self) -> bool:
        """Return whether no decoded page is kept for the next read."""


class FieldWriter(Protocol):
    """Encodes runs of rows of one top-level field into pages."""

    def encode(self, array: pa.Array, row_start: int) -> list[EncodedPage]:
        """Return the pages, one or more per owned column, of the rows in `array`."""


class OpenFieldReader(Protocol):
    """Creates a FieldReader. `columns` maps the id of each owning field to its column."""

    def __call__(
        self, field: Field, columns: Mapping[int, ColumnMetadata], source: PageSource, version: FileVersion
    ) -> FieldReader:
        """Return the reader of a field."""
        ...


class OpenFieldWriter(Protocol):
    """Creates a FieldWriter whose columns are numbered from `column_base`."""

    def __call__(self, field: Field, column_base: int, version: FileVersion) -> FieldWriter:
        """Return the writer of a field."""
        ...


class PageFormat(NamedTuple):
    """Reader, writer and the type url of the page encodings of one family of file versions.

    The modules are imported when first used, so a process that only reads loads no writer.
    """

    reader_module: str
    writer_module: str
    type_url: str

    @property
    def reader(self) -> OpenFieldReader:
        """The factory of readers."""
        return cast("OpenFieldReader", import_module(self.reader_module).FieldReader)

    @property
    def writer(self) -> OpenFieldWriter:
        """The factory of writers."""
        return cast("OpenFieldWriter", import_module(self.writer_module).FieldWriter)


_V2_0 = PageFormat(
    "spark_lance.file.v2_0.field_reader", "spark_lance.file.v2_0.field_writer", ARRAY_ENCODING_URL
)
_V2_1 = PageFormat(
    "spark_lance.file.v2_1.read.field_reader", "spark_lance.file.v2_1.write.field_writer", PAGE_LAYOUT_URL
)

PAGE_FORMATS: Mapping[FileVersion, PageFormat] = MappingProxyType(
    {
        FileVersion.V2_0: _V2_0,
        FileVersion.V2_1: _V2_1,
        FileVersion.V2_2: _V2_1,
        FileVersion.V2_3: _V2_1,
    }
)
