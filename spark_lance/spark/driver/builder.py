"""Builds sessions with fast small queries on Lance tables: settings that must be set before Spark starts.

    spark = spark_lance.enable(spark_lance.session_builder().master("local[4]").getOrCreate())

On a cluster, the administrator puts the same settings into `spark-defaults.conf`. The package must be
installed where executors run, as for every read by tasks.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from spark_lance.redaction import SECRET_NAMES
from spark_lance.spark.driver.java_home import prepare_environment
from spark_lance.spark.worker.sockets import private_folder

logger = logging.getLogger(__name__)

# Spark hides values of matching names in its UI, its event log and its plans. This is the setting for it, and
# a pattern for the names of secrets.
REDACTION = ("spark.redaction.regex", SECRET_NAMES)
_SOCKETS, _SOCKET_FOLDER = "spark.python.unix.domain.socket.enabled", "spark.python.unix.domain.socket.dir"

# Setting -> its value, and its benefit.
FAST_SETTINGS = MappingProxyType(
    {
        "spark.python.daemon.module": (
            "spark_lance.spark.daemon",
            "forks Python workers that have loaded what they need",
        ),
        "spark.python.unix.domain.socket.enabled": (
            "true",
            "lets Spark 4.1 and newer talk to Python workers without the network, "
            f"in a folder of mode 0700 that {_SOCKET_FOLDER} names",
        ),
        "spark.sql.execution.arrow.pyspark.enabled": (
            "true",
            "moves rows between Spark and pandas as Arrow",
        ),
    }
)


class _Builder(SparkSession.Builder):
    """A builder that finally adds unset settings whose values depend on other settings."""

    def getOrCreate(self) -> SparkSession:
        """Return the session. A running session keeps the settings of its driver."""
        for name, value in _late_settings(self._options).items():
            self.config(name, value)
        return super().getOrCreate()


def session_builder() -> SparkSession.Builder:
    """Return a builder of Spark sessions with `FAST_SETTINGS`. Settings that follow take precedence.

    Also finds Java, and lets workers run this Python, see `prepare_environment`. The settings of workers have
    an effect only if the session starts a driver: a running driver keeps its own. `getOrCreate` adds Unix
    sockets (for a local master, in a folder that no other user can enter) and `spark.redaction.regex`, unless
    they are set already, in `spark-defaults.conf` or by spark-submit.

    Raises:
        JavaNotFoundError: no Java was found that can run Spark.
    """
    prepare_environment()
    builder: SparkSession.Builder = _Builder()
    for name, (value, _) in FAST_SETTINGS.items():
        if name != _SOCKETS:
            builder = builder.config(name, value)
    return builder


def _late_settings(options: Mapping[str, object]) -> dict[str, str]:
    """Return the settings to add to those of a builder."""
    settings: dict[str, str] = {}
    running = SparkContext._active_spark_context
    if running is None and REDACTION[0] not in options and _setting_elsewhere(REDACTION[0]) is None:
        settings[REDACTION[0]] = REDACTION[1]
    master = str(options.get("spark.master") or _setting_elsewhere("spark.master") or "local")
    unset = not any(name in options or _setting_elsewhere(name) for name in (_SOCKETS, _SOCKET_FOLDER))
    # Executors of a cluster do not have this folder: they keep Spark's authenticated connections.
    if running is None and os.name == "posix" and unset and master.startswith("local"):
        folder = _socket_folder(os.getpid())
        if folder is not None:
            settings |= {_SOCKETS: "true", _SOCKET_FOLDER: str(folder)}
    return settings


def _setting_elsewhere(name: str) -> str | None:
    """Return a setting from spark-submit, the environment or spark-defaults.conf; None if it is unset."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Started by spark-submit: the JVM is running and has read all settings.
        SparkContext._ensure_initialized()
        return SparkConf().get(name, None)
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for option, value in pairwise(words):
        if option in ("--conf", "-c") and value.partition("=")[0] == name:
            return value.partition("=")[2]
        if option == "--master" and name == "spark.master":
            return value
    return _default_setting(name)


def _default_setting(name: str) -> str | None:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and str(Path(home) / "conf"))
    file = Path(folder) / "spark-defaults.conf" if folder else None
    if file is None or not file.is_file():
        return None
    for line in file.read_text("utf-8", "replace").splitlines():
        match = re.match(r"\s*([^\s=:#]+)\s*[\s=:]\s*(.*)", line)
        if match is not None and match[1] == name:
            return match[2].strip()
    return None


@cache
def _socket_folder(process: int) -> Path | None:  # noqa: ARG001 (the key of the cache)
    """Return the folder of this process's sockets."""
    return private_folder()


def log_missing_settings(settings: Mapping[str, str | None]) -> None:
    """Log once, in one line, which unset settings would make small queries faster.

    Args:
        settings: values of the driver's settings by name.
    """
    missing = [
        f"{name}={value} {reason}"
        for name, (value, reason) in FAST_SETTINGS.items()
        if settings.get(name) != value and (os.name == "posix" or "unix" not in name)
    ]
    if missing:
        _log_missing("; ".join(missing))


@cache
def _log_missing(missing: str) -> None:
    logger.info(
        "small queries could be faster: %s (spark_lance.session_builder() sets all of these)", missing
    )
