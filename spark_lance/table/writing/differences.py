"""Errors about rows that do not fit a table: types that differ, and the first wrong row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from spark_lance.errors import SchemaError

_COLUMNS_SHOWN = 5
_LONGEST_VALUE = 40


@dataclass(frozen=True)
class TypeDifference:
    """A column or field whose type in the data cannot become that of the table.

    Attributes:
        path: of the field; `[]` is an item of a list.
        source: its type in the data.
        target: its type in the table.
    """

    path: str
    source: pa.DataType
    target: pa.DataType

    def describe(self, name_of: Callable[[pa.DataType], str] = str) -> str:
        """Return the sentence, with types by names of the reader's own language."""
        source, target = name_of(self.source), name_of(self.target)
        return f"column {self.path!r} is {source} in the data and {target} in the table"

    def __str__(self) -> str:
        remedy = (
            f"; cast it to {self.target}, or all by data.cast(dataset.schema)" if self.is_castable else ""
        )
        return f"{self.describe()}{remedy}"

    @property
    def is_castable(self) -> bool:
        """Whether a cast by the user may help: types of one kind, or single values."""
        return bool(pa.types.is_nested(self.source) == pa.types.is_nested(self.target))


# A difference is a sentence, or a pair of types.
Differences: TypeAlias = "list[str | TypeDifference]"


def rows_do_not_fit(
    differences: Sequence[str | TypeDifference], tell: Callable[[str | TypeDifference], str] = str
) -> SchemaError:
    """Return the error that lists differences, and keeps them for who has other names for types.

    Args:
        differences: what does not fit.
        tell: makes a line of the message of each.
    """
    distinct = tuple(dict.fromkeys(differences))
    lines = [tell(line) for line in distinct]
    text = f" {lines[0]}" if len(lines) == 1 else "".join(f"\n  - {line}" for line in lines)
    error = SchemaError(f"the data does not fit the table:{text}")
    error.differences = distinct
    return error


def row_text(batch: pa.RecordBatch, row: int) -> str:
    """Return a row for a message: a few of its columns, long values cut."""
    names = batch.schema.names[:_COLUMNS_SHOWN]
    values = ", ".join(f"{name}: {_short(batch.column(name)[row].as_py())}" for name in names)
    return f"{{{values}{', ...' if batch.num_columns > _COLUMNS_SHOWN else ''}}}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
