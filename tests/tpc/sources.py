"""What the TPC tests need from elsewhere: texts of queries, and rows. Both are kept in a cache folder.

Queries are those of Spark's own tests (Maven Central, spark-sql's jar `tests`). The rows of TPC-H come from
the Python package tpchgen-cli, those of TPC-DS from the Java package io.trino.tpcds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

__all__ = ["MissingToolError", "jars", "queries", "test_jar", "tpcds_rows", "tpch_rows"]

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = (
    """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"""
)
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_QUERIES_VERSION = "4.0.0"
_TPCDS = (("io.trino.tpcds", "tpcds", "1.4", ""), ("io.airlift", "airline", "0.8", ""))
_SECONDS = 900


class MissingToolError(RuntimeError):
    """A program is not on this machine."""


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache; `make` fills it if it is not there."""
    given = os.environ.get("SPARK_LANCE_TEST_TPC")
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = (Path(given) if given else cache_home / "spark-lance-test-tpc") / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        # It comes into view whole.
        fresh = Path(tempfile.mkdtemp(dir=target.parent))
        make(fresh)
        fresh.rename(target)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")


def _tool(name: str, how: str) -> str:
    beside = Path(sys.executable).parent / name
    result = str(beside) if beside.exists() else shutil.which(name)
    if result is None:
        raise MissingToolError(f"{name} is missing: {how}")
    return result


def _maven(name: str, parts: tuple[tuple[str, str, str, str], ...]) -> Path:
    def fetch(target: Path) -> None:
        tool = _tool("mvn", "install Maven")
        pom = target / "pom.xml"
        pom.write_text(_POM.format(name=name, dependencies="".join(_DEPENDENCY.format(*p) for p in parts)))
        _run([tool, "-q", "-B", "-f", str(pom), _COPY, f"-DoutputDirectory={target / 'lib'}"])

    return _kept(name, fetch)


@cache
def test_jar(version: str) -> Path:
    """Return the jar of Spark SQL's own tests, of a release of Spark."""
    parts = (("org.apache.spark", "spark-sql_2.13", version, f"<type>test-jar</type>{_ALONE}"),)
    name = "queries" if version == _QUERIES_VERSION else f"spark-sql-tests-{version}"
    (jar,) = (_maven(name, parts) / "lib").glob("*.jar")
    return jar


def jars() -> Path:
    """Return the jar that holds the texts of the queries."""
    return test_jar(_QUERIES_VERSION)


@cache
def queries(suite: str) -> dict[str, str]:
    """Return the texts of the queries of `tpch` or `tpcds` by name, such as q1."""
    with zipfile.ZipFile(jars()) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(rf"{suite}/q\w+\.sql", name)]
        return {Path(name).stem: archive.read(name).decode() for name in sorted(names)}


@cache
def tpch_rows(scale: str) -> Path:
    """Return a folder with a Parquet file for each table of TPC-H."""

    def make(target: Path) -> None:
        tool = _tool("tpchgen-cli", "pip install tpchgen-cli")
        _run([tool, "parquet", "-s", scale, "--output-dir", str(target)])

    return _kept(f"tpch-{scale}", make)


@cache
def tpcds_rows(scale: str) -> Path:
    """Return a folder with a file of text for each table of TPC-DS: values between bars."""

    def make(target: Path) -> None:
        classes = f"{_maven('tpcds', _TPCDS)}/lib/*"
        java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java") if "JAVA_HOME" in os.environ else "java"
        flags = ["--scale", scale, "--directory", str(target), "--overwrite"]
        _run([java, "-cp", classes, "io.trino.tpcds.Driver", *flags])

    return _kept(f"tpcds-{scale}", make)
