"""What a setting of a catalog may import, and where a user's options go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_lance.catalog.names import TableEntry
from spark_lance.catalog.service import IMPLEMENTATIONS, ServiceCatalog
from spark_lance.errors import OptionError

lance_namespace = pytest.importorskip("lance_namespace")
MODULE = """
from lance_namespace import LanceNamespace
open({mark!r}, "w").close()
class Ours(LanceNamespace):
    def __init__(self, **properties):
        pass
    def namespace_id(self):
        return "ours"
class Other:
    pass
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the module makes when it is imported."""
    monkeypatch.delitem(sys.modules, "hostile_spaces", raising=False)
    monkeypatch.delenv(IMPLEMENTATIONS, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = tmp_path / "imported"
    (tmp_path / "hostile_spaces.py").write_text(MODULE.format(mark=str(result)))
    return result


@pytest.mark.parametrize("impl", ["hostile_spaces.Ours", "hostile_spaces.Other", "os.system", "nothing", ""])
def test_a_setting_imports_nothing(mark: Path, impl: str) -> None:
    with pytest.raises(OptionError, match=IMPLEMENTATIONS):
        ServiceCatalog(impl, ()).namespaces()
    assert not mark.exists()


def test_what_is_listed_registered_or_imported_is_used(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPLEMENTATIONS, "a.B, hostile_spaces.Ours")
    assert ServiceCatalog("hostile_spaces.Ours", ())._client.namespace_id() == "ours"
    assert mark.exists()
    monkeypatch.delenv(IMPLEMENTATIONS)
    assert ServiceCatalog("hostile_spaces.Ours", ())._client.namespace_id() == "ours"
    with pytest.raises(OptionError, match=IMPLEMENTATIONS):
        ServiceCatalog("hostile_spaces.Other", ())._client  # noqa: B018
    monkeypatch.setitem(lance_namespace._REGISTERED_IMPLS, "mine", "hostile_spaces.Ours")
    assert ServiceCatalog("mine", ())._client.namespace_id() == "ours"


def test_a_failing_implementation_shows_no_settings(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMPLEMENTATIONS, "hostile_spaces.Ours")
    monkeypatch.setattr(
        lance_namespace, "connect", lambda _impl, settings: (_ for _ in ()).throw(ValueError(str(settings)))
    )
    with pytest.raises(OptionError) as failure:
        ServiceCatalog("hostile_spaces.Ours", (("api_token", "q8Zr2vXw7"),)).namespaces()
    assert "q8Zr2vXw7" not in str(failure.value)
    assert failure.value.__cause__ is None
    assert "q8Zr2vXw7" not in repr(ServiceCatalog("x", (("api_token", "q8Zr2vXw7"),)))


USER = {"storage.secret_access_key": "users", "storage.region": "eu"}
ENTRY_OPTIONS = {"endpoint_url": "http://evil", "session_token": "services", "proxy_url": "http://evil"}


@pytest.mark.parametrize(
    ("place", "uri", "is_sent"),
    [
        ("", "s3://bucket/t", False),
        ("s3://bucket", "s3://bucket/t", True),
        ("s3a://bucket/", "s3://bucket/t", True),
        ("s3://other, s3://bucket/a", "s3://bucket/a/t", True),
        ("s3://bucket/a", "s3://bucket/ab", False),
        ("s3://bucket/a", "s3://bucket/a/../b", False),
        ("s3://bucket/a", "s3://bucket/a/%2e%2e/b", False),
        ("s3://bucket", "s3://bucket.evil/t", False),
        ("s3://bucket", "s3://bucket@evil/t", False),
        ("s3://bucket", "gs://bucket/t", False),
        ("s3://bucket", "https://bucket/t", False),
        ("/data", "/data/t", True),
        ("/data", "/database", False),
        ("s3://bucket", "s3://bucket/t?x=1", False),
    ],
)
def test_options_of_a_user_go_to_the_places_they_are_for(
    monkeypatch: pytest.MonkeyPatch, place: str, uri: str, is_sent: bool
) -> None:
    from spark_lance.spark.sql.catalogs import OpenCatalog

    entry = TableEntry(("t",), uri, storage_options=ENTRY_OPTIONS)
    monkeypatch.setattr(ServiceCatalog, "table", lambda _self, _name: entry)
    catalog = OpenCatalog.of("c", {"impl": "rest", "uri": "http://x", "storage_for": place, **USER})
    options = catalog.reads(("t",))
    if is_sent:
        assert options == {"path": uri, **USER, "storage.session_token": "services"}
    else:
        assert options == {"path": uri, **{f"storage.{name}": value for name, value in ENTRY_OPTIONS.items()}}
    assert catalog.options(uri, ("t",)) == {"path": uri, **(USER if is_sent else {})}
    assert catalog.options("s3://mine/t", ("s3://mine/t",)) == {"path": "s3://mine/t", **USER}
