"""Framework of metadata tables: rows are small objects, columns are functions of a row.

A column is computed only if requested, so its inputs (a manifest, a transaction) are read only then. With a
condition, the condition's columns are computed first, and the other columns only for matching rows.
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

_BATCH_ROWS = 1024
_READERS = 16


def history_version(version: int) -> int | None:
    """Return a version number for metadata tables: None for 0 and for detached versions."""
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
        columns: the columns.
        rows: yields the rows, which are the arguments of the columns' functions.
        reads: whether columns read from the store; if so, rows are computed in several threads.
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
            names: the columns, in this order; all by default.
            condition: the condition of the rows, compiled for `schema`.
            limit: the maximal number of rows.

        Raises:
            SchemaError: a column does not exist.
            FormatError, UnsupportedFormatError: a file that the rows describe is damaged or not supported.
        """
        selected = self._find_columns(self.schema.names if names is None else names)
        first = self._find_columns(condition.columns) if condition is not None else []
        rows = self.rows(snapshot)
        remaining = limit
        with ThreadPoolExecutor(_READERS) as pool:
            compute = pool.map if self.reads else map
            while remaining != 0 and (batch := list(islice(rows, _READERS if self.reads else _BATCH_ROWS))):
                if condition is not None:
                    mask = condition.mask(_table(first, batch, compute)).to_pylist()
                    batch = [row for row, keeps in zip(batch, mask, strict=True) if keeps]
                if remaining is not None:
                    batch = batch[:remaining]
                    remaining -= len(batch)
                if batch:
                    yield _table(selected, batch, compute)

    def to_arrow(
        self, snapshot: Snapshot, names: Sequence[str] | None = None, limit: int | None = None
    ) -> pa.Table:
        """Return the rows as one table; arguments and errors are as in `batches`."""
        schema = _schema(self._find_columns(self.schema.names if names is None else names))
        return pa.concat_tables([schema.empty_table(), *self.batches(snapshot, names, limit=limit)])

    def _find_columns(self, names: Iterable[str]) -> list[Column]:
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
        # A table without columns keeps its number of rows only if it is made by select([]).
        return pa.table({"row": pa.nulls(len(rows))}).select([])
    values = list(compute(lambda row: [column.value(row) for column in columns], rows))
    arrays = [
        _array(column, [_to_arrow_value(row[place]) for row in values])
        for place, column in enumerate(columns)
    ]
    return pa.Table.from_arrays(arrays, schema=_schema(columns))


def _array(column: Column, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values, column.type)
    except (OverflowError, pa.ArrowInvalid) as error:
        raise FormatError(f"a manifest has a value that is no {column.type}: {error}", column.name) from error


def _to_arrow_value(value: Any) -> Any:
    # Arrow expects the entries of a map as a list.
    return list(value.items()) if isinstance(value, dict) else value
