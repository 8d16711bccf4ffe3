"""Delete, update and merge rows of a table from Spark, with a check after every step.

    python examples/upsert.py [--dir FOLDER]

Needs PySpark and Java; runs in a few seconds. FOLDER takes the table, a temporary one by default.
"""

from __future__ import annotations

import sys

from _steps import check, run_steps
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_lance import LanceTable


def show(title: str, done: DataFrame) -> dict[str, int]:
    """Print what an operation did and return it."""
    numbers: dict[str, int] = done.collect()[0].asDict()
    print(f"{title}: {numbers}")
    return numbers


def run(spark: SparkSession, path: str) -> None:
    """Make a table of customers and change it."""
    customers = spark.range(1000).selectExpr(
        "id",
        "concat('customer ', id) AS name",
        "cast(id % 7 AS int) AS visits",
        "named_struct('city', 'Bonn', 'zip', 53111) AS address",
    )
    customers.write.format("lance").mode("append").option("enable_stable_row_ids", "true").save(path)
    table = LanceTable.forPath(spark, path).alias("t")

    done = show("delete", table.delete("visits = 0"))
    check("deleted rows", done["num_deleted_rows"], 143)

    done = show("update", table.update(F.col("id") < 100, {"visits": "visits + 1", "address.city": "'Köln'"}))
    check("updated rows", done["num_updated_rows"], 85)
    moved = table.toDF().where("address.city = 'Köln'").count()
    check("customers in Köln", moved, 85)

    changes = spark.sql(
        """SELECT id, concat('renamed ', id) AS name, cast(id % 10 AS int) AS visits
           FROM range(900, 1100)"""
    ).alias("s")
    done = show(
        "merge",
        table.merge(changes, "t.id = s.id")
        .whenMatchedDelete("s.visits = 9")
        .whenMatchedUpdate(set={"name": "s.name", "visits": "t.visits + s.visits"})
        .whenNotMatchedInsert("s.id >= 1000", {"id": "s.id", "name": "s.name"})
        .execute(),
    )
    check("merged rows", [done["num_updated_rows"], done["num_deleted_rows"]], [77, 9])
    check("inserted rows", done["num_inserted_rows"], 100)
    check("rows", table.toDF().count(), 857 - 9 + 100)

    # The same source again: what was inserted is found now.
    again = table.merge(changes, "t.id = s.id").whenNotMatchedInsert("s.id >= 1000", {"id": "s.id"})
    check("inserted again", show("merge", again.execute())["num_inserted_rows"], 0)

    scores = spark.sql("SELECT id, 0.5D AS score FROM range(1, 4)").alias("s")
    merge = table.merge(scores, "t.id = s.id").withSchemaEvolution().whenMatchedUpdateAll()
    check("rows with a score", show("merge with a new column", merge.execute())["num_updated_rows"], 3)
    check("columns", table.toDF().columns, ["id", "name", "visits", "address", "score"])


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "customers", run))
