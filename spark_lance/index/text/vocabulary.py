"""Vocabulary: the words of an index part as sorted arrays, with exact and fuzzy lookup."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.arrow.arrays import numbers_to_numpy
from spark_lance.arrow.numpy_types import Ints
from spark_lance.errors import FormatError

_SIGNATURE_BITS = 32
_BITS_SET = np.array([number.bit_count() for number in range(1 << 16)], np.uint8)


class Vocabulary:
    """Words with their numbers.

    Args:
        words: strings in any order; byte order is fastest.
        numbers: the number of each word.

    Raises:
        FormatError: a word is null.
    """

    def __init__(self, words: pa.Array, numbers: Ints) -> None:
        if words.null_count or len(words) != len(numbers):
            raise FormatError(f"{len(words) - words.null_count} words with {len(numbers)} numbers")
        texts = words.cast(pa.large_binary())
        if not pc.all(pc.less_equal(texts[:-1], texts[1:])).as_py() and len(texts) > 1:
            order = pc.sort_indices(texts)
            texts, numbers = texts.take(order), numbers[numbers_to_numpy(order)]
        self._texts, self.numbers = pa.concat_arrays([texts]), numbers
        _, bounds, data = self._texts.buffers()
        first, size = self._texts.offset, len(self._texts)
        self._bounds = (
            np.frombuffer(bounds, np.int64)[first : first + size + 1] if size else np.zeros(1, np.int64)
        )
        self._data = memoryview(data or b"")
        values = np.frombuffer(self._data, np.uint8, int(self._bounds[-1]))
        # Number of letters of each word: count the bytes that are not UTF-8 continuation bytes.
        ends = np.concatenate([[0], np.cumsum((values & 0xC0) != 0x80)])
        self._lengths = np.diff(ends[self._bounds]).astype(np.int32)
        self._signatures, self._is_ascii = _signatures(values, self._bounds)

    @classmethod
    def of(cls, words: Iterable[str]) -> Vocabulary:
        """Return the vocabulary of words, numbered in byte order."""
        array = pa.array(sorted(words), pa.large_string())
        return cls(array, np.arange(len(array)))

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Approximate memory size in bytes."""
        return int(self._texts.nbytes) + 21 * len(self)

    def _word(self, place: int) -> bytes:
        return bytes(self._data[self._bounds[place] : self._bounds[place + 1]])

    def number(self, word: str) -> int | None:
        """Return the number of a word; None if the word does not exist."""
        needle = word.encode("utf-8", "surrogatepass")
        place = bisect_right(range(len(self)), needle, key=self._word) - 1
        return int(self.numbers[place]) if place >= 0 and self._word(place) == needle else None

    def similar(self, word: str, letters: int, prefix: int = 0, most: int = 50) -> list[str]:
        """Return the words similar to `word`, in byte order.

        Args:
            word: the word.
            letters: maximum edit distance (insertions, deletions and replacements).
            prefix: number of first letters that must be equal.
            most: maximum number of words.
        """
        places = np.flatnonzero(np.abs(self._lengths - len(word)) <= letters)
        own = np.frombuffer(word.encode("utf-8", "surrogatepass"), np.uint8)
        signature = np.bitwise_or.reduce(np.uint32(1) << (own % _SIGNATURE_BITS).astype(np.uint32), initial=0)
        if word.isascii():
            # One change removes at most one letter and adds at most one.
            signatures = self._signatures[places]
            missing, extra = signature & ~signatures, signatures & ~np.uint32(signature)
            near = ~self._is_ascii[places] | ((_bits(missing) <= letters) & (_bits(extra) <= letters))
            places = places[near]
        words = self._texts.take(pa.array(places)).cast(pa.large_string())
        if prefix:
            words = words.filter(pc.starts_with(words, word[:prefix]))
        if not len(words):
            return []
        similar = np.flatnonzero(_distances(word, words) <= letters)[:most]
        result: list[str] = words.take(pa.array(similar)).to_pylist()
        return result


def similar_words(
    word: str, vocabularies: Sequence[Vocabulary], letters: int, prefix: int = 0, most: int = 50
) -> list[str]:
    """Return the words of several vocabularies that are similar to a word, see `Vocabulary.similar`."""
    if most <= 0:
        return []
    similar = {other for words in vocabularies for other in words.similar(word, letters, prefix, most)}
    return sorted(similar, key=_utf8)[:most]


def _utf8(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _signatures(
    values: npt.NDArray[np.uint8], bounds: Ints
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.bool_]]:
    """Return a bit set (uint32) of each word's bytes, and the mask of words that are ASCII."""
    result = np.zeros(len(bounds) - 1, np.uint32)
    highest = np.zeros(len(bounds) - 1, np.uint8)
    nonempty = np.flatnonzero(np.diff(bounds))
    if len(nonempty):
        starts = bounds[nonempty]
        bits = np.uint32(1) << (values % _SIGNATURE_BITS).astype(np.uint32)
        result[nonempty] = np.bitwise_or.reduceat(bits, starts)
        highest[nonempty] = np.maximum.reduceat(values, starts)
    return result, highest < 0x80


def _bits(masks: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
    """Return the number of set bits of each number."""
    result: npt.NDArray[np.uint8] = _BITS_SET[masks & 0xFFFF] + _BITS_SET[masks >> 16]
    return result


def _distances(word: str, words: pa.Array) -> npt.NDArray[np.int64]:
    """Return the edit distance of each word, computing one row of the table for all words at once."""
    lengths = numbers_to_numpy(pc.utf8_length(words)).astype(np.int64)
    width = int(lengths.max())
    padded = pc.utf8_rpad(words, width, "\0")
    letters = np.frombuffer("".join(padded.to_pylist()).encode("utf-32-le"), np.uint32)
    # One row per letter, so that a step works on adjacent numbers.
    table = np.ascontiguousarray(letters.reshape(len(words), width).T)
    own = np.frombuffer(word.encode("utf-32-le"), np.uint32)
    kind = np.int8 if width + len(own) < np.iinfo(np.int8).max else np.int32
    before = np.tile(np.arange(width + 1, dtype=kind)[:, None], len(words))
    for number, letter in enumerate(own, 1):
        row = np.empty_like(before)
        row[0] = number
        replaced = before[:-1] + (table != letter)
        removed = before[1:] + kind(1)
        np.minimum(replaced, removed, out=replaced)
        for place in range(1, width + 1):
            np.minimum(row[place - 1] + kind(1), replaced[place - 1], out=row[place])
        before = row
    result: npt.NDArray[np.int64] = before[lengths, np.arange(len(words))].astype(np.int64)
    return result
