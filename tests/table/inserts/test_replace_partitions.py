# ruff: noqa: E501
"""Writes to partitioned tables without Spark: files by partition, pruning, and dynamic overwrites."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_lance import write_dataset
from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import FormatError, IncompatibleConflictError
from spark_lance.expressions.predicate import compile_predicate
from spark_lance.file.reader import FileReader
from spark_lance.table.format.partition_bounds import read_bounds, single_partition
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec, parse_transform
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.write_plan import commit_or_discard, plan_write
from spark_lance.table.metadata.partitions import PARTITIONS, partition_counts
from spark_lance.table.writing.write import write_fragments
from tests.wrapped_store import replace_request

FEW_ROWS = "spark_lance.table.writing.write.FEW_ROWS"
SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("ts", pa.timestamp("us")), ("b", pa.bool_())])


def made(path: Path, *fields: str) -> LanceDataset:
    table = write_dataset(SCHEMA.empty_table(), str(path))
    spec = PartitionSpec(tuple(map(parse_transform, fields))).bound(table.lance_schema)
    table.update_config({PARTITION_FIELDS: spec.text()})
    return dataset(str(path))


def write(table: LanceDataset, rows: pa.Table, mode: str = "append") -> None:
    snapshot = table.snapshot
    plan = plan_write(
        snapshot.table,
        snapshot.manifest,
        rows.schema,
        mode,
        replace_partitions=mode == "overwrite",
        keep_schema=mode == "overwrite",
    )
    spec = PartitionSpec.of_config(table.config()).present(plan.schema)
    plan = replace(plan, partitions=spec)
    place = TableRef(snapshot.store, snapshot.root)
    batches = rows.to_batches()
    files = write_fragments(batches, place, plan.schema, version=plan.version, partitions=plan.partitions)
    commit_or_discard(place, plan, files)


def rows_of(*rows: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=False)) for row in rows], SCHEMA)


def content(path: Path, condition: str | None = None) -> list[tuple[Any, ...]]:
    table = dataset(str(path)).to_table(filter=condition)
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_dynamic_overwrites_replace_partitions_and_null_is_one(tmp_path: Path) -> None:
    path = tmp_path / "t"
    day = datetime.datetime(2026, 1, 1)
    write(made(path, "p", "days(ts)"), rows_of((1, "a", day), (2, "a", None), (3, None, day), (4, "b", day)))
    write(dataset(str(path)), rows_of((5, "a", day.replace(hour=3)), (6, None, day)), "overwrite")
    assert [row[0] for row in content(path)] == [2, 4, 5, 6]
    version = dataset(str(path)).version
    write(dataset(str(path)), rows_of((7, "a", None)), "overwrite")
    assert [row[0] for row in content(path)] == [4, 5, 6, 7]
    assert dataset(str(path)).version == version + 1
    write(dataset(str(path)), SCHEMA.empty_table(), "overwrite")
    assert len(content(path)) == 4


def test_files_are_cut_at_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW_ROWS, 10)
    path = tmp_path / "t"
    table = made(path, "p")
    clustered = rows_of(*((n, f"p{n // 10}") for n in range(60)))
    write(table, pa.concat_tables([clustered.slice(n, 7) for n in range(0, 60, 7)]))
    fragments = dataset(str(path)).snapshot.fragments
    assert [(f.physical_rows, read_bounds(f.files[0].path)[0].low) for f in fragments] == [
        (10, f"p{n}") for n in range(6)
    ]
    # The second "x" shows that rows are not clustered; nothing is cut from there on.
    write(dataset(str(path)), rows_of(*((n, "xyxz"[n // 5 % 4]) for n in range(40))))
    names = [read_bounds(f.files[0].path) for f in dataset(str(path)).snapshot.fragments[6:]]
    assert [part[0].low if part else None for part in names] == ["x", "y", None]
    write(dataset(str(path)), rows_of((0, "q"), (1, None), (2, "s")))
    (bounds,) = read_bounds(dataset(str(path)).snapshot.fragments[-1].files[0].path)
    assert (bounds.low, bounds.high, bounds.nulls) == ("q", "s", True)
    counts = partition_counts(dataset(str(path)).snapshot, PartitionSpec.of_config(table.config()))
    assert sorted(counts.to_pandas().p.fillna("-")) == ["-", *(f"p{n}" for n in range(6)), *"qsxyz"]
    assert sum(counts["record_count"].to_pylist()) == 103


CONDITIONS = (
    "p = 'c'", "p IN ('a', 'f')", "p IS NULL", "p IS NOT NULL", "NOT (p = 'c')", "p != 'c'", "p > 'd'", "p <= 'b'",
    "p LIKE 'c%'", "p = 'c' OR id = 3", "p = 'c' AND id > 20", "b", "NOT b", "b IS NULL", "b AND p < 'c'", "id = 17",
    "id IN (1, 2)", "id < 5", "ts >= timestamp '2026-01-04 05:00:00'", "ts < timestamp '2026-01-02 00:00:00'",
    "ts = timestamp '2026-01-03 01:00:00'", "ts > timestamp '2026-01-02 23:00:00' AND p >= 'b'", "'c' >= p",
    "(p = 'c') IS NULL", "(p = 'c') = (b)", "coalesce(p, 'c') = 'c'",
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "fields", [("p", "b"), ("days(ts)",), ("bucket(4, id)", "truncate(1, p)"), ("hours(ts)", "p")]
)
def test_pruning_loses_no_row(
    fields: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(str(fields))
    start = datetime.datetime(2026, 1, 1)
    rows = [
        (n, chance.choice([*"abcdef", "cc", None]), chance.choice([None, start + datetime.timedelta(hours=chance.randrange(99))]),
         chance.choice([True, False, None]))
        for n in range(200)
    ]  # fmt: skip
    plain, path = tmp_path / "plain", tmp_path / "t"
    write_dataset(rows_of(*rows), str(plain))
    table = made(path, *fields)
    spec = PartitionSpec.of_config(table.config())
    values = spec.values(rows_of(*rows)).to_pylist()
    order = sorted(range(200), key=lambda n: repr(list(values[n].values())))
    monkeypatch.setattr(FEW_ROWS, 20)
    write(table, rows_of(*(rows[n] for n in order[:120])))
    for place in range(120, 200, 8):
        write(dataset(str(path)), rows_of(*(rows[n] for n in order[place : place + 8])))
    assert len(dataset(str(path)).snapshot.fragments) > 10
    for condition in CONDITIONS:
        assert content(path, condition) == content(plain, condition), condition


def test_a_condition_opens_no_file_of_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEW_ROWS, 10)
    path = tmp_path / "t"
    write(
        made(path, "days(ts)"),
        rows_of(*((n, "p", datetime.datetime(2026, 1, 1 + n // 10)) for n in range(200))),
    )
    table = dataset(str(path))
    for file in sorted((path / "data").iterdir()):
        bounds = read_bounds(file.name)
        if bounds and bounds[0].low != datetime.date(2026, 1, 7).toordinal() - 719163:
            file.unlink()
    assert table.to_table(filter="ts = timestamp '2026-01-07 00:00:00'").num_rows == 10
    with pytest.raises(FormatError):
        table.to_table(filter="id = 3")


def test_a_condition_opens_one_of_1000_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW_ROWS, 1)
    path, day = tmp_path / "t", datetime.datetime(2020, 1, 1)
    rows = ((n, "p", day + datetime.timedelta(days=n), None) for n in range(1000))
    write(made(path, "days(ts)"), rows_of(*(row for row in rows for _ in range(2))))
    assert len(dataset(str(path)).snapshot.fragments) == 1000
    opened: set[str] = set()

    def noting(request: Any) -> Any:
        def noted(store: Any, path: str, *rest: Any) -> Any:
            opened.update([path] if "/data/" in path else [])
            return request(store, path, *rest)

        return noted

    for request in ("map", "read", "read_ranges", "look_up", "size"):
        replace_request(monkeypatch, request, noting)
    for condition, files in (
        ("ts = timestamp '2021-02-25 00:00:00'", 1),
        ("ts <= timestamp '2020-01-02 00:00:00'", 2),
        ("ts > timestamp '2024-01-01 00:00:00'", 0),
    ):
        opened.clear()
        assert dataset(str(path)).to_table(filter=condition).num_rows == 2 * files
        assert len(opened) == files, condition


def test_concurrent_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "t"
    write(made(path, "p"), rows_of(*((n, "abcdef"[n % 6]) for n in range(60))))
    base = dataset(str(path))
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda p: write(base, rows_of((100, p)), "overwrite"), "abcdef"))
    assert [row[:2] for row in content(path)] == [(100, p) for p in "abcdef"]
    base = dataset(str(path))
    write(base, rows_of((200, "a")), "overwrite")
    changed: list[tuple[int, str]] = [(300, "a"), (301, "new")]
    for row in changed:
        if row[1] == "new":
            write(base, rows_of((201, "new")), "overwrite")
        with pytest.raises(
            IncompatibleConflictError, match=rf"overwrites \(p={row[1]}\).*run the statement again"
        ):
            write(base, rows_of(row), "overwrite")
    write(base, rows_of((202, "b")), "append")
    with pytest.raises(IncompatibleConflictError, match="p=b"):
        write(base, rows_of((302, "b")), "overwrite")
    write(base, rows_of((303, "c")), "overwrite")
    ids = sorted(row[0] for row in content(path))
    assert ids == [100, 100, 100, 100, 200, 201, 202, 303]
    assert len(list((path / "data").iterdir())) == len({f.files[0].path for v in dataset(str(path)).versions()
                                                         for f in dataset(str(path), v["version"]).snapshot.fragments})  # fmt: skip


def singles(path: Path) -> list[Any]:
    """Return the value of the only partition of each fragment; None if it has several."""
    result = []
    for fragment in dataset(str(path)).snapshot.fragments:
        bounds = single_partition(PartitionSpec.of_config(dataset(str(path)).config()), fragment)
        result.append(bounds and bounds[0].low)
    return result


def test_compaction_keeps_partitions_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW_ROWS, 10)
    path = tmp_path / "t"
    table = made(path, "p")
    for start in (0, 100, 200):
        write(dataset(str(path)), rows_of(*((start + n, [*"abc", None][n // 10]) for n in range(40))))
    write(dataset(str(path)), rows_of((900, "b"), (901, "d")))
    write(dataset(str(path)), rows_of((902, "f"), (903, None)))
    table = dataset(str(path))
    table.delete("id IN (5, 115)")
    rows = content(path)
    dataset(str(path)).compact_files(materialize_deletions_threshold=0.0)
    assert content(path) == rows
    fragments = dataset(str(path)).snapshot.fragments
    assert sorted((f.physical_rows for f in fragments), reverse=True) == [30, 30, 29, 29, 4]
    ends = [(b.low, b.high, b.nulls) for f in fragments for b in read_bounds(f.files[0].path)]
    assert sorted(ends, key=repr) == sorted(
        [("a", "a", False), ("b", "b", False), ("b", "f", True), ("c", "c", False), (None, None, True)],
        key=repr,
    )
    assert dataset(str(path)).compact_files().fragments_removed == 0
    write(dataset(str(path)), rows_of((1000, "b")), "overwrite")
    assert [row[0] for row in content(path, "p = 'b'")] == [1000]


def test_the_table_of_partitions_counts_rows_files_and_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    day = datetime.datetime(2026, 1, 1)
    table = made(path, "p", "days(ts)")
    (empty,) = rows_of_partitions(write_dataset(SCHEMA.empty_table(), str(tmp_path / "plain")))
    assert (empty["partition"], empty["record_count"], empty["file_count"]) == ([], 0, 0)
    write(table, rows_of(*((n, "ab"[n % 2], day) for n in range(9)), (9, None, None)))
    monkeypatch.setattr(FEW_ROWS, 1)
    write(dataset(str(path)), rows_of((20, "a", day), (21, "a", day), (22, "c", day)))
    dataset(str(path)).delete("id = 21")
    rows = rows_of_partitions(dataset(str(path)))
    counts = [
        [value for _, value in row["partition"]] + [row["record_count"], row["file_count"]] for row in rows
    ]
    assert counts == [
        [None, None, 1, 1],
        ["a", "2026-01-01", 6, 2],
        ["b", "2026-01-01", 4, 1],
        ["c", "2026-01-01", 1, 1],
    ]
    assert [row["last_updated_snapshot_id"] for row in rows] == [3, 5, 3, 4]
    assert [row["position_delete_record_count"] for row in rows] == [0, 1, 0, 0]
    stored = sum(file.file_size_bytes for f in dataset(str(path)).snapshot.fragments for file in f.files)
    assert abs(sum(row["total_data_file_size_in_bytes"] for row in rows) - stored) <= len(rows)
    assert rows[1]["last_updated_at"] == dataset(str(path)).snapshot.manifest.timestamp


def rows_of_partitions(table: LanceDataset) -> list[dict[str, Any]]:
    batches = PARTITIONS.batches(table.snapshot)
    return [row for batch in batches for row in batch.to_pylist()]


def random_values(chance: random.Random, kind: pa.DataType, count: int) -> pa.Array:
    """Return values near zero, at the ends of the type, and nulls."""
    days = [
        datetime.date(1970, 1, 1) + datetime.timedelta(days=n) for n in (-800, -366, -32, -1, 0, 1, 31, 20000)
    ]
    times = [
        datetime.datetime(day.year, day.month, day.day, hour, 59, 59, 999_999)
        for day in days
        for hour in (0, 23)
    ]
    if pa.types.is_date32(kind):
        values: list[Any] = days
    elif pa.types.is_timestamp(kind):
        values = [value.replace(tzinfo=datetime.timezone.utc) if kind.tz else value for value in times]
    elif pa.types.is_decimal(kind):
        values = [Decimal(number).scaleb(-kind.scale) for number in (-999, -991, -101, -1, 0, 1, 9, 10, 999)]
    elif pa.types.is_integer(kind):
        bits = kind.bit_width - 1
        values = [-(2**bits), 1 - 2**bits, -11, -10, -1, 0, 1, 9, 10, 2**bits - 1]
    elif pa.types.is_binary(kind):
        values = [b"", b"\x00", b"a\xff", b"ab", b"b"]
    elif pa.types.is_boolean(kind):
        values = [True, False]
    else:
        values = ["", "a", "ab", "abc", "\u00e4\u00f6", "\u00e4b", "\U0001f600x", "\U0001f600", "\uffff", "Z"]
    return pa.array([chance.choice([*values, None]) for _ in range(count)], kind)


def sql_text(value: Any) -> str:
    if isinstance(value, datetime.datetime):
        return f"timestamp '{value.isoformat(' ')}'"
    if isinstance(value, datetime.date):
        return f"date '{value}'"
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


TRANSFORMS = {
    "i": (pa.int32(), ("c", "bucket(3, c)", "truncate(10, c)")),
    "l": (pa.int64(), ("c", "bucket(3, c)", "truncate(7, c)")),
    "d": (pa.decimal128(3, 1), ("c", "bucket(3, c)", "truncate(10, c)", "truncate(500, c)")),
    "s": (pa.string(), ("c", "bucket(3, c)", "truncate(1, c)", "truncate(2, c)")),
    "b": (pa.binary(), ("c", "bucket(3, c)", "truncate(1, c)")),
    "o": (pa.bool_(), ("c",)),
    "e": (pa.date32(), ("c", "years(c)", "months(c)", "days(c)", "bucket(3, c)")),
    "n": (pa.timestamp("us"), ("c", "years(c)", "months(c)", "days(c)", "hours(c)", "bucket(3, c)")),
    "z": (pa.timestamp("us", "UTC"), ("c", "years(c)", "months(c)", "days(c)", "hours(c)")),
    "m": (pa.timestamp("ms"), ("c", "years(c)", "days(c)", "hours(c)")),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_filters_answer_as_without_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    chance = random.Random(name)
    kind, transforms = TRANSFORMS[name]
    pruned = 0
    schema = pa.schema([("id", pa.int64()), ("c", kind)])
    for number, transform in enumerate(transforms):
        path, plain = tmp_path / f"t{number}", tmp_path / f"p{number}"
        table = write_dataset(schema.empty_table(), str(path))
        spec = PartitionSpec((parse_transform(transform),)).bound(table.lance_schema)
        table.update_config({PARTITION_FIELDS: spec.text()})
        for few in (1, 10_000):
            monkeypatch.setattr(FEW_ROWS, few)
            rows = pa.table({"id": range(few, few + 40), "c": random_values(chance, kind, 40)}, schema=schema)
            keys = spec.values(rows)[spec.fields[0].name]
            rows = rows.take(pc.sort_indices(keys)) if few == 1 else rows
            for part in (rows,) if few == 1 else (rows.slice(start, 10) for start in range(0, 40, 10)):
                write(dataset(str(path)), part)
                write_dataset(part, str(plain), mode="append")
        constants = [value for value in random_values(chance, kind, 60).to_pylist() if value is not None]
        for constant in constants[:8]:
            text, other = sql_text(constant), sql_text(chance.choice(constants))
            shapes = ["c = {0}", "c <> {0}", "c < {0}", "c <= {0}", "c > {0}", "c >= {0}", "NOT (c < {0})"]
            shapes += [
                "c IN ({0}, {1})",
                "c IS NULL OR c = {0}",
                "c > {0} AND c < {1}",
                "c IS NOT NULL AND id > 3",
            ]
            condition = chance.choice(shapes).format(text, other)
            answer = dataset(str(path)).to_table(filter=condition).sort_by("id")
            assert answer == dataset(str(plain)).to_table(filter=condition).sort_by("id"), (
                transform,
                condition,
            )
            snapshot = dataset(str(path)).snapshot
            pruned += len(snapshot.scan(["id"]).plan_tasks(compile_predicate(condition, schema))) < len(
                snapshot.fragments
            )
    assert pruned or name == "b"  # bytes have no bounds


def test_random_changes_keep_pruning_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UPDATE and MERGE move rows between partitions; a filter reads what a filter without pruning reads."""
    monkeypatch.setattr(FEW_ROWS, 6)
    chance = random.Random(3)
    for fields in (("p",), ("bucket(3, id)", "p"), ("truncate(1, p)", "days(ts)")):
        path = tmp_path / "-".join(fields)
        table = made(path, *fields)
        model: dict[int, str | None] = {}
        for _ in range(12):
            kind = chance.choice(["append", "append", "update", "delete", "merge", "compact", "overwrite"])
            names = [*"abcd", "ab", None]
            table = dataset(str(path))
            if kind == "append":
                first = max(model, default=0) + 1
                new = {first + n: names[n // 4 % 6] for n in range(chance.randrange(1, 24))}
                write(table, rows_of(*new.items()))
                model |= new
            elif kind == "update":
                old, value = chance.choice("abcd"), chance.choice("abcd")
                table.update({"p": f"'{value}'"}, where=f"p = '{old}'")
                model = {key: value if p == old else p for key, p in model.items()}
            elif kind == "delete":
                limit = chance.randrange(60)
                table.delete(f"id < {limit} AND p = 'b'")
                model = {key: p for key, p in model.items() if not (key < limit and p == "b")}
            elif kind == "merge":
                new = {key: chance.choice(names) for key in chance.sample(range(1, 90), 12)}
                source = rows_of(*new.items())
                table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
                    source
                )
                model |= new
            elif kind == "compact":
                table.compact_files(materialize_deletions_threshold=0.0)
            elif fields == ("p",):
                p = chance.choice(names)
                first = max(model, default=0) + 1
                write(table, rows_of((first, p)), "overwrite")
                model = {key: other for key, other in model.items() if other != p} | {first: p}
            assert {row[0]: row[1] for row in content(path)} == model
            for value in "abcd":
                rows = {row[0] for row in content(path, f"p = '{value}'")}
                assert rows == {key for key, p in model.items() if p == value}, (fields, kind)
            rows = {row[0] for row in content(path, "p IS NULL OR p > 'b'")}
            assert rows == {key for key, p in model.items() if p is None or p > "b"}, (fields, kind)
            limit = chance.choice(list(model) or [1])
            assert {row[0] for row in content(path, f"id = {limit}")} == model.keys() & {limit}


def test_bounds_follow_columns_that_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FEW_ROWS, 5)
    path = tmp_path / "t"
    rows = sorted(((n, "abc"[n // 10 % 3]) for n in range(60)), key=lambda row: (row[1], row[0]))
    write(made(path, "p", "truncate(10, id)"), rows_of(*rows))
    changes: list[Callable[[LanceDataset], object]] = [
        lambda table: table.alter_columns({"path": "p", "name": "q"}),
        lambda table: table.alter_columns({"path": "id", "data_type": pa.int32()}),
        lambda table: table.drop_columns(["ts"]),
        lambda table: table.update({"q": "'b'"}, where="id < 15"),
        lambda table: table.compact_files(),
    ]
    for change in changes:
        change(dataset(str(path)))
        values = dataset(str(path)).to_table().to_pylist()
        assert len(values) == 60
        for value in "abc":
            assert len(content(path, f"q = '{value}'")) == sum(row["q"] == value for row in values)
        for limit in (3, 15, 77):
            assert len(content(path, f"id > {limit}")) == sum(row["id"] > limit for row in values)


def test_truncated_numbers_that_overflow_are_not_pruned(tmp_path: Path) -> None:
    path = tmp_path / "t"
    least, greatest = -(2**63), 2**63 - 1
    table = made(path, "truncate(10, id)")
    for number in (least, least + 9, 0, greatest):
        write(table, rows_of((number, "a")))
    results = {
        "id < 0": [least, least + 9],
        f"id < {least + 20}": [least, least + 9],
        f"id > {least + 5}": [least + 9, 0, greatest],
        f"id >= {greatest}": [greatest],
        f"id = {least + 9}": [least + 9],
    }
    for condition, ids in results.items():
        assert sorted(row[0] for row in content(path, condition)) == ids, condition


@pytest.mark.reference
def test_pylance_reads_partitioned_tables(tmp_path: Path) -> None:
    lance = pytest.importorskip("lance")
    path = tmp_path / "t"
    write(made(path, "p", "bucket(4, id)"), rows_of(*((n, "abc"[n % 3]) for n in range(30))))
    write(dataset(str(path)), rows_of((100, "a"), (101, None)))
    dataset(str(path)).delete("id = 3")
    dataset(str(path)).compact_files(materialize_deletions_threshold=0.0)
    theirs = lance.dataset(str(path)).to_table(filter="p = 'a'")["id"].to_pylist()
    assert sorted(theirs) == sorted(row[0] for row in content(path, "p = 'a'")) == [0, *range(6, 30, 3), 100]
    lance.dataset(str(path)).optimize.compact_files()
    assert sorted(lance.dataset(str(path)).to_table()["id"].to_pylist()) == sorted(
        row[0] for row in content(path)
    )


@pytest.mark.slow
def test_a_filter_opens_one_of_1000_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts opened data files: one for a value of the partition column, none for a value without rows."""
    path = tmp_path / "t"
    monkeypatch.setattr(FEW_ROWS, 10)
    write(made(path, "p"), rows_of(*((n, f"p{n // 5}") for n in range(5000))))
    opened: list[str] = []
    start = FileReader.__init__

    def counting(self: FileReader, store: Any, name: str, *args: Any, **options: Any) -> None:
        opened.append(name)
        start(self, store, name, *args, **options)

    monkeypatch.setattr(FileReader, "__init__", counting)
    table = dataset(str(path))
    assert len(table.snapshot.fragments) == 1000
    assert table.to_table(filter="p = 'p777'").num_rows == 5
    assert len(set(opened)) == 1
    opened.clear()
    assert table.to_table(filter="p IN ('p1', 'p2', 'nope')").num_rows == 10
    assert len(set(opened)) == 2
