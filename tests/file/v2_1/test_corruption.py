"""Damaged 2.1 and 2.2 files give a LanceError or values, never anything else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from spark_lance.errors import LanceError
from spark_lance.file.reader import FileReader
from spark_lance.io.memory import MemoryStore
from tests.file.v2_1.pylance_file import one_column, pylance_file

TEXT = ["alpha", "", None, "ä€", "a longer text than the others"] * 4
LIST = [[1, None], None, [], [3], [4, 5, 6]] * 4

SMALL: dict[str, pa.Table] = {
    "int": one_column(pa.array([1, None, 300] * 7)),
    "int, bit-packed": one_column(pa.array(range(1100), pa.int32())),
    "bool": one_column(pa.array([True, None, False] * 7)),
    "runs": one_column(pa.array([5] * 400 + [7] * 700 + [9] * 300, pa.int32())),
    "decimal": one_column(pa.array([Decimal(1), None, Decimal(3)])),
    "string": one_column(pa.array(TEXT)),
    "string, fsst": one_column(pa.array([f"value number {i % 97} of {i}" for i in range(1800)])),
    "string, few distinct": one_column(pa.array(["x", "yy", None] * 60)),
    "string, wide": one_column(pa.array(["w" * 260, None, "v" * 300, ""])),
    "zstd": one_column(pa.array(["hello " * 30, None, "x"] * 20), compression="zstd"),
    "lz4": one_column(pa.array(["hello " * 30, None, "x"] * 20), compression="lz4"),
    "constant": one_column(pa.array(["same", None, "same"])),
    "nulls": one_column(pa.array([[None], None, [], [None, None]], pa.list_(pa.int8()))),
    "dictionary": one_column(pa.array(["x", None, "y", "x"] * 9).dictionary_encode()),
    "fsl": one_column(pa.array([[1, 2], None, [3, None]] * 5, pa.list_(pa.int16(), 2))),
    "fsl, wide": one_column(pa.array([[1.5] * 70, None, [2.5] * 70], pa.list_(pa.float32(), 70))),
    "list": one_column(pa.array(LIST)),
    "list, wide": one_column(pa.array([[b"w" * 260, None], None, [], [b"v" * 300] * 2])),
    "list, wide fsl": one_column(
        pa.array([[[1.5] * 70, None], None, [], [[2.5] * 70] * 2], pa.list_(pa.list_(pa.float32(), 70)))
    ),
    "list of list": one_column(pa.array([[["a"], ["b"]], None, [], [["c", None], None, []]] * 3)),
    "list of struct": one_column(pa.array([[{"x": 1, "y": "s"}], None, [{"x": None, "y": None}]] * 3)),
    "packed": one_column(pa.array([{"a": 1, "b": "s"}, None, {"a": 2, "b": "text"}] * 4), packed="true"),
    "map": one_column(pa.array([[("a", 1)], None, [], [("b", None)]], pa.map_(pa.string(), pa.int32()))),
}
# Expected at most, whatever the damage: runs may grow to 255 times their bytes.
LIMIT = 1 << 20


def damaged(data: bytes, count: int) -> Iterator[bytes]:
    """Flip bytes: mostly in the metadata at the end and at the starts of buffers, where it hurts most."""
    rng = random.Random(len(data))
    for _ in range(count):
        changed = bytearray(data)
        for _ in range(rng.choice([1, 1, 3])):
            near_buffer = min(rng.randrange(0, len(data), 64) + rng.randrange(16), len(data) - 1)
            near_end = rng.randrange(max(0, len(data) - 500), len(data))
            position = rng.choice([near_buffer, near_end, rng.randrange(len(data))])
            changed[position] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        yield bytes(changed)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("name", SMALL)
def test_flipped_bytes(name: str, version: str, tmp_path: Path) -> None:
    if name in ("map", "packed") and version == "2.1":
        pytest.skip("2.1 has no such type")
    data = pylance_file(SMALL[name], version, tmp_path).read_bytes()
    store = MemoryStore()
    outcomes = {"refused": 0, "read": 0}
    for changed in damaged(data, 250):
        store.put("/damaged-2.1", changed)
        try:
            got = FileReader(store, "/damaged-2.1").read()
        except LanceError:
            outcomes["refused"] += 1
        else:
            outcomes["read"] += 1
            assert got.nbytes < LIMIT
            # Decimals beyond their precision are values that are wrong, not arrays that are.
            got.validate(full=name != "decimal")
    assert min(outcomes.values()) > 10
