"""Containers of one shape: objects with the same keys, arrays of the same length, by columns.

Objects of a table are mostly alike: header, entries of keys and the keys themselves are the same bytes in all
of them (`json_values` has the grammar). Then their values are found by their place, without a look at each
entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_lance.errors import FormatError
from spark_lance.file.json_values import CONTAINER, OBJECT, Bools, JsonValues, big_endian

__all__ = ["Alike", "alike"]

_LENGTH = 0x0FFFFFFF
# More values are not looked at place by place.
_MOST_VALUES = 256
_MOST_KEY_BYTES = 4096


@dataclass(frozen=True)
class Alike:
    """Containers that have the shape of the first of some.

    Attributes:
        same: which these are.
        keys: the names of the values, null in arrays.
        columns: the values at each place, of all of these containers.
    """

    same: Bools
    keys: JsonValues
    columns: list[JsonValues]


def alike(containers: JsonValues) -> Alike | None:
    """Return the containers that are like the first one; None if it has too many values, or long keys.

    Raises:
        FormatError, UnsupportedFormatError: a container is damaged, or of an unknown kind.
    """
    assert bool((containers.kinds == CONTAINER).all())
    first = containers.take(np.zeros(1, np.int64)).children()
    count, is_object = int(first.counts[0]), _is_object(containers)
    # Header and entries of keys stand before the entries of values, the keys behind these.
    head = 4 + 4 * count * is_object
    entries = head + 4 * count
    key_bytes = int(first.keys.lengths.sum()) if is_object else 0
    if count > _MOST_VALUES or key_bytes > _MOST_KEY_BYTES:
        return None
    same = containers.lengths >= entries + key_bytes
    places = np.flatnonzero(same)
    offsets = np.concatenate([np.arange(head), entries + np.arange(key_bytes)])
    rows = containers.data[containers.starts[places, None] + offsets]
    same[places] = (rows == rows[0]).all(axis=1)
    starts, lengths = containers.starts[same], containers.lengths[same]
    at = starts + entries + key_bytes
    columns = []
    for place in range(count):
        words = big_endian(containers.data, starts + head + 4 * place)
        sizes = words & _LENGTH
        columns.append(JsonValues(containers.data, (words >> 28).astype(np.uint8), at, sizes))
        at = at + sizes
    if bool((at > starts + lengths).any()):
        raise FormatError("the values of a JSON container are longer than its bytes")
    return Alike(same, first.keys, columns)


def _is_object(containers: JsonValues) -> bool:
    return bool(containers.take(np.zeros(1, np.int64)).headers()[0][0] == OBJECT)
