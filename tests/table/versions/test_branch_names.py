"""Names of branches that lead to the folder of another branch, at every verb."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import BranchInUseError, BranchNotFoundError, OptionError
from spark_lance.table.versions.branches import Branches

ALIASES = [
    "dev/.",
    "./dev",
    "dev/./x",
    ".",
    "dev//x",
    "dev/",
    "/dev",
    "dev/../dev",
    "..",
    "dev\\x",
    "dev/x/.",
]


@pytest.fixture
def table(tmp_path: Path) -> spark_lance.LanceDataset:
    ds = spark_lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "t"))
    for name in ("dev", "dev/x"):
        branch = ds.create_branch(name)
        spark_lance.write_dataset(pa.table({"a": [2]}), branch, mode="append")
        branch.checkout_latest().tags.create(f"keep_{name.replace('/', '_')}")
    return ds


@pytest.mark.parametrize("name", ALIASES)
def test_aliases_are_refused(table: spark_lance.LanceDataset, name: str) -> None:
    for use in (table.create_branch, table.branches.delete, lambda n: table.checkout_version((n, None))):
        with pytest.raises(OptionError, match="cannot be a branch"):
            use(name)
    with pytest.raises((ValueError, OSError)):
        lance.dataset(table.uri).create_branch(name, 1)
    assert table.checkout_version(("dev", None)).to_table()["a"].to_pylist() == [1, 2]


def test_another_name_of_a_folder_is_refused(table: spark_lance.LanceDataset) -> None:
    """A link stands for a disk on which Dev and dev are one folder."""
    tree = Path(table.uri) / "tree"
    (tree / "Dev").symlink_to(tree / "dev")
    with pytest.raises(OptionError, match="another name of branch 'dev'"):
        table.branches.delete("Dev")
    with pytest.raises(OptionError, match="another name of branch 'dev'"):
        table.create_branch("Dev")
    assert table.checkout_version(("dev", None)).count_rows() == 2


@pytest.mark.parametrize("inner", ["data", "_versions", "_indices/x", "_transactions"])
def test_branches_in_the_folders_of_others_stay(table: spark_lance.LanceDataset, inner: str) -> None:
    table.tags.delete("keep_dev")
    result = lance.dataset(table.uri).create_branch(f"dev/{inner}", 1)
    lance.write_dataset(pa.table({"a": [3]}), result, mode="append")
    table.branches.delete("dev")
    assert table.checkout_version((f"dev/{inner}", None)).to_table()["a"].to_pylist() == [1, 3]
    assert table.checkout_version(("dev/x", None)).count_rows() == 2
    with pytest.raises(BranchNotFoundError):
        table.checkout_version(("dev", None))


def test_a_tag_that_comes_meanwhile_keeps_its_branch(
    table: spark_lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.tags.delete("keep_dev")
    check = Branches.check_unused
    moments = iter([0])

    def tagged(branches: Branches, branch: str) -> None:
        check(branches, branch)
        for _ in moments:
            (Path(table.uri) / "_refs" / "tags" / "late.json").write_text('{"branch":"dev","version":2}')

    with monkeypatch.context() as patch:
        patch.setattr(Branches, "check_unused", tagged)
        with pytest.raises(BranchInUseError, match="tag late"):
            table.branches.delete("dev")
    assert table.checkout_version("late").to_table()["a"].to_pylist() == [1, 2]
    assert sorted(table.branches.list()) == ["dev", "dev/x"]
