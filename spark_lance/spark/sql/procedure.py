"""The description of a procedure: its parameters, its function and its documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_lance.spark.options.table_properties import split_names
from spark_lance.spark.sql.catalogs import BridgeRequest


@dataclass(frozen=True)
class Parameter:
    """A parameter of a procedure; without a default it must be given. `default` is SQL."""

    name: str
    type: str
    comment: str
    default: str | None = None


# The result of procedures that rewrite files.
REWRITTEN = "fragments_removed, fragments_added, files_removed, files_added"
TABLE = Parameter("table", "string", "the table, as SQL names it inside of the catalog")


@dataclass(frozen=True)
class Procedure:
    """A procedure: its parameters, its function and its result.

    Attributes:
        run: called with the request, the table and the arguments by name; returns a DataFrame or None.
        parameters: behind `table`.
        doc: what it does, in a sentence.
        results: the columns of its result, separated by commas; several if an argument chooses between them,
            none if it always fails.
        on_table: whether there is a parameter `table` that names a table. Without one, `run` gets no table.
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
    """Return names that are separated by commas."""
    return split_names(value)


def number(value: str | None) -> int | str | None:
    """Return a version by number or by tag."""
    return int(value) if value is not None and value.isdigit() else value


def current_namespace(request: BridgeRequest) -> tuple[str, ...]:
    """Return the namespace that names of one part are in: the session's, if it is one of this catalog."""
    manager = request.subject.sessionState().catalogManager()
    if str(manager.currentCatalog().name()) != request.catalog.name:
        return ()
    return tuple(map(str, manager.currentNamespace()))
