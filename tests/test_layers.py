"""The shape of the code: layers and their rooms import to the left, modules and functions stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "spark_lance"
LAYERS = (
    "errors",
    "proto",
    "io",
    "file",
    "table",
    "index",
    "memwal",
    "datasets",
    "training",
    "catalog",
    "compat",
    "cli",
    "spark",
)
# The folders of a package in the order of their imports: each uses only those to its left. "core" are modules
# beside the folders, except those that are named themselves.
ROOMS = {
    "table": (
        "core",
        "predicates",
        "operations",
        "schema",
        "versions",
        "reading",
        "indices",
        "writing",
        "commits",
        "columns",
        "maintenance",
        "metadata",
        "rows",
        "inserts",
    ),
    "index": ("core", "vector", "text", "scalar", "remap", "pruners"),
    "spark": (
        "core",
        "options",
        "session",
        "schema",
        "scan",
        "sink",
        "streaming",
        "source",
        "lance_table",
        "sql",
        "enable",
    ),
    # The package itself holds the tables of layouts and encodings, by which pages are read.
    "file.v2_1": ("core", "levels", "encodings", "layouts", "__init__", "read", "write"),
}
LATE_IMPORTS_ALLOWED = {
    "spark_lance/__init__.py",
    "spark_lance/index/pruners.py",
    "spark_lance/index/text/tokenizer.py",
    "spark_lance/spark/source.py",
    "spark_lance/spark/sql/late.py",
    "spark_lance/table/predicates/predicate.py",
}
# Imported by name when asked for, and importing the one that does so: Arrow's type says which type of pandas
# it becomes, and that one holds numbers of Arrow's module. Whoever has no pandas uses the first alone.
LATE_CIRCLES = {("spark_lance.compat.lance.arrow", "spark_lance.compat.lance.bfloat16_pandas")}
MODULE_LINES = 500
FUNCTION_LINES = 80

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))
CASES = [pytest.param(path, id=str(path.relative_to(ROOT))) for path in MODULES]

Imports = Iterator[tuple[int, str]]


def imported(tree: ast.AST) -> Imports:
    """Yield (line, full name) of everything a syntax tree imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def late_imports(tree: ast.AST) -> Imports:
    """Yield the imports that stand inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def layer(name: str) -> int:
    """Return the layer of a name in this package; the package's own `__init__` stands above all."""
    part = f"{name}.".split(".")[1]
    return LAYERS.index(part) if part in LAYERS else len(LAYERS)


def room(name: str) -> tuple[str, int] | None:
    """Return the package with rooms that a module is in, and the place of its room in the order."""
    for package, order in ROOMS.items():
        inner = name.removeprefix(f"spark_lance.{package}")
        if inner != name and inner[:1] in ("", "."):
            first = inner.split(".")[1] if inner else "__init__"
            return package, order.index(first if first in order else "core")
    return None


NAMES = {module_name(path) for path in PACKAGE.rglob("*.py")}


def imported_modules(path: Path) -> set[str]:
    """Return the modules of this package that a module imports, parents left out."""
    found = set()
    for _, name in imported(ast.parse(path.read_text())):
        # "from a.b import c": c is a module or a name in a.b.
        found |= {name if name in NAMES else name.rpartition(".")[0]} & NAMES
    return found - {module_name(path)}


def modules_by_name(path: Path) -> set[str]:
    """Return the modules of this package that a module imports by name, when they are needed."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if ast.unparse(call.func).endswith("import_module")]
    return {str(name.value) for name in named if isinstance(name, ast.Constant)} & NAMES


@pytest.mark.parametrize("path", CASES)
def test_imports_point_left(path: Path) -> None:
    own = layer(module_name(path))
    for line, name in imported(ast.parse(path.read_text())):
        package = name.split(".")[0]
        assert package != "lance", f"line {line}: pylance belongs in tests and benchmarks only"
        if package == "pyspark":
            assert own >= LAYERS.index("spark"), f"line {line}: pyspark outside spark_lance/spark"
        if package == "spark_lance":
            assert layer(name) <= own, f"line {line}: {name} is to the right"


@pytest.mark.parametrize("path", CASES)
def test_imports_point_left_in_the_rooms(path: Path) -> None:
    own = room(module_name(path))
    if own is None:
        return
    for name in imported_modules(path):
        other = room(name)
        assert other is None or other[0] != own[0] or other[1] <= own[1], f"{name} is to the right"


@pytest.mark.parametrize("package", ROOMS)
def test_every_folder_is_a_room(package: str) -> None:
    folder = PACKAGE / package.replace(".", "/")
    assert {path.parent.name for path in folder.glob("*/*.py")} <= set(ROOMS[package])
    for name in set(ROOMS[package]) - {"core"}:
        assert (folder / name).is_dir() or (folder / f"{name}.py").is_file(), f"{package} has no {name}"


@pytest.mark.parametrize("path", CASES)
def test_imports_stand_at_the_top(path: Path) -> None:
    if str(path.relative_to(ROOT)) not in LATE_IMPORTS_ALLOWED:
        assert not list(late_imports(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", CASES)
def test_sizes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MODULE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


def test_modules_import_in_no_circle() -> None:
    left = {module_name(path): imported_modules(path) | modules_by_name(path) for path in MODULES}
    for asking, asked in LATE_CIRCLES:
        assert asking in left[asked], "no circle any more"
        left[asking].remove(asked)
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left, f"these import each other in a circle: {sorted(left)}"


def test_finding_the_format_imports_nothing_heavy() -> None:
    # Spark imports this module in every session of a machine that has the package.
    program = "import sys, pyspark_lance; print(*(n for n in sys.modules if n.startswith('spark_lance.')))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded == {"errors", "spark"}
