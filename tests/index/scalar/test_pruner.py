"""What a pruner makes of conditions: the rows beyond which they keep none, fragment by fragment."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.expressions.predicate import Condition, compile_predicate
from spark_lance.index.pruners import index_pruners
from spark_lance.index.scalar.bitmap import Bitmap
from spark_lance.index.scalar.column_facts import column_bounds
from spark_lance.index.scalar.pruner import ScalarPruner
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.system_columns import filterable_schema

ROWS = 10


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {"a": numbers, "b": [n % 4 for n in numbers], "c": numbers, "s": [{"d": n % 2} for n in numbers]}
    )


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> spark_lance.LanceDataset:
    """Four fragments; `a` is indexed in the first two, `b` and `s.d` in all, `c` in none."""
    path = tmp_path / "t"
    ds = spark_lance.write_dataset(
        rows(0, 20), path, max_rows_per_file=ROWS, enable_stable_row_ids=request.param
    )
    ds.create_scalar_index("a", "BTREE")
    ds = spark_lance.write_dataset(rows(20, 20), path, max_rows_per_file=ROWS, mode="append")
    return ds.create_scalar_index("b", "BITMAP").create_scalar_index("s.d", "BITMAP")


def condition(table: spark_lance.LanceDataset, text: str) -> Condition:
    return compile_predicate(text, filterable_schema(table.lance_schema))


def known(
    table: spark_lance.LanceDataset, text: str, fragments: slice = slice(None)
) -> Mapping[int, list[int] | None] | None:
    """Return what is known: fragment -> rows, None for all; None if nothing is known."""
    pruner = ScalarPruner(table.snapshot)
    result = pruner(condition(table, text), table.manifest.fragments[fragments])
    return (
        None
        if result is None
        else {f: None if r is None else list(r) for f, r in result.items() if r is None or r}
    )


B_1 = {0: [1, 5, 9], 1: [3, 7], 2: [1, 5, 9], 3: [3, 7]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 5", {0: [5], 2: None, 3: None}),
        ("a = 35", {2: None, 3: None}),
        ("b = 1", B_1),
        ("b = 7", {}),
        # Of "and", each part narrows what the others leave.
        ("a = 5 and b = 1", {0: [5], 2: [1, 5, 9], 3: [3, 7]}),
        ("b = 1 and a = 5", {0: [5], 2: [1, 5, 9], 3: [3, 7]}),
        ("a = 6 and b = 1", {2: [1, 5, 9], 3: [3, 7]}),
        ("a = 5 and c = 9", {0: [5], 2: None, 3: None}),
        ("c = 9 and a = 5", {0: [5], 2: None, 3: None}),
        ("a > 3 and a < 6 and c > 0", {0: [4, 5], 2: None, 3: None}),
        ("a >= 8 and b = 1 and 11 > a", {0: [9], 2: [1, 5, 9], 3: [3, 7]}),
        ("a > 6 and a < 3", {2: None, 3: None}),
        ("(a > 3 and a < 6) or (a > 12 and a <= 13)", {0: [4, 5], 1: [3], 2: None, 3: None}),
        # Of "or", all parts must be known.
        ("a = 5 or a = 15", {0: [5], 1: [5], 2: None, 3: None}),
        ("b = 1 or a = 6", {0: [1, 5, 6, 9], 1: [3, 7], 2: None, 3: None}),
        ("b = 1 or b = 7", B_1),
        ("a = 5 or c = 9", None),
        ("c = 9 or a = 5", None),
        ("(a = 5 or c = 9) and b = 1", B_1),
        ("(a = 5 and c = 9) or b = 7", {0: [5], 2: None, 3: None}),
        # A field in a struct.
        ("s.d = 1 and b = 0", {}),
        ("s.d = 1 and b = 1", B_1),
        # What no index answers.
        ("c = 9", None),
        ("a + b = 9", None),
        ("a + 1 = 9", None),
        ("true", None),
    ],
)
def test_conditions(
    table: spark_lance.LanceDataset, text: str, expected: Mapping[int, list[int] | None] | None
) -> None:
    assert known(table, text) == expected
    plain = [n for n in range(40) if _holds(text, n)]
    assert table.to_table(["c"], text)["c"].to_pylist() == plain


def _holds(text: str, n: int) -> bool:
    names = {"a": n, "b": n % 4, "c": n, "true": True}
    python = text.replace("s.d", str(n % 2)).replace(" = ", " == ")
    return bool(eval(python, {}, names))


def test_only_the_fragments_that_are_asked_for_count(table: spark_lance.LanceDataset) -> None:
    assert known(table, "b = 1", slice(1, 3)) == {1: [3, 7], 2: [1, 5, 9]}
    assert known(table, "a = 5", slice(1, 3)) == {2: None}
    # Nothing is known of fragments that the index does not cover.
    assert known(table, "a = 5", slice(2, 4)) is None


def test_fragments_that_are_gone_do_not_count(table: spark_lance.LanceDataset) -> None:
    table = table.delete("a < 10")
    assert known(table, "a = 5 or a = 15") == {1: [5], 2: None, 3: None}
    assert known(table, "b = 1") == {number: B_1[number] for number in (1, 2, 3)}


def test_rows_that_were_compacted_are_found_where_they_are(table: spark_lance.LanceDataset) -> None:
    table = table.delete("a in (0, 2)")
    table.optimize.compact_files(target_rows_per_fragment=20, materialize_deletions_threshold=0.0)
    table = spark_lance.dataset(table.uri)
    for text in ("a = 5", "b = 1", "a = 5 or b = 3"):
        assert table.to_table(["c"], text)["c"].to_pylist() == [n for n in range(40) if _holds(text, n)]
    result = known(table, "b = 1 and a < 10")
    assert result is not None
    assert 0 not in result


def test_a_literal_that_does_not_fit_leaves_the_error_to_the_scan(table: spark_lance.LanceDataset) -> None:
    assert known(table, "b = 1 and a = 5 and a < 1e30") is not None


def test_tables_without_indices_have_no_pruner(tmp_path: Path) -> None:
    plain = spark_lance.write_dataset(rows(0, 5), tmp_path / "plain")
    assert index_pruners(plain.snapshot) == ()
    assert known(plain, "a = 1") is None


def test_a_pruner_travels_without_what_it_opened(table: spark_lance.LanceDataset) -> None:
    pruner = ScalarPruner(table.snapshot)
    before = len(pickle.dumps(pruner))
    request = condition(table, "b = 1")
    result = pruner(request, table.manifest.fragments)
    assert len(pickle.dumps(pruner)) == before
    assert pickle.loads(pickle.dumps(pruner))(request, table.manifest.fragments) == result


def test_the_newest_index_of_a_kind_answers_alone(table: spark_lance.LanceDataset) -> None:
    """Two indices of one kind on one column: what the newer covers is not united with the older."""
    table = table.create_scalar_index("a", "BTREE", name="later")
    assert known(table, "a = 5") == {0: [5]}
    table = table.create_scalar_index("a", "ZONEMAP", name="zones")
    assert known(table, "a = 5") == {0: [5]}


def test_a_set_may_hold_all_rows_of_a_fragment(
    table: spark_lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a set is stored without its rows; under stable ids these may be in any fragment by now."""
    monkeypatch.setattr(Bitmap, "find", lambda index, probe: RowSet.from_fragments([0]))
    all_covered = dict.fromkeys(range(4)) if table.manifest.uses_stable_row_ids else {0: None}
    assert known(table, "b = 1") == all_covered


