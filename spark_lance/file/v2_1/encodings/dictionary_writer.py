"""Dictionaries for pages of repeating values: every distinct value once, and a number per slot.

Whether that can pay is guessed from a sample before all values are hashed. Numbers that lie close together
are not hashed: their distance from the least of them is looked up, or is the index itself (a dictionary that
counts up is a frame of reference). (Lance file format 2.1, mini-block pages with a dictionary.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numbers_of, of_flags, of_numbers
from spark_lance.arrow.numpy_types import Bools

_Words = npt.NDArray[Any]
# Numbers that are this close together are not hashed.
_CLOSE = 1 << 16
# The number of words that are looked at first.
_LOOKED_AT = 1 << 14


@dataclass(frozen=True)
class DictionaryLimits:
    """When a page may get a dictionary.

    It has at least `min_values` slots; distinct values are at most `max_distinct` and at most one in
    `divisor` slots. `sample` is the number of slots that the guess looks at, twice.
    """

    min_values: int = 100
    divisor: float = 2
    max_distinct: int = 100_000
    sample: int = 2048

    def allow(self, distinct: float, count: int) -> bool:
        """Tell whether a page of `count` slots may have a dictionary of `distinct` values."""
        return count >= self.min_values and distinct <= min(self.max_distinct, count / self.divisor)


def encode_dictionary(array: pa.Array, valid: Bools | None, limits: DictionaryLimits) -> pa.Array | None:
    """Return the array, of a type that Arrow can hash, as a dictionary array with unsigned indices.

    Values of slots that are not `valid` do not enter the dictionary; their indices are arbitrary.
    None if the limits do not allow it, or if a sample says that they hardly will.
    """
    if not limits.allow(0, len(array)):
        return None
    if valid is not None and array.null_count != len(array) - int(np.count_nonzero(valid)):
        array = pc.if_else(of_flags(valid), array, pa.nulls(1, array.type)[0])
    if not limits.allow(_guess_distinct(array, limits.sample), len(array)):
        return None
    encoded = array.dictionary_encode()
    if not limits.allow(len(encoded.dictionary), len(array)):
        return None
    narrow = np.min_scalar_type(max(0, len(encoded.dictionary) - 1))
    raw = np.frombuffer(encoded.indices.buffers()[1], np.int32)[encoded.offset : encoded.offset + len(array)]
    return pa.DictionaryArray.from_arrays(of_numbers(raw.astype(narrow)), encoded.dictionary)


def _guess_distinct(array: pa.Array, sample: int) -> float:
    """Guess the number of distinct values: too low rather than too high."""
    count = len(array)
    if count <= 4 * sample:
        return 0
    near = pa.concat_arrays([array.slice(i * count // 8, sample // 8) for i in range(8)])
    # Values that repeat near to each other: what the share of new ones comes to.
    clustered = len(near.unique()) / len(near) * count
    far = array.take(of_numbers(np.arange(0, count, count // sample)))
    counts = numbers_of(pc.value_counts(far).field("counts"))
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    # Values that repeat anywhere: those that were met, and Chao's estimate of those that were not.
    scattered = len(counts) + once * (once - 1) / (2 * (twice + 1))
    return float(min(clustered, scattered / 2))


@dataclass(frozen=True)
class NumberedWords:
    """Words as places in a list of words: `items[indices]`, indices of 8, 16 or 32 bits."""

    items: _Words
    indices: _Words


def number_words(words: _Words, limits: DictionaryLimits) -> NumberedWords | None:
    """Return unsigned words with a dictionary.

    None if the limits do not allow one, or if a sample says that they hardly will.
    """
    if not limits.allow(1, len(words)):
        return None
    least, span = _span(words)
    if span <= _CLOSE:
        return _number_close(words, least, span, limits)
    array = of_numbers(words)
    guess = _guess_distinct(array, limits.sample)
    if not limits.allow(guess, len(words)):
        return None
    encoded = array.dictionary_encode()
    distinct = len(encoded.dictionary)
    if not limits.allow(distinct, len(words)):
        return None
    raw = np.frombuffer(encoded.indices.buffers()[1], np.int32)[: len(words)]
    items = np.frombuffer(encoded.dictionary.buffers()[1], words.dtype)[:distinct]
    return NumberedWords(items, raw.astype(np.min_scalar_type(max(0, distinct - 1))))


def _span(words: _Words) -> tuple[Any, int]:
    """Return the least word, the base of all others, and an upper bound of the number of different words.

    Words may stand for signed numbers: then the least is the one with the highest bit.
    """
    best = None
    for view in (words, words.view(f"i{words.dtype.itemsize}")):
        low, high = view.min(), view.max()
        span = int(high) - int(low) + 1
        if best is None or span < best[1]:
            best = low.astype(words.dtype), span
    assert best is not None
    return best


def _number_close(words: _Words, least: Any, span: int, limits: DictionaryLimits) -> NumberedWords | None:
    offsets = (words - least).astype(np.min_scalar_type(span - 1))
    seen = np.zeros(span, np.bool_)
    if limits.allow(span, len(words)):
        # Some values may show already that numbering only those that occur would save no bit.
        seen[offsets[:: len(offsets) // _LOOKED_AT + 1]] = True
        if (int(np.count_nonzero(seen)) - 1).bit_length() == (span - 1).bit_length():
            return _all_between(words, least, span, offsets)
    # Counting takes half the time of marking, and Arrow's lookup a fifth of numpy's.
    seen = np.bincount(offsets, minlength=span) > 0
    distinct = int(np.count_nonzero(seen))
    if not limits.allow(distinct, len(words)):
        return None
    if (distinct - 1).bit_length() == (span - 1).bit_length():
        return _all_between(words, least, span, offsets)
    numbers = of_numbers((np.cumsum(seen) - 1).astype(np.min_scalar_type(distinct - 1)))
    values = pc.take(numbers, of_numbers(offsets), boundscheck=False)
    indices = numbers_of(values)
    return NumberedWords(np.flatnonzero(seen).astype(words.dtype) + least, indices)


def _all_between(words: _Words, least: Any, span: int, offsets: _Words) -> NumberedWords:
    """Return words with a dictionary of all words from the least on, whether they occur or not."""
    return NumberedWords(np.arange(span).astype(words.dtype) + least, offsets)
