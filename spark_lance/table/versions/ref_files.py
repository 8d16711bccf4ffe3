"""Refs: small JSON objects that name versions (tags) and lines of versions (branches).

They lie under the root of the main line, in `_refs/tags` and `_refs/branches`, and belong to no version's
history. Unknown keys are kept when an object is written again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from spark_lance.errors import FormatError
from spark_lance.io.store import Store
from spark_lance.io.stored_names import check_path

__all__ = ["Kinds", "format_time", "is_ref_name", "pack_ref", "parse_time", "read_ref"]

# The members of an object: JSON type, and default if the member is absent.
Kinds = Mapping[str, tuple[type, Any]]

# The keys that name a branch, which is a directory below `tree`.
_BRANCH_KEYS = frozenset({"branch", "parentBranch"})
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)", re.ASCII)
_NANOS = 1_000_000_000


def is_ref_name(name: str) -> bool:
    """Whether a text consists of letters, digits, `.`, `-` and `_` only."""
    return _NAME.fullmatch(name) is not None


def read_ref(store: Store, path: str, kinds: Kinds, what: str) -> dict[str, Any]:
    """Return an object as it is stored.

    Args:
        what: the kind of object, for messages.

    Raises:
        FileNotFoundError: it does not exist.
        FormatError: it is damaged.
    """
    data = store.read(path)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"undecodable {what}: {error}", path=path) from error
    if not isinstance(content, dict):
        raise FormatError(f"a {what} is a JSON object", path=path)
    for key, (kind, default) in kinds.items():
        value = content.get(key, default)
        if type(value) is not kind and not (value is None and default is None):
            raise FormatError(f"a {what}'s {key} cannot be {value!r}", path=path)
    for key in _BRANCH_KEYS & kinds.keys():
        if content.get(key) is not None:
            check_path(content[key], f"a {what}'s {key}", path)
    return content


def pack_ref(content: Mapping[str, Any]) -> bytes:
    """Serialize an object."""
    return json.dumps(content, indent=2).encode()


def format_time(time_ns: int) -> str:
    """Return a time, nanoseconds since the epoch, as RFC 3339 text in UTC."""
    seconds, nanos = divmod(time_ns, _NANOS)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def parse_time(text: str | None, path: str) -> datetime | None:
    """Return RFC 3339 text in UTC as a time of microseconds.

    Raises:
        FormatError: the text is not such a time.
    """
    if text is None:
        return None
    match = _TIME.fullmatch(text)
    try:
        if match is not None:
            micros = (match[2] or "").ljust(6, "0")[:6]
            return datetime.fromisoformat(f"{match[1]}.{micros}+00:00")
    except ValueError as error:
        raise FormatError(f"the time {text!r} is outside the calendar", path=path) from error
    raise FormatError(f"{text!r} is not a valid time", path=path)
