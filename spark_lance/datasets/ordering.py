"""Sorting the rows of a read: all of them, or the first few of a stream in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import pick_rows
from spark_lance.errors import OptionError


@dataclass(frozen=True)
class ColumnOrdering:
    """A column to sort by.

    Attributes:
        column_name: a column, or with dots a field of a struct.
        ascending: whether small values come first.
        nulls_first: whether nulls come before all values; they come last otherwise, whatever the direction.
    """

    column_name: str
    ascending: bool = True
    nulls_first: bool = False

    def __str__(self) -> str:
        way = "asc" if self.ascending else "desc"
        return f"{self.column_name} {way} nulls {'first' if self.nulls_first else 'last'}"


OrderBy: TypeAlias = str | ColumnOrdering | Sequence[str | ColumnOrdering] | None


def orderings(order_by: OrderBy) -> tuple[ColumnOrdering, ...]:
    """Return what to sort by, from names and orderings.

    Raises:
        OptionError: an item is neither.
    """
    if order_by is None:
        return ()
    items = [order_by] if isinstance(order_by, str | ColumnOrdering) else list(order_by)
    result = []
    for item in items:
        if isinstance(item, str):
            result.append(ColumnOrdering(item))
        elif hasattr(item, "column_name"):
            result.append(ColumnOrdering(item.column_name, item.ascending, item.nulls_first))
        else:
            raise OptionError(f"order_by takes names of columns and ColumnOrdering, not {item!r}")
    return tuple(result)


def sorted_rows(table: pa.Table, keys: Sequence[tuple[pa.ChunkedArray, ColumnOrdering]]) -> pa.Table:
    """Return the rows of a table sorted by keys, the most important first; equal rows keep their order.

    Args:
        table: the rows.
        keys: for every ordering the value of each row.
    """
    if table.num_rows < 2 or not keys:
        return table
    return pick_rows(table, _order(keys))


def first_rows(
    parts: Iterable[tuple[pa.Table, Sequence[pa.ChunkedArray]]], by: Sequence[ColumnOrdering], count: int
) -> list[tuple[pa.Table, Sequence[pa.ChunkedArray]]]:
    """Return at least the first `count` rows of a stream in the order asked for, in the stream's order.

    Args:
        parts: tables, with the values to sort by.
        by: the orderings.
        count: rows that are wanted. Memory stays near twice as many rows plus one part.
    """
    first: list[tuple[pa.Table, Sequence[pa.ChunkedArray]]] = []
    rows = 0
    for table, values in parts:
        first.append((table, values))
        rows += table.num_rows
        if rows > 2 * count:
            whole, keys = joined(first)
            order = np.sort(_order(list(zip(keys, by, strict=True)))[:count])
            first = [(pick_rows(whole, order), [key.take(pa.array(order)) for key in keys])]
            rows = count
    return first


def joined(
    parts: Sequence[tuple[pa.Table, Sequence[pa.ChunkedArray]]],
) -> tuple[pa.Table, list[pa.ChunkedArray]]:
    """Return tables as one, and so what they are sorted by."""
    tables = pa.concat_tables([table for table, _ in parts])
    columns = zip(*(values for _, values in parts), strict=True)
    keys = [pa.chunked_array([c for column in same for c in column.chunks], same[0].type) for same in columns]
    return tables, keys


def _order(
    keys: Sequence[tuple[pa.ChunkedArray, ColumnOrdering]],
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows in order. Arrow sorts with one place of nulls for all keys, so nulls are keys here."""
    columns, sort = [], []
    for number, (values, how) in enumerate(keys):
        if pa.types.is_dictionary(values.type):
            values = values.cast(values.type.value_type)
        columns += [pc.is_null(values), values]
        sort.append((f"null{number}", "descending" if how.nulls_first else "ascending"))
        sort.append((f"key{number}", "ascending" if how.ascending else "descending"))
    # The last key makes the sort stable.
    columns.append(pa.chunked_array([pa.array(np.arange(len(columns[0])))]))
    names = [name for name, _ in sort] + ["row"]
    try:
        indices = pc.sort_indices(pa.table(columns, names=names), sort_keys=[*sort, ("row", "ascending")])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        kinds = ", ".join(f"{how.column_name} ({values.type})" for values, how in keys)
        raise OptionError(f"rows cannot be sorted by {kinds}: {error}") from error
    result: np.ndarray[tuple[int], np.dtype[np.int64]] = indices.to_numpy().astype(np.int64)
    return result
