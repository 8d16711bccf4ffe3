"""Row-id and row-version sequences, by hand and against pylance's scans."""

from __future__ import annotations

import random
import struct
import tempfile
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.io.store import open_store
from spark_lance.proto import rowids_pb2, table_pb2
from spark_lance.table.format.deletion import keep_mask, read_deletions
from spark_lance.table.format.rowids import (
    CREATED_AT_FIELD,
    LINEAGE_FIELDS,
    ROW_ID_FIELD,
    UPDATED_AT_FIELD,
    append_row_ids,
    count_row_ids,
    decode_row_ids,
    decode_row_versions,
    encode_row_versions,
    fragment_row_ids,
    locate_among,
    locate_row_ids,
    pack_row_ids,
    pack_row_versions,
    row_id_bounds,
    spilled_fields,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.versions import list_versions, load_version

Segment = rowids_pb2.U64Segment
Array = rowids_pb2.EncodedU64Array


def sequence(*segments: rowids_pb2.U64Segment) -> bytes:
    return rowids_pb2.RowIdSequence(segments=segments).SerializeToString()


def u16(base: int, *offsets: int) -> rowids_pb2.EncodedU64Array:
    return Array(u16_array=Array.U16Array(base=base, offsets=struct.pack(f"<{len(offsets)}H", *offsets)))


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        ("0a040a021005", [0, 1, 2, 3, 4]),
        ("0a060a040805100a", [5, 6, 7, 8, 9]),
        ("0a091a0708011004" + "1a0105" + "0a060a0408071008", [1, 3, 7]),
        ("0a0a1a080804100e1a020102", [4, 13]),
        ("0a87011a84010801" + "10e807" + "1a7d" + "55" * 125, list(range(1, 1000, 2))),
        ("", []),
    ],
)
def test_sequences_that_pylance_wrote(data: str, ids: list[int]) -> None:
    raw = bytes.fromhex(data)
    assert decode_row_ids(raw, len(ids)).tolist() == ids


def test_the_other_encodings() -> None:
    u32 = Array(u32_array=Array.U32Array(base=2**40, offsets=struct.pack("<3I", 5, 0, 2**32 - 1)))
    u64 = Array(u64_array=Array.U64Array(values=struct.pack("<2Q", 2**64 - 1, 0)))
    holed = Segment(range_with_holes=Segment.RangeWithHoles(start=1001, end=1007, holes=u16(1002, 3, 0)))
    data = sequence(
        holed, Segment(sorted_array=u16(2000, 0, 100, 200)), Segment(array=u32), Segment(array=u64)
    )
    expected = [1001, 1003, 1004, 1006, 2000, 2100, 2200, 2**40 + 5, 2**40, 2**40 + 2**32 - 1, 2**64 - 1, 0]
    assert decode_row_ids(data, 12).tolist() == expected


@given(st.integers(0, 2**63), st.integers(0, 1000))
def test_ranges_round_trip(start: int, rows: int) -> None:
    data = append_row_ids(b"", start, rows)
    assert decode_row_ids(data, rows).tolist() == list(range(start, start + rows))


def test_a_sequence_grows_by_a_range() -> None:
    data = append_row_ids(bytes.fromhex("0a091a07080110041a0105"), 70, 2)
    assert decode_row_ids(data, 4).tolist() == [1, 3, 70, 71]


def test_encoded_as_pylance_does() -> None:
    assert append_row_ids(b"", 0, 5).hex() == "0a040a021005"
    assert append_row_ids(b"", 5, 5).hex() == "0a060a040805100a"
    assert encode_row_versions(1, 5).hex() == "0a080a040a0210051001"


