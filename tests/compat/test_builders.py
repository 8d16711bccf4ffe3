"""What builders of tables and indices call, under pylance's names."""

from __future__ import annotations

import io
import uuid
from pathlib import Path
from typing import Any

import lance as theirs
import numpy as np
import pyarrow as pa
import pytest

import spark_lance.compat.lance as lance
from spark_lance.compat.lance.arrow import (
    BFloat16,
    EncodedImageArray,
    ImageArray,
    ImageURIArray,
    bfloat16_array,
    cast,
)
from spark_lance.compat.lance.dataset import Index
from spark_lance.compat.lance.file import LanceFileReader, LanceFileWriter
from spark_lance.compat.lance.indices import IndicesBuilder, IvfModel, PqModel
from spark_lance.compat.lance.sampler import ShardedBatchSampler, ShardedFixedBatchSampler

ROWS, WIDTH = 1200, 16


@pytest.fixture
def ds(tmp_path: Path) -> Any:
    vectors = np.random.default_rng(0).random(ROWS * WIDTH, np.float32)
    rows = pa.table(
        {
            "id": range(ROWS),
            "t": [f"word{n % 7} of row" for n in range(ROWS)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), WIDTH),
        }
    )
    return lance.write_dataset(rows, str(tmp_path / "t"), max_rows_per_file=400)


@pytest.mark.parametrize(("kind", "column"), [("BTREE", "id"), ("INVERTED", "t")])
def test_parts_of_one_uuid_are_merged_and_committed(ds: Any, kind: str, column: str) -> None:
    number = str(uuid.uuid4())
    for fragment in ds.get_fragments():
        ds.create_scalar_index(
            column, kind, "i", index_uuid=number, fragment_ids=[fragment.fragment_id], replace=False
        )
    ds.merge_index_metadata(number, index_type=kind)
    field = ds.schema.get_field_index(column)
    entry = Index(number, "i", [field], ds.version, {0, 1, 2}, 0)
    done = lance.LanceDataset.commit(
        ds.uri, lance.LanceOperation.CreateIndex([entry], []), read_version=ds.version
    )
    assert done.index_statistics("i")["num_unindexed_rows"] == 0
    read = theirs.dataset(ds.uri)
    if kind == "BTREE":
        assert "ScalarIndexQuery" in read.scanner(filter="id = 700").explain_plan()
        assert done.count_rows("id in (3, 700)") == read.count_rows("id in (3, 700)") == 2
    else:
        results = [
            each.to_table(columns=["id", "_score"], full_text_query="word3", limit=ROWS)
            for each in (done, read)
        ]
        assert results[0].num_rows == results[1].num_rows == sum(n % 7 == 3 for n in range(ROWS))


def test_an_index_of_no_rows_is_filled_later(ds: Any) -> None:
    ds.create_scalar_index("id", "BTREE", train=False)
    assert ds.index_statistics("id_idx")["num_indexed_rows"] == 0
    assert ds.count_rows("id < 5") == 5
    ds.optimize.optimize_indices()
    assert ds.index_statistics("id_idx")["num_unindexed_rows"] == 0
    with pytest.raises(NotImplementedError, match="train=False"):
        ds.create_index("v", "IVF_FLAT", num_partitions=2, train=False)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_an_index_of_vectors_step_by_step(ds: Any, tmp_path: Path, metric: str) -> None:
    builder = IndicesBuilder(ds, "v")
    ivf = builder.train_ivf(4, distance_type=metric, sample_rate=16)
    pq = builder.train_pq(ivf, 4, sample_rate=4)
    ivf.save(str(tmp_path / "ivf"))
    pq.save(str(tmp_path / "pq"))
    ivf, pq = IvfModel.load(str(tmp_path / "ivf")), PqModel.load(str(tmp_path / "pq"))
    assert (ivf.num_partitions, ivf.distance_type, pq.dimension, pq.num_subvectors) == (4, metric, WIDTH, 4)
    names = []
    for number, fragments in enumerate((ds.get_fragments()[:1], ds.get_fragments()[1:])):
        builder.transform_vectors(ivf, pq, str(tmp_path / f"coded{number}"), fragments)
        names += builder.shuffle_transformed_vectors(
            [f"coded{number}"], str(tmp_path), ivf, f"sorted{number}"
        )
    builder.load_shuffled_vectors(names, str(tmp_path), ivf, pq)
    request = {"column": "v", "q": np.ones(WIDTH, np.float32), "k": 5, "nprobes": 4, "refine_factor": 20}
    exact = ds.to_table(columns=["id"], nearest={**request, "use_index": False, "metric": metric})["id"]
    assert ds.index_statistics("v_idx")["num_unindexed_rows"] == 0
    assert ds.to_table(columns=["id"], nearest=request)["id"] == exact
    assert theirs.dataset(ds.uri).to_table(columns=["id", "_distance"], nearest=request)["id"] == exact


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_subvectors": 5}, "without remainder"),
        ({"sample_rate": 1}, "sample_rate"),
        ({}, "not enough rows"),
    ],
    ids=str,
)
def test_training_that_cannot_be(ds: Any, arguments: dict[str, Any], message: str) -> None:
    ivf = IvfModel(pa.FixedSizeListArray.from_arrays(pa.array(np.ones(WIDTH, np.float32)), WIDTH), "l2")
    with pytest.raises(ValueError, match=message):
        IndicesBuilder(ds, "v").train_pq(ivf, **arguments)
    with pytest.raises(KeyError, match="nothing"):
        IndicesBuilder(ds, "nothing")


