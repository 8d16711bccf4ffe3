"""Decoding one page of one field of a legacy (0.1) file, with the pages of the fields below it.

    fixed width     plain values; fixed-size lists flattened. No validity: nulls are stored as some value
    bool            bitmap, lowest bit first
    string, binary  i64 offsets, one more than values, absolute in the file; an empty value of a nullable
                    field is null
    dictionary      plain keys; the values stand once in the file, where the schema's field says, and empty
                    ones are null likewise
    list            i32 (large_list: i64) offsets from 0, one more than lists, and the pages of the items
    struct          nothing; the pages of its children
    null            nothing

Example, strings "ab", "c" whose bytes begin at 64:  40 00.. 42 00.. 43 00..

(Lance file format 0.1, pages.)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.buffers import bitmap_buffer, check_offsets
from spark_lance.arrow.texts import check_stored_text
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource
from spark_lance.file.v0_1.metadata import PageTable

__all__ = ["LegacyPages", "Node", "open_node"]

_INT32_MAX = 2**31 - 1
Range = tuple[int, int]


@dataclass(frozen=True)
class LegacyPages:
    """The bytes and tables of one file: what all nodes share.

    `dictionaries` maps the id of a dictionary field to (position, length) of its values.
    """

    source: PageSource
    table: PageTable
    dictionaries: Mapping[int, tuple[int, int]]

    def page(self, field: Field, batch: int, length: int) -> int:
        """Return the position of a page that must have `length` elements.

        Raises:
            FormatError: it has another number of elements.
        """
        position, page_length = self.table.page(field.id, batch)
        if page_length != length:
            raise FormatError(f"a page of {page_length} elements where {length} were expected")
        return position


class Node(Protocol):
    """A field and what is below it."""

    def ranges(self, batch: int, count: int) -> list[Range]:
        """Return the (offset, size) of the bytes that are known to be needed for `count` values."""

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        """Return further ranges, which are known once `ranges` have been fetched."""

    def read(self, batch: int, count: int) -> pa.Array:
        """Return the batch's values, which must be `count` many."""


def open_node(field: Field, pages: LegacyPages) -> Node:
    """Return the node of a field.

    Raises:
        UnsupportedFormatError: a type that legacy files do not have.
        FormatError: a dictionary without values.
    """
    kind = field.arrow_type()
    if pa.types.is_struct(kind):
        return _Struct(kind, [open_node(child, pages) for child in field.children])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _List(field, kind, pages, open_node(field.children[0], pages))
    if pa.types.is_null(kind):
        return _Null(field, pages)
    if pa.types.is_dictionary(kind):
        return _Dictionary(field, kind, pages)
    if _is_binary(kind):
        return _Binary(field, kind, pages)
    if _bits(kind) is not None:
        return _Fixed(field, kind, pages)
    raise UnsupportedFormatError(f"field {field.name!r}: legacy files have no {field.logical_type}")


def _is_binary(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def _bits(kind: pa.DataType) -> int | None:
    """Return the bits of one value, None if values have no fixed width."""
    if pa.types.is_fixed_size_list(kind):
        item = _bits(kind.value_type)
        return None if item is None else item * kind.list_size
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_null(kind):
        return None
    try:
        return int(kind.bit_width)
    except ValueError:
        return None


def _fixed_array(kind: pa.DataType, count: int, data: pa.Buffer) -> pa.Array:
    if pa.types.is_fixed_size_list(kind):
        items = _fixed_array(kind.value_type, count * kind.list_size, data)
        return pa.Array.from_buffers(kind, count, [None], null_count=0, children=[items])
    return pa.Array.from_buffers(kind, count, [None, data], null_count=0)


class _Fixed:
    """Values of one width, bools included: Arrow's own layout, so nothing is copied."""

    def __init__(self, field: Field, kind: pa.DataType, pages: LegacyPages) -> None:
        self._field = field
        self._kind = kind
        self._pages = pages

    def ranges(self, batch: int, count: int) -> list[Range]:
        position = self._pages.page(self._field, batch, count)
        return [(position, _fixed_size(self._kind, count))]

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        return []

    def read(self, batch: int, count: int) -> pa.Array:
        position = self._pages.page(self._field, batch, count)
        return _read_fixed(self._pages.source, self._kind, position, count)


def _fixed_size(kind: pa.DataType, count: int) -> int:
    return (count * (_bits(kind) or 0) + 7) // 8


def _read_fixed(source: PageSource, kind: pa.DataType, position: int, count: int) -> pa.Array:
    return _fixed_array(kind, count, source.get(position, _fixed_size(kind, count)))


class _Binary:
    """Strings and binaries: offsets into the file."""

    def __init__(self, field: Field, kind: pa.DataType, pages: LegacyPages) -> None:
        self._field = field
        self._kind = kind
        self._pages = pages

    def ranges(self, batch: int, count: int) -> list[Range]:
        return [(self._pages.page(self._field, batch, count), (count + 1) * 8)] if count else []

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        position = self._pages.page(self._field, batch, count)
        offsets = _binary_offsets(self._pages.source, position, count)
        return [(int(offsets[0]), int(offsets[-1] - offsets[0]))]

    def read(self, batch: int, count: int) -> pa.Array:
        position = self._pages.page(self._field, batch, count)
        return _read_binary(self._pages.source, self._kind, position, count, self._field.nullable)


def _binary_offsets(source: PageSource, position: int, count: int) -> npt.NDArray[np.int64]:
    if not count:
        return np.zeros(1, dtype=np.int64)
    offsets: npt.NDArray[np.int64] = np.frombuffer(source.get(position, (count + 1) * 8), dtype="<i8")
    check_offsets(offsets, source.size)
    return offsets


def _read_binary(
    source: PageSource, kind: pa.DataType, position: int, count: int, empty_is_null: bool
) -> pa.Array:
    offsets = _binary_offsets(source, position, count)
    data = source.get(int(offsets[0]), int(offsets[-1] - offsets[0]))
    offsets = offsets - offsets[0]
    large = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    if not large and data.size > _INT32_MAX:
        raise UnsupportedFormatError(f"a page of {data.size} bytes does not fit the type {kind}")
    validity = bitmap_buffer(offsets[1:] > offsets[:-1]) if empty_is_null else None
    ends = offsets if large else offsets.astype(np.int32)
    array = pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(ends), data])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        check_stored_text(array)
    return array


