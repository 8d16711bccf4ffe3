"""Random tables through both implementations: what one writes the other reads equal, and they take turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from tests.conftest import shared
from tests.pylance_tables import read_own, read_theirs, write_theirs
from tests.strategies import canonical, edge_tables, tables

VERSIONS = ["2.0", "2.1", "2.2"]
EXAMPLES = shared(settings(max_examples=60))
MANY_EXAMPLES = settings(max_examples=1700)
FEW_EDGES = shared(settings(max_examples=12))
MANY_EDGES = settings(max_examples=200)
_PIECE = 1000


def assert_same(ours: pa.Table, theirs: pa.Table) -> None:
    """Equal names, types, nullability and values."""
    assert ours.schema.remove_metadata() == theirs.schema.remove_metadata()
    assert ours.num_rows == theirs.num_rows
    for name in ours.column_names:
        ours.column(name).validate()
        if not ours.column(name).equals(theirs.column(name)):
            # Arrow holds NaN to differ from NaN, and dictionaries to differ by the order of their items.
            assert_same_values(ours.column(name), theirs.column(name), name)


def assert_same_values(ours: pa.ChunkedArray, theirs: pa.ChunkedArray, name: str) -> None:
    """Equal values, compared in pieces: as Python objects they take many times their memory."""
    assert len(ours) == len(theirs)
    for start in range(0, len(ours), _PIECE):
        assert canonical(ours.slice(start, _PIECE)) == canonical(theirs.slice(start, _PIECE)), name


def _folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "t.lance")


def _read_theirs(version: str, table: pa.Table) -> None:
    for path in _folder():
        write_theirs(table, path, data_storage_version=version)
        expected = read_own(path)
        assert_same(spark_lance.dataset(path).to_table(), expected)


def _read_ours(version: str, table: pa.Table) -> None:
    for path in _folder():
        spark_lance.write_dataset(table, path, data_storage_version=version)
        ours = spark_lance.dataset(path).to_table()
        assert_equal_values(ours, table)
        assert_same(ours, read_theirs(path))


def assert_equal_values(ours: pa.Table, table: pa.Table) -> None:
    """Equal names and values; nullability inside of types may differ."""
    assert ours.column_names == table.column_names
    for name in table.column_names:
        same_type = ours.column(name).type == table.column(name).type
        if not (same_type and ours.column(name).equals(table.column(name))):
            assert_same_values(ours.column(name), table.column(name), name)


@pytest.mark.parametrize("version", VERSIONS)
def test_we_read_what_pylance_writes(version: str) -> None:
    EXAMPLES(given(table=tables(version))(_read_theirs))(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_what_we_write(version: str) -> None:
    EXAMPLES(given(table=tables(version))(_read_ours))(version)


@pytest.mark.reference_full
@pytest.mark.parametrize("version", VERSIONS)
def test_many_random_tables_written_by_pylance(version: str) -> None:
    MANY_EXAMPLES(given(table=tables(version, max_rows=400))(_read_theirs))(version)


@pytest.mark.reference_full
@pytest.mark.parametrize("version", VERSIONS)
def test_many_random_tables_written_by_us(version: str) -> None:
    MANY_EXAMPLES(given(table=tables(version, max_rows=400))(_read_ours))(version)


@pytest.mark.parametrize("version", VERSIONS)
def test_edges(version: str) -> None:
    FEW_EDGES(given(table=edge_tables(version))(_read_theirs))(version)
    FEW_EDGES(given(table=edge_tables(version))(_read_ours))(version)


@pytest.mark.reference_full
@pytest.mark.parametrize("version", VERSIONS)
def test_many_edges_written_by_pylance(version: str) -> None:
    MANY_EDGES(given(table=edge_tables(version))(_read_theirs))(version)


@pytest.mark.reference_full
@pytest.mark.parametrize("version", VERSIONS)
def test_many_edges_written_by_us(version: str) -> None:
    MANY_EDGES(given(table=edge_tables(version))(_read_ours))(version)


@settings(max_examples=25)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_taking_turns_on_one_table(data: st.DataObject, version: str) -> None:
    table = data.draw(tables(version, max_depth=2))
    turns = data.draw(st.lists(st.sampled_from(["ours", "theirs"]), min_size=2, max_size=4))
    for path in _folder():
        for turn, who in enumerate(turns):
            mode = "append" if turn else "create"
            if who == "ours":
                spark_lance.write_dataset(table, path, mode, data_storage_version=version)
            else:
                write_theirs(table, path, mode=mode, data_storage_version=version)
        ours, theirs = spark_lance.dataset(path), lance.dataset(path)
        # An append of nothing is a version to pylance and none to us.
        nothing = 0 if table.num_rows else sum(who == "ours" for who in turns[1:])
        assert ours.version == theirs.version == len(turns) - nothing
        assert ours.count_rows() == theirs.count_rows() == table.num_rows * len(turns)
        assert_same(ours.to_table(), read_theirs(path))


@settings(max_examples=30)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_projection_limit_and_take_agree(data: st.DataObject, version: str) -> None:
    table = data.draw(tables(version, max_depth=2, max_rows=200))
    for path in _folder():
        write_theirs(table, path, data_storage_version=version, max_rows_per_file=64)
        ours = spark_lance.dataset(path)
        columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
        limit = data.draw(st.integers(0, 300))
        offset = data.draw(st.integers(0, 300))
        whole = read_own(path, columns=columns)
        assert_same(ours.to_table(columns=columns), whole)
        assert_same(ours.to_table(columns=columns, limit=limit, offset=offset), whole.slice(offset, limit))
        if table.num_rows:
            rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), min_size=1, max_size=20))
            taken = ours.take(rows, columns=columns)
            for name in columns:
                values = whole.column(name).to_pylist()
                assert canonical(taken.column(name)) == canonical([values[row] for row in rows]), name


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), version=st.sampled_from(VERSIONS), stable=st.booleans())
def test_deleted_rows_filters_and_row_ids_agree(seed: int, version: str, stable: bool) -> None:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 400))
    table = pa.table(
        {
            "id": pa.array(np.arange(rows)),
            "x": pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.2),
            "t": pa.array(
                [None if rng.random() < 0.2 else "ab"[: int(rng.integers(0, 3))] for _ in range(rows)]
            ),
        }
    )
    for path in _folder():
        write_theirs(
            table,
            path,
            data_storage_version=version,
            max_rows_per_file=int(rng.integers(20, 200)),
            enable_stable_row_ids=stable,
        )
        theirs = lance.dataset(path)
        for _ in range(int(rng.integers(0, 3))):
            theirs.delete(f"id % {int(rng.integers(2, 9))} = {int(rng.integers(0, 3))} and id > {rows // 4}")
        ours = spark_lance.dataset(path)
        assert ours.count_rows() == theirs.count_rows()
        assert_same(
            ours.to_table(with_row_id=True, with_row_address=True),
            theirs.to_table(with_row_id=True, with_row_address=True),
        )
        bound = float(rng.normal())
        filter = (pc.field("x") > bound) & (pc.field("t") != "a")
        assert_same(
            ours.to_table(columns=["id"], filter=filter), theirs.to_table(columns=["id"], filter=filter)
        )
        assert ours.count_rows(filter) == theirs.count_rows(f"x > {bound} and t != 'a'")
        live = theirs.to_table()
        if live.num_rows:
            picks = rng.integers(0, live.num_rows, 10)
            assert_same(ours.take(picks), live.take(pa.array(picks)))
