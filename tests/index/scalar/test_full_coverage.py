"""An answer of indices that claims to be exact has the rows that a plain scan finds, and no others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.index.scalar.full_coverage import exact_rows
from spark_lance.index.scalar.pruner import ScalarPruner
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.system_columns import ROW_ADDRESS

ROWS, PART = 240, 60


def values(rng: random.Random, count: int) -> pa.Table:
    def some(choices: list[Any]) -> list[Any]:
        return [rng.choice(choices) for _ in range(count)]

    nan = float("nan")
    return pa.table(
        {
            "i": pa.array(some([None, *range(12)]), pa.int64()),
            "f": pa.array(some([None, nan, -nan, 0.0, -0.0, 1.5, -2.0, float("inf")]), pa.float64()),
            "s": pa.array(some([None, "", "a", "b", "ab"]), pa.string()),
            "z": pa.array(some([None, *range(6)]), pa.int32()),
            "p": pa.array(some([None, 0, 1]), pa.int8()),
        }
    )


def atom(rng: random.Random) -> str:
    column = rng.choice("iiiifffssszp")
    if rng.random() < 0.25:
        return f"{column} is {rng.choice(['', 'not '])}null"
    constants: list[Any] = {
        "f": ["0.0", "1.5", "-2.0", "cast('NaN' as double)"],
        "s": ["''", "'a'", "'ab'", "'c'"],
    }.get(column, [str(number) for number in range(-1, 8)])
    if rng.random() < 0.3:
        return f"{column} in ({', '.join(rng.sample(constants, 2))})"
    return f"{column} {rng.choice(['=', '<', '<=', '>', '>=', '!='])} {rng.choice(constants)}"


def condition(rng: random.Random, depth: int = 2) -> str:
    if not depth or rng.random() < 0.4:
        return atom(rng)
    if rng.random() < 0.2:
        return f"not ({condition(rng, depth - 1)})"
    word = rng.choice([" and ", " or "])
    return "(" + word.join(condition(rng, depth - 1) for _ in range(rng.choice([2, 3]))) + ")"


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "row ids"])
def test_exact_answers_are_what_a_scan_finds(stable: bool, tmp_path: Path) -> None:
    rng = random.Random(7)
    ds = spark_lance.write_dataset(
        values(rng, ROWS), tmp_path / "t", max_rows_per_file=PART, enable_stable_row_ids=stable
    )
    kinds = {"i": "BTREE", "f": "BTREE", "s": "BITMAP", "z": "ZONEMAP"}
    for column, kind in kinds.items():
        ds.create_scalar_index(column, kind)
    exact = {"covered": 0, "changed": 0, "appended": 0, "moved": 0}
    for state in exact:
        if state == "changed":
            ds.delete("p = 1 and i < 6")
            ds.update({"i": "i + 1"}, where="p = 0 and i = 3")
        elif state == "appended":
            ds = spark_lance.write_dataset(values(rng, 7), ds.uri, mode="append")
        elif state == "moved":
            ds.optimize.compact_files(defer_index_remap=not stable)
            ds = spark_lance.dataset(ds.uri)
            ds.optimize.optimize_indices()
        ds = spark_lance.dataset(ds.uri)
        snapshot, schema = ds.snapshot, ds.schema
        table = Snapshot(snapshot.table, snapshot.manifest).scan([*schema.names, ROW_ADDRESS])
        rows = pa.concat_tables(table.tables())
        live = rows[ROW_ADDRESS].to_numpy()
        for _ in range(60):
            text = condition(rng)
            parsed = compile_predicate(text, schema)
            expected = live[pc.fill_null(parsed.mask(rows), False).to_numpy()]
            exact_set = exact_rows(snapshot, parsed.trees(), 1 << 30)
            if exact_set is not None:
                exact[state] += 1
                assert sorted(exact_set.addresses().tolist()) == sorted(expected.tolist()), (state, text)
            answer = ScalarPruner(snapshot).answer(parsed.trees(), snapshot.fragments)
            if answer is not None:
                assert answer.rows.mask(expected).all(), (state, text)
                assert not answer.exact or answer.rows.mask(live).sum() == len(expected), (state, text)
    # Appended rows are in no index.
    assert exact["covered"] > 5
    assert exact["moved"] > 5
    assert exact["appended"] == 0
