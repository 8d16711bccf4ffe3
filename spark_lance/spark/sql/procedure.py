"""The description of a procedure: its parameters, its function and its documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import OptionError
from spark_lance.spark.options.table_properties import split_names
from spark_lance.spark.sql.catalogs import BridgeRequest


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure. `default` is SQL text; None makes the parameter required."""

    name: str
    type: str
    comment: str
    default: str | None = None


# The result of procedures that rewrite files.
REWRITTEN = "fragments_removed, fragments_added, files_removed, files_added, path, metrics"
TABLE = Parameter("table", "string", "the table's name in the catalog, or its path")


@dataclass(frozen=True)
class Procedure:
    """A procedure: its parameters, its function and its result.

    Attributes:
        run: called with the request, the table and the arguments by name; returns a DataFrame or None.
        parameters: the parameters after `table`.
        doc: the effect of the procedure, in one sentence.
        results: lists of result columns, separated by commas: several if an argument selects one of them,
            none if the procedure always fails.
        on_table: whether the procedure has the parameter `table`. If not, `run` gets no table.
    """

    run: Callable[[BridgeRequest, Any, Mapping[str, Any]], Any]
    parameters: tuple[Parameter, ...]
    doc: str
    results: tuple[str, ...] = ("done",)
    on_table: bool = True

    @property
    def all_parameters(self) -> tuple[Parameter, ...]:
        """The parameters, `table` first."""
        return (TABLE, *self.parameters) if self.on_table else self.parameters


def idle(**types: str) -> tuple[Parameter, ...]:
    """Return parameters of other formats that have no effect, by name and type."""
    return tuple(Parameter(name, kind, "does nothing", "NULL") for name, kind in types.items())


def refused(run: Callable[..., Any], *parameters: Parameter, on_table: bool = True) -> Procedure:
    """Return a procedure of another format that only raises an error with the statement to write instead."""
    doc = "Not supported; the error has the statement to write instead."
    return Procedure(run, parameters, doc, results=(), on_table=on_table)


def texts(value: str) -> list[str]:
    """Split a comma-separated list of names."""
    return split_names(value)


def check_exclusive(a: Mapping[str, Any]) -> None:
    """Check that the arguments do not have both OR REPLACE and IF NOT EXISTS.

    Raises:
        OptionError: they do.
    """
    if a["replace"] and a["if_not_exists"]:
        raise OptionError("OR REPLACE and IF NOT EXISTS exclude each other: leave out one of them")


def number(value: str | None) -> int | str | None:
    """Return the number of a version as an integer; a tag unchanged."""
    return int(value) if value is not None and value.isdigit() else value


def current_namespace(request: BridgeRequest) -> tuple[str, ...]:
    """Return the namespace of names with one part: the session's, if the session uses this catalog."""
    manager = request.subject.sessionState().catalogManager()
    if str(manager.currentCatalog().name()) != request.catalog.name:
        return ()
    return tuple(map(str, manager.currentNamespace()))
