"""Changing columns, case by case: alignment, what is read, refusals, keys, casts, other writers."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_lance
from spark_lance.errors import (
    ExpressionError,
    IncompatibleConflictError,
    OptionError,
    RetryableConflictError,
    SchemaError,
    UnsupportedFormatError,
)
from spark_lance.io.retry import RetryPolicy
from spark_lance.io.store import open_store
from spark_lance.proto import table_pb2
from spark_lance.table.columns import alter, evolve
from spark_lance.table.columns import update_in_place as column_updates
from spark_lance.table.columns.alter import alter_columns
from spark_lance.table.columns.evolve import add_columns
from spark_lance.table.columns.new_columns import Stream, batch_udf, expressions
from spark_lance.table.commits.commit import commit_operation
from spark_lance.table.format.bases import Bases
from spark_lance.table.format.features import FIELD_ID_MARK
from spark_lance.table.format.table_ref import TableRef
from spark_lance.table.format.transaction import read_transaction
from spark_lance.table.reading import fragment
from spark_lance.table.schema.changes import Alteration
from spark_lance.table.schema.keys import primary_key
from spark_lance.table.versions.versions import load_latest
from spark_lance.table.writing.column_files import fill_deleted

VERSIONS = pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
KEY = "lance-schema:unenforced-primary-key"
CLUSTER = "lance-schema:unenforced-clustering-key"


def rows(count: int = 20) -> pa.Table:
    return pa.table(
        {
            "a": pa.array(range(count), pa.int64()),
            "t": [f"text {i}" for i in range(count)],
            "s": [{"x": i, "y": str(i)} for i in range(count)],
        }
    )


def write(path: Path, data: pa.Table | None = None, **options: Any) -> Path:
    lance.write_dataset(rows() if data is None else data, path, max_rows_per_file=5, **options)
    return path


def same_for_both(path: Path) -> pa.Table:
    """Return the rows, which are the same for pylance and for us."""
    theirs: Any = lance.dataset(str(path))
    theirs.validate()
    table = theirs.to_table()
    ours = spark_lance.dataset(path).to_table()
    assert ours.schema == table.schema
    assert ours.to_pylist() == table.to_pylist()
    return table


def manifest(path: Path) -> Any:
    return load_latest(TableRef(*open_store(path)))


def keeps_nulls(dataset: spark_lance.LanceDataset) -> bool:
    transaction = read_transaction(dataset.table, dataset.manifest)
    return transaction.message.project.preserves_nullability


def field_ids(path: Path) -> dict[str, int]:
    return {field.name: field.id for field in manifest(path).message.fields}


def data_files(path: Path) -> set[str]:
    return {file.name for file in (path / "data").iterdir()}


def live_files(path: Path) -> set[str]:
    return {file.path for fragment in manifest(path).fragments for file in fragment.files}


@given(data=st.data())
def test_gaps_are_filled_where_rows_were_deleted(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 60))
    deleted = sorted(data.draw(st.sets(st.integers(0, total - 1), max_size=total)))
    live = [i for i in range(total) if i not in set(deleted)]
    schema = pa.schema([pa.field("i", pa.int32(), nullable=not live), pa.field("t", pa.string())])
    table = pa.table(
        [pa.array(live, pa.int32()), pa.array([str(i) for i in live], pa.string())], schema=schema
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(live)), max_size=3)))
    batches: list[pa.RecordBatch] = []
    for start, stop in zip([0, *cuts], [*cuts, len(live)], strict=True):
        batches += table.slice(start, stop - start).combine_chunks().to_batches()
    filled = pa.Table.from_batches(fill_deleted(batches, np.array(deleted, np.uint32), total, schema), schema)
    filled.validate(full=True)
    assert filled.num_rows == total
    assert filled.take(pa.array(live, pa.int64())) == table
    gaps = filled.take(pa.array(deleted, pa.int64()))
    assert gaps["t"].null_count == len(deleted)
    assert not live or not filled["i"].null_count


@VERSIONS
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_values_stay_with_their_rows_when_some_are_deleted(
    tmp_path: Path, version: str, stable: bool
) -> None:
    path = write(tmp_path / "t", data_storage_version=version, enable_stable_row_ids=stable)
    lance.dataset(str(path)).delete("a % 5 in (0, 3) or a between 10 and 13")
    dataset = spark_lance.dataset(path)

    def three(batch: pa.RecordBatch) -> pa.Table:
        numbers = np.asarray(batch["a"])
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, 3).astype(np.float32)), 3)
        return pa.table({"id": batch["_rowid"], "v": vectors, "w": [[str(n)] * (n % 4) for n in numbers]})

    dataset = dataset.add_columns({"b": "a * 10", "u": "upper(t)"})
    dataset = dataset.add_columns(three, ["a", "_rowid"], batch_size=2)
    count = dataset.count_rows()
    st_type = pa.struct([pa.field("n", pa.int32(), nullable=False)])
    values = pa.table({"n": pa.array([{"n": i} for i in range(count)], st_type)})
    dataset.add_columns(iter(values.to_batches(max_chunksize=3)), reader_schema=values.schema)
    for number, row in enumerate(same_for_both(path).to_pylist()):
        a = row["a"]
        assert row["b"] == a * 10
        assert row["u"] == f"TEXT {a}"
        assert row["v"] == [a] * 3
        assert row["w"] == [str(a)] * (a % 4)
        assert row["n"] == {"n": number}
    ids: Any = lance.dataset(str(path)).to_table(columns=["id", "_rowid"])
    assert ids["id"] == ids["_rowid"]
    assert all(fragment.physical_rows == 5 for fragment in manifest(path).fragments)


@VERSIONS
def test_only_what_is_needed_is_read_and_written(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = pa.array(["x" * 50_000] * 40)
    data = pa.table(
        {"a": pa.array(range(40)), "wide": wide, "s": [{"x": i, "y": "z" * 40_000} for i in range(40)]}
    )
    path = tmp_path / "t"
    options: dict[str, Any] = {"data_storage_version": version}
    lance.write_dataset(data, path, **options)
    spark_lance.dataset(path).add_columns({"b": "a + 1"})
    (old,) = manifest(path).fragments[0].files[:1]
    names = []
    original = fragment.FragmentReader.__init__

    def spy(self: Any, table: Any, message: Any, fields: Any, *rest: Any) -> None:
        names.append([leaf.name for field in fields for leaf in field.walk()])
        original(self, table, message, fields, *rest)

    monkeypatch.setattr(fragment.FragmentReader, "__init__", spy)
    spark_lance.dataset(path).add_columns({"c": "b + 1"})
    spark_lance.dataset(path).add_columns({"one": "1"})
    if version != "2.0":
        spark_lance.dataset(path).alter_columns({"path": "s.x", "data_type": pa.int16()})
    spark_lance.dataset(path).alter_columns({"path": "a", "nullable": False})
    assert names == [["b"], ["s", "x"], ["a"]] if version != "2.0" else [["b"], ["a"]]
    files = manifest(path).fragments[0].files
    assert files[0].path == old.path
    assert all(file.file_size_bytes < 4096 for file in files[1:])
    same_for_both(path)


def test_functions_of_all_kinds(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    schema = pa.schema([pa.field("given", pa.int32(), nullable=False)])
    seen: list[int] = []

    @batch_udf(schema)
    def given(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return pa.record_batch([batch["a"].cast(pa.int32())], schema=schema)

    dataset = spark_lance.dataset(path).add_columns(given, ["a"], batch_size=3)
    assert seen == [3, 2] * 4
    dataset = dataset.add_columns(
        lance.batch_udf(pa.schema({"theirs": pa.int64()}))(
            lambda batch: pa.record_batch({"theirs": batch["a"]})
        )
    )
    dataset = dataset.add_columns(lambda batch: batch.to_pandas()[["a"]].rename(columns={"a": "frame"}))
    dataset.add_columns(rows().select(["a"]).rename_columns(["table"]))
    table = same_for_both(path)
    assert not table.schema.field("given").nullable
    for name in ("given", "theirs", "frame", "table"):
        assert table[name].to_pylist() == list(range(20))
    empty = spark_lance.write_dataset(rows(0), tmp_path / "empty")
    empty = empty.add_columns(lambda batch: pa.record_batch({"e": batch["a"]})).add_columns({"f": "a + 1"})
    assert empty.add_columns(pa.table({"g": pa.array([], pa.int8())})).schema.names[3:] == ["e", "f", "g"]


def test_what_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    dataset = spark_lance.dataset(path)
    many = pa.table({"n": range(21)})
    struct = pa.struct([pa.field("x", pa.int64())])
    other = pa.struct([pa.field("x", pa.int32()), pa.field("new", pa.int32())])
    refused: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (SchemaError, "more values", lambda: dataset.add_columns(many)),
        (SchemaError, "ended before", lambda: dataset.add_columns(many.slice(0, 19))),
        (SchemaError, "exists", lambda: dataset.add_columns({"t": "a + 1"})),
        (SchemaError, "exists", lambda: dataset.add_columns(pa.field("a", pa.int64()))),
        (SchemaError, "exists", lambda: dataset.add_columns(pa.field("s", struct))),
        (SchemaError, "exists", lambda: dataset.add_columns(pa.field("s", other))),
        (
            SchemaError,
            "must not be null",
            lambda: dataset.add_columns(pa.field("n", pa.int8(), nullable=False)),
        ),
        (SchemaError, "reserved", lambda: dataset.add_columns(pa.field("_rowid", pa.int8()))),
        (SchemaError, "has a dot", lambda: dataset.add_columns({"x.y": "a"})),
        (ExpressionError, "nothing", lambda: dataset.add_columns({"n": "nothing + 1"})),
        (
            SchemaError,
            "came back",
            lambda: dataset.add_columns(lambda b: pa.record_batch({"n": b["a"][:1]}), ["a"]),
        ),
        (SchemaError, "return a record batch", lambda: dataset.add_columns(lambda b: b["a"], ["a"])),
        (OptionError, "schema", lambda: dataset.add_columns(iter([]))),
        (OptionError, "batch_size", lambda: dataset.add_columns({"n": "a"}, batch_size=0)),
        (SchemaError, "no column", lambda: dataset.drop_columns(["zz"])),
        (SchemaError, "no field", lambda: dataset.drop_columns(["s.zz"])),
        (SchemaError, "all its columns", lambda: dataset.drop_columns(["a", "t", "s.x", "s.y"])),
        (SchemaError, "twice", lambda: dataset.alter_columns({"path": "a", "name": "t"})),
        (SchemaError, "twice", lambda: dataset.alter_columns({"path": "s.x", "name": "y"})),
        (SchemaError, "dot", lambda: dataset.alter_columns({"path": "s.x", "name": "y.z"})),
        (SchemaError, "reserved", lambda: dataset.alter_columns({"path": "a", "name": "_rowid"})),
        (
            SchemaError,
            "cannot be cast",
            lambda: dataset.alter_columns({"path": "a", "data_type": pa.string()}),
        ),
        (SchemaError, "cannot be cast", lambda: dataset.alter_columns({"path": "s", "data_type": struct})),
        (
            SchemaError,
            "not both",
            lambda: dataset.alter_columns({"path": "a", "data_type": pa.int8(), "nullable": False}),
        ),
        (OptionError, "path", lambda: dataset.alter_columns({"path": "a"})),
        (OptionError, "typ", lambda: dataset.alter_columns({"path": "a", "typ": pa.int8()})),
        (SchemaError, "besides", lambda: dataset.merge(pa.table({"a": [1]}), "a")),
        (SchemaError, "int64", lambda: dataset.merge(pa.table({"a": ["x"], "n": [1]}), "a")),
        (SchemaError, "zz", lambda: dataset.merge(pa.table({"a": [1], "n": [1]}), "a", "zz")),
        (SchemaError, "zz", lambda: dataset.merge(pa.table({"a": [1], "n": [1]}), "zz", "a")),
        (SchemaError, "exists", lambda: dataset.merge(pa.table({"a": [1], "t": ["x"]}), "a")),
    ]
    files = data_files(path)
    for kind, message, call in refused:
        with pytest.raises(kind, match=message):
            call()
    assert manifest(path).version == 1
    assert data_files(path) == files
    for nothing in (dataset.add_columns({}), dataset.add_columns(pa.schema([])), dataset.alter_columns()):
        assert nothing.version == 1
    assert dataset.drop_columns([]).version == 1


@pytest.mark.parametrize(
    "kind",
    [
        pa.map_(pa.string(), pa.int32()),
        pa.struct([("m", pa.map_(pa.string(), pa.int32()))]),
        pa.list_(pa.struct([("z", pa.int32())]), 3),
    ],
)
def test_columns_that_the_files_cannot_store_are_refused_before_rows_are_written(
    tmp_path: Path, kind: pa.DataType
) -> None:
    old = spark_lance.write_dataset(pa.table({"id": [1]}), tmp_path / "old", data_storage_version="2.1")
    with pytest.raises(SchemaError, match=r"2\.1 has no .*; use version 2\.2"):
        old.add_columns(pa.schema([("n", kind)]))
    assert spark_lance.dataset(tmp_path / "old").version == 1
    new = spark_lance.write_dataset(pa.table({"id": [1]}), tmp_path / "new", data_storage_version="2.2")
    new.add_columns(pa.schema([("n", kind)])).insert(pa.table({"id": [2], "n": pa.array([None], kind)}))
    # By itself: pylance reads its own fixed-size lists of structs beside no other column.
    assert lance.dataset(tmp_path / "new").to_table(["n"])["n"].to_pylist() == [None, None]


@VERSIONS
def test_casts_inside_of_structs(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "t", data_storage_version=version)
    dataset = spark_lance.dataset(path).alter_columns({"path": "s.x", "data_type": pa.int16(), "name": "z"})
    dataset = dataset.alter_columns({"path": "s.y", "data_type": pa.large_string()})
    dataset.delete("a = 3").drop_columns(["s.z"])
    assert same_for_both(path)["s"][4].as_py() == {"y": "5"}
    lance.dataset(str(path)).optimize.compact_files()
    assert same_for_both(path).num_rows == 19


@pytest.mark.parametrize("version", ["2.1", "2.2"])
def test_a_field_of_structs_in_a_list_goes_alone(tmp_path: Path, version: str) -> None:
    data = pa.table({"o": [[{"k": 1, "v": "x"}], [], None, [{"k": 2, "v": None}] * 2]})
    path = write(tmp_path / "t", data, data_storage_version=version)
    spark_lance.dataset(path).drop_columns(["o.item.k"])
    assert same_for_both(path)["o"].to_pylist() == [[{"v": "x"}], [], None, [{"v": None}] * 2]


def test_casts_keep_values_or_fail(tmp_path: Path) -> None:
    columns = {
        "i": pa.array([1, -300, None]),
        "f": pa.array([1.5, 1e300, None]),
        "t": pa.array(["x", None, "z"]),
        "d": pa.array(["x", None, "z"]).dictionary_encode(),
        "l": pa.array([[1.5], None, [2.5, None]], pa.list_(pa.float32())),
        "v": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.float32(), 2)),
        "ts": pa.array([1_000_000, None, 0], pa.timestamp("us")),
        "dec": pa.array([None, 1, 2], pa.decimal128(5, 2)),
    }
    path = write(tmp_path / "t", pa.table(columns))
    targets = {
        "i": pa.int16(),
        "f": pa.float32(),
        "t": pa.dictionary(pa.int8(), pa.string()),
        "d": pa.large_string(),
        "l": pa.large_list(pa.float64()),
        "v": pa.list_(pa.float16(), 2),
        "ts": pa.timestamp("s", "UTC"),
        "dec": pa.decimal256(40, 4),
    }
    copy = tmp_path / "theirs"
    shutil.copytree(path, copy)
    for name, target in targets.items():
        change: Any = {"path": name, "data_type": target}
        spark_lance.dataset(path).alter_columns(change)
        lance.dataset(str(copy)).alter_columns(change)
    table = same_for_both(path)
    assert table.to_pylist() == lance.dataset(str(copy)).to_table().to_pylist()
    assert [(f.name, f.id, f.logical_type) for f in manifest(path).message.fields] == [
        (f.name, f.id, f.logical_type) for f in manifest(copy).message.fields
    ]
    dataset = spark_lance.dataset(path)
    files = data_files(path)
    with pytest.raises(SchemaError, match="cannot hold"):
        dataset.alter_columns({"path": "i", "data_type": pa.int8()})
    assert data_files(path) == files
    dataset = dataset.delete("i = -300").alter_columns({"path": "i", "data_type": pa.int8()})
    assert dataset.to_table(["i"])["i"].to_pylist() == [1, None]


def test_nulls_stand_in_the_way_of_forbidding_them(tmp_path: Path) -> None:
    data = pa.table(
        {
            "a": [1, None, 3],
            "s": [{"x": 1}, {"x": 2}, None],
            "l": [[1], [None], [3]],
            "m": pa.array([[("k", 1)], [("k", None)], []], pa.map_(pa.string(), pa.int64())),
        }
    )
    path = write(tmp_path / "t", data)
    paths = ["a", "s.x", "l.item", "m.entries.value"]
    for name in paths:
        with pytest.raises(SchemaError, match="has nulls"):
            spark_lance.dataset(path).alter_columns({"path": name, "nullable": False})
    lance.dataset(str(path)).delete("a is null or a = 3")
    dataset = spark_lance.dataset(path).alter_columns(*({"path": name, "nullable": False} for name in paths))
    assert not keeps_nulls(dataset)
    assert same_for_both(path).num_rows == 1
    with pytest.raises(SchemaError):
        spark_lance.write_dataset(data, path, "append")
    dataset = dataset.alter_columns(*({"path": name, "nullable": True} for name in paths))
    assert keeps_nulls(dataset)
    spark_lance.write_dataset(data, path, "append")
    assert same_for_both(path).num_rows == 4


@pytest.mark.parametrize("position", [False, True], ids=["flag", "positions"])
def test_primary_keys(tmp_path: Path, position: bool) -> None:
    def key(place: int) -> dict[str, str]:
        return {f"{KEY}:position": str(place)} if position else {KEY: "YES"}

    fields = [
        pa.field("b", pa.int64(), nullable=False, metadata=key(2)),
        pa.field(
            "o", pa.int64(), metadata={f"{CLUSTER}:position": "1", "lance-encoding:compression": "zstd"}
        ),
        pa.field(
            "s", pa.struct([pa.field("c", pa.string(), nullable=False, metadata=key(1))]), nullable=False
        ),
    ]
    data = pa.table([[1, 2], [3, 4], [{"c": "x"}, {"c": "y"}]], schema=pa.schema(fields))
    ours = spark_lance.write_dataset(data, tmp_path / "ours")
    lance.write_dataset(data, tmp_path / "theirs")
    assert list(ours.manifest.message.fields) == list(manifest(tmp_path / "theirs").message.fields)
    order = ["c", "b"] if position else ["b", "c"]
    assert [field.name for field in primary_key(ours.lance_schema)] == order
    another = pa.field("z", pa.int64(), nullable=False, metadata={KEY: "true"})
    refusals: list[Callable[[], object]] = [
        lambda: ours.add_columns(pa.table([[1, 2]], schema=pa.schema([another]))),
        lambda: ours.alter_columns({"path": "b", "nullable": True}),
        lambda: ours.alter_columns({"path": "s", "nullable": True}),
        lambda: ours.drop_columns(["b"]),
        lambda: ours.update_field_metadata({"b": {f"{KEY}:position": "7"}}),
    ]
    for refused in refusals:
        with pytest.raises(SchemaError):
            refused()
    recast: Any = {"path": "b", "name": "B", "data_type": pa.int32()}
    if not position:
        with pytest.raises(SchemaError, match="order"):
            ours.alter_columns(recast)  # the key goes by ids
        del recast["data_type"]
    ours = ours.alter_columns(recast)
    ours = ours.alter_columns({"path": "o", "data_type": pa.int32()}).add_columns({"n": "o + 1"})
    assert [field.name for field in primary_key(ours.lance_schema)] == [
        name.replace("b", "B") for name in order
    ]
    assert ours.schema.field("o").metadata == {
        f"{CLUSTER}:position".encode(): b"1",
        b"lance-encoding:compression": b"zstd",
    }
    flags = {field.name: field.unenforced_primary_key_position for field in ours.manifest.message.fields}
    assert (flags["B"], flags["c"]) == ((2, 1) if position else (0, 0))
    same_for_both(tmp_path / "ours")
    assert primary_key(ours.drop_columns(["B", "s"]).lance_schema) == ()


def test_a_key_can_be_added_to_a_table_without_one_but_not_to_nulls(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    dataset = spark_lance.dataset(path)
    good = pa.schema([pa.field("k", pa.int64(), nullable=False, metadata={KEY: "true"})])
    listed = pa.list_(pa.field("item", pa.int8(), nullable=False, metadata={KEY: "true"}))
    for refused in (
        pa.field("k", pa.int64(), metadata={KEY: "1"}),
        pa.field("k", pa.struct([good.field(0)]), nullable=True),
        pa.field("k", pa.list_(pa.int8()), nullable=False, metadata={KEY: "1"}),
    ):
        with pytest.raises(SchemaError, match="primary key"):
            spark_lance.write_dataset(pa.table([[]], schema=pa.schema([refused])), tmp_path / "new")
        with pytest.raises(OSError, match="rimary key"):
            lance.write_dataset(pa.table([[]], schema=pa.schema([refused])), tmp_path / "new")
    for wrong in (good.field(0).with_nullable(True), pa.field("k", listed, nullable=False)):
        with pytest.raises(SchemaError, match="primary key"):
            dataset.add_columns(pa.table([pa.nulls(20, wrong.type)], schema=pa.schema([wrong])))
    dataset = dataset.add_columns(pa.table([pa.array(range(20))], schema=good))
    assert [field.name for field in primary_key(dataset.lance_schema)] == ["k"]
    same_for_both(path)


def test_unknown_parts_of_fields_and_metadata_of_the_schema_stay(
    tmp_path: Path, forge: Callable[[Path, Callable[[table_pb2.Manifest], None]], None]
) -> None:
    path = write(tmp_path / "t", rows().replace_schema_metadata({"k": "v"}))
    unknown = b"\xe2\x03\x03new"

    def add(message: table_pb2.Manifest) -> None:
        message.fields[0].MergeFromString(unknown)
        message.max_allocated_field_id = 50
        message.writer_feature_flags |= FIELD_ID_MARK

    forge(path, add)
    dataset = spark_lance.dataset(path).alter_columns({"path": "a", "name": "A"}).add_columns({"n": "A + 1"})
    dataset = dataset.drop_columns(["n"]).add_columns({"m": "A + 2"})
    assert unknown in dataset.manifest.message.fields[0].SerializeToString()
    assert dataset.schema.metadata == {b"k": b"v"}
    assert (field_ids(path)["m"], dataset.manifest.message.max_allocated_field_id) == (52, 52)


def test_indices_follow(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    lance.dataset(str(path)).create_scalar_index("a", "BTREE")
    section = manifest(path).index_section
    dataset = spark_lance.dataset(path).alter_columns({"path": "a", "name": "A"}).add_columns({"n": "A + 1"})
    assert dataset.manifest.index_section == section
    theirs: Any = lance.dataset(str(path))
    assert "ScalarIndexQuery" in theirs.scanner(filter="A = 7").explain_plan()
    assert theirs.to_table(filter="A = 7")["n"].to_pylist() == [8]
    with pytest.raises(SchemaError, match="index"):
        dataset.alter_columns({"path": "A", "data_type": pa.int32()})
    assert not dataset.drop_columns(["A"]).manifest.indices


# Other writers.


@pytest.fixture
def racing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that lets others do something just before our next commit."""
    waiting: list[Callable[[], object]] = []
    original = commit_operation

    def commit(*args: Any, **options: Any) -> Any:
        while waiting:
            waiting.pop(0)()
        return original(*args, **options)

    for module in (alter, column_updates, evolve):
        monkeypatch.setattr(module, "commit_operation", commit)
    return waiting.append


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_rows_of_others_get_values_and_written_files_are_used_again(
    tmp_path: Path, racing: Callable[[Callable[[], object]], None], stable: bool
) -> None:
    path = write(tmp_path / "t", enable_stable_row_ids=stable)
    computed: list[int] = []

    def double(batch: pa.RecordBatch) -> pa.RecordBatch:
        computed.extend(batch["a"].to_pylist())
        return pa.record_batch({"d": pa.array([2 * a for a in batch["a"].to_pylist()], pa.int64())})

    def others() -> None:
        theirs = lance.dataset(str(path))
        theirs.delete("a = 3 or a between 5 and 9")
        theirs.add_columns({"other": "a + 1"})
        theirs.update({"t": "'new'"}, where="a = 11")
        more = pa.table(
            {"a": [100, 101]}, schema=rows().schema.remove_metadata().empty_table().select(["a"]).schema
        )
        lance.write_dataset(more, path, mode="append")

    racing(others)
    udf = batch_udf(pa.schema({"d": pa.int64()}))(double)
    spark_lance.dataset(path).add_columns(udf, ["a"])
    table = same_for_both(path)
    assert sorted(table["a"].to_pylist()) == [*range(3), 4, *range(10, 20), 100, 101]
    assert table["d"].to_pylist() == [2 * a for a in table["a"].to_pylist()]
    assert field_ids(path)["d"] == field_ids(path)["other"] + 1
    # Once for all rows, then only for the row that was moved and for the new ones.
    assert sorted(computed) == sorted([*range(20), 11, 100, 101])
    assert len(data_files(path) - live_files(path)) == len({"the fragment that lost all its rows"})
    assert spark_lance.dataset(path).count_rows() == 16


