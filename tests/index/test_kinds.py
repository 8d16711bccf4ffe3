"""What belongs to a kind of index stands in its module, kinds in the tables; nothing else names them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from spark_lance.index.scalar.kinds import SCALAR_INDICES
from spark_lance.index.vector.kinds import VECTOR_LABEL
from spark_lance.index.vector.quantizers import QUANTIZERS
from spark_lance.index.vector.storage import INDEX_TYPES

PACKAGE = Path(__file__).resolve().parents[2] / "spark_lance"
CLASSES = {kind.__name__ for kind in (*SCALAR_INDICES.values(), *QUANTIZERS.values())}
LABELS = {kind.label for kind in SCALAR_INDICES.values()} | {VECTOR_LABEL}
NAMES = {*SCALAR_INDICES, *QUANTIZERS, *INDEX_TYPES, *CLASSES, *LABELS}
TABLES = {
    "index/scalar/kinds.py",
    # What an index tells of all values of a column.
    "index/scalar/column_facts.py",
    "index/vector/kinds.py",
    "index/vector/quantizers/__init__.py",
    "index/vector/storage.py",
    # What manifests say of a kind, and who reads what they say.
    "table/format/index_kinds.py",
    "table/indices/describe.py",
    "table/format/old_writers.py",
}
# Modules of one kind.
OWN = {Path(inspect.getfile(kind)) for kind in (*SCALAR_INDICES.values(), *QUANTIZERS.values())}
OWN |= {PACKAGE / "index/text/inverted.py", PACKAGE / "index/vector/create.py"}

MODULES = [
    path
    for layer in ("table", "index", "datasets", "cli", "spark")
    for path in sorted((PACKAGE / layer).rglob("*.py"))
    if path not in OWN and str(path.relative_to(PACKAGE)) not in TABLES
]


def named(tree: ast.AST) -> Iterator[str]:
    """Yield the kinds that code names: as text, but not in docstrings or as a default, or by its class."""
    defaults = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.arguments)
        for value in (*node.defaults, *node.kw_defaults)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in defaults:
            yield from {node.value} & NAMES
        elif isinstance(node, ast.Name):
            yield from {node.id} & CLASSES


def test_nothing_else_knows_the_kinds_of_index() -> None:
    results = {str(path.relative_to(PACKAGE)): set(named(ast.parse(path.read_text()))) for path in MODULES}
    assert not {path: names for path, names in results.items() if names}
