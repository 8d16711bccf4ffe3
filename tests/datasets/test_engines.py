"""Tables as other engines see them: Arrow's stream protocol both ways, DuckDB, polars, pandas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

import spark_lance
from spark_lance.datasets.arrow_dataset import ArrowDataset
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError, UnsupportedFormatError

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string())])


@pytest.fixture
def ds(tmp_path: Path) -> LanceDataset:
    texts = [f"row {i}" for i in range(100)]
    rows = pa.table({"a": np.arange(100), "b": texts, "c": np.arange(100) * 0.5})
    return spark_lance.write_dataset(rows, str(tmp_path / "t.lance"), max_rows_per_file=30)


class Spied(LanceDataset):
    """Keeps what it is asked for."""

    def scanner(self, columns: Any = None, filter: Any = None, *args: Any, **options: Any) -> Any:
        self.__dict__.setdefault("asked", []).append((columns, filter))
        return super().scanner(columns, filter, *args, **options)


def spied(ds: LanceDataset) -> Spied:
    return Spied(ds.uri, ds.store, ds.root, ds.manifest)


def test_tables_fragments_and_scanners_export_streams(ds: LanceDataset) -> None:
    assert pa.table(ds).equals(ds.to_table())
    assert pa.RecordBatchReader.from_stream(ds).read_all().equals(ds.to_table())
    assert pa.table(ds.get_fragments()[1])["a"].to_pylist() == list(range(30, 60))
    assert pa.table(ds.scanner(["b"], "a < 2"))["b"].to_pylist() == ["row 0", "row 1"]
    assert pa.schema(ds) == ds.schema


def as_generator(table: pa.Table) -> Iterator[pa.RecordBatch]:
    yield from table.to_batches(max_chunksize=2)


@pytest.mark.parametrize(
    "give",
    [
        lambda table: table,
        lambda table: table.to_pandas(),
        lambda table: table.to_pydict(),
        lambda table: table.to_pylist(),
        lambda table: table.to_batches(max_chunksize=2),
        lambda table: table.to_reader(),
        lambda table: pyarrow.dataset.dataset(table),
        lambda table: pyarrow.dataset.dataset(table).scanner(),
    ],
    ids=["table", "pandas", "dict", "dicts", "batches", "reader", "dataset", "scanner"],
)
def test_whatever_has_rows_can_be_written(tmp_path: Path, give: Any) -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", None]}, SCHEMA)
    made = spark_lance.write_dataset(give(rows), str(tmp_path / "t"))
    assert made.to_table().equals(rows)


def test_generators_need_a_schema(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}, SCHEMA)
    made = spark_lance.write_dataset(as_generator(rows), str(tmp_path / "t"), schema=SCHEMA)
    made = made.insert(({"a": i, "b": str(i)} for i in range(9000)), schema=SCHEMA)
    assert made.count_rows() == 9003
    with pytest.raises(OptionError, match="needs the argument schema"):
        made.insert(as_generator(rows))
    with pytest.raises(OptionError, match="int cannot be written"):
        made.insert(3)
    with pytest.raises(OptionError, match="make no Arrow table"):
        made.insert({"a": [1, "x"], "b": ["y", "z"]})


def test_tables_are_written_from_tables(ds: LanceDataset, tmp_path: Path) -> None:
    copied = spark_lance.write_dataset(ds, str(tmp_path / "copy"))
    assert copied.to_table().equals(ds.to_table())
    assert copied.insert(ds.scanner(["c", "b", "a"], "a < 3")).count_rows() == 103
    assert copied.insert(ds.get_fragment(0)).count_rows() == 133
    assert spark_lance.write_dataset(ds, copied, "overwrite").version == 4


def test_polars_both_ways(ds: LanceDataset, tmp_path: Path) -> None:
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(ds)
    assert frame.shape == (100, 3)
    made = spark_lance.write_dataset(frame, str(tmp_path / "p"))
    assert made.schema.types == [pa.int64(), pa.large_string(), pa.float64()]
    made = made.insert(frame.lazy().filter(pl.col("a") < 5))
    assert made.count_rows() == 105
    nested = pl.DataFrame({"l": [["x", "y"], None], "s": [{"k": "v"}, {"k": None}]})
    back = spark_lance.write_dataset(nested, str(tmp_path / "n"))
    assert back.to_table().to_pylist() == nested.to_dicts()


def test_polars_hands_columns_and_conditions_down(ds: LanceDataset) -> None:
    pl = pytest.importorskip("polars")
    seen = spied(ds)
    found = pl.scan_pyarrow_dataset(seen.to_pyarrow()).filter(pl.col("a") >= 98).select("b").collect()
    assert found["b"].to_list() == ["row 98", "row 99"]
    columns, filter = seen.__dict__["asked"][-1]
    assert "c" not in columns
    assert filter is not None
    assert ds.to_polars().select(pl.len()).collect().item() == 100


def test_duckdb_both_ways(ds: LanceDataset, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    viewed = ds.to_pyarrow()  # noqa: F841 (DuckDB finds it by its name)
    assert duckdb.sql("select sum(a) from viewed").fetchall() == [(4950,)]
    assert duckdb.sql("select count(*) from ds where a % 2 = 0").fetchall() == [(50,)]
    relation = duckdb.sql("select a::bigint as a, b from viewed where a > 95")
    made = spark_lance.write_dataset(relation, str(tmp_path / "d"))
    assert made.to_table()["a"].to_pylist() == [96, 97, 98, 99]
    assert ds.sql("select max(a) as m, min(b) as b from dataset").to_pylist() == [{"m": 99, "b": "row 0"}]


def test_duckdb_hands_columns_and_conditions_down(ds: LanceDataset) -> None:
    duckdb = pytest.importorskip("duckdb")
    seen = spied(ds)
    viewed = seen.to_pyarrow()  # noqa: F841
    assert duckdb.sql("select b from viewed where a > 97").fetchall() == [("row 98",), ("row 99",)]
    columns, filter = seen.__dict__["asked"][-1]
    assert "b" in columns
    assert "c" not in columns
    assert filter is not None


def test_nothing_of_the_dataset_shape_reaches_for_what_is_not_there(ds: LanceDataset) -> None:
    table = ds.to_pyarrow()
    base = {name for name in dir(pyarrow.dataset.Dataset) if not name.startswith("_")}
    assert base <= vars(ArrowDataset).keys()
    for name in ("join", "filter", "sort_by", "replace_schema", "join_asof", "get_fragments"):
        with pytest.raises(UnsupportedFormatError):
            getattr(table, name)()
    assert table.head(2)["a"].to_pylist() == [0, 1]
    assert table.take([5, 1])["a"].to_pylist() == [5, 1]
    assert table.count_rows() == 100


def test_a_table_shows_itself(ds: LanceDataset) -> None:
    text = repr(ds)
    assert "\n" not in text
    assert text.endswith("version=1, rows=100, columns=[a, b, c])")
    html = ds._repr_html_()
    assert html.count("<tr>") == 6
    assert "row 4" in html
    assert len(ds) == 100
