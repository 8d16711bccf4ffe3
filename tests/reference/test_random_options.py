"""Random tables that pylance and we write in turns, with random options: both return the same rows.

Every step appends, changes, indexes or compacts. After it both packages read the whole table, and answer
conditions and searches, with indexes and without.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

STEPS = 12
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))])
COLUMNS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "text": (pa.string(), lambda rng: " ".join(rng.choices(WORDS, k=3))),
    "label": (pa.large_string(), lambda rng: rng.choice(WORDS)),
    "number": (pa.int32(), lambda rng: rng.randrange(-50, 50)),
    "real": (pa.float64(), lambda rng: rng.choice([*map(float, range(40)), float("nan")])),
    "day": (pa.date32(), lambda rng: rng.randrange(60)),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "tags": (pa.list_(pa.string()), lambda rng: rng.choices(WORDS, k=rng.randrange(4))),
    "nested": (
        STRUCT,
        lambda rng: {"x": rng.randrange(30), "y": rng.choice([None, {"z": "7"}])},
    ),
    "vector": (pa.list_(pa.float32(), 8), lambda rng: [rng.random() for _ in range(8)]),
    "bytes": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(30))),
}
ENCODINGS: dict[str, list[dict[str, str]]] = {
    "text": [{"lance-encoding:compression": "zstd"}, {"lance-encoding:structural-encoding": "fullzip"}],
    "number": [{"lance-encoding:compression": "lz4"}, {"lance-encoding:rle-threshold": "1.0"}],
    "real": [{"lance-encoding:bss": "on"}],
    "bytes": [{"lance-encoding:structural-encoding": "fullzip"}, {"lance-encoding:compression": "none"}],
}
INDEXES = {
    "id": ["BTREE", "ZONEMAP"],
    "number": ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"],
    "real": ["BTREE", "BITMAP", "ZONEMAP"],
    "label": ["BTREE", "BITMAP", "BLOOMFILTER", "ZONEMAP"],
    "day": ["BTREE", "BITMAP"],
    "flag": ["BTREE", "BITMAP"],
    "tags": ["LABEL_LIST"],
    "text": ["NGRAM", "INVERTED"],
    "nested.x": ["BTREE", "BITMAP"],
    "vector": ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ", "IVF_RQ"],
}
CONDITIONS = {
    "id": ["id in (5, 105, 205, 9999)", "id >= 30 and id % 2 = 0"],
    "number": ["number between -10 and 10", "number is null", "number not in (1, 2)", "not (number > 3)"],
    "real": ["real > 20", "isnan(real)", "not isnan(real)", "real != 7"],
    "label": ["label = 'beta'", "label like 'g%'", "label is null", "starts_with(label, 'ga')"],
    "day": ["day > date '1970-01-20'", "day = date '1970-02-01'"],
    "flag": ["flag", "not flag", "flag is null"],
    "tags": ["array_has_any(tags, ['beta', 'zeta'])", "not array_has_any(tags, ['beta'])"],
    "text": ["contains(text, 'ta ga')", "not contains(text, 'alpha')", "text like '%eta z%'"],
    "nested": ["nested.x = 5", "nested.y.z = '7'", "nested.y is null", "nested is null"],
}


def comparable(value: Any) -> Any:
    """Return a value that equals its copy: NaN as text."""
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def rows_by_id(table: pa.Table) -> dict[int, Any]:
    rows = [comparable(row) for row in table.to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


class History:
    """A table, its rows in memory, and the random choices of one seed."""

    def __init__(self, seed: int, path: str) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.version = self.rng.choice(["2.0", "2.1", "2.2"])
        names = [name for name in COLUMNS if name != "nested" or self.version != "2.0"]
        self.names = self.rng.sample(names, self.rng.randint(4, 8))
        self.schema = pa.schema([("id", pa.int64()), *map(self._field, self.names)])
        self.rows: dict[int, Any] = {}
        self.next_id = 0
        options = {
            "data_storage_version": self.version,
            "enable_stable_row_ids": self.rng.random() < 0.5,
        }
        self.write(self.make_rows(self.rng.choice([1, 50, 300])), "create", **options)

    def _field(self, name: str) -> pa.Field:
        encodings = [{}, *ENCODINGS.get(name, [])] if self.version != "2.0" else [{}]
        return pa.field(name, COLUMNS[name][0], metadata=self.rng.choice(encodings) or None)

    def side(self) -> Any:
        return self.rng.choice([lance, spark_lance])

    def make_rows(self, count: int, start: int | None = None) -> pa.Table:
        first = self.next_id if start is None else start
        self.next_id = max(self.next_id, first + count)
        columns: dict[str, pa.Array] = {"id": pa.array(range(first, first + count), pa.int64())}
        for name in self.names:
            kind, draw = COLUMNS[name]
            share = 0.0 if name == "vector" else 0.15
            values = [None if self.rng.random() < share else draw(self.rng) for _ in range(count)]
            columns[name] = (
                pa.array(values, pa.int32()).cast(kind) if name == "day" else pa.array(values, kind)
            )
        return pa.table(columns).cast(self.schema)

    def write(self, table: pa.Table, mode: str, **options: Any) -> None:
        options["max_rows_per_file"] = self.rng.choice([7, 40, 200, 1 << 20])
        self.side().write_dataset(table, self.path, mode=mode, **options)
        self.rows |= rows_by_id(table)

    def step(self) -> None:
        dataset = self.side().dataset(self.path)
        kind = self.rng.choice(["append", "delete", "update", "merge", "compact", "index", "index", "extend"])
        divisor = self.rng.randint(2, 9)
        if kind == "append":
            self.write(self.make_rows(self.rng.choice([1, 20, 150])), "append")
        elif kind == "delete":
            dataset.delete(f"id % {divisor} = 1")
            self.rows = {number: row for number, row in self.rows.items() if number % divisor != 1}
        elif kind == "update" and "number" in self.names:
            dataset.update({"number": "77"}, where=f"id % {divisor} = 0")
            for number, row in self.rows.items():
                row["number"] = 77 if number % divisor == 0 else row["number"]
        elif kind == "merge" and self.rows:
            table = self.make_rows(30, self.rng.choice(sorted(self.rows)))
            dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(table)
            self.rows |= rows_by_id(table)
        elif kind == "compact":
            dataset.optimize.compact_files(target_rows_per_fragment=self.rng.choice([30, 500, 1 << 20]))
        elif kind == "index" and self.rows:
            self.index(dataset)
        elif kind == "extend":
            dataset.optimize.optimize_indices()

    def index(self, dataset: Any) -> None:
        column = self.rng.choice([name for name in INDEXES if name.split(".")[0] in ("id", *self.names)])
        kind = self.rng.choice(INDEXES[column])
        if column != "vector":
            dataset.create_scalar_index(column, kind, replace=True)
        elif len(self.rows) > 256:
            parts = {"num_sub_vectors": 2} if kind == "IVF_PQ" else {}
            dataset.create_index(column, kind, num_partitions=2, metric="l2", replace=True, **parts)

    def check(self) -> None:
        ours, theirs = spark_lance.dataset(self.path), lance.dataset(self.path)
        assert rows_by_id(ours.to_table()) == rows_by_id(theirs.to_table()) == self.rows
        for name in ("id", *self.names):
            for condition in CONDITIONS.get(name, []):
                plain: Any = theirs.scanner(["id"], filter=condition, use_scalar_index=False).to_table()
                expected = sorted(plain["id"].to_pylist())
                for use_index in (True, False):
                    result = ours.scanner(["id"], filter=condition, use_scalar_index=use_index).to_table()
                    assert sorted(result["id"].to_pylist()) == expected, (condition, use_index)
                assert ours.count_rows(condition) == len(expected), condition
        if "text" in self.names:
            query = {"query": "alpha", "columns": ["text"]}
            result = ours.to_table(["id"], full_text_query=query, limit=10_000)
            expected = [number for number, row in self.rows.items() if "alpha" in (row["text"] or "").split()]
            assert sorted(result["id"].to_pylist()) == sorted(expected)
        if "vector" in self.names and self.rows:
            row = self.rng.choice(list(self.rows.values()))
            nearest = {"column": "vector", "q": row["vector"], "k": 1, "nprobes": 50, "refine_factor": 100}
            assert ours.to_table(["id"], nearest=nearest)["id"].to_pylist() == [row["id"]]


@pytest.mark.parametrize("seed", range(12))
def test_both_return_the_same_rows(seed: int, tmp_path: Path) -> None:
    history = History(seed, str(tmp_path / "t"))
    for _ in range(STEPS):
        history.step()
        history.check()
