"""Index vectors and words with Spark and search them, with a check after every step.

    python examples/search.py [--dir FOLDER]

The vectors are the handwritten digits of scikit-learn: a digit's nearest neighbours are mostly the same
digit. Needs PySpark, scikit-learn and Java; runs in half a minute. The table is in FOLDER, by default
a temporary folder.
"""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
from _steps import confirm, run_steps
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from sklearn.datasets import load_digits

import spark_lance
from spark_lance import LanceTable

NAMES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def run(spark: SparkSession, path: str) -> None:
    """Index the digits and look for them by picture, by words and by number."""
    data = load_digits()
    pictures = data.data.astype(np.float32)
    train_rows, test_rows = slice(0, 1600), slice(1600, 1797)
    rows = pa.table(
        {
            "id": np.arange(1600),
            "digit": data.target[train_rows],
            "picture": pa.FixedSizeListArray.from_arrays(pa.array(pictures[train_rows].reshape(-1)), 64),
            "text": [
                f"a handwritten {NAMES[digit]}, number {i}" for i, digit in enumerate(data.target[train_rows])
            ],
        }
    )
    spark_lance.write_dataset(rows, path, max_rows_per_file=400)
    table = LanceTable.forPath(spark, path)

    table.createIndex("picture", "IVF_SQ", numPartitions=8)
    table.createScalarIndex("id", "BTREE")
    table.createScalarIndex("text", "INVERTED")
    indices = {row.name: row.type for row in table.indices().collect()}
    confirm("indices", indices, len(indices) == 3)

    query = pictures[1600].tolist()
    hits = table.search(query, "picture", 5, columns=["id", "digit"]).collect()
    same = sum(row.digit == data.target[1600] for row in hits)
    confirm(f"neighbours of a {data.target[1600]}", [row.digit for row in hits], same >= 4)

    threes = table.search(query, "picture", 5, filter="digit = 3", columns=["digit"]).collect()
    confirm(
        "neighbours among the threes", [row.digit for row in threes], [r.digit for r in threes] == [3] * 5
    )

    queries = spark.createDataFrame(
        [(i, pictures[i].tolist(), int(data.target[i])) for i in range(test_rows.start, test_rows.stop)],
        "id bigint, vector array<float>, truth bigint",
    )
    nearest = table.searchBatch(queries, "picture", 1, columns=["digit"])
    joined = nearest.join(queries, nearest.query_id == queries.id)
    right = joined.agg(F.avg((F.col("digit") == F.col("truth")).cast("double"))).collect()[0][0]
    confirm("digits that are told by their nearest neighbour", round(right, 3), right > 0.9)

    words = table.textSearch("handwritten seven", "text", 3, columns=["digit"]).collect()
    confirm("the best answers to 'handwritten seven'", [row.digit for row in words], words[0].digit == 7)

    one = spark.read.format("lance").option("filter", "id = 1234").load(path).select("digit").collect()
    confirm("row 1234", one[0].digit, one[0].digit == data.target[1234])


if __name__ == "__main__":
    sys.exit(run_steps(__doc__.splitlines()[0], "digits", run))
