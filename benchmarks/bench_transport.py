"""Processor time of each stage of a Spark scan.

    python -m benchmarks.bench_transport [--rows-flights N] [--rows-vectors N] [--repeat K]

A Python worker reads bytes, decodes them to Arrow, converts them to Spark's types, writes IPC messages, and
sends these through a socket. The benchmark runs each stage alone in this process, on the batches of the
previous stage.

The JVM reads the messages into Arrow vectors, and the query reads their values. Spark reports the cost of
these tasks. The benchmark measures a query of one column, a full scan to rows, and batches that are not read,
for each transport (`spark.lance.transport` and shared memory). The transports alternate.

The lowest figure counts. Unlike wall time, processor time is nearly the same on a busy machine.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import spark_lance
from benchmarks.bench_spark import flights_of_20, noop
from benchmarks.harness import Results, in_turns, parser, start_spark
from benchmarks.tables import vectors
from spark_lance.spark.options.options import read_options
from spark_lance.spark.schema.convert import BatchConverter
from spark_lance.spark.schema.types import arrow_schema
from spark_lance.spark.source import LanceDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings of each way in which the JVM takes batches.
KINDS = {
    "rows": ("rows", "0"),
    "columns": ("columns", "0"),
    "memory": ("columns", "8m"),
}
# The same bytes to nobody: what a worker's end of the socket costs.
_DRAIN = """
import socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
room = bytearray(1 << 20)
while end.recv_into(room):
    pass
"""
# As in Spark's workers.
_BUFFER = 65536


def own_time(action: Callable[[], object]) -> float:
    """Return the processor time of this process, all threads, for an action, in seconds."""
    start = time.process_time()
    action()
    return time.process_time() - start


class Stages:
    """The stages in a worker, for one table."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files = [file for file in Path(path, "data").iterdir() if file.suffix == ".lance"]
        self.decoded = list(self._batches())
        schema = LanceDataSource({"path": path}).schema()
        self._convert = BatchConverter.plan(self.decoded[0].schema, arrow_schema(schema))
        self.converted = [self._convert(batch) for batch in self.decoded]

    def _batches(self) -> Iterator[pa.RecordBatch]:
        defaults = read_options({"path": self._path})
        scan = spark_lance.dataset(self._path).snapshot.scan()
        for task in scan.tasks():
            yield from task.batches(defaults.batch_bytes, defaults.batch_size, None)

    def read(self) -> None:
        """Read all bytes of the data files."""
        for file in self._files:
            with file.open("rb", buffering=0) as data:
                while data.read(8 << 20):
                    pass

    def decode(self) -> None:
        """Read and decode all batches."""
        for _ in self._batches():
            pass

    def fit(self) -> None:
        """Fit all batches to Spark's types."""
        for batch in self.decoded:
            self._convert(batch)

    def serialize(self) -> None:
        """Write all batches as IPC messages that are dropped."""
        with pa.ipc.new_stream(pa.MockOutputStream(), self.converted[0].schema) as stream:
            for batch in self.converted:
                stream.write_batch(batch)

    def send(self) -> None:
        """Write all batches into a socket whose other end another process reads."""
        server = socket.create_server(("127.0.0.1", 0))
        drain = subprocess.Popen([sys.executable, "-c", _DRAIN, str(server.getsockname()[1])])
        end, _ = server.accept()
        self._send_seconds = own_time(lambda: self._send(end))
        end.close()
        server.close()
        drain.wait()

    def _send(self, end: socket.socket) -> None:
        with end.makefile("wb", _BUFFER) as out, pa.ipc.new_stream(out, self.converted[0].schema) as stream:
            for batch in self.converted:
                stream.write_batch(batch)

    def seconds(self, repeat: int) -> dict[str, float]:
        """Return the processor time of each stage."""

        def send_time() -> float:
            self.send()
            return self._send_seconds

        alone = [lambda action=action: own_time(action) for action in (self.read, self.decode, self.fit)]
        read, decode, fit, serialize, send = in_turns(
            repeat, *alone, lambda: own_time(self.serialize), send_time
        )
        return {
            "read": read,
            "decode": decode - read,
            "fit to Spark's types": fit,
            "IPC messages": serialize,
            "socket": send - serialize,
        }


