"""Parts of pages in any order, by one reader; what is asked for again and again is decoded as a whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.reader import FileReader
from spark_lance.file.schema import Schema
from spark_lance.file.v2_1.read import row_page
from spark_lance.file.version import FileVersion
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import open_store

ROWS = 20_000


def written(path: Path) -> tuple[FileReader, pa.Table]:
    """Return a file of columns that are stored in several ways, and its rows."""
    chance = np.random.default_rng(1)
    table = pa.table(
        {
            "n": chance.integers(0, 1000, ROWS),
            "maybe": pa.array([None if i % 7 == 0 else i for i in range(ROWS)], pa.int32()),
            "s": [f"text {i * 31 % 977}" for i in range(ROWS)],
            "l": [list(range(i % 4)) for i in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(chance.random(ROWS * 32, np.float32)), 32),
        }
    )
    store, inner = open_store(str(path / "f.lance"))
    writer = FileWriter(store, inner, Schema.from_arrow(table.schema), FileVersion.V2_2)
    for batch in table.to_batches():
        writer.write(batch)
    writer.finish()
    return FileReader(store, inner), table


@pytest.mark.parametrize("width", [7, 300, 2000])
def test_parts_in_any_order_are_the_rows(tmp_path: Path, width: int) -> None:
    file, table = written(tmp_path)
    chance = np.random.default_rng(width)
    for field in file.schema.fields:
        reader = file.open_field(field)
        for start in chance.integers(0, ROWS - width, 25).tolist():
            stop = start + int(chance.integers(1, width + 1))
            found = reader.read(start, stop)
            assert found.combine_chunks() == table[field.name].slice(start, stop - start).combine_chunks()


def test_a_page_of_which_parts_are_read_often_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, table = written(tmp_path)
    taken: list[int] = []
    really = row_page.RowPage.take

    def noted(page: row_page.RowPage, rows: np.ndarray) -> pa.Array:
        taken.append(len(rows))
        return really(page, rows)

    monkeypatch.setattr(row_page.RowPage, "take", noted)
    reader = file.open_field(file.schema.field("n"))
    for start in (9000, 2000, 15_000, 300, 11_000):
        assert reader.read(start, start + 50).to_pylist() == table["n"].slice(start, 50).to_pylist()
    assert taken == [50, 50]
