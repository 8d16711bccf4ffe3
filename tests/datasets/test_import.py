"""What importing the package costs."""

from __future__ import annotations

import subprocess
import sys


def test_opening_tables_brings_no_pandas() -> None:
    program = "import sys, spark_lance.datasets.dataset; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "spark_lance.table.rows.update" in loaded
    assert not {"pandas", "pyarrow.acero", "snowballstemmer", "sqlglot", "pyspark", "duckdb"} & loaded
