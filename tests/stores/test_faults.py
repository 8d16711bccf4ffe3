"""Faults of GCS and Azure while real servers do the work; those of S3 are in `tests/table/test_s3.py`.

Each service refuses in its own words. A connection that is reset says nothing: before the request arrived, or
after it was carried out.
"""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import CommitOutcomeUnknownError, StoreAccessError, StoreError
from spark_lance.io.locations import join
from spark_lance.io.store import open_store
from tests.object_store import Fault, carry_out, cut_short, lost_answer, never_arrived, slow
from tests.stores.services import Service

pytestmark = [
    pytest.mark.stores,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": ["x", "y", "z"]})

# The requests of an append, by what they are about: method and pattern. GCS names objects in the body.
PLACES: dict[str, dict[str, tuple[str, str]]] = {
    "gcs": {
        "manifest": ("POST", "ifGenerationMatch=0"),
        "file": ("POST", "/upload/(?!.*ifGenerationMatch)"),
        "list": ("GET", r"/o\?.*_versions"),
        "read": ("GET", r"/o/.*_versions"),
        "data": ("GET", r"/o/.*/data/"),
        "part": ("POST", "upload_id="),
    },
    "azure": {
        "manifest": ("PUT", "_versions/.*manifest"),
        "file": ("PUT", "/data/"),
        "list": ("GET", "comp=list"),
        "read": ("GET", r"_versions/"),
        "data": ("GET", r"/data/"),
        "part": ("PUT", "comp=block&"),
    },
}
FAULTS = ["throttled", "server_error", "never_arrived", "lost_answer", "slow"]
ALL = ("GET", "PUT", "HEAD", "POST", "DELETE")
both = pytest.mark.parametrize("service", ["gcs", "azure"], indirect=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers that wait for up to half a minute before they try again do so at once."""
    module = "azure.storage.blob._shared.policies_async.ExponentialRetry.get_backoff_time"
    monkeypatch.setattr(module, lambda *_: 0.05)

    async def wait(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.05))

    monkeypatch.setattr("gcsfs.retry.asyncio", SimpleNamespace(sleep=wait))


def named(service: Service, fault: str) -> Fault:
    own: dict[str, Fault] = {
        "never_arrived": never_arrived,
        "lost_answer": lost_answer,
        "slow": slow(0.3),
        "cut_short": cut_short,
    }
    result: Fault = own[fault] if fault in own else getattr(service.faults, fault)
    return result


def ours(uri: str, service: Service) -> Any:
    return spark_lance.dataset(uri, storage_options=service.options)


def append(uri: str, service: Service) -> Any:
    return spark_lance.write_dataset(ROWS, uri, mode="append", storage_options=service.options)


def check(service: Service, uri: str, version: int, rows: int) -> None:
    table = ours(uri, service)
    assert (table.version, table.count_rows()) == (version, rows)
    assert table.to_table().num_rows == rows
    if service.has_pylance:
        theirs: Any = lance.dataset(uri, storage_options=service.options)
        assert (theirs.version, theirs.count_rows()) == (version, rows)


@both
@pytest.mark.parametrize("place", ["manifest", "file", "list", "read"])
@pytest.mark.parametrize("fault", FAULTS)
def test_appends_outlive_faults(fault: str, place: str, service: Service) -> None:
    uri = service.uri(uuid.uuid4().hex)
    spark_lance.write_dataset(ROWS, uri, storage_options=service.options)
    service.server.fault(named(service, fault), *PLACES[service.name][place])
    written = spark_lance.write_dataset(ROWS, uri, mode="append", storage_options=service.options)
    assert service.server.is_calm(), "the fault was never met"
    assert written.version == 2
    check(service, uri, 2, 6)


@both
@pytest.mark.parametrize("fault", [*FAULTS[:-1], "cut_short"])
def test_scans_outlive_faults(fault: str, service: Service) -> None:
    uri = service.uri(uuid.uuid4().hex)
    spark_lance.write_dataset(ROWS, uri, storage_options=service.options)
    for place in ("data", "read"):
        service.server.fault(named(service, fault), *PLACES[service.name][place], times=2)
    assert spark_lance.dataset(uri, storage_options=service.options).to_table() == ROWS
    assert service.server.is_calm(), "the fault was never met"


@both
def test_a_lost_answer_after_which_a_rival_commits(service: Service) -> None:
    uri = service.uri(uuid.uuid4().hex)
    spark_lance.write_dataset(ROWS, uri, storage_options=service.options)
    rival = lance if service.has_pylance else spark_lance

    def lost_to_a_rival(app: Any, environ: Any, start: Any) -> Any:
        carry_out(app, environ)
        rival.write_dataset(ROWS, uri, mode="append", storage_options=service.options)
        return never_arrived(app, {**environ, "CONTENT_LENGTH": "0"}, start)

    service.server.fault(lost_to_a_rival, *PLACES[service.name]["manifest"])
    written = spark_lance.write_dataset(ROWS, uri, mode="append", storage_options=service.options)
    assert written.version == 2
    check(service, uri, 3, 9)


@both
def test_expired_credentials(service: Service) -> None:
    uri = service.uri(uuid.uuid4().hex)
    table = spark_lance.write_dataset(ROWS, uri, storage_options=service.options)
    for methods in (("GET", "HEAD"), ("PUT", "POST")):
        for method in methods:
            service.server.fault(service.faults.expired, method, "", times=999)
        reading = "GET" in methods
        with pytest.raises(StoreAccessError, match="credentials"):
            _ = ours(uri, service) if reading else append(uri, service)
        service.server.forget()
    assert table.store.list(f"{table.root}/data") != []
    check(service, uri, 1, 3)


@both
def test_credentials_that_expire_during_the_commit(service: Service) -> None:
    uri = service.uri(uuid.uuid4().hex)
    table = spark_lance.write_dataset(ROWS, uri, storage_options=service.options)
    before = len(table.store.list(f"{table.root}/data"))

    def from_now_on(app: Any, environ: Any, start: Any) -> Any:
        for method in ALL:
            service.server.fault(service.faults.expired, method, "", times=999)
        return service.faults.expired(app, environ, start)

    service.server.fault(from_now_on, *PLACES[service.name]["manifest"])
    with pytest.raises(CommitOutcomeUnknownError, match="Nothing was deleted"):
        spark_lance.write_dataset(ROWS, uri, mode="append", storage_options=service.options)
    service.server.forget()
    assert len(table.store.list(f"{table.root}/data")) == before + 1
    check(service, uri, 1, 3)


@both
@pytest.mark.parametrize("fault", ["throttled", "server_error", "never_arrived"])
def test_a_store_that_stays_down_is_told(fault: str, service: Service) -> None:
    store, root = open_store(service.uri(uuid.uuid4().hex), {**service.options, "client_max_retries": 1})
    store.put(join(root, "x"), b"1")
    for method in ALL:
        service.server.fault(named(service, fault), method, "", times=999)
    for verb in (store.read, store.list, lambda path: store.put(path, b"1")):
        with pytest.raises(StoreError, match=r"overloaded|the store failed|the connection failed"):
            verb(join(root, "x"))
    service.server.forget()
    assert store.read(join(root, "x")) == b"1"


@both
@pytest.mark.parametrize("fault", ["throttled", "never_arrived", "lost_answer"])
def test_uploads_in_parts_outlive_faults(fault: str, service: Service) -> None:
    store, root = open_store(service.uri(uuid.uuid4().hex), service.options)
    data = bytes(range(256)) * (60 << 12)
    out = store.create(join(root, "big"))
    service.server.fault(named(service, fault), *PLACES[service.name]["part"])
    out.write(data)
    if (service.name, fault) == ("gcs", "lost_answer"):
        # Google's own servers know parts by their place; fake-gcs-server stores one twice that comes twice.
        with pytest.raises(StoreError, match="has 125829120 bytes after 62914560 were sent in parts"):
            out.close()
        return
    out.close()
    assert service.server.is_calm(), "the fault was never met"
    assert store.read(join(root, "big")) == data


@both
def test_a_refusal_is_not_repeated(service: Service) -> None:
    store, root = open_store(service.uri(uuid.uuid4().hex), service.options)
    store.put(join(root, "x"), b"1")
    service.server.forget()
    service.server.fault(service.faults.forbidden, "GET", "", times=99)
    with pytest.raises(StoreAccessError, match="do not allow"):
        store.read_ranges(join(root, "x"), [(0, 1)])
    assert len(service.server.seen) <= 2
