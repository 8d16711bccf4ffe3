"""Commits through a manifest store and under a lock: races, crashes between the steps, repair by readers."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset, write_dataset
from spark_lance.errors import (
    AtomicPutUnsupportedError,
    CommitError,
    CommitOutcomeUnknownError,
    FormatError,
    StoreError,
    TableExistsError,
    VersionNotFoundError,
)
from spark_lance.io.local import LocalStore
from spark_lance.io.manifest_store import ManifestEntry
from spark_lance.io.manifest_stores import SqliteManifestStore
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store, open_store
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.paths import ManifestNaming, manifest_path
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.operations.append import append_message
from spark_lance.table.versions.publish import publish
from spark_lance.table.versions.versions import list_versions, load_latest, load_version
from tests.wrapped_store import WrappedStore

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
QUICK = RetryPolicy(attempts=5, base_seconds=0.001, cap_seconds=0.001)
Options = dict[str, Any]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """A store that cannot create objects atomically, and a database that can."""
    return {"conditional_put": "disabled", "manifest_store": f"sqlite://{tmp_path}/manifests.db"}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "table")


def versions_dir(uri: str) -> list[str]:
    return sorted(path.name for path in Path(uri, "_versions").iterdir() if path.suffix != ".json")


def test_a_table_lives_through_a_manifest_store(uri: str, options: Options) -> None:
    with pytest.raises(AtomicPutUnsupportedError):
        write_dataset(ROWS, uri, storage_options={"conditional_put": "disabled"})
    write_dataset(ROWS, uri, storage_options=options)
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    write_dataset(ROWS, uri, mode="overwrite", storage_options=options)
    write_dataset(ROWS, uri, mode="append", storage_options=options)
    ds = dataset(uri, storage_options=options)
    assert (ds.version, ds.count_rows()) == (4, 6)
    assert dataset(uri, 2, storage_options=options).count_rows() == 6
    assert versions_dir(uri) == sorted(ManifestNaming.V2.file_name(v) for v in (1, 2, 3, 4))
    with pytest.raises(TableExistsError):
        write_dataset(ROWS, uri, storage_options=options)
    with pytest.raises(VersionNotFoundError):
        dataset(uri, 5, storage_options=options)
    # What is finished is an ordinary table.
    assert lance.dataset(uri).to_table() == ds.to_table()


def test_a_table_begins_to_use_a_manifest_store(uri: str, options: Options) -> None:
    lance.write_dataset(ROWS, uri)
    assert dataset(uri, storage_options=options).version == 1
    assert write_dataset(ROWS, uri, mode="append", storage_options=options).version == 2
    assert dataset(uri, 1, storage_options=options).count_rows() == 3


class Crash(BaseException):
    """The process dies."""


@dataclass(frozen=True)
class Dying(WrappedStore):
    """A local store that dies before or after a call: (verb, "before" or "after")."""

    at: tuple[str, str] = ("", "")
    error: BaseException = field(default_factory=Crash)

    @contextlib.contextmanager
    def _around(self, verb: str) -> Iterator[None]:
        if self.at == (verb, "before"):
            raise self.error
        yield
        if self.at == (verb, "after"):
            raise self.error

    def put(self, path: str, data: bytes) -> None:
        with self._around("put") if "_versions" in path else contextlib.nullcontext():
            super().put(path, data)

    def copy(self, source: str, target: str) -> None:
        with self._around("copy"):
            # Not by way of self.put, which may be the one to fail.
            LocalStore().copy(source, target)

    def delete(self, path: str, root: str) -> None:
        with self._around("delete"):
            super().delete(path, root)


@dataclass(frozen=True)
class DyingStore(SqliteManifestStore):
    """A manifest store that fails in the same way."""

    at: tuple[str, str] = ("", "")
    error: BaseException = field(default_factory=Crash)

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        self._fail("choose", "before")
        super().put_if_absent(root, entry)
        self._fail("choose", "after")

    def put_if_exists(self, root: str, entry: ManifestEntry) -> None:
        self._fail("finish", "before")
        super().put_if_exists(root, entry)
        self._fail("finish", "after")

    def _fail(self, verb: str, when: str) -> None:
        if self.at == (verb, when):
            raise self.error


STEPS = [
    (verb, when) for verb in ("put", "choose", "copy", "finish", "delete") for when in ("before", "after")
]
CHOSEN = STEPS.index(("choose", "after"))


def append(store: Store, uri: str) -> int:
    """Append a fragment without files: only the commit is looked at."""
    latest = load_latest(TableRef(store, uri))
    fragment = latest.message.fragments[0]
    return commit_operation(
        TableRef(store, uri), append_message([fragment]), read_version=latest.version, retry=QUICK
    ).version


@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda i: "-".join(STEPS[i]))
def test_a_crash_leaves_a_version_or_none(step: int, uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    table = TableRef(store, root)
    assert isinstance(store.manifests, SqliteManifestStore)
    dying = DyingStore(store.manifests.file, "file", at=STEPS[step])
    with pytest.raises(Crash):
        append(Dying.around(LocalStore(), at=STEPS[step], manifests=dying, conditional_put=False), root)
    expected = 2 if step >= CHOSEN else 1
    assert load_latest(table).version == expected
    assert [file.version for file in list_versions(table)] == list(range(1, expected + 1))
    # Whatever was left half done was finished by that reader.
    latest = store.manifests.get_latest(root)
    assert latest is not None
    assert (latest.version, latest.path) == (expected, manifest_path(root, expected, ManifestNaming.V2))
    if CHOSEN <= step < STEPS.index(("finish", "after")):
        assert versions_dir(uri) == sorted(ManifestNaming.V2.file_name(v) for v in (1, 2))
    assert append(store, root) == expected + 1


@pytest.mark.parametrize("step", range(len(STEPS)), ids=lambda i: "-".join(STEPS[i]))
def test_a_lost_answer_is_no_lost_commit(step: int, uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    table = TableRef(store, root)
    assert isinstance(store.manifests, SqliteManifestStore)
    error = ConnectionError("reset by peer")
    fails = DyingStore(store.manifests.file, "file", at=STEPS[step], error=error)
    failing = Dying.around(LocalStore(), at=STEPS[step], manifests=fails, conditional_put=False, error=error)
    verb, when = STEPS[step]
    if STEPS[step] in [("put", "before"), ("put", "after"), ("choose", "before")]:
        # Nothing was chosen: every attempt fails, and it is known which version they aimed at.
        with pytest.raises(CommitOutcomeUnknownError):
            append(failing, root)
        assert load_latest(table).version == 1
    elif verb == "copy":
        with pytest.raises(CommitOutcomeUnknownError, match="not in place yet"):
            append(failing, root)
        # It was chosen, so the next reader finishes it: nothing of it was deleted.
        assert load_latest(table).version == 2
    else:
        assert append(failing, root) == 2, when
    newest = load_latest(table).version
    assert [file.version for file in list_versions(table)] == list(range(1, newest + 1))


class Repeating(SqliteManifestStore):
    """A manifest store whose client sends a request again, though the first one went through."""

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        super().put_if_absent(root, entry)
        super().put_if_absent(root, entry)


def test_a_row_that_lost_against_itself_won(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    assert isinstance(store.manifests, SqliteManifestStore)
    repeating = replace(store, manifests=Repeating(store.manifests.file, "file"))
    publish(
        TableRef(repeating, root),
        2,
        manifest_path(root, 2, ManifestNaming.V2),
        store.read(manifest_path(root, 1, ManifestNaming.V2)),
    )
    assert versions_dir(uri) == sorted(ManifestNaming.V2.file_name(v) for v in (1, 2))


def test_specific_versions_are_finished_too(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    stage(store, root, 1)
    assert load_version(TableRef(store, root), 1).version == 1
    assert versions_dir(uri) == [ManifestNaming.V2.file_name(1)]


def stage(store: Store, root: str, version: int) -> str:
    """Put a finished version back to the state after step 2."""
    final = manifest_path(root, version, ManifestNaming.V2)
    staged = f"{final}-{uuid.uuid4()}"
    store.put(staged, store.read(final))
    store.delete(final, root)
    assert store.manifests is not None
    store.manifests.put_if_exists(root, ManifestEntry(version, staged, store.size(staged)))
    return staged


def test_readers_finish_at_the_same_time(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    results: list[int] = []
    for _ in range(10):
        stage(store, root, 1)
        barrier = threading.Barrier(4)

        def read(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            results.append(load_latest(TableRef(store, root)).version)

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [1] * 40
    assert versions_dir(uri) == [ManifestNaming.V2.file_name(1)]


def test_a_lost_manifest_is_told(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    store.delete(stage(store, root, 1), root)
    with pytest.raises(FormatError, match="version 1 is lost"):
        load_latest(TableRef(store, root))


@pytest.mark.parametrize("name", ["x", "7.manifest", "18446744073709551613.manifest-1"])
def test_rows_that_make_no_sense(name: str, uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    assert store.manifests is not None
    store.manifests.put_if_exists(root, ManifestEntry(1, f"{root}/_versions/{name}"))
    with pytest.raises(FormatError, match="for version 1"):
        load_latest(TableRef(store, root))


def test_rows_of_a_deleted_table_are_in_the_way(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    store.delete(manifest_path(root, 1, ManifestNaming.V2), root)
    with pytest.raises(FormatError, match="delete its rows as well"):
        write_dataset(ROWS, uri, storage_options=options)
    assert store.manifests is not None
    store.manifests.delete(root)
    assert write_dataset(ROWS, uri, storage_options=options).version == 1


def test_a_manifest_beside_the_store_is_not_replaced(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    path = manifest_path(root, 2, ManifestNaming.V2)
    store.put(path, b"put here by someone who does not use the store")
    with pytest.raises(FileExistsError):
        publish(TableRef(store, root), 2, path, b"ours")
    assert store.read(path).startswith(b"put here")


def race(open_one: Callable[[], Store], uri: str, writers: int, commits: int) -> None:
    failures: list[BaseException] = []
    patient = RetryPolicy(attempts=200, base_seconds=0.002, cap_seconds=0.02)

    def run() -> None:
        try:
            store = open_one()
            for _ in range(commits):
                latest = load_latest(TableRef(store, uri))
                operation = append_message([latest.message.fragments[0]])
                commit_operation(TableRef(store, uri), operation, read_version=latest.version, retry=patient)
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    store = open_one()
    assert load_latest(TableRef(store, uri)).version == 1 + writers * commits
    assert len(load_latest(TableRef(store, uri)).fragments) == 1 + writers * commits


class Meeting:
    """Lets each of some threads wait for the others, once."""

    def __init__(self, threads: int) -> None:
        self._barrier = threading.Barrier(threads)
        self._met = threading.local()

    def __call__(self) -> None:
        if not hasattr(self._met, "yes"):
            self._met.yes = True
            self._barrier.wait()


@dataclass(frozen=True)
class MeetingStore(SqliteManifestStore):
    """A manifest store at which all writers arrive with their first row at the same time."""

    meet: Callable[[], None] = lambda: None

    def put_if_absent(self, root: str, entry: ManifestEntry) -> None:
        self.meet()
        super().put_if_absent(root, entry)


def test_appenders_race_through_a_manifest_store(uri: str, options: Options, caplog: Any) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, _ = open_store(uri, options)
    assert isinstance(store.manifests, SqliteManifestStore)
    meeting = replace(store, manifests=MeetingStore(store.manifests.file, "file", Meeting(4)))
    with caplog.at_level("INFO"):
        race(lambda: meeting, uri, writers=4, commits=6)
    assert caplog.text.count("attempt 1 to commit") >= 3, "the first rows of all collide"
    assert all(name.endswith(".manifest") for name in versions_dir(uri))


@dataclass
class Lock:
    """A commit lock as users write them; remembers what it was asked."""

    lock: Any = field(default_factory=threading.Lock)
    versions: list[int] = field(default_factory=list)
    meet: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def __call__(self, version: int) -> Iterator[None]:
        self.meet()
        with self.lock:
            self.versions.append(version)
            yield


LOCKED = {"conditional_put": "disabled"}


def test_a_table_lives_under_a_lock(uri: str) -> None:
    lock = Lock()
    write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=lock)
    write_dataset(ROWS, uri, mode="append", storage_options=LOCKED, commit_lock=lock)
    table = dataset(uri, storage_options=LOCKED, commit_lock=lock)
    table.delete("a = 1")
    assert dataset(uri).count_rows() == 4
    assert lock.versions == [1, 2, 3]
    with pytest.raises(TableExistsError):
        write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=lock)
    assert lance.dataset(uri).count_rows() == 4


def test_a_lock_is_shared_with_pylance(uri: str) -> None:
    lock = Lock()
    write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=lock)
    lance.write_dataset(ROWS, uri, mode="append", commit_lock=lock)
    write_dataset(ROWS, uri, mode="append", storage_options=LOCKED, commit_lock=lock)
    lance.write_dataset(ROWS, uri, mode="append", commit_lock=lock)
    assert lock.versions == [1, 2, 3, 4]
    assert dataset(uri).count_rows() == lance.dataset(uri).count_rows() == 12


def test_appenders_race_under_a_lock(uri: str) -> None:
    write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=Lock())
    lock = Lock(meet=Meeting(4))
    race(lambda: open_store(uri, LOCKED, lock)[0], uri, writers=4, commits=6)
    assert lock.versions.count(2) == 4, "the first commits of all collide"


def test_a_lock_stays_in_its_process(uri: str) -> None:
    table = write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=Lock())
    there = pickle.loads(pickle.dumps(table))
    assert there.to_table() == ROWS
    with pytest.raises(AtomicPutUnsupportedError, match="stays in the process"):
        append(there.store, there.root)
    assert dataset(uri).version == 1


@dataclass
class BadLock:
    """A lock that is entered, and whose release raises or says that nothing was wrong."""

    fails: bool = True
    before_release: Callable[[int], None] = lambda version: None
    releases: int = 0

    def __call__(self, version: int) -> BadLock:
        self.version = version
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> bool:
        self.releases += 1
        self.before_release(self.version)
        if self.fails:
            raise RuntimeError("lease service is gone")
        return True


def test_a_lock_that_is_not_released_is_logged_and_the_commit_succeeds(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        lock = BadLock()
        caplog.clear()
        ds = write_dataset(ROWS, uri, "append", storage_options=LOCKED, commit_lock=lock)
        assert ds.version == number
        assert "was committed, but its commit lock was not released: lease service is gone" in caplog.text
        assert lock.releases == 1
        hint = Path(uri, "_versions", "latest_version_hint.json").read_text()
        assert json.loads(hint) == {"version": number}, "all that follows a commit was done"
        assert dataset(uri).version == number
        assert dataset(uri).to_table() == pa.concat_tables([ROWS] * number), "no file of it was deleted"
    table = dataset(uri, storage_options=LOCKED, commit_lock=BadLock())
    table.delete("a = 1")
    assert dataset(uri).count_rows() == 4
    assert lance.dataset(uri).count_rows() == 4


def test_a_lock_that_fails_after_another_writer_won(uri: str) -> None:
    write_dataset(ROWS, uri)
    path = manifest_path(dataset(uri).root, 2, ManifestNaming.V2)

    @contextlib.contextmanager
    def late(version: int) -> Iterator[None]:
        if version == 2:
            write_dataset(ROWS, uri, mode="append")
        try:
            yield
        finally:
            raise RuntimeError("lease service is gone")

    files = len(list(Path(uri).glob("data/*.lance")))
    with pytest.raises(CommitError, match="Nothing was committed; free the lock") as message:
        write_dataset(ROWS, uri, "append", storage_options=LOCKED, commit_lock=late)
    assert not isinstance(message.value, CommitOutcomeUnknownError)
    assert Path(path).exists()
    assert dataset(uri).version == 2
    assert dataset(uri).count_rows() == 6
    assert len(list(Path(uri).glob("data/*.lance"))) == files + 1, "the files of the lost commit are gone"


def test_a_lock_that_lost_what_it_guarded(uri: str) -> None:
    """Another writer replaces the manifest, which a lease that ran out allows."""
    write_dataset(ROWS, uri)
    other = write_dataset(ROWS, f"{uri}-other", mode="append")
    other = write_dataset(ROWS, f"{uri}-other", mode="append")

    def replace(version: int) -> None:
        shutil.copy(other.manifest.path, manifest_path(dataset(uri).root, version, ManifestNaming.V2))

    with pytest.raises(CommitError, match="is another writer's") as message:
        write_dataset(
            ROWS, uri, "append", storage_options=LOCKED, commit_lock=BadLock(before_release=replace)
        )
    assert not isinstance(message.value, CommitOutcomeUnknownError)


@pytest.mark.parametrize("sent", [True, False], ids=["manifest gone again", "no answer of the store"])
def test_a_lock_that_fails_when_nobody_knows_of_the_version(
    uri: str, sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(ROWS, uri)
    path = Path(manifest_path(dataset(uri).root, 2, ManifestNaming.V2))
    plain = LocalStore.put

    def unanswered(self: LocalStore, place: str, data: bytes) -> None:
        if place == str(path):
            raise ConnectionError("no answer")
        plain(self, place, data)

    if not sent:
        monkeypatch.setattr(LocalStore, "put", unanswered)
    lock = BadLock(before_release=(lambda version: path.unlink()) if sent else (lambda version: None))
    with pytest.raises(CommitOutcomeUnknownError, match="Nothing was deleted"):
        write_dataset(ROWS, uri, "append", storage_options=LOCKED, commit_lock=lock)
    assert len(list(Path(uri).glob("data/*.lance"))) == 2, "a late put may name it"
    assert dataset(uri).version == 1


def test_a_lock_that_hides_failures_does_not_make_them_commits(uri: str) -> None:
    write_dataset(ROWS, uri)
    store, root = open_store(uri, LOCKED, BadLock(fails=False))
    with pytest.raises(FileExistsError, match="version 1 is there"):
        publish(TableRef(store, root), 1, manifest_path(root, 1, ManifestNaming.V2), b"")
    assert write_dataset(ROWS, uri, "append", commit_lock=BadLock(fails=False)).count_rows() == 6


def test_a_lock_that_cannot_be_had(uri: str) -> None:
    class CommitConflictError(Exception):
        """As pylance's."""

    @contextlib.contextmanager
    def busy(version: int) -> Iterator[None]:
        raise CommitConflictError("held by another")
        yield

    @contextlib.contextmanager
    def down(version: int) -> Iterator[None]:
        raise RuntimeError("lease service is gone")
        yield

    @contextlib.contextmanager
    def refusing(version: int) -> Iterator[None]:
        raise CommitError
        yield

    store, root = open_store(uri, LOCKED, busy)
    with pytest.raises(FileExistsError, match="held by another"):
        publish(TableRef(store, root), 1, manifest_path(root, 1, ManifestNaming.V2), b"")
    for failing in (down, refusing):
        with pytest.raises(CommitError, match=r"was not given .*, so nothing was committed") as message:
            write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=failing)
    assert isinstance(message.value.__cause__, CommitError)
    with pytest.raises(CommitError, match="RuntimeError: lease service is gone"):
        write_dataset(ROWS, uri, storage_options=LOCKED, commit_lock=down)
    left = [path for path in Path(uri).rglob("*") if path.is_file()]
    assert {path.parent.name for path in left} == {"_transactions"}


def test_a_manifest_store_that_is_down_is_told(uri: str, options: Options) -> None:
    write_dataset(ROWS, uri, storage_options=options)
    store, root = open_store(uri, options)
    assert isinstance(store.manifests, SqliteManifestStore)
    Path(store.manifests.file).write_bytes(b"no database" * 100)
    with pytest.raises(StoreError, match="manifest store"):
        load_latest(TableRef(store, root))
