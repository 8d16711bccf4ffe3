"""The shape of the code: layers and their rooms import to the left, modules and functions stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import (
    MODULES,
    NAMES,
    PACKAGE,
    ROOT,
    imported,
    imported_modules,
    module_name,
    nodes,
)

LAYERS = (
    "release",
    "redaction",
    "errors",
    "proto",
    "io",
    "arrow",
    "jsonb",
    "file",
    "expressions",
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
    "file": ("kernels", "base", "v0_1", "v2_0", "v2_1", "core"),
    "table": (
        "core",
        "format",
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
    "index": ("base", "vector", "text", "scalar", "core"),
    "spark": (
        "base",
        "options",
        "schema",
        "worker",
        "driver",
        "scan",
        "sink",
        "streaming",
        "table",
        "sql",
        # Modules that users and Spark name by their path.
        "core",
    ),
    # The package itself holds the tables of layouts and encodings, by which pages are read.
    "file.v2_1": ("base", "levels", "encodings", "layouts", "__init__", "read", "write"),
}
LATE_IMPORTS_ALLOWED = {
    "spark_lance/io/s3_client.py",
    "spark_lance/spark/worker/write.py",  # most writes have no identity columns
    "spark_lance/spark/base/compat.py",  # workers load it, and need no session
    "spark_lance/__init__.py",
    # Opening and reading a table loads nothing that only other calls need, see test_loaded.
    "spark_lance/datasets/blob_bytes.py",
    "spark_lance/datasets/dataset.py",
    "spark_lance/datasets/fragment_changes.py",
    "spark_lance/datasets/fresh.py",
    "spark_lance/datasets/lance_dataset.py",
    "spark_lance/datasets/read.py",
    "spark_lance/datasets/scan_request.py",
    "spark_lance/datasets/scanner.py",
    "spark_lance/datasets/searching.py",
    "spark_lance/table/schema/constraints.py",
    "spark_lance/index/pruners.py",
    "spark_lance/spark/sql/aggregates.py",
    "spark_lance/spark/sql/scans.py",
    "spark_lance/index/text/tokenizer.py",
    # What tasks that read local files do without, see test_tasks_load_little.
    "spark_lance/io/drivers.py",
    "spark_lance/io/locations.py",
    "spark_lance/spark/driver/progress.py",
    "spark_lance/spark/worker/read.py",
    # What only those need who call the function.
    "spark_lance/spark/enable.py",
    "spark_lance/spark/options/options.py",
    "spark_lance/spark/worker/blob_function.py",
    "spark_lance/spark/source.py",
    "spark_lance/spark/sql/register.py",
    "spark_lance/spark/sql/tables.py",
    "spark_lance/expressions/predicate.py",
}
# Imported by name when asked for, and importing the one that does so: Arrow's type says which type of pandas
# it becomes, and that one holds numbers of Arrow's module. Whoever has no pandas uses the first alone.
# A dataset's method `insert` calls the function that makes datasets.
LATE_CIRCLES = {
    ("spark_lance.compat.lance.arrow", "spark_lance.compat.lance.bfloat16_pandas"),
    ("spark_lance.datasets.lance_dataset", "spark_lance.datasets.dataset"),
}
# Classes of many parts, which import them for type checkers only.
WHOLES = {"spark_lance.datasets.lance_dataset", "spark_lance.spark.table.table"}
# Modules with `__all__`: those that users import, and one that passes on names of PySpark.
PUBLIC = {
    *("__init__.py", "errors.py", "datasets/dataset.py", "index/text/queries.py"),
    *("spark/daemon.py", "spark/enable.py", "spark/java.py", "spark/source.py", "spark/base/compat.py"),
}
MODULE_LINES = 800
FUNCTION_LINES = 80


def late_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the imports that stand inside functions."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(ast.walk(node))


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


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


def modules_by_name(path: Path) -> set[str]:
    """Return the modules of this package that a module imports by name, when they are needed."""
    calls = [node for node in nodes(path) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if ast.unparse(call.func).endswith("import_module")]
    return {str(name.value) for name in named if isinstance(name, ast.Constant)} & NAMES


def test_imports_point_left() -> None:
    wrong = []
    for path in MODULES:
        own = layer(module_name(path))
        for line, name in imported(nodes(path)):
            package = name.split(".")[0]
            if package == "lance":
                wrong.append(f"{place(path, line)}: pylance belongs in tests and benchmarks only")
            if package == "pyspark" and own < LAYERS.index("spark"):
                wrong.append(f"{place(path, line)}: pyspark outside spark_lance/spark")
            if package == "spark_lance" and layer(name) > own:
                wrong.append(f"{place(path, line)}: {name} is to the right")
    assert not wrong


def test_imports_point_left_in_the_rooms() -> None:
    wrong = []
    for path in MODULES:
        own = room(module_name(path))
        for name in imported_modules(path) if own else ():
            other = room(name)
            if own and other and other[0] == own[0] and other[1] > own[1]:
                wrong.append(f"{place(path)}: {name} is to the right")
    assert not wrong


def test_no_folder_imports_its_parent_and_back() -> None:
    """The modules of a package are the base of its folders, or their facade, and never both."""
    packages = {module_name(path) for path in MODULES if path.name == "__init__.py"}

    def folder(name: str) -> str:
        return name if name in packages else name.rpartition(".")[0]

    edges = {(folder(module_name(path)), folder(name)) for path in MODULES for name in imported_modules(path)}
    up = {inner for inner, outer in edges if outer == inner.rpartition(".")[0] and (outer, inner) in edges}
    assert not {name for name in up if name.count(".") > 1}


@pytest.mark.parametrize("package", ROOMS)
def test_every_folder_is_a_room(package: str) -> None:
    folder = PACKAGE / package.replace(".", "/")
    assert {path.parent.name for path in folder.glob("*/*.py")} <= set(ROOMS[package])
    for name in set(ROOMS[package]) - {"core"}:
        assert (folder / name).is_dir() or (folder / f"{name}.py").is_file(), f"{package} has no {name}"


def test_arrow_does_not_ask_pandas_for_types() -> None:
    """Nobody has to have pandas, which Arrow imports to say what a type is in numpy."""
    requests = [(path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.Attribute)]
    assert not [place(path, node.lineno) for path, node in requests if node.attr == "to_pandas_dtype"]


def test_imports_stand_at_the_top() -> None:
    others = [path for path in MODULES if str(path.relative_to(ROOT)) not in LATE_IMPORTS_ALLOWED]
    assert not [f"{place(path, line)}: {name}" for path in others for line, name in late_imports(path)]


def test_only_public_modules_list_their_names() -> None:
    listing = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES
        if "\n__all__" in path.read_text() and path.relative_to(PACKAGE).parts[0] != "compat"
    }
    assert listing == PUBLIC


def test_sizes() -> None:
    wrong = [place(path) for path in MODULES if len(path.read_text().splitlines()) > MODULE_LINES]
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES:
                    wrong.append(f"{place(path, node.lineno)}: {node.name}")
    assert not wrong, "too long"


def for_types_only(path: Path) -> set[str]:
    """Return the modules that a module imports for type checkers and for nothing else."""
    (tree, *_) = nodes(path)
    assert isinstance(tree, ast.Module)
    checks = [node for node in tree.body if isinstance(node, ast.If)]
    inner = {part for node in checks if ast.unparse(node.test) == "TYPE_CHECKING" for part in ast.walk(node)}
    typed, others = (
        {
            name.rpartition(".")[0]
            for _, name in imported(part for part in nodes(path) if (part in inner) is expected)
        }
        for expected in (True, False)
    )
    return typed - others


def test_modules_import_in_no_circle() -> None:
    left = {module_name(path): {*imported_modules(path), *modules_by_name(path)} for path in MODULES}
    for asking, request in LATE_CIRCLES:
        assert asking in left[request], "no circle any more"
        left[asking].remove(request)
    for path in MODULES:
        left[module_name(path)] -= WHOLES & for_types_only(path)
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left, f"these import each other in a circle: {sorted(left)}"


# What makes a task, as the driver does, and a program that runs it, as a worker does.
MAKING = """
import pickle, sys
import pyarrow as pa
import spark_lance
from pyspark.sql.datasource import CaseInsensitiveDict
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan.rows import LanceReader, describe
from spark_lance.spark.worker.transport import pickled_read
place = sys.argv[1] + "/t.lance"
spark_lance.write_dataset(pa.table({"i": range(9), "s": ["x"] * 9}), place)
options = read_options(CaseInsensitiveDict({"path": place, "filter": "i > 2"}))
ref, schema = describe(options, None)
made = pickled_read(LanceReader(options, schema, ref), schema)
with open(sys.argv[1] + "/task", "wb") as file:
    pickle.dump(made, file)
