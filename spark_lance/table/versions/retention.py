"""The retention of branches and tags: settings in their metadata that clean-ups use.

    spark_lance.max_ref_age_ms   the age at which the branch or tag expires
    spark_lance.min_versions     number of the newest versions of the branch to keep
    spark_lance.max_age_ms       the age at which the branch's other versions expire

The age of a tag is counted from its creation or last move, the age of a branch from its newest version.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from spark_lance.errors import FormatError, TableNotFoundError
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.branches import Branches, branch_line
from spark_lance.table.versions.ref_files import list_tags, pack_ref, read_tag, tag_path
from spark_lance.table.versions.versions import load_latest

MAX_REF_AGE_MS = "spark_lance.max_ref_age_ms"
MIN_VERSIONS = "spark_lance.min_versions"
MAX_AGE_MS = "spark_lance.max_age_ms"


def set_retention(main: TableRef, kind: str, name: str, values: dict[str, int]) -> None:
    """Set the retention of a branch or tag; settings that are not in `values` are removed.

    Args:
        main: the table's main line.
        kind: "branch" or "tag".
        name: the name of the branch or tag.
        values: the settings by the keys above.

    Raises:
        BranchNotFoundError, TagNotFoundError: there is no such branch or tag.
    """
    own = (MAX_REF_AGE_MS, MIN_VERSIONS, MAX_AGE_MS)
    texts = {key: str(number) for key, number in values.items()}
    if kind == "branch":
        branches = Branches(main)
        before = branches.get(name)["metadata"]
        branches.replace_metadata(name, {**{k: v for k, v in before.items() if k not in own}, **texts})
        return
    content = read_tag(main, name)
    before = content.get("metadata", {})
    content["metadata"] = {**{k: v for k, v in before.items() if k not in own}, **texts}
    main.store.put(tag_path(main, name), pack_ref(content))


def branch_retention(main: TableRef, branch: str) -> tuple[timedelta | None, int | None]:
    """Return the maximum age and the minimum number of a branch's versions; None for a missing setting.

    Raises:
        BranchNotFoundError: there is no such branch.
        FormatError: a number is damaged.
    """
    metadata = Branches(main).get(branch)["metadata"]
    age, count = _read_number(metadata, MAX_AGE_MS), _read_number(metadata, MIN_VERSIONS)
    return None if age is None else timedelta(milliseconds=age), count


def _read_number(metadata: dict[str, Any], key: str) -> int | None:
    text = metadata.get(key)
    try:
        return None if text is None else int(text)
    except (TypeError, ValueError) as error:
        raise FormatError(f"a branch's or tag's {key} is {text!r}, not a number") from error


def drop_expired_refs(
    main: TableRef,
    default_ms: int | None = None,
    now: datetime | None = None,
    *,
    dry_run: bool = False,
) -> list[str]:
    """Drop expired branches and tags, and return their names.

    Branches to which tags or other branches refer are kept.

    Args:
        main: the table's main line.
        default_ms: maximum age (ms) of branches and tags without the setting; None keeps them.
        now: the current time, for tests.
        dry_run: return the names, but drop nothing.

    Raises:
        FormatError: a branch, a tag or an age is damaged.
    """
    moment = now or datetime.now(timezone.utc)
    tags, branches = list_tags(main), Branches(main)
    records = branches.list()
    expired_tags = [
        name
        for name, tag in tags.items()
        if _is_expired(tag["metadata"], default_ms, tag["updated_at"], moment)
    ]
    in_use = {tag["branch"] for name, tag in tags.items() if name not in expired_tags}
    in_use |= {record["parent_branch"] for record in records.values()}
    expired_branches = []
    for name, record in records.items():
        try:
            newest = load_latest(branch_line(main, name)).timestamp
        except TableNotFoundError:
            continue  # another process has deleted it
        if name not in in_use and _is_expired(record["metadata"], default_ms, newest, moment):
            expired_branches.append(name)
    # Only now, because a damaged branch must not leave the tags dropped.
    if not dry_run:
        for name in expired_tags:
            main.store.delete(tag_path(main, name), main.root)
        for name in expired_branches:
            branches.delete(name)
    return [*expired_tags, *expired_branches]


def _is_expired(
    metadata: dict[str, Any], default_ms: int | None, since: datetime | None, now: datetime
) -> bool:
    own = _read_number(metadata, MAX_REF_AGE_MS)
    age = default_ms if own is None else own
    return age is not None and since is not None and now - since > timedelta(milliseconds=age)
