"""Statements of a Spark Connect client that has `pyspark-client` only: neither Java nor this package.

python connect_client.py ADDRESS FOLDER      prints "done"
python connect_client.py ADDRESS FILE.json   prints the outcomes of SQL statements as JSON
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def main(address: str, folder: str) -> None:
    """Write and read by path and by name."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    path = f"{folder}/p"
    spark.range(10).withColumn("name", f.lit("a")).write.format("lance").mode("append").save(path)
    spark.range(10, 12).withColumn("name", f.lit("b")).write.format("lance").mode("append").save(path)
    assert spark.read.format("lance").load(path).where("id > 8").count() == 3
    assert spark.read.format("lance").option("version", 1).load(path).count() == 10
    history = spark.read.format("lance").option("table", "history").load(path)
    assert [row.operation for row in history.orderBy("version").collect()][-1] == "WRITE"

    spark.sql("CREATE TABLE lance.d.c (id BIGINT NOT NULL, name STRING)").collect()
    spark.createDataFrame([(1, "a"), (2, "b"), (3, "c")], "id bigint, name string").writeTo(
        "lance.d.c"
    ).append()
    (updated,) = spark.sql("UPDATE lance.d.c SET name = 'x' WHERE id = 2").collect()
    (deleted,) = spark.sql("DELETE FROM lance.d.c WHERE id = 3").collect()
    (merged,) = spark.sql(
        "MERGE INTO lance.d.c t USING (SELECT 4L id, 'n' name) s ON t.id = s.id "
        "WHEN NOT MATCHED THEN INSERT *"
    ).collect()
    assert (updated.num_affected_rows, deleted.num_affected_rows, merged.num_inserted_rows) == (1, 1, 1)
    assert sorted(map(tuple, spark.table("lance.d.c").collect())) == [(1, "a"), (2, "x"), (4, "n")]
    assert spark.sql("SELECT * FROM lance.d.c VERSION AS OF 2").count() == 3
    assert spark.sql("OPTIMIZE lance.d.c").count() == 1
    assert spark.sql("DESCRIBE HISTORY lance.d.c").where("operation = 'DELETE'").count() == 1
    spark.sql("ALTER TABLE lance.d.c CREATE TAG first AS OF VERSION 2").collect()
    assert spark.sql("SELECT * FROM lance.d.c.tag_first").count() == 3
    spark.sql("CALL lance.system.rollback_to_snapshot('d.c', 2)").collect()
    assert spark.table("lance.d.c").count() == 3
    # Settings of a client's session take effect.
    spark.sql("SET spark.lance.planInDriver=false").collect()
    assert spark.conf.get("spark.lance.planInDriver") == "false"
    assert spark.table("lance.d.c").where("id > 1").count() == 2
    sys.stdout.write("done\n")


def outcomes(session: SparkSession, statements: list[str]) -> list[str]:
    """Return the error of each statement, empty for a statement that works."""
    errors = []
    for statement in statements:
        try:
            session.sql(statement).collect()
            errors.append("")
        except PySparkException as error:
            errors.append(str(error))
    return errors


if __name__ == "__main__":
    if sys.argv[2].endswith(".json"):
        with open(sys.argv[2]) as file:
            remote = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
            sys.stdout.write(json.dumps(outcomes(remote, json.load(file))))
    else:
        main(*sys.argv[1:])
