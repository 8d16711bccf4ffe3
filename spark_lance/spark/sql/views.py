"""SQL views: load, list, create, replace, rename and drop, for Spark releases with views in catalogs.

Java sends and receives the members of a view (`spark_lance.catalog.views`). Spark has already checked the
query.
"""

from __future__ import annotations

import json
from typing import Any

from spark_lance.catalog.views import CATALOG_SETTINGS, ViewCatalog
from spark_lance.errors import (
    LanceError,
    OptionError,
    TableNotFoundError,
    UnsupportedFormatError,
    ViewNotFoundError,
)
from spark_lance.spark.sql.catalogs import BridgeRequest, OpenCatalog, inside, is_path
from spark_lance.spark.sql.tables import load_table


def load_relation(request: BridgeRequest) -> dict[str, Any]:
    """Return the table with a name, or the view with this name if no table has it."""
    try:
        return load_table(request)
    except LanceError as error:
        if not isinstance(error, TableNotFoundError | OptionError) or not _may_be_view(request):
            raise
        try:
            return load_view(request)
        except ViewNotFoundError:
            raise error from None


def load_view(request: BridgeRequest) -> dict[str, Any]:
    """Return the members of a view.

    Raises:
        ViewNotFoundError: the view does not exist.
    """
    if not _may_be_view(request):
        raise ViewNotFoundError(f"view {request.name[-1]!r} does not exist")
    view = _views(request.catalog).views.load(request.name)
    return {"view": {**view, "schema": json.dumps(view["schema"])}}


def list_views(request: BridgeRequest) -> list[str]:
    """Return the names of the views directly in a namespace."""
    catalog = request.catalog
    if not catalog.has_names or not isinstance(catalog.names, ViewCatalog):
        return []
    return [name[-1] for name in catalog.names.list_views(request.name)]


def create_view(request: BridgeRequest) -> None:
    """Create a view.

    Raises:
        ViewExistsError: a view or a table has the name.
    """
    _check_name(request)
    _views(request.catalog).create_view(request.name, _members(request))


def replace_view(request: BridgeRequest) -> None:
    """Replace a view; with `creates`, create it if it does not exist.

    Raises:
        ViewNotFoundError: the view does not exist, and `creates` is not set.
        ViewExistsError: a table has the name.
    """
    _check_name(request)
    names, view = _views(request.catalog), _members(request)
    try:
        names.views.replace(request.name, view)
    except ViewNotFoundError:
        if not request.body["creates"]:
            raise
        names.create_view(request.name, view)


def drop_view(request: BridgeRequest) -> bool:
    """Drop a view; return False if it does not exist."""
    return _may_be_view(request) and _views(request.catalog).views.drop(request.name)


def rename_view(request: BridgeRequest) -> None:
    """Rename a view, see `rename_table`."""
    catalog, old, new = request.catalog, request.name, tuple(request.body["to"])
    if not _may_be_view(request):
        raise ViewNotFoundError(f"view {old[-1]!r} does not exist")
    _views(catalog).rename_view(old, (*old[:-1], *new) if len(new) == 1 else inside(catalog, new))


def _may_be_view(request: BridgeRequest) -> bool:
    """Return whether a name can refer to a view: it is not a path, and the catalog has views."""
    catalog = request.catalog
    return not is_path(request.name) and catalog.has_names and isinstance(catalog.names, ViewCatalog)


def _check_name(request: BridgeRequest) -> None:
    if is_path(request.name):
        raise OptionError(
            f"{request.name[0]} is a path: a view needs a name, such as {request.catalog.name}.db.v"
        )


def _views(catalog: OpenCatalog) -> ViewCatalog:
    """Return the names of a catalog that has views.

    Raises:
        UnsupportedFormatError: the catalog is a namespace service, which does not keep views.
        NamespaceNotFoundError: the catalog has no root.
    """
    names = catalog.names
    if not isinstance(names, ViewCatalog):
        raise UnsupportedFormatError(
            f"the namespace service of catalog {catalog.name} does not store views: write "
            f"CREATE VIEW spark_catalog.default.v AS SELECT ... FROM {catalog.name}.db.t"
        )
    return names


def _members(request: BridgeRequest) -> dict[str, Any]:
    view = dict(request.body["view"])
    # Spark adds the class of its own catalog if a session has set it; a view must not choose classes.
    configs = {
        key: value for key, value in view["sql_configs"].items() if not key.startswith(CATALOG_SETTINGS)
    }
    return {**view, "schema": json.loads(view["schema"]), "sql_configs": configs}
