"""JSON out of files and settings, which anybody may have written: every fault is a ValueError."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is no JSON, or is nested deeper than Python can follow.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the members of a JSON object.

    Raises:
        ValueError: the text is no JSON object, or is nested deeper than Python can follow.
    """
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object is needed, not {type(value).__name__}")
    return value
