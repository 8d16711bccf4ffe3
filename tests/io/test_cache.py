"""A cache holds what was used last, up to its bytes, and makes together what is missing."""

from __future__ import annotations

from spark_lance.io.cache import ByteCache


def cache_of(limit: int) -> tuple[ByteCache[str], list[list[str]]]:
    return ByteCache(limit), []


def test_what_is_missing_is_made_in_one_call() -> None:
    cache, calls = cache_of(100)

    def make(missing: list[str]) -> list[str]:
        calls.append(missing)
        return [key.upper() for key in missing]

    assert cache.get_all(["b"], make, len) == ["B"]
    assert cache.get_all(["a", "b", "c"], make, len) == ["A", "B", "C"]
    assert cache.get_all(["c", "a"], make, len) == ["C", "A"]
    assert cache.get("b", lambda: "other", len) == "B"
    assert cache.get_all([], make, len) == []
    assert calls == [["b"], ["a", "c"]]
    assert cache.held_bytes == 3


def test_values_beyond_the_limit_are_returned_and_not_kept() -> None:
    cache, calls = cache_of(5)

    def make(missing: list[str]) -> list[str]:
        calls.append(missing)
        return [key * 2 for key in missing]

    assert cache.get_all(["a", "b", "cccc", "d"], make, len) == ["aa", "bb", "cccccccc", "dd"]
    assert cache.held_bytes == 4
    # The first went, the third never fitted.
    assert cache.get_all(["b", "d", "a"], make, len) == ["bb", "dd", "aa"]
    assert cache.get("cccc", lambda: "made again", len) == "made again"
    assert calls[1:] == [["a"]]
