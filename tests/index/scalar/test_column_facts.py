"""What indices tell of all values of a column, against the values themselves, for random histories."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.index.pruners import indexed_snapshot
from spark_lance.index.scalar.column_facts import column_bounds, leading_rows, null_count, value_counts
from spark_lance.table.reading.snapshot import Snapshot

KINDS = ("BTREE", "BITMAP", "ZONEMAP")
NAN = float("nan")
# Few values, so that there are ties, and all that is easily put in a wrong place.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [-(2**31), -1, 0, 7, 2**31 - 1]),
    "u": (pa.uint64(), [0, 1, 2**63, 2**64 - 1]),
    "d": (pa.float64(), [-1.5, -0.0, 0.0, 2.5, float("inf"), -float("inf")]),
    "x": (pa.float32(), [-1.5, 0.25, NAN]),
    "s": (pa.string(), ["", "a", "Z", "é", "ab", "\U0001f600"]),
    "b": (pa.binary(), [b"", b"\x7f", b"\x80", b"\xff"]),
    "n": (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("12.25")]),
    "t": (pa.timestamp("us"), [datetime(1969, 12, 31, 23), datetime(2024, 2, 29)]),
    "day": (pa.date32(), [date(1969, 12, 31), date(2024, 2, 29)]),
    "yes": (pa.bool_(), [True, False]),
}


def rows(draw: random.Random, count: int, nulls: float) -> pa.Table:
    columns = {
        name: pa.array([None if draw.random() < nulls else draw.choice(values) for _ in range(count)], kind)
        for name, (kind, values) in VALUES.items()
    }
    inner = [None if draw.random() < nulls else {"y": draw.choice([None, 3, 5])} for _ in range(count)]
    return pa.table({"id": pa.array(range(count)), **columns, "st": inner})


def opened(place: Path) -> Snapshot:
    dataset = spark_lance.dataset(str(place))
    return indexed_snapshot(dataset.snapshot.table, dataset.snapshot.manifest)


def order_key(value: Any) -> Any:
    """The order of Spark: NaN last, text and bytes by their bytes."""
    if isinstance(value, float):
        return (value != value, 0.0 if value != value else value)
    return value.encode() if isinstance(value, str) else value


def same(one: list[Any], other: list[Any]) -> bool:
    return list(map(order_key, one)) == list(map(order_key, other))


def read(snapshot: Snapshot, path: list[str], selection: Any) -> list[Any]:
    """The values of chosen rows that are alive."""
    results: list[Any] = []
    for task in snapshot.scan([path[0]]).select_tasks(selection):
        for table in task.tables(1 << 20):
            results += table[path[0]].to_pylist()
    for name in path[1:]:
        results = [None if value is None else value[name] for value in results]
    return results


def check(snapshot: Snapshot, path: list[str], live: list[Any]) -> set[str]:
    """Compare all that is told of a column with its values; return what was told."""
    message = set()
    there = sorted((value for value in live if value is not None), key=order_key)
    empty: list[Any] = [None] * (len(live) - len(there))
    for descending in (False, True):
        values = there[::-1] if descending else there
        for nulls, ordered in (("first", empty + values), ("last", values + empty), ("none", values)):
            for count in (1, 3, len(live) // 5):
                result = leading_rows(snapshot, path, count, descending=descending, nulls=nulls)
                if result is None:
                    continue
                message.add("leading")
                got = [v for v in read(snapshot, path, result) if nulls != "none" or v is not None]
                # Those that were wanted are among them, and the order puts them in front.
                got.sort(key=lambda v: (v is not None, () if v is None else order_key(v)))
                filled = [v for v in got if v is not None]
                filled = filled[::-1] if descending else filled
                blank = [None] * (len(got) - len(filled))
                got = blank + filled if nulls == "first" else filled + blank
                expected = ordered[:count]
                assert len(got) >= len(expected)
                assert [v is None for v in got[: len(expected)]] == [v is None for v in expected]
                assert same(
                    [v for v in got[: len(expected)] if v is not None], [v for v in expected if v is not None]
                )
    if (nulls_told := null_count(snapshot, path)) is not None:
        message.add("nulls")
        assert nulls_told == len(empty)
    if (groups := value_counts(snapshot, path, 1000, 1 << 20)) is not None:
        message.add("groups")
        found_values = groups[0].to_pylist()
        assert len(set(found_values)) == len(found_values)
        assert dict(zip(found_values, groups[1].tolist(), strict=True)) == {
            v: live.count(v) for v in set(live)
        }
    if (bounds := column_bounds(snapshot, path)) is not None:
        message.add("bounds")
        assert bounds.nulls >= len(empty)
        if there:
            assert bounds.low is not None
            assert bounds.high is not None
            assert order_key(bounds.low[0].as_py()) <= order_key(there[0])
            assert order_key(bounds.high[0].as_py()) >= order_key(there[-1])
    return message


def index_all(place: Path, kind: Any, by_reference: bool) -> None:
    for name in (*VALUES, "st.y"):
        if kind == "ZONEMAP" and name == "yes" and by_reference:
            continue
        if by_reference:
            lance.dataset(str(place)).create_scalar_index(name, kind, replace=True)
        else:
            spark_lance.dataset(str(place)).create_scalar_index(name, kind, replace=True)


def change(draw: random.Random, place: Path) -> None:
    dataset = spark_lance.dataset(str(place))
    what = draw.choice(
        ["delete", "delete ends", "append", "update", "compact", "optimize", "delete all of one"]
    )
    if what == "delete":
        dataset.delete(f"id % {draw.randint(2, 9)} = 1")
    elif what == "delete ends":
        dataset.delete("i = 2147483647 or s = '' or day = date '2024-02-29' or st.y = 3")
    elif what == "delete all of one":
        dataset.delete("i is null or yes")
    elif what == "append":
        spark_lance.write_dataset(rows(draw, 40, 0.2), str(place), mode="append")
    elif what == "update":
        dataset.update({"i": "-9", "s": "'zz'", "d": "null"}, where=f"id % {draw.randint(2, 9)} = 0")
    elif what == "compact":
        dataset.optimize.compact_files()
    else:
        dataset.optimize.optimize_indices()


def run(tmp_path: Path, seed: int, kind: str, stable: bool, by_reference: bool) -> dict[str, set[str]]:
    draw = random.Random(seed)
    place = tmp_path / "t.lance"
    nulls = draw.choice([0.0, 0.3])
    for _ in range(3):
        spark_lance.write_dataset(
            rows(draw, 60, nulls), str(place), mode="append", enable_stable_row_ids=stable
        )
    if draw.random() < 0.3:
        change(draw, place)
    index_all(place, kind, by_reference)
    messages: dict[str, set[str]] = {}
    for _ in range(4):
        snapshot = opened(place)
        live = spark_lance.dataset(str(place)).to_table().to_pydict()
        for name in VALUES:
            messages.setdefault(name, set()).update(check(snapshot, [name], live[name]))
        inside = [None if value is None else value["y"] for value in live["st"]]
        messages.setdefault("st.y", set()).update(check(snapshot, ["st", "y"], inside))
        change(draw, place)
    return messages


# Each kind with and without stable row ids, and by either builder; the slow test takes all in all.
@pytest.mark.parametrize(
    ("seed", "kind"),
    [(0, "BTREE"), (3, "BTREE"), (1, "BITMAP"), (2, "BITMAP"), (0, "ZONEMAP"), (3, "ZONEMAP")],
)
def test_what_is_told_is_true(tmp_path: Path, seed: int, kind: str) -> None:
    run(tmp_path, seed, kind, stable=seed % 2 == 1, by_reference=seed % 4 > 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(10, 60))
def test_what_is_told_is_true_at_length(tmp_path: Path, kind: str, seed: int) -> None:
    run(tmp_path, seed, kind, stable=seed % 2 == 1, by_reference=seed % 4 > 1)


@pytest.mark.parametrize("by_reference", [False, True])
def test_all_is_told_of_a_table_that_is_covered(tmp_path: Path, by_reference: bool) -> None:
    draw = random.Random(1)
    for kind in KINDS:
        place = tmp_path / f"{kind}.lance"
        spark_lance.write_dataset(rows(draw, 2000, 0.2), str(place), max_rows_per_file=20000)
        spark_lance.write_dataset(rows(draw, 20000, 0.2), str(place), mode="append")
        index_all(place, kind, by_reference)
        live = spark_lance.dataset(str(place)).to_table(columns=["i"])["i"].to_pylist()
        message = check(opened(place), ["i"], live)
        expected = {
            "BTREE": {"leading", "nulls", "bounds"},
            "BITMAP": {"leading", "nulls", "groups", "bounds"},
        }
        assert message >= expected.get(kind, {"nulls", "bounds"}), kind


def test_nothing_is_told_of_rows_that_no_index_covers(tmp_path: Path) -> None:
    place = tmp_path / "t.lance"
    spark_lance.write_dataset(rows(random.Random(1), 100, 0.0), str(place))
    index_all(place, "BITMAP", False)
    assert value_counts(opened(place), ["i"], 10, 1 << 20) is not None
    assert value_counts(opened(place), ["i"], 4, 1 << 20) is None
    assert value_counts(opened(place), ["i"], 10, 10) is None
    spark_lance.write_dataset(rows(random.Random(2), 1, 0.0), str(place), mode="append")
    snapshot = opened(place)
    assert value_counts(snapshot, ["i"], 10, 1 << 20) is None
    assert null_count(snapshot, ["i"]) is None
    assert leading_rows(snapshot, ["i"], 1) is None
    assert column_bounds(snapshot, ["i"]) is None
    assert null_count(snapshot, ["nope"]) is None


def test_zones_that_cannot_hold_the_first_rows_are_left_out(tmp_path: Path) -> None:
    place = tmp_path / "t.lance"
    spark_lance.write_dataset(pa.table({"a": np.arange(100_000)}), str(place))
    spark_lance.dataset(str(place)).create_scalar_index("a", "ZONEMAP")
    spark_lance.dataset(str(place)).delete("a >= 99990 and a < 99995")
    result = leading_rows(opened(place), ["a"], 3, descending=True)
    assert result is not None
    (chosen,) = result.values()
    assert chosen is not None
    assert len(chosen) <= 2 * 8192
    assert sorted(read(opened(place), ["a"], result))[-3:] == [99997, 99998, 99999]
