"""The README tells the truth: its Python blocks run, its tables are those of the code."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_lance.spark.options import option_table
from spark_lance.spark.types import type_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
PLACE = "/tmp/lance-readme"


def row(cells: tuple[str, ...]) -> str:
    """Return a line of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def test_all_options_are_listed() -> None:
    for name, *rest in option_table():
        assert row((f"`{name}`", *rest)) in README


def test_all_types_are_listed() -> None:
    for cells in type_table():
        assert row(cells) in README


def test_python_blocks_run_in_order(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, Any] = {}
    assert PLACE in "".join(BLOCKS)
    for block in BLOCKS:
        exec(compile(block.replace(PLACE, str(tmp_path)), "README.md", "exec"), names)
    printed = capsys.readouterr().out.split()
    assert printed[0] == "143"
    assert "2000" in printed
    assert "1000" in printed
    assert names["ds"].count_rows() == 4
    shutil.rmtree(tmp_path)
