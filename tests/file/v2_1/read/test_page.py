"""Pages that are decoded together: as many rows as each says, and equal to pages decoded alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError
from spark_lance.file.base.metadata import Page
from spark_lance.file.base.schema import paths
from spark_lance.file.reader import FileReader
from spark_lance.file.v2_1.read import field_reader
from spark_lance.file.v2_1.read.page import decode_page, decode_run, run_key
from tests.file.v2_1.pylance_file import one_column, open_file, pylance_file
from tests.file.v2_1.test_read_pylance import NESTED, PLAIN, some_null

ROWS = 150_000


def lists(items: pa.Array, nulls: bool) -> pa.Array:
    """Lists of up to four items, some of them empty or null."""
    rng = np.random.default_rng(len(items))
    offsets = np.minimum(np.cumsum(rng.integers(0, 5, ROWS + 1)), len(items)).astype(np.int32)
    mask = rng.random(ROWS) < 0.1 if nulls else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, mask=None if mask is None else pa.array(mask))


NUMBERS = pa.array(np.random.default_rng(1).integers(0, 1 << 20, 400_000).astype(np.int32))
COLUMNS = {
    "empty lists": lists(NUMBERS, nulls=False),
    "null lists": lists(NUMBERS, nulls=True),
    "null items": lists(some_null(NUMBERS), nulls=True),
    "structs": lists(pa.StructArray.from_arrays([NUMBERS, some_null(NUMBERS)], ["a", "b"]), nulls=True),
    "texts": lists(pa.array([f"text {i * 7919 % 99991}" for i in range(400_000)]), nulls=True),
}


def leaf(reader: FileReader) -> tuple[Sequence[Page], Any]:
    """Return the pages of a file's first column, and its path."""
    (path, *_) = paths(reader.schema.fields[0])
    return reader.column(0).pages, path


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("name", COLUMNS)
def test_small_pages(name: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = COLUMNS[name]
    reader = open_file(pylance_file(one_column(values), version, tmp_path))
    pages, _ = leaf(reader)
    runs: list[int] = []

    def counting(pages: Sequence[Page], *rest: Any) -> pa.Array:
        runs.append(len(pages))
        return decode_run(pages, *rest)

    monkeypatch.setattr(field_reader, "decode_run", counting)
    whole = reader.read()
    whole.validate(full=True)
    assert len(pages) > 4
    assert name == "texts" or max(runs) > 2
    assert whole["a"].combine_chunks().equals(values)
    monkeypatch.setattr(field_reader, "RUN_ITEMS", 0)
    runs.clear()
    assert reader.read().equals(whole)
    assert not runs
    field = reader.open_field(reader.schema.fields[0])
    for start in range(0, ROWS, 70_001):
        stop = min(start + 70_001, ROWS)
        assert field.read(start, stop).equals(whole["a"].slice(start, stop - start))


@pytest.mark.parametrize("name", ["int64, sequence", "string", "string, few distinct", "list", "bool"])
def test_pages_of_everything(name: str, tmp_path: Path) -> None:
    """Whatever the encoding: pages with equal keys decode to the same together and alone."""
    values = {**PLAIN, **NESTED}[name]
    reader = open_file(pylance_file(one_column(values), "2.2", tmp_path))
    (page,), path = leaf(reader)
    key = run_key(page, path)
    assert (key is None) == (name == "string, few distinct")
    if key is not None:
        twice = decode_run([page, page], path, reader.source)
        alone, _ = decode_page(page, path, reader.source, 0, page.length)
        assert twice.equals(pa.concat_arrays([alone, alone]))


@pytest.mark.parametrize("name", ["int64, sequence", "list"])
@pytest.mark.parametrize("change", [(1, -1), (-1, 1), (1, 0)])
def test_pages_that_hold_other_rows(name: str, change: tuple[int, int], tmp_path: Path) -> None:
    reader = open_file(pylance_file(one_column({**PLAIN, **NESTED}[name]), "2.2", tmp_path))
    (page,), path = leaf(reader)
    pages = [replace(page, length=page.length + by) for by in change]
    with pytest.raises(FormatError):
        decode_run(pages, path, reader.source)
