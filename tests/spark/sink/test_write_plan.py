"""A write is planned from one version of the table, whatever it does to the schema."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType

from spark_lance import write_dataset
from spark_lance.spark.source import LanceDataSource
from spark_lance.table.versions import versions


@pytest.mark.parametrize(
    ("overwrite", "options"),
    [
        (False, {}),
        (False, {"mergeSchema": "true"}),
        (True, {}),
        (True, {"overwriteSchema": "false"}),
        (True, {"replaceWhere": "a > 1"}),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_the_newest_version_is_looked_up_once(
    exists: bool, overwrite: bool, options: dict[str, str], tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    if exists:
        write_dataset(pa.table({"a": pa.array([1, 2])}), path)
    source = LanceDataSource({"path": path, **options})
    with mock.patch.object(versions, "_find_newest_name", wraps=versions._find_newest_name) as looked:
        source.writer(StructType().add("a", LongType()), overwrite)
    assert looked.call_count == 1
