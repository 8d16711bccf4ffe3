"""Runs of physical rows, read at once: what a read of all rows has there, whatever the format stores."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

ROWS = 3000


def rows() -> pa.Table:
    chance = np.random.default_rng(1)
    wide = pa.FixedSizeListArray.from_arrays(pa.array(chance.random(ROWS * 96, np.float32)), 96)
    return pa.table(
        {
            "n": chance.integers(0, 1000, ROWS),
            "wide": wide,
            "maybe": pa.array([None if i % 5 == 0 else v for i, v in enumerate(wide.to_pylist())], wide.type),
            "narrow": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(ROWS * 2), pa.int16()), 2),
            "s": [f"text {i * 31 % 977}" for i in range(ROWS)],
            "l": [list(range(i % 4)) for i in range(ROWS)],
            "st": [{"a": i, "b": None if i % 3 else "x"} for i in range(ROWS)],
        }
    )


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("local", [True, False])
def test_runs(tmp_path: Path, version: Any, local: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows()
    if version == "legacy":
        table = table.drop_columns(["maybe", "st"])  # Such files keep few nulls.
    ds = lance.write_dataset(table, str(tmp_path / "t"), data_storage_version=version, max_rows_per_file=2000)
    ds.delete("n % 7 = 3")
    if not local:
        monkeypatch.setattr("spark_lance.io.local.LocalStore.map", lambda store, path: None)
    snapshot: Snapshot = spark_lance.dataset(tmp_path / "t").snapshot
    scan = snapshot.scan([*table.column_names, ROW_ADDRESS])
    chance = np.random.default_rng(2)
    for task in scan.tasks():
        opened = task.open_rows()
        whole = pa.concat_tables(task.tables(1 << 30))
        offsets = whole[ROW_ADDRESS].to_numpy() & 0xFFFFFFFF
        for pieces in (1, 2, 5):
            cuts = np.sort(chance.choice(opened.num_rows, 2 * pieces, replace=False)).tolist()
            runs = list(zip(cuts[::2], cuts[1::2], strict=True))
            expected = np.zeros(len(offsets), np.bool_)
            for start, stop in runs:
                expected |= (offsets >= start) & (offsets < stop)
            result = task.read_runs(runs, opened)
            assert result.combine_chunks().equals(whole.filter(pa.array(expected)).combine_chunks())
    bare = snapshot.scan([]).tasks()[0]
    assert bare.read_runs([(0, 5), (9, 12)], bare.open_rows()).num_rows <= 8


def test_wide_vectors_are_not_copied(tmp_path: Path) -> None:
    ds = spark_lance.write_dataset(rows(), tmp_path / "t", compression="none")
    (task,) = ds.snapshot.scan(["wide"]).tasks()
    opened, before = task.open_rows(), pa.total_allocated_bytes()
    tracemalloc.start()
    result = task.read_runs([(10, 900), (1000, 2900)], opened)
    _, peak = tracemalloc.get_traced_memory()  # numpy's arrays are in it
    tracemalloc.stop()
    assert result.num_rows == 2790
    assert peak + pa.total_allocated_bytes() - before < result.nbytes / 4