def test_a_row_that_came_back_gets_its_value(
    tmp_path: Path, racing: Callable[[Callable[[], object]], None]
) -> None:
    path = write(tmp_path / "t")
    stale: Any = lance.dataset(str(path))
    lance.dataset(str(path)).delete("a = 3")
    racing(lambda: (stale.restore(), lance.dataset(str(path)).add_columns({"o": "a"})))
    with pytest.raises(IncompatibleConflictError):
        spark_lance.dataset(path).add_columns({"d": "a * 2"})
    racing(lambda: lance.dataset(str(path)).add_columns({"p": "a"}))
    spark_lance.dataset(path).add_columns({"d": "a * 2"})
    table = same_for_both(path)
    assert table["d"].to_pylist() == [2 * a for a in range(20)] == [2 * a for a in table["a"].to_pylist()]


def test_a_stream_cannot_tell_values_of_new_rows(
    tmp_path: Path, racing: Callable[[Callable[[], object]], None]
) -> None:
    path = write(tmp_path / "t")
    racing(lambda: lance.dataset(str(path)).delete("a < 6"))
    spark_lance.dataset(path).add_columns(pa.table({"n": range(20)}))
    assert same_for_both(path)["n"].to_pylist() == list(range(6, 20))
    files = data_files(path)
    racing(lambda: lance.write_dataset(rows(3), path, mode="append"))
    with pytest.raises(IncompatibleConflictError, match="no values"):
        spark_lance.dataset(path).add_columns(pa.table({"m": range(14)}))
    assert len(data_files(path)) == len(files) + 1
    assert "m" not in spark_lance.dataset(path).schema.names


