"""Other programs read a table of ours with deletions, later columns, blobs and nested values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import spark_lance

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBER = 60
PLAIN = ["id", "text", "point", "lists", "vector", "twice"]
REASON = "needs a package that is no dependency of the tests"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of several fragments, whose rows and columns were changed after the first write."""
    path = str(tmp_path_factory.mktemp("programs") / "t.lance")
    points = [None if i % 7 == 0 else {"x": i, "tags": ["a", None, str(i)][: i % 4]} for i in range(NUMBER)]
    lists = [None if i % 6 == 0 else [[i], None, []][: i % 4] for i in range(NUMBER)]
    table = pa.table(
        {
            "id": pa.array(range(NUMBER)),
            "text": [f"row {i}" if i % 5 else None for i in range(NUMBER)],
            "point": pa.array(points),
            "lists": pa.array(lists, pa.list_(pa.list_(pa.int64()))),
            "vector": pa.array([[float(i)] * 4 for i in range(NUMBER)], pa.list_(pa.float32(), 4)),
        }
    )
    picture = pa.field("picture", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    table = table.append_column(
        picture, pa.array([b"%d" % i * 100 for i in range(NUMBER)], pa.large_binary())
    )
    dataset = spark_lance.write_dataset(table, path, data_storage_version="2.1", max_rows_per_file=25)
    dataset.add_columns({"twice": "id * 2"}).delete("id % 4 = 1").update({"text": "'new'"}, where="id = 2")
    return path


def plain(value: Any) -> Any:
    """Return a value with lists instead of arrays."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    return value


def assert_rows(rows: list[dict[str, Any]], path: str) -> None:
    expected = {row["id"]: row for row in spark_lance.dataset(path).to_table(PLAIN).to_pylist()}
    assert len(rows) == len(expected) == 45
    assert expected[2]["text"] == "new"
    assert {row["id"]: {name: plain(row[name]) for name in PLAIN} for row in rows} == plain(expected)


def assert_pictures(rows: list[dict[str, Any]]) -> None:
    assert all(bytes(row["picture"]) == b"%d" % row["id"] * 100 for row in rows)


def test_duckdb(path: str) -> None:
    """Through pylance's dataset; DuckDB's own extension cannot be installed from a package registry."""
    duckdb = pytest.importorskip("duckdb", reason=REASON)
    theirs = lance.dataset(path)  # noqa: F841 - DuckDB finds the variable by its name
    assert_rows(duckdb.sql(f"select {', '.join(PLAIN)} from theirs").to_arrow_table().to_pylist(), path)


def test_polars(path: str) -> None:
    polars = pytest.importorskip("polars", reason=REASON)
    frame = polars.scan_pyarrow_dataset(lance.dataset(path)).select(PLAIN).filter(polars.col("id") >= 0)
    assert_rows(frame.collect().to_dicts(), path)


def test_datafusion(path: str) -> None:
    datafusion = pytest.importorskip("datafusion", reason=REASON)
    context = datafusion.SessionContext()
    context.register_record_batches("t", [lance.dataset(path).to_table(PLAIN).to_batches()])
    assert_rows(context.sql("select * from t order by id").to_arrow_table().to_pylist(), path)


def test_daft(path: str) -> None:
    pytest.importorskip("daft_lance", reason=REASON)
    daft = pytest.importorskip("daft", reason=REASON)
    assert_rows(daft.read_lance(path).select(*PLAIN).to_arrow().to_pylist(), path)


def test_hugging_face(path: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason=REASON)
    loaded = datasets.load_dataset("lance", data_files=f"{path}/**", split="train", cache_dir=str(tmp_path))
    rows = loaded.with_format("arrow")[:].to_pylist()
    assert_rows(rows, path)
    assert_pictures(rows)


def test_ray(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")  # Ray changes it.
    ray = pytest.importorskip("ray", reason=REASON)
    lance_ray = pytest.importorskip("lance_ray", reason=REASON)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    try:
        rows = lance_ray.read_lance(path).take_all()
        assert_rows(rows, path)
        assert_pictures(rows)
        assert_rows(ray.data.read_lance(path, columns=PLAIN).take_all(), path)
        lance_ray.write_lance(lance_ray.read_lance(path, columns=PLAIN), str(tmp_path / "ray.lance"))
        assert_rows(spark_lance.dataset(str(tmp_path / "ray.lance")).to_table().to_pylist(), path)
    finally:
        ray.shutdown()
