"""Every Java source of the package compiles against every installed release of Spark.

These are the release of PySpark, and those in the environments of `make test-spark-versions`
(.venv-spark-<release>, in this folder or in those that SPARK_LANCE_RELEASES names). A JVM with Spark's
classes compiles them, by the compiler and in the way that a driver does it, and javac does. A session
without Python tries the shim. All but the installed release are slow tests.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from py4j import java_gateway
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError, get_return_value

from spark_lance.spark.driver import java_classes
from spark_lance.spark.driver.start import NOT_TAKEN, PUBLISHED
from spark_lance.spark.java import prepare_environment

ROOT = Path(__file__).resolve().parents[3]
FOLDER = java_classes.FOLDER
# Classes, with their packages: a source file each.
SOURCES = sorted(".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in FOLDER.rglob("*.java"))


def releases() -> dict[str, Path]:
    """Return the folders of Spark's classes by release."""
    result = {pyspark.__version__: Path(pyspark.__file__).parent / "jars"}
    folders = [ROOT, *map(Path, filter(None, os.environ.get("SPARK_LANCE_RELEASES", "").split(os.pathsep)))]
    for folder in folders:
        for jars in sorted(folder.glob(".venv-spark-*/lib/python*/site-packages/pyspark/jars")):
            (one,) = jars.glob("spark-sql_*.jar")
            result.setdefault(one.stem.rpartition("-")[2], jars)
    return result


RELEASES = releases()
# Packages of Java that Spark opens for itself.
OPENED = (
    "java.io",
    "java.lang",
    "java.lang.invoke",
    "java.net",
    "java.nio",
    "java.util",
    "sun.nio.ch",
    "sun.util.calendar",
)
# Units that are used only where Spark has a class.
NEEDED = (
    {
        f"org.lance.spark.catalog.{name}": "org.apache.spark.sql.connector.catalog.SupportsSchemaEvolution"
        for name in ("LanceEvolvableTable", "LanceMergeTarget")
    }
    | {
        f"org.lance.spark.catalog.{name}": f"org.apache.spark.sql.connector.catalog.{part}"
        for name, part in (
            ("LanceViewCatalog", "RelationCatalog"),
            ("LanceChangelogCatalog", "ChangelogContext"),
            ("LanceSessionChangelogCatalog", "ChangelogContext"),
        )
    }
    | {
        f"org.lance.spark.catalog.{name}": "org.apache.spark.sql.connector.catalog.TableInfo"
        for name in ("LanceConstrainedTable", "LanceConstraintCatalog", "LanceSessionConstraintCatalog")
    }
)


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
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
    gateway = JavaGateway.launch_gateway(
        jarpath=str(py4j), classpath=f"{jars}/*", java_path=str(java), die_on_exit=True, javaopts=opened
    )
    with pytest.MonkeyPatch.context() as patch:
        # Where a session runs, PySpark asks its own JVM what any exception says.
        patch.setattr(java_gateway, "get_return_value", get_return_value)
        yield gateway.jvm
    gateway.shutdown()


def has_class(jvm: Any, name: str) -> bool:
    try:
        jvm.java.lang.Class.forName(name, False, jvm.java.lang.Thread.currentThread().getContextClassLoader())
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
    return compiler.getClassLoader()


@pytest.fixture(scope="module")
def units(jvm: Any) -> Any:
    """A loader of all classes, compiled as `LanceUnits` does: units that a unit names are only parsed."""
    parent = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    janino, tools = jvm.org.codehaus.janino, jvm.org.codehaus.commons.compiler.util
    finder = tools.resource.DirectoryResourceFinder(jvm.java.io.File(str(FOLDER)))
    types = janino.JavaSourceIClassLoader(finder, "UTF-8", janino.ClassLoaderIClassLoader(parent))
    types.setSourceVersion(8)
    types.setTargetVersion(8)
    codes = jvm.java.util.HashMap()
    for name in fitting(jvm):
        assert types.loadIClass(f"L{name.replace('.', '/')};") is not None
        (compiler,) = (one for one in types.getUnitCompilers() if one.findClass(name) is not None)
        files = jvm.java.util.ArrayList()
        compiler.compileUnit(True, True, False, files)
        for file in files:
            codes.put(file.getThisClassName(), file.toByteArray())
    loader = tools.reflect.ByteArrayClassLoader(codes, parent)
    for name in codes.keySet():
        # Loading finds what a class extends; asking for its methods, the types that they name.
        loader.loadClass(name).getDeclaredMethods()
    return loader


