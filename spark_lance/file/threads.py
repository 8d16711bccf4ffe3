"""How many threads one read or write may use."""

from __future__ import annotations

import pyarrow as pa

_MOST_THREADS = 8


def spare_threads() -> int:
    """Return how many threads one read or write may use: as many as Arrow does, at most 8.

    `OMP_NUM_THREADS` and `pyarrow.set_cpu_count` say so. Spark sets the former to the cores of a task, so a
    task that has one core uses no threads.
    """
    return min(int(pa.cpu_count()), _MOST_THREADS)
