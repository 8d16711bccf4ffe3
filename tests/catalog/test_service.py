"""Catalogs of namespace services, against a REST server that pylance brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lance
import lance.namespace
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.catalog.service import ServiceCatalog
from spark_lance.errors import (
    NamespaceExistsError,
    NamespaceInUseError,
    NamespaceNotFoundError,
    OptionError,
    StoreError,
    TableExistsError,
    TableNotFoundError,
    UnsupportedFormatError,
)

ROWS = pa.table({"a": [1, 2, 3]})


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """The address of a service over an empty folder."""
    with lance.namespace.RestAdapter("dir", {"root": str(tmp_path / "root")}, port=0) as server:
        yield f"http://127.0.0.1:{server.port}"


@pytest.fixture
def names(uri: str) -> ServiceCatalog:
    return ServiceCatalog("rest", (("header.x-api-key", "secret"), ("uri", uri)))


def test_tables_and_namespaces_of_a_service(names: ServiceCatalog) -> None:
    names.create_namespace(("db",), {"comment": "first"})
    assert names.namespaces() == [("db",)]
    assert names.namespace_properties(("db",))["comment"] == "first"
    uri = names.allocate_table_uri(("db", "t"))
    assert names.table(("db", "t")).declared
    assert names.allocate_table_uri(("db", "t")) == uri  # a write that failed is begun again
    spark_lance.write_dataset(ROWS, uri)
    names.add(("db", "t"), uri, {})
    entry = names.table(("db", "t"))
    assert not entry.declared
    assert spark_lance.dataset(entry.uri).to_table() == ROWS
    assert lance.dataset(entry.uri).to_table() == ROWS
    assert names.tables(("db",)) == [("db", "t")]
    with pytest.raises(TableExistsError):
        names.allocate_table_uri(("db", "t"))
    with pytest.raises(NamespaceExistsError):
        names.create_namespace(("db",), {})
    with pytest.raises(NamespaceInUseError):
        names.drop_namespace(("db",))
    names.drop(("db", "t"))
    assert names.tables(("db",)) == []
    names.drop_namespace(("db",))
    assert names.namespaces() == []


def test_what_is_missing_or_refused_is_said(names: ServiceCatalog) -> None:
    with pytest.raises(TableNotFoundError, match="nope"):
        names.table(("nope",))
    with pytest.raises((TableNotFoundError, NamespaceNotFoundError)):
        names.table(("nope", "t"))
    with pytest.raises(NamespaceNotFoundError):
        names.namespace_properties(("nope",))
    with pytest.raises(OptionError):
        names.table(("..",))
    with pytest.raises(UnsupportedFormatError):
        names.alter_namespace(("db",), {"a": "b"}, ())


def test_a_service_that_cannot_be_reached_is_named() -> None:
    nobody = ServiceCatalog("rest", (("uri", "http://127.0.0.1:9"),))
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:9 does not answer"):
        nobody.tables()
    with pytest.raises(OptionError, match="uri"):
        ServiceCatalog("rest", (("root", "/x"),)).tables()
    with pytest.raises(OptionError, match="is not allowed"):
        ServiceCatalog("nowhere.Nothing", ()).tables()


def test_other_implementations_come_from_the_package(tmp_path: Path) -> None:
    names = ServiceCatalog("dir", (("root", str(tmp_path)),))
    spark_lance.write_dataset(ROWS, names.allocate_table_uri(("t",)))
    assert names.tables() == [("t",)]
    assert spark_lance.dataset(names.table(("t",)).uri).count_rows() == 3
