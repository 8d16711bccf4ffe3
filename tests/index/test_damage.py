"""Damaged index files: a typed error or an answer, never another exception, and no hang.

Lance files have no checksums, so damaged numbers may read as other numbers: of filters, rows may be missing
then, but none can be wrong, as scans apply the filter to every row that they read.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

from spark_lance import dataset, write_dataset
from spark_lance.errors import FormatError, UnsupportedFormatError
from spark_lance.index.base.resolve import RowResolver
from spark_lance.index.scalar.zones import ZONE_FIELDS, rows_of_zones
from spark_lance.index.vector import search
from spark_lance.io.cache import CACHE
from spark_lance.io.store import Store
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.row_set import RowSet
from spark_lance.table.reading.snapshot import Snapshot
from tests.index.vectors import clustered

ROWS, DIM = 600, 8
QUERY = clustered(1, DIM, seed=7)[0]
# Damaged numbers may be so large that distances are infinite.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
VECTOR = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_SQ")
# Kind of index -> column, and a condition or words that it is asked for.
ASKED = {
    "BTREE": ("n", "n >= 10 AND n < 40 OR n IS NULL"),
    "BITMAP": ("b", "b IN ('b1', 'b3')"),
    "ZONEMAP": ("n", "n >= 10 AND n < 40"),
    "BLOOMFILTER": ("n", "n IN (7, 33, 599)"),
    "LABEL_LIST": ("l", "array_has_any(l, [3, 4])"),
    "NGRAM": ("t", "contains(t, 'number 12')"),
    "INVERTED": ("t", "word3"),
    "RTREE": ("p", "st_within(p, 'POLYGON((5 -1,31 -1,31 9,5 9,5 -1))') OR p IS NULL"),
}
SECONDS = 20


def made(path: Path, kind: str, builder: str) -> str:
    """Make a table with one index."""
    ids = np.arange(ROWS)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(clustered(ROWS, DIM).reshape(-1)), DIM)
    rows = pa.table(
        {
            "id": ids,
            "v": vectors,
            "n": pa.array(ids * 37 % 601, mask=ids % 50 == 0),
            "b": [f"b{number % 5}" for number in ids],
            "l": [[int(number) % 7, int(number) % 3] for number in ids],
            "t": [f"the word{number % 7} of number {number}" for number in ids],
            "p": [None if number % 50 == 0 else f"POINT({number} {number % 11})" for number in ids],
        }
    )
    write_dataset(rows, path, max_rows_per_file=250)
    table: Any = dataset(path) if builder == "ours" else lance.dataset(str(path))
    if kind.startswith("IVF"):
        more = {"num_sub_vectors": 4} if kind.endswith("_PQ") else {}
        table.create_index("v", kind, num_partitions=3, **more)
    else:
        more = {"stem": False, "remove_stop_words": False} if kind == "INVERTED" else {}
        table.create_scalar_index(ASKED[kind][0], kind, **more)
    return str(path)


def answer(path: str, kind: str) -> list[int]:
    """Return the ids of the rows that the index finds, with nothing remembered of its files."""
    CACHE.clear()
    table = dataset(path)
    if kind.startswith("IVF"):
        result = table.to_table(["id"], nearest={"column": "v", "q": QUERY, "k": 9, "nprobes": 2})
    elif kind == "INVERTED":
        result = table.to_table(["id"], full_text_query={"query": "word3 number", "column": "t"})
    else:
        result = table.to_table(["id"], ASKED[kind][1])
    ids: list[int] = result["id"].to_pylist()
    return ids


@pytest.fixture(autouse=True)
def graphs_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small partitions have graphs, too, but are compared row by row."""
    monkeypatch.setattr(search, "_MIN_GRAPH_ROWS", 0)


def opened(path: str) -> tuple[Store, str, Manifest]:
    table = dataset(path)
    return table.store, table.root, table.manifest


