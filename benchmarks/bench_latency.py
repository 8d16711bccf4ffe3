"""Time of small queries through Spark, and memory in use after many of them.

    python -m benchmarks.bench_latency [--calls 200] [--own 4] [--many 2000] [--rows 400000] [--keep]

Repeats count, head, look-up by an indexed column and vector search by an index, with changing values. The
driver plans; the peer is Spark's own way (`--own` calls: each takes seconds). Then it runs `--many` calls of
all kinds, alternating. After a tenth, a half and all of these calls it prints three figures: the number of
Python processes, the memory of the driver's Python and of the JVM after a collection, and the number of JVM
objects that Python refers to.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from py4j.java_gateway import JavaObject

import spark_lance
from benchmarks.harness import Results, parser, start_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WIDTH = 32
_PLANS = "spark.lance.planInDriver"

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
        frame = spark.read.format("lance").option("nearest", json.dumps(query)).load(str(path))
        return len(frame.select("id").collect())

    return {"count": count, "head": head, "indexed look-up": look_up, "vector search": search}


def milliseconds(ask: Ask, calls: int) -> tuple[float, float]:
    """Return the median and the 95th percentile of some calls, after one that is not counted."""
    ask(0)
    durations = []
    for number in range(1, calls + 1):
        start = time.perf_counter()
        assert ask(number) > 0
        durations.append(1e3 * (time.perf_counter() - start))
    return statistics.median(durations), float(np.percentile(durations, 95))


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


def alive(spark: SparkSession) -> dict[str, float]:
    """Return what stays behind: processes, memory in MB, and objects, each with what it is."""
    pythons = 0
    for number in descendants():
        try:
            pythons += Path(f"/proc/{number}/comm").read_text().startswith("python")
        except OSError:  # it has just ended
            continue
    gc.collect()
    jvm: Any = spark._jvm
    jvm.System.gc()
    runtime = jvm.Runtime.getRuntime()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gateway: Any = spark._sc._gateway
    server: Any = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    return {
        "Python processes": pythons,
        "MB of Python": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
        "MB of the JVM": (runtime.totalMemory() - runtime.freeMemory()) / 1e6,
        "objects with names": server.getGateway().getBindings().size(),
    }


def measure(spark: SparkSession, queries: Mapping[str, Ask], calls: int, own: int, results: Results) -> None:
    """Print and note how long each question takes."""
    print(f"{'milliseconds':18} {'p50':>8} {'p95':>8} {'own way: p50':>14} {'p95':>8}")
    for name, ask in queries.items():
        ours = milliseconds(ask, calls)
        spark.conf.set(_PLANS, "false")
        theirs = milliseconds(ask, own)
        spark.conf.set(_PLANS, "true")
        print(f"{name:18} {ours[0]:8.1f} {ours[1]:8.1f} {theirs[0]:14.1f} {theirs[1]:8.1f}", flush=True)
        for metric, our, their in zip(("p50", "p95"), ours, theirs, strict=True):
            results.add(name, metric, "ms", our, {"Spark's own way": their})


def repeat(spark: SparkSession, queries: Mapping[str, Ask], many: int, results: Results) -> None:
    """Print and note what stays behind after many questions."""
    steps = list(queries.values())
    for number in range(1, many + 1):
        steps[number % len(steps)](number)
        if number in (many // 10, many // 2, many):
            processes = alive(spark)
            if number == many // 10:
                print(f"\n{'after calls':12}" + "".join(f"{name:>20}" for name in processes))
            print(f"{number:12}" + "".join(f"{value:20.0f}" for value in processes.values()), flush=True)
            for name, value in processes.items():
                results.add(f"after {number:,} calls", name, "", value)


def main() -> None:
    """Run the benchmark and print its tables."""
    options = parser(__doc__)
    options.add_argument("--calls", type=int, default=200)
    options.add_argument("--own", type=int, default=4)
    options.add_argument("--many", type=int, default=2000)
    options.add_argument("--rows", type=int, default=400_000)
    arguments = options.parse_args()
    results = Results("bench_latency", arguments.keep)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.lance"
        make(path, arguments.rows)
        spark = start_spark()
        queries = questions(spark, path, arguments.rows)
        print(f"load {os.getloadavg()[0]:.1f}")
        measure(spark, queries, arguments.calls, arguments.own, results)
        repeat(spark, queries, arguments.many, results)
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