class _Dictionary:
    """Keys per batch, values once per file."""

    def __init__(self, field: Field, kind: pa.DictionaryType, pages: LegacyPages) -> None:
        if field.id not in pages.dictionaries:
            raise UnsupportedFormatError(f"field {field.name!r}: the file does not say where its values are")
        self._field = field
        self._kind = kind
        self._pages = pages
        self._values: pa.Array | None = None

    def ranges(self, batch: int, count: int) -> list[Range]:
        position = self._pages.page(self._field, batch, count)
        return [(position, _fixed_size(self._kind.index_type, count))]

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        return []

    def read(self, batch: int, count: int) -> pa.Array:
        position = self._pages.page(self._field, batch, count)
        keys = _read_fixed(self._pages.source, self._kind.index_type, position, count)
        values = self._dictionary()
        numbers = keys.to_numpy(zero_copy_only=False)
        # Unsigned, negative keys are larger than any length.
        if count and int(numbers.view(f"u{numbers.itemsize}").max()) >= len(values):
            raise FormatError(f"keys beyond the {len(values)} values of a dictionary")
        return pa.DictionaryArray.from_arrays(keys, values, ordered=self._kind.ordered, safe=False)

    def _dictionary(self) -> pa.Array:
        if self._values is None:
            position, length = self._pages.dictionaries[self._field.id]
            if position < 0 or length < 0:
                raise FormatError(f"a dictionary of {length} values at {position}")
            kind, source = self._kind.value_type, self._pages.source
            if _is_binary(kind):
                self._values = _read_binary(source, kind, position, length, self._field.nullable)
            elif _bits(kind) is not None:
                self._values = _read_fixed(source, kind, position, length)
            else:
                raise UnsupportedFormatError(f"dictionaries of {kind} in legacy files")
        return self._values


class _List:
    """Offsets into the items of the same batch."""

    def __init__(self, field: Field, kind: pa.DataType, pages: LegacyPages, items: Node) -> None:
        self._field = field
        self._kind = kind
        self._pages = pages
        self._items = items
        self._dtype = np.dtype("<i8" if pa.types.is_large_list(kind) else "<i4")

    def ranges(self, batch: int, count: int) -> list[Range]:
        position = self._pages.page(self._field, batch, count + 1)
        return [(position, (count + 1) * self._dtype.itemsize)]

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        number = int(self._offsets(batch, count)[-1])
        # The items' own offsets may have to be fetched one by one.
        return [*self._items.ranges(batch, number), *self._items.late_ranges(batch, number)]

    def read(self, batch: int, count: int) -> pa.Array:
        offsets = self._offsets(batch, count)
        items = self._items.read(batch, int(offsets[-1]))
        return pa.Array.from_buffers(
            self._kind, count, [None, pa.py_buffer(offsets)], null_count=0, children=[items]
        )

    def _offsets(self, batch: int, count: int) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
        position = self._pages.page(self._field, batch, count + 1)
        data = self._pages.source.get(position, (count + 1) * self._dtype.itemsize)
        offsets = np.frombuffer(data, dtype=self._dtype)
        # No item takes less than nothing, so only the order can be checked here.
        check_offsets(offsets, 2**62)
        return offsets


class _Struct:
    """Children of equal length; structs are never null."""

    def __init__(self, kind: pa.StructType, children: list[Node]) -> None:
        self._kind = kind
        self._children = children

    def ranges(self, batch: int, count: int) -> list[Range]:
        return [each for child in self._children for each in child.ranges(batch, count)]

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        return [each for child in self._children for each in child.late_ranges(batch, count)]

    def read(self, batch: int, count: int) -> pa.Array:
        children = [child.read(batch, count) for child in self._children]
        return pa.Array.from_buffers(self._kind, count, [None], null_count=0, children=children)


class _Null:
    """Nothing but a count."""

    def __init__(self, field: Field, pages: LegacyPages) -> None:
        self._field = field
        self._pages = pages

    def ranges(self, batch: int, count: int) -> list[Range]:
        return []

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        return []

    def read(self, batch: int, count: int) -> pa.Array:
        self._pages.page(self._field, batch, count)
        return pa.nulls(count)
