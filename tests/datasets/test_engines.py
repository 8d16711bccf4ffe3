"""Tables as other engines see them: Arrow's stream protocol both ways, DuckDB, polars, pandas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

import spark_lance
from spark_lance.datasets.arrow_dataset import ArrowDataset
from spark_lance.datasets.dataset import LanceDataset
from spark_lance.errors import OptionError, SchemaError, UnsupportedFormatError

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
    return Spied(ds.uri, ds.table, ds.manifest)


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
    result = spark_lance.write_dataset(give(rows), str(tmp_path / "t"))
    assert result.to_table().equals(rows)


def test_generators_tell_their_schema_or_are_given_one(tmp_path: Path) -> None:
    rows = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}, SCHEMA)
    result = spark_lance.write_dataset(as_generator(rows), str(tmp_path / "t"), schema=SCHEMA)
    result = result.insert(({"a": i, "b": str(i)} for i in range(9000)), schema=SCHEMA)
    assert result.count_rows() == 9003
    for give in (as_generator, lambda table: iter([table]), lambda table: iter([table.to_pandas()])):
        result = result.insert(give(rows), mode="overwrite")
        assert result.to_table().equals(rows)
    assert result.insert(iter([]), schema=SCHEMA).count_rows() == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: iter([]), "needs the argument schema"),
        (lambda: [], "needs the argument schema"),
        (lambda: ({"a": i} for i in range(2)), "an iterable of dicts needs the argument schema"),
        (lambda: [(1, "x")], "an iterable gave tuple"),
        (lambda: np.zeros((2, 2)), "an iterable gave ndarray"),
        (lambda: pytest.importorskip("pandas").Series([1]), "Series is one column"),
        (lambda: pytest.importorskip("polars").Series([1]), "Series is one column"),
        (lambda: 3, "int cannot be written"),
        (lambda: {"a": [1, "x"], "b": ["y", "z"]}, "cannot be converted to an Arrow table"),
        (lambda: {"a": [1, 2], "b": ["y"]}, "cannot be converted to an Arrow table"),
    ],
)
def test_what_has_no_rows_is_refused(tmp_path: Path, data: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        spark_lance.write_dataset(data(), str(tmp_path / "t"))


def test_dicts_of_rows_may_have_other_keys_than_the_first(tmp_path: Path) -> None:
    result = spark_lance.write_dataset([{"a": 1}, {"a": 2, "b": "x"}, {"c": None}], str(tmp_path / "t"))
    assert result.to_table().to_pydict() == {"a": [1, 2, None], "b": [None, "x", None], "c": [None] * 3}


def test_numbers_of_python_become_those_of_the_table(tmp_path: Path) -> None:
    kinds = {"n": pa.int8(), "x": pa.float32(), "v": pa.list_(pa.float32(), 2), "l": pa.list_(pa.int16())}
    row: dict[str, Any] = {"n": 1, "x": 0.1, "v": [0.5, 0.1], "l": [1, None]}
    result = spark_lance.write_dataset([row], tmp_path / "t", schema=pa.schema(kinds))
    result = result.insert([row]).insert({name: [value] for name, value in row.items()})
    assert result.to_table().to_pylist() == result.to_table().slice(0, 1).to_pylist() * 3
    done = result.merge_insert("n").when_not_matched_insert_all().execute([row, {**row, "n": 2}])
    assert (done.num_inserted_rows, done.dataset.count_rows()) == (1, 4)
    for wrong, message in (
        ({"n": 1000}, "'n' is int64 in the data and int8"),
        ({"x": "1"}, "'x' is string"),
        ({"v": [0.5]}, "double in the data and float"),
        ({"other": 1}, "'other' is not in the table"),
    ):
        with pytest.raises(SchemaError, match=message):
            result.insert([{**row, **wrong}])


@pytest.mark.parametrize("kind", [np.float32, np.int8, np.float16])
def test_matrices_are_vectors(tmp_path: Path, kind: Any) -> None:
    matrix = np.arange(24).reshape(4, 6).astype(kind)[:, ::2]
    result = spark_lance.write_dataset({"id": range(4), "v": matrix}, str(tmp_path / "t"))
    assert result.schema.field("v").type == pa.list_(pa.from_numpy_dtype(kind), 3)
    assert result.to_table()["v"].to_pylist() == matrix.tolist()


def test_named_levels_of_an_index_are_columns(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"id": [5, 6], "a": [1, 2]})
    assert _columns_of(frame.set_index("id"), tmp_path / "named") == {"a": [1, 2], "id": [5, 6]}
    assert _columns_of(frame.iloc[1:], tmp_path / "plain") == {"id": [6], "a": [2]}
    assert _columns_of(frame.set_index("id", drop=False), tmp_path / "both") == {"id": [5, 6], "a": [1, 2]}
    levels = pd.MultiIndex.from_tuples([(1, "x"), (2, "y")], names=["k", None])
    assert _columns_of(pd.DataFrame({"a": [3, 4]}, levels), tmp_path / "some") == {"a": [3, 4], "k": [1, 2]}


def _columns_of(frame: Any, path: Path) -> dict[str, list[Any]]:
    result: dict[str, list[Any]] = spark_lance.write_dataset(frame, path).to_table().to_pydict()
    return result


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
    result = spark_lance.write_dataset(frame, str(tmp_path / "p"))
    assert result.schema.types == [pa.int64(), pa.large_string(), pa.float64()]
    result = result.insert(frame.lazy().filter(pl.col("a") < 5))
    assert result.count_rows() == 105
    nested = pl.DataFrame({"l": [["x", "y"], None], "s": [{"k": "v"}, {"k": None}]})
    back = spark_lance.write_dataset(nested, str(tmp_path / "n"))
    assert back.to_table().to_pylist() == nested.to_dicts()
    coded = pl.DataFrame({"c": pl.Series(["x", "y", None, "x"], dtype=pl.Categorical)})
    back = spark_lance.write_dataset(coded, str(tmp_path / "c"))
    assert back.to_table()["c"].to_pylist() == ["x", "y", None, "x"]
    assert lance.dataset(str(tmp_path / "c")).to_table()["c"].to_pylist() == ["x", "y", None, "x"]


def test_polars_hands_columns_and_conditions_down(ds: LanceDataset) -> None:
    pl = pytest.importorskip("polars")
    seen = spied(ds)
    rows = pl.scan_pyarrow_dataset(seen.to_pyarrow()).filter(pl.col("a") >= 98).select("b").collect()
    assert rows["b"].to_list() == ["row 98", "row 99"]
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
    result = spark_lance.write_dataset(relation, str(tmp_path / "d"))
    assert result.to_table()["a"].to_pylist() == [96, 97, 98, 99]
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
