"""Random columns with random settings of encodings: each package reads what the other has written.

`RANDOM_COLUMNS_SEED` sets the first of `SEEDS` seeds.
"""

from __future__ import annotations

import datetime
import decimal
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.compat.lance.arrow import BFloat16Type
from spark_lance.errors import LanceError

pytestmark = [pytest.mark.reference, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SEEDS = 400
FIRST = int(os.environ.get("RANDOM_COLUMNS_SEED", "9100000"))
VERSIONS = ["2.0", "2.1", "2.2", "2.3"]
READ_ONLY = "2.3"
WORDS = ["alpha", "beta", "gamma", "", "é", "x" * 300]
Draw = Callable[[random.Random], Any]
SETTINGS = {
    "compression": ["zstd", "lz4", "none", "fsst"],
    "compression-level": ["1", "3", "9"],
    "rle-threshold": ["0", "0.1", "0.5", "1.0"],
    "bss": ["on", "off", "auto"],
    "dict-divisor": ["1", "2", "100"],
    "dict-size-ratio": ["0.1", "0.8", "1.0"],
    "dict-values-compression": ["zstd", "lz4", "none"],
    "dict-values-compression-level": ["1", "5"],
    "structural-encoding": ["miniblock", "fullzip"],
    "minichunk-size": ["64", "1024", "4096", "30000", "65536"],
}
INTEGERS = [
    make() for make in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64)
]
LEAVES: list[tuple[pa.DataType, Draw]] = [
    (pa.float16(), lambda rng: np.float16(rng.choice([0.5, -2, 3]))),
    (pa.float32(), lambda rng: float(np.float32(rng.gauss(0, 1)))),
    (pa.float64(), lambda rng: rng.choice([rng.gauss(0, 1), float(rng.randrange(4)), float("inf"), -0.0])),
    (pa.bool_(), lambda rng: rng.random() < 0.3),
    (pa.string(), lambda rng: rng.choice(WORDS)),
    (pa.large_string(), lambda rng: " ".join(rng.choices(WORDS[:4], k=rng.randrange(9)))),
    (pa.binary(), lambda rng: rng.randbytes(rng.choice([0, 1, 5, 40, 700]))),
    (pa.binary(16), lambda rng: rng.choice([rng.randbytes(16), b"0" * 16])),
    (pa.binary(3), lambda rng: rng.randbytes(3)),
    (pa.date32(), lambda rng: rng.randint(-9999, 9999)),
    (pa.timestamp("us", "UTC"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.time64("us"), lambda rng: rng.randint(0, 86399999999)),
    (pa.duration("us"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.decimal128(18, 2), lambda rng: decimal.Decimal(rng.randint(-99999, 99999)) / 100),
    (pa.decimal256(60, 3), lambda rng: decimal.Decimal(rng.randint(-(10**9), 10**9)) / 1000),
    (pa.dictionary(pa.int8(), pa.string()), lambda rng: rng.choice(WORDS)),
    (pa.dictionary(pa.uint16(), pa.large_string()), lambda rng: rng.choice(WORDS)),
    (pa.dictionary(pa.int32(), pa.int64()), lambda rng: rng.randrange(5)),
    (pa.dictionary(pa.int64(), pa.binary()), lambda rng: rng.choice([b"", b"a", b"bc" * 50])),
    (pa.dictionary(pa.int16(), pa.float64()), lambda rng: rng.choice([0.5, -1.0, float("inf")])),
    (pa.null(), lambda _: None),
    (pa.large_binary(), lambda rng: rng.randbytes(rng.choice([0, 3, 900]))),
    (pa.string_view(), lambda rng: rng.choice(WORDS)),
    (pa.binary_view(), lambda rng: rng.randbytes(rng.choice([0, 4, 40]))),
    (pa.binary(200), lambda rng: rng.randbytes(200)),
    (pa.date64(), lambda rng: datetime.date(1970, 1, 1) + datetime.timedelta(rng.randint(-9999, 9999))),
    (pa.time32("s"), lambda rng: rng.randint(0, 86399)),
    (pa.time32("ms"), lambda rng: rng.randint(0, 86399999)),
    (pa.time64("ns"), lambda rng: 1000 * rng.randint(0, 86399999999)),
    (pa.timestamp("s"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.timestamp("ms", "Europe/Berlin"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.timestamp("ns"), lambda rng: 1000 * rng.randint(-(10**12), 10**12)),
    (pa.duration("s"), lambda rng: rng.randint(-(10**6), 10**6)),
    (pa.duration("ms"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.decimal32(7, 2), lambda rng: decimal.Decimal(rng.randint(-99999, 99999)) / 100),
    (pa.decimal64(15, 4), lambda rng: decimal.Decimal(rng.randint(-99999, 99999)) / 10000),
    (pa.decimal128(38, 0), lambda rng: decimal.Decimal(rng.randint(-(10**37), 10**37))),
    (pa.month_day_nano_interval(), lambda rng: (rng.randrange(12), rng.randrange(30), 1000)),
]
_BFLOAT16 = BFloat16Type()
# Extension types, of whole columns only. The functions draw storage values.
EXTENSIONS: list[tuple[pa.DataType, Draw]] = [
    (pa.uuid(), lambda rng: rng.randbytes(16)),
    (pa.bool8(), lambda rng: rng.randrange(2)),
    (pa.json_(), lambda rng: rng.choice(['{"a":1}', "[1,null,true]", '"text"', "null", "2.5"])),
    (pa.fixed_shape_tensor(pa.float32(), [2, 3]), lambda rng: [rng.randint(-9, 9) for _ in range(6)]),
    (_BFLOAT16, lambda rng: rng.choice([b"\x80\x3f", b"\xc0\xbf", b"\x00\x42"])),
    (pa.opaque(pa.int32(), "kind", "vendor"), lambda rng: rng.randrange(99)),
]
# Items of fixed-size lists, and of packed structs (except booleans, which pylance cannot read there).
FIXED: list[tuple[pa.DataType, Draw]] = [
    (pa.float32(), lambda rng: rng.randint(-9, 9)),
    (pa.float64(), lambda rng: rng.randint(-9, 9)),
    (pa.int8(), lambda rng: rng.randint(-9, 9)),
    (pa.int64(), lambda rng: rng.randint(-9, 9)),
    (pa.float16(), lambda rng: np.float16(rng.randint(-9, 9))),
    (pa.uint8(), lambda rng: rng.randint(0, 255)),
    (pa.uint32(), lambda rng: rng.randint(0, 1 << 31)),
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.binary(4), lambda rng: rng.randbytes(4)),
    (pa.date32(), lambda rng: rng.randint(-9999, 9999)),
    (pa.timestamp("us"), lambda rng: rng.randint(-(10**9), 10**9)),
    (pa.decimal128(18, 2), lambda rng: decimal.Decimal(rng.randint(-99999, 99999)) / 100),
]
KEYS: list[tuple[pa.DataType, Callable[[int], Any]]] = [
    (pa.string(), lambda number: f"k{number}"),
    (pa.int64(), lambda number: number * 7),
    (pa.large_string(), lambda number: f"{number}" * 20),
    (pa.binary(), lambda number: bytes([number])),
    (pa.date32(), lambda number: number),
]
PACKED = {"lance-encoding:packed": "true"}


def vector(rng: random.Random, depth: int) -> tuple[pa.DataType, Draw]:
    """Return a type of fixed-size lists, and a function that draws a value."""
    width = rng.choice([1, 3, 8, 130])
    nulls = rng.choice([0, 0, 0.2])
    if depth and rng.random() < 0.25:
        if rng.random() < 0.5:
            item, draw = vector(rng, 0)
        else:
            parts = [(f"f{number}", *rng.choice(FIXED)) for number in range(rng.randint(1, 3))]
            item = pa.struct([(name, kind) for name, kind, _ in parts])
            draw = lambda rng: {name: value(rng) for name, _, value in parts}  # noqa: E731
    else:
        item, draw = rng.choice(FIXED)
    return pa.list_(pa.field("item", item), width), lambda rng: [
        None if rng.random() < nulls else draw(rng) for _ in range(width)
    ]


def packed(rng: random.Random, version: str) -> tuple[pa.DataType, Draw]:
    """Return a type of structs to pack, and a function that draws a value."""
    texts: list[tuple[pa.DataType, Draw]] = [
        (pa.string(), lambda rng: rng.choice(WORDS)),
        (pa.binary(), lambda rng: rng.randbytes(rng.choice([0, 5]))),
        (pa.large_string(), lambda rng: rng.choice(WORDS)),
    ]
    kinds = [each for each in FIXED if each[0] != pa.bool_()] + (texts if version > "2.1" else [])
    nulls = rng.choice([0, 0, 0.2])
    parts = [(f"p{number}", *rng.choice(kinds)) for number in range(rng.randint(1, 4))]
    return pa.struct([(name, kind) for name, kind, _ in parts]), lambda rng: {
        name: None if rng.random() < nulls else draw(rng) for name, _, draw in parts
    }


def leaf(rng: random.Random) -> tuple[pa.DataType, Draw]:
    if rng.random() < 0.6:
        return rng.choice(LEAVES)
    kind = rng.choice(INTEGERS)
    signed = pa.types.is_signed_integer(kind)
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
        if signed
        else (0, (1 << kind.bit_width) - 1)
    )
    draws: list[Draw] = [
        lambda rng: rng.randint(low, high),
        lambda rng: rng.randint(0, 3),
        lambda rng: rng.choice([low, high, 0]),
        lambda rng: rng.randint(0, min(high, 1000)),
    ]
    return kind, rng.choice(draws)


def column(rng: random.Random, depth: int, version: str, name: str) -> tuple[pa.Field, Draw]:
    """Return a field, and a function that draws a value."""
    nulls = rng.choice([0, 0, 0.1, 0.5, 0.95])
    if not depth or rng.random() < 0.5:
        kind, draw = rng.choice(EXTENSIONS) if name == "v" and rng.random() < 0.1 else leaf(rng)
        share = rng.choice([0, 0.15, 0.4])
        settings = {
            f"lance-encoding:{key}": rng.choice(values)
            for key, values in SETTINGS.items()
            if rng.random() < share
        }
        return pa.field(
            name, kind, metadata=settings or None
        ), lambda rng: None if rng.random() < nulls else draw(rng)
    values: Draw
    kinds = ["list", "large_list", "struct", "packed", "vector", *(["map"] if version > "2.1" else [])]
    shape = rng.choice(kinds)
    if shape == "vector":
        kind, values = vector(rng, depth)
    elif shape == "packed":
        kind, values = packed(rng, version)
    elif shape == "struct":
        parts = [column(rng, depth - 1, version, f"c{number}") for number in range(rng.randint(1, 3))]
        kind, values = (
            pa.struct([field for field, _ in parts]),
            lambda rng: {field.name: draw(rng) for field, draw in parts},
        )
    elif shape == "map":
        inner, draw_inner = column(rng, depth - 1, version, "value")
        key, key_of = rng.choice(KEYS)
        kind = pa.map_(key, inner)
        values = lambda rng: [(key_of(number), draw_inner(rng)) for number in range(rng.randrange(4))]  # noqa: E731
    else:
        inner, draw_inner = column(rng, depth - 1, version, "item")
        kind, length = (pa.list_ if shape == "list" else pa.large_list)(inner), rng.choice([1, 3, 20])
        values = lambda rng: [draw_inner(rng) for _ in range(rng.randrange(length + 1))]  # noqa: E731
    metadata = PACKED if shape == "packed" else None
    return pa.field(name, kind, metadata=metadata), lambda rng: None if rng.random() < nulls else values(rng)


def column_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, np.ndarray):
        return comparable(value.tolist())
    return repr(float(value)) if isinstance(value, float | np.floating) else value


def written(package: Any, table: pa.Table, path: Path, **options: Any) -> Path | None:
    """Return the path of a new table; None if the package refuses it."""
    try:
        package.write_dataset(table, str(path), **options)
    except (OSError, ValueError, NotImplementedError, LanceError):
        return None
    return path


def results(package: Any, path: Path, positions: list[int]) -> tuple[Any, Any] | None:
    """Return all rows and some; None if pylance fails, as for some tables of its own."""
    try:
        dataset = package.dataset(str(path))
        rows = dataset.to_table()["v"].to_pylist()
        return comparable(rows), comparable(dataset.take(positions)["v"].to_pylist())
    except (OSError, ValueError) as error:
        if package is spark_lance and not isinstance(error, LanceError):
            raise
        return None


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, 50))
def test_each_package_reads_the_columns_of_the_other(first: int, tmp_path: Path) -> None:
    compared = 0
    for seed in range(first, first + 50):
        rng = random.Random(seed)
        version, count = rng.choice(VERSIONS), rng.choice([1, 17, 300, 700])
        field, draw = column(rng, rng.randrange(4), version, "v")
        values = column_array([draw(rng) for _ in range(count)], field.type)
        table = pa.table([values], pa.schema([field]))
        positions = sorted(rng.sample(range(count), min(count, 12)))
        rows = comparable(table["v"].to_pylist())
        expected = rows, [rows[position] for position in positions]
        options = {
            "data_storage_version": version,
            "max_rows_per_file": rng.choice([1 << 20, max(1, count // 2)]),
        }
        theirs = written(lance, table, tmp_path / f"{seed}-theirs", **options)
        by_itself = None if theirs is None else results(lance, theirs, positions)
        ours = (
            None
            if version == READ_ONLY
            else written(spark_lance, table, tmp_path / f"{seed}-ours", **options)
        )
        if theirs is not None and by_itself is not None:
            assert results(spark_lance, theirs, positions) == by_itself == expected, (seed, version, field)
            compared += 1
        if ours is not None:
            assert results(spark_lance, ours, positions) == expected, (seed, version, field)
            if by_itself is not None:
                assert results(lance, ours, positions) == expected, (seed, version, field)
    assert compared > 25
