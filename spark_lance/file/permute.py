"""All rows of a table in another order, in one copy where values have one width.

Arrow joins the chunks of a column before it picks from them, which copies every value twice. Here each chunk
is written once, to the places where its rows belong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_lance.arrow.arrays import pick_rows

__all__ = ["permuted"]

_Ints = npt.NDArray[np.int64]
# Widths that numpy copies as one machine word each.
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def permuted(table: pa.Table, order: _Ints) -> pa.Table:
    """Return the rows of a table so that row `order[i]` comes i-th.

    Args:
        table: the rows.
        order: the number of each row once.
    """
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        moved = _scattered(column, places)
        columns.append(pick_rows(table.select([name]), order).column(0) if moved is None else moved)
    return pa.Table.from_arrays(columns, schema=table.schema)


def _scattered(column: pa.ChunkedArray, places: _Ints) -> pa.Array | None:
    """Return a column with its rows at some places; None if values have no width, or some are null."""
    width = _width(column.type)
    if not width:
        return None
    kind = np.dtype(_WORDS.get(width, f"V{width}"))
    moved: npt.NDArray[Any] = np.empty(len(places), kind)
    done = 0
    for chunk in column.chunks:
        values = _values(chunk)
        if values is None:
            return None
        moved[places[done : done + len(chunk)]] = _rows(values, len(chunk), kind)
        done += len(chunk)
    return _array(column.type, len(places), pa.py_buffer(moved))


def _width(kind: pa.DataType) -> int:
    """Return the bytes of one value of a type; 0 if they are not whole or differ."""
    if pa.types.is_fixed_size_list(kind):
        return int(kind.list_size) * _width(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        return int(kind.bit_width) // 8
    return 0


def _values(array: pa.Array) -> pa.Array | None:
    """Return the numbers of an array, those in its lists one after the other; None if something is null."""
    while not array.null_count:
        if not pa.types.is_fixed_size_list(array.type):
            return array
        size = array.type.list_size
        array = array.values.slice(array.offset * size, len(array) * size)
    return None


def _rows(values: pa.Array, count: int, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the bytes of numbers as `count` items of a type of numpy's, in Arrow's memory."""
    buffer = values.buffers()[1]
    if not count or buffer is None:
        return np.empty(0, kind)
    start = values.offset * (values.type.bit_width // 8)
    return np.frombuffer(buffer, kind, count, start)


def _array(kind: pa.DataType, count: int, data: pa.Buffer) -> pa.Array:
    """Return `count` values of a type of one width over their bytes."""
    if not pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, count, [None, data])
    items = _array(kind.value_type, count * kind.list_size, data)
    return pa.Array.from_buffers(kind, count, [None], children=[items])
