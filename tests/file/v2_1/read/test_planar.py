"""Reading files of version 2.3 that pylance wrote: pages of dense and of sparse structure."""

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

import spark_lance
from spark_lance.errors import FormatError, LanceError, UnsupportedFormatError
from spark_lance.file.base.pages import RowReader
from spark_lance.file.reader import FileReader, encoding_names
from spark_lance.file.v2_1.base.blocks import FixedWidth
from spark_lance.file.v2_1.base.chunks import Chunks, Ranges, exclusive_sum
from spark_lance.file.v2_1.layouts.sparse import planar_layout
from spark_lance.file.v2_1.read.page import RESOLVER
from spark_lance.io.memory import MemoryStore
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.pylance_file import one_column, open_file, pylance_file
from tests.file.v2_1.test_corruption import LIMIT, damaged
from tests.strategies import canonical, tables

SPARSE = {"lance-encoding:structural-encoding": "sparse"}
WORDS = ["", "a", "bb", "a longer word than the others", "ä€"]


def forced(table: pa.Table) -> pa.Table:
    """Ask pylance for sparse structure in every column."""
    schema = pa.schema([field.with_metadata(SPARSE) for field in table.schema])
    return pa.Table.from_arrays(table.columns, schema=schema)


def check(table: pa.Table, root: Path) -> FileReader | None:
    """Compare a table as we read it with what pylance reads; None if pylance cannot write it."""
    try:
        file = pylance_file(table, "2.3", root)
        expected = lance.dataset(str(root)).to_table()
    except BaseException as error:  # pylance panics on some types: those are not files to read
        if isinstance(error, KeyboardInterrupt):
            raise
        return None
    reader = open_file(file)
    for name in table.column_names:
        field = reader.schema.field(name)
        column = reader.read([field])[name]
        column.validate(full=True)
        assert canonical(column) == canonical(expected[name])
        rows = np.unique(np.random.default_rng(len(column)).integers(0, len(column), 5))
        rows_of = reader.open_field(field)
        assert isinstance(rows_of, RowReader)
        taken = rows_of.take(rows)
        assert canonical(taken) == canonical(expected[name].take(pa.array(rows)))
    return reader


def structures(reader: FileReader) -> set[str]:
    """Return "dense", "sparse" and the kinds of values of all pages of the first column."""
    results = set()
    for page in reader.column(0).pages:
        layout = planar_layout(page)
        results |= {layout.structure.WhichOneof("codec"), layout.values.WhichOneof("codec")}
    return results


def test_lists_in_lists_of_fixed_sizes(tmp_path: Path) -> None:
    """Their items are null or not, whatever the list is; all of them in some pages."""
    kind = pa.list_(pa.list_(pa.bool_(), 2), 3)
    rows = [[[None, None], None, [True, None]], None, [None, [False, True], None]] * 5
    bare = [[[None, None], None, [None, None]], None, [None, [None, None], None]] * 5
    for number, values in enumerate((rows, bare, [None, *rows], [[None] * 3])):
        assert check(forced(pa.table({"c": pa.array(values, kind)})), tmp_path / str(number)) is not None


def test_values_inside_nulls_further_out_are_not_stored(tmp_path: Path) -> None:
    """A struct that is not null, in a list that is null, has fields that must not be null, and no values."""
    inner = pa.struct([pa.field("f0", pa.list_(pa.int32(), 70), False), pa.field("f1", pa.bool_(), False)])
    lists = pa.struct([("f0", pa.list_(inner, 1))])
    item = {"f0": list(range(70)), "f1": False}
    rows = [None, {"f0": [item]}, {"f0": None}, {"f0": [None]}]
    assert check(forced(one_column(pa.array(rows, lists))), tmp_path / "numbers") is not None
    both = pa.list_(pa.struct([("f0", pa.binary()), ("f1", pa.binary())]), 3)
    values = pa.array([None if n % 4 == 1 else b"x" * 300 for n in range(39)])
    items = pa.StructArray.from_arrays(
        [values, values], ["f0", "f1"], mask=pa.array([n % 5 == 0 for n in range(39)])
    )
    nulls = pa.array([n % 3 == 0 for n in range(13)])
    array = pa.FixedSizeListArray.from_arrays(items, type=both, mask=nulls)
    assert check(forced(one_column(array)), tmp_path / "bytes") is not None