def test_the_indices_of_a_field(table: spark_lance.LanceDataset) -> None:
    pruner, schema = ScalarPruner(table.snapshot), table.lance_schema
    names = {
        path: [index.name for index in pruner.find_indexes(schema.find(path)[-1].id)]
        for path in ("a", "b", "s.d", "c")
    }
    assert names == {"a": ["BTREE"], "b": ["BITMAP"], "s.d": ["BITMAP"], "c": []}


A_5, B_IS_1 = ("a = 5", "a_idx", "BTREE"), ("b = 1", "b_idx", "BITMAP")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c = 9 and a = 5", [A_5]),
        ("a + 1 = 9 or (b = 1 and (c > 3 or s.d = 0))", [B_IS_1, ("s.d = 0", "s.d_idx", "BITMAP")]),
        ("a = 5 and b = 1 and a > 3", [A_5, B_IS_1, ("a > 3", "a_idx", "BTREE")]),
        ("a >= 3 and b = 1 and a <= 6", [("a >= 3 && a <= 6", "a_idx", "BTREE"), B_IS_1]),
        ("a >= 3 and a <= 6 or b = 1", [("a >= 3 && a <= 6", "a_idx", "BTREE"), B_IS_1]),
        ("c = 9 or a + 1 = 9", []),
        ("true", []),
    ],
)
def test_what_is_told_of_indices(
    table: spark_lance.LanceDataset, text: str, expected: list[tuple[str, str, str]]
) -> None:
    assert ScalarPruner(table.snapshot).explain(condition(table, text)) == expected


def test_nothing_is_told_without_indices(tmp_path: Path) -> None:
    plain = spark_lance.write_dataset(rows(0, 5), tmp_path / "plain")
    assert ScalarPruner(plain.snapshot).explain(condition(plain, "a = 1")) == []


def test_zones_without_bounds_are_read(tmp_path: Path) -> None:
    """pylance stores null bounds of dictionaries, although the zones have values."""
    values = pa.array(["b", None, "a"] * 50).dictionary_encode()
    lance.write_dataset(pa.table({"x": values}), tmp_path).create_scalar_index("x", "ZONEMAP")
    table = spark_lance.dataset(tmp_path)
    for condition, count in (("x = 'a'", 50), ("x > 'a'", 50), ("x is null", 50), ("x = 'c'", 0)):
        assert table.count_rows(condition) == count
    bounds = column_bounds(table.snapshot, ["x"])
    assert bounds is None, "a zone with values but without bounds answers nothing"
