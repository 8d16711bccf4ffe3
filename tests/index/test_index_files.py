"""The files of indices: spans that are read together are those that are read one by one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.file.base.version import FileVersion
from spark_lance.index.base.files import IndexFile, IndexFileWriter
from spark_lance.index.scalar import btree
from spark_lance.io.cache import CACHE
from spark_lance.io.store import open_store

ROWS = 50_000


def columns(rng: random.Random) -> pa.Table:
    texts = [None if rng.random() < 0.1 else f"value {rng.randrange(10_000)}" for _ in range(ROWS)]
    return pa.table(
        {
            "values": pa.array(texts),
            "ids": pa.array(np.random.default_rng(1).permutation(ROWS), pa.uint64()),
            "few": pa.array([f"w{rng.randrange(5)}" for _ in range(ROWS)]),
        }
    )


def spans(rng: random.Random) -> list[tuple[int, int]]:
    cuts = sorted(rng.sample(range(ROWS), 2 * rng.choice([1, 2, 9, 60])))
    cuts[-1] += rng.choice([0, ROWS])
    return list(zip(cuts[::2], cuts[1::2], strict=True))


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_spans_are_what_reads_return(tmp_path: Path, version: str) -> None:
    rng = random.Random(version)
    table = columns(rng)
    store, root = open_store(str(tmp_path))
    path = f"{root}/index.lance"
    with IndexFileWriter(store, path, table.schema, FileVersion.parse(version)) as writer:
        for start in range(0, ROWS, 20_000):
            writer.write([column.combine_chunks() for column in table.slice(start, 20_000).columns])
        writer.finish({})
    for _ in range(20):
        expected = spans(rng)
        names = rng.sample(table.column_names, rng.randint(1, 3))
        result = IndexFile(store, path).read_spans(names, expected)
        assert [piece.num_rows for piece in result] == [min(stop, ROWS) - start for start, stop in expected]
        for piece, (start, stop) in zip(result, expected, strict=True):
            assert piece.equals(table.select(names).slice(start, stop - start))


def test_single_values_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "t.lance")
    many = 600_000
    spark_lance.write_dataset(pa.table({"x": range(many), "y": range(many)}), place)
    spark_lance.dataset(place).create_scalar_index("x", "BTREE")
    calls: list[int] = []
    known = IndexFile.read_spans

    def counted(file: IndexFile, names: list[str], spans: list[tuple[int, int]]) -> list[pa.Table]:
        calls.append(len(spans))
        return known(file, names, spans)

    monkeypatch.setattr(IndexFile, "read_spans", counted)
    CACHE.clear()
    monkeypatch.setattr(btree, "_GROUP_PAGES", 10)

    def asked(wanted: list[int]) -> pa.Table:
        condition = f"x IN ({', '.join(map(str, wanted))})"
        return spark_lance.dataset(place).to_table(columns=["y"], filter=condition)

    # Every fourth page has one.
    wanted = list(range(100, many, 4 * 4096))
    assert asked(wanted)["y"].to_pylist() == wanted
    assert calls == [10, 10, 10, 7]
    assert asked([*wanted, 200, 3 * 4096, many])["y"].to_pylist() == sorted([*wanted, 200, 3 * 4096])
    assert calls[4:] == [1]
    # A page that lies beside one that was read is read alone.
    assert asked([4096 + 5, 100])["y"].to_pylist() == [100, 4096 + 5]
    assert calls[5:] == [1]
