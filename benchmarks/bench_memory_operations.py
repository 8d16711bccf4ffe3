"""Peak memory of operations by the number and width of rows.

    python -m benchmarks.bench_memory_operations [--rows N,N] [--floats N,N] [--only WORD] [--spark]

A row has an id, a text of eight words, and a vector of floats. Every operation runs in a new process. Without
--spark the benchmark measures this process. With --spark it measures the driver's Python, the JVM and the
largest worker of a local session with two cores. Figures are MB of anonymous memory, without mapped files.
The first figure is the memory before the operation. Operations run in order: "vector search" uses the index
of the operation before it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.harness import Results, parser, run_alone, start_spark

_BATCH_ROWS = 10_000
_FILES = 8
_WORDS = np.array([f"word{number:x}" for number in range(5_000)])
_SECONDS = 0.01
_CACHE_BYTES = str(64 << 20)


@dataclass(frozen=True)
class Case:
    """A table: its path, its rows, and the floats of a vector."""

    path: Path
    rows: int
    floats: int


def batches(rows: int, floats: int, start: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield rows whose ids begin at `start`."""
    rng = np.random.default_rng(start)
    for first in range(start, start + rows, _BATCH_ROWS):
        count = min(_BATCH_ROWS, start + rows - first)
        vectors = pa.array(rng.standard_normal(count * floats).astype(np.float32))
        texts = [" ".join(words) for words in _WORDS[rng.integers(0, len(_WORDS), (count, 8))]]
        yield pa.RecordBatch.from_pydict(
            {
                "id": pa.array(np.arange(first, first + count)),
                "text": pa.array(texts),
                "vector": pa.FixedSizeListArray.from_arrays(vectors, floats),
            }
        )


