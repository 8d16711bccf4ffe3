"""What a version says about its indices: as pylance says it; dropping them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from spark_lance.datasets.dataset import dataset
from spark_lance.errors import IndexNotFoundError, OptionError


def rows(start: int, count: int = 300) -> pa.Table:
    rng = np.random.default_rng(start)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(rng.random(count * 8, np.float32)), 8)
    values = pa.array(range(start, start + count), pa.int64())
    inner = pa.StructArray.from_arrays([values], ["x"])
    texts = pa.array([f"word {i % 7}" for i in range(count)])
    return pa.table(
        {"a": values, "t": texts, "n": texts, "z": values, "s": inner, "v": vectors, "w": vectors}
    )


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a table with indices of many kinds, one of them in two segments, and with deleted rows."""
    path = tmp_path_factory.mktemp("indexed") / "t"
    table: Any = lance.write_dataset(rows(0), path)
    table.create_scalar_index("a", "BTREE")
    table.create_scalar_index("s.x", "BTREE", name="nested")
    table.create_scalar_index("t", "BITMAP")
    table.create_scalar_index("n", "NGRAM")
    table.create_scalar_index("z", "ZONEMAP")
    table.create_index("v", "IVF_PQ", num_partitions=1, num_sub_vectors=2, metric="dot")
    table.create_index("w", "IVF_HNSW_SQ", num_partitions=1, metric="cosine")
    lance.write_dataset(rows(300), path, mode="append")
    table = lance.dataset(path)
    table.optimize.optimize_indices(num_indices_to_merge=0, index_names=["v_idx"])
    lance.write_dataset(rows(600), path, mode="append")
    lance.dataset(path).delete("a % 10 = 3")
    return path


def test_descriptions_are_those_of_pylance(indexed: Path) -> None:
    ours, theirs = dataset(indexed).describe_indices(), lance.dataset(indexed).describe_indices()
    assert [index.name for index in ours] == [index.name for index in theirs]
    for index, other in zip(ours, theirs, strict=True):
        for name in ("index_type", "type_url", "num_rows_indexed", "total_size_bytes"):
            assert getattr(index, name) == getattr(other, name), (index.name, name)
        assert list(index.fields) == other.fields
        assert list(index.field_names) == other.field_names
        assert dict(index.details) == other.details or index.index_type == "ZoneMap"
        for segment, twin in zip(index.segments, other.segments, strict=True):
            assert segment.fragment_ids == frozenset(twin.fragment_ids)
            for name in ("uuid", "dataset_version_at_last_update", "index_version", "size_bytes"):
                assert getattr(segment, name) == getattr(twin, name), (index.name, name)
            assert (segment.created_at, segment.base_id) == (twin.created_at, twin.base_id)
    kinds = {index.name: (index.index_type, len(index.segments)) for index in ours}
    assert kinds["v_idx"] == ("IVF_PQ", 2)
    assert kinds["w_idx"] == ("IVF_HNSW_SQ", 1)


@pytest.mark.filterwarnings("ignore:The 'list_indices' method:DeprecationWarning")
def test_the_list_is_that_of_pylance(indexed: Path) -> None:
    theirs: Any = lance.dataset(indexed).list_indices()
    for entry in theirs:
        entry["fragment_ids"] = set(entry["fragment_ids"])
    assert dataset(indexed).list_indices() == theirs


def test_zone_map_details(indexed: Path) -> None:
    (index,) = (index for index in dataset(indexed).describe_indices() if index.index_type == "ZoneMap")
    assert index.details["rows_per_zone"] == 8192


def test_an_index_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table: Any = lance.write_dataset(rows(0), path)
    table.create_scalar_index("a", "BTREE")
    table.create_scalar_index("t", "BITMAP")
    before = dataset(path)
    after = before.drop_index("a_idx")
    assert [index.name for index in after.describe_indices()] == ["t_idx"]
    assert [index.name for index in lance.dataset(path).describe_indices()] == ["t_idx"]
    assert lance.dataset(path).to_table(filter="a = 7").num_rows == 1
    assert after.drop_index("t_idx").describe_indices() == []
    assert lance.dataset(path).describe_indices() == []
    assert [index.name for index in before.describe_indices()] == ["a_idx", "t_idx"]
    with pytest.raises(IndexNotFoundError, match="t_idx"):
        after.drop_index("a_idx")


def test_records_of_the_format_are_shown_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for start in (0, 300):
        lance.write_dataset(rows(start), path, mode="append" if start else "create")
    table: Any = lance.dataset(path)
    table.create_scalar_index("a", "BTREE")
    lance.dataset(path).optimize.compact_files(defer_index_remap=True)
    ours = dataset(path)
    by_name = {index.name: index for index in ours.describe_indices()}
    assert by_name["a_idx"].segments[0].fragment_ids == frozenset({2})
    reuse = by_name["__lance_frag_reuse"]
    assert reuse.index_type == "FragmentReuse"
    (version,) = reuse.details["versions"]
    (group,) = version["groups"]
    assert [digest["physical_rows"] for digest in group["old_fragments"]] == [300, 300]
    assert group["new_fragments"] == [{"id": 2, "physical_rows": 600}]
    with pytest.raises(OptionError):
        ours.drop_index("__lance_frag_reuse")
    after = ours.drop_index("a_idx")
    assert [index.name for index in after.describe_indices()] == ["__lance_frag_reuse"]


def test_mem_wal_details_are_shown_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "t"
    data = rows(0)
    key = data.schema.field("a").with_nullable(False)
    key = key.with_metadata({"lance-schema:unenforced-primary-key": "true"})
    data = data.cast(data.schema.set(0, key))
    table: Any = lance.write_dataset(data, path)
    table.create_scalar_index("a", "BTREE")
    lance.dataset(path).initialize_mem_wal()
    ours = dataset(path)
    entry = next(e for e in ours.manifest.indices if e.name == "__lance_mem_wal")
    (shown,) = (index for index in ours.describe_indices() if index.name == "__lance_mem_wal")
    assert shown.index_type == "MemWal"
    assert shown.details["maintain_all_indexes"] is True
    after = ours.drop_index("a_idx")
    assert [e.SerializeToString() for e in after.manifest.indices] == [entry.SerializeToString()]
