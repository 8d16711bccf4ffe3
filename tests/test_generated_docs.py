"""The tables in docs/ that are generated are current, and what they are made of is whole."""

from __future__ import annotations

import importlib.util
import inspect
import re

import pytest

from spark_lance import errors
from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
assert SPEC is not None
assert SPEC.loader is not None
generate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(generate)


@pytest.mark.parametrize("path", generate.pages(), ids=lambda path: path.stem)
def test_tables_of_a_page_are_current(path: object) -> None:
    text = path.read_text()  # type: ignore[attr-defined]
    assert generate.filled(text) == text, "make docs-generate"


def test_every_table_is_on_a_page() -> None:
    named = {match[1] for path in generate.pages() for match in generate.MARKS.findall(path.read_text())}
    assert named == set(generate.TABLES)


def test_a_stale_page_is_noticed() -> None:
    text = "before\n<!-- generated: errors -->\nold\n<!-- end -->\nafter\n"
    assert "`TableNotFoundError`" in generate.filled(text)
    assert generate.filled(text) != text


def test_errors_are_all_listed_with_cause_and_remedy() -> None:
    classes = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.LanceError) and not name.startswith("_")
    }
    assert set(errors.__all__) == set(classes)
    for name, kind in classes.items():
        sentence = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
        assert re.fullmatch(r"[^:]+: .+\.", sentence), f"{name}: the docstring begins with `cause: remedy.`"
        assert kind.repeatable in (True, False, None)
    assert errors.RetryableConflictError.repeatable
    assert errors.CommitOutcomeUnknownError.repeatable is None
