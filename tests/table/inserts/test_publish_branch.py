"""Publishing a branch: the content at once, appended rows onto newer versions, and nothing else."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import IncompatibleConflictError, OptionError
from spark_lance.table.inserts import publish_branch as publish_branch_module
from spark_lance.table.inserts.publish_branch import PublishResult, publish_branch
from spark_lance.table.maintenance.verify import verify
from spark_lance.table.metadata import metadata_table
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


def publish(main: Path, branch: str = "audit", target: str = "main") -> PublishResult:
    dataset = spark_lance.dataset(main)
    return publish_branch(dataset.main_line, branch, target)


def test_a_line_that_has_not_changed_gets_the_content_as_one_version(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    spark_lance.dataset(audit).delete("id = 1")
    assert publish(main) == PublishResult(before=2, after=3)
    assert ids(main) == [2, 3, 4]
    assert publish(main) == PublishResult(3, 3), "there is nothing new"
    append(audit, 5)
    assert publish(main) == PublishResult(3, 4)
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


def test_the_history_names_what_published(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(audit, 5)
    append(main, 10)
    dataset = spark_lance.dataset(main)
    publish_branch(dataset.main_line, "audit", version=3)
    publish(main)
    spark_lance.dataset(audit).delete("id = 1")
    publish(main)
    history = metadata_table("history").to_arrow(spark_lance.dataset(main).snapshot, ["operation"])
    assert history["operation"].to_pylist()[:4] == ["FAST FORWARD", "FAST FORWARD", "CHERRYPICK", "WRITE"]


def test_changed_rows_go_onto_a_line_that_has_changed(lines: tuple[Path, str]) -> None:
    main, audit = lines
    spark_lance.dataset(audit).delete("id = 1")
    spark_lance.dataset(audit).update({"id": "id + 20"}, where="id = 2")
    append(audit, 4)
    append(main, 10)
    spark_lance.dataset(main).delete("id = 3")
    assert publish(main) == PublishResult(before=4, after=5), "one version"
    assert ids(main) == [4, 10, 22]
    assert publish(main) == PublishResult(5, 5), "there is nothing new"
    append(audit, 5)
    publish(main)
    spark_lance.dataset(main).branches.delete("audit")
    assert ids(main) == [4, 5, 10, 22]
    assert all(finding.level == "note" for finding in verify(spark_lance.dataset(main).snapshot).findings)
    assert spark_lance.dataset(main).to_table(filter="id = 22").num_rows == 1


@pytest.mark.parametrize("stable", [False, True])
def test_rows_of_both_lines_after_random_changes(tmp_path: Path, stable: bool) -> None:
    """The line gets what the branch did to rows that it did not touch itself; otherwise nothing changes."""
    random = Random(7)
    published = 0
    for number in range(20):
        main = tmp_path / str(number)
        whole = pa.table({"id": range(6), "v": [0] * 6})
        spark_lance.write_dataset(whole, main, max_rows_per_file=3, enable_stable_row_ids=stable)
        audit = spark_lance.dataset(main).create_branch("audit").uri
        start, mine = dict.fromkeys(range(6), 0), {}
        models = {str(main): dict(start), audit: dict(start)}
        for uri, model in models.items():
            for step in range(random.randint(1, 3)):
                key = random.randrange(6)
                match random.choice(["append", "delete", "update"]):
                    case "append":
                        new = 100 + 10 * step + (50 if uri == audit else 0)
                        spark_lance.write_dataset(pa.table({"id": [new], "v": [0]}), uri, mode="append")
                        model[new] = 0
                    case "delete":
                        spark_lance.dataset(uri).delete(f"id = {key}")
                        model.pop(key, None)
                    case "update":
                        value = random.randrange(1, 99)
                        spark_lance.dataset(uri).update({"v": str(value)}, where=f"id = {key}")
                        if key in model:
                            model[key] = value
        mine, theirs = models[str(main)], models[audit]
        touched = [{key for key in start if model.get(key) != start[key]} for model in (mine, theirs)]
        try:
            publish(main)
        except IncompatibleConflictError:
            expected = mine
        else:
            published += 1
            assert not touched[0] & touched[1]
            changed = touched[1] | (theirs.keys() - start.keys())
            rest = {key: value for key, value in mine.items() if key not in changed}
            expected = {**rest, **{key: value for key, value in theirs.items() if key in changed}}
        rows = spark_lance.dataset(main).to_table().to_pylist()
        assert sorted((row["id"], row["v"]) for row in rows) == sorted(expected.items())
        assert all(finding.level == "note" for finding in verify(spark_lance.dataset(main).snapshot).findings)
    assert 5 < published < 20


def test_rows_that_both_lines_changed_are_refused(lines: tuple[Path, str]) -> None:
    main, audit = lines
    spark_lance.dataset(audit).delete("id = 1")
    spark_lance.dataset(main).update({"id": "30"}, where="id = 1")
    with pytest.raises(IncompatibleConflictError, match=r"in conflict .*repeat that change on main"):
        publish(main)
    assert ids(main) == [2, 3, 30]


def test_rows_that_a_branch_added_and_changed_are_moved_first(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4, 5, 6)
    spark_lance.dataset(audit).delete("id = 5")
    append(main, 10)
    with pytest.raises(IncompatibleConflictError, match=r"REORG TABLE .*`branch_audit` APPLY \(PURGE\)"):
        publish(main)
    spark_lance.dataset(audit).optimize.compact_files(materialize_deletions_threshold=0)
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 6, 10]


def test_other_changes_of_a_line_that_has_changed_are_refused(lines: tuple[Path, str]) -> None:
    main, audit = lines
    spark_lance.dataset(audit).add_columns({"w": "id"})
    append(main, 10)
    with pytest.raises(IncompatibleConflictError, match="main has changed since version 2, and branch"):
        publish(main)
    assert ids(main) == [1, 2, 3, 10]


def test_single_versions_are_published_in_their_order(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(audit, 5)
    dataset = spark_lance.dataset(main)
    with pytest.raises(OptionError, match="publish 3 first"):
        publish_branch(dataset.main_line, "audit", version=4)
    publish_branch(dataset.main_line, "audit", version=3)
    assert ids(main) == [1, 2, 3, 4]
    with pytest.raises(OptionError, match="is in main already"):
        publish_branch(dataset.main_line, "audit", version=3)
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 5]


def test_a_publication_that_was_not_noted_is_not_repeated(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    publish(main)
    dataset = spark_lance.dataset(main)
    Branches(dataset.main_line).replace_metadata("audit", {})
    publish(main)
    assert ids(main) == [1, 2, 3, 4, 10]


def test_a_publication_that_was_cleaned_up_is_not_repeated(lines: tuple[Path, str]) -> None:
    main, audit = lines
    append(audit, 4)
    append(main, 10)
    version = publish(main).after
    append(main, 11)
    dataset = spark_lance.dataset(main)
    Branches(dataset.main_line).replace_metadata("audit", {})
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
