"""The number of threads for one read or write."""

from __future__ import annotations

import pyarrow as pa

_MOST_THREADS = 8


def spare_threads() -> int:
    """Return the number of threads for one read or write: Arrow's number, at most 8.

    `OMP_NUM_THREADS` and `pyarrow.set_cpu_count` set it. Spark sets the former to the cores of a task, so a
    task with one core starts no threads.
    """
    return min(int(pa.cpu_count()), _MOST_THREADS)
