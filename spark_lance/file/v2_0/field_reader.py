"""Reads one top-level field of a 2.0 file.

In version 2.0 each struct, list and leaf owns a column. A column consists of *slots*: rows at the top level
and in structs, items below a list. Each column has its own page boundaries. So each node of the tree reads a
range of slots from the pages that contain it, and lists request a range of items from their child.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import pyarrow as pa

from spark_lance.arrow.arrays import CapacityError
from spark_lance.arrow.texts import check_stored_text
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import ARRAY_ENCODING_URL, ColumnMetadata
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.file.v2_0 import ARRAY_ENCODINGS
from spark_lance.file.v2_0.decoder import Decoder, PageView, Range
from spark_lance.file.v2_0.variable import is_variable
from spark_lance.proto import encodings20_pb2 as pb


class _Node(Protocol):
    """A field and its descendants, as a sequence of slots."""

    num_rows: int

    def ranges(self, start: int, stop: int) -> list[Range]: ...

    def read(self, start: int, stop: int) -> list[pa.Array]:
        """Return slots [start, stop) as one or more arrays; no array if the range is empty."""
        ...


class FieldReader:
    """Decodes one top-level field of a 2.0 file, or a subset of its children."""

    def __init__(
        self,
        field: Field,
        columns: Mapping[int, ColumnMetadata],
        source: PageSource,
        version: FileVersion,
    ) -> None:
        """Open the columns; `columns` maps the id of each field below `field` to its column.

        Raises:
            FormatError: a column is missing.
            UnsupportedFormatError: 2.0 does not store the type, or a blob column is not requested as
                descriptors.
        """
        self._kind = field.arrow_type()
        self._root = _open_node(field, columns, source)

    @property
    def num_rows(self) -> int:
        """Number of rows of the field, from its page descriptions."""
        return self._root.num_rows

    def ranges(self, start: int, stop: int) -> list[Range]:
        """Return the (offset, size) of byte ranges known to be needed for rows [start, stop)."""
        return [each for each in self._root.ranges(start, stop) if each[1]]

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        """Return rows [start, stop). Chunks follow the pages and reference the file's memory where possible.

        Raises:
            FormatError: the pages are damaged or have fewer rows.
            UnsupportedFormatError: an encoding is not supported.
        """
        return pa.chunked_array(self._read_pieces(start, stop), type=self._kind)

    def _read_pieces(self, start: int, stop: int) -> list[pa.Array]:
        """Read slots, split in halves while one Arrow array cannot hold a page's part of them."""
        try:
            return self._root.read(start, stop)
        except CapacityError:
            if stop - start <= 1:
                raise UnsupportedFormatError(
                    f"row {start} holds more than 2 GiB or 2^31 items; make the column large_*"
                ) from None
        middle = (start + stop) // 2
        return [*self._read_pieces(start, middle), *self._read_pieces(middle, stop)]


def _open_node(field: Field, columns: Mapping[int, ColumnMetadata], source: PageSource) -> _Node:
    """Open the columns of a field and its descendants."""
    if field.kind == "struct":
        return _Struct(field, [_open_node(child, columns, source) for child in field.children])
    if field.kind in ("map", "fsl_struct"):
        raise UnsupportedFormatError(f"field {field.name!r}: file version 2.0 has no {field.logical_type}")
    if field.id not in columns:
        raise FormatError(f"field {field.name!r} has no column")
    column = columns[field.id]
    if (field.kind == "blob" or column.blob) and not (field.is_descriptor and column.blob):
        raise UnsupportedFormatError(f"blob column {field.name!r} is read as descriptors only")
    if column.items is not None:
        return _ListedBytes(field, column, column.items, source)
    items = _open_node(field.children[0], columns, source) if field.kind == "list" else None
    return _Column(field, column, source, items)


class _Struct:
    """A struct. It is never null in 2.0, so only the children are read."""

    def __init__(self, field: Field, children: list[_Node]) -> None:
        kind = field.arrow_type()
        self._fields = [kind.field(i) for i in range(kind.num_fields)]
        self._children = children
        self.num_rows = min(child.num_rows for child in children)

    def ranges(self, start: int, stop: int) -> list[Range]:
        return [each for child in self._children for each in child.ranges(start, stop)]

    def read(self, start: int, stop: int) -> list[pa.Array]:
        columns = [child.read(start, stop) for child in self._children]
        if all(len(pieces) == 1 for pieces in columns):
            return [pa.StructArray.from_arrays([pieces[0] for pieces in columns], fields=self._fields)]
        # Pages of the children end at different rows. Batches are split at all of these ends, without a copy.
        chunked = [pa.chunked_array(p, type=f.type) for p, f in zip(columns, self._fields, strict=True)]
        table = pa.Table.from_arrays(chunked, names=[str(i) for i in range(len(chunked))])
        return [pa.StructArray.from_arrays(b.columns, fields=self._fields) for b in table.to_batches()]


