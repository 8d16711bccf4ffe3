"""Views of a directory namespace: one JSON object per view, next to the tables.

    <root>/__views/<object id>.json     object id: the parts of the name, at least two, joined by "$"

Other Lance engines only read folders `*.lance` and the table `__manifest`, so they ignore this folder.
Members of an object:

    format              "spark-lance view"
    version             1; readers refuse higher ones
    id                  32 hex digits, new with every write, so that a writer recognizes its own object
    query               the SELECT statement, in Spark SQL
    schema              columns of the view with comments: a struct in Spark's JSON type format
    query_column_names  output names of the query, one per column; [] for schema mode EVOLUTION
    schema_mode         BINDING, COMPENSATION, TYPE EVOLUTION, EVOLUTION, UNSUPPORTED or null: how the columns
                        follow changes of the tables
    current_catalog     the catalog of unqualified names; null for the reader's catalog
    current_namespace   the namespace of unqualified names, a list of parts
    sql_configs         Spark settings at the time of creation, such as the session time zone
    properties          strings by name, including comment, owner, collation, table_type
    dependencies        [{"kind": "table" or "function", "name": [...]}], or null if unknown

Objects are created with put-if-absent, and replaced as a whole. A table and a view cannot have the same name.
Two programs may create a table and a view of the same name at the same time. Then at least one of them
detects the other's object and removes its own; possibly both do.

Anyone with write access may have written the object. `parse_view` checks each member. It rejects catalog
settings and user-defined types, because they could load code. The query itself is trusted: whoever can write
to the folder controls the results, as for the tables' rows.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from spark_lance.catalog.names import SEPARATOR, Name, can_be_part, check_part, display_name
from spark_lance.errors import (
    FormatError,
    OptionError,
    UnsupportedFormatError,
    ViewExistsError,
    ViewNotFoundError,
)
from spark_lance.io.locations import join
from spark_lance.io.store import Store

VIEWS_DIR = "__views"
_SUFFIX = ".json"
_FORMAT, _VERSION = "spark-lance view", 1
# No real query is longer.
_MAX_BYTES = 1 << 20
_MAX_DEPTH = 64
_SCHEMA_MODES = frozenset({"BINDING", "COMPENSATION", "TYPE EVOLUTION", "EVOLUTION", "UNSUPPORTED", None})
# Names of Spark's atomic types, such as string, decimal(10,2), interval day to second.
_TYPE = re.compile(r"[a-z][a-z_0-9 ]*(?:\([A-Za-z0-9_:, -]{0,40}\))?", re.ASCII)
_SETTING = re.compile(r"spark\.[A-Za-z0-9_.-]+", re.ASCII)
# Spark loads catalog classes by these settings.
CATALOG_SETTINGS = "spark.sql.catalog."


@dataclass(frozen=True)
class Views:
    """The views below the root of a directory namespace.

    Attributes:
        store, root: location of the namespace.
    """

    store: Store
    root: str

    def names(self, namespace: Name) -> list[Name]:
        """Return the views directly in a namespace, sorted."""
        return [name for name in self.all_names() if name[:-1] == namespace]

    def all_names(self) -> list[Name]:
        """Return the views of all namespaces, sorted."""
        files = self.store.list(join(self.root, VIEWS_DIR))
        ids = [file[: -len(_SUFFIX)] for file in files if file.endswith(_SUFFIX)]
        names = (tuple(text.split(SEPARATOR)) for text in ids)
        return sorted(filter(_can_be_view, names))

    def exists(self, name: Name) -> bool:
        """Return whether a view exists."""
        return _can_be_view(name) and self.store.exists(self._path(name))

    def load(self, name: Name) -> dict[str, Any]:
        """Return the validated members of a view.

        Raises:
            ViewNotFoundError: the view does not exist.
            FormatError: the view is damaged.
            UnsupportedFormatError: a newer release wrote it.
        """
        if not _can_be_view(name):
            raise self._missing(name)
        path = self._path(name)
        if self._is_link(path):
            raise FormatError("the file of the view is a link: replace the link by a file", path=path)
        try:
            size = self.store.size(path)
            if size > _MAX_BYTES:
                raise FormatError(
                    f"the view has {size} bytes, more than the limit of {_MAX_BYTES}", path=path
                )
            return parse_view(self.store.read(path), path)
        except FileNotFoundError:
            raise self._missing(name) from None

    def create(self, name: Name, view: Mapping[str, Any], has_table: Callable[[], bool]) -> None:
        """Create a view.

        Args:
            name: name of the view. No table or namespace may have it.
            view: members of the view, see `check_view`.
            has_table: returns whether a table has the name now.

        Raises:
            ViewExistsError: the name is taken.
            OptionError: the view cannot be stored.
        """
        check_name(name)
        data = _pack(view)
        path = self._path(name)
        try:
            self.store.put_if_absent(path, data, sync=True)
        except FileExistsError:
            # If the request was retried, the existing object is this writer's own.
            if self.store.read(path) != data:
                raise ViewExistsError(f"view {display_name(name)} exists in {self.root}") from None
        if has_table():
            self.store.delete(path, self.root)
            raise ViewExistsError(
                f"table {display_name(name)} exists in {self.root}: choose another name for the view"
            )

    def replace(self, name: Name, view: Mapping[str, Any]) -> None:
        """Replace a view.

        Raises:
            ViewNotFoundError: the view does not exist.
            OptionError: the view cannot be stored.
        """
        data = _pack(view)
        if not self.exists(name):
            raise self._missing(name)
        self.store.put(self._path(name), data)

    def drop(self, name: Name) -> bool:
        """Drop a view; return False if it does not exist."""
        if not self.exists(name):
            return False
        self.store.delete(self._path(name), self.root)
        return True

    def _path(self, name: Name) -> str:
        return join(self.root, VIEWS_DIR, SEPARATOR.join(name) + _SUFFIX)

    def _is_link(self, path: str) -> bool:
        """Return whether a local file is a symbolic link, or in a folder that is one."""
        if not self.store.is_local:
            return False
        folder = join(os.path.realpath(self.root), VIEWS_DIR)
        return os.path.realpath(path) != join(folder, Path(path).name)

    def _missing(self, name: Name) -> ViewNotFoundError:
        return ViewNotFoundError(f"there is no view {display_name(name)} in {self.root}")


@runtime_checkable
class ViewCatalog(Protocol):
    """A catalog that stores views. These operations also check the names of tables."""

    @property
    def views(self) -> Views:
        """The views of all namespaces."""

    def list_views(self, namespace: Name = ()) -> list[Name]:
        """Return the views directly in a namespace, sorted."""

    def create_view(self, name: Name, view: Mapping[str, Any]) -> None:
        """Create a view. The namespace must exist and the name must be free."""

    def rename_view(self, old: Name, new: Name) -> None:
        """Rename a view. The new namespace must exist and the new name must be free."""


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def check_name(name: Name) -> None:
    """Check that a name is valid for a view.

    Raises:
        OptionError: a part is invalid, or the name has no namespace.
    """
    if len(name) < 2:
        raise OptionError(
            "a view must be in a namespace: run CREATE NAMESPACE db, and name the view "
            f"db.{display_name(name)}"
        )
    for part in name:
        check_part(part)


def _can_be_view(name: Name) -> bool:
    return len(name) > 1 and all(map(can_be_part, name))


def _pack(view: Mapping[str, Any]) -> bytes:
    """Encode a view as its JSON object.

    Raises:
        OptionError: the object is too long, or a member is invalid.
    """
    members = {key: view[key] for key in _MEMBERS}
    head = {"format": _FORMAT, "version": _VERSION, "id": uuid.uuid4().hex}
    data = json.dumps({**head, **members}, indent=1, ensure_ascii=False).encode()
    if len(data) > _MAX_BYTES:
        raise OptionError(
            f"the view has {len(data)} bytes, more than the limit of {_MAX_BYTES}: shorten its query"
        )
    try:
        check_view(members, "")
    except FormatError as error:
        raise OptionError(f"the view cannot be stored: {error.message}") from None
    return data


def parse_view(data: bytes, path: str) -> dict[str, Any]:
    """Return the validated members of a stored view.

    Args:
        data: the object.
        path: its path, for messages.

    Raises:
        FormatError: the view is damaged, or a member is invalid.
        UnsupportedFormatError: a newer release wrote it.
    """
    try:
        content = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"undecodable view: {error}", path=path) from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise FormatError(f"the file of the view is not a JSON object with the format {_FORMAT!r}", path=path)
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise FormatError(f"the view has the invalid version {version!r}", path=path)
    if version > _VERSION:
        raise UnsupportedFormatError(
            f"view of version {version} (this release reads version {_VERSION})", path=path
        )
    members = {key: content.get(key) for key in _MEMBERS}
    check_view(members, path)
    return members


def check_view(members: Mapping[str, Any], path: str) -> None:
    """Check all members of a view.

    Raises:
        FormatError: a member is invalid.
    """
    for key, check in _MEMBERS.items():
        if not check(members[key]):
            raise FormatError(f"the view has the invalid {key} {_excerpt(members[key])}", path=path)
    schema = members["schema"]
    _check_type(schema, path, 0)
    if schema.get("type") != "struct":
        raise FormatError("the schema of the view is not a struct", path=path)
    names, columns = members["query_column_names"], schema["fields"]
    if names and len(names) != len(columns):
        raise FormatError(f"the view has {len(columns)} columns, but its query has {len(names)}", path=path)
    for key in members["sql_configs"]:
        if not _SETTING.fullmatch(key) or key.startswith(CATALOG_SETTINGS):
            raise FormatError(
                f"sql_configs of the view has the setting {_excerpt(key)}, which views cannot set", path=path
            )


def _excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_texts(value: object) -> bool:
    return type(value) is list and all(map(_is_text, value))


def _is_name_or_none(value: object) -> bool:
    return value is None or (type(value) is str and bool(value))


def _is_map(value: object) -> bool:
    return type(value) is dict and all(map(_is_text, value.values()))


def _is_dependencies(value: object) -> bool:
    return value is None or (
        type(value) is list
        and all(
            type(each) is dict
            and each.get("kind") in ("table", "function")
            and _is_texts(each.get("name"))
            and len(each["name"]) > 0
            for each in value
        )
    )


# Member -> check of its value. `_check_type` and `check_view` check some members further.
_MEMBERS: Mapping[str, Callable[[Any], bool]] = {
    "query": lambda value: _is_text(value) and bool(value.strip()),
    "schema": lambda value: type(value) is dict,
    "query_column_names": _is_texts,
    "schema_mode": lambda value: (value is None or _is_text(value)) and value in _SCHEMA_MODES,
    "current_catalog": _is_name_or_none,
    "current_namespace": _is_texts,
    "sql_configs": _is_map,
    "properties": _is_map,
    "dependencies": _is_dependencies,
}


def _check_type(value: Any, path: str, depth: int) -> None:
    """Check the JSON of a Spark type.

    Raises:
        FormatError: it is not a Spark type, or it is a user-defined type, whose class Spark would load.
    """
    if type(value) is str and _TYPE.fullmatch(value):
        return
    kind = value.get("type") if type(value) is dict else None
    if depth > _MAX_DEPTH or kind not in ("struct", "array", "map"):
        raise FormatError(f"a column of the view has the invalid type {_excerpt(value)}", path=path)
    if kind == "struct":
        fields = value.get("fields")
        if type(fields) is not list or not all(map(_is_field, fields)):
            raise FormatError("a struct in the view's schema has invalid fields", path=path)
        for field in fields:
            _check_type(field["type"], path, depth + 1)
        return
    parts = ("elementType",) if kind == "array" else ("keyType", "valueType")
    if type(value.get("containsNull" if kind == "array" else "valueContainsNull")) is not bool:
        raise FormatError(
            f"the nullability of the elements of an {kind} is missing in the view's schema", path=path
        )
    for part in parts:
        _check_type(value.get(part), path, depth + 1)


def _is_field(value: object) -> bool:
    return (
        type(value) is dict
        and type(value.get("name")) is str
        and type(value.get("nullable")) is bool
        and value.get("type") is not None
        and _is_metadata(value.get("metadata", {}), 0)
    )


def _is_metadata(value: object, depth: int) -> bool:
    """Return whether a value is valid Spark column metadata: strings, numbers, maps, or uniform lists."""
    return (
        type(value) is dict
        and depth <= _MAX_DEPTH
        and all(
            _is_plain(each) or _is_list(each, depth) or _is_metadata(each, depth + 1)
            for each in value.values()
        )
    )


def _is_plain(value: object) -> bool:
    return type(value) in (str, bool, float) or (type(value) is int and -(1 << 63) <= value < 1 << 63)


def _is_list(value: object, depth: int) -> bool:
    if type(value) is not list or len({type(each) for each in value}) > 1:
        return False
    return all(_is_plain(each) or _is_metadata(each, depth + 1) for each in value)
