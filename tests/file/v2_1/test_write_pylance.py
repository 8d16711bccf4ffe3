"""Files of versions 2.1 and 2.2 that FileWriter makes, read back by pylance."""

from __future__ import annotations

import tempfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_lance.errors import SchemaError, UnsupportedFormatError
from spark_lance.file.schema import Schema
from spark_lance.file.version import FileVersion
from spark_lance.file.writer import FileWriter
from spark_lance.io.store import open_store
from tests.file.v2_1.pylance_table import open_in_pylance, write_file
from tests.strategies import canonical, tables

VERSIONS = ("2.1", "2.2")


def check(table: pa.Table, version: str, takes: int = 5, **how: int) -> lance.LanceDataset:
    """Write the table, open it in pylance and compare scans, takes and a filter with it."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        written = write_file(root, table, version, **how)
        assert written.num_rows == table.num_rows
        assert written.size == Path(written.path).stat().st_size
        dataset = open_in_pylance(root, table.schema, [written])
        dataset.validate()
        assert dataset.count_rows() == table.num_rows
        groups = [[field.name] for field in table.schema if len(page_lengths(field)) == 1]
        if all(page_lengths(field) == {1} for field in table.schema):
            groups.append(table.column_names)
        for columns in groups:
            compare(dataset.to_table(columns=columns), table.select(columns))
            compare_takes(dataset, table.select(columns), takes)
        return dataset


def page_lengths(field: pa.Field) -> set[int]:
    """Return the page entries per row of a field's columns.

    Only fixed-size lists of structs make them differ, and pylance 14 refuses to read two columns together
    that differ in it, whoever wrote them.
    """
    kind = field.type
    if pa.types.is_fixed_size_list(kind) and pa.types.is_struct(kind.value_type):
        return {kind.list_size * below for below in page_lengths(kind.value_field)}
    if pa.types.is_map(kind):
        return page_lengths(kind.item_field) | {1}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return page_lengths(kind.value_field)
    if pa.types.is_struct(kind) and kind.num_fields:
        return set().union(*(page_lengths(child) for child in kind))
    return {1}


def compare_takes(dataset: lance.LanceDataset, table: pa.Table, takes: int) -> None:
    if not table.num_rows:
        return
    rng = np.random.default_rng(0)
    rows = np.sort(rng.choice(table.num_rows, min(takes, table.num_rows), replace=False))
    taken = dataset.take(rows, columns=table.column_names)
    for column in table.column_names:
        values = table[column].to_pylist()
        assert canonical(taken[column]) == canonical([values[row] for row in rows]), column
    offset = int(rows[0])
    compare(dataset.to_table(columns=table.column_names, offset=offset, limit=7), table.slice(offset, 7))


def compare(got: pa.Table, expected: pa.Table) -> None:
    assert got.num_rows == expected.num_rows
    for name in expected.column_names:
        kind = expected.schema.field(name).type
        assert got.schema.field(name).type == kind
        if not got[name].equals(expected[name]):
            assert canonical(got[name]) == canonical(expected[name]), name


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_random_tables(version: str, data: st.DataObject) -> None:
    table = data.draw(tables(version))
    page_bytes = data.draw(st.sampled_from([1, 200, 4000, 8 << 20]))
    check(table, version, page_bytes=page_bytes)
