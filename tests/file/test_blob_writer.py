"""Blob columns that we write: where the bytes go, what pylance reads, what is left after a failure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance.blob import Blob, blob_array, blob_field

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.file.blob_references import Sidecars, sidecar_folder, sidecar_path
from spark_lance.file.blob_writer import BlobWriter
from spark_lance.io.local import LocalStore
from spark_lance.io.memory import MemoryStore
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.writing.write import delete_fragment_files, write_fragments
from tests.table.reading.test_blobs import DATA, FIELD, VERSIONS, check
from tests.wrapped_store import WrappedStore

STORAGE = blob_field("b").type.storage_type
BLOBS = pa.array(DATA, pa.large_binary())


def table_of(array: pa.Array, field: pa.Field = FIELD) -> pa.Table:
    return pa.table([pa.array(range(len(array))), array], schema=pa.schema([("id", pa.int64()), field]))


def write(path: Path, array: pa.Array, version: str, field: pa.Field = FIELD, **options: Any) -> str:
    spark_lance.write_dataset(table_of(array, field), path, data_storage_version=version, **options)
    return str(path)


def contents(path: str, column: str = "b") -> list[bytes | None]:
    ours = spark_lance.dataset(path)
    return [
        None if blob is None else blob.read() for blob in ours.take_blobs(column, range(ours.count_rows()))
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_pylance_reads_what_we_write(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "t", BLOBS, version)
    check(path)
    assert contents(path) == DATA
    theirs = lance.dataset(path)
    assert theirs.to_table(["id"], filter="id > 3").num_rows == 4
    assert theirs.take([6, 1], columns=["b"]).column("b").null_count == (0 if version == "2.0" else 1)
    check(write(tmp_path / "files", BLOBS, version, max_rows_per_file=3))
    check(write(tmp_path / "slice", BLOBS.slice(1, 5), version))
    nothing = pa.nulls(5, pa.large_binary())
    check(write(tmp_path / "nulls", nothing, version))
    full = pa.array([b"a", b"", b"ccc"], pa.large_binary())
    check(write(tmp_path / "required", full, version, FIELD.with_nullable(False)))
    short = pa.array(DATA, pa.binary())
    check(write(tmp_path / "short", short, version, FIELD.with_type(pa.binary())))
    many = pa.array([None if i % 7 == 0 else b"%d" % i * (i % 5) for i in range(1500)], pa.large_binary())
    check(write(tmp_path / "many", many, version))


@pytest.mark.parametrize("version", VERSIONS)
def test_taking_turns_on_one_table(tmp_path: Path, version: Any) -> None:
    table = table_of(BLOBS)
    lance.write_dataset(table, tmp_path / "a", data_storage_version=version)
    spark_lance.write_dataset(table, tmp_path / "a", "append")
    spark_lance.write_dataset(table, tmp_path / "b", data_storage_version=version)
    lance.write_dataset(table, tmp_path / "b", mode="append")
    for name in ("a", "b"):
        check(str(tmp_path / name))
        assert contents(str(tmp_path / name)) == DATA + DATA
    schemas = [lance.dataset(tmp_path / name).schema for name in ("a", "b")]
    assert schemas[0].equals(schemas[1], check_metadata=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_blobs_in_structs_and_lists(tmp_path: Path, version: str) -> None:
    values = pa.array([b"a", None, b"", b"dd"], pa.large_binary())
    fields = [FIELD, pa.field("i", pa.int64(), nullable=False)]
    mask = None if version == "2.0" else pa.array([False, False, False, True])
    structs = pa.StructArray.from_arrays([values, pa.array([1, 2, 3, 4])], fields=fields, mask=mask)
    path = write(tmp_path / "s", structs, version, pa.field("s", structs.type))
    check(path, "s.b")
    assert contents(path, "s.b")[:3] == [b"a", None, b""]
    for kind, make in ((pa.list_(FIELD), pa.ListArray), (pa.large_list(FIELD), pa.LargeListArray)):
        lists = make.from_arrays(pa.array([0, 2, None, 2, 4]), values, type=kind)
        field = pa.field("l", kind)
        if version == "2.1":
            # pylance's own reader panics.
            with pytest.raises(SchemaError, match=r"'l\..*' blobs in lists|'l\..*: blobs in lists"):
                write(tmp_path / str(kind), lists, version, field)
        else:
            path = write(tmp_path / str(kind), lists, version, field)
            check(path, listed=True)
            lance.write_dataset(table_of(lists, field), path, mode="append")
            spark_lance.write_dataset(table_of(lists, field), path, "append")
            check(path, listed=True)
            check(write(tmp_path / f"{kind} cut", lists.slice(1), version, field), listed=True)


def test_lists_of_blobs_as_pylance_has_them(tmp_path: Path) -> None:
    blobs = blob_array([b"a", None, b"", b"dd"])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 4], pa.int32()), blobs)
    path = write(tmp_path / "t", lists, "2.2", pa.field("l", lists.type))
    lance.write_dataset(table_of(lists, pa.field("l", lists.type)), path, mode="append")
    check(path, listed=True)


@settings(max_examples=30)
@given(data=st.data(), version=st.sampled_from(VERSIONS))
def test_random_blobs(data: st.DataObject, version: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    limits = st.sampled_from([0, 10, 100, 1000])
    keys = {
        f"lance-encoding:blob-{key}-size-threshold": str(data.draw(limits))
        for key in ("inline", "dedicated", "pack-file")
    }
    sizes = data.draw(st.lists(st.none() | st.sampled_from([0, 1, 50, 300, 2000]), min_size=1, max_size=30))
    rng = np.random.default_rng(len(sizes))
    values = [None if size is None else rng.bytes(size) for size in sizes]
    field = FIELD.with_metadata({**FIELD.metadata, **keys})
    path = write(tmp_path_factory.mktemp("b") / "t", pa.array(values, pa.large_binary()), version, field)
    assert contents(path) == values
    check(path)


def places(path: str) -> list[tuple[int, int, int, int]]:
    rows = spark_lance.dataset(path).to_table().column("b").to_pylist()
    return [(each["kind"], each["position"], each["size"], each["blob_id"]) for each in rows]


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        ([0, 65535, 65536, 65537, 4 << 20, (4 << 20) - 1, (4 << 20) + 1, 100_000], {}),
        (
            [99, 100, 101, 999, 1000, 1001, 500, 600, 700],
            {
                "inline_size_threshold": 100,
                "dedicated_size_threshold": 1000,
                "pack_file_size_threshold": 1200,
            },
        ),
        ([10, 100, 0, 1], {"inline_size_threshold": 0}),
    ],
)
def test_places_are_those_that_pylance_chooses(
    tmp_path: Path, sizes: list[int], limits: dict[str, Any]
) -> None:
    array, field = blob_array([b"x" * size for size in sizes]), blob_field("b", **limits)
    ours = write(tmp_path / "ours", array, "2.2", field)
    theirs = str(tmp_path / "theirs")
    lance.write_dataset(table_of(array, field), theirs, data_storage_version="2.2")
    # Ids differ where several sidecars are open; so do positions in the data file.
    assert [(kind, size) for kind, _, size, _ in places(ours)] == [
        (kind, size) for kind, _, size, _ in places(theirs)
    ]
    packed = [[each[1] for each in places(path) if each[0] == 1] for path in (ours, theirs)]
    assert packed[0] == packed[1]
    counts = [len(list(Path(path).rglob("*.blob"))) for path in (ours, theirs)]
    assert counts[0] == counts[1]
    schemas = [lance.dataset(path).schema for path in (ours, theirs)]
    assert schemas[0].equals(schemas[1], check_metadata=True)


def test_external_objects(tmp_path: Path) -> None:
    target = tmp_path / "object.bin"
    target.write_bytes(b"0123456789" * 10)
    uri = target.as_uri()
    blobs = blob_array([b"in", Blob.from_uri(uri), Blob.from_uri(uri, 5, 7), None])
    path = write(tmp_path / "t", blobs, "2.2", blob_field("b"))
    check(path)
    assert contents(path) == [b"in", b"0123456789" * 10, b"5678901", None]


@pytest.mark.parametrize(
    ("version", "field", "value", "message"),
    [
        ("2.1", blob_field("b"), blob_array([b"x"]), "version 2.2 has blobs that are structs"),
        ("2.2", FIELD.with_type(pa.struct([("data", pa.large_binary())])), pa.array([{}]), "struct<data"),
        ("2.2", blob_field("b"), pa.array([{"data": None, "uri": None}], STORAGE), "either"),
        ("2.2", blob_field("b"), pa.array([{"data": b"", "uri": "x"}], STORAGE), "either"),
        (
            "2.2",
            FIELD.with_metadata({**FIELD.metadata, "lance-encoding:blob-inline-size-threshold": "1k"}),
            pa.array([b""], pa.large_binary()),
            "'1k'",
        ),
        (
            "2.2",
            pa.field("m", pa.map_(pa.string(), FIELD.with_name("value"))),
            pa.array([[("a", b"x")]], pa.map_(pa.string(), pa.large_binary())),
            "in maps",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, version: str, field: pa.Field, value: pa.Array, message: str
) -> None:
    storage = value.storage if isinstance(value, pa.ExtensionArray) else value
    if isinstance(field.type, pa.BaseExtensionType):
        value = pa.ExtensionArray.from_storage(field.type, storage)
    elif value.type != field.type:
        value = value.cast(field.type)
    with pytest.raises(SchemaError, match=message):
        write(tmp_path / "t", value, version, field)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


class Failing(WrappedStore):
    """A store that fails when the object number `at` is begun."""

    def create(self, path: str) -> Any:
        object.__setattr__(self, "begun", getattr(self, "begun", 0) + 1)
        if self.begun == self.at:  # type: ignore[attr-defined]
            raise OSError("no more room")
        return super().create(path)


@pytest.mark.parametrize("at", range(1, 8))
def test_nothing_stays_after_a_failure(tmp_path: Path, at: int) -> None:
    field = blob_field(
        "b", inline_size_threshold=1, dedicated_size_threshold=100, pack_file_size_threshold=150
    )
    table = table_of(blob_array([b"x" * size for size in (1, 60, 100, 101, 90, 200)]), field)
    store = Failing.around(LocalStore())
    object.__setattr__(store, "at", at)
    with pytest.raises(OSError, match="no more room"):
        write_fragments(
            table.to_batches() * 2,
            TableRef(store, str(tmp_path)),
            Schema.from_arrow(table.schema),
            max_rows_per_file=6,
        )
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_uncommitted_files_go_with_their_sidecars(tmp_path: Path) -> None:
    field = blob_field("b", inline_size_threshold=1)
    table = table_of(blob_array([b"xx"]), field)
    store = LocalStore()
    fragments = write_fragments(
        table.to_batches(), TableRef(store, str(tmp_path)), Schema.from_arrow(table.schema)
    )
    assert len([each for each in tmp_path.rglob("*") if each.is_file()]) == 2
    delete_fragment_files(TableRef(store, str(tmp_path)), fragments)
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_one_blob_larger_than_a_pack_file_has_it_to_itself() -> None:
    store = MemoryStore()
    field = Schema.from_arrow(
        pa.schema([blob_field("b", inline_size_threshold=0, pack_file_size_threshold=5)])
    )
    sidecars = Sidecars(store, "/pack/x.lance")
    writer = BlobWriter(field.fields[0], sidecars, lambda data: 0)
    array = blob_array([b"a", b"b" * 9, b"cc", b"ddd", b"e"]).storage
    described = writer.describe(array)
    sidecars.finish_all()
    assert described.field("blob_id").to_pylist() == [1, 2, 3, 3, 4]
    assert described.field("position").to_pylist() == [0, 0, 0, 2, 0]
    assert [store.read(sidecar_path("/pack/x.lance", number)) for number in (1, 2, 3, 4)] == [
        b"a", b"b" * 9, b"ccddd", b"e",
    ]  # fmt: skip
    assert len(store.list(sidecar_folder("/pack/x.lance"))) == 4
