"""The location of a table: a store, and the path of the table's root in it."""

from __future__ import annotations

from dataclasses import dataclass

from spark_lance.io.locations import join
from spark_lance.io.store import Store


@dataclass(frozen=True)
class TableRef:
    """The location of a table, independent of a version.

    Attributes:
        store: the store with its files.
        root: the path of its folder in the store.
    """

    store: Store
    root: str

    def path(self, *parts: str) -> str:
        """Return the path of a file or folder of the table."""
        return join(self.root, *parts)

    @property
    def uri(self) -> str:
        """The absolute URI of the table."""
        return self.store.uri(self.root)


class TableRefMixin:
    """Base of classes with a field `table`; adds shortcuts for its store and root."""

    table: TableRef

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self.table.store

    @property
    def root(self) -> str:
        """The path of the table's root in its store."""
        return self.table.root
