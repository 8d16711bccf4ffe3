"""Random tables, indices and conditions, in turns with pylance: changes change the rows they are told to."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance import dataset
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.update import find_rows

INDICES = {
    "i": ["BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER"],
    "f": ["BTREE", "ZONEMAP", "BLOOMFILTER"],
    "t": ["BTREE", "BITMAP", "NGRAM", "ZONEMAP"],
}
SCHEMA = pa.schema([("i", pa.int64()), ("f", pa.float64()), ("t", pa.string()), ("n", pa.int32())])
INTS = st.none() | st.integers(-4, 12) | st.sampled_from([2**62, -(2**62)])
FLOATS = st.none() | st.sampled_from([0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), -float("inf")])
TEXTS = st.none() | st.sampled_from(["", "a", "abc", "abcd", "xabc", "b", "\u00e4bc"])
ROWS = st.lists(st.tuples(INTS, FLOATS, TEXTS, st.integers(0, 3)), max_size=40)
PARTS = [
    "i = 3", "i in (1, 5, 99)", "i > 8", "i < -2", "i is null", "i != 2", "i between 3 and 6",
    f"i = {2**62}", "f = 0.0", "f > 1.0", "f <= -1.5", "f is not null", "f in (1.5, -0.0)",
    "t = 'abc'", "t like 'ab%'", "t like '%abc%'", "t > 'b'", "t is null", "t in ('a', '')", "n = 1",
    "_rowaddr < 4294967299", "_rowid in (1, 5, 20)",
]  # fmt: skip
CONDITIONS = st.one_of(
    st.sampled_from(PARTS),
    st.builds(
        "({}) {} ({})".format, st.sampled_from(PARTS), st.sampled_from(["and", "or"]), st.sampled_from(PARTS)
    ),
    st.builds("not ({})".format, st.sampled_from(PARTS)),
)
STEPS = ["delete", "update", "merge", "merge_missing", "append", "compact", "defer", "extend", "theirs"]


def made(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in SCHEMA]
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def content(path: Path) -> pa.Table:
    """Return what pylance reads, with the system columns that conditions name."""
    return lance.dataset(str(path)).to_table(with_row_id=True, with_row_address=True)


def counted(table: pa.Table) -> Counter[str]:
    rows = table.select(SCHEMA.names).to_pylist()
    return Counter(repr([row[name] for name in SCHEMA.names]) for row in rows)


def kept(table: pa.Table, condition: str) -> pa.ChunkedArray:
    return pc.fill_null(compile_predicate(condition, table.schema).mask(table), False)


def check_found(path: Path, condition: str) -> None:
    """What is found with the help of indices is what is found without."""
    ds = dataset(path)
    bare = Snapshot(ds.table, ds.manifest)
    with_help, without = find_rows(ds.snapshot, condition), find_rows(bare, condition)
    assert with_help.rows == without.rows


def change(path: Path, condition: str, value: int, by_us: bool) -> Counter[str]:
    """Delete or update the rows of a condition; return the rows that must be left."""
    before = content(path)
    mask = kept(before, condition)
    left = counted(before.filter(pc.invert(mask)))
    if value < 0:
        dataset(path).delete(condition) if by_us else lance.dataset(str(path)).delete(condition)
        return left
    changed = before.filter(mask)
    place = changed.schema.get_field_index("i")
    changed = changed.set_column(place, "i", pa.array([value] * changed.num_rows, pa.int64()))
    dataset(path).update({"i": str(value)}, condition)
    return left + counted(changed)


def merge(path: Path, rows: list[tuple[Any, ...]], missing: str | None, keys: list[str]) -> Counter[str]:
    """Merge rows; return the rows that must be left."""
    source = made(rows)
    builder = dataset(path).merge_insert(keys).when_matched_update_all().when_not_matched_insert_all()
    if missing is not None:
        builder = builder.when_not_matched_by_source_delete(missing)
    before = content(path)

    def key(row: dict[str, Any]) -> tuple[Any, ...] | None:
        values = tuple(row[name] for name in keys)
        return None if None in values else values

    given_keys = {key(row) for row in source.to_pylist()} - {None}
    doomed = [False] * before.num_rows if missing is None else kept(before, missing).to_pylist()
    left: list[dict[str, Any]] = []
    seen = Counter[Any]()
    for row, gone in zip(before.to_pylist(), doomed, strict=True):
        if key(row) in given_keys:
            seen[key(row)] += 1
        elif not gone:
            left.append(row)
    for row in source.to_pylist():
        left += [row] * (seen[key(row)] if seen[key(row)] else 1)
    builder.execute(source)
    return Counter(repr([row[name] for name in SCHEMA.names]) for row in left)


def take(path: Path, step: str, data: st.DataObject) -> Counter[str]:
    """Do one thing to the table; return the rows that it must have."""
    condition = data.draw(CONDITIONS)
    check_found(path, condition)
    if step in ("delete", "update"):
        return change(path, condition, -1 if step == "delete" else 7, True)
    if step == "theirs":
        # Pylance deletes by conditions on columns only.
        return change(path, "i = 3" if "_row" in condition else condition, -1, False)
    if step in ("merge", "merge_missing"):
        keys = data.draw(st.sampled_from([["i"], ["t"], ["i", "t"], ["t", "n"]]))
        rows = {tuple(row[SCHEMA.get_field_index(k)] for k in keys): row for row in data.draw(ROWS)}
        missing = None if step == "merge" else condition
        return merge(path, list(rows.values()), missing, keys)
    before = counted(content(path))
    if step == "append":
        more = made(data.draw(ROWS))
        lance.write_dataset(more, str(path), mode="append")
        return before + counted(more)
    if step == "extend":
        dataset(path).optimize.optimize_indices()
    else:
        dataset(path).compact_files(target_rows_per_fragment=60, defer_index_remap=step == "defer")
    return before


@pytest.mark.parametrize("stable", [False, True])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@settings(max_examples=8)
@given(data=st.data())
def test_changes_find_the_rows_of_their_condition(
    version: str, stable: bool, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    rows = data.draw(st.lists(st.tuples(INTS, FLOATS, TEXTS, st.integers(0, 3)), min_size=1, max_size=60))
    options: Any = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(made(rows), str(path), max_rows_per_file=25, **options)
    for column, kinds in INDICES.items():
        kind: Any = data.draw(st.sampled_from([*kinds, None]))
        if kind is not None and data.draw(st.booleans()):
            dataset(path).create_scalar_index(column, kind)
        elif kind is not None:
            lance.dataset(str(path)).create_scalar_index(column, kind)
    steps = [step for step in STEPS if not (stable and step == "defer")]
    for step in data.draw(st.lists(st.sampled_from(steps), min_size=1, max_size=5)):
        expected = take(path, step, data)
        assert counted(content(path)) == expected
        assert counted(dataset(path).to_table()) == expected
