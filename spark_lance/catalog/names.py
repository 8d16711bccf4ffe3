"""Names of tables and namespaces, and what every catalog answers.

A name is a sequence of parts: ("db", "t") is table t of namespace db, () the root namespace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spark_lance.errors import OptionError

Name = tuple[str, ...]

# Joins the parts of a name in the object ids of Lance's namespaces.
SEPARATOR = "$"

# A colon would make the folder of a table look like one of another store; readers lose control characters.
_FORBIDDEN = frozenset('/\\":\x7f') | {SEPARATOR} | frozenset(map(chr, range(32)))


@dataclass(frozen=True)
class TableEntry:
    """Where a table is.

    Attributes:
        name: its name.
        uri: its path, for `spark_lance.dataset`.
        properties: what the catalog keeps about it, beside what the table itself says.
        storage_options: what the catalog adds to the user's storage options to reach it.
        declared: the name is taken, but nothing was written yet.
    """

    name: Name
    uri: str
    properties: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    declared: bool = False


class Catalog(Protocol):
    """The operations of a catalog of tables. Every method reports a missing namespace or table by name.

    Raises (all methods): `NamespaceNotFoundError`, `TableNotFoundError`, `NamespaceExistsError`,
    `TableExistsError`, `StoreError`, and `OptionError` for names that cannot be.
    """

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return what is kept about a namespace."""

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Make a namespace in one that exists."""

    def alter_namespace(self, name: Name, values: Mapping[str, str], removed: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace.

        Raises:
            NamespaceInUseError: it has tables or namespaces.
        """

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""

    def table(self, name: Name) -> TableEntry:
        """Return where a table is."""

    def place(self, name: Name) -> str:
        """Return the path at which a new table of this name is to be written.

        Raises:
            TableExistsError: there is a table or a namespace of the name.
        """

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Give a table that was written at `place(name)` its name."""

    def rename(self, old: Name, new: Name) -> None:
        """Give a table another name; its files stay where they are where the catalog can do that."""

    def drop(self, name: Name) -> None:
        """Remove a table, its files included."""


def can_be_part(part: str) -> bool:
    """Whether a part of a name can be a folder of its own below a catalog's root."""
    return bool(part) and part.strip() == part and part not in (".", "..") and not _FORBIDDEN & set(part)


def check_part(part: str) -> None:
    """Refuse a part of a name that cannot be a folder of its own below a catalog's root.

    Raises:
        OptionError: it is empty, leads elsewhere, or holds characters that names may not have.
    """
    if not can_be_part(part):
        raise OptionError(
            f"name {part!r} cannot be used: names are not empty, '.' or '..', do not begin or end with a "
            f"space, and have no '/', '\\', '\"', ':', '{SEPARATOR}' or control characters"
        )


def display_name(name: Name) -> str:
    """Return a name as SQL writes it: parts joined by dots, in backquotes where that is needed."""
    return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in name)
