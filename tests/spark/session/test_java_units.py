"""Every Java source of the package compiles against every release of Spark that is at hand.

At hand is the installed release, and those in the environments of `make test-spark-versions`
(.venv-spark-<release>, in this folder or in those that SPARK_LANCE_RELEASES names). No session is started:
a JVM with Spark's classes compiles them, by the compiler and in the way that a driver does it. All but the
installed release are slow tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j import java_gateway
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError, get_return_value

from spark_lance.spark.java import prepare_environment
from spark_lance.spark.session import java_classes

ROOT = Path(__file__).resolve().parents[3]
FOLDER = java_classes.FOLDER
# Classes, with their packages: a source file each.
SOURCES = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.java"))


def releases() -> dict[str, Path]:
    """Return the folders of Spark's classes by release."""
    found = {pyspark.__version__: Path(pyspark.__file__).parent / "jars"}
    folders = [ROOT, *map(Path, filter(None, os.environ.get("SPARK_LANCE_RELEASES", "").split(os.pathsep)))]
    for folder in folders:
        for jars in sorted(folder.glob(".venv-spark-*/lib/python*/site-packages/pyspark/jars")):
            (one,) = jars.glob("spark-sql_*.jar")
            found.setdefault(one.stem.rpartition("-")[2], jars)
    return found


RELEASES = releases()
# Units that are used only where Spark has a class.
NEEDED = {
    "org.lance.spark.catalog.LanceEvolving": "org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution"
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(release, marks=() if release == pyspark.__version__ else pytest.mark.slow)
        for release in RELEASES
    ],
)
def jvm(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A JVM that has the classes of a release, and nothing else of it."""
    prepare_environment()
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else Path("java")
    jars = RELEASES[request.param]
    (py4j,) = jars.glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(
        jarpath=str(py4j), classpath=f"{jars}/*", java_path=str(java), die_on_exit=True
    )
    with pytest.MonkeyPatch.context() as patch:
        # Where a session runs, PySpark asks its own JVM what any exception says.
        patch.setattr(java_gateway, "get_return_value", get_return_value)
        yield gateway.jvm
    gateway.shutdown()


def has_class(jvm: Any, loader: Any, name: str) -> bool:
    try:
        jvm.java.lang.Class.forName(name, False, loader)
    except Py4JJavaError:
        return False
    return True


def compile_unit(jvm: Any, loader: Any, text: str) -> Any:
    """Return the loader of the classes of a source, which stands before `loader`."""
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.setSourceVersion(8)
    compiler.setTargetVersion(8)
    compiler.cook(text)
    for name in compiler.getBytecodes().keySet():
        # Loading finds what a class extends; asking for its methods, the types that they name.
        compiler.getClassLoader().loadClass(name).getDeclaredMethods()
    return compiler.getClassLoader()


def test_all_units_compile(jvm: Any) -> None:
    assert len(SOURCES) >= 7
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    waiting = {
        name: java_classes.source(name)
        for name in SOURCES
        if has_class(jvm, loader, NEEDED.get(name, "java.lang.Object"))
    }
    # A source may name classes of others, which then have to be there.
    while waiting:
        problems = {}
        for name, text in waiting.items():
            try:
                loader = compile_unit(jvm, loader, text)
            except Py4JJavaError as error:
                problems[name] = str(error.java_exception)
        assert len(problems) < len(waiting), problems
        waiting = {name: waiting[name] for name in problems}


def test_a_source_is_named_like_its_class() -> None:
    for name in SOURCES:
        package, _, stem = name.rpartition(".")
        text = java_classes.source(name)
        assert (f"\npackage {package};\n" in text) == bool(package), name
        assert re.search(rf"^public .*\b(class|interface) {stem}\b", text, re.MULTILINE), name


def test_what_does_not_fit_a_release_does_not_compile(jvm: Any) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    text = java_classes.source("org.lance.spark.transport.LanceTransport")
    with pytest.raises(Py4JJavaError, match="getNoArtifactState"):
        compile_unit(jvm, loader, text.replace("getCurrentJobArtifactState", "getNoArtifactState"))
