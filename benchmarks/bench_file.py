"""Decoding, writing and taking of single tables beside pylance, one thread each, as ratios of one run.

    python -m benchmarks.bench_file [--rounds N] [--repeat K] [--only WORD]

Reads are of tables that pylance wrote with its default encodings (data storage version 2.2). Every
measurement is a fresh process on one core; the two sides run in turns and the least processor time of each
side is kept. Processor time, because another load on the machine then hits neither side. A ratio above 1
means that spark_lance is faster. Memory-mapped columns are counted as read when they can be used; their
bytes are faulted in by whoever looks at them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa

from benchmarks.columns import COLUMNS, flat_vectors
from benchmarks.tables import flights

_IMPORT = {"ours": "import spark_lance as m", "pylance": "import lance as m"}
_READ = "m.dataset(path).to_table()"
# A new set of rows each time, so that nothing that was decoded before helps.
_TAKE = "m.dataset(path).take(np.random.default_rng(turn).integers(0, 1_000_000, 1000).tolist())"
_WRITE = "m.write_dataset(table, path + f'.{turn}')"
_SCRIPT = """
import shutil, sys, time
import numpy as np, pyarrow as pa
{import_line}
path, repeat = sys.argv[1], int(sys.argv[2])
{prepare}
best = 1e9
for turn in range(repeat):
    start = time.process_time()
    result = {action}
    best = min(best, time.process_time() - start)
    if {writes}:
        shutil.rmtree(path + f'.{{turn}}')
print(best)
"""
_ONE_THREAD = {"LANCE_CPU_THREADS": "1", "LANCE_IO_THREADS": "1", "OMP_NUM_THREADS": "1"}


def seconds(who: str, action: str, path: Path, repeat: int) -> float:
    """Return the least processor seconds of an action in a fresh process."""
    writes = action is _WRITE
    prepare = "table = pa.ipc.open_file(pa.memory_map(path)).read_all()" if writes else ""
    script = _SCRIPT.format(import_line=_IMPORT[who], prepare=prepare, action=action, writes=writes)
    command = [sys.executable, "-c", script, str(path), str(repeat)]
    if shutil.which("taskset"):
        command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), *command]
    done = subprocess.run(command, env={**os.environ, **_ONE_THREAD}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{who} failed:\n{done.stderr}")
    return float(done.stdout)


def compare(action: str, path: Path, rounds: int, repeat: int) -> tuple[float, float]:
    """Return our and pylance's least seconds, measured in turns."""
    best = {who: float("inf") for who in _IMPORT}
    for _ in range(rounds):
        for who in best:
            best[who] = min(best[who], seconds(who, action, path, repeat))
    return best["ours"], best["pylance"]


def report(name: str, size: int, pair: tuple[float, float], goal: float) -> None:
    """Print one line of the table."""
    ours, theirs = pair
    rates = f"{size / ours / 1e6:8.0f} {size / theirs / 1e6:8.0f}"
    times = f"{ours * 1e3:9.2f} {theirs * 1e3:9.2f}"
    verdict = "" if theirs / ours >= goal else "  below"
    print(
        f"{name:24} {size / 1e6:7.1f} {rates} {times} {theirs / ours:7.2f} {goal:5.1f}{verdict}", flush=True
    )


def _written_by_pylance(table: pa.Table, path: Path) -> None:
    lance.write_dataset(table, str(path), data_storage_version="2.2")


def _stored_as_arrow(table: pa.Table, path: Path) -> None:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


def _cases() -> list[tuple[str, str, Callable[[], pa.Table], float]]:
    """Return (name, action, table, goal) of everything that is measured."""
    cases = [(name, _READ, make, goal) for name, (make, goal) in COLUMNS.items()]
    cases += [
        ("take 1000 of vectors", _TAKE, lambda: flat_vectors(1_000_000, 32), 1.0),
        ("take 1000 of flights", _TAKE, lambda: flights(1_000_000), 1.0),
        ("write flights", _WRITE, COLUMNS["flights table"][0], 1.0),
        ("write vectors", _WRITE, COLUMNS["float32 vectors, 128"][0], 1.5),
        ("write text", _WRITE, COLUMNS["FSST text, prose"][0], 1.0),
    ]
    return cases


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes of each side")
    parser.add_argument("--repeat", type=int, default=5, help="measurements in each process")
    parser.add_argument("--only", default="", help="measure the names that contain this")
    arguments = parser.parse_args()
    print(f"{'':24} {'MB':>7} {'ours':>8} {'pylance':>8} {'ours':>9} {'pylance':>9} {'':>7}")
    print(f"{'':24} {'':>7} {'MB/s':>8} {'MB/s':>8} {'ms':>9} {'ms':>9} {'ratio':>7} {'goal':>5}", flush=True)
    for name, action, make, goal in _cases():
        if arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "table"
            table = make()
            size = 1000 * table.nbytes // table.num_rows if action is _TAKE else table.nbytes
            store = _stored_as_arrow if action is _WRITE else _written_by_pylance
            store(table, path)
            del table
            report(name, size, compare(action, path, arguments.rounds, arguments.repeat), goal)


if __name__ == "__main__":
    main()