"""
RUNNING = """
import pickle, sys
import pyarrow as pa
import pyspark.sql.worker.plan_data_source_read
with open(sys.argv[1] + "/task", "rb") as file:
    function, (partition,) = pickle.load(file)
given = pa.record_batch([pa.array([partition])], names=["p"])  # Arrow looks for pandas here
before = set(sys.modules)
rows = sum(batch.num_rows for batch in pickle.loads(function)[0]([given]))
print(rows, *(name for name in sys.modules if name not in before))
"""


def test_tasks_load_little(tmp_path: Path) -> None:
    # A worker is started for a query, and what it imports for a task is waited for.
    for program in (MAKING, RUNNING):
        command = [sys.executable, "-c", program, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows, *loaded = done.stdout.split()
    assert int(rows) == 6
    assert not {name.split(".")[0] for name in loaded} & {"fsspec", "asyncio"}
    ours = {name.removeprefix("spark_lance.") for name in loaded if name.startswith("spark_lance.")}
    assert "file.v2_1.read.field_reader" in ours
    planning = (
        "index",
        "table.versions",
        "table.manifest",
        "spark.scan.rows",
        "file.v2_1.write",
        "file.v2_0",
    )
    assert not [name for name in ours if name.startswith(planning)]


def test_planning_a_scan_loads_no_table_object() -> None:
    # A SELECT by path waits for these modules.
    program = (
        "import sys, spark_lance.spark.sql.scans; print(*(n for n in sys.modules if 'spark_lance.' in n))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    modules = run.stdout.split()
    folders = (
        "spark_lance.datasets",
        "spark_lance.spark.table",
        "spark_lance.memwal",
        "spark_lance.catalog.d",
    )
    assert not [name for name in modules if name.startswith(folders)]
    assert len(modules) < 300


def test_finding_the_format_imports_nothing_heavy() -> None:
    # Spark imports this module in every session of a machine that has the package.
    program = "import sys, pyspark_lance; print(*(n for n in sys.modules if n.startswith('spark_lance.')))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert loaded == {"errors", "redaction", "release", "spark"}
