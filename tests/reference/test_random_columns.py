"""Random columns with random settings of encodings: each package reads what the other has written.

`RANDOM_COLUMNS_SEED` sets the first of `SEEDS` seeds.
"""

from __future__ import annotations

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
    (pa.null(), lambda _: None),
]


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
        kind, draw = leaf(rng)
        share = 0 if version == "2.0" else rng.choice([0, 0.15, 0.4])
        settings = {
            f"lance-encoding:{key}": rng.choice(values)
            for key, values in SETTINGS.items()
            if rng.random() < share
        }
        return pa.field(
            name, kind, metadata=settings or None
        ), lambda rng: None if rng.random() < nulls else draw(rng)
    values: Draw
    kinds = ["list", "large_list", "struct", "vector", *(["map"] if version > "2.1" else [])]
    shape = rng.choice(kinds)
    if shape == "vector":
        item, width = (
            rng.choice([pa.float32(), pa.int8(), pa.float64(), pa.int64()]),
            rng.choice([1, 3, 8, 130]),
        )
        kind, values = (
            pa.list_(pa.field("item", item), width),
            lambda rng: [rng.randint(-9, 9) for _ in range(width)],
        )
    elif shape == "struct":
        parts = [column(rng, depth - 1, version, f"c{number}") for number in range(rng.randint(1, 3))]
        kind, values = (
            pa.struct([field for field, _ in parts]),
            lambda rng: {field.name: draw(rng) for field, draw in parts},
        )
    elif shape == "map":
        inner, draw_inner = column(rng, depth - 1, version, "value")
        kind = pa.map_(pa.string(), inner)
        values = lambda rng: [(f"k{number}", draw_inner(rng)) for number in range(rng.randrange(4))]  # noqa: E731
    else:
        inner, draw_inner = column(rng, depth - 1, version, "item")
        kind, length = (pa.list_ if shape == "list" else pa.large_list)(inner), rng.choice([1, 3, 20])
        values = lambda rng: [draw_inner(rng) for _ in range(rng.randrange(length + 1))]  # noqa: E731
    return pa.field(name, kind), lambda rng: None if rng.random() < nulls else values(rng)


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: comparable(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
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
        table = pa.table([pa.array([draw(rng) for _ in range(count)], field.type)], pa.schema([field]))
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
