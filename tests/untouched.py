"""What tests share and leave as it was: the Spark session of the process, its environment, its folder.

Which tests run in one process, and in which order, is chance. A test that needs other settings, views or
a catalog makes a session of its own (`spark.newSession()`), or takes back what it did.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["changes", "make_active", "restored_for_later_sessions", "state"]

# What the package, Python and stores look at; libraries set others when they are imported.
_LOOKED_AT = ("AWS_", "AZURE_", "GOOGLE_", "HOME", "LANCE_", "PATH", "PYTHON", "TMPDIR", "XDG_")


def state(spark: SparkSession | None) -> dict[str, str]:
    """Return what a test must not change, as text by what it is: of a session only if there is one."""
    environment = {name: value for name, value in os.environ.items() if name.startswith(_LOOKED_AT)}
    results = {"folder": str(Path.cwd()), "environment": _lines(environment)}
    if spark is not None:
        session: Any = spark._jsparkSession
        catalogs = session.sessionState().catalogManager()
        results["settings"] = session.conf().getAll().mkString("\n")
        results["settings of later sessions"] = session.sharedState().conf().toDebugString()
        results["temporary views"] = session.sessionState().catalog().getTempViewNames().mkString("\n")
        results["current catalog"] = catalogs.currentCatalog().name()
    return results


def _lines(entries: dict[str, str]) -> str:
    return "\n".join(f"{name}={value}" for name, value in entries.items())


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what was changed between two states that tell of the same things."""
    results = []
    for name in before.keys() & after.keys():
        old, new = (set(one[name].splitlines()) for one in (before, after))
        lines = [*(f"+{line}" for line in sorted(new - old)), *(f"-{line}" for line in sorted(old - new))]
        if lines:
            results.append(f"{name}: {', '.join(lines)}")
    return sorted(results)


def make_active(spark: SparkSession) -> None:
    """Make the shared session the one that Spark takes where none is named: the newest one is, otherwise."""
    jvm: Any = spark._jvm
    for set_session in (jvm.SparkSession.setActiveSession, jvm.SparkSession.setDefaultSession):
        set_session(spark._jsparkSession)


@contextmanager
def restored_for_later_sessions(spark: SparkSession) -> Iterator[None]:
    """Take back the settings that sessions which are made later would get."""
    session: Any = spark._jsparkSession
    conf = session.sharedState().conf()
    before = dict(line.split("=", 1) for line in conf.toDebugString().splitlines() if "=" in line)
    try:
        yield
    finally:
        for line in conf.toDebugString().splitlines():
            name, _, value = line.partition("=")
            if name not in before:
                conf.remove(name)
            elif before[name] != value:
                conf.set(name, before[name])
