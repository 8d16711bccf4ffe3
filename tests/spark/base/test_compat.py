"""What differs between releases of Spark is known in one module, and each difference is probed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import spark_lance
from spark_lance.spark.base import compat
from tests.conftest import ROOT
from tests.spark.carriers import COUNTS_WITHOUT_COLUMNS

SETTING = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
SPARK = ROOT / "spark_lance" / "spark"


def test_spark_keeps_rows_without_columns_since_it_offers_filters() -> None:
    result = find_spec("pyspark.sql.worker.data_source_pushdown_filters")
    assert (result is not None) == COUNTS_WITHOUT_COLUMNS == compat.KEEPS_ROWS_WITHOUT_COLUMNS


# PySpark's private names.
PRIVATE = re.compile(
    r"\b_(?:jvm|jdf|jsc|jsparkSession|judf|gateway_client)\b|_parse_datatype_|\b_wrap_function\b"
    r"|\._(?:sc|gateway|origin|crs|from_crs)\b"
)


def test_nothing_else_tells_releases_apart() -> None:
    for path in SPARK.rglob("*.py"):
        if path.name == "compat.py":
            continue
        text = path.read_text()
        assert "_getframe" not in text, path
        assert (path.name, PRIVATE.findall(text)) == (path.name, [])
        assert "__version__" not in text.replace("spark_lance.__version__", ""), path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                assert "ImportError" not in ast.unparse(node.type), path


@pytest.mark.parametrize(("release", "given", "kept"), [
    ("4.2.0", None, "false"), ("4.2.0", "true", "true"), ("4.2.1", None, None), ("4.3.0", None, None),
])  # fmt: skip
def test_columns_are_kept_from_udfs_where_spark_would_wait(
    release: str, given: str | None, kept: str | None
) -> None:
    class Conf(dict[str, str]):
        set = dict.__setitem__

    session: Any = SimpleNamespace(version=release, conf=Conf({} if given is None else {SETTING: given}))
    compat.avoid_waiting_udfs(session)
    assert session.conf.get(SETTING) == kept


@pytest.fixture
def enabled(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark_lance.enable(spark.newSession())
    spark.newSession()


def test_udfs_over_columns_end(enabled: SparkSession, tmp_path: Path) -> None:
    """Spark 4.2.0 waits for ever here if it hands them columns."""
    spark_lance.write_dataset(pa.table({"a": range(100)}), tmp_path / "t")
    enabled.conf.set("spark.lance.localRows", "0")
    frame = enabled.read.format("lance").load(str(tmp_path / "t"))
    rows = frame.select(udf(lambda a: a + 1, "long")("a").alias("b")).collect()
    assert sorted(row.b for row in rows) == list(range(1, 101))
