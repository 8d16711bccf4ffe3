"""GCS and Azure through their drivers, against small servers that speak as much of the services as is needed.

The servers keep objects in memory and take conditions seriously. They say nothing about the real services.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from spark_lance.errors import StoreAccessError, StoreError
from spark_lance.io.locations import join
from spark_lance.io.store import Store, open_store
from tests.io.test_store import StoreTests

pytestmark = [
    pytest.mark.s3,
    # The drivers leave sessions and event loops to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Objects(dict[str, bytes]):
    """Bytes by name, and when each was written."""

    def __init__(self) -> None:
        super().__init__()
        self.times: dict[str, datetime] = {}

    def __setitem__(self, name: str, data: bytes) -> None:
        super().__setitem__(name, data)
        self.times[name] = datetime.now(timezone.utc).replace(microsecond=0)


@dataclass
class Cloud:
    """What a server holds.

    Attributes:
        objects: path -> bytes.
        blocks: parts of uploads that are not finished.
        seen: (method, path and query, condition) of each request.
        failures: (method, pattern, status), each for one request.
    """

    url: str = ""
    objects: Objects = field(default_factory=Objects)
    blocks: dict[str, Any] = field(default_factory=dict)
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    failures: list[tuple[str, str, int]] = field(default_factory=list)
    lock: Any = field(default_factory=threading.RLock)

    def names(self, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
        """Return objects and common prefixes as listings of object stores do."""
        names, prefixes = [], set()
        for name in sorted(self.objects):
            if name.startswith(prefix):
                head, result, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
                if result:
                    prefixes.add(prefix + head + result)
                else:
                    names.append(name)
        return names, sorted(prefixes)


class Handler(BaseHTTPRequestHandler):
    """One request; subclasses speak one service."""

    protocol_version = "HTTP/1.1"
    cloud: ClassVar[Cloud]

    def log_message(self, *_: Any) -> None:
        """Stay silent."""

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        length = headers.pop("Content_Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            out = b""
            while size := int(self.rfile.readline(), 16):
                out += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return out
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def content(self, data: bytes, asked: str | None, **headers: str) -> None:
        """Answer with an object or a range of it."""
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", asked or "")
        if match is None:
            return self.answer(200, data, **headers)
        start, end = int(match[1]), int(match[2] or len(data) - 1)
        if start >= len(data):
            return self.answer(416)
        part = data[start : end + 1]
        span = f"bytes {start}-{start + len(part) - 1}/{len(data)}"
        return self.answer(206, part, Content_Range=span, **headers)

    def handle_one(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        sent = self.body()
        with self.cloud.lock:
            self.cloud.seen.append((self.command, self.path, self.headers.get("If-None-Match")))
            for failure in self.cloud.failures:
                if failure[0] == self.command and re.search(failure[1], self.path):
                    self.cloud.failures.remove(failure)
                    return self.fail(failure[2])
            return self.serve(parts.path, query, sent)

    def fail(self, status: int) -> None:
        self.answer(status, b"{}")

    def serve(self, path: str, query: dict[str, str], sent: bytes) -> None:
        raise NotImplementedError

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one  # noqa: N815


class Gcs(Handler):
    """The JSON API."""

    def serve(self, path: str, query: dict[str, str], sent: bytes) -> None:
        objects = self.cloud.objects
        if path.startswith("/upload/storage/v1/b/bucket/o"):
            return self.upload(query, sent)
        if match := re.fullmatch(r"/storage/v1/b/bucket/o/(.+)/rewriteTo/b/bucket/o/(.+)", path):
            source, target = unquote(match[1]), unquote(match[2])
            if source not in objects:
                return self.answer(404, b"{}")
            objects[target] = objects[source]
            return self.tell({"done": True, "resource": self.describe(target)})
        if match := re.fullmatch(r"(?:/download)?/storage/v1/b/bucket/o/(.+)", path):
            name = unquote(match[1])
            if name not in objects:
                return self.answer(404, b"{}")
            if self.command == "DELETE":
                del objects[name]
                return self.answer(204)
            if query.get("alt") == "media" or path.startswith("/download"):
                return self.content(objects[name], self.headers.get("Range"))
            return self.tell(self.describe(name))
        if path == "/storage/v1/b/bucket/o":
            names, prefixes = self.cloud.names(query.get("prefix", ""), query.get("delimiter", ""))
            return self.tell({"items": [self.describe(name) for name in names], "prefixes": prefixes})
        if path == "/storage/v1/b/bucket":
            return self.tell({"name": "bucket", "kind": "storage#bucket"})
        return self.answer(404, b"{}")

    def upload(self, query: dict[str, str], sent: bytes) -> None:
        if (
            query.get("ifGenerationMatch") == "0"
            and (query.get("name") or self.named(sent)) in self.cloud.objects
        ):
            return self.answer(412, b"{}")
        if query["uploadType"] == "resumable":
            number = uuid.uuid4().hex
            self.cloud.blocks[number] = [json.loads(sent)["name"], b"", query]
            place = f"{self.cloud.url}/upload/storage/v1/b/bucket/o?uploadType=part&upload_id={number}"
            return self.answer(200, Location=place)
        if query["uploadType"] == "part":
            upload = self.cloud.blocks[query["upload_id"]]
            upload[1] += sent
            _, _, total = self.headers["Content-Range"].partition("/")
            if total == "*" or len(upload[1]) < int(total):
                return self.answer(308, Range=f"bytes=0-{len(upload[1]) - 1}")
            if upload[2].get("ifGenerationMatch") == "0" and upload[0] in self.cloud.objects:
                return self.answer(412, b"{}")
            self.cloud.objects[upload[0]] = upload[1]
            return self.tell(self.describe(upload[0]))
        name = self.named(sent)
        data = sent.split(b"\n\n", 2)[2].removesuffix(b"\n--==0==--")
        self.cloud.objects[name] = data
        return self.tell(self.describe(name))

    def named(self, sent: bytes) -> str:
        return str(json.loads(sent.split(b"\n\n")[1].split(b"\n--==0==")[0])["name"])

    def describe(self, name: str) -> dict[str, Any]:
        data = self.cloud.objects[name]
        digest = base64.b64encode(hashlib.md5(data).digest()).decode()
        about = {"name": name, "bucket": "bucket", "kind": "storage#object", "md5Hash": digest}
        time = self.cloud.objects.times[name].isoformat().replace("+00:00", "Z")
        return {**about, "size": str(len(data)), "updated": time, "timeCreated": time, "generation": "1"}

    def tell(self, answer: dict[str, Any]) -> None:
        self.answer(200, json.dumps(answer).encode(), Content_Type="application/json")

    def fail(self, status: int) -> None:
        error = {"error": {"code": status, "message": "as ordered"}}
        self.answer(status, json.dumps(error).encode())


class Azure(Handler):
    """The REST API of blobs."""

    def serve(self, path: str, query: dict[str, str], sent: bytes) -> None:
        name = unquote(path).removeprefix("/account/bucket").removeprefix("/")
        if not name:
            return self.list_blobs(query) if query.get("comp") == "list" else self.answer(200)
        objects = self.cloud.objects
        if self.command == "PUT":
            return self.put(name, query, sent)
        if name not in objects:
            return self.refuse(404, "BlobNotFound")
        if self.command == "DELETE":
            del objects[name]
            return self.answer(202)
        time = format_datetime(objects.times[name], usegmt=True)
        about = {"Last_Modified": time, "ETag": '"1"', "x_ms_blob_type": "BlockBlob"}
        about["x_ms_creation_time"] = time
        if self.command == "HEAD":
            return self.answer(200, b"", Content_Length=str(len(objects[name])), **about)
        return self.content(objects[name], self.headers.get("x-ms-range"), **about)

    def put(self, name: str, query: dict[str, str], sent: bytes) -> None:
        if query.get("comp") == "block":
            self.cloud.blocks[query["blockid"]] = sent
            return self.answer(201)
        if self.headers.get("If-None-Match") == "*" and name in self.cloud.objects:
            return self.refuse(409, "BlobAlreadyExists")
        if query.get("comp") == "blocklist":
            ids = re.findall(r"<Latest>(.*?)</Latest>", sent.decode())
            sent = b"".join(self.cloud.blocks[number] for number in ids)
        if source := self.headers.get("x-ms-copy-source"):
            origin = unquote(urlsplit(source).path).removeprefix("/account/bucket/")
            if origin not in self.cloud.objects:
                return self.refuse(404, "BlobNotFound")
            sent = self.cloud.objects[origin]
        status = 202 if source else 201
        self.cloud.objects[name] = sent
        about = {"ETag": '"1"', "Last_Modified": format_datetime(self.cloud.objects.times[name], usegmt=True)}
        return self.answer(status, b"", x_ms_copy_status="success", x_ms_copy_id="1", **about)

    def list_blobs(self, query: dict[str, str]) -> None:
        names, prefixes = self.cloud.names(query.get("prefix", ""), query.get("delimiter", ""))
        times = {name: format_datetime(self.cloud.objects.times[name], usegmt=True) for name in names}
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{times[name]}"
            f"</Last-Modified><Etag>1</Etag><Content-Length>{len(self.cloud.objects[name])}</Content-Length>"
            "<BlobType>BlockBlob</BlobType></Properties></Blob>"
            for name in names
        )
        blobs += "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in prefixes)
        body = f"<?xml version='1.0'?><EnumerationResults ContainerName='bucket'><Blobs>{blobs}</Blobs>"
        self.answer(200, f"{body}<NextMarker/></EnumerationResults>".encode(), Content_Type="text/xml")

    def refuse(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.answer(status, body, x_ms_error_code=code, Content_Type="application/xml")

    def fail(self, status: int) -> None:
        self.refuse(status, {403: "AuthenticationFailed", 503: "ServerBusy"}.get(status, "InternalError"))


def running(handler: type[Handler]) -> Iterator[Cloud]:
    cloud = Cloud()
    own = type(handler.__name__, (handler,), {"cloud": cloud})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    server.daemon_threads = True
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield cloud
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def gcs() -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch:
        # The driver would look for buckets of another kind by gRPC.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        pytest.importorskip("gcsfs")
    yield from running(Gcs)


@pytest.fixture(scope="module")
def azure() -> Iterator[Cloud]:
    pytest.importorskip("adlfs")
    yield from running(Azure)


def gcs_options(cloud: Cloud) -> dict[str, Any]:
    return {"google_skip_signature": "true", "endpoint": cloud.url, "client_max_retries": 3}


def azure_options(cloud: Cloud) -> dict[str, Any]:
    key = base64.b64encode(b"hunter2hunter2").decode()
    connection = f"DefaultEndpointsProtocol=http;AccountName=account;AccountKey={key};"
    return {"connection_string": f"{connection}BlobEndpoint={cloud.url}/account;", "client_max_retries": 3}


class CloudTests(StoreTests):
    races = 5

    def test_a_large_object_is_created_once(self, place: tuple[Store, str], cloud: Cloud) -> None:
        store, root = place
        data = bytes(range(256)) * (1 << 18)
        store.put_if_absent(join(root, "v"), data)
        assert store.read(join(root, "v")) == data
        with pytest.raises(FileExistsError):
            store.put_if_absent(join(root, "v"), bytes(len(data)))
        assert store.read(join(root, "v")) == data

    def test_listings_are_not_remembered(self, place: tuple[Store, str], cloud: Cloud) -> None:
        store, root = place
        inside = root.removeprefix("bucket/")
        store.put(join(root, "a"), b"1")
        assert store.list(root) == ["a"]
        cloud.objects[f"{inside}/b"] = b"12"
        assert store.size(join(root, "b")) == 2
        assert sorted(store.list(root)) == ["a", "b"]
        del cloud.objects[f"{inside}/a"]
        assert not store.exists(join(root, "a"))

    def test_refusals_are_told(self, place: tuple[Store, str], cloud: Cloud) -> None:
        store, root = place
        cloud.failures += [("PUT", "/v", 403), ("POST", "upload", 403)]
        with pytest.raises(StoreAccessError) as caught:
            store.put_if_absent(join(root, "v"), b"1")
        assert "hunter2" not in str(caught.value)
        cloud.failures.clear()


class TestGcs(CloudTests):
    @pytest.fixture
    def cloud(self, gcs: Cloud) -> Cloud:
        return gcs

    @pytest.fixture
    def place(self, gcs: Cloud) -> tuple[Store, str]:
        return open_store(f"gs://bucket/{uuid.uuid4().hex}", gcs_options(gcs))

    def test_the_condition_goes_out(self, place: tuple[Store, str], gcs: Cloud) -> None:
        store, root = place
        gcs.seen.clear()
        store.put_if_absent(join(root, "v"), b"1")
        sent = [path for method, path, _ in gcs.seen if method == "POST"]
        assert len(sent) == 1
        assert "ifGenerationMatch=0" in sent[0]
        gcs.seen.clear()
        store.put(join(root, "w"), b"1")
        assert not any("ifGenerationMatch" in path for _, path, _ in gcs.seen)

    def test_reads_are_repeated(self, place: tuple[Store, str], gcs: Cloud) -> None:
        # Azure's driver does so itself, after fifteen seconds.
        store, root = place
        store.put(join(root, "x"), b"12345")
        gcs.failures.append(("GET", "x", 503))
        assert bytes(store.read_ranges(join(root, "x"), [(1, 2)])[0]) == b"23"
        assert gcs.failures == []


class TestAzure(CloudTests):
    @pytest.fixture
    def cloud(self, azure: Cloud) -> Cloud:
        return azure

    @pytest.fixture
    def place(self, azure: Cloud) -> tuple[Store, str]:
        return open_store(f"az://bucket/{uuid.uuid4().hex}", azure_options(azure))

    def test_the_condition_goes_out(self, place: tuple[Store, str], azure: Cloud) -> None:
        store, root = place
        azure.seen.clear()
        store.put_if_absent(join(root, "v"), b"1")
        assert [condition for method, _, condition in azure.seen if method == "PUT"] == ["*"]
        azure.seen.clear()
        store.put(join(root, "w"), b"1")
        assert [condition for method, _, condition in azure.seen if method == "PUT"] == [None]


def test_an_account_in_the_uri_is_used(azure: Cloud) -> None:
    store, root = open_store("abfss://bucket@account.dfs.core.windows.net/x", {"account_key": "a2V5"})
    assert store.fs.account_name == "account"
    assert root == "bucket/x"


def test_no_azure_credentials(azure: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError):
        open_store("az://bucket/x", {})[0].read("bucket/x")
