"""Servers that all tests of this folder share, and `place`, an empty folder in each kind of store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from spark_lance.io.store import Store, open_store
from tests import object_store
from tests.object_store import Server
from tests.stores.servers import azurite, fake_gcs
from tests.stores.services import BUCKET, MANIFESTS, SERVICES, Service, options_of


@pytest.fixture(scope="session", autouse=True)
def plain_buckets() -> Iterator[None]:
    """Keep GCS's driver, here and in Spark's workers, from asking Google by gRPC of what kind a bucket is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[Server]:
    with fake_gcs() as server:
        store, _ = open_store("gs://", options_of("gcs", server))
        store.fs.mkdir(BUCKET)
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[Server]:
    with azurite() as server:
        store, _ = open_store("az://", options_of("azure", server))
        store.fs.mkdir(BUCKET)
        yield server


@pytest.fixture(scope="session")
def aws_server(versitygw: Server) -> Server:
    for service in ("s3", "dynamodb"):
        client = object_store.client(versitygw, service)
        if service == "s3":
            object_store.make_bucket(client, BUCKET)
        else:
            object_store.make_manifest_table(client, MANIFESTS)
        client.close()
    return versitygw


# Name of a service -> the fixture of its server.
_FIXTURES = {"s3": "aws_server", "s3+ddb": "aws_server", "gcs": "gcs_server", "azure": "azure_server"}


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Each kind of store in turn, without faults."""
    name = request.param
    server: Server = request.getfixturevalue(_FIXTURES[name])
    server.forget()
    # The only place where pylance looks for the endpoint of DynamoDB.
    environment = {"DYNAMODB_ENDPOINT": server.url} if name == "s3+ddb" else {}
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    return Service(name, server, options_of(name, server), environment)


@pytest.fixture
def place(service: Service) -> tuple[Store, str]:
    return open_store(service.uri(uuid.uuid4().hex), service.options)
