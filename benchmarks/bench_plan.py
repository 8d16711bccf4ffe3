"""Planning time of Spark reads of a table with many fragments, and the bytes that are sent to the tasks.

    python -m benchmarks.bench_plan [--fragments 10000] [--repeat 3]

The benchmark calls the data source in this process as Spark does. The source finds the schema, is pickled,
and creates the reader; then the reader and its partitions are pickled. The table has a manifest but no data
files, so a step that reads a data file fails. Time is processor time, and the best run counts.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from pathlib import Path

from pyspark.cloudpickle import dumps
from pyspark.sql.types import StructType

from benchmarks.bench_scale import make
from benchmarks.harness import Results, parser
from spark_lance.spark.source import LanceDataSource

_CASES = {
    "all columns": {},
    "1 column": {"columns": "a"},
    "a partition per fragment": {"partition_bytes": "41m"},
    "count": {"columns": "[]"},
    "10 row look-ups": {"filter": f"_rowaddr in ({', '.join(str(i << 37) for i in range(10))})"},
}


def plan(path: str, options: dict[str, str]) -> tuple[float, float, int, int, int]:
    """Plan a read: seconds for the schema and for the plan, partitions, bytes of the reader and of them."""
    start = time.process_time()
    source = LanceDataSource({"path": path, **options})
    schema: StructType = source.schema()
    described = time.process_time()
    source = pickle.loads(dumps(source))  # type: ignore[no-untyped-call]
    reader = source.reader(schema)
    shared = len(dumps(reader))  # type: ignore[no-untyped-call]
    sizes = [len(pickle.dumps(partition)) for partition in reader.partitions()]
    return described - start, time.process_time() - described, len(sizes), shared, sum(sizes)


def main() -> None:
    """Run the benchmark and print its table."""
    options = parser(__doc__)
    options.add_argument("--fragments", type=int, default=10_000)
    options.add_argument("--repeat", type=int, default=3)
    arguments = options.parse_args()
    results = Results("bench_plan", arguments.keep)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.lance"
        make(path, arguments.fragments)
        print(f"{arguments.fragments} fragments of a million rows")
        print(f"{'':26} {'schema':>8} {'plan':>8} {'partitions':>11} {'reader':>9} {'all partitions':>15}")
        for name, read in _CASES.items():
            runs = [plan(str(path), read) for _ in range(arguments.repeat)]
            described, planned = min(run[0] for run in runs), min(run[1] for run in runs)
            _, _, count, shared, size = runs[0]
            print(f"{name:26} {described:6.2f} s {planned:6.2f} s {count:11} {shared:7} B {size:13} B")
            for metric, unit, figure in (
                ("processor time, schema", "s", described),
                ("processor time, plan", "s", planned),
                ("bytes of the reader", "B", shared),
                ("bytes of all partitions", "B", size),
            ):
                results.add(f"{arguments.fragments:,} fragments: {name}", metric, unit, figure)
    results.save()


if __name__ == "__main__":
    main()