def test_casts_and_null_checks_are_made_again(
    tmp_path: Path, racing: Callable[[Callable[[], object]], None]
) -> None:
    path = write(tmp_path / "t")
    racing(lambda: lance.write_dataset(rows(3), path, mode="append"))
    spark_lance.dataset(path).alter_columns({"path": "a", "data_type": pa.int16()})
    assert same_for_both(path)["a"].to_pylist() == [*range(20), 0, 1, 2]
    nulls = pa.table({"t": ["x"]})
    racing(lambda: lance.write_dataset(nulls, path, mode="append"))
    with pytest.raises(SchemaError, match="has nulls"):
        spark_lance.dataset(path).alter_columns({"path": "a", "nullable": False})
    rename: Any = {"path": "t", "name": "T"}
    racing(lambda: lance.dataset(str(path)).alter_columns(rename))
    with pytest.raises(SchemaError, match="no column"):
        spark_lance.dataset(path).alter_columns({"path": "t", "nullable": False})
    racing(lambda: lance.dataset(str(path)).drop_columns(["T"]))
    spark_lance.dataset(path).drop_columns(["a"])
    assert spark_lance.dataset(path).schema.names == ["s"]


def test_giving_up_leaves_no_files(tmp_path: Path, racing: Callable[[Callable[[], object]], None]) -> None:
    path = write(tmp_path / "t")
    files = data_files(path)
    source = expressions({"n": "a"}, spark_lance.dataset(path).schema)
    racing(lambda: lance.dataset(str(path)).delete("a = 3"))
    with pytest.raises(RetryableConflictError):
        add_columns(spark_lance.dataset(path).snapshot, source, reruns=RetryPolicy(attempts=1))
    racing(lambda: lance.dataset(str(path)).delete("a = 4"))
    change = Alteration("a", data_type=pa.int8())
    with pytest.raises(RetryableConflictError):
        alter_columns(spark_lance.dataset(path).snapshot, [change], reruns=RetryPolicy(attempts=1))
    assert data_files(path) == files