@pytest.mark.parametrize(
    "data",
    [
        sequence(Segment(range=Segment.Range(start=0, end=2**63))),
        sequence(Segment(range=Segment.Range(start=5, end=4))),
        sequence(Segment(range=Segment.Range(start=0, end=3))),
        sequence(Segment(range=Segment.Range(start=0, end=5))),
        sequence(Segment(range_with_bitmap=Segment.RangeWithBitmap(start=0, end=2**60, bitmap=b"\xff"))),
        sequence(Segment(range_with_bitmap=Segment.RangeWithBitmap(start=0, end=4, bitmap=b"\xff\xff"))),
        sequence(Segment(range_with_holes=Segment.RangeWithHoles(start=0, end=5, holes=u16(5, 0)))),
        sequence(Segment(range_with_holes=Segment.RangeWithHoles(start=0, end=2**62, holes=u16(5, 0)))),
        sequence(Segment(range_with_holes=Segment.RangeWithHoles(start=0, end=6, holes=u16(0, 1, 6)))),
        sequence(Segment(sorted_array=u16(0, 3, 2, 1, 0))),
        sequence(Segment(sorted_array=u16(0, 1, 2, 2, 3))),
        sequence(Segment(array=u16(2**64 - 1, 0, 1, 2, 3))),
        sequence(Segment(array=Array(u16_array=Array.U16Array(offsets=b"1234567")))),
        sequence(Segment()),
        b"\x0a\x7f",
        b"\x0b",
    ],
)
def test_damage_is_found_before_memory_is_taken(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_row_ids(data, 4)


def test_version_runs_count_values_of_any_span() -> None:
    bitmap = Segment(range_with_bitmap=Segment.RangeWithBitmap(start=0, end=5, bitmap=b"\x1b"))
    plain = Segment(range=Segment.Range(start=9, end=11))
    runs = [
        rowids_pb2.RowDatasetVersionRun(span=bitmap, version=1),
        rowids_pb2.RowDatasetVersionRun(span=plain, version=7),
    ]
    data = rowids_pb2.RowDatasetVersionSequence(runs=runs).SerializeToString()
    assert decode_row_versions(data, 6).tolist() == [1, 1, 1, 1, 7, 7]
    for rows in (5, 7):
        with pytest.raises(FormatError):
            decode_row_versions(data, rows)
    assert decode_row_versions(encode_row_versions(4, 3), 3).tolist() == [4, 4, 4]
    assert decode_row_versions(b"", 0).tolist() == []


def test_fragments_that_keep_their_ids_elsewhere() -> None:
    fragment = table_pb2.DataFragment(id=4, physical_rows=3)
    with pytest.raises(FormatError, match="fragment 4"):
        fragment_row_ids(fragment)
    fragment.column_row_ids.SetInParent()
    with pytest.raises(UnsupportedFormatError, match="fragment 4"):
        fragment_row_ids(fragment)


def test_every_version_scans_as_pylance_scans_it(tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.table({"a": range(2000)})
    dataset = lance.write_dataset(rows, path, enable_stable_row_ids=True, max_rows_per_file=700)
    dataset.update({"a": "a"}, where="a in (1, 3)")
    dataset.delete("a % 50 = 7")
    dataset.update({"a": "a + 0"}, where="a % 2 = 1 and a < 400")
    dataset = lance.write_dataset(rows.slice(0, 100), path, mode="append")
    dataset.add_columns({"b": "a + 1"})
    dataset.delete("a > 100 and a % 100 <> 0 and a < 600")
    dataset.optimize.compact_files(target_rows_per_fragment=5000)
    store, root = open_store(path)
    table = TableRef(store, root)
    kinds: set[str] = set()
    columns = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"]
    for file in list_versions(table):
        ids, created, updated = [], [], []
        for fragment in load_version(table, file.version).fragments:
            physical = fragment.physical_rows
            keep = keep_mask(read_deletions(TableRef(store, root), fragment), 0, physical)
            ids.append(fragment_row_ids(fragment)[keep])
            created.append(decode_row_versions(fragment.inline_created_at_versions, physical)[keep])
            updated.append(decode_row_versions(fragment.inline_last_updated_at_versions, physical)[keep])
            parsed = rowids_pb2.RowIdSequence.FromString(fragment.inline_row_ids)
            kinds.update(str(segment.WhichOneof("segment")) for segment in parsed.segments)
        theirs = lance.dataset(str(path), version=file.version).to_table(columns=columns)
        for name, ours in zip(columns, (ids, created, updated), strict=True):
            assert np.array_equal(np.concatenate(ours), theirs[name].to_numpy()), (file.version, name)
    assert {"range", "range_with_holes", "range_with_bitmap"} <= kinds


ID_RUNS = st.lists(
    st.builds(
        lambda start, step, count: list(range(start, start + step * count, step)),
        st.one_of(st.integers(0, 2**17), st.integers(2**32, 2**34), st.just(2**62)),
        st.sampled_from([1, 1, 2, 7, 20, 70000]),
        st.integers(1, 90),
    ),
    max_size=4,
)


@given(runs=ID_RUNS, dropped=st.sets(st.integers(0, 99)), shuffled=st.randoms(use_true_random=False))
def test_any_ids_round_trip(runs: list[list[int]], dropped: set[int], shuffled: random.Random) -> None:
    ids = [value for run in runs for place, value in enumerate(run) if place not in dropped]
    if shuffled.random() < 0.3:
        shuffled.shuffle(ids)
    packed = pack_row_ids(np.array(ids, np.uint64))
    assert decode_row_ids(packed, len(ids)).tolist() == ids
    assert count_row_ids(packed, len(ids)) == len(ids)


@pytest.mark.parametrize(
    ("data", "ids"),
    [
        ("0a040a021005", list(range(5))),
        ("0a060a040805100a", list(range(5, 10))),
        ("0a091a07080110081a0145", [1, 3, 7]),
        ("0a091a07080110081a0169", [1, 4, 6, 7]),
    ],
)
def test_packed_as_pylance_does(data: str, ids: list[int]) -> None:
    assert pack_row_ids(np.array(ids, np.uint64)).hex() == data


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 50)), max_size=6))
def test_any_versions_round_trip(runs: list[tuple[int, int]]) -> None:
    versions = np.repeat(np.array([v for v, _ in runs], np.uint64), [count for _, count in runs])
    packed = pack_row_versions(versions.astype(np.uint64))
    np.testing.assert_array_equal(decode_row_versions(packed, len(versions)), versions)


