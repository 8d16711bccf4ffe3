"""What the documents for developers say of the tree is so."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.conftest import ROOT
from tests.test_layers import LAYERS, ROOMS

FOLDERS = ("spark_lance", "protos", "tests", "benchmarks", "examples", "docs", "release")
# What decisions name and the code does not: of others, and rejected.
ELSEWHERE = {"RECORD", "RestNamespace", "SupportsRowLevelOperations"}

DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@cache
def files() -> list[str]:
    """Return the paths of the repository's files, "/" in front."""
    inner = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))
    return [f"/{path.relative_to(ROOT)}" for path in (*ROOT.glob("*.*"), *inner)]


@cache
def words() -> set[str]:
    """Return the words of the code, comments included."""
    sources = [
        ROOT / path[1:]
        for path in files()
        if path.startswith(("/spark_lance", "/protos", "/tests"))
        and path.endswith((".py", ".java", ".proto"))
    ]
    texts = (path.read_text() for path in sources if path.name != "test_docs.py")
    return {word for text in texts for word in re.findall(r"\w+", text)}


def test_decisions_are_numbered_in_order() -> None:
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", DECISIONS, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    parts = re.split(r"^## ", DECISIONS, flags=re.MULTILINE)[1:]
    assert all(
        "\nHeld by `tests/" in part or re.search(r"\nReplaced by decision \d+\.\n", part) for part in parts
    )


@pytest.mark.parametrize("text", [DECISIONS, ARCHITECTURE, CONTRIBUTING], ids=["decisions", "map", "recipes"])
def test_tests_and_modules_that_are_named_exist(text: str) -> None:
    for path, name in re.findall(r"\b(tests/[\w/]+\.py)::(\w+)", text):
        assert f"def {name}(" in (ROOT / path).read_text()
    for path in re.findall(r"`(spark_lance/[\w/]+\.(?:py|java))`", text):
        assert (ROOT / path).is_file(), path


@pytest.mark.parametrize("text", [DECISIONS, ARCHITECTURE, CONTRIBUTING], ids=["decisions", "map", "recipes"])
def test_files_and_names_that_are_mentioned_exist(text: str) -> None:
    # Of the glossary the first column is ours.
    ours = re.sub(r"^(\|[^|]*\|).*$", r"\1", text, flags=re.MULTILINE)
    for path in re.findall(r"(?<![\w.>*])[\w/]+\.(?:py|java|proto)\b", ours):
        if not path.startswith("/"):
            assert any(file.endswith(f"/{path}") for file in files()), path
    prose = re.sub(r"```.*?```", "", ours, flags=re.DOTALL)
    # Names, with a dot or parentheses perhaps; no commands, settings or examples of SQL.
    for span in re.findall(r"`([A-Za-z_][\w.]*(?:\(\))?)`", prose):
        for word in re.findall(r"[A-Za-z_]\w*", span):
            assert word in words() | ELSEWHERE, span
    for block in re.findall(r"```(.*?)```", ours, re.DOTALL):
        for path in re.findall(r"\b(?:spark|table|file|index|memwal|datasets)/\w+(?:/\w+)*\b(?!\.)", block):
            assert any(f"/{path}/" in file or file.endswith(f"/{path}.py") for file in files()), path


def test_the_picture_shows_the_layers_and_their_rooms_in_order() -> None:
    picture = ARCHITECTURE.split("```")[1]
    lines = [line.split() for line in picture.splitlines() if line[:1].isalpha()]
    assert [line[0] for line in lines] == list(reversed(LAYERS))
    for package, rooms in ROOMS.items():
        shown = re.search(
            rf"^{re.escape(package.split('.')[0])} (.*?)(?=^\w|\Z)", picture, re.MULTILINE | re.DOTALL
        )
        assert shown is not None
        words = re.findall(r"[\w]+", shown[1])
        places = [words.index(room) for room in rooms if room not in ("core", "__init__")]
        assert places == sorted(places), package
