"""Words that differ from a word by few letters."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["letters_by_length", "similar_words"]


def letters_by_length(word: str) -> int:
    """Return by how many letters a word may differ if nobody says: longer words by more."""
    return 0 if len(word) <= 2 else 1 if len(word) <= 5 else 2


def similar_words(
    word: str, vocabulary: Iterable[str], letters: int, prefix: int = 0, most: int = 50
) -> list[str]:
    """Return the words that become a word by at most `letters` insertions, deletions and replacements.

    Args:
        word: the word.
        vocabulary: the words to choose from.
        letters: 0, 1 or 2.
        prefix: first letters that must be the same.
        most: how many words at most; those that differ least come first.
    """
    words = pa.array(sorted(vocabulary), pa.string())
    lengths = pc.utf8_length(words)
    near = pc.less_equal(pc.abs(pc.subtract(lengths, len(word))), letters)
    if prefix:
        near = pc.and_(near, pc.starts_with(words, word[:prefix]))
    words = words.filter(near)
    if not len(words):
        return []
    distances = _distances(word, words)
    order = np.argsort(distances, kind="stable")
    chosen = order[distances[order] <= letters][:most]
    result: list[str] = words.take(pa.array(chosen)).to_pylist()
    return result


def _distances(word: str, words: pa.Array) -> npt.NDArray[np.int64]:
    """Return the edit distance of each word; one row of the usual table for all words at once."""
    lengths = pc.utf8_length(words).to_numpy().astype(np.int64)
    width = int(lengths.max())
    padded = pc.utf8_rpad(words, width, "\0")
    letters = np.frombuffer("".join(padded.to_pylist()).encode("utf-32-le"), np.uint32)
    table = letters.reshape(len(words), width)
    own = np.frombuffer(word.encode("utf-32-le"), np.uint32)
    before = np.tile(np.arange(width + 1, dtype=np.int64), (len(words), 1))
    for number, letter in enumerate(own, 1):
        row = np.empty_like(before)
        row[:, 0] = number
        for place in range(1, width + 1):
            replaced = before[:, place - 1] + (table[:, place - 1] != letter)
            row[:, place] = np.minimum(np.minimum(before[:, place], row[:, place - 1]) + 1, replaced)
        before = row
    result: npt.NDArray[np.int64] = before[np.arange(len(words)), lengths]
    return result
