"""`LanceDataset` has names in snake_case, `LanceTable` in camelCase; errors name the right spelling."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.datasets.dataset import write_dataset
from spark_lance.datasets.spelling import camel_case, snake_case, snake_options
from spark_lance.errors import OptionTypeError


def test_an_attribute_in_the_other_spelling_is_named(tmp_path: Path) -> None:
    ds: Any = write_dataset(pa.table({"id": [1, 2]}), tmp_path / "t")
    for wrong in ("countRows", "toTable", "createIndex", "latestVersion"):
        with pytest.raises(AttributeError) as caught:
            getattr(ds, wrong)
        (right,) = re.findall(r"write '(\w+)'", str(caught.value))
        assert right == snake_case(wrong)
        assert hasattr(ds, right)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'$"):
        ds.nothing  # noqa: B018
    with pytest.raises(TypeError, match="unexpected keyword argument 'maxRowsPerFile'"):
        write_dataset(pa.table({"id": [1]}), tmp_path / "u", maxRowsPerFile=1)  # type: ignore[call-arg]


def test_options_of_tables_in_spark_are_in_camel_case() -> None:
    assert snake_options({"maxIters": 3, "m": 8}) == {"max_iters": 3, "m": 8}
    with pytest.raises(OptionTypeError, match="write 'maxIters'"):
        snake_options({"max_iters": 3})


@pytest.mark.parametrize("name", ["LanceDataset", "LanceFragment", "LanceScanner"])
def test_names_without_spark_are_in_snake_case(name: str) -> None:
    check_names(getattr(spark_lance, name), snake_case)


def test_names_of_tables_in_spark_are_in_camel_case() -> None:
    pytest.importorskip("pyspark")
    from spark_lance.spark.table.maintaining import Optimizing
    from spark_lance.spark.table.merging import MergeBuilder, UpsertLog

    for kind in (spark_lance.LanceTable, MergeBuilder, UpsertLog, Optimizing):
        check_names(kind, camel_case)
    assert not hasattr(spark_lance.LanceTable, "add_columns")
    with pytest.raises(AttributeError, match="write 'addColumns'"):
        object.__new__(spark_lance.LanceTable).add_columns  # type: ignore[attr-defined]  # noqa: B018


def check_names(kind: type, spelled: Any) -> None:
    """Fail for a public name, or a name of a parameter, that is spelled otherwise."""
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            assert spelled(name) == name
            if inspect.isfunction(member) or inspect.ismethod(member):
                for parameter in inspect.signature(member).parameters:
                    assert spelled(parameter) == parameter, name
