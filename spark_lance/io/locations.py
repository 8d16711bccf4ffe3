"""Parsing of URIs and paths."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from spark_lance.errors import OptionTypeError, StoreError

LOCAL = frozenset({"file", "local"})
IN_REACH = LOCAL | {"memory"}  # no network, so no transient failures
# A scheme without two slashes. A single letter is a Windows drive.
_SHORT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?!//)")


def join(root: str, *parts: str) -> str:
    """Join path parts with '/', whatever the platform."""
    return "/".join([root.rstrip("/"), *parts])


def uri_text(value: object) -> str:
    """Return a URI or path as text.

    Raises:
        OptionTypeError: the value is neither text nor a path.
    """
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if text == "":
        raise OptionTypeError("the path of the table is empty: write a path or URI, such as /data/t")
    if isinstance(text, str):
        return text
    # A mapping may be storage options in the wrong place.
    description = type(value).__name__ if isinstance(value, Mapping) else repr(value)
    raise OptionTypeError(f"a table is given by its path or URI as text, not as {description}")


def full_uri(text: str) -> str:
    """Return a URI with two slashes after its scheme: without them fsspec takes it for a local folder.

    Raises:
        StoreError: the URI has a scheme but no authority, such as dbfs:/x, s3:x or s3://.
    """
    if text.endswith("://") and text[:-3].lower() not in (*LOCAL, "memory"):
        raise StoreError(f"{text} lacks a bucket or host, and a path: write a URI such as {text}bucket/t")
    match = _SHORT.match(text)
    if match is None:
        return text
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme in LOCAL and rest.startswith("/"):
        return f"{scheme}://{rest}"
    lacks = "is one slash" if rest.startswith("/") else "are no slashes"
    instead = f"{scheme}://, host or bucket, and path"
    if scheme == "dbfs":
        instead = f"the mounted path /dbfs/{rest.lstrip('/')}"
    elif scheme in LOCAL:
        instead = rest or "a path"
    raise StoreError(
        f"{text} cannot be opened, for there {lacks} behind {scheme}: write {instead}; a local folder "
        f"of this name is ./{text}"
    )


def uri_protocol(uri: str) -> str:
    """Return fsspec's name for the protocol of a URI or path."""
    if "://" not in uri and "::" not in uri:
        return "file"
    from fsspec.utils import get_protocol

    return str(get_protocol(uri))
