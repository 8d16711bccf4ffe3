"""Manifest entries in a SQLite file: for several processes of one host, or tests.

    CREATE TABLE manifests (root TEXT, version INTEGER, path TEXT, size INTEGER, PRIMARY KEY (root, version))

`root` is the table's root with the protocol in front, so one file serves tables of several stores. SQLite's
locks do not work on network file systems: use DynamoDB if writers run on several hosts.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_lance.errors import StoreError
from spark_lance.io.manifest_store import ManifestEntry

__all__ = ["SqliteManifestStore"]

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
    """Manifest entries of tables of one protocol, in a SQLite file that is made when first needed.

    Attributes:
        file: absolute path.
        scheme: protocol of the tables.
    """

    file: str
    scheme: str

    def get(self, root: str, version: int) -> ManifestEntry | None:
        """Return the row of a version."""
        return self._one(f"{_COLUMNS} AND version = ?", root, version)

    def get_latest(self, root: str) -> ManifestEntry | None:
        """Return the row of the highest version."""
        return self._one(f"{_COLUMNS} ORDER BY version DESC LIMIT 1", root)

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        """Add a row.

        Raises:
            FileExistsError: the version has one.
        """
        try:
            self._change(
                "INSERT INTO manifests (root, version, path, size) VALUES (?, ?, ?, ?)",
                self._key(root), entry.version, entry.path, entry.size,
            )  # fmt: skip
        except sqlite3.IntegrityError as error:
            raise FileExistsError(f"version {entry.version} of {root} has a manifest") from error

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        """Replace the row of a version.

        Raises:
            FileNotFoundError: the version has none.
        """
        changed = self._change(
            "UPDATE manifests SET path = ?, size = ? WHERE root = ? AND version = ?",
            entry.path, entry.size, self._key(root), entry.version,
        )  # fmt: skip
        if not changed:
            raise FileNotFoundError(f"version {entry.version} of {root} has no manifest entry")

    def delete(self, root: str, version: int | None = None) -> None:
        """Remove the row of a version, or of all versions of the table."""
        if version is None:
            self._change("DELETE FROM manifests WHERE root = ?", self._key(root))
        else:
            self._change("DELETE FROM manifests WHERE root = ? AND version = ?", self._key(root), version)

    def _key(self, root: str) -> str:
        return f"{self.scheme}://{root}"

    def _one(self, query: str, root: str, *values: int) -> ManifestEntry | None:
        with self._open() as connection:
            row = connection.execute(query, (self._key(root), *values)).fetchone()
        return ManifestEntry(*row) if row else None

    def _change(self, statement: str, *values: Any) -> int:
        with self._open() as connection, connection:
            return connection.execute(statement, values).rowcount

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file for one statement: a connection belongs to one thread and outlives no fork."""
        try:
            Path(self.file).parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.file, timeout=_WAIT_SECONDS)) as connection:
                connection.execute(_SCHEMA)
                yield connection
        except sqlite3.IntegrityError:
            raise
        except sqlite3.Error as error:
            raise StoreError(f"the manifest store sqlite://{self.file} failed: {error}") from error
