"""Rows that were read, with what reads add to them, written to a table again; and names that occur twice."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import ExpressionError, OptionError, SchemaError

RESERVED = ["_rowid", "_rowaddr", "_rowoffset", "_row_created_at_version", "_row_last_updated_at_version"]
QUERY = {"column": "v", "q": [0.0] * 4, "k": 3}
QUERIES = {**QUERY, "q": [[0.0] * 4, [9.0] * 4]}
TEXT = {"query": "fox", "column": "t"}


def make(path: Path, *, stable: bool = False) -> LanceDataset:
    values = pa.array(np.arange(40, dtype=np.float32))
    rows = {
        "id": list(range(10)),
        "t": [f"fox {number}" for number in range(10)],
        "v": pa.FixedSizeListArray.from_arrays(values, 4),
    }
    return write_dataset(pa.table(rows), path, enable_stable_row_ids=stable, max_rows_per_file=4)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("name", RESERVED)
def test_reserved_columns_are_refused_as_by_pylance(name: str, stable: bool, tmp_path: Path) -> None:
    table = make(tmp_path / "t", stable=stable)
    rows = table.to_table(["id", name])
    write: Any = lance.write_dataset
    for path, mode in ((tmp_path / "new", "create"), (tmp_path / "t", "overwrite")):
        with pytest.raises(SchemaError, match=f"'{name}' is reserved by Lance for what a read adds; leave"):
            write_dataset(rows, path, mode)
        with pytest.raises(OSError, match="reserved name"):
            write(rows, str(path), mode=mode)
    with pytest.raises(SchemaError, match=f"'{name}' is not in the table: an option of the read adds it"):
        write_dataset(rows, tmp_path / "t", "append")
    both: list[Any] = [dataset(tmp_path / "t"), lance.dataset(str(tmp_path / "t"))]
    for one in both:
        merge = one.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        with pytest.raises((SchemaError, OSError)):
            merge.execute(rows)
    for change in (
        lambda: table.add_columns({name: "id"}),
        lambda: table.alter_columns({"path": "t", "name": name}),
        lambda: table.merge(rows, "id"),
        lambda: table.update({name: "1"}),
    ):
        with pytest.raises(SchemaError, match=name):
            change()
    assert dataset(tmp_path / "t").version == table.version


def test_what_searches_and_feeds_add_is_named(tmp_path: Path) -> None:
    table = make(tmp_path / "t", stable=True)
    for result, name, maker in (
        (table.to_table(nearest=QUERY), "_distance", "a search"),
        (table.to_table(nearest=QUERIES), "query_index", "a search"),
        (table.to_table(full_text_query=TEXT), "_score", "a search"),
        (table.diff(0).inserted(), "_rowid", "an option of the read"),
    ):
        with pytest.raises(SchemaError, match=f"{name}' is not in the table: {maker} adds it; leave it out"):
            write_dataset(result, tmp_path / "t", "append")


def test_what_a_search_found_can_be_searched_again(tmp_path: Path) -> None:
    """As with pylance, what is measured hides what an earlier search has left in the table."""
    table = make(tmp_path / "t")
    for number, result in enumerate(
        (
            table.to_table(nearest={**QUERY, "k": 10}),
            table.to_table(nearest=QUERIES),
            table.to_table(full_text_query=TEXT),
        )
    ):
        path = tmp_path / f"c{number}"
        copy = write_dataset(result, path)
        assert copy.schema.names == result.schema.names
        theirs: Any = lance.dataset(str(path))
        theirs.create_scalar_index("t", "INVERTED")
        copy = dataset(path)
        again, their = copy.to_table(nearest=QUERY), theirs.to_table(nearest=QUERY)
        assert sorted(again.schema.names) == sorted(their.schema.names)
        assert again["_distance"].to_pylist() == their["_distance"].to_pylist()
        assert again["_distance"].to_pylist()[0] == 14.0
        words = copy.to_table(full_text_query=TEXT)
        assert words.schema.names.count("_score") == 1
        assert sorted(words.schema.names) == sorted({*result.schema.names, "_score"})
        many = copy.to_table(nearest=QUERIES)
        assert sorted(many.schema.names) == sorted({*result.schema.names, "query_index", "_distance"})
        assert set(many["query_index"].to_pylist()) == {0, 1}


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_a_column_called_fragid_is_the_tables(stable: bool, tmp_path: Path) -> None:
    """Pylance has no system column of that name, so its values are data, and no fragment goes by them."""
    rows = pa.table({"id": [0, 1, 2, 3, 4], "_fragid": [40, 30, 20, 10, 0]})
    write: Any = lance.write_dataset
    write(rows, str(tmp_path / "theirs"), max_rows_per_file=2, enable_stable_row_ids=stable)
    write_dataset(rows, tmp_path / "ours", max_rows_per_file=2, enable_stable_row_ids=stable)
    for path in (tmp_path / "theirs", tmp_path / "ours"):
        table, theirs = dataset(path), lance.dataset(str(path))
        assert table.to_table() == theirs.to_table() == rows
        assert table.to_table(["_fragid", "_rowaddr"])["_fragid"].to_pylist() == [40, 30, 20, 10, 0]
        for condition in ("_fragid = 10", "_fragid > 15", "_fragid in (0, 40)", "_fragid < 2 or id = 1"):
            expected = theirs.to_table(filter=condition)
            assert table.to_table(filter=condition) == expected, condition
            assert table.count_rows(condition) == expected.num_rows
        table = table.update({"_fragid": "_fragid + 1"}, where="_fragid = 20").dataset
        table = table.delete("_fragid = 10")
        left = table.to_table()
        assert sorted(left["_fragid"].to_pylist()) == [0, 21, 30, 40]
        assert lance.dataset(str(path)).to_table() == left
    copied = make(tmp_path / "t").to_table(["id", "_fragid"])
    assert write_dataset(copied, tmp_path / "copy").to_table() == copied


@pytest.mark.parametrize("name", RESERVED)
def test_a_hidden_column_of_a_reserved_name_is_no_trouble(name: str, tmp_path: Path) -> None:
    """Pylance lets such a column be added, and reads the table no more."""
    make(tmp_path / "t")
    theirs: Any = lance.dataset(str(tmp_path / "t"))
    theirs.add_columns({name: "id * 10"})
    table = dataset(tmp_path / "t")
    values = table.to_table([name])[name].to_pylist()
    assert values == make(tmp_path / "u").to_table([name])[name].to_pylist()
    if name == "_rowoffset":
        with pytest.raises(ExpressionError, match="_rowoffset"):
            table.to_table(["id"], "_rowoffset = 1")
    else:
        assert len(table.to_table(["id"], f"{name} = {values[5]}")) == values.count(values[5])
    assert table.drop_columns([name]).schema.names == ["id", "t", "v"]


def test_columns_without_a_name(tmp_path: Path) -> None:
    rows = pa.table({"": [1], "b": [2]})
    with pytest.raises(SchemaError, match="a column has no name"):
        write_dataset(rows, tmp_path / "t")
    table = write_dataset(pa.table({"b": [2]}), tmp_path / "t")
    changes: list[Callable[[], object]] = [
        lambda: table.add_columns({"": "b"}),
        lambda: table.alter_columns({"path": "b", "name": ""}),
        lambda: write_dataset(rows, tmp_path / "t", "overwrite"),
    ]
    for change in changes:
        with pytest.raises(SchemaError, match="a column has no name"):
            change()
    nested = pa.table({"s": [{"": 1}]})
    assert write_dataset(nested, tmp_path / "n").to_table() == nested
    assert lance.dataset(str(tmp_path / "n")).to_table() == nested


def test_columns_that_are_named_twice(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    for names in (["id", "id"], ["_rowid", "_rowid"]):
        for read in (
            lambda names=names: table.to_table(names),
            lambda names=names: list(table.to_batches(names)),
            lambda names=names: table.take([0], names),
            lambda names=names: table.take_rows([0], names),
            lambda names=names: table.to_table(names, nearest=QUERY),
            lambda names=names: table.to_table(names, full_text_query=TEXT),
        ):
            with pytest.raises(SchemaError, match=r"columns has .* twice: leave one out"):
                read()
    assert table.to_table(["_rowid"], with_row_id=True).schema.names == ["_rowid"]


def test_a_tag_and_a_branch_of_one_name(tmp_path: Path) -> None:
    table = make(tmp_path / "t")
    table.tags.create("x", 1)
    branch = table.create_branch("x")
    write_dataset(pa.table({"id": [100]}), branch.uri, mode="append")
    assert dataset(tmp_path / "t", version="x").count_rows() == 10
    assert dataset(tmp_path / "t", version=("x", None)).count_rows() == 11
    table.tags.create("1", 1)
    assert dataset(tmp_path / "t", version="1").version == 1
    with pytest.raises(OptionError, match="not both"):
        dataset(tmp_path / "t", version="x", asof="2030-01-01")


def test_an_index_stays_with_its_field_and_not_with_its_name(tmp_path: Path) -> None:
    table = make(tmp_path / "t").create_scalar_index("id", "BTREE", name="i")
    table = table.create_scalar_index("t", "INVERTED", name="w")
    table = table.alter_columns({"path": "t", "name": "u"}, {"path": "id", "name": "old"})
    table = table.add_columns({"t": "'dog'", "id": "old * 2"})
    assert len(table.to_table(["u"], full_text_query={"query": "fox", "column": "u"})) == 10
    assert len(table.to_table(["t"], full_text_query={"query": "fox", "column": "t"})) == 0
    assert table.to_table(["old", "id"], "id = 4").to_pydict() == {"old": [2], "id": [4]}
    assert table.to_table(["old", "id"], "old = 4").to_pydict() == {"old": [4], "id": [8]}
    table = table.drop_columns(["u", "old"])
    assert table.list_indices() == []
    table = table.add_columns({"u": "'cat'"})
    assert len(table.to_table(["u"], full_text_query={"query": "fox", "column": "u"})) == 0
    assert len(table.create_scalar_index("id", "BTREE", name="i").to_table(["id"], "id = 6")) == 1
    write_dataset(pa.table({"id": [7, 8]}), tmp_path / "t", "overwrite")
    shutil.rmtree(tmp_path / "t" / "_indices")
    assert dataset(tmp_path / "t").to_table(filter="id = 7").num_rows == 1
