"""Changes of tables without stable row ids, told by the primary key, against pylance's scans."""

from __future__ import annotations

import datetime
import decimal
import math
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance.datasets.dataset as ours
from spark_lance.errors import UnsupportedFormatError
from spark_lance.table.reading import compare_keys, equal_rows
from spark_lance.table.reading.compare_keys import equal_values
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.reading.version_changes import find_changes
from spark_lance.table.versions.resolve import BranchReader
from tests.table.histories import Step, play, rows, steps

MOVES = ("append", "delete", "update", "merge", "compact", "add column")
KEY = {"lance-schema:unenforced-primary-key": "true"}


def by_key(path: Path, version: int) -> dict[int, dict[str, Any]]:
    return {row["a"]: row for row in lance.dataset(str(path), version=version).to_table().to_pylist()}


def keys(reader: pa.RecordBatchReader) -> list[int]:
    return sorted(reader.read_all()["a"].to_pylist())


@settings(max_examples=20, deadline=None)
@given(changes=steps(*MOVES), data=st.data())
def test_any_two_versions_of_a_table_with_a_key(changes: list[Step], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=False, key=True)
        latest = lance.dataset(str(path)).version
        if data.draw(st.booleans(), "restore"):
            lance.dataset(str(path), version=data.draw(st.integers(1, latest), "restored")).restore()  # type: ignore[no-untyped-call]
            latest += 1
        end = data.draw(st.integers(1, latest), "end")
        begin = data.draw(st.integers(1, end), "begin")
        before, after = by_key(path, begin), by_key(path, end)
        diff = ours.dataset(path).diff(begin, end)
        updated = [
            key
            for key, row in after.items()
            if key in before and any(value != before[key].get(name) for name, value in row.items())
        ]
        assert keys(diff.inserted()) == sorted(after.keys() - before.keys())
        assert keys(diff.deleted()) == sorted(before.keys() - after.keys())
        assert keys(diff.updated()) == sorted(updated)
        for row in diff.updated().read_all().to_pylist():
            assert {name: row[name] for name in after[row["a"]]} == after[row["a"]]


def feed_of(path: Path, version: int) -> dict[str, int]:
    """Return how many rows a version changed, by the kind of change."""
    table = ours.dataset(path).snapshot
    walk = BranchReader(table.table)
    old, new = (Snapshot(walk.table, walk.manifest(v)) for v in (version - 1, version))
    counts: dict[str, int] = {}
    for change in find_changes(old, new, walk.transaction(version)):
        counts[change.kind] = counts.get(change.kind, 0) + change.count
    return counts


def upsert(player: Any, path: Path, source: pa.Table) -> None:
    merge = player.dataset(str(path)).merge_insert("a").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(source)


@pytest.mark.parametrize("player", [ours, lance], ids=["ours", "pylance"])
@pytest.mark.parametrize("key", [True, False])
@pytest.mark.parametrize("stable", [True, False])
def test_a_feed_leaves_out_rows_that_an_upsert_did_not_change(
    tmp_path: Path, player: Any, stable: bool, key: bool
) -> None:
    path = tmp_path / "t"
    play(path, [], stable=stable, key=key)
    schema = lance.dataset(str(path)).schema
    old = lance.dataset(str(path)).to_table().slice(0, 4)
    source = pa.table({"a": [0, 1, 2, 3, 77], "b": [*old["b"].to_pylist()[:2], "new", "new", "new"]}).cast(
        schema
    )
    upsert(player, path, source)
    if stable or key:
        assert feed_of(path, 2) == {"update_preimage": 2, "update_postimage": 2, "insert": 1}
        # A diff counts the rows that were written again as updated, as pylance does.
        images = 4 if stable else 2
        assert ours.dataset(path).diff(1).counts() == {"inserted": 1, "updated": images, "deleted": 0}
    else:
        assert feed_of(path, 2) == {"delete": 2, "insert": 3}
    upsert(player, path, source)
    assert feed_of(path, 3) == {}


@pytest.mark.parametrize("stable", [True, False])
def test_rows_are_compared_in_all_columns(tmp_path: Path, stable: bool) -> None:
    path = str(tmp_path / "t")
    row = {
        "k": 1, "f": math.nan, "d": decimal.Decimal("1.5"), "t": None, "yes": True, "raw": b"a",
        "day": datetime.date(2026, 1, 1), "at": datetime.datetime(2026, 1, 1), "l": [1, None], "st": {"x": 1},
    }  # fmt: skip
    # Two rows are equal, and differ from the others in one column only.
    rows_of_table = [
        {**row, **more} for more in ({}, {}, {"l": [1]}, {"st": {"x": 2}}, {"t": "a"}, {"t": ""}, {"f": -0.0})
    ]
    table = pa.Table.from_pylist(rows_of_table)
    written = ours.write_dataset(table, path, enable_stable_row_ids=stable, max_rows_per_file=3)
    images = {"update_preimage": 1, "update_postimage": 1} if stable else {"delete": 1, "insert": 1}
    for number, (values, condition, expected) in enumerate(
        (
            ({"k": "1", "f": "f"}, None, {}),
            ({"t": "'b'"}, "t = 'a'", images),
            ({"f": "0.0"}, "f = 0.0", images),  # -0.0 until now
            ({"t": "t"}, "yes", {}),
        )
    ):
        ours.dataset(path).update(values, where=condition)
        assert feed_of(Path(path), written.version + 1 + number) == expected, values


