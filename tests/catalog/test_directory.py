"""Catalogs in a folder: what we write pylance's directory namespace finds, and what it writes we find."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lance
import lance_namespace
import pyarrow as pa
import pytest
from lance_namespace import (
    CreateNamespaceRequest,
    DeclareTableRequest,
    DescribeTableRequest,
    DropNamespaceRequest,
    ListNamespacesRequest,
    ListTablesRequest,
)

from spark_lance import dataset, write_dataset
from spark_lance.catalog.directory import DirectoryCatalog
from spark_lance.catalog.names import Name
from spark_lance.errors import (
    FormatError,
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    StoreAccessError,
    TableExistsError,
    TableNotFoundError,
)

ROWS = pa.table({"id": [1, 2, 3]})
ODD = "x's #1?+&.é表"
TABLES: list[Name] = [("t",), ("db", "t"), ("db", "a b.c"), ("db", "inner", "Größe%20"), ("db", ODD)]


@pytest.fixture
def ours(tmp_path: Path) -> DirectoryCatalog:
    return DirectoryCatalog(str(tmp_path / "root"))


@pytest.fixture
def theirs(tmp_path: Path) -> Any:
    return lance_namespace.connect("dir", {"root": str(tmp_path / "root")})


def make(catalog: DirectoryCatalog, name: Name) -> str:
    uri = catalog.allocate_table_uri(name)
    write_dataset(ROWS, uri)
    catalog.add(name, uri, {})
    return uri


def test_they_find_what_we_make(ours: DirectoryCatalog, theirs: Any) -> None:
    ours.create_namespace(("db",), {"comment": "ours"})
    ours.create_namespace(("db", "inner"), {})
    for name in TABLES:
        make(ours, name)
    assert theirs.list_namespaces(ListNamespacesRequest(id=[])).namespaces == ["db"]
    assert theirs.list_namespaces(ListNamespacesRequest(id=["db"])).namespaces == ["inner"]
    assert sorted(theirs.list_tables(ListTablesRequest(id=["db"])).tables) == ["a b.c", "t", ODD]
    assert "t" in theirs.list_tables(ListTablesRequest(id=[])).tables
    for name in TABLES:
        result = theirs.describe_table(DescribeTableRequest(id=list(name))).location
        assert lance.dataset(result).to_table() == ROWS


def test_we_find_what_they_make(ours: DirectoryCatalog, theirs: Any) -> None:
    theirs.create_namespace(CreateNamespaceRequest(id=["db"], properties={"comment": "theirs"}))
    theirs.create_namespace(CreateNamespaceRequest(id=["db", "inner"]))
    for name in TABLES[:3]:  # pylance itself looks for a declared table of other letters in another folder
        place = theirs.declare_table(DeclareTableRequest(id=list(name))).location
        assert ours.table(name).declared
        lance.write_dataset(ROWS, place)
        entry = ours.table(name)
        assert not entry.declared
        assert dataset(entry.uri).to_table() == ROWS
    assert ours.namespaces() == [("db",)]
    assert ours.namespaces(("db",)) == [("db", "inner")]
    assert ours.namespace_properties(("db",)) == {"comment": "theirs"}
    assert ours.tables() == [("t",)]
    assert ours.tables(("db",)) == [("db", "a b.c"), ("db", "t")]


def test_what_we_drop_is_gone_for_them(ours: DirectoryCatalog, theirs: Any) -> None:
    ours.create_namespace(("db",), {})
    uri = make(ours, ("db", "t"))
    with pytest.raises(NamespaceInUseError, match=r"such as db\.t"):
        ours.drop_namespace(("db",))
    ours.drop(("db", "t"))
    assert not Path(uri).exists()
    assert theirs.list_tables(ListTablesRequest(id=["db"])).tables == []
    ours.drop_namespace(("db",))
    assert theirs.list_namespaces(ListNamespacesRequest(id=[])).namespaces == []


def test_what_they_drop_is_gone_for_us(ours: DirectoryCatalog, theirs: Any) -> None:
    theirs.create_namespace(CreateNamespaceRequest(id=["db"]))
    theirs.drop_namespace(DropNamespaceRequest(id=["db"]))
    assert ours.namespaces() == []
    with pytest.raises(NamespaceNotFoundError):
        ours.tables(("db",))


def test_a_folder_without_a_list_is_a_table(ours: DirectoryCatalog) -> None:
    lance.write_dataset(ROWS, f"{ours.root}/old.lance")
    assert ours.tables() == [("old",)]
    assert ours.table(("old",)).uri == f"{ours.root}/old.lance"
    with pytest.raises(TableExistsError):
        ours.allocate_table_uri(("old",))
    ours.drop(("old",))
    assert ours.tables() == []


def test_a_renamed_table_keeps_its_files(ours: DirectoryCatalog) -> None:
    ours.create_namespace(("db",), {})
    for name in (("db", "t"), ("t",)):
        uri = make(ours, name)
        ours.rename(name, ("db", "new"))
        assert ours.table(("db", "new")).uri == uri
        with pytest.raises(TableExistsError):
            ours.rename(("db", "new"), ("db", "new"))
        ours.drop(("db", "new"))
        assert ours.tables(name[:-1]) == []


def test_a_table_of_the_root_that_was_renamed_has_its_new_name_only(ours: DirectoryCatalog) -> None:
    make(ours, ("t",))
    ours.rename(("t",), ("u",))
    assert ours.tables() == [("u",)]
    with pytest.raises(TableNotFoundError):
        ours.table(("t",))
    make(ours, ("t",))
    assert ours.tables() == [("t",), ("u",)]
    ours.drop(("u",))
    assert dataset(ours.table(("t",)).uri).to_table() == ROWS


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        catalog = DirectoryCatalog(str(root))
        with pytest.raises(StoreAccessError, match="file is not a folder; let the root be a folder"):
            catalog.allocate_table_uri(("t",))
        with pytest.raises(StoreAccessError, match="file is not a folder; let the root be a folder"):
            catalog.create_namespace(("db",), {})
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(StoreAccessError, match="cannot be written by this process"):
        DirectoryCatalog(str(tmp_path / "new")).allocate_table_uri(("t",))


def test_names_are_taken_once(ours: DirectoryCatalog) -> None:
    ours.create_namespace(("db",), {})
    with pytest.raises(NamespaceExistsError):
        ours.create_namespace(("db",), {})
    with pytest.raises(NamespaceExistsError):
        ours.allocate_table_uri(("db",))
    make(ours, ("db", "t"))
    with pytest.raises(TableExistsError):
        ours.allocate_table_uri(("db", "t"))
    with pytest.raises(TableExistsError):
        ours.create_namespace(("db", "t"), {})
    with pytest.raises(NamespaceNotFoundError):
        ours.create_namespace(("nope", "x"), {})


def test_properties_of_namespaces(ours: DirectoryCatalog) -> None:
    ours.create_namespace(("db",), {"a": "1", "b": "it's"})
    ours.alter_namespace(("db",), {"c": "3"}, ["a"])
    assert ours.namespace_properties(("db",)) == {"b": "it's", "c": "3"}
    assert ours.namespace_properties(()) == {"location": ours.root}


@pytest.mark.parametrize("part", ["..", ".", "", "a/b", "a\\b", "a$b", "a\0b", " a", '"', "a:b", "a\nb"])
def test_names_that_lead_elsewhere_are_refused(ours: DirectoryCatalog, part: str) -> None:
    ours.create_namespace(("db",), {})
    for name in ((part,), ("db", part)):
        with pytest.raises(OptionError):
            ours.allocate_table_uri(name)
        with pytest.raises(OptionError):
            ours.create_namespace(name, {})
        with pytest.raises(TableNotFoundError):
            ours.table(name)


@pytest.mark.parametrize("location", ["../out.lance", "/etc", "a/../../out", "file:///etc", "s3://b/t"])
def test_the_list_cannot_lead_out_of_the_root(ours: DirectoryCatalog, location: str) -> None:
    make(ours, ("t",))
    ours._list().update({"location": f"'{location}'"})
    for use in (ours.table, ours.drop):
        with pytest.raises(FormatError, match=r"location of table t .*__manifest"):
            use(("t",))


def test_links_cannot_lead_out_of_the_root(ours: DirectoryCatalog, tmp_path: Path) -> None:
    write_dataset(ROWS, str(tmp_path / "secret.lance"))
    Path(ours.root).mkdir()
    Path(ours.root, "t.lance").symlink_to(tmp_path / "secret.lance")
    for use in (ours.table, ours.allocate_table_uri, ours.drop):
        with pytest.raises(OptionError, match="by a link"):
            use(("t",))
    assert dataset(str(tmp_path / "secret.lance")).count_rows() == 3
