"""Code that catches what pylance raises catches what we raise for the same mistake.

Both are asked to do the same wrong thing; the class that pylance raises must be among the bases of ours.
`OSError` is among them only in `spark_lance.compat.lance`: elsewhere a program that repeats a call after an
`OSError` repeats no mistake.
"""

from __future__ import annotations

import datetime
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
import spark_lance.compat.lance as stand_in
from spark_lance import errors
from spark_lance.errors import LanceError

Mistake = Callable[[Any, Any, str], Any]


def vectors(rows: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4 * rows, dtype="f4")), 4)


def rows(*numbers: int) -> pa.Table:
    return pa.table(
        {
            "n": pa.array(numbers),
            "s": [str(n) for n in numbers],
            "f": [float(n) for n in numbers],
            "v": vectors(len(numbers)),
        }
    )


def nearest(**given: Any) -> dict[str, Any]:
    return {"column": "v", "q": [1.0] * 4, "k": 1, **given}


def tagged(d: Any) -> Any:
    d.tags.create("a", 1)
    return d


MISTAKES: dict[str, Mistake] = {
    "no table": lambda m, d, p: m.dataset(p + "-nowhere"),
    "no version": lambda m, d, p: m.dataset(p, version=99),
    "no tag": lambda m, d, p: m.dataset(p, version="nope"),
    "no version to go to": lambda m, d, p: d.checkout_version(99),
    "before the first version": lambda m, d, p: m.dataset(p, asof=datetime.datetime(1990, 1, 1)),
    "table exists": lambda m, d, p: m.write_dataset(rows(1), p),
    "append other columns": lambda m, d, p: m.write_dataset(pa.table({"z": [1]}), p, mode="append"),
    "append another type": lambda m, d, p: m.write_dataset(
        rows(1).set_column(0, "n", pa.array(["x"])), p, mode="append"
    ),
    "no such mode": lambda m, d, p: m.write_dataset(rows(1), p, mode="weird"),
    "no such format": lambda m, d, p: m.write_dataset(rows(1), p + "2", data_storage_version="9.9"),
    "type that is not stored": lambda m, d, p: m.write_dataset(
        pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}), p + "2"
    ),
    "a name twice": lambda m, d, p: m.write_dataset(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), p + "2"
    ),
    "null where none may be": lambda m, d, p: m.write_dataset(
        pa.table({"a": [None]}, schema=pa.schema([pa.field("a", pa.int64(), False)])), p + "2"
    ),
    "take beyond the end": lambda m, d, p: d.take([100]),
    "read no such column": lambda m, d, p: d.to_table(columns=["zz"]),
    "filter is not SQL": lambda m, d, p: d.to_table(filter="n >"),
    "filter no such column": lambda m, d, p: d.to_table(filter="zz = 1"),
    "filter of other types": lambda m, d, p: d.to_table(filter="s > 1"),
    "filter without an answer": lambda m, d, p: d.to_table(filter="n + 1"),
    "count no such column": lambda m, d, p: d.count_rows("zz = 1"),
    "negative limit": lambda m, d, p: d.to_table(limit=-1),
    "delete no such column": lambda m, d, p: d.delete("zz = 1"),
    "delete is not SQL": lambda m, d, p: d.delete("n ="),
    "update no such column": lambda m, d, p: d.update({"zz": "1"}),
    "update from no such column": lambda m, d, p: d.update({"n": "zz + 1"}),
    "update to another type": lambda m, d, p: d.update({"n": "'x'"}),
    "update where no such column": lambda m, d, p: d.update({"n": "1"}, where="zz = 1"),
    "update nothing": lambda m, d, p: d.update({}),
    "drop no such column": lambda m, d, p: d.drop_columns(["zz"]),
    "drop all columns": lambda m, d, p: d.drop_columns(["n", "s", "f", "v"]),
    "add a column again": lambda m, d, p: d.add_columns({"n": "1"}),
    "add from no such column": lambda m, d, p: d.add_columns({"m": "zz + 1"}),
    "rename no such column": lambda m, d, p: d.alter_columns({"path": "zz", "name": "y"}),
    "rename to another's name": lambda m, d, p: d.alter_columns({"path": "n", "name": "s"}),
    "cast text to numbers": lambda m, d, p: d.alter_columns({"path": "s", "data_type": pa.int32()}),
    "join without a key": lambda m, d, p: d.merge(pa.table({"k": [1], "w": [2]}), "zz"),
    "merge without a key": lambda m, d, p: d.merge_insert("zz").when_matched_update_all().execute(rows(1)),
    "merge a key twice": lambda m, d, p: d.merge_insert("n").when_matched_update_all().execute(rows(1, 1)),
    "merge without clauses": lambda m, d, p: d.merge_insert("n").execute(rows(1)),
    "index no such column": lambda m, d, p: d.create_scalar_index("zz", "BTREE"),
    "no such index kind": lambda m, d, p: d.create_scalar_index("n", "NOPE"),
    "index of vectors' values": lambda m, d, p: d.create_scalar_index("v", "BTREE"),
    "words of numbers": lambda m, d, p: d.create_scalar_index("n", "INVERTED"),
    "index exists": lambda m, d, p: (
        d.create_scalar_index("n", "BTREE"),
        m.dataset(p).create_scalar_index("n", "BTREE", replace=False),
    ),
    "index name is taken": lambda m, d, p: (
        d.create_scalar_index("n", "BTREE", name="x"),
        m.dataset(p).create_scalar_index("s", "BTREE", name="x"),
    ),
    "vector index of no such column": lambda m, d, p: d.create_index("zz", "IVF_FLAT", num_partitions=1),
    "vector index of text": lambda m, d, p: d.create_index("s", "IVF_FLAT", num_partitions=1),
    "no such vector index": lambda m, d, p: d.create_index("v", "NOPE", num_partitions=1),
    "no such metric": lambda m, d, p: d.create_index("v", "IVF_FLAT", num_partitions=1, metric="nope"),
    "sub-vectors that do not fit": lambda m, d, p: d.create_index(
        "v", "IVF_PQ", num_partitions=1, num_sub_vectors=3
    ),
    "no such tokenizer": lambda m, d, p: d.create_scalar_index("s", "INVERTED", base_tokenizer="nope"),
    "no such language": lambda m, d, p: d.create_scalar_index("s", "INVERTED", language="Klingon"),
    "no such index option": lambda m, d, p: d.create_scalar_index("s", "INVERTED", nonsense=1),
    "drop no such index": lambda m, d, p: d.drop_index("nope"),
    "search no such column": lambda m, d, p: d.to_table(nearest=nearest(column="zz")),
    "search another dimension": lambda m, d, p: d.to_table(nearest=nearest(q=[1.0] * 3)),
    "search for no rows": lambda m, d, p: d.to_table(nearest=nearest(k=0)),
    "search text by vector": lambda m, d, p: d.to_table(nearest=nearest(column="s")),
    "search by no such metric": lambda m, d, p: d.to_table(nearest=nearest(metric="nope")),
    "search without a vector": lambda m, d, p: d.to_table(nearest={"column": "v", "k": 1}),
    "words without an index": lambda m, d, p: d.to_table(full_text_query="x"),
    "words in no such column": lambda m, d, p: d.to_table(full_text_query={"query": "x", "columns": ["zz"]}),
    "words in numbers": lambda m, d, p: d.to_table(full_text_query={"query": "x", "columns": ["n"]}),
    "delete no such tag": lambda m, d, p: d.tags.delete("nope"),
    "read no such tag": lambda m, d, p: d.tags.get_version("nope"),
    "move no such tag": lambda m, d, p: d.tags.update("nope", 1),
    "tag exists": lambda m, d, p: tagged(d).tags.create("a", 1),
    "tag no such version": lambda m, d, p: d.tags.create("b", 99),
    "tag of no name": lambda m, d, p: d.tags.create("a b/..", 1),
    "delete no such branch": lambda m, d, p: d.branches.delete("nope"),
    "branch exists": lambda m, d, p: (d.create_branch("b1"), d.create_branch("b1")),
    "go to no such branch": lambda m, d, p: d.checkout_version(("nope", None)),
    "branch of no name": lambda m, d, p: d.create_branch("main"),
    "blobs of no such column": lambda m, d, p: d.take_blobs("zz", indices=[0]),
    "blobs of numbers": lambda m, d, p: d.take_blobs("n", indices=[0]),
}


