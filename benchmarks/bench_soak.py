"""A stream of upserts at a steady rate, and whether memory and files stay bounded.

    python -m benchmarks.bench_soak [--minutes 30] [--rate 500] [--keys 20000] [--folder PATH] [--keep]

Spark's source `rate` upserts `--rate` rows a second, with a micro-batch every five seconds, into a table of
`--keys` keys. Once a minute another thread does the upkeep of a table: it merges the logs into the table
(`compactWal`), compacts its files, and deletes log files older than two minutes and all but the last versions
of the table. Every half minute the benchmark prints a line:

    rows/s    rows that the stream wrote since the line before
    driver    MB of anonymous memory of this process
    jvm       the same of Java
    workers   the same of Python's workers, together
    files     files of the table, with logs, versions and deletion files
    MB        their bytes

A compaction with `flush` and the stream claim the same shards, and each claim ends the other's. Spark repeats
such a task up to four times; the upkeep counts its own losses and tries again a minute later.

At the end the table must have the newest value of each key. The benchmark fails if a row is lost, or if
memory or files grow: if they are in the last third more than 1.3 times as high as in the second third.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from dataclasses import astuple, dataclass
from pathlib import Path

import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser, start_spark
from spark_lance import LanceTable
from spark_lance.errors import WriterFencedError

_KEY = {"lance-schema:unenforced-primary-key": "true"}
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata=_KEY),
        pa.field("value", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
_LINE_SECONDS, _UPKEEP_SECONDS = 30, 60
_RETENTION_HOURS = 2 / 60
_GROWTH = 1.3
# Memory and files may grow by this much in any case: small figures vary.
_SLACK = {"driver": 50, "jvm": 200, "workers": 100, "files": 60, "mb": 20}


@dataclass(frozen=True)
class Sample:
    """The figures of a line."""

    minute: float
    rows: float
    driver: float
    jvm: float
    workers: float
    files: int
    mb: float


def anonymous_mb(process: int) -> float:
    """Return the anonymous memory of a process in MB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1024


