"""Lists of texts as one text each, the form in which an index of text stores them.

Elements follow each other with a space between, without those that are null and without empty ones at the
beginning. A list that is null or has no elements is the empty text. (By experiment with pylance 14.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text_list(kind: pa.DataType) -> bool:
    """Return whether values are lists, of any length, of strings."""
    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_text(kind.value_type))


def joined_texts(lists: pa.Array) -> pa.Array:
    """Return a text for each list.

    Args:
        lists: of a type that `is_text_list`.

    Returns:
        As many strings, none of them null.
    """
    elements, owners = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    long = pc.fill_null(pc.greater(pc.binary_length(elements), 0), False).to_numpy(zero_copy_only=False)
    # How many elements that are not empty stand before the end of each, in all lists and in its own.
    seen = np.cumsum(long)
    firsts = np.searchsorted(owners, owners)
    is_past_first = seen - (seen - long)[firsts] > 0
    valid = np.flatnonzero(is_past_first & elements.is_valid().to_numpy(zero_copy_only=False))
    ends = np.cumsum(np.bincount(owners[valid], minlength=len(lists)))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int64))
    texts = pa.LargeListArray.from_arrays(offsets, elements.take(pa.array(valid)))
    return pc.binary_join(texts, pa.scalar(" ", elements.type))
