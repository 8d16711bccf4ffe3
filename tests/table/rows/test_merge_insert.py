"""Merging by key: every rule beside pylance, random merges, other writers at the same time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import (
    ExpressionError,
    MergeError,
    OptionError,
    RetryableConflictError,
    SchemaError,
)
from spark_lance.io.store import open_store
from spark_lance.table.format.row_keys import KeyIndex
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.rows.key_lookup import key_filter
from spark_lance.table.rows.merge_insert import MergeRules, merge_rows
from spark_lance.table.versions.versions import load_latest
from tests.row_model import Clause, DoubledError, Row, Statement, Text, change

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int32()), ("s", pa.string())])
PRIMARY = {"lance-schema:unenforced-primary-key": "true"}
KEYED = SCHEMA.set(0, pa.field("a", pa.int64(), nullable=False, metadata=PRIMARY))
SYSTEM = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
Build = Callable[[Any], Any]


def table(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=False)], schema=schema)


def content(path: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
    """Return all rows, sorted, as pylance reads them; the table is checked and counted on the way."""
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    read = dataset.to_table(columns=columns)
    assert dataset.count_rows() == read.num_rows
    plain = [name for name in read.schema.names if name not in SYSTEM]
    assert spark_lance.dataset(path).to_table(plain) == read.select(plain)
    return sorted(zip(*(column.to_pylist() for column in read.columns), strict=True), key=repr)


def upsert(builder: Any) -> Any:
    return builder.when_matched_update_all().when_not_matched_insert_all()


def update(builder: Any) -> Any:
    return builder.when_matched_update_all()


def insert(builder: Any) -> Any:
    return builder.when_not_matched_insert_all()


def delete_missing(expr: str | None = None, then: Build = upsert) -> Build:
    return lambda builder: then(builder).when_not_matched_by_source_delete(expr)


def update_if(condition: str) -> Build:
    return lambda builder: builder.when_matched_update_all(condition).when_not_matched_insert_all()


BASE = [(0, 0, "0"), (1, 1, "1"), (2, 2, "2"), (None, 3, "n")]
TWICE = [(1, 1, "a"), (1, 2, "b"), (3, 3, "c")]
MIXED = [(1, 10, "x"), (2, -1, "y"), (7, 7, "z")]

CASES: dict[str, tuple[Build, list[tuple[Any, ...]], list[tuple[Any, ...]]]] = {
    "upsert": (upsert, BASE, MIXED),
    "update": (update, BASE, MIXED),
    "insert": (insert, BASE, MIXED),
    "null keys": (upsert, BASE, [(None, 9, "x"), (None, 10, "y"), (1, 11, "z")]),
    "null keys, insert": (insert, BASE, [(None, 9, "x"), (1, 11, "y")]),
    "double keys that match": (upsert, BASE, [(1, 10, "x"), (1, 10, "x")]),
    "double keys that match, delete": (lambda b: b.when_matched_delete(), BASE, [(1, 1, ""), (1, 2, "")]),
    "double keys that do not match": (upsert, BASE, [(7, 10, "x"), (7, 11, "y")]),
    "double keys, insert": (insert, BASE, [(1, 10, "x"), (1, 11, "y"), (7, 7, "")]),
    "double keys in the table": (upsert, TWICE, [(1, 10, "x")]),
    "double keys in the table, delete": (lambda b: b.when_matched_delete(), TWICE, [(1, 10, "x")]),
    "delete": (lambda b: b.when_matched_delete(), BASE, MIXED),
    "delete and insert": (lambda b: b.when_matched_delete().when_not_matched_insert_all(), BASE, MIXED),
    "the last word counts": (lambda b: b.when_matched_update_all().when_matched_delete(), BASE, MIXED),
    "fail": (lambda b: b.when_matched_fail().when_not_matched_insert_all(), BASE, MIXED),
    "fail, none matches": (lambda b: b.when_matched_fail().when_not_matched_insert_all(), BASE, MIXED[2:]),
    "delete missing": (delete_missing(), BASE, MIXED),
    "delete missing only": (delete_missing(None, lambda b: b), BASE, MIXED),
    "delete missing where": (delete_missing("b > 1"), BASE, MIXED[:1]),
    "delete missing where, insert": (delete_missing("a < 5", insert), BASE, MIXED[:1]),
    "delete missing, null keys": (delete_missing(), BASE, [(None, 10, "x")]),
    "delete missing, nothing": (delete_missing(), BASE, []),
    "delete missing, unknown column": (delete_missing("target.b > 1"), BASE, MIXED),
    "condition": (update_if("source.b > target.b"), BASE, MIXED),
    "condition with nulls": (update_if("source.b > target.b"), BASE, [(1, None, "x")]),
    "condition on one side": (update_if("target.s = '2'"), BASE, MIXED),
    "condition on texts": (update_if("source.s > target.s and source.a < 2"), BASE, MIXED),
    "condition that picks": (update_if("source.b > target.b"), BASE, [(1, 10, "x"), (1, -5, "y")]),
    "condition that does not pick": (update_if("source.b > target.b"), BASE, [(1, 10, "x"), (1, 5, "y")]),
    "ambiguous condition": (update_if("b > 1"), BASE, MIXED),
    "condition, unknown column": (update_if("source.zz > 1"), BASE, MIXED),
    "nothing matches": (update, BASE, [(7, 1, "x")]),
    "nothing to insert": (insert, BASE, [(1, 1, "x")]),
    "no source": (upsert, BASE, []),
    "no table": (upsert, [], MIXED),
    "no rules": (lambda b: b, BASE, MIXED),
}


@pytest.mark.parametrize("name", CASES)
def test_rules_beside_pylance(tmp_path: Path, name: str) -> None:
    build, base, source = CASES[name]
    for stable in (False, True):
        results: list[Any] = []
        for side in ("lance", "ours"):
            path = tmp_path / f"{side}-{stable}"
            lance.write_dataset(table(base), path, max_rows_per_file=2, enable_stable_row_ids=stable)
            try:
                if side == "lance":
                    counts = build(lance.dataset(str(path)).merge_insert("a")).execute(table(source))
                    done: Any = tuple(counts.values())
                else:
                    result = build(spark_lance.dataset(path).merge_insert("a")).execute(table(source))
                    assert result.dataset.version == 2
                    done = (result.num_inserted_rows, result.num_updated_rows, result.num_deleted_rows)
            except (MergeError, OptionError, ExpressionError, ValueError, OSError):
                done = "error"
            results.append((done, content(path, ["a", "b", "s", *SYSTEM] if stable else None)))
        if stable and name not in _FREE_ORDER:
            assert results[0] == results[1]
        else:
            assert results[0][0] == results[1][0]
            assert [row[:3] for row in results[0][1]] == [row[:3] for row in results[1][1]]


# Of several inserted rows pylance's join puts any first, and that decides their row ids.
_FREE_ORDER = {"null keys", "double keys that do not match", "no table"}


def test_typed_errors(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(table(BASE), path)
    dataset = spark_lance.dataset(path)
    with pytest.raises(MergeError, match="a = 1"):
        upsert(dataset.merge_insert("a")).execute(table([(1, 1, ""), (1, 2, "")]))
    with pytest.raises(MergeError, match="a = 2"):
        dataset.merge_insert("a").when_matched_fail().execute(table([(5, 1, ""), (2, 2, "")]))
    with pytest.raises(OptionError):
        dataset.merge_insert("a").execute(table(MIXED))
    with pytest.raises(SchemaError, match="primary key"):
        upsert(dataset.merge_insert()).execute(table(MIXED))
    with pytest.raises(SchemaError, match="zz"):
        upsert(dataset.merge_insert("zz")).execute(table(MIXED))
    with pytest.raises(SchemaError, match="lacks the key"):
        upsert(dataset.merge_insert("a")).execute(table(MIXED).drop_columns(["a"]))
    with pytest.raises(SchemaError, match="z"):
        upsert(dataset.merge_insert("a")).execute(table(MIXED).append_column("z", pa.nulls(3)))
    with pytest.raises(SchemaError):
        upsert(dataset.merge_insert("a")).execute(table(MIXED).set_column(0, "a", pa.array(["1", "2", "3"])))
    assert dataset.latest_version == 1
    assert len(list((path / "data").iterdir())) == 1


def test_keys_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset = spark_lance.write_dataset(pa.table({"l": [[1], [2]], "a": [1, 2]}), path)
    with pytest.raises(SchemaError, match="key"):
        upsert(dataset.merge_insert("l")).execute(pa.table({"l": [[1]], "a": [1]}))
    blob = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([("a", pa.int64()), blob])
    data = pa.table([[1], [b"x"]], schema=schema)
    lance.write_dataset(data, tmp_path / "b", data_storage_version="2.1")
    with pytest.raises(SchemaError, match="blob"):
        upsert(spark_lance.dataset(tmp_path / "b").merge_insert("v")).execute(data)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_blobs_are_merged(tmp_path: Path, version: str) -> None:
    blob = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([("a", pa.int64()), blob, ("b", pa.int64())])
    data = pa.table([[1, 2, 3], [b"x", None, b"z" * 70000], [1, 2, 3]], schema=schema)
    path = tmp_path / "t"
    spark_lance.write_dataset(data, path, data_storage_version=version)
    partial = pa.table({"a": [3, 4], "b": [30, 40]})
    done = upsert(spark_lance.dataset(path).merge_insert("a")).execute(partial)
    whole = pa.table([[1, 5], [b"new", b"more"], [10, 50]], schema=schema)
    done = upsert(done.dataset.merge_insert("a")).execute(whole)
    rows = done.dataset.to_table(["a", "b"]).to_pylist()
    blobs = [None if file is None else file.read() for file in done.dataset.take_blobs("v", indices=range(5))]
    expected = {1: b"new", 2: None, 3: b"z" * 70000, 4: None, 5: b"more"}
    assert {row["a"]: file for row, file in zip(rows, blobs, strict=True)} == expected
    assert {row["a"]: row["b"] for row in rows} == {1: 10, 2: 2, 3: 30, 4: 40, 5: 50}
    assert len(lance.dataset(str(path)).to_table(columns=["a"])) == 5


def test_sources_with_some_columns_in_any_order(tmp_path: Path) -> None:
    expected = None
    for side in ("lance", "ours"):
        path = tmp_path / side
        lance.write_dataset(table(BASE), path, max_rows_per_file=3, enable_stable_row_ids=True)
        for columns in (["b", "a"], ["s", "a"], ["a"], ["s", "b", "a"]):
            source = table([(1, 5, "x"), (None, 6, "y"), (0, 7, "z")]).select(columns)
            dataset: Any = lance.dataset(str(path)) if side == "lance" else spark_lance.dataset(path)
            upsert(dataset.merge_insert("a")).execute(source)
        result = content(path, ["a", "b", "s", *SYSTEM])
        assert expected is None or result == expected
        expected = result
    required = SCHEMA.set(1, pa.field("b", pa.int32(), nullable=False))
    path = tmp_path / "required"
    lance.write_dataset(table(BASE, required), path)
    source = table([(1, 1, "x")]).select(["a", "s"])
    with pytest.raises(SchemaError, match="'b' must not be null"):
        upsert(spark_lance.dataset(path).merge_insert("a")).execute(source)
    assert update(spark_lance.dataset(path).merge_insert("a")).execute(source).num_updated_rows == 1
    with pytest.raises(SchemaError, match="null"):
        update(spark_lance.dataset(path).merge_insert("a")).execute(table([(1, None, "x")]))
    assert content(path) == sorted([(1, 1, "x"), *BASE[:1], *BASE[2:]], key=repr)


def test_other_types_that_fit(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(table(BASE), path)
    kinds = [pa.int32(), pa.int16(), pa.large_string()]
    source = pa.table(
        [pa.array(c, k) for c, k in zip([[1, 8], [9, 9], ["x", "y"]], kinds, strict=True)], "abs"
    )
    for data in (source, source.to_reader(), source.to_pandas().astype({"b": "int32"})):
        upsert(spark_lance.dataset(path).merge_insert(["a"])).execute(data)
    expected = sorted([BASE[0], *BASE[2:], (1, 9, "x"), (8, 9, "y")], key=repr)
    assert content(path) == expected
    batches = iter(table([(8, 1, "q")]).to_batches())
    upsert(spark_lance.dataset(path).merge_insert("a")).execute(batches, schema=SCHEMA)
    assert (8, 1, "q") in content(path)


def test_pyarrow_conditions(tmp_path: Path) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(table(BASE), path)
    newer = pc.field("source", "b") > pc.field("target", "b")
    merge = spark_lance.dataset(path).merge_insert("a").when_matched_update_all(newer)
    done = merge.when_not_matched_by_source_delete(pc.field("s") == "0").execute(table(MIXED))
    assert (done.num_updated_rows, done.num_deleted_rows) == (1, 1)
    by_id = spark_lance.dataset(path).merge_insert("a").when_matched_update_all("target._rowid = 4294967296")
    assert by_id.execute(table([(1, 99, "id"), (2, 99, "id")])).num_updated_rows == 1
    assert content(path) == sorted([(1, 99, "id"), *BASE[2:]], key=repr)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [1, 2, 3]),
        (pa.uint64(), [2**64 - 1, 0, 1]),
        (pa.float64(), [float("nan"), 0.0, -0.0]),
        (pa.float32(), [1.5, 0.0, float("inf")]),
        (pa.float16(), [1.5, 0.0, -0.0]),
        (pa.bool_(), [True, False, None]),
        (pa.string(), ["", "a", "\u00e9" * 40]),
        (pa.large_binary(), [b"", b"\0", b"\0\0"]),
        (pa.binary(2), [b"ab", b"ba", b"\0\0"]),
        (pa.date32(), [date(2020, 1, 1), date(1, 1, 1), None]),
        (pa.timestamp("ns", "UTC"), [1, 2, -1]),
        (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(0)]),
        (pa.decimal256(50, 2), [Decimal("1.50"), Decimal("-1.50"), Decimal(0)]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "y", "z"]),
        (pa.duration("ms"), [1, 2, 3]),
    ],
    ids=str,
)
def test_keys_of_any_type(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    array = pa.array(np.array(values, np.float16)) if kind == pa.float16() else pa.array(values, kind)
    base = pa.table({"k": array, "v": pa.array([1, 2, 3])})
    path = tmp_path / "t"
    spark_lance.write_dataset(base, path)
    source = pa.table({"k": array.take(pa.array([2, 0])), "v": pa.array([30, 10])})
    done = upsert(spark_lance.dataset(path).merge_insert("k")).execute(source)
    inserted = sum(value is None for value in values)
    assert (done.num_inserted_rows, done.num_updated_rows) == (inserted, 2 - inserted)
    # Again: what was inserted is found, unless it is null.
    done = upsert(done.dataset.merge_insert("k")).execute(source)
    assert (done.num_inserted_rows, done.num_updated_rows) == (inserted, 2 - inserted)
    assert sorted(lance.dataset(str(path)).to_table()["v"].to_pylist()) == sorted(
        [2, 10, 30] if not inserted else [2, 3, 10, 30, 30]
    )


KEY = st.one_of(st.none(), st.integers(0, 6))
COLUMNS = ["a", "k", "v"]
ROWS = st.fixed_dictionaries({"a": KEY, "k": st.sampled_from("xyz"), "v": st.integers(0, 99)})
NEWER = Text("y.v > x.v", lambda x, y, all: y["v"] > x["v"])
FEWER = Text("x.v < 50", lambda x, y, all: x["v"] < 50)
MATCHED = {
    "update": Clause("MATCHED", "UPDATE *"),
    "update if": Clause("MATCHED", "UPDATE *", NEWER),
    "delete": Clause("MATCHED", "DELETE"),
}


@st.composite
def statements(draw: st.DrawFn) -> Statement:
    kind = draw(st.sampled_from(["MERGE", "MERGE", "MERGE", "DELETE", "UPDATE"]))
    if kind == "DELETE":
        return Statement(kind, FEWER)
    if kind == "UPDATE":
        values = {"v": Text("x.v + 1", lambda x, y, all: x["v"] + 1)}
        return Statement(kind, draw(st.none() | st.just(FEWER)), values)
    deletes = [Clause("NOT MATCHED BY SOURCE", "DELETE", condition) for condition in (None, FEWER)]
    clauses = [
        draw(st.none() | st.sampled_from(list(MATCHED.values()))),
        draw(st.none() | st.just(Clause("NOT MATCHED", "INSERT *"))),
        draw(st.none() | st.sampled_from(deletes)),
    ]
    return Statement(kind, clauses=tuple(clause for clause in clauses if clause), keys=("k", "a"))


def run(path: Path, statement: Statement, source: pa.Table) -> Counter[str]:
    """Run a statement by LanceDataset, and return how many rows it changed."""
    dataset = spark_lance.dataset(path)
    where = statement.condition and statement.condition.spell("")
    if statement.kind == "DELETE":
        return Counter(deleted=dataset.count_rows() - dataset.delete(where).count_rows())
    if statement.kind == "UPDATE":
        values = {name: value.spell("") for name, value in statement.values.items()}
        return Counter(updated=dataset.update(values, where=where).num_rows_updated)
    builder = dataset.merge_insert(statement.keys)
    for clause in statement.clauses:
        condition = clause.condition
        if clause.rows == "NOT MATCHED":
            builder.when_not_matched_insert_all()
        elif clause.rows == "NOT MATCHED BY SOURCE":
            builder.when_not_matched_by_source_delete(condition and condition.spell(""))
        elif clause.kind == "DELETE":
            builder.when_matched_delete()
        else:
            builder.when_matched_update_all(condition and condition.spell("target.", "source."))
    result = builder.execute(source)
    return Counter({name: getattr(result, f"num_{name}_rows") for name in ("inserted", "updated", "deleted")})


@given(
    base=st.lists(ROWS, max_size=20),
    source=st.lists(ROWS, max_size=12),
    version=st.sampled_from(["2.0", "2.1", "2.2"]),
    stable=st.booleans(),
    statement=statements(),
)
@settings(max_examples=40)
def test_a_model_of_rows(
    tmp_path_factory: pytest.TempPathFactory,
    base: list[Row],
    source: list[Row],
    version: Any,
    stable: bool,
    statement: Statement,
) -> None:
    schema = pa.schema([("a", pa.int64()), ("k", pa.string()), ("v", pa.int64())])
    path = tmp_path_factory.mktemp("t") / "t"
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(pa.Table.from_pylist(base, schema), path, max_rows_per_file=7, **options)
    new = pa.Table.from_pylist(source, schema)
    if statement == Statement("MERGE", keys=("k", "a")):
        with pytest.raises(OptionError):
            run(path, statement, new)
        return
    try:
        rows, counts = change(base, source, statement, COLUMNS, doubled_deletes=False)
    except DoubledError:
        with pytest.raises(MergeError):
            run(path, statement, new)
        return
    assert run(path, statement, new) == counts
    assert content(path) == sorted((tuple(row[name] for name in COLUMNS) for row in rows), key=repr)
    if stable:
        ids = [row[0] for row in content(path, ["_rowid"])]
        assert len(set(ids)) == len(ids)
        assert spark_lance.dataset(path).manifest.next_row_id == len(base) + counts["inserted"]


@given(
    left=st.lists(st.tuples(KEY, KEY, KEY), min_size=1, max_size=30),
    right=st.lists(st.tuples(KEY, KEY, KEY), min_size=1, max_size=30),
)
def test_pairs_of_equal_keys(left: list[tuple[Any, ...]], right: list[tuple[Any, ...]]) -> None:
    def columns(rows: list[tuple[Any, ...]]) -> list[pa.ChunkedArray]:
        return [pa.chunked_array([pa.array(column, pa.int64())]) for column in zip(*rows, strict=True)]

    index = KeyIndex(columns(left))
    places, rows = index.pairs(index.lookup(columns(right)))
    expected = [
        (place, row)
        for place, key in enumerate(right)
        for row, other in enumerate(left)
        if key == other and None not in key
    ]
    assert list(zip(places.tolist(), rows.tolist(), strict=True)) == expected


def test_many_windows_and_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_lance.table.rows.merge_insert._WINDOW_ROWS", 30)
    monkeypatch.setattr("spark_lance.table.rows.merge_insert._PIECE_BYTES", 200)
    path = tmp_path / "t"
    rows = [(n, n % 5, str(n)) for n in range(200)]
    lance.write_dataset(table(rows), path, max_rows_per_file=12, enable_stable_row_ids=True)
    source = table([(n, 100, "new") for n in range(199, 98, -1)] + [(n, 0, "in") for n in range(300, 330)])
    for columns in (["a", "b"], ["a", "b", "s"]):
        done = delete_missing("a % 2 = 0")(spark_lance.dataset(path).merge_insert("a")).execute(
            source.select(columns)
        )
    assert (done.num_inserted_rows, done.num_updated_rows, done.num_deleted_rows) == (0, 131, 0)
    expected = [(n, n % 5, str(n), n) for n in range(99) if n % 2]
    expected += [(n, 100, "new", n) for n in range(99, 200)]
    expected += [(n, 0, "in", 200 + n - 300) for n in range(300, 330)]
    assert content(path, ["a", "b", "s", "_rowid"]) == sorted(expected, key=repr)


def filter_of(path: Path) -> Any:
    table = TableRef(*open_store(path))
    return read_transaction(table, load_latest(table)).message.update.inserted_rows


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [9, -5, 2**40]),
        (pa.int32(), [9, -5]),
        (pa.uint32(), [7]),
        (pa.uint64(), [2**64 - 1]),
        (pa.string(), ["", "abc", *("x" * n for n in (3, 4, 7, 8, 31, 32, 33, 63, 64, 65, 100))]),
        (pa.large_string(), ["\u00e9\u20ac"]),
        (pa.binary(), [b"a\0b"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("parts", [1, 2])
def test_key_filters_equal_those_of_pylance(
    tmp_path: Path, kind: pa.DataType, values: list[Any], parts: int
) -> None:
    names = ["p", "q"][:parts]
    schema = pa.schema(
        [*(pa.field(n, kind, nullable=False, metadata=PRIMARY) for n in names), ("b", pa.int32())]
    )
    data = pa.table([*[pa.array(values, kind)] * parts, pa.nulls(len(values), pa.int32())], schema=schema)
    filters = []
    for side in ("lance", "ours"):
        path = tmp_path / side
        lance.write_dataset(data.slice(0, 1), path)
        dataset: Any = lance.dataset(str(path)) if side == "lance" else spark_lance.dataset(path)
        upsert(dataset.merge_insert()).execute(data)
        filters.append(filter_of(path))
        assert len(lance.dataset(str(path)).to_table()) == len(values)
    assert filters[0] == filters[1]
    assert filters[0].bloom.bitmap.strip(b"\0") or len(values) == 1


def test_keys_without_known_bytes_match_everything() -> None:
    dates = pa.chunked_array([pa.array([date(2020, 1, 1)])])
    known = pa.chunked_array([pa.array([1])])
    for columns in ([dates], [known, dates]):
        bloom = key_filter([0, 1], columns).bloom
        assert set(bloom.bitmap) == {255}
        assert bloom.num_bits != key_filter([0, 1], [known]).bloom.num_bits


@pytest.mark.parametrize(
    ("first", "keyed"),
    [
        ("ours", True),  # pylance looks at the keys of others only if the key is primary
        *itertools.product(["theirs", "both ours", "append"], [False, True]),
    ],
)
def test_one_key_inserted_by_two_writers_is_there_once(tmp_path: Path, first: str, keyed: bool) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table(BASE[:3], KEYED if keyed else SCHEMA), path)
    ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
    mine, other = table([(7, 1, "ours"), (8, 1, "ours")]), table([(7, 2, "other"), (9, 2, "other")])
    if first == "ours":
        upsert(ours.merge_insert("a")).execute(mine)
        upsert(theirs.merge_insert("a")).execute(other)
        last = "other"
    else:
        if first == "theirs":
            upsert(theirs.merge_insert("a")).execute(other)
        elif first == "append":
            spark_lance.write_dataset(other, path, "append")
        else:
            upsert(spark_lance.dataset(path).merge_insert("a")).execute(other)
        with pytest.raises(RetryableConflictError):
            upsert(ours.merge_insert("a")).conflict_retries(0).execute(mine)
        upsert(ours.merge_insert("a")).execute(mine)
        last = "ours"
    values = {row[0]: row[2] for row in content(path)}
    assert values == {0: "0", 1: "1", 2: "2", 7: last, 8: "ours", 9: "other"}
    assert len(content(path)) == 6


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_different_keys_do_not_disturb_each_other(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table([(n, 0, "") for n in range(10)], KEYED), path)
    ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
    mine, other = table([(1, 1, "ours"), (100, 1, "ours")]), table([(2, 2, "other"), (200, 2, "other")])
    if first == "ours":
        upsert(ours.merge_insert("a")).execute(mine)
        upsert(theirs.merge_insert("a")).conflict_retries(0).execute(other)
    else:
        upsert(theirs.merge_insert("a")).execute(other)
        upsert(ours.merge_insert("a")).conflict_retries(0).execute(mine)
    assert {row for row in content(path) if row[2]} == {
        *((n, 1, "ours") for n in (1, 100)),
        *((n, 2, "other") for n in (2, 200)),
    }


def test_hundreds_of_keys_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table(BASE), path)
    stale = spark_lance.dataset(path)
    upsert(stale.merge_insert("a")).execute(table([(n, 0, "first") for n in range(100, 700)]))
    others = table([(n, 0, "second") for n in range(1000, 1600)])
    upsert(stale.merge_insert("a")).conflict_retries(0).execute(others)
    assert len(content(path)) == len(BASE) + 1200
    last = table([(n, 0, "third") for n in range(1599, 2100)])
    with pytest.raises(RetryableConflictError):
        upsert(stale.merge_insert("a")).conflict_retries(0).execute(last)


def test_a_date_as_key_is_safe_with_pylance(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("d", pa.date32(), nullable=False, metadata=PRIMARY), ("b", pa.int32())])
    day = pa.table([[date(2020, 1, 1)], [1]], schema=schema)
    for first in ("ours", "theirs"):
        path = tmp_path / first
        lance.write_dataset(day.slice(0, 0), path)
        ours, theirs = spark_lance.dataset(path), lance.dataset(str(path))
        for dataset in (ours, theirs) if first == "ours" else (theirs, ours):
            upsert(dataset.merge_insert("d")).execute(day)
        assert len(content(path)) == 1


def test_mergers_at_once_neither_lose_nor_double(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table([(n, 0, "") for n in range(4)], KEYED), path, enable_stable_row_ids=True)
    turns = itertools.count()

    def work(_: int) -> None:
        turn = next(turns)
        source = table([(turn % 4, turn, "u"), (100 + turn % 7, turn, "i"), (1000 + turn, turn, "n")])
        dataset: Any = lance.dataset(str(path)) if turn % 3 == 2 else spark_lance.dataset(path)
        upsert(dataset.merge_insert("a")).conflict_retries(60).execute(source)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(16)))
    keys = [row[0] for row in content(path, ["a"])]
    assert sorted(keys) == [*range(4), *range(100, 107), *range(1000, 1016)]
    ids = [row[1] for row in content(path, ["a", "_rowid"])]
    assert len(set(ids)) == len(ids)
    assert [row[1] for row in content(path, ["a", "_rowid"]) if row[0] < 4] == [0, 1, 2, 3]


def test_a_stale_merge_looks_again_and_leaves_no_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(table(BASE), path)
    stale = spark_lance.dataset(path)
    lance.dataset(str(path)).update({"b": "50"}, where="a = 1")
    source = table([(1, 10, "x")])
    merge = stale.merge_insert("a").when_matched_update_all("source.b > target.b")
    assert merge.execute(source).num_updated_rows == 0
    with pytest.raises(RetryableConflictError):
        update(stale.merge_insert("a")).conflict_retries(0).execute(source)
    assert len(list((path / "data").iterdir())) == 2
    assert len(list((path / "_deletions").iterdir())) == 1


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_indices_stay_right(tmp_path: Path, stable: bool) -> None:
    path = tmp_path / "t"
    rows = [(n, n % 5, str(n % 3)) for n in range(60)]
    dataset = lance.write_dataset(table(rows), path, max_rows_per_file=20, enable_stable_row_ids=stable)
    for name in ("a", "b"):
        dataset.create_scalar_index(name, "BTREE")
    source = table([(n, n % 7, "m") for n in range(0, 90, 3)])
    delete_missing("b = 4")(spark_lance.dataset(path).merge_insert("a")).execute(source)
    merge_rows(spark_lance.dataset(path).snapshot, source.slice(0, 5), MergeRules(("a",), "delete"))
    for where in [*(f"b = {b}" for b in range(8)), "a = 6", "a = 75", "a in (1, 3, 60)"]:
        results = [
            lance.dataset(str(path)).scanner(filter=where, use_scalar_index=use).to_table().sort_by("a")
            for use in (True, False)
        ]
        assert results[0] == results[1]
    assert len(content(path)) == len([n for n in range(60) if n % 3 == 0 or n % 5 != 4]) + 10 - 5
