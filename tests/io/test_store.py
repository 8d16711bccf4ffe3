"""What every store must do, once for each kind; and what is special to one."""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from spark_lance.errors import AtomicPutUnsupportedError, StoreError
from spark_lance.io.store import Store, join, open_store


class StoreTests:
    """The contract; `place` gives a store and an empty folder in it."""

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
        store.delete(missing)
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

    def test_ranges_come_back_in_the_asked_order(self, place: tuple[Store, str]) -> None:
        store, root = place
        path = join(root, "r")
        data = bytes(range(256)) * 4
        store.put(path, data)
        asked = [(1000, 24), (0, 1), (5, 0), (4, 10), (4, 10), (600, 300)]
        assert [bytes(b) for b in store.read_ranges(path, asked)] == [data[o : o + n] for o, n in asked]
        assert store.read_ranges(path, []) == []

    def test_a_range_beyond_the_end_is_an_error(self, place: tuple[Store, str]) -> None:
        store, root = place
        store.put(join(root, "r"), b"12345")
        with pytest.raises(StoreError, match="ends after 5 bytes"):
            store.read_ranges(join(root, "r"), [(3, 4)])

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
        for round_number in range(40):
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
    store = Store("plainstore")
    with pytest.raises(AtomicPutUnsupportedError, match="plainstore"):
        store.put_if_absent("/t/1", b"")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(StoreError, match="nosuchprotocol"):
        open_store("nosuchprotocol://bucket/t")


def test_credentials_stay_out_of_repr() -> None:
    assert "hunter2" not in repr(Store("s3", {"secret": "hunter2"}))
