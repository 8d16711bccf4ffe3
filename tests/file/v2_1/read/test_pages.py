"""Pages built by a plain Python twin of the format from nested rows, decoded and compared.

The twin walks nested Python rows level by level as the format describes it, writes them in each layout with
loops and `struct`, and knows nothing of the arrays that the decoder works with.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.metadata import PAGE_LAYOUT_URL, Page
from spark_lance.file.base.schema import Field
from spark_lance.file.base.source import PageSource
from spark_lance.file.v2_1 import LAYOUTS
from spark_lance.file.v2_1.read.page import decode_page, page_ranges, path_type
from spark_lance.proto import encodings21_pb2 as pb

ITEM, LIST = "item", "list"
KINDS = {
    (ITEM, False, False): pb.REPDEF_ALL_VALID_ITEM,
    (ITEM, True, False): pb.REPDEF_NULLABLE_ITEM,
    (LIST, False, False): pb.REPDEF_ALL_VALID_LIST,
    (LIST, True, False): pb.REPDEF_NULLABLE_LIST,
    (LIST, False, True): pb.REPDEF_EMPTYABLE_LIST,
    (LIST, True, True): pb.REPDEF_NULL_AND_EMPTY_LIST,
}


@dataclass(frozen=True)
class Layer:
    """One level of nesting: what it is, and whether it may be null or empty."""

    what: str
    nullable: bool
    emptyable: bool


@dataclass
class Twin:
    """Rows of one path (layers outermost first, the leaf last), turned into levels."""

    layers: list[Layer]
    leaf: Any
    rep: list[int] = field(default_factory=list)
    definition: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    """Per level: the leaf's value, None for a null with a slot, `Twin` (the class) for no slot."""

    def __post_init__(self) -> None:
        self.null: list[int] = []
        self.empty: list[int] = []
        number = 0
        visible: int | None = None
        for layer in reversed(self.layers):
            if layer.what == LIST and visible is None:
                visible = number
            self.null.insert(0, number + 1 if layer.nullable else 0)
            self.empty.insert(0, number + 1 + layer.nullable if layer.emptyable else 0)
            number += layer.nullable + layer.emptyable
        self.max_definition = number
        self.max_visible = number if visible is None else visible
        self.max_rep = sum(layer.what == LIST for layer in self.layers)

    def add(self, node: Any, depth: int = 0, rep: int | None = None) -> None:
        """Append the levels of one row or part of a row."""
        rep = self.max_rep if rep is None else rep
        layer = self.layers[depth]
        if node is None:
            self._emit(rep, self.null[depth], None)
        elif layer.what == LIST:
            if not node:
                self._emit(rep, self.empty[depth], None)
            inner = sum(other.what == LIST for other in self.layers[depth + 1 :])
            for i, child in enumerate(node):
                self.add(child, depth + 1, rep if i == 0 else inner)
        elif depth + 1 < len(self.layers):
            self.add(node["child"], depth + 1, rep)
        else:
            self._emit(rep, 0, node)

    def _emit(self, rep: int, definition: int, value: Any) -> None:
        self.rep.append(rep)
        self.definition.append(definition)
        self.values.append(value if definition <= self.max_visible else Twin)

    @property
    def slots(self) -> list[Any]:
        return [value for value in self.values if value is not Twin]

    def kinds(self) -> list[Any]:
        return [KINDS[layer.what, layer.nullable, layer.emptyable] for layer in reversed(self.layers)]

    def path(self) -> tuple[Field, ...]:
        chain: list[Field] = []
        for layer in reversed(self.layers[:-1]):
            chain.insert(0, Field(0, "child", LIST if layer.what == LIST else "struct", True))
        chain.append(Field(1, "child", self.leaf))
        # Each field knows its only child, so that kinds come out right.
        for i in range(len(chain) - 2, -1, -1):
            chain[i] = replace(chain[i], children=(chain[i + 1],))
        return tuple(chain)


class Memory:
    """A source of bytes for pages that were never in a file."""

    def __init__(self, buffers: list[bytes]) -> None:
        self.data = b"".join(buffers)
        self.spans: list[tuple[int, int]] = []
        at = 0
        for buffer in buffers:
            self.spans.append((at, len(buffer)))
            at += len(buffer)

    def get(self, offset: int, size: int) -> pa.Buffer:
        assert offset + size <= len(self.data)
        return pa.py_buffer(self.data[offset : offset + size])


