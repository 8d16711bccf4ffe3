"""Columns that are decoded side by side: the same rows, and the same errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import FormatError
from spark_lance.table.reading import fragment

ROWS = 3000


@pytest.fixture(params=[1, 4])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(fragment, "_MIN_ROWS_FOR_THREADS", 1)
    monkeypatch.setattr(fragment, "spare_threads", lambda: request.param)
    return int(request.param)


def made(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    sizes = np.append(0, np.cumsum(random.integers(0, 5, ROWS)))
    return pa.table(
        {
            "a": random.integers(0, 1 << 50, ROWS),
            "b": pa.array(
                [f"text {n}" for n in random.integers(0, 900, ROWS)], mask=random.random(ROWS) < 0.2
            ),
            "c": pa.ListArray.from_arrays(
                pa.array(sizes, pa.int32()), pa.array(random.random(int(sizes[-1])))
            ),
            "d": pa.StructArray.from_arrays(
                [pa.array(random.integers(0, 9, ROWS)), pa.array(random.random(ROWS))], ["x", "y"]
            ),
        }
    )


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_rows(version: str, threads: int, tmp_path: Path) -> None:
    table = made(threads)
    dataset = spark_lance.write_dataset(table, tmp_path / "t", data_storage_version=version)
    dataset.delete("a % 7 = 3")
    dataset = spark_lance.dataset(tmp_path / "t")
    remaining = table.filter(pa.array(table["a"].to_numpy() % 7 != 3))
    assert dataset.to_table() == remaining
    assert dataset.to_table(["d", "b"], filter="a % 2 = 0") == remaining.filter(
        pa.array(remaining["a"].to_numpy() % 2 == 0)
    ).select(["d", "b"])


def test_damage_is_told(threads: int, tmp_path: Path) -> None:
    dataset = spark_lance.write_dataset(made(threads), tmp_path / "t")
    (path,) = (tmp_path / "t" / "data").glob("*.lance")
    data = bytearray(path.read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    path.write_bytes(bytes(data))
    with pytest.raises(FormatError, match="column '"):
        spark_lance.dataset(tmp_path / "t").to_table()
    assert dataset.version == 1
