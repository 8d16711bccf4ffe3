"""Places outside of a table: which a reader follows, with which options, and how it is allowed more."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import lance
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.datasets.versions import DatasetBasePath, clone_target
from spark_lance.errors import BaseNotAllowedError, BlobSourceError, OptionError
from spark_lance.file.blob_references import REFERENCE
from spark_lance.io.base_options import Location, read_base_options
from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.io.store import Store, open_store, store_class
from spark_lance.proto import table_pb2
from spark_lance.table.format.bases import BasePath, Bases, open_place
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.reading.blob_sources import BlobSources

Forge = Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
ROWS = pa.table({"id": range(6)})
S3_SECRETS = {"key": "AKIA", "secret": "s3cret"}


@pytest.mark.parametrize(
    ("table", "base", "is_near"),
    [
        ("s3://bucket/a/t", "s3://bucket/b", True),
        ("s3://bucket/a/t", "s3a://bucket/b", True),
        ("s3://bucket/a/t", "s3://bucket2/b", False),
        ("s3://bucket/a/t", "s3://bucket.evil/b", False),
        ("s3://bucket/a/t", "gs://bucket/b", False),
        ("s3://bucket/a/t", "file:///etc", False),
        ("s3://bucket/a/t", "/etc", False),
        ("s3://bucket/a/t", "relative", False),
        ("s3://bucket/a/t", "http://bucket/b", False),
        ("s3://bucket/a/t", "s3+ddb://bucket/b?ddbTableName=t", False),
        ("s3://bucket/a/t", "memory://b", False),
        ("gs://bucket/t", "gcs://bucket/u", True),
        ("https://host/t", "https://host/u", True),
        ("https://host/t", "https://HOST/u", True),
        ("https://host/t", "https://host:8443/u", False),
        ("https://host/t", "http://host/u", False),
        ("https://host/t", "https://host@evil/u", False),
        ("https://host/t", "https://user@host/u", True),
        ("abfss://c@acct.dfs.core.windows.net/t", "abfss://c@acct.dfs.core.windows.net/u", True),
        ("abfss://c@acct.dfs.core.windows.net/t", "az://c/u", True),
        ("abfss://c@acct.dfs.core.windows.net/t", "abfss://c@other.dfs.core.windows.net/u", False),
        ("az://c/t", "az://d/u", False),
        ("memory://t", "memory://u", True),
        ("/lake/db/t", "/lake/db/u", True),
        ("/lake/db/t", "/lake/db/deep/u", True),
        ("/lake/db/t", "file:///lake/db/u", True),
        ("/lake/db/t", "/lake/db2/u", False),
        ("/lake/db/t", "/lake/other", False),
        ("/lake/db/t", "/lake/db/../../etc", False),
        ("/lake/db/t", "file:///lake/db/../../etc", False),
        ("/t", "/t/data2", True),
        ("/t", "/etc", False),
    ],
)
def test_near_places(table: str, base: str, is_near: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, Any]] = []

    def record(uri: str, options: Any = None) -> tuple[Store, str]:
        opened.append((uri, options))
        return MemoryStore(), "/x"

    scheme = table.partition("://")[0] if "://" in table else "file"
    authority = table.partition("://")[2].partition("/")[0] if "://" in table else ""
    path = table if scheme in ("file", "https") else table.partition("://")[2]
    store = store_class(scheme)(
        scheme, {"secret": "x"}, authority="" if scheme in ("file", "memory") else authority
    )
    monkeypatch.setattr("spark_lance.table.format.bases.open_store", record)
    if is_near:
        open_place(TableRef(store, path), base, "base path 1")
        assert opened == [(base, {"secret": "x"})]
        return
    with pytest.raises(BaseNotAllowedError, match=r"^base path 1 of .* allowed_bases="):
        open_place(TableRef(store, path), base, "base path 1")
    assert opened == []
    # A listed place is opened, but never with options that were given for the table.
    if base != "relative":
        listed = Location.of(base).path if "://" not in base or base.startswith("file") else base
        open_place(TableRef(store.with_bases([listed]), path), base, "base path 1")
        other = opened.pop()[1]
        assert other is None or (scheme == "file" and Location.of(base).scheme == "file")


def test_options_of_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "strip", lambda _, uri: uri.partition("://")[2])
    options = {
        **S3_SECRETS,
        "allowed_bases": "s3://other/pool, /mnt/cold",
        "base_3.key": "three",
        "base_store_params": {"s3://other/pool": {"key": "pool"}, "s3://other/pool/deep": {"key": "deep"}},
    }
    store, _ = open_store("s3://bucket/t", options)
    assert store.options == S3_SECRETS
    assert store.bases.allowed == ("s3://other/pool", "/mnt/cold")
    for base, number, key in (
        ("s3://other/pool", 3, "pool"),
        ("s3://other/pool/deep/x", 3, "deep"),
        ("s3://other/pool/deeper", 3, "pool"),
        ("s3://bucket/u", 3, "three"),
        ("s3://bucket/u", 4, "AKIA"),
    ):
        place, _ = open_place(TableRef(store, "bucket/t"), base, "base path", number)
        assert place.options["key"] == key
        assert place.options.get("secret") == ("s3cret" if key == "AKIA" else None)
    assert "s3cret" not in repr(store)
    assert "pool" not in repr(store)
    again = open_store("s3://bucket/t", store.storage_options)[0]
    assert again.bases == store.bases
    assert pickle.loads(pickle.dumps(store)).bases == store.bases


def test_values_that_cannot_be_used_are_named_but_not_quoted() -> None:
    for options in (
        {"allowed_bases": 7},
        {"allowed_bases": [7]},
        {"allowed_bases": "[secret"},
        {"allowed_bases": "s3://b/../c"},
        {"base_store_params": "{secret"},
        {"base_store_params": {"s3://b": "secret"}},
    ):
        with pytest.raises(OptionError, match=r"allowed_bases|base_store_params") as raised:
            read_base_options(options)
        assert "secret" not in str(raised.value)
        assert raised.value.__cause__ is None


@settings(max_examples=200)
@given(
    st.sampled_from(["/lake/db/", "file:///lake/db/", "/lake/", "../", "", "/"]),
    st.lists(st.sampled_from(["..", ".", "a", "", "db", "lake", "x y", "%2e%2e"]), max_size=6),
)
def test_no_local_place_that_is_near_is_outside(start: str, parts: list[str]) -> None:
    uri = start + "/".join(parts)
    location, home = Location.of(uri), LocalStore().location("/lake/db/t")
    real = os.path.realpath(os.path.abspath(uri.removeprefix("file://") or "."))  # noqa: PTH100
    from spark_lance.table.format.bases import _is_near

    if _is_near(location, home):
        assert real == "/lake/db" or real.startswith("/lake/db/")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A folder of tables, and one elsewhere that holds a secret and a table."""
    (tmp_path / "lake").mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "id_rsa").write_bytes(b"private")
    spark_lance.write_dataset(ROWS, tmp_path / "home" / "t")
    return tmp_path / "lake"


