"""Tags as they are stored: names of versions, one small JSON object each.

    _refs/tags/{name}.json
    {"branch": null, "version": 3, "createdAt": "2026-01-31T12:00:00.123456789Z", "updatedAt": "...",
     "manifestSize": 572, "metadata": {}}

`branch` is null for the main line. Times are RFC 3339, UTC, down to nanoseconds. Earlier writers left out the
times and the metadata. (Lance table format, tags.)
"""

from __future__ import annotations

from typing import Any

from spark_lance.errors import FormatError, OptionError, TagNotFoundError
from spark_lance.io.store import Store, join
from spark_lance.table.versions.ref_files import Kinds, is_ref_name, parse_time, read_ref

__all__ = ["TAGS_DIR", "list_tags", "no_tag", "read_tag", "tag_path"]

TAGS_DIR = "_refs/tags"
# Names that an error tells.
_TOLD = 10
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


def tag_path(main: str, tag: str) -> str:
    """Return where a tag of the table whose main line is at `main` is stored.

    Raises:
        OptionError: the name cannot be a tag's.
    """
    if not _is_name(tag):
        raise OptionError(
            f"{tag!r} cannot be a tag: use letters, digits, '.', '-' and '_', no dot at either end, "
            "no two dots in a row, and no '.lock' at the end"
        )
    return join(main, TAGS_DIR, f"{tag}{_SUFFIX}")


def read_tag(store: Store, main: str, tag: str) -> dict[str, Any]:
    """Return a tag's object as it is stored.

    Raises:
        TagNotFoundError: there is no such tag.
        FormatError: it is damaged.
        OptionError: the name cannot be a tag's.
    """
    path = tag_path(main, tag)
    try:
        content = read_ref(store, path, _KINDS, "tag")
    except FileNotFoundError:
        raise no_tag(store, main, tag) from None
    if not 0 < content.get("version", 0) <= _MAX_U64:
        raise FormatError(f"a tag cannot name the version {content.get('version')}", path=path)
    return content


def no_tag(store: Store, main: str, tag: str) -> TagNotFoundError:
    """Return the error for a tag that is not there, which names some that are."""
    names = sorted(name.removesuffix(".json") for name in store.list(join(main, TAGS_DIR)))
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    choices = f"there are: {', '.join(names[:_TOLD])}{more}" if names else "the table has none"
    return TagNotFoundError(f"tag {tag!r} of {main} does not exist; {choices}")


def list_tags(store: Store, main: str) -> dict[str, dict[str, Any]]:
    """Return all tags by name, in order of their names.

    Each is a dict of `branch` (None: the main line), `version`, `created_at`, `updated_at` (UTC, or None if
    unknown), `manifest_size` (bytes) and `metadata`. Objects with other names are passed over.

    Raises:
        FormatError: a tag is damaged.
    """
    names = (
        name.removesuffix(_SUFFIX) for name in store.list(join(main, TAGS_DIR)) if name.endswith(_SUFFIX)
    )
    tags = {}
    for name in sorted(filter(_is_name, names)):
        try:
            content = read_tag(store, main, name)
        except TagNotFoundError:
            continue  # deleted since the directory was listed
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


def _is_name(tag: str) -> bool:
    dots = tag.startswith(".") or tag.endswith(".") or ".." in tag
    return is_ref_name(tag) and not dots and not tag.endswith(".lock")