def children_of(process: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    processes: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == process:
                processes += [int(folder.name), *children_of(int(folder.name))]
    return processes


def sample(folder: Path, minute: float, rows: float) -> Sample:
    """Measure the processes and the files."""
    java, workers = 0.0, 0.0
    for child in children_of(os.getpid()):
        try:
            name = Path(f"/proc/{child}/comm").read_text().strip()
        except OSError:
            continue
        if name == "java":
            java += anonymous_mb(child)
        else:
            workers += anonymous_mb(child)
    sizes = []
    for file in folder.rglob("*"):
        try:
            if file.is_file():
                sizes.append(file.stat().st_size)
        except OSError:
            continue
    mb = sum(sizes) / 1e6
    return Sample(minute, rows, anonymous_mb(os.getpid()), java, workers, len(sizes), mb)


class Upkeep(threading.Thread):
    """Maintains the table once a minute, until `stop` is set."""

    def __init__(self, table: LanceTable) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.table = table
        self.errors: list[str] = []
        self.merged = self.fenced = 0

    def run(self) -> None:
        while not self.stop.wait(_UPKEEP_SECONDS):
            try:
                self.run_once()
            except WriterFencedError:
                self.fenced += 1
            except Exception as error:  # noqa: BLE001 (reported at the end)
                self.errors.append(f"{type(error).__name__}: {str(error)[:300]}")

    def run_once(self) -> None:
        """Merge the logs, compact files and delete what is old."""
        self.merged += self.table.compactWal(flush=True).rows_upserted
        self.table.optimize().executeCompaction()
        self.table.collectWal(retentionHours=_RETENTION_HOURS)
        self.table.vacuum(retainVersions=10, allowShortRetention=True, deleteUnverified=False)


def verdict(samples: list[Sample]) -> list[str]:
    """Return the figures that grow in the last third."""
    third = len(samples) // 3
    if third < 2:
        return []
    problems = []
    for name, slack in _SLACK.items():
        middle = max(getattr(each, name) for each in samples[third : 2 * third])
        last = max(getattr(each, name) for each in samples[2 * third :])
        if last > max(middle * _GROWTH, middle + slack):
            problems.append(f"{name} grew from {middle:.0f} to {last:.0f}")
    return problems


def main() -> None:
    """Run the stream and print its lines."""
    options = parser(__doc__)
    options.add_argument("--minutes", type=float, default=30.0)
    options.add_argument("--rate", type=int, default=500)
    options.add_argument("--keys", type=int, default=20_000)
    options.add_argument("--folder", type=Path)
    arguments = options.parse_args()
    results = Results("bench_soak", arguments.keep)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary) / "table"
        keys = arguments.keys
        start = pa.table({"id": range(keys), "value": [-1] * keys, "text": ["start"] * keys}, schema=_SCHEMA)
        dataset = spark_lance.write_dataset(start, folder)
        dataset.initialize_mem_wal(bucket_column="id", num_buckets=2)
        spark = start_spark({"spark.driver.memory": "1g", "spark.master": "local[2,4]"})
        table = LanceTable.forPath(spark, str(folder))
        source = spark.readStream.format("rate").option("rowsPerSecond", arguments.rate).load()
        rows = source.selectExpr(
            f"value % {keys} AS id", "value", "concat('row ', value, ' ', repeat('x', 100)) AS text"
        )
        query = (
            rows.writeStream.format("lance")
            .option("mode", "upsert")
            .option("checkpointLocation", f"{temporary}/checkpoint")
            .trigger(processingTime="5 seconds")
            .start(str(folder))
        )
        upkeep = Upkeep(table)
        upkeep.start()
        samples: list[Sample] = []
        written: dict[int, int] = {}
        begin = time.monotonic()
        print(f"{'minute':>7} {'rows/s':>7} {'driver':>7} {'jvm':>7} {'workers':>7} {'files':>6} {'MB':>7}")
        while time.monotonic() - begin < arguments.minutes * 60 and query.isActive:
            before, clock = sum(written.values()), time.monotonic()
            time.sleep(_LINE_SECONDS)
            written.update({each.batchId: each.numInputRows for each in query.recentProgress})
            now = time.monotonic()
            pace = (sum(written.values()) - before) / (now - clock)
            samples.append(sample(folder, (now - begin) / 60, pace))
            minute, *figures = astuple(samples[-1])
            print(f"{minute:7.1f} " + " ".join(f"{figure:7.0f}" for figure in figures), flush=True)
        failure = query.exception()
        query.stop()
        upkeep.stop.set()
        upkeep.join()
        upkeep.run_once()
        last = max((each.numInputRows and each.batchId for each in query.recentProgress), default=0)
        rows_written = sum(written.values())
        final = spark_lance.dataset(folder).fresh().to_table(["id", "value"])
        values = final["value"].to_numpy()
        ids = final["id"].to_numpy()
        newest = int(values.max())
        # The source numbers its rows 0, 1, 2, ..., so each key has one of the last values.
        lost = [
            int(key)
            for key, value in zip(ids, values, strict=True)
            if value != (-1 if newest < key else newest - (newest - key) % keys)
        ]
        problems = verdict(samples)
        problems += [f"upkeep: {text}" for text in upkeep.errors]
        if failure is not None:
            problems.append(f"the stream failed: {str(failure)[:300]}")
        if newest < 0:
            problems.append("the stream wrote no rows")
        if len(ids) != keys or lost:
            problems.append(f"{len(ids)} keys instead of {keys}, {len(lost)} without their newest value")
        print(f"{last + 1} micro-batches, {rows_written} rows, {upkeep.merged} merged")
        print(f"{upkeep.fenced} compactions fenced")
        print("\n".join(problems) or "memory and files are bounded, and no row is lost")
        peak = max(samples, key=lambda each: each.driver + each.jvm + each.workers)
        results.add(f"{arguments.minutes:.0f} minutes", "memory", "MB", peak.driver + peak.jvm + peak.workers)
        results.add(f"{arguments.minutes:.0f} minutes", "files", "", max(each.files for each in samples))
        spark.stop()
    results.save()
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
