"""Namespaces in SQL: CREATE, DROP, ALTER, SHOW and DESCRIBE NAMESPACE."""

from __future__ import annotations

from typing import Any

from spark_lance.catalog.names import Name
from spark_lance.catalog.views import ViewCatalog
from spark_lance.errors import NamespaceNotFoundError
from spark_lance.release import RELEASE
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog

# The namespace of procedures. Lists do not contain it.
_SYSTEM = ("system",)


def open_catalog(request: BridgeRequest) -> str:
    """Check the settings of a catalog, and return the version of this package."""
    OpenCatalog.of(request.body["catalog"], request.body["options"])
    return RELEASE


def list_namespaces(request: BridgeRequest) -> list[list[str]]:
    """Return the namespaces directly in one."""
    if not request.catalog.has_names:
        return []
    return [list(name) for name in request.catalog.names.namespaces(request.name)]


def load_namespace(request: BridgeRequest) -> dict[str, str]:
    """Return the properties of a namespace."""
    if request.name == _SYSTEM or (not request.catalog.has_names and not request.name):
        return {}
    return request.catalog.names.namespace_properties(request.name)


def create_namespace(request: BridgeRequest) -> None:
    """Create a namespace."""
    properties = {key: value for key, value in request.body["properties"].items() if key != "owner"}
    request.catalog.names.create_namespace(request.name, properties)


def alter_namespace(request: BridgeRequest) -> None:
    """Set and remove properties of a namespace."""
    request.catalog.names.alter_namespace(request.name, request.body["set"], request.body["removed"])


def drop_namespace(request: BridgeRequest) -> None:
    """Drop a namespace, with CASCADE including its content."""
    names = request.catalog.names
    if request.body["cascade"]:
        _drop_content(request, request.name)
    names.drop_namespace(request.name)


def _drop_content(request: BridgeRequest, namespace: Name) -> None:
    names: Any = request.catalog.names
    for name in names.tables(namespace):
        names.drop(name)
    if isinstance(names, ViewCatalog):
        for name in names.list_views(namespace):
            names.views.drop(name)
    for inner in names.namespaces(namespace):
        _drop_content(request, inner)
        try:
            names.drop_namespace(inner)
        except NamespaceNotFoundError:
            continue  # dropped concurrently