def raised(module: Any, mistake: Mistake, path: Path) -> Exception:
    shutil.rmtree(path, ignore_errors=True)
    ds = lance.write_dataset(rows(*range(10)), str(path))
    opened = ds if module is lance else module.dataset(str(path))
    with pytest.raises(Exception) as caught:
        mistake(module, opened, str(path))
    return caught.value


@pytest.mark.parametrize("name", MISTAKES)
def test_except_clauses_for_pylance_work(tmp_path: Path, name: str) -> None:
    theirs = raised(lance, MISTAKES[name], tmp_path / "theirs")
    ours = raised(spark_lance, MISTAKES[name], tmp_path / "ours")
    alike = raised(stand_in, MISTAKES[name], tmp_path / "alike")
    for error in (ours, alike):
        assert isinstance(error, LanceError)
        assert str(error) == str(error.args[0]) or hasattr(error, "path")
        if error is alike or type(theirs) is not OSError:
            assert isinstance(error, type(theirs)), (
                f"{type(theirs).__name__}: {theirs} / {type(error).__name__}: {error}"
            )
    assert isinstance(alike, type(ours))
    assert isinstance(alike, OSError)
    assert not isinstance(ours, OSError) or isinstance(ours, (FileNotFoundError, FileExistsError))
    copy = pickle.loads(pickle.dumps(alike))
    assert (type(copy), copy.args) == (type(ours), alike.args)


def test_only_failures_of_the_store_are_os_errors() -> None:
    """Errors of missing and existing objects are, too; those have classes of their own."""
    store = (errors.StoreError, errors.CommitOutcomeUnknownError)
    for name in errors.__all__:
        kind = getattr(errors, name)
        expected = issubclass(kind, (*store, FileNotFoundError, FileExistsError))
        assert issubclass(kind, OSError) == expected, name


def test_errors_of_generators_and_properties_are_os_errors(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    dataset = stand_in.write_dataset(pa.table({"n": [1, 2]}), path)
    with pytest.raises(OSError, match="zz"):
        list(dataset.to_batches(columns=["zz"]))
    with pytest.raises(OSError, match="zz"):
        dataset.scanner(columns=["zz"]).to_table()
    shutil.rmtree(path)
    with pytest.raises(OSError):
        dataset.latest_version  # noqa: B018


def test_errors_are_also_what_they_always_were() -> None:
    for name, builtin in {
        "TableNotFoundError": FileNotFoundError,
        "VersionNotFoundError": LookupError,
        "IndexNotFoundError": LookupError,
        "RowNotFoundError": IndexError,
        "ColumnNotFoundError": ValueError,
        "TagExistsError": FileExistsError,
        "UnsupportedFormatError": NotImplementedError,
    }.items():
        assert issubclass(getattr(errors, name), builtin)
    of_a_version = {"AlreadyCommittedError"}
    for name in errors.__all__:
        kind = getattr(errors, name)
        result = kind("one line", 7) if name in of_a_version else kind("one line")
        assert str(result).removesuffix(f" [troubleshooting {kind.code}]") == "one line"
