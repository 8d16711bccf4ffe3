"""Views of a directory namespace: objects next to the tables, whose members are checked by readers."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace import ListTablesRequest

from spark_lance import write_dataset
from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.views import VIEWS_DIR, parse_view
from spark_lance.errors import (
    FormatError,
    LanceError,
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    TableExistsError,
    UnsupportedFormatError,
    ViewExistsError,
    ViewNotFoundError,
)

V = ("db", "v")
ROWS = pa.table({"id": [1]})
COLUMN = {"name": "a", "type": "integer", "nullable": True, "metadata": {"comment": "c"}}
VIEW: Mapping[str, Any] = {
    "query": "SELECT a FROM t",
    "schema": {"type": "struct", "fields": [COLUMN]},
    "query_column_names": ["a"],
    "schema_mode": "COMPENSATION",
    "current_catalog": "lance",
    "current_namespace": ["db"],
    "sql_configs": {"spark.sql.session.timeZone": "UTC"},
    "properties": {"comment": "c"},
    "dependencies": [{"kind": "table", "name": ["lance", "db", "t"]}],
}


def add_table(catalog: DirectoryCatalog, name: tuple[str, ...]) -> None:
    uri = catalog.allocate_table_uri(name)
    write_dataset(ROWS, uri)
    catalog.add(name, uri, {})


@pytest.fixture(params=["disk", "memory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> DirectoryCatalog:
    place = str(tmp_path) if request.param == "disk" else f"memory://{uuid.uuid4().hex}"
    result = DirectoryCatalog(place)
    result.create_namespace(("db",), {})
    return result


def test_a_view_is_created_replaced_renamed_and_dropped(catalog: DirectoryCatalog) -> None:
    catalog.create_view(V, VIEW)
    assert catalog.views.load(V) == VIEW
    catalog.views.replace(V, {**VIEW, "query": "SELECT 2 AS a"})
    catalog.rename_view(V, ("db", "Größe %20"))
    assert catalog.list_views(("db",)) == [("db", "Größe %20")]
    assert catalog.views.load(("db", "Größe %20"))["query"] == "SELECT 2 AS a"
    assert catalog.list_views() == []
    for missing in (V, ("v",), (), ("db", "../x"), ("no", "v")):
        with pytest.raises(ViewNotFoundError):
            catalog.views.load(missing)
        assert not catalog.views.drop(missing)
    with pytest.raises(ViewNotFoundError):
        catalog.views.replace(V, VIEW)
    assert catalog.views.drop(("db", "Größe %20"))
    assert catalog.views.all_names() == []


def test_tables_namespaces_and_views_share_their_names(catalog: DirectoryCatalog) -> None:
    catalog.create_view(V, VIEW)
    add_table(catalog, ("db", "t"))
    catalog.create_namespace(("db", "n"), {})
    for call, problem in (
        (lambda: catalog.create_view(V, VIEW), ViewExistsError),
        (lambda: catalog.create_view(("db", "t"), VIEW), ViewExistsError),
        (lambda: catalog.rename_view(V, ("db", "t")), ViewExistsError),
        (lambda: catalog.create_view(("db", "n"), VIEW), NamespaceExistsError),
        (lambda: catalog.create_view(("no", "v"), VIEW), NamespaceNotFoundError),
        (lambda: catalog.create_view(("v",), VIEW), OptionError),
        (lambda: catalog.allocate_table_uri(V), TableExistsError),
        (lambda: catalog.declare(V, {}), TableExistsError),
        (lambda: catalog.register(V, "elsewhere", {}), TableExistsError),
        (lambda: catalog.rename(("db", "t"), V), TableExistsError),
        (lambda: catalog.create_namespace(V, {}), TableExistsError),
        (lambda: catalog.register(("db", "x"), VIEWS_DIR, {}), OptionError),
    ):
        with pytest.raises(problem):
            call()
    assert catalog.list_views(("db",)) == [V]
    assert catalog.tables(("db",)) == [("db", "t")]
    catalog.drop(("db", "t"))
    catalog.drop_namespace(("db", "n"))
    with pytest.raises(NamespaceInUseError, match=r"db\.v"):
        catalog.drop_namespace(("db",))


def test_a_table_that_appears_meanwhile_keeps_its_name(catalog: DirectoryCatalog) -> None:
    with pytest.raises(ViewExistsError, match=r"table db\.v"):
        catalog.views.create(V, VIEW, lambda: True)
    assert not catalog.views.exists(V)


def test_a_table_and_a_view_that_are_created_at_once_are_not_both_there(
    catalog: DirectoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = catalog.allocate_table_uri(V)
    write_dataset(ROWS, uri)
    catalog.create_view(V, VIEW)  # the table has no name yet
    with pytest.raises(TableExistsError, match=r"view db\.v"):
        catalog.add(V, uri, {})
    assert catalog.list_views(("db",)) == [V]
    assert catalog.tables(("db",)) == []
    catalog.views.drop(V)
    put = type(catalog.views.store).put_if_absent

    def put_and_add(store: Any, path: str, data: bytes, *, sync: bool = False) -> None:
        if VIEWS_DIR in path:
            catalog._add_row(V, "table", catalog._location(uri), {})
        put(store, path, data, sync=sync)

    monkeypatch.setattr(type(catalog.views.store), "put_if_absent", put_and_add)
    with pytest.raises(ViewExistsError, match=r"db\.v"):
        catalog.create_view(V, VIEW)
    assert catalog.list_views(("db",)) == []
    assert catalog.tables(("db",)) == [V]


def test_a_link_is_no_view(tmp_path: Path) -> None:
    catalog = DirectoryCatalog(str(tmp_path / "root"))
    catalog.create_namespace(("db",), {})
    catalog.create_view(V, VIEW)
    file = tmp_path / "root" / VIEWS_DIR / "db$v.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="the file of the view is a link"):
        catalog.views.load(V)
    catalog.views.drop(V)
    assert (tmp_path / "elsewhere").exists()
    (tmp_path / "linked").symlink_to(tmp_path / "root")
    linked = DirectoryCatalog(str(tmp_path / "linked"))
    linked.create_view(V, VIEW)
    assert linked.views.load(V) == VIEW


def test_the_object_of_a_request_that_was_sent_twice_is_the_own_one(
    catalog: DirectoryCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = catalog.views
    put = type(views.store).put_if_absent

    def put_twice(store: Any, path: str, data: bytes, *, sync: bool = False) -> None:
        put(store, path, data, sync=sync)
        put(store, path, data, sync=sync)

    monkeypatch.setattr(type(views.store), "put_if_absent", put_twice)
    views.create(V, VIEW, lambda: False)
    assert views.load(V) == VIEW
    with pytest.raises(ViewExistsError):  # the same view of another writer
        views.create(V, VIEW, lambda: False)


def test_other_engines_do_not_see_views(tmp_path: Path) -> None:
    catalog = DirectoryCatalog(str(tmp_path))
    catalog.create_namespace(("db",), {})
    add_table(catalog, ("t",))
    catalog.create_view(V, VIEW)
    other = lance_namespace.connect("dir", {"root": str(tmp_path)})
    assert other.list_tables(ListTablesRequest(id=[])).tables == ["t"]
    assert other.list_tables(ListTablesRequest(id=["db"])).tables == []


def change(**members: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda view: {**view, **members}


def column(**members: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return change(schema={"type": "struct", "fields": [{**COLUMN, **members}]})


def nested(depth: int) -> Any:
    kind: Any = "integer"
    for _ in range(depth):
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    return kind


HOSTILE = (
    change(format="iceberg"),
    change(version=0),
    change(version="1"),
    change(query=""),
    change(query=None),
    change(schema="integer"),
    change(schema={"type": "array", "elementType": "integer", "containsNull": True}),
    change(schema={"type": "struct", "fields": COLUMN}),
    change(query_column_names=["a", "b"]),
    change(query_column_names=[1]),
    change(schema_mode="OTHER"),
    change(schema_mode=[]),
    change(current_catalog=""),
    change(current_namespace="db"),
    change(properties={"k": 1}),
    change(properties=[]),
    change(dependencies=[{"kind": "file", "name": ["x"]}]),
    change(dependencies=[{"kind": "table", "name": []}]),
    change(sql_configs={"spark.sql.catalog.evil": "evil.Class"}),
    change(sql_configs={"other.setting": "x"}),
    change(sql_configs={"spark.sql.ansi.enabled": True}),
    column(type={"type": "udt", "class": "evil.Class", "pyClass": "os.system", "sqlType": "integer"}),
    column(type={"type": "udt", "pyClass": "os.system", "sqlType": "integer", "serializedClass": "gASV"}),
    column(type="evil.Class()"),
    column(type=nested(70)),
    column(type={"type": "map", "keyType": "string", "valueType": "string"}),
    column(nullable="yes"),
    column(name=None),
    column(metadata={"n": None}),
    column(metadata={"n": 1 << 64}),
    column(metadata={"n": [1, "x"]}),
)


@pytest.mark.parametrize("damage", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_member_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    catalog = DirectoryCatalog(str(tmp_path))
    catalog.create_namespace(("db",), {})
    catalog.create_view(V, VIEW)
    file = tmp_path / VIEWS_DIR / "db$v.json"
    stored = json.loads(file.read_text())
    assert parse_view(json.dumps({**stored, "unknown": 1}).encode(), "f") == VIEW
    damaged = damage(stored)
    file.write_text(json.dumps(damaged))
    with pytest.raises(FormatError) as problem:
        catalog.views.load(V)
    assert str(file) in str(problem.value)
    assert len(str(problem.value)) < 300
    if damaged.keys() == stored.keys() and damaged["format"] == stored["format"]:
        members = {key: damaged[key] for key in VIEW}
        if members != VIEW:
            with pytest.raises(OptionError):
                catalog.create_view(("db", "w"), members)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        pytest.param(b"{", FormatError, id="cut off"),
        pytest.param(b"[]", FormatError, id="list"),
        pytest.param(b"[" * 100_000, FormatError, id="deep"),
        pytest.param(b"\xff\xfe", FormatError, id="no text"),
        pytest.param(b'{"format": NaN}', FormatError, id="no number"),
        pytest.param(b" " * ((1 << 20) + 1), FormatError, id="long"),
        pytest.param(
            b'{"format": "spark-lance view", "version": 2}', UnsupportedFormatError, id="of a newer release"
        ),
    ],
)
def test_what_is_no_view_is_refused(
    catalog: DirectoryCatalog, data: bytes, problem: type[LanceError]
) -> None:
    views = catalog.views
    views.store.put_if_absent(views._path(V), data)
    with pytest.raises(problem, match=r"db\$v\.json"):
        views.load(V)


def test_a_view_that_readers_would_refuse_is_not_written(catalog: DirectoryCatalog) -> None:
    with pytest.raises(OptionError, match="shorten its query"):
        catalog.create_view(V, {**VIEW, "query": "x" * (1 << 20)})
    assert not catalog.views.exists(V)


def test_files_of_other_names_are_no_views(tmp_path: Path) -> None:
    catalog = DirectoryCatalog(str(tmp_path))
    catalog.create_namespace(("db",), {})
    catalog.create_view(V, VIEW)
    folder = tmp_path / VIEWS_DIR
    for name in ("v.json", "db$.json", "db$x.txt", "db$..json", "$x.json", ".tmp00", "db$ x.json"):
        (folder / name).write_text("x")
    assert catalog.views.all_names() == [V]
