"""Opens one legacy (0.1) data file and reads rows of its columns.

It has the methods of `spark_lance.file.reader.FileReader`. It decodes whole batches of rows. For local files
that copies only the offsets of strings and lists.

    last 16 bytes   i64 position of the metadata, i16 major (0), i16 minor (1 or 2), "LANC"
    metadata        u32 length, message Metadata: batch offsets (cumulative rows, first 0), positions of the
                    schema and of the page table, and optionally statistics
    schema          u32 length, message Manifest, of which only the fields are used; position 0 = not in the
    file page table      i64 pairs (position, length), [highest field id - lowest field id + 1][batches];
                    ids without pages, such as structs, have (0, 0)

Rows are stored in batches. A page holds the values of one field in one batch; its length counts array
elements, for lists one more than lists. All integers are little-endian. (Lance file format 0.1.) A page is

    fixed width     plain values; fixed-size lists flattened. No validity: nulls are stored as some value
    bool            bitmap, lowest bit first
    string, binary  i64 offsets, one more than values, absolute in the file; an empty value of a nullable
                    field is null
    dictionary      plain keys; the values are stored once, at the position in the schema's field; empty ones
                    are null, too
    list            i32 (large_list: i64) offsets from 0, one more than lists, and the pages of the items
    struct          nothing; the pages of its children
    null            nothing

Example, strings "ab", "c" whose bytes start at 64:  40 00.. 42 00.. 43 00..
(Lance file format 0.1, pages.)

Statistics are the null count, minimum and maximum of every page. They show which pages can contain a value.
The bounds apply to the written values. Nulls of fixed-width types are read as zeros, which the bounds do not
cover, so a page with nulls is never pruned for such a type. Bounds of floats exclude NaN, which differs from
every value. (Lance file format 0.1, statistics.)
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from spark_lance.arrow.buffers import bitmap_buffer, check_offsets
from spark_lance.arrow.texts import check_stored_text
from spark_lance.errors import FormatError, OptionError, UnsupportedFormatError
from spark_lance.file.base.metadata import MAGIC
from spark_lance.file.base.pages import FieldReader
from spark_lance.file.base.schema import Field, Schema
from spark_lance.file.base.source import PageSource
from spark_lance.file.base.version import FileVersion
from spark_lance.io.store import Store
from spark_lance.proto import file_pb2, table_pb2

_FOOTER = struct.Struct("<qhh4s")
_LENGTH = struct.Struct("<I")
FOOTER_SIZE = _FOOTER.size
_ENTRY_SIZE = 16


@dataclass(frozen=True)
class PageTable:
    """The page table: int64 (fields, batches, 2) of (position, length). Row 0 is field `first_id`."""

    first_id: int
    entries: npt.NDArray[np.int64]

    def page(self, field_id: int, batch: int) -> tuple[int, int]:
        """Return (position in bytes, length in elements) of a field's page.

        Raises:
            FormatError: the table has no such field or batch, or the entry is negative.
        """
        row = field_id - self.first_id
        if not (0 <= row < self.entries.shape[0] and 0 <= batch < self.entries.shape[1]):
            raise FormatError(f"the page table has no page for field {field_id} in batch {batch}")
        position, length = (int(value) for value in self.entries[row, batch])
        if position < 0 or length < 0:
            raise FormatError(f"a page of {length} elements at {position}")
        return position, length

    @classmethod
    def read(
        cls, source: PageSource, position: int, first_id: int, num_fields: int, num_batches: int
    ) -> PageTable:
        """Read the table at a position.

        Raises:
            FormatError: the table is not inside the file.
        """
        data = source.get(position, num_fields * num_batches * _ENTRY_SIZE)
        entries = np.frombuffer(data, dtype="<i8").reshape(num_fields, num_batches, 2)
        return cls(first_id, entries)


def footer_position(source: PageSource) -> int:
    """Return the position of the metadata, from the footer.

    Raises:
        FormatError: this is not a legacy file.
    """
    if source.size < FOOTER_SIZE:
        raise FormatError(f"a legacy file has at least {FOOTER_SIZE} bytes, this one has {source.size}")
    footer = source.get(source.size - FOOTER_SIZE, FOOTER_SIZE).to_pybytes()
    position, major, minor, magic = _FOOTER.unpack(footer)
    if magic != MAGIC:
        raise FormatError("the file does not end in the magic LANC")
    if not (major == 0 and 0 <= minor <= 2):
        raise FormatError(f"a file of version {major}.{minor} where a legacy file (0.1) was expected")
    return int(position)


def _read_message(source: PageSource, position: int, what: str) -> bytes:
    try:
        (length,) = _LENGTH.unpack(source.get(position, _LENGTH.size).to_pybytes())
        return bytes(source.get(position + _LENGTH.size, length))
    except FormatError as error:
        raise error.at(place=what) from error


def read_metadata(source: PageSource) -> file_pb2.Metadata:
    """Read the file's metadata message.

    Raises:
        FormatError: this is not a legacy file, or the message is damaged.
    """
    data = _read_message(source, footer_position(source), "metadata")
    try:
        return file_pb2.Metadata.FromString(data)
    except DecodeError as error:
        raise FormatError("the metadata is not a valid message", place="metadata") from error


def read_schema(source: PageSource, position: int) -> table_pb2.Manifest:
    """Read the message with the file's fields.

    Raises:
        FormatError: the message is damaged.
    """
    data = _read_message(source, position, "schema")
    try:
        return table_pb2.Manifest.FromString(data)
    except DecodeError as error:
        raise FormatError("the schema is not a valid message", place="schema") from error


def batch_offsets(metadata: file_pb2.Metadata) -> list[int]:
    """Return the first row of each batch, and the number of rows.

    Raises:
        FormatError: the offsets do not ascend from 0.
    """
    offsets = list(metadata.batch_offsets) or [0]
    if offsets[0] != 0 or any(b < a for a, b in pairwise(offsets)):
        raise FormatError("the batch offsets do not rise from 0", place="metadata")
    return offsets


_INT32_MAX = 2**31 - 1
Range = tuple[int, int]


@dataclass(frozen=True)
class LegacyPages:
    """The bytes and tables of one file, shared by all nodes.

    `dictionaries` maps the id of a dictionary field to (position, length) of its values.
    """

    source: PageSource
    table: PageTable
    dictionaries: Mapping[int, tuple[int, int]]

    def page(self, field: Field, batch: int, length: int) -> int:
        """Return the position of a page, after checking that it has `length` elements.

        Raises:
            FormatError: the page has another number of elements.
        """
        position, page_length = self.table.page(field.id, batch)
        if page_length != length:
            raise FormatError(f"a page of {page_length} elements where {length} were expected")
        return position


class Node(Protocol):
    """A field and its descendants."""

    def ranges(self, batch: int, count: int) -> list[Range]:
        """Return the (offset, size) of the byte ranges that are known to be needed for `count` values."""

    def late_ranges(self, batch: int, count: int) -> list[Range]:
        """Return further byte ranges, which are known after `ranges` have been fetched."""

    def read(self, batch: int, count: int) -> pa.Array:
        """Return the batch's values, which must be `count` values."""


