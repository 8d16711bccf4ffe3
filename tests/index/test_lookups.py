"""Changes of rows and filters of searches read of a table what a read with the same condition reads."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from spark_lance import LanceDataset, dataset
from spark_lance.index.pruners import index_pruners
from spark_lance.index.vector.query import VectorQuery
from spark_lance.index.vector.search_tasks import plan_search, run_task
from spark_lance.io.handle_cache import evict_all
from spark_lance.io.local import LocalStore
from spark_lance.table.inserts.replace_rows import replace_rows
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.rows.update import find_rows
from spark_lance.table.writing.write import write_fragments

PART, DIM = 80 * 1024, 4
ROWS = 3 * PART
VERSIONS = ["0.1", "2.0", "2.1", "2.2"]
KINDS = ["BTREE", "ZONEMAP", "BLOOMFILTER"]
# Somewhere in the second fragment.
ROW = 121_000
# Fragments of legacy files end where a group of rows ends.
LEGACY_GROUP = 1024
# A file may be opened once more for the rest of the row, which takes one request or two.
OPENING = 2 << 16


@cache
def ids() -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return ascending numbers that do not compress well."""
    return np.cumsum(np.random.default_rng(3).integers(1, 2**30, ROWS))


@cache
def table() -> pa.Table:
    vectors = np.random.default_rng(4).random(ROWS * DIM, np.float32)
    return pa.table(
        {
            "id": ids(),
            "x": np.arange(ROWS),
            "word": [f"w{n % 7}" for n in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIM),
        }
    )


@dataclass
class Reads:
    """Bytes that were asked for, by path."""

    data: dict[str, int] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)

    def note(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        into = self.data if "/data/" in path else self.indices if "/_indices/" in path else {}
        into[path] = into.get(path, 0) + sum(size for _, size in ranges)


@contextmanager
def counting() -> Iterator[Reads]:
    """Note what is read of files, which are opened anew and not mapped meanwhile."""
    evict_all()
    reads = Reads()
    original = LocalStore.read_ranges

    def noted(self: LocalStore, path: str, ranges: Sequence[tuple[int, int]]) -> list[pa.Buffer]:
        reads.note(path, ranges)
        return original(self, path, ranges)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "map", lambda self, path: None)
        patch.setattr(LocalStore, "read_ranges", noted)
        # Bytes count here, and not requests: nothing is read that is not needed.
        for module in ("io.ranges", "file.v2_1.read.row_page"):
            patch.setattr(f"spark_lance.{module}.REQUEST_BYTES", 0)
        yield reads


Made = Callable[[Path, str, "str | None"], LanceDataset]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """What makes a table of a version of files with an index of a kind: a copy, for both are made once."""
    folder = tmp_path_factory.mktemp("made")

    @cache
    def first(version: str, kind: str | None) -> Path:
        path = folder / f"{version}-{kind}"
        write(path, version, kind)
        return path

    def copied(path: Path, version: str, kind: str | None) -> LanceDataset:
        shutil.copytree(first(version, kind), path)
        return dataset(path)

    return copied


def write(path: Path, version: str, kind: str | None) -> None:
    """Write a table; pylance builds the index where tables cannot be written here."""
    storage: Any = {"0.1": "legacy"}.get(version, version)
    theirs = lance.write_dataset(
        table(),
        str(path),
        max_rows_per_file=PART,
        max_rows_per_group=LEGACY_GROUP,
        data_storage_version=storage,
    )
    if kind is not None and version == "0.1":
        index: Any = kind
        theirs.create_scalar_index("id", index)
    elif kind is not None:
        dataset(path).create_scalar_index("id", kind)


def parts_of(found: LanceDataset) -> list[str]:
    """Return the names of the data files in order."""
    return [Path(file.path).name for part in found.manifest.fragments for file in part.files]