@settings(max_examples=60)
@given(table=tables("2.2"), sparse=st.booleans())
def test_random_tables(table: pa.Table, sparse: bool) -> None:
    if table.num_rows:
        with tempfile.TemporaryDirectory() as name:
            check(forced(table) if sparse else table, Path(name))


def _value(rng: np.random.Generator, kind: pa.DataType, nulls: float, few: bool) -> Any:
    """Return a random value; `few` draws from a handful, which pylance encodes in other ways."""
    if rng.random() < nulls:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _value(rng, field.type, nulls, few) for field in kind}
    if pa.types.is_fixed_size_list(kind):
        share = nulls if pa.types.is_struct(kind.value_type) else 0.0
        return [_value(rng, kind.value_type, share, few) for _ in range(kind.list_size)]
    if pa.types.is_list(kind):
        return [_value(rng, kind.value_type, nulls, few) for _ in range(rng.choice([0, 0, 1, 2, 3]))]
    number = int(rng.integers(0, 3 if few else 1 << int(rng.integers(1, 40))))
    if pa.types.is_string(kind):
        return WORDS[number % len(WORDS)] if few else str(number)
    if pa.types.is_binary(kind):
        return bytes(1000 if few else 3)
    if pa.types.is_floating(kind):
        return float(number % 1000)
    return bool(number % 2) if pa.types.is_boolean(kind) else number % 100 if kind == pa.int8() else number


KINDS = [
    pa.int64(), pa.int8(), pa.bool_(), pa.string(), pa.binary(), pa.timestamp("us", "UTC"),
    pa.list_(pa.int64()), pa.list_(pa.string()), pa.list_(pa.list_(pa.int64())),
    pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))]),
    pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())])),
    pa.struct([("a", pa.list_(pa.string()))]),
    pa.list_(pa.float32(), 4), pa.list_(pa.float32(), 100), pa.list_(pa.list_(pa.float32(), 100)),
    pa.list_(pa.struct([("a", pa.string())]), 2), pa.list_(pa.bool_(), 4),
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_shares_of_nulls(kind: pa.DataType, tmp_path: Path) -> None:
    """Hundreds of rows with none, few, many and only nulls, random and repeated values."""
    rng = np.random.default_rng(5)
    for number, (nulls, few) in enumerate(
        [(0.0, False), (0.0, True), (0.01, False), (0.01, True), (0.3, False), (0.97, True), (1.0, False)]
    ):
        values = pa.array([_value(rng, kind, nulls, few) for _ in range(700)], kind)
        for table in (one_column(values), forced(one_column(values))):
            root = tmp_path / f"{number}-{table.schema.field(0).metadata is None}"
            assert check(table, root) is not None


def test_what_pylance_makes_of_it(tmp_path: Path) -> None:
    """Sparse and dense structure, and every kind of values, are among what the tests read."""
    rows = 2000
    cases = {
        "chunked": pa.array([i * 7919 % 1000 if i % 50 else None for i in range(rows)]),
        "zipped": pa.array([bytes([i % 256]) * 5000 if i % 3 else None for i in range(60)]),
        "constant": pa.array([[7] if i % 9 else None for i in range(rows)]),
        "no_values": pa.array([[] if i % 9 else None for i in range(rows)], pa.list_(pa.int32())),
    }
    for name, values in cases.items():
        reader = check(forced(one_column(values)), tmp_path / name)
        assert reader is not None
        assert structures(reader) == {"sparse", name}
        assert name in encoding_names(reader.column(0).pages[0])
    plain = check(one_column(pa.array(range(rows))), tmp_path / "plain")
    assert plain is not None
    assert structures(plain) == {"dense", "chunked"}


