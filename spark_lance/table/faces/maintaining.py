"""Keeping a table small and fast."""

from __future__ import annotations

from typing import Any

from spark_lance.table.faces.base import Face, SameFace
from spark_lance.table.indices import IndexDescription, describe_indices, drop_index, list_indices

__all__ = ["Maintaining"]


class Maintaining(Face):
    """Indices, compaction and clean-up."""

    def describe_indices(self) -> list[IndexDescription]:
        """Return the indices of this version, by name, each with its segments.

        Raises:
            FormatError: index entries are damaged.
        """
        return describe_indices(self.store, self.root, self.manifest)

    def list_indices(self) -> list[dict[str, Any]]:
        """Return one dict per index segment: name, type, uuid, fields, version, fragment_ids, base_id.

        Raises:
            FormatError: index entries are damaged.
        """
        return list_indices(self.store, self.root, self.manifest)

    def drop_index(self: SameFace, name: str) -> SameFace:
        """Take an index out of the table and return the version without it; older versions keep it.

        Raises:
            IndexNotFoundError: there is no index of this name.
            CommitError: another writer was in the way; see its subclasses.
        """
        return self._at(drop_index(self.store, self.root, self.manifest, name))
