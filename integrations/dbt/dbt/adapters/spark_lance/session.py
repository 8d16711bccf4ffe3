"""The Spark session of dbt's process, with the Lance catalog, and cursors over it."""

from __future__ import annotations

import datetime
import logging
import threading
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from dbt.adapters.spark.session import Connection, Cursor, SessionConnectionWrapper
from dbt_common.exceptions import DbtRuntimeError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.errors import LanceError

if TYPE_CHECKING:
    from dbt.adapters.spark_lance.connections import LanceCredentials

__all__ = ["LanceConnection", "LanceConnectionWrapper", "lance_session"]

_IMPLEMENTATION = "spark.sql.catalogImplementation"

_starting = threading.Lock()
# The session that has the catalog, and the profile that it was started for.
_started: list[tuple[SparkSession, tuple[Any, ...]]] = []


def lance_session(credentials: LanceCredentials) -> SparkSession:
    """Return the Spark session of this process; the first call starts it and gives it the Lance catalog."""
    profile = (
        credentials.database,
        credentials.root,
        tuple(sorted(credentials.server_side_parameters.items())),
    )
    with _starting:
        if _started and _started[0][1] == profile and _started[0][0].sparkContext._jsc is not None:
            return _started[0][0]
        # py4j logs each closed socket at INFO, and dbt shows the loggers of its adapters.
        logging.getLogger("py4j").setLevel(logging.ERROR)
        builder = spark_lance.session_builder().appName("dbt").config("spark.ui.showConsoleProgress", "false")
        if credentials.server_side_parameters.get(_IMPLEMENTATION) == "hive":
            builder = builder.enableHiveSupport()
        for name, value in credentials.server_side_parameters.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark_lance.enable(spark, catalog=str(credentials.database), root=credentials.root, new_sessions=True)
        _started[:] = [(spark, profile)]
        return spark


class LanceCursor(Cursor):
    """A cursor whose statements run in the session with the Lance catalog."""

    def __init__(self, credentials: LanceCredentials) -> None:
        super().__init__(server_side_parameters=credentials.server_side_parameters)
        self._credentials = credentials

    def execute(self, sql: str, *parameters: Any) -> None:
        """Run a statement.

        Raises:
            DbtRuntimeError: Spark or the catalog refused it, or it failed.
        """
        text = sql % parameters if parameters else sql
        self._rows = None
        try:
            self._df = lance_session(self._credentials).sql(text)
        except (PySparkException, LanceError) as error:
            raise DbtRuntimeError(str(error)) from error


class LanceConnection(Connection):
    """A connection: it opens cursors."""

    def __init__(self, credentials: LanceCredentials) -> None:
        super().__init__(server_side_parameters=credentials.server_side_parameters)
        self._credentials = credentials

    def cursor(self) -> LanceCursor:
        """Return a new cursor."""
        return LanceCursor(self._credentials)


class LanceConnectionWrapper(SessionConnectionWrapper):
    """A connection as dbt's connection manager uses it."""

    @classmethod
    def _fix_binding(cls, value: Any) -> str:
        """Return a value as an SQL literal, exactly."""
        if value is None:
            return "NULL"
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, Decimal):
            return f"{value:f}"
        if isinstance(value, (int, float)):
            return repr(value)
        if isinstance(value, datetime.datetime):
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        text = str(value).replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"
