"""The stages of bench_write name functions that the writer still calls."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

import spark_lance
from benchmarks.bench_write import STAGES, watched


def test_each_write_passes_the_stages_that_all_tables_have(tmp_path: Path) -> None:
    with watched() as clock:
        spark_lance.write_dataset(pa.table({"a": [1, 2], "s": ["x", "y"]}), tmp_path / "t")
    assert {"fit to the table's schema", "encode, lay out chunks", "hand to the system", "commit"} <= set(
        clock.seconds_by_stage
    )
    assert set(clock.seconds_by_stage) - set(STAGES) == {"all else"}
