"""Amazon S3 and compatible stores.

Requests for single objects use obstore where possible (`s3_client`), and s3fs otherwise. Some operations
bypass
fsspec: listing the first objects of a folder by name, deleting many objects at once, and uploading the parts
of a large object in parallel.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timezone
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from spark_lance.errors import OptionError, StoreError
from spark_lance.io.cloud import MAX_INSTANCES, CloudStore
from spark_lance.io.counters import count_read
from spark_lance.io.deletion import check_inside
from spark_lance.io.failures import Kind, classify_failure
from spark_lance.io.s3_client import S3Client, can_address, to_obstore_settings
from spark_lance.io.storage_options import (
    IGNORED,
    Alias,
    Driver,
    addressing,
    decoded,
    flag,
    negated,
    proxies,
    seconds,
)
from spark_lance.io.store import OutputFile
from spark_lance.io.stored_object import StoredObject

if TYPE_CHECKING:
    import fsspec

Result = TypeVar("Result")

# Suffix of the names of directory buckets, which list names in no order.
_UNORDERED_BUCKET = "--x-s3"
_DELETES_PER_REQUEST = 1000
# S3 accepts at most 10,000 parts per object, and some servers require that all but the last have the same
# size. A data file has at most 90 GB.
_PART_BYTES = 10 << 20
_MAX_PENDING_PARTS = 4
_ALIASES: Mapping[str, Alias] = {
    "access_key_id": Alias("key"),
    "secret_access_key": Alias("secret"),
    "session_token": Alias("token"),
    "endpoint": Alias("endpoint_url"),
    "endpoint_url": Alias("endpoint_url"),
    "region": Alias("client_kwargs.region_name"),
    "default_region": Alias("client_kwargs.region_name"),
    "profile": Alias("profile"),
    "skip_signature": Alias("anon", flag),
    "virtual_hosted_style_request": Alias("config_kwargs.s3.addressing_style", addressing),
    "unsigned_payload": Alias("config_kwargs.s3.payload_signing_enabled", negated),
    "server_side_encryption": Alias("s3_additional_kwargs.ServerSideEncryption"),
    "sse_kms_key_id": Alias("s3_additional_kwargs.SSEKMSKeyId"),
    "sse_bucket_key_enabled": Alias("s3_additional_kwargs.BucketKeyEnabled", flag),
    "sse_customer_key_base64": Alias("s3_additional_kwargs.SSECustomerKey", decoded),
    "request_payer": Alias("requester_pays", flag),
    "allow_invalid_certificates": Alias("client_kwargs.verify", negated),
    "ca_bundle": Alias("client_kwargs.verify"),
    "connect_timeout": Alias("config_kwargs.connect_timeout", seconds),
    "timeout": Alias("config_kwargs.read_timeout", seconds),
    "request_timeout": Alias("config_kwargs.read_timeout", seconds),
    "proxy_url": Alias("config_kwargs.proxies", proxies),
    "user_agent": Alias("config_kwargs.user_agent"),
    # Not needed: s3fs accepts an endpoint with http:// as well as one with https://.
    "allow_http": IGNORED,
    # The bucket is in the table's URI; the others configure a client that we do not use.
    "bucket": IGNORED,
    "s3_express": IGNORED,
    "copy_if_not_exists": IGNORED,
    "disable_tagging": IGNORED,
    "imdsv1_fallback": IGNORED,
    "metadata_endpoint": IGNORED,
    "checksum_algorithm": IGNORED,
    "download_retry_count": IGNORED,
}
# Errors of obstore after which s3fs sends the request and all later ones, with the reason.
_FALLBACK_REASONS: Mapping[Kind | None, str] = {
    Kind.REGION: "the bucket is in another region",
    Kind.CERTIFICATE: "the system does not know the authority of the store's certificate",
}
_NAMES = "anon cache_regions client_kwargs config_kwargs default_block_size endpoint_url key max_concurrency"
_NAMES += " requester_pays s3_additional_kwargs secret session token use_ssl version_aware"


@dataclass(frozen=True)
class S3Store(CloudStore):
    """Buckets of S3; paths are `bucket/key`."""

    driver = Driver(re.compile("aws_"), _ALIASES, frozenset(_NAMES.split()), "spark-lance[s3]")

    @classmethod
    def uri_options(cls, protocol: str, uri: str) -> dict[str, Any]:
        return {}

    @classmethod
    def driver_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        result = super().driver_options(options)
        extra = result.get("s3_additional_kwargs", {})
        if "SSECustomerKey" in extra:
            extra.setdefault("SSECustomerAlgorithm", "AES256")
        return result

    @property
    def lists_tags(self) -> bool:
        return True

    def strip(self, uri: str) -> str:
        # The same as s3fs, which takes a second to import.
        return uri.partition("://")[2].rstrip("/") if "://" in uri else uri.rstrip("/")

    def read(self, path: str) -> bytes:
        # Without max_concurrency s3fs asks for the size first.
        driver = lambda fs: bytes(fs.cat_file(path, max_concurrency=1))  # noqa: E731
        data = self._request("reading", path, lambda client: client.read(path), driver, hedge=True)
        count_read(len(data))
        return data

    def look_up(self, path: str) -> StoredObject:
        driver = lambda fs: _head(fs, path)  # noqa: E731
        return self._request("looking up", path, lambda client: client.look_up(path), driver, hedge=True)

    def put(self, path: str, data: bytes) -> None:
        if len(data) > _PART_BYTES:
            super().put(path, data)
        else:
            self._put(path, data)

    def put_if_absent(self, path: str, data: bytes, *, sync: bool = False) -> None:
        if not self.conditional_put or len(data) > _PART_BYTES:
            super().put_if_absent(path, data)
            return
        create = lambda client: self._or_refusal(lambda: client.put(path, data, create=True))  # noqa: E731
        self._request("creating", path, create, lambda fs: self._create(fs, path, data), single_attempt=True)

    def first_objects(self, directory: str, limit: int) -> Sequence[str]:
        prefix = f"{directory.rstrip('/')}/"
        paths = (one.path.removeprefix(prefix) for one in _first_objects(self._send, directory, limit))
        return [path for path in paths if path and not path.endswith("/")]

    def first_listed(self, directory: str, limit: int) -> Sequence[StoredObject] | None:
        if directory.partition("/")[0].endswith(_UNORDERED_BUCKET):
            return None
        return _first_objects(self._send, directory, limit)

    def delete_many(self, paths: Iterable[str], root: str) -> None:
        all_paths = [*paths]
        for path in all_paths:
            check_inside(path, root)
        for start in range(0, len(all_paths), _DELETES_PER_REQUEST):
            _delete_objects(self._send, all_paths[start : start + _DELETES_PER_REQUEST])

    def create(self, path: str) -> OutputFile:
        bucket, _, key = path.partition("/")
        return S3Output(
            lambda operation, **request: self._send(operation, path, **request),
            lambda data: self._put(path, data),
            lambda: self.size(path),
            bucket,
            key,
        )

    def _open(self) -> fsspec.AbstractFileSystem:
        fs = super()._open()
        fs.retries = 1
        return fs

    def _settings(self) -> dict[str, Any]:
        # Disables botocore's retries: the store itself retries requests where it is safe.
        single_attempt = {"retries": {"total_max_attempts": 1, "mode": "standard"}}
        settings = super()._settings()
        return {**settings, "config_kwargs": {**single_attempt, **(settings.get("config_kwargs") or {})}}

    def _read_range(self, path: str, start: int, end: int) -> bytes:
        def read(client: S3Client) -> Any:
            try:
                return client.read_range(path, start, end)
            except OSError as error:
                if classify_failure(error) is Kind.RANGE:
                    return b""
                raise

        if self._client(path) is None:
            return super()._read_range(path, start, end)
        driver = lambda fs: super(S3Store, self)._read_range(path, start, end)  # noqa: E731
        return cast("bytes", self._request("reading", path, read, driver, hedge=True))

    def _put(self, path: str, data: bytes) -> None:
        driver = lambda fs: fs.pipe_file(path, data)  # noqa: E731
        self._request("writing", path, lambda client: client.put(path, data), driver)

    def _client(self, path: str) -> S3Client | None:
        """Return the obstore client for an object; None if s3fs must be used.

        Raises:
            OptionError: the user requires obstore, but it cannot be used.
        """
        if self.s3_client == "s3fs" or not can_address(path):
            return None
        client = _CLIENTS.get(self.identity, self.options)
        if isinstance(client, S3Client):
            return client
        if self.s3_client == "obstore":
            raise OptionError(f"storage option s3_client is 'obstore', which cannot be used: {client}")
        return None

    def _request(
        self,
        doing: str,
        path: str,
        by_client: Callable[[S3Client], Result],
        by_driver: Callable[[fsspec.AbstractFileSystem], Result],
        single_attempt: bool = False,
        hedge: bool = False,
    ) -> Result:
        """Return the result of a request, sent by obstore or, if obstore cannot be used, by s3fs."""
        client = self._client(path)
        if client is None:
            return self._call(doing, path, by_driver, single_attempt, hedge)

        def send() -> Result:
            try:
                return by_client(client)
            except OSError as error:
                # The store did nothing. s3fs follows redirects to the bucket's region and bundles
                # certificates.
                reason = _FALLBACK_REASONS.get(classify_failure(error))
                if reason is None:
                    raise
                _CLIENTS.refuse(self.identity, reason)
                return by_driver(self.fs)

        return self._attempt(doing, path, send, single_attempt, hedge)

    def _send(self, operation: str, path: str, **request: Any) -> Any:
        """Send one S3 request and retry it after transient errors."""
        doing = operation.replace("_", " ")
        return self._call(f"{doing} for", path, lambda fs: fs.call_s3(operation, **request))


class S3Output:
    """An output that uploads a small object in one request and a larger one in parallel parts.

    Args:
        call: sends an S3 request with retries: (operation, **arguments) -> response.
        put: writes the whole object in one request, with retries.
        size_of: returns the size of the object if it exists.
        bucket: bucket of the new object.
        key: key of the new object.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        put: Callable[[bytes], None],
        size_of: Callable[[], int],
        bucket: str,
        key: str,
    ) -> None:
        self._call = call
        self._put = put
        self._size_of = size_of
        self._object_arguments = {"Bucket": bucket, "Key": key}
        self._buffer = bytearray()
        self._size = 0
        self._upload = ""
        self._pool: ThreadPoolExecutor | None = None
        self._pending_parts: deque[Future[str]] = deque()
        self._etags: list[str] = []

    def write(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        self._size += view.nbytes
        while view.nbytes:
            room = _PART_BYTES - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) == _PART_BYTES:
                self._send_part()

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        if not self._upload:
            self._put(bytes(self._buffer))
            self._buffer.clear()
            return
        try:
            if self._buffer:
                self._send_part()
            while self._pending_parts:
                self._finish_oldest_part()
            parts = [{"PartNumber": i, "ETag": etag} for i, etag in enumerate(self._etags, 1)]
            self._complete(parts)
        except BaseException:
            self.abort()
            raise
        self._stop_uploads()

    def abort(self) -> None:
        self._stop_uploads()
        self._buffer.clear()
        if self._upload:
            # If this fails, the bucket's lifecycle rule removes the upload later.
            with contextlib.suppress(OSError):
                self._call("abort_multipart_upload", **self._object_arguments, UploadId=self._upload)
            self._upload = ""

    def _send_part(self) -> None:
        if self._pool is None:
            self._upload = str(self._call("create_multipart_upload", **self._object_arguments)["UploadId"])
            self._pool = ThreadPoolExecutor(_MAX_PENDING_PARTS)
        if len(self._pending_parts) == _MAX_PENDING_PARTS:
            self._finish_oldest_part()
        number = len(self._etags) + len(self._pending_parts) + 1
        self._pending_parts.append(self._pool.submit(self._put_part, number, bytes(self._buffer)))
        self._buffer.clear()

    def _put_part(self, number: int, body: bytes) -> str:
        arguments = {**self._object_arguments, "UploadId": self._upload, "PartNumber": number}
        return str(self._call("upload_part", **arguments, Body=body)["ETag"])

    def _finish_oldest_part(self) -> None:
        self._etags.append(self._pending_parts.popleft().result())

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        try:
            uploaded = {"Parts": parts}
            self._call(
                "complete_multipart_upload",
                **self._object_arguments,
                UploadId=self._upload,
                MultipartUpload=uploaded,
            )
        except FileNotFoundError:
            # If the upload no longer exists, an earlier attempt completed it and its response was lost. New
            # objects have unique names, so an object of this size is ours.
            if self._size_of() != self._size:
                raise

    def _stop_uploads(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pending_parts.clear()


class _Clients:
    """The obstore clients of the process, by identity. A str is the reason why s3fs is used instead."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop all clients. A forked process must do so."""
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, S3Client | str] = OrderedDict()

    def get(self, identity: str, options: Mapping[str, Any]) -> S3Client | str:
        """Return the client for the options of an identity, or the reason why s3fs is used."""
        with self._lock:
            entry = self._entries.get(identity)
            if entry is None:
                settings = to_obstore_settings(options)
                entry = settings if isinstance(settings, str) else S3Client(settings)
                self._entries[identity] = entry
            self._entries.move_to_end(identity)
            while len(self._entries) > MAX_INSTANCES:
                self._entries.popitem(last=False)
            return entry

    def refuse(self, identity: str, reason: str) -> None:
        """Use s3fs for an identity from now on."""
        with self._lock:
            self._entries[identity] = reason


