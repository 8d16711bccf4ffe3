"""The distance functions are what searches of pylance call `_distance`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import spark_lance

FUNCTIONS = {"l2": "l2_distance", "cosine": "cosine_distance", "dot": "dot_distance"}


@pytest.mark.parametrize("metric", FUNCTIONS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(pa.float32(), np.float32), pytest.param(pa.float64(), np.float64, marks=pytest.mark.slow)],
)
def test_distances_are_those_of_the_reference(
    spark: SparkSession, tmp_path: Path, metric: str, kind: pa.DataType, dtype: type
) -> None:
    draw = np.random.default_rng(4)
    vectors: npt.NDArray[Any] = draw.normal(size=(200, 12)).astype(dtype)
    vectors[:3] = [[0] * 12, [1e-20] * 12, [1e4] * 12]
    query = draw.normal(size=12).astype(np.float32)
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), kind), 12)
    lance.write_dataset(pa.table({"id": range(200), "v": array}), str(tmp_path / "t.lance"))
    near = {"column": "v", "q": query.astype(dtype), "k": 200, "metric": metric}
    result = lance.dataset(str(tmp_path / "t.lance")).to_table(columns=["id", "_distance"], nearest=near)
    expected = dict(zip(*(column.to_pylist() for column in result.columns), strict=True))
    session = spark_lance.enable(spark.newSession())
    constant = ", ".join(f"CAST({value!r} AS DOUBLE)" for value in query.tolist())
    rows = session.sql(
        f"SELECT id, {FUNCTIONS[metric]}(v, array({constant})) AS d FROM lance.`{tmp_path}/t.lance`"
    ).collect()
    ours = {row.id: row.d for row in rows}
    # A vector without a direction has no cosine there.
    assert set(expected) <= set(ours)
    assert len(expected) >= 199
    for number, distance in expected.items():
        assert ours[number] == pytest.approx(distance, rel=2e-4, abs=2e-5), number
    nearest = sorted(expected, key=lambda number: (expected[number], number))[:10]
    assert len(set(nearest) & set(sorted(ours, key=lambda number: (ours[number], number))[:10])) >= 9
