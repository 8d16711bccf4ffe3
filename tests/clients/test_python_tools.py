"""Python tools on a session with a Lance catalog: pandas API on Spark, ibis, pandera, Great Expectations.

`make test` installs pandas only. The others need
`pip install ibis-framework pyarrow-hotfix sqlglot rich pandera great-expectations`.
A tool that is not installed is skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import spark_lance

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def session(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    session = spark.newSession()
    spark_lance.enable(session, root=str(tmp_path_factory.mktemp("tools")), save_modes=True)
    session.sql("CREATE NAMESPACE lance.d").collect()
    session.sql("CREATE TABLE lance.d.t (id BIGINT, name STRING, price DOUBLE)").collect()
    session.sql("INSERT INTO lance.d.t VALUES (1, 'pen', 1.5), (2, 'book', 12), (3, 'ink', NULL)").collect()
    return session


@pytest.mark.filterwarnings("ignore")  # advice about indexes and collected rows
def test_pandas_api_on_spark(session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the active session, and the options `mode` and `path` of its writes are Spark's."""
    ps: Any = pytest.importorskip("pyspark.pandas")
    monkeypatch.setattr(SparkSession, "getActiveSession", classmethod(lambda cls: session))
    frame = ps.read_table("lance.d.t", index_col="id")
    assert sorted(frame[frame.price > 1].name.to_numpy()) == ["book", "pen"]
    assert frame.price.sum() == 13.5
    path = str(tmp_path / "p")
    frame.spark.to_spark_io(path, format="lance", mode="overwrite", index_col="id")
    again = ps.read_spark_io(path, format="lance", index_col="id")
    assert sorted(again.columns) == ["name", "price"]
    assert len(again) == 3
    frame[["name"]].spark.to_table("lance.d.names", format="lance", mode="overwrite", index_col="id")
    assert session.table("lance.d.names").count() == 3
    assert ps.sql("SELECT id, price FROM lance.d.t", index_col="id").price.max() == 12


def test_ibis(session: SparkSession) -> None:
    ibis: Any = pytest.importorskip("ibis")
    connection = ibis.pyspark.connect(session)
    table = connection.table("t", database=("lance", "d"))
    assert table.schema().names == ("id", "name", "price")
    cheap = table.filter(table.price < 10).select("id", "name").execute()
    assert cheap.to_numpy().tolist() == [[1, "pen"]]
    assert table.name.upper().execute().tolist() == ["PEN", "BOOK", "INK"]
    assert "t" in connection.list_tables(database=("lance", "d"))
    connection.create_table("ordered", table.order_by("id"), database=("lance", "d"), format="lance")
    connection.insert("ordered", table.filter(table.id == 1), database=("lance", "d"))
    assert connection.table("ordered", database=("lance", "d")).count().execute() == 4
    # drop_table of ibis 12.0 leaves out the name with sqlglot 30.
    connection.raw_sql("DROP TABLE lance.d.ordered")
    assert "ordered" not in connection.list_tables(database=("lance", "d"))


def test_pandera(session: SparkSession) -> None:
    pytest.importorskip("pandera")
    pa: Any = pytest.importorskip("pandera.pyspark")
    types: Any = pytest.importorskip("pyspark.sql.types")
    schema = pa.DataFrameSchema(
        {
            "id": pa.Column(types.LongType(), pa.Check.gt(0)),
            "name": pa.Column(types.StringType()),
            "price": pa.Column(types.DoubleType(), pa.Check.lt(10), nullable=True),
        }
    )
    checked = schema.validate(session.table("lance.d.t"))
    errors = dict(checked.pandera.errors)
    (failure,) = errors["DATA"]["DATAFRAME_CHECK"]
    assert failure["column"] == "price"
    assert not dict(schema.validate(session.table("lance.d.t").where("price < 10")).pandera.errors)


def test_great_expectations(session: SparkSession) -> None:
    gx: Any = pytest.importorskip("great_expectations")
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    asset = context.data_sources.add_spark("lance").add_dataframe_asset("t")
    batch = asset.add_batch_definition_whole_dataframe("whole").get_batch(
        {"dataframe": session.table("lance.d.t")}
    )
    assert batch.validate(gx.expectations.ExpectColumnValuesToBeUnique(column="id")).success
    failed = batch.validate(gx.expectations.ExpectColumnValuesToNotBeNull(column="price"))
    assert not failed.success
    assert failed.result["unexpected_count"] == 1
    bounds = gx.expectations.ExpectColumnValuesToBeBetween(column="price", min_value=0, max_value=20)
    assert batch.validate(bounds).success
