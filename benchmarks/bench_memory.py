"""Peak memory of writing and of reading one large data file.

    python -m benchmarks.bench_memory [--gigabytes N] [--only WORD] [--folder PATH] [--numba off|on]

Every case writes one file from a stream of batches, and then reads it as a stream of batches. Each step runs
in a new process that measures its own memory. Anonymous memory is allocated by the process. Mapped pages
belong to the file and to libraries, and the kernel can free them at any time. The goal is 300 MB of anonymous
memory. The file is deleted at the end; the folder must have space for it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import spark_lance
from benchmarks.columns import COLUMNS, flat_vectors
from benchmarks.harness import Results, parser, run_alone
from benchmarks.tables import flights

GOAL = 300
_BATCH_ROWS = 20_000


class _Watch:
    """Looks at the memory of this process every few milliseconds."""

    def __init__(self) -> None:
        self.peak = {"RssAnon": 0, "RssFile": 0}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            for line in Path("/proc/self/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in self.peak:
                    self.peak[name] = max(self.peak[name], int(value.split()[0]) // 1024)


def _vectors() -> pa.Table:
    return flat_vectors(2_000, 768)


def _flights() -> pa.Table:
    return flights(_BATCH_ROWS * 10)


def _text() -> pa.Table:
    return COLUMNS["FSST text, prose"][0]().slice(0, 200_000)


# Name -> rows that are written again and again.
CASES: dict[str, Callable[[], pa.Table]] = {"flights": _flights, "vectors": _vectors, "text": _text}


def _endless(table: pa.Table, path: Path, size: int) -> Iterator[pa.RecordBatch]:
    """Yield the table's rows in ever new places until the file is of about `size` bytes."""
    batches = table.to_batches(_BATCH_ROWS)
    while sum(f.stat().st_size for f in path.glob("data/.tmp*")) < size:
        yield from batches


def _source(path: Path) -> Path:
    return path.with_suffix(".arrow")


def write(path: Path, size: int) -> int:
    """Write the file from what is stored beside it; return the Arrow bytes written."""
    table = pa.ipc.open_file(pa.memory_map(str(_source(path)))).read_all()
    written = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal written
        for batch in _endless(table, path, size):
            written += batch.nbytes
            yield batch

    spark_lance.write_dataset(
        counted(), path, schema=table.schema, max_rows_per_file=1 << 40, max_bytes_per_file=1 << 60
    )
    return written


def read(path: Path) -> int:
    """Read the file batch by batch and look at every byte; return the Arrow bytes."""
    total = 0
    for batch in spark_lance.dataset(path).to_batches():
        total += batch.nbytes
        for column in batch.columns:
            for buffer in column.buffers():
                if buffer is not None:
                    np.frombuffer(buffer, np.uint8)[::4096].max(initial=0)
    return total


def _child(action: str, path: Path, size: int) -> None:
    start = time.perf_counter()
    with _Watch() as watch:
        total = write(path, size) if action == "write" else read(path)
    print(json.dumps({**watch.peak, "bytes": total, "seconds": time.perf_counter() - start}))


def main() -> None:
    """Run every case in processes of its own and print a line for each."""
    options = parser(__doc__)
    options.add_argument("--gigabytes", type=float, default=1.0, help="size of each file")
    options.add_argument("--only", default="", help="the case whose name contains this")
    options.add_argument("--folder", default=None, help="where the files are written")
    options.add_argument("--numba", default="auto", help="SPARK_LANCE_NUMBA of the processes")
    options.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = options.parse_args()
    size = int(arguments.gigabytes * 1e9)
    if arguments.child:
        action, path = arguments.child
        _child(action, Path(path), size)
        return
    print(
        f"{'':16} {'file GB':>8} {'Arrow GB':>8} {'s':>7} {'anonymous MB':>13} {'mapped MB':>10} {'goal':>5}"
    )
    results = Results("bench_memory", arguments.keep)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if shutil.disk_usage(folder).free < 2 * size:
            raise SystemExit(f"{folder} has no room for files of {arguments.gigabytes} GB")
        for case in (name for name in CASES if arguments.only in name):
            path = Path(folder) / case
            table = CASES[case]()
            with pa.ipc.new_file(str(_source(path)), table.schema) as file:
                file.write_table(table)
            for action in ("write", "read"):
                command = ["-m", "benchmarks.bench_memory", "--gigabytes", str(arguments.gigabytes)]
                command += ["--child", action, str(path)]
                figures = json.loads(run_alone(command, SPARK_LANCE_NUMBA=arguments.numba))
                stored = sum(f.stat().st_size for f in path.glob("data/*"))
                print(
                    f"{action + ' ' + case:16} {stored / 1e9:8.2f} {figures['bytes'] / 1e9:8.2f} "
                    f"{figures['seconds']:7.1f} {figures['RssAnon']:10} {figures['RssFile']:10} {GOAL:8}",
                    flush=True,
                )
                label = f"{action} {case}, {arguments.gigabytes:g} GB"
                results.add(label, "peak of anonymous memory", "MB", figures["RssAnon"])
                results.add(label, "time", "s", figures["seconds"])
            shutil.rmtree(path)
    results.save()


if __name__ == "__main__":
    main()
