"""Clean-ups while another writer commits between any two of their requests: no version loses a file."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import LanceError, RetryableConflictError, VersionNotFoundError
from spark_lance.io.local import LocalStore
from spark_lance.proto import transaction_pb2
from spark_lance.table.commits import commit as commit_module
from spark_lance.table.commits.detached import commit_detached
from spark_lance.table.format import transaction as transactions
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.inserts import clone as clone_module
from spark_lance.table.versions import publish as publishing
from spark_lance.table.versions.cleanup import CleanupPolicy, CleanupStats, cleanup
from spark_lance.table.versions.versions import list_versions, load_latest
from tests.wrapped_store import WrappedStore

LAST = 6
ALL = CleanupPolicy(older_than=timedelta(0), error_if_tagged=False)
VERBS = ("read", "list", "list_objects", "list_to_delete", "delete", "delete_many", "exists", "put", "size")


def rows(number: int) -> pa.Table:
    return pa.table({"v": pa.array([number] * 3, pa.int64())})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Versions 1 to 6, each of which shares no data file with another one."""
    place = tmp_path_factory.mktemp("original") / "t"
    for number in range(1, LAST + 1):
        spark_lance.write_dataset(rows(number), str(place), mode="overwrite" if number > 1 else "create")
    return place


@dataclass(frozen=True)
class BusyStore(WrappedStore):
    """Lets another writer act before each request, all of which counts."""

    before: Callable[[int], None] = field(default=lambda _: None, compare=False)
    calls: Iterator[int] = field(default_factory=lambda: iter(range(1_000_000)), compare=False)
    state: threading.local = field(default_factory=threading.local, compare=False)
    lock: Any = field(default_factory=threading.Lock, compare=False)


def _busy(verb: str) -> Callable[..., Any]:
    def call(store: BusyStore, *arguments: Any, **named: Any) -> Any:
        if not getattr(store.state, "inside", False):
            with store.lock:
                store.before(next(store.calls))
        outer, store.state.inside = getattr(store.state, "inside", False), True
        try:
            return getattr(WrappedStore, verb)(store, *arguments, **named)
        finally:
            store.state.inside = outer

    return call


for _verb in VERBS:
    setattr(BusyStore, _verb, _busy(_verb))


class Writer:
    """Another writer, who remembers what each commit has to read as."""

    def __init__(self, place: Path) -> None:
        self.place = str(place)
        self.versions: dict[str | int | tuple[str, None], list[int]] = {}
        self.number = 100

    def table(self) -> spark_lance.LanceDataset:
        return spark_lance.dataset(self.place)

    def append(self, _: int) -> None:
        self.number += 1
        ds = spark_lance.write_dataset(rows(self.number), self.place, mode="append")
        self.versions[ds.version] = ds.to_table()["v"].to_pylist()

    def restore(self, version: int) -> None:
        result = spark_lance.dataset(self.place, version).restore()
        self.versions[result.version] = [version] * 3

    def tag(self, version: int) -> None:
        self.number += 1
        self.table().tags.create(f"t{self.number}", version)
        self.versions[f"t{self.number}"] = [version] * 3

    def branch(self, version: int) -> None:
        self.number += 1
        self.table().create_branch(f"b{self.number}", version)
        self.versions[(f"b{self.number}", None)] = [version] * 3

    def detached(self, version: int) -> None:
        table = self.table()
        operation = transaction_pb2.Transaction.Restore(version=version)
        result = commit_detached(TableRef(table.store, self.place), operation, read_version=table.version)
        self.versions[result.version] = [version] * 3

    def branch_again(self, version: int) -> None:
        if ("again", None) in self.versions:
            self.table().branches.delete("again")
            del self.versions[("again", None)]
        self.table().create_branch("again", version)
        self.versions[("again", None)] = [version] * 3

    def act(self, name: str, version: int) -> None:
        # After these errors nothing was committed.
        with contextlib.suppress(VersionNotFoundError, RetryableConflictError):
            getattr(self, name)(version)

    def check(self) -> None:
        """Read every version that is named, and everything that the history still lists."""
        names = set(self.table().tags.list()) | {(name, None) for name in self.table().branches.list()}
        for name, content in self.versions.items():
            if isinstance(name, int) and not name >> 63 and name not in self.listed():
                continue  # a clean-up may delete old versions
            if not isinstance(name, int):
                assert name in names
            assert spark_lance.dataset(self.place, name).to_table()["v"].to_pylist() == content, name
        for version in self.listed():
            assert spark_lance.dataset(self.place, version).count_rows() == len(
                spark_lance.dataset(self.place, version).to_table()
            )

    def listed(self) -> list[int]:
        return [file.version for file in list_versions(TableRef(self.table().store, self.place))]


