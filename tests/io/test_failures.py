"""Driver errors by kind, without any driver: classes and attributes as the drivers have them."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_lance.errors import FormatError, StoreAccessError, StoreError
from spark_lance.io.failures import Kind, classify_failure, is_transient, safe_cause, translated
from spark_lance.redaction import redacted


class ClientError(Exception):
    """As botocore's."""

    def __init__(self, code: str, status: int = 400) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


class HttpError(Exception):
    """As gcsfs's."""

    def __init__(self, code: int) -> None:
        super().__init__(f"text, {code}")
        self.code = code


class HttpResponseError(Exception):
    """As azure-core's."""

    def __init__(self, status_code: int, error_code: str | None) -> None:
        super().__init__("text")
        self.status_code = status_code
        self.error_code = error_code


class ClientPayloadError(Exception):
    """As aiohttp's."""


class NoCredentialsError(Exception):
    """As botocore's."""


def caused(error: Exception, cause: Exception) -> Exception:
    """As s3fs translates: the service's error is the cause of a builtin one."""
    error.__cause__ = cause
    return error


KINDS: list[tuple[Exception, Kind | None]] = [
    (ClientError("SlowDown", 503), Kind.THROTTLED),
    (ClientError("SomethingNew", 503), Kind.THROTTLED),
    (ClientError("InternalError", 500), Kind.SERVER),
    (ClientError("ExpiredToken"), Kind.EXPIRED),
    (ClientError("400"), Kind.REJECTED),
    (ClientError("NoSuchKey", 404), None),
    (caused(FileNotFoundError("x"), ClientError("NoSuchBucket", 404)), Kind.NO_BUCKET),
    (caused(OSError(16, "x"), ClientError("ConditionalRequestConflict", 409)), Kind.BUSY),
    (caused(OSError(22, "x"), ClientError("PreconditionFailed", 412)), Kind.TAKEN),
    (OSError(16, "Please reduce your request rate."), Kind.THROTTLED),
    (ClientError("RequestTimeTooSkewed", 403), Kind.CLOCK),
    (ClientError("InvalidRange", 416), Kind.RANGE),
    (HttpResponseError(416, None), Kind.RANGE),
    (HttpError(429), Kind.THROTTLED),
    (HttpError(403), Kind.ACCESS),
    (HttpResponseError(409, "BlobAlreadyExists"), Kind.TAKEN),
    (HttpResponseError(404, "ContainerNotFound"), Kind.NO_BUCKET),
    (HttpResponseError(503, "ServerBusy"), Kind.THROTTLED),
    (OSError("Forbidden: /b/x"), Kind.ACCESS),
    (PermissionError("x"), Kind.ACCESS),
    (NoCredentialsError(), Kind.NO_CREDENTIALS),
    (ClientPayloadError(), Kind.CONNECTION),
    (ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] ..."), Kind.CERTIFICATE),
    (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), Kind.CONNECTION),
    (asyncio.TimeoutError(), Kind.CONNECTION),
    (ConnectionResetError(104, "x"), Kind.CONNECTION),
    (socket.gaierror(-2, "x"), Kind.CONNECTION),
    (OSError(28, "no space left"), None),
    (StoreError("said already"), None),
    (KeyError("x"), None),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: str(value)[:40])
def test_kinds(error: Exception, kind: Kind | None) -> None:
    assert classify_failure(error) is kind
    passes = {Kind.THROTTLED, Kind.SERVER, Kind.CONNECTION, Kind.BUSY}
    assert is_transient(error) is (kind in passes)


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda value: str(value)[:40])
def test_everything_becomes_an_error_of_the_store(error: Exception, kind: Kind | None) -> None:
    message = translated(error, "reading s3://b/x", {})
    assert isinstance(message, OSError)
    if kind is Kind.TAKEN:
        assert isinstance(message, FileExistsError)
    elif kind in (Kind.ACCESS, Kind.EXPIRED, Kind.NO_CREDENTIALS, Kind.CLOCK):
        assert isinstance(message, StoreAccessError)
        assert isinstance(message, PermissionError)
    elif not isinstance(error, StoreError):
        assert isinstance(message, StoreError)
        assert str(message).startswith("reading s3://b/x: ")


def test_a_missing_object_is_no_missing_bucket() -> None:
    missing = caused(FileNotFoundError("x"), ClientError("NoSuchKey", 404))
    assert isinstance(translated(missing, "reading x", {}), FileNotFoundError)
    bucket = caused(FileNotFoundError("x"), ClientError("NoSuchBucket", 404))
    assert not isinstance(translated(bucket, "reading x", {}), FileNotFoundError)


def test_errors_of_this_package_pass() -> None:
    error = FormatError("damaged")
    assert translated(error, "reading x", {}) is error


OPTIONS: dict[str, Any] = {
    "key": "AKIAFIRST",
    "secret": "hunter2hunter2",
    "token": {"private_key": "BEGINKEY"},
    "endpoint_url": "http://endpoint.example",
    "s3_additional_kwargs": {"SSECustomerKey": "0123456789"},
    "client_kwargs": {"region_name": "eu-west-1"},
}


def test_secrets_are_left_out() -> None:
    said = "AKIAFIRST hunter2hunter2 BEGINKEY 0123456789 http://endpoint.example eu-west-1"
    assert redacted(said, OPTIONS) == "*** *** *** *** http://endpoint.example eu-west-1"
    urls = "https://a.example/x?sv=1&sig=abc%3D&se=2 http://me:pw@host/x AccountKey=abc== Bearer ya29.x-y"
    shown = redacted(urls, {})
    assert shown == "https://a.example/x?sv=1&sig=***&se=2 http://***@host/x AccountKey=*** Bearer ***"


def test_a_cause_that_quotes_secrets_is_left_out() -> None:
    assert safe_cause(OSError("no secret"), OPTIONS) is not None
    assert safe_cause(caused(OSError("x"), ValueError("hunter2hunter2")), OPTIONS) is None
    message = str(translated(OSError("bad hunter2hunter2"), "reading x", OPTIONS))
    assert message == "reading x: bad ***"


@given(st.text(min_size=6, alphabet=st.characters(exclude_characters="*", exclude_categories=["C", "Z"])))
def test_no_secret_survives(secret: str) -> None:
    message = translated(OSError(f"before {secret} after {secret}"), "reading", {"secret": secret})
    assert secret not in str(message).removeprefix("reading: before").replace(" after", "")
