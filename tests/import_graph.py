"""The imports among modules of the package and of the tests, read from their syntax without running them."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = [
    "MODULES",
    "NAMES",
    "PACKAGE",
    "ROOT",
    "distances",
    "imported",
    "imported_modules",
    "importers",
    "module_name",
    "needs_reference",
    "nodes",
    "test_modules",
]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "spark_lance"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if not path.name.endswith("_pb2.py"))

Imports = Iterator[tuple[int, str]]


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree; the module itself is the first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imported(parts: Iterable[ast.AST]) -> Imports:
    """Yield (line, full name) of everything that parts of a syntax tree import."""
    for node in parts:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import of {node.module}"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the repository."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_name(path) for path in PACKAGE.rglob("*.py")}


def _resolved(path: Path, names: frozenset[str]) -> frozenset[str]:
    # "from a.b import c": c is a module or a name in a.b.
    modules = {name if name in names else name.rpartition(".")[0] for _, name in imported(nodes(path))}
    return frozenset((modules & names) - {module_name(path)})


@cache
def imported_modules(path: Path) -> frozenset[str]:
    """Return the modules of the package that a module imports, parents left out."""
    return _resolved(path, frozenset(NAMES))


@cache
def test_modules() -> Mapping[str, Path]:
    """Return the modules below tests/ by dotted name, helpers included."""
    paths = sorted((ROOT / "tests").rglob("*.py"))
    return {module_name(path): path for path in paths if "golden" not in path.parts}


@cache
def _test_imports() -> Mapping[str, frozenset[str]]:
    names = frozenset(NAMES | test_modules().keys())
    return {name: _resolved(path, names) for name, path in test_modules().items()}


@cache
def needs_reference(name: str) -> bool:
    """Whether a module of the tests imports pylance (`lance`), itself or by another module of the tests."""
    names = [full for _, full in imported(nodes(test_modules()[name]))]
    if any(full.split(".")[0] == "lance" for full in names):
        return True
    helpers = _test_imports()[name] & test_modules().keys()
    return any(needs_reference(helper) for helper in helpers)


@cache
def importers() -> Mapping[str, frozenset[str]]:
    """Return for each module of the package and of the tests the modules that import it."""
    edges: dict[str, set[str]] = {}
    for path in MODULES:
        for target in imported_modules(path):
            edges.setdefault(target, set()).add(module_name(path))
    for name, targets in _test_imports().items():
        for target in targets:
            edges.setdefault(target, set()).add(name)
    return {name: frozenset(sources) for name, sources in edges.items()}


def distances(changed: Iterable[str]) -> dict[str, int]:
    """Return how many imports lead from each module to the nearest of some modules.

    Args:
        changed: dotted names of modules of the package or of the tests.

    Returns:
        Numbers by dotted name; a module that imports none of them, however indirectly, is missing.
    """
    result = dict.fromkeys(changed, 0)
    queue = deque(result)
    while queue:
        name = queue.popleft()
        for source in sorted(importers().get(name, ())):
            if source not in result:
                result[source] = result[name] + 1
                queue.append(source)
    return result
