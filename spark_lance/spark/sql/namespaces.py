"""Namespaces in SQL: CREATE, DROP, ALTER, SHOW and DESCRIBE NAMESPACE."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spark_lance.catalog.names import Name
from spark_lance.catalog.views import HoldsViews
from spark_lance.errors import NamespaceNotFoundError
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog

__all__ = [
    "alter_namespace",
    "create_namespace",
    "drop_namespace",
    "list_namespaces",
    "load_namespace",
    "open_catalog",
]

# The namespace of procedures, which is in no list.
_SYSTEM = ("system",)


def open_catalog(question: BridgeRequest) -> str:
    """Check the settings of a catalog, and return the version of this package."""
    OpenCatalog.of(question.request["catalog"], question.request["options"])
    release: str = import_module(__name__.partition(".")[0]).__version__
    return release


def list_namespaces(question: BridgeRequest) -> list[list[str]]:
    """Return the namespaces directly in one."""
    if not question.catalog.has_names:
        return []
    return [list(name) for name in question.catalog.names.namespaces(question.name)]


def load_namespace(question: BridgeRequest) -> dict[str, str]:
    """Return the properties of a namespace."""
    if question.name == _SYSTEM or (not question.catalog.has_names and not question.name):
        return {}
    return question.catalog.names.namespace_properties(question.name)


def create_namespace(question: BridgeRequest) -> None:
    """Make a namespace."""
    properties = {key: value for key, value in question.request["properties"].items() if key != "owner"}
    question.catalog.names.create_namespace(question.name, properties)


def alter_namespace(question: BridgeRequest) -> None:
    """Set and remove properties of a namespace."""
    question.catalog.names.alter_namespace(
        question.name, question.request["set"], question.request["removed"]
    )


def drop_namespace(question: BridgeRequest) -> None:
    """Remove a namespace; with CASCADE what is in it, too."""
    names = question.catalog.names
    if question.request["cascade"]:
        _drop_content(question, question.name)
    names.drop_namespace(question.name)


def _drop_content(question: BridgeRequest, namespace: Name) -> None:
    names: Any = question.catalog.names
    for name in names.tables(namespace):
        names.drop(name)
    if isinstance(names, HoldsViews):
        for name in names.list_views(namespace):
            names.views.drop(name)
    for inner in names.namespaces(namespace):
        _drop_content(question, inner)
        try:
            names.drop_namespace(inner)
        except NamespaceNotFoundError:
            continue  # somebody else dropped it meanwhile
