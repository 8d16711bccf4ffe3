"""Values with row addresses become column files: against a plain model of the rows, and read by pylance."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import FormatError, MergeError, OptionError, SchemaError
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.columns import work
from spark_lance.table.columns.evolve import commit_files
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.columns.work import ColumnWork, Run, UnchangedColumns, overlaid, with_nulls
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.data_replacement import place_file
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.schema.changes import add_fields
from spark_lance.table.versions.cleanup import CleanupPolicy, cleanup
from spark_lance.table.versions.versions import load_latest

VALUES = pa.schema(
    [
        pa.field("n", pa.int32()),
        pa.field("t", pa.string()),
        pa.field("v", pa.list_(pa.float32(), 2)),
        pa.field("s", pa.struct([pa.field("l", pa.list_(pa.int8()))])),
    ]
)


def values_of(keys: list[int]) -> pa.RecordBatch:
    """Values that tell the keys that they are for."""
    rows = [
        None
        if key % 7 == 6
        else {"n": key, "t": "x" * (key % 5), "v": [key, -key], "s": {"l": [key % 100] * (key % 3)}}
        for key in keys
    ]
    return pa.RecordBatch.from_pylist([row or {} for row in rows], VALUES)


def in_runs(offsets: list[int], cuts: list[int]) -> Iterator[Run]:
    for part in np.split(np.array(offsets, np.int64), sorted({cut % (len(offsets) + 1) for cut in cuts})):
        if len(part):
            yield Run(part, values_of(part.tolist()))


@given(
    rows=st.integers(1, 40),
    chosen=st.sets(st.integers(0, 39)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    batch_bytes=st.sampled_from([1, 100, 1 << 20]),
)
def test_rows_without_a_value_are_null(
    rows: int, chosen: set[int], cuts: list[int], batch_bytes: int
) -> None:
    offsets = sorted(offset for offset in chosen if offset < rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "_BATCH_BYTES", batch_bytes)
        got = pa.Table.from_batches(with_nulls(in_runs(offsets, cuts), rows, VALUES), VALUES)
    got.validate(full=True)
    known = dict(zip(offsets, values_of(offsets).to_pylist(), strict=True))
    assert got.to_pylist() == [known.get(row, dict.fromkeys(VALUES.names)) for row in range(rows)]


@given(
    live=st.sets(st.integers(0, 39), min_size=1),
    chosen=st.sets(st.integers(0, 39)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    old_cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_rows_without_a_value_keep_theirs(
    live: set[int], chosen: set[int], cuts: list[int], old_cuts: list[int]
) -> None:
    offsets = sorted(chosen & live)
    old = list(in_runs(sorted(live), old_cuts))
    before = {row: {"n": -row, "t": "old", "v": [0.0, 1.0], "s": {"l": [1]}} for row in live}
    old = [
        Run(run.offsets, pa.RecordBatch.from_pylist([before[row] for row in run.offsets.tolist()], VALUES))
        for run in old
    ]
    got = pa.Table.from_batches(overlaid(old, in_runs(offsets, cuts)), VALUES)
    got.validate(full=True)
    known = {**before, **dict(zip(offsets, values_of(offsets).to_pylist(), strict=True))}
    assert got.to_pylist() == [known[row] for row in sorted(live)]


def test_a_value_for_a_row_that_there_is_not_is_refused() -> None:
    old = [Run(np.array([1, 3]), values_of([1, 3]))]
    for offset in (0, 2, 4):
        with pytest.raises(SchemaError, match=f"row {offset}"):
            list(overlaid(old, [Run(np.array([offset]), values_of([offset]))]))


class Place:
    """A table of some fragments with deleted rows, and the work of adding columns to it."""

    def __init__(self, path: Path, fragments: int, rows: int, gone: set[int], **options: Any) -> None:
        self.path = path
        total = fragments * rows
        table = pa.table({"id": pa.array(range(total), pa.int64())})
        lance.write_dataset(table, path, max_rows_per_file=rows, **options)
        if gone:
            spark_lance.dataset(path).delete(f"id in ({', '.join(map(str, sorted(gone)))})")
        self.store, self.root = open_store(path)
        self.table = TableRef(self.store, self.root)
        self.version = load_latest(self.table)
        self.rows = rows

    def work(self, schema: pa.Schema, others: UnchangedColumns, job: str = "job") -> ColumnWork:
        self.schema, added = add_fields(self.version, schema)
        return ColumnWork(
            self.table,
            JobRecords(self.table, job, "a request"),
            added,
            self.version.schema.fields,
            others,
            self.version.file_version,
            Bases.of(self.table, self.version.message),
            self.version.uses_stable_row_ids,
            {fragment.id: fragment.SerializeToString() for fragment in self.version.fragments},
        )

    def addresses(self, keys: list[int]) -> pa.Array:
        return pa.array([(key // self.rows << 32) + key % self.rows for key in keys], pa.int64())

    def batches(self, keys: list[int], size: int) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(keys), size):
            some = keys[start : start + size]
            columns = [self.addresses(some), *values_of(some).columns]
            yield pa.RecordBatch.from_arrays(columns, names=["_rowaddr", *VALUES.names])

    def commit(self, done: list[FragmentResult]) -> None:
        files = {one.fragment: one.data_file for one in done}
        fragments = []
        for fragment in self.version.fragments:
            longer = table_pb2.DataFragment()
            longer.CopyFrom(fragment)
            if (file := files.get(fragment.id)) is not None:
                place_file(longer, file)
            fragments.append(longer)
        snapshot = Snapshot(self.table, self.version)
        commit_files(snapshot, self.schema, fragments, SYSTEM_ENV)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
@pytest.mark.parametrize("others", [UnchangedColumns.FORBIDDEN, UnchangedColumns.NULL])
@settings(max_examples=12)
@given(data=st.data())
def test_added_columns(version: str, others: UnchangedColumns, data: st.DataObject) -> None:
    fragments, rows = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    total = fragments * rows
    gone = data.draw(st.sets(st.integers(0, total - 1), max_size=total - 1))
    live = sorted({*range(total)} - gone)
    keys = live
    if others is UnchangedColumns.NULL:
        # Values for deleted rows are passed over.
        keys = sorted(data.draw(st.sets(st.integers(0, total - 1))))
    with TemporaryDirectory() as folder:
        stable = data.draw(st.booleans())
        place = Place(
            Path(folder, "t"),
            fragments,
            rows,
            gone,
            data_storage_version=version,
            enable_stable_row_ids=stable,
        )
        there = {fragment.id for fragment in place.version.fragments}
        keys = [key for key in keys if key // rows in there]
        # 2.0 files have no null structs.
        schema = pa.schema(list(VALUES)[:3]) if version == "2.0" else VALUES
        work = pickle.loads(pickle.dumps(place.work(schema, others)))
        batches = place.batches(keys, data.draw(st.integers(1, 20)))
        done = list(work.write(batch.select(["_rowaddr", *schema.names]) for batch in batches))
        assert sum(one.values for one in done) == len(set(keys) & set(live))
        assert len(work.records.load()) == sum(one.file is not None for one in done)
        place.commit(done)
        known = dict(zip(keys, values_of(keys).to_pylist(), strict=True))
        theirs: Any = lance.dataset(folder + "/t")
        theirs.validate()
        names = ["id", *schema.names]
        empty = dict.fromkeys(VALUES.names)
        rows_now = [{"id": key, **known.get(key, empty)} for key in live]
        want = [{name: row[name] for name in names} for row in rows_now]
        assert theirs.to_table(columns=names).to_pylist() == want
        assert spark_lance.dataset(folder + "/t").to_table(names).to_pylist() == want


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "t", 2, 10, {3, 14})


LIVE = [key for key in range(20) if key not in (3, 14)]


@pytest.mark.parametrize(
    ("keys", "error", "match"),
    [
        (LIVE[:-1], SchemaError, "8 rows of a fragment with 9"),
        ([*LIVE[:4], 5, *LIVE[4:]], MergeError, "several values for the row with offset 5"),
        ([1, 0, *LIVE[2:]], SchemaError, "another order"),
        ([*LIVE[9:], *LIVE[:9], 19], SchemaError, "another order"),
        ([*LIVE, 20], SchemaError, "fragment 2, which the table does not have"),
        (sorted([*LIVE, 3]), SchemaError, "row 3, which is deleted"),
    ],
)
def test_what_is_wrong_with_the_rows_is_found(
    place: Place, keys: list[int], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        list(place.work(VALUES, UnchangedColumns.FORBIDDEN).write(place.batches(keys, 4)))


def test_values_for_other_fragments_are_passed_over(place: Place) -> None:
    work = place.work(VALUES, UnchangedColumns.FORBIDDEN)
    del work.fragments[0]
    object.__setattr__(work, "elsewhere", frozenset({0}))
    assert [done.fragment for done in work.write(place.batches(LIVE, 100))] == [1]


def test_a_function_must_give_what_it_says(place: Place) -> None:
    work = place.work(pa.schema([pa.field("n", pa.int64())]), UnchangedColumns.FORBIDDEN)
    good = work.compute(0, ("id",), lambda batch: batch.rename_columns(["n"]), 4)
    assert good.values == 9
    with pytest.raises(SchemaError, match="3 new values came back for 4 rows"):
        work.compute(0, ("id",), lambda batch: batch.rename_columns(["n"]).slice(1), 4)
    with pytest.raises(SchemaError, match="is string in the data"):
        work.compute(0, ("id",), lambda b: pa.record_batch({"n": pa.array(["a"] * b.num_rows)}), 4)
    with pytest.raises(SchemaError, match="not in the table"):
        work.compute(0, ("id",), lambda batch: batch, 4)
    names = {file.name for file in (place.path / "data").iterdir()}
    assert len(names) == 3  # the table's own two, and the good one


def test_records_outlive_the_process(place: Place) -> None:
    work = place.work(VALUES, UnchangedColumns.NULL)
    (first, second) = work.write(place.batches([1, 2, 12], 100))
    records = JobRecords(place.table, "job", "a request")
    assert sorted(records.load(), key=lambda done: done.fragment) == [first, second]
    assert sorted(records.data_file_names()) == sorted(
        done.data_file.path for done in (first, second) if done.data_file is not None
    )
    with pytest.raises(OptionError, match="was started to a request"):
        JobRecords(place.table, "job", "another").load()
    with pytest.raises(OptionError, match="not a name for a job"):
        JobRecords(place.table, "../x", "")
    assert first.data_file is not None
    (place.path / "data" / first.data_file.path).unlink()
    assert records.load() == [second]
    (record,) = (file for file in Path(records.folder).iterdir() if file.name.startswith("1-"))
    record.write_text("{}")
    with pytest.raises(FormatError, match="cannot be read"):
        records.load()
    records.clear()
    assert not Path(records.folder).parent.exists()


def test_a_finished_fragment_fits_until_its_values_change(place: Place) -> None:
    work = place.work(VALUES, UnchangedColumns.NULL)
    done, _ = work.write(place.batches([1, 12], 100))

    def fits() -> bool:
        version = load_latest(place.table)
        (fragment,) = (fragment for fragment in version.fragments if fragment.id == 0)
        bases = Bases.of(place.table, version.message)
        return done.is_valid(place.table, fragment, version.schema.select(["id"]).fields, bases)

    spark_lance.dataset(place.path).delete("id in (0, 5)")
    spark_lance.dataset(place.path).add_columns({"other": "id + 1"})
    assert fits()
    before = spark_lance.dataset(place.path).version
    values = pa.table({"id": [2], "other": [0]})
    spark_lance.dataset(place.path).update_columns(values, "id")
    assert fits()
    spark_lance.dataset(place.path).update_columns(pa.table({"other": [7], "id": [44]}), "other")
    assert not fits()  # it was computed from id
    spark_lance.dataset(place.path, version=before).restore()
    assert fits()
    spark_lance.dataset(place.path, version=1).restore()
    assert not fits()  # row 3 is back, and has no value


def test_clean_up_takes_what_a_dead_job_left(place: Place) -> None:
    list(place.work(VALUES, UnchangedColumns.NULL, "dead").write(place.batches([1], 100)))
    (record,) = (place.path / "_column_jobs" / "dead").iterdir()
    young = cleanup(place.table, place.version, CleanupPolicy())
    assert not young.bytes_removed
    old = time.time() - 8 * 86400
    for file in (record, *(place.path / "data").iterdir()):
        os.utime(file, (old, old))
    gone = cleanup(place.table, place.version, CleanupPolicy())
    assert gone.data_files_removed == 1
    assert not record.exists()
    assert spark_lance.dataset(place.path).count_rows() == 18
