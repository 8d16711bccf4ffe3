"""Literals of Spark's, which come as JSON: the type, and the value in Spark's own form, as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from typing import Any

__all__ = ["NoValueError", "literal_of", "literals_of"]

_EPOCH = datetime(1970, 1, 1)


class NoValueError(Exception):
    """Something is not a literal that has the same meaning here."""


def literal_of(node: Mapping[str, Any]) -> Any:
    """Return the value of a literal: {"type": its type as JSON, "value": text}.

    Raises:
        NoValueError: it is none, or of a type whose values are others here.
    """
    if "type" not in node:
        raise NoValueError
    text = node["value"]
    if text is None:
        return None
    read = _reader_of(node["type"])
    if read is None:
        raise NoValueError
    try:
        return read(text)
    except OverflowError:  # Python's times end with the year 9999
        raise NoValueError from None


def literals_of(node: Mapping[str, Any]) -> list[Any]:
    """Return the values of literals of one type: {"type": its type as JSON, "values": texts}.

    Raises:
        NoValueError: the type's values are others here.
    """
    read = _reader_of(node["type"])
    if read is None:
        raise NoValueError
    try:
        return [None if text is None else read(text) for text in node["values"]]
    except OverflowError:
        raise NoValueError from None


@lru_cache(64)
def _reader_of(kind: str) -> Callable[[str], Any] | None:
    """Return what reads the values of a type, given as JSON; lists of literals have thousands of one type."""
    parsed = json.loads(kind)
    return (
        _DECIMAL if isinstance(parsed, str) and parsed.startswith("decimal") else _LITERALS.get(str(parsed))
    )


def _moment(text: str) -> datetime:
    return _EPOCH.replace(tzinfo=timezone.utc) + timedelta(microseconds=int(text))


_DECIMAL: Callable[[str], Any] = Decimal
# Type of a literal -> its value from text. Others, such as strings with a collation, stay with Spark.
_LITERALS: dict[str, Callable[[str], Any]] = {
    "boolean": lambda text: text == "true",
    "byte": int,
    "short": int,
    "integer": int,
    "long": int,
    "float": float,
    "double": float,
    "string": str,
    "binary": bytes.fromhex,
    "date": lambda text: date(1970, 1, 1) + timedelta(days=int(text)),
    "timestamp": _moment,
    "timestamp_ntz": lambda text: _EPOCH + timedelta(microseconds=int(text)),
}
