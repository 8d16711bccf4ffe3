"""What the documents for developers say of the tree is so."""

from __future__ import annotations

import re

import pytest

from tests.conftest import ROOT
from tests.test_layers import LAYERS, ROOMS

DECISIONS = (ROOT / "docs" / "decisions.md").read_text()
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


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
