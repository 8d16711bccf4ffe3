"""Branches: histories that start from a version of the main line or of another branch.

    _refs/branches/{name, URL-encoded}.json        feat/x is feat%2Fx.json
    {"parentBranch": null, "identifier": {"version_mapping": [[2, "32 hex digits"]]}, "parentVersion": 2,
     "createAt": 1795273643, "manifestSize": 423, "metadata": {}}
    tree/{name}/                                   the branch: a separate table that shares older files

`identifier` is the chain of (version branched from, id of the branch), from the main line down to this
branch. Old writers did not write it. `createAt` is in seconds. (Lance table format, branches.)
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from spark_lance.errors import (
    BranchExistsError,
    BranchInUseError,
    BranchNotFoundError,
    FormatError,
    OptionError,
    suggestion,
)
from spark_lance.io.display import TableRepr, day_text
from spark_lance.io.locations import join
from spark_lance.io.parallel import run_together
from spark_lance.io.store import Store
from spark_lance.table.format.paths import (
    DATA_DIR,
    DELETIONS_DIR,
    INDICES_DIR,
    TRANSACTIONS_DIR,
    VERSIONS_DIR,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.ref_files import Kinds, list_tags, pack_ref, read_ref

_Result = TypeVar("_Result")

BRANCHES_DIR = "_refs/branches"
TREE_DIR = "tree"
_SUFFIX = ".json"
# Maximum number of branches in an error.
_MAX_NAMES = 20
_KINDS: Kinds = {
    "parentBranch": (str, None),
    "identifier": (dict, None),
    "parentVersion": (int, 0),
    "createAt": (int, 0),
    "manifestSize": (int, 0),
    "metadata": (dict, {}),
}


def branch_line(main: TableRef, branch: str) -> TableRef:
    """Return the location of a branch of the table with the main line `main`."""
    return TableRef(main.store, main.path(TREE_DIR, branch))


@dataclass(frozen=True, repr=False)
class Branches(TableRepr):
    """The branches of a table.

    Attributes:
        main: the main line of the table.
    """

    main: TableRef

    @property
    def store(self) -> Store:
        """The store of the table."""
        return self.main.store

    def _repr_rows(self) -> tuple[str, Sequence[str], Iterable[Sequence[object]]]:
        rows = [
            (
                name,
                f"from {branch['parent_branch'] or 'main'}",
                f"version {branch['parent_version']}",
                day_text(branch["created_at"]),
            )
            for name, branch in self.list().items()
        ]
        return f"branches of {self.main.root}", ("branch", "from branch", "from version", "created"), rows

    def list(self) -> dict[str, dict[str, Any]]:
        """Return all branches by name, sorted by name.

        Each is a dict of `parent_branch` (None: the main line), `parent_version`, `created_at` (UTC),
        `manifest_size` (bytes) and `metadata`. Objects with other names are ignored.

        Raises:
            FormatError: a branch is damaged.
        """
        names = list(self._names())
        entries = run_together(self.store, [partial(self._get_if_present, name) for name in names])
        return {name: entry for name, entry in zip(names, entries, strict=True) if entry is not None}

    def _get_if_present(self, branch: str) -> dict[str, Any] | None:
        """Return the entry of a branch; None if the branch was deleted since the directory was listed."""
        try:
            return self.get(branch)
        except BranchNotFoundError:
            return None

    def get(self, branch: str) -> dict[str, Any]:
        """Return the entry of one branch, as in `list`.

        Raises:
            BranchNotFoundError: there is no such branch.
            FormatError: it is damaged.
        """
        content = self._read(branch)
        try:
            created = datetime.fromtimestamp(content.get("createAt", 0), timezone.utc)
        except (ValueError, OverflowError, OSError) as error:
            raise FormatError("a branch's createAt is outside the calendar", self._path(branch)) from error
        return {
            "parent_branch": content.get("parentBranch"),
            "parent_version": content.get("parentVersion", 0),
            "created_at": created,
            "manifest_size": content.get("manifestSize", 0),
            "metadata": content.get("metadata", {}),
        }

    def identity(self, branch: str) -> str:
        """Return the id of a branch, which differs from a deleted branch with the same name.

        Raises:
            BranchNotFoundError: there is no such branch.
            FormatError: it is damaged.
        """
        content = self._read(branch)
        chain = (content.get("identifier") or {}).get("version_mapping") or []
        return str(chain[-1][1]) if chain else str(content.get("createAt", 0))

    def exists(self, branch: str) -> bool:
        """Return whether a branch with this name exists."""
        return self.store.exists(self._path(branch))

    def check_new(self, branch: str) -> None:
        """Refuse a name if no branch with this name can be created.

        Raises:
            BranchExistsError: the branch exists.
            OptionError: the name is invalid, or differs from another branch only by case on a disk that
                ignores case.
        """
        if self.exists(branch):
            raise BranchExistsError(
                f"branch {branch!r} of {self.main.root} exists already: use it, or delete it first"
            )
        self._check_alone(branch, self._names())

    def record(self, branch: str, parent: str | None, version: int, manifest_size: int) -> None:
        """Register a branch whose first version exists.

        Raises:
            BranchExistsError: another writer registered the branch first.
            FormatError: the parent branch is damaged.
        """
        chain: list[Any] = []
        if parent is not None:
            chain = list((self._read(parent).get("identifier") or {}).get("version_mapping") or [])
        content = {
            "parentBranch": parent,
            "identifier": {"version_mapping": [*chain, [version, uuid.uuid4().hex]]},
            "parentVersion": version,
            "createAt": int(time.time()),
            "manifestSize": manifest_size,
            "metadata": {},
        }
        try:
            self.store.put_if_absent(self._path(branch), pack_ref(content))
        except FileExistsError:
            raise BranchExistsError(
                f"branch {branch!r} of {self.main.root} exists already: use it, or delete it first"
            ) from None
        # If a delete of the parent did not see this branch, it has deleted the parent's entry before this
        # check.
        if parent is not None and not self.exists(parent):
            self.store.delete(self._path(branch), self.main.root)
            raise self._not_found_error(parent)

    def replace_metadata(self, branch: str, metadata: dict[str, str]) -> None:
        """Replace the metadata of a branch.

        Raises:
            BranchNotFoundError: there is no such branch.
        """
        content = self._read(branch)
        content["metadata"] = dict(metadata)
        self.store.put(self._path(branch), pack_ref(content))

    def delete(self, branch: str) -> None:
        """Delete a branch with all its versions and the files that only they use.

        It also deletes the remains of a branch whose creation or deletion was interrupted.

        Raises:
            BranchNotFoundError: there is no such branch.
            BranchInUseError: tags or other branches refer to it.
        """
        self._path(branch)  # refuses an invalid name
        root = branch_line(self.main, branch).root
        names = self._names()
        if branch not in names and not self.store.list(join(root, VERSIONS_DIR)):
            raise self._not_found_error(branch)
        self._check_alone(branch, names)
        self.check_unused(branch)
        if branch in names:
            self._delete_entry(branch)
        self.store.delete_many(self._files(branch), self.main.root)

    def replace(self, branch: str, create: Callable[[], _Result]) -> _Result:
        """Call a function that creates a branch in place of an existing one, and return its result.

        The number of a new branch's first version can be one of the old branch, so the old versions must be
        deleted before. If `create` fails, the old branch is restored.

        Args:
            branch: the name of both branches.
            create: creates the new branch. It must not read the old one.

        Raises:
            BranchNotFoundError: there is no such branch.
            BranchInUseError: tags or other branches refer to the branch.
        """
        self._read(branch)
        self._check_alone(branch, self._names())
        self.check_unused(branch)
        entry = self._delete_entry(branch)
        folder = f"{join(branch_line(self.main, branch).root, VERSIONS_DIR)}/"
        old_files = self._files(branch)
        manifests: dict[str, bytes] = {}
        try:
            for path in old_files:
                if path.startswith(folder):
                    manifests[path] = self.store.read(path)
            self.store.delete_many(manifests, self.main.root)
            result = create()
        except BaseException:
            self.store.delete_many(set(self._files(branch)) - set(old_files), self.main.root)
            for path, content in manifests.items():
                self.store.put(path, content)
            self.store.put(self._path(branch), entry)
            raise
        self.store.delete_many([path for path in old_files if path not in manifests], self.main.root)
        return result

    def _delete_entry(self, branch: str) -> bytes:
        """Delete the entry of a branch that is not in use, and return its content.

        The entry is deleted before the files, so every registered branch is complete. It is restored if a tag
        or branch was created meanwhile. Later ones fail, because the entry does not exist.
        """
        path = self._path(branch)
        content = self.store.read(path)
        self.store.delete(path, self.main.root)
        try:
            self.check_unused(branch)
        except BranchInUseError:
            self.store.put(path, content)
            raise
        return content

    def _files(self, branch: str) -> Sequence[str]:
        """Return the paths of a branch's files.

        The branch's directory may have directories of other branches (feat and feat/x, even feat/data), so
        only its own directories are listed.
        """
        root = branch_line(self.main, branch).root
        paths: tuple[str, ...] = ()
        for part in (VERSIONS_DIR, TRANSACTIONS_DIR, DATA_DIR, DELETIONS_DIR, INDICES_DIR):
            folder = join(root, part)
            objects = self.store.list_to_delete(folder, self.main.root, recursive=True)
            paths += tuple(_exclude_other_branches(folder, [entry.path for entry in objects]))
        return paths

    def check_unused(self, branch: str) -> None:
        """Check that no tag or other branch refers to a branch.

        Raises:
            BranchInUseError: a tag or branch refers to it.
        """
        users = [f"branch {name}" for name, b in self.list().items() if b["parent_branch"] == branch]
        tags = list_tags(self.main)
        users += [f"tag {name}" for name, tag in tags.items() if tag["branch"] == branch]
        if users:
            raise BranchInUseError(f"branch {branch!r} is in use by {', '.join(users)}: delete these first")

    def _check_alone(self, branch: str, names: Iterable[str]) -> None:
        """Refuse a name that leads to the folder of another branch, as on a disk that ignores case.

        Raises:
            OptionError: the folder belongs to another branch.
        """
        place = branch_line(self.main, branch).root
        # Unlike Path.exists, os.path.exists is False without read permission. The next access raises the
        # error.
        if not self.store.is_local or not os.path.exists(place):  # noqa: PTH110
            return
        for other in names:
            its = branch_line(self.main, other).root
            if other != branch and os.path.exists(its) and Path(its).samefile(place):  # noqa: PTH110
                raise OptionError(
                    f"{branch!r} is another name of branch {other!r} on this disk: use {other!r}"
                )

    def _path(self, branch: str) -> str:
        fault = _name_error(branch)
        if fault is not None:
            raise OptionError(f"{branch!r} cannot be a branch: {fault}")
        return self.main.path(BRANCHES_DIR, f"{quote(branch, safe='')}{_SUFFIX}")

    def _read(self, branch: str) -> dict[str, Any]:
        try:
            return read_ref(self.store, self._path(branch), _KINDS, "branch")
        except FileNotFoundError:
            raise self._not_found_error(branch) from None

    def _names(self) -> tuple[str, ...]:
        names = (
            unquote(name.removesuffix(_SUFFIX))
            for name in self.store.list(self.main.path(BRANCHES_DIR))
            if name.endswith(_SUFFIX)
        )
        return tuple(sorted(name for name in names if _name_error(name) is None))

    def _not_found_error(self, branch: str) -> BranchNotFoundError:
        there = self._names()
        names = ", ".join(("main", *there[:_MAX_NAMES]))
        more = f" and {len(there) - _MAX_NAMES} more" if len(there) > _MAX_NAMES else ""
        return BranchNotFoundError(
            f"branch {branch!r} of {self.main.root} does not exist; there are: {names}{more}"
            f"{suggestion(branch, ('main', *there))}"
        )


def _exclude_other_branches(folder: str, paths: Sequence[str]) -> list[str]:
    """Return the paths in a directory of a branch that do not belong to another branch in it."""
    others = set()
    for path in paths:
        before, versions_dir, _ = path.removeprefix(f"{folder}/").rpartition(f"{VERSIONS_DIR}/")
        if versions_dir and (not before or before.endswith("/")):
            others.add(f"{folder}/{before}")
    return [
        path
        for path in paths
        if "/" not in path.removeprefix(f"{folder}/") or not any(path.startswith(other) for other in others)
    ]


def _name_error(branch: str) -> str | None:
    """Return why a branch name is invalid; None if it is valid."""
    if branch == "main":
        return "main is the line without a branch name"
    if branch.startswith("/") or branch.endswith("/") or "//" in branch:
        return "slashes stand between parts of the name"
    if ".." in branch or branch.endswith(".lock"):
        return "two dots in a row and '.lock' at the end are not allowed"
    if "." in branch.split("/"):
        return "a dot is not a part of a name"
    # Letters of any alphabet, as in pylance. Tags allow only ASCII letters.
    if not branch or not all(mark.isalnum() or mark in ".-_/" for mark in branch):
        return "use letters, digits, '.', '-', '_' and '/'"
    return None
