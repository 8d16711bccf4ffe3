"""Conditions on row numbers read only the rows and fragments that they can keep, and find all of them."""

from __future__ import annotations

import operator
import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

import spark_lance.datasets.dataset as ours
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.io.store import open_store
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.fragment_rows import FragmentRows
from spark_lance.table.reading.pruning import _AllowedValues, prune
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.system_columns import filterable_schema
from spark_lance.table.versions.versions import load_latest
from tests.table.histories import Step, play, steps

NAMES = ("_rowid", "_rowaddr", "_fragid")


def wanted_numbers(there: list[int]) -> st.SearchStrategy[list[int]]:
    """Numbers that exist, and such that do not."""
    some = st.sampled_from(there) if there else st.nothing()
    near = (
        st.integers(0, 200) | st.integers(2**32, 2**32 + 40) | st.sampled_from([2**63, 2**64 - 1, 2**64, -1])
    )
    return st.lists(some | near, min_size=1, max_size=6)


@st.composite
def conditions(draw: st.DrawFn, numbers: dict[str, list[int]]) -> str:
    """A condition that names row numbers, alone or among others."""
    name = draw(st.sampled_from(NAMES))
    values = draw(wanted_numbers(numbers[name]))
    first = values[0]
    other = draw(st.sampled_from(NAMES))
    more = draw(wanted_numbers(numbers[other]))[0]
    return draw(
        st.sampled_from(
            [
                f"{name} = {first}",
                f"{first} = {name}",
                f"{name} in ({', '.join(map(str, values))})",
                f"{name} in ({', '.join(map(str, values))}, null)",
                f"{name} = {first} or {other} = {more}",
                f"{name} = {first} or {name} = {more}",
                f"{name} in ({', '.join(map(str, values))}) and a % 2 = 0",
                f"{name} >= {min(values)} and {name} <= {max(values)}",
                f"{name} < {first} and {other} in ({more}, {first})",
                f"{first} <= {name} or {name} < {more}",
                f"not ({name} = {first})",
                f"{name} not in ({first}, {more})",
                f"{name} = {first} or a = 5",
                f"{name} + 0 = {first % 2**31}",
                f"{name} between {first} and {more}",
                f"{name} = {first}.0",
                f"{name} = null",
            ]
        )
    )


@settings(max_examples=15, deadline=None)
@given(changes=steps(), stable=st.booleans(), data=st.data())
def test_conditions_on_row_numbers_find_what_a_full_scan_finds(
    changes: list[Step], stable: bool, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=stable)
        table = ours.dataset(path)
        whole = table.to_table(["a", "b", *NAMES, "_rowoffset"])
        numbers = {name: whole[name].to_pylist() for name in NAMES}
        for _ in range(8):
            text = data.draw(conditions(numbers))
            condition = compile_predicate(text, whole.schema)
            expected = condition.filter(whole)
            assert table.to_table(whole.column_names, filter=text).equals(expected), text
            assert table.to_table(["b"], filter=text).equals(expected.select(["b"]))
            assert table.count_rows(text) == expected.num_rows


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    for start in range(0, 40, 10):
        ours.write_dataset(pa.table({"a": range(start, start + 10)}), path, mode="append")
    return path


@pytest.mark.parametrize(
    ("text", "fragments", "rows"),
    [
        ("_rowaddr = 4294967299", [1], {1: [3]}),
        ("_rowid in (1, 5, 8589934592, 99999999999999)", [0, 2], {0: [1, 5], 2: [0]}),
        ("_rowaddr in (1, 2) and _rowid in (2, 3, 8589934592)", [0], {0: [2]}),
        ("_rowaddr = 1 and _rowid = 2", [], {}),
        ("_fragid = 3", [3], {}),
        ("_fragid in (0, 3) and _rowaddr < 8589934592", [0], {}),
        ("_rowaddr > 12884901888 or _fragid = 7", [0, 1, 2, 3], {}),
        ("_rowaddr > 12884901888 or _rowaddr = 8589934593", [2, 3], {}),
        ("a = 3", [0, 1, 2, 3], {}),
        ("_rowid = -1", [], {}),
    ],
)
def test_fragments_that_cannot_have_the_rows_are_left_out(
    parts: Path, text: str, fragments: list[int], rows: dict[int, list[int]]
) -> None:
    manifest = load_latest(TableRef(*open_store(parts)))
    condition = compile_predicate(text, filterable_schema(manifest.schema))
    result = prune(condition, manifest.fragments, False)
    assert list(result) == fragments
    assert {number: list(offsets) for number, offsets in result.bitmaps.items()} == rows


def test_other_pruners_narrow_the_rows_further(parts: Path) -> None:
    manifest = load_latest(TableRef(*open_store(parts)))
    condition = compile_predicate("a in (3, 4, 25) and _fragid <= 2", filterable_schema(manifest.schema))
    requests: list[list[int]] = []

    def index(asked_for: Any, fragments: Any) -> RowSet:
        assert asked_for is condition
        requests.append([fragment.id for fragment in fragments])
        return RowSet({0: BitMap([3, 4]), 2: None})

    rows = prune(
        condition, manifest.fragments, False, [index, lambda *_: RowSet({0: BitMap([4, 9]), 2: None})]
    )
    assert requests == [[0, 1, 2]]
    assert dict(rows) == {0: BitMap([4]), 2: None}
    table_ref = TableRef(*open_store(parts))
    tasks = replace(Scan.plan(table_ref, manifest, ["a"]), pruners=(index,)).plan_tasks(condition)
    tables = [table for task in tasks for table in pickle.loads(pickle.dumps(task)).tables(100, condition)]
    assert pa.concat_tables(tables)["a"].to_pylist() == [3, 4, 25]