def test_a_stream_is_cut_at_fragments() -> None:
    table = pa.table({"n": range(10)})
    stream = Stream(table.to_reader(max_chunksize=3))
    parts = []
    for size in (0, 4, 1, 5):
        batch = pa.record_batch({"x": range(size)})
        parts.append([value for values in stream.values([batch]) for value in values["n"].to_pylist()])
    assert parts == [[], [0, 1, 2, 3], [4], [5, 6, 7, 8, 9]]
    stream.finish()
    assert stream.is_finished


def test_joins(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    lance.dataset(str(path)).delete("a = 6")
    copy = tmp_path / "theirs"
    shutil.copytree(path, copy)
    keys = pa.array([1, 5, 5, None, 19, 77], pa.int64())
    kinds = pa.struct([pa.field("p", pa.int8())])
    data = pa.table({"k": keys, "n": pa.array([{"p": i} for i in range(6)], kinds), "u": list("abcdef")})
    spark_lance.dataset(path).merge(data, "a", "k")
    lance.dataset(str(copy)).merge(data, "a", "k")
    table = same_for_both(path)
    assert table.to_pylist() == lance.dataset(str(copy)).to_table().to_pylist()
    assert table["u"].to_pylist()[5] == "c"
    by_id = pa.table({"_rowid": pa.array([2], pa.uint64()), "w": pa.array([7], pa.int64())})
    spark_lance.dataset(path).merge(by_id.to_reader(), "_rowid")
    assert same_for_both(path)["w"].to_pylist()[:4] == [None, None, 7, None]
    strict = pa.schema([pa.field("a", pa.int32()), pa.field("z", pa.int64(), nullable=False)])
    missing = pa.table([[1], [1]], schema=strict)
    with pytest.raises(SchemaError, match="must not be null"):
        spark_lance.dataset(path).merge(missing, "a")
    whole = pa.table([range(20), range(20)], schema=strict)
    spark_lance.dataset(path).merge(whole, "a")
    assert not same_for_both(path).schema.field("z").nullable
    spark_lance.dataset(path).merge(
        pa.table({"a": pa.array([], pa.int64()), "none": pa.array([], pa.int8())}), "a"
    )
    assert same_for_both(path)["none"].null_count == 19


def test_no_computed_columns_beside_a_mem_wal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "t")
    dataset = spark_lance.dataset(path)
    entry = table_pb2.IndexMetadata(name="__lance_mem_wal")
    monkeypatch.setattr(type(dataset.manifest), "indices", [entry])
    with pytest.raises(UnsupportedFormatError, match="MemWAL"):
        dataset.add_columns({"n": "a"})
    assert dataset.add_columns(pa.field("n", pa.int8())).version == 2


