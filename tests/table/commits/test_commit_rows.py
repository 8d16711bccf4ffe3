"""The rule for files of a failed commit: an unknown outcome is never cleaned up."""

from __future__ import annotations

import ast

import pytest

from spark_lance.errors import CommitError, CommitOutcomeUnknownError, RetryableConflictError, StoreError
from spark_lance.table.commits.commit_rows import delete_on_failure
from tests.conftest import ROOT


class ForeignError(Exception):
    """No LanceError and no OSError."""


class BareError(BaseException):
    """As KeyboardInterrupt: it may come at any time, after the commit too."""


@pytest.mark.parametrize(
    ("error", "also", "discarded"),
    [
        (CommitError("x"), (), True),
        (RetryableConflictError("x"), (), True),
        (StoreError("x"), (), True),
        (ConnectionError("x"), (), True),
        (CommitOutcomeUnknownError("x"), (), False),
        (CommitOutcomeUnknownError("x"), (Exception,), False),
        (ForeignError("x"), (), False),
        (ForeignError("x"), (ForeignError,), True),
        (ForeignError("x"), (Exception,), True),
        (BareError("x"), (Exception,), False),
    ],
    ids=str,
)
def test_files_go_only_if_nothing_was_committed_for_sure(
    error: BaseException, also: tuple[type[Exception], ...], discarded: bool
) -> None:
    calls: list[int] = []
    with pytest.raises(type(error)) as caught, delete_on_failure(lambda: calls.append(1), *also):
        raise error
    assert caught.value is error
    assert calls == [1] * discarded


def test_the_rule_stands_in_one_place() -> None:
    package = ROOT / "spark_lance"
    names = "CommitOutcomeUnknownError"
    catching = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if names in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ExceptHandler) and node.type is not None and names in ast.unparse(node.type)
    ]
    assert catching == ["table/commits/commit_rows.py"]


def test_what_succeeds_is_kept() -> None:
    calls: list[int] = []
    with delete_on_failure(lambda: calls.append(1), Exception):
        pass
    assert not calls
