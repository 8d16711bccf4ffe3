"""What is installed: which Python, which versions of which packages, and how."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = (ROOT / "pyproject.toml").read_text()
# A line is "name==version", or that with a condition on the version of Python.
PIN = re.compile(r'([\w.-]+)==([\w.]+)(?: ; python_version (<|>=) "3\.11")?')
PINS = [PIN.fullmatch(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]


def required(python: str) -> set[str]:
    """Return the names of the packages that the package and its extras need with a Python."""
    lists = PROJECT.partition("\ndependencies = [")[2].partition("\n[project.scripts]")[0]
    result = re.findall(
        r"\"([\w.-]+)(?:\[[\w,]+\])?[<>=]=?\d[^\";]*(?: ; python_version (<|>=) '3\.11')?\"", lists
    )
    assert len(result) > 30
    return {name.lower() for name, condition in result if condition in ("", python)}


def test_the_oldest_python() -> None:
    assert 'requires-python = ">=3.10"' in PROJECT
    assert 'target-version = "py310"' in PROJECT


def test_pins_can_be_read() -> None:
    assert all(PINS)


@pytest.mark.parametrize("python", ["<", ">="], ids=["3.10", "newer"])
def test_every_package_has_one_version_for_each_python(python: str) -> None:
    names = [pin[1].lower() for pin in PINS if pin is not None and pin[3] in (None, python)]
    assert sorted(set(names)) == sorted(names)
    assert required(python) <= set(names)


def test_an_editable_install_is_an_entry_of_the_path() -> None:
    """An import hook would hide `pyspark_lance`, by which Spark finds the format."""
    assert re.search(r'^package-dir = \{ "" = "\." \}$', PROJECT, re.MULTILINE)
    assert (ROOT / "pyspark_lance.py").is_file()


def test_a_wheel_holds_every_file_of_the_package() -> None:
    patterns = re.search(r"^spark_lance = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert patterns is not None
    package = ROOT / "spark_lance"
    data = {path for pattern in re.findall(r'"([^"]+)"', patterns[1]) for path in package.glob(pattern)}
    files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {path.suffix for path in data} == {".typed", ".pyi", ".java"}
    assert {path for path in files if path.suffix != ".py"} == data


def test_what_spark_needs_is_required() -> None:
    """PySpark asks for pandas where it runs functions over Arrow batches, and does not bring it by itself."""
    from pyspark.sql.pandas import functions, map_ops

    assert "pandas_udf(" in inspect.getsource(map_ops)
    assert "require_minimum_pandas_version()" in inspect.getsource(functions.pandas_udf)
    needed = PROJECT.partition("\ndependencies = [")[2].partition("]")[0]
    assert re.search(r'^    "pandas>=', needed, re.MULTILINE)
