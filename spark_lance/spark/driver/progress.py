"""Progress of a long operation on a table: in Spark's UI, in the log, on a terminal.

    job group      the operation, "lance: compaction of /data/t", unless the caller has set a job group
    description    operation and step, "compaction of /data/t: rewrite 12 groups of fragments"
    log            one line (INFO) for each finished step, and one for the operation
    bar            on terminals and in notebooks, for operations longer than a second; none if Spark draws its
                   own (`spark.ui.showConsoleProgress`) or `spark.lance.progress` is false

Spark Connect has tags instead of groups and descriptions.
"""

from __future__ import annotations

import html
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any

from spark_lance.io.display import size_text
from spark_lance.io.progress import reporting
from spark_lance.spark.driver.arguments import check_running
from spark_lance.spark.driver.jobs import commit_origin
from spark_lance.table.commits.commit_options import commit_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from spark_lance.io.progress import Report

_SETTING = "spark.lance.progress"
_SPARK_PROGRESS_SETTING = "spark.ui.showConsoleProgress"
_NOTEBOOK_SHELL = "ZMQInteractiveShell"
_DELAY_SECONDS = 1.0
_INTERVAL_SECONDS = 0.3
_UNIT = "tasks"


def create_bar(spark: SparkSession, what: str) -> Any:
    """Return a progress bar, a context manager that is called with reports; None without an interactive user.

    Args:
        spark: the session. Its settings can turn the bar off.
        what: text of the bar before the first report.
    """
    if "IPython" not in sys.modules and not sys.stderr.isatty():
        return None
    if str(spark.conf.get(_SETTING, "true")).lower() != "true":
        return None
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ == _NOTEBOOK_SHELL:
        return NotebookBar(what)
    if not sys.stderr.isatty() or str(spark.conf.get(_SPARK_PROGRESS_SETTING, "false")).lower() == "true":
        return None
    # Not imported at the top: few processes draw a bar, and rich is needed for nothing else.
    from spark_lance.cli.output import Progress

    return Progress(what)


class NotebookBar:
    """A progress bar in the output of a notebook cell. It appears after a delay and disappears at the end.

    Args:
        step: name of the step before the first report.
        patience: seconds before the bar appears.
    """

    def __init__(self, step: str, patience: float = _DELAY_SECONDS) -> None:
        self._show = import_module("IPython.display")
        self._text = step
        self._next_draw = time.monotonic() + patience
        self._display: Any = None
        # The step that is timed, and its amount and time when the timing began.
        self._step, self._first, self._since = step, 0, time.monotonic()
        # Threads of the operation and the thread that polls Spark's jobs report concurrently.
        self._lock = threading.Lock()
        self._is_finished = False

    def __call__(self, step: str, amount: int, total: int, unit: str) -> None:
        """Draw the progress of a step, unless it was drawn a moment ago."""
        with self._lock:
            if not self._is_finished and time.monotonic() >= self._next_draw:
                self._next_draw = time.monotonic() + _INTERVAL_SECONDS
                self._draw(step, amount, total, unit)

    def _draw(self, step: str, part: int, total: int, unit: str) -> None:
        bar = f"<progress value='{part}' max='{total}'></progress>" if total else "<progress></progress>"
        amount = _amount_text(part, total, unit) + self._time_left(step, part, total)
        page = self._show.HTML(f"{html.escape(step)} {bar} {html.escape(amount)}")
        if self._display is None:
            self._display = self._show.display(page, display_id=True)
        else:
            self._display.update(page)

    def _time_left(self, step: str, amount: int, total: int) -> str:
        """Return the estimated time left, from the rate of the step so far; empty if it is unknown."""
        if step != self._step or amount < self._first:
            self._step, self._first, self._since = step, amount, time.monotonic()
        progress, elapsed = amount - self._first, time.monotonic() - self._since
        if not total or progress <= 0:
            return ""
        return f", {elapsed * (total - amount) / progress:,.0f} s left"

    def __enter__(self) -> NotebookBar:
        """Draw nothing yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the bar."""
        with self._lock:
            self._is_finished = True
            if self._display is not None:
                self._display.update(self._show.HTML(""))


def _amount_text(amount: int, total: int, unit: str) -> str:
    if unit == "bytes":
        return f"{size_text(amount)} of {size_text(total)}" if total else size_text(amount)
    return f"{amount:,} of {total:,} {unit}" if total else f"{amount:,} {unit}"


