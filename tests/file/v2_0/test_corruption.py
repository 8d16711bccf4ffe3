"""Damaged 2.0 files: every single flipped byte gives a LanceError or values, never anything else."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_lance.errors import FormatError, LanceError
from spark_lance.file.reader import FileReader
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import Store
from tests.file.v2_0.pylance_file import one_column, pylance_file
from tests.file.v2_0.test_read_pylance import PACKED, PACKED_ROWS, TEXT

SMALL: dict[str, pa.Table] = {
    "int": one_column(pa.array([1, None, 3])),
    "bool": one_column(pa.array([True, None, False])),
    "null": one_column(pa.nulls(5)),
    "decimal": one_column(pa.array([Decimal(1), None])),
    "string": one_column(pa.array(TEXT[:5])),
    "zstd": one_column(pa.array(["hello " * 30, None, "x"]), compression="zstd"),
    "lz4": one_column(pa.array(["hello " * 30, None, "x"]), compression="lz4"),
    "few distinct": one_column(pa.array(["x", None, "yy", ""] * 25)),
    "dictionary": one_column(pa.array(["x", None, "y", "x"]).dictionary_encode()),
    "fsl": one_column(pa.array([[1, 2], None, [3, None]], pa.list_(pa.int16(), 2))),
    "list": one_column(pa.array([[1, 2], None, [], [3, None]])),
    "list of list": one_column(pa.array([[["a"], ["b"]], None, [], [["c", None], None, []]])),
    "list of struct": one_column(pa.array([[{"x": 1}], None, [{"x": None}, {"x": 2}]])),
    "struct": one_column(pa.array([{"x": 1, "y": "s"}, {"x": None, "y": None}])),
    "packed": one_column(pa.array(PACKED_ROWS[:2], PACKED), packed="true"),
}


def read(data: bytes, store: Store) -> pa.Table:
    store.put("/damaged", data)
    return FileReader(store, "/damaged").read()


def damaged(data: bytes, patterns: tuple[int, ...] = (0xFF, 0x01, 0x80)) -> Iterator[bytes]:
    for position in range(len(data)):
        for pattern in patterns:
            changed = bytearray(data)
            changed[position] ^= pattern
            yield bytes(changed)


@pytest.mark.parametrize("name", SMALL)
def test_any_flipped_byte(name: str, tmp_path: Path) -> None:
    data = pylance_file(SMALL[name], tmp_path).read_bytes()
    store = MemoryStore()
    assert read(data, store).equals(SMALL[name])
    refused = 0
    for changed in damaged(data):
        try:
            got = read(changed, store)
        except LanceError:
            refused += 1
        else:
            got.validate()
            assert got.nbytes < 100_000
            for column in got.columns:
                if pa.types.is_string(column.type):
                    column.validate(full=True)
    assert refused > len(data) // 4


@pytest.mark.parametrize("name", ["string", "list of list", "fsl"])
def test_any_shorter_file(name: str, tmp_path: Path) -> None:
    data = pylance_file(SMALL[name], tmp_path).read_bytes()
    store = MemoryStore()
    for size in range(1, len(data)):
        with pytest.raises(LanceError):
            read(data[:size], store)


def test_an_fsst_page(tmp_path: Path) -> None:
    values = pa.array([f"value number {i % 97} of {i}" for i in range(3000)])
    table = one_column(values, compression="fsst")
    data = pylance_file(table, tmp_path).read_bytes()
    store = MemoryStore()
    assert read(data, store).equals(table)
    for position in [*range(0, len(data) - 4000, 397), *range(len(data) - 4000, len(data), 3)]:
        changed = bytearray(data)
        changed[position] ^= 0xFF
        try:
            read(bytes(changed), store).validate(full=True)
        except LanceError:
            continue


def test_errors_name_file_column_and_page(tmp_path: Path) -> None:
    data = bytearray(pylance_file(one_column(pa.array(["abc", "d"])), tmp_path).read_bytes())
    data[0] = 0x7F
    with pytest.raises(FormatError, match=r"column 'a', column 0, page 0 in /damaged"):
        read(bytes(data), MemoryStore())
