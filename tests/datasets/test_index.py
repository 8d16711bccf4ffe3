"""Indices as users without Spark see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from spark_lance import dataset, write_dataset
from spark_lance.errors import IndexNotFoundError, OptionError, SchemaError
from tests.index.vectors import clustered, exact_neighbours, table_of

VECTORS = clustered(2000, 16)
QUERY = clustered(1, 16, seed=7)[0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_dataset(table_of(VECTORS), tmp_path / "t", max_rows_per_file=700)
    return tmp_path / "t"


def test_a_search_without_an_index_is_exact(path: Path) -> None:
    result = dataset(path).to_table(["id"], nearest={"column": "v", "q": QUERY, "k": 5})
    assert result.column_names == ["id", "_distance"]
    assert result["id"].to_pylist() == exact_neighbours(VECTORS, QUERY, 5, "l2")
    theirs = lance.dataset(str(path)).to_table(
        columns=["id", "_distance"], nearest={"column": "v", "q": QUERY, "k": 5}
    )
    assert np.allclose(result["_distance"], theirs["_distance"], rtol=1e-6)


def test_an_index_is_built_used_and_dropped(path: Path) -> None:
    table = dataset(path).create_index("v", "IVF_FLAT", num_partitions=8)
    nearest = {"column": "v", "q": QUERY.tolist(), "k": 5, "nprobes": 8}
    assert table.to_table(["id"], nearest=nearest)["id"].to_pylist() == exact_neighbours(
        VECTORS, QUERY, 5, "l2"
    )
    facts = table.index_statistics("v_idx")
    assert (facts["index_type"], facts["num_indexed_rows"], facts["num_unindexed_rows"]) == (
        "IVF_FLAT",
        2000,
        0,
    )
    table = table.drop_index("v_idx")
    with pytest.raises(IndexNotFoundError):
        table.index_statistics("v_idx")


def test_deleted_rows_are_never_found_and_k_rows_are(path: Path) -> None:
    table = dataset(path).create_index("v", "IVF_SQ", num_partitions=4)
    gone = exact_neighbours(VECTORS, QUERY, 40, "l2")
    table = table.delete(pc.field("id").isin(gone))
    rows = table.to_table(["id"], nearest={"column": "v", "q": QUERY, "k": 10})["id"].to_pylist()
    assert len(rows) == 10
    assert not set(rows) & set(gone)


def test_filters_come_before_or_after_the_search(path: Path) -> None:
    table = dataset(path).create_index("v", "IVF_FLAT", num_partitions=4)
    nearest = {"column": "v", "q": QUERY, "k": 10, "nprobes": 4}
    expected = [n for n in exact_neighbours(VECTORS, QUERY, 2000, "l2") if n % 50 == 0]
    before = table.to_table(["id"], "id % 50 = 0", nearest=nearest, prefilter=True)
    assert before["id"].to_pylist() == expected[:10]
    after = table.to_table(["id"], "id % 50 = 0", nearest=nearest)
    nearest_rows = exact_neighbours(VECTORS, QUERY, 10, "l2")
    assert after["id"].to_pylist() == [n for n in nearest_rows if n % 50 == 0]


def test_rows_that_are_not_indexed_are_found_too(path: Path) -> None:
    dataset(path).create_index("v", "IVF_PQ", num_partitions=4, num_bits=4, num_sub_vectors=8)
    close = pa.table({"id": [9999], "v": pa.FixedSizeListArray.from_arrays(pa.array(QUERY), 16)})
    table = write_dataset(close, path, mode="append")
    nearest = {"column": "v", "q": QUERY, "k": 3}
    assert table.to_table(["id"], nearest=nearest)["id"][0].as_py() == 9999
    fast = table.to_table(["id"], nearest={**nearest, "fast_search": True})
    assert 9999 not in fast["id"].to_pylist()
    table.optimize.optimize_indices()
    table = dataset(path)
    assert table.index_statistics("v_idx")["num_unindexed_rows"] == 0
    fast = table.to_table(["id"], nearest={**nearest, "fast_search": True, "refine_factor": 5})
    assert fast["id"][0].as_py() == 9999


def test_many_vectors_are_searched_at_once(path: Path) -> None:
    table = dataset(path).create_index("v", "IVF_FLAT", num_partitions=6)
    queries = clustered(30, 16, seed=11)
    result = table.to_table(["id"], nearest={"column": "v", "q": queries, "k": 4, "nprobes": 6})
    assert result.column_names == ["query_index", "id", "_distance"]
    for number, query in enumerate(queries):
        mine = result.filter(pc.equal(result["query_index"], number))
        assert mine["id"].to_pylist() == exact_neighbours(VECTORS, query, 4, "l2")


def test_fewer_probes_than_rows_wanted_look_further(path: Path) -> None:
    table = dataset(path).create_index("v", "IVF_FLAT", num_partitions=50)
    nearest = {"column": "v", "q": QUERY, "k": 500, "minimum_nprobes": 1}
    assert table.to_table(["id"], nearest=nearest).num_rows == 500
    few = table.to_table(["id"], nearest={**nearest, "maximum_nprobes": 2})
    assert few.num_rows < 500


def test_wrong_queries_say_what_is_wrong(path: Path) -> None:
    table = dataset(path)
    for nearest, message in (
        ({"column": "v", "q": QUERY[:3]}, "3 values"),
        ({"column": "v", "q": QUERY, "k": 0}, "k of a vector search"),
        ({"column": "v", "q": QUERY, "nprobe": 3}, "nprobe"),
        ({"column": "v"}, "needs q"),
        ({"column": "v", "q": QUERY, "metric": "l3"}, "l3"),
        ({"column": "v", "q": [float("nan")] * 16}, "contains NaN"),
        ({"column": "id", "q": [1.0]}, "holds no vectors"),
        ({"column": "v", "q": QUERY, "k": 5, "ef": 2}, "ef must"),
    ):
        with pytest.raises(OptionError, match=message):
            table.to_table(nearest=nearest)
    with pytest.raises(SchemaError, match="cannot have a vector index"):
        table.create_index("id", "IVF_FLAT")
    with pytest.raises(OptionError, match="IVF_XX"):
        table.create_index("v", "IVF_XX")
    with pytest.raises(OptionError, match="no option blub"):
        table.create_index("v", "IVF_FLAT", blub=1)


def test_filters_use_scalar_indices(path: Path) -> None:
    table = dataset(path).create_scalar_index("id", "BTREE")
    assert table.to_table(["id"], "id = 1234 or id in (7, 8)")["id"].to_pylist() == [7, 8, 1234]
    assert table.count_rows("id > 1990") == 9
    with pytest.raises(OptionError, match="BTREES"):
        table.create_scalar_index("id", "BTREES")
    with pytest.raises(SchemaError, match="LABEL_LIST"):
        table.create_scalar_index("id", "LABEL_LIST")


@pytest.mark.parametrize("size", [64, 1000, 8192])
def test_zones_of_another_size(tmp_path: Path, size: int) -> None:
    ds = write_dataset({"n": range(3000)}, tmp_path / "t", max_rows_per_file=2000)
    ds = ds.create_scalar_index("n", "ZONEMAP", rows_per_zone=size)
    (figures,) = ds.index_statistics("n_idx")["indices"]
    assert (figures["rows_per_zone"], figures["num_zones"]) == (size, -(-2000 // size) + -(-1000 // size))
    for table in (ds, lance.dataset(ds.uri)):
        assert table.count_rows("n in (5, 1999, 2000, 2999)") == 4
    ds = ds.insert({"n": range(3000, 3500)})
    ds.optimize.optimize_indices(num_indices_to_merge=0)
    sizes = {each["rows_per_zone"] for each in ds.checkout_latest().index_statistics("n_idx")["indices"]}
    assert sizes == {size}
    with pytest.raises(OptionError, match="rows_per_zone must be a number"):
        ds.create_scalar_index("n", "ZONEMAP", rows_per_zone=0)


def test_figures_of_filters_and_of_text_are_those_of_pylance(tmp_path: Path) -> None:
    rows = pa.table({"n": range(9000), "t": ["some words"] * 9000})
    ds = write_dataset(rows, tmp_path / "t")
    ds = ds.create_scalar_index("n", "BLOOMFILTER").create_scalar_index("t", "INVERTED", stem=False)
    theirs: Any = lance.dataset(ds.uri).stats
    for name in ("n_idx", "t_idx"):
        (ours,), (figures,) = (s["indices"] for s in (ds.index_statistics(name), theirs.index_stats(name)))
        same = {
            key
            for key in ours.keys() & figures.keys()
            if key in ("num_blocks", "number_of_items", "probability", "params")
        }
        assert len(same) == (3 if name == "n_idx" else 1)
        for key in same - {"params"}:
            assert ours[key] == figures[key]
        for key, value in ours.get("params", {}).items():
            assert figures["params"].get(key, value) == value


def test_searches_leave_out_deleted_rows(path: Path) -> None:
    nearest = {"column": "v", "q": QUERY, "k": 5}
    with pytest.raises(OptionError, match="Cannot include deleted rows"):
        dataset(path).to_table(nearest=nearest, with_row_id=True, include_deleted_rows=True)


def test_an_index_of_an_old_form_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    table = write_dataset(pa.table({"id": range(10), "text": ["a b"] * 10}), tmp_path / "t")
    table = table.create_scalar_index("text", "INVERTED").create_scalar_index("id", "BTREE")
    table = write_dataset(pa.table({"id": [10], "text": ["c"]}), table, "append")
    old = lambda entry, store, directory: entry.name == "text_idx"  # noqa: E731
    monkeypatch.setattr("spark_lance.index.base.entries._is_outdated", old)
    with pytest.raises(IndexNotFoundError, match=r"'text_idx' of column 'text' has a form .* build it anew"):
        table.optimize.optimize_indices(index_names=["text_idx"])
    table.optimize.optimize_indices()
    assert "not extended: index 'text_idx'" in caplog.text
    newest = table.checkout_version(table.latest_version)
    assert newest.index_statistics("id_idx")["num_unindexed_rows"] == 0
    assert newest.index_statistics("text_idx")["num_unindexed_rows"] == 1