def clean(place: Path, before: Callable[[int], None], rate: int | None = None) -> CleanupStats:
    store = BusyStore.around(LocalStore(), before=before)
    at = load_latest(TableRef(LocalStore(), str(place)))
    return cleanup(TableRef(store, str(place)), at, ALL, delete_rate_limit=rate)


ACTS = ("append", "restore", "tag", "branch", "detached", "branch_again")


def requests_of(original: Path, tmp_path: Path, rate: int | None = None) -> int:
    shutil.copytree(original, tmp_path / "count")
    count = [0]
    clean(tmp_path / "count", lambda number: count.__setitem__(0, number + 1), rate)
    return count[0]


@pytest.mark.parametrize("act", ACTS)
def test_one_commit_between_any_two_requests(
    original: Path, tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_lance.table.versions.cleanup.time.sleep", lambda _: None)
    total = requests_of(original, tmp_path)
    assert total > 20
    for moment in random.Random(act).sample(range(total), 8):
        place = tmp_path / f"t{moment}"
        shutil.copytree(original, place)
        writer = Writer(place)
        clean(place, partial(act_once, writer, act, moment))
        writer.check()


def act_once(writer: Writer, act: str, moment: int, number: int) -> None:
    if number == moment:
        writer.act(act, moment % (LAST - 1) + 1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rate", [None, 2])
@pytest.mark.parametrize("seed", range(3))
def test_commits_between_all_requests(
    original: Path, tmp_path: Path, seed: int, rate: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_lance.table.versions.cleanup.time.sleep", lambda _: None)
    chance = random.Random(seed)
    place = tmp_path / "t"
    shutil.copytree(original, place)
    writer = Writer(place)

    def before(number: int) -> None:
        if number < 200:
            writer.act(chance.choice(ACTS), chance.randint(1, LAST))

    clean(place, before, rate)
    writer.check()
    assert len(writer.versions) > 10


def test_versions_that_come_back_can_be_cleaned_up_later(original: Path, tmp_path: Path) -> None:
    place = tmp_path / "t"
    shutil.copytree(original, place)
    writer = Writer(place)
    manifests = {file.version: Path(file.path) for file in list_versions(TableRef(LocalStore(), str(place)))}

    def before(_: int) -> None:
        # Version 3 is deleted, and the tag comes from a writer that has looked at it before.
        if not manifests[3].exists() and not writer.versions:
            tag = place / "_refs" / "tags" / "late.json"
            tag.parent.mkdir(parents=True, exist_ok=True)
            tag.write_text('{"branch":null,"version":3,"manifestSize":1}')
            writer.versions["late"] = [3] * 3

    stats = clean(place, before)
    writer.check()
    assert stats.old_versions == LAST - 2
    assert writer.listed() == [3, LAST]
    writer.table().tags.delete("late")
    assert clean(place, lambda _: None).old_versions == 1
    assert writer.listed() == [LAST]


def test_a_restore_that_has_begun_finds_its_version(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    shutil.copytree(original, place)
    old = spark_lance.dataset(str(place), 2)
    publish = publishing.publish

    def clean_first(*arguments: Any) -> None:
        clean(place, lambda _: None)
        publish(*arguments)

    monkeypatch.setattr(commit_module, "publish", clean_first)
    assert old.restore().to_table()["v"].to_pylist() == [2] * 3
    assert spark_lance.dataset(str(place), 2).to_table()["v"].to_pylist() == [2] * 3


def test_a_restore_whose_version_is_gone_commits_nothing(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    shutil.copytree(original, place)
    old = spark_lance.dataset(str(place), 2)
    write = transactions.write_transaction

    def clean_first(*arguments: Any) -> None:
        clean(place, lambda _: None)
        write(*arguments)

    monkeypatch.setattr(commit_module, "write_transaction", clean_first)
    with pytest.raises(VersionNotFoundError, match=r"version 2 of .* was deleted by a clean-up"):
        old.restore()
    assert spark_lance.dataset(str(place)).version == LAST


def test_branches_and_tags_of_versions_that_go_are_refused(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "t"
    shutil.copytree(original, place)
    table = spark_lance.dataset(str(place))
    put = LocalStore.put_if_absent

    def clean_first(store: LocalStore, path: str, *arguments: Any, **named: Any) -> None:
        if path.endswith("late.json"):
            clean(place, lambda _: None)
        put(store, path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "put_if_absent", clean_first)
        with pytest.raises(VersionNotFoundError):
            table.tags.create("late", 2)
    assert table.tags.list() == {}
    shutil.rmtree(place)
    shutil.copytree(original, place)
    first = commit_module.create_first_version

    def clean_before(*arguments: Any, **named: Any) -> Any:
        clean(place, lambda _: None)
        return first(*arguments, **named)

    monkeypatch.setattr(clone_module, "create_first_version", clean_before)
    with pytest.raises(LanceError):
        table.create_branch("late", 3)
    assert table.branches.list() == {}