def task_time(spark: SparkSession, action: Callable[[], object]) -> float:
    """Return the processor time of the JVM's tasks for a query, in seconds."""
    context: Any = spark.sparkContext
    context.setJobGroup("measured", "")
    before = set(context.statusTracker().getJobIdsForGroup("measured"))
    action()
    jobs = set(context.statusTracker().getJobIdsForGroup("measured")) - before
    store = context._jsc.sc().statusStore()
    listeners = context._jsc.sc().listenerBus()
    listeners.waitUntilEmpty()
    total = 0
    for job in jobs:
        stages = store.job(job).stageIds()
        for i in range(stages.size()):
            total += store.lastStageAttempt(stages.apply(i)).executorCpuTime()
    return total / 1e9


def bench(spark: SparkSession, results: Results, name: str, one: str, path: str, repeat: int) -> None:
    """Measure a table and print its budget."""
    rows = spark_lance.dataset(path).count_rows()
    stages = Stages(path)
    size = sum(batch.nbytes for batch in stages.converted)
    print(f"\n{name}: {rows:,} rows, {size / 1e6:.0f} MB in Arrow")
    worker = stages.seconds(repeat)
    del stages
    for stage, seconds in worker.items():
        line(results, name, f"worker: {stage}", {"": seconds})

    def lance(kind: str) -> Any:
        transport, memory = KINDS[kind]
        spark.conf.set("spark.lance.transport", transport)
        spark.conf.set("spark.lance.sharedMemory", memory)
        return spark.read.format("lance").load(path)

    def parquet() -> Any:
        return spark.read.parquet(f"{path}.parquet")

    def ask(query: Callable[[Any], object], kind: str) -> object:
        return query(lance(kind))

    def measured(query: Callable[[Any], object]) -> dict[str, float]:
        actions: list[Callable[[], float]] = [
            partial(task_time, spark, partial(ask, query, kind)) for kind in KINDS
        ]
        actions.append(lambda: task_time(spark, lambda: query(parquet())))
        for action in actions:
            action()
        return dict(zip((*KINDS, "Parquet"), in_turns(repeat, *actions), strict=True))

    line(results, name, f"JVM: sum({one})", measured(lambda frame: frame.selectExpr(f"sum({one})").collect()))
    line(results, name, "JVM: all columns into rows", measured(noop))
    ways = ("columns", "memory")

    def untouched(kind: str) -> float:
        return task_time(spark, lambda: take_in(lance(kind)))

    cpu_seconds = in_turns(repeat, *(partial(untouched, kind) for kind in ways))
    line(results, name, "JVM: all batches, untouched", dict(zip(ways, cpu_seconds, strict=True)))


def take_in(frame: Any) -> None:
    """Take all batches of a scan out of the sockets, and look at no value."""
    plan = frame._jdf.queryExecution().executedPlan()
    while not plan.nodeName().startswith("BatchScan"):
        plan = plan.children().head()
    plan.executeColumnar().count()


def line(results: Results, name: str, stage: str, seconds: dict[str, float]) -> None:
    """Print and note the figures of a stage."""
    for way, figure in seconds.items():
        results.add(f"{name}, {stage}", "processor time" + (f", {way}" if way else ""), "s", figure)
    text = "  ".join(f"{way} {figure:7.3f} s".strip() for way, figure in seconds.items())
    print(f"  {stage:40} {text}", flush=True)


def main() -> None:
    """Run the benchmark and print its tables."""
    options = parser(__doc__)
    options.add_argument("--rows-flights", type=int, default=1_000_000)
    options.add_argument("--rows-vectors", type=int, default=100_000)
    options.add_argument("--repeat", type=int, default=3)
    arguments = options.parse_args()
    results = Results("bench_transport", arguments.keep)
    spark = start_spark({"spark.sql.adaptive.enabled": "false", "spark.lance.localRows": "0"})
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, one, table in (
                ("flights", "distance", flights_of_20(arguments.rows_flights)),
                ("vectors", "vector[7]", vectors(arguments.rows_vectors)),
            ):
                path = f"{folder}/{name}"
                spark_lance.write_dataset(table, path, max_rows_per_file=-(-table.num_rows // 2))
                pq.write_table(table, f"{path}.parquet")
                bench(spark, results, name, one, path, arguments.repeat)
    finally:
        spark.stop()
    results.save()


if __name__ == "__main__":
    main()