def test_segments_with_given_centers(ds: Any) -> None:
    given = IndicesBuilder(ds, "v").prepare_global_ivf_pq(2, 4, sample_rate=4)
    results = [
        ds.create_index_uncommitted("v", "IVF_PQ", fragment_ids=part, num_sub_vectors=4, **given)
        for part in ([0, 1], [2])
    ]
    ds.commit_existing_index_segments("i", "v", [ds.merge_existing_index_segments(results)])
    request = {"column": "v", "q": np.ones(WIDTH, np.float32), "k": 3, "nprobes": 2, "refine_factor": 40}
    assert ds.to_table(nearest=request)["id"] == ds.to_table(nearest={**request, "use_index": False})["id"]
    with pytest.raises(ValueError, match="requires fragment_ids"):
        ds.create_index_uncommitted("v", "IVF_PQ")


def test_batches_of_one_size(ds: Any) -> None:
    sizes = [batch.num_rows for batch in ds.to_batches(batch_size=250, strict_batch_size=True)]
    assert sizes == [250, 250, 250, 250, 200]
    first = [
        batch.num_rows for batch in ds.get_fragments()[0].to_batches(batch_size=150, strict_batch_size=True)
    ]
    assert first == [150, 150, 100]


def test_ranks_share_all_rows(ds: Any) -> None:
    for sampler in (ShardedBatchSampler, ShardedFixedBatchSampler):
        seen: list[int] = []
        for rank in range(3):
            parts = [b["id"].to_pylist() for b in sampler(rank, 3)(ds, batch_size=100, filter="id >= 200")]
            assert {n % 3 for part in parts for n in part} == {(200 + rank) % 3}
            seen += [n for part in parts for n in part]
        assert sorted(seen) == list(range(200, ROWS))
    numbers = [
        n
        for rank in range(4)
        for part in ShardedFixedBatchSampler(rank, 4, True, batch_size=7, total_num_rows=33)
        for n in part
    ]
    assert sorted(numbers) == list(range(33))


def test_images_go_through_a_table(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
    data = []
    for number, one in enumerate(pixels):
        image.fromarray(one).save(tmp_path / f"{number}.png")
        data.append(io.BytesIO((tmp_path / f"{number}.png").read_bytes()).getvalue())
    places = ImageURIArray.from_uris(tmp_path / f"{number}.png" for number in range(3))
    encoded = places.read_uris()
    assert isinstance(encoded, EncodedImageArray)
    assert encoded.to_pylist() == data
    decoded = encoded.to_tensor()
    assert np.array_equal(decoded.to_numpy(), pixels)
    assert np.array_equal(decoded.to_encoded().to_tensor().to_numpy(), pixels)
    assert ImageArray.from_array(decoded) is decoded
    rows = pa.table({"place": places, "bytes": encoded, "pixels": decoded})
    read = lance.write_dataset(rows, str(tmp_path / "t")).to_table()
    assert read.schema.types == rows.schema.types
    assert read.to_pylist() == rows.to_pylist()
    with pytest.raises(TypeError, match="cannot hold images"):
        ImageArray.from_array(pa.array([1]))
    with_null = ImageArray.from_array([tmp_path / "0.png", None]).read_uris()
    assert with_null.to_pylist() == [data[0], None]
    problem = r"image 1 is null, and a tensor has no nulls: call drop_null\(\) on the images"
    with pytest.raises(ValueError, match=problem):
        with_null.to_tensor()
    padded = pa.ExtensionArray.from_storage(
        decoded.type, pa.array([decoded.storage[0].as_py(), None], decoded.type.storage_type)
    )
    for convert in (padded.to_numpy, padded.to_encoded):
        with pytest.raises(ValueError, match=problem):
            convert()
    assert np.array_equal(with_null.drop_null().to_tensor().to_numpy(), pixels[:1])


def test_bfloat16_in_other_types_and_in_pandas() -> None:
    pytest.importorskip("pandas")
    for kind in (np.float16, np.float32, np.float64):
        numbers = pa.array(np.array([1, -2.5, 384], kind))
        short = cast(numbers, "bfloat16")
        assert short.to_pylist() == [BFloat16(1), BFloat16(-2.5), BFloat16(384)]
        assert cast(short, numbers.type) == numbers
    held = bfloat16_array([1.1, None]).to_pandas()
    assert str(held.dtype) == "lance.bfloat16"
    assert held.isna().tolist() == [False, True]
    assert pa.array(held).to_pylist() == [BFloat16(1.1), None]


def test_bfloat16_in_vectors_goes_through_a_table(tmp_path: Path) -> None:
    values = bfloat16_array([0.5 * i for i in range(6)])
    vectors = pa.FixedSizeListArray.from_arrays(values, 3)
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, [3]), vectors)
    table = pa.table({"n": values.slice(0, 2), "v": vectors, "t": tensors})
    for library, other in ((lance, theirs), (theirs, lance)):
        path = tmp_path / library.__name__
        library.write_dataset(table, path)
        other.write_dataset(table, path, mode="append")
        for reader in (lance, theirs):
            # As text: either of the libraries may have registered the type in this process.
            result = reader.dataset(path).to_table()
            assert str(result.schema) == str(table.schema)
            assert str(result.to_pylist()) == str(table.to_pylist() * 2)


