"""Catalogs whose names are matched without regard to case.

`CaseInsensitiveCatalog` answers for another catalog. It replaces each name by its stored spelling:

- An exact spelling always has precedence, so two names that differ only in case stay usable.
- Another spelling is looked for in the list of the namespace. If two names match, the error names both.
- A new name that differs from a stored one only in case is refused. If two programs create two spellings at
  the same moment, a directory keeps the one that its list had first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.names import Catalog, Name, TableEntry, display_name, fold_case
from spark_lance.catalog.views import Views
from spark_lance.errors import (
    NamespaceExistsError,
    NamespaceNotFoundError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFormatError,
    ViewExistsError,
)

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class CaseInsensitiveCatalog:
    """A catalog that ignores the case of names; see `names.Catalog` for its methods.

    Attributes:
        catalog: the catalog, which matches names exactly.

    Raises (all methods): as `names.Catalog`; `OptionError` also if a name matches two that differ only in
        case, and none exactly.
    """

    catalog: Catalog

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""
        return self.catalog.namespaces(self._namespace(parent))

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return the properties of a namespace."""
        return self.catalog.namespace_properties(self._namespace(name))

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Make a namespace in one that exists."""
        self.catalog.create_namespace(self._new(name, NamespaceExistsError), properties)

    def alter_namespace(self, name: Name, values: Mapping[str, str], removed: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""
        self.catalog.alter_namespace(self._namespace(name), values, removed)

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace."""
        self.catalog.drop_namespace(self._namespace(name))

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""
        return self.catalog.tables(self._namespace(namespace))

    def table(self, name: Name) -> TableEntry:
        """Return where a table is, with its stored name."""
        return self._matched(name, self.catalog.table)

    def allocate_table_uri(self, name: Name) -> str:
        """Return the path at which a new table of this name is to be written; see `names.Catalog`."""
        return self.catalog.allocate_table_uri(self._new(name, TableExistsError))

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Give a table that was written at `allocate_table_uri(name)` its name."""
        self.catalog.add(self._new(name, TableExistsError, uri=uri), uri, properties)

    def rename(self, old: Name, new: Name) -> None:
        """Give a table another name, which may differ from the old one only in case."""
        spelling = self.table(old).name
        self.catalog.rename(spelling, self._new(new, TableExistsError, replaced=spelling))

    def drop(self, name: Name) -> None:
        """Remove a table with its files."""
        self._matched(name, self.catalog.drop)

    def _matched(self, name: Name, call: Callable[[Name], _Result]) -> _Result:
        """Call a function with a name, and again with its stored spelling if the name does not exist."""
        try:
            return call(name)
        except (TableNotFoundError, NamespaceNotFoundError):
            spelling = self._spelling(name)
            if spelling == name:
                raise
            return call(spelling)

    def _namespace(self, name: Name) -> Name:
        """Return the stored spelling of a namespace; parts that do not exist stay as they are."""
        if not name:
            return name
        try:
            self.catalog.namespace_properties(name)
        except (NamespaceNotFoundError, UnsupportedFormatError):
            spelling: Name = ()
            for end, part in enumerate(name):
                match = _match((*spelling, part), self.catalog.namespaces(spelling))
                if match is None:
                    return (*spelling, *name[end:])
                spelling = match
            return spelling
        return name

    def _spelling(self, name: Name) -> Name:
        """Return the stored spelling of a table or view; the name itself if it does not exist."""
        if not name:
            return name
        namespace = self._namespace(name[:-1])
        return _match((*namespace, name[-1]), self._relations(namespace)) or name

    def _relations(self, namespace: Name) -> list[Name]:
        """Return the tables and views directly in a namespace; none if the namespace does not exist."""
        try:
            return [*self.catalog.tables(namespace), *self._views(namespace)]
        except NamespaceNotFoundError:
            return []

    def _views(self, namespace: Name) -> list[Name]:  # noqa: ARG002 (catalogs of views have some)
        return []

    def _new(
        self,
        name: Name,
        error: type[TableExistsError | ViewExistsError | NamespaceExistsError],
        *,
        replaced: Name | None = None,
        uri: str | None = None,
    ) -> Name:
        """Return the name for something new, in the stored spelling of its namespace.

        Args:
            name: the name.
            error: the error if it exists.
            replaced: the name that the new one replaces.
            uri: the path of a table that gets the name.

        Raises:
            TableExistsError, ViewExistsError, NamespaceExistsError: a name that differs from it only in case
                exists.
        """
        if not name:
            return name
        namespace = self._namespace(name[:-1])
        new = (*namespace, name[-1])
        tables = self.catalog.tables(namespace)
        names = [*tables, *self._views(namespace), *self.catalog.namespaces(namespace)]
        folded = fold_case(name[-1])
        others = [other for other in names if other != replaced and fold_case(other[-1]) == folded]
        if not others or new in others:
            return new
        if error is TableExistsError and len(others) == 1 and others[0] in tables:
            entry = self.catalog.table(others[0])
            if entry.declared or entry.uri == uri:
                return others[0]  # the name is reserved for this table
        failure = error(
            f"{' and '.join(map(display_name, others))} exists, and {display_name(new)} differs from it only "
            "in case: use the existing name, or choose another one"
        )
        failure.existing = others[0]
        raise failure


@dataclass(frozen=True)
class CaseInsensitiveDirectory(CaseInsensitiveCatalog):
    """A directory namespace that ignores the case of names of tables, views and namespaces."""

    catalog: DirectoryCatalog

    def __post_init__(self) -> None:
        object.__setattr__(self, "catalog", replace(self.catalog, ignores_case=True))

    def register(self, name: Name, location: str, properties: Mapping[str, str]) -> str:
        """Give a name to a location below the root; see `DirectoryCatalog.register`."""
        return self.catalog.register(self._new(name, TableExistsError), location, properties)

    @property
    def views(self) -> Views:
        """The views of all namespaces."""
        views = self.catalog.views
        return _CaseInsensitiveViews(views.store, views.root, self._view_spelling)

    def list_views(self, namespace: Name = ()) -> list[Name]:
        """Return the views directly in a namespace, sorted."""
        return self.catalog.list_views(self._namespace(namespace))

    def create_view(self, name: Name, view: Mapping[str, Any]) -> None:
        """Create a view; the errors are those of `DirectoryCatalog.create_view`."""
        self.catalog.create_view(self._new(name, ViewExistsError), view)

    def rename_view(self, old: Name, new: Name) -> None:
        """Give a view another name, which may differ from the old one only in case."""
        spelling = self._view_spelling(old)
        self.catalog.rename_view(spelling, self._new(new, ViewExistsError, replaced=spelling))

    def _views(self, namespace: Name) -> list[Name]:
        return self.catalog.list_views(namespace)

    def _view_spelling(self, name: Name) -> Name:
        return name if self.catalog.views.exists(name) else self._spelling(name)


@dataclass(frozen=True)
class _CaseInsensitiveViews(Views):
    """The views of a directory namespace by any spelling of their names.

    Attributes:
        spelling_of: returns the stored spelling of a name.
    """

    spelling_of: Callable[[Name], Name] = field(repr=False)

    def exists(self, name: Name) -> bool:
        """Return whether a view of a name exists."""
        return super().exists(self.spelling_of(name))

    def load(self, name: Name) -> dict[str, Any]:
        """Return the members of a view; see `Views.load`."""
        return super().load(self.spelling_of(name))

    def replace(self, name: Name, view: Mapping[str, Any]) -> None:
        """Replace a view; see `Views.replace`."""
        super().replace(self.spelling_of(name), view)

    def drop(self, name: Name) -> bool:
        """Remove a view; False if there is none."""
        return super().drop(self.spelling_of(name))


def _match(name: Name, names: Sequence[Name]) -> Name | None:
    """Return the stored name that equals a name exactly, or else without regard to case.

    Raises:
        OptionError: two names differ from it only in case.
    """
    if name in names:
        return name
    folded = fold_case(name[-1])
    matches = [other for other in names if fold_case(other[-1]) == folded]
    if len(matches) > 1:
        raise OptionError(
            f"{display_name(name)} matches {' and '.join(map(display_name, matches))}, which differ only in "
            "case: write one of these names exactly as it is here"
        )
    return matches[0] if matches else None
