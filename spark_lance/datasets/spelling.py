"""Names of arguments in both spellings: num_partitions and numPartitions are one.

Without Spark, arguments are spelled as pylance spells them; with Spark, as Spark does. Programs that use both
faces take either: a name that a function does not have is looked up in the other spelling.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

from spark_lance.errors import OptionTypeError

__all__ = ["both_spellings", "both_spellings_of_methods"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)


def both_spellings(function: _Function, *, passes_on: bool = True) -> _Function:
    """Let a function take its named arguments in snake_case and in camelCase.

    Args:
        function: the function.
        passes_on: whether what it takes by `**` are arguments, too; these are in snake_case everywhere.
    """
    parameters = inspect.signature(function).parameters
    named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = {name for name, each in parameters.items() if each.kind in named}
    takes_all = passes_on and any(each.kind is each.VAR_KEYWORD for each in parameters.values())

    @wraps(function)
    def either(*args: Any, **keywords: Any) -> Any:
        if keywords.keys() <= names:
            return function(*args, **keywords)
        return function(*args, **_spelled(keywords, names, takes_all, function.__name__))

    return either  # type: ignore[return-value]


def _spelled(keywords: Mapping[str, Any], names: set[str], takes_all: bool, function: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in keywords.items():
        spelling = name
        if name not in names:
            snake, camel = _snake(name), _camel(name)
            spelling = next(
                (other for other in (snake, camel) if other in names), snake if takes_all else name
            )
        if spelling in result:
            raise OptionTypeError(f"{function}() got {spelling} twice, in two spellings")
        result[spelling] = value
    return result


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda match: f"_{match[1].lower()}", name)


def _camel(name: str) -> str:
    return re.sub(r"(?<=[a-zA-Z0-9])_([a-z0-9])", lambda match: match[1].upper(), name)


def both_spellings_of_methods(kind: _Class) -> _Class:
    """Let all public methods of a class, inherited ones too, take both spellings.

    Class methods take options of a data source by `**`; these have one spelling.
    """
    for name in dir(kind):
        if name.startswith("_"):
            continue
        attribute = inspect.getattr_static(kind, name)
        plain = attribute.__func__ if isinstance(attribute, staticmethod | classmethod) else attribute
        if not inspect.isfunction(plain) or not _has_two_words(plain):
            continue
        wrapper: Any = both_spellings(plain, passes_on=plain is attribute)
        setattr(kind, name, type(attribute)(wrapper) if plain is not attribute else wrapper)
    return kind


def _has_two_words(function: Callable[..., Any]) -> bool:
    """Whether an argument has two spellings."""
    parameters = inspect.signature(function).parameters
    return any(
        each.kind is each.VAR_KEYWORD or _snake(name) != name or _camel(name) != name
        for name, each in parameters.items()
    )
