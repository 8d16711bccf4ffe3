"""Lance tables of the session's own catalog, `spark_catalog`.

Spark's registry (in memory, Hive's metastore or another one of the session) keeps the name, the format
`lance`, the location and the columns of each table. A managed table is in the folder of its database. An
external table is at the LOCATION of its statement.

The files are written before the registration, so that a registered table is complete. If the registry refuses
a new table, its files are deleted. They stay if it is unknown whether the table was registered.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyspark.sql.types as st
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from spark_lance.catalog.names import Name, TableEntry, check_part, display_name
from spark_lance.errors import (
    NamespaceNotFoundError,
    OptionError,
    StoreError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFormatError,
)
from spark_lance.io.store import open_store
from spark_lance.spark.base.compat import SESSION_CATALOG, java_class, java_session, jvm_view
from spark_lance.spark.driver.java_classes import first_line
from spark_lance.spark.options.options import read_options
from spark_lance.spark.scan import rows as read
from spark_lance.spark.schema.string_types import declared_schema
from spark_lance.table.format.paths import VERSIONS_DIR
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.drop import drop_table, dropping_folders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_SHIM = "org.lance.spark.shim.Shim"
_FORMAT = "lance"
_MANAGED, _EXTERNAL = "MANAGED", "EXTERNAL"


class SessionNames:
    """Spark's registry of a driver, as a catalog of Lance tables.

    Args:
        spark: a session of the driver.
        storage: options of the store.
    """

    def __init__(self, spark: SparkSession, storage: Mapping[str, str]) -> None:
        self._spark = spark
        self._storage = dict(storage)

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the databases."""
        if parent:
            return []
        databases = self._session.sessionState().catalog().listDatabases()
        return sorted((str(databases.apply(i)),) for i in range(databases.size()))

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(name)

    def create_namespace(self, name: Name, _: Mapping[str, str]) -> None:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(name)

    def alter_namespace(self, name: Name, *_: object) -> None:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(name)

    def drop_namespace(self, name: Name) -> None:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(name)

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(namespace)

    def rename(self, old: Name, _: Name) -> None:
        """Refuse: Spark's own catalog answers this."""
        raise self._not_here(old)

    def _not_here(self, name: Name) -> UnsupportedFormatError:
        text = (
            f"{SESSION_CATALOG} keeps {display_name(name)} in Spark's registry: write the statement in "
            "Spark's SQL"
        )
        return UnsupportedFormatError(text)

    def table(self, name: Name) -> TableEntry:
        """Return the location of a table.

        Raises:
            TableNotFoundError: the registry has no table with this name, or its format is not Lance.
        """
        entry = self._entry(name)
        if entry is None:
            raise TableNotFoundError(f"table {display_name(name)} does not exist in {SESSION_CATALOG}")
        provider, location, kind = entry
        if provider != _FORMAT or location is None:
            raise TableNotFoundError(f"table {display_name(name)} of {SESSION_CATALOG} is not a Lance table")
        return TableEntry(name, location, {"external": str(kind != _MANAGED).lower()})

    def allocate_table_uri(self, name: Name) -> str:
        """Return the folder of a new managed table.

        Raises:
            NamespaceNotFoundError: the database does not exist.
            TableExistsError: a table with this name exists.
            OptionError: the folder has files.
        """
        database, table = self._parts(name)
        self.check_free(name)
        uri = local_path(str(self._shim.managedLocation(self._session, database, table)))
        store, path = open_store(uri, self._storage)
        parent, _, folder = path.rpartition("/")
        if folder in dropping_folders(store, parent):
            # The files of a dropped table of this name are still being deleted.
            return f"{uri}-{uuid.uuid4().hex[:8]}"
        self.check_empty(uri, name)
        return uri

    def check_free(self, name: Name) -> None:
        """Check that a new table can have a name.

        Raises:
            NamespaceNotFoundError: the database does not exist.
            TableExistsError: a table with this name exists.
        """
        database, table = self._parts(name)
        check_part(table)
        if self._entry(name) is not None:
            raise TableExistsError(f"table {display_name(name)} already exists in {SESSION_CATALOG}")
        if not self._session.sessionState().catalog().databaseExists(database):
            raise NamespaceNotFoundError(
                f"database {display_name((database,))} does not exist in {SESSION_CATALOG}"
            )

    def check_empty(self, uri: str, name: Name) -> None:
        """Check that the folder of a new table has no files.

        Raises:
            OptionError: the folder has files.
        """
        store, path = open_store(uri, self._storage)
        if store.list(f"{path}/{VERSIONS_DIR}"):
            raise OptionError(
                f"{uri} has a Lance table: write CREATE TABLE {display_name(name)} USING lance "
                f"LOCATION '{uri}' to "
                "register it"
            )
        if store.list(path) or store.list_directories(path):
            raise OptionError(
                f"{uri} has files, but no Lance table: choose an empty folder for {display_name(name)}"
            )

    def add(self, name: Name, uri: str, _: Mapping[str, str]) -> None:
        """Register a managed table after its files are written; delete it if the registration fails."""
        self.register(name, uri, external=False, is_new=True)

    def register(self, name: Name, uri: str, *, external: bool, is_new: bool) -> None:
        """Register a table.

        Args:
            name: the table's name.
            uri: the table's location.
            external: whether the files stay when the name is dropped.
            is_new: whether this statement created the table. A new table is deleted if registration fails.

        Raises:
            TableExistsError: a table with this name exists.
            StoreError: the registry fails.
            PySparkException: the registry refuses the table.
            LanceError: the location has no table that can be read.
        """
        database, table = self._parts(name)
        kind = _EXTERNAL if external else _MANAGED
        try:
            columns, comment = described_columns(uri, self._storage)
            self._registration(database, table, uri, kind, columns.json(), comment)
        except Exception as error:
            if is_new:
                self._undo(name, uri)
            condition = error.getCondition() if isinstance(error, PySparkException) else None
            if condition == "TABLE_OR_VIEW_ALREADY_EXISTS":
                raise TableExistsError(
                    f"table {display_name(name)} already exists in {SESSION_CATALOG}"
                ) from error
            raise

    def _registration(self, *parts: str | None) -> None:
        try:
            self._shim.registerTable(self._session, *parts)
        except Py4JError as error:
            raise StoreError(f"the registry of {SESSION_CATALOG} failed: {first_line(error)}") from error

    def _undo(self, name: Name, uri: str) -> None:
        """Delete a table if it is certain that it was not registered."""
        try:
            entry = self._entry(name)
        except (OSError, PySparkException, Py4JError) as error:
            logger.warning(
                "cannot determine whether %s is registered, so %s is not deleted: %s",
                display_name(name),
                uri,
                error,
            )
            return
        if entry is not None and entry[1] is not None and _is_same(entry[1], uri):
            return
        drop_table(TableRef(*open_store(uri, self._storage)))

    def drop(self, name: Name) -> None:
        """Remove a table from the registry, and delete the files of a managed table."""
        entry = self.table(name)
        database, table = self._parts(name)

        def forget() -> None:
            self._shim.unregisterTable(self._session, database, table)

        if entry.properties["external"] == "true":
            forget()
        else:
            drop_table(TableRef(*open_store(entry.uri, self._storage)), forget)

    def _entry(self, name: Name) -> tuple[str | None, str | None, str] | None:
        """Return the format, location and kind of a registered table of any format, or None."""
        if len(name) != 2:
            return None
        answer = self._shim.registeredTable(self._session, *name)
        if answer is None:
            return None
        provider, location, kind, _ = answer
        lower = None if provider is None else str(provider).lower()
        return lower, None if location is None else local_path(str(location)), str(kind)

    @staticmethod
    def _parts(name: Name) -> tuple[str, str]:
        if len(name) != 2:
            raise OptionError(
                f"{display_name(name)} is not a name of {SESSION_CATALOG}: write database and table, such as "
                "default.t"
            )
        return name[0], name[1]

    @property
    def _shim(self) -> Any:
        return java_class(jvm_view(self._spark), _SHIM)

    @property
    def _session(self) -> Any:
        return java_session(self._spark)


def described_columns(uri: str, storage: Mapping[str, str]) -> tuple[st.StructType, str | None]:
    """Return the columns of a table with their SQL types, and the comment of the table."""
    options = read_options({"path": uri, **{f"storage.{key}": value for key, value in storage.items()}})
    _, snapshot = read.open_snapshot(options, None)
    comment = (dict(snapshot.schema.to_arrow().metadata or {})).get(b"comment", b"").decode()
    return declared_schema(read.requested_schema(snapshot, options)), comment or None


def local_path(uri: str) -> str:
    """Return the path of a local `file:` URI. Other locations only lose trailing slashes."""
    if not uri.startswith("file:"):
        return uri.rstrip("/") if len(uri) > 1 else uri
    parts = urlsplit(uri)
    path = unquote(parts.path) if "%" in parts.path else uri[len("file:") :].lstrip("/")
    return "/" + path.strip("/") if path else "/"


def _is_same(place: str, other: str) -> bool:
    return local_path(place).rstrip("/") == local_path(other).rstrip("/")