def fitting(jvm: Any) -> list[str]:
    """Return the names of the classes that a release can have."""
    return [name for name in SOURCES if has_class(jvm, NEEDED.get(name, "java.lang.Object"))]


def test_all_units_compile(units: Any) -> None:
    for name in ("lance", "lance.DefaultSource", "org.lance.spark.catalog.LanceTable$Staged"):
        assert units.loadClass(name).getName() == name


def test_published_classes_name_those_before_them_only(jvm: Any) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in PUBLISHED:
        loader = compile_unit(jvm, loader, java_classes.source(name))


def test_the_shim_works(jvm: Any, units: Any, request: pytest.FixtureRequest) -> None:
    """`ShimCheck` calls every method, in a session without Python."""
    text = (Path(__file__).parent / "ShimCheck.java").read_text()
    for name in ("Callers", "Shim", "WorkerShim"):
        source = java_classes.source(f"org.lance.spark.shim.{name}")
        methods = re.findall(r"^  public static (?:synchronized )?[\w.<>]+ (\w+)\(", source, re.MULTILINE)
        assert methods
        assert [method for method in methods if f"{name}.{method}(" not in text] == []
    check = compile_unit(jvm, units, text).loadClass("org.lance.spark.tests.ShimCheck")
    version = request.node.callspec.params["jvm"]
    release = tuple(map(int, version.split(".")[:2]))
    assert dict(check.newInstance().call()) == {
        "schemaEvolution": release >= (4, 1),
        "asksForSchemaChanges": release >= (4, 2),
        "hasConstraints": release >= (4, 1),
        "hasCondition": release >= (4, 1),
        "keepsViews": release >= (4, 2),
        "makesTablesAlike": release >= (4, 2),
        "takesCatalystFilters": release >= (4, 1),
        "keepsReadPlan": release >= (4, 1),
        "replaceCriteria": release >= (4, 2),
        "changesSchema": True,
    }


def test_classes_of_the_call_stack_exist(jvm: Any, request: pytest.FixtureRequest) -> None:
    jars = RELEASES[request.node.callspec.params["jvm"]]
    classes = set()
    for jar in [*jars.glob("spark-sql*.jar"), *jars.glob("spark-catalyst*.jar")]:
        with zipfile.ZipFile(jar) as archive:
            files = archive.namelist()
        classes |= {name.removesuffix(".class").replace("/", ".").rstrip("$") for name in files}
    text = java_classes.source("org.lance.spark.shim.Callers")
    names = re.findall(r'"([\w.]+)"', text[text.index("CLASSES = {") : text.index("};")])
    assert len(names) == 12
    for name in names:
        assert any(one.startswith("org.apache.spark.sql.") and one.endswith(name) for one in classes), name


def test_java_and_python_give_the_same_reason() -> None:
    # `log_missing_parts` recognizes the reason by its text.
    assert f'"{NOT_TAKEN}"' in java_classes.source("org.lance.spark.load.LanceUnits")


# javac refuses subclasses of Spark's commands: Scala's signatures of inherited methods lack type arguments.
_SUBCLASSES = "org.lance.spark.rowlevel.LanceCounts"


