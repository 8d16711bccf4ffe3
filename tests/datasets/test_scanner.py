"""Reads that are described first: expressions, paths, order, plans, streams; compared with pylance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lance.dataset import ColumnOrdering as TheirOrdering

import spark_lance
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.datasets.scan_request import ColumnOrdering
from spark_lance.errors import ColumnNotFoundError, OptionError, OptionTypeError


def rows(count: int, seed: int = 0) -> pa.Table:
    """Return rows with nulls, ties, structs and vectors."""
    draw = np.random.default_rng(seed)
    return pa.table(
        {
            "n": pa.array(draw.integers(0, 9, count), mask=draw.random(count) < 0.2),
            "f": pa.array(draw.random(count), pa.float32()),
            "s": [{"x": int(i), "y": None if i % 5 == 0 else f"y{i % 7}"} for i in range(count)],
            "t": pa.array([f"word{i % 4} text" for i in range(count)]),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(draw.random(count * 4), pa.float32()), 4),
        }
    )


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> LanceDataset:
    path = str(tmp_path_factory.mktemp("scanner") / "t.lance")
    result = spark_lance.write_dataset(rows(200), path, max_rows_per_file=70)
    return result.create_scalar_index("n", "BTREE").delete("n = 3")


@pytest.mark.parametrize(
    "columns",
    [
        ["s.x", "n"],
        ["s.x", "s", "s.y"],
        {"twice": "n * 2", "x": "s.x"},
        {"f": "f + 1", "n": "coalesce(n, -1)"},
        {"id": "_rowid"},
        ["n"],
        [],
    ],
)
@pytest.mark.parametrize("filter", [None, "n > 4", "s.y = 'y3' or n is null"])
def test_projections_are_as_pylance_has_them(ds: LanceDataset, columns: Any, filter: str | None) -> None:
    theirs = lance.dataset(ds.uri).to_table(columns, filter=filter, with_row_id=True)
    ours = ds.to_table(columns, filter, with_row_id=True)
    assert ours.to_pydict() == theirs.to_pydict()
    assert ours.schema.types == theirs.schema.types
    assert ds.scanner(columns, filter, with_row_id=True).projected_schema.equals(ours.schema)
    batches = list(ds.to_batches(columns, filter, with_row_id=True, batch_size=7))
    assert all(batch.num_rows <= 7 for batch in batches)
    assert pa.Table.from_batches(batches).to_pydict() == theirs.to_pydict()


@pytest.mark.parametrize("ascending", [True, False])
@pytest.mark.parametrize("nulls_first", [True, False])
@pytest.mark.parametrize(("limit", "offset"), [(None, None), (9, 3), (400, 0)])
def test_rows_are_sorted_as_pylance_sorts_them(
    ds: LanceDataset, ascending: bool, nulls_first: bool, limit: int | None, offset: int | None
) -> None:
    ours = [ColumnOrdering("n", ascending, nulls_first), ColumnOrdering("f", not ascending)]
    theirs = [TheirOrdering("n", ascending, nulls_first), TheirOrdering("f", not ascending)]
    expected = lance.dataset(ds.uri).to_table(["n", "f"], order_by=theirs, limit=limit, offset=offset)
    assert ds.to_table(["n", "f"], order_by=ours, limit=limit, offset=offset).equals(expected)
    # The order may rest on columns that are not shown.
    assert ds.to_table(["f"], order_by=ours, limit=limit, offset=offset).equals(expected.select(["f"]))


def test_the_first_rows_of_an_order_are_held_in_few_rows(ds: LanceDataset) -> None:
    assert ds.to_table(["n"], order_by="n", limit=0).num_rows == 0
    result = ds.to_table(["s.x"], order_by=ColumnOrdering("s.x", ascending=False), limit=3)
    assert result["s.x"].to_pylist() == sorted(ds.to_table(["s.x"])["s.x"].to_pylist())[-1:-4:-1]


def test_searches_take_expressions_and_orders(ds: LanceDataset) -> None:
    nearest = {"column": "v", "q": [0.5] * 4, "k": 6}
    result = ds.to_table({"far": "_distance * 2", "n": "n"}, nearest=nearest)
    plain = ds.to_table(["n"], nearest=nearest)
    assert result["far"].to_numpy() == pytest.approx(plain["_distance"].to_numpy() * 2)
    turned = ds.to_table(["n"], nearest=nearest, order_by=ColumnOrdering("_distance", ascending=False))
    assert turned["_distance"].to_pylist() == plain["_distance"].to_pylist()[::-1]
    scanner = ds.scanner(["n"], nearest=nearest)
    assert scanner.count_rows() == 6
    assert scanner.to_reader().read_all().equals(plain)
    assert scanner.projected_schema.names == plain.schema.names


def test_a_plan_names_what_is_left_out_and_by_which_index(ds: LanceDataset) -> None:
    plan = ds.scanner(["f"], "n = 8 and s.x < 60", limit=2).explain_plan(verbose=True)
    lines = plan.splitlines()
    assert [line.split(":")[0].strip() for line in lines] == [
        "GlobalLimitExec",
        "LanceRead",
        "ScalarIndexQuery",
    ]
    assert "@n_idx(BTREE)" in lines[2]
    assert "n = 8" in lines[2]
    nothing = ds.scanner(["f"], "n = 99").explain_plan()
    assert "pruned_fragments=[0, 1, 2] of 3" in nothing
    without = ds.scanner(["f"], "n = 99", use_scalar_index=False).explain_plan()
    assert "ScalarIndexQuery" not in without
    analyzed = ds.scanner(["f"], "n = 8").analyze_plan()
    assert f"output_rows={ds.count_rows('n = 8')}" in analyzed


def test_pages_that_a_condition_leaves_out_are_told(tmp_path: Path) -> None:
    values = pa.table({"a": np.arange(3_000_000, dtype=np.int64)})
    result = spark_lance.write_dataset(values, str(tmp_path / "t"), data_storage_version="2.1")
    indexed = result.create_scalar_index("a", "ZONEMAP")
    plan = indexed.scanner(["a"], "a = 2999999").explain_plan(verbose=True)
    assert "ScalarIndexQuery: query=[a = 2999999]@a_idx(ZONEMAP)" in plan
    assert indexed.scanner(["a"], "a = 2999999").to_table()["a"].to_pylist() == [2999999]


def test_deleted_rows_can_be_read_with_null_ids(ds: LanceDataset) -> None:
    theirs = lance.dataset(ds.uri).scanner(["n"], with_row_id=True, include_deleted_rows=True).to_table()
    ours = ds.to_table(["n"], with_row_id=True, include_deleted_rows=True)
    assert ours.equals(theirs)
    assert ours["_rowid"].null_count == 200 - ds.count_rows() > 0
    with pytest.raises(OptionError, match="with_row_id"):
        ds.to_table(["n"], include_deleted_rows=True)


def test_scanners_count_and_show_the_head(ds: LanceDataset) -> None:
    scanner = ds.scanner(["n"], "n > 2", limit=50, offset=5)
    assert scanner.count_rows() == scanner.to_table().num_rows == 50
    assert scanner.head(3).equals(scanner.to_table().slice(0, 3))
    assert scanner.take([4, 0]).equals(scanner.to_table().take([4, 0]))
    assert ds.scanner(filter=pc.field("n") == 5).count_rows() == ds.count_rows("n = 5")
    assert ds.scanner(offset=10**9).count_rows() == 0


def test_samples_have_each_row_at_most_once(ds: LanceDataset) -> None:
    values = ds.sample(50, ["s.x"], seed=3)["s.x"].to_pylist()
    assert len(set(values)) == 50
    assert values == ds.sample(50, ["s.x"], seed=3)["s.x"].to_pylist()
    assert ds.sample(10**6).num_rows == ds.count_rows()
    ordered = ds.sample(50, ["s.x"], randomize_order=False)["s.x"].to_pylist()
    assert ordered == sorted(ordered)


def test_blobs_are_read_as_bytes_on_demand(tmp_path: Path) -> None:
    blob = pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    data = [b"one", None, b"", b"x" * 100_000, b"five"]
    for version in ("2.0", "2.1"):
        table = pa.table(
            [pa.array(range(5)), pa.array(data, pa.large_binary())], pa.schema([("n", pa.int64()), blob])
        )
        path = str(tmp_path / version)
        result = spark_lance.write_dataset(table, path, max_rows_per_file=2, data_storage_version=version)
        read = result.scanner(["b", "n"], "n > 0", blob_handling="all_binary")
        assert read.to_table()["b"].to_pylist() == data[1:]
        assert read.projected_schema.field("b").type == pa.large_binary()
        assert result.to_table(["b"])["b"].type.num_fields > 1


def test_mistakes_are_answered_in_one_line(ds: LanceDataset) -> None:
    with pytest.raises(OptionTypeError, match=r"columns=\['n'\]"):
        ds.to_table("n")
    with pytest.raises(ColumnNotFoundError, match=r"s.z"):
        ds.to_table(["s.z"])
    with pytest.raises(OptionError, match="Limit must be non-negative"):
        ds.to_table(limit=-1)
    with pytest.raises(OptionTypeError, match="offset must be a whole number"):
        ds.to_table(offset="3")  # type: ignore[arg-type]
    with pytest.raises(OptionTypeError, match="no argument colums"):
        ds.scanner(colums=["n"])
    with pytest.raises(OptionError, match="order_by takes names"):
        ds.scanner(order_by=[3])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="cannot be sorted"):
        ds.to_table(order_by=["v"])
    with pytest.raises(OptionError, match="batch_size"):
        ds.scanner(batch_size=0)


def test_hints_of_others_change_nothing(ds: LanceDataset, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", "spark_lance.datasets.scan_request"):
        table = ds.to_table(["n"], batch_readahead=4, scan_in_order=True, late_materialization=["n"])
    assert table.equals(ds.to_table(["n"]))
    assert "batch_readahead" in caplog.text


def test_a_function_that_failed_goes_on_where_it_ended(tmp_path: Path) -> None:
    result = spark_lance.write_dataset(rows(100), str(tmp_path / "t"), max_rows_per_file=20)
    seen: list[int] = []
    broken = True

    @spark_lance.batch_udf(pa.schema([("z", pa.int64())]), checkpoint_file=tmp_path / "kept.sqlite")
    def compute(batch: pa.RecordBatch) -> pa.RecordBatch:
        first = batch["s"][0]["x"].as_py()
        if first >= 60 and broken:
            raise RuntimeError("not yet")
        seen.append(first)
        return pa.record_batch({"z": pc.struct_field(batch["s"], "x")})

    with pytest.raises(RuntimeError, match="not yet"):
        result.add_columns(compute, read_columns=["s"])
    broken = False
    done = result.add_columns(compute, read_columns=["s"])
    assert seen == [0, 20, 40, 60, 80]
    assert done.to_table(["z"])["z"].to_pylist() == list(range(100))
    assert not (tmp_path / "kept.sqlite").exists()
    (tmp_path / "other").write_text("no database, and long enough to be seen as none")
    other = spark_lance.batch_udf(checkpoint_file=tmp_path / "other")(compute.func)
    with pytest.raises(OptionError, match="not a file of checkpoints"):
        result.add_columns(other)
