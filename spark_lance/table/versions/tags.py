"""Naming versions: list, create, move and delete tags."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import TagExistsError
from spark_lance.io.store import Store
from spark_lance.table.versions.ref_files import format_time, pack_ref
from spark_lance.table.versions.resolve import Reference, VersionRef, resolve
from spark_lance.table.versions.tag_files import TAGS_DIR, list_tags, no_tag, read_tag, tag_path
from spark_lance.table.versions.versions import find_version

__all__ = ["TAGS_DIR", "Tags"]


@dataclass(frozen=True)
class Tags:
    """The tags of a table.

    Attributes:
        store: where the table is.
        main: root path of its main line.
        here: the version that is tagged when none is named.
    """

    store: Store
    main: str
    here: VersionRef

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags by name, in order of their names; see `list_tags`.

        Raises:
            FormatError: a tag is damaged.
        """
        return list_tags(self.store, self.main)

    def get_version(self, tag: str) -> int:
        """Return the number of the version that a tag names, on whatever branch it is.

        Raises:
            TagNotFoundError: there is no such tag.
            FormatError: it is damaged.
        """
        version: int = read_tag(self.store, self.main, tag)["version"]
        return version

    def create(self, tag: str, reference: Reference | None = None) -> None:
        """Give a version a name.

        Args:
            tag: letters, digits, `.`, `-` and `_`; no dot at either end and no two in a row, and no `.lock`
                at the end.
            reference: a version, another tag of it, or (branch, version); the version of the dataset by
                default.

        Raises:
            TagExistsError: the tag exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the name cannot be used.
        """
        path = tag_path(self.main, tag)
        now = format_time(time.time_ns())
        target = self._target(reference)
        content = {
            "branch": target["branch"],
            "version": target["version"],
            "createdAt": now,
            "updatedAt": now,
            "manifestSize": target["manifestSize"],
            "metadata": {},
        }
        try:
            self.store.put_if_absent(path, pack_ref(content))
        except FileExistsError:
            raise TagExistsError(f"tag {tag!r} exists already: update or delete it") from None

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move a tag to another version; its metadata and the time of its creation stay.

        Args:
            tag: a tag that exists.
            reference: as for `create`.

        Raises:
            TagNotFoundError: there is no such tag.
            VersionNotFoundError: the version does not exist.
            FormatError: the tag is damaged.
        """
        content = read_tag(self.store, self.main, tag)
        content |= {**self._target(reference), "updatedAt": format_time(time.time_ns())}
        self.store.put(tag_path(self.main, tag), pack_ref(content))

    def delete(self, tag: str) -> None:
        """Delete a tag; its version stays.

        Raises:
            TagNotFoundError: there is no such tag.
        """
        path = tag_path(self.main, tag)
        if not self.store.exists(path):
            raise no_tag(self.store, self.main, tag)
        self.store.delete(path)

    def _target(self, reference: Reference | None) -> dict[str, Any]:
        """Return what a tag says of the version to name."""
        ref = self.here
        if reference is not None:
            ref = resolve(self.store, self.main, reference, self.here.branch)
        file = find_version(self.store, ref.root, ref.version)
        size = self.store.size(file.path)
        return {"branch": ref.branch, "version": ref.version, "manifestSize": size}
