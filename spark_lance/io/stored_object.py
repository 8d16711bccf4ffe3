"""Objects as listings report them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

_TIME_KEYS = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing.

    Attributes:
        path: path inside the store.
        size: size in bytes.
        modified: time of the last write, in UTC; None if the listing does not contain it.
        tag: entity tag, which changes with the content; None if the listing does not contain it.
    """

    path: str
    size: int
    modified: datetime | None
    tag: str | None = None

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def stored_object(entry: Mapping[str, Any], path: str) -> StoredObject:
    """Return the object for an entry of an fsspec listing."""
    modified = next((entry[key] for key in _TIME_KEYS if entry.get(key) is not None), None)
    if isinstance(modified, int | float):
        modified = datetime.fromtimestamp(modified, timezone.utc)
    elif isinstance(modified, str):
        modified = datetime.fromisoformat(modified.replace("Z", "+00:00"))
    if not isinstance(modified, datetime):
        return StoredObject(path, int(entry["size"]), None)
    aware = modified if modified.tzinfo else modified.replace(tzinfo=timezone.utc)
    return StoredObject(path, int(entry["size"]), aware.astimezone(timezone.utc))
