"""The available external manifest stores, and how a URI or a storage option selects one.

s3+ddb://bucket/path?ddbTableName=T       table in s3://bucket/path, versions in the DynamoDB table T
manifest_store=dynamodb://T               the same as a storage option
manifest_store=sqlite:///shared/m.db      versions in a SQLite file (absolute path: three slashes)

A SQLite file serves several processes on one host, or tests:

    CREATE TABLE manifests (root TEXT, version INTEGER, path TEXT, size INTEGER, PRIMARY KEY (root, version))

`root` is the table's root prefixed with the protocol, so one file serves tables of several stores. SQLite's
locks do not work on network file systems: use DynamoDB if writers run on several hosts.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from spark_lance.errors import OptionError, StoreError
from spark_lance.io.manifest_dynamodb import DynamoManifestStore
from spark_lance.io.manifest_store import ManifestEntry, ManifestStore

_SCHEMA = """
CREATE TABLE IF NOT EXISTS manifests (
    root TEXT NOT NULL, version INTEGER NOT NULL, path TEXT NOT NULL, size INTEGER,
    PRIMARY KEY (root, version)
) WITHOUT ROWID
"""
_COLUMNS = "SELECT version, path, size FROM manifests WHERE root = ?"
_WAIT_SECONDS = 30.0


@dataclass(frozen=True)
class SqliteManifestStore:
    """Manifest entries of tables of one protocol, in a SQLite file that is created when first needed.

    Attributes:
        file: absolute path.
        scheme: protocol of the tables.
    """

    file: str
    scheme: str

    def get(self, root: str, version: int) -> ManifestEntry | None:
        """Return the row of a version."""
        return self._fetch_row(f"{_COLUMNS} AND version = ?", root, version)

    def get_latest(self, root: str) -> ManifestEntry | None:
        """Return the row of the highest version."""
        return self._fetch_row(f"{_COLUMNS} ORDER BY version DESC LIMIT 1", root)

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        """Add a row.

        Raises:
            FileExistsError: the version already has a row.
        """
        try:
            self._execute(
                "INSERT INTO manifests (root, version, path, size) VALUES (?, ?, ?, ?)",
                self._key(root), entry.version, entry.path, entry.size,
            )  # fmt: skip
        except sqlite3.IntegrityError as error:
            raise FileExistsError(f"version {entry.version} of {root} has a manifest") from error

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        """Replace the row of a version.

        Raises:
            FileNotFoundError: the version has no row.
        """
        num_rows = self._execute(
            "UPDATE manifests SET path = ?, size = ? WHERE root = ? AND version = ?",
            entry.path, entry.size, self._key(root), entry.version,
        )  # fmt: skip
        if not num_rows:
            raise FileNotFoundError(f"version {entry.version} of {root} has no manifest entry")

    def delete(self, root: str, version: int | None = None) -> None:
        """Remove the row of a version, or of all versions of the table."""
        if version is None:
            self._execute("DELETE FROM manifests WHERE root = ?", self._key(root))
        else:
            self._execute("DELETE FROM manifests WHERE root = ? AND version = ?", self._key(root), version)

    def _key(self, root: str) -> str:
        return f"{self.scheme}://{root}"

    def _fetch_row(self, query: str, root: str, *values: int) -> ManifestEntry | None:
        with self._open() as connection:
            row = connection.execute(query, (self._key(root), *values)).fetchone()
        return ManifestEntry(*row) if row else None

    def _execute(self, statement: str, *values: Any) -> int:
        with self._open() as connection, connection:
            return connection.execute(statement, values).rowcount

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one statement: a connection cannot be shared across threads or survive a fork."""
        try:
            Path(self.file).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.file, timeout=_WAIT_SECONDS)) as connection:
                connection.execute(_SCHEMA)
                yield connection
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise StoreError(f"the manifest store sqlite://{self.file} failed: {error}") from error


_DDB = "s3+ddb://"
_TABLE_NAME = "ddbTableName"

# (URL after the scheme, protocol of the tables, options of their store, DynamoDB endpoint) -> store
Opener = Callable[[str, str, Mapping[str, Any], "str | None"], ManifestStore]


def _open_dynamodb(
    name: str, protocol: str, options: Mapping[str, Any], endpoint: str | None
) -> ManifestStore:
    if protocol not in ("s3", "s3a"):
        raise OptionError(f"a manifest store in DynamoDB serves tables in s3://, not in {protocol}://")
    client = options.get("client_kwargs") or {}
    return DynamoManifestStore(
        table=name,
        endpoint=endpoint,
        region=client.get("region_name"),
        profile=options.get("profile"),
        credentials=(options.get("key"), options.get("secret"), options.get("token")),
    )


def _open_sqlite(path: str, protocol: str, options: Mapping[str, Any], endpoint: str | None) -> ManifestStore:
    if not path.startswith("/"):
        raise OptionError(f"a SQLite manifest store needs an absolute path, as sqlite:///{path}")
    scheme = "s3" if protocol == "s3a" else protocol
    return SqliteManifestStore(path, scheme)


MANIFEST_STORES: Mapping[str, Opener] = MappingProxyType({"dynamodb": _open_dynamodb, "sqlite": _open_sqlite})


def named_manifest_store(
    url: str | None, protocol: str, options: Mapping[str, Any], dynamodb_endpoint: str | None
) -> ManifestStore | None:
    """Return the manifest store that a URL names; None if there is no URL.

    Args:
        url: "dynamodb://table" or "sqlite:///path".
        protocol: protocol of the tables' store.
        options: arguments of the tables' store, for credentials and region.
        dynamodb_endpoint: URL of a DynamoDB outside AWS.

    Raises:
        OptionError: the kind of manifest store is unknown, or the URL is incomplete.
    """
    if url is None:
        return None
    scheme, separator, rest = url.partition("://")
    opener = MANIFEST_STORES.get(scheme)
    if opener is None or not separator or not rest:
        raise OptionError(
            f"manifest_store is a URL of one of: {', '.join(f'{name}://...' for name in MANIFEST_STORES)}"
        )
    return opener(rest, protocol, options, dynamodb_endpoint)


def split_uri(uri: str) -> tuple[str, str | None]:
    """Return the URI of the table's store, and the URL of the manifest store if `uri` names one.

    Raises:
        OptionError: the parameters of an s3+ddb:// URI are not exactly one DynamoDB table.
    """
    if not uri.startswith(_DDB):
        return uri, None
    parts = urlsplit(uri)
    query = parse_qs(parts.query)
    if list(query) != [_TABLE_NAME] or len(query[_TABLE_NAME]) != 1:
        raise OptionError(f"{_DDB} needs exactly one parameter: {_DDB}bucket/path?{_TABLE_NAME}=name")
    return f"s3://{parts.netloc}{parts.path}", f"dynamodb://{query[_TABLE_NAME][0]}"
