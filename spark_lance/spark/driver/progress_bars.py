"""Bars of long operations, on terminals and in notebooks; see `progress`."""

from __future__ import annotations

import html
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_lance.cli.output import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from spark_lance.io.progress import Report

_SETTING = "spark.lance.progress"
_SPARKS_OWN = "spark.ui.showConsoleProgress"
_KERNEL = "ZMQInteractiveShell"
_PATIENCE = 1.0
_INTERVAL = 0.3
_UNIT = "tasks"


def bar_for(spark: SparkSession, what: str) -> Any:
    """Return a bar, a context manager that is called with reports; None where nobody looks on.

    Args:
        spark: the session, whose settings may forbid it.
        what: what the bar says until something is reported.
    """
    if str(spark.conf.get(_SETTING, "true")).lower() != "true":
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ == _KERNEL:
        return NotebookBar(what)
    if not sys.stderr.isatty() or str(spark.conf.get(_SPARKS_OWN, "false")).lower() == "true":
        return None
    return Progress(what)


class NotebookBar:
    """A bar in the output of a notebook's cell, of what takes more than a second; it goes when it ends.

    Args:
        step: what is being done until something else is reported.
        patience: seconds before it is drawn.
    """

    def __init__(self, step: str, patience: float = _PATIENCE) -> None:
        self._show = import_module("IPython.display")
        self._text = step
        self._from = time.monotonic() + patience
        self._drawn: Any = None
        # Threads of the operation and the thread that watches Spark's jobs report at the same time.
        self._lock = threading.Lock()
        self._ended = False

    def __call__(self, step: str, done: int, total: int, unit: str) -> None:
        """Draw how far a step is, if it is time to."""
        with self._lock:
            if not self._ended and time.monotonic() >= self._from:
                self._from = time.monotonic() + _INTERVAL
                self._draw(step, done, total, unit)

    def _draw(self, step: str, done: int, total: int, unit: str) -> None:
        bar = f"<progress value='{done}' max='{total}'></progress>" if total else "<progress></progress>"
        amount = f"{done:,} of {total:,} {unit}" if total else f"{done:,} {unit}"
        page = self._show.HTML(f"{html.escape(step)} {bar} {html.escape(amount)}")
        if self._drawn is None:
            self._drawn = self._show.display(page, display_id=True)
        else:
            self._drawn.update(page)

    def __enter__(self) -> NotebookBar:
        """Draw nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take the bar away."""
        with self._lock:
            self._ended = True
            if self._drawn is not None:
                self._drawn.update(self._show.HTML(""))


def watching(spark: Any, group: str, what: str, bar: Report) -> AbstractContextManager[None]:
    """Report how many tasks of the jobs that the block starts are done.

    Args:
        spark: the session.
        group: the group of these jobs.
        what: the step, for the bar.
        bar: is told.
    """
    context = getattr(spark, "_sc", None)
    return (
        _report_by_session(spark, what, bar)
        if context is None
        else _report_by_tracker(context, group, what, bar)
    )


@contextmanager
def _report_by_tracker(context: Any, group: str, what: str, bar: Report) -> Iterator[None]:
    """Ask a classic session's tracker of jobs, from a thread."""
    tracker = context.statusTracker()
    old = set(tracker.getJobIdsForGroup(group))
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(_INTERVAL):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group) if job not in old]
            numbers = {stage for job in jobs if job is not None for stage in job.stageIds}
            stages = [stage for stage in map(tracker.getStageInfo, sorted(numbers)) if stage is not None]
            if stages and not ended.is_set():
                done = sum(stage.numCompletedTasks for stage in stages)
                bar(what, done, sum(stage.numTasks for stage in stages), _UNIT)

    asking = threading.Thread(target=ask, name="lance progress", daemon=True)
    asking.start()
    try:
        yield
    finally:
        ended.set()
        asking.join()


@contextmanager
def _report_by_session(spark: Any, what: str, bar: Report) -> Iterator[None]:
    """Let a session of Spark Connect tell."""

    def tell(stages: Iterable[Any] | None, **_: Any) -> None:
        numbers = list(stages or ())
        if numbers:
            done = sum(stage.num_completed_tasks for stage in numbers)
            bar(what, done, sum(stage.num_tasks for stage in numbers), _UNIT)

    spark.registerProgressHandler(tell)
    try:
        yield
    finally:
        spark.removeProgressHandler(tell)
