"""`lance.namespace`: a folder of tables, or a REST service, with the API of `lance-namespace`.

After `compat.install()`, `lance_namespace.connect("dir", {"root": ...})` finds `DirectoryNamespace`, and
`lance_namespace.connect("rest", {"uri": ...})` finds `RestNamespace`.
The package `lance-namespace` (extra `namespace`) contains the requests, responses and errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pyarrow.ipc

from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.names import SEPARATOR, Name, TableEntry
from spark_lance.compat.lance.rest import DynamicContextProvider, RestNamespace
from spark_lance.compat.lance.schema import schema_to_json
from spark_lance.datasets.dataset import LanceDataset, dataset, write_dataset
from spark_lance.errors import (
    ColumnNotFoundError,
    CommitError,
    LanceError,
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFormatError,
    VersionNotFoundError,
)

__all__ = [
    "DirectoryNamespace",
    "DynamicContextProvider",
    "RestNamespace",
    "declare_location",
    "read_location",
]

# Our error class and theirs. The first matching class applies.
_ERRORS: tuple[tuple[type[Exception], type[Exception]], ...] = (
    (NamespaceNotFoundError, api.NamespaceNotFoundError),
    (NamespaceExistsError, api.NamespaceAlreadyExistsError),
    (NamespaceInUseError, api.NamespaceNotEmptyError),
    (VersionNotFoundError, api.TableVersionNotFoundError),
    (TableNotFoundError, api.TableNotFoundError),
    (TableExistsError, api.TableAlreadyExistsError),
    (ColumnNotFoundError, api.TableColumnNotFoundError),
    (CommitError, api.ConcurrentModificationError),
    (UnsupportedFormatError, api.UnsupportedOperationError),
    (OptionError, api.InvalidInputError),
    (LanceError, api.InternalError),
)
_STORAGE = "storage."
_SETTINGS = frozenset({"root", "manifest_enabled", "dir_listing_enabled"})


class DirectoryNamespace(api.LanceNamespace):
    """The tables and namespaces below one folder.

    Args:
        session: accepted and ignored.
        properties: `root`, the folder; `storage.<name>`, options of its store. Both ways to find tables
            (`manifest_enabled`, `dir_listing_enabled`) are always enabled.

    Raises (all methods): the errors of `lance_namespace`.
    """

    def __init__(self, session: object = None, context_provider: object = None, **properties: str) -> None:
        if context_provider is not None:
            raise api.UnsupportedOperationError("a context provider is not taken here: give storage options")
        unknown = [key for key in properties if key not in _SETTINGS and not key.startswith(_STORAGE)]
        if unknown or not properties.get("root"):
            raise api.InvalidInputError(
                f"a directory namespace needs the setting root, and takes {_STORAGE}<name> besides; "
                f"not known: {', '.join(unknown) or 'none'}"
            )
        options = {
            key.removeprefix(_STORAGE): value for key, value in properties.items() if key.startswith(_STORAGE)
        }
        root = properties["root"]
        self._catalog = DirectoryCatalog(root.rstrip("/") or root, options)

    def namespace_id(self) -> str:
        """Return the id of the namespace: its folder, in the form of pylance."""
        return f'DirectoryNamespace {{ root: "{self._catalog.root.removeprefix("file://")}" }}'

    def __repr__(self) -> str:
        return f"DirectoryNamespace({self.namespace_id()})"

    def create_namespace(self, request: Any) -> Any:
        """Create a namespace."""
        with _namespace_errors():
            self._catalog.create_namespace(_name(request), request.properties or {})
        return api.CreateNamespaceResponse(properties=request.properties)

    def list_namespaces(self, request: Any) -> Any:
        """Return the direct child namespaces, ordered by name."""
        with _namespace_errors():
            names, more = _page(self._catalog.namespaces(_name(request)), request)
        return api.ListNamespacesResponse(namespaces=names, page_token=more)

    def describe_namespace(self, request: Any) -> Any:
        """Return the properties of a namespace."""
        with _namespace_errors():
            return api.DescribeNamespaceResponse(
                properties=self._catalog.namespace_properties(_name(request))
            )

    def drop_namespace(self, request: Any) -> Any:
        """Remove an empty namespace."""
        with _namespace_errors():
            self._catalog.drop_namespace(_name(request))
        return api.DropNamespaceResponse()

    def namespace_exists(self, request: Any) -> Any:
        """Raise an error if the namespace does not exist."""
        with _namespace_errors():
            self._catalog.namespace_properties(_name(request))
        return api.NamespaceExistsResponse()

    def list_tables(self, request: Any) -> Any:
        """Return the tables directly in a namespace, ordered by name."""
        with _namespace_errors():
            names, more = _page(self._catalog.tables(_name(request)), request)
        return api.ListTablesResponse(tables=names, page_token=more)

    def describe_table(self, request: Any) -> Any:
        """Return the location of a table. With `load_detailed_metadata`, add its version and schema."""
        with _namespace_errors():
            entry = self._catalog.table(_name(request))
            details: dict[str, Any] = {"is_only_declared": entry.declared} if request.check_declared else {}
            if request.load_detailed_metadata and not entry.declared:
                dataset = self._open(entry, request)
                schema = schema_to_json(dataset.schema)
                details = {"version": dataset.version, "is_only_declared": False, "schema": schema}
        return api.DescribeTableResponse(
            table=entry.name[-1],
            namespace=list(entry.name[:-1]),
            location=_as_uri(entry.uri),
            table_uri=_as_uri(entry.uri),
            properties=dict(entry.properties) or None,
            storage_options=dict(self._catalog.storage_options) or None,
            **details,
        )

    def register_table(self, request: Any) -> Any:
        """Register a table below the folder under a name."""
        place = request.location
        rule = f"Location must be a relative path within the root directory: {place}"
        if "://" in place:
            raise api.InvalidInputError(f"Absolute URIs are not allowed for register_table. {rule}")
        if place.startswith("/"):
            raise api.InvalidInputError(f"Absolute paths are not allowed for register_table. {rule}")
        if ".." in place.split("/"):
            raise api.InvalidInputError(f"Path traversal is not allowed. {rule}")
        with _namespace_errors():
            self._catalog.register(_table_name(request), place, request.properties or {})
        return api.RegisterTableResponse(location=place, properties=request.properties)

    def table_exists(self, request: Any) -> Any:
        """Raise an error if the table does not exist."""
        with _namespace_errors():
            self._catalog.table(_name(request))
        return api.TableExistsResponse()

    def drop_table(self, request: Any) -> Any:
        """Remove a table and its files."""
        with _namespace_errors():
            entry = self._catalog.table(_table_name(request))
            self._catalog.drop(entry.name)
        return api.DropTableResponse(id=list(entry.name), location=_as_uri(entry.uri))

    def deregister_table(self, request: Any) -> Any:
        """Remove the name of a table, but keep its files."""
        with _namespace_errors():
            entry = self._catalog.forget(_table_name(request))
        return api.DeregisterTableResponse(id=list(entry.name), location=_as_uri(entry.uri))

    def create_table(self, request: Any, request_data: bytes) -> Any:
        """Write a table from an Arrow IPC stream."""
        name = _table_name(request)
        mode = (request.mode or "create").lower().replace("_", "")
        if mode not in ("create", "existok", "overwrite"):
            raise api.InvalidInputError(f"mode {request.mode!r} is none of Create, ExistOk, Overwrite")
        with _namespace_errors():
            data = _rows(request_data, "create_table")
            entry = self._there(name)
            if entry is not None and not entry.declared:
                if mode == "existok":
                    return api.CreateTableResponse(
                        location=_as_uri(entry.uri), properties=dict(entry.properties) or None
                    )
                if mode == "create":
                    raise TableExistsError(f"there is a table {SEPARATOR.join(name)} already")
                dataset = self._write(data, entry.uri, "overwrite")
            else:
                self._create_parents(name)
                uri = self._catalog.allocate_table_uri(name)
                dataset = self._write(data, uri, "create")
                self._catalog.add(name, uri, request.properties or {})
        return api.CreateTableResponse(
            location=_as_uri(dataset.uri), version=dataset.version, properties=request.properties
        )

    def declare_table(self, request: Any) -> Any:
        """Reserve a name and a location for a table that is written later."""
        name = _table_name(request)
        with _namespace_errors():
            self._create_parents(name)
            uri = self._catalog.declare(name, request.properties or {})
        return api.DeclareTableResponse(location=_as_uri(uri), properties=request.properties)

    def rename_table(self, request: Any) -> Any:
        """Rename a table. The new name can be in another namespace."""
        old = _table_name(request)
        parent = old[:-1] if request.new_namespace_id is None else tuple(request.new_namespace_id)
        with _namespace_errors():
            self._catalog.rename(old, (*parent, request.new_table_name))
        return api.RenameTableResponse()

    def count_table_rows(self, request: Any) -> Any:
        """Return the number of rows of a table that match `predicate`."""
        with _namespace_errors():
            entry = self._catalog.table(_table_name(request))
            count = self._open(entry, request).count_rows(request.predicate)
        return api.CountTableRowsResponse(count=count)

    def insert_into_table(self, request: Any, request_data: bytes) -> Any:
        """Append an Arrow IPC stream to a table, or replace the rows of the table with it."""
        mode = (request.mode or "append").lower()
        if mode not in ("append", "overwrite"):
            raise api.InvalidInputError(f"mode {request.mode!r} is none of append, overwrite")
        with _namespace_errors():
            data = _rows(request_data, "insert_into_table")
            dataset = self._write(data, self._catalog.table(_table_name(request)).uri, mode)
        return api.InsertIntoTableResponse(num_inserted_rows=data.num_rows, version=dataset.version)

    def _create_parents(self, name: Name) -> None:
        """Create the missing namespaces of a table. pylance writes such tables without their namespaces."""
        for length in range(1, len(name)):
            try:
                self._catalog.create_namespace(name[:length], {})
            except (NamespaceExistsError, TableExistsError):
                continue

    def _there(self, name: Name) -> TableEntry | None:
        try:
            return self._catalog.table(name)
        except TableNotFoundError:
            return None

    def _open(self, entry: TableEntry, request: Any) -> LanceDataset:
        return dataset(entry.uri, request.version, storage_options=self._catalog.storage_options)

    def _write(self, data: pa.Table, uri: str, mode: str) -> LanceDataset:
        return write_dataset(data, uri, mode=mode, storage_options=self._catalog.storage_options)


def read_location(client: Any, table_id: list[str]) -> tuple[str, dict[str, str]]:
    """Return the location of a table in a namespace, and the options of its store."""
    answer = client.describe_table(api.DescribeTableRequest(id=list(table_id)))
    return str(answer.location), dict(answer.storage_options or {})


def declare_location(client: Any, table_id: list[str], mode: str) -> tuple[str, dict[str, str]]:
    """Return the location to write a table to, and the options of its store.

    A name that a failed write declared is used again.
    """
    if mode != "create":
        try:
            return read_location(client, table_id)
        except api.TableNotFoundError:
            if mode == "append":
                raise
    try:
        answer = client.declare_table(api.DeclareTableRequest(id=list(table_id)))
    except api.TableAlreadyExistsError:
        table = client.describe_table(api.DescribeTableRequest(id=list(table_id), check_declared=True))
        if not table.is_only_declared:
            raise
        answer = table
    return str(answer.location), dict(answer.storage_options or {})


def _name(request: Any) -> Name:
    if request.id is None:
        raise api.InvalidInputError("the request has no id: an empty list means the root namespace")
    return tuple(request.id)


def _table_name(request: Any) -> Name:
    name = _name(request)
    if not name:
        raise api.InvalidInputError("the id of a table cannot be empty")
    return name


def _as_uri(uri: str) -> str:
    return uri if "://" in uri else f"file://{uri}"


def _rows(data: bytes, verb: str) -> pa.Table:
    if not data:
        raise api.InvalidInputError(f"{verb} needs data: rows as an Arrow IPC stream are required")
    try:
        return pyarrow.ipc.open_stream(data).read_all()
    except pa.ArrowInvalid as error:
        raise api.InvalidInputError(f"{verb}: the data is not an Arrow IPC stream: {error}") from error


def _page(names: list[Name], request: Any) -> tuple[list[str], str | None]:
    """Return at most `limit` names after `page_token`, and the token of the next page."""
    rest = [name[-1] for name in names if request.page_token is None or name[-1] > request.page_token]
    if request.limit is None or len(rest) <= request.limit:
        return rest, None
    if request.limit < 1:
        raise api.InvalidInputError(f"limit {request.limit} is below 1")
    return rest[: request.limit], rest[request.limit - 1]


@contextmanager
def _namespace_errors() -> Iterator[None]:
    """Raise the errors of `lance_namespace` instead of ours."""
    try:
        yield
    except LanceError as error:
        kind = next(theirs for ours, theirs in _ERRORS if isinstance(error, ours))
        raise kind(f"{_KINDS.get(kind, 'Error')}: {error}") from error


_KINDS: Mapping[type[Exception], str] = {
    api.NamespaceNotFoundError: "Namespace not found",
    api.NamespaceAlreadyExistsError: "Namespace already exists",
    api.NamespaceNotEmptyError: "Namespace not empty",
    api.TableNotFoundError: "Table not found",
    api.TableAlreadyExistsError: "Table already exists",
    api.InvalidInputError: "Invalid input",
}
