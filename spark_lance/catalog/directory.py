"""The directory namespace of Lance: a folder of tables, with nested namespaces.

    <root>/<table>.lance                    tables of the root namespace
    <root>/<8 hex digits>_<object id>       tables of nested namespaces
    <root>/__manifest                       a Lance table that lists both, and the namespaces
    <root>/__views/<object id>.json         views; see `spark_lance.catalog.views`

Columns of `__manifest`: object_id (the parts of the name joined by "$"; the primary key), object_type
("table" or "namespace"), location (of a table, relative to the root, not percent-encoded), metadata (a JSON
object of texts: the properties), base_objects (list of texts, unused here). Verified with the directory
namespace of pylance 14, which reads and writes the same folders.

A folder `<table>.lance` that the list does not have is a table of the root namespace as well: older writers
keep no list. A folder that holds `.lance-reserved` and no version is a table that was declared only.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_lance.catalog.names import SEPARATOR, Name, TableEntry, can_be_part, check_part, display_name
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
    """A row of the list."""

    name: Name
    kind: str
    location: str | None
    properties: Mapping[str, str]


# Lists by the identity of their manifest, which is held, too; and the size of an entry.
_LISTS: CacheSection[tuple[Manifest, Mapping[Name, _Entry]]] = CacheSection(
    "lists of catalogs", CACHE, counted=False
)
_ENTRY_BYTES = 1000


@dataclass(frozen=True)
class DirectoryCatalog:
    """The tables below one folder of a store; see `names.Catalog` for what it answers.

    Attributes:
        root: the folder, a path or an fsspec URI. It need not exist before the first table.
        storage_options: options of the store.
    """

    root: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""
        entries = self._entries()
        self._check_namespace(parent, entries)
        return sorted(name for name, entry in entries.items() if _is_in(name, parent, entry, _NAMESPACE))

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return what is kept about a namespace; the root namespace has its location only."""
        if not name:
            return {"location": self.root}
        entries = self._entries()
        self._check_namespace(name, entries)
        return dict(entries[name].properties)

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Make a namespace in one that exists.

        Raises:
            NamespaceExistsError: it is there already.
            TableExistsError: a table has its name.
            NamespaceNotFoundError: the namespace around it does not exist.
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
        self._list().update({"metadata": f"'{text}'"}, where=_is(name))

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace.

        Raises:
            NamespaceInUseError: it has tables or namespaces.
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
        self._list().delete(_is(name))

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""
        entries = self._entries()
        self._check_namespace(namespace, entries)
        names = {name for name, entry in entries.items() if _is_in(name, namespace, entry, _TABLE)}
        if not namespace:
            listed = {entry.location for entry in entries.values()}
            names |= {(folder[: -len(_SUFFIX)],) for folder in self._folders() if folder not in listed}
        return sorted(names)

    def table(self, name: Name) -> TableEntry:
        """Return where a table is."""
        entries = self._entries()
        entry = entries.get(name)
        if entry is not None and entry.kind == _TABLE:
            uri = self._inside(self._checked(entry))
            return TableEntry(name, uri, entry.properties, declared=self._is_declared(uri))
        folder = name[0] + _SUFFIX if len(name) == 1 and can_be_part(name[0]) else None
        if folder and not self._is_listed(folder, entries) and folder not in self._dropping():
            uri = self._inside(folder)
            if self._has_versions(uri):
                return TableEntry(name, uri)
            if self._is_declared(uri):
                return TableEntry(name, uri, declared=True)
        raise TableNotFoundError(f"there is no table {display_name(name)} in {self.root}")

    def place(self, name: Name) -> str:
        """Return the path at which a new table of this name is to be written; see `names.Catalog`."""
        _check_new(name)
        self._check_root()
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        there = entries.get(name)
        if there is not None and there.kind == _TABLE and there.location is not None:
            uri = self._inside(self._checked(there))
            if self._is_declared(uri):
                return uri
        self._check_free(name, entries)
        # The folder of a table that was renamed still has its old name.
        # A folder whose table is being dropped is not used again before that is done.
        folder = name[0] + _SUFFIX if len(name) == 1 else None
        if folder and not self._is_listed(folder, entries) and folder not in self._dropping():
            uri = self._inside(folder)
            if self._has_versions(uri):
                raise TableExistsError(f"there is a table {display_name(name)} in {self.root} already")
            return uri
        return self._inside(f"{uuid.uuid4().hex[:8]}_{_id(name)}")

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Give a table that was written at `place(name)` its name."""
        location = self._location(uri)
        there = self._entries().get(name)
        if there is not None and there.kind == _TABLE and there.location == location:
            return
        self._insert(name, _TABLE, location, properties)

    def declare(self, name: Name, properties: Mapping[str, str]) -> str:
        """Take a name for a table that is written later; return the path at which it is to be written.

        Raises:
            TableExistsError: the name is taken, be it by a table that is only declared.
        """
        uri = self.place(name)
        if name in (entries := self._entries()):
            self._check_free(name, entries)
        store, path = self._open(join(uri, _DECLARED))
        store.put(path, b"")
        self._insert(name, _TABLE, self._location(uri), properties)
        return uri

    def register(self, name: Name, location: str, properties: Mapping[str, str]) -> str:
        """Give a name to a location below the root, be there a table or not, and return its path.

        Raises:
            OptionError: the location leads out of the root, is or holds the catalog's own list or another
                table, or is inside of one; a drop of the name would delete these.
        """
        _check_new(name)
        entries = self._entries()
        self._check_namespace(name[:-1], entries)
        self._check_free(name, entries)
        uri = self._inside(location)
        self._check_unused(location, entries)
        self._insert(name, _TABLE, location, properties)
        return uri

    def forget(self, name: Name) -> TableEntry:
        """Take a table's name away and leave its files; return where they are.

        Raises:
            OptionError: the table has its name by its folder only, which the list does not have.
        """
        entry = self.table(name)
        if name not in self._entries():
            raise OptionError(
                f"table {display_name(name)} of {self.root} has its name by its folder, not by the "
                "list of tables: "
                "it cannot be forgotten; rename it first, or drop it"
            )
        self._list().delete(_is(name))
        return entry

    def rename(self, old: Name, new: Name) -> None:
        """Give a table another name; its files stay where they are.

        The new name is there before the old one goes, so a failure in between leaves two names for one table
        and never none.
        """
        _check_new(new)
        entry = self.table(old)
        entries = self._entries()
        self._check_namespace(new[:-1], entries)
        self._check_free(new, entries)
        self._insert(new, _TABLE, self._location(entry.uri), entry.properties)
        if old in entries:
            self._list().delete(_is(old))

    def drop(self, name: Name) -> None:
        """Remove a table with its files, unless another name leads to them."""
        entry = self.table(name)
        entries = self._entries()
        location = self._location(entry.uri)
        row = f"{_is(name)} AND location = {_quoted(location)}"

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
            NamespaceExistsError: a namespace has it.
        """
        self._check_free_for_view(name)
        self.views.create(name, view, lambda: self._is_taken(name))

    def rename_view(self, old: Name, new: Name) -> None:
        """Give a view another name; the errors are those of `create_view`."""
        self._check_free_for_view(new)
        self.views.rename(old, new, lambda: self._is_taken(new))

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

    def _checked(self, entry: _Entry) -> str:
        """Return the location of a table that the list has.

        Raises:
            FormatError: it leads out of the root.
        """
        what = f"the location of table {display_name(entry.name)}"
        return check_path(entry.location or "", what, join(self.root, _LIST))

    def _inside(self, location: str) -> str:
        """Return the path of a location below the root.

        Raises:
            OptionError: it leads out of the root, perhaps by a link.
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
        """Refuse to register a location if the catalog has something else at, above or inside it.

        Raises:
            OptionError: a drop of the table would delete that.
        """
        self._check_own(location)
        locations = {entry.location: display_name(key) for key, entry in entries.items() if entry.location}
        folders = {folder: display_name((folder[: -len(_SUFFIX)],)) for folder in self._folders()}
        place = self._real(location)
        for other, name in {**folders, **locations}.items():
            if _overlap(place, self._real(other)):
                raise OptionError(
                    f"location {location!r} of the catalog {self.root} overlaps with table {name} at "
                    f"{other!r}: register a folder of its own, or rename the table"
                )

    def _check_own(self, location: str) -> None:
        """Refuse a location that is not a folder that a table has for itself.

        Raises:
            OptionError: a drop of the table would delete something else.
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
        """Refuse to delete a location that holds something else: other programs write the list, too.

        Raises:
            OptionError: it does.
        """
        self._check_own(location)
        for name, entry in entries.items():
            if entry.location and entry.location != location and _overlap(entry.location, location):
                raise OptionError(
                    f"location {location!r} overlaps with table {display_name(name)} at "
                    f"{entry.location!r}, so its "
                    "files are not deleted: take the name away and leave the files (deregister_table)"
                )

    def _real(self, location: str) -> str:
        """Return the location of a folder without links on the way, where links can be seen."""
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
        """Return the names of the folders of the root whose tables are being dropped."""
        return dropping_folders(*self._open(self.root))

    def _folders(self) -> list[str]:
        """Return the names of the folders of the root that tables have."""
        store, root = self._open(self.root)
        folders = [
            name for name in store.list_directories(root) if name.endswith(_SUFFIX) and name != _SUFFIX
        ]
        dropping = dropping_folders(store, root) if folders else ()
        return [name for name in folders if name not in dropping]

    def _list(self) -> LanceDataset:
        return dataset(join(self.root, _LIST), storage_options=self.storage_options)

    def _entries(self) -> Mapping[Name, _Entry]:
        """Return the list; empty if there is none yet."""
        try:
            newest = self._list()
        except TableNotFoundError:
            return {}
        # As long as the process keeps a manifest, one of the same content is the same object.
        _, entries = _LISTS.get(
            id(newest.manifest),
            lambda: (newest.manifest, _entries_of(newest)),
            lambda cached: cached[0].message.ByteSize() + _ENTRY_BYTES * len(cached[1]),
        )
        return entries

    def _insert(self, name: Name, kind: str, location: str | None, properties: Mapping[str, str]) -> None:
        """Add a row to the list, if its name is not there.

        Raises:
            TableExistsError, NamespaceExistsError: another writer was faster.
        """
        self._add_row(name, kind, location, properties)
        # The creator of a view looks for a table when the view is there, and this one
        # for a view when the row is there. So one of both finds the other.
        if self.views.exists(name):
            self._list().delete(_is(name))
            raise TableExistsError(
                f"view {display_name(name)} exists in {self.root}: drop it first, or choose another name"
            )

    def _add_row(self, name: Name, kind: str, location: str | None, properties: Mapping[str, str]) -> None:
        metadata = json.dumps(dict(properties)) if properties else None
        row = {"object_id": _id(name), "object_type": kind, "location": location, "metadata": metadata}
        table = pa.Table.from_pylist([{**row, "base_objects": None}], schema=_SCHEMA)
        uri = join(self.root, _LIST)
        for _ in range(2):
            try:
                merge = self._list().merge_insert("object_id").when_matched_fail()
                merge.when_not_matched_insert_all().execute(table)
                return
            except TableNotFoundError:
                try:
                    write_dataset(table, uri, storage_options=self.storage_options)
                    return
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
        """Refuse a root on this machine that cannot get a table.

        Raises:
            StoreAccessError: it, or the folder that it would be made in, is no folder or cannot be written.
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
        there = entries.get(name)
        if there is None:
            if self.views.exists(name):
                raise TableExistsError(
                    f"view {display_name(name)} exists in {self.root}: drop it first, or choose another name"
                )
            return
        if there.kind == _NAMESPACE:
            raise NamespaceExistsError(f"there is a namespace {display_name(name)} in {self.root} already")
        raise TableExistsError(f"there is a table {display_name(name)} in {self.root} already")


def _entries_of(listed: LanceDataset) -> Mapping[Name, _Entry]:
    result = {}
    for row in listed.to_table(["object_id", "object_type", "location", "metadata"]).to_pylist():
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


def _overlap(place: str, other: str) -> bool:
    return f"{place}/".startswith(f"{other}/") or f"{other}/".startswith(f"{place}/")


def _id(name: Name) -> str:
    return SEPARATOR.join(name)


def _is(name: Name) -> str:
    """Return the condition on the list's rows that a name meets."""
    return f"object_id = {_quoted(_id(name))}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _is_in(name: Name, parent: Name, entry: _Entry, kind: str) -> bool:
    return entry.kind == kind and len(name) == len(parent) + 1 and name[:-1] == parent
