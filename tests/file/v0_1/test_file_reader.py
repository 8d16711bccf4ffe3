"""Pages of legacy files that cannot hold a value are not read."""

from __future__ import annotations

import datetime
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.errors import OptionError
from spark_lance.file.reader import open_file
from spark_lance.file.v0_1.file_reader import LegacyFileReader
from spark_lance.io.store import open_store

ROWS, GROUP = 4000, 100
NUMBERS = np.arange(ROWS)
HOLES = NUMBERS % 7 == 3
WORDS = [None if hole else f"{i // 10:06} {'x' * (i % 90)}" for i, hole in enumerate(HOLES)]
COLUMNS: dict[str, pa.Array] = {
    "int": pa.array(NUMBERS),
    "int with nulls": pa.array(NUMBERS, mask=HOLES & (NUMBERS > 2000)),
    "float": pa.array(np.where(NUMBERS % 50 == 7, np.nan, NUMBERS / 7)),
    "day": pa.array([datetime.date(2000, 1, 1) + datetime.timedelta(int(i) // 9) for i in NUMBERS]),
    "time": pa.array(NUMBERS * 1_000_000, pa.timestamp("us")),
    "word": pa.array(WORDS),
    "bool": pa.array(NUMBERS > 1000),
    "same": pa.array(NUMBERS // 1000),
}
COMPARE = {
    "==": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal,
    ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> LegacyFileReader:
    root = tmp_path_factory.mktemp("legacy") / "t"
    lance.write_dataset(pa.table(COLUMNS), root, data_storage_version="legacy", max_rows_per_group=GROUP)
    (file,) = (root / "data").iterdir()
    opened = open_file(*open_store(str(file)))
    assert isinstance(opened, LegacyFileReader)
    return opened


def matching(
    reader: LegacyFileReader, name: str, comparison: str, value: Any
) -> tuple[list[int], list[int], int]:
    """Return the matching rows of a scan, those in the possible ranges, and the size of these."""
    field = reader.schema.field(name)
    function = COMPARE[comparison]

    def rows(start: int, stop: int) -> list[int]:
        values = reader.open_field(field).read(start, stop).combine_chunks()
        result = pc.fill_null(function(values, pa.scalar(value)), False)
        numbers: list[int] = (np.flatnonzero(result.to_numpy(zero_copy_only=False)) + start).tolist()
        return numbers

    ranges = reader.page_ranges_maybe(field, comparison, value)
    picked = [row for start, stop in ranges for row in rows(start, stop)]
    return rows(0, reader.num_rows), picked, sum(stop - start for start, stop in ranges)


@settings(max_examples=150)
@given(data=st.data())
def test_no_row_is_lost(reader: LegacyFileReader, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(list(COLUMNS)))
    comparison = data.draw(st.sampled_from(list(COMPARE)))
    row = data.draw(st.integers(0, ROWS - 1))
    value = COLUMNS[name][row].as_py()
    if value is None or value != value:
        value = COLUMNS[name][0].as_py()
    whole, picked, _ = matching(reader, name, comparison, value)
    assert picked == whole


@pytest.mark.parametrize(
    ("name", "comparison", "value", "most"),
    [
        ("int", "==", 1234, GROUP),
        ("int", ">=", 3900, GROUP),
        ("int", "<", 100, GROUP),
        ("int", "<=", 100, 2 * GROUP),
        ("int", ">", 5000, 0),
        ("int", "<", 0.5, GROUP),
        ("int", "<", 100.5, 2 * GROUP),
        ("float", ">", 500.0, 5 * GROUP),
        ("day", "==", datetime.date(2000, 3, 1), 2 * GROUP),
        ("bool", "<", True, 1100),
        ("word", "==", "000123 " + "x" * 60, GROUP),
        ("word", ">", "1", 0),
        ("same", "!=", 2, 3000),
        # Nulls read back as 0, which no bound covers.
        ("int with nulls", "==", 0, 2100),
    ],
)
def test_pages_are_skipped(
    reader: LegacyFileReader, name: str, comparison: str, value: Any, most: int
) -> None:
    whole, picked, rows = matching(reader, name, comparison, value)
    assert picked == whole
    assert rows <= most


def test_what_is_not_known_may_be_anywhere(reader: LegacyFileReader) -> None:
    every = [(0, ROWS)]
    for name, comparison, value in (
        ("int", "==", "text"),
        ("int", "==", None),
        ("float", "!=", 1.0),
        # pylance keeps no statistics of times.
        ("time", "<", datetime.datetime(1970, 1, 1, 0, 1)),
    ):
        assert reader.page_ranges_maybe(reader.schema.field(name), comparison, value) == every
    with pytest.raises(OptionError, match="comparison"):
        reader.page_ranges_maybe(reader.schema.field("int"), "~", 1)


def test_skipped_pages_are_not_read(reader: LegacyFileReader) -> None:
    field = reader.schema.field("int")
    opened = reader.open_field(field)
    needed = sum(
        size
        for start, stop in reader.page_ranges_maybe(field, "==", 1234)
        for _, size in opened.ranges(start, stop)
    )
    assert needed == GROUP * 8
    assert sum(size for _, size in opened.ranges(0, ROWS)) == ROWS * 8
