"""Names and prose get no new matches of the patterns that tests/words.py counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import words


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def f() -> None:\n    found = 1\n    print(found)\n", "participle"),
        ("def f(given: int) -> None:\n    pass\n", "participle"),
        ("class _Found:\n    pass\n", "participle"),
        ("def f(self) -> None:\n    self._seen = 1\n", "participle"),
        ("def f() -> None:\n    _kept, rows = 1, 2\n    print(rows)\n", "participle"),
        ('"""Return the files anew."""\n', "old word"),
        ("x = 1  # the index stands beside the data\n", "beside"),
        ('"""Return the rows of which one is new."""\n', "relative clause"),
        ('"""Return if the reader is told."""\n', "told"),
        ('"""What is read by the task."""\n', "free relative"),
        ('"""' + "word " * 31 + '."""\n', "long sentence"),
    ],
)
def test_each_rule_finds_its_pattern(tmp_path: Path, text: str, rule: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    assert [match[1] for match in words.matches(path)] == [rule]


@pytest.mark.parametrize(
    "code",
    [
        "Map<String, Object> asked = new HashMap<>();",
        "int size(List<String> given) { return given.size(); }",
        "for (String[] found : names) {}",
        "private static Object told() { return null; }",
        "class Kept {}",
        "WriteBuilder own;",
    ],
)
def test_names_in_java_say_what_things_are(tmp_path: Path, code: str) -> None:
    path = tmp_path / "Module.java"
    path.write_text(
        f'/** A class. */\nString text = "Object found;"; // Object found;\n{code}\nreturn found;\n'
    )
    assert [match[:2] for match in words.matches(path)] == [(3, "participle")]


def test_plain_english_has_no_match(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text("# Beside\n\nWhat is a fragment? A file and its deletions.\n\n```\nfound anew\n```\n")
    assert not list(words.matches(path))


def test_budgets_only_go_down() -> None:
    budgets = {"a: told": 3, "b: told": 1, "c: told": 2}
    assert words.lower(budgets, {"a: told": 5, "b: told": 0, "c: told": 1}) == {"a: told": 3, "c: told": 1}


def test_no_file_has_more_matches_than_it_may_have() -> None:
    budgets = json.loads(words.BUDGETS.read_text())
    over = {key: count for key, count in words.counts(words.files()).items() if count > budgets.get(key, 0)}
    assert not over, "python -m tests.words FILE lists the matches; write as the rules of CONTRIBUTING say"
