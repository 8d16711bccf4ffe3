"""Files that stay open for the next question: few, for a short time, and lent to one user at a time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spark_lance.io import handle_cache
from spark_lance.io.handle_cache import HandleCache, evict_all
from spark_lance.io.store import open_store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> HandleCache[str]:
    monkeypatch.setattr(handle_cache, "_POOLS", [])
    return HandleCache(3, 10.0)


def test_what_is_lent_is_not_there_for_others(files: HandleCache[str]) -> None:
    assert files.take("a") is None
    files.give("a", "one")
    files.give("a", "other")
    assert files.take("a") == "other"
    assert files.take("a") is None


def test_the_oldest_go_first(files: HandleCache[str]) -> None:
    for name in "abcd":
        files.give(name, name)
    files.give("b", "new")
    files.give("e", "e")
    assert [files.take(name) for name in "abcde"] == [None, "new", None, "d", "e"]


def test_what_nobody_asked_for_goes(files: HandleCache[str], clock: list[float]) -> None:
    files.give("a", "a")
    clock[0] += 6
    files.give("b", "b")
    clock[0] += 6
    assert files.take("c") is None
    assert files.take("a") is None
    assert files.take("b") == "b"


def test_deleting_lets_go_of_all(files: HandleCache[str], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    store, root = open_store(str(tmp_path))
    files.give("a", "a")
    store.delete(f"{root}/x", root)
    assert files.take("a") is None
    files.give("a", "a")
    store.delete_many([f"{root}/x"], root)
    assert files.take("a") is None
    files.give("a", "a")
    evict_all()
    assert files.take("a") is None
