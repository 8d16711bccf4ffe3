"""Indices of vectors: what manifests say of them, and the types of columns that they are of."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["VECTOR_LABEL", "VECTOR_NEWEST", "is_multi", "vector_kind"]

# The label of such indices, and the newest version of them that is known.
VECTOR_LABEL, VECTOR_NEWEST = "vectorindexdetails", 2


def is_multi(kind: pa.DataType) -> bool:
    """Return whether a row has a list of vectors; lists of large offsets and vectors of bytes are none."""
    return bool(
        pa.types.is_list(kind)
        and pa.types.is_fixed_size_list(kind.value_type)
        and pa.types.is_floating(kind.value_type.value_type)
    )


def vector_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of one vector of a column, which is the column's if a row has one vector."""
    return kind.value_type if is_multi(kind) else kind
