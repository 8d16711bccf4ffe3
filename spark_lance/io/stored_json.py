"""Parsing of untrusted JSON from files and settings. Every error is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply for Python.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the members of a JSON object.

    Raises:
        ValueError: the text is not a JSON object, or is nested too deeply for Python.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
    return value
