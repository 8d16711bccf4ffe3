"""Tables that name files outside of themselves: each name that a file holds is refused where it is read."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spark_lance
from spark_lance.datasets.operations import LanceOperation
from spark_lance.errors import FormatError
from spark_lance.io.store import open_store
from spark_lance.io.stored_names import check_key, check_message, check_name, check_path, check_uri
from spark_lance.memwal.names import ShardPaths
from spark_lance.memwal.shard_manifest import change_shard, load_shard
from spark_lance.proto import table_pb2, transaction_pb2
from spark_lance.proto.index_pb2 import ShardManifest
from spark_lance.table.columns.job_records import FragmentResult, JobRecords
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.manifest import pack_manifest, read_manifest
from spark_lance.table.format.paths import ManifestNaming
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import Transaction

HOSTILE = (
    "../../victim/x",
    "a/../../victim/x",
    "..",
    ".",
    "",
    "/victim/x",
    "a//b",
    "a/",
    "a\0b",
    "a\\..\\b",
    "file:///victim/x",
    "s3://bucket/x",
    "C:x",
    "zip::x",
    "%2e%2e/victim/x",
    "a\nb",
)
LEGAL = (
    "0110ab.lance",
    "sub/0110ab.lance",
    "a..b.lance",
    "Größe 1.lance",
    "2026-01-01T00:00:00.lance",
    "..a",
)


def test_names_of_each_kind() -> None:
    for name in HOSTILE:
        with pytest.raises(FormatError, match=r"data file path .* is not allowed: .*m.manifest"):
            check_path(name, "data file path", "m.manifest")
    for name in LEGAL:
        assert check_path(name, "data file path") == name
        with pytest.raises(FormatError) if "/" in name else nullcontext():
            check_name(name, "transaction file")


def test_keys_of_other_objects_may_be_odd_but_stay_below_their_base() -> None:
    for key in ("a//b", "img:1.bin", "a..b", "a/"):
        assert check_key(key, "external blob") == key
    for key in ("../x", "a/../x", "/x", "a\0", "%2e%2e/x", ".", ""):
        with pytest.raises(FormatError):
            check_key(key, "external blob")


def test_locations() -> None:
    for uri in (
        "/lake/t",
        "../t",
        "t",
        "file:///a/../b",
        "s3://b/t",
        "C:\\lake\\t",
        "memory://x",
        "https://h/x?a=::",
    ):
        assert check_uri(uri, "base path") == uri
    for uri in ("", " ", "s3://b/../c", "http://h/%2e%2e/c", "zip::s3://b/c", "a\0b", "simplecache::/x"):
        with pytest.raises(FormatError, match="base path"):
            check_uri(uri, "base path")


@settings(max_examples=400)
@given(st.text(alphabet=st.sampled_from("ab./\\:%2e\0 é") | st.characters(), max_size=12))
def test_no_path_that_is_taken_leads_out(text: str) -> None:
    try:
        check_path(text, "data file path")
    except FormatError:
        return
    whole = Path("/root/data") / text
    assert Path("/root/data") in whole.parents
    assert ".." not in whole.parts


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with deletions, an index, blobs in sidecars, a tag, a branch, and a folder beside it."""
    folder = tmp_path_factory.mktemp("names")
    blobs = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = pa.table(
        {"id": pa.array(range(20)), "b": pa.array([b"x" * 70_000] * 20, pa.large_binary())},
        pa.schema([pa.field("id", pa.int64()), blobs]),
    )
    table = spark_lance.write_dataset(data, folder / "t", max_rows_per_file=10)
    table = table.delete("id = 3")
    table.create_scalar_index("id", "BTREE")
    table = spark_lance.dataset(folder / "t")
    table.tags.create("v")
    table.create_branch("dev")
    (folder / "victim").mkdir()
    (folder / "victim" / "x").write_bytes(b"precious")
    return folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "lake")
    return tmp_path / "lake"


def newest(table: Path) -> Path:
    return min((table / "_versions").glob("*.manifest"))


