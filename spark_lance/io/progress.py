"""Progress of long operations: the working code reports it, and the caller can listen.

By default nothing listens, and a report costs one look-up. Only the thread that collects results sends
reports, so a listener is never called from two threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

# Called with the step ("rewriting"), the amount done, the total (0 if it is unknown), and the unit.
Report = Callable[[str, int, int, str], None]

_listener: ContextVar[Report | None] = ContextVar("spark_lance_progress", default=None)


@contextmanager
def reporting(listener: Report) -> Iterator[None]:
    """Send the progress of the code inside the block to a listener, for this thread."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(step: str, amount: int, total: int, unit: str) -> None:
    """Report the progress of a step.

    Args:
        step: name of the step, such as "rewriting".
        amount: completed amount.
        total: total amount; 0 if unknown.
        unit: unit of `amount` and `total`: "bytes", "rows", "files" or "versions".
    """
    listener = _listener.get()
    if listener is not None:
        listener(step, amount, total, unit)


@contextmanager
def report_part(before: int, total: int) -> Iterator[None]:
    """Report the progress of the code inside the block as part of a larger step.

    Args:
        before: amount of the larger step completed before the block, in the unit of the reports.
        total: total amount of the larger step.
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    with reporting(lambda step, amount, _, unit: listener(step, before + amount, total, unit)):
        yield
