"""What importing the package costs."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
from pathlib import Path

import pyarrow as pa

import spark_lance


def modules_of(program: str, *arguments: str) -> set[str]:
    """Return the modules that are loaded after a program has run."""
    command = [sys.executable, "-c", f"import sys; {program}\nprint(*sys.modules)", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_what_is_behind_methods_brings_no_pandas() -> None:
    parts = ("merge", "columns", "index", "maintain", "versions", "config", "mem_wal", "show", "searching")
    loaded = modules_of("import " + ", ".join(f"spark_lance.datasets.{part}" for part in parts))
    assert {"spark_lance.table.rows.update", "spark_lance.index.vector.create"} <= loaded
    assert not {"pandas", "pyarrow.acero", "snowballstemmer", "pyspark", "duckdb"} & loaded


def test_the_first_rows_of_a_table_bring_what_reads_them_alone(tmp_path: Path) -> None:
    spark_lance.write_dataset({"n": [1, 2, 3]}, tmp_path / "t")
    loaded = modules_of("import spark_lance; spark_lance.dataset(sys.argv[1]).head(3)", str(tmp_path / "t"))
    assert "spark_lance.file.v2_1.read.field_reader" in loaded
    assert not {"fsspec", "sqlglot", "asyncio", "pandas", "pyarrow.dataset"} & loaded
    ours = {name.removeprefix("spark_lance.") for name in loaded if name.startswith("spark_lance.")}
    unneeded = (
        "file.writer",
        "file.v2_1.write",
        "index.vector.create",
        "index.vector.search",
        "index.scalar",
        "index.text.search",
        "memwal.fresh",
        "table.commits.conflicts",
        "table.columns",
        "table.inserts",
        "table.maintenance",
        "table.rows",
        "table.writing.write",
        "datasets.operations",
    )
    assert not [name for name in ours if name.startswith(unneeded)]


def test_first_queries_import_no_pandas(tmp_path: Path) -> None:
    # Arrow imports pandas when it converts numpy arrays and Python values, which takes 0.3 s.
    rows = pa.table({"n": range(300), "t": ["one word"] * 300, "v": [[float(i), 1.0] for i in range(300)]})
    vectors = rows["v"].cast(pa.list_(pa.float32(), 2))
    table = spark_lance.write_dataset(rows.set_column(2, "v", vectors), tmp_path / "t")
    table.create_scalar_index("t", "INVERTED")
    table.create_scalar_index("n", "BTREE")
    table.create_index("v", "IVF_FLAT", num_partitions=2)
    program = """
import numpy, spark_lance
table = spark_lance.dataset(sys.argv[1])
table.take([1, 250])
table.to_table(filter="n > 290")
table.to_table(full_text_query="word", limit=3)
table.to_table(nearest={"column": "v", "q": numpy.ones(2, "f4"), "k": 3})
"""
    assert "pandas" not in modules_of(program, str(tmp_path / "t"))


def test_what_is_imported_late_is_shown_as_it_is() -> None:
    kind = spark_lance.LanceDataset
    assert {"merge_insert", "update", "create_index", "hybrid_search", "optimize"} <= set(dir(kind))
    assert list(inspect.signature(kind.update).parameters)[:3] == ["self", "updates", "where"]
    assert "Set columns" in pydoc.plain(pydoc.render_doc(kind.update))
