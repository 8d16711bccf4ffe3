"""Dictionaries for pages of repeating values: every distinct value once, and a number per slot.

Whether that can pay is guessed from a sample before all values are hashed. (Lance file format 2.1, mini-block
pages with a dictionary.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.v2_1.encodings.plain_writer import Bools

__all__ = ["DictionaryLimits", "encode_dictionary"]


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
        array = pc.if_else(pa.array(valid), array, pa.scalar(None, array.type))
    if not limits.allow(_guess_distinct(array, limits.sample), len(array)):
        return None
    encoded = array.dictionary_encode()
    if not limits.allow(len(encoded.dictionary), len(array)):
        return None
    narrow = np.min_scalar_type(max(0, len(encoded.dictionary) - 1))
    raw = np.frombuffer(encoded.indices.buffers()[1], np.int32)[encoded.offset : encoded.offset + len(array)]
    return pa.DictionaryArray.from_arrays(pa.array(raw.astype(narrow)), encoded.dictionary)


def _guess_distinct(array: pa.Array, sample: int) -> float:
    """Guess the number of distinct values: too low rather than too high."""
    count = len(array)
    if count <= 4 * sample:
        return 0
    near = pa.concat_arrays([array.slice(i * count // 8, sample // 8) for i in range(8)])
    # Values that repeat near to each other: what the share of new ones comes to.
    clustered = len(near.unique()) / len(near) * count
    far = array.take(pa.array(np.arange(0, count, count // sample)))
    found = pc.value_counts(far).field("counts").to_numpy()
    once, twice = np.count_nonzero(found == 1), np.count_nonzero(found == 2)
    # Values that repeat anywhere: those that were met, and Chao's estimate of those that were not.
    scattered = len(found) + once * (once - 1) / (2 * (twice + 1))
    return float(min(clustered, scattered / 2))
