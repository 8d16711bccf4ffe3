"""How far a long operation is: what works reports it, and whoever started it may listen.

Nothing listens by default, and then a report costs a look-up. Reports come from the thread that collects
results, so a listener is never called by two threads at once.
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
    """Send the progress of the code inside the block, in this thread, to a listener."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def report(step: str, amount: int, total: int, unit: str) -> None:
    """Say how far a step is.

    Args:
        step: what is being done, such as "rewriting".
        amount: how much of it is done.
        total: the whole, 0 if that is not known.
        unit: of both: "bytes", "rows", "files" or "versions".
    """
    listener = _listener.get()
    if listener is not None:
        listener(step, amount, total, unit)


@contextmanager
def part_of(before: int, total: int) -> Iterator[None]:
    """Count the progress inside the block as a part of a larger step.

    Args:
        before: what was done of it before the block, in the unit of the reports.
        total: all of it.
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    with reporting(lambda step, amount, _, unit: listener(step, before + amount, total, unit)):
        yield
