# ruff: noqa: E501
"""Writes to partitioned tables without Spark: files by partition, pruning, and dynamic overwrites."""

from __future__ import annotations

import datetime
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_lance import write_dataset
from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import FormatError, IncompatibleConflictError
from spark_lance.table.format.partition_bounds import read_bounds
from spark_lance.table.format.partitions import PARTITION_FIELDS, PartitionSpec, parse_transform
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts.replace_partitions import partition_counts
from spark_lance.table.inserts.write_plan import commit_or_discard, plan_write
from spark_lance.table.writing import partition_files
from spark_lance.table.writing.write import write_fragments

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("ts", pa.timestamp("us")), ("b", pa.bool_())])


def made(path: Path, *fields: str) -> LanceDataset:
    table = write_dataset(SCHEMA.empty_table(), str(path))
    spec = PartitionSpec(tuple(map(parse_transform, fields))).bound(table.lance_schema)
    table.update_config({PARTITION_FIELDS: spec.text()})
    return dataset(str(path))


def write(table: LanceDataset, rows: pa.Table, mode: str = "append") -> None:
    snapshot = table.snapshot
    plan = plan_write(
        snapshot.store,
        snapshot.root,
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
    monkeypatch.setattr(partition_files, "FEW_ROWS", 10)
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
    monkeypatch.setattr(partition_files, "FEW_ROWS", 20)
    write(table, rows_of(*(rows[n] for n in order[:120])))
    for place in range(120, 200, 8):
        write(dataset(str(path)), rows_of(*(rows[n] for n in order[place : place + 8])))
    assert len(dataset(str(path)).snapshot.fragments) > 10
    for condition in CONDITIONS:
        assert content(path, condition) == content(plain, condition), condition


def test_a_condition_opens_no_file_of_other_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_files, "FEW_ROWS", 10)
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
