"""Compressed chunks that are asked for again: what is kept of them is what they hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError
from spark_lance.file.reader import FileReader, take_field
from spark_lance.file.v2_1.base.chunks import Ranges
from spark_lance.file.v2_1.encodings import general
from spark_lance.file.v2_1.read import row_page
from spark_lance.file.v2_1.read.row_page import PlainChunks
from spark_lance.io.cache import CACHE
from spark_lance.proto import encodings21_pb2 as pb
from tests.file.v2_1.pylance_file import open_file, pylance_file

ROWS = 60_000


@pytest.fixture(autouse=True)
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Begin with nothing that is kept; return a list of how many chunks were decompressed each time."""
    CACHE.clear()
    counts: list[int] = []

    def counted(compression: pb.BufferCompression, pieces: Ranges) -> Ranges:
        counts.append(len(pieces.starts))
        return general.decompress(compression, pieces)

    monkeypatch.setattr(row_page, "decompress", counted)
    return counts


def compressed(folder: Path, scheme: str, with_nulls: bool) -> Path:
    rng = np.random.default_rng(3)
    hours = np.sort(rng.integers(0, 1 << 40, 50))[rng.integers(0, 50, ROWS)]
    mask = rng.random(ROWS) < 0.1 if with_nulls else None
    hint = {b"lance-encoding:compression": scheme.encode(), b"lance-encoding:dict-divisor": b"100000"}
    columns = {
        "long": pa.array(hours, mask=mask),
        "short": pa.array((hours % 100).astype(np.int16), mask=mask),
        "float": pa.array(hours.astype(np.float64), mask=mask),
    }
    fields = [pa.field(name, column.type, metadata=hint) for name, column in columns.items()]
    return pylance_file(pa.table(list(columns.values()), schema=pa.schema(fields)), "2.2", folder)


def take(reader: FileReader, rows: Ints) -> pa.Table:
    fields = reader.schema.fields
    return pa.table(
        {field.name: take_field(reader.open_field(field), field, "here", rows) for field in fields}  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("with_nulls", [False, True])
@pytest.mark.parametrize("scheme", ["zstd", "lz4"])
def test_random_rows_again_and_again(
    scheme: str, with_nulls: bool, tmp_path: Path, unpacked: list[int]
) -> None:
    file = compressed(tmp_path, scheme, with_nulls)
    whole = open_file(file).read().replace_schema_metadata(None)
    whole = pa.table({name: whole[name] for name in whole.column_names})
    rng = np.random.default_rng(8)
    for _ in range(12):
        rows = np.sort(rng.choice(ROWS, int(rng.integers(1, 40)), replace=False))
        assert take(open_file(file), rows).equals(whole.take(rows)), rows
    assert unpacked
    every = np.arange(0, ROWS, 64)
    for _ in range(2):
        assert take(open_file(file), every).equals(whole.take(every))
    unpacked.clear()
    assert take(open_file(file), every + 1).equals(whole.take(every + 1))
    assert unpacked == []


def test_a_file_in_the_place_of_another_is_read(tmp_path: Path) -> None:
    file = compressed(tmp_path, "zstd", False)
    rows = np.arange(0, ROWS, 500)
    for _ in range(3):
        take(open_file(file), rows)
    data = bytearray(file.read_bytes())
    data[100 : len(data) // 2] = bytes(len(data) // 2 - 100)
    file.unlink()
    file.write_bytes(data)
    with pytest.raises(FormatError):
        take(open_file(file), rows)


def flat_chunks() -> tuple[PlainChunks, pb.BufferCompression, Ranges, list[bytes]]:
    values = [bytes([number]) * 80 for number in range(40)]
    codec = pa.Codec("lz4_raw")
    parts = [len(value).to_bytes(4, "little") + codec.compress(value, asbytes=True) for value in values]
    sizes = np.array([len(part) for part in parts])
    pieces = Ranges(np.frombuffer(b"".join(parts), np.uint8), np.cumsum(sizes) - sizes, sizes)
    kind = pb.BufferCompression(scheme=pb.COMPRESSION_LZ4)
    return PlainChunks(np.full(40, 10), 8), kind, pieces, values


def contents(found: Ranges) -> list[bytes]:
    return [
        found.data[start : start + size].tobytes()
        for start, size in zip(found.starts, found.sizes, strict=True)
    ]


def test_several_threads(unpacked: list[int]) -> None:
    remaining, kind, pieces, values = flat_chunks()

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(30):
            chosen = np.sort(rng.choice(40, int(rng.integers(1, 9)), replace=False))
            result = remaining.get(chosen, kind, pieces.select(chosen))
            assert contents(result) == [values[number] for number in chosen]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))
    # All but what the first one asked for are decompressed once.
    assert sum(unpacked[1:]) <= 40


def test_chunks_of_another_size_than_their_values_are_not_kept(unpacked: list[int]) -> None:
    _, kind, pieces, values = flat_chunks()
    remaining = PlainChunks(np.full(40, 10), 4)
    chosen = np.arange(40)
    for _ in range(3):
        assert contents(remaining.get(chosen, kind, pieces)) == values
    assert unpacked == [40, 40, 40, 40, 40]
