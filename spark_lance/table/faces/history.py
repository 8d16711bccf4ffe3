"""The versions of a table: which there are, their names, going to one, and going back to one."""

from __future__ import annotations

from typing import Any

from spark_lance.proto import transaction_pb2
from spark_lance.table.commit import commit_operation
from spark_lance.table.faces.base import Face, SameFace
from spark_lance.table.manifest import read_manifest
from spark_lance.table.refs import latest_version, list_versions, load_version
from spark_lance.table.tags import Tags, resolve_version

__all__ = ["History"]


class History(Face):
    """The versions around one version."""

    @property
    def latest_version(self) -> int:
        """The newest version in the store."""
        return latest_version(self.store, self.root).version

    def checkout_version(self: SameFace, version: int | str) -> SameFace:
        """Return the table at another version, given by number or by tag.

        Raises:
            VersionNotFoundError: there is no such version or tag.
        """
        number = resolve_version(self.store, self.root, version)
        return self._at(load_version(self.store, self.root, number))

    @property
    def tags(self) -> Tags:
        """The names of versions: list, create, update and delete them."""
        return Tags(self.store, self.root, self.version)

    def versions(self) -> list[dict[str, Any]]:
        """Return the versions that exist, oldest first: dicts of `version`, `timestamp` (UTC), `metadata`."""
        found = []
        for file in list_versions(self.store, self.root):
            manifest = read_manifest(self.store, file.path, file.naming)
            row = {"version": file.version, "timestamp": manifest.timestamp}
            found.append({**row, "metadata": dict(manifest.table_metadata)})
        return found

    def restore(self: SameFace) -> SameFace:
        """Make this version's content the newest version, and return that.

        Schema, rows, indices, config and metadata come back as they were here; files that a clean-up has
        deleted do not.

        Raises:
            CommitError: the commit failed; see its subclasses.
            UnsupportedFormatError: the table uses a feature that is not written here.
        """
        operation = transaction_pb2.Transaction.Restore(version=self.version)
        latest = latest_version(self.store, self.root).version
        return self._at(commit_operation(self.store, self.root, operation, read_version=latest))
