"""Names of tables and namespaces, and the protocol of catalogs.

A name is a sequence of parts: ("db", "t") is table t of namespace db, () the root namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spark_lance.errors import OptionError

Name = tuple[str, ...]

# Joins the parts of a name in the object ids of Lance's namespaces.
SEPARATOR = "$"

# With a colon, a table's folder would look like a URI of another store. Readers drop control characters.
_FORBIDDEN = frozenset('/\\":\x7f') | {SEPARATOR} | frozenset(map(chr, range(32)))


@dataclass(frozen=True)
class TableEntry:
    """A table in a catalog.

    Attributes:
        name: name of the table.
        uri: path of the table, for `spark_lance.dataset`.
        properties: properties that the catalog stores, in addition to the table's own.
        storage_options: options that the catalog adds to the user's storage options.
        declared: whether the name is taken but the table has not been written.
    """

    name: Name
    uri: str
    properties: Mapping[str, str] = field(default_factory=dict)
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    declared: bool = False


class Catalog(Protocol):
    """The operations of a catalog of tables. Every method reports a missing namespace or table by name.

    Raises (all methods): `NamespaceNotFoundError`, `TableNotFoundError`, `NamespaceExistsError`,
    `TableExistsError`, `StoreError`, and `OptionError` for invalid names.
    """

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return the properties of a namespace."""

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Create a namespace. Its parent must exist."""

    def alter_namespace(self, name: Name, values: Mapping[str, str], removed: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace.

        Raises:
            NamespaceInUseError: the namespace has tables or namespaces.
        """

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""

    def table(self, name: Name) -> TableEntry:
        """Return the entry of a table."""

    def allocate_table_uri(self, name: Name) -> str:
        """Return the path to write a new table of this name to.

        Raises:
            TableExistsError, NamespaceExistsError: the name is taken.
        """

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Register a table that was written at `allocate_table_uri(name)`."""

    def rename(self, old: Name, new: Name) -> None:
        """Rename a table. If the catalog supports it, the files are not moved."""

    def drop(self, name: Name) -> None:
        """Drop a table and its files."""


def can_be_part(part: str) -> bool:
    """Return whether a part of a name is valid as a folder name below a catalog's root."""
    return bool(part) and part.strip() == part and part not in (".", "..") and not _FORBIDDEN & set(part)


def check_part(part: str) -> None:
    """Check that a part of a name is valid as a folder name below a catalog's root.

    Raises:
        OptionError: the part is empty, "." or "..", or has invalid characters.
    """
    if not can_be_part(part):
        raise OptionError(
            f"name {part!r} cannot be used: names are not empty, '.' or '..', do not begin or end with a "
            f"space, and have no '/', '\\', '\"', ':', '{SEPARATOR}' or control characters"
        )


def display_name(name: Name) -> str:
    """Return a name in SQL syntax: parts joined by dots, in backquotes where needed."""
    return ".".join(part if part.isidentifier() else "`" + part.replace("`", "``") + "`" for part in name)


def fold_case(text: str) -> str:
    """Return a text in which case is removed as Spark does when it compares names (`equalsIgnoreCase`)."""
    return "".join(_single(_single(char, str.upper), str.lower) for char in text)


def _single(char: str, convert: Callable[[str], str]) -> str:
    """Return a converted character; unchanged if the result has several characters, as in Java."""
    result = convert(char)
    return result if len(result) == 1 else char
