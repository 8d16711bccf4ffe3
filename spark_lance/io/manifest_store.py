"""External manifest stores: a database that maps each version of a table to its manifest.

They serve stores that cannot create an object only if it is absent. All writers of a table must use the same
manifest store. The protocol that uses it is in `table/versions/publish.py`. The database holds rows

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
    """One row.

    Attributes:
        version: the table's version.
        path: of its manifest, inside the table's store; a staged one until the version is finished.
        size: of the manifest in bytes; None if the row does not say.
    """

    version: int
    path: str
    size: int | None = None


class ManifestStore(Protocol):
    """The interface of the database for commits. `root` is the table's root path in its store.

    Every method may raise StoreError. A failed `put_if_absent` may have had its effect.
    """

    def get(self, root: str, version: int) -> ManifestEntry | None:
        """Return the row of a version, as of now."""

    def get_latest(self, root: str) -> ManifestEntry | None:
        """Return the row of the highest version, as of now."""

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        """Add a row.

        Raises:
            FileExistsError: the version has one.
        """

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        """Replace the row of a version.

        Raises:
            FileNotFoundError: the version has none.
        """

    def delete(self, root: str, version: int | None = None) -> None:
        """Remove the row of a version, or of all versions of the table; those that are not there are fine."""