USES: dict[str, Callable[[Any, Path], object]] = {
    "read": lambda t, _: t.to_table(),
    "filter": lambda t, _: t.to_table(filter="id = 3"),
    "take": lambda t, _: t.take([1]),
    "deep clone": lambda t, out: t.deep_clone(out),
    "compact": lambda t, _: t.optimize.compact_files(target_rows_per_fragment=100),
    "delete": lambda t, _: t.delete("id = 3"),
    "update": lambda t, _: t.update({"id": "id + 1"}),
    "add columns": lambda t, _: t.add_columns({"c": "id"}),
    "index": lambda t, _: t.create_scalar_index("id", "BTREE"),
    "branch": lambda t, _: t.create_branch("dev").to_table(),
    "clone": lambda t, out: t.shallow_clone(out).to_table(),
}


@pytest.mark.parametrize("base", ["absolute", "file:", "dots", "link", "relative"])
def test_a_table_that_refers_to_files_elsewhere(
    lake: Path, forge: Forge, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = lake.parent / "home" / "t"
    spark_lance.write_dataset(ROWS, lake / "t", max_rows_per_file=3)
    (lake / "link").symlink_to(elsewhere)
    (lake.parent / "cwd").mkdir()
    monkeypatch.chdir(lake.parent / "cwd")
    text = {
        "absolute": str(elsewhere),
        "file:": elsewhere.as_uri(),
        "dots": f"{lake}/t/../../home/t",
        "link": str(lake / "link"),
        "relative": "../home/t",
    }[base]
    (file,) = spark_lance.dataset(elsewhere).manifest.fragments[0].files

    def edit(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=text, is_dataset_root=True)
        message.reader_feature_flags |= 16
        message.writer_feature_flags |= 16
        entry = message.fragments[0].files[0]
        entry.CopyFrom(file)
        entry.base_id = 1
        message.fragments[0].physical_rows = 6

    forge(lake / "t", edit)
    whole = lake / "whole"
    shutil.copytree(lake / "t", whole)
    for do in USES.values():
        with pytest.raises(
            BaseNotAllowedError, match=r"^base path 1 of .* list it in the option allowed_bases"
        ):
            do(spark_lance.dataset(lake / "t"), lake / "out")
        shutil.rmtree(lake / "out", ignore_errors=True)
    for listed in (str(elsewhere), elsewhere.as_uri(), str(lake.parent), "/"):
        links = [str(lake / "link")] if base == "link" else []
        allowed = [listed, *links]
        if base == "link" and listed != "/" and listed != str(lake.parent):
            allowed = links  # the name of the link is what the table says
        table = spark_lance.dataset(lake / "t", allowed_bases=allowed)
        assert table.count_rows() == 9
        assert sorted(table.to_table()["id"].to_pylist()) == [0, 1, 2, 3, 3, 4, 4, 5, 5]
    for name, do in USES.items():
        shutil.rmtree(lake / "t")
        shutil.copytree(whole, lake / "t")
        do(spark_lance.dataset(lake / "t", storage_options={"allowed_bases": "/"}), lake / f"out {name}")


def test_deletion_files_and_indices_elsewhere(lake: Path, forge: Forge) -> None:
    spark_lance.write_dataset(ROWS, lake / "t").delete("id = 2")

    def edit(message: table_pb2.Manifest) -> None:
        message.base_paths.add(id=1, path=str(lake.parent / "home" / "t"), is_dataset_root=True)
        message.reader_feature_flags |= 16
        message.fragments[0].deletion_file.base_id = 1

    forge(lake / "t", edit)
    with pytest.raises(BaseNotAllowedError, match="base path 1"):
        spark_lance.dataset(lake / "t").to_table()
    bases = Bases(TableRef(*open_store(lake / "t")), (BasePath(1, True, "/etc"),))
    entry = table_pb2.IndexMetadata(uuid=table_pb2.UUID(uuid=bytes(16)), base_id=1)
    with pytest.raises(BaseNotAllowedError, match="base path 1"):
        bases.index_dir(entry)


def with_blobs(path: Path, values: list[Any], **options: Any) -> str:
    data = pa.table(
        [pa.array(range(len(values))), lance.blob_array(values)],
        pa.schema([pa.field("id", pa.int64()), lance.blob_field("b")]),
    )
    lance.write_dataset(data, str(path), data_storage_version="2.2", **options)
    return str(path)


def test_external_blobs_elsewhere(lake: Path) -> None:
    secret = (lake.parent / "home" / "id_rsa").as_uri()
    (lake / "near.bin").write_bytes(b"near")
    near = (lake / "near.bin").as_uri()
    path = with_blobs(lake / "t", [b"inside", near, secret], allow_external_blob_outside_bases=True)
    table = spark_lance.dataset(path)
    assert [blob and blob.read() for blob in table.take_blobs("b", [0, 1])] == [b"inside", b"near"]
    for use in (
        lambda: table.take_blobs("b", [2]),
        lambda: table.to_table(blob_handling="all_binary"),
    ):
        with pytest.raises(
            BaseNotAllowedError, match=r"^an external blob of .*id_rsa.* option allowed_bases"
        ):
            use()
    allowed = spark_lance.dataset(path, allowed_bases=[lake.parent / "home"])
    assert [blob and blob.read() for blob in allowed.take_blobs("b", [2])] == [b"private"]
    # Descriptions, sizes and copies that keep the location need no bytes.
    assert table.to_table().num_rows == 3
    assert table.optimize.compact_files() is not None
    with pytest.raises(BaseNotAllowedError):
        spark_lance.dataset(path).take_blobs("b", [2])


def test_blobs_of_the_disk_and_of_web_servers_in_remote_tables(lake: Path) -> None:
    secret = (lake.parent / "home" / "id_rsa").as_uri()
    path = with_blobs(lake / "t", [secret], allow_external_blob_outside_bases=True)
    fsspec.filesystem("memory").put(path, "/remote/t", recursive=True)
    for place in ("memory://remote/t", path):
        table = spark_lance.dataset(place)
        with pytest.raises(BaseNotAllowedError, match=r"file://.*allowed_bases=file://"):
            table.take_blobs("b", [0])
        for uri in ("http://169.254.169.254/latest", "https://user:secret@example.invalid/x?sig=secret"):
            with pytest.raises(BaseNotAllowedError, match=r"allowed_bases=https?://") as raised:
                table.snapshot.bases.outside(uri)
            assert "secret" not in str(raised.value)


def test_rows_that_claim_to_be_blobs_elsewhere(lake: Path) -> None:
    """Any struct of this form is copied as a blob: what it names is a claim."""
    mine = spark_lance.write_dataset(ROWS, lake / "mine")
    (file,) = mine.manifest.fragments[0].files
    secret = (lake.parent / "home" / "id_rsa").as_uri()
    for source, uri in (
        (None, secret),
        (str(lake / "mine" / "data" / file.path), secret),
        (str(lake / "mine" / "data" / file.path), "http://169.254.169.254/latest"),
        (str(lake.parent / "home"), "id_rsa"),
        ("/etc", "hosts"),
    ):
        value = {"kind": 3, "position": 0, "size": 0, "blob_id": 0, "blob_uri": uri, "blob_source": source}
        rows = pa.table({"b": pa.array([value], REFERENCE)})
        with pytest.raises(BaseNotAllowedError, match=r"the external blob of .* allowed_bases="):
            spark_lance.write_dataset(rows, lake / "copy", data_storage_version="2.1")
        with pytest.raises((BaseNotAllowedError, BlobSourceError)):
            BlobSources(LocalStore()).read(rows["b"].combine_chunks())
    inline = {"kind": 0, "position": 0, "size": 1, "blob_source": "http://169.254.169.254/x.lance"}
    with pytest.raises(BaseNotAllowedError, match=r"the data file of .* allowed_bases="):
        spark_lance.write_dataset(pa.table({"b": pa.array([inline], REFERENCE)}), lake / "copy")
    assert not list((lake / "copy").rglob("*.lance"))


def test_clones_of_tables_nearby_need_no_option(lake: Path) -> None:
    source = spark_lance.write_dataset(ROWS, lake / "t")
    source.create_branch("dev")
    source.shallow_clone(lake / "ours")
    lance.dataset(str(lake / "t")).shallow_clone(str(lake / "theirs"), 1)
    source.shallow_clone(lake / "deep" / "er")
    spark_lance.dataset(lake / "ours").create_branch("dev")
    for place in ("ours", "theirs", "t/tree/dev", "ours/tree/dev"):
        assert spark_lance.dataset(lake / place).to_table() == ROWS
    assert spark_lance.dataset(lake / "ours").checkout_version(("dev", None)).to_table() == ROWS


def test_a_clone_of_a_table_elsewhere(lake: Path, tmp_path: Path) -> None:
    source = spark_lance.write_dataset(ROWS, lake / "t")
    clone = source.shallow_clone(tmp_path / "far" / "clone")
    # Who makes it has opened both; later readers say that they trust the source.
    assert clone.to_table() == ROWS
    assert clone.delete("id = 3").count_rows() == 5
    with pytest.raises(BaseNotAllowedError, match=re.escape(f"allowed_bases={lake / 't'}")):
        spark_lance.dataset(tmp_path / "far" / "clone").to_table()
    again = spark_lance.dataset(tmp_path / "far" / "clone", allowed_bases=[lake / "t"])
    assert again.count_rows() == 5
    assert spark_lance.dataset(tmp_path / "far" / "clone", allowed_bases=str(lake)).count_rows() == 5


def test_base_paths_that_the_writer_names(lake: Path, tmp_path: Path) -> None:
    disk = DatasetBasePath(str(tmp_path / "far" / "disk"), "disk")
    table = spark_lance.write_dataset(ROWS, lake / "t", initial_bases=[disk], target_bases=["disk"])
    assert table.to_table() == ROWS
    assert table.insert(ROWS, target_bases=["disk"]).count_rows() == 12
    with pytest.raises(BaseNotAllowedError, match=r"base path 1 \(disk\)"):
        spark_lance.dataset(lake / "t").to_table()
    with pytest.raises(BaseNotAllowedError):
        spark_lance.write_dataset(ROWS, lake / "t", "append", target_bases=["disk"])
    allowed = {"allowed_bases": [str(tmp_path / "far")]}
    spark_lance.write_dataset(ROWS, lake / "t", "append", target_bases=["disk"], **allowed)  # type: ignore[arg-type]
    more = spark_lance.dataset(lake / "t", **allowed).add_bases([DatasetBasePath("memory://pool", "pool")])  # type: ignore[arg-type]
    assert more.insert(ROWS, target_bases=["pool"]).count_rows() == 24


def test_options_of_a_source_stay_in_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    source = spark_lance.write_dataset(ROWS, "memory://options/t")
    seen: list[Any] = []
    real = open_store

    def record(uri: Any, options: Any = None, *more: Any) -> Any:
        seen.append(options)
        return real(uri, None, *more)

    monkeypatch.setattr("spark_lance.datasets.versions.open_store", record)
    opened = spark_lance.dataset("memory://options/t")
    object.__setattr__(opened.store, "options", {"token": "t"})
    clone_target(opened, "memory://options/clone", None)
    assert seen.pop() == {"token": "t"}
    clone_target(opened, "/elsewhere", None)
    assert seen.pop() is None
    clone_target(opened, "/elsewhere", {"own": 1})
    assert seen.pop() == {"own": 1}
    assert source.to_table() == ROWS
