"""Frequent mistakes: one line that lists the existing names, or the text to write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import spark_lance
from spark_lance import commit_options, dataset, errors, write_dataset
from spark_lance.cli.main import main
from spark_lance.errors import CommitOutcomeUnknownError, LanceError, OptionTypeError, TableNotFoundError
from spark_lance.table.metadata import metadata_table
from tests.conftest import ROOT

ROWS = pa.table({"id": range(10), "s": list("abcdefghij")})


def line_of(call: Callable[[], Any]) -> str:
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
    for name, part in (
        ("flight", f"did you mean {tmp_path / 'flights'}?"),
        ("", "the folder holds the tables flights, points"),
        ("empty", "check the path, or write the table first"),
        ("quite/another", "check the path, or write the table first"),
        ("file", "it is a file, a table is a folder"),
    ):
        with pytest.raises(TableNotFoundError) as error:
            dataset(tmp_path / name)
        assert str(error.value).endswith(part)
    for number in range(7):
        write_dataset(ROWS, tmp_path / "many" / f"t{number}")
    assert line_of(lambda: dataset(tmp_path / "many")).endswith("t0, t1, t2, t3, t4 and 2 more")


@pytest.mark.parametrize("path", [None, 5, b"/tmp/x"])
def test_what_is_no_path(path: Any) -> None:
    assert line_of(lambda: dataset(path)) == f"a table is given by its path or URI as text, not as {path!r}"
    with pytest.raises(OptionTypeError, match=r"by its (path or )?URI"):
        write_dataset(ROWS, path)


def test_mistakes_of_arguments(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    any_table: Any = table
    assert line_of(lambda: table.checkout_version("nope")).endswith("does not exist; the table has none")
    table.tags.create("checked", 1)
    assert line_of(lambda: table.tags.delete("check")).endswith("there are: checked; did you mean 'checked'?")
    assert line_of(lambda: any_table.delete(None)).startswith("delete needs a condition, not None")
    assert line_of(lambda: any_table.get_fragments()[0].delete(None)).startswith("delete needs a condition")
    assert table.checkout_version(table.latest_version).count_rows() == 10
    assert line_of(lambda: any_table.to_table(colums=["id"])).endswith("did you mean columns?")
    assert "there are columns, filter" in line_of(lambda: any_table.to_table(zzz=1))
    assert line_of(lambda: any_table.to_table(nearest="v")).endswith("'q': [...], 'k': 10}, not 'v'")
    assert "create_scalar_index(column, 'INVERTED')" in line_of(lambda: table.to_table(full_text_query="a"))
    assert line_of(lambda: any_table.take("a")) == "row numbers must be a list of integers, not 'a'"
    assert "timedelta(days=14), not '3 days'" in line_of(
        lambda: any_table.cleanup_old_versions(older_than="3 days")
    )
    table.cleanup_old_versions(older_than=timedelta(days=3))


def test_one_difference_is_told_in_one_line(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    part = line_of(lambda: write_dataset({"id": [1], "zz": ["a"]}, table, "append"))
    assert part.startswith("the data does not fit the table: column 'zz' is not in the table: leave it out")
    with pytest.raises(LanceError) as error:
        write_dataset({"id": ["x"], "zz": ["a"]}, table, "append")
    assert str(error.value).count("\n  - ") == 2


@pytest.mark.parametrize(
    "rows", [[True, False], np.array([True] * 10), pa.array([True, False]), slice(0, 3), [1.5], "3", [None]]
)
def test_what_numbers_no_rows(tmp_path: Path, rows: Any) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    assert "whole numbers" in line_of(lambda: table.take(rows)) or "integers" in line_of(
        lambda: table.take(rows)
    )
    with pytest.raises(LanceError):
        table.get_fragments()[0].take(rows)


@pytest.mark.parametrize("count", [-1, 2.5, "3", None])
def test_samples_of_no_number_of_rows(tmp_path: Path, count: Any) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    assert line_of(lambda: table.sample(count)).endswith(f"from 0 on, not {count!r}")
    assert table.sample(np.int64(3)).num_rows == 3


def test_equal_versions_count_once_in_a_set(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    newer = table.delete("id = 1")
    assert len({table, dataset(tmp_path / "t", version=1), newer}) == 2


def test_lists_that_are_none(tmp_path: Path) -> None:
    table = write_dataset(ROWS, tmp_path / "t")
    any_table: Any = table
    (fragment,) = table.get_fragments()
    assert line_of(lambda: table.scanner(fragments=any_table.get_fragments()[0])).startswith(
        "fragments is a list"
    )
    assert "as in ['id']" in line_of(lambda: table.add_columns(lambda batch: batch, read_columns="id"))
    assert "not by ['id', 's']" in line_of(lambda: any_table.create_scalar_index(["id", "s"], "BTREE"))
    assert any_table.create_scalar_index(["id"], "BTREE").has_index
    assert "pyarrow.int32()" in line_of(lambda: table.alter_columns({"path": "id", "data_type": "int32"}))
    assert line_of(lambda: table.optimize.compact_files(target_rows_per_fragment="3")).endswith(
        "number, not '3'"
    )
    for text in ("nope", "3", "{}"):
        assert "describe" in line_of(lambda text=text: type(fragment.metadata).from_json(text))  # type: ignore[misc]


def test_queries_without_rows(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    assert "gives no rows" in line_of(lambda: write_dataset(ROWS, tmp_path / "t").sql(""))


# Each line is a mistake, as a user makes it, and the essential part of the message.
MISTAKES = [
    ("ds.to_table(columns=['ordr_id'])", "has order_id, customer, address, v; did you mean 'order_id'?"),
    ("ds.to_table(columns=['address.cty'])", "'address' has city, zip; did you mean 'city'?"),
    ("ds.to_table(filter='ordr_id = 1')", "customer, address, v; did you mean 'order_id'?"),
    ("ds.to_table(filter='address.cty = 1')", "'cty' in address: there are city, zip; did you mean 'city'?"),
    ("ds.to_table(filter='order_id = ')", "something is missing at '=', line 1, column 10"),
    ("ds.to_table(filter='lowr(customer) = 1')", "the function lowr is not supported; did you mean 'lower'?"),
    ("ds.to_table(order_by=['ordr_id'])", "did you mean 'order_id'?"),
    ("ds.to_table(column=['order_id'])", "did you mean columns?"),
    ("ds.to_table(limit=-1)", "Limit must be non-negative, not -1"),
    ("ds.to_table(offset=-2)", "Offset must be non-negative, not -2"),
    ("ds.head(-1)", "Limit must be non-negative, not -1"),
    ("ds.count_rows('ordr_id > 1')", "did you mean 'order_id'?"),
    ("ds.delete('ordr_id = 1')", "did you mean 'order_id'?"),
    ("ds.update({'custmer': '1'})", "did you mean 'customer'?"),
    ("ds.update({'customer': 'ordr_id'})", "Values are SQL: write a text in quotes"),
    ("ds.to_table(nearest={'column': 'vv', 'q': [0.0] * 4, 'k': 1})", "no column 'vv'"),
    ("ds.to_table(nearest={'column': 'v', 'q': [0.0] * 3, 'k': 1})", "the query has 3 values"),
    ("ds.to_table(nearest={'column': 'v', 'q': [0.0] * 4, 'nprobe': 1})", "did you mean 'nprobes'?"),
    ("ds.to_table(nearest={'column': 'v', 'q': [0.0] * 4, 'metric': 'cosin'})", "did you mean 'cosine'?"),
    ("ds.to_table(full_text_query='x')", "create_scalar_index(column, 'INVERTED')"),
    ("dataset(path, version=99)", "version 99 of PATH does not exist"),
    ("dataset(path, version='cheked')", "there are: checked; did you mean 'checked'?"),
    ("dataset(path, asof='yesterday')", "write it as 2026-01-31 12:00:00"),
    ("dataset(path + 's')", "did you mean PATH?"),
    ("ds.checkout_version('cheked')", "did you mean 'checked'?"),
    ("ds.tags.delete('cheked')", "did you mean 'checked'?"),
    ("ds.tags.create('checked')", "tag 'checked' exists already: update it, or delete it first"),
    ("ds.create_branch('audit')", "branch 'audit' of PATH exists already"),
    ("ds.branches.delete('audt')", "there are: main, audit; did you mean 'audit'?"),
    ("ds.create_scalar_index('ordr_id', 'BTREE')", "did you mean 'order_id'?"),
    ("ds.create_scalar_index('order_id', 'BTRE')", "use one of BTREE, BITMAP, LABEL_LIST, NGRAM"),
    ("ds.create_scalar_index('order_id', 'btre')", "did you mean 'BTREE'?"),
    ("ds.create_scalar_index('customer', 'INVERTED', language='Englsh')", "did you mean 'English'?"),
    ("ds.create_index('v', 'IVF_PG')", "use one of IVF_FLAT, IVF_PQ"),
    ("ds.create_index('v', 'IVF_FLAT', metric='cosin')", "did you mean 'cosine'?"),
    ("ds.create_index('customer', 'IVF_FLAT')", "a column of type string cannot have a vector index"),
    ("ds.drop_index('order_idx')", "there is order_id_idx; did you mean 'order_id_idx'?"),
    ("ds.drop_columns(['custmer'])", "did you mean 'customer'?"),
    ("ds.alter_columns({'path': 'custmer', 'name': 'c'})", "did you mean 'customer'?"),
    ("ds.add_columns({'x': 'ordr_id + 1'})", "did you mean 'order_id'?"),
    ("ds.optimize.compact_files(target_rows=5)", "there are target_rows_per_fragment"),
    ("ds.optimize.compact_files(batchsize=5)", "did you mean 'batch_size'?"),
    ("ds.cleanup_old_versions(older_than=3)", "as in timedelta(days=14), not 3"),
    ("ds.take([99])", "row positions must be within 0 and 19"),
    ("ds.take_blobs('v', [0])", "is not a blob column"),
    ("write_dataset(rows, path)", "use mode append or overwrite"),
    ("write_dataset(rows, path, mode='apend')", "append, overwrite; did you mean 'append'"),
    ("write_dataset(rows, path + '3', data_storage_version=2.1)", "is a text, such as '2.2', not 2.1"),
    ("write_dataset([{'a': 1, 'b': 1}, {'a': 2, 'b': 'x'}], path + '3')", "column 'b': Could not convert"),
    ("ds.to_table(filter='customer.name = 1')", "in customer, which is a string, not a struct"),
    ("ds.to_table(filter='(order_id = 1')", "')' is missing at '1'"),
    ("ds.update({'address.cty': \"'x'\"})", "did you mean 'city'?"),
    ("ds.update({'address.city': \"'x'\"})", "set its whole column here, or use UPDATE in Spark SQL"),
    ("ds.to_table(columns='order_id, customer')", "as in columns=['order_id', 'customer']"),
    ("ds.create_scalar_index('order_id', 'BTREE', foo=1)", "takes no options: leave out foo"),
    ("dataset(path + '/nope')", "it would be inside a table: open PATH"),
    ("dataset(path + 's.lance')", "did you mean PATH?"),
    ("dataset('s3://')", "write a URI such as s3://bucket/t"),
    ("write_dataset(rows, path + '3', compression='zst')", "did you mean 'zstd'?"),
    ("write_dataset(pa.table({'ordr_id': [1]}), path, mode='append')", "leave it out, or add it first"),
    ("write_dataset(pa.table({'order_id': ['x']}), path, mode='append')", "cast it to int64"),
    ("write_dataset(rows, path + '2', data_storage_version='9.9')", "use one of 2.0, 2.1, 2.2"),
    ("write_dataset(rows, path + '3', max_rows_per_file=0)", "max_rows_per_file must be at least 1, not 0"),
    ("metadata_table('histry')", "use one of versions, history"),
    ("metadata_table('snapshot')", "did you mean 'snapshots'?"),
    ("ds.to_table(columns='order_id')", "as in columns=['order_id']"),
    ("ds.to_table(filter='customer = 5')", "write a text in quotes, '5'"),
    ("ds.to_table(filter='order_id = \\'x\\'')", "write a number without quotes"),
    ("ds.to_table(filter='address = 5')", "compare one of its fields, city, zip"),
    ("ds.to_table(filter='customer like xyz')", "a text needs quotes, 'xyz'"),
    ("ds.to_table(filter=5)", "SQL text or an expression of pyarrow, not 5"),
    ("ds.to_table(limit='5')", "limit must be a whole number, not '5'"),
    ("ds.to_table(batch_size=0)", "batch_size must be at least 1, not 0"),
    ("ds.to_table(batch_size='x')", "batch_size must be a whole number, not 'x'"),
    ("ds.to_table(full_text_query={'query': 'a', 'column': 'order_id'})", "search texts, lists of"),
    ("ds.to_table(full_text_query={'query': 'a', 'colum': 'customer'})", "did you mean 'column'?"),
    ("ds.to_table(nearest=[0.0] * 4)", "nearest is a dict such as"),
    ("ds.to_table(nearest={'column': 'v', 'q': [0.0] * 4, 'k': 0})", "must be 1 or more, not 0"),
    ("ds.to_table(with_rowaddress=True)", "did you mean with_row_address?"),
    ("ds.take([1], columns=['custmer'])", "did you mean 'customer'?"),
    ("ds.count_rows(5)", "SQL text or an expression of pyarrow, not 5"),
    ("ds.delete('')", "must be one SQL expression, such as"),
    ("ds.update('customer = 1')", "updates is a dict from columns to SQL values"),
    ("ds.update({})", "an update needs at least one column, as in"),
    ("ds.merge_insert('ordr_id').when_matched_delete().execute(rows)", "did you mean 'order_id'?"),
    ("ds.merge_insert('order_id').execute(rows)", "call when_matched_update_all()"),
    (
        "ds.merge_insert('order_id').when_matched_update_all().execute(pa.table({'ordr_id': [1]}))",
        "it has ordr_id; did you mean 'ordr_id'?",
    ),
    ("ds.add_columns({'customer': 'order_id'})", "choose another name, or change its values by an update"),
    ("ds.add_columns('x')", "new columns are a dict from names to SQL"),
    ("ds.alter_columns({'path': 'customer', 'data_type': pa.int32()})", "add a new column with"),
    ("ds.drop_columns('customer')", "columns is a list, as in ['customer']"),
    ("ds.create_scalar_index('v', 'BTREE')", "for vectors write create_index('v', 'IVF_PQ')"),
    ("ds.create_scalar_index('address', 'BTREE')", "index one of its fields, such as 'address.city'"),
    ("ds.create_index('v', 'IVF_FLAT', num_partitions=0)", "num_partitions must be 1 or more, not 0"),
    ("ds.create_index('v', 'IVF_FLAT', num_partition=2)", "did you mean 'num_partitions'?"),
    ("ds.create_index('v', 'IVF_PQ', num_sub_vectors=3)", "use one of 1, 2, 4"),
    ("ds.create_scalar_index('customer', 'INVERTED', langage='English')", "did you mean 'language'?"),
    ("ds.optimize.optimize_indices(index_names=['order_idx'])", "the table has order_id_idx; did you mean"),
    ("ds.optimize.compact_files(materialize_deletions_threshold=5)", "must be a share from 0 to 1, not 5"),
    ("ds.cleanup_old_versions(retain_versions=0)", "retain_versions must be at least 1, not 0"),
    ("ds.tags.create('new tag!', 1)", "use letters, digits"),
    ("ds.tags.update('chekd', 1)", "did you mean 'checked'?"),
    ("ds.shallow_clone(path)", "a Lance table already exists at"),
    ("ds.update_config({'a': 1})", "settings are a dict from keys to texts or None"),
    ("ds.settings.add_constraint('p', 'order_id < 0')", "correct or delete such rows first"),
    ("ds.upsert_log()", "initialize_mem_wal()"),
    ("ds.explain('pdf')", "use text or html"),
    ("dataset(path, version=('audt', None))", "did you mean 'audit'?"),
    ("dataset(path, storage_options='x')", "storage_options is a dict, such as"),
    ("dataset('s3x://bucket/t')", "use a local path, s3://"),
    ("write_dataset(None, path + '4')", "give an Arrow table or stream"),
    ("write_dataset(pa.table({'a.b': [1]}), path + '5')", "rename the column"),
    ("ds.to_table(columns=['Order_Id'])", "did you mean 'order_id'?"),
    ("ds.to_table(columns=['order_id', 'order_id'])", "columns has 'order_id' twice: leave one out"),
    ("ds.to_table(filter='order_id = 1 && order_id = 2')", "is not understood: write `and`"),
    ("ds.to_table(filter='order_id in 1,2')", "a list in parentheses, as in `id in (1, 2)`"),
    ("ds.to_table(filter='order_id')", "compare it, as in order_id = ..."),
    ("ds.to_table(filter='v > 1')", "search vectors by nearest="),
    ("ds.to_table(filter=\"array_has(customer, 'a')\")", "need a column of lists, not of string"),
    ("ds.to_table(filter='cast(customer as itn) = 1')", "did you mean 'int'?"),
    ("ds.to_table(nearest={'q': [0.0] * 4, 'k': 1})", "nearest needs column, as in {'column'"),
    ("ds.to_table(nearest={'column': 'v', 'q': 'abc'})", "must be a list of numbers or a list of such lists"),
    ("ds.to_table(nearest={'column': 'v', 'q': [1, 2, None, 3]})", "contains NaN, infinity or a null"),
    ("ds.to_table(nearest={'column': 'customer', 'q': [0.0]})", "search a column of vectors"),
    ("ds.to_table(full_text_query={'column': 'customer'})", "as in {'query': 'words', 'column': 'title'}"),
    ("ds.create_scalar_index('address.cty', 'BTREE')", "did you mean 'city'?"),
    ("ds.create_index('v', 'BTREE')", "write create_scalar_index(column, 'BTREE')"),
    ("ds.tags.create('x', 99)", "version 99 of PATH does not exist (available: 1, 2)"),
    ("dataset('')", "the path of the table is empty"),
    ("dataset(path + '/data')", "it is a folder inside a table: open PATH"),
    ("dataset(path, tag='checked')", "keyword argument 'tag': write version='my-tag'"),
    ("dataset(path, storage_optons={})", "did you mean 'storage_options'?"),
    ("write_dataset(rows, path + '6', max_rows_per_fil=5)", "did you mean 'max_rows_per_file'?"),
    ("write_dataset(rows, path + '7', compression='gzip')", "use one of zstd, lz4, fsst, none"),
    ("write_dataset(pa.table({'v': [[1.0, 2.0]]}), path, mode='append')", "cast it to"),
    ("write_dataset(pa.table({'address': [{'cty': 'x'}]}), path, mode='append')", "column 'address.cty'"),
    ("write_dataset([1, 2], path + '8')", "it must give record batches, tables, DataFrames or dicts"),
    ("ds.add_columns({'x': 5})", "the values of column 'x' are SQL text, such as '5', not 5"),
    ("ds.add_columns(lambda batch: {'x': [1]})", "<lambda> returned dict: return a record batch"),
    ("ds.alter_columns('customer')", "an alteration is a dict, such as {'path': 'a', 'name': 'b'}"),
    ("ds.alter_columns({'path': 'customer', 'nam': 'c'})", "did you mean 'name'?"),
    ("ds.alter_columns({'path': 'customer', 'nullable': 'x'})", "is True or False, not 'x'"),
    ("ds.drop_columns(['order_id', 'customer', 'address', 'v'])", "keep one, or delete the table"),
    ("ds.update({'order_id': \"'x'\"})", "column 'order_id': a value of type string cannot become int64"),
    ("ds.merge_insert([]).when_matched_update_all().execute(rows)", "as in merge_insert('id')"),
    ("ds.merge(pa.table({'ordr_id': [1], 'z': [1]}), 'order_id')", "did you mean 'ordr_id'?"),
    ("ds.cleanup_old_versions(retain_versions='3')", "is a whole number, such as 3, not '3'"),
    ("ds.history('x')", "limit is a whole number, such as 10 for the newest ten versions, not 'x'"),
    ("ds.settings.add_constraint('p', 'ordr_id > 0')", "did you mean 'order_id'?"),
    ("ds.settings.drop_constraint('p')", "has no constraint p; the table has none"),
    ("commit_options(retry=3).__enter__()", "as in RetryPolicy(attempts=50), not 3"),
]  # fmt: skip


# As above, on the command line; PATH is the table.
COMMANDS = [
    ("inspct PATH", "Did you mean 'inspect'?"),
    ("history PATH --limt 3", "No such option '--limt'. Did you mean '--limit'?"),
    ("compact PATH --target-rows x", "Invalid value for '--target-rows': 'x' is not a valid integer"),
    ("inspect PATHs", "error: no Lance table at PATHs: did you mean PATH?"),
    ("inspect PATH --version 99", "error: version 99 of PATH does not exist (available: 1, 2)"),
    ("head PATH --columns custmer", "did you mean 'customer'?"),
    ("head PATH --filter custmer=1", "did you mean 'customer'?"),
    ("restore PATH 99", "error: version 99 of PATH does not exist (available: 1, 2)"),
    ("export PATH out.txt", "error: the extension of out.txt has no known format: add --format, one of"),
    ("head", "error: Missing argument 'TABLE'. Usage: "),
    ("head PATH -n x", "'x' is not a whole number"),
    ("head PATH extra", "Got unexpected extra argument (extra) Usage: "),
    ("head PATH --where order_id=x", "a text needs quotes, 'x'"),
    ("search PATH", "search needs one of --vector, --like-row and --text"),
    ("search PATH --vector x", "takes numbers in brackets, such as [0.1,0.2]"),
    ("search PATH --vector [1,2] --column v", "the query has 2 values"),
    ("index build PATH ordr_id BTREE", "did you mean 'order_id'?"),
    ("index build PATH order_id BTRE", "did you mean 'BTREE'?"),
    ("index build PATH customer INVERTED --option language", "--option takes NAME=VALUE"),
    ("index drop PATH order_idx", "did you mean 'order_id_idx'?"),
    ("tags crate PATH x", "Did you mean 'create'?"),
    ("tags delete PATH cheked", "did you mean 'checked'?"),
    ("branches delete PATH audt", "did you mean 'audit'?"),
    ("vacuum PATH --older-than 7", "write one like 14days"),
    ("vacuum PATH --older-than 0s", "pass --allow-short-retention"),
    ("import nofile.csv PATH", "nofile.csv does not exist"),
    ("import nofile.csv PATH --mode apend", "is not one of 'append', 'create', 'overwrite'"),
    ("inspect PATH --asof yesterday", "write it as 2026-01-31 12:00:00"),
    ("diff PATH", "Missing argument 'FROM'. Usage: "),
    ("completion powershell", "is not one of 'bash', 'zsh', 'fish'"),
]  # fmt: skip

# The mistakes whose messages are graded B: they need more than one line, or do not name what to write. All
# others are graded A: one line that names what is wrong, where, and what to write.
GRADED_B = {
    "ds.to_table(filter='order_id = ')",
    "ds.take_blobs('v', [0])",
    "ds.update({'order_id': \"'x'\"})",
}


@pytest.fixture(scope="module")
def names_of_mistakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = str(tmp_path_factory.mktemp("mistakes") / "orders")
    vectors = pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 80, pa.float32()), 4)
    address = [{"city": "x", "zip": 1}] * 20
    rows = pa.table({"order_id": range(20), "customer": ["a"] * 20, "address": address, "v": vectors})
    ds = write_dataset(rows, path)
    ds.tags.create("checked")
    ds.create_branch("audit")
    ds = dataset(path).create_scalar_index("order_id", "BTREE")
    return {
        "ds": ds, "rows": rows, "path": path, "pa": pa, "dataset": dataset, "write_dataset": write_dataset,
        "metadata_table": metadata_table, "commit_options": commit_options,
    }  # fmt: skip


@pytest.mark.parametrize(("mistake", "part"), MISTAKES, ids=[line[0] for line in MISTAKES])
def test_messages_of_mistakes(mistake: str, part: str, names_of_mistakes: dict[str, Any]) -> None:
    with pytest.raises(LanceError) as error:
        eval(mistake, names_of_mistakes)
    message = str(error.value).replace(names_of_mistakes["path"], "PATH")
    assert part in message
    assert "_rowid" not in message
    assert "\n" not in message


def test_names_that_the_package_and_its_tables_lack(names_of_mistakes: dict[str, Any]) -> None:
    for mistake, part in (
        ("spark_lance.datset", "did you mean 'dataset'?"),
        ("spark_lance.open", "write spark_lance.dataset(path)"),
        ("ds.search", "write to_table(nearest={'column': 'v'"),
        ("ds.to_tabel", "did you mean 'to_table'?"),
    ):
        with pytest.raises(AttributeError) as error:
            eval(mistake, {**names_of_mistakes, "spark_lance": spark_lance})
        assert part in str(error.value)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes since Python 3.11")
def test_an_error_of_a_function_names_the_function_and_its_batch(names_of_mistakes: dict[str, Any]) -> None:
    def divide(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError) as error:
        names_of_mistakes["ds"].add_columns(divide, read_columns=["order_id"])
    assert getattr(error.value, "__notes__", None) == [
        "in divide, called with a batch (rows: 1, columns: order_id)"
    ]


@pytest.mark.parametrize(("command", "part"), COMMANDS, ids=[line[0] for line in COMMANDS])
def test_messages_of_commands(
    command: str, part: str, names_of_mistakes: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    path = names_of_mistakes["path"]
    assert main(command.replace("PATH", path).split()) == 2
    message = capsys.readouterr().err.strip().replace(path, "PATH")
    assert part in message
    assert command in GRADED_B or "\n" not in message


def test_codes_of_errors_have_entries() -> None:
    titles = re.findall(r"^## (T\d+): ", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE)
    codes = {getattr(errors, name).code for name in errors.__all__} - {None}
    assert {"T1", "T8"} <= codes <= set(titles)
    lost = CommitOutcomeUnknownError("the answer was lost")
    assert str(lost) == "the answer was lost [troubleshooting T8]"
    assert str(CommitOutcomeUnknownError(str(lost))) == str(lost)
