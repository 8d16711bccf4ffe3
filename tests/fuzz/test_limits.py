"""Small objects that claim to be huge are refused, or used, without the memory that they claim."""

from __future__ import annotations

import base64
import json
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap, BitMap64

import spark_lance
from spark_lance.cli.html_commands import html_page
from spark_lance.datasets.columns import Checkpoints
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.base.limits import check_arrow_file, check_arrow_stream, check_fixed_size, decoding
from spark_lance.file.v2_0.decoder import decompress as decompress_20
from spark_lance.file.v2_1.base.chunks import Ranges
from spark_lance.file.v2_1.encodings.general import decompress
from spark_lance.file.v2_1.layouts.constant import decode as decode_constant
from spark_lance.file.v2_1.layouts.page_bytes import PageBytes
from spark_lance.file.v2_1.read.page import RESOLVER
from spark_lance.index.base.files import IndexFileWriter
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.base.row_sets import row_numbers, treemap_numbers
from spark_lance.index.scalar.btree import BTree
from spark_lance.index.scalar.create import merge_segments, part_segment
from spark_lance.index.scalar.rtree import _NULLS_SCHEMA as NULLS_SCHEMA
from spark_lance.index.scalar.rtree import NULLS_FILE
from spark_lance.index.text.inverted import TextPart
from spark_lance.index.text.postings import FIXED_TAIL, unpack_list
from spark_lance.index.vector.create import merge_vector_segments
from spark_lance.index.vector.search import SegmentSearch
from spark_lance.memwal.staged import StagedPiece, append_staged
from spark_lance.proto import encodings21_pb2, table_pb2
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.columns.new_columns import Computation
from spark_lance.table.format.bitmaps import covered_fragments, covered_ids, parse_offsets
from spark_lance.table.format.manifest import pack_manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot
from spark_lance.table.versions.versions import load_latest
from tests.fuzz.targets import make_mem_wal
from tests.fuzz.worker import resident
from tests.index.test_damage import answer
from tests.index.test_damage import made as index_table
from tests.memwal.tables import SHARD