def test_a_whole_table(tmp_path: Path) -> None:
    """Filters, take and deletes on a table of 2.3; new data are refused by name."""
    path = str(tmp_path / "t")
    data = pa.table({"id": range(500), "tags": [[str(i)] if i % 7 else None for i in range(500)]})
    lance.write_dataset(data, path, data_storage_version="2.3")
    dataset = spark_lance.dataset(path)
    assert dataset.to_table().to_pydict() == data.to_pydict()
    assert dataset.to_table(filter="id >= 490", columns=["tags"]).to_pydict() == {
        "tags": data["tags"].to_pylist()[490:]
    }
    dataset = spark_lance.dataset(path)
    with pytest.raises(UnsupportedFormatError, match=r"2\.3"):
        spark_lance.write_dataset(data, path, mode="append")
    assert lance.dataset(path).count_rows() == 500
    dataset.delete("id < 100")
    assert lance.dataset(path).count_rows() == 400
    assert spark_lance.dataset(path).take([0])["id"].to_pylist() == [100]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[1, None], None, [], [3], [4, 5, 6]] * 40),
        pa.array(["alpha", None, "a longer text", "b"] * 40),
        pa.array([[{"x": i, "y": "s"}] if i % 5 else None for i in range(90)]),
        pa.array([bytes(300), None, b"x" * 280] * 9),
        pa.array([[1.5] * 70, None, [2.5] * 70] * 5, pa.list_(pa.float32(), 70)),
        pa.array([5 if i % 7 else None for i in range(300)]),
    ],
    ids=str,
)
def test_flipped_bytes(values: pa.Array, tmp_path: Path) -> None:
    data = pylance_file(forced(one_column(values)), "2.3", tmp_path).read_bytes()
    store = MemoryStore()
    outcomes = {"refused": 0, "read": 0}
    for changed in damaged(data, 250):
        store.put("/damaged-2.3", changed)
        try:
            got = FileReader(store, "/damaged-2.3").read()
        except LanceError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            assert got.nbytes < LIMIT
            got.validate(full=True)
    assert min(outcomes.values()) > 10


def _flat(bits: int) -> pb.CompressiveEncoding:
    return pb.CompressiveEncoding(flat=pb.Flat(bits_per_value=bits))


def _numbers(encoding: pb.CompressiveEncoding, counts: list[int], buffers: list[bytes]) -> list[int]:
    sizes = np.array([len(buffer) for buffer in buffers], dtype=np.int64)
    data = np.frombuffer(b"".join(buffers), np.uint8)
    pieces = (Ranges(data, exclusive_sum(sizes)[:-1], sizes),) if buffers else ()
    block = RESOLVER.block(encoding, Chunks(pieces, np.array(counts, dtype=np.int64)))
    assert isinstance(block, FixedWidth)
    return block.data.view(f"<u{block.bits // 8}")[: block.count].tolist()  # type: ignore[no-any-return]


def test_sequences() -> None:
    steps = pb.CompressiveEncoding(range=pb.Range(uncompressed_bits_per_value=32, start=5, step=3))
    assert _numbers(steps, [3, 2], []) == [5, 8, 11, 5, 8]
    delta = pb.CompressiveEncoding(delta=pb.Delta(uncompressed_bits_per_value=16, base=2, deltas=_flat(16)))
    first, second = np.array([3, 65535], "<u2").tobytes(), np.array([7], "<u2").tobytes()
    assert _numbers(delta, [3, 2], [first, second]) == [2, 5, 4, 2, 9]
    constant = pb.CompressiveEncoding(constant=pb.Constant(value=b"\x07\x00"))
    assert _numbers(constant, [2, 1], []) == [7, 7, 7]
    items = np.array([10, 20], "<u8").tobytes()
    dictionary = pb.CompressiveEncoding(
        dictionary=pb.Dictionary(indices=_flat(8), items=_flat(64), num_dictionary_items=2)
    )
    buffer = np.array([3, len(items)], "<u8").tobytes() + bytes([1, 0, 1]) + items
    assert _numbers(dictionary, [3], [buffer]) == [20, 10, 20]
    runs = pb.CompressiveEncoding(rle=pb.Rle(values=steps, run_lengths=steps))
    assert _numbers(runs, [13], []) == [5] * 5 + [8] * 8
    lengths = np.array([2, 1], "<u4").tobytes()
    runs = pb.CompressiveEncoding(rle=pb.Rle(values=steps, run_lengths=_flat(32)))
    assert _numbers(runs, [3], [np.array([0], "<u8").tobytes() + lengths]) == [5, 5, 8]