def mutate(table: Path, edit: Callable[[table_pb2.Manifest, Any, Any], None]) -> None:
    """Write the newest manifest of a table again after an edit of its message, indices and transaction."""
    store, path = open_store(newest(table))
    manifest = read_manifest(store, path, ManifestNaming.V2)
    section = table_pb2.IndexSection.FromString(manifest.index_section)
    transaction = transaction_pb2.Transaction.FromString(manifest.inline_transaction or b"")
    message = table_pb2.Manifest()
    message.CopyFrom(manifest.message)
    edit(message, section, transaction)
    Path(path).write_bytes(
        pack_manifest(message, section.SerializeToString(), transaction.SerializeToString())
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def _set(target: Any, field: str, value: Any) -> None:
    setattr(target, field, value)


def _overlay(message: Any, name: str) -> None:
    message.fragments[0].overlays.add().data_file.path = name


PLACES: dict[str, Callable[[Any, Any, str], None]] = {
    "data file path": lambda m, s, name: _set(m.fragments[1].files[0], "path", name),
    "data file path of an overlay": lambda m, s, name: _overlay(m, name),
    "transaction file": lambda m, s, name: _set(m, "transaction_file", name),
    "branch": lambda m, s, name: _set(m, "branch", name),
    "index file path": lambda m, s, name: _set(s.indices[0].files[0], "path", name),
}
USES: dict[str, Callable[[Any, Path], object]] = {
    "read": lambda t, _: t.to_table(filter="id = 15"),
    "take": lambda t, _: t.take([15]),
    "blobs": lambda t, _: [blob.read() for blob in t.take_blobs("b", [15])],
    "deep clone": lambda t, out: t.deep_clone(out),
    "shallow clone": lambda t, out: t.shallow_clone(out).to_table(filter="id = 15"),
    "branch": lambda t, _: t.create_branch("other").to_table(filter="id = 15"),
    "delete": lambda t, _: t.delete("id = 15"),
    "compact": lambda t, _: t.optimize.compact_files(),
    "clean up": lambda t, _: t.cleanup_old_versions(timedelta(0), delete_unverified=True),
    "add columns": lambda t, _: t.add_columns({"c": "id + 1"}),
}


@pytest.mark.parametrize("place", PLACES)
def test_names_in_manifests(folder: Path, place: str) -> None:
    whole = newest(folder / "t").read_bytes()
    before = files_of(folder / "victim")
    for name in HOSTILE:
        if not name and not place.startswith(("data", "index")):
            continue  # an absent name
        newest(folder / "t").write_bytes(whole)
        mutate(folder / "t", lambda m, s, t, name=name: PLACES[place](m, s, name))  # type: ignore[misc]
        what = place.removesuffix(" of an overlay")
        for use, do in USES.items():
            if place.startswith("index") and use not in ("read", "deep clone", "shallow clone", "branch"):
                continue  # the others do not read the index section
            where = rf"(?s)^{what} .* is not allowed: .*{newest(folder / 't').name}"
            with pytest.raises(FormatError, match=where):
                do(spark_lance.dataset(folder / "t"), folder / "out")
            assert not (folder / "out" / "_versions").exists()
    assert files_of(folder / "victim") == before
    assert not (folder / "victim" / "x.lance").exists()


def test_a_damaged_index_uuid_has_an_error_of_its_own(folder: Path) -> None:
    for value in (b"", b"x" * 15, b"../../../victim/x"):
        whole = newest(folder / "t").read_bytes()
        mutate(folder / "t", lambda m, s, t, value=value: _set(s.indices[0].uuid, "uuid", value))  # type: ignore[misc]
        with pytest.raises(FormatError, match=r"index UUID has .* bytes"):
            spark_lance.dataset(folder / "t").deep_clone(folder / "out")
        newest(folder / "t").write_bytes(whole)
    with pytest.raises(FormatError, match="index UUID"):
        Bases(TableRef(*open_store(folder / "t"))).index_dir(table_pb2.IndexMetadata(name="i"))


def test_names_of_tables_of_other_writers_are_refused_before_they_are_committed(folder: Path) -> None:
    table = spark_lance.dataset(folder / "t")
    (fragment, *_) = [f.metadata for f in table.get_fragments()]
    fragment.files[0].path = "../../victim/x"
    with pytest.raises(FormatError, match=r"data file path '../../victim/x' is not allowed"):
        spark_lance.LanceDataset.commit(table, LanceOperation.Append([fragment]), table.version)
    assert spark_lance.dataset(folder / "t").version == table.version


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_transactions(folder: Path, name: str) -> None:
    operation = transaction_pb2.Transaction.Append()
    operation.fragments.add().files.add(path=name)
    with pytest.raises(FormatError, match="data file path"):
        Transaction.new(operation, 1)
    message = transaction_pb2.Transaction(append=operation)
    with pytest.raises(FormatError, match="data file path"):
        Transaction.parse(message.SerializeToString())
    if name:
        message = transaction_pb2.Transaction(uuid=name)
        with pytest.raises(FormatError, match="transaction UUID"):
            Transaction.parse(message.SerializeToString())
    # The inline copy is hostile, and so is the file: there is no record.
    table = spark_lance.dataset(folder / "t")
    mutate(folder / "t", lambda m, s, t: t.CopyFrom(message))
    (folder / "t" / "_transactions" / table.manifest.transaction_file).write_bytes(
        message.SerializeToString()
    )
    table = spark_lance.dataset(folder / "t")
    with pytest.raises(FormatError, match="is not allowed"):
        table.read_transaction(table.version)


def test_every_message_that_names_a_file_is_checked_by_its_descriptor() -> None:
    """A field of a format that is called path, or holds a UUID of an index, has a check or is named here."""
    from spark_lance.io.stored_names import _FIELDS
    from spark_lance.proto import index_pb2

    others = {
        "spark_lance.index.JsonIndexDetails.path",  # inside a document
    }

    def fields(descriptor: Any) -> Iterator[str]:
        yield from (field.full_name for field in descriptor.fields)
        for nested in descriptor.nested_types:
            yield from fields(nested)

    for module in (table_pb2, transaction_pb2, index_pb2):
        for message in module.DESCRIPTOR.message_types_by_name.values():
            for name in fields(message):
                if name.endswith(("path", "transaction_file", "branch_name", ".branch")):
                    assert name in _FIELDS or name in others, name


@pytest.mark.parametrize("name", [name for name in HOSTILE if name])
def test_names_in_tags_and_branches(folder: Path, name: str) -> None:
    tag = folder / "t" / "_refs" / "tags" / "v.json"
    branch = folder / "t" / "_refs" / "branches" / "dev.json"
    tag.write_text(json.dumps({**json.loads(tag.read_text()), "branch": name}))
    table = spark_lance.dataset(folder / "t")
    for use in (lambda: table.checkout_version("v"), table.tags.list):
        with pytest.raises(FormatError, match=r"(?s)a tag's branch .*v\.json"):
            use()
    tag.unlink()
    branch.write_text(json.dumps({**json.loads(branch.read_text()), "parentBranch": name}))
    for use in (lambda: table.checkout_version(("dev", None)), table.branches.list):
        with pytest.raises(FormatError, match=r"(?s)a branch's parentBranch .*dev\.json"):
            use()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_records_of_column_jobs(folder: Path, name: str) -> None:
    table = TableRef(*open_store(folder / "t"))
    records = JobRecords(table, "job", "a request")
    file = table_pb2.DataFile(path="0abc.lance").SerializeToString()
    records.add(FragmentResult(0, b"", b"", {0: "0abc.lance"}, (7,), file))
    (path,) = Path(records.folder).iterdir()
    good = json.loads(path.read_text())
    bad = table_pb2.DataFile(path=name).SerializeToString()
    for change in ({"file": base64.b64encode(bad).decode()}, {"homes": {"0": name}}, {"file": "AAAA"}):
        path.write_text(json.dumps({**good, **change}))
        with pytest.raises(FormatError, match=r"(?s)record of a job .*job/0-0abc\.json"):
            records.load()


@pytest.mark.parametrize("name", HOSTILE)
def test_names_in_manifests_of_shards(folder: Path, name: str) -> None:
    store, root = open_store(folder / "t")
    paths = ShardPaths(TableRef(store, root), UUID(int=7))
    message = ShardManifest(version=1, current_generation=1)
    message.shard_id.uuid = paths.shard.bytes
    message.sstables.add(generation=1, path=name)
    Path(paths.manifests).mkdir(parents=True)
    Path(paths.manifest(1)).write_bytes(message.SerializeToString())
    with pytest.raises(FormatError, match=r"(?s)SSTable path .*binpb"):
        load_shard(paths)
    with pytest.raises(FormatError, match=r"(?s)SSTable path .*binpb"):
        change_shard(paths, lambda _: True)


def test_the_file_of_a_reuse_history() -> None:
    for name in HOSTILE:
        details = table_pb2.FragmentReuseIndexDetails()
        details.external.path = name
        with pytest.raises(FormatError, match="fragment reuse file"):
            check_message(details)
