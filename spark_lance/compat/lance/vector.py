"""Making tables of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.errors import OptionError

__all__ = ["vec_to_table"]


@raises_os_errors
def vec_to_table(
    data: Mapping[Any, Any] | Sequence[Any] | np.ndarray[Any, Any],
    names: str | Sequence[str] | None = None,
    ndim: int | None = None,
    check_ndim: bool = True,
) -> pa.Table:
    """Return vectors as a table of a fixed-size list of float32, and their ids if they come as a dict.

    Args:
        data: a dict from ids to vectors, a list of vectors, or a matrix.
        names: of the columns: `id` and `vector`, or `vector`.
        ndim: the length of the vectors; that of the first by default.
        check_ndim: whether to look at the length of each.

    Raises:
        OptionError: the vectors are of several lengths.
    """
    if isinstance(data, Mapping):
        labels = list(names) if names is not None else ["id", "vector"]
        if len(labels) != 2:
            raise OptionError("a dict of vectors makes two columns, so two names are needed")
        return pa.table([pa.array(list(data)), _vectors(list(data.values()), ndim, check_ndim)], labels)
    labels = ["vector"] if names is None else [names] if isinstance(names, str) else list(names)
    if len(labels) != 1:
        raise OptionError("vectors make one column, so one name is needed")
    return pa.table([_vectors(data, ndim, check_ndim)], labels)


def _vectors(data: Any, ndim: int | None, check: bool) -> pa.FixedSizeListArray:
    rows = list(data)
    size = ndim if ndim is not None else len(rows[0]) if rows else 0
    if check and (wrong := [number for number, row in enumerate(rows) if len(row) != size]):
        raise OptionError(f"vector {wrong[0]} has {len(rows[wrong[0]])} values, and not {size}")
    values = np.asarray(rows, np.float32).reshape(-1)
    return pa.FixedSizeListArray.from_arrays(pa.array(values), size)
