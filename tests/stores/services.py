"""The kinds of stores that are tested against real servers, and what each server does not do."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest

from tests.object_store import App, Environ, Fault, Server, StartResponse, read_body, storage_options

__all__ = ["GAPS", "SERVICES", "Faults", "Gap", "Service", "gap", "is_known", "options_of", "wrong_counts"]

BUCKET = "bucket"
MANIFESTS = "versions"
# The one account that Azurite has by default; its key is public.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

SERVICES = ("s3", "s3+ddb", "gcs", "azure")


@dataclass(frozen=True)
class Gap:
    """What a server does not do.

    Attributes:
        reason: why tests are skipped.
        tests: how many of them.
    """

    reason: str
    tests: int


# (service, what it lacks). A skip that is not in here fails, and a run of all tests fails unless each entry
# skipped as many tests as it says.
GAPS: Mapping[tuple[str, str], Gap] = MappingProxyType(
    {
        ("gcs", "pylance"): Gap("pylance speaks GCS's XML API, of which fake-gcs-server has no listings", 1),
        ("gcs", "credentials"): Gap("fake-gcs-server does not check credentials", 1),
        ("gcs", "clock"): Gap("fake-gcs-server does not check credentials, hence no times either", 2),
        ("azure", "clock"): Gap("Azurite does not compare the time of a request with its own", 2),
    }
)
_skipped: Counter[tuple[str, str]] = Counter()


def gap(service: Service, lacking: str) -> None:
    """Skip the test if the server lacks something that it needs."""
    result = GAPS.get((service.name, lacking))
    if result is not None:
        _skipped[service.name, lacking] += 1
        pytest.skip(f"{service.name}: {result.reason}")


def is_known(reason: str) -> bool:
    """Whether a test was skipped for one of the gaps."""
    return any(reason == f"{name}: {entry.reason}" for (name, _), entry in GAPS.items())


def wrong_counts() -> list[str]:
    """Return the gaps that did not skip as many tests as they say."""
    return [
        f"{name} without {lacking}: {_skipped[name, lacking]} tests were skipped, not {entry.tests}"
        for (name, lacking), entry in GAPS.items()
        if _skipped[name, lacking] != entry.tests
    ]


@dataclass(frozen=True)
class Faults:
    """What a service says when it does not serve, in its own words.

    Attributes:
        throttled: it asks for fewer requests.
        server_error: it fails.
        expired: the credentials are too old.
        forbidden: the credentials do not allow this.
    """

    throttled: Fault
    server_error: Fault
    expired: Fault
    forbidden: Fault


def _saying(status: str, body: str, **headers: str) -> Fault:
    def answer(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        read_body(environ)
        data = body.encode()
        named = [(name.replace("_", "-"), value) for name, value in headers.items()]
        start(status, [*named, ("Content-Length", str(len(data)))])
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [data]

    return answer


def _s3(status: str, code: str) -> Fault:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as ordered</Message></Error>"
    return _saying(status, body, Content_Type="application/xml")


def _azure(status: str, code: str) -> Fault:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as ordered</Message></Error>"
    return _saying(status, body, Content_Type="application/xml", x_ms_error_code=code)


def _gcs(status: str, reason: str) -> Fault:
    code = int(status.partition(" ")[0])
    error = {"code": code, "message": "as ordered", "errors": [{"reason": reason, "message": "as ordered"}]}
    return _saying(status, json.dumps({"error": error}), Content_Type="application/json")


_S3_FAULTS = Faults(
    _s3("503 Slow Down", "SlowDown"),
    _s3("500 Internal Server Error", "InternalError"),
    _s3("403 Forbidden", "ExpiredToken"),
    _s3("403 Forbidden", "AccessDenied"),
)
FAULTS: Mapping[str, Faults] = MappingProxyType(
    {
        "s3": _S3_FAULTS,
        "s3+ddb": _S3_FAULTS,
        "gcs": Faults(
            _gcs("429 Too Many Requests", "rateLimitExceeded"),
            _gcs("503 Service Unavailable", "backendError"),
            _gcs("401 Unauthorized", "authError"),
            _gcs("403 Forbidden", "forbidden"),
        ),
        "azure": Faults(
            _azure("503 Service Unavailable", "ServerBusy"),
            _azure("500 Internal Server Error", "InternalError"),
            _azure("403 Forbidden", "AuthenticationFailed"),
            _azure("403 Forbidden", "AuthorizationPermissionMismatch"),
        ),
    }
)


@dataclass(frozen=True)
class Service:
    """A running server and how it is reached.

    Attributes:
        name: one of `SERVICES`.
        server: the proxy before it.
        options: by which this package reaches it; pylance, too, where it can at all.
        environment: variables that both need beside the options.
    """

    name: str
    server: Server
    options: dict[str, Any] = field(repr=False)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def faults(self) -> Faults:
        """What the service says when it does not serve."""
        return FAULTS[self.name]

    @property
    def has_pylance(self) -> bool:
        """Whether pylance can talk to the server."""
        return (self.name, "pylance") not in GAPS

    def uri(self, name: str) -> str:
        """Return the URI of a table, or of a folder if no manifest store is part of it."""
        scheme = {"s3": "s3", "s3+ddb": "s3+ddb", "gcs": "gs", "azure": "az"}[self.name]
        query = f"?ddbTableName={MANIFESTS}" if self.name == "s3+ddb" else ""
        return f"{scheme}://{BUCKET}/tables/{name}{query}"


def options_of(name: str, server: Server) -> dict[str, Any]:
    """Return the storage options for a service."""
    if name == "azure":
        return {
            "azure_storage_account_name": AZURE_ACCOUNT,
            "azure_storage_account_key": AZURE_KEY,
            "azure_storage_endpoint": f"{server.url}/{AZURE_ACCOUNT}",
            "allow_http": "true",
            "client_max_retries": "4",
        }
    if name == "gcs":
        return {
            "google_base_url": server.url,
            "google_skip_signature": "true",
            "allow_http": "true",
            "client_max_retries": "4",
        }
    return storage_options(server, client_max_retries="4")