def test_javac_compiles_the_sources(jvm: Any, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """An IDE opens the folder as a source root. Redundant casts stay, as Janino ignores type arguments."""
    home = os.environ.get("JAVA_HOME")
    javac = shutil.which("javac", path=None if home is None else str(Path(home) / "bin"))
    if javac is None:
        pytest.skip("this Java has no compiler: javac is a part of a JDK")
    jars = RELEASES[request.node.callspec.params["jvm"]]
    quiet = ("path", "cast", "options")
    command = [javac, f"-Xlint:all,{','.join(f'-{name}' for name in quiet)}", "-d", str(tmp_path)]
    command += ["-cp", f"{jars}/*{os.pathsep}{tmp_path}"]
    # A class and a package of one name, as Spark looks for them, are no unit of javac.
    names = [name for name in fitting(jvm) if name not in ("lance", _SUBCLASSES)]
    for part in (names, ["lance"]):
        files = [str(FOLDER / f"{name.replace('.', '/')}.java") for name in part]
        process = subprocess.run([*command, *files], capture_output=True, text=True, check=False, timeout=600)
        problems = [line for line in process.stderr.splitlines() if re.search(r"\.java:\d+: ", line)]
        assert (process.returncode, problems) == (0, [])


PRIVATE = re.compile(
    r"getDeclared(Field|Method|Constructor)|setAccessible|getStackTrace|StackWalker|SPARK_VERSION|getResourceAsStream\("
    r'|Class\.forName\("org\.apache|NoSuchMethodException|NoSuchFieldException'
)
# Public packages of Spark, with the packages in them.
PUBLIC = ("api", "ml.linalg", "sql.connector", "sql.types", "sql.util", "sql.vectorized")
# Other packages that sources outside of the shim import, as no public class serves. Add one if its classes
# are the same in all releases. Differences belong into the shim.
PACKAGES = frozenset(
    (
        "network.util",
        "rdd",
        "sql",
        "sql.catalyst",
        "sql.catalyst.analysis",
        "sql.catalyst.expressions",
        "sql.catalyst.expressions.codegen",
        "sql.catalyst.expressions.objects",
        "sql.catalyst.expressions.variant",
        "sql.catalyst.optimizer",
        "sql.catalyst.parser",
        "sql.catalyst.plans",
        "sql.catalyst.plans.logical",
        "sql.catalyst.plans.physical",
        "sql.catalyst.rules",
        "sql.catalyst.streaming",
        "sql.catalyst.trees",
        "sql.catalyst.types",
        "sql.catalyst.util",
        "sql.classic",
        "sql.execution",
        "sql.execution.arrow",
        "sql.execution.columnar",
        "sql.execution.datasources",
        "sql.execution.datasources.v2",
        "sql.execution.datasources.v2.python",
        "sql.execution.metric",
        "sql.execution.python",
        "sql.execution.streaming.sources",
        "sql.execution.vectorized",
        "sql.internal",
        "sql.internal.connector",
        "unsafe",
        "unsafe.types",
        "util",
    )
)


def test_only_the_shim_touches_private_parts() -> None:
    uses: set[str] = set()
    for name in SOURCES:
        text = java_classes.source(name)
        if name.startswith("org.lance.spark.shim."):
            continue
        # The loader reads class files of units, to send them to executors.
        if name != "org.lance.spark.transport.LanceTransport":
            assert (name, PRIVATE.search(text)) == (name, None)
        for package in re.findall(r"^import org\.apache\.spark\.((?:[a-z0-9]+\.)+)[A-Z]", text, re.MULTILINE):
            if not package.startswith(tuple(f"{public}." for public in PUBLIC)):
                assert package[:-1] in PACKAGES, (name, package)
                uses.add(package[:-1])
    assert uses == PACKAGES


def test_a_source_is_named_like_its_class() -> None:
    for name in SOURCES:
        package, _, stem = name.rpartition(".")
        text = java_classes.source(name)
        assert re.findall(r"^package ([\w.]+);$", text, re.MULTILINE) == [package] * bool(package), name
        assert re.search(rf"^public .*\b(class|interface) {stem}\b", text, re.MULTILINE), name


def test_nothing_is_assigned_to_itself() -> None:
    # A rename can leave `message = message` where the left side was a field; javac says nothing.
    pattern = re.compile(r"^\s*(\w+) = \1;", re.M)
    assert not [path.name for path in FOLDER.rglob("*.java") if pattern.search(path.read_text())]


def test_what_does_not_fit_a_release_does_not_compile(jvm: Any) -> None:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    text = java_classes.source("org.lance.spark.transport.LanceTransport")
    with pytest.raises(Py4JJavaError, match="getNoArtifactState"):
        compile_unit(jvm, loader, text.replace("getCurrentJobArtifactState", "getNoArtifactState"))
