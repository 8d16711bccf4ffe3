"""Text that is not UTF-8 is refused by every statement of Spark, with column and row."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_lance
from spark_lance.spark.table.table import LanceTable

REFUSED = r"not UTF-8 \(byte 0xC3 at 0\): store it as BINARY"


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> SparkSession:
    own = spark.newSession()
    spark_lance.enable(own, root=str(tmp_path / "tables"))
    return own


def test_statements(session: SparkSession, tmp_path: Path) -> None:
    session.sql("CREATE TABLE lance.t (id BIGINT, s STRING, l ARRAY<STRING>)")
    session.sql("INSERT INTO lance.t VALUES (1, 'a', array('x')), (2, 'ä', null)")
    bad = "CAST(X'C3' AS STRING)"
    statements = [
        f"INSERT INTO lance.t VALUES (3, {bad}, null)",
        f"INSERT INTO lance.t SELECT id, {bad}, null FROM range(3)",
        f"INSERT INTO lance.t VALUES (3, 'b', array('x', {bad}))",
        f"INSERT OVERWRITE lance.t SELECT 1L, {bad}, null",
        f"UPDATE lance.t SET s = {bad} WHERE id = 1",
        f"MERGE INTO lance.t t USING (SELECT 1L id, {bad} s) u ON t.id = u.id "
        "WHEN MATCHED THEN UPDATE SET s = u.s",
        f"MERGE INTO lance.t t USING (SELECT 9L id, {bad} s) u ON t.id = u.id "
        "WHEN NOT MATCHED THEN INSERT (id, s, l) VALUES (u.id, u.s, null)",
        f"CREATE TABLE lance.u USING lance AS SELECT {bad} s",
    ]
    for statement in statements:
        with pytest.raises(Exception, match=REFUSED):
            session.sql(statement)
    assert session.sql("SELECT id, s FROM lance.t ORDER BY id").collect() == [(1, "a"), (2, "ä")]


def test_frames_and_files(session: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    log = tmp_path / "latin1.log"
    log.write_bytes("ok\ncaf\xe9 au lait\n".encode("latin-1"))
    frame = session.read.text(str(log))
    with pytest.raises(Exception, match=r"column 'value', row \d+ .*byte 0xE9 at 3"):
        frame.write.format("lance").mode("append").save(path)
    decoded = session.read.format("binaryFile").load(str(log)).selectExpr("decode(content, 'ISO-8859-1') s")
    decoded.write.format("lance").mode("append").save(path)
    assert "café" in session.read.format("lance").load(path).collect()[0].s
    table = LanceTable.forPath(session, path)
    with pytest.raises(Exception, match=REFUSED):
        table.update(set={"s": "CAST(X'C3' AS STRING)"})
