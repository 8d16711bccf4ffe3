"""Docstrings and Javadoc describe the arguments that a function has, by the names that they have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import spark_lance

_PACKAGE = Path(spark_lance.__file__).parent
_ARGUMENTS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.M)
_NAMES = re.compile(r"^    (\*{0,2}\w[\w, *]*):", re.M)
# A comment of Java, and the declaration below it.
_JAVADOC = re.compile(r"(/\*\*(?:[^*]|\*(?!/))*\*/)([^{;]*)")


def _documented(docstring: str) -> list[str]:
    section = _ARGUMENTS.search(docstring)
    groups = _NAMES.findall(section[1]) if section else []
    return [name.strip(" *") for group in groups for name in group.split(",")]


def _parameters(node: ast.FunctionDef) -> set[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {each.arg for each in (*every, node.args.vararg, node.args.kwarg) if each is not None}


def _accepted(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Return the parameters of a function or of `__init__`, and the fields of a dataclass."""
    if isinstance(node, ast.FunctionDef):
        return _parameters(node)
    fields = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    return fields.union(*(_parameters(each) for each in methods if each.name == "__init__"))


def _unknown(source: str) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = _documented(ast.get_docstring(node) or "")
            yield from ((node.name, name) for name in names if name not in _accepted(node))


def test_an_argument_that_does_not_exist_is_found() -> None:
    docstring = '"""Do it.\n\n    Args:\n        store, root: the table.\n        table: where.\n    """'
    assert list(_unknown(f"def f(table: int, root: str) -> None:\n    {docstring}\n")) == [("f", "store")]


def test_documented_arguments_exist() -> None:
    wrong = [
        f"{path.relative_to(_PACKAGE)}: {function} has no argument {name!r}"
        for path in sorted(_PACKAGE.rglob("*.py"))
        for function, name in _unknown(path.read_text(encoding="utf-8"))
    ]
    assert not wrong


def _unknown_in_java(source: str) -> Iterator[str]:
    for comment, declaration in _JAVADOC.findall(source):
        for name in re.findall(r"@param (\w+)", comment):
            if not re.search(rf"\b{name}\s*[,)]", declaration):
                yield name


def test_a_parameter_of_java_that_does_not_exist_is_found() -> None:
    comment = "/**\n * Reads it.\n *\n * @param path the file\n * @param size bytes\n */"
    assert list(_unknown_in_java(f"{comment}\npublic void read(String path, long sizes) {{")) == ["size"]


def test_documented_parameters_of_java_exist() -> None:
    wrong = [
        f"{path.relative_to(_PACKAGE)}: no parameter {name!r}"
        for path in sorted(_PACKAGE.rglob("*.java"))
        for name in _unknown_in_java(path.read_text(encoding="utf-8"))
    ]
    assert not wrong
