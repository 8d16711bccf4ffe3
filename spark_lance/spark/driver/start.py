"""Starts the parts of `spark_lance.enable` in the JVM of a classic session.

Spark plans the scans of a Python data source with all columns, and without filters and limits. In an enabled
session, the driver's own Python plans them (`LanceScan`). Clients of Spark Connect cannot reach that JVM.
There the options `columns` and `filter` limit the scan, unless the server has enabled all of its sessions.

Spark looks up the format of a write in the thread's active session. A new session is active only in the
thread that created it. If the class `FORMAT` is published, the active session does not matter.

Each part is a class of jvm/ with a nested class Start. One call to the JVM starts all parts (`LanceStart`).

Py4J sends all callbacks of a JVM to one Python process: the last one that started its callback server. A
second process would take over the callbacks of the first. So the first process that enables Lance in a JVM
serves the callbacks of its Java classes until the process ends (`may_answer`).
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.session import SparkSession

from spark_lance.spark.base.compat import java_class, java_session, jvm_view, start_callbacks
from spark_lance.spark.driver import java_classes
from spark_lance.spark.driver.builder import FAST_SETTINGS, log_missing_settings

logger = logging.getLogger(__name__)

_PROPERTY = "spark_lance.python"
_PROCESS = uuid.uuid4().hex


def may_answer(jvm: Any) -> bool:
    """Register this process for the JVM's callbacks, unless another live process has registered.

    Args:
        jvm: the view of the JVM.

    Returns:
        False, after a warning, if another process serves the callbacks.
    """
    system = java_class(jvm, "java.lang.System")
    process_mark = f"{os.getpid()} {_start_time(os.getpid())} {_PROCESS}"
    owner = system.getProperty(_PROPERTY)
    if owner is not None and owner != process_mark and _is_alive(owner):
        logger.warning(
            "another Python process (%s) has enabled Lance in this JVM first, and serves its catalogs and "
            "plans, those of this session too. Call enable again when it has ended, or start "
            "a driver of your own",
            owner.partition(" ")[0],
        )
        return False
    system.setProperty(_PROPERTY, process_mark)
    return True


def _is_alive(owner: str) -> bool:
    process, started, _ = owner.split(" ")
    if os.name != "posix":
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _start_time(int(process)) == started


def _start_time(process: int) -> str:
    """Return the start time of a process, to distinguish it from later ones with its id; "-" if unknown."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"


# The class that lets all threads find the format.
FORMAT = "lance.DefaultSource"
_JSON = "org.lance.spark.load.Json"
_STARTS = "org.lance.spark.load.LanceStart"
# The classes that are published together, whatever parts the first session of a driver requests.
PUBLISHED = (
    _JSON,
    "org.lance.spark.load.Seqs",
    "org.lance.spark.shim.Callers",
    "org.lance.spark.shim.Shim",
    "org.lance.spark.load.OptionalUnit",
    FORMAT,
    "org.lance.spark.load.LanceLazyFunctions",
    "org.lance.spark.load.LanceSessionRule",
    "org.lance.spark.load.LanceForms",
    "org.lance.spark.load.LanceParser",
    "org.lance.spark.rowlevel.LanceStatements",
    "org.lance.spark.load.LanceUnits",
    _STARTS,
)
NOT_TAKEN = "the driver's class loader accepts no classes"


@dataclass(frozen=True)
class EnableRequest:
    """A request to start parts of this package in a session's JVM.

    Attributes:
        parts: the classes of the parts, in order.
        vital: parts without which no later part is started.
        answers: a `java.util.function.BiFunction` in Python, which answers requests of the parts.
        arguments: arguments of the parts, by name. `sql.protocol.StartRequest` lists them.
    """

    parts: Sequence[str] = ()
    vital: Sequence[str] = ()
    answers: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EnableResult:
    """The result of an `EnableRequest`.

    Attributes:
        missing: for each class that was not started, the reason in one line.
        settings: the requested settings of Spark's context. An unset one is None.
    """

    missing: Mapping[str, str]
    settings: Mapping[str, str | None]


def start(
    spark: Any, request: EnableRequest, *, new_sessions: bool, settings: Sequence[str] = ()
) -> EnableResult:
    """Start the parts in a session, and make it the active one of the calling thread.

    Args:
        spark: a classic session.
        request: the parts. None is started if the driver's class loader accepts no classes.
        new_sessions: do the same for sessions that are created later.
        settings: names of the settings of Spark's context to return.
    """
    jvm = jvm_view(spark)
    parts = [FORMAT, *request.parts]
    missing: dict[str, str] = {}
    try:
        published = java_classes.can_publish(jvm)
        names = PUBLISHED if published else (_JSON, _STARTS)
        loader, failures = java_classes.load_all(jvm, names)
        missing.update(failures)
        if not published:
            missing.update(dict.fromkeys(parts, NOT_TAKEN))
        part_failures = _part_failures(spark, names, missing, request) if published else {}
        starts = published and not part_failures
        message = {
            "parts": list(request.parts) if starts else [],
            "vital": list(request.vital),
            "contextSettings": list(settings),
            "newSessions": new_sessions,
            **request.arguments,
        }
        answers = request.answers if starts and may_answer(jvm) else None
        if answers is not None:
            start_callbacks(spark)
        starting = loader.loadClass(_STARTS).newInstance()
        answer = json.loads(starting.start(java_session(spark), answers, json.dumps(message)))
    except Py4JError as error:
        reason = missing.get(_STARTS) or java_classes.first_line(error)
        return EnableResult({**dict.fromkeys(parts, reason), **missing}, {})
    # The reason why a class was not compiled is more useful than the answer that it does not exist.
    return EnableResult({**answer["missing"], **missing, **part_failures}, answer["settings"])


def _part_failures(
    spark: Any, names: Sequence[str], missing: Mapping[str, str], request: EnableRequest
) -> dict[str, str]:
    """Return the reason why no part can start, for each part; empty if all can start.

    Every part needs the vital parts and the classes that are not parts, so one class that does not compile
    with this Spark prevents all. A missing format is reported by a warning of its own.
    """
    needs = [name for name in names if name not in request.parts or name in request.vital]
    broken = next((name for name in needs if name in missing and name != FORMAT), None)
    if broken is None:
        return {}
    reason = missing[broken].partition("CompileException: ")
    text = f"{broken.rpartition('.')[2]} does not fit Spark {spark.version}: {reason[2] or reason[0]}"
    return dict.fromkeys(request.parts, text)


def start_parts(spark: SparkSession, request: EnableRequest, *, new_sessions: bool = False) -> EnableResult:
    """Start the parts of `request` in a session, and warn about missing ones. It can be called again.

    Args:
        spark: a classic session. It becomes the calling thread's active one.
        request: the parts.
        new_sessions: do the same for all sessions that the driver creates from now on. On a Spark Connect
            server these include the sessions of clients.
    """
    result = start(spark, request, new_sessions=new_sessions, settings=list(FAST_SETTINGS))
    if FORMAT in result.missing:
        _warn_of_threads(result.missing[FORMAT])
    log_missing_settings(result.settings)
    return result


@cache
def _warn_of_threads(reason: str) -> None:
    """Warn once about the limits of reads and writes by path."""
    logger.warning(
        "Reads of Lance tables by path fetch all columns and rows here, and each thread that writes by path "
        "needs its own call of spark_lance.enable(spark): %s",
        reason,
    )
