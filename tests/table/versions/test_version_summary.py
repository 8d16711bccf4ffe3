"""`versions()` tells what pylance tells."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_versions_have_the_summary_of_pylance(tmp_path: Path, version: str) -> None:
    path = str(tmp_path / "t.lance")
    table = pa.table({"n": range(50), "s": [str(i) for i in range(50)]})
    spark_lance.write_dataset(table, path, max_rows_per_file=20, data_storage_version=version)
    lance.write_dataset(table, path, mode="append")
    spark_lance.dataset(path).delete("n % 7 = 3")
    lance.dataset(path).delete("n % 5 = 1")
    spark_lance.dataset(path).add_columns({"m": "n + 1"})
    spark_lance.dataset(path).update({"s": "'x'"}, where="n < 4")
    spark_lance.dataset(path).optimize.compact_files()
    spark_lance.dataset(path).delete("true")
    expected = [(v["version"], v["metadata"]) for v in lance.dataset(path).versions()]
    assert [(v["version"], v["metadata"]) for v in spark_lance.dataset(path).versions()] == expected
    assert expected[-1][1]["total_rows"] == "0"
