"""An S3 and DynamoDB server inside the test process, with faults on demand.

The server is moto's, behind one lock: its conditional writes look and then write. Before and behind it sit
faults, which a test orders for requests that match: `server.fault(reset_before, "PUT", "_versions/")`.
"""

from __future__ import annotations

import io
import logging
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

__all__ = [
    "HEADERS",
    "Server",
    "carry_out",
    "client",
    "cut_short",
    "expired",
    "lost_answer",
    "make_bucket",
    "make_manifest_table",
    "never_arrived",
    "read_body",
    "running_server",
    "server_error",
    "serving",
    "slow",
    "stalled",
    "storage_options",
    "throttled",
    "too_many",
]

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]
Fault = Callable[[App, Environ, StartResponse], Iterable[bytes]]

# Where an application finds the headers as they came.
HEADERS = "tests.headers"
_ERROR = '<?xml version="1.0" encoding="UTF-8"?><Error><Code>{}</Code><Message>{}</Message></Error>'


def _answer(environ: Environ, start: StartResponse, status: str, code: str, message: str) -> list[bytes]:
    body = _ERROR.format(code, message).encode()
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]


def throttled(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The store asks for fewer requests."""
    _drain(environ)
    return _answer(environ, start, "503 Slow Down", "SlowDown", "Please reduce your request rate.")


def too_many(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The store asks for fewer requests, as servers other than S3 do."""
    _drain(environ)
    return _answer(environ, start, "429 Too Many Requests", "TooManyRequests", "Slow down.")


def server_error(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The store fails."""
    _drain(environ)
    return _answer(environ, start, "500 Internal Server Error", "InternalError", "An internal error.")


def expired(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The session token is too old."""
    _drain(environ)
    return _answer(environ, start, "400 Bad Request", "ExpiredToken", "The provided token has expired.")


def never_arrived(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The connection is reset before anything happens."""
    _drain(environ)
    return _reset(environ, start)


def lost_answer(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """The request is carried out, and the connection is reset instead of an answer."""
    carry_out(app, environ)
    return _reset(environ, start)


def cut_short(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    """Half of the answer's body comes, then the connection ends."""
    status, headers, body = carry_out(app, environ)
    start(status, headers)
    yield body[: len(body) // 2]
    _cut(environ)


def stalled(seconds: float) -> Fault:
    """Return a fault: the second half of the answer's body comes late."""

    def send(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        status, headers, body = carry_out(app, environ)
        start(status, headers)
        yield body[: len(body) // 2]
        time.sleep(seconds)
        yield body[len(body) // 2 :]

    return send


def slow(seconds: float) -> Fault:
    """Return a fault: the answer takes its time."""

    def wait(app: App, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        time.sleep(seconds)
        return app(environ, start)

    return wait


@dataclass
class _Order:
    fault: Fault
    method: str
    path: re.Pattern[str]
    times: int
    after: int


@dataclass
class Server:
    """A running server.

    Attributes:
        url: where it listens.
        seen: (method, path with query, If-None-Match) of each request.
    """

    url: str
    app: App
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    _orders: list[_Order] = field(default_factory=list)
    _lock: Any = field(default_factory=threading.Lock)

    def fault(self, fault: Fault, method: str, path: str, times: int = 1, after: int = 0) -> None:
        """Order a fault for the next requests of a method whose path and query match a pattern.

        Args:
            fault: what happens.
            method: "GET", "PUT", ...
            path: regular expression.
            times: how many requests suffer.
            after: how many matching requests are spared before.
        """
        with self._lock:
            self._orders.append(_Order(fault, method, re.compile(path), times, after))

    def forget(self) -> None:
        """Drop faults and the record of requests."""
        with self._lock:
            self._orders.clear()
            self.seen.clear()

    def is_calm(self) -> bool:
        """Whether every fault that was ordered has happened."""
        with self._lock:
            return not any(order.times for order in self._orders)

    def count(self, method: str, path: str) -> int:
        """Return how many requests of a method had a path and query that match."""
        return sum(m == method and re.search(path, p) is not None for m, p, _ in self.seen)

    def __call__(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if environ.get("QUERY_STRING"):
            path += f"?{environ['QUERY_STRING']}"
        target = environ.get("HTTP_X_AMZ_TARGET")
        path += f" {target}" if target else ""
        fault = self._due(environ["REQUEST_METHOD"], path, environ.get("HTTP_IF_NONE_MATCH"))
        return fault(self.app, environ, start) if fault else self.app(environ, start)

    def _due(self, method: str, path: str, condition: str | None) -> Fault | None:
        with self._lock:
            self.seen.append((method, path, condition))
            for order in self._orders:
                if order.method == method and order.times and order.path.search(path):
                    if order.after:
                        order.after -= 1
                        continue
                    order.times -= 1
                    return order.fault
        return None


@contextmanager
def running_server(certificate: tuple[str, str] | None = None) -> Iterator[Server]:
    """Run a server on a free port of this machine; skips the test where moto is not installed.

    Servers of one process share their buckets.
    """
    moto = pytest.importorskip("moto.server")
    inner = moto.DomainDispatcherApplication(moto.create_backend_app)
    one_at_a_time = threading.Lock()

    def locked(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        body = read_body(environ)
        environ["wsgi.input"] = io.BytesIO(body)
        with one_at_a_time:
            return list(inner(environ, start))

    with serving(locked, certificate) as server:
        yield server


@contextmanager
def serving(app: App, certificate: tuple[str, str] | None = None) -> Iterator[Server]:
    """Serve an application on a free port of this machine, with faults on demand.

    Args:
        app: the application.
        certificate: files of a certificate for localhost and its key, for https.
    """
    serving = pytest.importorskip("werkzeug.serving")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = Server("", app)

    class Handler(serving.WSGIRequestHandler):  # type: ignore[misc, name-defined]
        def make_environ(self) -> Environ:
            # WSGI's names lose some headers, such as those with an underscore.
            return {**super().make_environ(), HEADERS: self.headers.items()}

    http = serving.make_server(
        "127.0.0.1", 0, server, threaded=True, request_handler=Handler, ssl_context=certificate
    )
    host = "https://localhost" if certificate else "http://127.0.0.1"
    server.url = f"{host}:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def read_body(environ: Environ) -> bytes:
    """Return the body of a request."""
    length = int(environ.get("CONTENT_LENGTH") or 0)
    if environ.get("wsgi.input_terminated") and not length:
        return bytes(environ["wsgi.input"].read())
    return bytes(environ["wsgi.input"].read(length)) if length else b""


def _drain(environ: Environ) -> None:
    read_body(environ)


def carry_out(app: App, environ: Environ) -> tuple[str, list[tuple[str, str]], bytes]:
    """Run the application and return its answer."""
    remaining: list[Any] = []
    body = b"".join(app(environ, lambda status, headers, exc_info=None: remaining.extend((status, headers))))
    return remaining[0], remaining[1], body


def _reset(environ: Environ, start: StartResponse) -> list[bytes]:
    connection = environ["werkzeug.socket"]
    # Closing without lingering sends RST: the client cannot take it for a proper end.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _cut(environ)
    return []


def _cut(environ: Environ) -> None:
    environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionResetError


KEYS = {"aws_access_key_id": "AKIATEST", "aws_secret_access_key": "hunter2hunter2"}
REGION = "us-east-1"


def storage_options(server: Server, **more: Any) -> dict[str, Any]:
    """Return the options by which this package and pylance reach the server."""
    options = {**KEYS, "region": REGION, "endpoint": server.url, "allow_http": "true"}
    return {**options, "dynamodb_endpoint": server.url, **more}


def client(server: Server, service: str) -> Any:
    """Return a boto3 client; the test closes it."""
    boto3 = pytest.importorskip("boto3")
    return boto3.client(service, endpoint_url=server.url, region_name=REGION, **KEYS)


def make_bucket(s3: Any, name: str = "bucket") -> None:
    """Create a bucket, if it is not there."""
    if name not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}:
        s3.create_bucket(Bucket=name)


def make_manifest_table(
    dynamodb: Any, name: str, hash_key: str = "base_uri", range_key: str = "version"
) -> None:
    """Create a DynamoDB table in the layout of manifest stores, if there is none of that name."""
    if name in dynamodb.list_tables()["TableNames"]:
        return
    dynamodb.create_table(
        TableName=name,
        KeySchema=[
            {"AttributeName": hash_key, "KeyType": "HASH"},
            {"AttributeName": range_key, "KeyType": "RANGE"},
        ],
        AttributeDefinitions=[
            {"AttributeName": hash_key, "AttributeType": "S"},
            {"AttributeName": range_key, "AttributeType": "N"},
        ],
        BillingMode="PAY_PER_REQUEST",
    )
