"""Add columns to an existing table by an expression, a model and a join, without rewriting the table.

The 1,797 handwritten digits of scikit-learn are a Lance table of 8 x 8 pixels. It gets three new columns:

    ink          by an SQL expression that Spark computes: the sum of the pixels
    embedding    by a model that runs in the tasks, batch by batch: 16 principal components, as vectors
    name         by a join with a DataFrame: the name of the digit

The job with the model fails halfway and is run again; it does not repeat finished parts. At the end the
embeddings are compared with those of numpy, and their nearest neighbours classify the digits. The exit status
is 1 if a check fails.

Run: ``python examples/add_embeddings.py [--dir FOLDER]``
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from sklearn.datasets import load_digits

import spark_lance
from spark_lance import LanceTable
from spark_lance.spark.java import prepare_environment

FRAGMENTS = 4
DIMENSIONS = 16
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def start_spark() -> SparkSession:
    """Start Spark in this process, quietly."""
    prepare_environment()
    builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write_digits(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Write the digits as a table of some fragments; return pixels and labels."""
    pixels, labels = load_digits(return_X_y=True)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel(), pa.float32()), pixels.shape[1])
    table = pa.table({"id": np.arange(len(labels)), "label": labels, "pixels": vectors})
    rows = -(-len(labels) // FRAGMENTS)
    spark_lance.write_dataset(table, path, max_rows_per_file=rows)
    return pixels.astype(np.float32), labels


def model(pixels: np.ndarray, breaks: Path):  # type: ignore[no-untyped-def]
    """Return a function from batches with pixels to batches with embeddings, fitted to the digits.

    It breaks down in the last fragment as long as there is the file `breaks`.
    """
    mean = pixels.mean(axis=0)
    components = np.linalg.svd(pixels - mean, full_matrices=False)[2][:DIMENSIONS].T

    def embed(batch: pa.RecordBatch) -> pa.RecordBatch:
        if breaks.exists() and batch["id"][-1].as_py() == len(pixels) - 1:
            time.sleep(3)  # so that there is something to take up again
            raise MemoryError("the model does not fit")
        values = batch["pixels"].flatten().to_numpy().reshape(len(batch), -1)
        embeddings = ((values - mean) @ components).astype(np.float32)
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(embeddings.ravel()), DIMENSIONS)
        return pa.RecordBatch.from_arrays([vectors], ["embedding"])

    return embed


def data_bytes(path: str) -> int:
    """Return the bytes of the table's data files."""
    return sum(file.stat().st_size for file in Path(path, "data").iterdir())


def main() -> int:
    """Run the example; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", default="demo-output", help="where the table goes")
    folder = Path(parser.parse_args().dir, "add_embeddings")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    path = str(folder / "digits.lance")
    pixels, labels = write_digits(path)
    spark = start_spark()
    table = LanceTable.forPath(spark, path)
    print(f"{len(labels):,} digits, {data_bytes(path):,} bytes")

    result = table.addColumns({"ink": "aggregate(pixels, 0D, (total, p) -> total + p)"}).collect()[0]
    print(f"ink, by an expression: {result.num_files_written} files, {result.bytes_written:,} bytes written")

    breaks = folder / "breaks"
    breaks.touch()
    embed = model(pixels, breaks)
    schema = pa.schema([pa.field("embedding", pa.list_(pa.float32(), DIMENSIONS))])
    for _ in range(2):
        try:
            result = table.addColumns(
                embed, inputs=["id", "pixels"], schema=schema, resume="embed"
            ).collect()[0]
        except PythonException:
            print("embedding, by a model: failed, runs again")
            breaks.unlink()
    print(
        f"embedding, by a model: {result.num_files_written} files written, {result.num_files_reused} reused, "
        f"{result.bytes_written:,} bytes"
    )

    reused = result.num_files_reused

    names = spark.createDataFrame(list(enumerate(NAMES)), "label bigint, name string")
    result = table.addColumns(names, on="label").collect()[0]
    print(f"name, by a join: {result.num_files_written} files, {result.bytes_written:,} bytes written")

    rows = table.toDF().orderBy("id").toArrow()
    embeddings = np.array(rows["embedding"].to_pylist(), np.float32)
    expected = (pixels - pixels.mean(axis=0)) @ np.linalg.svd(
        pixels - pixels.mean(axis=0), full_matrices=False
    )[2][:DIMENSIONS].T
    squares = (embeddings**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * embeddings @ embeddings.T
    np.fill_diagonal(distances, np.inf)
    right = float((labels[distances.argmin(axis=1)] == labels).mean())
    print(f"the nearest neighbour of a digit is the same digit for {right:.1%}")
    checks = {
        "every digit is there once": rows["id"].to_pylist() == list(range(len(labels))),
        "ink is the sum of the pixels": np.allclose(rows["ink"].to_numpy(), pixels.sum(axis=1)),
        # Signs and scales are the model's, so they are the same to the last digits.
        "embeddings are those of numpy": np.allclose(np.abs(embeddings), np.abs(expected), atol=1e-2),
        "names are those of the labels": rows["name"].to_pylist() == [NAMES[label] for label in labels],
        "embeddings tell digits": right > 0.9,
        "finished fragments were not computed twice": reused >= 1,
    }
    for what, good in checks.items():
        print(f"  {'ok' if good else 'FAILED'}: {what}")
    spark.stop()
    if not all(checks.values()):
        return 1
    print("All checks passed.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