def open_node(field: Field, pages: LegacyPages) -> Node:
    """Return the node of a field.

    Raises:
        UnsupportedFormatError: legacy files do not have the type.
        FormatError: a dictionary has no values.
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
    """Return the bits of one value; None if values have no fixed width."""
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
    """Fixed-width values, including bools. They have Arrow's layout, so nothing is copied."""

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
    """Dictionaries: keys per batch, values once per file."""

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
        # As unsigned numbers, negative keys are larger than any length.
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
    """Lists: offsets into the items of the same batch."""

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
        # The items' own offsets may need further requests.
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
        # The number of items is not known here, so only the order can be checked.
        check_offsets(offsets, 2**62)
        return offsets


class _Struct:
    """Structs: children of equal length. Structs are never null."""

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
    """Nulls: only a count."""

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


# Comparison -> whether a page with these bounds may contain a matching value.
COMPARISONS: Mapping[str, Callable[[pa.Array, pa.Array, pa.Scalar], pa.Array]] = MappingProxyType(
    {
        "==": lambda low, high, value: pc.and_kleene(
            pc.less_equal(low, value), pc.greater_equal(high, value)
        ),
        "!=": lambda low, high, value: pc.or_kleene(pc.not_equal(low, value), pc.not_equal(high, value)),
        "<": lambda low, high, value: pc.less(low, value),
        "<=": lambda low, high, value: pc.less_equal(low, value),
        ">": lambda low, high, value: pc.greater(high, value),
        ">=": lambda low, high, value: pc.greater_equal(high, value),
    }
)


