"""Use SQL on a Lance table through views, and read its metadata: history, files, fragments.

    python examples/metadata_and_sql.py [--dir FOLDER]

Needs PySpark and Java; runs in a few seconds. The table is in FOLDER, by default a temporary folder.
"""

from __future__ import annotations

import sys
from typing import Any

from _steps import check, run_steps
from pyspark.sql import DataFrame, SparkSession

import spark_lance


def sql(spark: SparkSession, path: str) -> None:
    """Fill a table and query it in SQL alone; the table is made by Python, as a view needs one."""
    spark.range(0).selectExpr("id", "'' AS city", "0D AS amount").write.format("lance").mode("append").save(
        path
    )
    # One set of options serves SELECT and INSERT; each takes its own.
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW orders USING lance OPTIONS (path '{path}', commit_message 'SQL')"
    )
    for first in (0, 1000):
        spark.sql(
            f"""INSERT INTO orders
                SELECT id, element_at(array('Bonn', 'Köln', 'Ulm'), cast(id % 3 AS int) + 1), id / 4D
                FROM range({first}, {first + 1000})"""
        )
    check("orders in the view, which sees what was written through it", spark.table("orders").count(), 2000)
    cities = spark.sql(
        "SELECT city, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY city ORDER BY 1"
    )
    cities.show()
    check("orders in Bonn", cities.first(), ("Bonn", 667, 166_583.25))

    spark.sql(f"CREATE TEMPORARY VIEW orders_before USING lance OPTIONS (path '{path}', version 2)")
    more = spark.sql("SELECT count(*) FROM orders WHERE id NOT IN (SELECT id FROM orders_before)").first()
    check("orders since version 2", more, (1000,))


def metadata(spark: SparkSession, path: str) -> None:
    """Read what is known of the table, after a delete and a tag."""
    table = spark_lance.dataset(path).delete("city = 'Ulm'")
    table.tags.create("without-ulm")

    def read(name: str, **options: Any) -> DataFrame:
        return spark.read.format("lance").option("table", name).options(**options).load(path)

    history = read("history").selectExpr(
        *("version", "operation", "userMetadata"),
        *("operationMetrics.numOutputRows AS written", "operationMetrics.numDeletedRows AS deleted"),
    )
    history.show()
    check(
        "what made the versions",
        [row.operation for row in history.collect()][:3],
        ["DELETE", "WRITE", "WRITE"],
    )
    check("rows deleted", history.where("operation = 'DELETE'").first()["deleted"], "666")  # type: ignore[index]

    fragments = read("fragments").select("id", "rows", "deleted_rows", "bytes")
    fragments.show()
    check("live rows", fragments.groupBy().sum("rows").first(), (1334,))
    check("rows of version 2", read("fragments", version=2).groupBy().sum("rows").first(), (1000,))

    files = read("files").where("role = 'data'").join(read("schema").where("parent_id IS NULL"), how="cross")
    check("data files times columns", files.count(), read("files", filter="role = 'data'").count() * 3)
    check("tags", [(row.name, row.version) for row in read("tags").collect()], [("without-ulm", 4)])


def run(spark: SparkSession, path: str) -> None:
    """Run all steps."""
    sql(spark_lance.enable(spark), path)
    metadata(spark, path)


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "orders", run))
