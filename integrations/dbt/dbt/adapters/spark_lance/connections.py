"""Profiles of the adapter, and connections, which share one Spark session."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from dbt.adapters.contracts.connection import Connection, ConnectionState
from dbt.adapters.spark.connections import SparkConnectionManager, SparkConnectionMethod, SparkCredentials
from dbt.adapters.spark_lance.session import LanceConnection, LanceConnectionWrapper
from dbt_common.exceptions import DbtRuntimeError

__all__ = ["LanceConnectionManager", "LanceCredentials"]

_ANSI = "spark.sql.ansi.enabled"


@dataclass
class LanceCredentials(SparkCredentials):
    """A profile.

    Attributes:
        database: the Lance catalog's name in SQL; `catalog` is another name of this field.
        root: the folder of the catalog's tables. Without one, `server_side_parameters` describe the catalog,
            as in `spark.sql.catalog.lance.impl: rest`.
        view_catalog: the catalog of views, if the Lance catalog cannot hold them.
        server_side_parameters: settings of the Spark session.
    """

    _ALIASES: ClassVar[dict[str, str]] = {"catalog": "database"}

    host: str | None = "session"
    method: SparkConnectionMethod = SparkConnectionMethod.SESSION
    database: str | None = "lance"
    root: str | None = None
    view_catalog: str | None = None
    server_side_parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def __pre_deserialize__(cls, data: Any) -> Any:
        """Give a profile without a catalog the default one."""
        data = super().__pre_deserialize__(data)
        if data.get("database") is None:
            data["database"] = "lance"
        return data

    def __post_init__(self) -> None:
        """Check the profile.

        Raises:
            DbtRuntimeError: it uses another method than session, or names no tables.
        """
        if self.method != SparkConnectionMethod.SESSION:
            raise DbtRuntimeError(
                f"type: spark_lance works with method: session, not {self.method}: leave method out"
            )
        self.server_side_parameters = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.server_side_parameters.items()
        }
        ansi = self.server_side_parameters.get(_ANSI)
        catalog = self.database
        # The base class knows no catalogs, and always switches ANSI mode off.
        self.database = None
        super().__post_init__()
        self.database = catalog
        if ansi is not None:
            self.server_side_parameters[_ANSI] = ansi
        prefix = f"spark.sql.catalog.{catalog}"
        if self.root is None and not any(
            f"{prefix}.{name}" in self.server_side_parameters for name in ("root", "impl")
        ):
            raise DbtRuntimeError(
                "the profile has no root: add root: /path/to/tables to the output in profiles.yml"
            )

    @property
    def type(self) -> str:
        """The name of the adapter."""
        return "spark_lance"

    @property
    def unique_field(self) -> str:
        """What distinguishes one warehouse from another in anonymous usage statistics."""
        return self.root or str(self.database)

    def _connection_keys(self) -> tuple[str, ...]:
        return ("root", "database", "schema", "view_catalog")


class LanceConnectionManager(SparkConnectionManager):
    """Connections: cursors of the Spark session of this process."""

    TYPE = "spark_lance"

    @classmethod
    def open(cls, connection: Connection) -> Connection:
        """Open a connection; the first statement starts the session."""
        if connection.state != ConnectionState.OPEN:
            connection.handle = LanceConnectionWrapper(LanceConnection(connection.credentials))
            connection.state = ConnectionState.OPEN
        return connection
