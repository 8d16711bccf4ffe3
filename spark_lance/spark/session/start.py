"""The parts that `enable` gives a classic session: classes of jvm/ whose nested class Start does the work.

All of it is one question to the JVM, see `LanceStart`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError

from spark_lance.spark.compat import java_session, jvm_view, start_callbacks
from spark_lance.spark.session import java_classes
from spark_lance.spark.session.owner import may_answer

__all__ = ["FORMAT", "NOT_TAKEN", "PUBLISHED", "Started", "Wish", "start"]

# The format as threads find it.
FORMAT = "lance.DefaultSource"
_STARTS = "org.lance.spark.load.LanceStart"
# All that is published at once, whatever the first session of a driver asks for.
PUBLISHED = (
    "org.lance.spark.shim.Callers",
    "org.lance.spark.shim.Shim",
    "org.lance.spark.load.OptionalUnit",
    FORMAT,
    "org.lance.spark.load.LanceLate",
    "org.lance.spark.load.LanceParser",
    "org.lance.spark.rowlevel.LanceStatements",
    "org.lance.spark.load.LanceUnits",
    _STARTS,
)
NOT_TAKEN = "the driver's class loader takes no classes"


@dataclass(frozen=True)
class Wish:
    """The parts that a session is to get.

    Attributes:
        parts: their classes, in order.
        vital: those of them without which none that follows is started.
        answers: a `java.util.function.BiFunction` in Python, for questions of the parts.
        arguments: what they ask for by name.
    """

    parts: Sequence[str] = ()
    vital: Sequence[str] = ()
    answers: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Started:
    """The result of a start.

    Attributes:
        missing: classes that are not there or could not be started, and why, in a line.
        settings: the settings of Spark's context that were asked for, None for those that are not set.
    """

    missing: Mapping[str, str]
    settings: Mapping[str, str | None]


def start(spark: Any, wish: Wish, *, new_sessions: bool, settings: Sequence[str] = ()) -> Started:
    """Give a session its parts, and make it the active one of the calling thread.

    Args:
        spark: a classic session.
        wish: the parts; they are left out where the driver takes no classes.
        new_sessions: do it for sessions that are made later, too.
        settings: names of settings of Spark's context to tell.
    """
    jvm = jvm_view(spark)
    parts = [FORMAT, *wish.parts]
    missing: dict[str, str] = {}
    try:
        published = java_classes.can_publish(jvm)
        names = PUBLISHED if published else (_STARTS,)
        loader, lost = java_classes.load_all(jvm, names)
        missing.update(lost)
        if not published:
            missing.update(dict.fromkeys(parts, NOT_TAKEN))
        request = {
            "parts": list(wish.parts) if published else [],
            "vital": list(wish.vital),
            "asked": list(settings),
            "newSessions": new_sessions,
            **wish.arguments,
        }
        answers = wish.answers if published and may_answer(jvm) else None
        if answers is not None:
            start_callbacks(spark)
        starting = loader.loadClass(_STARTS).newInstance()
        answer = json.loads(starting.start(java_session(spark), answers, json.dumps(request)))
    except Py4JError as error:
        reason = missing.get(_STARTS) or java_classes.first_line(error)
        return Started({**dict.fromkeys(parts, reason), **missing}, {})
    # Why a class was not compiled says more than that it is not there.
    return Started({**answer["missing"], **missing}, answer["settings"])
