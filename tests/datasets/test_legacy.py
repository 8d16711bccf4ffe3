"""Tables of legacy files (0.1), which pylance still writes: every verb reads them, and none changes them."""

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
from spark_lance.errors import UnsupportedFormatError

CONDITIONS = (
    "id % 3 = 1",
    "id between 20 and 60",
    "s like 'w1%' or s = 'w3'",
    "x > 0.5 and flag",
    "array_has(l, 3)",
    "st.a >= 5",
    "not (id in (1, 2, 50))",
    "false",
)


def rows(start: int, stop: int) -> pa.Table:
    chance = random.Random(start)
    count = stop - start
    return pa.table(
        {
            "id": pa.array(range(start, stop), pa.int64()),
            # No nulls: pylance 14 takes some of them for values when it filters such files.
            "s": [chance.choice(["zz", f"w{i % 13}"]) for i in range(count)],
            "x": [chance.random() for _ in range(count)],
            "flag": [chance.random() < 0.5 for _ in range(count)],
            "l": [list(range(chance.randrange(5))) for _ in range(count)],
            "st": [{"a": chance.randrange(10), "b": "y" * (i % 3)} for i in range(count)],
            "v": pa.array(
                [[chance.random() for _ in range(4)] for _ in range(count)], pa.list_(pa.float32(), 4)
            ),
        }
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fragments of several groups, with deletions, a column that came later, and an index."""
    place = str(tmp_path_factory.mktemp("legacy") / "t")
    ds = lance.write_dataset(
        rows(0, 90), place, data_storage_version="legacy", max_rows_per_file=40, max_rows_per_group=16
    )
    ds = lance.write_dataset(rows(90, 120), ds, mode="append", max_rows_per_group=7)
    ds.delete("id % 11 = 4 or id between 30 and 35")
    ds.add_columns({"later": "id * 2"})
    ds.create_scalar_index("id", "BTREE")
    return place


@pytest.mark.parametrize("condition", [None, *CONDITIONS])
@pytest.mark.parametrize("columns", [None, ["later", "id"], ["s", "l", "v"]])
def test_scans(path: str, condition: str | None, columns: list[str] | None) -> None:
    ours, theirs = spark_lance.dataset(path), lance.dataset(path)
    expected = theirs.to_table(columns, condition, with_row_id=True)
    assert ours.to_table(columns, condition, with_row_id=True).equals(expected)
    batches = ours.to_batches(columns, condition, batch_size=7, with_row_id=True)
    assert pa.Table.from_batches(list(batches), expected.schema).equals(expected)
    assert ours.count_rows(condition) == expected.num_rows
    parts = [part.to_table(columns, condition, with_row_id=True) for part in ours.get_fragments()]
    assert pa.concat_tables(parts).equals(expected)


def test_single_rows(path: str) -> None:
    ours, theirs = spark_lance.dataset(path), lance.dataset(path)
    chance = np.random.default_rng(1)
    ids = theirs.to_table([], with_row_id=True)["_rowid"].to_numpy()
    for columns in (None, ["later", "s"], ["l", "st"]):
        chosen = chance.integers(0, len(ids), 20)
        assert ours.take(chosen, columns).equals(theirs.take(chosen, columns))
        assert ours.take_rows(ids[chosen], columns).equals(theirs._take_rows(ids[chosen].tolist(), columns))
    assert ours.head(5).equals(theirs.head(5))  # type: ignore[no-untyped-call]
    assert ours.sample(10, seed=1).num_rows == 10
    nearest = {"column": "v", "q": [0.5] * 4, "k": 5}
    result, expected = (ds.to_table(["id"], nearest=nearest) for ds in (ours, theirs))
    assert result["id"].to_pylist() == expected["id"].to_pylist()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda ds: ds.insert(rows(0, 3)),
    "overwrite": lambda ds: ds.insert(rows(0, 3), mode="overwrite"),
    "delete": lambda ds: ds.delete("id = 1"),
    "update": lambda ds: ds.update({"x": "1.0"}),
    "upsert": lambda ds: ds.merge_insert("id").when_matched_update_all().execute(ds.to_table()),
    "add": lambda ds: ds.add_columns({"n": "id + 1"}),
    "join": lambda ds: ds.merge(pa.table({"id": [1], "n": [1]}), "id"),
    "drop": lambda ds: ds.drop_columns(["s"]),
    "cast": lambda ds: ds.alter_columns({"path": "id", "data_type": pa.int32()}),
    "compact": lambda ds: ds.optimize.compact_files(),
    "index": lambda ds: ds.create_scalar_index("x", "BTREE"),
    "vectors": lambda ds: ds.create_index("v", "IVF_FLAT", num_partitions=1),
    "fragment": lambda ds: spark_lance.LanceFragment.create(ds.uri, rows(0, 3)),
    "restore": lambda ds: ds.checkout_version(1).restore(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_refused_and_leave_nothing(path: str, change: str) -> None:
    before = sorted(str(result) for result in Path(path).rglob("*"))
    with pytest.raises(UnsupportedFormatError, match="write to another location"):
        CHANGES[change](spark_lance.dataset(path))
    assert sorted(str(result) for result in Path(path).rglob("*")) == before


def test_a_copy_is_of_the_present_format(path: str, tmp_path: Path) -> None:
    old = spark_lance.dataset(path)
    copy = spark_lance.write_dataset(old, tmp_path / "copy")
    assert copy.data_storage_version != "0.1"
    assert copy.to_table().equals(old.to_table())