@pytest.mark.parametrize("stable", [True, False])
def test_other_columns_are_read_only_for_rows_with_equal_modified_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stable: bool
) -> None:
    columns_read = []

    def read(snapshot: Snapshot, rows: Any, fields: Any) -> Any:
        columns_read.append([field.name for field in fields])
        return read_rows(snapshot, rows, fields)

    for module in (compare_keys, equal_rows):
        monkeypatch.setattr(module, "read_rows", read)
    table = pa.table({"a": ["x", "y"], "n": [1, 2], "items": [[1], [2]]})
    ours.write_dataset(table, tmp_path / "t", enable_stable_row_ids=stable)
    for values, expected in (({"n": "n + 5"}, [["n"]] * 2), ({"a": "'x'"}, None)):
        columns_read.clear()
        dataset = ours.dataset(tmp_path / "t")
        dataset.update(values)
        images = 2 if expected else 1
        kinds = ("update_preimage", "update_postimage") if stable else ("delete", "insert")
        assert feed_of(tmp_path / "t", dataset.version + 1) == dict.fromkeys(kinds, images)
        assert columns_read == expected or (expected is None and ["items"] in columns_read)


def test_old_values_are_read_in_pieces(tmp_path: Path) -> None:
    # One piece of new rows: the old rows of all its rows together have 200 MB.
    table = pa.table({"n": range(200), "text": ["x" * 1_000_000] * 200})
    ours.write_dataset(table, tmp_path / "t", enable_stable_row_ids=True, max_rows_per_file=50)
    ours.dataset(tmp_path / "t").update({"text": "''"})
    before = pa.total_allocated_bytes()
    peak = 0

    def measure(*_: Any) -> Any:
        nonlocal peak
        peak = max(peak, pa.total_allocated_bytes() - before)
        return equal(*_)

    equal = compare_keys._equal_columns
    with mock.patch.object(compare_keys, "_equal_columns", measure):
        assert feed_of(tmp_path / "t", 2) == {"update_preimage": 200, "update_postimage": 200}
    assert peak < 100_000_000


def test_without_a_unique_key_a_diff_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    play(path, [], stable=False, key=True)
    ours.write_dataset(rows(3, 2).cast(lance.dataset(str(path)).schema), path, mode="append")
    ours.dataset(path).update({"b": "'x'"}, where="a = 4")
    with pytest.raises(UnsupportedFormatError, match="several rows have the primary key a = 4"):
        ours.dataset(path).diff(2).counts()
    assert feed_of(path, 3) == {"delete": 2, "insert": 2}
    bare = tmp_path / "bare"
    play(bare, [("update", 1, True)], stable=False)
    with pytest.raises(UnsupportedFormatError, match="neither stable row ids nor a primary key"):
        ours.dataset(bare).diff(1).counts()


def test_keys_of_several_columns_and_inside_structs(tmp_path: Path) -> None:
    part = pa.struct([pa.field("k", pa.string(), False, KEY), pa.field("x", pa.list_(pa.float64()))])
    schema = pa.schema([pa.field("s", part, False), pa.field("n", pa.int32(), False, KEY)])
    values = [{"s": {"k": k, "x": [1.0, math.nan, None]}, "n": n} for n in range(3) for k in "ab"]
    ours.write_dataset(
        pa.Table.from_pylist(values, schema), tmp_path, enable_stable_row_ids=False, max_rows_per_file=2
    )
    values[1]["s"] = {"k": "b", "x": [1.0, None, math.nan]}
    table = ours.dataset(tmp_path)
    table.delete("n = 2")
    table.delete("true")
    written = ours.write_dataset(
        pa.Table.from_pylist(values[:5], schema), tmp_path, mode="append", max_rows_per_file=2
    )
    written.optimize.compact_files()
    diff = ours.dataset(tmp_path).diff(1)
    assert diff.counts() == {"inserted": 0, "updated": 1, "deleted": 1}
    assert diff.updated().read_all()["n"].to_pylist() == [0]


plain = st.one_of(st.none(), st.integers(0, 2))
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int16(), plain),
    (pa.float32(), st.sampled_from([None, 0.5, 1.0])),
    (pa.string(), st.sampled_from([None, "", "a"])),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from([None, "", "a"])),
    (pa.list_(pa.int64()), st.one_of(st.none(), st.lists(plain, max_size=2))),
    (
        pa.large_list(pa.list_(pa.int8())),
        st.one_of(st.none(), st.lists(st.lists(plain, max_size=1), max_size=2)),
    ),
    (pa.list_(pa.int8(), 2), st.one_of(st.none(), st.lists(plain, min_size=2, max_size=2))),
    (
        pa.map_(pa.string(), pa.int8()),
        st.one_of(st.none(), st.lists(st.tuples(st.just("k"), plain), max_size=1)),
    ),
    (
        pa.struct({"x": pa.int8(), "y": pa.list_(pa.bool_(), 1)}),
        st.one_of(
            st.none(), st.fixed_dictionaries({"x": plain, "y": st.sampled_from([None, [True], [None]])})
        ),
    ),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_equal_values_are_those_of_python(
    kind: pa.DataType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    pairs = data.draw(st.lists(st.tuples(values, values), max_size=6))
    skip = data.draw(st.integers(0, len(pairs)))
    left, right = (pa.array([pair[side] for pair in pairs], kind).slice(skip) for side in (0, 1))
    assert equal_values(left, right).tolist() == [one == other for one, other in pairs[skip:]]


def test_floats_are_equal_by_their_bits() -> None:
    left = pa.array([math.nan, 0.0, 1.0, None], pa.float64())
    right = pa.array([np.float64("-nan"), -0.0, 1.0, math.nan], pa.float64())
    assert equal_values(left, right).tolist() == [True, False, True, False]
