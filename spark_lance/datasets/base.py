"""The common part of the mixins of `LanceDataset`: one version of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from spark_lance.datasets.spelling import OneSpelling
from spark_lance.io.store import Store
from spark_lance.late import late
from spark_lance.table.manifest import Manifest
from spark_lance.table.reading.snapshot import PrunerFactory, Snapshot

if TYPE_CHECKING:
    from spark_lance.table.indices.remap import IndexRemap
    from spark_lance.table.versions.resolve import main_root
else:
    main_root = late("spark_lance.table.versions.resolve", "main_root")

__all__ = ["DatasetBase", "SameDataset"]

SameDataset = TypeVar("SameDataset", bound="DatasetBase")


@dataclass(frozen=True, eq=False)
class DatasetBase(OneSpelling):
    """One version of a table. Two are equal if they name the same table and their manifests say the same.

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

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DatasetBase) or type(other) is not type(self):
            return NotImplemented
        place = (self.uri, self.root, self.store)
        if place != (other.uri, other.root, other.store):
            return False
        return self.manifest is other.manifest or self.manifest.message == other.manifest.message

    def __hash__(self) -> int:
        return hash((self.uri, self.version))

    def __getstate__(self) -> dict[str, object]:
        # Computed values and open files stay behind.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

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

    @cached_property
    def snapshot(self) -> Snapshot:
        """The version as a value, for the functions that read and change rows."""
        return Snapshot(self.store, self.root, self.manifest, self._pruner_factory)

    @property
    def _pruner_factory(self) -> PrunerFactory | None:
        """Makes the pruner of scans; None: scans use no index."""
        return None

    @property
    def _index_remap(self) -> IndexRemap | None:
        """Gives indices the new addresses of rows that a compaction moves; None: indices stay as they are."""
        return None

    def _at(self: SameDataset, manifest: Manifest) -> SameDataset:
        """Return the same table at another version."""
        return replace(self, manifest=manifest)
