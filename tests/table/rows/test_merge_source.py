"""Sources of merges that go to a file give the rows that those in memory give."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.table.rows.merge_insert import AlignedSource, source_rows
from spark_lance.table.writing.align import Aligner

TYPES = pa.schema(
    [
        ("k", pa.int64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.float32())),
        ("v", pa.list_(pa.float32(), 3)),
        ("d", pa.dictionary(pa.int8(), pa.string())),
        ("t", pa.struct([("x", pa.int32()), ("y", pa.binary())])),
    ]
)


def batch(rng: np.random.Generator, rows: int) -> pa.RecordBatch:
    numbers = rng.integers(0, 1000, rows).tolist()
    maybe = [None if n % 7 == 0 else n for n in numbers]
    columns = [
        numbers,
        [None if n is None else f"text {n}" for n in maybe],
        [None if n is None else [n / 2] * (n % 4) for n in maybe],
        [None if n is None else [n, n + 1, n + 2] for n in maybe],
        [None if n is None else "abc"[n % 3] for n in maybe],
        [{"x": n, "y": bytes([number % 256])} for n, number in zip(maybe, numbers, strict=True)],
    ]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, TYPES, strict=True)], schema=TYPES)


@pytest.mark.parametrize("seed", range(8))
def test_rows_are_the_same_from_a_file_and_from_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batches = [batch(rng, int(rows)) for rows in rng.integers(0, 40, 6)]
    aligner = Aligner(TYPES, Schema.from_arrow(TYPES))
    total = sum(b.num_rows for b in batches)
    requests = [np.arange(total), rng.permutation(total), rng.integers(0, max(total, 1), 50), np.arange(0)]
    results = []
    for limit in (1 << 30, 0, 500):
        reader = pa.RecordBatchReader.from_batches(TYPES, batches)
        with source_rows(reader, limit) as rows:
            assert rows.spilled == (limit < sum(b.nbytes for b in batches))
            source = AlignedSource(rows, aligner, ["k", "s"])
            assert source.compared_columns.column_names == ["k", "s"]
            picked = [source.pick(numbers.astype(np.int64)) for numbers in requests]
            results.append([source.compared_columns, *picked])
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            assert one.schema == same.schema
            assert one.to_pylist() == same.to_pylist()


def test_the_file_goes_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batches = [batch(np.random.default_rng(0), 10)] * 3

    def stop() -> None:
        with source_rows(pa.RecordBatchReader.from_batches(TYPES, batches), 0) as rows:
            assert rows.spilled
            assert list(tmp_path.rglob("*.arrows"))
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stop()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_merge_of_a_stream(tmp_path: Path, limit: int) -> None:
    rng = np.random.default_rng(3)
    old = pa.table({"k": np.arange(1000), "n": np.zeros(1000, np.int64), "s": ["old"] * 1000})
    ds = spark_lance.write_dataset(old, tmp_path / "t", max_rows_per_file=300)
    keys = rng.permutation(1500)[:600]

    def batches() -> object:
        for part in np.array_split(keys, 7):
            yield pa.record_batch({"n": part.astype(np.int64), "k": part})  # s stays as it is

    schema = pa.schema([("n", pa.int64()), ("k", pa.int64())])
    merge = ds.merge_insert("k").memory_limit(limit).when_not_matched_insert_all()
    done = merge.when_matched_update_all("source.n % 2 = 0").execute(batches(), schema)
    expected = dict.fromkeys(range(1000), (0, "old"))
    expected |= {k: (k, "old" if k < 1000 else None) for k in keys.tolist() if k >= 1000 or k % 2 == 0}
    assert done.num_inserted_rows == int((keys >= 1000).sum())
    assert {r["k"]: (r["n"], r["s"]) for r in done.dataset.to_table().to_pylist()} == expected


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_a_value_that_does_not_fit_is_told_before_anything_is_written(tmp_path: Path, limit: int) -> None:
    ds = spark_lance.write_dataset({"k": pa.array([1, 2], pa.uint32())}, tmp_path / "t")
    merge = ds.merge_insert("k").memory_limit(limit).when_not_matched_insert_all()
    with pytest.raises(SchemaError, match="k"):
        merge.execute({"k": [5, 1 << 40]})
    assert ds.latest_version == 1
