"""Publishing a branch: the content at once, appended rows onto newer versions, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import IncompatibleConflictError, OptionError
from spark_lance.table.inserts import publish_branch as publish_branch_module
from spark_lance.table.inserts.publish_branch import Published, publish_branch
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.versions.branches import Branches


def ids(uri: str | Path) -> list[int]:
    rows = spark_lance.dataset(str(uri)).to_table(columns=["id"])
    return sorted(rows["id"].to_pylist())


def append(uri: str | Path, *values: int) -> None:
    spark_lance.write_dataset(pa.table({"id": list(values)}), str(uri), mode="append")


@pytest.fixture
def lines(tmp_path: Path) -> tuple[Path, str]:
    """The table and its branch audit, which begins at version 2."""
    main = tmp_path / "t"
    dataset = spark_lance.write_dataset(pa.table({"id": [1, 2, 3]}), main)
    dataset.create_scalar_index("id", "BTREE")
    return main, spark_lance.dataset(main).create_branch("audit").uri


def publish(main: Path, branch: str = "audit", target: str = "main") -> Published:
    dataset = spark_lance.dataset(main)
    return publish_branch(dataset.store, dataset.main_root, branch, target)


def test_a_line_that_has_not_changed_gets_the_content_as_one_version(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    spark_lance.dataset(audit).delete("id = 1")
    assert publish(main) == Published(before=2, after=3)
    assert ids(main) == [2, 3, 4]
    assert publish(main) == Published(3, 3), "there is nothing new"
    append(audit, 5)
    assert publish(main) == Published(3, 4)
    spark_lance.dataset(main).branches.delete("audit")
    assert ids(main) == [2, 3, 4, 5], "the files are in the table's own folder"
    findings = verify(spark_lance.dataset(main).snapshot).findings
    assert [finding.level for finding in findings] == ["note"], findings
    assert spark_lance.dataset(main).to_table(filter="id = 4").num_rows == 1


def test_appended_rows_go_onto_a_line_that_has_changed(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 10]
    append(audit, 5)
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 5, 10], "the line's own rows stay, although nobody wrote since"


def test_other_changes_of_a_line_that_has_changed_are_refused(lines: tuple[Path, str]) -> None:
    main, audit = lines
    spark_lance.dataset(audit).delete("id = 1")
    append(main, 10)
    with pytest.raises(IncompatibleConflictError, match="main has changed since version 2, and branch"):
        publish(main)
    assert ids(main) == [1, 2, 3, 10]


def test_a_publication_that_was_not_noted_is_not_repeated(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    publish(main)
    dataset = spark_lance.dataset(main)
    Branches(dataset.store, dataset.main_root).replace_metadata("audit", {})
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 10]


def test_a_publication_that_was_cleaned_up_is_not_repeated(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    version = publish(main).after
    append(main, 11)
    dataset = spark_lance.dataset(main)
    Branches(dataset.store, dataset.main_root).replace_metadata("audit", {})
    dataset.cleanup_old_versions(versions=[version])
    append(audit, 5)
    with pytest.raises(
        IncompatibleConflictError, match=f"as version {version} of main, which a clean-up has"
    ):
        publish(main)
    assert ids(main) == [1, 2, 3, 4, 10, 11]


def test_two_publishers_bring_each_row_once(lines: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    copy = publish_branch_module._copy_own_files

    def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(publish_branch_module, "_copy_own_files", copy)
        publish(main)
        append(audit, 5)
        copy(*arguments)

    monkeypatch.setattr(publish_branch_module, "_copy_own_files", overtaken)
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 10]
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 5, 10]


def test_a_branch_of_a_branch_is_published_to_it(lines: tuple[Path, str]) -> None:
    main, audit = lines
    inner = spark_lance.dataset(audit).create_branch("inner").uri
    append(inner, 7)
    with pytest.raises(OptionError, match="branch 'inner' began on 'audit', not on 'main'"):
        publish(main, "inner")
    publish(main, "inner", "audit")
    assert ids(audit) == [1, 2, 3, 7]
    publish(main)
    assert ids(main) == [1, 2, 3, 7]
