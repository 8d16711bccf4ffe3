"""Requests for single S3 objects through obstore: whole reads, ranges, sizes and small writes.

obstore is a compiled client. It imports much faster than s3fs, so tasks that read or write data files start
sooner. s3fs is used wherever obstore could behave differently. The conditions for obstore are:

- Keys are storage options or environment variables, or requests are anonymous. Only s3fs supports profiles,
  roles, single sign-on and metadata services.
- The region or an endpoint is set, because obstore does not follow redirects to another region.
- `to_obstore_settings` supports every storage option that is set.
- No other environment variable changes the requests.
- Both clients can read the file of trusted certificate authorities (`ca_bundle`).
- The process was not forked from a process that used obstore, because threads do not survive a fork.

    to_obstore_settings(options)  ->  the settings of the client, or the reason why s3fs is used
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import fsspec.config

from spark_lance.io.failures import CODES
from spark_lance.io.stored_object import StoredObject

Result = TypeVar("Result")

_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Variables without effect on requests, because the client gets keys, region and endpoint explicitly.
_IGNORED_VARIABLES = frozenset(
    (*_KEYS, "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_EC2_METADATA_DISABLED", "AWS_EXECUTION_ENV")
)
# Variables that name a file of trusted certificate authorities, in botocore's order.
_CERTIFICATES = ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
_CONFIG_FILES = (("AWS_CONFIG_FILE", "~/.aws/config"), ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"))
_TIMEOUTS = {"connect_timeout": "connect_timeout", "read_timeout": "read_timeout"}
# The timeouts of botocore. obstore's limit of 30 seconds for a whole request is too short for a slow uplink.
_DEFAULT_TIMEOUTS = {"connect_timeout": 60.0, "read_timeout": 60.0, "timeout": 3600.0}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# obstore rejects these keys; S3 accepts them.
_REFUSED_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_STATUS = re.compile(r"status code: (\d{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_TIMEOUT = re.compile(r"kind: Timeout\b|\bTimedOut\b")
_DETAIL = re.compile(r'\b(?:message|error): "([^"]+)"')


class CertificateError(OSError):
    """The certificate of the store is not trusted; nothing was sent."""


class S3RequestError(OSError):
    """An error response of S3.

    Attributes:
        code: S3 error code, such as SlowDown; None if the response has no code that `CODES` lists.
        status: HTTP status.
    """

    def __init__(self, text: str, code: str | None, status: int) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


@dataclass(frozen=True)
class S3Settings:
    """Settings of the client for any bucket.

    Attributes:
        keys: access key, secret and session token; None for anonymous requests.
        config: region and endpoint.
        client: timeouts and other options of the HTTP client.
    """

    keys: tuple[str, str, str | None] | None = field(repr=False)
    config: Mapping[str, Any]
    client: Mapping[str, Any]


def to_obstore_settings(options: Mapping[str, Any]) -> S3Settings | str:
    """Return the obstore settings equivalent to s3fs options, or the reason why obstore cannot be used.

    Args:
        options: arguments of s3fs, as `Driver.arguments` returns them.
    """
    rest = {name: value for name, value in options.items() if value is not None}
    explicit = "key" in rest or "secret" in rest
    keys = rest.pop("key", None), rest.pop("secret", None), rest.pop("token", None)
    anonymous = bool(rest.pop("anon", False))
    endpoint = rest.pop("endpoint_url", None)
    region = None
    timeouts = dict(_DEFAULT_TIMEOUTS)
    client: dict[str, Any] = {}
    plain = str(endpoint or "").lower().startswith("http://")
    bundle = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), None)
    for group in ("client_kwargs", "config_kwargs"):
        nested = dict(rest.pop(group, {}) or {})
        region = nested.pop("region_name", None) or region
        for s3fs_name, obstore_name in _TIMEOUTS.items():
            timeouts[obstore_name] = float(nested.pop(s3fs_name, timeouts[obstore_name]))
        if "user_agent" in nested:
            client["user_agent"] = str(nested.pop("user_agent"))
        if isinstance(nested.get("verify"), str):
            bundle = nested.pop("verify")
        if nested.get("s3") == {"addressing_style": "path"}:
            del nested["s3"]
        rest |= nested
    if rest:
        return f"only s3fs has the option {min(rest)}"
    if reason := _environment_reason():
        return reason
    if bundle and not plain:
        if (certificates := _read_certificates(bundle)) is None:
            return f"{bundle} is not a PEM file of certificates"
        # Like s3fs, trust only these authorities.
        client |= {"root_certificate": certificates, "disable_system_certificates": True}
    if not explicit and not anonymous:
        key, secret, token = (os.environ.get(name) or None for name in _KEYS)
        keys = key, secret, token
    if not anonymous and not (keys[0] and keys[1]):
        return "the keys are neither storage options nor environment variables"
    region = region or os.environ.get("AWS_DEFAULT_REGION")
    if not region and not endpoint:
        return "neither a region nor an endpoint is set"
    config = {"region": region or "us-east-1", "virtual_hosted_style_request": False}
    if endpoint:
        config |= {"endpoint": str(endpoint), "aws_endpoint_url_s3": str(endpoint)}
    client |= {name: timedelta(seconds=value) for name, value in timeouts.items()}
    client["allow_http"] = plain
    return S3Settings(None if anonymous else (keys[0], keys[1], keys[2]), config, client)


def _read_certificates(path: str) -> bytes | None:
    """Return the bytes of a PEM file of certificates; None if the file is not one."""
    import ssl

    try:
        data = Path(path).read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode())
    except (OSError, ValueError):
        return None
    return data


def _environment_reason() -> str:
    """Return why the environment of this process requires s3fs; "" if it does not."""
    if not _is_installed():
        return "obstore is not installed"
    if _PROCESS.forked:
        return "obstore was used before this process was forked"
    if {"s3", "s3a"} & fsspec.config.conf.keys():
        return "fsspec's configuration has settings for s3"
    for name, config_file in _CONFIG_FILES:
        if Path(os.environ.get(name) or config_file).expanduser().exists():
            return f"{config_file} may have settings"
    ignored = _IGNORED_VARIABLES.union(_CERTIFICATES, (name for name, _ in _CONFIG_FILES))
    for name in sorted(os.environ):
        if name.startswith("AWS_") and name not in ignored:
            return f"the environment has {name}"
    return ""


@lru_cache(maxsize=1)
def _is_installed() -> bool:
    return importlib.util.find_spec("obstore") is not None


def can_address(path: str) -> bool:
    """Return whether obstore accepts the path of an object, `bucket/key`."""
    bucket, _, key = path.partition("/")
    return bool(_BUCKET.fullmatch(bucket)) and not bucket.endswith("--x-s3") and not _REFUSED_KEY.search(key)


class S3Client:
    """A client that sends each request once. `spark_lance.io.failures` recognises its errors."""

    def __init__(self, settings: S3Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._buckets: dict[str, Any] = {}

    def read(self, path: str) -> bytes:
        """Return a whole object."""
        import obstore

        return bytes(self._send(path, lambda bucket, key: obstore.get(bucket, key).bytes()))

    def read_range(self, path: str, start: int, end: int) -> Any:
        """Return the bytes of a range up to the end of the object, without a copy."""
        import obstore

        return self._send(path, lambda bucket, key: obstore.get_range(bucket, key, start=start, end=end))

    def look_up(self, path: str) -> StoredObject:
        """Return the size, time and tag of an object."""
        import obstore

        head = self._send(path, obstore.head)
        return StoredObject(path, int(head["size"]), head["last_modified"], head.get("e_tag"))

    def put(self, path: str, data: bytes, *, create: bool = False) -> None:
        """Write an object in one request. With `create`, only if it is absent."""
        import obstore

        mode = "create" if create else "overwrite"
        self._send(path, lambda bucket, key: obstore.put(bucket, key, data, mode=mode, use_multipart=False))

    def _send(self, path: str, request: Callable[[Any, str], Result]) -> Result:
        bucket, _, key = path.partition("/")
        store = self._bucket(bucket)
        try:
            return request(store, key)
        except Exception as error:  # noqa: BLE001 (its messages say more than its classes)
            raise _failure(error) from None

    def _bucket(self, name: str) -> Any:
        with self._lock:
            if name not in self._buckets:
                self._buckets[name] = self._open(name)
            return self._buckets[name]

    def _open(self, name: str) -> Any:
        from obstore.store import S3Store

        _PROCESS.used = True
        keys = self._settings.keys
        # Without a provider the client would read missing keys from the environment.
        provider = None if keys is None else lambda: _credential(keys)
        config = {**self._settings.config, "skip_signature": keys is None}
        single_attempt = {"max_retries": 0, "retry_timeout": timedelta(0)}
        try:
            return S3Store(
                name,
                config=config,
                client_options=dict(self._settings.client),
                retry_config=single_attempt,
                credential_provider=provider,
            )
        except Exception as error:
            if "root_certificate" not in self._settings.client:
                raise
            raise CertificateError(f"the certificates of ca_bundle cannot be used: {error}") from error


def _credential(keys: tuple[str, str, str | None]) -> dict[str, Any]:
    return {"access_key_id": keys[0], "secret_access_key": keys[1], "token": keys[2], "expires_at": None}


def _failure(error: Exception) -> Exception:
    """Return the error to raise for a client error, whose message contains the response of S3."""
    text = str(error)
    status = _STATUS.search(text)
    if status is None:
        if isinstance(error, (ValueError, TypeError)):
            return error
        if certificate := _CERTIFICATE.search(text):
            return CertificateError(f"invalid certificate: {certificate[1]}")
        return ConnectionError(_connection_problem(text))
    code = _CODE.search(text)
    message = _MESSAGE.search(text)
    service_code = code[1] if code and code[1] in CODES else None
    words = ": ".join(match[1] for match in (code, message) if match) or f"HTTP status {status[1]}"
    if isinstance(error, FileNotFoundError) and service_code is None:
        return FileNotFoundError(words)
    return S3RequestError(words, service_code, int(status[1]))


def _connection_problem(text: str) -> str:
    """Return the connection problem that a client's message describes."""
    summary = text.partition("\n")[0].rpartition(" - ")[2]
    if _TIMEOUT.search(text):
        return f"{summary}: no answer in time"
    detail = _DETAIL.search(text)
    return f"{summary}: {detail[1]}" if detail else summary


class _Process:
    """State that decides whether this process may use obstore.

    Attributes:
        used: whether obstore has started threads in this process.
        forked: whether this process is a fork of one with such threads.
    """

    used = False
    forked = False

    def fork(self) -> None:
        """Update the state in a forked process."""
        self.forked = self.forked or self.used


_PROCESS = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.fork)
