"""How users name a version: by number, by tag, or by branch and number.

    7                 version 7 of the line that one is on
    "stable"          the version that the tag names, whatever its branch
    ("dev", 7)        version 7 of branch dev
    ("dev", None)     the newest version of branch dev
    (None, 7)         version 7 of the main line, which is also called "main"

A branch is a table of its own under `tree/{name}` of the root of the main line, which records tags and
branches. (Lance table format, branches and tags.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from typing import Union

from spark_lance.errors import OptionError, VersionNotFoundError
from spark_lance.io.store import Store, join
from spark_lance.table.format.manifest import Manifest
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.branches import Branches, branch_root
from spark_lance.table.versions.ref_files import read_tag
from spark_lance.table.versions.torn import read_whole
from spark_lance.table.versions.versions import latest_version, list_versions

Reference = Union[int, str, tuple[Union[str, None], Union[int, None]]]  # noqa: UP007

MAIN = "main"

# A time as Iceberg's options have it.
_MILLIS = re.compile(r"[0-9]{11,14}", re.ASCII)


@dataclass(frozen=True)
class VersionRef:
    """A version of a line.

    Attributes:
        root: the line's root path.
        branch: its name, None for the main line.
        version: the number.
    """

    root: str
    branch: str | None
    version: int


def main_root(root: str, manifest: Manifest) -> str:
    """Return the root of the main line to which a version of the table at `root` belongs."""
    ending = join("", "tree", manifest.message.branch) if manifest.message.branch else ""
    return root.removesuffix(ending) if ending and root.endswith(ending) else root


def resolve(store: Store, main: str, reference: Reference, branch: str | None = None) -> VersionRef:
    """Return the version that a reference names.

    Args:
        main: root of the main line.
        branch: the branch on which a bare number counts, None for the main line.

    Raises:
        TagNotFoundError: there is no such tag.
        BranchNotFoundError: there is no such branch.
        TableNotFoundError: there is no table.
        FormatError: a tag or branch is damaged.
        OptionError: this is not a reference.
    """
    if isinstance(reference, bool):
        raise OptionError(f"{reference!r} names no version")
    if isinstance(reference, int):
        return VersionRef(_line(store, main, branch), branch, reference)
    if isinstance(reference, str):
        tag = read_tag(store, main, reference)
        return VersionRef(_line(store, main, tag.get("branch")), tag.get("branch"), tag["version"])
    try:
        name, number = reference
    except (TypeError, ValueError):
        raise OptionError(f"{reference!r} names no version: give a number, tag or (branch, number)") from None
    name = None if name == MAIN else name
    root = _line(store, main, name)
    return VersionRef(root, name, latest_version(TableRef(store, root)).version if number is None else number)


def _line(store: Store, main: str, branch: str | None) -> str:
    """Return the root of a line that exists."""
    if branch is None:
        return main
    Branches(store, main).get(branch)
    return branch_root(main, branch)


def version_at(table: TableRef, moment: datetime | str) -> int:
    """Return the newest version that was committed no later than a moment.

    Args:
        moment: a time, or its ISO 8601 text; without a zone it is in UTC.

    Raises:
        VersionNotFoundError: every version is younger; the message tells when the oldest was made.
        OptionError: the text is not a time.
    """
    limit = parse_moment(moment)
    oldest = None
    for file in reversed(list_versions(table)):
        manifest = read_whole(table.store, file.path, file.naming)
        if manifest is None:
            continue
        oldest = manifest.timestamp
        if oldest <= limit:
            return file.version
    if oldest is None:
        latest_version(table)
    raise VersionNotFoundError(f"{table.root} has no version as old as {limit}; its oldest is of {oldest}")


def parse_moment(moment: datetime | str, zone: tzinfo | None = timezone.utc) -> datetime:
    """Return a time from a time or its ISO 8601 text.

    Args:
        moment: the time. A text of digits is milliseconds since the epoch.
        zone: the zone of times without one; None leaves them without.

    Raises:
        OptionError: the text is not a time.
    """
    if isinstance(moment, str):
        text = moment.strip()
        if _MILLIS.fullmatch(text):
            return datetime.fromtimestamp(int(text) / 1000, timezone.utc)
        try:
            moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)
        except ValueError:
            raise OptionError(f"{moment!r} is not a valid time: write it as 2026-01-31 12:00:00") from None
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment
