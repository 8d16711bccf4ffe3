"""The words of a partition: their numbers, and those that are like a word, compared with a table per pair."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from spark_lance.errors import FormatError
from spark_lance.index.text.search import _kth_score
from spark_lance.index.text.vocabulary import Vocabulary, similar_words


def distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for number, letter in enumerate(one, 1):
        before, row = row, [number]
        for place, there in enumerate(other):
            row.append(min(before[place] + (letter != there), before[place + 1] + 1, row[place] + 1))
    return row[-1]


def some_words(chance: random.Random, letters: str, count: int) -> list[str]:
    return list({"".join(chance.choices(letters, k=chance.randrange(7))) for _ in range(count)})


@pytest.mark.parametrize("letters", ["ab", "abcdefgh", "abä字\U00010000"])
def test_words_like_a_word(letters: str) -> None:
    chance = random.Random(letters)
    words = some_words(chance, letters, 400)
    halves = [Vocabulary.of(words[:150]), Vocabulary.of(words[100:])]
    for word in some_words(chance, letters, 25):
        for most in (0, 1, 2):
            pairs = [(distance(word, other), other) for other in sorted(words, key=str.encode)]
            expected = [other for far, other in pairs if far <= most][:20]
            assert similar_words(word, halves, most, 0, 20) == expected
            close = [other for far, other in pairs if far <= most and other.startswith(word[:2])]
            assert similar_words(word, halves, most, 2, 1000) == close


def test_numbers_of_words_in_any_order() -> None:
    words = ["b", "", "ä", "a", "字", "ab"]
    vocabulary = Vocabulary(pa.array(words), np.arange(6) * 10)
    assert [vocabulary.number(word) for word in words] == [0, 10, 20, 30, 40, 50]
    assert [vocabulary.number(word) for word in ("c", "aa", "字字")] == [None] * 3
    assert Vocabulary.of([]).number("a") is None
    assert Vocabulary.of([]).similar("a", 2) == []


def test_null_words_are_refused() -> None:
    with pytest.raises(FormatError, match="1 words with 2 numbers"):
        Vocabulary(pa.array(["a", None]), np.arange(2))


def test_the_score_that_a_number_of_texts_reach() -> None:
    draw = np.random.default_rng(1)
    for size in (1, 31, 64, 700, 5000):
        for different in (1, 2, 50, 10**6):
            scores = draw.integers(0, different, size).astype(np.float32)
            for count in {1, min(7, size), size // 2 + 1, size}:
                assert _kth_score(scores, count) == np.sort(scores)[size - count]
