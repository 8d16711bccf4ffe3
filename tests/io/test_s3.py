"""The S3 store against a real server: the contract of stores, faults, credentials, uploads in parts."""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_lance.errors import OptionError, StoreAccessError, StoreError
from spark_lance.io.locations import join
from spark_lance.io.s3 import S3Store
from spark_lance.io.s3_client import to_obstore_settings
from spark_lance.io.store import Store, open_store
from tests import object_store
from tests.io.test_store import StoreTests
from tests.object_store import (
    Server,
    cut_short,
    expired,
    lost_answer,
    never_arrived,
    server_error,
    slow,
    stalled,
    storage_options,
    throttled,
    too_many,
)

DATA = os.urandom(1 << 20)
PART = 10 << 20


@pytest.fixture(autouse=True)
def both(s3_client: str) -> None:
    """Run each test with both clients."""


@pytest.fixture(scope="module")
def s3(s3_server: Server) -> Iterator[tuple[Server, Any]]:
    client = object_store.client(s3_server, "s3")
    object_store.make_bucket(client)
    yield s3_server, client
    client.close()


@pytest.fixture
def server(s3: tuple[Server, Any]) -> Server:
    s3[0].forget()
    return s3[0]


@pytest.fixture
def place(server: Server) -> tuple[Store, str]:
    return open_store(f"s3://bucket/{uuid.uuid4().hex}", storage_options(server, client_max_retries=3))


class TestS3(StoreTests):
    """The contract of every store."""

    races = 8


