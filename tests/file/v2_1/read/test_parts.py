"""Parts of pages, read in any order by one reader, and several runs of rows of a fragment at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.file.base.schema import Schema
from spark_lance.file.base.version import FileVersion
from spark_lance.file.reader import FileReader
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
            result = reader.read(start, stop)
            assert result.combine_chunks() == table[field.name].slice(start, stop - start).combine_chunks()