@settings(max_examples=25)
@given(runs=ID_RUNS, versions=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 60)), max_size=9))
def test_pylance_reads_what_is_packed(runs: list[list[int]], versions: list[tuple[int, int]]) -> None:
    ids = np.array(list(dict.fromkeys([3, *(value for run in runs for value in run)])), np.uint64)
    rows = len(ids)
    numbers = [version for version, count in [*versions, (5, rows)] for _ in range(count)]
    created = np.array(numbers[:rows], np.uint64)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        lance.write_dataset(pa.table({"a": range(rows)}), path, enable_stable_row_ids=True)
        (file,) = (path / "_versions").glob("*.manifest")
        data = file.read_bytes()
        (position,) = struct.unpack_from("<q", data, len(data) - 16)
        message = table_pb2.Manifest.FromString(data[position + 4 : -16])
        message.fragments[0].inline_row_ids = pack_row_ids(ids)
        message.fragments[0].inline_created_at_versions = pack_row_versions(created)
        message.next_row_id = 2**63
        body = message.SerializeToString()
        file.write_bytes(data[:position] + struct.pack("<I", len(body)) + body + data[-16:])
        result = lance.dataset(str(path)).to_table(columns=["a", "_rowid", "_row_created_at_version"])
        np.testing.assert_array_equal(result["_rowid"].to_numpy(), ids)
        np.testing.assert_array_equal(result["_row_created_at_version"].to_numpy(), created)
        place = rows // 2
        assert lance.dataset(str(path))._take_rows([int(ids[place])])["a"].to_pylist() == [place]


@st.composite
def segments(draw: st.DrawFn) -> tuple[rowids_pb2.U64Segment, list[int]]:
    """Return a segment of any kind around low ids, and its ids."""
    start, span = draw(st.integers(0, 40)), draw(st.integers(0, 20))
    inside = sorted(draw(st.sets(st.integers(start, start + span - 1)))) if span else []
    remaining = [number for number in range(start, start + span) if number not in inside]
    kind = draw(st.sampled_from(["range", "holes", "bitmap", "sorted", "array"]))
    if kind == "range":
        return Segment(range=Segment.Range(start=start, end=start + span)), list(range(start, start + span))
    if kind == "holes":
        holes = u16(0, *inside) if inside else Array()
        return Segment(range_with_holes={"start": start, "end": start + span, "holes": holes}), remaining
    if kind == "bitmap":
        flags = np.array([number in inside for number in range(start, start + span)], np.bool_)
        bitmap = np.packbits(flags, bitorder="little").tobytes()
        return Segment(range_with_bitmap={"start": start, "end": start + span, "bitmap": bitmap}), inside
    if kind == "sorted":
        return Segment(sorted_array=u16(0, *inside)), inside
    shuffled = draw(st.permutations(inside))
    return Segment(array=u16(0, *shuffled)), list(shuffled)


