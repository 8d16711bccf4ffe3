"""Random histories of tables, played by pylance; for tests that compare what is read of the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from hypothesis import strategies as st

SPILL: dict[str, str | None] = {
    "lance.row_lineage.spill": "true",
    "lance.row_lineage.inline_max_bytes": "0",
}

Step = tuple[str, int]

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "delete", "update", "compact", "add column", "spill", "overwrite"]),
        st.integers(0, 9),
    ),
    max_size=6,
)


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"a": pa.array(numbers, pa.int64()), "b": [f"b{i % 7}" * (i % 5) for i in numbers]})


def play(path: Path, steps: Sequence[Step], *, stable: bool, **options: Any) -> None:
    """Create a table of 30 rows in several fragments and change it step by step."""
    lance.write_dataset(rows(0, 30), path, enable_stable_row_ids=stable, max_rows_per_file=8, **options)
    for number, (kind, choice) in enumerate(steps):
        table = lance.dataset(str(path))
        if kind == "append":
            lance.write_dataset(rows(100 * (number + 1), 5 + choice), path, mode="append")
        elif kind == "overwrite":
            lance.write_dataset(rows(1000, 12), path, mode="overwrite", max_rows_per_file=5)
        elif kind == "delete":
            table.delete(f"a % 10 = {choice}")
        elif kind == "update":
            table.update({"b": f"'u{number}'"}, where=f"a % 7 = {choice % 7}")
        elif kind == "compact":
            table.optimize.compact_files(target_rows_per_fragment=20 + 10 * choice)
        elif kind == "add column":
            table.add_columns({f"c{number}": "a * 2"})
        elif stable:
            table.update_config(SPILL)