def decode(
    layout: pb.PageLayout, buffers: list[bytes], twin: Twin, rows: int, span: tuple[int, int] | None = None
) -> pa.Array:
    source: Any = Memory(buffers)
    page = Page(tuple(source.spans), rows, 0, layout.SerializeToString(), PAGE_LAYOUT_URL)
    start, stop = span or (0, rows)
    request: PageSource = source
    array, first = decode_page(page, twin.path(), request, start, stop)
    array.validate(full=True)
    assert array.type == path_type(twin.path())
    assert all(0 <= offset <= len(source.data) for offset, _ in page_ranges(page, twin.path(), start, stop))
    assert first <= start
    assert first + len(array) >= stop
    return array.slice(start - first, stop - start)


def flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def padded(data: bytes, size: int = 8) -> bytes:
    return data + b"\xfe" * (-len(data) % size)


def shorts(numbers: list[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}H", *numbers)


def cut_levels(twin: Twin, sizes: list[int]) -> list[tuple[int, int]]:
    """Return the range of levels of chunks with these numbers of values."""
    spans, at = [], 0
    for i, size in enumerate(sizes):
        start, left = at, size
        while at < len(twin.values) and (left or i == len(sizes) - 1):
            left -= twin.values[at] is not Twin
            at += 1
        spans.append((start, at))
    return spans


def mini_block(twin: Twin, large: bool, log: int) -> tuple[pb.PageLayout, list[bytes]]:
    """Write int32 values and u16 levels in chunks of 2**log values."""
    slots = twin.slots
    sizes = [1 << log] * ((len(slots) - 1) // (1 << log)) if slots else []
    sizes.append(len(slots) - sum(sizes))
    words, data, at = [], b"", 0
    for i, (size, (start, stop)) in enumerate(zip(sizes, cut_levels(twin, sizes), strict=True)):
        levels = [shorts(twin.rep[start:stop])] if twin.max_rep else []
        levels += [shorts(twin.definition[start:stop])] if twin.max_definition else []
        values = b"".join(struct.pack("<i", value or 0) for value in slots[at : at + size])
        at += size
        head = struct.pack("<H", stop - start if levels else 0) + shorts([len(part) for part in levels])
        head += struct.pack("<I" if large else "<H", len(values))
        chunk = b"".join(padded(part) for part in (head, *levels, values))
        last = i == len(sizes) - 1
        words.append((len(chunk) // 8 - 1) << 4 | (0 if last else log))
        data += chunk
    layout = pb.MiniBlockLayout(
        value_compression=flat(32),
        layers=twin.kinds(),
        num_buffers=1,
        num_items=len(slots),
        has_large_chunk=large,
    )
    if twin.max_rep:
        layout.rep_compression.CopyFrom(flat(16))
    if twin.max_definition:
        layout.def_compression.CopyFrom(flat(16))
    table = struct.pack(f"<{len(words)}{'I' if large else 'H'}", *words)
    return pb.PageLayout(mini_block_layout=layout), [table, data]


def full_zip(
    twin: Twin, variable: bool, index_width: int, wide_control: bool
) -> tuple[pb.PageLayout, list[bytes]]:
    """Write int32 values, or byte strings, with control words and a repetition index."""
    bits_rep = twin.max_rep.bit_length()
    bits_def = twin.max_definition.bit_length() + (7 if wide_control and twin.max_definition else 0)
    bits = bits_rep + bits_def
    control = 0 if bits == 0 else 1 if bits <= 8 else 2 if bits <= 16 else 4
    data, starts = b"", []
    for rep, definition, value in zip(twin.rep, twin.definition, twin.values, strict=True):
        if rep == twin.max_rep:
            starts.append(len(data))
        data += (rep << bits_def | definition).to_bytes(control, "little")
        if variable and definition == 0:
            data += struct.pack("<I", len(value)) + value
        elif not variable and value is not Twin:
            data += struct.pack("<i", value or 0)
    layout = pb.FullZipLayout(
        bits_rep=bits_rep, bits_def=bits_def, num_items=len(twin.values), num_visible_items=len(twin.slots)
    )
    layout.layers.extend(twin.kinds())
    if variable:
        layout.bits_per_offset = 32
        layout.value_compression.variable.offsets.CopyFrom(flat(32))
    else:
        layout.bits_per_value = 32
        layout.value_compression.CopyFrom(flat(32))
    buffers = [data]
    if variable or twin.max_rep:
        index = [*starts, len(data)]
        width = max(index_width, (len(data).bit_length() + 7) // 8)
        width = next(size for size in (1, 2, 4, 8) if size >= width)
        buffers.append(b"".join(at.to_bytes(width, "little") for at in index))
    return pb.PageLayout(full_zip_layout=layout), buffers


LAYERS = st.builds(
    lambda what, nullable, emptyable: Layer(what, nullable, emptyable and what == LIST),
    st.sampled_from([ITEM, LIST]),
    st.booleans(),
    st.booleans(),
)


@st.composite
def twins(draw: st.DrawFn, leaf: str = "int32", no_values: bool = False) -> tuple[Twin, list[Any]]:
    """Random nesting and random rows that fit it."""
    layers = draw(st.lists(LAYERS, max_size=4))
    layers.append(Layer(ITEM, no_values or draw(st.booleans()), False))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    longest = draw(st.sampled_from([1, 3, 40]))
    often = draw(st.sampled_from([0.02, 0.3, 0.8]))

    def node(depth: int) -> Any:
        layer = layers[depth]
        if layer.nullable and rng.random() < often:
            return None
        if layer.what == LIST:
            if layer.emptyable and rng.random() < often:
                return []
            return [node(depth + 1) for _ in range(rng.integers(1, longest + 1) if depth < 2 else 1)]
        if depth + 1 < len(layers):
            return {"child": node(depth + 1)}
        if no_values:
            return None
        return int(rng.integers(-(2**31), 2**31)) if leaf == "int32" else rng.bytes(int(rng.integers(0, 9)))

    rows = [node(0) for _ in range(draw(st.sampled_from([1, 2, 30])))]
    twin = Twin(layers, leaf)
    for row in rows:
        twin.add(row)
    return twin, rows


@given(drawn=twins(), large=st.booleans(), log=st.integers(1, 5))
def test_mini_block(drawn: tuple[Twin, list[Any]], large: bool, log: int) -> None:
    twin, rows = drawn
    layout, buffers = mini_block(twin, large, log)
    assert decode(layout, buffers, twin, len(rows)).to_pylist() == rows


@given(drawn=twins(), index_width=st.sampled_from([1, 2, 4, 8]), wide_control=st.booleans())
def test_full_zip_of_one_width(drawn: tuple[Twin, list[Any]], index_width: int, wide_control: bool) -> None:
    twin, rows = drawn
    layout, buffers = full_zip(twin, False, index_width, wide_control)
    assert decode(layout, buffers, twin, len(rows)).to_pylist() == rows
    part = (len(rows) // 3, len(rows) // 3 * 2)
    assert decode(layout, buffers, twin, len(rows), part).to_pylist() == rows[slice(*part)]


@given(drawn=twins("binary"), index_width=st.sampled_from([1, 2, 4, 8]), wide_control=st.booleans())
def test_full_zip_of_varying_width(
    drawn: tuple[Twin, list[Any]], index_width: int, wide_control: bool
) -> None:
    twin, rows = drawn
    layout, buffers = full_zip(twin, True, index_width, wide_control)
    assert decode(layout, buffers, twin, len(rows)).to_pylist() == rows


@given(drawn=twins(no_values=True), encoded=st.booleans())
def test_constant_without_values(drawn: tuple[Twin, list[Any]], encoded: bool) -> None:
    twin, rows = drawn
    buffers = [shorts(twin.rep) if twin.max_rep else b"", shorts(twin.definition)]
    layout = pb.ConstantLayout(layers=twin.kinds())
    if encoded:
        # Runs of one, in the block form: size of the values, the values, the lengths.
        runs = pb.CompressiveEncoding(rle=pb.Rle(values=flat(16), run_lengths=flat(8)))
        buffers = [struct.pack("<Q", len(b)) + b + b"\1" * (len(b) // 2) if b else b for b in buffers]
        layout.def_compression.CopyFrom(runs)
        layout.num_def_values = len(twin.definition)
        if twin.max_rep:
            layout.rep_compression.CopyFrom(runs)
            layout.num_rep_values = len(twin.rep)
    page = pb.PageLayout(constant_layout=layout)
    assert decode(page, buffers, twin, len(rows)).to_pylist() == rows


def same_value(node: Any, value: Any) -> Any:
    """Replace every leaf value of nested rows."""
    if isinstance(node, list):
        return [same_value(child, value) for child in node]
    if isinstance(node, dict):
        return {"child": same_value(node["child"], value)}
    return None if node is None else value


@given(drawn=twins("binary"), inline=st.booleans())
def test_constant_scalar(drawn: tuple[Twin, list[Any]], inline: bool) -> None:
    twin, rows = drawn
    value: Any = 77 if inline else b"some bytes"
    twin.leaf = "int32" if inline else "binary"
    layout = pb.ConstantLayout(layers=twin.kinds())
    buffers = []
    if inline:
        layout.inline_value = struct.pack("<i", value)
    else:
        buffers.append(struct.pack("<3I2i", 2, 8, len(value), 0, len(value)) + value)
    if twin.max_rep or twin.max_definition:
        buffers.append(shorts(twin.rep) if twin.max_rep else b"")
        buffers.append(shorts(twin.definition) if twin.max_definition else b"")
    page = pb.PageLayout(constant_layout=layout)
    expected = same_value(rows, value)
    assert decode(page, buffers, twin, len(rows)).to_pylist() == expected
    part = (len(rows) // 3, len(rows) // 3 * 2)
    assert decode(page, buffers, twin, len(rows), part).to_pylist() == expected[slice(*part)]


def test_uniform_pages_make_only_the_rows_that_are_asked_for() -> None:
    twin = Twin([Layer(ITEM, True, False)], "int64")
    layout = pb.PageLayout(constant_layout=pb.ConstantLayout(layers=[pb.REPDEF_NULLABLE_ITEM]))
    assert decode(layout, [], twin, 1 << 50, (1 << 49, (1 << 49) + 3)).to_pylist() == [None] * 3


def test_layers_may_be_left_out() -> None:
    twin = Twin([Layer(ITEM, False, False)], "int32")
    for value in (1, 2, 3):
        twin.add(value)
    layout, buffers = mini_block(twin, True, 1)
    del layout.mini_block_layout.layers[:]
    assert decode(layout, buffers, twin, 3).to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(
    "rows",
    [
        [[None] * 5],
        [[None] * 5, [[1], [2]], [None] * 10],
        [[[1]] + [None] * 5 + [[2, 3]]],
        [None, [], [[]] * 5, [[], [4], []]],
    ],
)
def test_rows_as_long_as_visible_levels_would_be(rows: list[Any]) -> None:
    """Five control words of nothing are as long as one with a value."""
    twin = Twin([Layer(LIST, True, True), Layer(LIST, True, True), Layer(ITEM, False, False)], "int32")
    for row in rows:
        twin.add(row)
    layout, buffers = full_zip(twin, False, 1, False)
    assert decode(layout, buffers, twin, len(rows)).to_pylist() == rows


@pytest.mark.parametrize(
    ("rep", "definition", "rows"),
    [
        ([1, 2], [0, 0], 2),
        ([1, 1], [0, 4], 2),
        ([0, 1], [0, 0], 1),
        ([1, 0], [3, 0], 1),
        ([1, 1, 0], [0, 2, 0], 2),
        ([1, 0], [0, 0], 2),
    ],
    ids=[
        "rep above the layers",
        "def above the layers",
        "no row at the start",
        "items after an empty list",
        "items after a null list",
        "other number of rows",
    ],
)
def test_damaged_levels(rep: list[int], definition: list[int], rows: int) -> None:
    twin = Twin([Layer(LIST, True, True), Layer(ITEM, True, False)], "int32")
    twin.rep, twin.definition = rep, definition
    twin.values = [5 if number <= 1 else Twin for number in definition]
    layout, buffers = mini_block(twin, True, 1)
    with pytest.raises(FormatError):
        decode(layout, buffers, twin, rows)


def test_layouts_that_are_refused() -> None:
    twin = Twin([Layer(ITEM, True, False)], "int32")
    layout = pb.PageLayout()
    layout.sparse_layout.SetInParent()
    with pytest.raises(UnsupportedFormatError, match="sparse_layout"):
        decode(layout, [], twin, 1)
    for inner in (None, "constant_layout"):
        layout = pb.PageLayout()
        layout.blob_layout.SetInParent()
        if inner is not None:
            getattr(layout.blob_layout.inner_layout, inner).SetInParent()
        with pytest.raises(UnsupportedFormatError, match="blob descriptors"):
            decode(layout, [], twin, 1)
    with pytest.raises(UnsupportedFormatError):
        decode(pb.PageLayout(), [], twin, 1)
    assert set(LAYOUTS) == {entry.name for entry in pb.PageLayout.DESCRIPTOR.fields}
