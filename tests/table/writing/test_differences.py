"""What is told of rows that do not fit: types that differ, with the remedy, and the row that is to blame."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import spark_lance
from spark_lance.errors import SchemaError
from spark_lance.file.base.schema import Schema
from spark_lance.table.writing.align import Aligner, TypeDifference, row_text


def test_types_are_listed_with_the_cast(tmp_path: Path) -> None:
    rows = pa.table(
        {"a": pa.array([1], pa.int32()), "b": ["x"], "v": pa.array([[1.0]], pa.list_(pa.float32()))}
    )
    spark_lance.write_dataset(rows, tmp_path / "t")
    other = pa.table({"a": ["1"], "b": pa.array([{"x": 1}]), "v": pa.array([[1.0]], pa.list_(pa.float64()))})
    with pytest.raises(SchemaError) as caught:
        spark_lance.write_dataset(other, tmp_path / "t", mode="append")
    assert str(caught.value).splitlines() == [
        "the data does not fit the table:",
        "  - column 'a' is string in the data and int32 in the table"
        "; cast it to int32, or all by data.cast(dataset.schema)",
        "  - column 'b' is struct<x: int64> in the data and string in the table",
        "  - column 'v[]' is double in the data and float in the table"
        "; cast it to float, or all by data.cast(dataset.schema)",
    ]
    fitting = other.set_column(1, "b", pa.array(["y"]))
    cast = fitting.cast(spark_lance.dataset(tmp_path / "t").schema)
    assert spark_lance.write_dataset(cast, tmp_path / "t", mode="append").count_rows() == 2
    assert caught.value.differences[0] == TypeDifference("a", pa.string(), pa.int32())


@pytest.mark.parametrize("nulls", [False, True])
def test_a_vector_of_another_length_shows_its_row(nulls: bool) -> None:
    target = Schema.from_arrow(
        pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.list_(pa.float32(), 3))])
    )
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [10, 11, 12],
            "v": pa.array([None if nulls else [1, 2, 3], [1, 2, 3], [1, 2]], pa.list_(pa.float32())),
        }
    )
    for given in (batch, batch.slice(1)):
        with pytest.raises(SchemaError) as caught:
            Aligner(batch.schema, target).align(given)
        assert str(caught.value) == (
            "column 'v' holds vectors of length 3; a value has 2 elements, in row {id: 12, v: [1.0, 2.0]}"
        )


def test_a_vector_inside_a_struct_shows_no_row() -> None:
    kind = pa.list_(pa.float32(), 3)
    target = Schema.from_arrow(pa.schema([pa.field("s", pa.struct([pa.field("v", kind)]))]))
    batch = pa.RecordBatch.from_pydict(
        {"s": pa.array([{"v": [1, 2]}], pa.struct([pa.field("v", pa.list_(pa.float32()))]))}
    )
    with pytest.raises(SchemaError, match=r"column 's.v' holds vectors of length 3; a value has 2 elements$"):
        Aligner(batch.schema, target).align(batch)


def test_rows_are_cut_to_what_fits_into_a_message() -> None:
    batch = pa.RecordBatch.from_pydict({f"c{n}": ["x" * 100] for n in range(9)})
    text = row_text(batch, 0)
    assert text.startswith("{c0: 'xxx")
    assert text.endswith("..., ...}")
    assert len(text) < 300
