"""Errors in the form of pylance: every error is also an `OSError`.

An error keeps its other classes: code can also catch `spark_lance.errors.SchemaError` or `ValueError`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from types import FunctionType, GeneratorType
from typing import Any, TypeVar, cast

from spark_lance.errors import LanceError

__all__ = ["raises_os_errors"]

# Error class -> its subclass that is also an `OSError`.
_CLASSES: dict[type[LanceError], type[LanceError]] = {}
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def raises_os_errors(decorated: Decorated) -> Decorated:
    """Make a function raise errors that are also `OSError`s; for a class, every method and property."""
    if not isinstance(decorated, type):
        return cast("Decorated", _wrapped(decorated))
    for name, member in list(vars(decorated).items()):
        replacement = _member(member)
        if replacement is not member:
            setattr(decorated, name, replacement)
    return cast("Decorated", decorated)


def _member(member: Any) -> Any:
    if isinstance(member, FunctionType):
        return _wrapped(member)
    if isinstance(member, (classmethod, staticmethod)):
        return type(member)(_wrapped(member.__func__))
    if isinstance(member, property):
        return property(
            member.fget and _wrapped(member.fget),
            member.fset and _wrapped(member.fset),
            member.fdel and _wrapped(member.fdel),
            member.__doc__,
        )
    return member


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*positional: Any, **keywords: Any) -> Any:
        try:
            result = function(*positional, **keywords)
        except LanceError as error:
            raise _os_error(error) from error.__cause__
        return _iterated(result) if isinstance(result, GeneratorType) else result

    return call


def _iterated(results: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    try:
        return (yield from results)
    except LanceError as error:
        raise _os_error(error) from error.__cause__


def _os_error(error: LanceError) -> LanceError:
    """Return an error that is also an `OSError`, with the same classes, arguments and attributes."""
    if isinstance(error, OSError):
        return error
    base = type(error)
    kind = _CLASSES.get(base)
    if kind is None:
        kind = _CLASSES.setdefault(base, _os_error_class(base))
    copy = OSError.__new__(kind)
    copy.args = error.args
    copy.__dict__.update(error.__dict__)
    return copy.with_traceback(error.__traceback__)


def _os_error_class(kind: type[LanceError]) -> type[LanceError]:
    def __reduce__(error: LanceError) -> tuple[Any, ...]:  # noqa: N807 (a method of the class below)
        return kind, error.args, error.__dict__

    names = ("__module__", "__qualname__", "__doc__")
    attributes = {**{name: getattr(kind, name) for name in names}, "__reduce__": __reduce__}
    return type(kind.__name__, (kind, OSError), attributes)
