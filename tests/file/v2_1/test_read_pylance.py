"""Reading 2.1 and 2.2 files that pylance wrote: every type, encoding and nesting, page and row ranges."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.file.reader import FileReader
from spark_lance.file.v2_1.read import page, row_page
from tests.file.v2_1.pylance_file import layouts, one_column, open_file, pylance_file
from tests.strategies import canonical, tables

VERSIONS = ("2.1", "2.2")
RNG = np.random.default_rng(2)
N = 3000
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


def some_null(values: pa.Array, share: float = 0.1) -> pa.Array:
    """Make a tenth of the values null."""
    mask = pa.array(np.random.default_rng(len(values)).random(len(values)) < share)
    return pa.compute.if_else(mask, pa.nulls(len(values), values.type), values)


def numbers(kind: pa.DataType, low: int, high: int) -> pa.Array:
    integers = pa.array(RNG.integers(low, high, N))
    return integers.cast(pa.int32()).cast(kind) if kind.bit_width == 32 else integers.cast(kind)


def lists(make: Callable[[int], Any], kind: pa.DataType, rows: int = 1000, longest: int = 5) -> pa.Array:
    """Return lists of 1 to `longest` items, a tenth of them empty and a tenth null."""
    rng = np.random.default_rng(rows)

    def one(i: int) -> Any:
        share = rng.random()
        return None if share < 0.1 else [] if share < 0.2 else [make(i)] * int(rng.integers(1, longest + 1))

    return pa.array([one(i) for i in range(rows)], kind)


def maybe(i: int, value: Any) -> Any:
    return None if i % 7 == 3 else value


def point(i: int) -> Any:
    return maybe(i, {"x": maybe(i // 2, i), "y": maybe(i // 3, f"text {i}")})


URLS = pa.array([f"https://example.org/{i % 17}/item?id={i * 7919 % 10007}" for i in range(N)])
FIXED_LISTS = {
    f"fsl {item} x {size}": pa.FixedSizeListArray.from_arrays(
        pa.array((RNG.random(300 * size) * 2).astype(item.to_pandas_dtype())), size
    )
    for item in (pa.float16(), pa.float32(), pa.float64(), pa.int32(), pa.uint8(), pa.bool_())
    for size in (1, 3, 70)
}

PLAIN: dict[str, pa.Array] = {
    "bool": pa.array(RNG.random(N) < 0.5),
    **{
        str(kind): pa.array(RNG.integers(0, 100, N), kind)
        for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    **{
        str(kind): pa.array(RNG.integers(0, 100, N), kind)
        for kind in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
    },
    "int64, negative": pa.array(RNG.integers(-(2**60), 2**60, N)),
    "int64, sequence": pa.array(np.arange(N)),
    "int64, few distinct": pa.array(RNG.integers(0, 20, N) * 10**15),
    "int32, runs": pa.array(np.repeat(RNG.integers(0, 2**31, N // 40), 40).astype(np.int32)),
    "half": pa.array(RNG.random(N).astype(np.float16)),
    "float": pa.array(RNG.random(N).astype(np.float32)),
    "double": pa.array(RNG.random(N)),
    "decimal128": pa.array([Decimal(i * 7919 - 10**6) / 100 for i in range(N)], pa.decimal128(20, 2)),
    "decimal256": pa.array([Decimal(i * 7919 - 10**6) / 100 for i in range(N)], pa.decimal256(50, 2)),
    "string": URLS,
    "large_string": URLS.cast(pa.large_string()),
    "binary": URLS.cast(pa.binary()),
    "large_binary": URLS.cast(pa.large_binary()),
    "string, short": pa.array([str(i % 200) for i in range(N)]),
    "string, unicode": pa.array(["äöü €"[: i % 6] + "\N{GRINNING FACE}" * (i % 3) for i in range(N)]),
    "string, few distinct": pa.array([f"value {i % 7}" for i in range(N)]),
    "string, wide": pa.array([f"x{i}" * 100 for i in range(N)]),
    "string, one wide": pa.array([*(f"x{i}" for i in range(N)), "y" * 300]),
    "binary, wide": pa.array([bytes([i % 256]) * 300 for i in range(N)]),
    "binary, huge": pa.array([b"ab%d" % i * 20_000 for i in range(20)]),
    "binary(5)": pa.array([b"%05d" % i for i in range(N)], pa.binary(5)),
    "binary(16)": pa.array([b"%016d" % (i % 17) for i in range(N)], pa.binary(16)),
    "binary(300)": pa.array([b"%0300d" % i for i in range(100)], pa.binary(300)),
    **{
        str(kind): numbers(kind, 0, 80_000)
        for kind in (pa.date32(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))
    },
    "date64": pa.array(RNG.integers(0, 80_000, N) * 86_400_000).cast(pa.date64()),
    **{
        str(kind): numbers(kind, 0, 2**50)
        for kind in (
            pa.timestamp("s"),
            pa.timestamp("ms"),
            pa.timestamp("us", "UTC"),
            pa.timestamp("ns", "Europe/Berlin"),
            pa.duration("s"),
            pa.duration("ms"),
            pa.duration("us"),
            pa.duration("ns"),
        )
    },
    "dictionary": pa.array([f"v{i % 9}" for i in range(N)]).dictionary_encode(),
    "dictionary, int8": pa.array([f"v{i % 9}" for i in range(N)])
    .dictionary_encode()
    .cast(pa.dictionary(pa.int8(), pa.string())),
    "dictionary of int64": pa.array([i % 9 * 1000 for i in range(N)]).dictionary_encode(),
    **FIXED_LISTS,
    "fsl of fsl": pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(600)), 3), 2
    ),
    "fsl, null items": pa.FixedSizeListArray.from_arrays(some_null(pa.array(RNG.random(900))), 3),
    "fsl, null items, wide": pa.FixedSizeListArray.from_arrays(some_null(pa.array(RNG.random(6000))), 60),
    "fsl of fsl, null items": pa.FixedSizeListArray.from_arrays(
        some_null(pa.FixedSizeListArray.from_arrays(some_null(pa.array(RNG.random(6000))), 3)), 50
    ),
    "constant int": pa.array([7] * N),
    "constant bool": pa.array([True] * N),
    "constant string": pa.array(["hello"] * N),
    "constant string, long": pa.array(["hello" * 30] * N, pa.large_string()),
    "constant decimal": pa.array([Decimal("1.25")] * N, pa.decimal128(20, 2)),
    "constant binary(40)": pa.array([b"x" * 40] * N, pa.binary(40)),
    "constant dictionary": pa.array(["x"] * N).dictionary_encode(),
    "struct": pa.array([{"x": i, "y": f"{i}"} for i in range(N)], POINT),
}

NESTED: dict[str, pa.Array] = {
    "null": pa.nulls(N),
    "null struct": pa.array([point(i) for i in range(N)], POINT),
    "struct of list": pa.array(
        [maybe(i, {"a": i, "b": maybe(i // 2, [maybe(i, i)] * (i % 4))}) for i in range(N)],
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int32()))]),
    ),
    "list": lists(lambda i: i, pa.list_(pa.int32())),
    "list, null items": lists(lambda i: maybe(i, i), pa.list_(pa.int64())),
    "large_list": lists(lambda i: maybe(i, i), pa.large_list(pa.int64())),
    "list of string": lists(lambda i: maybe(i, f"item {i}"), pa.list_(pa.string())),
    "list of wide string": lists(lambda i: maybe(i, f"item {i}" * 50), pa.list_(pa.string())),
    "list of wide binary": lists(lambda i: b"item %d" % i * 50, pa.list_(pa.binary())),
    "list of fsl": lists(lambda i: maybe(i, [float(i)] * 3), pa.list_(pa.list_(pa.float32(), 3))),
    "list of wide fsl": lists(lambda i: maybe(i, [float(i)] * 70), pa.list_(pa.list_(pa.float32(), 70)), 300),
    "list of list": lists(lambda i: maybe(i, [maybe(i, i)] * (i % 4)), pa.list_(pa.list_(pa.int32()))),
    "list of list of wide binary": lists(
        lambda i: maybe(i, [maybe(i // 2, b"q" * 300)] * (i % 4)), pa.list_(pa.list_(pa.binary())), 300
    ),
    "list of list of wide fsl": lists(
        lambda i: maybe(i, [maybe(i // 2, [1.0] * 70)] * (i % 4)),
        pa.list_(pa.list_(pa.list_(pa.float32(), 70))),
        300,
    ),
    "list of struct": lists(point, pa.list_(POINT)),
    "list of struct of list": lists(
        lambda i: maybe(i, {"p": point(i), "q": [point(i)] * (i % 3)}),
        pa.list_(pa.struct([("p", POINT), ("q", pa.list_(POINT))])),
    ),
    "lists of nothing": pa.array([None, []] * 500, pa.list_(pa.int32())),
    "empty lists": pa.array([[]] * 500, pa.list_(pa.string())),
    "lists of nulls": pa.array([[None, None], [None]] * 500, pa.list_(pa.int32())),
    "lists of one value": pa.array([[1, 1], [1], None, []] * 500, pa.list_(pa.int32())),
    "structs of nulls": pa.array([{"x": None, "y": None}, None] * 500, POINT),
    "empty struct": pa.array([{}] * 100, pa.struct([])),
}

NESTED_2_2: dict[str, pa.Array] = {
    "map": pa.array(
        [maybe(i, [(f"k{j}", maybe(j, j)) for j in range(i % 4)]) for i in range(N)],
        pa.map_(pa.string(), pa.int32()),
    ),
    "map of struct": pa.array(
        [maybe(i, [(j, point(j)) for j in range(i % 4)]) for i in range(N)], pa.map_(pa.int32(), POINT)
    ),
    "list of map": lists(lambda i: maybe(i, [(f"k{i}", i)]), pa.list_(pa.map_(pa.string(), pa.int32()))),
    "fsl of struct": pa.array([maybe(i, [point(i), point(i + 1)]) for i in range(N)], pa.list_(POINT, 2)),
    "struct of fsl of struct": pa.array(
        [maybe(i, {"f": maybe(i // 2, [point(i)] * 2)}) for i in range(N)],
        pa.struct([("f", pa.list_(POINT, 2))]),
    ),
}


def check(table: pa.Table, version: str, root: Path) -> FileReader:
    """Write with pylance; what FileReader reads, whole and in windows, is what pylance reads."""
    reader = open_file(pylance_file(table, version, root))
    expected = lance.dataset(str(root)).to_table()
    whole = reader.read()
    whole.validate(full=True)
    assert whole.schema.equals(expected.schema, check_metadata=True)
    assert whole.equals(expected)
    fields = [reader.open_field(field) for field in reader.schema.fields]
    step = reader.num_rows // 4 + 1
    for start in range(0, reader.num_rows, step):
        stop = min(start + step, reader.num_rows)
        window = pa.Table.from_arrays([field.read(start, stop) for field in fields], schema=whole.schema)
        window.validate(full=True)
        assert window.equals(expected.slice(start, stop - start))
    return reader


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", PLAIN)
def test_plain(name: str, version: str, tmp_path: Path) -> None:
    values = PLAIN[name]
    check(one_column(values), version, tmp_path / "full")
    check(one_column(values.slice(5, 1)), version, tmp_path / "one row")
    check(one_column(pa.nulls(1000, values.type)), version, tmp_path / "all null")
    if not pa.types.is_dictionary(values.type):
        check(one_column(some_null(values)), version, tmp_path / "some null")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*NESTED, *NESTED_2_2])
def test_nested(name: str, version: str, tmp_path: Path) -> None:
    if name in NESTED_2_2 and version == "2.1":
        pytest.skip("2.1 has no such type")
    values = {**NESTED, **NESTED_2_2}[name]
    check(one_column(values), version, tmp_path / "full")
    check(one_column(values.slice(0, 1)), version, tmp_path / "one row")


HINTS: list[dict[str, str]] = [
    {"compression": "zstd"},
    {"compression": "zstd", "bss": "on"},
    {"compression": "lz4"},
    {"compression": "fsst"},
    {"compression": "none"},
    {"structural_encoding": "fullzip"},
    {"structural_encoding": "fullzip", "compression": "zstd"},
    {"structural_encoding": "miniblock"},
    {"rle_threshold": "1.0"},
    {"dict_divisor": "1", "dict_size_ratio": "1.0", "dict_values_compression": "zstd"},
]
HINTED = [
    "int64",
    "float",
    "double",
    "int32, runs",
    "string",
    "binary, huge",
    "binary, wide",
    "fsl float x 70",
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("hint", HINTS, ids=lambda hint: " ".join(f"{k}={v}" for k, v in hint.items()))
def test_encodings_asked_for(hint: dict[str, str], version: str, tmp_path: Path) -> None:
    for name in HINTED:
        if (
            hint.get("structural_encoding") == "miniblock"
            and PLAIN[name].nbytes > N * 200
            and version == "2.1"
        ):
            continue  # chunks of 2.1 are too small for wide values
        check(one_column(some_null(PLAIN[name]), **hint), version, tmp_path / name)


@pytest.mark.parametrize("version", VERSIONS)
def test_packed_struct(version: str, tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.int8()), ("b", pa.float64()), ("c", pa.binary(3)), ("d", pa.decimal128(9, 2))])
    rows = [{"a": i % 100, "b": i / 3, "c": b"%03d" % (i % 99), "d": Decimal(i)} for i in range(N)]
    check(one_column(pa.array(rows, kind), packed="true"), version, tmp_path)


def test_packed_struct_of_varying_width(tmp_path: Path) -> None:
    kind = pa.struct(
        [("a", pa.int8()), ("b", pa.string()), ("c", pa.list_(pa.float32(), 2)), ("d", pa.large_binary())]
    )
    rows = [{"a": i % 100, "b": URLS[i].as_py(), "c": [i, 0.5], "d": b"x" * (i % 40)} for i in range(N)]
    for name, values in {"full": rows, "null": [maybe(i, row) for i, row in enumerate(rows)]}.items():
        check(one_column(pa.array(values, kind), packed="true"), "2.2", tmp_path / name)
    inner = pa.struct([("a", pa.int8()), ("s", pa.struct([("b", pa.string())]))])
    check(
        one_column(pa.array([{"a": 1, "s": {"b": "x" * i}} for i in range(50)], inner), packed="true"),
        "2.2",
        tmp_path / "nested",
    )
    in_list = lists(lambda i: maybe(i, rows[i]), pa.list_(kind))
    field = pa.field("item", kind, metadata={"lance-encoding:packed": "true"})
    check(one_column(in_list.cast(pa.list_(field))), "2.2", tmp_path / "list")


def test_blobs_are_read_as_descriptors_only(tmp_path: Path) -> None:
    blobs = one_column(pa.array([b"x" * 100, None, b""], pa.large_binary()), blob="true")
    for version in VERSIONS:
        reader = open_file(pylance_file(blobs, version, tmp_path / version))
        sizes = [row and row["size"] for row in reader.read()["a"].to_pylist()]
        assert sizes == [100, None, 0]
        raw = replace(reader.schema.field("a"), logical_type="large_binary", children=())
        with pytest.raises(UnsupportedFormatError, match="blob"):
            reader.read([raw])


@settings(max_examples=100)
@given(drawn=st.sampled_from(VERSIONS).flatmap(lambda v: st.tuples(st.just(v), tables(v))))
def test_random_tables(drawn: tuple[str, pa.Table]) -> None:
    version, table = drawn
    if table.num_rows == 0:
        return
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        try:
            file = pylance_file(table, version, root)
            expected = lance.dataset(name).to_table()
        except BaseException as error:  # pylance panics on some types: those are not files to read
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        reader = open_file(file)
        whole = reader.read()
        whole.validate(full=True)
        assert whole.schema.equals(expected.schema, check_metadata=True)
        assert canonical_table(whole) == canonical_table(expected)
        start, stop = table.num_rows // 3, table.num_rows // 3 * 2
        assert canonical_table(reader.read(start=start, stop=stop)) == canonical_table(
            expected.slice(start, stop - start)
        )


def canonical_table(table: pa.Table) -> list[str]:
    return [canonical(column) for column in table.columns]


def batches(make: Callable[[int], pa.Array], count: int) -> pa.Table:
    """Return a table of several batches, none of them a slice of a larger array."""
    arrays = [make(number) for number in range(count)]
    return one_column(pa.chunked_array(arrays))


def offsets(rng: np.random.Generator, rows: int, mean: int) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(rng.integers(0, 2 * mean, rows))]).astype(np.int32))


def structs(rng: np.random.Generator, rows: int) -> pa.Array:
    return pa.StructArray.from_arrays(
        [
            pa.array(rng.integers(0, 100, rows).astype(np.int8)),
            pa.array([f"long string value {i * 7919}" for i in range(rows)]),
            pa.array(rng.standard_normal(rows), mask=rng.random(rows) < 0.2),
        ],
        ["a", "b", "c"],
        mask=pa.array(rng.random(rows) < 0.1),
    )


def many_structs(number: int) -> pa.Array:
    return structs(np.random.default_rng(number), 120_000)


def many_lists(number: int) -> pa.Array:
    rng = np.random.default_rng(number)
    ends = offsets(rng, 40_000, 3)
    empty = pa.array(np.diff(ends.to_numpy()) == 0)
    mask = pa.compute.and_(empty, pa.array(rng.random(40_000) < 0.5))
    return pa.ListArray.from_arrays(ends, structs(rng, ends[-1].as_py()), mask=mask)


def many_maps(number: int) -> pa.Array:
    rng = np.random.default_rng(number)
    ends = offsets(rng, 40_000, 3)
    count = ends[-1].as_py()
    values = pa.array(rng.integers(0, 2**60, count), mask=rng.random(count) < 0.1)
    return pa.MapArray.from_arrays(ends, pa.array([f"key {i}" for i in range(count)]), values)


def many_fixed_lists(number: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(structs(np.random.default_rng(number), 120_000), 2)


def sizes_of_all_classes(number: int) -> pa.Array:
    rng = np.random.default_rng(number)
    return some_null(pa.array(["x" * int(size) for size in rng.choice([0, 1, 5, 50, 300, 40_000], 1500)]))


def wide_values_in_lists(number: int) -> pa.Array:
    rng = np.random.default_rng(number)
    ends = offsets(rng, 5000, 3)
    items = pa.array([rng.bytes(300) for _ in range(ends[-1].as_py())])
    return pa.ListArray.from_arrays(ends, items)


def nulls_then_values(number: int) -> pa.Array:
    if number % 3 != 1:
        return pa.nulls(1_100_000, pa.int64())
    return pa.array(np.arange(1_100_000))


def vectors(number: int) -> pa.Array:
    rng = np.random.default_rng(number)
    items = pa.array(rng.random(20_000 * 128).astype(np.float32))
    return pa.FixedSizeListArray.from_arrays(items, 128, mask=pa.array(rng.random(20_000) < 0.2))


MANY_PAGES = [
    (many_structs, 4, "2.1"),
    (many_structs, 4, "2.2"),
    (many_lists, 4, "2.1"),
    (many_lists, 4, "2.2"),
    (many_maps, 4, "2.2"),
    (many_fixed_lists, 4, "2.2"),
    (sizes_of_all_classes, 2, "2.1"),
    (sizes_of_all_classes, 2, "2.2"),
    (wide_values_in_lists, 5, "2.1"),
    (wide_values_in_lists, 5, "2.2"),
    (nulls_then_values, 4, "2.1"),
    (nulls_then_values, 4, "2.2"),
    (vectors, 3, "2.1"),
    (vectors, 3, "2.2"),
]


@pytest.mark.parametrize(("make", "count", "version"), MANY_PAGES)
def test_many_pages(make: Callable[[int], pa.Array], count: int, version: str, tmp_path: Path) -> None:
    reader = check(batches(make, count), version, tmp_path)
    pages = [len(reader.column(index).pages) for index in set(reader.columns.values())]
    assert max(pages) > 1 or make is sizes_of_all_classes


@pytest.mark.parametrize("version", VERSIONS)
def test_one_list_longer_than_all_chunks(version: str, tmp_path: Path) -> None:
    values = pa.array([[1] * 3, list(range(100_000)), None, [], list(range(5))])
    check(one_column(values), version, tmp_path)


def test_fsst_in_pairs(tmp_path: Path) -> None:
    """Enough codes for the table of pairs; some bytes have no symbol."""
    values = pa.array(
        [f"https://example.org/page/{i * 7919}/ä{chr(0x100 + i % 3000)}" for i in range(60_000)]
    )
    reader = check(one_column(values), "2.2", tmp_path)
    encoding = layouts(reader)[0].mini_block_layout.value_compression
    assert encoding.WhichOneof("compression") == "fsst"


def test_rows_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = pylance_file(batches(many_structs, 2), "2.2", tmp_path)
    decoded: list[int] = []
    original = page.build

    def counting(*arguments: Any) -> Any:
        array = original(*arguments)
        decoded.append(len(array))
        return array

    monkeypatch.setattr(page, "build", counting)
    monkeypatch.setattr(row_page, "build", counting)
    reader = open_file(file)
    field = reader.open_field(reader.schema.fields[0])
    for start in range(0, reader.num_rows, 1000):
        field.read(start, min(start + 1000, reader.num_rows))
    assert sum(decoded) == 3 * reader.num_rows


def test_vectors_are_not_copied(tmp_path: Path) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(RNG.random(128 * 1000).astype(np.float32)), 128)
    reader = open_file(pylance_file(one_column(values), "2.2", tmp_path))
    before = pa.total_allocated_bytes()
    table = reader.read(start=100, stop=900)
    assert table["a"].chunk(0).equals(values.slice(100, 800))
    assert pa.total_allocated_bytes() - before < 10_000
    field = reader.open_field(reader.schema.fields[0])
    ((_, size),) = field.ranges(100, 900)
    assert size == 800 * 512


def test_pruned_fields(tmp_path: Path) -> None:
    kind = pa.list_(pa.struct([("p", POINT), ("q", pa.list_(POINT)), ("r", pa.int8())]))
    values = lists(lambda i: maybe(i, {"p": point(i), "q": [point(i)] * (i % 3), "r": i % 100}), kind)
    reader = open_file(pylance_file(one_column(values), "2.2", tmp_path))
    names = {field.id: field.name for field in reader.schema.walk()}
    for expected in ({"y"}, {"x", "r"}, {"r"}):
        pruned = reader.schema.prune({number for number, name in names.items() if name in expected})
        got = reader.read(pruned.fields)["a"].to_pylist()
        assert got == [keep(row, pruned.fields[0].arrow_type()) for row in values.to_pylist()]


def keep(node: Any, kind: pa.DataType) -> Any:
    """Drop the struct fields that a pruned type lacks."""
    if isinstance(node, list):
        return [keep(child, kind.value_type) for child in node]
    if isinstance(node, dict):
        return {field.name: keep(node[field.name], field.type) for field in kind}
    return node


def test_rows_beyond_the_end(tmp_path: Path) -> None:
    reader = open_file(pylance_file(one_column(pa.array([1, 2, 3])), "2.2", tmp_path))
    field = reader.open_field(reader.schema.fields[0])
    assert field.read(1, 1).to_pylist() == []
    with pytest.raises(FormatError):
        field.read(0, 4)
