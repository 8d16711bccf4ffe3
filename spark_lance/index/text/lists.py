"""Join lists of strings into one text each, as a text index stores them.

Elements are joined with spaces. Null elements, and empty elements at the beginning, are skipped. A null or
empty list gives the empty text. (By experiment with pylance 14.)
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def is_text(kind: pa.DataType) -> bool:
    """Return whether values are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_text_list(kind: pa.DataType) -> bool:
    """Return whether values are variable-length lists of strings."""
    return bool((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and is_text(kind.value_type))


def joined_texts(lists: pa.Array) -> pa.Array:
    """Return one text per list; no text is null.

    Args:
        lists: lists of strings, see `is_text_list`.
    """
    elements, owners = pc.list_flatten(lists), pc.list_parent_indices(lists).to_numpy()
    is_nonempty = pc.fill_null(pc.greater(pc.binary_length(elements), 0), False).to_numpy(
        zero_copy_only=False
    )
    # Number of non-empty elements up to and including each element, over all lists.
    nonempty_count = np.cumsum(is_nonempty)
    firsts = np.searchsorted(owners, owners)
    is_past_first = nonempty_count - (nonempty_count - is_nonempty)[firsts] > 0
    valid = np.flatnonzero(is_past_first & elements.is_valid().to_numpy(zero_copy_only=False))
    ends = np.cumsum(np.bincount(owners[valid], minlength=len(lists)))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int64))
    texts = pa.LargeListArray.from_arrays(offsets, elements.take(pa.array(valid)))
    return pc.binary_join(texts, pa.scalar(" ", elements.type))