@VERSIONS
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
def test_columns_are_updated_in_place(tmp_path: Path, version: str, stable: bool) -> None:
    path = write(tmp_path / "t", data_storage_version=version, enable_stable_row_ids=stable)
    lance.dataset(str(path)).create_scalar_index("a", "BTREE")
    lance.dataset(str(path)).delete("a = 6")
    before = spark_lance.dataset(path).to_table(with_row_id=True)
    keys = [1, 2, 6, 8, 8, 99]
    data = pa.table(
        {
            "k": [f"text {k}" for k in keys],
            "s": [{"x": -k, "y": "n"} for k in keys],
            "a": [k * 100 for k in keys],
        }
    )
    dataset = spark_lance.dataset(path).update_columns(data, "t", "k")
    expected = [
        {**row, "a": row["a"] * 100, "s": {"x": -row["a"], "y": "n"}} if row["a"] in keys else row
        for row in before.to_pylist()
    ]
    assert dataset.to_table(with_row_id=True).to_pylist() == expected
    assert same_for_both(path).num_rows == 19
    theirs: Any = lance.dataset(str(path))
    assert theirs.to_table(filter="a = 800")["t"].to_pylist() == ["text 8"]
    assert theirs.to_table(filter="a = 8").num_rows == 0
    if stable:
        changed = theirs.to_table(columns=["a", "_row_last_updated_at_version"]).to_pylist()
        latest = {row["a"] for row in changed if row["_row_last_updated_at_version"] == dataset.version}
        assert latest == {100, 200, 800}
    same = dataset.update_columns(pa.table({"a": [12345], "t": ["x"]}), "a")
    assert same.version == dataset.version
    dataset.update_columns(pa.table({"_rowid": before["_rowid"][:1], "t": ["first"]}))
    assert same_for_both(path)["t"][0].as_py() == "first"
    for wrong in ({"a": [1]}, {"a": [1], "zz": [1]}, {"a": [100], "t": [1.5]}, {"b": [1]}):
        with pytest.raises(SchemaError):
            dataset.update_columns(pa.table(wrong), "a")


