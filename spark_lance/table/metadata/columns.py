"""Framework of metadata tables: rows are small objects, columns are functions of a row.

A column is computed only on request, so its inputs (a manifest, a transaction) are read only then. With a
condition, its columns are computed first, and the others only for matching rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa

from spark_lance.errors import FormatError, SchemaError
from spark_lance.expressions.predicate import Condition
from spark_lance.table.reading.snapshot import Snapshot

TIME = pa.timestamp("us", "UTC")
TEXTS = pa.list_(pa.string())
TEXT_MAP = pa.map_(pa.string(), pa.string())

_ROWS_AT_ONCE = 1024
_READERS = 16


def history_version(version: int) -> int | None:
    """Return a version as metadata tables show it: None for 0 and for a detached version."""
    return version if 0 < version < 1 << 63 else None


@dataclass(frozen=True)
class Column:
    """A column: its name, Arrow type, value in a row (None if it is unknown), and description."""

    name: str
    type: pa.DataType
    value: Callable[[Any], Any]
    about: str


@dataclass(frozen=True)
class MetadataTable:
    """A table about a table.

    Attributes:
        columns: its columns.
        rows: yields its rows, objects that the columns understand.
        reads: whether columns read from the store; then several rows are computed at a time.
    """

    columns: tuple[Column, ...]
    rows: Callable[[Snapshot], Iterator[Any]]
    reads: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of all columns."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def batches(
        self,
        snapshot: Snapshot,
        names: Sequence[str] | None = None,
        condition: Condition | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the rows in small tables; memory does not grow with their number.

        Args:
            snapshot: the version.
            names: columns, in this order; all by default.
            condition: which rows; fitted to `schema`.
            limit: the maximal number of rows.

        Raises:
            SchemaError: there is no such column.
            FormatError, UnsupportedFormatError: what the rows tell of is damaged or not known here.
        """
        selected = self._named(self.schema.names if names is None else names)
        first = self._named(condition.columns) if condition is not None else []
        rows = self.rows(snapshot)
        left = limit
        with ThreadPoolExecutor(_READERS) as pool:
            compute = pool.map if self.reads else map
            while left != 0 and (some := list(islice(rows, _READERS if self.reads else _ROWS_AT_ONCE))):
                if condition is not None:
                    mask = condition.mask(_table(first, some, compute)).to_pylist()
                    some = [row for row, keeps in zip(some, mask, strict=True) if keeps]
                if left is not None:
                    some = some[:left]
                    left -= len(some)
                if some:
                    yield _table(selected, some, compute)

    def to_arrow(
        self, snapshot: Snapshot, names: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows as one table; arguments and errors as `batches`."""
        schema = _schema(self._named(self.schema.names if names is None else names))
        return pa.concat_tables([schema.empty_table(), *self.batches(snapshot, names, limit=limit)])

    def _named(self, names: Iterable[str]) -> list[Column]:
        by_name = {column.name: column for column in self.columns}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise SchemaError(
                f"the metadata table has no column {', '.join(missing)}; it has {', '.join(by_name)}"
            )
        return [by_name[name] for name in names]


def _schema(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(column.name, column.type) for column in columns])


def _table(columns: Sequence[Column], rows: Sequence[Any], compute: Callable[..., Iterable[Any]]) -> pa.Table:
    if not columns:
        # A table without columns has rows only if it is made so.
        return pa.table({"row": pa.nulls(len(rows))}).select([])
    values = list(compute(lambda row: [column.value(row) for column in columns], rows))
    arrays = [_array(column, [_plain(row[place]) for row in values]) for place, column in enumerate(columns)]
    return pa.Table.from_arrays(arrays, schema=_schema(columns))


def _array(column: Column, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise FormatError(f"a manifest has a value that is no {column.type}: {error}", column.name) from error


def _plain(value: Any) -> Any:
    # Arrow takes the entries of a map in a list.
    return list(value.items()) if isinstance(value, dict) else value