def check(reads: Reads, found: LanceDataset, *, cached: bool = False) -> None:
    """Only the fragment of `ROW` was opened, and no more was read than by a read of that row.

    If it is cached already, nothing may have been read.
    """
    home = parts_of(found)[ROW // PART]
    files = {Path(path).name for path in reads.data}
    assert files == {home} or (cached and not files)
    with counting() as needed:
        rows = dataset(found.uri, found.version).to_table(filter=f"id = {ids()[ROW]}")
    assert rows.num_rows == 1
    assert sum(reads.data.values()) <= sum(needed.data.values()) + OPENING


Change = Callable[[LanceDataset, int], Snapshot]


def deleted(found: LanceDataset, value: int) -> Snapshot:
    return found.delete(f"id = {value}").snapshot


def updated(found: LanceDataset, value: int) -> Snapshot:
    done = found.update({"x": "-1"}, f"id = {value}")
    assert done.num_rows_updated == 1
    return done.dataset.snapshot


def merged(found: LanceDataset, value: int) -> Snapshot:
    source = pa.table({"id": [value], "x": [-1]})
    done = found.merge_insert("id").when_matched_update_all().execute(source)
    assert (done.num_updated_rows, done.num_inserted_rows, done.num_deleted_rows) == (1, 0, 0)
    return done.dataset.snapshot


def merged_with_missing(found: LanceDataset, value: int) -> Snapshot:
    source = pa.table({"id": [value + 1], "x": [-1]})
    builder = found.merge_insert("id").when_matched_delete()
    done = builder.when_not_matched_by_source_delete(f"id = {value}").execute(source)
    assert (done.num_updated_rows, done.num_inserted_rows, done.num_deleted_rows) == (0, 0, 1)
    return done.dataset.snapshot


def replaced(found: LanceDataset, value: int) -> Snapshot:
    rows = table().slice(ROW, 1)
    schema = found.manifest.schema
    added = write_fragments(rows.to_batches(), found.table, schema, version=found.manifest.file_version)
    return found.snapshot.at(replace_rows(found.snapshot, f"id = {value}", added, schema))


CHANGES = [deleted, updated, merged, merged_with_missing, replaced]
# Tables with legacy files are only read.
CASES = [
    pytest.param(change, version, kind, id=f"{change.__name__}-{version}-{kind}")
    for change in CHANGES
    for version in VERSIONS[1:]
    for kind in KINDS
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_are_found_as_reads_find_them(version: str, kind: str, tmp_path: Path, made: Made) -> None:
    result = made(tmp_path / "t", version, kind)
    with counting() as reads:
        changes = find_rows(result.snapshot, f"id = {ids()[ROW]}")
    assert changes.rows == {ROW // PART: BitMap([ROW % PART])}
    check(reads, result)


@pytest.mark.parametrize(("change", "version", "kind"), CASES)
def test_changes_read_what_their_condition_leaves(
    change: Change, version: str, kind: str, tmp_path: Path, made: Made
) -> None:
    made(tmp_path / "t", version, kind)
    ds = dataset(tmp_path / "t")
    value = int(ids()[ROW])
    with counting() as reads:
        after = change(ds, value)
    check(reads, ds)
    assert reads.indices
    left = lance.dataset(str(tmp_path / "t"), version=after.version)
    rows = left.to_table(columns=["id", "x"])
    new = {"updated": [-1], "merged": [-1], "replaced": [ROW]}.get(change.__name__, [])
    assert np.array_equal(rows["x"], np.append(np.delete(np.arange(ROWS), ROW), new))
    assert np.array_equal(rows["id"], np.append(np.delete(ids(), ROW), [value] * len(new)))


def test_pages_of_legacy_files_are_left_out_by_their_statistics(tmp_path: Path, made: Made) -> None:
    result = made(tmp_path / "t", "0.1", None)
    with counting() as reads:
        changes = find_rows(result.snapshot, f"id = {ids()[ROW]}")
    # Of the other fragments no more than what describes them.
    assert sum(reads.data.values()) < 8 * ROWS // 3
    assert changes.rows == {ROW // PART: BitMap([ROW % PART])}


@pytest.mark.parametrize("version", VERSIONS[1:])
def test_rows_by_number_are_found_without_reading(version: str, tmp_path: Path, made: Made) -> None:
    result = made(tmp_path / "t", version, None)
    address = (ROW // PART) << 32 | ROW % PART
    with counting() as reads:
        after = result.delete(f"_rowaddr = {address} or _rowid in ({address + 1})").snapshot
    assert reads.data == {}
    assert after.live_rows() == ROWS - 2
    left = lance.dataset(str(tmp_path / "t"), version=after.version)
    assert left.count_rows(f"id in ({ids()[ROW]}, {ids()[ROW + 1]})") == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", VERSIONS)
def test_searches_read_what_their_filter_leaves(version: str, kind: str, tmp_path: Path, made: Made) -> None:
    path = tmp_path / "t"
    if version == "0.1":
        made(path, version, kind)
        theirs = lance.dataset(str(path))
        theirs.create_index("v", "IVF_FLAT", num_partitions=2)
        theirs.create_scalar_index("word", "INVERTED")
    else:
        made(path, version, kind).create_index("v", "IVF_FLAT", num_partitions=2)
        dataset(path).create_scalar_index("word", "INVERTED")
    condition = f"id = {ids()[ROW]}"
    query = {"column": "v", "q": [0.5] * DIM, "k": 3}
    ds = dataset(path)
    with counting() as reads:
        rows = ds.to_table(["x"], filter=condition, nearest=query, prefilter=True)
    assert rows["x"].to_pylist() == [ROW]
    check(reads, ds)
    with counting() as reads:
        rows = ds.to_table(["x"], filter=condition, full_text_query=f"w{ROW % 7}", prefilter=True)
    assert rows["x"].to_pylist() == [ROW]
    check(reads, ds, cached=True)
    with counting() as reads:
        plan = pickle.loads(pickle.dumps(plan_search(ds.snapshot, VectorQuery.parse(query), condition)))
        answers = [part for task in plan.tasks for part in run_task(plan, task)]
    assert [int(a) for part in answers for a in part.addresses] == [(ROW // PART) << 32 | ROW % PART]
    check(reads, ds)


@pytest.mark.parametrize("kind", [*KINDS, None])
def test_a_merge_of_many_keys_reads_every_key_once(kind: str | None, tmp_path: Path, made: Made) -> None:
    """Too many keys to look up, but only those between the first and the last can match."""
    result = made(tmp_path / "t", "2.2", kind)
    keys = ids()[PART : PART + 5000]
    with counting() as reads:
        done = (
            result.merge_insert("id")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute(pa.table({"id": [*keys, 5], "x": [-1] * 5001}))
        )
    assert (done.num_updated_rows, done.num_inserted_rows) == (5000, 1)
    assert sum(reads.data.values()) < 2 * (8 * ROWS + 5000 * (4 * DIM + 40))
    rows = lance.dataset(str(tmp_path / "t")).to_table(columns=["x"], filter="x = -1")
    assert rows.num_rows == 5001


def test_an_empty_source_reads_no_keys(tmp_path: Path, made: Made) -> None:
    result = made(tmp_path / "t", "2.2", None)
    with counting() as reads:
        source = pa.table({"id": pa.array([], pa.int64()), "x": pa.array([], pa.int64())})
        done = result.merge_insert("id").when_matched_update_all().execute(source)
    assert (done.num_updated_rows, reads.data) == (0, {})


def test_snapshots_travel(tmp_path: Path, made: Made) -> None:
    result = made(tmp_path / "t", "2.2", "BTREE")
    snapshot = result.snapshot
    assert snapshot.pruner_factory is index_pruners
    rows = list(snapshot.scan(["x"]).tables(f"id = {ids()[ROW]}"))
    for other in (
        pickle.loads(pickle.dumps(snapshot)),
        pickle.loads(pickle.dumps(snapshot.ref())).load(),
        result.delete("x < 0").snapshot,
    ):
        with counting() as reads:
            assert list(other.scan(["x"]).tables(f"id = {ids()[ROW]}")) == rows
        check(reads, result)
        assert other.live_rows() == ROWS
        assert [other.physical_rows(part) for part in other.fragments] == [PART] * 3
        assert [len(other.deletions(part)) for part in other.fragments] == [0] * 3
    assert len(pickle.dumps(snapshot.ref())) < 1000
