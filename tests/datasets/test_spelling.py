"""Arguments in snake_case and in camelCase mean the same, on both faces."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest

import spark_lance
import spark_lance.datasets
from spark_lance.datasets.dataset import write_dataset
from spark_lance.datasets.spelling import _has_two_words, both_spellings
from spark_lance.errors import OptionTypeError


def test_functions_take_either_spelling(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(1600, np.float32)), 16)
    rows = pa.table({"v": vectors, "n": range(100)})
    ds: Any = write_dataset(rows, tmp_path / "t", maxRowsPerFile=40, dataStorageVersion="2.1")  # type: ignore[call-arg]
    assert (len(ds.get_fragments()), ds.data_storage_version) == (3, "2.1")
    ds = ds.create_index("v", indexType="IVF_PQ", numPartitions=3, numSubVectors=4, numBits=8, maxIters=2)
    assert ds.index_statistics("v_idx")["indices"][0]["num_partitions"] == 3
    assert ds.to_table(withRowId=True, limit=1).column_names == ["v", "n", "_rowid"]
    assert ds.insert(rows.slice(0, 5), maxRowsPerFile=2).count_rows() == 105
    ds.checkout_latest().optimize.compact_files(target_rows_per_fragment=1000)
    ds.checkout_latest().optimize.optimize_indices(numIndicesToMerge=1)
    with pytest.raises(OptionTypeError, match="max_rows_per_file twice"):
        write_dataset(rows, tmp_path / "u", maxRowsPerFile=1, max_rows_per_file=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="maxRowsEver"):
        write_dataset(rows, tmp_path / "u", maxRowsEver=1)  # type: ignore[call-arg]


def test_tables_in_spark_take_either_spelling() -> None:
    pytest.importorskip("pyspark")
    taken: dict[str, Any] = {}

    class Table:
        @both_spellings
        def createIndex(self, column: str, *, numPartitions: int = 0, **options: Any) -> None:  # noqa: N802, N803
            taken.update(options, column=column, numPartitions=numPartitions)

    Table().createIndex("v", num_partitions=7, sampleRate=5)
    assert taken == {"column": "v", "numPartitions": 7, "sample_rate": 5}
    for name in ("createIndex", "merge", "searchBatch", "compact_files"):
        method = getattr(spark_lance.LanceTable, name)
        assert method.__name__ == name
        assert method.__doc__
    assert hasattr(spark_lance.LanceTable.createIndex, "__wrapped__")


def modules_of(package: ModuleType) -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{found.name}")


def functions_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public functions of a class as they are found on it."""
    for name in dir(kind):
        if not name.startswith("_"):
            held = inspect.getattr_static(kind, name)
            held = held.fget if isinstance(held, property) else getattr(held, "func", held)
            held = held.__func__ if isinstance(held, staticmethod | classmethod) else held
            if inspect.isfunction(held):
                yield name, held


def names_of(module: ModuleType) -> dict[str, Any]:
    """Return the names of a module as type checkers see them."""
    found = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), found)
    return found


def classes_in(hint: object) -> Iterator[type]:
    if inspect.isclass(hint) and hint.__module__.startswith("spark_lance"):
        yield hint
    origin = typing.get_origin(hint)
    for part in typing.get_args(hint) if origin is None else (origin, *typing.get_args(hint)):
        yield from classes_in(part)


def test_everything_that_users_get_takes_either_spelling() -> None:
    """All public names, and all objects that their methods return, on both faces."""
    pytest.importorskip("pyspark")
    faces = [spark_lance.datasets, importlib.import_module("spark_lance.spark.lance_table")]
    names = {
        name: held for face in faces for module in modules_of(face) for name, held in names_of(module).items()
    }
    names["fsspec"] = fsspec  # imported where a store is not a local folder
    waiting = [getattr(spark_lance, name) for name in spark_lance.__all__]
    seen: set[type] = set()
    wrong = []
    while waiting:
        held = waiting.pop()
        if inspect.isfunction(held) and _has_two_words(held) and not hasattr(held, "__wrapped__"):
            wrong.append(held.__name__)
        if not inspect.isclass(held) or held in seen:
            continue
        seen.add(held)
        for _, function in functions_of(held):
            plain = inspect.unwrap(function)
            known = {**names, **names_of(sys.modules[plain.__module__])}
            told = plain.__annotations__.get("return")
            # Those of the data source are Spark's.
            if isinstance(told, str) and held is not spark_lance.LanceDataSource:
                waiting += classes_in(eval(told, known))
    # What others are made of is not used by itself.
    parts = {part for kind in seen for part in kind.__mro__[1:]}
    places = ("spark_lance.datasets.", "spark_lance.spark.lance_table.")
    for kind in seen - parts:
        if kind.__module__.startswith(places):
            wrong += [
                f"{kind.__name__}.{name}"
                for name, function in functions_of(kind)
                if _has_two_words(function) and not hasattr(function, "__wrapped__")
            ]
    assert not wrong
    assert {"LanceScanner", "MergeInsertBuilder", "MergeBuilder", "LanceFragment"} <= {
        kind.__name__ for kind in seen
    }


def test_builders_and_fragments_take_either_spelling(tmp_path: Path) -> None:
    ds: Any = write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t")
    (fragment,) = ds.get_fragments()
    assert fragment.to_table(withRowId=True).column_names == ["id", "_rowid"]
    assert fragment.scanner(withRowAddress=True).to_table().column_names == ["id", "_rowaddr"]
    assert ds.scanner(columns=["id"]).head(numRows=1).num_rows == 1
    merge = ds.merge_insert("id").conflict_retries(maxRetries=3).when_not_matched_insert_all()
    assert merge.execute({"id": [2, 3]}).num_inserted_rows == 1
    spark_lance.batch_udf(outputSchema=pa.schema([("n", pa.int64())]))  # type: ignore[call-arg]
