"""Read and write the stored objects of tags and branches: one small JSON object each.

    _refs/tags/{name}.json
    {"branch": null, "version": 3, "createdAt": "2026-01-31T12:00:00.123456789Z", "updatedAt": "...",
     "manifestSize": 572, "metadata": {}}

`branch` is null for the main line. Times are RFC 3339, UTC, with nanoseconds. Old writers did not write
times and metadata. (Lance table format, tags.)

Refs are tags, which name versions, and branches. They are stored in `_refs/tags` and `_refs/branches` of the
main line, and are not part of any version. Unknown keys are kept when an object is rewritten.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import Any

from spark_lance.errors import FormatError, OptionError, TagNotFoundError, suggestion
from spark_lance.io.parallel import run_together
from spark_lance.io.store import Store
from spark_lance.io.stored_json import parse_object
from spark_lance.io.stored_names import check_path
from spark_lance.table.format.table_ref import TableRef

# Key of an object -> JSON type, and default if the key is missing.
Kinds = Mapping[str, tuple[type, Any]]

# The keys that name a branch, which is a directory below `tree`.
_BRANCH_KEYS = frozenset({"branch", "parentBranch"})
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)", re.ASCII)
_NANOS = 1_000_000_000


def is_ref_name(name: str) -> bool:
    """Return whether a text has only ASCII letters, digits, `.`, `-` and `_`."""
    return _NAME.fullmatch(name) is not None


def read_ref(store: Store, path: str, kinds: Kinds, what: str) -> dict[str, Any]:
    """Return a stored object, checked against `kinds`.

    Args:
        what: the kind of object, for errors.

    Raises:
        FileNotFoundError: the object does not exist.
        FormatError: the object is damaged.
    """
    data = store.read(path)
    try:
        content = parse_object(data)
    except ValueError as error:
        raise FormatError(f"undecodable {what}: {error}", path=path) from error
    for key, (kind, default) in kinds.items():
        value = content.get(key, default)
        if type(value) is not kind and not (value is None and default is None):
            raise FormatError(f"a {what}'s {key} cannot be {value!r}", path=path)
    for key in _BRANCH_KEYS & kinds.keys():
        if content.get(key) is not None:
            check_path(content[key], f"a {what}'s {key}", path)
    return content


def pack_ref(content: Mapping[str, Any]) -> bytes:
    """Return the serialized object."""
    return json.dumps(content, indent=2).encode()


def format_time(time_ns: int) -> str:
    """Return a time in nanoseconds since 1970 as RFC 3339 text in UTC."""
    seconds, nanos = divmod(time_ns, _NANOS)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def parse_time(text: str | None, path: str) -> datetime | None:
    """Parse RFC 3339 text in UTC; return a time with microseconds.

    Raises:
        FormatError: the text is not an RFC 3339 time in UTC.
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


TAGS_DIR = "_refs/tags"
# Maximum number of names in an error.
_MAX_NAMES = 10
_SUFFIX = ".json"
_MAX_U64 = 2**64 - 1
_KINDS: Kinds = {
    "branch": (str, None),
    "version": (int, 0),
    "createdAt": (str, None),
    "updatedAt": (str, None),
    "manifestSize": (int, 0),
    "metadata": (dict, {}),
}


def tag_path(main: TableRef, tag: str) -> str:
    """Return the path of a tag's object.

    Raises:
        OptionError: the tag name is invalid.
    """
    if not _is_tag_name(tag):
        raise OptionError(
            f"{tag!r} cannot be a tag: use letters, digits, '.', '-' and '_', no dot at either end, "
            "no two dots in a row, and no '.lock' at the end"
        )
    return main.path(TAGS_DIR, f"{tag}{_SUFFIX}")


def read_tag(main: TableRef, tag: str) -> dict[str, Any]:
    """Return the stored object of a tag.

    Raises:
        TagNotFoundError: the tag does not exist.
        FormatError: the object is damaged.
        OptionError: the tag name is invalid.
    """
    path = tag_path(main, tag)
    try:
        content = read_ref(main.store, path, _KINDS, "tag")
    except FileNotFoundError:
        raise no_tag(main, tag) from None
    if not 0 < content.get("version", 0) <= _MAX_U64:
        raise FormatError(f"a tag cannot name the version {content.get('version')}", path=path)
    return content


def no_tag(main: TableRef, tag: str) -> TagNotFoundError:
    """Return the error for a missing tag, with the names of existing tags."""
    names = sorted(name.removesuffix(".json") for name in main.store.list(main.path(TAGS_DIR)))
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    choices = f"there are: {', '.join(names[:_MAX_NAMES])}{more}" if names else "the table has none"
    return TagNotFoundError(f"tag {tag!r} of {main.root} does not exist; {choices}{suggestion(tag, names)}")


def list_tags(main: TableRef) -> dict[str, dict[str, Any]]:
    """Return all tags by name, sorted by name.

    Each is a dict of `branch` (None: the main line), `version`, `created_at`, `updated_at` (UTC, or None if
    unknown), `manifest_size` (bytes) and `metadata`. Objects with other names are ignored.

    Raises:
        FormatError: a tag is damaged.
    """
    stems = (
        name.removesuffix(_SUFFIX) for name in main.store.list(main.path(TAGS_DIR)) if name.endswith(_SUFFIX)
    )
    names = sorted(filter(_is_tag_name, stems))
    contents = run_together(main.store, [partial(_read_if_present, main, name) for name in names])
    tags = {}
    for name, content in zip(names, contents, strict=True):
        if content is None:
            continue
        path = tag_path(main, name)
        tags[name] = {
            "branch": content.get("branch"),
            "version": content["version"],
            "created_at": parse_time(content.get("createdAt"), path),
            "updated_at": parse_time(content.get("updatedAt"), path),
            "manifest_size": content.get("manifestSize", 0),
            "metadata": content.get("metadata", {}),
        }
    return tags


def _read_if_present(main: TableRef, tag: str) -> dict[str, Any] | None:
    """Return the stored object of a tag; None if the tag was deleted since the directory was listed."""
    try:
        return read_tag(main, tag)
    except TagNotFoundError:
        return None


def _is_tag_name(tag: str) -> bool:
    dots = tag.startswith(".") or tag.endswith(".") or ".." in tag
    return is_ref_name(tag) and not dots and not tag.endswith(".lock")