def report_tasks(spark: Any, group: str, what: str, bar: Report) -> AbstractContextManager[None]:
    """Report the number of finished tasks of the jobs that the block starts.

    Args:
        spark: the session.
        group: the group of these jobs.
        what: name of the step, for the bar.
        bar: receives the reports.
    """
    context = getattr(spark, "_sc", None)
    return (
        _report_by_session(spark, what, bar)
        if context is None
        else _report_by_tracker(context, group, what, bar)
    )


@contextmanager
def _report_by_tracker(context: Any, group: str, what: str, bar: Report) -> Iterator[None]:
    """Poll the status tracker of a classic session in a thread."""
    tracker = context.statusTracker()
    old = set(tracker.getJobIdsForGroup(group))
    stop = threading.Event()

    def poll() -> None:
        while not stop.wait(_INTERVAL_SECONDS):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group) if job not in old]
            numbers = {stage for job in jobs if job is not None for stage in job.stageIds}
            stages = [stage for stage in map(tracker.getStageInfo, sorted(numbers)) if stage is not None]
            if stages and not stop.is_set():
                task_count = sum(stage.numCompletedTasks for stage in stages)
                bar(what, task_count, sum(stage.numTasks for stage in stages), _UNIT)

    thread = threading.Thread(target=poll, name="lance progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def _report_by_session(spark: Any, what: str, bar: Report) -> Iterator[None]:
    """Register a progress handler with a Spark Connect session."""

    def report(stages: Iterable[Any] | None, **_: Any) -> None:
        stage_list = list(stages or ())
        if stage_list:
            task_count = sum(stage.num_completed_tasks for stage in stage_list)
            bar(what, task_count, sum(stage.num_tasks for stage in stage_list), _UNIT)

    spark.registerProgressHandler(report)
    try:
        yield
    finally:
        spark.removeProgressHandler(report)


logger = logging.getLogger(__name__)

_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
# Tags of Spark Connect must not contain it.
_TAG_SEPARATOR = ","


@dataclass(frozen=True)
class _Operation:
    """The running operation: its name, the group of its jobs, and its progress bar, if any."""

    name: str
    group: str
    bar: Any


_current: ContextVar[_Operation | None] = ContextVar("spark_lance_operation", default=None)


@contextmanager
def operation(spark: SparkSession, what: str, path: str) -> Iterator[None]:
    """Name the operation that the block runs. A nested operation counts as part of the outer one.

    Args:
        spark: the session.
        what: the operation, such as "compaction".
        path: path of the table.

    Raises:
        OptionError: the session has been stopped.
    """
    check_running(spark)
    if _current.get() is not None:
        yield
        return
    name = f"{what} of {path}"
    began = time.monotonic()
    bar = create_bar(spark, what)
    shown_bar, listener = (nullcontext(), nullcontext()) if bar is None else (bar, reporting(bar))
    with shown_bar, listener, commit_options(origin=partial(commit_origin, spark)):
        token = _current.set(_Operation(name, _group(spark) or f"lance: {name}", bar))
        try:
            yield
        finally:
            _current.reset(token)
    logger.info("%s: finished in %.1f s", name, time.monotonic() - began)


@contextmanager
def step(spark: SparkSession, what: str) -> Iterator[None]:
    """Name the Spark jobs that the block starts, and log their time when they have finished.

    Args:
        spark: the session.
        what: the step, such as "train the index".
    """
    running = _current.get()
    name = what if running is None else f"{running.name}: {what}"
    began = time.monotonic()
    with _label_jobs(spark, name, running), _watch_step(spark, what, running):
        yield
    logger.info("%s: finished in %.1f s", name, time.monotonic() - began)


@contextmanager
def _label_jobs(spark: Any, name: str, running: _Operation | None) -> Iterator[None]:
    """Set the name that Spark's UI shows for the jobs that the block starts."""
    context = getattr(spark, "_sc", None)
    if context is None:
        tag = name.replace(_TAG_SEPARATOR, ";")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    properties = {_DESCRIPTION: name}
    if running is not None:
        properties[_GROUP] = running.group
    before = {key: context.getLocalProperty(key) for key in properties}
    for key, value in properties.items():
        context.setLocalProperty(key, value)
    try:
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)


def _group(spark: Any) -> str | None:
    """Return the job group that the caller has set in this thread."""
    context = getattr(spark, "_sc", None)
    group: str | None = None if context is None else context.getLocalProperty(_GROUP)
    return group


def _watch_step(spark: SparkSession, what: str, running: _Operation | None) -> AbstractContextManager[object]:
    if running is None or running.bar is None:
        return nullcontext()
    return report_tasks(spark, running.group, what, running.bar)
