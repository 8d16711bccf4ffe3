"""How long small questions take through Spark, and what stays behind after many of them.

    python -m benchmarks.bench_latency [--calls 200] [--many 2000] [--rows 400000] [--keep]

Count, head, look-up by an indexed column and vector search over an index, each asked again and again with
other values, with the driver planning and, as the peer, with Spark's own way (fewer calls: each takes long).
Then `--many` calls of all kinds in turn: how many Python processes live and how much memory the driver's two
processes have, after the first tenth of these calls and after the last.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WIDTH = 32
_PLANS = "spark.lance.planInDriver"
_SLOW_SHARE = 10

Ask = Callable[[int], int]


def make(path: Path, rows: int) -> None:
    """Make a table with a BTREE and a vector index, in four fragments."""
    draw = np.random.default_rng(1)
    vectors = draw.random(rows * _WIDTH, dtype=np.float32)
    table = pa.table(
        {
            "id": np.arange(rows),
            "word": [f"word {i % 1000}" for i in range(rows)],
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors), _WIDTH),
        }
    )
    spark_lance.write_dataset(table, path, max_rows_per_file=-(-rows // 4))
    spark_lance.dataset(path).create_scalar_index("id", "BTREE")
    spark_lance.dataset(path).create_index("v", "IVF_FLAT", num_partitions=64)


def questions(spark: SparkSession, path: Path, rows: int) -> dict[str, Ask]:
    """Return what is asked: each takes a number and returns how many rows came."""
    vectors = np.random.default_rng(2).random((64, _WIDTH), dtype=np.float32)

    def table() -> DataFrame:
        return spark.read.format("lance").load(str(path))

    def count(_: int) -> int:
        return table().count() // rows

    def head(number: int) -> int:
        return len(table().select("id", "word").head(5 + number % 7))

    def look_up(number: int) -> int:
        return len(table().where(f"id = {number * 7919 % rows}").select("word").collect())

    def search(number: int) -> int:
        query = {"column": "v", "q": vectors[number % 64].tolist(), "k": 10, "nprobes": 4}
        found = spark.read.format("lance").option("nearest", json.dumps(query)).load(str(path))
        return len(found.select("id").collect())

    return {"count": count, "head": head, "indexed look-up": look_up, "vector search": search}


def milliseconds(ask: Ask, calls: int) -> tuple[float, float]:
    """Return the median and the 95th percentile of some calls, after one that is not counted."""
    ask(0)
    taken = []
    for number in range(1, calls + 1):
        start = time.perf_counter()
        assert ask(number) > 0
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken), statistics.quantiles(taken, n=20)[-1]


def descendants() -> Iterator[int]:
    """Yield the numbers of the processes that this one has started, directly or not."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has just ended
            continue
    waiting = [os.getpid()]
    while waiting:
        parent = waiting.pop()
        children = [child for child, above in parents.items() if above == parent]
        yield from children
        waiting += children


def alive() -> tuple[int, float, float]:
    """Return Python processes below this one, and the memory of this one and of the JVM in MB."""
    pythons, jvm = 0, 0.0
    for number in descendants():
        try:
            name = Path(f"/proc/{number}/comm").read_text().strip()
            pythons += name.startswith("python")
            jvm = max(jvm, _resident(number)) if name == "java" else jvm
        except OSError:  # it has just ended
            continue
    return pythons, _resident(os.getpid()), jvm


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    """Run the benchmark and print its tables."""
    options = parser(__doc__)
    options.add_argument("--calls", type=int, default=200)
    options.add_argument("--many", type=int, default=2000)
    options.add_argument("--rows", type=int, default=400_000)
    arguments = options.parse_args()
    results = Results("bench_latency", arguments.keep)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.lance"
        make(path, arguments.rows)
        spark = start_spark()
        asked = questions(spark, path, arguments.rows)
        print(f"load {os.getloadavg()[0]:.1f}")
        print(f"{'milliseconds':18} {'p50':>8} {'p95':>8} {'own way: p50':>14} {'p95':>8}")
        for name, ask in asked.items():
            ours = milliseconds(ask, arguments.calls)
            spark.conf.set(_PLANS, "false")
            theirs = milliseconds(ask, max(2, arguments.calls // _SLOW_SHARE))
            spark.conf.set(_PLANS, "true")
            print(f"{name:18} {ours[0]:8.1f} {ours[1]:8.1f} {theirs[0]:14.1f} {theirs[1]:8.1f}", flush=True)
            for metric, our, their in zip(("p50", "p95"), ours, theirs, strict=True):
                results.add(name, metric, "ms", our, {"Spark's own way": their})
        print(f"\n{'after calls':12} {'Python processes':>17} {'driver':>10} {'JVM':>10}")
        steps = list(asked.values())
        for number in range(arguments.many):
            steps[number % len(steps)](number)
            if number + 1 in (arguments.many // 10, arguments.many):
                pythons, driver, jvm = alive()
                print(f"{number + 1:12} {pythons:17} {driver:7.0f} MB {jvm:7.0f} MB", flush=True)
                case = f"after {number + 1:,} calls"
                results.add(case, "Python processes", "", pythons)
                results.add(case, "memory of the driver's Python", "MB", driver)
                results.add(case, "memory of the JVM", "MB", jvm)
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
