"""The contract of stores against real servers, and what only a real server would refuse."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from spark_lance.errors import StoreAccessError, StoreError
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from tests.io.test_store import StoreTests
from tests.stores.services import Service, gap

pytestmark = [
    pytest.mark.stores,
    # The drivers leave sessions and event loops to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    # A manifest store is beside the objects, not between them.
    pytest.mark.parametrize("service", ["s3", "gcs", "azure"], indirect=True),
]

NAMES = [
    *("a b", "a+b", "a%20b", "a%b", "a%2Fb", "a#b", "a?b=c", "a&b=c", "it's", 'q"q', "a=b", "x;y", "a,b"),
    *("[z]", "{w}", "~t", "*", "a:b", "@at", "$d", "<x>", "a..b", ".hidden", "...", "a|b", "a^b", "`a`"),
    *("ü ñ.txt", "日本", "emoji😀", "e\N{COMBINING ACUTE ACCENT}", "\N{LATIN SMALL LETTER E WITH ACUTE}"),
]
# More than one page of a listing, in S3 and GCS 1,000 names and in Azure 5,000.
MANY = {"s3": 2100, "gcs": 2100, "azure": 5100}
PART = 10 << 20


class TestContract(StoreTests):
    """What every store must do."""

    races = 10


def test_names_with_special_characters(place: tuple[Store, str]) -> None:
    store, root = place
    for name in NAMES:
        path, copy, data = join(root, "n", name), join(root, "m", name), f"{name} has content".encode()
        store.put(path, data)
        assert store.read(path) == data
        assert [bytes(part) for part in store.read_ranges(path, [(1, 3)])] == [data[1:4]]
        assert store.size(path) == len(data)
        assert store.list(join(root, "n")) == [name]
        assert [result.path for result in store.list_objects(root, recursive=True)] == [path]
        store.copy(path, copy)
        assert store.read(copy) == data
        with pytest.raises(FileExistsError):
            store.put_if_absent(path, b"")
        store.delete(path, root)
        assert not store.exists(path)
        store.delete_many([copy], root)
        assert not store.exists(copy)
        store.put_if_absent(copy, data)
        assert store.read(copy) == data
        out = store.create(path)
        out.write(data)
        out.close()
        assert store.read(path) == data
        store.delete_many([path, copy], root)


def test_folders_with_special_characters(place: tuple[Store, str]) -> None:
    store, root = place
    for name in NAMES:
        store.put(join(root, name, "x"), b"1")
        store.put(join(root, name, "deeper", "y"), b"1")
    for name in NAMES:
        assert store.list(join(root, name)) == ["x"]
        results = [entry.path for entry in store.list_objects(join(root, name), recursive=True)]
        assert sorted(results) == [join(root, name, "deeper", "y"), join(root, name, "x")]


def test_a_folder_is_not_a_prefix(place: tuple[Store, str]) -> None:
    store, root = place
    store.put(join(root, "a", "x"), b"1")
    store.put(join(root, "ab", "y"), b"1")
    store.put(join(root, "a.b"), b"1")
    assert store.list(join(root, "a")) == ["x"]
    assert [entry.name for entry in store.list_objects(join(root, "a"), recursive=True)] == ["x"]


def test_listings_of_several_pages(service: Service, place: tuple[Store, str]) -> None:
    store, root = place
    names = {f"{i:05}" for i in range(MANY[service.name])}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.put(join(root, name), b""), names))
    service.server.forget()
    listed = store.list(root)
    assert len(listed) == len(names)
    assert set(listed) == names
    requests = service.server.count("GET", "list-type|comp=list|/o[?]")
    assert requests >= 2, "the listing came in one page"
    assert len(store.list_objects(root, recursive=True)) == len(names)
    store.delete_many([join(root, name) for name in names], root)
    assert store.list(root) == []


def test_empty_objects(place: tuple[Store, str]) -> None:
    store, root = place
    store.put(join(root, "put"), b"")
    store.put_if_absent(join(root, "created"), b"")
    store.create(join(root, "streamed")).close()
    store.copy(join(root, "put"), join(root, "copied"))
    for name in ("put", "created", "streamed", "copied"):
        assert store.read(join(root, name)) == b""
        assert store.size(join(root, name)) == 0
        assert [bytes(part) for part in store.read_ranges(join(root, name), [(0, 0)])] == [b""]
        with pytest.raises(StoreError, match="ends after 0 bytes"):
            store.read_ranges(join(root, name), [(0, 1)])
    with pytest.raises(FileExistsError):
        store.put_if_absent(join(root, "created"), b"more")
    assert sorted(store.list(root)) == ["copied", "created", "put", "streamed"]


def test_ranges_at_the_end(place: tuple[Store, str]) -> None:
    store, root = place
    path, data = join(root, "x"), os.urandom(1000)
    store.put(path, data)
    requests = [(999, 1), (0, 1000), (1000, 0), (990, 10)]
    assert [bytes(part) for part in store.read_ranges(path, requests)] == [
        data[o : o + n] for o, n in requests
    ]
    with pytest.raises(StoreError, match=r"ends after 1000 bytes, but bytes up to 1001 were requested"):
        store.read_ranges(path, [(999, 2)])
    for offset in (1000, 1001, 5000):
        with pytest.raises(StoreError, match=f"but bytes up to {offset + 1} were requested"):
            store.read_ranges(path, [(offset, 1)])
    with pytest.raises(FileNotFoundError):
        store.read_ranges(join(root, "missing"), [(0, 1)])


def test_large_objects(place: tuple[Store, str]) -> None:
    store, root = place
    data = os.urandom(1 << 20) * 25
    out = store.create(join(root, "big"))
    for start in range(0, len(data), 3 << 20):
        out.write(data[start : start + (3 << 20)])
    assert not store.exists(join(root, "big"))
    out.close()
    assert store.read(join(root, "big")) == data
    ranges = [(PART - 5, 10), (2 * PART - 1, 2), (len(data) - 7, 7), (0, 1)]
    got = store.read_ranges(join(root, "big"), ranges)
    assert [bytes(part) for part in got] == [data[o : o + n] for o, n in ranges]
    store.copy(join(root, "big"), join(root, "copy"))
    assert store.read(join(root, "copy")) == data
    store.put(join(root, "whole"), data)
    assert store.size(join(root, "whole")) == len(data)
    store.put_if_absent(join(root, "once"), data)
    with pytest.raises(FileExistsError):
        store.put_if_absent(join(root, "once"), bytes(len(data)))
    assert store.read(join(root, "once")) == data


@pytest.mark.parametrize("size", [0, 9, PART, 25 << 20])
def test_a_writer_that_gives_up_leaves_nothing(size: int, service: Service, place: tuple[Store, str]) -> None:
    store, root = place
    out = store.create(join(root, "x"))
    out.write(os.urandom(size))
    out.abort()
    assert store.list(root) == []
    assert not store.exists(join(root, "x"))
    # The name is free again.
    store.put_if_absent(join(root, "x"), b"1")
    assert store.read(join(root, "x")) == b"1"


def test_a_writer_that_dies_leaves_nothing_to_see(service: Service, place: tuple[Store, str]) -> None:
    store, root = place
    out = store.create(join(root, "x"))
    out.write(os.urandom(25 << 20))
    # Neither closed nor aborted, as when a process is killed; another one writes the name anew.
    assert store.list(root) == []
    again = store.create(join(root, "x"))
    again.write(b"whole")
    again.close()
    assert store.read(join(root, "x")) == b"whole"
    out.abort()
    assert store.read(join(root, "x")) == b"whole"


def test_one_of_many_large_objects_wins(place: tuple[Store, str]) -> None:
    """What goes in several requests is conditional, too."""
    store, root = place
    path, winners = join(root, "v"), []
    barrier = threading.Barrier(3)

    def attempt(me: int) -> None:
        barrier.wait()
        try:
            store.put_if_absent(path, bytes([me]) * (60 << 20))
        except FileExistsError:
            return
        winners.append(me)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(attempt, range(3)))
    assert len(winners) == 1
    assert store.size(path) == 60 << 20
    assert bytes(store.read_ranges(path, [((60 << 20) - 1, 1)])[0]) == bytes(winners)


def test_missing_buckets(service: Service) -> None:
    uri = service.uri("x").replace("://bucket/", "://nowhere/")
    store, root = open_store(uri, service.options)
    data = bytes(12 << 20)

    def create() -> None:
        out = store.create(join(root, "z"))
        out.write(data)
        out.close()

    verbs: list[Callable[[], Any]] = [
        lambda: store.put(join(root, "x"), b"1"),
        lambda: store.put_if_absent(join(root, "y"), b"1"),
        create,
    ]
    for verb in verbs:
        with pytest.raises(StoreError, match="no such bucket"):
            verb()
    with pytest.raises((FileNotFoundError, StoreError)):
        store.read(join(root, "x"))


def test_wrong_credentials(service: Service) -> None:
    gap(service, "credentials")
    wrong = dict(service.options)
    for name in ("aws_secret_access_key", "azure_storage_account_key"):
        if name in wrong:
            wrong[name] = "aHVudGVyMmh1bnRlcjJodW50ZXIy"
    store, root = open_store(service.uri(uuid.uuid4().hex), wrong)
    verbs: list[Callable[[], Any]] = [
        lambda: store.read(join(root, "x")),
        lambda: store.list(root),
        lambda: store.put(join(root, "x"), b"1"),
        lambda: store.put_if_absent(join(root, "x"), b"1"),
    ]
    for verb in verbs:
        with pytest.raises(StoreAccessError) as caught:
            verb()
        assert "aHVudGVy" not in f"{caught.value} {caught.value.__cause__}"
    right, root = open_store(f"{service.uri('')}{root.rpartition('/')[2]}", service.options)
    assert right.list(root) == []


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_clock_that_is_wrong(hours: int, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    gap(service, "clock")
    now = datetime.now(timezone.utc) + timedelta(hours=hours)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: now.replace(tzinfo=None))
    # obstore asks the system itself.
    store, root = open_store(service.uri(uuid.uuid4().hex), {**service.options, "s3_client": "s3fs"})
    for verb in (lambda: store.list(root), lambda: store.put_if_absent(join(root, "x"), b"1")):
        with pytest.raises(StoreAccessError, match="set its clock"):
            verb()