@pytest.mark.parametrize(
    ("encoding", "counts", "buffers"),
    [
        (pb.CompressiveEncoding(range=pb.Range(uncompressed_bits_per_value=12)), [1], []),
        (pb.CompressiveEncoding(range=pb.Range(uncompressed_bits_per_value=8, start=256)), [1], []),
        (pb.CompressiveEncoding(range=pb.Range(uncompressed_bits_per_value=8)), [1 << 33], []),
        (
            pb.CompressiveEncoding(delta=pb.Delta(uncompressed_bits_per_value=16, deltas=_flat(8))),
            [2],
            [b"ab"],
        ),
        (
            pb.CompressiveEncoding(delta=pb.Delta(uncompressed_bits_per_value=16, deltas=_flat(16))),
            [0],
            [b""],
        ),
        (pb.CompressiveEncoding(constant=pb.Constant()), [1], []),
        (pb.CompressiveEncoding(dictionary=pb.Dictionary(indices=_flat(8), items=_flat(8))), [1], [b"abc"]),
    ],
    ids=str,
)
def test_damaged_sequences(encoding: pb.CompressiveEncoding, counts: list[int], buffers: list[bytes]) -> None:
    with pytest.raises(FormatError):
        _numbers(encoding, counts, buffers)


@pytest.mark.parametrize("scheme", ["zstd", "lz4"])
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float16(), pa.float64()], ids=str)
def test_compressed_runs(kind: pa.DataType, scheme: str, tmp_path: Path) -> None:
    """Values and lengths of runs are compressed, each as a buffer of its own."""
    field = pa.field("c", kind, metadata={"lance-encoding:compression": scheme})
    for has_nulls in (False, True):
        values = [None if has_nulls and i % 50 < 9 else i // 4 % 11 for i in range(5000)]
        table = pa.table([pa.array(values, pa.int64()).cast(kind)], schema=pa.schema([field]))
        path = str(tmp_path / f"{has_nulls}.lance")
        theirs = lance.write_dataset(table, path, data_storage_version="2.3")
        ours = spark_lance.dataset(path)
        assert ours.to_table() == table
        assert ours.take([0, 13, 4999]) == theirs.take([0, 13, 4999])


def test_zipped_rows_of_packed_structs(tmp_path: Path) -> None:
    """Fields of one width each, in full-zip pages, which pylance writes from 2.3 on."""
    keys = {"lance-encoding:packed": "true", "lance-encoding:structural-encoding": "fullzip"}
    kind = pa.struct([("a", pa.int8()), ("b", pa.float64()), ("c", pa.uint16())])
    values = [{"a": i % 100, "b": i / 7, "c": i} for i in range(3000)]
    table = pa.table([pa.array(values, kind)], schema=pa.schema([pa.field("c", kind, metadata=keys)]))
    path = str(tmp_path / "t.lance")
    lance.write_dataset(table, path, data_storage_version="2.3")
    ours = spark_lance.dataset(path)
    assert ours.to_table() == table
    assert ours.take([0, 13, 2999])["c"].to_pylist() == [values[i] for i in (0, 13, 2999)]