@pytest.mark.parametrize("stable", [False, True])
def test_only_the_rows_asked_for_are_read(
    tmp_path: Path, stable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    data = pa.table({"a": range(30_000), "v": pa.array([[1.0] * 16] * 30_000, pa.list_(pa.float32(), 16))})
    ours.write_dataset(data, path, max_rows_per_file=10_000, enable_stable_row_ids=stable)
    ours.dataset(path).delete("a = 10001")
    read = []

    def counted(name: str) -> None:
        original = getattr(FragmentRows, name)

        def method(self: Any, columns: Any, *rows: Any) -> pa.Table:
            table = original(self, columns, *rows)
            read.append(table.num_rows)
            return table

        monkeypatch.setattr(FragmentRows, name, method)

    counted("read")
    counted("take")
    ids = [10_000, 10_001, 25_000] if stable else [2**32, 2**32 + 1, 2**33 + 5000, 77 * 2**32, 2**33 + 10_001]
    result = ours.dataset(path).to_table(["a", "v"], filter=f"_rowid in ({', '.join(map(str, ids))})")
    assert result["a"].to_pylist() == [10_000, 25_000]
    assert sum(read) <= 8
    assert not list(_batches(path, f"_rowid = {ids[1]}"))


def _batches(path: Path, text: str) -> Iterator[pa.RecordBatch]:
    return ours.dataset(path).to_batches(filter=text)


LAST = 2**64 - 1
NUMBERS = (-1, 0, 1, 5, 2**32, LAST - 1, LAST)
VALUES = (0, 1, 2, 4, 5, 6, 2**32 - 1, 2**32, 2**32 + 1, LAST - 1, LAST)
OPERATORS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}
MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


def allowed(condition: str) -> set[int]:
    """Those of `VALUES` that a condition allows for the column `_rowaddr`."""
    fitted = compile_predicate(condition, pa.schema([pa.field("_rowaddr", pa.uint64()), ("x", pa.int64())]))
    result = _AllowedValues.of(fitted, "_rowaddr")
    return {value for value in VALUES if result.has(value)}


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("sign", OPERATORS)
def test_one_comparison_allows_just_its_numbers(sign: str, number: int) -> None:
    expected = {value for value in VALUES if OPERATORS[sign](value, number)}
    assert allowed(f"_rowaddr {sign} {number}") == expected
    assert allowed(f"{number} {MIRRORED[sign]} _rowaddr") == expected
    assert allowed(f"_rowaddr {sign} {number} AND x > 3") == expected
    assert allowed(f"_rowaddr {sign} {number} OR x > 3") == set(VALUES)
    assert allowed(f"x {sign} {number}") == set(VALUES)


def test_lists_and_what_nothing_is_known_of() -> None:
    assert allowed("_rowaddr IN (5, 1, -7, 3)") == {1, 5}
    assert allowed("_rowaddr IN (5, NULL)") == {5}
    assert allowed("_rowaddr IN (5, 1) AND _rowaddr IN (1, 6)") == {1}
    assert allowed("_rowaddr IN (5, 1) AND _rowaddr < 2") == {1}
    assert allowed("_rowaddr < 2 AND _rowaddr IN (5, 1)") == {1}
    assert allowed("_rowaddr IN (5, 1) OR _rowaddr = 6") == {1, 5, 6}
    assert allowed("_rowaddr = -1 OR _rowaddr = 6") == {6}
    # Beside a bound, a list is from its least to its greatest number.
    assert allowed("_rowaddr IN (5, 1) OR _rowaddr >= 6") == set(VALUES) - {0}
    assert allowed(f"_rowaddr IN ({2**32}, 5) OR _rowaddr < 2") == {n for n in VALUES if n <= 2**32}
    for unknown in (
        "_rowaddr % 2 = 0",
        "_rowaddr IN (5, x)",
        "NOT (_rowaddr = 5)",
        "_rowaddr = x",
        "x IN (5, 1)",
    ):
        assert allowed(unknown) == set(VALUES), unknown


@pytest.mark.parametrize("word", ["AND", "OR"])
@pytest.mark.parametrize("two", ["<=", ">=", "="])
@pytest.mark.parametrize("one", ["<", ">", "="])
def test_two_comparisons_leave_out_no_number_and_are_exact_where_they_can_be(
    one: str, two: str, word: str
) -> None:
    for first in (1, 5, 2**32):
        for second in (0, 5, LAST):
            left = {value for value in VALUES if OPERATORS[one](value, first)}
            right = {value for value in VALUES if OPERATORS[two](value, second)}
            result = allowed(f"_rowaddr {one} {first} {word} _rowaddr {two} {second}")
            if word == "AND":
                assert result == left & right
            elif both := left | right:
                assert result >= both
                # Bounds around both sides, so nothing beyond them.
                assert {min(result), max(result)} == {min(both), max(both)}
