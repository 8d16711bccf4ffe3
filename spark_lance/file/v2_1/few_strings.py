"""Many strings that are few distinct ones: copied several at a time.

Copying strings one by one costs per string, not per byte. With n distinct strings there are n ** k groups of
k strings; if that is few, a table of all groups lets one copy do for k strings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.file.arrays import empty_text, of_numbers
from spark_lance.file.buffers import unpack_bits
from spark_lance.file.v2_1.chunks import Bytes

__all__ = ["spread"]

_MAX_GROUPS = 1 << 14
_MAX_GROUP = 8
# A table pays if there are at least this many strings for each of its groups.
_STRINGS_PER_GROUP = 32
_MAX_BYTES = 2**31 - 1


def spread(
    items: pa.Array, indices: npt.NDArray[np.unsignedinteger], validity: Bytes | None
) -> pa.Array | None:
    """Return items[index] for all indices; None if the strings are too many or too few for this.

    Args:
        items: strings or byte strings without nulls, with 32 bit offsets.
        indices: unsigned; where null, anything.
        validity: bitmap of the indices, None = all valid.

    Raises:
        IndexError: an index has no item.
    """
    if not len(items) or items.buffers()[2] is None:
        return None
    distinct = len(items) + 1
    size = 1
    while size < _MAX_GROUP and distinct ** (size + 1) <= min(
        _MAX_GROUPS, len(indices) // _STRINGS_PER_GROUP
    ):
        size += 1
    if size < 2:
        return None
    # One more item, the empty string, for nulls and to fill up the last group.
    nothing = len(items)
    wrong = indices >= nothing
    if validity is not None:
        valid = unpack_bits(validity, len(indices))
        wrong &= valid
        indices = np.where(valid, indices, indices.dtype.type(nothing))
    if bool(wrong.any()):
        raise IndexError(f"a dictionary index is beyond its {nothing} items")
    padded = pa.concat_arrays([items, empty_text(items.type)])
    ends = np.frombuffer(padded.buffers()[1], dtype=np.int32)[: distinct + 1]
    lengths = np.diff(ends)
    if int(lengths.max()) * len(indices) > _MAX_BYTES:
        return None
    offsets = np.zeros(len(indices) + 1, dtype=np.int32)
    np.cumsum(lengths[indices], dtype=np.int32, out=offsets[1:])
    groups = np.zeros(-(-len(indices) // size), dtype=np.uint16)
    for place in range(size):
        column = indices[place::size]
        groups *= np.uint16(distinct)
        groups[: len(column)] += column.astype(np.uint16)
        groups[len(column) :] += np.uint16(nothing)
    data = pc.take(_group_table(padded, size), of_numbers(groups), boundscheck=False).buffers()[2]
    bitmap = None if validity is None else pa.py_buffer(validity)
    buffers = [bitmap, pa.py_buffer(offsets), data or pa.py_buffer(b"")]
    return pa.Array.from_buffers(items.type, len(indices), buffers)


def _group_table(items: pa.Array, size: int) -> pa.Array:
    """Return all groups of `size` items, joined; the last item of a group changes first."""
    distinct = len(items)
    numbers = np.arange(distinct**size)
    digits = np.stack([numbers // distinct**power % distinct for power in range(size - 1, -1, -1)], axis=1)
    _, offsets, data = pc.take(items, of_numbers(digits.reshape(-1))).buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: digits.size + 1 : size].copy()
    return pa.Array.from_buffers(pa.binary(), len(numbers), [None, pa.py_buffer(ends), data])
