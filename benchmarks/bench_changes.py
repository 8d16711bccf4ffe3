"""Cost of changing one row of a large table compared with reading it, without Spark.

    python -m benchmarks.bench_changes [--rows N] [--repeat K]

The table has a BTREE on `id`, whose values are in random order. Every step opens the table again and uses
another id. The steps alternate, and their medians are compared. A ratio of 2 means twice the time of the
read. pylance does the same in the same run.

    read      to_table(filter="id = n")
    delete    delete("id = n")
    update    update({"x": "0"}, "id = n")
    merge     merge_insert("id") of one row, when_matched_update_all
    absent    delete("id = n") of an id that no row has
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser

_FRAGMENT_ROWS = 1 << 20

Step = Callable[[Any, int], object]


def _one(number: int) -> pa.Table:
    return pa.table({"id": [number], "x": [0.0]})


STEPS: dict[str, Step] = {
    "read": lambda table, number: table.to_table(filter=f"id = {number}"),
    "delete": lambda table, number: table.delete(f"id = {number}"),
    "update": lambda table, number: table.update({"x": "0"}, f"id = {number}"),
    "merge": lambda table, number: table.merge_insert("id").when_matched_update_all().execute(_one(number)),
    "absent": lambda table, number: table.delete(f"id = -{number + 1}"),
}


def make(path: str, rows: int) -> None:
    """Write a table of `rows` rows, with its index."""
    values = np.random.default_rng(1).permutation(rows)
    data = pa.table({"id": values, "x": np.arange(rows, dtype=np.float64)})
    spark_lance.write_dataset(data, path, max_rows_per_file=_FRAGMENT_ROWS).create_scalar_index("id", "BTREE")


def measure(path: str, opened: Callable[[str], Any], rows: int, repeat: int) -> dict[str, float]:
    """Return the median milliseconds of every step."""
    numbers = iter(np.random.default_rng(time.time_ns()).permutation(rows)[: repeat * len(STEPS)].tolist())
    opened(path).to_table(filter="id = 0")
    times: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(repeat):
        for step, work in STEPS.items():
            table, number = opened(path), next(numbers)
            began = time.perf_counter()
            work(table, number)
            times[step].append((time.perf_counter() - began) * 1e3)
    return {step: statistics.median(seconds) for step, seconds in times.items()}


def main() -> None:
    """Print the table."""
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=10_000_000)
    options.add_argument("--repeat", type=int, default=15)
    arguments = options.parse_args()
    results = Results("bench_changes", arguments.keep)
    medians: dict[str, dict[str, float]] = {}
    print(f"{'':10}{'step':10}{'ms':>10}{'x read':>10}")
    for name, opened in (("ours", spark_lance.dataset), ("pylance", lance.dataset)):
        with tempfile.TemporaryDirectory() as directory:
            path = str(Path(directory) / "table")
            make(path, arguments.rows)
            seconds = measure(path, opened, arguments.rows, arguments.repeat)
        medians[name] = seconds
        for step, taken in seconds.items():
            print(f"{name:10}{step:10}{taken:10.1f}{taken / seconds['read']:10.2f}")
    for step, taken in medians["ours"].items():
        results.add(step, "time, median", "ms", taken, {"pylance": medians["pylance"][step]})
    results.save()


if __name__ == "__main__":
    main()