def damages(data: bytes, random: np.random.Generator) -> Iterator[Callable[[], bytes]]:
    """Yield ways to damage a file, without end; most meet its second half, where the descriptions are."""
    size = len(data)
    while True:
        yield lambda: data[: random.integers(0, size)]
        for count in (1, 1, 2, 8):
            places = size - 1 - (random.random(count) ** 3 * size).astype(np.int64)
            values = random.choice([0, 1, 0x7F, 0x80, 0xFF, 256], count)

            def flipped(places: Any = places, values: Any = values) -> bytes:
                copy = bytearray(data)
                for place, value in zip(places, values, strict=True):
                    copy[place] = int(value) if value < 256 else copy[place] ^ (1 << int(place) % 8)
                return bytes(copy)

            yield flipped


@contextmanager
def in_time() -> Iterator[None]:
    """Fail if a block takes too long."""

    def late(*_: object) -> None:
        raise AssertionError("an answer took too long")

    # CPU time, so that a busy machine does not matter.
    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def check(path: str, kind: str, times: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    right = answer(path, kind)
    assert right
    refused = 0
    files = [file for file in sorted(Path(path, "_indices").rglob("*")) if file.is_file()]
    for file in files:
        data = file.read_bytes()
        for _, damage in zip(range(times), damages(data, random), strict=False):
            replace(file, damage())
            try:
                with in_time():
                    result = answer(path, kind)
            except (FormatError, UnsupportedFormatError):
                refused += 1
                continue
            if kind != "INVERTED":
                assert len(result) == len(set(result))
            if kind not in VECTOR and kind != "INVERTED":
                assert set(result) <= set(right)
        replace(file, data)
    assert refused
    assert answer(path, kind) == right


def replace(file: Path, data: bytes) -> None:
    """Put a new file in the place of one that may still be mapped."""
    new = file.with_name("new")
    new.write_bytes(data)
    new.replace(file)


@pytest.mark.parametrize("builder", ["ours", "pylance"])
@pytest.mark.parametrize("kind", [*VECTOR, *ASKED])
def test_damaged_files(tmp_path: Path, kind: str, builder: str) -> None:
    check(made(tmp_path / "t", kind, builder), kind, 8 if kind == "INVERTED" else 25, 1)


@pytest.mark.slow
@pytest.mark.parametrize("builder", ["ours", "pylance"])
@pytest.mark.parametrize("kind", [*VECTOR, *ASKED])
def test_damaged_files_at_length(tmp_path: Path, kind: str, builder: str) -> None:
    check(made(tmp_path / "t", kind, builder), kind, 1000, 2)


def test_rows_that_do_not_exist(tmp_path: Path) -> None:
    """An address beyond the rows of its fragment is damage, and so are zones that no fragment can have."""
    path = made(tmp_path / "t", "BTREE", "ours")
    rows = RowResolver(Snapshot(dataset(path).table, dataset(path).manifest))
    covered = BitMap([0, 1, 2])
    there, counts = rows.addresses(np.array([249, 2 << 32, 9 << 32], np.uint64), covered)
    assert (there.tolist(), counts.tolist()) == ([249, 2 << 32, 9 << 32], [True, True, False])
    with pytest.raises(FormatError, match="row 250 of fragment 1"):
        rows.addresses(np.array([(1 << 32) + 250], np.uint64), covered)
    with pytest.raises(FormatError, match="row 100 of fragment 2"):
        rows.check(RowSet({0: None, 2: BitMap([3, 100])}))
    for zone in ([1 << 40, 0, 1], [0, 5, 1 << 33], [0, None, 1]):
        columns = [pa.array([0, value], pa.uint64()) for value in zone]
        table = pa.Table.from_arrays(columns, names=[field.name for field in ZONE_FIELDS])
        assert rows_of_zones(table, np.array([True, False])) == {0: BitMap()}
        with pytest.raises(FormatError, match="a zone of fragment"):
            rows_of_zones(table, np.array([True, True]))