_CLIENTS = _Clients()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_CLIENTS.clear)


def _head(fs: fsspec.AbstractFileSystem, path: str) -> StoredObject:
    # `s3fs.info` would also check whether a missing object is a directory.
    bucket, _, key = path.partition("/")
    head = fs.call_s3("head_object", Bucket=bucket, Key=key)
    modified = head["LastModified"].astimezone(timezone.utc)
    return StoredObject(path, int(head["ContentLength"]), modified, head.get("ETag"))


class _Send(Protocol):
    """Sends a request about a path and retries it after transient errors."""

    def __call__(self, operation: str, path: str, **request: Any) -> Any:
        """Return the response."""


def _first_objects(send: _Send, directory: str, limit: int) -> list[StoredObject]:
    """Return the first objects below a directory in name order, with one request."""
    bucket, _, key = directory.partition("/")
    prefix = f"{key.rstrip('/')}/" if key else ""
    answer = send("list_objects_v2", directory, Bucket=bucket, Prefix=prefix, MaxKeys=limit)
    return [
        StoredObject(f"{bucket}/{one['Key']}", int(one["Size"]), one["LastModified"], one.get("ETag"))
        for one in answer.get("Contents") or ()
    ]


def _delete_objects(send: _Send, paths: Sequence[str]) -> None:
    """Delete at most `_DELETES_PER_REQUEST` objects of one bucket. Missing objects are not an error.

    Raises:
        StoreError: some objects could not be deleted. The others were deleted.
    """
    bucket = paths[0].partition("/")[0]
    keys = [{"Key": path.partition("/")[2]} for path in paths]
    answer = send("delete_objects", paths[0], Bucket=bucket, Delete={"Objects": keys, "Quiet": True})
    if errors := answer.get("Errors"):
        first = errors[0]
        raise StoreError(
            f"{len(errors)} of {len(paths)} objects could not be deleted; {bucket}/{first.get('Key')}: "
            f"{first.get('Message') or first.get('Code')}"
        )
