"""Servers of object stores as processes on loopback ports, each behind a proxy that makes faults on demand.

    versitygw         S3                   dynamodb-local    DynamoDB, for manifest stores
    fake-gcs-server   GCS                  azurite           Azure Blob Storage

The proxy is `tests.object_store.Server` with an application that passes every request on as it came, so what
is signed stays signed. A request that names a DynamoDB operation goes to DynamoDB.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import select
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.object_store import HEADERS, KEYS, App, Environ, Server, StartResponse, read_body, serving
from tests.stores.install import SERVERS, folder

__all__ = ["azurite", "fake_gcs", "forward", "versitygw_and_dynamodb"]

_SECONDS_TO_START = 120
# They are about one connection, not about the message.
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "date", "server"})


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def installed(name: str) -> Path:
    """Return what to run; fails the test, with the way to install it, where it is not there."""
    path = folder(name) / SERVERS[name].program
    if not path.exists():
        pytest.fail(f"{name} {SERVERS[name].version} is not installed: run make test-stores", pytrace=False)
    return path


@contextlib.contextmanager
def process(command: list[str], port: int, environment: Mapping[str, str], where: Path) -> Iterator[None]:
    """Run a server until the block ends; it is ready when it accepts connections on the port."""
    log = where / "log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            command,
            cwd=where,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + _SECONDS_TO_START
        while True:
            if running.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not start:\n{log.read_text(errors='replace')[-3000:]}")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def forward(route: Callable[[Environ], str]) -> App:
    """Return an application that sends each request on to the server that `route` chooses."""

    def app(environ: Environ, start: StartResponse) -> Iterable[bytes]:
        parts = urlsplit(route(environ))
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        try:
            connection.putrequest(
                environ["REQUEST_METHOD"], environ["RAW_URI"], skip_host=True, skip_accept_encoding=True
            )
            body = read_body(environ)
            for name, value in _headers(environ, body):
                connection.putheader(name, value)
            connection.endheaders()
            _send(connection.sock, body)
            answer = connection.getresponse()
            content = answer.read()
            headers = [
                (name, _own_address(environ, parts.netloc, value))
                for name, value in answer.getheaders()
                if name.lower() not in _HOP_BY_HOP
            ]
        finally:
            connection.close()
        if not any(name.lower() == "content-length" for name, _ in headers) and answer.status not in (
            204,
            304,
        ):
            headers.append(("Content-Length", str(len(content))))
        start(f"{answer.status} {answer.reason}", headers)
        return [content]

    return app


def _send(connection: socket.socket, body: bytes) -> None:
    """Send a body, unless the answer comes first: who refuses a condition reads no further."""
    view = memoryview(body)
    while view:
        readable, _, _ = select.select([connection], [connection], [], 60)
        if readable:
            return
        view = view[connection.send(view[: 1 << 16]) :]


def _headers(environ: Environ, body: bytes) -> Iterator[tuple[str, str]]:
    for name, value in environ[HEADERS]:
        if name.lower() not in {*_HOP_BY_HOP, "content-length", "expect"} - {"date"}:
            yield name, value
    if body or environ["REQUEST_METHOD"] in ("PUT", "POST"):
        yield "Content-Length", str(len(body))


def _own_address(environ: Environ, upstream: str, value: str) -> str:
    """Return a header's value that leads back here where it led to the server, as uploads' locations do."""
    return value.replace(f"http://{upstream}", f"http://{environ['HTTP_HOST']}")


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"{name}-", ignore_cleanup_errors=True) as where:
        yield Path(where)


@contextlib.contextmanager
def versitygw_and_dynamodb() -> Iterator[Server]:
    """Run S3 and DynamoDB behind one proxy."""
    program, jars = installed("versitygw"), installed("dynamodb-local")
    s3, dynamodb = free_port(), free_port()
    keys = {"ROOT_ACCESS_KEY": KEYS["aws_access_key_id"], "ROOT_SECRET_KEY": KEYS["aws_secret_access_key"]}
    java = ["java", "-Xmx512m", f"-Djava.library.path={jars}", "-cp", f"{jars}/*"]
    java += ["com.amazonaws.services.dynamodbv2.local.main.ServerRunner"]
    java += ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(dynamodb)]

    def route(environ: Environ) -> str:
        return f"http://127.0.0.1:{dynamodb if 'HTTP_X_AMZ_TARGET' in environ else s3}"

    with contextlib.ExitStack() as stack:
        where = stack.enter_context(_folder("versitygw"))
        for name in ("objects", "about"):
            (where / name).mkdir()
        command = [str(program), "--port", f"127.0.0.1:{s3}", "--quiet"]
        command += ["posix", "--sidecar", str(where / "about"), str(where / "objects")]
        stack.enter_context(process(command, s3, keys, where))
        where = stack.enter_context(_folder("dynamodb"))
        stack.enter_context(process(java, dynamodb, {}, where))
        yield stack.enter_context(serving(forward(route)))


@contextlib.contextmanager
def fake_gcs() -> Iterator[Server]:
    """Run GCS behind a proxy."""
    program, port = installed("fake-gcs-server"), free_port()
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-log-level", "error"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(command, port, {}, stack.enter_context(_folder("gcs"))))
        yield stack.enter_context(serving(forward(lambda environ: f"http://127.0.0.1:{port}")))


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    """Run Azure Blob Storage behind a proxy."""
    program, port = installed("azurite"), free_port()
    command = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(process(command, port, {}, stack.enter_context(_folder("azurite"))))
        yield stack.enter_context(serving(forward(lambda environ: f"http://127.0.0.1:{port}")))
