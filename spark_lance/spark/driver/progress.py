"""Progress of a long operation on a table: in Spark's UI, in the log, on a terminal.

    job group      the operation, "lance: compaction of /data/t", unless the caller has set a job group
    description    operation and step, "compaction of /data/t: rewrite 12 groups of fragments"
    log            one line (INFO) for each step that is finished, and one for the operation
    bar            on terminals and in notebooks, of what takes more than a second; not where Spark draws
                   its own (`spark.ui.showConsoleProgress`) or `spark.lance.progress` is false

Spark Connect has tags in place of groups and descriptions.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_lance.io.progress import reporting
from spark_lance.spark.driver.arguments import check_running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_GROUP = "spark.jobGroup.id"
_DESCRIPTION = "spark.job.description"
# Tags of Spark Connect must not have it.
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
    """Give what runs inside the block one name. Inside another operation it is a part of that one.

    Args:
        spark: the session.
        what: the operation, such as "compaction".
        path: of the table.

    Raises:
        OptionError: the session has been stopped.
    """
    check_running(spark)
    if _current.get() is not None:
        yield
        return
    name = f"{what} of {path}"
    began = time.monotonic()
    bar = _bar(spark, what)
    drawn, heard = (nullcontext(), nullcontext()) if bar is None else (bar, reporting(bar))
    with drawn, heard:
        token = _current.set(_Operation(name, _group(spark) or f"lance: {name}", bar))
        try:
            yield
        finally:
            _current.reset(token)
    logger.info("%s: finished in %.1f s", name, time.monotonic() - began)


@contextmanager
def step(spark: SparkSession, what: str) -> Iterator[None]:
    """Name the Spark jobs that the block starts, and tell when they are finished.

    Args:
        spark: the session.
        what: the step, such as "train the index".
    """
    running = _current.get()
    name = what if running is None else f"{running.name}: {what}"
    began = time.monotonic()
    with _marked(spark, name, running), _watched(spark, what, running):
        yield
    logger.info("%s: finished in %.1f s", name, time.monotonic() - began)


@contextmanager
def _marked(spark: Any, name: str, running: _Operation | None) -> Iterator[None]:
    """Let Spark's UI show a name with the jobs that the block starts."""
    context = getattr(spark, "_sc", None)
    if context is None:
        tag = name.replace(_TAG_SEPARATOR, ";")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    named = {_DESCRIPTION: name}
    if running is not None:
        named[_GROUP] = running.group
    before = {key: context.getLocalProperty(key) for key in named}
    for key, value in named.items():
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


def _bar(spark: SparkSession, what: str) -> Any:
    """Return what draws a bar where somebody looks on; None elsewhere."""
    if "IPython" not in sys.modules and not sys.stderr.isatty():
        return None
    # Not imported at the top: few processes draw anything.
    from spark_lance.spark.driver.progress_bars import bar_for

    return bar_for(spark, what)


def _watched(spark: SparkSession, what: str, running: _Operation | None) -> AbstractContextManager[object]:
    if running is None or running.bar is None:
        return nullcontext()
    from spark_lance.spark.driver.progress_bars import watching

    return watching(spark, running.group, what, running.bar)
