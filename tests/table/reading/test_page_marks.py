"""Pages that a read looks at are counted as they are planned and as they are read: no more, and no fewer."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap

import spark_lance
from spark_lance.io.counters import ReadCounts, count_cache_hit, read_counts
from spark_lance.table.reading.page_marks import PageMarks, pages_of_rows, pages_of_runs
from spark_lance.table.reading.planned_pages import planned_pages
from spark_lance.table.row_set import RowSet

ROWS, PARTS = 4_400_000, 2


def drawn(draw: random.Random) -> tuple[list[int], int]:
    """First rows of pages, and the number of rows."""
    rows = draw.randint(1, 60)
    return [0, *sorted(draw.sample(range(1, rows), draw.randint(0, rows - 1)))], rows


@pytest.mark.parametrize("seed", range(20))
def test_pages_of_rows_are_those_that_hold_them(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(30):
        starts, rows = drawn(draw)
        page_of = [max(at for at, start in enumerate(starts) if start <= row) for row in range(rows)]
        wanted = sorted(draw.sample(range(rows), draw.randint(0, rows)))
        found = pages_of_rows(np.array(starts, np.int64), np.array(wanted, np.int64))
        assert set(np.flatnonzero(found)) == {page_of[row] for row in wanted}
        first = draw.randint(0, rows)
        runs = [(first, draw.randint(first, rows))]
        found = pages_of_runs(np.array(starts, np.int64), runs)
        assert set(np.flatnonzero(found)) == {page_of[row] for row in range(*runs[0])}


def test_a_page_counts_once_and_is_no_longer_skipped() -> None:
    before = read_counts()
    marks = PageMarks([np.array([0, 10, 20]), np.array([0])])
    assert read_counts() - before == ReadCounts(pages_skipped=4)
    marks.read_run(12, 15)
    marks.read_rows(np.array([0, 11]))
    assert read_counts() - before == ReadCounts(pages=3, pages_skipped=1)
    count_cache_hit()
    assert read_counts() - before == ReadCounts(cache_hits=1, pages=3, pages_skipped=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fragments with two pages of 8 MiB of the wide columns."""
    path = tmp_path_factory.mktemp("pages") / "t"
    values = np.random.default_rng(1).random(ROWS)
    numbers = np.arange(ROWS, dtype=np.int32)
    pair = pa.StructArray.from_arrays([pa.array(values), pa.array(numbers)], ["a", "b"])
    table = pa.table({"id": numbers, "wide": values, "s": pair})
    spark_lance.write_dataset(table, path, max_rows_per_file=ROWS // PARTS)
    spark_lance.dataset(path).create_scalar_index("id", "BTREE")
    return path


def pages_in(path: Path, columns: list[str]) -> int:
    """All pages of some columns, as pylance counts them."""
    from lance.file import LanceFileReader

    total = 0
    for file in (path / "data").glob("*.lance"):
        stored = LanceFileReader(str(file)).metadata().columns
        for name, column in zip(("id", "wide", "s", "s"), stored, strict=True):
            total += len(column.pages) * (name in columns)
    return total


def test_planned_pages_are_those_that_are_read(path: Path) -> None:
    table = spark_lance.dataset(path)
    wide = pages_in(path, ["wide"])
    assert wide >= 2 * PARTS  # there is something to skip
    scan = table.snapshot.scan(["wide"])
    assert planned_pages(scan, scan.tasks(), None) == (wide, 0)
    before = read_counts()
    table.to_table(["wide"])
    assert (read_counts() - before).pages == wide

    condition = scan.condition("id = 17 OR id = 18")
    tasks = scan.tasks_for(condition)
    assert len(tasks) == 1
    both = pages_in(path, ["wide", "id"])
    read, skipped = planned_pages(scan, tasks, condition) or (0, 0)
    assert read == 2  # one page of each column
    assert read + skipped == both
    before = read_counts()
    assert table.to_table(["wide"], "id = 17 OR id = 18").num_rows == 2
    spent = read_counts() - before
    assert spent.pages == 2
    assert spent.pages_skipped == both // PARTS - 2  # of the one fragment that was opened
    assert spent.requests > 0
    assert 0 < spent.bytes < (1 << 20)


def test_a_plan_counts_pages_of_few_fragments_only(path: Path) -> None:
    table = spark_lance.dataset(path)
    scan = table.snapshot.scan(["id"])
    assert planned_pages(scan, scan.tasks(), None, PARTS - 1) is None
    assert planned_pages(scan, scan.tasks_of(RowSet({0: BitMap([5])})), None) == (1, PARTS - 1)
    plan = table.scanner(["wide"], "id = 17").explain_plan()
    assert ", pages=2, skipped_pages=" in plan
    analyzed = table.scanner(["wide"], "id = 17").analyze_plan()
    assert "pages_read=2, pages_skipped=" in analyzed
    assert "requests=" in analyzed
    assert "rows_scanned=1," in analyzed


def test_a_file_that_is_missing_is_no_matter_of_a_plan_that_skips_it(path: Path, tmp_path: Path) -> None:
    table = spark_lance.write_dataset(pa.table({"id": [1]}), tmp_path / "t")
    table = spark_lance.write_dataset(pa.table({"id": [2]}), tmp_path / "t", mode="append")
    first = table.get_fragments()[0].message.files[0].path
    (tmp_path / "t" / "data" / first).unlink()
    plan = table.scanner(["id"], "_rowaddr = 4294967296").explain_plan()
    assert "pruned_fragments=[0] of 2" in plan
    assert "pages" not in plan
    assert table.to_table(filter="_rowaddr = 4294967296").num_rows == 1
