"""Clean-up: what survives it, compared with pylance on equal copies of tables."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_lance.datasets.dataset import dataset
from spark_lance.errors import FormatError, OptionError
from spark_lance.io.local import LocalStore
from spark_lance.table.versions import cleanup as module

NOW = timedelta(0)
EIGHT_DAYS = 8 * 86_400


def rows(start: int = 0, count: int = 10) -> pa.Table:
    return pa.table({"a": pa.array(range(start, start + count), pa.int64())})


def theirs_at(path: Path, version: Any = None) -> Any:
    """Open a table with pylance."""
    return lance.dataset(str(path), version=version)


def files(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()}


def busy_table(path: Path) -> None:
    """Write a table with appends, deletes, an index and a compaction: eleven versions."""
    lance.write_dataset(rows(), path)
    lance.write_dataset(rows(10), path, mode="append")
    table = theirs_at(path)
    table.delete("a = 3")
    table.create_scalar_index("a", "BTREE")
    table.delete("a = 4")
    table.update({"a": "a + 100"}, where="a = 5")
    table.create_scalar_index("a", "BTREE")
    lance.write_dataset(rows(20), path, mode="append")
    theirs_at(path).optimize.compact_files()
    lance.write_dataset(rows(30), path, mode="append")


def branched_table(path: Path) -> None:
    """Write a table with tags and with branches of the main line and of a branch."""
    busy_table(path)
    table = theirs_at(path)
    table.tags.create("third", 3)
    dev = table.create_branch("feat/x", 4)
    lance.write_dataset(rows(200), dev.uri, mode="append")
    dev = theirs_at(path).checkout_version(("feat/x", None))
    dev.delete("a = 7")
    dev.create_branch("deeper", ("feat/x", 5))
    table.tags.create("of-branch", ("feat/x", 5))
    lance.write_dataset(rows(300), path, mode="overwrite")


def with_leftovers(path: Path) -> None:
    """Put files that no version names into a table, young and eight days old, and files of others."""
    old = time.time() - EIGHT_DAYS
    for age in ("old", "new"):
        # Names have the forms that writers give them.
        digits = "1" if age == "old" else "0"
        names = [
            f"data/{digits * 24}{'a' * 26}.lance",
            f"_deletions/0-1-{digits}.arrow",
            f"_deletions/0-2-{digits}.bin",
            f"_transactions/1-{digits * 8}-0000-4000-8000-000000000000.txn",
            f"_indices/{digits * 8}-0000-4000-8000-000000000000/page_data.lance",
            f"_versions/.tmp{age}",
            f"_versions/{digits * 20}.manifest-{digits * 8}",
            f"_versions/{digits * 20}.manifest#1",
            f"data/.tmp{digits * 32}.{digits * 24}{'b' * 26}.lance",
            f"_deletions/.tmp{digits * 32}.0-3-{digits}.arrow",
            f"data/{age}.txt",
            f"data/{age}.blob",
            f"{age}.bin",
            f"_other/{age}.lance",
        ]
        for name in names:
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x")
            if age == "old":
                os.utime(file, (old, old))


def assert_survivors_are_those_of_pylance(
    path: Path, at: Any = None, may_stay: Callable[[str], bool] = lambda name: False, **arguments: Any
) -> None:
    """Clean up by pylance and, after the same files are back, by us, and compare what is left.

    Args:
        path: the table.
        at: the version that is looked from.
        may_stay: which files may survive us that do not survive pylance.
        arguments: those of the clean-up.
    """
    copy = path.with_name("copy")
    shutil.copytree(path, copy)  # `copytree` keeps the times of files
    theirs = theirs_at(path, at)
    stats = theirs.cleanup_old_versions(error_if_tagged_old_versions=False, **arguments)
    expected = files(path)
    shutil.rmtree(path)
    shutil.copytree(copy, path)
    ours = dataset(path, at)
    planned = ours.cleanup_old_versions(error_if_tagged_old_versions=False, dry_run=True, **arguments)
    assert files(path) == files(copy)
    done = ours.cleanup_old_versions(error_if_tagged_old_versions=False, **arguments)
    assert expected <= files(path)
    assert {name for name in files(path) - expected if not may_stay(name)} == set()
    assert files(path) == files(copy) - {str(Path(f.path).relative_to(path)) for f in planned.files}
    same = files(path) == expected
    counts = ["old_versions", "data_files_removed", "index_files_removed", "failed_deletes"]
    counts += ["transaction_files_removed", "deletion_files_removed", "bytes_removed"] if same else []
    for name in counts:
        assert getattr(planned, name) == getattr(done, name) == getattr(stats, name), name


@pytest.mark.parametrize("unverified", [False, True], ids=["verified", "unverified"])
@pytest.mark.parametrize("build", [busy_table, branched_table])
def test_survivors(tmp_path: Path, build: Callable[[Path], None], unverified: bool) -> None:
    path = tmp_path / "t"
    build(path)
    with_leftovers(path)
    content = {}
    if build is branched_table:
        references: list[Any] = ["third", "of-branch", ("feat/x", None), ("deeper", None)]
        content = {ref: theirs_at(path).checkout_version(ref).to_table() for ref in references}
    newest = theirs_at(path).to_table()
    # Beside branches pylance deletes the transaction of the version with which one begins, and if asked to
    # also leftovers that are younger than kept versions.
    begins = theirs_at(path, version=4).read_transaction(4).uuid if build is branched_table else ""
    young = (
        "_transactions/1-0",
        "_deletions/0-1-0",
        "_deletions/0-2-0",
        "_deletions/.tmp0",
        "_versions/.tmpn",
    )

    def may_stay(name: str) -> bool:
        return bool(begins) and (begins in name or (unverified and name.startswith(young)))

    assert_survivors_are_those_of_pylance(
        path, may_stay=may_stay, older_than=NOW, delete_unverified=unverified
    )
    assert theirs_at(path).to_table() == newest == dataset(path).to_table()
    for reference, table in content.items():
        assert theirs_at(path).checkout_version(reference).to_table() == table


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("busy") / "t"
    busy_table(path)
    return path


@settings(max_examples=8)
@given(
    retain=st.none() | st.integers(1, 12),
    chosen=st.none() | st.lists(st.integers(1, 12), min_size=1),
    age=st.sampled_from([None, NOW, timedelta(days=1)]),
    at=st.none() | st.integers(4, 10),
)
def test_policies(
    busy: Path,
    retain: int | None,
    chosen: list[int] | None,
    age: timedelta | None,
    at: int | None,
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "t"
        shutil.copytree(busy, path)
        assert_survivors_are_those_of_pylance(
            path, at=at, older_than=age, retain_versions=retain, versions=chosen
        )


def test_a_branch_is_cleaned_up(tmp_path: Path) -> None:
    path = tmp_path / "t"
    branched_table(path)
    theirs_at(path).tags.delete("of-branch")
    place = path / "tree" / "feat" / "x"
    main = {file for file in files(path) if not file.startswith("tree/")}
    deeper = theirs_at(path).checkout_version(("deeper", None)).to_table()
    ours = dataset(path).checkout_version(("feat/x", None))
    stats = ours.cleanup_old_versions(older_than=NOW)
    assert stats.old_versions == 1, "version 5 is where another branch begins"
    assert len(list((place / "_versions").glob("*.manifest"))) == 2
    assert main <= files(path)
    assert theirs_at(path).checkout_version(("deeper", None)).to_table() == deeper


def test_tagged_versions_are_an_error_unless_one_says_so(tmp_path: Path) -> None:
    path = tmp_path / "t"
    busy_table(path)
    theirs_at(path).tags.create("third", 3)
    before = files(path)
    with pytest.raises(OptionError, match="versions 3 of"):
        dataset(path).cleanup_old_versions(older_than=NOW)
    assert files(path) == before
    dataset(path).cleanup_old_versions(older_than=NOW, versions=[1, 2])
    dataset(path).cleanup_old_versions(older_than=NOW, error_if_tagged_old_versions=False)
    assert [version["version"] for version in theirs_at(path).versions()] == [3, 11]
    assert theirs_at(path, version="third").count_rows() == 19


@pytest.mark.parametrize("arguments", [{"retain_versions": 0}, {"delete_rate_limit": 0}, {"versions": []}])
def test_bad_arguments(tmp_path: Path, arguments: dict[str, Any]) -> None:
    lance.write_dataset(rows(), tmp_path / "t")
    with pytest.raises(OptionError, match="at least 1"):
        dataset(tmp_path / "t").cleanup_old_versions(**arguments)


def test_two_weeks_by_default(tmp_path: Path) -> None:
    path = tmp_path / "t"
    busy_table(path)
    table = dataset(path)
    assert table.cleanup_old_versions().old_versions == 0
    later = datetime.now(timezone.utc) + timedelta(days=13)
    policy = module.CleanupPolicy()
    assert module.cleanup(table.table, table.manifest, policy, now=later).old_versions == 0
    later += timedelta(days=2)
    assert module.cleanup(table.table, table.manifest, policy, now=later).old_versions == 10


def test_an_unreadable_version_stops_everything(tmp_path: Path) -> None:
    path = tmp_path / "t"
    busy_table(path)
    (path / "_versions" / f"{2**64 - 1 - 2:020d}.manifest").write_bytes(b"no manifest")
    before = files(path)
    with pytest.raises(FormatError):
        dataset(path).cleanup_old_versions(older_than=NOW)
    assert files(path) == before


def test_detached_versions_keep_their_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(), path)
    lance.write_dataset(rows(10), path, mode="append")
    fragments = lance.fragment.write_fragments(rows(20), str(path))
    append = lance.LanceOperation.Append(fragments)
    aside: Any = lance.LanceDataset.commit(str(path), append, read_version=2, detached=True)
    old = time.time() - EIGHT_DAYS
    for name in files(path):
        os.utime(path / name, (old, old))
    assert dataset(path).cleanup_old_versions(older_than=NOW).old_versions == 1
    assert theirs_at(path, version=aside.version).to_table().num_rows == 30


def test_a_branch_that_has_no_name_yet_keeps_its_files(tmp_path: Path) -> None:
    path = tmp_path / "t"
    branched_table(path)
    for tag in ("of-branch", "third"):
        theirs_at(path).tags.delete(tag)
    content = theirs_at(path).checkout_version(("feat/x", None)).to_table()
    record = path / "_refs" / "branches" / "feat%2Fx.json"
    name = record.read_bytes()
    record.unlink()
    dataset(path).cleanup_old_versions(older_than=NOW)
    record.write_bytes(name)
    assert theirs_at(path).checkout_version(("feat/x", None)).to_table() == content


def test_sidecars_go_with_their_data_file(tmp_path: Path) -> None:
    path = tmp_path / "t"
    lance.write_dataset(rows(), path)
    (first,) = (path / "data").glob("*.lance")
    lance.write_dataset(rows(10), path, mode="overwrite")
    (second,) = set((path / "data").glob("*.lance")) - {first}
    for file in (first, second):
        file.with_suffix("").mkdir()
        (file.with_suffix("") / f"{'0' * 32}.blob").write_bytes(b"x")
    assert dataset(path).cleanup_old_versions(older_than=NOW).data_files_removed == 2
    left = {name for name in files(path) if name.startswith("data/")}
    assert left == {f"data/{second.name}", f"data/{second.stem}/{'0' * 32}.blob"}


@contextmanager
def just_before_deleting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> Iterator[None]:
    """Let another writer act once, after a clean-up has listed the files."""
    recheck = module._BranchCleanup.recheck
    acts = iter([act])

    def acted(line: module._BranchCleanup) -> None:
        for once in acts:
            once()
        recheck(line)

    with monkeypatch.context() as patch:
        patch.setattr(module._BranchCleanup, "recheck", acted)
        yield


def test_versions_that_are_restored_or_tagged_meanwhile_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t"
    busy_table(path)

    def act() -> None:
        theirs_at(path, version=6).restore()
        theirs_at(path).tags.create("late", 5)

    content = theirs_at(path, version=6).to_table(), theirs_at(path, version=5).to_table()
    with just_before_deleting(monkeypatch, act):
        dataset(path).cleanup_old_versions(older_than=NOW)
    assert theirs_at(path).to_table() == content[0]
    assert theirs_at(path, version="late").to_table() == content[1]
    assert [version["version"] for version in theirs_at(path).versions()] == [5, 11, 12]
    assert theirs_at(path).to_table(filter="a = 12").num_rows == 1


def test_branches_that_are_made_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    busy_table(path)
    content = theirs_at(path, version=5).to_table()
    with just_before_deleting(monkeypatch, lambda: theirs_at(path).create_branch("late", 5)):
        dataset(path).cleanup_old_versions(older_than=NOW)
    assert theirs_at(path).checkout_version(("late", None)).to_table() == content


def test_files_that_cannot_be_deleted_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    busy_table(path)
    delete = LocalStore.delete

    def refuse(store: LocalStore, file: str, root: str) -> None:
        if file.endswith(".txn"):
            raise PermissionError(file)
        delete(store, file, root)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", refuse)
        patch.setattr(
            LocalStore, "delete_many", lambda store, paths, root: [store.delete(path, root) for path in paths]
        )
        stats = dataset(path).cleanup_old_versions(older_than=NOW)
    assert (stats.old_versions, stats.transaction_files_removed) == (10, 0)
    assert stats.failed_deletes > 0
    assert theirs_at(path).count_rows() == 38


def test_deletes_are_slowed_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t"
    busy_table(path)
    waits: list[float] = []
    monkeypatch.setattr("spark_lance.table.versions.cleanup.time.sleep", waits.append)
    stats = dataset(path).cleanup_old_versions(older_than=NOW, delete_rate_limit=5)
    assert waits == [1.0] * (len(waits))
    assert len(waits) > 3
    assert stats.old_versions == 10
