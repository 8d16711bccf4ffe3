"""What people get wrong: one line that says what is there, or what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.errors import LanceError, OptionTypeError, TableNotFoundError

ROWS = pa.table({"id": range(10), "s": list("abcdefghij")})


def told(call: Callable[[], Any]) -> str:
    with pytest.raises(LanceError) as error:
        call()
    text = str(error.value)
    assert "\n" not in text
    return text


def test_a_path_that_is_no_table(tmp_path: Path) -> None:
    write_dataset(ROWS, tmp_path / "flights")
    write_dataset(ROWS, tmp_path / "points")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, said in (
        ("flight", f"did you mean {tmp_path / 'flights'}?"),
        ("", "the folder holds the tables flights, points"),
        ("empty", "check the path, or write the table first"),
        ("quite/another", "check the path, or write the table first"),
        ("file", "it is a file, a table is a folder"),
    ):
        with pytest.raises(TableNotFoundError) as error:
            dataset(tmp_path / name)
        assert str(error.value).endswith(said)
    for number in range(7):
        write_dataset(ROWS, tmp_path / "many" / f"t{number}")
    assert told(lambda: dataset(tmp_path / "many")).endswith("t0, t1, t2, t3, t4 and 2 more")


@pytest.mark.parametrize("path", [None, 5, b"/tmp/x"])
def test_what_is_no_path(path: Any) -> None:
    assert told(lambda: dataset(path)) == f"a table is given by its path or URI as text, not as {path!r}"
    with pytest.raises(OptionTypeError, match=r"by its (path or )?URI"):
        write_dataset(ROWS, path)


def test_mistakes_of_arguments(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    any_table: Any = table
    assert told(lambda: table.checkout_version("nope")).endswith("does not exist; the table has none")
    table.tags.create("checked", 1)
    assert told(lambda: table.tags.delete("check")).endswith("there are: checked")
    assert told(lambda: any_table.delete(None)).startswith("delete needs a condition, not None")
    assert told(lambda: any_table.get_fragments()[0].delete(None)).startswith("delete needs a condition")
    assert table.checkout_version(table.latest_version).count_rows() == 10
    assert told(lambda: any_table.to_table(colums=["id"])).endswith("did you mean columns?")
    assert "there are columns, filter" in told(lambda: any_table.to_table(zzz=1))
    assert told(lambda: any_table.to_table(nearest="v")).endswith("'q': [...], 'k': 10}, not 'v'")
    assert "create_scalar_index(column, 'INVERTED')" in told(lambda: table.to_table(full_text_query="a"))
    assert told(lambda: any_table.take("a")) == "row numbers are a list of whole numbers, not 'a'"
    assert "timedelta(days=14), not '3 days'" in told(
        lambda: any_table.cleanup_old_versions(older_than="3 days")
    )
    table.cleanup_old_versions(older_than=timedelta(days=3))


def test_one_difference_is_told_in_one_line(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    said = told(lambda: write_dataset({"id": [1], "zz": ["a"]}, table, "append"))
    assert said.startswith("the data does not fit the table: column 'zz' is not in the table: leave it out")
    with pytest.raises(LanceError) as error:
        write_dataset({"id": ["x"], "zz": ["a"]}, table, "append")
    assert str(error.value).count("\n  - ") == 2


@pytest.mark.parametrize(
    "rows", [[True, False], np.array([True] * 10), pa.array([True, False]), slice(0, 3), [1.5], "3", [None]]
)
def test_what_numbers_no_rows(tmp_path: Path, rows: Any) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    assert "whole numbers" in told(lambda: table.take(rows)) or "integers" in told(lambda: table.take(rows))
    with pytest.raises(LanceError):
        table.get_fragments()[0].take(rows)


@pytest.mark.parametrize("count", [-1, 2.5, "3", None])
def test_samples_of_no_number_of_rows(tmp_path: Path, count: Any) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    assert told(lambda: table.sample(count)).endswith(f"from 0 on, not {count!r}")
    assert table.sample(np.int64(3)).num_rows == 3


def test_equal_versions_count_once_in_a_set(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    newer = table.delete("id = 1")
    assert len({table, dataset(tmp_path / "t", version=1), newer}) == 2


def test_lists_that_are_none(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    any_table: Any = table
    (fragment,) = table.get_fragments()
    assert told(lambda: table.scanner(fragments=any_table.get_fragments()[0])).startswith(
        "fragments is a list"
    )
    assert "as in ['id']" in told(lambda: table.add_columns(lambda batch: batch, read_columns="id"))
    assert "not by ['id', 's']" in told(lambda: any_table.create_scalar_index(["id", "s"], "BTREE"))
    assert any_table.create_scalar_index(["id"], "BTREE").has_index
    assert "pyarrow.int32()" in told(lambda: table.alter_columns({"path": "id", "data_type": "int32"}))
    assert told(lambda: table.optimize.compact_files(target_rows_per_fragment="3")).endswith(
        "number, not '3'"
    )
    for text in ("nope", "3", "{}"):
        assert "describe" in told(lambda text=text: type(fragment.metadata).from_json(text))  # type: ignore[misc]


def test_queries_without_rows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    assert "gives no rows" in told(lambda: write_dataset(ROWS, tmp_path / "t").sql(""))