def test_updates_of_columns_meet_other_writers(
    tmp_path: Path, racing: Callable[[Callable[[], object]], None]
) -> None:
    path = write(tmp_path / "t")

    def others() -> None:
        lance.dataset(str(path)).delete("a = 3")
        lance.dataset(str(path)).update({"t": "'theirs'"}, where="a = 8")

    racing(others)
    spark_lance.dataset(path).update_columns(pa.table({"a": [2, 3, 8, 9], "t": ["w", "x", "y", "z"]}), "a")
    results = {row["a"]: row["t"] for row in same_for_both(path).to_pylist()}
    assert (results[2], results[8], results[9], 3 in results) == ("w", "y", "z", False)


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("by_us", [False, True], ids=["theirs", "ours"])
def test_lists_in_two_files_may_differ_where_rows_are_deleted(
    tmp_path: Path, version: str, by_us: bool
) -> None:
    data = pa.table(
        {
            "a": range(10),
            "o": [[{"k": i, "v": str(i)}] * (i % 4) for i in range(10)],
            "s": [{"l": [{"k": i, "v": [i] * i}] * 2} for i in range(10)],
        }
    )
    path = write(tmp_path / "t", data, data_storage_version=version)
    lance.dataset(str(path)).delete("a in (1, 2, 6, 9)")
    dataset: Any = spark_lance.dataset(path) if by_us else lance.dataset(str(path))
    dataset.alter_columns(
        {"path": "o.item.k", "data_type": pa.int8()}, {"path": "s.l.item.k", "data_type": pa.int32()}
    )
    table = same_for_both(path)
    live = [row for row in data.to_pylist() if row["a"] not in (1, 2, 6, 9)]
    assert table.to_pylist() == live
    assert spark_lance.dataset(path).take([5, 0, 3]).to_pylist() == [live[5], live[0], live[3]]
    spark_lance.dataset(path).delete("a = 4")
    lance.dataset(str(path)).update({"a": "a + 100"}, where="a = 5")
    assert same_for_both(path).num_rows == 5


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable"])
@pytest.mark.parametrize("kind", ["clone", "branch", "mixed versions", "spilled lineage"])
def test_tables_of_all_kinds_evolve(tmp_path: Path, kind: str, stable: bool) -> None:
    path = write(tmp_path / "t", data_storage_version="2.1", enable_stable_row_ids=stable)
    source: Any = lance.dataset(str(path))
    target = path
    if kind == "clone":
        target = tmp_path / "clone"
        source.shallow_clone(str(target), source.version)
    elif kind == "branch":
        source.create_branch("other")
        target = path / "tree" / "other"
    elif kind == "mixed versions":
        lance.write_dataset(rows(3), path, mode="append", data_storage_version="2.2")
    elif stable:
        source.update_config({"lance.row_lineage.spill": "true", "lance.row_lineage.inline_max_bytes": "0"})
        source.update({"t": "'u'"}, where="a % 4 = 1")
        source.delete("a = 3")
        source.optimize.compact_files()
    before = manifest(path).version

    def opened() -> spark_lance.LanceDataset:
        return (
            spark_lance.dataset(target)
            if kind != "branch"
            else spark_lance.dataset(path, version=("other", None))
        )

    def checked() -> list[Any]:
        theirs: Any = lance.dataset(str(path if kind == "branch" else target))
        if kind == "branch":
            theirs = theirs.checkout_version(("other", None))
        theirs.validate()
        result = theirs.to_table()
        assert opened().to_table() == result
        listed: list[Any] = result.to_pylist()
        return listed

    opened().add_columns({"b": "a + 1"})
    opened().delete("a = 7")
    opened().alter_columns({"path": "s.x", "data_type": pa.int16()})
    opened().drop_columns(["t", "s.y"])
    opened().update_columns(pa.table({"a": [8], "b": [-8]}), "a")
    for row in checked():
        assert row["b"] == (-8 if row["a"] == 8 else row["a"] + 1)
        assert row["s"] == {"x": row["a"]}
    if target != path:
        assert manifest(path).version == before