def possible_pages(statistics: pa.Table, kind: pa.DataType, comparison: str, value: Any) -> pa.Array:
    """Return for each page whether it may contain a value for which the comparison with `value` is true.

    Args:
        statistics: null_count, min_value and max_value, one row per page.
        kind: the column's type.
        comparison: one of `COMPARISONS`.
        value: right side of the comparison. If it does not have the column's type, every page is possible.

    Raises:
        OptionError: an unknown comparison.
    """
    if comparison not in COMPARISONS:
        raise OptionError(f"unknown comparison {comparison!r}; use one of {', '.join(COMPARISONS)}")
    every = pa.array([True] * len(statistics), pa.bool_())
    if comparison == "!=" and pa.types.is_floating(kind):
        return every
    low, high = (statistics.column(name).combine_chunks() for name in ("min_value", "max_value"))
    try:
        # Arrow compares in a common type. Casting the value to the column's type could round it.
        bound = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        if not bound.is_valid:
            return every
        possible = pc.fill_null(COMPARISONS[comparison](low, high, bound), True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, OverflowError):
        return every
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return possible
    # Nulls are read as zeros of the type, whatever value these represent, so such pages are possible.
    return pc.or_kleene(
        possible, pc.fill_null(pc.greater(statistics.column("null_count"), 0), True).combine_chunks()
    )


