"""Tags and branches in pylance's shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_lance.compat.lance.raising import raises_os_errors
from spark_lance.table.versions.branches import Branches as _Branches
from spark_lance.table.versions.tags import Tags as _Tags

__all__ = ["Branches", "Tags"]


@raises_os_errors
class Tags:
    """The tags of a table."""

    def __init__(self, tags: _Tags) -> None:
        self._tags = tags

    def list(self) -> dict[str, dict[str, Any]]:
        """Return the tags by name."""
        return self._tags.list()

    def list_ordered(self, order: str | None = None) -> Sequence[tuple[str, dict[str, Any]]]:
        """Return names and tags by version: "desc", the default, or "asc"."""
        return sorted(self.list().items(), key=lambda item: item[1]["version"], reverse=order != "asc")

    def get_version(self, tag: str) -> int:
        """Return the version that a tag names."""
        return self._tags.get_version(tag)

    def create(self, tag: str, reference: Any = None) -> None:
        """Give a version a name."""
        self._tags.create(tag, reference)

    def update(self, tag: str, reference: Any = None) -> None:
        """Move a tag."""
        self._tags.update(tag, reference)

    def delete(self, tag: str) -> None:
        """Delete a tag."""
        self._tags.delete(tag)


@raises_os_errors
class Branches:
    """The branches of a table."""

    def __init__(self, branches: _Branches) -> None:
        self._branches = branches

    def list(self) -> dict[str, Any]:
        """Return the branches by name."""
        return self._branches.list()

    def list_ordered(self, order: str | None = None) -> Sequence[tuple[str, Any]]:
        """Return names and branches by the version at which they begin: "desc", the default, or "asc"."""
        key = lambda item: item[1]["parent_version"]  # noqa: E731
        return sorted(self.list().items(), key=key, reverse=order != "asc")

    def delete(self, branch: str) -> None:
        """Delete a branch."""
        self._branches.delete(branch)

    def replace_metadata(self, branch: str, metadata: dict[str, str]) -> None:
        """Replace the metadata of a branch."""
        self._branches.replace_metadata(branch, metadata)