def new_table(path: Path, rows: int, floats: int) -> None:
    """Write a table in several files."""
    spark_lance.write_dataset(
        batches(rows, floats), path, schema=_schema(floats), max_rows_per_file=max(rows // _FILES, 1)
    )


def _schema(floats: int) -> pa.Schema:
    return pa.schema(
        {"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32(), floats)},
    )


def _write(case: Case) -> None:
    spark_lance.write_dataset(batches(case.rows, case.floats), case.path / "new", schema=_schema(case.floats))


def _scan(case: Case) -> None:
    assert sum(batch.num_rows for batch in spark_lance.dataset(case.path).to_batches()) == case.rows


def _merge(case: Case) -> None:
    source = pa.Table.from_batches(batches(case.rows // 10, case.floats, case.rows - case.rows // 20))
    merge = spark_lance.dataset(case.path).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(source)


def _index_ids(case: Case) -> None:
    spark_lance.dataset(case.path).create_scalar_index("id", "BTREE")


def _index_texts(case: Case) -> None:
    spark_lance.dataset(case.path).create_scalar_index("text", "INVERTED")


def _index_vectors(case: Case) -> None:
    spark_lance.dataset(case.path).create_index("vector", "IVF_SQ", num_partitions=max(case.rows // 4_000, 1))


def _search(case: Case) -> None:
    table = spark_lance.dataset(case.path)
    for query in np.random.default_rng(1).standard_normal((20, case.floats)).astype(np.float32):
        table.to_table(columns=["id"], nearest={"column": "vector", "q": query, "k": 10})


def _compact(case: Case) -> None:
    spark_lance.dataset(case.path).compact_files()


# Operation -> the function that runs it.
PLAIN: dict[str, Callable[[Case], None]] = {
    "write": _write,
    "scan": _scan,
    "merge 10 %": _merge,
    "compaction": _compact,
    "index BTREE": _index_ids,
    "index INVERTED": _index_texts,
    "index IVF_SQ": _index_vectors,
    "vector search": _search,
}


def _spark_write(spark: Any, case: Case) -> None:
    spark.read.format("lance").load(str(case.path)).write.mode("append").format("lance").save(
        str(case.path / "new")
    )


def _spark_scan(spark: Any, case: Case) -> None:
    frame = spark.read.format("lance").load(str(case.path))
    assert frame.selectExpr("sum(hash(id, text, vector) * 0 + 1)").first()[0] == case.rows


def _spark_merge(spark: Any, case: Case) -> None:
    target = spark_lance.LanceTable.forPath(spark, str(case.path))
    new_id = f"if(id % 20 < 19, id, id + {case.rows}) AS id"
    tenth = spark.read.format("lance").load(str(case.path)).where("id % 10 = 9")
    source = tenth.selectExpr(new_id, "text", "vector")
    merge = target.alias("t").merge(source.alias("s"), "t.id = s.id")
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def _spark_compact(spark: Any, case: Case) -> None:
    spark_lance.LanceTable.forPath(spark, str(case.path)).optimize().executeCompaction()


def _spark_index_ids(spark: Any, case: Case) -> None:
    spark_lance.LanceTable.forPath(spark, str(case.path)).createScalarIndex("id", "BTREE")


def _spark_index_vectors(spark: Any, case: Case) -> None:
    table = spark_lance.LanceTable.forPath(spark, str(case.path))
    table.createIndex("vector", "IVF_SQ", numPartitions=max(case.rows // 4_000, 1))


SPARK: dict[str, Callable[[Any, Case], None]] = {
    "write": _spark_write,
    "scan": _spark_scan,
    "merge 10 %": _spark_merge,
    "compaction": _spark_compact,
    "index BTREE": _spark_index_ids,
    "index IVF_SQ": _spark_index_vectors,
}


class MemoryWatch:
    """Samples the anonymous memory of this process and its children every few milliseconds.

    Attributes:
        peaks: MB by kind of process: "driver" is this one, "jvm" the JVM, "worker" the largest other one.
        before: MB of this process at the beginning.
    """

    def __init__(self) -> None:
        self.before = _anonymous_mb(os.getpid())
        self.peaks = {"driver": self.before}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        kinds = {os.getpid(): "driver"}
        pending = [os.getpid()]
        while pending:
            for child in _children(pending.pop()):
                kinds[child] = "jvm" if _name(child) == "java" else "worker"
                pending.append(child)
        for process, kind in kinds.items():
            self.peaks[kind] = max(self.peaks.get(kind, 0), _anonymous_mb(process))


def _children(process: int) -> list[int]:
    result: list[int] = []
    for task in _listed(Path(f"/proc/{process}/task")):
        result += map(int, _text(Path(f"/proc/{process}/task/{task}/children")).split())
    return result


def _name(process: int) -> str:
    return _text(Path(f"/proc/{process}/comm")).strip()


def _anonymous_mb(process: int) -> int:
    for line in _text(Path(f"/proc/{process}/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) // 1024
    return 0


def _listed(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except OSError:
        return []  # the process has ended


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""  # the process has ended


def _measure(engine: str, operation: str, case: Case) -> None:
    """Run one operation in this process and print its peaks."""
    if engine == "plain":
        with MemoryWatch() as watch:
            PLAIN[operation](case)
    else:
        spark = start_spark({"spark.driver.memory": "2g"})
        # The first job starts the workers.
        spark.read.format("lance").load(str(case.path)).limit(1).collect()
        with MemoryWatch() as watch:
            SPARK[operation](spark, case)
        spark.stop()
    print(json.dumps({"before": watch.before, **watch.peaks}))


def main() -> None:
    """Run each operation in a separate process and print a line for each."""
    options = parser(__doc__)
    options.add_argument("--rows", default="100000,400000", help="numbers of rows")
    options.add_argument("--floats", default="32,256", help="widths of the vectors")
    options.add_argument("--only", default="", help="the operations whose names contain this")
    options.add_argument("--spark", action="store_true", help="measure Spark's processes, too")
    options.add_argument("--folder", default=None, help="where the tables are written")
    options.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    if arguments.child:
        engine, operation, path, rows, floats = arguments.child
        _measure(engine, operation, Case(Path(path), int(rows), int(floats)))
        return
    results = Results("bench_memory_operations", arguments.keep)
    columns = ("before", "driver", "jvm", "worker")
    print(f"{'operation':22} {'rows':>10} {'bytes/row':>9}" + "".join(f"{name:>8}" for name in columns))
    for floats in map(int, arguments.floats.split(",")):
        for rows in map(int, arguments.rows.split(",")):
            with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                _run_all(arguments, Path(folder) / "table", rows, floats, results)
    results.save()


def _run_all(arguments: argparse.Namespace, path: Path, rows: int, floats: int, results: Results) -> None:
    width = 8 + 8 * 8 + 4 * floats
    engines = {"plain": list(PLAIN)} | ({"spark": list(SPARK)} if arguments.spark else {})
    for engine, operations in engines.items():
        shutil.rmtree(path, ignore_errors=True)
        new_table(path, rows, floats)
        for operation in operations:
            if arguments.only not in operation:
                continue
            if operation == "compaction":
                # Merges have changed the table.
                shutil.rmtree(path)
                new_table(path, rows, floats)
            command = ["-m", "benchmarks.bench_memory_operations", "--child", engine, operation, str(path)]
            output = run_alone([*command, str(rows), str(floats)], SPARK_LANCE_CACHE_BYTES=_CACHE_BYTES)
            peaks = json.loads(output.splitlines()[-1])
            label = operation if engine == "plain" else f"Spark: {operation}"
            cells = "".join(f"{peaks.get(name, ''):>8}" for name in ("before", "driver", "jvm", "worker"))
            print(f"{label:22} {rows:10} {width:9}{cells}", flush=True)
            for name in ("driver", "jvm", "worker"):
                if name in peaks:
                    results.add(
                        f"{label}, {rows} rows of {width} bytes", f"peak of {name}", "MB", peaks[name]
                    )


if __name__ == "__main__":
    main()
