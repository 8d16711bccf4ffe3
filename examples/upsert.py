"""Delete, update and merge rows of a table from Spark, with a check after every step.

    python examples/upsert.py [--dir FOLDER]

Needs PySpark and Java; runs in a few seconds. The table is in FOLDER, by default a temporary folder.
"""

from __future__ import annotations

import sys

from _steps import check, run_steps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_lance import LanceTable


def show(title: str, result: DataFrame) -> dict[str, int]:
    """Print the result of an operation and return it."""
    numbers: dict[str, int] = result.collect()[0].asDict()
    print(f"{title}: {numbers}")
    return numbers


def run(spark: SparkSession, path: str) -> None:
    """Create a table of customers and change it."""
    customers = spark.range(1000).selectExpr(
        "id",
        "concat('customer ', id) AS name",
        "cast(id % 7 AS int) AS visits",
        "named_struct('city', 'Bonn', 'zip', 53111) AS address",
    )
    customers.write.format("lance").mode("append").option("enable_stable_row_ids", "true").save(path)
    table = LanceTable.forPath(spark, path).alias("t")

    result = show("delete", table.delete("visits = 0"))
    check("deleted rows", result["num_deleted_rows"], 143)

    result = show(
        "update", table.update(F.col("id") < 100, {"visits": "visits + 1", "address.city": "'Köln'"})
    )
    check("updated rows", result["num_updated_rows"], 85)
    in_koeln = table.toDF().where("address.city = 'Köln'").count()
    check("customers in Köln", in_koeln, 85)

    changes = spark.sql(
        """SELECT id, concat('renamed ', id) AS name, cast(id % 10 AS int) AS visits
           FROM range(900, 1100)"""
    ).alias("s")
    result = show(
        "merge",
        table.merge(changes, "t.id = s.id")
        .whenMatchedDelete("s.visits = 9")
        .whenMatchedUpdate(set={"name": "s.name", "visits": "t.visits + s.visits"})
        .whenNotMatchedInsert("s.id >= 1000", {"id": "s.id", "name": "s.name"})
        .execute(),
    )
    check("merged rows", [result["num_updated_rows"], result["num_deleted_rows"]], [77, 9])
    check("inserted rows", result["num_inserted_rows"], 100)
    check("rows", table.toDF().count(), 857 - 9 + 100)

    # The same source again: its rows exist now, so none is inserted.
    again = table.merge(changes, "t.id = s.id").whenNotMatchedInsert("s.id >= 1000", {"id": "s.id"})
    check("inserted again", show("merge", again.execute())["num_inserted_rows"], 0)

    scores = spark.sql("SELECT id, 0.5D AS score FROM range(1, 4)").alias("s")
    merge = table.merge(scores, "t.id = s.id").withSchemaEvolution().whenMatchedUpdateAll()
    check("rows with a score", show("merge with a new column", merge.execute())["num_updated_rows"], 3)
    check("columns", table.toDF().columns, ["id", "name", "visits", "address", "score"])


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "customers", run))
