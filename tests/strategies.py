"""Hypothesis strategies for Arrow types, arrays and tables that a Lance file version can hold.

A type is drawn by Hypothesis, so a failing example shrinks to a small type. The values below it come from
a numpy generator with a drawn seed: that is fast, and it fills what Arrow keeps out of sight too (bytes under
nulls, list ranges of null lists, offsets that do not start at 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import assume
from hypothesis import strategies as st

__all__ = ["arrow_types", "canonical", "edge_tables", "leaf_types", "random_array", "tables"]

_MOST_BYTES = 64 << 20
_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_TEMPORAL = [
    pa.date32(),
    pa.date64(),
    *(pa.time32(unit) for unit in ("s", "ms")),
    *(pa.time64(unit) for unit in ("us", "ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms", tz="Europe/Berlin"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
]
_FIXED = [
    pa.bool_(),
    *_INTEGERS,
    *_FLOATS,
    *_TEMPORAL,
    pa.decimal128(10, 2),
    pa.decimal128(38, 0),
    pa.decimal256(50, 3),
    pa.binary(1),
    pa.binary(3),
    pa.binary(16),
]
_VARIABLE = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
# The logical type of a dictionary can only name value types without parameters.
_DICTIONARY_VALUES = [*_VARIABLE, *_INTEGERS, *_FLOATS]


def leaf_types() -> st.SearchStrategy[pa.DataType]:
    """Types that own one column."""
    dictionaries = st.builds(pa.dictionary, st.sampled_from(_INTEGERS), st.sampled_from(_DICTIONARY_VALUES))
    sizes = st.sampled_from([1, 2, 3, 8, 70])
    fixed_lists = st.builds(_fixed_list, st.sampled_from(_FIXED), sizes)
    few = st.sampled_from([1, 2, 5])
    nested_fixed_lists = st.builds(_fixed_list, st.builds(_fixed_list, st.sampled_from(_FIXED), few), few)
    return st.one_of(
        st.sampled_from(_FIXED),
        st.sampled_from(_VARIABLE),
        st.just(pa.null()),
        dictionaries,
        fixed_lists,
        nested_fixed_lists,
    )


def _fixed_list(item: pa.DataType, size: int) -> pa.DataType:
    return pa.list_(pa.field("item", item), size)


@st.composite
def arrow_types(draw: st.DrawFn, version: str, max_depth: int = 3) -> pa.DataType:
    """Types that a file of this version ("2.0", "2.1", "2.2") can hold as a top-level column."""
    return draw(_types(version, max_depth, False, False))


def _types(version: str, depth: int, in_list: bool, in_fixed_list: bool) -> st.SearchStrategy[pa.DataType]:
    if depth <= 0:
        return leaf_types()
    choices = [leaf_types(), _structs(version, depth, in_list, in_fixed_list)]
    if not in_fixed_list:
        items = st.deferred(lambda: _types(version, depth - 1, True, False))
        item_fields = st.builds(_field, st.just("item"), items, st.booleans())
        choices += [st.builds(pa.list_, item_fields), st.builds(pa.large_list, item_fields)]
        if version == "2.2":
            keys = st.sampled_from([pa.string(), pa.int32(), pa.date32()])
            choices.append(st.builds(_map, keys, items, st.booleans()))
    if version == "2.2" and not in_list:
        structs = _structs(version, depth - 1, False, True)
        choices.append(st.builds(_fixed_list, structs, st.sampled_from([1, 2, 3])))
    return st.one_of(choices)


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable or pa.types.is_null(kind))


def _map(key: pa.DataType, item: pa.DataType, nullable: bool) -> pa.DataType:
    return pa.map_(pa.field("key", key, nullable=False), _field("value", item, nullable))


@st.composite
def _structs(draw: st.DrawFn, version: str, depth: int, in_list: bool, in_fixed_list: bool) -> pa.DataType:
    inner = _types(version, depth - 1, in_list, in_fixed_list)
    kinds = draw(st.lists(inner, min_size=1, max_size=3))
    return pa.struct([_field(f"f{i}", kind, draw(st.booleans())) for i, kind in enumerate(kinds)])


@st.composite
def tables(
    draw: st.DrawFn,
    version: str,
    max_depth: int = 3,
    max_rows: int = 60,
    max_columns: int = 3,
    max_chunks: int = 3,
) -> pa.Table:
    """Tables of nullable and non-nullable columns; chunks may be slices with offsets.

    Version 2.0 has no null structs, so there structs are never null.
    """
    kinds = draw(st.lists(arrow_types(version, max_depth), min_size=1, max_size=max_columns))
    schema = pa.schema([_field(f"c{i}", kind, draw(st.booleans())) for i, kind in enumerate(kinds)])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.integers(0, max_rows), min_size=1, max_size=max_chunks))
    columns = []
    for field in schema:
        chunks = [random_array(rng, field, size, struct_nulls=version != "2.0") for size in sizes]
        columns.append(pa.chunked_array(chunks, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


@st.composite
def edge_tables(draw: st.DrawFn, version: str) -> pa.Table:
    """Tables of one column at an edge: no or few rows, 64 Ki rows give or take one, all null, wide values.

    The rows are a slice of a slice, and often several chunks.
    """
    edge = draw(st.sampled_from(["few", "many", "null", "wide"]))
    depth = draw(st.integers(0, 2))
    kind = draw(_wide_types(version, depth) if edge == "wide" else arrow_types(version, depth))
    nullable = edge == "null" or draw(st.booleans())
    field = _field("c", kind, nullable)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = draw(st.sampled_from({"few": [0, 1, 2], "many": [65535, 65536, 65537]}.get(edge, [1, 5, 40])))
    if edge == "null":
        # In 2.0 no struct is null, so there its fields are.
        array = _all_null(kind, rows + 3) if version == "2.0" else pa.nulls(rows + 3, kind)
    else:
        array = random_array(rng, field, rows + 3, struct_nulls=version != "2.0")
    # Nested values of many rows can take more memory as Python objects than a machine has.
    assume(array.nbytes < _MOST_BYTES)
    sliced = array.slice(1).slice(1, rows)
    cut = int(rng.integers(0, rows + 1))
    chunks = [sliced.slice(0, cut), sliced.slice(cut)] if draw(st.booleans()) else [sliced]
    column = pa.chunked_array(chunks, array.type)
    return pa.Table.from_arrays([column], schema=pa.schema([field.with_type(array.type)]))


def _wide_types(version: str, depth: int) -> st.SearchStrategy[pa.DataType]:
    """Types with values of some KiB: long vectors, and (by `_texts`) texts, in lists and structs."""
    wide = st.sampled_from(
        [pa.list_(pa.float32(), 1536), pa.list_(pa.int8(), 9000), pa.binary(5000), pa.large_string()]
    )
    if not depth:
        return wide
    inner = _wide_types(version, depth - 1)
    return st.one_of(
        wide,
        st.builds(lambda item: pa.list_(pa.field("item", item)), inner),
        st.builds(lambda item: pa.struct([pa.field("f0", item), pa.field("f1", pa.int32())]), inner),
    )


def _all_null(kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_struct(kind):
        children = [_all_null(field.type, rows) for field in kind]
        fields = [pa.field(field.name, child.type) for field, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields) if children else _empty_structs(rows)
    return pa.nulls(rows, kind)


def random_array(rng: np.random.Generator, field: pa.Field, rows: int, struct_nulls: bool = True) -> pa.Array:
    """Return `rows` random values for the field, as a slice of a larger array half of the time."""
    if rng.random() < 0.5:
        return _build(rng, field.type, rows, field.nullable, struct_nulls)
    before, after = int(rng.integers(0, 12)), int(rng.integers(0, 5))
    return _build(rng, field.type, before + rows + after, field.nullable, struct_nulls).slice(before, rows)


def _build(
    rng: np.random.Generator, kind: pa.DataType, n: int, nullable: bool, struct_nulls: bool
) -> pa.Array:
    """Return an array without an offset of its own; the share of nulls is drawn, often 0, sometimes 1."""
    share = rng.choice([0.0, 0.2, 0.7, 1.0], p=[0.45, 0.35, 0.15, 0.05]) if nullable else 0.0
    mask = rng.random(n) < share
    if pa.types.is_null(kind):
        return pa.nulls(n)
    if pa.types.is_struct(kind):
        children = [_build(rng, f.type, n, f.nullable, struct_nulls) for f in kind]
        if not struct_nulls or not share or not children:
            return pa.StructArray.from_arrays(children, fields=list(kind)) if children else _empty_structs(n)
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array(mask))
    if pa.types.is_fixed_size_list(kind):
        items = _build(rng, kind.value_type, n * kind.list_size, kind.value_field.nullable, struct_nulls)
        return pa.FixedSizeListArray.from_arrays(items, type=kind, mask=pa.array(mask) if share else None)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _build_list(rng, kind, n, mask, struct_nulls)
    if pa.types.is_dictionary(kind):
        return _build_dictionary(rng, kind, n, mask, nullable)
    return _build_plain(rng, kind, n, mask)


def _empty_structs(n: int) -> pa.Array:
    return pa.Array.from_buffers(pa.struct([]), n, [None])


def _build_list(
    rng: np.random.Generator, kind: pa.DataType, n: int, mask: np.ndarray[Any, Any], struct_nulls: bool
) -> pa.Array:
    """Lists with items before the first, behind the last and inside null ones."""
    longest = rng.choice([0, 1, 3, 10])
    lengths = rng.integers(0, longest + 1, n)
    first = int(rng.integers(0, 3))
    offsets = first + np.concatenate([[0], np.cumsum(lengths)])
    total = int(offsets[-1]) + int(rng.integers(0, 3))
    validity = _bitmap(~mask) if mask.any() else None
    offset_type = np.int64 if pa.types.is_large_list(kind) else np.int32
    if pa.types.is_map(kind):
        entry_fields = [kind.key_field.with_nullable(False), kind.item_field]
        parts = [_build(rng, f.type, total, f.nullable, struct_nulls) for f in entry_fields]
        items = pa.StructArray.from_arrays(parts, fields=entry_fields)
    else:
        items = _build(rng, kind.value_type, total, kind.value_field.nullable, struct_nulls)
    buffers = [validity, pa.py_buffer(offsets.astype(offset_type))]
    return pa.Array.from_buffers(kind, n, buffers, children=[items])


def _bitmap(bits: np.ndarray[Any, Any]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _build_dictionary(
    rng: np.random.Generator, kind: pa.DataType, n: int, mask: np.ndarray[Any, Any], nullable: bool
) -> pa.Array:
    """A dictionary that may hold unused items, equal items and, where nulls are allowed, null items."""
    size = int(rng.choice([1, 3, 20, 100]))
    null_items = rng.random(size) < (rng.choice([0.0, 0.3]) if nullable else 0.0)
    items = _build_plain(rng, kind.value_type, size, null_items)
    indices = rng.integers(0, size, n)
    # What stands under a null may lie outside the dictionary.
    indices[mask] = rng.integers(0, 128, int(mask.sum()))
    index_array = pa.array(indices.astype(kind.index_type.to_pandas_dtype()), kind.index_type, mask=mask)
    return pa.DictionaryArray.from_arrays(index_array, items, safe=False)


def _build_plain(rng: np.random.Generator, kind: pa.DataType, n: int, mask: np.ndarray[Any, Any]) -> pa.Array:
    if pa.types.is_boolean(kind):
        values: Any = pa.array(rng.random(n) < rng.choice([0.0, 0.5, 1.0]))
    elif pa.types.is_floating(kind):
        data = rng.normal(size=n).astype(kind.to_pandas_dtype())
        data[rng.random(n) < 0.1] = rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf])
        values = pa.array(data, kind)
    elif pa.types.is_decimal(kind):
        scale = Decimal(1).scaleb(-kind.scale)
        values = pa.array([Decimal(int(v)) * scale for v in rng.integers(-(10**9), 10**9, n)], kind)
    elif pa.types.is_fixed_size_binary(kind):
        raw = rng.integers(0, 256, n * kind.byte_width, dtype=np.uint8)
        values = pa.Array.from_buffers(kind, n, [None, pa.py_buffer(raw)])
    elif kind in _VARIABLE:
        values = _texts(rng, n).cast(kind)
    else:
        values = _integers(rng, kind, n)
    if not mask.any():
        return values
    _, *rest = values.buffers()
    return pa.Array.from_buffers(kind, n, [_bitmap(~mask), *rest])


def _integers(rng: np.random.Generator, kind: pa.DataType, n: int) -> pa.Array:
    """Integers of one of several spreads, or times and dates within what Python can show."""
    if pa.types.is_temporal(kind):
        top = 86_399 if pa.types.is_time(kind) else 100_000
        factor = 86_400_000 if pa.types.is_date64(kind) else 1000 if getattr(kind, "unit", "") == "ns" else 1
        data = rng.integers(0 if pa.types.is_time(kind) else -top, top, n) * factor
        return pa.array(data.astype(f"i{kind.bit_width // 8}")).view(kind)
    info = np.iinfo(kind.to_pandas_dtype())
    low, high = [(info.min, info.max), (0, min(info.max, 100)), (7, 7)][int(rng.integers(0, 3))]
    return pa.array(rng.integers(low, high, n, dtype=info.dtype, endpoint=True), kind)


def _texts(rng: np.random.Generator, n: int) -> pa.Array:
    """ASCII texts: all empty, short, or with some wide ones among them; sometimes few distinct ones."""
    # Short arrays have values of many KiB at times.
    most = 1_000_000 // (n + 1) if n <= 64 else 400
    widest = int(rng.choice([0, 5, 40, 400, most], p=[0.1, 0.5, 0.3, 0.06, 0.04]))
    lengths = rng.integers(0, widest + 1, n)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    letters = rng.integers(97, 97 + int(rng.choice([2, 26])), int(offsets[-1]), dtype=np.uint8)
    return pa.Array.from_buffers(pa.string(), n, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])


def canonical(values: pa.Array | pa.ChunkedArray | Sequence[Any]) -> str:
    """Return text that is equal for equal values: NaN equals NaN, 0.0 and -0.0 differ."""
    return repr(values.to_pylist() if isinstance(values, (pa.Array, pa.ChunkedArray)) else list(values))
