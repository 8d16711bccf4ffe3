"""Random histories of tables, made by pylance and by us in turns, for tests of what is read afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from hypothesis import strategies as st

import spark_lance.datasets.dataset as ours

SPILL: dict[str, str | None] = {
    "lance.row_lineage.spill": "true",
    "lance.row_lineage.inline_max_bytes": "0",
}

# What is done, a number that varies it, and whether we do it; otherwise pylance does.
Step = tuple[str, int, bool]

KINDS = ["append", "delete", "update", "merge", "compact", "add column", "spill", "overwrite"]


def steps(*kinds: str, max_size: int = 6) -> st.SearchStrategy[list[Step]]:
    """Return a strategy of histories; of all kinds of steps if none is named."""
    step = st.tuples(st.sampled_from(kinds or KINDS), st.integers(0, 9), st.booleans())
    return st.lists(step, max_size=max_size)


def rows(start: int, count: int) -> pa.Table:
    """Return rows with the keys `a` from a start and texts `b`."""
    numbers = range(start, start + count)
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"b{i % 7}" * (i % 5) for i in numbers]})


def play(path: Path, steps: Sequence[Step], *, stable: bool, alone: bool = False, key: bool = False) -> None:
    """Create a table of 30 rows in several fragments and change it step by step.

    Args:
        path: where.
        steps: the changes.
        stable: whether rows have stable ids.
        alone: let pylance do everything.
        key: whether `a` is the primary key.
    """
    first = rows(0, 30)
    if key:
        marked = pa.field("a", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
        first = first.cast(pa.schema([marked, first.schema.field("b")]))
    lance.write_dataset(first, path, enable_stable_row_ids=stable, max_rows_per_file=8)
    for number, (kind, choice, mine) in enumerate(steps):
        player: Any = ours if mine and not alone else lance
        table = player.dataset(str(path))
        if kind == "append":
            added = rows(100 * (number + 1), 5 + choice)
            player.write_dataset(added.cast(_like(added.schema, table.schema)), str(path), mode="append")
        elif kind == "overwrite":
            player.write_dataset(rows(1000, 12), str(path), mode="overwrite", max_rows_per_file=5)
        elif kind == "delete":
            table.delete(f"a % 10 = {choice}")
        elif kind == "update":
            table.update({"b": f"'u{number}'"}, where=f"a % 7 = {choice % 7}")
        elif kind == "merge":
            merged = pa.concat_tables([rows(choice, 5), rows(50 * (number + 40), 3)])
            merge = table.merge_insert("a").when_matched_update_all().when_not_matched_insert_all()
            merge.execute(_with_all_columns(merged, table.schema))
        elif kind == "compact":
            table.optimize.compact_files(target_rows_per_fragment=20 + 10 * choice)
        elif kind == "add column":
            table.add_columns({f"c{number}": "a * 2"})
        elif stable:
            table.update_config(SPILL)


def _like(schema: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return a schema whose columns may be null where those of a table may."""
    return pa.schema([field.with_nullable(table.field(field.name).nullable) for field in schema])


def _with_all_columns(data: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        if field.name not in data.column_names:
            data = data.append_column(field, pa.array([7] * data.num_rows, field.type))
    data = data.select(schema.names)
    return data.cast(_like(data.schema, schema))
