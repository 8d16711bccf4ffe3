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

PAGES = sorted((ROOT / "decisions").glob("[0-9]*.md"))
DECISIONS = "\n".join(page.read_text() for page in PAGES)
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


def test_each_decision_is_a_page_with_its_number_and_is_listed() -> None:
    index = (ROOT / "decisions" / "index.md").read_text()
    for number, page in enumerate(PAGES, 1):
        title, _, text = page.read_text().partition("\n")
        assert page.name.startswith(f"{number:02}-")
        assert title.startswith(f"# {number}. ")
        assert f"- [{title.removeprefix('# ')}]({page.name})" in index
        for label in ("Context", "Decision", "Rejected"):
            assert f"\n**{label}.** " in text, f"{page.name} has no {label}"
        has_tests = "\n**Held by** `tests/" in text or "\nReplaced by decision " in text
        assert has_tests, page.name


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
