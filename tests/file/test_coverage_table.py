"""tests/file/encodings.md names every encoding, and only tests that exist."""

from __future__ import annotations

import ast
import re

import pytest

from spark_lance.file.v2_0 import ARRAY_ENCODINGS
from spark_lance.file.v2_1 import ENCODINGS, LAYOUTS
from spark_lance.file.v2_1.base.codec import Codec
from tests.conftest import ROOT

TEXT = (ROOT / "tests" / "file" / "encodings.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in TEXT.split("\n## ")[1:]}


def rows(section: str) -> dict[str, list[str]]:
    """Return the cells of each row that begins with a name."""
    lines = [line.strip("|").split("|") for line in SECTIONS[section].splitlines() if line.startswith("| `")]
    return {cells[0].strip(" `"): [cell.strip() for cell in cells[1:]] for cells in lines}


@pytest.mark.parametrize(
    ("section", "table"),
    [
        ("2.0: ARRAY_ENCODINGS", ARRAY_ENCODINGS),
        ("2.1 to 2.3: LAYOUTS", LAYOUTS),
        ("2.1 to 2.3: ENCODINGS", ENCODINGS),
    ],
)
def test_every_name_has_a_row(section: str, table: dict[str, object]) -> None:
    result = rows(section)
    assert sorted(result) == sorted(table)
    for name, cells in result.items():
        refused = table[name] is None or table[name] == Codec()
        said = cells[0].startswith("refused")
        assert said == refused, f"tests/file/encodings.md says of {name}: {'refused' if said else 'decoded'}"
        # What is decoded has been decoded from somebody's bytes, and from damaged ones.
        tested = (cells[0] or cells[1]) and cells[3]
        assert refused or tested, (
            f"tests/file/encodings.md names no test of {name}, or none with damaged bytes"
        )


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"([\w./]+\.py)::(\w+)", TEXT)
    assert len(named) > 60
    known: dict[str, set[str]] = {}
    for path, name in set(named):
        if path not in known:
            tree = ast.parse((ROOT / "tests" / "file" / path).read_text())
            known[path] = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in known[path], f"{path} has no {name}"
