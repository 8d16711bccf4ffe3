"""Catalog of a Lance namespace service, using the package `lance-namespace` (extra `namespace`).

    rest           a REST service (`rest.py`); settings uri, delimiter, header.<name>, tls.<name>
    a.b.Class      another implementation of `lance_namespace.LanceNamespace`, or its registered name

The setting `impl` alone imports nothing. A class is used if the driver's program has imported its module or
has registered it with `lance_namespace`, or if the environment variable SPARK_LANCE_NAMESPACE_IMPLS lists it
(with commas between several).

The service stores names and locations. We read and write the tables directly.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spark_lance.catalog.names import Name, TableEntry, check_part, display_name
from spark_lance.catalog.rest import RestClient
from spark_lance.errors import (
    BranchNotFoundError,
    ColumnNotFoundError,
    LanceError,
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    RetryableConflictError,
    StoreAccessError,
    StoreError,
    TableExistsError,
    TableNotFoundError,
    TagNotFoundError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.io.failures import safe_cause
from spark_lance.redaction import redacted

# The environment variable that lists classes of namespaces that may be imported.
IMPLEMENTATIONS = "SPARK_LANCE_NAMESPACE_IMPLS"

_REST = "rest"

# Class name of an error of the package -> our error class.
_ERRORS: Mapping[str, type[LanceError]] = {
    "NamespaceNotFoundError": NamespaceNotFoundError,
    "NamespaceAlreadyExistsError": NamespaceExistsError,
    "NamespaceNotEmptyError": NamespaceInUseError,
    "TableNotFoundError": TableNotFoundError,
    "TableAlreadyExistsError": TableExistsError,
    "TableVersionNotFoundError": VersionNotFoundError,
    "TableTagNotFoundError": TagNotFoundError,
    "TableBranchNotFoundError": BranchNotFoundError,
    "TableColumnNotFoundError": ColumnNotFoundError,
    "ConcurrentModificationError": RetryableConflictError,
    "InvalidInputError": OptionError,
    "UnsupportedOperationError": UnsupportedFormatError,
    "PermissionDeniedError": StoreAccessError,
    "UnauthenticatedError": StoreAccessError,
}


@dataclass(frozen=True)
class ServiceCatalog:
    """The tables of a namespace service; see `names.Catalog` for the methods.

    Attributes:
        impl: `rest`, or an implementation of the package.
        properties: settings of the implementation, such as `uri`.

    Raises (all methods): as `names.Catalog`; `StoreError` also if the service does not answer.
    """

    impl: str
    properties: tuple[tuple[str, str], ...] = field(repr=False)

    def namespaces(self, parent: Name = ()) -> list[Name]:
        """Return the namespaces directly in a namespace, sorted."""
        names = self._list_all("list_namespaces", "ListNamespacesRequest", "namespaces", parent)
        return [(*parent, name) for name in names]

    def namespace_properties(self, name: Name) -> dict[str, str]:
        """Return the properties of a namespace."""
        answer = self._call("describe_namespace", "DescribeNamespaceRequest", name)
        return dict(answer.properties or {})

    def create_namespace(self, name: Name, properties: Mapping[str, str]) -> None:
        """Create a namespace. Its parent must exist."""
        _check(name)
        self._call("create_namespace", "CreateNamespaceRequest", name, properties=dict(properties))

    def alter_namespace(
        self,
        name: Name,
        values: Mapping[str, str],  # noqa: ARG002 (the protocol has it)
        removed: Sequence[str],  # noqa: ARG002
    ) -> None:
        """Raise an error: services cannot change properties.

        Raises:
            UnsupportedFormatError: always.
        """
        raise UnsupportedFormatError(
            f"a namespace service cannot change the properties of {display_name(name)}: make the "
            "namespace with them"
        )

    def drop_namespace(self, name: Name) -> None:
        """Remove an empty namespace."""
        self._call("drop_namespace", "DropNamespaceRequest", name, behavior="Restrict")

    def tables(self, namespace: Name = ()) -> list[Name]:
        """Return the tables directly in a namespace, sorted."""
        names = self._list_all("list_tables", "ListTablesRequest", "tables", namespace)
        return [(*namespace, name) for name in names]

    def table(self, name: Name) -> TableEntry:
        """Return the entry of a table."""
        _check(name)
        flags = {"check_declared": True, "vend_credentials": True}
        answer = self._call("describe_table", "DescribeTableRequest", name, **flags)
        if not answer.location:
            raise TableNotFoundError(f"the service does not say where table {display_name(name)} is")
        return TableEntry(
            name,
            answer.location,
            dict(answer.properties or {}),
            dict(answer.storage_options or {}),
            bool(answer.is_only_declared),
        )

    def allocate_table_uri(self, name: Name) -> str:
        """Declare a new table and return the path that the service chose."""
        _check(name)
        try:
            answer = self._call("declare_table", "DeclareTableRequest", name)
        except TableExistsError:
            # A failed write left the declared name.
            entry = self.table(name)
            if not entry.declared:
                raise
            return entry.uri
        if not answer.location:
            raise StoreError(f"the service does not say where table {display_name(name)} is to be")
        return str(answer.location)

    def add(self, name: Name, uri: str, properties: Mapping[str, str]) -> None:
        """Do nothing: `allocate_table_uri` has already registered the name."""

    def rename(self, old: Name, new: Name) -> None:
        """Rename a table."""
        _check(new)
        more: dict[str, Any] = {} if old[:-1] == new[:-1] else {"new_namespace_id": list(new[:-1])}
        self._call("rename_table", "RenameTableRequest", old, new_table_name=new[-1], **more)

    def drop(self, name: Name) -> None:
        """Drop a table and its files."""
        self._call("drop_table", "DropTableRequest", name)

    def _list_all(self, verb: str, request: str, content: str, parent: Name) -> list[str]:
        names: list[str] = []
        token = None
        while True:
            answer = self._call(verb, request, parent, page_token=token)
            names += getattr(answer, content)
            token = answer.page_token
            if not token:
                return sorted(names)

    def _call(self, verb: str, request: str, name: Name, **values: Any) -> Any:
        arguments = {key: value for key, value in values.items() if value is not None}
        message = getattr(_package(), request)(id=list(name), **arguments)
        try:
            return getattr(self._client, verb)(message)
        except _package().LanceNamespaceError as error:
            kind = _ERRORS.get(type(error).__name__, StoreError)
            properties = dict(self.properties)
            reason = redacted(str(error), properties)
            raise kind(
                f"the namespace service refuses {verb} of {display_name(name) or 'the root'}: {reason}"
            ) from safe_cause(error, properties)

    @cached_property
    def _client(self) -> Any:
        properties = dict(self.properties)
        if self.impl == _REST:
            return _RestCalls(properties)
        _check_allowed(self.impl)
        try:
            return _package().connect(self.impl, properties)
        except (ValueError, ImportError) as error:
            reason = redacted(str(error), properties)
            raise OptionError(
                f"impl {self.impl!r} is not a namespace that can be opened: {reason}"
            ) from safe_cause(error, properties)


class _RestCalls:
    """The operations of a REST service as functions of one request."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._client = RestClient(properties)

    def __getattr__(self, verb: str) -> Callable[[Any], Any]:
        """Return the function of a call."""
        return lambda request: self._client.call(verb, request)


def _check_allowed(impl: str) -> None:
    """Check that an implementation may be loaded, so that a setting alone cannot import a module.

    Raises:
        OptionError: the implementation is not allowed.
    """
    package = _package()
    allowed = os.environ.get(IMPLEMENTATIONS, "").split(",")
    names = {*package.NATIVE_IMPLS, *package._REGISTERED_IMPLS, *(name.strip() for name in allowed)}
    if impl and impl in names:
        return
    module, _, name = impl.rpartition(".")
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, package.LanceNamespace)):
        raise OptionError(
            f"impl {impl!r} is not allowed: this process has not imported such a class of a namespace. "
            "Import it, or call lance_namespace.register_namespace_impl, in the driver's program, or list it "
            f"in the environment variable {IMPLEMENTATIONS}; a REST service is impl 'rest'"
        )


def _check(name: Name) -> None:
    for part in name:
        check_part(part)


def _package() -> Any:
    try:
        return importlib.import_module("lance_namespace")
    except ImportError as error:
        raise OptionError(
            "a catalog of a namespace service needs the package lance-namespace: "
            "pip install 'spark-lance[namespace]'"
        ) from error
