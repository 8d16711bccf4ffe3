"""Run reads of several objects of a store at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from spark_lance.io.store import Store

Result = TypeVar("Result")

_PARALLEL_READS = 16


def run_together(store: Store, reads: Sequence[Callable[[], Result]]) -> list[Result]:
    """Return the results of reads in their order. On an object store they run at the same time.

    Raises:
        Exception: the error of the first read that failed.
    """
    if store.is_local or len(reads) < 2:
        return [read() for read in reads]
    with ThreadPoolExecutor(min(_PARALLEL_READS, len(reads))) as pool:
        return [each.result() for each in [pool.submit(read) for read in reads]]
