"""Branches, clones, time travel and old names, by turns with pylance."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import time
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import spark_lance
from spark_lance.datasets.versions import DatasetBasePath
from spark_lance.errors import (
    BranchExistsError,
    BranchInUseError,
    BranchNotFoundError,
    FormatError,
    IncompatibleConflictError,
    OptionError,
    TableExistsError,
    TagNotFoundError,
    UnsupportedFormatError,
    VersionNotFoundError,
)
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.branches import Branches


def numbers(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def rows(dataset: spark_lance.LanceDataset | lance.LanceDataset) -> list[int]:
    values: list[int] = dataset.to_table()["a"].to_pylist()
    return values


def append(dataset: lance.LanceDataset, *values: int) -> lance.LanceDataset:
    return lance.write_dataset(numbers(*values), dataset, mode="append")


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = str(tmp_path / "t.lance")
    spark_lance.write_dataset(numbers(1, 2, 3), path)
    spark_lance.write_dataset(numbers(4), path, mode="append")
    return path


def normal(branches: object) -> object:
    """A branch object without what differs from run to run."""
    content = json.loads(json.dumps(branches))
    content["createAt"] = 0
    content["identifier"]["version_mapping"] = [
        [v, len(i)] for v, i in content["identifier"]["version_mapping"]
    ]
    return content


def test_branches_are_recorded_as_by_pylance(table: str, tmp_path: Path) -> None:
    twin = str(tmp_path / "twin.lance")
    lance.write_dataset(numbers(1, 2, 3), twin)
    lance.write_dataset(numbers(4), twin, mode="append")
    theirs = lance.dataset(twin)
    dev = append(theirs.create_branch("dev"), 5)
    dev.create_branch("feat/x", ("dev", None))
    theirs.create_branch("old", 1)
    ours = spark_lance.dataset(table)
    our_dev = ours.create_branch("dev")
    append(lance.dataset(our_dev.uri), 5)
    our_dev.checkout_latest().create_branch("feat/x")
    ours.create_branch("old", 1)
    for name in ("dev", "feat%2Fx", "old"):
        path = f"_refs/branches/{name}.json"
        our_content = json.loads(Path(table, path).read_text())
        content = json.loads(Path(twin, path).read_text())
        our_content["manifestSize"] = content["manifestSize"] = 0
        assert normal(our_content) == normal(content)
    for place in (("dev", None), ("feat/x", None), ("old", None)):
        expected = theirs.checkout_version(place)
        assert rows(ours.checkout_version(place)) == rows(expected)
        assert rows(lance.dataset(table).checkout_version(place)) == rows(expected)
        assert ours.checkout_version(place).version == expected.version


def test_both_write_to_one_branch(table: str) -> None:
    ours = spark_lance.dataset(table).create_branch("dev")
    assert (ours.branch, ours.version) == ("dev", 2)
    theirs = append(lance.dataset(table).checkout_version(("dev", None)), 10)
    assert rows(ours.checkout_latest()) == [1, 2, 3, 4, 10]
    ours.checkout_latest().delete(pc.field("a") < 3)
    spark_lance.write_dataset(numbers(11), ours.uri, mode="append")
    theirs = lance.dataset(table).checkout_version(("dev", None))
    theirs.delete("a = 10")
    assert rows(lance.dataset(table).checkout_version(("dev", None))) == [3, 4, 11]
    assert rows(spark_lance.dataset(table, ("dev", None))) == [3, 4, 11]
    assert rows(spark_lance.dataset(table)) == rows(lance.dataset(table)) == [1, 2, 3, 4]
    assert [v["version"] for v in spark_lance.dataset(table, ("dev", None)).versions()] == [2, 3, 4, 5, 6]
    assert spark_lance.dataset(table, ("dev", 3)).version == 3
    assert (
        rows(spark_lance.dataset(table, ("main", 1)))
        == rows(spark_lance.dataset(table, (None, 1)))
        == [1, 2, 3]
    )


def test_branches_of_pylance(table: str) -> None:
    main = lance.dataset(table)
    append(main.create_branch("dev"), 5)
    append(main.create_branch("feat/x", ("dev", 3)), 6)
    ours = spark_lance.dataset(table)
    assert list(ours.branches.list()) == ["dev", "feat/x"]
    result = ours.branches.get("feat/x")
    assert (result["parent_branch"], result["parent_version"], result["metadata"]) == ("dev", 3, {})
    assert result["created_at"].date() >= datetime.date(2024, 1, 1)
    x = ours.checkout_version(("feat/x", None))
    assert rows(x) == [1, 2, 3, 4, 5, 6]
    assert list(x.branches.list()) == ["dev", "feat/x"]
    assert x.checkout_version(3).branch == "feat/x"
    assert x.checkout_version(("main", None)).branch is None
    opened = spark_lance.dataset(f"{table}/tree/feat/x")
    assert (opened.branch, opened.main_line.root, rows(opened)) == ("feat/x", ours.root, rows(x))
    ours.branches.replace_metadata("dev", {"owner": "me"})
    assert main.branches.list()["dev"]["metadata"] == {"owner": "me"}


def test_tags_on_branches(table: str) -> None:
    ours = spark_lance.dataset(table)
    dev = ours.create_branch("dev")
    append(lance.dataset(dev.uri), 5)
    ours.tags.create("ours", ("dev", 3))
    lance.dataset(table).tags.create("theirs", ("dev", 3))
    dev.checkout_latest().tags.create("here")
    for tag in ("ours", "theirs", "here"):
        assert ours.tags.list()[tag]["branch"] == "dev"
        assert ours.tags.get_version(tag) == 3
        assert (
            rows(ours.checkout_version(tag))
            == rows(lance.dataset(table).checkout_version(tag))
            == [1, 2, 3, 4, 5]
        )
        assert rows(spark_lance.dataset(table, tag)) == [1, 2, 3, 4, 5]
    listed = lance.dataset(table).tags.list()
    places = {name: (tag["branch"], tag["version"]) for name, tag in listed.items()}
    assert places == dict.fromkeys(("ours", "theirs", "here"), ("dev", 3))
    ours.tags.update("ours", 1)
    assert rows(spark_lance.dataset(table, "ours")) == [1, 2, 3]
    with pytest.raises(BranchInUseError, match="theirs"):
        ours.branches.delete("dev")


def test_deleting_branches(table: str) -> None:
    ours = spark_lance.dataset(table)
    append(lance.dataset(ours.create_branch("feat").uri), 5)
    append(lance.dataset(ours.create_branch("feat/x").uri), 6)
    child = ours.create_branch("child", ("feat/x", None))
    with pytest.raises(BranchInUseError, match="child"):
        ours.branches.delete("feat/x")
    ours.branches.delete("feat")
    assert rows(ours.checkout_version(("feat/x", None))) == [1, 2, 3, 4, 6]
    assert list(lance.dataset(table).branches.list()) in (["child", "feat/x"], ["feat/x", "child"])
    with pytest.raises(BranchNotFoundError):
        ours.checkout_version(("feat", None))
    with pytest.raises(BranchNotFoundError):
        ours.branches.delete("feat")
    again = ours.create_branch("feat", 1)
    assert rows(again) == [1, 2, 3]
    assert rows(child) == [1, 2, 3, 4, 6]


def test_an_interrupted_creation_can_be_cleared(table: str) -> None:
    ours = spark_lance.dataset(table)
    ours.create_branch("dev")
    Path(table, "_refs/branches/dev.json").unlink()
    with pytest.raises(TableExistsError, match="delete that branch"):
        ours.create_branch("dev")
    ours.branches.delete("dev")
    assert rows(ours.create_branch("dev")) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["main", "", "/a", "a/", "a//b", "a..b", "a b", "a.lock", "a\\b"])
def test_names_that_no_branch_can_have(table: str, name: str) -> None:
    with pytest.raises(OptionError):
        spark_lance.dataset(table).create_branch(name)
    with pytest.raises((ValueError, OSError)):
        lance.dataset(table).create_branch(name)


@pytest.mark.parametrize("name", ["A", "-a", ".a", "a/b/c", "ü", "v2-prod.2025_02"])
def test_names_that_branches_can_have(table: str, name: str) -> None:
    spark_lance.dataset(table).create_branch(name)
    assert name in lance.dataset(table).branches.list()
    assert rows(lance.dataset(table).checkout_version((name, None))) == [1, 2, 3, 4]
    lance.dataset(table).create_branch(f"{name}2")
    assert rows(spark_lance.dataset(table, (f"{name}2", None))) == [1, 2, 3, 4]


def test_a_branch_is_created_once(table: str) -> None:
    ours = spark_lance.dataset(table)
    ours.create_branch("dev")
    with pytest.raises(BranchExistsError):
        ours.create_branch("dev", 1)
    with pytest.raises(BranchNotFoundError):
        ours.create_branch("x", ("nothing", None))
    with pytest.raises(TagNotFoundError):
        ours.create_branch("x", "nothing")
    with pytest.raises(VersionNotFoundError):
        ours.create_branch("x", 7)
    assert list(ours.branches.list()) == ["dev"]


def test_damaged_branch_objects(table: str) -> None:
    ours = spark_lance.dataset(table)
    ours.create_branch("dev")
    path = Path(table, "_refs/branches/dev.json")
    whole = path.read_bytes()
    for damage in (
        b"",
        b"{",
        b"[]",
        b'{"parentVersion": "x"}',
        b'{"createAt": 99999999999999999}',
        whole[:-3],
    ):
        path.write_bytes(damage)
        with pytest.raises(FormatError):
            Branches(ours.table).list()


@pytest.mark.parametrize("stable", [False, True])
def test_shallow_clones(table: str, tmp_path: Path, stable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(tmp_path / "source.lance")
    lance.write_dataset(numbers(1, 2, 3), source, enable_stable_row_ids=stable)
    theirs = append(lance.dataset(source), 4)
    theirs.delete("a = 2")
    theirs.create_scalar_index("a", "BTREE")
    clone = spark_lance.dataset(source).shallow_clone(tmp_path / "clone.lance")
    assert (clone.version, clone.branch) == (4, None)
    second = clone.shallow_clone(tmp_path / "second.lance", 4)
    append(lance.dataset(second.uri), 5)
    monkeypatch.chdir(tmp_path.parent)
    for path, expected in ((clone.uri, [1, 3, 4]), (second.uri, [1, 3, 4, 5])):
        assert rows(lance.dataset(path)) == rows(spark_lance.dataset(path)) == expected
        assert lance.dataset(path).to_table(filter="a = 3")["a"].to_pylist() == [3]
    spark_lance.dataset(second.uri).delete(pc.field("a") == 3)
    assert rows(lance.dataset(second.uri)) == [1, 4, 5]
    assert rows(lance.dataset(clone.uri)) == [1, 3, 4]
    with pytest.raises(TableExistsError):
        spark_lance.dataset(source).shallow_clone(clone.uri)


def test_deep_clones_stand_alone(table: str, tmp_path: Path) -> None:
    theirs = lance.dataset(table)
    theirs.delete("a = 2")
    theirs.create_scalar_index("a", "BTREE")
    dev = append(theirs.create_branch("dev"), 5)
    ours = spark_lance.dataset(table)
    clone = ours.deep_clone(tmp_path / "deep.lance", ("dev", None))
    assert clone.version == dev.version
    shutil.rmtree(table)
    for dataset in (lance.dataset(clone.uri), spark_lance.dataset(clone.uri)):
        assert rows(dataset) == [1, 3, 4, 5]
    assert not clone.manifest.message.base_paths
    assert lance.dataset(clone.uri).to_table(filter="a = 3")["a"].to_pylist() == [3]
    append(lance.dataset(clone.uri), 6)
    assert rows(clone.checkout_latest()) == [1, 3, 4, 5, 6]


def test_more_places_for_files(table: str, tmp_path: Path) -> None:
    ours = spark_lance.dataset(table)
    more = ours.add_bases(
        [DatasetBasePath(str(tmp_path / "x"), "x"), DatasetBasePath(str(tmp_path / "y"), "y")]
    )
    assert [(base.id, base.name) for base in more.manifest.message.base_paths] == [(1, "x"), (2, "y")]
    lance.write_dataset(numbers(9), lance.dataset(table), mode="append", target_bases=["y"])
    assert rows(more.checkout_latest()) == [1, 2, 3, 4, 9]
    assert any((tmp_path / "y").iterdir())
    with pytest.raises(OptionError, match="already"):
        more.add_bases([DatasetBasePath(str(tmp_path / "z"), "x")])
    with pytest.raises(IncompatibleConflictError):
        ours.add_bases([DatasetBasePath(str(tmp_path / "q"), "x")])


def test_versions_by_time(tmp_path: Path) -> None:
    path = str(tmp_path / "t.lance")
    times = []
    for number in range(4):
        spark_lance.write_dataset(numbers(number), path, mode="append")
        times.append(datetime.datetime.now(datetime.timezone.utc))
        time.sleep(0.02)
    for number, moment in enumerate(times):
        assert spark_lance.dataset(path, asof=moment).version == number + 1
        assert spark_lance.dataset(path, asof=moment.isoformat()).version == number + 1
        assert spark_lance.dataset(path, asof=moment.replace(tzinfo=None)).version == number + 1
    assert spark_lance.dataset(path, asof="2100-01-01").version == 4
    exact = spark_lance.dataset(path, 2).manifest.timestamp
    assert spark_lance.dataset(path, asof=exact).version == 2
    with pytest.raises(VersionNotFoundError, match="at or before"):
        spark_lance.dataset(path, asof="2020-01-01T00:00:00Z")
    with pytest.raises(OptionError):
        spark_lance.dataset(path, asof="last week")
    with pytest.raises(OptionError):
        spark_lance.dataset(path, 1, asof="2100-01-01")


def test_detached_versions_are_opened_by_number(table: str) -> None:
    operation = lance.LanceOperation.Append([lance.fragment.LanceFragment.create(table, numbers(7))])
    detached = lance.LanceDataset.commit(table, operation, read_version=2, detached=True)
    number = detached.version
    assert number >= 2**63
    ours = spark_lance.dataset(table)
    assert ours.version == 2
    assert [v["version"] for v in ours.versions()] == [1, 2]
    assert rows(ours.checkout_version(number)) == [1, 2, 3, 4, 7]
    with pytest.raises(VersionNotFoundError):
        ours.checkout_version(number).delete(pc.field("a") == 7)
    with pytest.raises(VersionNotFoundError):
        ours.checkout_version(number ^ 1)


def test_old_names_become_new_ones(tmp_path: Path) -> None:
    path = str(tmp_path / "old.lance")
    lance.write_dataset(numbers(1), path, enable_v2_manifest_paths=False)
    for value in (2, 3):
        append(lance.dataset(path), value)
    versions = Path(path, "_versions")
    remaining = (versions / "3.manifest").read_bytes()
    spark_lance.dataset(path).migrate_manifest_paths_v2()
    assert not list(versions.glob("?.manifest"))
    # An interrupted run: one manifest has both names.
    (versions / "3.manifest").write_bytes(remaining)
    with pytest.raises(FormatError):
        spark_lance.dataset(path)
    from spark_lance.io.store import open_store
    from spark_lance.table.versions.versions import migrate_names

    table = TableRef(*open_store(path))
    assert migrate_names(table) == 1
    assert migrate_names(table) == 0
    append(lance.dataset(path), 4)
    assert rows(spark_lance.dataset(path)) == [1, 2, 3, 4]
    assert rows(lance.dataset(path, version=2)) == [1, 2]


def test_transactions_tell_the_history(table: str) -> None:
    ours = spark_lance.dataset(table)
    ours.delete(pc.field("a") == 2)
    newest = ours.checkout_latest()
    result = newest.get_transactions()
    assert [t.name for t in result if t] == ["delete", "append", "overwrite"]
    assert [t.name for t in ours.get_transactions(1) if t] == ["append"]
    first = newest.read_transaction(1)
    theirs = lance.dataset(table).read_transaction(1)
    assert first is not None
    assert theirs is not None
    assert first.uuid == theirs.uuid
    with pytest.raises(VersionNotFoundError):
        newest.read_transaction(9)


@pytest.mark.parametrize("reference", [True, 1.5, ("a",), None.__class__, ("a", 1, 2)])
def test_what_names_no_version(table: str, reference: object) -> None:
    with pytest.raises((OptionError, UnsupportedFormatError)):
        spark_lance.dataset(table).checkout_version(reference)  # type: ignore[arg-type]


def test_relative_sources_are_cloned_by_their_absolute_path(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    clone = spark_lance.dataset("t.lance").shallow_clone("c.lance")
    (base,) = clone.manifest.message.base_paths
    assert base.path == os.path.realpath(table) or base.path == table
    monkeypatch.chdir("/")
    assert rows(lance.dataset(str(tmp_path / "c.lance"))) == [1, 2, 3, 4]