class _Column:
    """One column: the slots of a leaf, or of lists, whose child node is `items`."""

    def __init__(self, field: Field, column: ColumnMetadata, source: PageSource, items: _Node | None) -> None:
        self._field = field
        self._kind = field.arrow_type()
        self._column = column
        self._source = source
        self._items = items
        self._ends = list(itertools.accumulate(page.length for page in column.pages))
        self.num_rows = self._ends[-1] if self._ends else 0
        self._first_items: list[int] | None = None
        # The last page stays open with its decoder's decompressed bytes and dictionary items, so that
        # sequential reads decompress each page once.
        self._open_page: tuple[int, Decoder] | None = None

    def _spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Return (page, first slot in page, stop slot in page) for the pages of slots [start, stop).

        Raises:
            FormatError: the column has fewer slots.
        """
        total = self._ends[-1] if self._ends else 0
        if not 0 <= start <= stop <= total:
            raise FormatError(
                f"values {start} to {stop} are needed of the {total} of field {self._field.name!r}",
                place=f"column {self._column.index}",
            )
        spans = []
        page = bisect.bisect_right(self._ends, start)
        while start < stop:
            first = self._ends[page - 1] if page else 0
            upto = min(stop, self._ends[page])
            if start < upto:
                spans.append((page, start - first, upto - first))
            start = upto
            page += 1
        return spans

    def ranges(self, start: int, stop: int) -> list[Range]:
        result: list[Range] = []
        for page, first, last in self._spans(start, stop):
            try:
                result += self._decoder(page).ranges(first, last)
            except (FormatError, UnsupportedFormatError) as error:
                raise self._with_page(error, page) from error
        return result

    def read(self, start: int, stop: int) -> list[pa.Array]:
        return [self._read_page(*span) for span in self._spans(start, stop)]

    def _read_page(self, page: int, start: int, stop: int) -> pa.Array:
        """Read slots [start, stop) of a page, and add the page to errors."""
        try:
            # A non-nullable field may have nulls in rows that were deleted before the column was added:
            # it became non-nullable later.
            return self._decoder(page).read(start, stop)
        except (FormatError, UnsupportedFormatError) as error:
            raise self._with_page(error, page) from error
        except pa.ArrowInvalid as error:
            raise self._with_page(FormatError(f"not a valid Arrow array: {error}"), page) from error

    def _with_page(self, error: FormatError | UnsupportedFormatError, page: int) -> Exception:
        # Errors of the items have their own column. Copied, because an error must not be its own cause.
        if "column" in (error.place or ""):
            return error.at()
        return error.at(place=f"column {self._column.index}, page {page}")

    def _decoder(self, page: int) -> Decoder:
        if self._open_page is None or self._open_page[0] != page:
            meta = self._column.pages[page]
            items = None
            if self._items is not None:
                items = _PageItems(self._items, self._first_item(page), self._field)
            view = PageView(self._source, meta.buffers, _open_encoding, items)
            self._open_page = page, _open_encoding(self._encoding(page), self._kind, meta.length, view)
        return self._open_page[1]

    def _encoding(self, page: int) -> pb.ArrayEncoding:
        return self._column.pages[page].layout(pb.ArrayEncoding, ARRAY_ENCODING_URL)

    def _first_item(self, page: int) -> int:
        """Return the number of the first item of a page's lists."""
        if self._first_items is None:
            counts = (self._encoding(k).list.num_items for k in range(len(self._column.pages)))
            self._first_items = list(itertools.accumulate(counts, initial=0))
        return self._first_items[page]


class _ListedBytes:
    """Strings that Lance 0.13 wrote as lists of bytes: offsets in one column, bytes in the next."""

    def __init__(
        self, field: Field, column: ColumnMetadata, items: ColumnMetadata, source: PageSource
    ) -> None:
        self._kind = field.arrow_type()
        if not is_variable(self._kind):
            raise FormatError(f"lists of bytes cannot be {self._kind}", place=f"column {column.index}")
        large = pa.types.is_large_string(self._kind) or pa.types.is_large_binary(self._kind)
        byte = Field(-1, "item", "uint8")
        lists = replace(field, logical_type="large_list" if large else "list", children=(byte,))
        self._lists = _Column(lists, column, source, _Column(byte, items, source, None))
        self.num_rows = self._lists.num_rows

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._lists.ranges(start, stop)

    def read(self, start: int, stop: int) -> list[pa.Array]:
        return [self._join_bytes(lists) for lists in self._lists.read(start, stop)]

    def _join_bytes(self, lists: pa.Array) -> pa.Array:
        """Return lists of bytes, whose offsets start at 0, as values."""
        valid, offsets = lists.buffers()[:2]
        items = lists.values
        if items.null_count:
            raise FormatError("a byte of a string is null")
        data = items.buffers()[1] if len(items) else pa.py_buffer(b"")
        data = data.slice(items.offset, len(items))
        values = pa.Array.from_buffers(self._kind, len(lists), [valid, offsets, data])
        check_stored_text(values)
        return values


class _PageItems:
    """The items of the lists of one page: a range of the child's slots."""

    def __init__(self, child: _Node, first: int, field: Field) -> None:
        self._child = child
        self._first = first
        self._kind = field.children[0].arrow_type()

    def ranges(self, start: int, stop: int) -> list[Range]:
        return self._child.ranges(self._first + start, self._first + stop)

    def read(self, start: int, stop: int) -> pa.Array:
        pieces = self._child.read(self._first + start, self._first + stop)
        if not pieces:
            return pa.nulls(0, self._kind)
        if len(pieces) == 1:
            return pieces[0]
        if _has_half_dictionary(self._kind):
            # Arrow merges such dictionaries into wrong values.
            raise UnsupportedFormatError("lists of dictionaries of half floats whose items span pages")
        try:
            return pa.concat_arrays(pieces)
        except pa.ArrowInvalid as error:
            # Offsets, or the indices of a merged dictionary, exceed their type. Fewer rows may fit.
            raise CapacityError from error


def _has_half_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_float16(kind.value_type))
    return any(_has_half_dictionary(kind.field(i).type) for i in range(kind.num_fields))


def _open_encoding(encoding: pb.ArrayEncoding, kind: pa.DataType, count: int, page: PageView) -> Decoder:
    """Open an encoding by the name of its oneof field."""
    name = encoding.WhichOneof("array_encoding")
    if name is None:
        raise FormatError("an array encoding has no type")
    opener = ARRAY_ENCODINGS[name]
    if opener is None:
        raise UnsupportedFormatError(f"array encoding {name!r} is not supported in 2.0 files")
    return opener(encoding, kind, count, page)
