"""Vector index kinds: their labels in manifests, and the column types they support."""

from __future__ import annotations

import pyarrow as pa

# Label of vector indexes, and the newest supported version.
VECTOR_LABEL, VECTOR_NEWEST = "vectorindexdetails", 2


def is_multi(kind: pa.DataType) -> bool:
    """Return whether a row has a list of float vectors. Large lists and byte vectors do not count."""
    return bool(
        pa.types.is_list(kind)
        and pa.types.is_fixed_size_list(kind.value_type)
        and pa.types.is_floating(kind.value_type.value_type)
    )


def vector_kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of a single vector of a column."""
    return kind.value_type if is_multi(kind) else kind


def as_vectors_hint(kind: pa.DataType, size: int | str = "length") -> str:
    """Return a hint, to end an error with, on how to convert a list column to vectors; "" for other types.

    Args:
        kind: the column's type.
        size: the length of the vectors.
    """
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not lists or not (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)):
        return ""
    vectors = f"pa.list_(pa.float32(), {size})"
    return (
        f". If all lists are of one length: alter_columns({{'path': column, 'data_type': {vectors}}}), "
        f"in Spark alterColumn(column, type={vectors}), or write with the option "
        f"'<column>.arrow.fixed-size-list.size' = {size}"
    )
