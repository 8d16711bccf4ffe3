"""Lance's directory namespace: a folder of tables, with nested namespaces.

    <root>/<table>.lance                    tables of the root namespace
    <root>/<8 hex digits>_<object id>       tables of nested namespaces
    <root>/__manifest                       a Lance table that lists both, and the namespaces
    <root>/__views/<object id>.json         views; see `spark_lance.catalog.views`

Columns of `__manifest`:

    object_id       the parts of the name joined by "$"; the primary key
    object_type     "table" or "namespace"
    location        path of a table, relative to the root, not percent-encoded
    metadata        a JSON object of strings: the properties
    base_objects    list of strings, unused here

Verified with the directory namespace of pylance 14, which reads and writes the same folders.

A folder `<table>.lance` that is not in the list is also a table of the root namespace, because older writers
have no list. A folder with `.lance-reserved` and without versions is a table that is only declared.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_lance.catalog.names import (
    SEPARATOR,
    Name,
    TableEntry,
    can_be_part,
    check_part,
    display_name,
    fold_case,
)
from spark_lance.catalog.views import VIEWS_DIR, Views
from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import (
    FormatError,
    MergeError,
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    StoreAccessError,
    StoreError,
    TableExistsError,
    TableNotFoundError,
    ViewExistsError,
)
from spark_lance.io.cache import CACHE, CacheSection
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from spark_lance.io.stored_json import parse_object
from spark_lance.io.stored_names import check_path
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.paths import VERSIONS_DIR
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.drop import drop_table, dropping_folders, is_hidden_folder

logger = logging.getLogger(__name__)

_LIST = "__manifest"
_SUFFIX = ".lance"
_DECLARED = ".lance-reserved"
_TABLE, _NAMESPACE = "table", "namespace"
_KEY = {"lance-schema:unenforced-primary-key:position": "0"}
_SCHEMA = pa.schema(
    [
        pa.field("object_id", pa.string(), nullable=False, metadata=_KEY),
        pa.field("object_type", pa.string(), nullable=False),
        pa.field("location", pa.string()),
        pa.field("metadata", pa.string()),
        pa.field("base_objects", pa.list_(pa.field("object_id", pa.string()))),
    ]
)


@dataclass(frozen=True)
class _Entry:
    """A row of `__manifest`."""

    name: Name
    kind: str
    location: str | None
    properties: Mapping[str, str]


# Entries by the id of the list's manifest, with the manifest, so that its id is not reused.
_LISTS: CacheSection[tuple[Manifest, Mapping[Name, _Entry]]] = CacheSection(
    "lists of catalogs", CACHE, counted=False
)
_ENTRY_BYTES = 1000


@dataclass(frozen=True)
class DirectoryCatalog:
    """The tables below one folder of a store; see `names.Catalog` for the methods.

    Attributes:
        root: the folder, a path or an fsspec URI. The first table creates it.
        storage_options: storage options of the root.
        ignores_case: whether a new name that differs from another one only in case is removed again, because
            another program created the other one at the same moment.
    """

    root: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    ignores_case: bool = False

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""
        entries = self._entries()
        self._check_namespace(parent, entries)
        return sorted(name for name, entry in entries.items() if _is_in(name, parent, entry, _NAMESPACE))

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return the properties of a namespace. The root namespace only has its location."""
        if not name:
            return {"location": self.root}
        entries = self._entries()
        self._check_namespace(name, entries)
        return dict(entries[name].properties)

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Create a namespace. Its parent must exist.

        Raises:
            NamespaceExistsError: the namespace exists.
            TableExistsError: a table has this name.
            NamespaceNotFoundError: the parent namespace does not exist.
        """
        _check_new(name)
        self._check_root()
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        self._check_free(name, entries)
        self._insert(name, _NAMESPACE, None, properties)

    def alter_namespace(self, name: Name, values: Mapping[str, str], removed: Sequence[str]) -> None:
        """Set and remove properties of a namespace."""
        properties = self.namespace_properties(name)
        if not name:
            raise OptionError("the root namespace of a catalog has no properties that could be set")
        merged = {key: value for key, value in properties.items() if key not in removed} | dict(values)
        text = json.dumps(merged).replace("'", "''")
        self._list().update({"metadata": f"'{text}'"}, where=_name_condition(name))

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace.

        Raises:
            NamespaceInUseError: the namespace has tables or namespaces.
        """
        entries = self._entries()
        self._check_namespace(name, entries)
        if not name:
            raise OptionError("the root namespace of a catalog cannot be dropped")
        names = [*entries, *self.views.all_names()]
        children = [other for other in names if len(other) > len(name) and other[: len(name)] == name]
        if children:
            raise NamespaceInUseError(
                f"namespace {display_name(name)} is not empty: drop its content first, such as "
                f"{display_name(children[0])}"
            )
        self._list().delete(_name_condition(name))

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""
        entries = self._entries()
        self._check_namespace(namespace, entries)
        names = {name for name, entry in entries.items() if _is_in(name, namespace, entry, _TABLE)}
        if not namespace:
            locations = {entry.location for entry in entries.values()}
            names |= {(folder[: -len(_SUFFIX)],) for folder in self._folders() if folder not in locations}
        return sorted(names)

    def table(self, name: Name) -> TableEntry:
        """Return the entry of a table."""
        entries = self._entries()
        entry = entries.get(name)
        if entry is not None and entry.kind == _TABLE:
            uri = self._path_inside(self._checked_location(entry))
            return TableEntry(name, uri, entry.properties, declared=self._is_declared(uri))
        folder = name[0] + _SUFFIX if len(name) == 1 and can_be_part(name[0]) else None
        if folder and not self._is_listed(folder, entries) and folder not in self._dropping():
            uri = self._path_inside(folder)
            if self._has_versions(uri):
                return TableEntry(name, uri)
            if self._is_declared(uri):
                return TableEntry(name, uri, declared=True)
        raise TableNotFoundError(f"there is no table {display_name(name)} in {self.root}")

    def allocate_table_uri(self, name: Name) -> str:
        """Return the path to write a new table of this name to; see `names.Catalog`."""
        _check_new(name)
        self._check_root()
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        existing = entries.get(name)
        if existing is not None and existing.kind == _TABLE and existing.location is not None:
            uri = self._path_inside(self._checked_location(existing))
            if self._is_declared(uri):
                return uri
        self._check_free(name, entries)
        # A renamed table keeps its folder, so check whether the list has the folder.
        # A folder whose table is being dropped must not be reused before the drop is complete.
        folder = name[0] + _SUFFIX if len(name) == 1 else None
        if folder and not self._is_listed(folder, entries) and folder not in self._dropping():
            uri = self._path_inside(folder)
            if self._has_versions(uri):
                raise TableExistsError(f"there is a table {display_name(name)} in {self.root} already")
            return uri
        return self._path_inside(f"{uuid.uuid4().hex[:8]}_{_object_id(name)}")

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Register a table that was written at `allocate_table_uri(name)`."""
        location = self._location(uri)
        existing = self._entries().get(name)
        if existing is not None and existing.kind == _TABLE and existing.location == location:
            return
        self._insert(name, _TABLE, location, properties)

    def declare(self, name: Name, properties: Mapping[str, str]) -> str:
        """Reserve a name for a table that will be written later; return the path to write it to.

        Raises:
            TableExistsError: the name is taken, possibly by a declared table.
        """
        uri = self.allocate_table_uri(name)
        if name in (entries := self._entries()):
            self._check_free(name, entries)
        store, path = self._open(join(uri, _DECLARED))
        store.put(path, b"")
        self._insert(name, _TABLE, self._location(uri), properties)
        return uri

    def register(self, name: Name, location: str, properties: Mapping[str, str]) -> str:
        """Register a location below the root under a name, whether it has a table or not; return its path.

        Raises:
            OptionError: the location is outside the root, or overlaps with another table or the catalog's own
                files, which a drop of the table would delete.
        """
        _check_new(name)
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        self._check_free(name, entries)
        uri = self._path_inside(location)
        self._check_unused(location, entries)
        self._insert(name, _TABLE, location, properties)
        return uri

    def forget(self, name: Name) -> TableEntry:
        """Unregister a table without deleting its files; return its entry.

        Raises:
            OptionError: the table is not in the list, so its folder determines its name.
        """
        entry = self.table(name)
        if name not in self._entries():
            raise OptionError(
                f"table {display_name(name)} of {self.root} has its name by its folder, not by the "
                "list of tables: "
                "it cannot be forgotten; rename it first, or drop it"
            )
        self._list().delete(_name_condition(name))
        return entry

    def rename(self, old: Name, new: Name) -> None:
        """Rename a table. Its files are not moved.

        The new name is added before the old name is removed, so a failure in between leaves two names, never
        none.
        """
        _check_new(new)
        entry = self.table(old)
        entries = self._entries()
        self._check_namespace(new[:-1], entries)
        self._check_free(new, entries)
        self._insert(new, _TABLE, self._location(entry.uri), entry.properties, replaced=old)
        if old in entries:
            self._list().delete(_name_condition(old))

    def drop(self, name: Name) -> None:
        """Drop a table. Its files are deleted unless another name refers to them."""
        entry = self.table(name)
        entries = self._entries()
        location = self._location(entry.uri)
        row = f"{_name_condition(name)} AND location = {_quote(location)}"

        def forget() -> None:
            if name in entries:
                self._list().delete(row)

        if any(other.location == location for key, other in entries.items() if key != name):
            forget()
        else:
            self._check_droppable(location, entries)
            drop_table(TableRef(*self._open(entry.uri)), forget)

    @property
    def views(self) -> Views:
        """The views of all namespaces."""
        return Views(*self._open(self.root))

    def list_views(self, namespace: Name = ()) -> list[Name]:
        """Return the views directly in a namespace, sorted."""
        self._check_namespace(namespace, self._entries())
        return self.views.names(namespace)

    def create_view(self, name: Name, view: Mapping[str, Any]) -> None:
        """Create a view.

        Raises:
            ViewExistsError: a view or a table has the name.
            NamespaceExistsError: a namespace has the name.
        """
        self._check_free_for_view(name)
        self.views.create(name, view, lambda: self._is_taken(name))
        self._check_view_spelling(name)

    def rename_view(self, old: Name, new: Name) -> None:
        """Rename a view. A failure in between leaves both names. See `create_view` for errors.

        Raises:
            ViewNotFoundError: no view has the old name.
        """
        self._check_free_for_view(new)
        self.views.create(new, self.views.load(old), lambda: self._is_taken(new))
        self._check_view_spelling(new, replaced=old)
        self.views.drop(old)

    def _check_view_spelling(self, name: Name, replaced: Name | None = None) -> None:
        """Remove a new view whose name differs from another one only in case.

        Raises:
            ViewExistsError: the other name exists.
        """
        other = self._other_spelling(name, [*self._entries(), *self.views.all_names()], replaced)
        if other is not None:
            self.views.drop(name)
            raise _spelled_otherwise(ViewExistsError, name, other)

    def _other_spelling(self, name: Name, names: Iterable[Name], replaced: Name | None = None) -> Name | None:
        """Return a name that differs from another one only in case; None if this catalog compares case."""
        if not self.ignores_case:
            return None
        folded = fold_case(name[-1])
        return next(
            (
                other
                for other in names
                if other not in (name, replaced)
                and other[:-1] == name[:-1]
                and fold_case(other[-1]) == folded
            ),
            None,
        )

    def _check_free_for_view(self, name: Name) -> None:
        _check_new(name)
        self._check_root()
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        entry = entries.get(name)
        if entry is not None and entry.kind == _NAMESPACE:
            raise NamespaceExistsError(f"there is a namespace {display_name(name)} in {self.root} already")
        if entry is not None or self._is_taken(name):
            raise ViewExistsError(
                f"table {display_name(name)} exists in {self.root}: choose another name for the view"
            )

    def _is_taken(self, name: Name) -> bool:
        """Return whether a table or namespace has a name."""
        try:
            return name in self._entries() or bool(self.table(name))
        except TableNotFoundError:
            return False

    def _open(self, uri: str) -> tuple[Store, str]:
        return open_store(uri, self.storage_options)

    def _checked_location(self, entry: _Entry) -> str:
        """Return the checked location of a table in the list.

        Raises:
            FormatError: the location is outside the root.
        """
        what = f"the location of table {display_name(entry.name)}"
        return check_path(entry.location or "", what, join(self.root, _LIST))

    def _path_inside(self, location: str) -> str:
        """Return the path of a location below the root.

        Raises:
            OptionError: the location is outside the root, possibly by a symbolic link.
        """
        parts = location.split("/")
        if not location or location.startswith("/") or ":" in parts[0] or {"", ".", ".."} & set(parts):
            raise OptionError(f"location {location!r} is not inside of the catalog's root {self.root}")
        uri = join(self.root, *parts)
        store, path = self._open(uri)
        if store.is_local:
            _, root = self._open(self.root)
            if os.path.commonpath([os.path.realpath(root), os.path.realpath(path)]) != os.path.realpath(root):
                raise OptionError(
                    f"location {location!r} leads out of the catalog's root {self.root} by a link"
                )
        return uri

    def _check_unused(self, location: str, entries: Mapping[Name, _Entry]) -> None:
        """Check that a location to register does not overlap with another table or the catalog's own files.

        Raises:
            OptionError: the location overlaps, so a drop of the table would delete the other.
        """
        self._check_own(location)
        locations = {entry.location: display_name(key) for key, entry in entries.items() if entry.location}
        folders = {folder: display_name((folder[: -len(_SUFFIX)],)) for folder in self._folders()}
        place = self._resolved_path(location)
        for other, name in {**folders, **locations}.items():
            if _overlap(place, self._resolved_path(other)):
                raise OptionError(
                    f"location {location!r} of the catalog {self.root} overlaps with table {name} at "
                    f"{other!r}: register a folder of its own, or rename the table"
                )

    def _check_own(self, location: str) -> None:
        """Check that a location is not one of the catalog's own files or inside a table.

        Raises:
            OptionError: it is, so a drop of the table would delete something else.
        """
        parts = location.split("/")
        if parts[0] in (_LIST, VIEWS_DIR) or is_hidden_folder(parts[0]):
            raise OptionError(
                f"location {location!r} belongs to the catalog {self.root} itself: a table needs a folder of "
                "its own"
            )
        store, root = self._open(self.root)
        for end in range(1, len(parts)):
            if store.list(join(root, *parts[:end], VERSIONS_DIR)):
                raise OptionError(
                    f"location {location!r} is inside of the table at {'/'.join(parts[:end])!r}: a table "
                    "needs a folder of its own"
                )

    def _check_droppable(self, location: str, entries: Mapping[Name, _Entry]) -> None:
        """Check that a location to delete has only one table. Other programs also write the list.

        Raises:
            OptionError: the location overlaps with another table or the catalog's own files.
        """
        self._check_own(location)
        for name, entry in entries.items():
            if entry.location and entry.location != location and _overlap(entry.location, location):
                raise OptionError(
                    f"location {location!r} overlaps with table {display_name(name)} at "
                    f"{entry.location!r}, so its "
                    "files are not deleted: take the name away and leave the files (deregister_table)"
                )

    def _resolved_path(self, location: str) -> str:
        """Return the path of a location with symbolic links resolved, for local stores."""
        store, path = self._open(join(self.root, location))
        if not store.is_local:
            return path
        return os.path.realpath(path)

    def _location(self, uri: str) -> str:
        head = self.root.rstrip("/") + "/"
        if not uri.startswith(head):
            raise OptionError(
                f"{uri} is not inside of the catalog's root {self.root}: a name cannot lead there"
            )
        return uri[len(head) :]

    def _is_listed(self, location: str, entries: Mapping[Name, _Entry]) -> bool:
        return any(entry.location == location for entry in entries.values())

    def _has_versions(self, uri: str) -> bool:
        store, path = self._open(uri)
        return bool(store.list(join(path, "_versions")))

    def _is_declared(self, uri: str) -> bool:
        store, path = self._open(uri)
        return _DECLARED in store.list(path) and not store.list(join(path, "_versions"))

    def _dropping(self) -> Collection[str]:
        """Return the names of folders in the root whose tables are being dropped."""
        return dropping_folders(*self._open(self.root))

    def _folders(self) -> list[str]:
        """Return the names of table folders in the root."""
        store, root = self._open(self.root)
        folders = [
            name for name in store.list_directories(root) if name.endswith(_SUFFIX) and name != _SUFFIX
        ]
        dropping = dropping_folders(store, root) if folders else ()
        return [name for name in folders if name not in dropping]

    def _list(self) -> LanceDataset:
        return dataset(join(self.root, _LIST), storage_options=self.storage_options)

    def _entries(self) -> Mapping[Name, _Entry]:
        """Return the entries of the list; empty if the list does not exist yet."""
        try:
            newest = self._list()
        except TableNotFoundError:
            return {}
        # While the process has a manifest in memory, loading the same version returns the same object.
        _, entries = _LISTS.get(
            id(newest.manifest),
            lambda: (newest.manifest, _read_entries(newest)),
            lambda cached: cached[0].message.ByteSize() + _ENTRY_BYTES * len(cached[1]),
        )
        return entries

    def _insert(
        self,
        name: Name,
        kind: str,
        location: str | None,
        properties: Mapping[str, str],
        *,
        replaced: Name | None = None,
    ) -> None:
        """Add a row to the list.

        Args:
            name, kind, location, properties: the row.
            replaced: the old name of a renamed table.

        Raises:
            TableExistsError, NamespaceExistsError: the name is taken; another writer was faster.
        """
        added = self._add_row(name, kind, location, properties)
        if self.ignores_case:
            # Rows of this version were added before this row, so of two spellings the first one stays.
            names = [*_read_entries(added), *self.views.all_names()]
            other = self._other_spelling(name, names, replaced)
            if other is not None:
                self._list().delete(_name_condition(name))
                error = TableExistsError if kind == _TABLE else NamespaceExistsError
                raise _spelled_otherwise(error, name, other)
        # The creator of a view checks for a table after writing the view. This method checks for a view
        # after writing the row. So at least one of them detects the other.
        if self.views.exists(name):
            self._list().delete(_name_condition(name))
            raise TableExistsError(
                f"view {display_name(name)} exists in {self.root}: drop it first, or choose another name"
            )

    def _add_row(
        self, name: Name, kind: str, location: str | None, properties: Mapping[str, str]
    ) -> LanceDataset:
        """Add a row to the list, and return the version of the list with the row."""
        metadata = json.dumps(dict(properties)) if properties else None
        row = {"object_id": _object_id(name), "object_type": kind, "location": location, "metadata": metadata}
        table = pa.Table.from_pylist([{**row, "base_objects": None}], schema=_SCHEMA)
        uri = join(self.root, _LIST)
        for _ in range(2):
            try:
                merge = self._list().merge_insert("object_id").when_matched_fail()
                return merge.when_not_matched_insert_all().execute(table).dataset
            except TableNotFoundError:
                try:
                    return write_dataset(table, uri, storage_options=self.storage_options)
                except TableExistsError:
                    logger.info("another writer made the list of tables %s at the same time", uri)
            except MergeError:
                raise (
                    TableExistsError(f"there is a table {display_name(name)} in {self.root} already")
                    if kind == _TABLE
                    else NamespaceExistsError(
                        f"there is a namespace {display_name(name)} in {self.root} already"
                    )
                ) from None
        raise StoreError(f"the list of tables {uri} comes and goes: is another program deleting it?")

    def _check_root(self) -> None:
        """Check that tables can be created in a local root.

        Raises:
            StoreAccessError: the root, or its nearest existing parent, is not a writable folder.
        """
        store, path = self._open(self.root)
        if not store.is_local:
            return
        place = Path(path)
        place = next((folder for folder in (place, *place.parents) if folder.exists()), place)
        if not place.is_dir():
            problem = "is not a folder"
        elif not os.access(place, os.W_OK | os.X_OK):
            problem = "cannot be written by this process"
        else:
            return
        raise StoreAccessError(
            f"the root {self.root} of the catalog cannot get a table: {place} {problem}; let the root be a "
            "folder that this process may write to"
        )

    def _check_namespace(self, name: Name, entries: Mapping[Name, _Entry]) -> None:
        if name and (name not in entries or entries[name].kind != _NAMESPACE):
            raise NamespaceNotFoundError(f"there is no namespace {display_name(name)} in {self.root}")

    def _check_free(self, name: Name, entries: Mapping[Name, _Entry]) -> None:
        existing = entries.get(name)
        if existing is None:
            if self.views.exists(name):
                raise TableExistsError(
                    f"view {display_name(name)} exists in {self.root}: drop it first, or choose another name"
                )
            return
        if existing.kind == _NAMESPACE:
            raise NamespaceExistsError(f"there is a namespace {display_name(name)} in {self.root} already")
        raise TableExistsError(f"there is a table {display_name(name)} in {self.root} already")


def _read_entries(catalog_table: LanceDataset) -> Mapping[Name, _Entry]:
    result = {}
    for row in catalog_table.to_table(["object_id", "object_type", "location", "metadata"]).to_pylist():
        name = tuple(row["object_id"].split(SEPARATOR))
        try:
            properties = parse_object(row["metadata"] or "{}")
        except ValueError as error:
            raise FormatError(
                f"properties of {display_name(name)} in the catalog's table: {error}"
            ) from error
        result[name] = _Entry(name, row["object_type"], row["location"], properties)
    return result


def _check_new(name: Name) -> None:
    if not name:
        raise OptionError("the root namespace of a catalog has no name: give one")
    for part in name:
        check_part(part)
    if len(name) == 1 and name[0] == _LIST:
        raise OptionError(f"{_LIST!r} is the catalog's own list of tables: choose another name")


def _spelled_otherwise(
    kind: type[TableExistsError | ViewExistsError | NamespaceExistsError], name: Name, other: Name
) -> TableExistsError | ViewExistsError | NamespaceExistsError:
    """Return the error for a new name that differs from another one only in case."""
    error = kind(
        f"{display_name(other)} exists, and {display_name(name)} differs from it only in case: use the "
        "existing name, or choose another one"
    )
    error.existing = other
    return error


def _overlap(place: str, other: str) -> bool:
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


def _object_id(name: Name) -> str:
    return SEPARATOR.join(name)


def _name_condition(name: Name) -> str:
    """Return the SQL condition for the row of a name."""
    return f"object_id = {_quote(_object_id(name))}"


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_in(name: Name, parent: Name, entry: _Entry, kind: str) -> bool:
    return entry.kind == kind and len(name) == len(parent) + 1 and name[:-1] == parent
