"""Catalogs that ignore the case of names: stored spellings, refused names, ambiguous names."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.catalog.case_insensitive import CaseInsensitiveCatalog, CaseInsensitiveDirectory
from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.names import Name, fold_case
from spark_lance.catalog.views import VIEWS_DIR
from spark_lance.errors import (
    LanceError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    OptionError,
    TableExistsError,
    TableNotFoundError,
    ViewExistsError,
    ViewNotFoundError,
)
from tests.catalog.test_views import VIEW

ROWS = pa.table({"id": [1]})
PARTS = ("db", "DB", "t", "T", "v", "V", "Straße", "STRASSE")


def write(catalog: CaseInsensitiveCatalog | DirectoryCatalog, *name: str) -> None:
    uri = catalog.allocate_table_uri(name)
    spark_lance.write_dataset(ROWS, uri)
    catalog.add(name, uri, {})


def fails(action: Callable[..., object], *arguments: object) -> bool:
    """Return whether a call raises an error of this package."""
    try:
        action(*arguments)
    except LanceError:
        return True
    return False


@pytest.fixture
def exact(tmp_path: Path) -> DirectoryCatalog:
    result = DirectoryCatalog(str(tmp_path))
    result.create_namespace(("db",), {"k": "v"})
    return result


@pytest.fixture
def catalog(exact: DirectoryCatalog) -> CaseInsensitiveDirectory:
    return CaseInsensitiveDirectory(exact)


def test_case_is_folded_as_java_compares_texts() -> None:
    for text, other in (("Orders", "oRDERS"), ("ÄÖ", "äö"), ("σ", "ς"), ("K", "k"), ("ſ", "S"), ("İ", "i")):
        assert (fold_case(text) == fold_case(other)) == (text != "İ"), text
    assert fold_case("ß") not in (fold_case("SS"), fold_case("ss"))


def test_any_spelling_finds_tables_views_and_namespaces(
    exact: DirectoryCatalog, catalog: CaseInsensitiveDirectory
) -> None:
    write(catalog, "DB", "Orders")
    write(catalog, "Top")
    catalog.create_view(("dB", "View"), VIEW)
    assert exact.tables(("db",)) == [("db", "Orders")]
    assert catalog.table(("DB", "ORDERS")).name == ("db", "Orders")
    assert catalog.table(("TOP",)).name == ("Top",)
    assert catalog.tables(("DB",)) == [("db", "Orders")]
    assert catalog.list_views(("DB",)) == [("db", "View")]
    assert catalog.views.load(("DB", "VIEW"))["query"] == VIEW["query"]
    assert catalog.views.exists(("db", "view"))
    catalog.views.replace(("db", "view"), {**VIEW, "query": "SELECT 2 AS a"})
    assert exact.views.load(("db", "View"))["query"] == "SELECT 2 AS a"
    assert catalog.namespace_properties(("DB",)) == {"k": "v"}
    catalog.alter_namespace(("DB",), {"k": "w"}, [])
    catalog.create_namespace(("DB", "In"), {})
    assert catalog.namespaces(("dB",)) == [("db", "In")]
    catalog.rename(("DB", "orders"), ("Db", "iN", "orders"))
    assert exact.tables(("db", "In")) == [("db", "In", "orders")]
    catalog.rename(("db", "in", "ORDERS"), ("db", "in", "Orders"))  # only the case changes
    assert exact.tables(("db", "In")) == [("db", "In", "Orders")]
    catalog.rename_view(("db", "view"), ("db", "VIEW"))
    assert exact.list_views(("db",)) == [("db", "VIEW")]
    assert catalog.views.drop(("db", "view"))
    assert not catalog.views.drop(("db", "view"))
    catalog.drop(("db", "in", "orders"))
    catalog.drop_namespace(("DB", "IN"))
    catalog.drop_namespace(("DB",))
    catalog.drop(("top",))
    assert (exact.namespaces(), exact.tables()) == ([], [])


def test_names_that_differ_only_in_case_are_refused(catalog: CaseInsensitiveDirectory) -> None:
    write(catalog, "db", "orders")
    write(catalog, "db", "other")
    catalog.create_view(("db", "view"), VIEW)
    refused: list[tuple[type[LanceError], str, Callable[[], object]]] = [
        (NamespaceExistsError, "db exists", lambda: catalog.create_namespace(("DB",), {})),
        (NamespaceExistsError, "orders exists", lambda: catalog.create_namespace(("DB", "ORDERS"), {})),
        (
            TableExistsError,
            "db.orders exists, and db.Orders",
            lambda: catalog.allocate_table_uri(("DB", "Orders")),
        ),
        (TableExistsError, "db.view exists", lambda: catalog.allocate_table_uri(("DB", "View"))),
        (TableExistsError, "db exists", lambda: catalog.allocate_table_uri(("DB",))),
        (TableExistsError, "db.other exists", lambda: catalog.rename(("db", "orders"), ("db", "OTHER"))),
        (TableExistsError, "db.orders exists", lambda: catalog.register(("db", "ORDERS"), "x", {})),
        (TableExistsError, "db.orders exists", lambda: catalog.add(("db", "Orders"), "elsewhere", {})),
        (ViewExistsError, "db.orders exists", lambda: catalog.create_view(("DB", "ORDERS"), VIEW)),
        (ViewExistsError, "db.orders exists", lambda: catalog.rename_view(("db", "VIEW"), ("db", "Orders"))),
    ]
    for error, message, action in refused:
        with pytest.raises(error, match=message):
            action()
    with pytest.raises(TableExistsError) as caught:
        catalog.allocate_table_uri(("DB", "Orders"))
    assert caught.value.existing == ("db", "orders")
    for missing in (("db", "nope"), ("nope", "orders"), ("db", "view"), ("nope",)):
        with pytest.raises((TableNotFoundError, NamespaceNotFoundError)):
            catalog.table(missing)
    with pytest.raises(ViewNotFoundError):
        catalog.views.load(("db", "Orders"))


def test_the_exact_spelling_has_precedence(
    exact: DirectoryCatalog, catalog: CaseInsensitiveDirectory
) -> None:
    for name in ("t", "T"):
        write(exact, "db", name)
        write(exact, name + "op")
    exact.create_namespace(("Db",), {})
    names: list[Name] = [("db", "t"), ("db", "T"), ("top",), ("Top",)]
    for spelling in names:
        assert catalog.table(spelling).name == spelling
    for ambiguous in (("top".upper(),), ("DB", "t")):
        with pytest.raises(OptionError, match=r"matches .* and .*, which differ only in case: write one"):
            catalog.table(ambiguous)
    with pytest.raises(TableNotFoundError):
        catalog.table(("Db", "t"))
    catalog.drop(("db", "t"))
    assert catalog.table(("db", "t")).name == ("db", "T")
    with pytest.raises(OptionError, match="Db and db"):
        catalog.tables(("DB",))


def test_a_declared_table_is_written_under_its_stored_name(
    exact: DirectoryCatalog, catalog: CaseInsensitiveDirectory
) -> None:
    uri = exact.declare(("db", "later"), {})
    assert catalog.allocate_table_uri(("DB", "Later")) == uri
    spark_lance.write_dataset(ROWS, uri)
    catalog.add(("DB", "Later"), uri, {})
    assert exact.tables(("db",)) == [("db", "later")]


def test_random_names_in_a_directory_follow_a_lower_case_model(tmp_path: Path) -> None:
    draw = random.Random(34)
    exact = DirectoryCatalog(str(tmp_path))
    catalog = CaseInsensitiveDirectory(exact)
    model: dict[Name, str] = {}

    def folded(name: Name) -> Name:
        return tuple(map(fold_case, name))

    def create(name: Name, kind: str) -> None:
        namespace = folded(name[:-1])
        if namespace and model.get(namespace) != "namespace":
            raise NamespaceNotFoundError
        if folded(name) in model or (kind == "view" and not namespace):
            raise TableExistsError
        model[folded(name)] = kind

    def drop(name: Name, kind: str) -> None:
        inner = [other for other in model if other[: len(name)] == folded(name) and len(other) > len(name)]
        if model.get(folded(name)) != kind or (kind == "namespace" and inner):
            raise TableNotFoundError
        del model[folded(name)]

    def drop_view(name: Name) -> None:
        if not catalog.views.drop(name):
            raise ViewNotFoundError

    actions: dict[tuple[str, str], Callable[[Name], object]] = {
        ("create", "table"): lambda name: write(catalog, *name),
        ("create", "namespace"): lambda name: catalog.create_namespace(name, {}),
        ("create", "view"): lambda name: catalog.create_view(name, VIEW),
        ("drop", "table"): catalog.drop,
        ("drop", "namespace"): catalog.drop_namespace,
        ("drop", "view"): drop_view,
    }
    model_actions: dict[str, Callable[[Name, str], None]] = {"create": create, "drop": drop}
    for _ in range(150):
        name = tuple(draw.choice(PARTS) for _ in range(draw.choice((1, 2, 2))))
        verb, kind = draw.choice([*actions, ("create", "namespace"), ("create", "table")])
        failed = [fails(model_actions[verb], name, kind), fails(actions[verb, kind], name)]
        assert failed[0] == failed[1], (verb, kind, name, model)
        everything = [*exact.tables(), *exact.namespaces()]
        for parent in exact.namespaces():
            everything += [*exact.tables(parent), *exact.namespaces(parent), *exact.list_views(parent)]
        assert sorted(map(folded, everything)) == sorted(model)


def test_of_two_spellings_created_at_one_moment_the_first_stays(
    exact: DirectoryCatalog, catalog: CaseInsensitiveDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other program writes its entry after this one has looked at the list."""
    add_row, put = DirectoryCatalog._add_row, type(catalog.views.store).put_if_absent
    late: list[Callable[[], object]] = []

    def add_late(self: DirectoryCatalog, *arguments: Any) -> Any:
        while late:
            late.pop()()
        return add_row(self, *arguments)

    def put_late(store: Any, path: str, data: bytes, *, sync: bool = False) -> None:
        while late and VIEWS_DIR in path:
            late.pop()()
        put(store, path, data, sync=sync)

    monkeypatch.setattr(DirectoryCatalog, "_add_row", add_late)
    monkeypatch.setattr(type(catalog.views.store), "put_if_absent", put_late)
    writers: list[tuple[Callable[[str], object], type[LanceError]]] = [
        (lambda name: write(catalog, "db", name), TableExistsError),
        (lambda name: catalog.create_namespace(("db", name), {}), NamespaceExistsError),
        (lambda name: catalog.create_view(("db", name), VIEW), ViewExistsError),
    ]
    for create, error in writers:
        for other in (
            lambda: write(catalog, "db", "T"),
            lambda: catalog.create_namespace(("db", "T"), {}),
            lambda: catalog.create_view(("db", "T"), VIEW),
        ):
            late.append(other)
            with pytest.raises(error, match=r"db\.T exists, and db\.t differs from it only in case"):
                create("t")
            names = [*exact.tables(("db",)), *exact.namespaces(("db",)), *exact.list_views(("db",))]
            assert names == [("db", "T")]
            if not exact.views.drop(("db", "T")):
                drop = exact.drop if exact.tables(("db",)) else exact.drop_namespace
                drop(("db", "T"))
    write(catalog, "db", "old")
    catalog.rename(("db", "OLD"), ("db", "Old"))
    assert exact.tables(("db",)) == [("db", "Old")]
    late.append(lambda: write(catalog, "db", "NEW"))
    with pytest.raises(TableExistsError, match=r"db\.NEW exists, and db\.new differs"):
        catalog.rename(("db", "old"), ("db", "new"))
    assert exact.tables(("db",)) == [("db", "NEW"), ("db", "Old")]


def test_threads_create_a_name_once(exact: DirectoryCatalog, catalog: CaseInsensitiveDirectory) -> None:
    spellings = ["name", "Name", "NAME", "nAME"]

    def create(name: str) -> bool:
        return not fails(catalog.create_namespace, ("db", name), {})

    for _ in range(4):
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(create, spellings)) == 1
        (name,) = exact.namespaces(("db",))
        exact.drop_namespace(name)