def runs_of_rows(possible: pa.Array, starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the row ranges [start, stop) of possible pages, merged. `starts` ends with the row count."""
    runs: list[tuple[int, int]] = []
    for is_possible, (start, stop) in zip(possible.to_pylist(), pairwise(starts), strict=True):
        if not is_possible:
            continue
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((start, stop))
    return runs


class LegacyFieldReader:
    """Reads rows of one top-level field."""

    def __init__(self, field: Field, pages: LegacyPages, starts: Sequence[int]) -> None:
        """Prepare to read. `starts` has the first row of each batch and the number of rows.

        Raises:
            UnsupportedFormatError: legacy files do not have the type.
        """
        self._kind = field.arrow_type()
        self._root: Node = open_node(field, pages)
        self._source = pages.source
        self._starts = starts
        self._last: tuple[int, pa.Array] | None = None

    @property
    def num_rows(self) -> int:
        """Rows of the field."""
        return self._starts[-1]

    def _batches(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the batches that contain rows [start, stop)."""
        if not 0 <= start <= stop <= self._starts[-1]:
            raise FormatError(f"rows {start} to {stop} of a file of {self._starts[-1]} rows")
        batches = []
        batch = bisect_right(self._starts, start) - 1
        while batch < len(self._starts) - 1 and self._starts[batch] < stop:
            if self._starts[batch + 1] > start:
                batches.append(batch)
            batch += 1
        return batches

    def _count(self, batch: int) -> int:
        return self._starts[batch + 1] - self._starts[batch]

    def _unread(self, start: int, stop: int) -> list[int]:
        last = self._last[0] if self._last else -1
        return [batch for batch in self._batches(start, stop) if batch != last]

    def ranges(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the (offset, size) of byte ranges known to be needed for rows [start, stop)."""
        batches = self._unread(start, stop)
        return [each for batch in batches for each in self._root.ranges(batch, self._count(batch))]

    def read(self, start: int, stop: int) -> pa.ChunkedArray:
        """Return rows [start, stop). Chunks follow the batches.

        Raises:
            FormatError: the pages are damaged or the file has fewer rows.
            UnsupportedFormatError: a batch has more than 2 GiB of strings.
        """
        unread = self._unread(start, stop)
        self._source.prefetch(
            each for batch in unread for each in self._root.late_ranges(batch, self._count(batch))
        )
        pieces = []
        for batch in self._batches(start, stop):
            first = self._starts[batch]
            array = self._batch(batch)
            begin, end = max(start - first, 0), min(stop - first, len(array))
            whole = begin == 0 and end == len(array)
            pieces.append(array if whole else array.slice(begin, end - begin))
        return pa.chunked_array(pieces, type=self._kind)

    def _batch(self, batch: int) -> pa.Array:
        if self._last is None or self._last[0] != batch:
            try:
                self._last = batch, self._root.read(batch, self._count(batch))
            except (FormatError, UnsupportedFormatError) as error:
                raise error.at(place=f"batch {batch}") from error
            except (pa.ArrowInvalid, OverflowError) as error:
                raise FormatError(f"not a valid Arrow array: {error}", place=f"batch {batch}") from error
        return self._last[1]


@dataclass(frozen=True)
class _Contents:
    """The metadata that the footer points to."""

    schema: Schema | None
    dictionaries: Mapping[int, tuple[int, int]]
    starts: Sequence[int]
    pages: PageTable


class LegacyFileReader:
    """An open legacy file.

    Args:
        store, path: location of the file.
        size: size of the file in bytes, if known.
        field_ids: ids of all fields in the file, from the manifest's DataFile; needed only for files
            without a schema.

    Raises:
        FileNotFoundError: the file does not exist.
        FormatError: it is not a legacy file, or its metadata is damaged.
    """

    version = FileVersion.V0_1

    def __init__(
        self, store: Store, path: str, *, size: int | None = None, field_ids: Iterable[int] = ()
    ) -> None:
        self.path = path
        self.source = PageSource(store, path, size or store.size(path))
        self._field_ids = tuple(field_ids)
        try:
            self._contents = self._open()
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(path) from error

    def _open(self) -> _Contents:
        self._metadata = metadata = read_metadata(self.source)
        starts = batch_offsets(metadata)
        schema: Schema | None = None
        dictionaries: dict[int, tuple[int, int]] = {}
        ids = [each for each in self._field_ids if each >= 0]
        if metadata.manifest_position:
            message = read_schema(self.source, metadata.manifest_position)
            schema = Schema.from_protos(message.fields, message.schema_metadata)
            ids = [field.id for field in message.fields if field.id >= 0]
            for field in message.fields:
                if field.HasField("dictionary"):
                    dictionaries[field.id] = (field.dictionary.offset, field.dictionary.length)
        first = min(ids, default=0)
        fields = max(ids) - first + 1 if ids else 0
        table = PageTable.read(self.source, metadata.page_table_position, first, fields, len(starts) - 1)
        return _Contents(schema, dictionaries, starts, table)

    @property
    def num_rows(self) -> int:
        """Number of rows in the file, including deleted ones."""
        return self._contents.starts[-1]

    @property
    def batch_starts(self) -> Sequence[int]:
        """The first row of each batch, and the number of rows."""
        return self._contents.starts

    @property
    def schema(self) -> Schema:
        """The schema stored in the file.

        Raises:
            FormatError: the file has no schema.
        """
        if self._contents.schema is None:
            raise FormatError("the file carries no schema", self.path)
        return self._contents.schema

    @cached_property
    def columns(self) -> Mapping[int, int]:
        """Field id -> row of the page table, for every field in the file."""
        if self._contents.schema is None:
            ids = sorted(each for each in self._field_ids if each >= 0)
        else:
            ids = [field.id for field in self._contents.schema.walk()]
        return {each: each - self._contents.pages.first_id for each in ids}

    def open_field(self, field: Field) -> FieldReader:
        """Return a reader of one top-level field, which may be pruned to some of its leaves.

        Raises:
            FormatError: the file lacks a leaf of the field.
            UnsupportedFormatError: legacy files do not have the type.
        """
        for node in field.walk():
            if node.kind == "blob":
                raise UnsupportedFormatError(f"blob column {node.name!r} in a legacy file", self.path)
            if node.id not in self.columns:
                raise FormatError(f"the file has no field {node.name!r} (id {node.id})", self.path)
        pages = LegacyPages(self.source, self._contents.pages, self._contents.dictionaries)
        try:
            return LegacyFieldReader(field, pages, self._contents.starts)
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(self.path, f"column {field.name!r}") from error

    def prefetch(self, readers: Iterable[FieldReader], start: int, stop: int) -> None:
        """Fetch the byte ranges known to be needed for rows [start, stop), in few requests."""
        self.source.release()
        self.source.prefetch([r for reader in readers for r in reader.ranges(start, stop)])

    def prefetch_rows(self, readers: Iterable[FieldReader], rows: npt.NDArray[np.int64]) -> None:
        """Do nothing: rows of legacy files are read in runs."""

    def stored_bytes(self, field: Field) -> int:
        """Return the estimated bytes of a field in the file, from its share of the pages."""
        pages = max(1, len(self.columns))
        share = sum(1 for node in field.walk() if not node.children)
        return self.source.size * share // pages

    def page_ranges_maybe(self, field: Field, comparison: str, value: Any) -> list[tuple[int, int]]:
        """Return the row ranges [start, stop) in which a leaf field may satisfy `comparison` with `value`.

        The page statistics exclude all other rows. Without statistics all rows are possible.

        Args:
            field: a leaf field outside lists, whose pages have one value per row.
            comparison: "==", "!=", "<", "<=", ">" or ">=".
            value: a Python value or Arrow scalar of the field's type.

        Raises:
            OptionError: an unknown comparison.
            FormatError: the statistics are damaged.
        """
        statistics = self.statistics(field.id)
        if statistics is None or len(statistics) != len(self.batch_starts) - 1:
            return [(0, self.num_rows)] if self.num_rows else []
        possible = possible_pages(statistics, field.arrow_type(), comparison, value)
        return runs_of_rows(possible, self.batch_starts)

    def statistics(self, field_id: int) -> pa.Table | None:
        """Return the statistics of each page of a leaf field; None if the file has none.

        Returns:
            One row per batch with `null_count` (int64), `min_value` and `max_value` (null: unknown).
            They describe the written values: nulls are counted as nulls, although numbers are read as 0 or
                false.
            A page with nulls may therefore contain these values outside the bounds. Bounds of long strings
            are truncated to 64 bytes, and the upper bound is increased, so they need not be values of the
            page.

        Raises:
            FormatError: the statistics are damaged.
        """
        if not self._metadata.HasField("statistics"):
            return None
        entry = self._metadata.statistics
        batches = len(self._contents.starts) - 1
        try:
            schema = Schema.from_protos(entry.schema)
            fields = [field for field in schema.fields if field.name == str(field_id)]
            if not fields:
                return None
            ids = [field.id for field in schema.walk()]
            first = min(ids)
            table = PageTable.read(self.source, entry.page_table_position, first, max(ids) - first + 1, 1)
            reader = LegacyFieldReader(fields[0], LegacyPages(self.source, table, {}), [0, batches])
            rows = pa.concat_arrays(reader.read(0, batches).chunks) if batches else None
        except (FormatError, UnsupportedFormatError) as error:
            raise error.at(self.path, f"statistics of field {field_id}") from error
        kind = fields[0].arrow_type()
        if not pa.types.is_struct(kind):
            raise FormatError("the statistics are not structs", self.path, f"statistics of field {field_id}")
        if rows is None:
            return pa.Table.from_batches([], pa.schema(list(kind)))
        return pa.Table.from_arrays(rows.flatten(), schema=pa.schema(list(kind)))