@given(st.lists(segments(), max_size=4), st.sets(st.integers(0, 70)))
@settings(max_examples=300)
def test_ids_are_found_where_they_are(parts: list[tuple[Any, list[int]]], wanted: set[int]) -> None:
    data = sequence(*(segment for segment, _ in parts))
    ids = [number for _, numbers in parts for number in numbers]
    assert decode_row_ids(data, len(ids)).tolist() == ids
    assert count_row_ids(data, len(ids)) == len(ids)
    request = sorted(wanted)
    positions, places = locate_row_ids(data, len(ids), np.array(request, np.uint64))
    hits = [(position, request.index(number)) for position, number in enumerate(ids) if number in wanted]
    assert list(zip(positions.tolist(), places.tolist(), strict=True)) == hits
    if ids:
        assert row_id_bounds(data, len(ids)) == (min(ids), max(ids))
        with pytest.raises(FormatError, match="at most"):
            row_id_bounds(data, len(ids) - 1)
        with pytest.raises(FormatError, match="at most"):
            locate_row_ids(data, len(ids) - 1, np.array(request, np.uint64))
    else:
        with pytest.raises(FormatError, match="no ids"):
            row_id_bounds(data, 5)
    with pytest.raises(FormatError, match=f"{len(ids)} ids for {len(ids) + 1} rows"):
        locate_row_ids(data, len(ids) + 1, np.array(request, np.uint64))


def test_the_numbers_of_fields_that_hold_sequences() -> None:
    assert LINEAGE_FIELDS == (ROW_ID_FIELD, CREATED_AT_FIELD, UPDATED_AT_FIELD) == (-3, -4, -5)


def test_segments_without_ids_are_passed_over() -> None:
    empty, full = Segment(range=Segment.Range(start=5, end=5)), Segment(range=Segment.Range(start=0, end=3))
    positions, places = locate_row_ids(sequence(empty, full), 3, np.array([1, 2, 9], np.uint64))
    assert (positions.tolist(), places.tolist()) == ([1, 2], [0, 1])
    result = locate_among(np.array([3, 4]), np.array([], np.int64))
    assert [part.tolist() for part in result] == [[], []]


def test_places_count_the_ids_of_all_segments_before() -> None:
    data = sequence(
        Segment(range=Segment.Range(start=10, end=15)),
        Segment(array=u16(0, 3, 1)),
        Segment(range=Segment.Range(start=20, end=25)),
        Segment(sorted_array=u16(0, 6, 90)),
    )
    positions, places = locate_row_ids(data, 14, np.array([1, 6, 12, 22, 70], np.uint64))
    assert (positions.tolist(), places.tolist()) == ([2, 6, 9, 12], [2, 0, 3, 1])


def test_a_segment_too_many_is_told_before_it_is_read() -> None:
    first = Segment(range=Segment.Range(start=0, end=4))
    more = "gives 4 values where at most 0 rows are left"
    for second in (Segment(range=Segment.Range(start=4, end=8)), Segment(array=u16(4, 0, 1, 2, 3))):
        for expected in ([5], [90]):
            with pytest.raises(FormatError, match=more):
                locate_row_ids(sequence(first, second), 4, np.array(expected, np.uint64))
        with pytest.raises(FormatError, match=more):
            count_row_ids(sequence(first, second), 4)
        with pytest.raises(FormatError, match=more):
            row_id_bounds(sequence(first, second), 4)


def test_the_first_row_of_a_table_has_bounds() -> None:
    assert row_id_bounds(sequence(Segment(range=Segment.Range(start=0, end=1))), 1) == (0, 0)


def test_damage_is_not_taken_for_a_sequence_without_ids() -> None:
    for data in (b"\x0a\x7f", b"\x0b"):
        with pytest.raises(FormatError, match="undecodable"):
            decode_row_ids(data, 0)
        with pytest.raises(FormatError, match="undecodable"):
            decode_row_versions(data, 0)
        with pytest.raises(FormatError, match="undecodable"):
            append_row_ids(data, 0, 1)


def test_fragments_tell_what_their_data_files_hold() -> None:
    fragment = table_pb2.DataFragment(id=4, physical_rows=3)
    assert spilled_fields(fragment) == set()
    fragment.column_row_ids.SetInParent()
    assert spilled_fields(fragment) == {ROW_ID_FIELD}
    fragment.column_last_updated_at_versions.SetInParent()
    assert spilled_fields(fragment) == {ROW_ID_FIELD, UPDATED_AT_FIELD}


