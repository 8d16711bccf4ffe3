"""Indices that are built in parts, as pylance uses them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import LanceDataset, write_dataset
from spark_lance.datasets.operations import Index, LanceOperation
from spark_lance.errors import IndexNotFoundError, OptionError

WORDS = np.array(
    ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "near", "new", "york", "city"]
)
ROWS = 400
SCALAR = [("BTREE", "id"), ("BITMAP", "id"), ("NGRAM", "t"), ("ZONEMAP", "id"), ("BLOOMFILTER", "id")]
CONDITIONS = {"id": "id in (3, 111, 399)", "t": "contains(t, 'york c')"}
TEXT = "york fox"


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    rng = np.random.default_rng(0)
    data = {
        "id": rng.permutation(ROWS),
        "t": [" ".join(rng.choice(WORDS, 6)) for _ in range(ROWS)],
        "v": pa.FixedSizeListArray.from_arrays(pa.array(rng.random(ROWS * 16, np.float32)), 16),
    }
    return write_dataset(pa.table(data), tmp_path / "t", max_rows_per_file=100)


def by_parts(ds: LanceDataset, column: str, kind: str, number: str, **options: Any) -> Index:
    for fragment in range(4):
        ds.indices.create_part(column, kind, "parts", fragment_ids=[fragment], index_uuid=number, **options)
    # A task that was tried again counts once.
    ds.indices.create_part(column, kind, "parts", fragment_ids=[2], index_uuid=number, **options)
    return ds.merge_index_metadata(number, kind)


def by_segments(ds: LanceDataset, column: str, kind: str, **options: Any) -> list[Index]:
    results = [
        ds.create_index_uncommitted(column, kind, fragment_ids=[number], **options) for number in range(4)
    ]
    return [ds.merge_existing_index_segments(results[:3]), results[3]]


def scores(found: pa.Table) -> dict[int, float]:
    return {row["id"]: round(row["_score"], 4) for row in found.to_pylist()}


@pytest.mark.parametrize("way", ["parts", "segments"])
@pytest.mark.parametrize(("kind", "column"), SCALAR)
def test_parts_answer_as_no_index_does(ds: LanceDataset, kind: str, column: str, way: str) -> None:
    number = str(uuid.uuid4())
    condition = CONDITIONS[column]
    expected = sorted(ds.to_table(["id"], condition)["id"].to_pylist())
    actual = [by_parts(ds, column, kind, number)] if way == "parts" else by_segments(ds, column, kind)
    result = ds.commit_existing_index_segments("i", column, actual)
    assert result.index_statistics("i")["num_unindexed_rows"] == 0
    assert sorted(result.to_table(["id"], condition)["id"].to_pylist()) == expected
    theirs = lance.dataset(ds.uri).scanner(columns=["id"], filter=condition)
    assert "ScalarIndexQuery" in theirs.explain_plan()
    assert sorted(theirs.to_table()["id"].to_pylist()) == expected
    assert not list(Path(ds.uri).rglob("part.pb"))


@pytest.mark.parametrize("positions", [False, True])
def test_words_are_counted_across_parts(ds: LanceDataset, positions: bool) -> None:
    options = {"with_position": positions, "stem": False}
    whole = ds.create_scalar_index("t", "INVERTED", "whole", **options)
    expected = scores(whole.to_table(["id"], full_text_query=TEXT, limit=ROWS))
    assert len(expected) > 100
    ds = whole.drop_index("whole")
    for way in ("parts", "segments"):
        number = str(uuid.uuid4())
        actual = (
            [by_parts(ds, "t", "INVERTED", number, **options)]
            if way == "parts"
            else by_segments(ds, "t", "FTS", **options)
        )
        result = ds.commit_existing_index_segments("i", "t", actual)
        assert scores(result.to_table(["id"], full_text_query=TEXT, limit=ROWS)) == expected
        theirs = lance.dataset(ds.uri).to_table(columns=["id", "_score"], full_text_query=TEXT, limit=ROWS)
        assert scores(theirs) == expected
        ds = result.drop_index("i")


@pytest.mark.parametrize(("kind", "column"), [("BTREE", "id"), ("INVERTED", "t")])
def test_an_entry_may_leave_out_what_the_files_tell(ds: LanceDataset, kind: str, column: str) -> None:
    number = str(uuid.uuid4())
    by_parts(ds, column, kind, number)
    field = ds.lance_schema.find(column)[-1].id
    entry = Index(number, "i", [field], ds.version, set(range(4)), 0)
    result = LanceDataset.commit(ds, LanceOperation.CreateIndex([entry]), ds.version)
    assert result.describe_indices()[0].index_type.upper() == kind
    assert lance.dataset(ds.uri).describe_indices()[0].index_type.upper() == kind
    assert result.count_rows("id < 7") == 7
    if kind == "INVERTED":
        assert len(result.to_table(full_text_query="fox", limit=5)) == 5


@pytest.mark.parametrize("kind", ["IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_HNSW_SQ"])
def test_vectors_in_parts_share_what_was_trained(ds: LanceDataset, kind: str) -> None:
    rng = np.random.default_rng(1)
    options: dict[str, Any] = {"ivf_centroids": rng.random((4, 16), np.float32)}
    if kind == "IVF_PQ":
        options |= {"num_sub_vectors": 4, "pq_codebook": rng.normal(0, 0.3, (4, 256, 4)).astype(np.float32)}
    result = ds.commit_existing_index_segments("i", "v", by_segments(ds, "v", kind, **options))
    assert result.index_statistics("i")["num_segments"] == 2
    nearest = {"column": "v", "q": rng.random(16, np.float32), "k": 5}
    exact = ds.to_table(["id"], nearest={**nearest, "use_index": False})["id"].to_pylist()
    request = {**nearest, "nprobes": 4, "refine_factor": 40, "ef": 200}
    assert result.to_table(["id"], nearest=request)["id"].to_pylist() == exact
    theirs = lance.dataset(ds.uri).to_table(columns=["id", "_distance"], nearest=request)
    assert theirs["id"].to_pylist() == exact


def test_parts_that_were_trained_apart_stay_apart(ds: LanceDataset) -> None:
    results = [
        ds.create_index_uncommitted("v", "IVF_FLAT", fragment_ids=part, num_partitions=2)
        for part in ([0, 1], [2, 3])
    ]
    with pytest.raises(OptionError, match="trained apart"):
        ds.merge_existing_index_segments(results)
    result = ds.commit_existing_index_segments("i", "v", results)
    nearest = {"column": "v", "q": np.zeros(16, np.float32), "k": 9}
    exact = ds.to_table(["id"], nearest=nearest)["id"].to_pylist()
    assert result.to_table(["id"], nearest={**nearest, "nprobes": 2})["id"].to_pylist() == exact


def test_what_cannot_be_right_is_refused(ds: LanceDataset) -> None:
    with pytest.raises(OptionError, match="no fragment 77"):
        ds.create_index_uncommitted("id", "BTREE", fragment_ids=[0, 77])
    number = str(uuid.uuid4())
    with pytest.raises(IndexNotFoundError, match="no parts"):
        ds.merge_index_metadata(number, "BTREE")
    one = ds.create_index_uncommitted("id", "BTREE", fragment_ids=[0, 1])
    two = ds.create_index_uncommitted("id", "BTREE", fragment_ids=[1, 2])
    with pytest.raises(OptionError, match="two parts cover fragment 1"):
        ds.merge_existing_index_segments([one, two])
    with pytest.raises(OptionError, match="two segments cover fragment 1"):
        ds.commit_existing_index_segments("i", "id", [one, two])
    other = ds.create_index_uncommitted("t", "NGRAM", fragment_ids=[3])
    with pytest.raises(OptionError, match="one kind of index"):
        ds.merge_existing_index_segments([one, other])
    with pytest.raises(OptionError, match="not one of column"):
        ds.commit_existing_index_segments("i", "id", [other])
    assert not ds.checkout_latest().has_index