@pytest.mark.parametrize(
    "fault", [throttled, too_many, server_error, never_arrived, lost_answer, cut_short, slow(0.3)]
)
def test_reads_outlive_faults(fault: object_store.Fault, server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    store.put(join(root, "x"), DATA)
    server.fault(fault, "GET", "/x$", times=2)
    assert store.read(join(root, "x")) == DATA
    server.fault(fault, "GET", "/x$", times=2)
    ranges = [(i * 400_000, 100_000) for i in range(3)]
    got = store.read_ranges(join(root, "x"), ranges)
    assert [bytes(buffer) for buffer in got] == [DATA[o : o + n] for o, n in ranges]


@pytest.mark.parametrize("fault", [throttled, server_error, never_arrived, lost_answer])
def test_writes_outlive_faults(fault: object_store.Fault, server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    server.fault(fault, "PUT", "/x$", times=2)
    store.put(join(root, "x"), DATA)
    assert store.read(join(root, "x")) == DATA
    server.fault(fault, "GET", "list-type", times=1)
    assert store.list(root) == ["x"]
    server.fault(fault, "POST", r"\?delete", times=1)
    store.delete_many([join(root, "x")], root)
    assert store.list(root) == []


def test_faults_that_stay_are_told(server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    store.put(join(root, "x"), b"1")
    server.forget()
    server.fault(throttled, "GET", "/x$", times=99)
    with pytest.raises(StoreError, match=r"reading s3://bucket/.*/x: the store is overloaded.* fewer tasks"):
        store.read_ranges(join(root, "x"), [(0, 1)])
    assert server.count("GET", "/x$") == 4


def test_timeouts_end_requests(server: Server) -> None:
    """A read is sent again, a conditional write is not; both end."""
    impatient = storage_options(server, client_max_retries=1, timeout="300ms")
    store, root = open_store(f"s3://bucket/{uuid.uuid4().hex}", impatient)
    path = join(root, "x")
    store.put(path, DATA)
    for fault in (slow(1), stalled(1)):
        server.fault(fault, "GET", "/x$")
        assert store.read(path) == DATA
        server.fault(fault, "GET", "/x$")
        assert bytes(store.read_ranges(path, [(5, 100_000)])[0]) == DATA[5:100_005]
    server.fault(slow(1), "GET", "/x$", times=2)
    with pytest.raises(StoreError, match=r"reading s3://bucket/.*/x: the connection failed: check the net"):
        store.read(path)
    server.fault(slow(1), "PUT", "/v$")
    with pytest.raises(StoreError, match=r"creating s3://bucket/.*/v: the connection failed"):
        store.put_if_absent(join(root, "v"), b"1")
    assert server.count("PUT", "/v$") == 1


def test_a_second_request_overtakes_a_slow_one(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    store, root = open_store(f"s3://bucket/{uuid.uuid4().hex}", storage_options(server, hedge_after="200ms"))
    path = join(root, "x")
    server.fault(slow(0.5), "PUT", "/x$")
    store.put(path, DATA)
    assert server.count("PUT", "/x$") == 1
    reads: dict[str, Callable[[], Any]] = {
        "GET": lambda: bytes(store.read_ranges(path, [(0, 9)])[0]),
        "HEAD": lambda: store.size(path),
    }
    for method, expected in (("GET", DATA[:9]), ("HEAD", len(DATA))):
        server.fault(slow(4), method, "/x$")
        start = time.monotonic()
        with caplog.at_level("INFO", "spark_lance.io.retry"):
            assert reads[method]() == expected
        assert time.monotonic() - start < 4
        assert server.count(method, "/x$") == 2
    assert "is sent a second time" in caplog.text


@pytest.mark.parametrize("fault", [throttled, server_error])
def test_a_conditional_put_is_sent_once(
    fault: object_store.Fault, server: Server, place: tuple[Store, str]
) -> None:
    store, root = place
    server.fault(fault, "PUT", "/v$")
    with pytest.raises(StoreError):
        store.put_if_absent(join(root, "v"), b"1")
    assert [condition for method, _, condition in server.seen if method == "PUT"] == ["*"]
    assert not store.exists(join(root, "v"))


def test_a_conditional_put_whose_answer_is_lost_is_no_success(
    server: Server, place: tuple[Store, str]
) -> None:
    store, root = place
    server.fault(lost_answer, "PUT", "/v$", times=2)
    with pytest.raises((StoreError, FileExistsError)):
        store.put_if_absent(join(root, "v"), b"1")
    assert store.read(join(root, "v")) == b"1"


def test_a_large_conditional_put_goes_in_parts(
    server: Server, place: tuple[Store, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, root = place
    path = join(root, "v")
    # The driver sends parts from 100 MiB on; here it does so from 10 MiB on.
    whole = store.fs.pipe_file
    monkeypatch.setattr(store.fs, "pipe_file", functools.partial(whole, chunksize=5 << 20))
    data = DATA * 11
    store.put_if_absent(path, data)
    assert store.size(path) == len(data)
    assert server.count("POST", r"/v\?uploads") == 1
    with pytest.raises(FileExistsError):
        store.put_if_absent(path, bytes(len(data)))
    assert bytes(store.read_ranges(path, [(len(data) - 9, 9)])[0]) == data[-9:]
    conditions = [c for method, p, c in server.seen if method == "POST" and "uploadId" in p]
    assert conditions == ["*", "*"]


def test_a_server_that_does_not_know_conditions_is_refused(server: Server, place: tuple[Store, str]) -> None:
    def unknown(app: Any, environ: Any, start: Any) -> list[bytes]:
        body = (
            b"<Error><Code>NotImplemented</Code><Message>A header implies functionality...</Message></Error>"
        )
        start("501 Not Implemented", [("Content-Length", str(len(body)))])
        return [body]

    store, root = place
    server.fault(unknown, "PUT", "/v$")
    with pytest.raises(StoreError, match="manifest_store"):
        store.put_if_absent(join(root, "v"), b"1")


def test_uploads_in_parts(server: Server, place: tuple[Store, str], s3: tuple[Server, Any]) -> None:
    store, root = place
    path = join(root, "big")
    for fault, method in ((throttled, "PUT"), (never_arrived, "PUT"), (server_error, "POST")):
        server.fault(fault, method, "/big")
    out = store.create(path)
    for _ in range(25):
        out.write(DATA)
    assert out.tell() == 25 << 20
    assert not store.exists(path)
    out.close()
    assert [result.size for result in store.list_objects(root)] == [25 << 20]
    assert store.read(path) == DATA * 25
    assert server.count("PUT", "partNumber=3") >= 1
    assert server.count("PUT", "partNumber=4") == 0
    assert "Uploads" not in s3[1].list_multipart_uploads(Bucket="bucket")


@pytest.mark.parametrize("lost", ["/big\\?uploadId", "/big\\?uploads"])
def test_uploads_whose_answers_are_lost(lost: str, server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    out = store.create(join(root, "big"))
    server.fault(lost_answer, "POST", lost)
    out.write(DATA * 11)
    out.close()
    assert store.size(join(root, "big")) == 11 << 20


def test_an_upload_that_fails_leaves_nothing(
    server: Server, place: tuple[Store, str], s3: tuple[Server, Any]
) -> None:
    store, root = place
    for upload in s3[1].list_multipart_uploads(Bucket="bucket").get("Uploads", []):
        s3[1].abort_multipart_upload(Bucket="bucket", Key=upload["Key"], UploadId=upload["UploadId"])
    out = store.create(join(root, "big"))
    server.fault(server_error, "PUT", "partNumber=2", times=99)
    out.write(DATA * 21)
    with pytest.raises(StoreError, match="upload part"):
        out.close()
    out.abort()
    assert not store.exists(join(root, "big"))
    assert "Uploads" not in s3[1].list_multipart_uploads(Bucket="bucket")
    aborted = store.create(join(root, "other"))
    aborted.write(DATA * 21)
    aborted.abort()
    assert store.list(root) == []
    assert "Uploads" not in s3[1].list_multipart_uploads(Bucket="bucket")


def test_listings_are_not_remembered(server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    other, _ = open_store("s3://bucket/x", storage_options(server, client_max_retries=5))
    store.put(join(root, "a"), b"1")
    assert store.list(root) == ["a"]
    other.put(join(root, "b"), b"1")
    assert store.exists(join(root, "b"))
    assert sorted(store.list(root)) == ["a", "b"]
    other.delete(join(root, "a"), root)
    assert not store.exists(join(root, "a"))


@pytest.mark.parametrize("method", ["GET", "PUT", "HEAD"])
def test_expired_credentials(method: str, server: Server, place: tuple[Store, str]) -> None:
    store, root = place
    server.fault(expired, method, "/x$", times=9)
    path = join(root, "x")
    verbs = {"GET": lambda: store.read_ranges(path, [(0, 1)]), "PUT": lambda: store.put(path, b"")}
    with pytest.raises(StoreError) as caught:
        verbs.get(method, lambda: store.size(path))()
    if method == "HEAD":
        # The answer to HEAD has no body that could say why.
        assert "expired credentials" in str(caught.value)
    else:
        assert server.count(method, "/x$") == 1
        assert isinstance(caught.value, StoreAccessError)
        assert "the credentials have expired" in str(caught.value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost that no authority has signed, and its key."""
    serving = pytest.importorskip("werkzeug.serving")
    certificate, key = serving.make_ssl_devcert(str(tmp_path_factory.mktemp("tls") / "x"), host="localhost")
    return certificate, key


@pytest.fixture
def secure(
    server: Server, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """The options for the server by https; nothing of the environment knows its certificate."""
    for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    with object_store.running_server(certificate) as https:
        yield storage_options(https, allow_http="false")


only_moto = pytest.mark.parametrize("s3_server", [pytest.param("moto", marks=pytest.mark.s3)], indirect=True)


@only_moto
@pytest.mark.parametrize("way", ["AWS_CA_BUNDLE", "ca_bundle", "aws_ca_bundle", "allow_invalid_certificates"])
def test_certificates_of_an_own_authority(
    way: str,
    secure: dict[str, Any],
    certificate: tuple[str, str],
    s3_client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {way: "true" if way.startswith("allow") else certificate[0]}
    if way.isupper():
        monkeypatch.setenv(way, options.pop(way))
    store, root = open_store(f"s3://bucket/{uuid.uuid4().hex}", {**secure, **options})
    store.put_if_absent(join(root, "x"), DATA)
    assert bytes(store.read_ranges(join(root, "x"), [(7, 9)])[0]) == DATA[7:16]
    assert store.list(root) == ["x"]
    if s3_client == "obstore":
        assert isinstance(store, S3Store)
        assert (store._client(join(root, "x")) is not None) == (not way.startswith("allow"))


@only_moto
def test_a_bundle_replaces_the_authorities_of_the_system(
    secure: dict[str, Any],
    certificate: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serving = pytest.importorskip("werkzeug.serving")
    other, _key = serving.make_ssl_devcert(str(tmp_path / "other"), host="localhost")
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    store, root = open_store("s3://bucket", {**secure, "ca_bundle": other})
    with pytest.raises(StoreError, match="certificate is not trusted"):
        store.read(join(root, "x"))


@pytest.mark.s3
@pytest.mark.parametrize("s3_client", ["obstore"], indirect=True)
def test_only_s3fs_reads_a_bundle_that_is_no_pem_file(tmp_path: Path, s3_client: str) -> None:
    bundle = tmp_path / "bundle"
    bundle.write_text("no certificates")
    options = {
        "key": "a",
        "secret": "b",
        "client_kwargs": {"region_name": "eu-west-1", "verify": str(bundle)},
    }
    assert to_obstore_settings(options) == f"{bundle} is not a PEM file of certificates"


@only_moto
def test_certificates_that_are_not_trusted(
    secure: dict[str, Any],
    certificate: tuple[str, str],
    s3_client: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error is final and says what to set; obstore asks the system, s3fs has a list of its own."""
    path = f"bucket/{uuid.uuid4().hex}/x"
    with caplog.at_level("INFO", "spark_lance.io.retry"):
        for _attempt in range(2):
            store, _ = open_store("s3://bucket", secure)
            with pytest.raises(StoreError, match=r"certificate is not trusted: set AWS_CA_BUNDLE"):
                store.put_if_absent(path, b"1")
            with pytest.raises(StoreError, match=r"certificate is not trusted"):
                store.read(path)
    assert "next try" not in caplog.text
    monkeypatch.setenv("SSL_CERT_FILE", certificate[0])
    store, _ = open_store("s3://bucket", {**secure, "user_agent": "another identity"})
    if s3_client == "obstore":
        store.put_if_absent(path, b"1")
        assert store.read(path) == b"1"
    else:
        with pytest.raises(StoreError, match="not trusted"):
            store.read(path)


def test_missing_credentials(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    options = {"endpoint": server.url, "region": "us-east-1", "skip_instance_cache": True}
    store, root = open_store("s3://bucket/x", options)
    with pytest.raises(StoreAccessError, match="no usable credentials were found"):
        store.read(join(root, "x"))
    profile, root = open_store("s3://bucket/x", {**options, "profile": "nobody"})
    with pytest.raises(StoreAccessError, match="no usable credentials"):
        profile.read(join(root, "x"))


def test_a_missing_bucket(server: Server) -> None:
    store, root = open_store("s3://nowhere/x", storage_options(server))
    for verb in (store.read, store.list, lambda path: store.put(path, b"")):
        with pytest.raises(StoreError, match="no such bucket"):
            verb(join(root, "x"))


def test_no_route(server: Server) -> None:
    closed = storage_options(server, endpoint="http://127.0.0.1:9", client_max_retries=1)
    store, root = open_store("s3://bucket/x", closed)
    with pytest.raises(StoreError, match="the connection failed"):
        store.read(join(root, "x"))


def test_wrong_names_of_options_are_told(server: Server) -> None:
    store, root = open_store("s3://bucket/x", storage_options(server, regoin="x"))
    with pytest.raises(StoreError, match="regoin"):
        store.read(join(root, "x"))


def test_secrets_stay_inside(server: Server, place: tuple[Store, str], caplog: Any) -> None:
    store, root = place
    server.fault(server_error, "GET", "/x$", times=99)
    with caplog.at_level("INFO"), pytest.raises(StoreError) as caught:
        store.read(join(root, "x"))
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("spark_lance")]
    assert ours
    assert not any("hunter2" in text for text in [*ours, str(caught.value), repr(store), repr(caught.value)])


def test_the_client_is_obstore_where_nothing_needs_s3fs(server: Server) -> None:
    """A new process that reads and writes objects loads neither s3fs nor its client."""
    program = """
import sys
from spark_lance.io.store import open_store
store, root = open_store("s3://bucket/" + sys.argv[2], eval(sys.argv[1]))
store.put_if_absent(root + "/x", b"12345")
out = store.create(root + "/y")
out.write(b"67890")
out.close()
assert bytes(store.read_ranges(root + "/x", [(1, 2)])[0]) == b"23"
assert store.read(root + "/y") == b"67890" and store.size(root + "/y") == 5
print([name for name in ("obstore", "s3fs", "aiobotocore", "botocore") if name in sys.modules])
"""
    options = storage_options(server)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_CONFIG_FILE": "/nowhere", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere"}

    def modules(**more: str) -> str:
        command = [sys.executable, "-c", program, repr({**options, **more}), uuid.uuid4().hex]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert modules() == "['obstore']\n"
    assert "obstore" not in modules(s3_client="s3fs")


@pytest.mark.s3
@pytest.mark.parametrize("s3_client", ["obstore"], indirect=True)
@pytest.mark.parametrize(
    ("more", "environment", "reason"),
    [
        ({"request_payer": "true"}, {}, "only s3fs has the option requester_pays"),
        ({"aws_server_side_encryption": "AES256"}, {}, "only s3fs has the option s3_additional_kwargs"),
        ({"aws_virtual_hosted_style_request": "true"}, {}, "only s3fs has the option s3"),
        ({"profile": "work"}, {}, "only s3fs has the option profile"),
        ({"key": None, "secret": None}, {}, "the keys are neither storage options nor"),
        ({"endpoint_url": None, "client_kwargs": {}}, {}, "neither a region nor an endpoint"),
        ({}, {"AWS_PROFILE": "work"}, "the environment has AWS_PROFILE"),
        ({}, {"AWS_CONFIG_FILE": os.devnull}, "~/.aws/config may have settings"),
    ],
)
def test_settings_that_need_s3fs(
    more: dict[str, Any], environment: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plain = {"key": "AKIATEST", "secret": "hunter2", "endpoint_url": "http://x", "client_kwargs": {}}
    options = {**plain, **more}
    options = S3Store.driver_options({name: value for name, value in options.items() if value is not None})
    settings = to_obstore_settings(options)
    assert isinstance(settings, str)
    assert reason in settings
    if environment:
        return
    store, root = open_store("s3://bucket/x", {**plain, **more, "s3_client": "obstore"})
    with pytest.raises(OptionError, match="which cannot be used"):
        store.read(join(root, "x"))


# A real server refuses the token.
@only_moto
def test_keys_in_the_environment(server: Server, s3_client: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"endpoint": server.url, "region": "us-east-1", "s3_client": s3_client}
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token of somebody else")
    for name, value in object_store.KEYS.items():
        monkeypatch.setenv(name.upper(), value)
    headers: list[dict[str, str]] = []

    def record(app: Any, environ: Any, start: Any) -> Any:
        headers.append({name.lower(): value for name, value in environ[object_store.HEADERS]})
        return app(environ, start)

    for more in ({}, object_store.KEYS):
        store, root = open_store(f"s3://bucket/{uuid.uuid4().hex}", {**options, **more})
        server.fault(record, "PUT", "/x$")
        store.put(join(root, "x"), b"1")
    assert ["x-amz-security-token" in each for each in headers] == [True, False]
    assert all("AKIATEST" in each["authorization"] for each in headers)


def test_a_bucket_in_another_region(server: Server, place: tuple[Store, str], s3_client: str) -> None:
    """s3fs follows to the region, so obstore leaves the bucket to it."""

    def moved(app: Any, environ: Any, start: Any) -> list[bytes]:
        body = b"<Error><Code>PermanentRedirect</Code><Message>Use another endpoint</Message></Error>"
        start("301 Moved Permanently", [("Content-Length", str(len(body)))])
        return [body]

    store, root = place
    store.put(join(root, "x"), b"1")
    server.fault(moved, "GET", "/x$")
    if s3_client == "obstore":
        assert store.read(join(root, "x")) == b"1"
        assert server.count("GET", "/x$") == 2


def test_names_that_obstore_refuses(place: tuple[Store, str]) -> None:
    store, root = place
    for name in ("a//b", "we ird%20+\u00e9", "a/./b"):
        store.put(f"{root}/{name}", name.encode())
        assert store.read(f"{root}/{name}") == name.encode()


def test_a_fork_does_not_use_the_threads_of_its_parent(place: tuple[Store, str]) -> None:
    store, root = place
    store.put(join(root, "x"), b"1")
    child = os.fork()
    if child == 0:
        try:
            copy, _ = open_store("s3://bucket/x", store.options)
            os._exit(0 if copy.read(join(root, "x")) == b"1" else 1)
        except BaseException:  # noqa: BLE001 (a forked test must not go on)
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_share_a_store(place: tuple[Store, str]) -> None:
    store, root = place
    failures: list[BaseException] = []

    def run(me: int) -> None:
        try:
            mine = pickle.loads(pickle.dumps(store))
            for i in range(5):
                mine.put(join(root, f"{me}-{i}"), b"%d" % i)
                assert mine.read(join(root, f"{me}-{i}")) == b"%d" % i
        except BaseException as error:  # noqa: BLE001 (asserted below)
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(store.list(root)) == 30
