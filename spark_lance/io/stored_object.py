"""The facts that a listing contains about an object."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from spark_lance.io.failures import local_failure

__all__ = ["StoredObject", "file_of_disk", "files_of_disk", "stored_object"]

_TIME_KEYS = ("LastModified", "last_modified", "mtime", "modified", "updated", "created")


@dataclass(frozen=True)
class StoredObject:
    """An object in a listing.

    Attributes:
        path: inside the store.
        size: in bytes.
        modified: when it was written, in UTC; None if the listing does not contain it.
        tag: changes with the content of the object; None if the listing does not contain it.
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
    """Return the object for an entry of fsspec's listings."""
    modified = next((entry[key] for key in _TIME_KEYS if entry.get(key) is not None), None)
    if isinstance(modified, int | float):
        modified = datetime.fromtimestamp(modified, timezone.utc)
    elif isinstance(modified, str):
        modified = datetime.fromisoformat(modified.replace("Z", "+00:00"))
    if not isinstance(modified, datetime):
        return StoredObject(path, int(entry["size"]), None)
    aware = modified if modified.tzinfo else modified.replace(tzinfo=timezone.utc)
    return StoredObject(path, int(entry["size"]), aware.astimezone(timezone.utc))


def file_of_disk(path: str) -> StoredObject:
    """Return size and time of a file of this machine.

    Raises:
        FileNotFoundError: there is none.
    """
    try:
        status = Path(path).stat()
    except NotADirectoryError:
        raise
    except OSError as error:
        raise local_failure(error, f"looking up {path}") from None
    if stat.S_ISDIR(status.st_mode):
        raise FileNotFoundError(f"{path} is a directory")
    return StoredObject(path, status.st_size, datetime.fromtimestamp(status.st_mtime, timezone.utc))


def files_of_disk(directory: str, recursive: bool) -> Iterator[StoredObject]:
    """Yield the files in a local directory, and below it if `recursive`; none if it is missing.

    A link to a file counts as that file; links to directories, which may be another table's, are left out.
    Unlike fsspec's `find` this passes over no directory that it may not list: who takes what is listed for
    all that there is would lose files.

    Raises:
        StoreError: a directory cannot be listed.
    """
    inside = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    inside.append(entry.name)
                elif entry.is_file():
                    # It may be deleted while the directory is listed.
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        modified = datetime.fromtimestamp(status.st_mtime, timezone.utc)
                        yield StoredObject(f"{directory}/{entry.name}", status.st_size, modified)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise local_failure(error, f"listing {directory}") from None
    for name in inside if recursive else ():
        yield from files_of_disk(f"{directory}/{name}", recursive)