def test_fragments_of_a_distant_store_are_worked_on_at_once() -> None:
    uri = "memory://evolve"
    count = 80
    dataset = spark_lance.write_dataset(rows(count), uri, max_rows_per_file=4)
    threads = set()

    def seen(batch: pa.RecordBatch) -> pa.RecordBatch:
        threads.add(threading.get_ident())
        return pa.record_batch({"f": batch["a"]})

    dataset = dataset.add_columns({"b": "a * 2"}).add_columns(seen, ["a"])
    assert threads == {threading.get_ident()}
    dataset = dataset.alter_columns({"path": "b", "data_type": pa.int16()})
    dataset = dataset.merge(pa.table({"a": range(count), "c": range(count)}), "a")
    table = dataset.to_table()
    assert table["b"].to_pylist() == [2 * a for a in range(count)]
    assert table["f"].to_pylist() == table["c"].to_pylist() == list(range(count))
    files = len(dataset.store.list(f"{dataset.root}/data"))
    with pytest.raises(SchemaError, match="cannot hold"):
        dataset.alter_columns({"path": "b", "data_type": pa.int8()})
    assert len(dataset.store.list(f"{dataset.root}/data")) == files


def test_a_file_does_not_fit_once_a_row_without_a_value_came_back(tmp_path: Path) -> None:
    path = write(tmp_path / "t")
    table = TableRef(*open_store(path))
    whole = manifest(path)
    deleted = spark_lance.dataset(path).delete("a = 1").manifest
    files = evolve.ColumnFiles(table)
    (field,) = whole.schema.select(["a"]).fields
    bases = Bases(table)
    written = table_pb2.DataFile(path="x.lance", fields=[7])
    files.add(deleted.fragments[0], (7,), [field], (written, np.array([1], np.uint32)))
    again = files.find(deleted.fragments[0], (9,), [field], bases)
    assert again is not None
    assert list(again.fields) == [9]
    assert files.find(whole.fragments[0], (7,), [field], bases) is None
    more = spark_lance.dataset(path).delete("a = 3").manifest
    assert files.find(more.fragments[0], (7,), [field], bases) == written
    moved = spark_lance.dataset(path).update_columns(pa.table({"t": ["text 0"], "a": [5]}), "t").manifest
    assert files.find(moved.fragments[0], (7,), [field], bases) is None
