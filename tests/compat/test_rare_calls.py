"""What scripts call seldom does on the stand-in what it does in pylance."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance as theirs
import numpy as np
import pyarrow as pa
import pytest

import spark_lance.compat.lance as ours

LIBRARIES = pytest.mark.parametrize("lance", [ours, theirs], ids=["ours", "pylance"])
KEY = {"lance-schema:unenforced-primary-key": "true"}


def rows(start: int, stop: int) -> pa.Table:
    return pa.table({"a": np.arange(start, stop), "b": [f"row {i}" for i in range(start, stop)]})


def part_of(lance: Any, name: str) -> Any:
    return importlib.import_module(f"{lance.__name__}.{name}")


@LIBRARIES
def test_files_of_a_folder(lance: Any, tmp_path: Path) -> None:
    session = part_of(lance, "file").LanceFileSession(str(tmp_path / "files"))
    with session.open_writer("sub/one.lance", schema=rows(0, 1).schema, version="2.1") as writer:
        writer.add_schema_metadata("made by", "a test")
        number = writer.add_global_buffer(b"beside the columns")
        for start in (0, 40):
            writer.write_batch(rows(start, start + 40).to_batches()[0])
    reader = session.open_reader("sub/one.lance")
    assert reader.read_global_buffer(number) == b"beside the columns"
    assert reader.metadata().schema.metadata == {b"made by": b"a test"}
    assert reader.read_all().to_table().equals(rows(0, 80))
    assert session.open_reader("sub/one.lance", columns=["b"]).read_all().to_table().column_names == ["b"]
    columns = reader.file_statistics().columns
    assert [column.num_pages for column in columns] == [1, 1]
    assert all(column.size_bytes > 0 for column in columns)
    session.download_file("sub/one.lance", str(tmp_path / "copy"))
    session.upload_file(str(tmp_path / "copy"), "two.lance")
    assert sorted(session.list()) == ["sub/one.lance", "two.lance"]
    assert session.open_reader("two.lance").num_rows() == 80
    session.delete_file("two.lance")
    assert (session.contains("two.lance"), session.contains("sub/one.lance")) == (False, True)


@LIBRARIES
def test_threads_share_a_file_writer(lance: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "file.lance")
    with (
        part_of(lance, "file").LanceFileWriter(path, rows(0, 1).schema) as writer,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda start: writer.write_batch(rows(start, start + 50)), range(0, 1000, 50)))
    table = part_of(lance, "file").LanceFileReader(path).read_all().to_table()
    assert table.sort_by("a").equals(rows(0, 1000))


@LIBRARIES
def test_fragments(lance: Any, tmp_path: Path) -> None:
    ds = lance.write_dataset(rows(0, 10), tmp_path / "t")
    (file,) = ds.get_fragments()[0].data_files()
    with part_of(lance, "file").LanceFileWriter(
        str(tmp_path / "t/data/new.lance"), rows(0, 1).schema
    ) as writer:
        writer.write_batch(rows(10, 13))
    result = lance.fragment.LanceFragment.create_from_file("new.lance", ds, 0)
    assert (result.physical_rows, [one.path for one in result.files]) == (3, ["new.lance"])
    assert file.path != "new.lance"
    ds = lance.LanceDataset.commit(ds, lance.LanceOperation.Append([result]), read_version=1)
    assert ds.to_table().equals(rows(0, 13))
    session = ds.get_fragments()[0].open_session(columns=["b"])
    for numbers in ([3, 9], [0]):
        assert session.take(numbers)["b"].to_pylist() == [f"row {number}" for number in numbers]
    ordering = part_of(lance, "dataset").ColumnOrdering("a", ascending=False)
    assert ds.get_fragments()[1].to_table(order_by=[ordering])["a"].to_pylist() == [12, 11, 10]


@LIBRARIES
def test_scanners_and_queries(lance: Any, tmp_path: Path) -> None:
    table = rows(0, 300).append_column("t", pa.array(["red fox", "blue sea", "red sea"] * 100))
    ds = lance.write_dataset(table, tmp_path / "t")
    ds.create_scalar_index("t", "INVERTED")
    assert ds.prewarm_index("t_idx") is None
    assert not ds.latest_storage_options()
    builder = part_of(lance, "dataset").ScannerBuilder(ds)
    scanner = builder.apply_defaults({"filter": "a < 20"}).columns(["a"]).batch_size(8).to_scanner()
    batches = list(scanner.to_batches())
    if lance is ours:  # Pylance's ends with an error that is none.
        assert list(scanner.scan_batches()) == batches
    assert max(batch.num_rows for batch in batches) <= 8
    assert pa.Table.from_batches(batches)["a"].to_pylist() == list(range(20))
    result = part_of(lance, "dataset").ScannerBuilder(ds).full_text_search("fox", columns=["t"]).to_scanner()
    assert sorted(result.to_table()["a"].to_pylist()) == list(range(0, 300, 3))


@LIBRARIES
def test_partitions_of_a_vector_index(lance: Any, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).random(1000 * 8, np.float32)
    values = pa.FixedSizeListArray.from_arrays(pa.array(vectors), 8)
    ds = lance.write_dataset(pa.table({"v": values}), tmp_path / "t")
    ds.create_index("v", "IVF_PQ", num_partitions=3, num_sub_vectors=4)
    reader = part_of(lance, "dataset").VectorIndexReader(ds, "v_idx")
    assert reader.num_partitions() == 3
    parts = [reader.read_partition(number) for number in range(3)]
    assert sorted(row for part in parts for row in part["_rowid"].to_pylist()) == list(range(1000))
    coded = reader.read_partition(0, with_vector=True)
    assert coded.num_rows == parts[0].num_rows
    assert coded.column_names[0] == "_rowid"
    assert len(coded.column_names) == 2
    model = ds.get_ivf_model("v_idx")
    for centroids in (ds.centroids(column="v"), ds.centroids(index_name="v_idx"), model.centroids):
        assert (len(centroids), centroids.type.list_size) == (reader.num_partitions(), 8)
    ds.optimize.optimize_indices(retrain=True)
    assert (len(ds.centroids(column="v")), len(ds.describe_indices())) == (1, 1)


@pytest.mark.filterwarnings("ignore:replace_field_metadata is deprecated")
@LIBRARIES
def test_fields_and_what_they_take(lance: Any, tmp_path: Path) -> None:
    schema = pa.schema(
        [pa.field("Key", pa.int64(), False, KEY), pa.field("s", pa.struct([("X", pa.int32())]))]
    )
    data = pa.table({"Key": range(100), "s": [{"X": i} for i in range(100)]}, schema=schema)
    ds = lance.write_dataset(data, tmp_path / "t")
    stored = ds.lance_schema
    assert [field.is_unenforced_primary_key() for field in stored.fields()] == [True, False]
    assert stored.field_case_insensitive("kEY").name() == "Key"
    assert stored.field_case_insensitive("nope") is None
    sizes = {field.id: field.bytes_on_disk for field in ds.stats.data_stats().fields}
    assert sizes.keys() == {0, 1, 2}
    assert sizes[0] > 0
    ds.replace_field_metadata("s", {"unit": "m"})
    assert ds.schema.field("s").metadata == {b"unit": b"m"}


def test_queries_by_duckdb(tmp_path: Path) -> None:
    """Pylance asks another engine."""
    pytest.importorskip("duckdb")
    ds = ours.write_dataset(rows(0, 10), tmp_path / "t")
    query = ds.sql("SELECT sum(a) AS n FROM dataset WHERE a > 3").build()
    assert pa.Table.from_batches(query.to_batch_records())["n"].to_pylist() == [39]
    assert query.to_stream_reader().read_all()["n"].to_pylist() == [39]


@LIBRARIES
@pytest.mark.parametrize("model_of", [ours, theirs], ids=["our model", "pylance's model"])
def test_segments_with_one_rotation(lance: Any, model_of: Any, tmp_path: Path) -> None:
    """Segments of RQ that are built apart search as one index, here and in pylance."""
    rng = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(600 * 16, np.float32)), 16)
    table = pa.table({"id": range(600), "v": vectors})
    ds = lance.write_dataset(table, str(tmp_path / "t"), max_rows_per_file=300)
    native = importlib.import_module(f"{model_of.__name__}.lance").indices
    arguments = {
        "metric": "l2",
        "num_partitions": 2,
        "ivf_centroids": native.train_ivf_model(ds._ds, "v", 16, 2, "l2", 64, 10)
        if lance is model_of
        else part_of(lance, "indices").IndicesBuilder(ds, "v").train_ivf(2, sample_rate=64).centroids,
        "rabitq_model": native.build_rq_model(dimension=16, num_bits=5),
        "num_bits": 5,
    }
    segments = [
        ds.create_index_uncommitted("v", "IVF_RQ", "i", fragment_ids=[number], **arguments)
        for number in (0, 1)
    ]
    ds = ds.commit_existing_index_segments("i", "v", segments)
    for reader in (ours, theirs):
        nearest = {"column": "v", "q": vectors[7].as_py(), "k": 3, "nprobes": 2, "refine_factor": 20}
        assert reader.dataset(ds.uri).to_table(["id"], nearest=nearest)["id"][0].as_py() == 7


@LIBRARIES
def test_values_of_blobs(lance: Any, tmp_path: Path) -> None:
    values = [b"abc", None, lance.Blob.empty(), lance.Blob.from_bytes(b"x" * 100_000)]
    field = lance.blob_field("b", inline_size_threshold=10)
    assert lance.blob_array([lance.Blob.from_uri("file:///a", 1, 2)]).storage.to_pylist() == [
        {"data": None, "uri": "file:///a", "position": 1, "size": 2}
    ]
    table = pa.table([pa.array(range(4)), lance.blob_array(values)], pa.schema([("id", pa.int64()), field]))
    ds = lance.write_dataset(table, str(tmp_path / "t"), data_storage_version="2.2")
    for reader in (ours, theirs):
        kind = reader.dataset(ds.uri).schema.field("b").type
        assert kind.extension_name == "lance.blob.v2"
        assert kind.storage_type == lance.blob_array([]).type.storage_type
        blobs = reader.dataset(ds.uri).take_blobs("b", indices=[0, 1, 2, 3])
        contents = [b"abc", None, b"", b"x" * 100_000]
        assert [blob and blob.read() for blob in blobs] == contents
        assert reader.dataset(ds.uri).read_blobs("b", indices=[0, 1, 2, 3]) == list(enumerate(contents))
        assert reader.dataset(ds.uri).read_blobs("b", ids=[2, 0]) == [(2, b""), (0, b"abc")]
        with pytest.raises(ValueError, match="Exactly one of ids"):
            reader.dataset(ds.uri).take_blobs("b", ids=[0], indices=[0])
    for wrong in ({}, {"data": b"a", "uri": "b"}, {"uri": "a", "size": 1}, {"uri": ""}):
        with pytest.raises(ValueError, match="lob"):
            lance.Blob(**wrong)
    with pytest.raises(ValueError, match="dedicated_size_threshold"):
        lance.blob_field("b", dedicated_size_threshold=0)


@LIBRARIES
def test_external_blobs_are_ingested(lance: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_of(ours, "blob"), "_INGEST_BYTES", 150)  # Two files fill a batch.
    file = tmp_path / "elsewhere" / "file"
    file.parent.mkdir()
    file.write_bytes(b"0123456789" * 10)
    values = [f"file://{file}", b"x", None, lance.Blob.from_uri(f"file://{file}", 3, 4), *[str(file)] * 5]
    blobs, field = lance.blob_array(values), lance.blob_field("b", inline_size_threshold=10)
    nested = pa.StructArray.from_arrays([blobs], fields=[field])
    offsets = pa.array(range(len(values) + 1), pa.int32())
    lists = pa.ListArray.from_arrays(offsets, blobs, type=pa.list_(pa.field("item", field.type)))
    schema = pa.schema([field, pa.field("s", nested.type), pa.field("l", lists.type)])
    table = pa.table([blobs, nested, lists], schema)
    options = {"data_storage_version": "2.2", "external_blob_mode": "ingest"}
    ds = lance.write_dataset(table, str(tmp_path / "t" / "t"), **options)
    fragments = lance.fragment.write_fragments(table, ds, external_blob_mode="ingest")
    ds = lance.LanceDataset.commit(ds.uri, lance.LanceOperation.Append(fragments), read_version=1)
    file.unlink()
    contents = [b"0123456789" * 10, b"x", None, b"3456", *[b"0123456789" * 10] * 5] * 2
    for reader in (ours, theirs):
        opened = reader.dataset(ds.uri)
        for column in ("b", "s.b"):
            result = opened.read_blobs(column, indices=list(range(18)))
            assert [content for _, content in result] == contents
        sizes = [row[0] and row[0]["size"] for row in opened.to_table(["l"])["l"].to_pylist()]
        assert sizes == [content and len(content) for content in contents]
    for mode, extra in (("ingest", {"allow_external_blob_outside_bases": True}), ("copy", {})):
        with pytest.raises((OSError, ValueError), match=r"external.blob.mode"):
            lance.write_dataset(
                table, str(tmp_path / "u"), data_storage_version="2.2", external_blob_mode=mode, **extra
            )
    with pytest.raises(OSError, match="elsewhere/file"):
        lance.write_dataset(table, str(tmp_path / "u"), **options)


@pytest.mark.parametrize(("writer", "indexer"), [(ours, theirs), (theirs, ours)], ids=["ours", "pylance"])
def test_names_with_dots(writer: Any, indexer: Any, tmp_path: Path) -> None:
    """Fields with dots in their names are in backticks, in columns, conditions and indexes of both."""
    structs = [{"a.b": i % 5, "n": {"x.y": i % 3, "q`r": i}} for i in range(90)]
    path = str(tmp_path / "t")
    writer.write_dataset(pa.table({"m": structs}), path)
    indexer.dataset(path).create_scalar_index("m.`a.b`", "BTREE")
    writer.dataset(path).create_scalar_index("m.`n`.`x.y`", "BITMAP")
    indexer.write_dataset(pa.table({"m": structs}), path, mode="append")
    indexer.dataset(path).optimize.optimize_indices()
    for name, value in (("m.`a.b`", 2), ("`m`.n.`x.y`", 2), ("m.n.`q``r`", 7)):
        tables = [
            reader.dataset(path).to_table([name], filter=f"{name} = {value}") for reader in (ours, theirs)
        ]
        assert tables[0].num_rows in (2, 36, 60)
        assert tables[0].equals(tables[1])
        assert tables[0].column_names == [name]
    names = [
        list(index.field_names)
        for reader in (ours, theirs)
        for index in reader.dataset(path).describe_indices()
    ]
    assert sorted(names) == [["m.`a.b`"]] * 2 + [["m.n.`x.y`"]] * 2