def test_what_a_file_says_of_its_encodings(tmp_path: Path) -> None:
    path = str(tmp_path / "f.lance")
    kind = pa.struct([("id", pa.int32()), ("text", pa.string())])
    schema = pa.schema([pa.field("s", kind, metadata={"lance-encoding:packed": "true"})])
    with LanceFileWriter(path, schema, version="2.2", max_page_bytes=1) as writer:
        writer.write_batch(pa.table([[{"id": i, "text": "x" * i} for i in range(9)]], schema=schema))
    (page,) = LanceFileReader(path).metadata().columns[0].pages
    assert "VariablePackedStruct" in page.encoding


def test_a_dropped_table_leaves_no_folder(ds: Any) -> None:
    assert Path(ds.uri).is_dir()
    lance.LanceDataset.drop(ds.uri)
    assert not Path(ds.uri).exists()
    lance.LanceDataset.drop(ds.uri, ignore_not_found=True)


def test_clusters_of_vectors() -> None:
    rng = np.random.default_rng(0)
    data = np.concatenate([rng.normal(center, 0.1, (50, 8)) for center in (0, 5, 9)]).astype(np.float32)
    result = lance.util.KMeans(3)
    with pytest.raises(ValueError, match="call fit"):
        result.predict(data)
    result.fit(data)
    owners = result.predict(data).to_numpy().reshape(3, 50)
    assert [len(set(part)) for part in owners.tolist()] == [1, 1, 1]
    assert len(set(owners[:, 0].tolist())) == 3
    again = lance.util.KMeans(3, centroids=result.centroids)
    assert again.predict(data) == result.predict(data)
    with pytest.raises(ValueError, match="float32"):
        result.fit(data.astype(np.float64))


def test_graphs_of_vectors(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((300, 8)).astype(np.float32)
    arrays = [pa.FixedSizeListArray.from_arrays(part.reshape(-1), 8) for part in (data[:200], data[200:])]
    result = lance.util.HNSW.build(iter(arrays), m=8)
    assert result.vectors() == pa.chunked_array(arrays).combine_chunks()
    result.to_lance_file(tmp_path / "graph.lance")
    table = LanceFileReader(str(tmp_path / "graph.lance")).read_all().to_table()
    assert table.column_names == ["__vector_id", "__neighbors", "_distance"]
    assert set(range(300)) == set(table["__vector_id"].to_pylist())


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_files_have_the_bytes_of_blobs(tmp_path: Path, version: str) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([blob, pa.field("s", pa.struct([pa.field("n", pa.int8()), blob]))])
    values = [b"x" * 100_000, None, b"", b"y"]
    nested = [{"n": n, "b": value} for n, value in enumerate(values)]
    data = pa.table({"b": values, "s": nested}, schema=schema)
    path = str(tmp_path / "blobs.lance")
    with LanceFileWriter(path, schema, version=version) as writer:
        writer.write_batch(data)
    reader = LanceFileReader(path)
    assert reader.read_all().to_table().to_pydict() == data.to_pydict()
    assert reader.take_rows([0, 3]).to_table()["b"].to_pylist() == [values[0], values[3]]
    by_pylance = theirs.file.LanceFileReader(path, columns=["b"]).read_all().to_table()
    assert by_pylance["b"].to_pylist() == values
    with theirs.file.LanceFileWriter(path, pa.schema([blob]), version=version) as other:
        other.write_batch(data.select(["b"]))
    assert LanceFileReader(path).read_all().to_table()["b"].to_pylist() == values


def test_vectors_as_half_floats(tmp_path: Path) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(8, dtype=np.float32)), 2)
    data = pa.table({"v": vectors, "n": [1, 2, 3, 4]})
    result = lance.write_dataset(data, tmp_path).to_table({"h": "_cast_list_f16(v)"})
    assert result["h"].type == pa.list_(pa.float16(), 2)
    assert result == theirs.dataset(str(tmp_path)).to_table({"h": "_cast_list_f16(v)"})
    with pytest.raises(ValueError, match="takes lists of float32 or float16, not int64"):
        lance.dataset(tmp_path).to_table({"h": "_cast_list_f16(n)"})
