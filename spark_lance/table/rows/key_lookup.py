"""Find the rows of a table that may have one of the keys of a source, without reading all keys of the table.

The indices of the key columns are searched. If the source has few keys, the search is for the keys
themselves, some hundreds at once, so that no condition grows with the source. Otherwise it is for the range
from the least to the greatest key. The result may contain other rows as well: keys are compared afterwards.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.expressions.expressions import Call, Column, Expression, Literal
from spark_lance.expressions.predicate import Condition, compile_tree
from spark_lance.file.base.schema import Field
from spark_lance.table.reading.pruning import uses_of
from spark_lance.table.reading.scan import Scan, ScanTask

# Keys that are asked for together.
_BATCH_KEYS = 512
# An index reads a page of some thousand rows for one key. Up to `_FEW_KEYS` keys are always looked up, more
# only if the table has `_ROWS_PER_KEY` rows for each: otherwise its key columns are read sooner than the
# pages of the index.
_FEW_KEYS = 64
_ROWS_PER_KEY = 2048


@dataclass(frozen=True)
class KeyLookup:
    """The part of a table that is compared with the keys of a source.

    Attributes:
        tasks: their rows include all rows of the table that have one of the keys.
        method: how the indices were searched: "keys" one by one, the "range" that they span, or "nothing".
    """

    tasks: Sequence[ScanTask]
    method: str


def key_tasks(
    scan: Scan, keys: Sequence[Field], source: pa.Table, others: Condition | None = None
) -> Sequence[ScanTask]:
    """Return tasks whose rows hold all rows of the table that have a key of the source; see `key_lookup`."""
    return key_lookup(scan, keys, source, others).tasks


def key_lookup(
    scan: Scan, keys: Sequence[Field], source: pa.Table, others: Condition | None = None
) -> KeyLookup:
    """Find out which rows of a table may have a key of the source.

    Args:
        scan: of the key columns at least.
        keys: the key columns.
        source: has the key columns, with the table's types; a row with a null in its key has none.
        others: rows for which this is true are wanted as well.
    """
    schema = pa.schema([key.arrow_field() for key in keys])
    plain = [key.name for key in keys if _is_plain(key.arrow_type())]
    if not plain:
        return KeyLookup(scan.tasks(), "nothing")
    rows = _without_nulls(source.select([key.name for key in keys])).select(plain)
    method = "keys"
    if not rows.num_rows:
        conditions: Iterable[Condition] = []
    elif not scan.pruners:
        return KeyLookup(scan.tasks(), "nothing")
    elif rows.num_rows <= max(_FEW_KEYS, _rows(scan) // _ROWS_PER_KEY):
        conditions = _batches(rows, schema)
    else:
        method = "range"
        conditions = [compile_tree(_all([_between(name, rows[name]) for name in plain]), schema)]
    return KeyLookup(
        scan.tasks_for_any(conditions if others is None else chain(conditions, [others])), method
    )


def key_indices(scan: Scan, keys: Sequence[Field]) -> list[tuple[str, str, str]]:
    """Return column, name and kind of the indices that look up keys."""
    index_uses = []
    for key in keys:
        sample = _sample(key.arrow_type())
        if sample is not None:
            tree = Call("in", (Column((key.name,)), Literal(sample)))
            condition = compile_tree(tree, pa.schema([key.arrow_field()]))
            uses = (use for pruner in scan.pruners for use in uses_of(pruner, condition))
            index_uses += [(key.name, name, kind) for _, name, kind in uses]
    return index_uses


def _sample(kind: pa.DataType) -> Any:
    """Return a sample value of a type that indices look up by key; None for other types."""
    if not _is_plain(kind):
        return None
    if pa.types.is_integer(kind):
        return 0
    return datetime.date(1970, 1, 1) if pa.types.is_date32(kind) else ""


def _is_plain(kind: pa.DataType) -> bool:
    """Whether values of a type are equal as keys only if they are equal in conditions.

    Floats are not, for NaN; the others that are left out have no literals of their own.
    """
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date32)
    return any(test(kind) for test in tests)


def _without_nulls(rows: pa.Table) -> pa.Table:
    for name in rows.column_names:
        rows = rows.filter(rows[name].is_valid()) if rows[name].null_count else rows
    return rows


def _batches(rows: pa.Table, schema: pa.Schema) -> Iterator[Condition]:
    """Yield conditions so that each key fulfils one of them; adjacent keys go into one condition."""
    present = rows.group_by(rows.column_names).aggregate([])
    present = present.sort_by([(name, "ascending") for name in rows.column_names])
    for start in range(0, present.num_rows, _BATCH_KEYS):
        part = present.slice(start, _BATCH_KEYS)
        yield compile_tree(_all([_among(name, part[name]) for name in part.column_names]), schema)


def _among(name: str, values: pa.ChunkedArray) -> Expression:
    literals = tuple(Literal(value) for value in pc.unique(values).to_pylist())
    return Call("in", (Column((name,)), *literals))


def _between(name: str, values: pa.ChunkedArray) -> Expression:
    bounds = pc.min_max(values)
    low, high = Literal(bounds["min"].as_py()), Literal(bounds["max"].as_py())
    column = Column((name,))
    return Call("and", (Call(">=", (column, low)), Call("<=", (column, high))))


def _all(parts: Sequence[Expression]) -> Expression:
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts))


def _rows(scan: Scan) -> int:
    return sum(int(fragment.physical_rows) for fragment in scan.fragments)