ZEROS = 1 << 29


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Fail a test that takes more than 1 GB of memory."""
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    yield
    assert resident("VmHWM") - before < 1 << 30


@pytest.fixture(scope="module")
def zeros() -> bytes:
    """A zstd frame of some kilobytes that stands for 512 MB."""
    frame: bytes = pa.Codec("zstd").compress(np.zeros(ZEROS, np.uint8), asbytes=True)
    assert len(frame) < 1 << 17
    return frame


def every_row() -> BitMap:
    rows = BitMap()
    rows.add_range(0, 1 << 32)
    rows.run_optimize()
    return rows


def made(path: Path) -> Path:
    dataset = spark_lance.write_dataset(pa.table({"a": range(100)}), path, max_rows_per_file=50)
    dataset.create_scalar_index("a", "BITMAP")
    return path


def replace_manifest(path: Path, change: Any) -> None:
    """Change the newest manifest and its index section in place."""
    dataset = spark_lance.dataset(path)
    manifest = load_latest(dataset.table)
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    message = table_pb2.Manifest.FromString(manifest.message.SerializeToString())
    change(message, section)
    data = pack_manifest(message, section.SerializeToString(), manifest.inline_transaction or b"")
    Path(manifest.path).unlink()
    Path(manifest.path).write_bytes(data)


def test_an_index_that_covers_every_fragment_there_can_be(tmp_path: Path) -> None:
    path = made(tmp_path / "t")

    def cover(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        section.indices[0].fragment_bitmap = every_row().serialize()

    replace_manifest(path, cover)
    dataset = spark_lance.dataset(path)
    assert dataset.describe_indices()[0].segments[0].fragment_ids == frozenset({0, 1})
    assert "a_idx" in html_page(dataset, "0")
    assert dataset.count_rows("a = 3") == 1
    dataset.optimize.compact_files()
    assert spark_lance.dataset(path).to_table().num_rows == 100
    entry = dataset.manifest.indices[0]
    assert len(covered_fragments(entry) or ()) == 1 << 32
    with pytest.raises(FormatError, match="covers 4294967296 fragments"):
        covered_ids(entry)


@pytest.mark.parametrize(
    ("field", "value"),
    [("created_at", 2**63), ("uuid", table_pb2.UUID(uuid=b"short"))],
)
def test_numbers_of_index_entries(tmp_path: Path, field: str, value: Any) -> None:
    path = made(tmp_path / "t")

    def change(message: table_pb2.Manifest, section: table_pb2.IndexSection) -> None:
        if isinstance(value, int):
            setattr(section.indices[0], field, value)
        else:
            getattr(section.indices[0], field).CopyFrom(value)

    replace_manifest(path, change)
    with pytest.raises(FormatError, match=r"\.manifest"):
        spark_lance.dataset(path).describe_indices()


@pytest.mark.parametrize(
    ("field", "value"), [("id", 2**32), ("id", 2**64 - 1), ("physical_rows", 2**63), ("physical_rows", 2**40)]
)
def test_numbers_of_fragments(tmp_path: Path, field: str, value: int) -> None:
    path = made(tmp_path / "t")
    replace_manifest(path, lambda message, _: setattr(message.fragments[0], field, value))
    with pytest.raises(FormatError, match=rf"{value} is not below .*\.manifest"):
        spark_lance.dataset(path)


def test_a_deletion_bitmap_of_every_row(tmp_path: Path) -> None:
    path = made(tmp_path / "t")
    spark_lance.dataset(path).delete("a = 3")
    file = next((path / "_deletions").iterdir())
    data = every_row().serialize()
    file.with_suffix(".bin").write_bytes(data)

    def change(message: table_pb2.Manifest, _: object) -> None:
        fragment = next(f for f in message.fragments if f.HasField("deletion_file"))
        fragment.physical_rows = 1 << 32
        fragment.deletion_file.file_type = table_pb2.DeletionFile.BITMAP
        fragment.deletion_file.num_deleted_rows = 0  # not recorded

    replace_manifest(path, change)
    with pytest.raises(UnsupportedFormatError, match="4294967296 rows of one fragment; a limit"):
        spark_lance.dataset(path).to_table()


def test_zstd_that_grows(zeros: bytes) -> None:
    zstd = encodings21_pb2.BufferCompression(scheme=encodings21_pb2.COMPRESSION_ZSTD)
    for stored in (zeros, struct.pack("<Q", ZEROS) + zeros):
        pieces = Ranges(np.frombuffer(stored, np.uint8), np.array([0]), np.array([len(stored)]))
        with pytest.raises(FormatError, match="claim to be"):
            decompress(zstd, pieces)
        with pytest.raises(FormatError, match="claim to be"):
            decompress_20(pa.py_buffer(stored), "zstd")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_arrow_buffers_that_grow(compression: str) -> None:
    few = pa.table({"a": pa.array([1, 2, 3] * 500, pa.uint32())})
    many = pa.table({"a": pa.array(np.zeros(ZEROS // 8, np.uint64))})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    for new, check in ((pa.ipc.new_file, check_arrow_file), (pa.ipc.new_stream, check_arrow_stream)):
        for table in (few, many):
            sink = pa.BufferOutputStream()
            with new(sink, table.schema, options=options) as writer:
                writer.write_table(table)
            data = sink.getvalue().to_pybytes()
            if table is few or compression == "lz4":  # which makes 255 bytes of one at most
                check(data)
            else:
                with pytest.raises(FormatError, match="claim to be"):
                    check(data)


def test_posting_lists_of_one_document() -> None:
    block = struct.pack("<fIB", 1.0, 0, 0) + b"\0"
    with pytest.raises(FormatError, match="128 times"):
        unpack_list([block] * 46_000, 46_000 * 128, FIXED_TAIL)


def test_sets_of_every_row(tmp_path: Path) -> None:
    dataset = spark_lance.dataset(made(tmp_path / "t"))
    resolver = RowResolver(Snapshot(dataset.table, dataset.manifest))
    stored = RowSet({0: every_row()}).to_bytes()
    with pytest.raises(FormatError, match="which has fewer"):
        row_numbers(stored, resolver.existing_rows)
    # Fragments that were never there hold nothing.
    absent = RowSet({7: every_row(), 1: BitMap([2])}).to_bytes()
    assert row_numbers(absent, resolver.existing_rows).tolist() == [2**32 + 2]
    assert not resolver.existing_rows(RowSet.from_bytes(stored), are_addresses=False)[0]
    treemap = BitMap64()
    treemap.add_range(0, 1 << 34)
    assert len(treemap_numbers(treemap, resolver.possible)) == 100


@pytest.mark.parametrize(
    "kind", ["fixed_size_list:float:2147483647", "fixed_size_list:fixed_size_list:float:65536:32768"]
)
def test_fixed_sizes_that_no_file_holds(tmp_path: Path, kind: str) -> None:
    path = made(tmp_path / "t")

    def change(message: table_pb2.Manifest, _: object) -> None:
        message.fields.add(id=9, name="huge", logical_type=kind, parent_id=-1, nullable=True)

    replace_manifest(path, change)
    dataset = spark_lance.dataset(path)
    assert dataset.to_table(["a"]).num_rows == 100
    with pytest.raises(FormatError, match="read fewer rows"):
        dataset.to_table()
    check_fixed_size(pa.list_(pa.float32(), 1536), 1 << 20)
    check_fixed_size(pa.list_(pa.uint8(), 50 << 20), 100, stored_bytes=5000 << 20)


def test_a_lack_of_memory_names_the_file() -> None:
    with pytest.raises(FormatError, match=r"more memory than there is.*\(x\.lance\)"), decoding("x.lance"):
        np.empty(1 << 50, np.uint8)


def test_offsets_of_updated_rows() -> None:
    with pytest.raises(FormatError, match="name row 4294967295 in a fragment of 100 rows"):
        parse_offsets(every_row().serialize(), 100, "updated rows")
    with pytest.raises(UnsupportedFormatError, match="a limit of this reader"):
        parse_offsets(every_row().serialize(), 1 << 32, "updated rows")
    for data in (b"", b"no bitmap"):
        with pytest.raises(FormatError, match="undecodable updated rows"):
            parse_offsets(data, 100, "updated rows")
    assert parse_offsets(BitMap([3, 99]).serialize(), 100, "updated rows").tolist() == [3, 99]


def test_segments_with_a_damaged_bitmap_are_not_merged(tmp_path: Path) -> None:
    dataset = spark_lance.dataset(made(tmp_path / "t"))
    entry = table_pb2.IndexMetadata.FromString(dataset.manifest.indices[0].SerializeToString())
    entry.fragment_bitmap = b"no bitmap"
    for merge in (merge_segments, merge_vector_segments):
        with pytest.raises(FormatError, match="undecodable fragment bitmap of index 'a_idx'"):
            merge(dataset.snapshot, [entry])


@pytest.mark.parametrize("field", ["deleted", "offsets"])
@pytest.mark.parametrize("data", [b"", b"no bitmap"])
def test_records_of_jobs_with_a_damaged_bitmap(tmp_path: Path, field: str, data: bytes) -> None:
    dataset = spark_lance.dataset(made(tmp_path / "t"))
    fragment = dataset.manifest.fragments[0]
    records = JobRecords(dataset.table, "job", "update a")
    records.add(
        FragmentResult.of(
            fragment, [], (0,), fragment.files[0], np.array([7], np.uint32), offsets=BitMap([1])
        )
    )
    assert len(records.load()) == 1
    (file,) = Path(records.folder).iterdir()
    record = json.loads(file.read_text())
    record[field] = base64.b64encode(data).decode()
    file.write_text(json.dumps(record))
    with pytest.raises(FormatError, match=r"undecodable .* \(.*\.json\)"):
        records.load()


def test_an_rtree_whose_rows_without_a_geometry_are_all_rows_there_can_be(tmp_path: Path) -> None:
    points = pa.table({"p": [None, *(f"POINT({x} {x})" for x in range(99))]})
    dataset = spark_lance.write_dataset(points, tmp_path / "t", max_rows_per_file=50)
    dataset.create_scalar_index("p", "RTREE")
    dataset = spark_lance.dataset(tmp_path / "t")
    entry = dataset.manifest.indices[0]
    segment = part_segment(dataset.snapshot, entry)
    with IndexFileWriter(
        dataset.store, segment.file(NULLS_FILE).path, NULLS_SCHEMA, dataset.manifest.file_version
    ) as file:
        file.write([pa.array([RowSet({0: every_row()}).to_bytes()], pa.binary())])
        file.finish({})
    entry.ClearField("files")
    with pytest.raises(FormatError, match="which has fewer"):
        merge_segments(dataset.snapshot, [entry])


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("BTREE", (BTree, "find")),
        ("IVF_FLAT", (SegmentSearch, "_search_partitions")),
        ("INVERTED", (TextPart, "read_postings")),
    ],
)
def test_a_lack_of_memory_in_a_search_names_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, place: tuple[type, str]
) -> None:
    path = index_table(tmp_path / "t", kind, "ours")
    assert answer(path, kind)
    monkeypatch.setattr(*place, lambda *_: np.empty(1 << 50, np.uint8))
    with pytest.raises(FormatError, match=r"more memory than there is.*\(.*_indices/"):
        answer(path, kind)


def zstd_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def test_staged_rows_that_grow_or_are_damaged(tmp_path: Path) -> None:
    make_mem_wal(tmp_path / "t")
    snapshot = spark_lance.dataset(tmp_path / "t").snapshot
    file = tmp_path / "t" / "_wal_staging" / "job" / "a.arrow"
    file.parent.mkdir(parents=True)
    for data, message in (
        (zstd_stream(pa.table({"id": np.zeros(ZEROS // 8, np.int64)})), "claim to be"),
        (b"no stream", "damaged"),
        (zstd_stream(pa.table({"id": range(1000)}))[:-500], "damaged"),
    ):
        file.write_bytes(data)
        with pytest.raises(FormatError, match=rf"{message}.*a\.arrow"):
            append_staged(snapshot, SHARD, [StagedPiece(b"", str(file), 1000)])


def test_checkpoints_that_grow_or_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "results.sqlite"
    batch = pa.record_batch({"a": [1], "_rowaddr": pa.array([0], pa.uint64())})
    source = Computation(pa.schema([("b", pa.int64())]), ("a",), lambda part: part, any_order=False)
    compute = Checkpoints(path).wrap(source).compute
    first = compute(batch)
    assert compute(batch) == first
    for data in (
        zstd_stream(pa.table({"b": np.zeros(ZEROS // 8, np.int64)})),
        zstd_stream(pa.table({"b": pa.array([], pa.int64())}))[:-8],
        b"no stream",
        "text",
    ):
        with sqlite3.connect(path) as database:
            database.execute("update results set output = ?", (data,))
        with pytest.raises(FormatError, match=r"results\.sqlite"):
            compute(batch)


def test_a_constant_page_says_which_limit_it_meets() -> None:
    def decode_values(count: int) -> Any:
        return decode_constant(layout, PageBytes([], count, pa.int64()), RESOLVER).values

    layout = encodings21_pb2.ConstantLayout(inline_value=bytes(8))
    layout.layers.append(encodings21_pb2.REPDEF_ALL_VALID_ITEM)
    assert decode_values(1_000_000).count == 1_000_000
    with pytest.raises(FormatError, match=r"a limit of this reader is 1073741824 bytes: read fewer rows"):
        decode_values(1 << 28)


def test_an_index_on_the_last_fragment_there_can_be(tmp_path: Path) -> None:
    dataset = spark_lance.dataset(made(tmp_path / "t"))
    resolver = RowResolver(Snapshot(dataset.table, dataset.manifest))
    with pytest.raises(UnsupportedFormatError, match="covers fragment 4294967295; a limit of this reader"):
        resolver.addresses(np.array([3], np.uint64), BitMap([0, (1 << 32) - 1]))
    addresses, counts = resolver.addresses(np.array([3], np.uint64), BitMap([0]))
    assert addresses.tolist() == [3]
    assert counts.all()
