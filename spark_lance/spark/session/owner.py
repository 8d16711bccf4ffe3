"""Which Python process answers the questions of a JVM's Java classes: the first one that enabled them.

Py4J sends all callbacks of a JVM to one Python process, the one that has last started its callback server. A
second process that did so would take the answers of the first one away, so it leaves them alone while the
first one lives.
"""

from __future__ import annotations

import logging
import os
import uuid
from pathlib import Path
from typing import Any

from spark_lance.spark.compat import java_class

__all__ = ["may_answer"]

logger = logging.getLogger(__name__)

_PROPERTY = "spark_lance.python"
_PROCESS = uuid.uuid4().hex


def may_answer(jvm: Any) -> bool:
    """Make this process the one that answers, unless another one that lives does; say so then.

    Args:
        jvm: the view of the JVM that both have.
    """
    system = java_class(jvm, "java.lang.System")
    mine = f"{os.getpid()} {_started(os.getpid())} {_PROCESS}"
    owner = system.getProperty(_PROPERTY)
    if owner is not None and owner != mine and _lives(owner):
        logger.warning(
            "another Python process (%s) has enabled Lance in this JVM first, and keeps answering for its "
            "catalogs and plans, those of this session too. Call enable again when it has ended, or start "
            "a driver of your own",
            owner.partition(" ")[0],
        )
        return False
    system.setProperty(_PROPERTY, mine)
    return True


def _lives(owner: str) -> bool:
    process, started, _ = owner.split(" ")
    if os.name != "posix":
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _started(int(process)) == started


def _started(process: int) -> str:
    """Return when a process began, which tells it from later ones of its number; - if that is unknown."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "-"
