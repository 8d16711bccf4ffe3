"""What every store must do, once for each kind; and what is special to one."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_lance.errors import AtomicPutUnsupportedError, StoreAccessError, StoreError
from spark_lance.io.fsspec_store import FsspecStore
from spark_lance.io.locations import join
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import Store, open_store, store_class


class StoreTests:
    """The contract; `place` gives a store and an empty folder in it."""

    races = 40

    def test_put_then_read(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "a", "x"), b"one")
        store.put(join(root, "a", "x"), b"two")
        assert store.read(join(root, "a", "x")) == b"two"
        assert store.size(join(root, "a", "x")) == 3
        assert store.exists(join(root, "a", "x"))

    def test_absent_objects(self, place: tuple[Store, str]) -> None:
        store, root = place
        missing = join(root, "nothing")
        assert not store.exists(missing)
        assert store.list(join(root, "no-folder")) == []
        store.delete(missing, root)
        with pytest.raises(FileNotFoundError):
            store.read(missing)
        with pytest.raises(FileNotFoundError):
            store.size(missing)

    def test_list_names_files_only(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "f", "a"), b"")
        store.put(join(root, "f", "b"), b"1")
        store.put(join(root, "f", "deeper", "c"), b"1")
        assert sorted(store.list(join(root, "f"))) == ["a", "b"]

    def test_objects_are_listed_with_size_and_time(self, place: tuple[Store, str]) -> None:
        store, root = place
        before = datetime.now(timezone.utc) - timedelta(seconds=2)
        store.put(join(root, "f", "a"), b"12")
        store.put(join(root, "f", "deeper", "c"), b"123")
        (flat,) = store.list_objects(join(root, "f"))
        assert (flat.path, flat.name, flat.size) == (join(root, "f", "a"), "a", 2)
        assert flat.modified is not None
        assert before <= flat.modified <= datetime.now(timezone.utc) + timedelta(seconds=2)
        assert store.look_up(flat.path).modified == flat.modified
        deep = store.list_objects(join(root, "f"), recursive=True)
        assert sorted((result.name, result.size) for result in deep) == [("a", 2), ("c", 3)]
        assert set(store.first_objects(join(root, "f"), 100)) == {"a", "deeper/c"}
        assert len(store.first_objects(join(root, "f"), 1)) <= 1
        assert store.first_objects(join(root, "no-folder"), 100) == []
        assert list(store.list_objects(join(root, "no-folder"))) == []
        assert list(store.list_objects(join(root, "no-folder"), recursive=True)) == []

    def test_copy(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "a"), b"one")
        store.put(join(root, "b"), b"old")
        store.copy(join(root, "a"), join(root, "b"))
        assert store.read(join(root, "b")) == b"one"
        with pytest.raises(FileNotFoundError):
            store.copy(join(root, "missing"), join(root, "c"))
        assert not store.exists(join(root, "c"))

    def test_many_are_deleted(self, place: tuple[Store, str]) -> None:
        store, root = place
        paths = [join(root, f"{i}") for i in range(30)]
        for path in paths:
            store.put(path, b"1")
        store.delete_many([*paths[:20], join(root, "missing")], root)
        store.delete_many([], root)
        assert sorted(store.list(root)) == sorted(path.rpartition("/")[2] for path in paths[20:])

    def test_ranges_come_back_in_the_asked_order(self, place: tuple[Store, str]) -> None:
        store, root = place
        path = join(root, "r")
        data = bytes(range(256)) * 4
        store.put(path, data)
        requests = [(1000, 24), (0, 1), (5, 0), (4, 10), (4, 10), (600, 300)]
        assert [bytes(b) for b in store.read_ranges(path, requests)] == [data[o : o + n] for o, n in requests]
        assert store.read_ranges(path, []) == []

    def test_a_range_beyond_the_end_is_an_error(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "r"), b"12345")
        with pytest.raises(StoreError, match="ends after 5 bytes"):
            store.read_ranges(join(root, "r"), [(3, 4)])
        with pytest.raises(StoreError, match="but bytes up to 21 were requested"):
            store.read_ranges(join(root, "r"), [(20, 1)])

    def test_put_if_absent_never_replaces(self, place: tuple[Store, str]) -> None:
        store, root = place
        path = join(root, "v", "1")
        store.put_if_absent(path, b"first")
        with pytest.raises(FileExistsError):
            store.put_if_absent(path, b"second")
        assert store.read(path) == b"first"
        assert store.list(join(root, "v")) == ["1"]

    def test_put_if_absent_has_one_winner(self, place: tuple[Store, str]) -> None:
        store, root = place
        for round_number in range(self.races):
            path = join(root, "race", str(round_number))
            barrier = threading.Barrier(6)
            winners: list[int] = []

            def attempt(
                me: int, path: str = path, barrier: threading.Barrier = barrier, winners: list[int] = winners
            ) -> None:
                barrier.wait()
                try:
                    store.put_if_absent(path, b"%d" % me * 1000)
                except FileExistsError:
                    return
                winners.append(me)

            threads = [threading.Thread(target=attempt, args=(i,)) for i in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(winners) == 1
            assert store.read(path) == b"%d" % winners[0] * 1000

    def test_an_output_is_visible_when_closed(self, place: tuple[Store, str]) -> None:
        store, root = place
        path = join(root, "new", "file")
        out = store.create(path)
        out.write(b"ab")
        out.write(memoryview(b"cd"))
        assert out.tell() == 4
        assert not store.exists(path)
        out.close()
        assert store.read(path) == b"abcd"

    def test_an_aborted_output_leaves_nothing(self, place: tuple[Store, str]) -> None:
        store, root = place
        out = store.create(join(root, "new", "file"))
        out.write(b"ab")
        out.abort()
        assert store.list(join(root, "new")) == []

    def test_a_pickled_store_works(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "x"), b"1")
        assert pickle.loads(pickle.dumps(store)).read(join(root, "x")) == b"1"


class TestLocal(StoreTests):
    @pytest.fixture
    def place(self, tmp_path: Path) -> tuple[Store, str]:
        return open_store(tmp_path)

    def test_a_failed_put_keeps_the_old_object(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "x"), b"old")
        with pytest.raises(TypeError):
            store.put(join(root, "x"), "text")  # type: ignore[arg-type]
        assert store.read(join(root, "x")) == b"old"
        assert store.list(root) == ["x"]

    def test_uris_and_paths_name_the_same_place(self, tmp_path: Path) -> None:
        assert open_store(f"file://{tmp_path}/t/")[1] == open_store(str(tmp_path / "t"))[1] == f"{tmp_path}/t"

    def test_ranges_are_not_copied(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "x"), bytes(100_000))
        first, second = store.read_ranges(join(root, "x"), [(0, 10), (64, 10)])
        assert second.address - first.address == 64


class TestMemory(StoreTests):
    @pytest.fixture
    def place(self) -> Iterator[tuple[Store, str]]:
        store, root = open_store(f"memory://{uuid.uuid4().hex}/t")
        yield store, root
        MemoryFileSystem.store.clear()


def test_a_store_without_conditional_writes_is_refused(tmp_path: Path) -> None:
    fsspec.register_implementation("plainstore", MemoryFileSystem, clobber=True)
    store = FsspecStore("plainstore")
    with pytest.raises(AtomicPutUnsupportedError, match="plainstore"):
        store.put_if_absent("/t/1", b"")


def test_the_refusal_names_the_ways_out() -> None:
    store, root = open_store("memory://x", {"conditional_put": "disabled"})
    with pytest.raises(AtomicPutUnsupportedError, match=r"manifest_store.*commit_lock"):
        store.put_if_absent(join(root, "1"), b"")
    assert not store.exists(join(root, "1"))


def test_a_uri_brings_settings_along() -> None:
    class Hosted(MemoryFileSystem):  # type: ignore[misc]
        protocol = "hosted"

        def __init__(self, host: str = "") -> None:
            super().__init__()
            self.host = host

        @staticmethod
        def _get_kwargs_from_urls(uri: str) -> dict[str, str]:
            return {"host": uri.partition("://")[2].partition("/")[0]}

    fsspec.register_implementation("hosted", Hosted, clobber=True)
    store, _ = open_store("hosted://example/x")
    assert store.fs.host == "example"
    other, _ = open_store("hosted://example/x", {"host": "given"})
    assert other.fs.host == "given"


def test_files_of_other_file_systems_appear_whole() -> None:
    seen: list[tuple[str, bytes]] = []

    class Renaming(MemoryFileSystem):  # type: ignore[misc]
        protocol = "renaming"

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
            seen.append((path, value))
            super().pipe_file(path, value, mode=mode, **kwargs)

    fsspec.register_implementation("renaming", Renaming, clobber=True)
    FsspecStore("renaming").put("/r/x", b"data")
    ((written, _),) = seen
    assert written.startswith("/r/.tmp")
    assert FsspecStore("renaming").read("/r/x") == b"data"
    assert FsspecStore("renaming").list("/r") == ["x"]


class Unreliable(MemoryFileSystem):  # type: ignore[misc]
    """Fails as ordered, by the name of the method."""

    protocol = "unreliable"
    orders: ClassVar[list[Exception]] = []

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: object
    ) -> bytes:
        if self.orders:
            raise self.orders.pop()
        return bytes(super().cat_file(path, start, end))


@pytest.fixture
def unreliable(monkeypatch: pytest.MonkeyPatch) -> Store:
    fsspec.register_implementation("unreliable", Unreliable, clobber=True)
    monkeypatch.setattr("spark_lance.io.retry.time.sleep", lambda seconds: None)
    Unreliable.orders.clear()
    store = FsspecStore("unreliable", retry=RetryPolicy(attempts=3))
    store.put("/u/x", b"12345")
    return store


def test_reads_are_repeated(unreliable: Store) -> None:
    Unreliable.orders += [ConnectionResetError(), TimeoutError()]
    assert unreliable.read("/u/x") == b"12345"
    Unreliable.orders += [ConnectionResetError(), TimeoutError()]
    assert bytes(unreliable.read_ranges("/u/x", [(1, 2)])[0]) == b"23"
    assert Unreliable.orders == []


def test_patience_ends(unreliable: Store) -> None:
    Unreliable.orders += [ConnectionResetError()] * 4
    with pytest.raises(StoreError, match="reading unreliable:///u/x: the connection failed"):
        unreliable.read("/u/x")
    assert len(Unreliable.orders) == 1


def test_refusals_are_not_repeated(unreliable: Store) -> None:
    Unreliable.orders += [PermissionError()] * 2
    with pytest.raises(StoreAccessError):
        unreliable.read("/u/x")
    assert len(Unreliable.orders) == 1


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(StoreError, match="nosuchprotocol"):
        open_store("nosuchprotocol://bucket/t")


def test_credentials_stay_out_of_repr() -> None:
    assert "hunter2" not in repr(store_class("s3")("s3", {"secret": "hunter2"}))
