"""External manifest stores: a database that maps each version of a table to its manifest.

They make commits safe on stores that cannot create an object only if it is absent. All writers of a table
must use the same manifest store. `table/versions/publish.py` implements the commit protocol. The database
holds rows

    (root of the table, version) -> (path of the manifest, its size)

and the first row for a version wins.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

# Called with the version to be committed; holds the lock while the context is open.
CommitLock = Callable[[int], AbstractContextManager[object]]


@dataclass(frozen=True)
class ManifestEntry:
    """One row of a manifest store.

    Attributes:
        version: the table's version.
        path: path of the manifest inside the table's store; a staged manifest until the commit is finished.
        size: size of the manifest in bytes; None if unknown.
    """

    version: int
    path: str
    size: int | None = None


class ManifestStore(Protocol):
    """The interface of a manifest database. `root` is the table's root path in its store.

    Every method may raise StoreError. A `put_if_absent` that raised StoreError may still have added the row.
    """

    def get(self, root: str, version: int) -> ManifestEntry | None:
        """Return the current row of a version; None if there is none."""

    def get_latest(self, root: str) -> ManifestEntry | None:
        """Return the current row of the highest version; None if the table has no rows."""

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        """Add a row.

        Raises:
            FileExistsError: the version already has a row.
        """

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        """Replace the row of a version.

        Raises:
            FileNotFoundError: the version has no row.
        """

    def delete(self, root: str, version: int | None = None) -> None:
        """Delete the row of a version, or all rows of the table. Missing rows are not an error."""
