"""The cache of the process: sections share its budget, and the values used least recently are dropped."""

from __future__ import annotations

import os
import threading

import pytest

from spark_lance.errors import OptionError
from spark_lance.io import cache as module
from spark_lance.io.cache import CACHE, VARIABLE, Cache, CacheSection

ENTRY = module._ENTRY_BYTES


def text_section(budget: int) -> tuple[CacheSection[str], list[list[str]]]:
    return CacheSection("texts", Cache(budget)), []


def size_of(value: str) -> int:
    return len(value) - ENTRY


def test_missing_values_are_made_in_one_call() -> None:
    section, calls = text_section(100)

    def make(missing: list[str]) -> list[str]:
        calls.append(missing)
        return [key.upper() for key in missing]

    assert section.get_all(["b"], make, size_of) == ["B"]
    assert section.get_all(["a", "b", "c"], make, size_of) == ["A", "B", "C"]
    assert section.get_all(["c", "a"], make, size_of) == ["C", "A"]
    assert section.get("b", lambda: "other", size_of) == "B"
    assert section.get_all([], make, size_of) == []
    assert calls == [["b"], ["a", "c"]]
    assert section.num_bytes == 3
    section.put("b", "new", 3 - ENTRY)
    assert (section.find("b"), section.find("d"), section.num_bytes) == ("new", None, 5)


def test_values_beyond_the_budget_are_returned_and_not_cached() -> None:
    section, calls = text_section(5)

    def make(missing: list[str]) -> list[str]:
        calls.append(missing)
        return [key * 2 for key in missing]

    assert section.get_all(["a", "b", "cccc", "d"], make, size_of) == ["aa", "bb", "cccccccc", "dd"]
    assert section.num_bytes == 4
    # The first was dropped, the third never fitted.
    assert section.get_all(["b", "d", "a"], make, size_of) == ["bb", "dd", "aa"]
    assert section.get("cccc", lambda: "made again", size_of) == "made again"
    assert calls[1:] == [["a"]]


def test_sections_share_the_budget() -> None:
    cache = Cache(10)
    one: CacheSection[str] = CacheSection("one", cache)
    two: CacheSection[str] = CacheSection("two", cache, share=0.5)
    for key in "abcde":
        one.put(key, key, 1 - ENTRY)
    assert one.find("a") == "a"
    for key in "fghijkl":
        two.put(key, key, 1 - ENTRY)
    # The second section has half of the budget at most; nothing of the first had to go.
    assert cache.sizes() == {"one": 5, "two": 5}
    assert two.find("g") is None
    one.put("m", "mm", 2 - ENTRY)
    assert cache.sizes() == {"one": 5, "two": 5}
    assert [one.find(key) for key in "abcdem"] == ["a", None, None, "d", "e", "mm"]
    assert [two.find(key) for key in "hijkl"] == ["h", "i", "j", "k", "l"]
    cache.resize(4)
    assert cache.num_bytes == 4
    assert cache.sizes() == {"one": 0, "two": 4}
    cache.clear()
    assert cache.num_bytes == 0
    assert cache.sizes() == {"one": 0, "two": 0}


def test_threads_keep_the_sums_right() -> None:
    cache = Cache(50)
    sections: list[CacheSection[int]] = [CacheSection(str(number), cache) for number in range(3)]

    def work(seed: int) -> None:
        for step in range(2000):
            key = seed * step % 37
            assert sections[step % 3].get(key, lambda key=key: key, lambda key: key % 5 - ENTRY) == key  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=[seed]) for seed in (3, 5, 7, 11)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cached = [key % 5 for section in sections for key in range(37) if section.find(key) is not None]
    assert cache.num_bytes == sum(cache.sizes().values()) == sum(cached) <= 50


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_can_use_the_cache() -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            CACHE.sizes()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if not child:
                os._exit(0 if CACHE._lock.acquire(timeout=20) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_the_environment_sets_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Cache().budget == 512 << 20
    monkeypatch.setenv(VARIABLE, "1000")
    assert Cache().budget == 1000
    monkeypatch.setenv(VARIABLE, "-1")
    with pytest.raises(OptionError, match="SPARK_LANCE_CACHE_BYTES is '-1', but must be a number of bytes"):
        _ = Cache().budget
