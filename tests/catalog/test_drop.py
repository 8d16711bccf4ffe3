"""Drops next to writers of new tables of the same name, and registrations that a drop could misuse."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.names import Name
from spark_lance.compat.lance import LanceDataset
from spark_lance.errors import LanceError, OptionError, StoreError, TableExistsError, TableNotFoundError
from spark_lance.io.local import LocalStore
from spark_lance.io.store import Store, open_store
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.versions.drop import drop_table
from tests.wrapped_store import replace_request

OLD = pa.table({"v": ["old"] * 5})
NEW = pa.table({"v": ["new"] * 5})
NAME = ("t",)
NESTED = ("db", "t")


@pytest.fixture(params=["disk", "objects"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryCatalog:
    """A catalog on a disk, and one on a store that cannot rename."""
    root = str(tmp_path / "c") if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
    result = DirectoryCatalog(root)
    result.create_namespace(("db",), {})
    return result


def make(catalog: DirectoryCatalog, name: Name, rows: pa.Table = OLD) -> None:
    uri = catalog.allocate_table_uri(name)
    spark_lance.write_dataset(rows, uri)
    catalog.add(name, uri, {})


def values(catalog: DirectoryCatalog, name: Name) -> list[str]:
    content: list[str] = spark_lance.dataset(catalog.table(name).uri).to_table()["v"].to_pylist()
    return content


def leftovers(catalog: DirectoryCatalog) -> list[str]:
    store, root = open_store(catalog.root)
    return [
        result.path for result in store.list_objects(root, recursive=True) if ".lance-dropped" in result.path
    ]


@contextlib.contextmanager
def before_each(verbs: tuple[str, ...], act: Callable[[str], None]) -> Iterator[None]:
    """Let another writer act before each request of a drop."""
    with pytest.MonkeyPatch.context() as patch:
        acting = threading.Lock()
        for verb in verbs:
            replace_request(patch, verb, partial(_acting, verb, act, acting))
        yield


def _acting(verb: str, act: Callable[[str], None], acting: Any, original: Any) -> Any:
    def call(store: Store, *arguments: Any, **named: Any) -> Any:
        # What the other writer does itself is left alone; it has threads, too.
        if acting.acquire(blocking=False):
            try:
                act(verb)
            finally:
                acting.release()
        return original(store, *arguments, **named)

    return call


VERBS = ("list_to_delete", "delete", "delete_many", "list", "put", "remove_empty", "exists")


@pytest.mark.parametrize("name", [NAME, NESTED])
@pytest.mark.parametrize("moment", [0, 1, 2, 3, 4, 6, 9])
def test_a_new_table_of_the_name_survives(catalog: DirectoryCatalog, name: Name, moment: int) -> None:
    make(catalog, name)
    for number in range(3):
        spark_lance.write_dataset(pa.table({"v": [str(number)]}), catalog.table(name).uri, mode="append")
    calls = iter(range(1000))
    results: list[bool] = []

    def act(_: str) -> None:
        if next(calls) >= moment and not results:
            with contextlib.suppress(TableExistsError):  # the old table still has the name
                make(catalog, name, NEW)
                results.append(True)

    with before_each(VERBS, act):
        catalog.drop(name)
    if not results:
        make(catalog, name, NEW)
    assert values(catalog, name) == ["new"] * 5
    assert catalog.tables(name[:-1]) == [name]
    assert leftovers(catalog) == []


def test_drops_and_creates_in_threads_lose_nothing(catalog: DirectoryCatalog) -> None:
    for turn in range(6):
        name = (f"t{turn}",)
        make(catalog, name)
        start = threading.Barrier(2)

        def create(name: Name = name, start: threading.Barrier = start) -> None:
            start.wait()
            for _ in range(1000):
                try:
                    make(catalog, name, NEW)
                    return
                except LanceError:
                    continue

        thread = threading.Thread(target=create)
        thread.start()
        start.wait()
        catalog.drop(name)
        thread.join()
        assert values(catalog, name) == ["new"] * 5


@pytest.mark.parametrize("name", [NAME, NESTED])
@pytest.mark.parametrize("verb", ["list_to_delete", "delete_many"])
def test_the_next_drop_finishes_one_that_was_interrupted(
    catalog: DirectoryCatalog, name: Name, verb: str
) -> None:
    make(catalog, name)
    make(catalog, ("other",))
    location = catalog.table(name).uri

    def die(_: str) -> None:
        raise KeyboardInterrupt

    with before_each((verb,), die), pytest.raises(KeyboardInterrupt):
        catalog.drop(name)
    assert leftovers(catalog)
    assert catalog.tables(name[:-1]) == ([("other",)] if len(name) == 1 else [])
    with pytest.raises(TableNotFoundError):
        catalog.table(name)
    make(catalog, name, NEW)
    catalog.drop(("other",))
    assert leftovers(catalog) == []
    assert values(catalog, name) == ["new"] * 5
    store, path = open_store(location)
    if catalog.table(name).uri != location:
        assert store.list_objects(path, recursive=True) == []


def test_late_commits_leave_no_damaged_table(catalog: DirectoryCatalog) -> None:
    make(catalog, NESTED)
    table = spark_lance.dataset(catalog.table(NESTED).uri)
    moments = iter([0])

    def act(_: str) -> None:
        for _moment in moments:
            with contextlib.suppress(LanceError):
                spark_lance.write_dataset(NEW, table, mode="append")

    with before_each(("delete_many",), act):
        catalog.drop(NESTED)
    try:
        late = spark_lance.dataset(table.uri)
    except TableNotFoundError:
        return
    # An append to a place without a table makes a new one.
    assert late.to_table() == NEW


def test_a_folder_that_cannot_be_renamed_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    place = tmp_path / "t"
    spark_lance.write_dataset(OLD, str(place))
    monkeypatch.setattr(Path, "rename", refuse)
    drop_table(TableRef(*open_store(str(place))))
    assert not place.exists()


def test_a_drop_by_path_leaves_a_new_table(tmp_path: Path) -> None:
    place = tmp_path / "t"
    spark_lance.write_dataset(OLD, str(place))
    moments = iter([0])

    def act(_: str) -> None:
        for _moment in moments:
            spark_lance.write_dataset(NEW, str(place))

    with before_each(("delete_many",), act):
        LanceDataset.drop(str(place))
    assert spark_lance.dataset(str(place)).to_table() == NEW
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_a_dropped_link_leaves_the_other_table(tmp_path: Path) -> None:
    catalog = DirectoryCatalog(str(tmp_path))
    make(catalog, ("u",))
    (tmp_path / "t.lance").symlink_to(tmp_path / "u.lance")
    catalog.drop(NAME)
    assert not os.path.lexists(tmp_path / "t.lance")
    assert values(catalog, ("u",)) == ["old"] * 5


@pytest.mark.parametrize(
    "location",
    [
        "__manifest",
        "__manifest/data",
        "t.lance",
        "t.lance/data",
        "t.lance/tree/dev",
        "unlisted.lance",
        "unlisted.lance/data",
        "deep",
        "deep/er",
        ".lance-dropped",
        ".lance-dropped-" + "0" * 32,
        ".lance-dropped-" + "0" * 32 + "/x",
    ],
)
def test_places_of_others_cannot_be_registered(catalog: DirectoryCatalog, location: str) -> None:
    make(catalog, NAME)
    spark_lance.write_dataset(OLD, f"{catalog.root}/unlisted.lance")
    catalog.register(("inner",), "deep/er/table", {})
    with pytest.raises(OptionError, match="location"):
        catalog.register(("thief",), location, {})
    assert catalog.tables() == [("inner",), NAME, ("unlisted",)]


def test_links_to_others_cannot_be_registered(tmp_path: Path) -> None:
    catalog = DirectoryCatalog(str(tmp_path / "c"))
    make(catalog, NAME)
    spark_lance.write_dataset(OLD, str(tmp_path / "outside"))
    for link, target in (("a", "c/t.lance"), ("b", "outside"), ("d", "c/t.lance/data"), ("e", "c")):
        (tmp_path / "c" / link).symlink_to(tmp_path / target)
        with pytest.raises(OptionError, match="location"):
            catalog.register(("thief",), link, {})


def test_folders_of_their_own_can_be_registered(catalog: DirectoryCatalog) -> None:
    make(catalog, NAME)
    for location in ("x.lance", "a/b", "t.lance2"):
        spark_lance.write_dataset(OLD, f"{catalog.root}/{location}")
        if location != "x.lance":
            catalog.register((location.replace("/", "_"),), location, {})
    catalog.drop(("a_b",))
    catalog.drop(("t.lance2",))
    assert values(catalog, NAME) == values(catalog, ("x",)) == ["old"] * 5


@pytest.mark.parametrize("location", ["__manifest", "u.lance/data", "."])
def test_lists_by_others_cannot_make_a_drop_delete_more(catalog: DirectoryCatalog, location: str) -> None:
    make(catalog, NAME)
    make(catalog, ("u",))
    catalog._list().update({"location": f"'{location}'"}, where="object_id = 't'")
    with pytest.raises(LanceError, match="location"):
        catalog.drop(NAME)
    assert values(catalog, ("u",)) == ["old"] * 5


def test_errors_while_deleting_are_raised_and_the_name_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = DirectoryCatalog(str(tmp_path))
    make(catalog, NAME)

    def refuse(*_: object) -> None:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_many", refuse)
        with pytest.raises(StoreError, match="no"):
            catalog.drop(NAME)
    assert catalog.tables() == []
    make(catalog, NAME, NEW)
    make(catalog, ("u",))
    catalog.drop(("u",))
    assert leftovers(catalog) == []
    assert values(catalog, NAME) == ["new"] * 5
