"""Which pages of a legacy file may hold a value: null count, least and greatest value of every page.

The bounds are of the values that were written. Nulls of fixed-width types read back as zeros, which the
bounds do not cover, so a page with nulls is never ruled out for such a type. Bounds of floats leave NaN out,
which differs from every value. (Lance file format 0.1, statistics.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_lance.errors import OptionError

__all__ = ["COMPARISONS", "possible_pages", "runs_of_rows"]

# Comparison -> whether a page with these bounds may have a value for which it is true.
COMPARISONS: Mapping[str, Callable[[pa.Array, pa.Array, pa.Scalar], pa.Array]] = MappingProxyType(
    {
        "==": lambda low, high, value: pc.and_kleene(
            pc.less_equal(low, value), pc.greater_equal(high, value)
        ),
        "!=": lambda low, high, value: pc.or_kleene(pc.not_equal(low, value), pc.not_equal(high, value)),
        "<": lambda low, high, value: pc.less(low, value),
        "<=": lambda low, high, value: pc.less_equal(low, value),
        ">": lambda low, high, value: pc.greater(high, value),
        ">=": lambda low, high, value: pc.greater_equal(high, value),
    }
)


def possible_pages(statistics: pa.Table, kind: pa.DataType, comparison: str, value: Any) -> pa.Array:
    """Return per page whether it may hold a value for which the comparison with `value` is true.

    Args:
        statistics: null_count, min_value and max_value, one row per page.
        kind: the column's type.
        comparison: one of `COMPARISONS`.
        value: what values are compared with; if it is not of the column's type, every page is possible.

    Raises:
        OptionError: an unknown comparison.
    """
    if comparison not in COMPARISONS:
        raise OptionError(f"unknown comparison {comparison!r}; use one of {', '.join(COMPARISONS)}")
    every = pa.array([True] * len(statistics), pa.bool_())
    if comparison == "!=" and pa.types.is_floating(kind):
        return every
    low, high = (statistics.column(name).combine_chunks() for name in ("min_value", "max_value"))
    try:
        # Arrow compares in a type that holds both; a cast of the value to the column's type could round it.
        bound = value if isinstance(value, pa.Scalar) else pa.scalar(value)
        if not bound.is_valid:
            return every
        possible = pc.fill_null(COMPARISONS[comparison](low, high, bound), True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, TypeError, OverflowError):
        return every
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return possible
    # Not only 0 may hide behind nulls: how a type shows its zeros is not looked into here.
    return pc.or_kleene(
        possible, pc.fill_null(pc.greater(statistics.column("null_count"), 0), True).combine_chunks()
    )


def runs_of_rows(possible: pa.Array, starts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the rows [start, stop) of possible pages, neighbours joined; `starts` ends with all rows."""
    runs: list[tuple[int, int]] = []
    for is_possible, (start, stop) in zip(possible.to_pylist(), pairwise(starts), strict=True):
        if not is_possible:
            continue
        if runs and runs[-1][1] == start:
            runs[-1] = runs[-1][0], stop
        else:
            runs.append((start, stop))
    return runs
