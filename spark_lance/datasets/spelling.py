"""Names in snake_case and camelCase, and errors that suggest the right spelling.

`LanceDataset` and all functions of the package have snake_case names, like pylance. `LanceTable` has
camelCase names, like Delta's `DeltaTable`.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from spark_lance.errors import OptionTypeError, suggestion

# Public names that only other layers of the package use.
_INTERNAL = {"aliased", "at", "main_line", "manifest", "max_field_id", "plan_scan", "root", "searcher"}
_INTERNAL |= {"snapshot", "store", "table", "writeOptions"}


# Method names of DataFrames, Delta Lake and Iceberg -> the call here, for classes that have its first part.
_ELSEWHERE = {
    "compact": ("optimize().executeCompaction()", "compact_files()"),
    "executeCompaction": ("optimize().executeCompaction()",),
    "zorder": ("optimize().executeZOrderBy('a', 'b')",),
    "count": ("toDF().count()", "count_rows()"),
    "show": ("toDF().show()", "head(10)"),
    "select": ("toDF().select('a')", "to_table(columns=['a'])"),
    "where": ("toDF().where('a > 1')", "to_table(filter='a > 1')"),
    "filter": ("toDF().where('a > 1')", "to_table(filter='a > 1')"),
    "collect": ("toDF().collect()", "to_table()"),
    "toPandas": ("toDF().toPandas()", "to_pandas()"),
    "append": ("insert(rows)",),
    "search": ("to_table(nearest={'column': 'v', 'q': [0.1, 0.2], 'k': 10})",),
    "vacuum": ("cleanup_old_versions()",),
    "rollback": ("restoreToVersion(1)", "checkout_version(1).restore()"),
}


class SpellingHintMixin:
    """A class whose AttributeErrors suggest the other spelling of a name, if the class has it.

    `dir()` of its objects, which shells use for completion, hides private and internal names.
    """

    def __dir__(self) -> list[str]:
        names = object.__dir__(self)
        return [name for name in names if name[:1] != "_" or name[:2] == "__" if name not in _INTERNAL]

    if not TYPE_CHECKING:  # with it, type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            kind = type(self)
            if hasattr(kind, name):
                return object.__getattribute__(self, name)  # a property that raised: its own error
            message = f"{kind.__name__!r} object has no attribute {name!r}"
            other = next((o for o in (snake_case(name), camel_case(name)) if hasattr(kind, o)), None)
            if not name.startswith("_"):
                message += f": write {other!r}" if other is not None else _similar_names(kind, name)
            raise AttributeError(message, name=name, obj=self)


def _similar_names(kind: type, name: str) -> str:
    """Return "; did you mean x, y?" for public names of a class that begin with a name or look like it."""
    names = [each for each in dir(kind) if not each.startswith("_")]
    for call in _ELSEWHERE.get(name, ()):
        if call.partition("(")[0] in names:
            return f": write {call}"
    longer = [each for each in names if each.startswith(name)]
    near = longer or get_close_matches(name, names, 3)
    return f"; did you mean {', '.join(map(repr, near))}?" if near else ""


def split_names(text: str) -> list[str]:
    """Return the column names of a text such as "id, name", for an error that shows the list to write."""
    return [name.strip() for name in text.split(",")]


P = ParamSpec("P")
R = TypeVar("R")


def suggest_arguments(**advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator for functions: unknown keyword arguments raise an error with the right name.

    Args:
        advice: what to write instead of an argument that has another name here.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        names = list(inspect.signature(function).parameters)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    remedy = f": write {advice[name]}" if name in advice else suggestion(name, names)
                    remedy = remedy or f"; use {', '.join(names)}"
                    raise OptionTypeError(
                        f"{function.__name__}() got an unexpected keyword argument {name!r}{remedy}"
                    )
            return function(*args, **kwargs)

        return call

    return decorate


def snake_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in camelCase with their names in snake_case.

    Raises:
        OptionTypeError: a name is in snake_case.
    """
    for name in options:
        if camel_case(name) != name:
            raise OptionTypeError(f"{name!r} is no option here: write {camel_case(name)!r}")
    return {snake_case(name): value for name, value in options.items()}


def snake_case(name: str) -> str:
    """Return `max_rows` for `maxRows`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def camel_case(name: str) -> str:
    """Return `maxRows` for `max_rows`."""
    return re.sub(r"(?<=[a-zA-Z0-9])_([a-z0-9])", lambda match: match[1].upper(), name)
