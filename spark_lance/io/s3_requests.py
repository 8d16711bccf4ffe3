"""Requests to S3 that bypass fsspec: list the first objects of a folder by name, and delete many at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from spark_lance.errors import StoreError
from spark_lance.io.stored_object import StoredObject

__all__ = ["DELETES_PER_REQUEST", "Send", "delete_objects", "first_objects"]

DELETES_PER_REQUEST = 1000


class Send(Protocol):
    """Sends a request about a path, and again while it fails for a moment."""

    def __call__(self, operation: str, path: str, **request: Any) -> Any:
        """Return the answer."""


def first_objects(send: Send, directory: str, limit: int) -> list[StoredObject]:
    """Return the objects in a directory and below whose names are the least, by one request."""
    bucket, _, key = directory.partition("/")
    prefix = f"{key.rstrip('/')}/" if key else ""
    answer = send("list_objects_v2", directory, Bucket=bucket, Prefix=prefix, MaxKeys=limit)
    return [
        StoredObject(f"{bucket}/{one['Key']}", int(one["Size"]), one["LastModified"], one.get("ETag"))
        for one in answer.get("Contents") or ()
    ]


def delete_objects(send: Send, paths: Sequence[str]) -> None:
    """Delete objects of one bucket, at most `DELETES_PER_REQUEST`; those that do not exist are fine.

    Raises:
        StoreError: some could not be deleted; others are gone.
    """
    bucket = paths[0].partition("/")[0]
    keys = [{"Key": path.partition("/")[2]} for path in paths]
    answer = send("delete_objects", paths[0], Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    if errors := answer.get("Errors"):
        first = errors[0]
        raise StoreError(
            f"{len(errors)} of {len(paths)} objects could not be deleted; {bucket}/{first.get('Key')}: "
            f"{first.get('Message') or first.get('Code')}"
        )
