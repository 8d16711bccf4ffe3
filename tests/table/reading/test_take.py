"""Rows by position, id and address, against pylance; ids in sequences of all kinds."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance.datasets.dataset as ours
from spark_lance.errors import FormatError, OptionError
from spark_lance.io.store import open_store
from spark_lance.table.format.rowids import append_row_ids, decode_row_ids, locate_row_ids, pack_row_ids
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.scan import Scan
from spark_lance.table.reading.take import resolve_row_ids
from spark_lance.table.versions.versions import load_latest
from tests.table.histories import Step, play, rows, steps

COLUMNS = ["b", "_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version"]


@settings(max_examples=12, deadline=None)
@given(changes=steps(), stable=st.booleans(), data=st.data())
def test_rows_by_id_position_and_address(changes: list[Step], stable: bool, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        play(path, changes, stable=stable)
        theirs, mine = lance.dataset(str(path)), ours.dataset(path)
        live = theirs.to_table(columns=["_rowid"])["_rowid"].to_pylist()
        ever = [0, 3, 11, 29] if stable else []
        ids = data.draw(st.lists(st.sampled_from(sorted({*live, *ever})), max_size=20)) if live else []
        if set(ids) & set(live):  # pylance loses the offsets of no rows, and marks others as not null
            result = mine.take_rows(ids, COLUMNS)
            assert result.equals(theirs._take_rows(ids, columns=COLUMNS).cast(result.schema))
        assert mine.take_rows(np.array(ids, np.uint64)).equals(theirs._take_rows(ids))
        positions = data.draw(st.lists(st.integers(0, len(live) - 1), max_size=20)) if live else []
        if positions:
            result = mine.take(positions, COLUMNS)
            assert result.equals(theirs.take(positions, columns=COLUMNS).cast(result.schema))
        for fragment in theirs.get_fragments()[:2]:
            alone = mine.get_fragment(fragment.fragment_id)
            assert alone is not None
            ends = sorted({0, fragment.count_rows() - 1})
            assert alone.take(ends, ["b", "a"]).equals(fragment.take(ends, columns=["b", "a"]))


def test_ids_without_a_row_are_passed_over(tmp_path: Path) -> None:
    for stable in (False, True):
        path = tmp_path / str(stable)
        lance.write_dataset(rows(0, 9), path, enable_stable_row_ids=stable, max_rows_per_file=4)
        lance.dataset(str(path)).delete("a in (1, 5)")
        theirs, mine = lance.dataset(str(path)), ours.dataset(path)
        for ids in ([3, 1, 2], [3, 99 << 32, 2], [1], [3, 3, 2, 3], [2**64 - 1, 0]):
            assert mine.take_rows(ids, ["a"]).equals(theirs._take_rows(ids, columns=["a"]))
        assert mine.take_rows([], ["a"]).equals(theirs._take_rows([], columns=["a"]))
    beyond = [3, 1000, 2]
    assert ours.dataset(tmp_path / "True").take_rows(beyond).num_rows == 2
    with pytest.raises(OSError, match="fragment with 4"):
        lance.dataset(str(tmp_path / "False"))._take_rows(beyond)
    with pytest.raises(IndexError, match="row 1000 of fragment 0"):
        ours.dataset(tmp_path / "False").take_rows(beyond)


def test_numbers_that_are_no_row_numbers(tmp_path: Path) -> None:
    table = ours.write_dataset(rows(0, 9), tmp_path / "t")
    with pytest.raises(OptionError, match=r"a list of integers, not \[1.5\]"):
        table.take([1.5])
    for numbers in (pa.array([1, None]), np.array([1.0]), ["1"]):
        with pytest.raises(OptionError, match="a list of integers, not"):
            table.take_rows(numbers)
    for numbers in ([-1], np.array([-1]), [2**64]):
        with pytest.raises(OptionError, match="must be integers of type uint64"):
            table.take_rows(numbers)
    with pytest.raises(IndexError, match=r"no row at position \S+: row positions must be within 0 and 8"):
        table.take([-1])
    assert table.take(pa.array([3, 1])).equals(rows(0, 9).take([3, 1]))


def test_an_updated_row_is_found_where_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(0, 12), path, enable_stable_row_ids=True)
    lance.dataset(str(path)).update({"b": "'new'"}, where="a in (3, 4)")
    result = ours.dataset(path).take_rows([4, 0, 3], ["a", "b", "_rowaddr"])
    assert result["a"].to_pylist() == [4, 0, 3]
    assert result["b"].to_pylist() == ["new", "", "new"]
    assert [address >> 32 for address in result["_rowaddr"].to_pylist()] == [1, 0, 1]
    lance.dataset(str(path)).delete("a = 3")
    table = TableRef(*open_store(path))
    scan = Scan.plan(table, load_latest(table), [])
    addresses, known = resolve_row_ids(scan, [3, 4, 11, 12])
    assert known.tolist() == [False, True, True, False]
    assert addresses[1:3].tolist() == [(1 << 32) + 1, 11]


@given(
    parts=st.lists(
        st.lists(st.integers(0, 300), min_size=1, max_size=40, unique=True).flatmap(
            lambda ids: st.sampled_from([ids, sorted(ids), list(range(ids[0], ids[0] + len(ids)))])
        ),
        max_size=4,
    ),
    wanted=st.sets(st.integers(0, 320)),
)
def test_located_ids_are_those_of_the_decoded_sequence(parts: list[list[int]], wanted: set[int]) -> None:
    data = b"".join(pack_row_ids(np.array(part, np.uint64)) for part in parts)  # messages merge by joining
    ids = [value for part in parts for value in part]
    order = np.array(sorted(wanted), np.uint64)
    assert decode_row_ids(data, len(ids)).tolist() == ids
    offsets, places = locate_row_ids(data, len(ids), order)
    result = sorted(zip(offsets.tolist(), order[places].tolist(), strict=True))
    assert result == [(offset, value) for offset, value in enumerate(ids) if value in wanted]


@pytest.mark.parametrize("rows", [4, 6])
def test_a_sequence_that_does_not_fit_is_found_out(rows: int) -> None:
    for expected in ([], [3], [9]):
        with pytest.raises(FormatError):
            locate_row_ids(append_row_ids(b"", 0, 5), rows, np.array(expected, np.uint64))


def test_blobs_by_id_and_address(tmp_path: Path) -> None:
    field = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table(
        {"k": range(8), "v": pa.array([b"x" * i for i in range(8)], pa.large_binary())},
        pa.schema([pa.field("k", pa.int64()), field]),
    )
    path = tmp_path / "t"
    lance.write_dataset(data, path, enable_stable_row_ids=True, max_rows_per_file=3)
    lance.dataset(str(path)).delete("k = 4")
    mine, theirs = ours.dataset(path), lance.dataset(str(path))
    choices: list[dict[str, Any]] = [{"ids": [7, 2]}, {"addresses": [2 << 32, 1]}, {"indices": [4, 0]}]
    for choice in choices:
        expected = [blob and blob.read() for blob in theirs.take_blobs("v", **choice)]
        assert len(expected) == 2
        assert [blob and blob.read() for blob in mine.take_blobs("v", **choice)] == expected
    with pytest.raises(ValueError, match="row ID 4"):
        theirs.take_blobs("v", ids=[7, 2, 4])
    with pytest.raises(IndexError, match="only 2 of 3"):
        mine.take_blobs("v", ids=[7, 2, 4])
    with pytest.raises(OptionError, match="one of"):
        mine.take_blobs("v", [1], ids=[1])
    with pytest.raises(OptionError, match="one of"):
        mine.take_blobs("v")
