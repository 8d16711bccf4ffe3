"""Updating rows: the operation beside pylance's, values, row ids and versions, other writers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import partial
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
    FormatError,
    OptionError,
    RetryableConflictError,
    SchemaError,
    UnsupportedFormatError,
)
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.commits.proposal import SYSTEM_ENV
from spark_lance.table.commits.row_changes import RowChanges
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.rowids import decode_row_versions
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.operations.update import update_message
from spark_lance.table.reading.row_lookup import read_rows
from spark_lance.table.rows import row_rewrites
from spark_lance.table.rows.row_rewrites import CarriedRowIds, commit_moves, write_moved
from spark_lance.table.rows.update import find_rows
from spark_lance.table.versions.versions import load_latest
from spark_lance.table.writing.write import write_fragments
from tests.strategies import canonical, tables

Update = transaction_pb2.Transaction.Update
SYSTEM = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]


def rows(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table(
        {
            "a": pa.array(numbers, pa.int64()),
            "b": pa.array([number % 7 for number in numbers], pa.int32()),
            "s": [str(number) for number in numbers],
        }
    )


def content(path: Path, columns: list[str] | None = None) -> list[tuple[Any, ...]]:
    """Return all rows, sorted, as pylance reads them; the table is checked and counted on the way."""
    dataset: Any = lance.dataset(str(path))
    dataset.validate()
    table = dataset.to_table(columns=columns)
    assert dataset.count_rows() == table.num_rows
    assert spark_lance.dataset(path).to_table([c for c in table.schema.names if c not in SYSTEM]) == (
        table.select([c for c in table.schema.names if c not in SYSTEM])
    )
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


def manifest(path: Path) -> Manifest:
    return load_latest(TableRef(*open_store(path)))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_manifests_equal_those_of_pylance(tmp_path: Path, version: str, stable: bool) -> None:
    results = []
    for side in ("lance", "ours"):
        path = tmp_path / side
        options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
        dataset = lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, **options)
        dataset.create_scalar_index("b", "BTREE")
        dataset.delete("a = 4")
        for change in ({"b": "b + 1"}, {"s": "concat(s, 'x')", "b": "0"}):
            where = "a in (3, 5, 21) or a between 10 and 19"
            if side == "lance":
                assert lance.dataset(str(path)).update(change, where=where) == {"num_rows_updated": 13}
            else:
                assert spark_lance.dataset(path).update(change, where).num_rows_updated == 13
        latest = manifest(path)
        results.append((latest, read_transaction(TableRef(*open_store(path)), latest).message))
        expected = content(path, ["a", "b", "s", *SYSTEM] if stable else None)
        if side == "lance":
            theirs = expected
    assert expected == theirs
    for latest, transaction in results:
        operation = transaction.update
        assert operation.removed_fragment_ids == [3]
        assert transaction.read_version == 4
        for fragment in (*latest.fragments, *operation.updated_fragments, *operation.new_fragments):
            fragment.deletion_file.ClearField("id")
            for file in fragment.files:
                file.ClearField("path")
                file.ClearField("file_size_bytes")
        # pylance lists the fragments and fields of its message in any order.
        operation.updated_fragments.sort(key=lambda fragment: fragment.id)
        operation.fields_for_preserving_frag_bitmap.sort()
    (lances, lance_message), (ours, our_message) = results
    assert our_message.update == lance_message.update
    assert list(ours.fragments) == list(lances.fragments)
    for name in ("max_fragment_id", "next_row_id", "reader_feature_flags", "writer_feature_flags", "fields"):
        assert getattr(ours.message, name) == getattr(lances.message, name)
    assert [i.fragment_bitmap for i in ours.indices] == [i.fragment_bitmap for i in lances.indices]


@given(data=st.data(), version=st.sampled_from(["2.0", "2.1", "2.2"]), stable=st.booleans())
@settings(max_examples=15)
def test_a_model_of_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: str, stable: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    lance.write_dataset(rows(0, 40), path, max_rows_per_file=16, **options)
    model = {a: [b, s, a, 1] for a, b, s in content(path)}
    for turn in range(data.draw(st.integers(1, 4))):
        chosen = data.draw(st.sets(st.integers(0, 45), max_size=12))
        add = data.draw(st.integers(-3, 3))
        where = f"a in ({', '.join(map(str, [*chosen, -1]))})"
        hit = [a for a in model if a in chosen]
        done = spark_lance.dataset(path).update({"b": f"b + {add}", "s": f"concat(s, '-{turn}')"}, where)
        assert done.num_rows_updated == len(hit)
        for a in hit:
            b, s, row_id, _ = model[a]
            model[a] = [b + add, f"{s}-{turn}", row_id, turn + 2]
    assert content(path) == sorted([(a, b, s) for a, (b, s, *_) in model.items()], key=repr)
    if stable:
        expected = sorted([(a, row_id, 1, updated) for a, (*_, row_id, updated) in model.items()], key=repr)
        assert content(path, ["a", *SYSTEM]) == expected


@given(data=st.data(), version=st.sampled_from(["2.0", "2.1", "2.2"]))
@settings(max_examples=30)
def test_columns_of_any_type_move_unchanged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, version: str
) -> None:
    table = data.draw(tables(version))
    numbers = pa.array(range(table.num_rows), pa.int64())
    table = table.append_column("key", numbers).append_column("x", pa.nulls(table.num_rows, pa.int8()))
    path = tmp_path_factory.mktemp("t") / "t"
    spark_lance.write_dataset(table, path, data_storage_version=version)
    chosen = data.draw(st.sets(st.integers(0, max(0, table.num_rows - 1))))
    done = spark_lance.dataset(path).update({"x": 7}, pc.field("key").isin([*chosen, -1]))
    moved = [number for number in range(table.num_rows) if number in chosen]
    order = [number for number in range(table.num_rows) if number not in chosen] + moved
    after = done.dataset.to_table()
    assert after["key"].to_pylist() == order
    assert after["x"].to_pylist() == [None] * (len(order) - len(moved)) + [7] * len(moved)
    for name in table.schema.names[:-2]:
        before = table[name].to_pylist()
        assert canonical(after[name]) == canonical([before[number] for number in order])


def test_values(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("i", pa.int8()),
            ("f", pa.float32()),
            ("s", pa.string()),
            pa.field("n", pa.int32(), nullable=False),
            ("d", pa.dictionary(pa.int8(), pa.string())),
            ("l", pa.list_(pa.int32())),
        ]
    )
    table = pa.table(
        [[1, 2], [3, 4], [0.5, 1.5], ["x", None], [5, 6], ["p", "q"], [[1], None]], schema=schema
    )
    path = tmp_path / "t"
    spark_lance.write_dataset(table, path)

    def updated(**updates: Any) -> list[Any]:
        done = spark_lance.dataset(path).update(updates)
        assert done.num_rows_updated == 2
        after: pa.Table = lance.dataset(str(path)).to_table()
        assert after == done.dataset.to_table()
        spark_lance.write_dataset(table, path, "overwrite")
        return [after[name].to_pylist() for name in updates]

    assert updated(i="2.7", f="a", s="a") == [[2, 2], [1.0, 2.0], ["1", "2"]]
    assert updated(i="NULL", s=None) == [[None, None], [None, None]]
    assert updated(a="i", i="a") == [[3, 4], [1, 2]]
    assert updated(a=pc.field("i") * 2, s="'it''s'") == [[6, 8], ["it's", "it's"]]
    assert updated(d="s", l=[1, 2]) == [["x", None], [[1, 2], [1, 2]]]
    assert updated(i=7, n=pa.scalar(8)) == [[7, 7], [8, 8]]
    # The columns keep their names and types, whatever the values had.
    assert spark_lance.dataset(path).schema == schema
    version = spark_lance.dataset(path).version
    refused: list[tuple[dict[str, Any], type[Exception]]] = [
        ({}, OptionError),
        ({"zz": "1"}, SchemaError),
        ({"_rowid": "1"}, SchemaError),
        ({"i": "300"}, ExpressionError),
        ({"i": "i * 100"}, ExpressionError),
        ({"i": 300}, ExpressionError),
        ({"i": "'x'"}, ExpressionError),
        ({"a": "s"}, ExpressionError),
        ({"a": "zz + 1"}, ExpressionError),
        ({"a": pc.field("zz")}, ExpressionError),
        ({"a": object()}, ExpressionError),
        ({"n": "NULL"}, SchemaError),
        ({"n": "CASE WHEN a = 1 THEN 1 END"}, SchemaError),
        ({"l": "a"}, ExpressionError),
    ]
    for updates, error in refused:
        with pytest.raises(error):
            spark_lance.dataset(path).update(updates)
    for where in ("zz = 1", "a", pc.field("zz") == 1):
        with pytest.raises(ExpressionError):
            spark_lance.dataset(path).update({"a": "1"}, where)
    assert spark_lance.dataset(path).version == version
    _no_stray_files(path)


def _no_stray_files(path: Path) -> None:
    """Check that every data file is of some version."""
    known = set()
    for version in range(1, manifest(path).version + 1):
        for fragment in spark_lance.dataset(path, version).manifest.fragments:
            known |= {file.path for file in fragment.files}
    assert {file.name for file in (path / "data").iterdir()} == known


def test_no_match_and_no_condition(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path, max_rows_per_file=4)
    done = spark_lance.dataset(path).update({"b": "9"}, "a > 100")
    assert (done.num_rows_updated, done.dataset.version) == (0, 2)
    assert len(list((path / "data").iterdir())) == 3
    done = spark_lance.dataset(path).update({"b": "9"})
    assert (done.num_rows_updated, done.dataset.version) == (10, 3)
    assert [fragment.id for fragment in done.dataset.manifest.fragments] == [3]
    assert {b for _, b, _ in content(path)} == {9}


@pytest.mark.parametrize("piece_bytes", [1, 64, 1 << 20])
def test_rows_come_in_pieces_of_bytes(tmp_path: Path, piece_bytes: int) -> None:
    path = tmp_path / "t"
    spark_lance.write_dataset(rows(0, 300), path, max_rows_per_file=100)
    dataset = spark_lance.dataset(path).delete("a = 5")
    expected = {0: np.array([0, 1, 2, 50, 99], np.uint32), 2: np.arange(100, dtype=np.uint32)}
    fields = dataset.lance_schema.fields
    pieces = list(read_rows(dataset.snapshot, expected, fields, piece_bytes))
    values = pa.concat_tables([table for *_, table in pieces])["a"].to_pylist()
    assert values == [0, 1, 2, 50, 99, *range(200, 300)]
    assert (len(pieces) == 2) == (piece_bytes == 1 << 20)
    for _, offsets, table in pieces:
        assert len(offsets) == table.num_rows
        assert table.nbytes <= max(4 * piece_bytes, 64)


BLOB = {"lance-encoding:blob": "true"}


@pytest.mark.parametrize("piece_bytes", [1 << 10, 16 << 20])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_blobs_move_with_their_rows(
    tmp_path: Path, version: str, piece_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = partial(read_rows, piece_bytes=piece_bytes)
    monkeypatch.setattr("spark_lance.table.rows.update.read_rows", reader)
    path = tmp_path / "t"
    blobs = [b"x", None, b"", b"abc" * 1000, b"p" * 100_000, b"d" * (5 << 20), b"q" * 70_000, b"z"]
    schema = pa.schema(
        [("a", pa.int64()), pa.field("v", pa.large_binary(), metadata=BLOB), ("s", pa.string())]
    )
    data = pa.table([range(8), blobs, list("abcdefgh")], schema=schema)
    spark_lance.write_dataset(data, path, data_storage_version=version)
    spark_lance.dataset(path).update({"s": "'n'"}, "a in (1, 2, 3, 4, 5, 7)")
    done = spark_lance.dataset(path).update({"s": "'m'"}, "a in (4, 5, 6)").dataset
    order = [0, 1, 2, 3, 7, 6, 4, 5]
    theirs: Any = lance.dataset(str(path))
    assert theirs.to_table(columns=["a"])["a"].to_pylist() == order
    results = [None if blob is None else blob.read() for blob in done.take_blobs("v", indices=range(8))]
    assert results == [blobs[a] for a in order]
    some = [place for place, a in enumerate(order) if blobs[a] is not None]
    assert [blob.read() for blob in theirs.take_blobs("v", indices=some)] == [
        results[place] for place in some
    ]


def test_blobs_outside_the_table_stay_there(tmp_path: Path) -> None:
    path = tmp_path / "t"
    (tmp_path / "outside").write_bytes(b"0123456789")
    uri = f"file://{tmp_path}/outside"
    extension = {"ARROW:extension:name": "lance.blob.v2"}
    kind = pa.struct([("data", pa.large_binary()), ("uri", pa.string())])
    schema = pa.schema([("a", pa.int64()), pa.field("v", kind, metadata=extension)])
    values = [{"data": None, "uri": uri}, {"data": b"in", "uri": None}, None]
    data = pa.table([[1, 2, 3], values], schema=schema)
    spark_lance.write_dataset(data, path, data_storage_version="2.2")
    done = spark_lance.dataset(path).update({"a": "a + 1"}).dataset
    results = [None if blob is None else blob.read() for blob in done.take_blobs("v", indices=[0, 1, 2])]
    assert results == [b"0123456789", b"in", None]
    assert done.to_table()["v"].to_pylist()[0]["blob_uri"] == uri


def test_blobs_in_structs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    inner = pa.struct([pa.field("v", pa.large_binary(), metadata=BLOB)])
    spark_lance.write_dataset(pa.table({"a": [1], "st": pa.array([{"v": b"x"}], inner)}), path)
    with pytest.raises(UnsupportedFormatError, match="blob"):
        spark_lance.dataset(path).update({"a": "2"})


def test_row_ids_that_lie_in_data_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0, 40), path, max_rows_per_file=10, enable_stable_row_ids=True)
    dataset.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "1"})
    dataset.update({"b": "b + 10"}, where="a % 3 = 0")
    lance.dataset(str(path)).optimize.compact_files()
    before = content(path, ["a", "b", *SYSTEM])
    (fragment,) = manifest(path).fragments
    assert fragment.HasField("column_row_ids")
    done = spark_lance.dataset(path).update({"b": "b + 100"}, "a % 5 = 0")
    assert done.num_rows_updated == 8
    expected = [
        (a, b + 100, row_id, created, done.dataset.version)
        if a % 5 == 0
        else (a, b, row_id, created, updated)
        for a, b, row_id, created, updated in before
    ]
    assert content(path, ["a", "b", *SYSTEM]) == sorted(expected, key=repr)


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_indices_stay_right(tmp_path: Path, stable: bool, kind: Any) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0, 60), path, max_rows_per_file=20, enable_stable_row_ids=stable)
    dataset.create_scalar_index("b", kind)
    dataset.create_scalar_index("a", kind)
    ours = spark_lance.dataset(path)
    ours = ours.update({"b": "b + 3"}, "a % 4 = 0").dataset
    ours = ours.update({"s": "'new'"}, "b = 5").dataset
    ours = ours.update({"b": "1"}, "a >= 55").dataset
    assert len(ours.manifest.indices) == 2
    for where in [*(f"b = {b}" for b in range(-1, 12)), "a = 8", "a in (8, 56, 9)", "b > 2 and a < 30"]:
        results = [
            lance.dataset(str(path)).scanner(filter=where, use_scalar_index=use).to_table().sort_by("a")
            for use in (True, False)
        ]
        assert results[0] == results[1]
        assert results[1] == ours.to_table().filter(_condition(where)).sort_by("a")


def _condition(where: str) -> pc.Expression:
    a, b = pc.field("a"), pc.field("b")
    known = {"a = 8": a == 8, "a in (8, 56, 9)": a.isin([8, 56, 9]), "b > 2 and a < 30": (b > 2) & (a < 30)}
    return known[where] if where in known else b == int(where.removeprefix("b = "))


@pytest.mark.parametrize("first", ["ours", "theirs"])
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_stale_handles_on_different_rows_both_count(tmp_path: Path, stable: bool, first: str) -> None:
    path = tmp_path / "t"
    theirs = lance.write_dataset(rows(0, 20), path, max_rows_per_file=10, enable_stable_row_ids=stable)
    ours = spark_lance.dataset(path)
    if first == "ours":
        ours.update({"b": "b + 100"}, "a = 1")
        theirs.update({"b": "b + 100"}, where="a = 2")
    else:
        theirs.update({"b": "b + 100"}, where="a = 2")
        done = ours.update({"b": "b + 100"}, "a = 1").dataset
        # Merged, not run again: the files of the first attempt are what was committed.
        assert read_transaction(done.table, done.manifest).read_version == 2
    changed = [(a, b, s) for a, b, s in content(path) if b >= 100]
    assert changed == [(1, 101, "1"), (2, 102, "2")]
    assert len(content(path)) == 20
    if stable:
        assert [row[0] == row[1] for row in content(path, ["a", "_rowid"])] == [True] * 20
    _no_stray_files(path)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_stale_handles_on_one_row_are_run_again(tmp_path: Path, first: str) -> None:
    path = tmp_path / "t"
    theirs = lance.write_dataset(rows(0, 20), path, enable_stable_row_ids=True)
    ours = spark_lance.dataset(path)
    if first == "ours":
        ours.update({"b": "b + 100"}, "a = 1")
        theirs.update({"b": "b + 100"}, where="a = 1")
    else:
        theirs.update({"b": "b + 100"}, where="a = 1")
        assert ours.update({"b": "b + 100"}, "a = 1").num_rows_updated == 1
        _no_stray_files(path)
    assert [row for row in content(path, ["a", "b", *SYSTEM]) if row[1] > 50] == [(1, 201, 1, 1, 3)]


def test_low_level_conflicts_leave_no_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 10), path)
    stale = spark_lance.dataset(path)
    lance.dataset(str(path)).update({"b": "5"}, where="a = 1")
    with pytest.raises(RetryableConflictError):
        stale.update({"b": "6"}, "a = 1", conflict_retries=0)
    assert stale.latest_version == 2
    _no_stray_files(path)
    assert len(list((path / "_deletions").iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda dataset: dataset.delete("a = 2"),
        lambda dataset: dataset.delete("a = 3"),
        lambda dataset: dataset.add_columns({"c": "a + 1"}),
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.delete("a < 10"),
        lambda dataset: dataset.alter_columns({"path": "a", "data_type": pa.int32()}),
        lambda dataset: dataset.drop_columns(["s"]),
        lambda dataset: dataset.create_scalar_index("a", "BTREE"),
        lambda dataset: dataset.update_config({"k": "v"}),
        lambda dataset: dataset.insert(rows(100, 5)),
    ],
    ids=["same row", "other row", "add", "compact", "fragment", "cast", "drop", "index", "config", "append"],
)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_update_after_any_change_that_it_did_not_know(tmp_path: Path, stable: bool, change: Any) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 20), path, max_rows_per_file=10, enable_stable_row_ids=stable)
    stale = spark_lance.dataset(path)
    change(lance.dataset(str(path)))
    expected = [(a, 77 if a in (2, 15) else b) for a, b in content(path, ["a", "b"])]
    stale.update({"b": "77"}, "a in (2, 15)")
    assert content(path, ["a", "b"]) == sorted(expected, key=repr)
    _no_stray_files(path)


def test_updaters_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 24), path, max_rows_per_file=8, enable_stable_row_ids=True)
    counter = itertools.count()

    def work(turn: int) -> None:
        a = next(counter) % 6 * 4
        if turn % 3 == 2:
            lance.dataset(str(path)).update({"b": "b + 10"}, where=f"a = {a}", conflict_retries=50)
        else:
            spark_lance.dataset(path).update({"b": "b + 10"}, f"a = {a}", conflict_retries=50)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(18)))
    expected = [(a, a % 7 + (30 if a % 4 == 0 else 0), a) for a in range(24)]
    assert content(path, ["a", "b", "_rowid"]) == sorted(expected, key=repr)
    assert manifest(path).version == 19


def test_taking_turns(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 30), path, max_rows_per_file=10, enable_stable_row_ids=True)
    for turn in range(10):
        if turn % 2:
            lance.dataset(str(path)).update({"b": "b + 1"}, where=f"a % 5 = {turn % 5}")
        else:
            spark_lance.dataset(path).update({"b": "b + 1"}, f"a % 5 = {turn % 5}")
        if turn == 5:
            lance.dataset(str(path)).optimize.compact_files()
    last = {turn % 5: turn + 2 + (turn > 5) for turn in range(10)}
    # pylance reserves fragment ids before it compacts: one version more.
    last = {rest: version + (version > 8) for rest, version in last.items()}
    expected = [(a, a % 7 + 2, a, 1, last[a % 5]) for a in range(30)]
    assert content(path, ["a", "b", *SYSTEM]) == sorted(expected, key=repr)


def test_many_new_fragments_carry_their_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 50), path, max_rows_per_file=20, enable_stable_row_ids=True)
    dataset = spark_lance.dataset(path)
    changes: RowChanges = find_rows(dataset.snapshot, "a % 2 = 0")
    ids = CarriedRowIds(dataset.snapshot)

    def tables() -> Any:
        fields = dataset.lance_schema.fields
        for number, offsets, table in read_rows(
            dataset.snapshot, changes.rows.offsets_by_fragment(), fields, 100
        ):
            ids.add_rows(number, offsets)
            yield table
        yield rows(1000, 3)

    monkeypatch.setattr(row_rewrites, "write_fragments", partial(write_fragments, max_rows_per_file=10))
    added = write_moved(dataset.snapshot, tables(), ids)
    assert [fragment.physical_rows for fragment in added] == [10, 10, 8]
    commit_moves(changes, added, [1], SYSTEM_ENV)
    expected = [(a, a, 1, 1 if a % 2 else 2) for a in range(50)]
    expected += [(1000 + n, 50 + n, 2, 2) for n in range(3)]
    assert content(path, ["a", *SYSTEM]) == sorted(expected, key=repr)


def test_rewritten_columns_as_pylance_marks_them(tmp_path: Path) -> None:
    path = tmp_path / "t"
    dataset = lance.write_dataset(rows(0, 20), path, max_rows_per_file=10, enable_stable_row_ids=True)
    dataset.create_scalar_index("b", "BTREE")
    dataset.create_scalar_index("s", "BTREE")
    base = manifest(path)
    source = pa.table({"a": [1, 12, 13], "b": pa.array([50, 51, 52], pa.int32())})
    merge = lance.dataset(str(path)).merge_insert("a").when_matched_update_all()
    merge.write_mode("rewrite_columns").execute(source)
    theirs = manifest(path)
    transaction = read_transaction(TableRef(*open_store(path)), theirs)
    operation = transaction.message.update
    assert operation.update_mode == Update.REWRITE_COLUMNS
    for file in (path / "_versions").glob("*.manifest"):
        if file.name == theirs.path.rpartition("/")[2]:
            file.unlink()
    ours = commit_operation(TableRef(*open_store(path)), operation, read_version=base.version)
    assert list(ours.fragments) == list(theirs.fragments)
    assert [i.fragment_bitmap for i in ours.indices] == [i.fragment_bitmap for i in theirs.indices]
    assert [(a, b) for a, b, _ in content(path) if b >= 50] == [(1, 50), (12, 51), (13, 52)]
    versions = [decode_row_versions(f.inline_last_updated_at_versions, 10).tolist() for f in ours.fragments]
    assert versions == [[4 if n == 1 else 1 for n in range(10)], [4 if n in (2, 3) else 1 for n in range(10)]]


def test_an_update_that_names_missing_fragments_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = TableRef(*open_store(path))
    lance.write_dataset(rows(0, 10), path)
    for message in (
        update_message([], [7], [], []),
        update_message([table_pb2.DataFragment(id=7)], [], [], []),
    ):
        with pytest.raises(FormatError, match="7"):
            commit_operation(table, message, read_version=1)


def test_the_condition_may_name_row_ids(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 20), path, max_rows_per_file=10, enable_stable_row_ids=True)
    assert spark_lance.dataset(path).update({"b": "-1"}, "_rowid in (4, 17)").num_rows_updated == 2
    assert [a for a, b, _ in content(path) if b == -1] == [17, 4]


@pytest.mark.parametrize("value", ["hello", "hello world", "it's"])
def test_plain_strings_get_the_word_on_quoting(tmp_path: Path, value: str) -> None:
    table = spark_lance.write_dataset(pa.table({"id": [1], "name": ["a"]}), tmp_path)
    with pytest.raises(ExpressionError) as error:
        table.update({"name": value})
    assert "column 'name'" in str(error.value)
    assert """write a text in quotes, {"name": "'hello'"}, or use pa.scalar("hello")""" in str(error.value)
    # Both ways of the hint work.
    assert table.update({"name": "'hello'"}).dataset.to_table()["name"].to_pylist() == ["hello"]
    result = table.update({"name": pa.scalar(value)})
    assert result.dataset.to_table()["name"].to_pylist() == [value]
