"""List, create, move and delete tags."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_lance.errors import OptionError, TagExistsError, VersionNotFoundError
from spark_lance.io.display import TableRepr, day_text
from spark_lance.io.store import Store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.branches import Branches
from spark_lance.table.versions.ref_files import (
    format_time,
    list_tags,
    no_tag,
    pack_ref,
    read_tag,
    tag_path,
)
from spark_lance.table.versions.resolve import MAIN, Reference, VersionRef, resolve
from spark_lance.table.versions.versions import find_version


@dataclass(frozen=True, repr=False)
class Tags(TableRepr):
    """The tags of a table.

    Attributes:
        main: the main line of the table.
        here: the version to tag by default.
    """

    main: TableRef
    here: VersionRef

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self.main.store

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        rows = [
            (name, tag["branch"] or "main", f"version {tag['version']}", day_text(tag["created_at"]))
            for name, tag in self.list().items()
        ]
        return f"tags of {self.main.root}", ("tag", "branch", "version", "created"), rows

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all tags by name, sorted by name; see `list_tags`.

        Raises:
            FormatError: a tag is damaged.
        """
        return list_tags(self.main)

    def get_version(self, tag: str) -> int:
        """Return the version number of a tag, on any branch.

        Raises:
            TagNotFoundError: there is no such tag.
            FormatError: it is damaged.
        """
        version: int = read_tag(self.main, tag)["version"]
        return version

    def create(self, tag: str, reference: Reference | None = None) -> None:
        """Create a tag for a version.

        Args:
            tag: letters, digits, `.`, `-` and `_`; no dot at either end and no two in a row, and no `.lock`
                at the end. Not `main`, which names the main line.
            reference: a version number, another tag, or (branch, version); default: the dataset's version.

        Raises:
            TagExistsError: the tag exists.
            VersionNotFoundError: the version does not exist.
            OptionError: the tag name is invalid.
        """
        if tag == MAIN:
            raise OptionError(
                f"{MAIN!r} cannot be a tag, because it names the main line: choose another name, such as "
                "'main-1'"
            )
        self.create_with_any_name(tag, reference)

    def create_with_any_name(self, tag: str, reference: Reference | None = None) -> None:
        """Create a tag, also with the name `main`, as pylance does; see `create`."""
        path = tag_path(self.main, tag)
        now = format_time(time.time_ns())
        ref = self._ref(reference)
        content: dict[str, Any] = {
            "branch": ref.branch,
            "version": ref.version,
            "createdAt": now,
            "updatedAt": now,
            "manifestSize": self._manifest_size(ref),
            "metadata": {},
        }
        try:
            self.store.put_if_absent(path, pack_ref(content))
        except FileExistsError:
            raise TagExistsError(f"tag {tag!r} exists already: update it, or delete it first") from None
        try:
            self._manifest_size(ref)
        except VersionNotFoundError:
            self.store.delete(path, self.main.root)
            raise

    def update(self, tag: str, reference: Reference | None = None) -> None:
        """Move a tag to another version; keep its metadata and creation time.

        Args:
            tag: an existing tag.
            reference: the new version, as in `create`.

        Raises:
            TagNotFoundError: there is no such tag.
            VersionNotFoundError: the version does not exist.
            FormatError: the tag is damaged.
        """
        path = tag_path(self.main, tag)
        before = read_tag(self.main, tag)
        ref = self._ref(reference)
        target = {"branch": ref.branch, "version": ref.version, "manifestSize": self._manifest_size(ref)}
        self.store.put(path, pack_ref(before | target | {"updatedAt": format_time(time.time_ns())}))
        try:
            self._manifest_size(ref)
        except VersionNotFoundError:
            self.store.put(path, pack_ref(before))
            raise

    def delete(self, tag: str) -> None:
        """Delete a tag, but not its version.

        Raises:
            TagNotFoundError: there is no such tag.
        """
        path = tag_path(self.main, tag)
        if not self.store.exists(path):
            raise no_tag(self.main, tag)
        self.store.delete(path, self.main.root)

    def _ref(self, reference: Reference | None) -> VersionRef:
        if reference is None:
            return self.here
        return resolve(self.main, reference, self.here.branch)

    def _manifest_size(self, ref: VersionRef) -> int:
        """Return the size of a version's manifest in bytes, and so check that the version exists.

        It is called before and after a tag is written. A clean-up that runs at the same time either sees the
        tag and puts the manifest back, or has deleted the manifest, which the second call detects.

        Raises:
            VersionNotFoundError: the version does not exist.
        """
        if ref.branch is not None and not Branches(self.main).exists(ref.branch):
            raise VersionNotFoundError(f"branch {ref.branch!r} of {self.main.root} does not exist")
        return self.store.size(find_version(TableRef(self.store, ref.root), ref.version).path)
