"""Small helpers."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from spark_lance.compat.lance.kmeans import KMeans
from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.table.predicates.moments import parse_moment

__all__ = ["KMeans", "sanitize_ts", "td_to_micros", "validate_vector_index"]


def sanitize_ts(ts: Any) -> datetime:
    """Return a time as a datetime; text is ISO 8601."""
    if isinstance(ts, str):
        return parse_moment(ts)
    if isinstance(ts, datetime):
        return ts
    if isinstance(ts, date):
        return datetime(ts.year, ts.month, ts.day)
    if hasattr(ts, "to_pydatetime"):
        result: datetime = ts.to_pydatetime()
        return result
    raise TypeError(f"Unrecognized version timestamp {ts} of type {type(ts)}")


def td_to_micros(td: timedelta) -> int:
    """Return a span of time in microseconds."""
    return round(td / timedelta(microseconds=1))


@raises_os_errors
def validate_vector_index(
    dataset: Any,
    column: str,
    refine_factor: int = 5,
    sample_size: int | None = None,
    pass_threshold: float = 1.0,
) -> None:
    """Search for vectors of the dataset itself, and look whether each finds itself.

    Args:
        dataset: the dataset.
        column: of vectors.
        refine_factor: as for `nearest`.
        sample_size: how many are searched for; all by default.
        pass_threshold: the part of them that must be found.

    Raises:
        ValueError: fewer are found.
    """
    rows = dataset.to_table([column]) if sample_size is None else dataset.sample(sample_size, [column])
    hits = total = 0
    for vector in rows[column].to_pylist():
        if vector is None or not np.isfinite(vector).all():
            continue
        query = {"column": column, "q": vector, "k": 1, "refine_factor": refine_factor}
        distance = dataset.to_table([column], nearest=query)["_distance"].to_pylist()
        total += 1
        hits += bool(distance) and abs(distance[0]) < 1e-6
    if total and hits / total < pass_threshold:
        raise ValueError(f"Vector index failed sanity check, only {hits}/{total} vectors find themselves")
