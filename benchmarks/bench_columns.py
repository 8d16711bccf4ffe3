"""Time and bytes of adding a column to a table of vectors, compared with Spark rewriting Parquet files.

    python -m benchmarks.bench_columns [--rows N] [--dimensions D] [--fragments F] [--repeat K]

A column cannot be added to Parquet files, including Delta's. A job must read the table and write it again
with the column. Both sides alternate, and compute the same values from the column `id` on copies of the same
rows.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.harness import Results, Timed, parser, size_of, start_spark
from spark_lance import LanceTable, write_dataset

_BATCH = 20_000
_VALUE = "cast(id % 1000 as float) / 7"


def _batches(rows: int, dimensions: int) -> pa.RecordBatchReader:
    schema = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), dimensions))])
    rng = np.random.default_rng(5)

    def make() -> object:
        for start in range(0, rows, _BATCH):
            count = min(_BATCH, rows - start)
            values = pa.array(rng.random(count * dimensions, np.float32))
            vectors = pa.FixedSizeListArray.from_arrays(values, dimensions)
            yield pa.RecordBatch.from_arrays([np.arange(start, start + count), vectors], schema=schema)

    return pa.RecordBatchReader.from_batches(schema, make())


def _function(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = (batch["id"].to_numpy() % 1000).astype(np.float32) / 7
    return pa.RecordBatch.from_arrays([pa.array(values.astype(np.float64))], ["score"])


def main() -> int:
    """Run the benchmark."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=300_000)
    options.add_argument("--dimensions", type=int, default=768)
    options.add_argument("--fragments", type=int, default=8)
    options.add_argument("--repeat", type=int, default=2)
    options.add_argument("--folder", default=None, help="where the tables go for the time being")
    arguments = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="columns-", dir=arguments.folder))
    try:
        _measure(folder, arguments)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measure(folder: Path, arguments: argparse.Namespace) -> None:
    results = Results("bench_columns", arguments.keep)
    spark = start_spark()
    lance, parquet = str(folder / "t.lance"), str(folder / "t.parquet")
    write_dataset(
        _batches(arguments.rows, arguments.dimensions),
        lance,
        max_rows_per_file=-(-arguments.rows // arguments.fragments),
    )
    spark.read.format("lance").load(lance).write.parquet(parquet)
    table = LanceTable.forPath(spark, lance)
    print(
        f"{arguments.rows:,} rows of {arguments.dimensions} floats: Lance {size_of(lance) / 1e6:,.0f} MB, "
        f"Parquet {size_of(parquet) / 1e6:,.0f} MB; numpy {np.__version__}",
        flush=True,
    )

    def rewrite() -> None:
        frame = spark.read.parquet(parquet).selectExpr("*", f"{_VALUE} AS score")
        frame.write.mode("overwrite").parquet(str(folder / "wider.parquet"))

    sides: dict[str, Callable[[], object]] = {
        "expression": lambda: table.addColumns({"score": _VALUE}),
        "function": lambda: table.addColumns(_function, inputs=["id"], schema="score double"),
        "join by key": lambda: table.addColumns(
            spark.range(arguments.rows).selectExpr("id", f"{_VALUE} AS score"), on="id"
        ),
        "rewritten Parquet": rewrite,
    }
    best = dict.fromkeys(sides, float("inf"))
    written = dict.fromkeys(sides, 0)
    # The first run of each kind also starts what Spark needs for it.
    for turn in range(arguments.repeat + 1):
        for name, action in sides.items():
            before = 0 if action is rewrite else size_of(lance)
            seconds = Timed(action)()
            after = size_of(str(folder / "wider.parquet")) if action is rewrite else size_of(lance)
            written[name] = after - before
            if turn:
                best[name] = min(best[name], seconds)
            if action is not rewrite:
                table.dropColumns("score")
    for name, seconds in best.items():
        ratio = best["rewritten Parquet"] / seconds
        if sides[name] is not rewrite:
            results.add(name, "time", "s", seconds, {"rewritten Parquet": best["rewritten Parquet"]})
            bytes_anew = {"rewritten Parquet": written["rewritten Parquet"]}
            results.add(name, "bytes written", "B", written[name], bytes_anew)
        print(
            f"{name:18} {seconds:7.2f} s {written[name] / 1e6:9.1f} MB written   {ratio:6.1f} x", flush=True
        )
    results.save()


if __name__ == "__main__":
    sys.exit(main())
