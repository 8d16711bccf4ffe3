"""DROP TABLE, PURGE and CASCADE in SQL: what links lead to stays, and a name can be used again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import spark_lance

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_drops_leave_what_links_lead_to(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    spark_lance.enable(session, catalog="drops", root=str(tmp_path / "drops"))
    session.sql("CREATE NAMESPACE drops.db")
    precious = tmp_path / "precious" / "x.lance"
    precious.parent.mkdir()
    precious.write_text("precious")
    for statement in (
        "DROP TABLE drops.db.t",
        "DROP TABLE drops.db.t PURGE",
        "DROP NAMESPACE drops.db CASCADE",
    ):
        session.sql("CREATE TABLE drops.db.t AS SELECT 1 AS a")
        (folder,) = (tmp_path / "drops").glob("*_db$t")
        (folder / "more").symlink_to(precious.parent)
        session.sql(statement)
        assert [path.name for path in (tmp_path / "drops").iterdir()] == ["__manifest"]
        assert precious.read_text() == "precious"
    assert session.sql("SHOW NAMESPACES IN drops").collect() == []
