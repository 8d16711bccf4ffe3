"""What every part of the face stands on: one version of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

from spark_lance.io.store import Store
from spark_lance.table.indices.remap import IndexRemap
from spark_lance.table.manifest import Manifest
from spark_lance.table.versions.resolve import main_root

__all__ = ["Face", "SameFace"]

SameFace = TypeVar("SameFace", bound="Face")


@dataclass(frozen=True)
class Face:
    """One version of a table.

    Attributes:
        uri: the table as the user named it.
        store: where it is.
        root: its root path in the store.
        manifest: the version.
    """

    uri: str
    store: Store
    root: str
    manifest: Manifest

    @property
    def version(self) -> int:
        """The version that is read."""
        return self.manifest.version

    @property
    def branch(self) -> str | None:
        """The branch that is read, None for the main line."""
        return self.manifest.message.branch or None

    @property
    def main_root(self) -> str:
        """The root path of the main line, which holds tags and branches."""
        return main_root(self.root, self.manifest)

    @property
    def _index_remap(self) -> IndexRemap | None:
        """Who gives indices the new addresses of rows that a compaction moves; None: nobody here can."""
        return None

    def _at(self: SameFace, manifest: Manifest) -> SameFace:
        """Return the same table at another version."""
        return replace(self, manifest=manifest)
