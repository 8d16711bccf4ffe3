"""Tags: names of versions, kept as one small JSON object each under `_refs/tags`.

    _refs/tags/{name}.json
    {"branch": null, "version": 3, "createdAt": "2026-01-31T12:00:00.123456789Z", "updatedAt": "...",
     "manifestSize": 572, "metadata": {}}

`branch` is null for the main line. Times are RFC 3339, UTC, down to nanoseconds. Earlier writers left out the
times and the metadata. A tag is no part of any version's history. (Lance table format, tags.)
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from spark_lance.errors import (
    FormatError,
    OptionError,
    TagExistsError,
    TagNotFoundError,
    UnsupportedFormatError,
)
from spark_lance.io.store import Store, join
from spark_lance.table.refs import find_version

__all__ = ["TAGS_DIR", "Tags", "resolve_version"]

TAGS_DIR = "_refs/tags"
_SUFFIX = ".json"
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:Z|\+00:00)", re.ASCII)
_NANOS = 1_000_000_000
_MAX_U64 = 2**64 - 1
# What may stand in a tag: its JSON type, and what holds if it is absent.
_KINDS: dict[str, tuple[type, Any]] = {
    "branch": (str, None),
    "version": (int, 0),
    "createdAt": (str, None),
    "updatedAt": (str, None),
    "manifestSize": (int, 0),
    "metadata": (dict, {}),
}


@dataclass(frozen=True)
class Tags:
    """The tags of a table.

    Attributes:
        store: where the table is.
        root: the table's root path.
        version: the version that is tagged when none is named.
    """

    store: Store
    root: str
    version: int

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags by name, in order of their names.

        Each is a dict of `branch` (None: the main line), `version`, `created_at`, `updated_at` (UTC, or None
        if unknown), `manifest_size` (bytes) and `metadata`. Objects with other names are passed over.

        Raises:
            FormatError: a tag is damaged.
        """
        names = sorted(
            name.removesuffix(_SUFFIX)
            for name in self.store.list(join(self.root, TAGS_DIR))
            if name.endswith(_SUFFIX) and _is_name(name.removesuffix(_SUFFIX))
        )
        tags = {}
        for name in names:
            try:
                tags[name] = self._show(name)
            except TagNotFoundError:
                continue  # deleted since the directory was listed
        return tags

    def get_version(self, tag: str) -> int:
        """Return the version that a tag names.

        Raises:
            TagNotFoundError: there is no such tag.
            UnsupportedFormatError: it names a version of a branch.
            FormatError: it is damaged.
        """
        content = self._read(tag)
        if content.get("branch") is not None:
            raise UnsupportedFormatError(
                f"tag {tag!r} names a version of branch {content['branch']!r}; branches are not supported"
            )
        version: int = content["version"]
        return version

    def create(self, tag: str, reference: int | str | None = None) -> None:
        """Give a version a name.

        Args:
            tag: letters, digits, `.`, `-` and `_`; no dot at either end and no two in a row, and no `.lock`
                at the end.
            reference: a version, or another tag of it; the version of the dataset by default.

        Raises:
            TagExistsError: the tag exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
        """
        path = self._path(tag)
        now = _format_time(time.time_ns())
        number, size = self._target(reference)
        content: dict[str, Any] = {
            "branch": None,
            "version": number,
            "createdAt": now,
            "updatedAt": now,
            "manifestSize": size,
            "metadata": {},
        }
        try:
            self.store.put_if_absent(path, _pack(content))
        except FileExistsError:
            raise TagExistsError(f"tag {tag!r} exists already: update or delete it") from None

    def update(self, tag: str, reference: int | str | None = None) -> None:
        """Move a tag to another version; its metadata and the time of its creation stay.

        Args:
            tag: a tag that exists.
            reference: as for `create`.

        Raises:
            TagNotFoundError: there is no such tag.
            VersionNotFoundError: the version does not exist.
            FormatError: the tag is damaged.
        """
        content = self._read(tag)
        number, size = self._target(reference)
        now = _format_time(time.time_ns())
        content.update(branch=None, version=number, manifestSize=size, updatedAt=now)
        self.store.put(self._path(tag), _pack(content))

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays.

        Raises:
            TagNotFoundError: there is no such tag.
        """
        path = self._path(tag)
        if not self.store.exists(path):
            raise TagNotFoundError(f"tag {tag!r} of {self.root} does not exist")
        self.store.delete(path)

    def _target(self, reference: int | str | None) -> tuple[int, int]:
        """Return the number of the version to name and the size of its manifest."""
        number = self.version if reference is None else resolve_version(self.store, self.root, reference)
        file = find_version(self.store, self.root, number)
        return number, self.store.size(file.path)

    def _path(self, tag: str) -> str:
        _check_name(tag)
        return join(self.root, TAGS_DIR, f"{tag}{_SUFFIX}")

    def _read(self, tag: str) -> dict[str, Any]:
        path = self._path(tag)
        try:
            data = self.store.read(path)
        except FileNotFoundError:
            raise TagNotFoundError(f"tag {tag!r} of {self.root} does not exist") from None
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"undecodable tag: {error}", path=path) from error
        if not isinstance(content, dict):
            raise FormatError("a tag is a JSON object", path=path)
        for key, (kind, default) in _KINDS.items():
            value = content.get(key, default)
            if type(value) is not kind and not (value is None and default is None):
                raise FormatError(f"a tag's {key} cannot be {value!r}", path=path)
        if not 0 < content.get("version", 0) <= _MAX_U64:
            raise FormatError(f"a tag cannot name the version {content.get('version')}", path=path)
        return content

    def _show(self, tag: str) -> dict[str, Any]:
        content = self._read(tag)
        return {
            "branch": content.get("branch"),
            "version": content["version"],
            "created_at": _parse_time(content.get("createdAt"), self._path(tag)),
            "updated_at": _parse_time(content.get("updatedAt"), self._path(tag)),
            "manifest_size": content.get("manifestSize", 0),
            "metadata": content.get("metadata", {}),
        }


def resolve_version(store: Store, root: str, reference: int | str) -> int:
    """Return the number of a version that is given by number or by tag.

    Raises:
        TagNotFoundError: there is no such tag.
        UnsupportedFormatError: the tag names a version of a branch.
        FormatError: the tag is damaged.
        OptionError: the text cannot be a tag.
    """
    return Tags(store, root, 0).get_version(reference) if isinstance(reference, str) else reference


def _is_name(tag: str) -> bool:
    dots = tag.startswith(".") or tag.endswith(".") or ".." in tag
    return _NAME.fullmatch(tag) is not None and not dots and not tag.endswith(".lock")


def _check_name(tag: str) -> None:
    if not _is_name(tag):
        raise OptionError(
            f"{tag!r} cannot be a tag: use letters, digits, '.', '-' and '_', no dot at either end, "
            "no two dots in a row, and no '.lock' at the end"
        )


def _pack(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode()


def _format_time(time_ns: int) -> str:
    seconds, nanos = divmod(time_ns, _NANOS)
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def _parse_time(text: str | None, path: str) -> datetime | None:
    if text is None:
        return None
    match = _TIME.fullmatch(text)
    try:
        if match is not None:
            micros = (match[2] or "").ljust(6, "0")[:6]
            return datetime.fromisoformat(f"{match[1]}.{micros}+00:00")
    except ValueError as error:
        raise FormatError(f"a tag's time {text!r} is outside the calendar", path=path) from error
    raise FormatError(f"a tag's time is {text!r}", path=path)
