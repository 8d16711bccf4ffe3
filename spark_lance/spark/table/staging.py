"""Write-audit-publish: session settings that redirect writes to a branch, as in Iceberg.

    SET spark.wap.branch = audit    statements read and write the branch audit of a table
    SET spark.wap.id = 7            statements write to the branch wap-7, and read the table itself

They apply to tables by name with the property `write.wap.enabled` = true. The first write creates the branch.
A name that selects a branch or a tag is not redirected.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pyspark.sql.datasource import CaseInsensitiveDict

from spark_lance.datasets.dataset import LanceDataset, dataset
from spark_lance.errors import BranchExistsError, OptionError, TableNotFoundError
from spark_lance.spark.driver.arguments import check_running
from spark_lance.spark.driver.delta_settings import check_repeatable
from spark_lance.spark.options.options import read_options
from spark_lance.spark.table.base import TableBase

ENABLED = "write.wap.enabled"


def wap_branch(wap_id: str) -> str:
    """Return the branch for writes with a WAP id, which `publish_changes` publishes."""
    return f"wap-{wap_id}"


def staging_branch(options: Mapping[str, str], staging: Mapping[str, str], *, writes: bool) -> str | None:
    """Return the branch that a statement on a table reads or writes; None for the table itself.

    Args:
        options: data source options that select the table itself, not a branch or a tag.
        staging: the settings `branch` and `id` of the session.
        writes: whether the statement writes.

    Raises:
        OptionError: the session has both settings.
    """
    main = _open_main(options)
    branch = _target_branch(main, staging)
    if branch is None:
        return None
    exists = branch in main.branches.list()
    if not writes:
        return branch if exists and "branch" in staging else None
    if not exists:
        with suppress(BranchExistsError):  # another writer was first
            main.create_branch(branch)
    return branch


def staged_options(options: Mapping[str, str], staging: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of a statement that changes rows, with the branch of the session's settings.

    Raises:
        OptionError: the session has both settings.
    """
    if not _selects_main(options, staging):
        return dict(options)
    assert staging is not None
    branch = staging_branch(options, staging, writes=True)
    return dict(options) if branch is None else {**options, "branch": branch}


def check_staged(options: Mapping[str, str], staging: Mapping[str, str] | None) -> None:
    """Check that a write, such as one by path, does not bypass the branch of the session's settings.

    Args:
        options: options of the write.
        staging: as for `staging_branch`; None in a session without the settings.

    Raises:
        OptionError: the table has the property, and the write goes to the table itself.
    """
    if not _selects_main(options, staging):
        return
    assert staging is not None
    try:
        branch = _target_branch(_open_main(options), staging)
    except TableNotFoundError:
        return
    if branch is not None:
        setting = "branch" if "branch" in staging else "id"
        raise OptionError(
            f"spark.wap.{setting} directs writes to branch {branch!r}, and this one goes to the table "
            f"{options['path']} itself: name the table in SQL, INSERT INTO <catalog>.`{options['path']}`, or "
            f"RESET spark.wap.{setting}"
        )


def check_evolution_staged(options: Mapping[str, str], staging: Mapping[str, str] | None) -> None:
    """Check that WITH SCHEMA EVOLUTION does not change the table whose rows are written to a branch.

    Args:
        options: options of the table that would change.
        staging: as for `staging_branch`; None in a session without the settings.

    Raises:
        OptionError: the session directs writes to a branch of the table.
    """
    if not _selects_main(options, staging):
        return
    assert staging is not None
    branch = _target_branch(_open_main(options), staging)
    if branch is not None:
        setting = "branch" if "branch" in staging else "id"
        raise OptionError(
            f"WITH SCHEMA EVOLUTION would change the table, and spark.wap.{setting} directs writes to branch "
            f"{branch!r}: first run ALTER TABLE t.`branch_{branch}` ADD COLUMN name type, or RESET "
            f"spark.wap.{setting}"
        )


def check_session_stages(table: TableBase) -> None:
    """Check that a change by `LanceTable` does not bypass the branch of the session's settings.

    Raises:
        OptionError: as `check_staged`, or the session has been stopped, or relies on Delta's setting
            against repeated writes.
    """
    check_running(table.spark)
    check_repeatable(table.spark)
    settings = {name: table.spark.conf.get(f"spark.wap.{name}", None) for name in ("branch", "id")}
    staging = {name: value for name, value in settings.items() if value is not None}
    check_staged({**table.options, "path": table.path}, staging)


def _selects_main(options: Mapping[str, str], staging: Mapping[str, str] | None) -> bool:
    return bool(staging) and "path" in options and not options.get("branch")


def _open_main(options: Mapping[str, str]) -> LanceDataset:
    storage = dict(read_options(CaseInsensitiveDict(dict(options))).storage)
    return dataset(options["path"], None, storage)


def _target_branch(main: LanceDataset, staging: Mapping[str, str]) -> str | None:
    if main.branch is not None or main.config().get(ENABLED, "").lower() != "true":
        return None
    if "branch" in staging and "id" in staging:
        raise OptionError("spark.wap.branch and spark.wap.id are both set: RESET spark.wap.id, or the other")
    branch = staging["branch"] if "branch" in staging else wap_branch(staging["id"])
    return None if branch == "main" else branch