def test_ranges_are_not_written_out() -> None:
    rows = 2**62
    data = sequence(Segment(range=Segment.Range(start=7, end=7 + rows)))
    assert row_id_bounds(data, rows) == (7, 6 + rows)
    assert count_row_ids(data, rows) == rows
    positions, places = locate_row_ids(data, rows, np.array([0, rows], np.uint64))
    assert (positions.tolist(), places.tolist()) == ([rows - 7], [1])


def test_the_highest_ids() -> None:
    most = 2**64 - 1
    offset = Array(u16_array=Array.U16Array(base=most - 9, offsets=struct.pack("<H", 9)))
    assert decode_row_ids(sequence(Segment(array=offset)), 1).tolist() == [most]
    data = sequence(Segment(range=Segment.Range(start=most - 2, end=most)))
    assert row_id_bounds(data, 2) == (most - 2, most - 1)
    positions, places = locate_row_ids(data, 2, np.array([0, most - 1], np.uint64))
    assert (positions.tolist(), places.tolist()) == ([1], [1])
    u64 = Array(u64_array=Array.U64Array(values=struct.pack("<2Q", 7, most - 1)))
    positions, places = locate_row_ids(sequence(Segment(array=u64)), 2, np.array([7, most - 1], np.uint64))
    assert (positions.tolist(), places.tolist()) == ([0, 1], [0, 1])


@pytest.mark.parametrize(
    ("ids", "arm"),
    [
        ([], "range"),
        ([5], "range"),
        ([5, 6, 7], "range"),
        ([7, 6], "array"),
        ([5, 5], "array"),
        # As many bytes in two forms: the array comes first, then the holes.
        ([0, *range(2, 64)], "range_with_holes"),
        (list(range(0, 400, 2)), "range_with_bitmap"),
        ([0, 1000], "sorted_array"),
        ([0, 2**40], "sorted_array"),
        ([*range(10), 11], "range_with_bitmap"),
        ([0, 2], "range_with_bitmap"),
        # One hole takes four bytes, a bitmap of 23 bits three, and one of 31 bits four.
        ([0, *range(2, 23)], "range_with_bitmap"),
        ([0, *range(2, 31)], "range_with_holes"),
        # Two ids take four bytes.
        ([0, 31], "sorted_array"),
        ([0, 23], "range_with_bitmap"),
    ],
)
def test_the_smallest_segment_is_taken(ids: list[int], arm: str) -> None:
    data = pack_row_ids(np.array(ids, np.uint64))
    (segment,) = rowids_pb2.RowIdSequence.FromString(data).segments
    assert segment.WhichOneof("segment") == arm
    assert decode_row_ids(data, len(ids)).tolist() == ids


@pytest.mark.parametrize(
    ("span", "arm"),
    [(0xFFFF, "u16_array"), (0x10000, "u32_array"), (2**32 - 1, "u32_array"), (2**32, "u64_array")],
)
def test_the_narrowest_array_is_taken(span: int, arm: str) -> None:
    ids = [9 + span, 9]
    data = pack_row_ids(np.array(ids, np.uint64))
    (segment,) = rowids_pb2.RowIdSequence.FromString(data).segments
    assert segment.array.WhichOneof("array") == arm
    assert decode_row_ids(data, 2).tolist() == ids


def test_long_runs_are_segments_of_their_own_and_short_ones_are_not() -> None:
    def kinds(*runs: list[int]) -> list[str | None]:
        data = pack_row_ids(np.array([number for run in runs for number in run], np.uint64))
        return [
            segment.WhichOneof("segment") for segment in rowids_pb2.RowIdSequence.FromString(data).segments
        ]

    long = list(range(100, 164))
    assert kinds(long, list(range(64))) == ["range", "range"]
    # One break for every 32 ids is the most.
    assert kinds(list(range(16, 32)), list(range(16))) == ["range", "range"]
    assert kinds(list(range(16, 31)), list(range(16))) == ["array"]


def test_versions_have_a_run_each_time_they_change() -> None:
    data = pack_row_versions(np.array([3, 3, 1, 1, 1, 3], np.uint64))
    runs = rowids_pb2.RowDatasetVersionSequence.FromString(data).runs
    assert [(run.version, run.span.range.start, run.span.range.end) for run in runs] == [
        (3, 0, 2),
        (1, 2, 5),
        (3, 5, 6),
    ]
    assert (
        rowids_pb2.RowDatasetVersionSequence.FromString(pack_row_versions(np.empty(0, np.uint64))).runs == []
    )
